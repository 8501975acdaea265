package hyper

// This file implements block codes: sparse vectors that can be bound.
//
// The element-wise product of two sparse vectors is nearly empty. A block code has exactly one trit that is not 0 in each block of 64
// positions (1.6 % of all), and binding adds the positions modulo 64 and multiplies the signs. So the result is as sparse as its factors,
// and similar to neither. As a block is one word, binding is a rotation. (Laiho et al., "High-dimensional computing with sparse vectors",
// 2015, here with signs.)

import (
	"math/bits"
	"math/rand/v2"
)

// BlockLength is the number of trits in a block.
const BlockLength = 64

// RandomBlocks fills v with a random block code: one trit of +1 or -1 in every word.
func RandomBlocks(v Vector, rng *rand.Rand) {
	for w := range v.Plus {
		r := rng.Uint64()
		bit := uint64(1) << (r & 63)
		sign := -(r >> 63) // all ones if negative
		v.Plus[w], v.Minus[w] = bit&^sign, bit&sign
	}
}

// BlockBind sets dst to a bound with the block code key. a may be any vector, for example a sum of block codes. dst may be a or key.
func BlockBind(dst, a, key Vector) { turn(dst, a, key, 1) }

// BlockUnbind reverses the binding with key. dst may be a or key.
func BlockUnbind(dst, a, key Vector) { turn(dst, a, key, -1) }

func turn(dst, a, key Vector, direction int) {
	dst.check(a, key)
	for w, p := range a.Plus {
		m, negative := a.Minus[w], key.Minus[w]
		by := direction * bits.TrailingZeros64(key.Plus[w]|negative)
		if negative != 0 {
			p, m = m, p
		}
		dst.Plus[w], dst.Minus[w] = bits.RotateLeft64(p, by), bits.RotateLeft64(m, by)
	}
}
