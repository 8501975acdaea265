package device

// This file has the interface of holding. A device reads weights of a model file itself and keeps them for clients
// that have the file mapped. Clients find them by where they lie in the file, so they need not upload them, and need
// not have the file in memory. holdings.go decides which tensors are held, loader.go reads them, and held.go is the
// table in which clients look.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"tensorcast/fabric"
	"tensorcast/fabric/decompose"
	"tensorcast/fabric/kernel"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

// Extent is where the weights of a matrix lie in a file: rows of blocks of a type, as in a GGUF file.
type Extent struct {
	Offset     int64
	Type       gguf.Type
	Rows, Cols int // Cols is a multiple of 32
}

// bytes is the extent's length; 0 if there is no such matrix.
func (e *Extent) bytes() uint64 {
	if e.Offset < 0 || e.Rows < 0 || e.Cols < 0 || e.Rows > maxDim || e.Cols > maxDim {
		return 0
	}
	return blocksBytes(&Descriptor{Rows: uint32(e.Rows), Cols: uint32(e.Cols), XType: uint32(e.Type)})
}

// isCodes reports whether the blocks are multiplied as they are in the file.
func (e *Extent) isCodes() bool { return e.Type == gguf.Q2_0 && e.Cols%kernel.CodeCols == 0 }

// Tensor is held as a whole or not at all: a matrix, or several, such as those of an expert.
type Tensor struct {
	Name     string
	Matrices []Extent
}

// Form is how weights are held.
type Form struct {
	// Bound is the least ratio of a matrix's products to their error, in decibels. A matrix gets as few planes
	// as keep it. 0: the planes are exact.
	Bound float64
	// Layout of the planes: PT5Striped is the smaller, TwoBit the faster.
	Layout trit.Layout
	// Finer gives weights for which two planes are enough a third one while there is room for it. Only planes
	// that are multiplied as bands can do so, in processors that have kernels for both.
	Finer bool
	// Short is the bound while memory is short, if it is less than Bound: weights that need three planes for
	// Bound may lose the lowest one then, with the same condition as for Finer. 0: they keep it, or are let go
	// as a whole.
	Short float64
}

// MayBeFiner reports whether weights that need so many planes may have one more.
func (f *Form) MayBeFiner(planes int) bool {
	return f.Finer && f.Bound > 0 && planes == 2 && kernel.Best().HasBands(3)
}

// MayBeCoarser reports whether weights that need so many planes may lose one while memory is short.
func (f *Form) MayBeCoarser(planes int) bool {
	return f.Short > 0 && f.Short < f.Bound && planes == 3 && kernel.Best().HasBands(3)
}

// Bytes is about how many bytes of memory e takes with so many planes.
func (f *Form) Bytes(e *Extent, planes int) uint64 {
	switch {
	case e.isCodes():
		return e.bytes()
	case f.Bound > 0 && kernel.Best().HasBands(planes):
		return uint64(fabric.BandsBytes(e.Rows, e.Cols, planes))
	}
	weights := uint64(e.Rows) * uint64(e.Cols)
	return uint64(f.Layout.RowBytes(e.Cols))*uint64(e.Rows)*uint64(planes) + 2*weights/fitBlock
}

// Holding says what is held.
type Holding struct {
	Tensors int `json:"tensors"` // held tensors
	// Wanted tensors that are not held: there was no room, or the form's bound cannot be kept.
	Left    int    `json:"left"`
	Bytes   uint64 `json:"bytes"`    // bytes of the file that the held tensors are
	Planes  uint64 `json:"planes"`   // bytes of their planes and factors
	Loading bool   `json:"loading"`  // more may be held soon
	GivenUp int    `json:"given_up"` // tensors that were let go because others needed the memory
	Coarser int    `json:"coarser"`  // held tensors that have a plane less than they would have if there were room
	// Those of them that have more error than the form's bound allows, as memory is short.
	Below   int    `json:"below"`
	Lowered int    `json:"lowered"` // how often a tensor lost a plane, because others needed its memory
	Raised  int    `json:"raised"`  // how often a tensor got a third plane, when there was room again
	Faults  uint64 `json:"faults"`  // major page faults of this process since it began
	Room    uint64 `json:"room"`    // bytes that planes and factors may take
	// Which has a bit for each of the tensors that Hold was told of, from the lowest bit of a byte on: 1 if it is held.
	Which []byte `json:"which"`

	// Decibels is the least ratio of products to their error among the held tensors; 0 if nothing is held, or
	// nothing with an error.
	Decibels float64 `json:"least_snr_db"`
}

// WillHold says that Hold will be called: clients that ask before are told to ask again.
func (d *Device) WillHold() {
	d.holdings.announce()
	d.store.setLoading(true)
}

// WillWish says that Wish will be called: Hold reads nothing before that.
func (d *Device) WillWish() { d.holdings.expectWish() }

