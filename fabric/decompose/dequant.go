package decompose

// This file computes the weights that planes represent.

import (
	"errors"
	"fmt"

	"tensorcast/fabric"
	"tensorcast/gguf/half"
)

var errShape = errors.New("planes or scales do not have the matrix' size")

// Dequantize writes the weights of a row to dst, which has m.Cols elements. For an exact matrix
// these are, bit for bit, what ggml and gguf.Dequantize compute from the original blocks, except
// for the sign of NaNs. Terms are summed in order, in float32.
//
// The error wraps trit.ErrInvalid if planes hold invalid trits. A matrix whose parts have the wrong
// size is an error, too. Dequantize may be called concurrently.
func Dequantize(dst []float32, m *fabric.Matrix, row int) error {
	if len(dst) != m.Cols || row < 0 || row >= m.Rows {
		return fmt.Errorf("weights of row %d of %d: %d elements of space for %d columns", row, m.Rows, len(dst), m.Cols)
	}
	if err := checkPlanes(m); err != nil {
		return err
	}
	ints, trits := make([]int32, m.Cols), make([]int8, m.Cols)
	for i := range m.Terms {
		if err := unpackIntegers(ints, trits, m, &m.Terms[i], row); err != nil {
			return err
		}
		s := &m.Terms[i].Scales
		scale := float32(1)
		for c, v := range ints {
			if s.Block > 0 && c%s.Block == 0 {
				scale = blockFactor(s, row, m.Cols, c)
			}
			// The first term is assigned, because adding it to 0 would lose the sign of -0.
			if w := float32(scale * float32(v)); i == 0 {
				dst[c] = w
			} else {
				dst[c] += w
			}
		}
	}
	if s := &m.Min; s.Block > 0 {
		var min float32
		for c := range dst {
			if c%s.Block == 0 {
				min = blockFactor(s, row, m.Cols, c)
			}
			dst[c] -= min
		}
	}
	return nil
}

// blockFactor returns the factor of the block that has column col of a row. It is the half, times
// the small integer if there is one, computed as in ggml.
func blockFactor(s *fabric.Scales, row, cols, col int) float32 {
	block := row*ceilDiv(cols, s.Block) + col/s.Block
	if s.Sub == nil {
		return half.Float32(s.Half[block])
	}
	return float32(half.Float32(s.Super[row*ceilDiv(cols, 256)+col/256]) * float32(s.Sub[block]))
}

// unpackIntegers computes the integers of a row of a term: the sum of its planes' digits and its
// center. trits is scratch of the same length as dst.
func unpackIntegers(dst []int32, trits []int8, m *fabric.Matrix, term *fabric.Term, row int) error {
	for c := range dst {
		dst[c] = term.Center
	}
	size := m.Layout.RowBytes(m.Cols)
	weight := int32(1)
	for p, plane := range term.Planes {
		if err := m.Layout.Unpack(trits, plane[row*size:(row+1)*size]); err != nil {
			return fmt.Errorf("row %d, plane %d: %w", row, p, err)
		}
		for c, t := range trits {
			dst[c] += weight * int32(t)
		}
		weight *= 3
	}
	return nil
}

// checkPlanes checks that planes and scales have the size of the matrix.
func checkPlanes(m *fabric.Matrix) error {
	if !m.Layout.Valid() || m.Rows <= 0 || m.Cols <= 0 || len(m.Terms) == 0 {
		return errShape
	}
	scalesFit := func(s *fabric.Scales) bool {
		if s.Block <= 0 || len(s.Half)+len(s.Sub) == 0 {
			return s.Block == 0 && len(s.Half)+len(s.Sub)+len(s.Super) == 0
		}
		blocks := m.Rows * ceilDiv(m.Cols, s.Block)
		if s.Sub == nil {
			return len(s.Half) == blocks && s.Super == nil
		}
		return len(s.Sub) == blocks && len(s.Super) == m.Rows*ceilDiv(m.Cols, 256) && s.Half == nil
	}
	if !scalesFit(&m.Min) {
		return errShape
	}
	for i := range m.Terms {
		if !scalesFit(&m.Terms[i].Scales) {
			return errShape
		}
		for _, plane := range m.Terms[i].Planes {
			if len(plane) != m.Rows*m.Layout.RowBytes(m.Cols) {
				return errShape
			}
		}
	}
	return nil
}
