package hyper

// This file implements records: bundles of values under roles, which can be nested and edited in place.
//
// A record is the ternary form of the sum of role * P(value) over its fields, where * is Bind and P
// is Permute by 1. A value may itself be the ternary form of a record. Then the value at a path of
// roles r0, r1, .. is multiplied by r0 * P(r1) * P^2(r2) and so on. So the order of the path
// matters, and the same roles can be used on each level. P moves each trit by one position, and
// Bind moves none. So a trit of a value affects one count of each record that contains the value.

import "math/bits"

// Record is a bundle that is kept together with its counts, so that changes are exact: after any
// changes in any order, the record is the same, bit for bit, as one built from scratch. It must not
// be changed concurrently. Nor may it be changed while it is being read, or a record that contains
// it.
type Record struct {
	sum       *Sum
	trits     Vector
	term      Vector // scratch
	threshold int32
	parent    *Record // nil if the record is in no other
	role      Vector  // its role there
}

// NewRecord returns an empty record for vectors of d trits. threshold is as in Sum.Ternary.
func NewRecord(d int, threshold int32) *Record {
	return &Record{sum: NewSum(d), trits: New(d), term: New(d), threshold: threshold}
}

// Child returns a new, empty record in r under role, with r's threshold. r follows all changes of
// the child. The child keeps a reference to role, whose trits must not change.
func (r *Record) Child(role Vector) *Record {
	r.sum.checkDimension(role)
	c := NewRecord(r.trits.Dim(), r.threshold)
	c.parent, c.role = r, role
	return c
}

// Vector is the record's ternary form. It is updated when the record changes, and must not be
// changed by the caller.
func (r *Record) Vector() Vector { return r.trits }

// Put adds value under role.
func (r *Record) Put(role, value Vector) { r.add(role, value, 1) }

// Delete removes what was put under role. value must be the value that was put. Any other value
// adds noise.
func (r *Record) Delete(role, value Vector) { r.add(role, value, -1) }

func (r *Record) add(role, value Vector, weight int32) {
	Permute(r.term, value, 1)
	Bind(r.term, r.term, role)
	r.sum.Add(r.term, weight)
	for w := range r.trits.Plus {
		oldPlus, oldMinus := r.trits.Plus[w], r.trits.Minus[w]
		plus, minus := r.sum.ternaryWord(w, r.threshold)
		r.trits.Plus[w], r.trits.Minus[w] = plus, minus
		if r.parent == nil {
			continue
		}
		for changed := oldPlus ^ plus | oldMinus ^ minus; changed != 0; changed &= changed - 1 {
			i := bits.TrailingZeros64(changed)
			r.updateParent(64*w+i, int8(plus>>i&1)-int8(minus>>i&1)-int8(oldPlus>>i&1)+int8(oldMinus>>i&1))
		}
	}
}

// updateParent updates the parent after trit i has grown by delta.
func (r *Record) updateParent(i int, delta int8) {
	next := (i + 1) % r.trits.Dim()
	r.parent.changeCount(next, r.role.At(next)*delta)
}

// changeCount adds delta to count i, and updates the trit and the parent.
func (r *Record) changeCount(i int, delta int8) {
	c := r.sum.Counts[i] + int32(delta)
	r.sum.Counts[i] = c
	var t int8
	switch {
	case c > r.threshold:
		t = 1
	case c < -r.threshold:
		t = -1
	}
	old := r.trits.At(i)
	if t == old {
		return
	}
	r.trits.Set(i, t)
	if r.parent != nil {
		r.updateParent(i, t-old)
	}
}

// Read sets dst to the value at a path of roles in the record v, plus noise from everything else in
// v. A Memory can identify the value. scratch is overwritten. scratch and dst must not overlap each
// other or the arguments.
func Read(dst, scratch, v Vector, path ...Vector) {
	dst.checkDimensions(scratch, v)
	dst.Copy(v)
	for _, role := range path {
		Bind(scratch, dst, role)
		Permute(dst, scratch, -1)
	}
}

// Lens is a view of the value under one role of a record. Changes through it change the record, and
// all records that contain it.
type Lens struct {
	record      *Record
	role, value Vector
}

// Lens returns a view of the value under role. value must be what was put there: known to the
// caller, or found by Open. The lens copies value. It keeps a reference to role, whose trits must
// not change.
func (r *Record) Lens(role, value Vector) *Lens {
	r.sum.checkDimension(role)
	own := New(r.trits.Dim())
	own.Copy(value)
	return &Lens{r, role, own}
}

// Open reads the value under role, and finds the most similar vector of m. It returns a view of
// that vector, and the match. The match may differ from the value that was put there: if the record
// is too full, or if a lens has changed the value to one that m does not know. Then edits add
// noise.
func (r *Record) Open(role Vector, m *Memory) (*Lens, Match) {
	noisy := New(r.trits.Dim())
	Read(noisy, r.term, r.trits, role)
	match := m.Nearest(make([]int32, m.Len()), noisy)
	return r.Lens(role, m.At(match.Item)), match
}

// At returns trit i of the value.
func (l *Lens) At(i int) int8 { return l.value.At(i) }

// Value is the current value. It follows the changes of the lens. The caller may read it or add it
// to a Memory, but must not change it.
func (l *Lens) Value() Vector { return l.value }

// Set sets trit i of the value to the sign of t. It changes one count per level of nesting.
func (l *Lens) Set(i int, t int8) {
	old := l.value.At(i)
	l.value.Set(i, t)
	next := (i + 1) % l.value.Dim()
	if delta := l.value.At(i) - old; delta != 0 {
		l.record.changeCount(next, l.role.At(next)*delta)
	}
}

// Replace replaces the value.
func (l *Lens) Replace(value Vector) {
	l.record.Delete(l.role, l.value)
	l.record.Put(l.role, value)
	l.value.Copy(value)
}
