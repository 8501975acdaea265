package decompose

// This file makes planes that are fitted to weights.

import (
	"context"
	"fmt"
	"math"

	"tensorcast/fabric"
	"tensorcast/gguf"
)

// Fit says how weights are approximated.
type Fit struct {
	Planes int // 1 to 6; without Shared, 1 to 4
	Block  int // columns per block: 16, 32, 64, 128 or 256
	// Shared gives each block one factor. Plane p has 3^p times that factor, so weights become
	// multiples of the factor, and the matrix has one term. Without Shared, each plane has a factor
	// for each block, and is a term of its own. This has a smaller error for the same number of
	// planes, but takes 2 bytes more per block for each plane except the first.
	Shared bool
}

// Check returns an error if f is not valid.
func (f Fit) Check() error {
	limit := maxFree
	if f.Shared {
		limit = maxPlanes
	}
	if f.Planes < 1 || f.Planes > limit {
		return fmt.Errorf("fit %d planes: 1 to %d are possible, or %d with one factor", f.Planes, maxFree, maxPlanes)
	}
	switch f.Block {
	case 16, 32, 64, 128, 256:
		return nil
	}
	return fmt.Errorf("fit planes to blocks of %d weights: 16, 32, 64, 128 and 256 are possible", f.Block)
}

// batchWeights is about how many weights are fitted at a time: many groups of blocks, which fit
// into the second-level cache.
const batchWeights = 1 << 14

