package tryte

// This file implements vectors of numbers, bit-sliced: one word has the same trit of 64 elements,
// so that the carries of 64 elements propagate together.

import (
	"fmt"
	"math"
	"math/bits"
)

// Overflow says what happens to a result beyond the range.
type Overflow uint8

const (
	Wrap     Overflow = iota // take it modulo 3^depth: the carry is dropped
	Saturate                 // replace it by the nearest number of the range
)

// Vector holds numbers of one depth. Methods that set a vector take the operands as arguments,
// which may be the vector itself. They panic if lengths or depths do not agree as documented. One
// goroutine may change a vector, or any number may read it.
type Vector struct {
	n, depth, words int

	// Trit d of element i is bit i%64 of word d*words + i/64. Bits after the last element are 0.
	plus, minus []uint64

	// Elements whose last result was above or below the range.
	over, under []uint64
}

// NewVector returns n zeros of depth trits. It panics if n is negative or depth is not in 1..MaxDepth.
func NewVector(n, depth int) *Vector {
	if n < 0 || depth < 1 || depth > MaxDepth {
		panic(fmt.Sprintf("tryte: a vector of %d numbers of %d trits", n, depth))
	}
	w := (n + 63) / 64
	return &Vector{
		n: n, depth: depth, words: w,
		plus: make([]uint64, w*depth), minus: make([]uint64, w*depth),
		over: make([]uint64, w), under: make([]uint64, w),
	}
}

// Len is the number of elements.
func (v *Vector) Len() int { return v.n }

// Depth is the number of trits of an element.
func (v *Vector) Depth() int { return v.depth }

// Plane returns the trit of 3^d of all elements, bit-sliced. Bit i%64 of word i/64 is set in plus
// if element i has +1, and in minus if it has -1. The words belong to the vector, so changing them
// changes it. Never set a bit in both, or one after the last element.
func (v *Vector) Plane(d int) (plus, minus []uint64) {
	from, to := d*v.words, (d+1)*v.words
	return v.plus[from:to:to], v.minus[from:to:to]
}

func (v *Vector) checkIndex(i int) {
	if uint(i) >= uint(v.n) {
		panic(fmt.Sprintf("tryte: element %d of %d", i, v.n))
	}
}

// At returns element i.
func (v *Vector) At(i int) (t Tryte) {
	v.checkIndex(i)
	for d := range v.depth {
		w := d*v.words + i/64
		t.plus |= uint32(v.plus[w]>>(i%64)&1) << d
		t.minus |= uint32(v.minus[w]>>(i%64)&1) << d
	}
	return t
}

// Set sets element i to t. It panics if t has more trits than the vector.
func (v *Vector) Set(i int, t Tryte) {
	v.checkIndex(i)
	if t.Depth() > v.depth {
		panic(fmt.Sprintf("tryte: %d trits in a vector of %d", t.Depth(), v.depth))
	}
	for d := range v.depth {
		v.putTrit(i, d, uint64(t.plus>>d&1), uint64(t.minus>>d&1))
	}
}

// putTrit sets trit d of element i; plus and minus are 0 or 1.
func (v *Vector) putTrit(i, d int, plus, minus uint64) {
	w, bit := d*v.words+i/64, i%64
	v.plus[w] = v.plus[w]&^(1<<bit) | plus<<bit
	v.minus[w] = v.minus[w]&^(1<<bit) | minus<<bit
}

// SetTrit sets the trit of 3^d of element i, and nothing else.
func (v *Vector) SetTrit(i, d int, trit int8) {
	v.checkIndex(i)
	if uint(d) >= uint(v.depth) {
		panic(fmt.Sprintf("tryte: trit %d of %d", d, v.depth))
	}
	plus, minus := signMasks(trit)
	v.putTrit(i, d, plus&1, minus&1)
}

// Over is +1 if the last operation's result for element i was above the range, -1 if it was below,
// and otherwise 0. After Add and Sub this is the carry: with Wrap, the exact result is At(i) +
// Over(i) 3^depth.
func (v *Vector) Over(i int) int8 {
	v.checkIndex(i)
	return int8(v.over[i/64]>>(i%64)&1) - int8(v.under[i/64]>>(i%64)&1)
}

// checkShape panics if a has another length or depth than v.
func (v *Vector) checkShape(a *Vector) {
	if a.n != v.n || a.depth != v.depth {
		panic(fmt.Sprintf("tryte: %d numbers of %d trits and %d of %d", v.n, v.depth, a.n, a.depth))
	}
}

// Add sets each element to the sum of a's and b's, which have v's length and depth. It returns how
// many results were beyond the range.
func (v *Vector) Add(a, b *Vector, o Overflow) int {
	v.checkShape(a)
	v.checkShape(b)
	v.addBits(a, b.plus, b.minus)
	return v.handleOverflow(o)
}

// Sub sets each element to the difference of a's and b's, like Add.
func (v *Vector) Sub(a, b *Vector, o Overflow) int {
	v.checkShape(a)
	v.checkShape(b)
	v.addBits(a, b.minus, b.plus)
	return v.handleOverflow(o)
}

