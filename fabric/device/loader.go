package device

// This file reads held tensors from a file: it chooses how many planes a matrix gets, and makes them, a piece
// of the file at a time.

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"tensorcast/fabric"
	"tensorcast/fabric/decompose"
	"tensorcast/fabric/kernel"
)

// readBytes is about how much of a file is read at a time.
const readBytes = 4 << 20

// loader reads tensors of one file. It is for one goroutine.
type loader struct {
	device     *Device
	file       *heldFile
	dev, ino   uint64 // of the file, as stat(2) has them
	form       Form
	tensors    []Tensor
	impossible []bool // tensors that cannot be held, however much room there is
	buffer     []byte
}

func (l *loader) fail(index int, err error) error {
	return fmt.Errorf("hold %s of %s: %w", l.tensors[index].Name, l.file.file.Name(), err)
}

func (l *loader) location(e *Extent) location {
	return location{l.dev, l.ino, uint64(e.Offset), e.bytes(), e.Type, uint32(e.Rows), uint32(e.Cols)}
}

// loadTensor holds all matrices of a tensor, or none. The error wraps errFull if there is no room.
func (l *loader) loadTensor(ctx context.Context, index int) (err error) {
	matrices, h := l.tensors[index].Matrices, l.device.holdings
	t := heldTensor{index: index}
	defer func() {
		if err != nil {
			for _, at := range t.locations {
				l.device.store.dropHeld(at)
			}
		}
	}()
	planes := 0
	mayRefine := false  // the matrix may have a plane more than it needs
	allRefined := false // there is room for that in all matrices
	for i := range matrices {
		e := &matrices[i]
		if planes == 0 || l.form.Bound > 0 {
			if planes, mayRefine, err = l.choosePlanes(ctx, e); err != nil {
				return err
			}
		}
		if i == 0 {
			var least, most uint64
			for k := range matrices {
				least += l.form.Bytes(&matrices[k], planes)
				most += l.form.Bytes(&matrices[k], planes+1)
			}
			if allRefined = mayRefine && h.fits(0, most); !allRefined && !h.makeRoom(0, least) {
				return errFull
			}
		}
		refined := mayRefine && allRefined && h.fits(t.poolBytes, l.form.Bytes(e, planes+1))
		if !refined && !h.makeRoom(t.poolBytes, l.form.Bytes(e, planes)) {
			return errFull
		}
		w, sample, err := l.loadMatrix(ctx, e, planes, refined)
		if err != nil {
			return err
		}
		w.form.canRefine = mayRefine && w.form.bands == planes
		at := l.location(e)
		l.device.store.addHeld(at, heldMatrix{w, l.file, sample})
		t.locations = append(t.locations, at)
		t.fileBytes += at.bytes
		t.addWeight(w)
	}
	if !h.addTensor(t) {
		return errFull
	}
	return nil
}

// raiseTensor gives the matrices of a held tensor the third planes that they may have, as long as there is
// room; with onlyBelowBound, only those that need them for the form's bound. That a matrix cannot have one is
// no error.
func (l *loader) raiseTensor(ctx context.Context, index int, onlyBelowBound bool) error {
	matrices, h := l.tensors[index].Matrices, l.device.holdings
	for i := range matrices {
		e := &matrices[i]
		at := l.location(e)
		lacks, needs := l.device.store.needsPlane(at)
		if !lacks || onlyBelowBound && !needs || !h.fits(0, l.form.Bytes(e, 3)-l.form.Bytes(e, 2)) {
			continue
		}
		w, _, snr, err := l.readMatrix(ctx, e, 3, !needs)
		if errors.Is(err, errFull) { // of the pool: for a moment it has the planes of both
			continue
		}
		if err != nil {
			return err
		}
		h.replaceWeight(index, at, w, snr >= l.form.Bound && w.form.canCoarsen && w.form.coarsenIfShort == needs)
	}
	return nil
}

