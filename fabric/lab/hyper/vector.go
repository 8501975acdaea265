// Package hyper computes with hypervectors. These are long random ternary vectors that represent
// things. Arithmetic builds structures from them.
//
//   - [Bind] multiplies element by element. It makes a pair of key and value, which is similar to neither. A key of +1
//     and -1 is its own inverse.
//   - [Sum] adds vectors. Its ternary form (a bundle) is similar to each of them, and holds key-value pairs that can be
//     queried.
//   - [Permute] rotates. It expresses order, so that a path of roles differs from its reverse.
//   - [Memory] finds the known vector that is most similar to a noisy one (cleanup).
//   - [Record] nests bundles, and keeps them exact while single trits of a value inside them change ([Lens]).
//   - [BlockBind] binds sparse vectors, for which element-wise products do not work.
//
// Similarity is package popcount's dot product. How much a bundle can hold is a matter of
// probability. Theory predicts it, and [Capacity] measures it and compares. The command "lab hyper"
// runs that.
//
// A vector's dimension is a multiple of 64. Functions panic if vectors that belong together have
// different dimensions. They write results to an argument, and allocate only what they return. Any
// number of goroutines may read values that are not being changed.
package hyper

import (
	"fmt"
	"math/rand/v2"

	"tensorcast/fabric/lab/popcount"
)

// This file implements single vectors: creating, binding, permuting and comparing them.

// Vector is a vector of trits, bit-sliced: trit 64w+i is +1 if bit i of Plus[w] is set, -1 if bit i
// of Minus[w] is set, and otherwise 0. Both slices have the same length, and no bit is set in both.
// Copies of a Vector share their trits.
type Vector struct{ Plus, Minus []uint64 }

// New returns a vector of d zeros. It panics unless d is a positive multiple of 64.
func New(d int) Vector {
	if d <= 0 || d%64 != 0 {
		panic(fmt.Sprintf("hyper: a vector of %d trits: want a positive multiple of 64", d))
	}
	words := make([]uint64, d/32)
	return Vector{words[: d/64 : d/64], words[d/64:]}
}

// Dim is the number of trits.
func (v Vector) Dim() int { return 64 * len(v.Plus) }

// At returns trit i.
func (v Vector) At(i int) int8 {
	return int8(v.Plus[i/64]>>(i%64)&1) - int8(v.Minus[i/64]>>(i%64)&1)
}

// Set sets trit i to the sign of t.
func (v Vector) Set(i int, t int8) {
	w, bit := i/64, uint64(1)<<(i%64)
	v.Plus[w] &^= bit
	v.Minus[w] &^= bit
	switch {
	case t > 0:
		v.Plus[w] |= bit
	case t < 0:
		v.Minus[w] |= bit
	}
}

// Copy copies src to v.
func (v Vector) Copy(src Vector) {
	v.checkDimensions(src)
	copy(v.Plus, src.Plus)
	copy(v.Minus, src.Minus)
}

func (v Vector) checkDimensions(others ...Vector) {
	words := len(v.Minus)
	fit := len(v.Plus) == words
	for _, o := range others {
		fit = fit && len(o.Plus) == words && len(o.Minus) == words
	}
	if !fit {
		panic("hyper: vectors of different dimensions")
	}
}

// Random fills v with random +1 and -1, which makes it a dense vector.
func Random(v Vector, rng *rand.Rand) {
	for w := range v.Plus {
		v.Plus[w] = rng.Uint64()
		v.Minus[w] = ^v.Plus[w]
	}
}

// RandomSparse sets n random trits of v to +1 or -1 and the others to 0. It panics if v has fewer
// than n.
func RandomSparse(v Vector, n int, rng *rand.Rand) {
	if n < 0 || n > v.Dim() {
		panic(fmt.Sprintf("hyper: %d trits that are not 0 among %d", n, v.Dim()))
	}
	clear(v.Plus)
	clear(v.Minus)
	for n > 0 {
		if i := rng.IntN(v.Dim()); v.At(i) == 0 {
			v.Set(i, int8(2*rng.IntN(2)-1))
			n--
		}
	}
}

// Bind sets dst to the products of a's and b's trits. Where b is not 0, binding with b again
// restores a. Where b is 0, a is lost: if the share rho of the trits of two random vectors is not
// 0, the share rho^2 remains. dst may be a or b.
func Bind(dst, a, b Vector) {
	dst.checkDimensions(a, b)
	n := len(dst.Plus)
	ap, am, bp, bm, minus := a.Plus[:n], a.Minus[:n], b.Plus[:n], b.Minus[:n], dst.Minus[:n]
	for w := range dst.Plus {
		p := ap[w]&bp[w] | am[w]&bm[w]
		m := ap[w]&bm[w] | am[w]&bp[w]
		dst.Plus[w], minus[w] = p, m
	}
}

// Permute sets dst to v rotated by k: trit i goes to i+k modulo the dimension. Permuting by -k is
// the inverse. dst must not overlap v.
func Permute(dst, v Vector, k int) {
	dst.checkDimensions(v)
	d := v.Dim()
	k = (k%d + d) % d
	rotateWords(dst.Plus, v.Plus, k/64, k%64)
	rotateWords(dst.Minus, v.Minus, k/64, k%64)
}

func rotateWords(dst, src []uint64, words, bits int) {
	before := src[(2*len(src)-words-1)%len(src)]
	for w := range dst {
		from := w - words
		if from < 0 {
			from += len(src)
		}
		dst[w] = src[from]<<bits | before>>(64-bits)
		before = src[from]
	}
}

// Dot is the sum of the products of a's and b's trits.
func Dot(a, b Vector) int32 { return popcount.Dot(a.Plus, a.Minus, b.Plus, b.Minus) }
