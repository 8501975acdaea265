package fabric

// This file multiplies ggml's Q2_0 blocks without converting them. The operand reads them in place,
// for example in a mapped file.

import (
	"fmt"

	"tensorcast/fabric/kernel"
	"tensorcast/gguf"
)

// NewCodes returns an operand of rows of cols weights each, in blocks of type Q2_0 as in a GGUF
// file. The blocks are not copied, and must not change as long as the operand is used. cols is a
// multiple of 64. All four values of a code are exact. The error wraps ErrOperand.
//
// The operand supports the same products as others. Activations should be in blocks of 32, as
// ggml's are. Then products, of one vector or of many, are those of ggml_vec_dot_q2_0_q8_0 bit for
// bit, as ggml's builds for processors with fused multiply-adds (AVX2 and later) compute it.
func NewCodes(rows, cols int, blocks []byte) (*Operand, error) {
	switch {
	case rows < 1 || cols < 1 || cols%kernel.CodeCols != 0 || cols > maxCols:
		return nil, fmt.Errorf("%w: %d rows of %d columns in blocks of %d", ErrOperand, rows, cols, kernel.CodeCols)
	case len(blocks)%(cols/kernel.CodeCols*kernel.CodeBlock) != 0,
		len(blocks)/(cols/kernel.CodeCols*kernel.CodeBlock) != rows:
		return nil, fmt.Errorf("%w: %d bytes of Q2_0 for %d rows of %d columns", ErrOperand, len(blocks), rows, cols)
	}
	m := &Matrix{Rows: rows, Cols: cols, Origin: gguf.Q2_0, Exact: true}
	return &Operand{m: m, level: kernel.Best(), codes: blocks}, nil
}

// maxCols is a limit that keeps products of sizes within an int.
const maxCols = 1 << 31

// multiplyCodes computes rows first to end-1 of the products with the vectors of p.
func (o *Operand) multiplyCodes(dst [][]float32, first, end int, p *panel, s *Scratch) {
	width := o.m.Cols / kernel.CodeCols
	row := width * kernel.CodeBlock
	tiled := 0
	if o.level.HasCodeTiles() && len(dst) >= minTiled {
		tiled = len(dst) &^ 1
		for _, d := range dst[:tiled] {
			clear(d[first:end])
		}
		decode := func(weights []byte, factors []float32, r, rows int) {
			o.level.DecodeCodes(weights, factors, o.codes[r*row:(r+rows)*row], width, rows)
		}
		s.multiplyTiles(p, dst[:tiled], first, end, o.level.MultiplyCodesTile, decode)
	}
	c := &s.codes
	for i := tiled; i < len(dst); i++ {
		x, bias, scale := p.vector(i)
		*c = kernel.Codes{
			Blocks: o.codes[first*row : end*row], Width: width, Count: end - first,
			X: x, Bias: bias, Scale: scale, Dst: dst[i][first:end],
		}
		o.level.MultiplyCodes(c)
	}
	*c = kernel.Codes{}
}