// choosePlanes returns how many planes e needs, by some of its rows, and whether it may have one more: without
// that one it still is as the form wants it.
func (l *loader) choosePlanes(ctx context.Context, e *Extent) (planes int, mayRefine bool, err error) {
	switch {
	case e.isCodes():
		return 1, false, nil
	case l.form.Bound == 0:
		return decompose.ExactPlanes(e.Type), false, nil
	}
	rowBytes := e.bytes() / uint64(e.Rows)
	rows := min(e.Rows, sampleRows)
	sample := make([]byte, uint64(rows)*rowBytes)
	for i := range rows {
		row := sample[uint64(i)*rowBytes : uint64(i+1)*rowBytes]
		if err := l.readExtent(row, e, uint64(i*e.Rows/rows)*rowBytes); err != nil {
			return 0, false, err
		}
	}
	fit := func(planes int, o decompose.Options) (decompose.FitError, error) {
		o.Workers = l.device.options.Workers
		_, seen, err := decompose.Lossy(ctx, e.Type, rows, e.Cols, sample, heldFit(planes), o)
		return seen, err
	}
	for planes := 1; planes <= maxFittedPlanes; planes++ {
		if planes == decompose.ExactPlanes(e.Type) {
			return planes, false, nil
		}
		seen, err := fit(planes, decompose.Options{})
		if err != nil {
			return 0, false, err
		}
		if seen.SNR() < l.form.Bound {
			continue
		}
		if l.form.MayBeFiner(planes) && planes+1 != decompose.ExactPlanes(e.Type) {
			seen, err := fit(planes+1, decompose.Options{Coarser: true})
			if err != nil {
				return 0, false, err
			}
			mayRefine = coarserSNR(seen) >= l.form.Bound
		}
		return planes, mayRefine, nil
	}
	return 0, false, fmt.Errorf("%d planes: %w", maxFittedPlanes, errBound)
}

// coarserSNR is the ratio of signal to noise without the lowest plane, in decibels.
func coarserSNR(e decompose.FitError) float64 {
	return decompose.FitError{Signal: e.Signal, Noise: e.Coarser}.SNR()
}

func heldFit(planes int) decompose.Fit {
	return decompose.Fit{Planes: planes, Block: fitBlock, Shared: true}
}

// readExtent reads the bytes of an extent from offset on.
func (l *loader) readExtent(b []byte, e *Extent, offset uint64) error {
	if _, err := l.file.file.ReadAt(b, e.Offset+int64(offset)); err != nil {
		return fmt.Errorf("read weights: %w", err)
	}
	return nil
}

// loadMatrix reads a matrix into the pool, and returns the hash of its sample. With refined, it gets one plane
// more than it needs. It may get more planes than that, if the rows that choosePlanes has read were not the
// worst.
func (l *loader) loadMatrix(ctx context.Context, e *Extent, planes int, refined bool) (*weight, uint64, error) {
	if refined {
		planes++
	}
	for {
		w, sample, snr, err := l.readMatrix(ctx, e, planes, refined)
		switch {
		case err != nil:
			return nil, 0, err
		case l.form.Bound == 0 || snr >= l.form.Bound || e.isCodes() || planes == decompose.ExactPlanes(e.Type):
			return w, sample, nil
		}
		l.device.store.dropWeight(w)
		if planes++; planes > maxFittedPlanes {
			return nil, 0, fmt.Errorf("%d planes: %w", maxFittedPlanes, errBound)
		}
	}
}

// matrixReader makes the weight of one matrix, from pieces of whole rows in their order.
type matrixReader struct {
	l       *loader
	extent  *Extent
	planes  int
	refined bool // one of the planes is more than needed, as far as is known
	form    weightForm
	into    matrixBuilder
	fitted  decompose.FitError // of all rows so far
}

