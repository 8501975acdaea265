// Package tryte implements numbers of several trits, for values that need exact edits and
// arithmetic. A [Tryte] is one number, a [Vector] is many. [Calibrate] determines how many trits
// floats need. Package fabric/lab/tryteplan uses it.
//
// A number of depth n is the sum of t_d 3^d for d from 0 to n-1. It ranges from -Max(n) to Max(n),
// and each integer in that range has exactly one form. Both types have the properties of balanced
// ternary:
//
//   - Negation inverts every trit. Every number has its opposite.
//   - A sum beyond the range is the result plus a carry of -1 or +1 times 3^n. There is an overflow if the carry is
//     not 0.
//   - Numbers are ordered like their trits, from the highest down.
//   - Dropping low trits rounds to the nearest number. There are no ties.
package tryte

// This file implements single numbers.

import (
	"fmt"
	"math/bits"
)

// MaxDepth is the largest number of trits of a number. Max(MaxDepth) fits into an int32.
const MaxDepth = 20

var powers = func() (p [MaxDepth + 1]int64) {
	p[0] = 1
	for i := range MaxDepth {
		p[i+1] = 3 * p[i]
	}
	return
}()

// Max is the largest number with depth trits, (3^depth - 1) / 2. It panics if depth is not in
// 0..MaxDepth.
func Max(depth int) int32 { return int32((powers[depth] - 1) / 2) }

// Tryte is a number of up to MaxDepth trits, stored as two words of bits: one for the trits that
// are +1, and one for those that are -1. The zero value is 0. Trytes are equal (==) if their
// numbers are.
type Tryte struct{ plus, minus uint32 }

// fiveTrits has the trits of the numbers -121 to 121: those that are +1 in the low byte, those that
// are -1 in the high byte.
var fiveTrits = func() (table [243]uint16) {
	for i := range table {
		for d, n := 0, i; d < 5; d, n = d+1, n/3 {
			switch n % 3 {
			case 2:
				table[i] |= 1 << d
			case 0:
				table[i] |= 256 << d
			}
		}
	}
	return
}()

// Of returns v as a Tryte. It panics if v is not in -Max(MaxDepth)..Max(MaxDepth).
func Of(v int32) Tryte {
	if v < -Max(MaxDepth) || v > Max(MaxDepth) {
		panic(fmt.Sprintf("tryte: %d does not fit %d trits", v, MaxDepth))
	}
	return fromInt(v)
}

// fromInt is Of for numbers that are in range.
func fromInt(v int32) (t Tryte) {
	// Adding 1 to each trit turns it into a digit of an ordinary ternary number.
	n := uint32(v + Max(MaxDepth))
	for d := 0; d < MaxDepth; d += 5 {
		c := fiveTrits[n%243]
		t.plus |= uint32(c&0xff) << d
		t.minus |= uint32(c>>8) << d
		n /= 243
	}
	return t
}

// Int returns the number.
func (t Tryte) Int() int32 {
	v := int64(0)
	for p := t.plus; p != 0; p &= p - 1 {
		v += powers[bits.TrailingZeros32(p)]
	}
	for m := t.minus; m != 0; m &= m - 1 {
		v -= powers[bits.TrailingZeros32(m)]
	}
	return int32(v)
}

// String lists the trits, from the highest that is not 0 down: "+0-" is 8.
func (t Tryte) String() string {
	b := []byte{}
	for d := max(t.Depth(), 1) - 1; d >= 0; d-- {
		b = append(b, "-0+"[t.Trit(d)+1])
	}
	return string(b)
}

// Depth is the number of trits up to the highest that is not 0. It is 0 for the number 0.
func (t Tryte) Depth() int { return bits.Len32(t.plus | t.minus) }

// Trit returns the trit of 3^d. It panics if d is not in 0..MaxDepth-1.
func (t Tryte) Trit(d int) int8 {
	checkTritIndex(d)
	return int8(t.plus>>d&1) - int8(t.minus>>d&1)
}