// addBits sets v to the sum of a and the trits bp and bm, and over and under to the carries.
func (v *Vector) addBits(a *Vector, bp, bm []uint64) {
	for w := range v.words {
		var cp, cm uint64
		for at := w; at < len(v.plus); at += v.words {
			sp, sm, kp, km := halfAdd(a.plus[at], a.minus[at], bp[at], bm[at])
			var lp, lm uint64
			v.plus[at], v.minus[at], lp, lm = halfAdd(sp, sm, cp, cm)
			// Two carries from one position cancel each other, or only one of them is set: 1 + 1 +
			// 1 has a sum of 0.
			kp, km = kp|lp, km|lm
			cp, cm = kp&^km, km&^kp
		}
		v.over[w], v.under[w] = cp, cm
	}
}

// handleOverflow counts the elements beyond the range. With Saturate, it replaces them by the
// nearest number.
func (v *Vector) handleOverflow(o Overflow) (count int) {
	for w, over := range v.over {
		under := v.under[w]
		if over|under == 0 {
			continue
		}
		count += bits.OnesCount64(over | under)
		if o != Saturate {
			continue
		}
		for at := w; at < len(v.plus); at += v.words {
			v.plus[at] = v.plus[at]&^under | over
			v.minus[at] = v.minus[at]&^over | under
		}
	}
	return count
}

// clearOverflow records that all results were in range.
func (v *Vector) clearOverflow() {
	clear(v.over)
	clear(v.under)
}

// Neg sets each element to minus a's, which has v's length and depth.
func (v *Vector) Neg(a *Vector) {
	v.checkShape(a)
	for i, p := range a.plus {
		v.plus[i], v.minus[i] = a.minus[i], p
	}
	v.clearOverflow()
}

// MulTrits sets each element to a's times the lowest trit of t's. a has v's length and depth, t has
// v's length.
func (v *Vector) MulTrits(a, t *Vector) {
	v.checkShape(a)
	if t.n != v.n {
		panic(fmt.Sprintf("tryte: %d numbers times %d", v.n, t.n))
	}
	for w := range v.words {
		tp, tm := t.plus[w], t.minus[w]
		for at := w; at < len(v.plus); at += v.words {
			p, m := a.plus[at], a.minus[at]
			v.plus[at], v.minus[at] = p&tp|m&tm, p&tm|m&tp
		}
	}
	v.clearOverflow()
}

// Shift sets each element to a's times 3^k, rounded to the nearest number if k is negative. It
// returns how many results were beyond the range. a has v's length, but may have another depth:
// Shift(a, 0, o) changes the depth.
func (v *Vector) Shift(a *Vector, k int, o Overflow) int {
	if a.n != v.n {
		panic(fmt.Sprintf("tryte: %d numbers from %d", v.n, a.n))
	}
	k = max(-MaxDepth, min(k, MaxDepth))
	// This has to be done before a's trits are overwritten. The highest lost trit that is not 0
	// determines the side.
	for w := range v.words {
		var over, under uint64
		for d := a.depth - 1; d >= max(v.depth-k, 0); d-- {
			undecided := ^(over | under)
			over |= a.plus[d*a.words+w] & undecided
			under |= a.minus[d*a.words+w] & undecided
		}
		v.over[w], v.under[w] = over, under
	}
	for d := range v.depth {
		if k > 0 {
			d = v.depth - 1 - d // from the top down, so that a plane is read before it is overwritten
		}
		plus, minus := v.Plane(d)
		if from := d - k; from >= 0 && from < a.depth {
			p, m := a.Plane(from)
			copy(plus, p)
			copy(minus, m)
		} else {
			clear(plus)
			clear(minus)
		}
	}
	return v.handleOverflow(o)
}

// Compare sets each element to -1, 0 or +1 if a's is less than, equal to or greater than b's. a and
// b have v's length and the same depth.
func (v *Vector) Compare(a, b *Vector) {
	a.checkShape(b)
	if a.n != v.n {
		panic(fmt.Sprintf("tryte: %d numbers from %d", v.n, a.n))
	}
	for w := range v.words {
		var more, less uint64
		for at := len(a.plus) - a.words + w; at >= 0; at -= a.words {
			undecided := ^(more | less)
			ap, am, bp, bm := a.plus[at], a.minus[at], b.plus[at], b.minus[at]
			more |= (ap&^bp | bm&^am) & undecided
			less |= (bp&^ap | am&^bm) & undecided
		}
		for at := w; at < len(v.plus); at += v.words {
			v.plus[at], v.minus[at] = 0, 0
		}
		v.plus[w], v.minus[w] = more, less
	}
	v.clearOverflow()
}

// SetInts sets all elements to x, which has the same length. Values beyond the range are replaced
// by the nearest number. It returns how many there were.
func (v *Vector) SetInts(x []int32) int {
	if len(x) != v.n {
		panic(fmt.Sprintf("tryte: %d integers for %d numbers", len(x), v.n))
	}
	limit := Max(v.depth)
	v.setAll(func(i int) (int32, bool, bool) {
		n := x[i]
		return max(-limit, min(n, limit)), n > limit, n < -limit
	})
	return v.handleOverflow(Wrap)
}