// readMatrix makes a weight of so many planes in the pool, and returns the hash of its sample and the ratio of
// signal to noise in decibels. refined says that one of the planes is more than needed: the weight can lose it
// if that turns out to be true.
func (l *loader) readMatrix(
	ctx context.Context, e *Extent, planes int, refined bool,
) (_ *weight, sample uint64, snr float64, err error) {
	r := &matrixReader{l: l, extent: e, planes: planes, refined: refined, form: weightForm{codes: e.isCodes()}}
	coarserBound := l.form.Bound // that the planes without the lowest one have to keep
	if !refined && l.form.MayBeCoarser(planes) {
		r.refined, r.form.coarsenIfShort, coarserBound = true, true, l.form.Short
	}
	s := l.device.store
	defer func() {
		if err != nil {
			r.into.discard(s)
		}
	}()
	rowBytes := int(e.bytes()) / e.Rows
	step := max(1, readBytes/rowBytes/fabric.BandRows) * fabric.BandRows // rows of a piece
	l.buffer = resized(l.buffer, min(step, e.Rows)*rowBytes)
	hash := newSampleHash(e.bytes())
	for first := 0; first < e.Rows; first += step {
		n := min(step, e.Rows-first)
		b := l.buffer[:n*rowBytes]
		if err := l.readExtent(b, e, uint64(first*rowBytes)); err != nil {
			return nil, 0, 0, err
		}
		// Pages that the target has mapped stay in memory.
		_ = unix.Fadvise(int(l.file.file.Fd()), e.Offset+int64(first*rowBytes), int64(len(b)), unix.FADV_DONTNEED)
		hash.write(b)
		if err := r.addRows(ctx, b, first, n); err != nil {
			return nil, 0, 0, err
		}
	}
	f := &r.form
	if f.canCoarsen = r.refined && f.bands > 0 && coarserSNR(r.fitted) >= coarserBound; f.canCoarsen {
		f.coarserSNR = coarserSNR(r.fitted)
	}
	f.coarsenIfShort = f.coarsenIfShort && f.canCoarsen
	if r.fitted.Noise > 0 {
		f.snr = r.fitted.SNR()
	}
	w, err := newHeldWeight(&r.into, *f)
	return w, hash.sum, r.fitted.SNR(), err
}

// addRows adds n rows, from the row first on, whose blocks are b.
func (r *matrixReader) addRows(ctx context.Context, b []byte, first, n int) error {
	e, s := r.extent, r.l.device.store
	if r.form.codes {
		if first == 0 {
			if err := r.into.takeWhole(s, e, kernel.CodeCols, int(e.bytes())); err != nil {
				return err
			}
		}
		copy(r.into.m.Terms[0].Planes[0][first*len(b)/n:], b)
		return nil
	}
	part, err := r.decompose(ctx, b, n)
	if err != nil {
		return err
	}
	exact := r.l.form.Bound == 0
	r.form.ordered = exact && fabric.HasGGMLOrder(part)
	if !r.form.ordered && fabric.CanPackBands(part) {
		return r.addBands(part, first)
	}
	if first == 0 {
		if err := r.into.takeLike(s, part, e.Rows); err != nil {
			return err
		}
	}
	return r.into.copyRows(part, first)
}

// decompose makes the planes of n rows.
func (r *matrixReader) decompose(ctx context.Context, b []byte, n int) (*fabric.Matrix, error) {
	e, o := r.extent, decompose.Options{Layout: r.l.form.Layout, Workers: r.l.device.options.Workers}
	if r.l.form.Bound == 0 || r.planes == decompose.ExactPlanes(e.Type) {
		return decompose.Exact(ctx, e.Type, n, e.Cols, b, o)
	}
	o.Coarser = r.refined
	part, fitted, err := decompose.Lossy(ctx, e.Type, n, e.Cols, b, heldFit(r.planes), o)
	r.fitted.Add(fitted)
	return part, err
}

// addBands adds rows, from the row first on, as bands.
func (r *matrixReader) addBands(part *fabric.Matrix, first int) error {
	e, f := r.extent, bandsForm(part)
	if first == 0 {
		size := fabric.BandsBytes(e.Rows, e.Cols, f.bands)
		if err := r.into.takeWhole(r.l.device.store, e, kernel.BandBlock, size); err != nil {
			return err
		}
	}
	r.form.bands = f.bands
	r.form.zeros += f.zeros
	r.form.lowZeros += f.lowZeros
	r.refined = r.refined && fabric.CanCoarsenBands(part)
	all := r.into.m.Terms[0].Planes[0]
	fabric.PackBands(all[fabric.BandsBytes(first, e.Cols, f.bands):], part, r.l.device.options.Workers)
	return nil
}