// Lossy makes planes that are fitted to src, which has rows of cols weights in blocks of type t.
// Package gguf must be able to decode t. Lossy reduces the squared error of each block by
// alternating least squares, with factors in half precision, as they are stored. It returns the
// remaining error.
//
// The error value wraps ErrNotFinite if a weight is not finite, or gguf.ErrNoDecoder. Lossy uses
// several goroutines. If ctx is cancelled, it ends early with ctx's error.
func Lossy(ctx context.Context, t gguf.Type, rows, cols int, src []byte, fit Fit, o Options) (*fabric.Matrix, FitError,
	error) {
	m, rowBytes, err := o.newMatrix(t, rows, cols, src)
	if err != nil {
		return nil, FitError{}, err
	}
	if err := fit.Check(); err != nil {
		return nil, FitError{}, err
	}
	terms, perTerm := fit.Planes, 1
	if fit.Shared {
		terms, perTerm = 1, fit.Planes
	}
	blocks := ceilDiv(cols, fit.Block)
	var planes [][]byte
	for range terms {
		term := fabric.Term{
			Planes: newPlanes(m, perTerm),
			Scales: fabric.Scales{Block: fit.Block, Half: make([]uint16, rows*blocks)},
		}
		m.Terms = append(m.Terms, term)
		planes = append(planes, term.Planes...)
	}
	// The integers of six digits do not fit into a code of one byte.
	digits := fit.Planes
	if fit.Planes == maxPlanes {
		digits = 3
	}
	offset := 0
	for range digits {
		offset = 3*offset + 1
	}
	pack := newPacker(m.Layout, digits, offset)
	planeBytes := m.Layout.RowBytes(cols)
	errs := make([]FitError, rows)
	err = o.forEachRange(ctx, rows, cols, func(first, end int) error {
		f := newFitter(fit)
		if o.Coarser && fit.Shared && fit.Planes > 1 {
			f.coarse = make([][lanes]int32, fit.Block)
		}
		step := max(1, batchWeights/cols)
		weights := make([]float32, min(step, end-first)*cols)
		// With six digits, a weight has two codes of three digits each.
		codes := [2][]byte{make([]byte, len(weights))}
		if digits < fit.Planes {
			codes[1] = make([]byte, len(weights))
		}
		for ; first < end; first += step {
			n := min(step, end-first)
			if err := gguf.Dequantize(weights[:n*cols], t, src[first*rowBytes:(first+n)*rowBytes]); err != nil {
				return fmt.Errorf("fit planes: %w", err)
			}
			if err := f.fitRows(m, &codes, offset, errs, weights, first, n); err != nil {
				return err
			}
			for i := range codes {
				for r := 0; r < n && codes[i] != nil; r++ {
					pack.packRow(planes[i*digits:], (first+r)*planeBytes, codes[i][r*cols:(r+1)*cols])
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, FitError{}, err
	}
	var total FitError
	for _, e := range errs {
		total.Add(e)
	}
	return m, total, nil
}

// packRow writes the codes of a whole row to the planes, from byte at of each plane on.
func (p *packer) packRow(planes [][]byte, at int, row []byte) {
	for tileBytes := p.layout.RowBytes(tileElems); len(row) > 0; at += tileBytes {
		var tile [tileElems]byte
		size := copy(tile[:], row)
		row = row[size:]
		p.pack(planes, at, &tile, size)
	}
}

// fitRows fits n rows, whose weights are in w. It writes the scales of m's rows from first on, and
// adds the errors of these rows to errs. It also writes codes, which are the weights' integers plus
// offset: one code with all digits, or, if codes[1] is not nil, two with three digits each, the low
// digits in codes[0].
func (f *fitter) fitRows(m *fabric.Matrix, codes *[2][]byte, offset int, errs []FitError, w []float32, first,
	n int) error {
	cols, size := m.Cols, f.fit.Block
	perRow := ceilDiv(cols, size)
	// bounds returns the first weight of a block, and the end of the block.
	bounds := func(b int) (from, to int) {
		from = b / perRow * cols
		return from + b%perRow*size, from + min((b%perRow+1)*size, cols)
	}
	var scales [maxFree][lanes]uint16
	var found [lanes]FitError
	for group := 0; group < n*perRow; group += lanes {
		used := min(lanes, n*perRow-group)
		at, _ := bounds(group)
		// Short or missing blocks are filled up with zeros, which do not affect the others.
		whole := used == lanes && cols%size == 0
		in := w[at:]
		if !whole {
			in = f.weights
			clear(in)
			for l := range used {
				from, to := bounds(group + l)
				copy(in[l*size:], w[from:to])
			}
		}
		loadMagnitudes(f.mags, &f.largest, &f.exponent, in)
		for l, v := range f.largest {
			if !(v <= math.MaxFloat32) {
				from, to := bounds(group + l)
				return fmt.Errorf("fit planes to %v: row %d, columns %d to %d: %w",
					m.Origin, first+from/cols, from%cols, (to-1)%cols, ErrNotFinite)
			}
		}
		f.solve(&scales, &found)
		for l := range used {
			from, _ := bounds(group + l)
			errs[first+from/cols].Add(found[l])
			for i := range m.Terms {
				m.Terms[i].Scales.Half[first*perRow+group+l] = scales[i][l]
			}
		}
		if codes[1] != nil {
			f.storeSplitCodes(codes, in, used, bounds, group)
			continue
		}
		if whole {
			storeCodes(codes[0][at:], f.digits, in, offset)
			continue
		}
		storeCodes(f.codes, f.digits, in, offset)
		for l := range used {
			from, to := bounds(group + l)
			copy(codes[0][from:to], f.codes[l*size:])
		}
	}
	return nil
}

// storeSplitCodes does the work of storeCodes for integers of six digits, which have two codes.
func (f *fitter) storeSplitCodes(codes *[2][]byte, in []float32, used int,
	bounds func(block int) (from, to int), group int) {
	size := f.fit.Block
	for l := range used {
		from, to := bounds(group + l)
		for i, v := range in[l*size:][:to-from] {
			s := int32(math.Float32bits(v)) >> 31
			q := f.digits[i][l] ^ s - s
			high := (q + 13*28) / 27
			codes[0][from+i] = byte(q - 27*(high-13) + 13)
			codes[1][from+i] = byte(high)
		}
	}
}
