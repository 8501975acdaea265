package fabric

// This file defines the second operand of a product: a vector that is quantised as ggml does it.

import (
	"fmt"

	"tensorcast/fabric/kernel"
	"tensorcast/fabric/trit"
)

// Activations are a vector of signed bytes with a factor per block: x[i] is approximately Q[i] *
// Scale[i/Block]. Quantize can be called repeatedly and does not allocate. While Quantize or Set
// runs, nobody else may use the vector. At other times any number of goroutines may read it.
type Activations struct {
	Cols  int
	Block int       // 32 or 256
	Q     []int8    // Cols values, then zeros up to the end of a group in any layout
	Scale []float32 // one per block of columns

	// sums has the sum of each four values of Q, which is one lane of the kernels' sums.
	sums []int32
}

// NewActivations allocates a vector of cols values, in blocks of 32 (ggml's Q8_0) or 256 (its Q8_K).
func NewActivations(cols, block int) (*Activations, error) {
	if cols <= 0 || block != 32 && block != 256 {
		return nil, fmt.Errorf("activations: %d values in blocks of %d", cols, block)
	}
	n := paddedCols(cols)
	const overread = 3 // bytes that the kernels of sparse planes read beyond the end
	return &Activations{
		Cols: cols, Block: block,
		Q: make([]int8, n, n+overread), Scale: make([]float32, ceilDiv(cols, block)), sums: make([]int32, n/4),
	}, nil
}

// paddedCols rounds cols up to whole groups of any layout and to whole blocks of 256.
func paddedCols(cols int) int {
	n := 0
	for _, l := range []trit.Layout{trit.PT5Striped, trit.TwoBit} {
		trits, _ := l.Group()
		n = max(n, ceilDiv(cols, trits)*trits)
	}
	return ceilDiv(n, 256) * 256
}

// Quantize stores x. It panics if x does not have Cols values. For finite values the result is
// ggml's, bit for bit:
//
//   - Blocks of 32 are as from quantize_row_q8_0 of ggml's CPU backend on x86. Q = x * (127 / max |x|), rounded to
//     even. Scale = max |x| / 127, as a half.
//   - Blocks of 256 are as from quantize_row_q8_K. Let m be the first value of the largest magnitude.
//     Q = x * (-127 / m), rounded to even and at most 127. Scale = 1 / (-127 / m).
//
// A short last block is quantised as if it were filled up with zeros. A block of zeros has the scale 0.
func (a *Activations) Quantize(x []float32) {
	if len(x) != a.Cols {
		panic(fmt.Sprintf("fabric: %d values for activations of %d", len(x), a.Cols))
	}
	kernel.Best().Quantize(a.Q, a.Scale, x, a.Block)
	kernel.Best().SumFours(a.sums, a.Q)
}

// Set stores integers and the factor of each block. A nil scale stands for factors of 1. It panics
// if q does not have Cols values, or if scale is not nil and does not have a value for each block.
func (a *Activations) Set(q []int8, scale []float32) {
	if len(q) != a.Cols || scale != nil && len(scale) != len(a.Scale) {
		panic(fmt.Sprintf("fabric: %d values and %d factors for activations of %d", len(q), len(scale), a.Cols))
	}
	clear(a.Q[copy(a.Q, q):])
	if scale != nil {
		copy(a.Scale, scale)
	} else {
		for i := range a.Scale {
			a.Scale[i] = 1
		}
	}
	kernel.Best().SumFours(a.sums, a.Q)
}
