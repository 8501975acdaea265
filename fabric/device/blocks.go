package device

// This file turns uploaded blocks of ggml into matrices. Blocks of Q2_0 are kept as they are. Others become
// planes: exact ones, or, if the client allows an error, as few as keep its bound. Planes become bands where
// these are faster. If the client allows no error, products are ggml's bit for bit where its order of sums is
// known.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"tensorcast/fabric"
	"tensorcast/fabric/decompose"
	"tensorcast/fabric/kernel"
	"tensorcast/fabric/plan"
	"tensorcast/gguf"
)

// errBound says that not even maxFittedPlanes planes keep the bound.
var errBound = errors.New("the error is larger than the profile allows")

const (
	// maxFittedPlanes is the number of planes up to which fitted ones are tried. Six planes of Q8_0 are exact,
	// and slower than Q8_0.
	maxFittedPlanes = 4
	// fitBlock is how many columns share a factor of fitted planes.
	fitBlock = 32
	// sampleRows is how many rows are fitted first, to see how many planes are needed.
	sampleRows = 64
)

// blocksBytes returns how many bytes the blocks of d take; 0 if they are not of a type and shape that can be uploaded.
func blocksBytes(d *Descriptor) uint64 {
	t := gguf.Type(d.XType)
	if d.Rows == 0 || d.Cols == 0 || d.Rows > maxDim || d.Cols > maxDim || !t.Valid() || d.Cols%fitBlock != 0 ||
		d.Flags&FlagFast != 0 && d.Flags&FlagBalanced != 0 {
		return 0
	}
	row, err := t.RowBytes(int64(d.Cols))
	if err != nil {
		return 0
	}
	return uint64(row) * uint64(d.Rows)
}

// isCodes reports whether d's blocks are multiplied as they are.
func isCodes(d *Descriptor) bool {
	return gguf.Type(d.XType) == gguf.Q2_0 && d.Cols%kernel.CodeCols == 0
}

// copyBlocks copies b, which the client could change at any time, and returns the SHA-256 by which equal
// uploads are found.
func copyBlocks(b []byte, d *Descriptor) ([]byte, [sha256.Size]byte) {
	var sum [sha256.Size]byte
	blocks := bytes.Clone(b)
	head := []byte{'b'}
	for _, v := range []uint32{d.XType, d.Flags, d.Rows, d.Cols} {
		head = binary.LittleEndian.AppendUint32(head, v)
	}
	h := sha256.New()
	h.Write(head)
	h.Write(blocks)
	h.Sum(sum[:0])
	return blocks, sum
}

// readBlocks makes a matrix of blocks, which it may keep, and says in which form that is. The planes may take
// limit bytes. The error wraps decompose.ErrInexact or errBound if there are no planes as d wants them, or
// errFull.
func (e *executor) readBlocks(
	blocks []byte, d *Descriptor, limit int, cancelled func() bool,
) (*fabric.Matrix, weightForm, error) {
	if isCodes(d) {
		return singlePlaneMatrix(int(d.Rows), int(d.Cols), kernel.CodeCols, blocks), weightForm{codes: true}, nil
	}
	m, err := e.makePlanes(blocks, d, limit, cancelled)
	if err != nil {
		return nil, weightForm{}, err
	}
	if d.Flags&(FlagFast|FlagBalanced) == 0 && fabric.HasGGMLOrder(m) {
		return m, weightForm{ordered: true}, nil
	}
	if !fabric.CanPackBands(m) {
		return m, weightForm{}, nil
	}
	f := bandsForm(m)
	b := make([]byte, fabric.BandsBytes(m.Rows, m.Cols, f.bands))
	fabric.PackBands(b, m, e.workers)
	return singlePlaneMatrix(m.Rows, m.Cols, kernel.BandBlock, b), f, nil
}

// singlePlaneMatrix is a matrix whose only plane is b: codes, or bands. Factors for block columns each are a part of b.
func singlePlaneMatrix(rows, cols, block int, b []byte) *fabric.Matrix {
	term := fabric.Term{Planes: [][]byte{b}, Scales: fabric.Scales{Block: block}}
	return &fabric.Matrix{Rows: rows, Cols: cols, Terms: []fabric.Term{term}}
}

// bandsForm is the form of the bands into which m is packed.
func bandsForm(m *fabric.Matrix) weightForm {
	f := weightForm{bands: len(m.Terms[0].Planes)}
	planes := m.Terms[0].Planes
	zeros := make([]uint64, len(planes))
	var wait sync.WaitGroup
	for i, p := range planes {
		wait.Go(func() { zeros[i] = countZeroTrits(m.Layout, p, m.Layout.RowBytes(m.Cols), m.Rows, m.Cols) })
	}
	wait.Wait()
	for _, n := range zeros {
		f.zeros += n
	}
	f.lowZeros = zeros[0]
	return f
}

// makePlanes makes planes of blocks, exact or fitted as d wants them.
func (e *executor) makePlanes(blocks []byte, d *Descriptor, limit int, cancelled func() bool) (*fabric.Matrix, error) {
	rows, cols := int(d.Rows), int(d.Cols)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	o := decompose.Options{Layout: layoutOf(d.Flags), Workers: e.workers, Progress: func(int) {
		if cancelled() {
			stop()
		}
	}}
	t, bound := gguf.Type(d.XType), 0.0
	for _, p := range plan.Profiles() {
		if p.Name == "fast" && d.Flags&FlagFast != 0 || p.Name == "balanced" && d.Flags&FlagBalanced != 0 {
			bound = p.Bound
		}
	}
	size, exact := o.Layout.RowBytes(cols)*rows, decompose.ExactPlanes(t)
	if bound == 0 {
		if size*exact > limit {
			return nil, errFull
		}
		return decompose.Exact(ctx, t, rows, cols, blocks, o)
	}
	row := len(blocks) / rows
	sample := make([]byte, 0, min(rows, sampleRows)*row)
	for i := range min(rows, sampleRows) {
		r := i * rows / min(rows, sampleRows)
		sample = append(sample, blocks[r*row:(r+1)*row]...)
	}
	for planes := 1; planes <= maxFittedPlanes; planes++ {
		if size*planes > limit {
			return nil, errFull
		}
		if planes == exact {
			return decompose.Exact(ctx, t, rows, cols, blocks, o)
		}
		fit := decompose.Fit{Planes: planes, Block: fitBlock, Shared: true}
		_, seen, err := decompose.Lossy(ctx, t, len(sample)/row, cols, sample, fit,
			decompose.Options{Workers: e.workers})
		if err != nil {
			return nil, err
		}
		if seen.SNR() < bound {
			continue
		}
		m, all, err := decompose.Lossy(ctx, t, rows, cols, blocks, fit, o)
		if err != nil || all.SNR() >= bound {
			return m, err
		}
	}
	return nil, fmt.Errorf("%d planes: %w", maxFittedPlanes, errBound)
}
