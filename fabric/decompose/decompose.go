// Package decompose converts ggml's tensors to matrices of ternary planes, and back to weights.
//
// [Exact] makes planes from which [Bytes] restores the blocks of a quantised tensor bit for bit.
// [Lossy] makes fewer planes, fitted to the weights. [Dequantize] computes the weights that planes
// represent. Package fabric/plan chooses between exact and fitted planes.
//
// The functions work on whole tensors as rows of a matrix. In a tensor of experts, the rows of all
// experts follow each other. Rows are independent of each other: the rows of an expert are the same
// as if that expert had been decomposed alone.
package decompose

// This file defines options and errors, and distributes rows over goroutines.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"tensorcast/fabric"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

// ErrInexact says that weights have no exact planes. Either their type has none, or their bytes
// differ from the encoding that Bytes would restore.
var ErrInexact = errors.New("no exact planes")

// ErrNotFinite says that weights are infinite or NaN, so planes cannot be fitted to them.
var ErrNotFinite = errors.New("a weight is not finite")

// Options apply to all decompositions. The zero value is valid.
type Options struct {
	Layout  trit.Layout // layout of the planes; 0: trit.PT5Striped
	Workers int         // largest number of goroutines; 0: GOMAXPROCS
	// Progress, if not nil, is called with the number of rows done so far, by one goroutine at a time.
	Progress func(rows int)
	// Coarser asks Lossy to compute Error.Coarser, if it fits several planes with a shared factor.
	Coarser bool
}

// FitError compares fitted weights with the original ones. It is a measure, not an error value.
type FitError struct {
	Signal float64 // sum of the squared weights
	Noise  float64 // sum of the squared differences
	// Coarser is what Noise would be without the lowest plane, i.e. if the integers were rounded to
	// multiples of three and the factor, a half, were three times as large. It is 0 unless
	// Options.Coarser is set.
	Coarser float64
}

// Add adds the sums of other weights to e.
func (e *FitError) Add(f FitError) {
	e.Signal += f.Signal
	e.Noise += f.Noise
	e.Coarser += f.Coarser
}

// SNR is the ratio of signal to noise in decibels, or +Inf if there is no noise.
//
// Products have the same ratio: if the elements of x are independent with equal variance, the noise
// of Wx relative to Wx is the noise of W relative to W.
func (e FitError) SNR() float64 {
	if e.Noise == 0 {
		return math.Inf(1)
	}
	return 10 * math.Log10(e.Signal/e.Noise)
}

// chunkWeights is about how many weights a goroutine processes at a time. This is enough to make
// the overhead small, and few enough to end within milliseconds after a cancellation.
const chunkWeights = 1 << 18

// forEachRange calls do concurrently for ranges of rows that cover all rows. It returns the first
// error, or that of ctx.
func (o *Options) forEachRange(ctx context.Context, rows, cols int, do func(first, end int) error) error {
	workers := o.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	step := max(1, chunkWeights/max(cols, 1))
	var mu sync.Mutex
	done := 0
	g, group := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for first := 0; first < rows && group.Err() == nil; first += step {
		end := min(first+step, rows)
		g.Go(func() error {
			if err := group.Err(); err != nil {
				return err
			}
			if err := do(first, end); err != nil {
				return err
			}
			if o.Progress != nil {
				mu.Lock()
				defer mu.Unlock()
				done += end - first
				o.Progress(done)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// newMatrix checks that src has the right size and returns a matrix without terms. It also returns
// the number of bytes per row of src.
func (o *Options) newMatrix(t gguf.Type, rows, cols int, src []byte) (*fabric.Matrix, int, error) {
	layout := o.Layout
	if layout == 0 {
		layout = trit.PT5Striped
	}
	if !layout.Valid() {
		return nil, 0, fmt.Errorf("decompose into planes: no such layout: %v", layout)
	}
	if rows <= 0 || cols <= 0 {
		return nil, 0, fmt.Errorf("decompose %v: %d rows of %d columns are no matrix", t, rows, cols)
	}
	rowBytes, err := t.RowBytes(int64(cols))
	if err != nil {
		return nil, 0, fmt.Errorf("decompose: %w", err)
	}
	if int64(len(src)) != int64(rows)*rowBytes {
		return nil, 0, fmt.Errorf("decompose: %d bytes for %d rows of %d bytes (%v)", len(src), rows, rowBytes, t)
	}
	return &fabric.Matrix{Rows: rows, Cols: cols, Layout: layout, Origin: t}, int(rowBytes), nil
}

// newPlanes allocates n planes of m's size.
func newPlanes(m *fabric.Matrix, n int) [][]byte {
	planes := make([][]byte, n)
	for p := range planes {
		planes[p] = make([]byte, m.Rows*m.Layout.RowBytes(m.Cols))
	}
	return planes
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