// Wish says which of the tensors that Hold is told of are to be held, by their indices, and in which order: the
// last one is let go first. Tensors that are held and not among them are let go. Before the first call, all
// tensors are wished for, in their order.
func (d *Device) Wish(which []int) { d.holdings.setWish(which) }

// Room changes how many bytes of the pool the held tensors may take. If they take more, they give way in this
// order, the last ones first: tensors that have a plane more than they need lose it; then those lose it that
// need it for the form's bound, but not for the bound while memory is short (Form.Short); then tensors are let
// go as a whole. The memory is given back to the system as soon as no product reads it.
func (d *Device) Room(bytes uint64) { d.holdings.setRoom(bytes) }

// Hold reads tensors of a GGUF file and holds them as long as there is room, in their order or that of
// [Device.Wish]. A tensor that finds no room takes that of the third planes of others (Form.Finer), the last
// ones first. A tensor that still finds none, or cannot keep the form's bound, is left out. Until all tensors
// have been tried once, clients that ask for one that is not held are told to ask again.
//
// Then Hold waits for more room or for other wishes, and goes on, until ctx ends: that is its error. Call it at
// most once, before or while Serve runs. It uses several goroutines. The file must stay open as long as the
// device; its offset is not changed.
func (d *Device) Hold(ctx context.Context, file *os.File, tensors []Tensor, form Form) error {
	l, err := newLoader(d, file, tensors, form)
	if err != nil {
		return err
	}
	d.WillHold()
	defer d.store.setLoading(false)
	h := d.holdings
	if err := h.awaitFirstWish(ctx); err != nil {
		return err
	}
	for {
		revision, order := h.wishedOrder(len(tensors))
		// Tensors with more error than the bound allows come before tensors that are not held.
		if err := l.raiseAll(ctx, order, true); err != nil {
			return err
		}
		left, err := l.loadMissing(ctx, revision, order)
		if err != nil {
			return err
		}
		if h.wishRevision() != revision {
			continue
		}
		d.store.setLoading(false)
		h.setLeft(left)
		if err := l.raiseAll(ctx, order, false); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.changed:
		}
	}
}

// maxFullInRow is how many tensors in a row may find no room before the others are not tried: some rows of each
// are read to see how many planes it needs.
const maxFullInRow = 12

// loadMissing loads the tensors of order that are not held, until the wishes change. It returns how many of
// them are not held.
func (l *loader) loadMissing(ctx context.Context, revision int, order []int) (left int, err error) {
	h := l.device.holdings
	full := 0 // tensors in a row that found no room
	for _, i := range order {
		if h.isHeld(i) {
			continue
		}
		left++
		if l.impossible[i] || full == maxFullInRow || h.wishRevision() != revision {
			continue
		}
		err := l.loadTensor(ctx, i)
		switch {
		case err == nil:
			left, full = left-1, 0
		case errors.Is(err, errFull):
			full++
		case cannotBeHeld(err):
			l.device.options.Log.Info("not held", "tensor", l.tensors[i].Name, "why", err)
			l.impossible[i] = true
		default:
			return left, l.fail(i, err)
		}
	}
	return left, nil
}

// cannotBeHeld reports whether an error says that a tensor cannot be held in the form, however much room there is.
func cannotBeHeld(err error) bool {
	for _, why := range []error{errBound, decompose.ErrInexact, decompose.ErrNotFinite, gguf.ErrNoDecoder,
		fabric.ErrOperand} {
		if errors.Is(err, why) {
			return true
		}
	}
	return false
}

// raiseAll raises the precision of held tensors, see raiseTensor.
func (l *loader) raiseAll(ctx context.Context, order []int, onlyBelowBound bool) error {
	for _, i := range order {
		if err := l.raiseTensor(ctx, i, onlyBelowBound); err != nil {
			return l.fail(i, err)
		}
	}
	return nil
}

// newLoader checks the file and the extents.
func newLoader(d *Device, file *os.File, tensors []Tensor, form Form) (*loader, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("hold weights of %s: %w", file.Name(), err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("hold weights of %s: it is no regular file", file.Name())
	}
	for i := range tensors {
		for _, e := range tensors[i].Matrices {
			n := e.bytes()
			if n == 0 || uint64(e.Offset) > uint64(info.Size()) || n > uint64(info.Size())-uint64(e.Offset) {
				return nil, fmt.Errorf("hold %s of %s: %v, %d rows of %d columns at %d is no matrix of this file",
					tensors[i].Name, file.Name(), e.Type, e.Rows, e.Cols, e.Offset)
			}
		}
	}
	return &loader{
		device: d, file: &heldFile{file, info}, dev: uint64(st.Dev), ino: st.Ino, form: form,
		tensors: tensors, impossible: make([]bool, len(tensors)),
	}, nil
}
