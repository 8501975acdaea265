package hyper

// This file owns records: bundles of values under roles, nested, and edited in place.
//
// A record is the ternary form of the sum of role * P(value) over its fields, where * is Bind and P is Permute by 1. A value may be the ternary form of a
// record. A path of roles r0, r1, .. then stands before the value as r0 * P(r1) * P^2(r2) ..: its order matters, and the same roles may serve
// on each level. Since P moves a trit by one place and Bind keeps its place, one trit of a value touches one count of each record that it is in.

import "math/bits"

// Record is a bundle that is kept with its counts, so that changes are exact: whatever was changed in whatever order, the record is the same, bit for
// bit, as one built afresh. It must not be changed by several goroutines at once, nor while one reads it or a record that it is in.
type Record struct {
	sum       *Sum
	trits     Vector
	term      Vector // scratch
	threshold int32
	parent    *Record // nil if the record is in none
	role      Vector  // its role there
}

// NewRecord returns an empty record for vectors of d trits; threshold as in Sum.Ternary.
func NewRecord(d int, threshold int32) *Record {
	return &Record{sum: NewSum(d), trits: New(d), term: New(d), threshold: threshold}
}

// Child returns a new, empty record in r under role, with r's threshold. r follows all its changes. The child keeps role, whose trits must not change.
func (r *Record) Child(role Vector) *Record {
	r.sum.vector(role)
	c := NewRecord(r.trits.Dim(), r.threshold)
	c.parent, c.role = r, role
	return c
}

// Vector is the record's ternary form. It follows the record's changes and must not be changed otherwise.
func (r *Record) Vector() Vector { return r.trits }

// Put adds value under role.
func (r *Record) Put(role, value Vector) { r.add(role, value, 1) }

// Delete takes away what was put under role. With any other value than that it adds noise instead.
func (r *Record) Delete(role, value Vector) { r.add(role, value, -1) }

func (r *Record) add(role, value Vector, weight int32) {
	Permute(r.term, value, 1)
	Bind(r.term, r.term, role)
	r.sum.Add(r.term, weight)
	for w := range r.trits.Plus {
		oldPlus, oldMinus := r.trits.Plus[w], r.trits.Minus[w]
		plus, minus := r.sum.word(w, r.threshold)
		r.trits.Plus[w], r.trits.Minus[w] = plus, minus
		if r.parent == nil {
			continue
		}
		for changed := oldPlus ^ plus | oldMinus ^ minus; changed != 0; changed &= changed - 1 {
			i := bits.TrailingZeros64(changed)
			r.tell(64*w+i, int8(plus>>i&1)-int8(minus>>i&1)-int8(oldPlus>>i&1)+int8(oldMinus>>i&1))
		}
	}
}

// tell makes the parent follow trit i, which grew by delta.
func (r *Record) tell(i int, delta int8) {
	next := (i + 1) % r.trits.Dim()
	r.parent.bump(next, r.role.At(next)*delta)
}

// bump adds delta to count i, and changes what follows from it.
func (r *Record) bump(i int, delta int8) {
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
		r.tell(i, t-old)
	}
}

// Read sets dst to the value under a path of roles of the record v, with the noise of all that v holds besides: a Memory tells what it is.
// scratch is overwritten; it and dst must not overlap each other or the others.
func Read(dst, scratch, v Vector, path ...Vector) {
	dst.check(scratch, v)
	dst.Copy(v)
	for _, role := range path {
		Bind(scratch, dst, role)
		Permute(dst, scratch, -1)
	}
}

// Lens is a view of the value under one role of a record: what is set in it is set in the record, and in all that the record is in.
type Lens struct {
	record      *Record
	role, value Vector
}

// Lens returns a view of the value under role, which must be what was put there: known, or found by Open. The lens copies value; it keeps
// role, whose trits must not change.
func (r *Record) Lens(role, value Vector) *Lens {
	r.sum.vector(role)
	own := New(r.trits.Dim())
	own.Copy(value)
	return &Lens{r, role, own}
}

// Open reads the value under role and returns a view of the vector of m that it is most like, and the match. If that is not what was put there (a full
// record, a value that a lens has changed and m does not know), edits add noise.
func (r *Record) Open(role Vector, m *Memory) (*Lens, Match) {
	noisy := New(r.trits.Dim())
	Read(noisy, r.term, r.trits, role)
	match := m.Nearest(make([]int32, m.Len()), noisy)
	return r.Lens(role, m.At(match.Item)), match
}

// At returns trit i of the value.
func (l *Lens) At(i int) int8 { return l.value.At(i) }

// Value is the value, to be read, or added to a Memory that shall know it. It follows the lens's changes and must not be changed otherwise.
func (l *Lens) Value() Vector { return l.value }

// Set makes trit i of the value what the sign of t is, at the cost of one count per level of nesting.
func (l *Lens) Set(i int, t int8) {
	old := l.value.At(i)
	l.value.Set(i, t)
	next := (i + 1) % l.value.Dim()
	if delta := l.value.At(i) - old; delta != 0 {
		l.record.bump(next, l.role.At(next)*delta)
	}
}

// Replace makes the value another one.
func (l *Lens) Replace(value Vector) {
	l.record.Delete(l.role, l.value)
	l.record.Put(l.role, value)
	l.value.Copy(value)
}
