package fabric

// This file holds the other operand of a product: a vector, quantised as ggml does it.

import (
	"fmt"

	"tensorcast/fabric/kernel"
	"tensorcast/fabric/trit"
)

// Activations are a vector as signed bytes with a factor per block: x[i] is about Q[i] * Scale[i/Block]. Quantize may fill them again and
// again, without allocation; meanwhile nobody may read them. Otherwise any number of goroutines may.
type Activations struct {
	Cols  int
	Block int       // 32 or 256
	Q     []int8    // Cols values, and zeros up to the end of a group of any layout
	Scale []float32 // one per block of Cols

	// Of each four of Q the sum, which is a lane of the kernels' sums.
	sums []int32
}

// NewActivations makes room for cols values, in blocks of 32 (ggml's Q8_0) or of 256 (its Q8_K).
func NewActivations(cols, block int) (*Activations, error) {
	if cols <= 0 || block != 32 && block != 256 {
		return nil, fmt.Errorf("activations: %d values in blocks of %d", cols, block)
	}
	n := paddedCols(cols)
	const overread = 3 // of the kernels of sparse planes
	return &Activations{
		Cols: cols, Block: block, Q: make([]int8, n, n+overread), Scale: make([]float32, ceilDiv(cols, block)), sums: make([]int32, n/4),
	}, nil
}

// paddedCols is the columns of whole groups of any layout, and of whole blocks of 256 above them.
func paddedCols(cols int) int {
	n := 0
	for _, l := range []trit.Layout{trit.PT5Striped, trit.TwoBit} {
		trits, _ := l.Group()
		n = max(n, ceilDiv(cols, trits)*trits)
	}
	return ceilDiv(n, 256) * 256
}

// Quantize stores x, of Cols values; it panics if there are fewer or more. Of finite values it makes what ggml makes, bit for bit:
//
//   - blocks of 32: quantize_row_q8_0 of ggml's CPU backend on x86: Q = x * (127 / max |x|), rounded to even; Scale = max |x| / 127, as a half
//   - blocks of 256: quantize_row_q8_K: with m the first value of the largest magnitude, Q = x * (-127 / m), at most 127, rounded to even;
//     Scale = 1 / (-127 / m)
//
// A short last block is quantised as if zeros followed. A block of zeros has the scale 0.
func (a *Activations) Quantize(x []float32) {
	if len(x) != a.Cols {
		panic(fmt.Sprintf("fabric: %d values for activations of %d", len(x), a.Cols))
	}
	kernel.Best().Quantize(a.Q, a.Scale, x, a.Block)
	kernel.Best().SumFours(a.sums, a.Q)
}
