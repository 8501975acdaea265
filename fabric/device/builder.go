package device

// This file builds matrices straight into the pool, so that no second copy of their planes is needed.

import (
	"errors"
	"fmt"
	"unsafe"

	"tensorcast/fabric"
)

// matrixBuilder is a matrix whose planes and factors lie in the pool, and whose rows come a few at a time.
type matrixBuilder struct {
	m      fabric.Matrix
	pieces [][]byte // of the pool, other than planes: the factors
}

// takeWhole takes room for a matrix whose only plane has so many bytes, with factors for block columns each
// among them. The error is errFull.
func (f *matrixBuilder) takeWhole(s *store, e *Extent, block, bytes int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.pool.Take(bytes)
	if err != nil {
		return errFull
	}
	f.m = *singlePlaneMatrix(e.Rows, e.Cols, block, b)
	return nil
}

// takeLike takes room for so many rows that are like those of part. The error is errFull.
func (f *matrixBuilder) takeLike(s *store, part *fabric.Matrix, rows int) error {
	f.m = *part
	f.m.Rows, f.m.Terms = rows, nil
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range part.Terms {
		t := part.Terms[i]
		t.Planes = nil
		for _, p := range part.Terms[i].Planes {
			b, err := s.pool.Take(len(p) / part.Rows * rows)
			if err != nil {
				f.m.Terms = append(f.m.Terms, t)
				return errFull
			}
			t.Planes = append(t.Planes, b)
		}
		f.m.Terms = append(f.m.Terms, t)
		if err := f.takeScales(s, &f.m.Terms[i].Scales, &part.Terms[i].Scales, part.Rows, rows); err != nil {
			return err
		}
	}
	return f.takeScales(s, &f.m.Min, &part.Min, part.Rows, rows)
}

// takeScales takes room for the factors of rows; from are those of had rows. s.mu is held.
func (f *matrixBuilder) takeScales(s *store, to, from *fabric.Scales, had, rows int) error {
	take := func(n int) ([]byte, error) {
		if n == 0 {
			return nil, nil
		}
		b, err := s.pool.Take(n / had * rows)
		if err != nil {
			return nil, errFull
		}
		f.pieces = append(f.pieces, b)
		return b, nil
	}
	half, err := take(2 * len(from.Half))
	if err != nil {
		return err
	}
	sub, err := take(len(from.Sub))
	if err != nil {
		return err
	}
	super, err := take(2 * len(from.Super))
	if err != nil {
		return err
	}
	to.Half, to.Sub, to.Super = viewAs[uint16](half), viewAs[int8](sub), viewAs[uint16](super)
	return nil
}

// viewAs sees a piece of the pool, which begins at a page, as numbers of another type; nil if it is empty.
func viewAs[T int8 | uint16](b []byte) []T {
	var t T
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

// copyRows copies some rows, from the row first on.
func (f *matrixBuilder) copyRows(part *fabric.Matrix, first int) error {
	if len(part.Terms) != len(f.m.Terms) {
		return fmt.Errorf("rows of %d terms in a matrix of %d", len(part.Terms), len(f.m.Terms))
	}
	for i := range part.Terms {
		to, from := &f.m.Terms[i], &part.Terms[i]
		if len(to.Planes) != len(from.Planes) || to.Center != from.Center {
			return errors.New("rows of a matrix differ in their planes")
		}
		for p, b := range from.Planes {
			copy(to.Planes[p][len(b)/part.Rows*first:], b)
		}
		copyScales(&to.Scales, &from.Scales, part.Rows, first)
	}
	copyScales(&f.m.Min, &part.Min, part.Rows, first)
	return nil
}

// copyScales copies the factors of had rows to those from the row first on.
func copyScales(to, from *fabric.Scales, had, first int) {
	copy(to.Half[len(from.Half)/had*first:], from.Half)
	copy(to.Sub[len(from.Sub)/had*first:], from.Sub)
	copy(to.Super[len(from.Super)/had*first:], from.Super)
}

// discard gives everything back to the pool.
func (f *matrixBuilder) discard(s *store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range f.m.Terms {
		for _, p := range f.m.Terms[i].Planes {
			s.freePiece(p)
		}
	}
	for _, p := range f.pieces {
		s.freePiece(p)
	}
	*f = matrixBuilder{}
}

// newHeldWeight makes a weight of a matrix that is complete. The caller has a reference to it; f is empty
// afterwards, unless there is an error.
func newHeldWeight(f *matrixBuilder, form weightForm) (*weight, error) {
	m := f.m
	w := &weight{matrix: &m, tritsPerPlane: uint64(m.Rows) * uint64(m.Cols), form: form, refs: 1}
	if _, err := w.newOperand(&m); err != nil {
		return nil, err
	}
	for t := range m.Terms {
		for i, b := range m.Terms[t].Planes {
			w.planes = append(w.planes, plane{term: t, index: i, bytes: b, resident: true, zeros: w.countZeros(b)})
		}
	}
	w.pieces = f.pieces
	*f = matrixBuilder{}
	return w, nil
}