// With returns t with the trit of 3^d replaced. It panics if d is not in 0..MaxDepth-1 or trit not
// in -1..1.
func (t Tryte) With(d int, trit int8) Tryte {
	checkTritIndex(d)
	plus, minus := signMasks(trit)
	t.plus = t.plus&^(1<<d) | uint32(plus&1)<<d
	t.minus = t.minus&^(1<<d) | uint32(minus&1)<<d
	return t
}

// checkTritIndex panics if d is not the index of a trit.
func checkTritIndex(d int) {
	if d < 0 || d >= MaxDepth {
		panic(fmt.Sprintf("tryte: no trit %d", d))
	}
}

// signMasks returns words of ones for the sign that the trit has.
func signMasks(trit int8) (plus, minus uint64) {
	switch trit {
	case 1:
		return ^uint64(0), 0
	case -1:
		return 0, ^uint64(0)
	case 0:
		return 0, 0
	}
	panic(fmt.Sprintf("tryte: %d is not a trit", trit))
}

// bitWord is a word with one bit per trit.
type bitWord interface{ uint32 | uint64 }

// halfAdd adds trits position by position, without carrying: the sum is s + 3k.
func halfAdd[W bitWord](ap, am, bp, bm W) (sp, sm, kp, km W) {
	kp, km = ap&bp, am&bm
	p, m := ap|bp, am|bm
	return p&^m&^kp | km, m&^p&^km | kp, kp, km
}

// Add returns t + u in depth trits, and the carry: the exact sum is sum + carry 3^depth. It panics
// if depth is not in 0..MaxDepth, or less than an operand's depth.
func (t Tryte) Add(u Tryte, depth int) (sum Tryte, carry int8) {
	if depth > MaxDepth || max(t.Depth(), u.Depth()) > depth {
		panic(fmt.Sprintf("tryte: numbers of %d and %d trits in %d", t.Depth(), u.Depth(), depth))
	}
	// All positions are added at once. Carries that cause further carries take another round. A
	// carry out of the highest position does not.
	for u != (Tryte{}) {
		var k Tryte
		t.plus, t.minus, k.plus, k.minus = halfAdd(t.plus, t.minus, u.plus, u.minus)
		k.plus, k.minus = k.plus<<1, k.minus<<1
		carry += int8(k.plus>>depth&1) - int8(k.minus>>depth&1)
		u = k.truncate(depth)
	}
	return t, carry
}

// truncate returns t without the trits from depth on.
func (t Tryte) truncate(depth int) Tryte {
	mask := uint32(1)<<depth - 1
	return Tryte{t.plus & mask, t.minus & mask}
}

// Sub returns t - u, see Add.
func (t Tryte) Sub(u Tryte, depth int) (difference Tryte, carry int8) { return t.Add(u.Neg(), depth) }

// Neg returns -t.
func (t Tryte) Neg() Tryte { return Tryte{t.minus, t.plus} }

// Mul returns t times a trit. It panics if the trit is not in -1..1.
func (t Tryte) Mul(trit int8) Tryte {
	plus, minus := signMasks(trit)
	p, m := uint32(plus), uint32(minus)
	return Tryte{t.plus&p | t.minus&m, t.plus&m | t.minus&p}
}

// Shift returns t times 3^k in depth trits. If k is negative, the result is rounded to the nearest
// number. fits is false if trits other than 0 were lost at the top. It panics if depth is not in
// 0..MaxDepth.
func (t Tryte) Shift(k, depth int) (shifted Tryte, fits bool) {
	if depth < 0 || depth > MaxDepth {
		panic(fmt.Sprintf("tryte: %d trits", depth))
	}
	k = max(-MaxDepth, min(k, MaxDepth))
	if k < 0 {
		t, k = Tryte{t.plus >> -k, t.minus >> -k}, 0
	}
	fits = t.Depth() == 0 || t.Depth()+k <= depth
	return Tryte{t.plus << k, t.minus << k}.truncate(depth), fits
}

// Cmp returns -1, 0 or +1 if t is less than, equal to or greater than u.
func (t Tryte) Cmp(u Tryte) int {
	differ := (t.plus ^ u.plus) | (t.minus ^ u.minus)
	if differ == 0 {
		return 0
	}
	d := bits.Len32(differ) - 1
	if t.Trit(d) < u.Trit(d) {
		return -1
	}
	return 1
}
