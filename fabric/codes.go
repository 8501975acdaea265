package fabric

// This file multiplies ggml's Q2_0 blocks without taking them apart: an Operand that reads them where they lie, which may be a mapped file.

import (
	"fmt"

	"tensorcast/fabric/kernel"
	"tensorcast/gguf"
)

// NewCodes returns an operand of rows of cols weights each, in blocks of type Q2_0 as they are in a GGUF file: blocks, of which nothing is
// copied, must not change as long as the operand is used. cols is a multiple of 64. All four values of a code are exact. The error wraps
// ErrOperand.
//
// It can do what other operands can; activations are best in blocks of 32, as ggml's are: then products, of one vector or of many, are those of
// ggml_vec_dot_q2_0_q8_0 bit for bit, as its builds for processors with fused multiply-adds (from AVX2 on) compute it.
func NewCodes(rows, cols int, blocks []byte) (*Operand, error) {
	switch {
	case rows < 1 || cols < 1 || cols%kernel.CodeCols != 0 || cols > maxCols:
		return nil, fmt.Errorf("%w: %d rows of %d columns in blocks of %d", ErrOperand, rows, cols, kernel.CodeCols)
	case len(blocks)%(cols/kernel.CodeCols*kernel.CodeBlock) != 0 || len(blocks)/(cols/kernel.CodeCols*kernel.CodeBlock) != rows:
		return nil, fmt.Errorf("%w: %d bytes of Q2_0 for %d rows of %d columns", ErrOperand, len(blocks), rows, cols)
	}
	return &Operand{m: &Matrix{Rows: rows, Cols: cols, Origin: gguf.Q2_0, Exact: true}, level: kernel.Best(), codes: blocks}, nil
}

// maxCols keeps products of sizes within an int.
const maxCols = 1 << 31

// multiplyCodes computes rows first to end-1.
func (o *Operand) multiplyCodes(dst [][]float32, first, end int, p *panel, s *Scratch) {
	width := o.m.Cols / kernel.CodeCols
	row := width * kernel.CodeBlock
	tiled := 0
	if o.level.HasCodeTiles() && len(dst) >= minTiled {
		tiled = len(dst) &^ 1
		for _, d := range dst[:tiled] {
			clear(d[first:end])
		}
		s.tiles(p, dst[:tiled], first, end, o.level.MultiplyCodesTile, func(weights []byte, factors []float32, r, rows int) {
			o.level.DecodeCodes(weights, factors, o.codes[r*row:(r+rows)*row], width, rows)
		})
	}
	c := &s.codes
	for i := tiled; i < len(dst); i++ {
		x, bias, scale := p.of(i)
		*c = kernel.Codes{Blocks: o.codes[first*row : end*row], Width: width, Count: end - first, X: x, Bias: bias, Scale: scale, Dst: dst[i][first:end]}
		o.level.MultiplyCodes(c)
	}
	*c = kernel.Codes{}
}
