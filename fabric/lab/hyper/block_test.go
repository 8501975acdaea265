package hyper

import (
	"math/bits"
	"testing"
)

func blockCode(d int, seed uint64) Vector {
	v := New(d)
	RandomBlocks(v, seeded(seed))
	return v
}

// position is the place and the sign of the one trit of a block.
func position(t *testing.T, v Vector, w int) (int, int8) {
	t.Helper()
	if bits.OnesCount64(v.Plus[w])+bits.OnesCount64(v.Minus[w]) != 1 {
		t.Fatalf("block %d is %x, %x", w, v.Plus[w], v.Minus[w])
	}
	i := bits.TrailingZeros64(v.Plus[w] | v.Minus[w])
	return i, v.At(64*w + i)
}

func TestBlocks(t *testing.T) {
	const d = 64 * 256
	a, b, c := blockCode(d, 31), blockCode(d, 32), blockCode(d, 33)
	bind := func(a, b Vector) Vector { v := New(d); BlockBind(v, a, b); return v }
	unbind := func(a, b Vector) Vector { v := New(d); BlockUnbind(v, a, b); return v }
	ab := bind(a, b)
	negative := 0
	for w := range ab.Plus {
		i, s := position(t, a, w)
		j, r := position(t, b, w)
		k, q := position(t, ab, w)
		if k != (i+j)%64 || q != s*r {
			t.Fatalf("block %d: %d (%d) and %d (%d) give %d (%d)", w, i, s, j, r, k, q)
		}
		if s < 0 {
			negative++
		}
	}
	if negative < 88 || negative > 168 {
		t.Errorf("%d of 256 signs are negative", negative)
	}
	if !equal(ab, bind(b, a)) || !equal(bind(ab, c), bind(a, bind(b, c))) {
		t.Error("not commutative, or not associative")
	}
	if !equal(unbind(ab, b), a) || !equal(unbind(ab, a), b) {
		t.Error("unbinding does not give back")
	}
	for name, other := range map[string]Vector{"first": a, "second": b, "third": c} {
		// 256 blocks, of which 1/64 meet: 4 on average, signs cancel.
		if dot := Dot(ab, other); dot < -16 || dot > 16 {
			t.Errorf("what is bound resembles the %s: %d", name, dot)
		}
	}
	// A sum of block codes, and anything else, is bound by a key as its parts are.
	any := dense(d, seeded(34))
	if !equal(unbind(bind(any, c), c), any) {
		t.Error("a vector that is no block code does not come back")
	}
	parts, whole := NewSum(d), NewSum(d)
	parts.Add(bind(a, c), 1)
	parts.Add(bind(b, c), 1)
	whole.Add(a, 1)
	whole.Add(b, 1)
	x, y := New(d), New(d)
	parts.Ternary(x, 0)
	whole.Ternary(y, 0)
	if !equal(x, bind(y, c)) {
		t.Error("binding does not distribute over sums")
	}
	inPlace := New(d)
	inPlace.Copy(b)
	if BlockBind(inPlace, a, inPlace); !equal(inPlace, ab) {
		t.Error("differs in place")
	}
}