// Ints stores all elements in dst, which has the same length.
func (v *Vector) Ints(dst []int32) {
	if len(dst) != v.n {
		panic(fmt.Sprintf("tryte: %d integers for %d numbers", len(dst), v.n))
	}
	var n [64]int32
	for w := range v.words {
		v.loadWord(&n, w)
		copy(dst[64*w:], n[:])
	}
}

// digits has the value of each word of five bits, as trits that are 0 or +1.
var digits = func() (table [32]int32) {
	for bits := range table {
		for d := range 5 {
			table[bits] += int32(bits>>d&1) * int32(powers[d])
		}
	}
	return
}()

// transpose8x8 transposes an 8 x 8 matrix of bits, whose rows are the bytes of x.
func transpose8x8(x uint64) uint64 {
	t := (x ^ x>>7) & 0x00aa00aa00aa00aa
	x ^= t ^ t<<7
	t = (x ^ x>>14) & 0x0000cccc0000cccc
	x ^= t ^ t<<14
	t = (x ^ x>>28) & 0x00000000f0f0f0f0
	return x ^ t ^ t<<28
}

// loadWord writes the elements of word w to n, five trits of eight elements at a time.
func (v *Vector) loadWord(n *[64]int32, w int) {
	clear(n[:])
	for first := 0; first < v.depth; first += 5 {
		power := int32(powers[first])
		for i := 0; i < 64; i += 8 {
			var p, m uint64
			for d := first; d < min(first+5, v.depth); d++ {
				p |= v.plus[d*v.words+w] >> i & 0xff << (8 * (d - first))
				m |= v.minus[d*v.words+w] >> i & 0xff << (8 * (d - first))
			}
			p, m = transpose8x8(p), transpose8x8(m)
			for j := range 8 {
				n[i+j] += (digits[p>>(8*j)&31] - digits[m>>(8*j)&31]) * power
			}
		}
	}
}

// storeWord sets the elements of word w to n, which must be in the range, five trits of eight
// elements at a time.
func (v *Vector) storeWord(n *[64]int32, w int) {
	groups := (v.depth + 4) / 5
	var rest [64]uint32 // with 1 added to each trit, as in fromInt
	for i, n := range n {
		rest[i] = uint32(n + Max(5*groups))
	}
	for first := 0; first < v.depth; first += 5 {
		var plus, minus [5]uint64
		for i := 0; i < 64; i += 8 {
			var p, m uint64
			for j := range 8 {
				c := uint64(fiveTrits[rest[i+j]%243])
				rest[i+j] /= 243
				p |= c & 0xff << (8 * j)
				m |= c >> 8 << (8 * j)
			}
			p, m = transpose8x8(p), transpose8x8(m)
			for d := range 5 {
				plus[d] |= p >> (8 * d) & 0xff << i
				minus[d] |= m >> (8 * d) & 0xff << i
			}
		}
		for d := first; d < min(first+5, v.depth); d++ {
			v.plus[d*v.words+w], v.minus[d*v.words+w] = plus[d-first], minus[d-first]
		}
	}
}

// SetFloats sets all elements to x / scale, rounded to the nearest number (ties to even). x has the
// same length. Values beyond the range are replaced by the nearest number, and NaN by 0. It returns
// how many of both there were. It panics if scale is not positive and finite.
func (v *Vector) SetFloats(x []float32, scale float32) int {
	if len(x) != v.n {
		panic(fmt.Sprintf("tryte: %d floats for %d numbers", len(x), v.n))
	}
	if !(scale > 0) || math.IsInf(float64(scale), 0) {
		panic(fmt.Sprintf("tryte: scale %v", scale))
	}
	limit, notNumbers := float64(Max(v.depth)), 0
	v.setAll(func(i int) (int32, bool, bool) {
		n := math.RoundToEven(float64(x[i]) / float64(scale))
		if n != n {
			notNumbers++
			n = 0
		}
		return int32(max(-limit, min(n, limit))), n > limit, n < -limit
	})
	return v.handleOverflow(Wrap) + notNumbers
}

// Floats stores all elements times scale in dst, which has the same length.
func (v *Vector) Floats(dst []float32, scale float32) {
	if len(dst) != v.n {
		panic(fmt.Sprintf("tryte: %d floats for %d numbers", len(dst), v.n))
	}
	var n [64]int32
	for w := range v.words {
		v.loadWord(&n, w)
		part := dst[64*w : min(64*w+64, v.n)]
		for i := range part {
			part[i] = float32(float64(n[i]) * float64(scale))
		}
	}
}

// setAll sets each element to a number of the range, and records whether the value was above or
// below the range.
func (v *Vector) setAll(number func(i int) (n int32, over, under bool)) {
	for w := range v.words {
		var n [64]int32
		v.over[w], v.under[w] = 0, 0
		for i := range min(64, v.n-64*w) {
			var over, under bool
			if n[i], over, under = number(64*w + i); over {
				v.over[w] |= 1 << i
			} else if under {
				v.under[w] |= 1 << i
			}
		}
		v.storeWord(&n, w)
	}
}
