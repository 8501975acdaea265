package hyper

// This file tests block codes.

import (
	"math/bits"
	"testing"
)

func blockCode(d int, seed uint64) Vector {
	v := New(d)
	RandomBlocks(v, newRand(seed))
	return v
}

// tritOfBlock returns the position and the sign of the only trit of block w.
func tritOfBlock(t *testing.T, v Vector, w int) (int, int8) {
	t.Helper()
	if bits.OnesCount64(v.Plus[w])+bits.OnesCount64(v.Minus[w]) != 1 {
		t.Fatalf("block %d is %x, %x, want one trit", w, v.Plus[w], v.Minus[w])
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
		i, s := tritOfBlock(t, a, w)
		j, r := tritOfBlock(t, b, w)
		k, q := tritOfBlock(t, ab, w)
		if k != (i+j)%64 || q != s*r {
			t.Fatalf("block %d: positions %d (sign %d) and %d (%d) give %d (%d), want %d (%d)",
				w, i, s, j, r, k, q, (i+j)%64, s*r)
		}
		if s < 0 {
			negative++
		}
	}
	if negative < 88 || negative > 168 {
		t.Errorf("%d of 256 signs are negative, want 88 to 168", negative)
	}
	if !equal(ab, bind(b, a)) || !equal(bind(ab, c), bind(a, bind(b, c))) {
		t.Error("binding is not commutative, or not associative")
	}
	if !equal(unbind(ab, b), a) || !equal(unbind(ab, a), b) {
		t.Error("unbinding does not restore the vector")
	}
	for name, other := range map[string]Vector{"first": a, "second": b, "third": c} {
		// Of 256 blocks 1/64 have the same position: 4 on average, whose signs cancel.
		if dot := Dot(ab, other); dot < -16 || dot > 16 {
			t.Errorf("dot product of the bound vectors and the %s is %d, want -16 to 16", name, dot)
		}
	}
	// A key binds a sum of block codes, or any vector, as it binds its parts.
	any := dense(d, newRand(34))
	if !equal(unbind(bind(any, c), c), any) {
		t.Error("a vector that is not a block code is not restored by unbinding")
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
		t.Error("binding in place gives another result")
	}
}
