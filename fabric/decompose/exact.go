package decompose

// This file converts blocks to exact planes, and exact planes to blocks.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"tensorcast/fabric"
	"tensorcast/gguf"
)

// Exact makes planes from src, which has rows of cols weights in blocks of type t. Bytes can
// restore src from these planes. They are the balanced-ternary digits of the blocks' integer codes,
// minus half their range if the codes are unsigned. Scales and minima are kept bit for bit.
//
// The error wraps ErrInexact if there are no such planes: for types that have none (see
// ExactPlanes), and for TQ1_0 and TQ2_0 with bytes that do not encode trits. Exact uses several
// goroutines. If ctx is cancelled, it ends early with ctx's error.
func Exact(ctx context.Context, t gguf.Type, rows, cols int, src []byte, o Options) (*fabric.Matrix, error) {
	c := codecs[t]
	if c == nil {
		return nil, fmt.Errorf("decompose %v: %w", t, ErrInexact)
	}
	m, rowBytes, err := o.newMatrix(t, rows, cols, src)
	if err != nil {
		return nil, err
	}
	m.Exact = true
	m.Terms = []fabric.Term{{Planes: newPlanes(m, c.planes), Center: c.center, Scales: c.newScales(rows * cols)}}
	if c.min {
		m.Min = c.newScales(rows * cols)
	}
	pack := newPacker(m.Layout, c.planes, c.offset)
	planeBytes, tileBytes := m.Layout.RowBytes(cols), m.Layout.RowBytes(tileElems)
	err = o.forEachRange(ctx, rows, cols, func(first, end int) error {
		var codes [tileElems]byte
		var f factors
		for r := first; r < end; r++ {
			row := src[r*rowBytes : (r+1)*rowBytes]
			at := r * planeBytes
			for col := 0; col < cols; col += tileElems {
				n := min(tileElems, cols-col)
				size := n / int(t.BlockElems()) * int(t.BlockBytes())
				f = c.factorsOf(m, r*cols+col, r*cols+col+n)
				if !c.split(codes[:], &f, row[:size]) {
					return fmt.Errorf("decompose %v: row %d, columns %d to %d have bytes that encode no trits: %w",
						t, r, col, col+n-1, ErrInexact)
				}
				pack.pack(m.Terms[0].Planes, at, &codes, n)
				row, at = row[size:], at+tileBytes
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// errNotExact is wrapped by the errors of Bytes.
var errNotExact = errors.New("the matrix is no exact decomposition")

// RestoreBlocks writes the blocks of type m.Origin from which m was made to dst. dst must have the size of
// m.Rows rows. It is an error if m is not exact or not as Exact makes it, i.e. if planes, scales or
// minima have the wrong number or size, or values that the type's blocks cannot hold.
func RestoreBlocks(dst []byte, m *fabric.Matrix) error {
	c := codecs[m.Origin]
	if !m.Exact || c == nil {
		return fmt.Errorf("rebuild %v: %w", m.Origin, errNotExact)
	}
	rowBytes, err := m.Origin.RowBytes(int64(m.Cols))
	if err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	if int64(len(dst)) != int64(m.Rows)*rowBytes {
		return fmt.Errorf("rebuild %v: %d bytes of space for %d rows of %d", m.Origin, len(dst), m.Rows, rowBytes)
	}
	if err := c.checkForm(m); err != nil {
		return fmt.Errorf("rebuild %v: %w", m.Origin, err)
	}
	tile := (tileElems / int(m.Origin.BlockElems())) * int(m.Origin.BlockBytes())
	ints := make([]int32, m.Cols)
	trits := make([]int8, m.Cols)
	var codes, again [tileElems]byte
	for r := range m.Rows {
		if err := unpackIntegers(ints, trits, m, &m.Terms[0], r); err != nil {
			return fmt.Errorf("rebuild %v: %w", m.Origin, err)
		}
		row := dst[int64(r)*rowBytes : int64(r+1)*rowBytes]
		for col := 0; col < m.Cols; col += tileElems {
			n := min(tileElems, m.Cols-col)
			for i, v := range ints[col : col+n] {
				codes[i] = byte(int(v-c.center) + c.offset)
			}
			b := row[:min(tile, len(row))]
			row = row[len(b):]
			f := c.factorsOf(m, r*m.Cols+col, r*m.Cols+col+n)
			c.join(b, codes[:n], &f)
			// join truncates values that do not fit into the blocks' bits. Splitting the blocks
			// again shows this.
			g := f.clone()
			if !c.split(again[:], &g, b) || !bytes.Equal(codes[:n], again[:n]) ||
				!f.equal(&g) || !c.codesFit(ints[col:col+n]) {
				return fmt.Errorf("rebuild %v: row %d, columns %d to %d do not fit its blocks: %w",
					m.Origin, r, col, col+n-1, errNotExact)
			}
		}
	}
	return nil
}

// codesFit reports whether the codes of the integers fit into a byte.
func (c *codec) codesFit(ints []int32) bool {
	for _, v := range ints {
		if code := int(v-c.center) + c.offset; code < 0 || code > 255 {
			return false
		}
	}
	return true
}

// checkForm returns an error if m does not have the form that Exact gives to this type.
func (c *codec) checkForm(m *fabric.Matrix) error {
	n := m.Rows * m.Cols
	same := func(s *fabric.Scales, want bool) bool {
		if !want {
			return s.Half == nil && s.Sub == nil && s.Super == nil
		}
		if c.halfs {
			return s.Block == c.block && len(s.Half) == n/c.block && s.Sub == nil && s.Super == nil
		}
		return s.Block == c.block && s.Half == nil && len(s.Sub) == n/c.block && len(s.Super) == n/256
	}
	if len(m.Terms) != 1 || len(m.Terms[0].Planes) != c.planes || m.Terms[0].Center != c.center ||
		!same(&m.Terms[0].Scales, true) || !same(&m.Min, c.min) {
		return errNotExact
	}
	return checkPlanes(m)
}

func (f *factors) clone() factors {
	copied := func(l *factorList) factorList {
		return factorList{slices.Clone(l.half), slices.Clone(l.sub), slices.Clone(l.super)}
	}
	return factors{copied(&f.scale), copied(&f.min)}
}

func (f *factors) equal(g *factors) bool {
	same := func(a, b *factorList) bool {
		return slices.Equal(a.half, b.half) && slices.Equal(a.sub, b.sub) && slices.Equal(a.super, b.super)
	}
	return same(&f.scale, &g.scale) && same(&f.min, &g.min)
}
