// Package decompose makes ternary planes of ggml's tensors, and weights of planes.
//
// Exact gives planes from which Bytes rebuilds the blocks of a quantised tensor bit for bit; Lossy gives fewer planes, fitted to the weights;
// Dequantize gives the weights that planes stand for.
//
// The functions work on whole tensors as rows of a matrix. A tensor of experts is its experts' rows, one after the other: no row knows of
// another, so that an expert's slice of rows is what its own decomposition would be.
package decompose

// This file holds what callers choose, and the sharing of rows among goroutines.

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

// ErrInexact says that weights have no exact planes: their type has none, or their bytes are not the one encoding that Bytes rebuilds.
var ErrInexact = errors.New("no exact planes")

// ErrNotFinite says that weights are infinite or not a number, to which planes cannot be fitted.
var ErrNotFinite = errors.New("a weight is not finite")

// Options are those of any decomposition. The zero value is valid.
type Options struct {
	Layout   trit.Layout    // of the planes; trit.PT5Striped if it is 0
	Workers  int            // goroutines at most; as many as GOMAXPROCS if it is 0
	Progress func(rows int) // if it is not nil, it is called with the number of rows done so far, by one goroutine at a time
}

// Error is how far fitted weights are from those that they were fitted to, both sums over all weights.
type Error struct {
	Signal float64 // of the squares of the weights
	Noise  float64 // of the squares of the differences
}

// SNR is the ratio of signal to noise in decibels: +Inf if there is no noise.
//
// It is that of the products, too: with x of independent elements of equal variance, the noise of Wx is to Wx as that of W is to W.
func (e Error) SNR() float64 {
	if e.Noise == 0 {
		return math.Inf(1)
	}
	return 10 * math.Log10(e.Signal/e.Noise)
}

// chunk is about how many weights a goroutine takes at once: enough to make the taking cheap, few enough for an end within milliseconds.
const chunk = 1 << 18

// eachRows calls do for ranges of rows that together are all rows, from several goroutines at once.
func (o *Options) eachRows(ctx context.Context, rows, cols int, do func(first, end int) error) error {
	workers := o.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	step := max(1, chunk/max(cols, 1))
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

// begin makes a matrix without terms, and checks that src holds it. It returns the bytes of a row of src.
func (o *Options) begin(t gguf.Type, rows, cols int, src []byte) (*fabric.Matrix, int, error) {
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

// newPlanes makes n planes of m's size.
func newPlanes(m *fabric.Matrix, n int) [][]byte {
	planes := make([][]byte, n)
	for p := range planes {
		planes[p] = make([]byte, m.Rows*m.Layout.RowBytes(m.Cols))
	}
	return planes
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
