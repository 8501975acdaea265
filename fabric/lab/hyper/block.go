package hyper

// This file implements block codes, which are sparse vectors that can be bound.
//
// The element-wise product of two sparse vectors is nearly empty. A block code has exactly one trit
// that is not 0 in each block of 64 positions (1.6 % of all). Binding adds the positions modulo 64
// and multiplies the signs. So the result is as sparse as its factors and similar to neither. As a
// block is one word, binding is a rotation. (Laiho et al., "High-dimensional computing with sparse
// vectors", 2015, here with signs.)

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

// BlockBind binds a with the block code key, and sets dst to the result. a may be any vector, for
// example a sum of block codes. dst may be a or key.
func BlockBind(dst, a, key Vector) { rotateBlocks(dst, a, key, 1) }

// BlockUnbind reverses BlockBind with the same key. dst may be a or key.
func BlockUnbind(dst, a, key Vector) { rotateBlocks(dst, a, key, -1) }

// rotateBlocks rotates each block of a by the position of the trit in key's block, times direction,
// and multiplies it by the sign of that trit.
func rotateBlocks(dst, a, key Vector, direction int) {
	dst.checkDimensions(a, key)
	for w, p := range a.Plus {
		m, negative := a.Minus[w], key.Minus[w]
		by := direction * bits.TrailingZeros64(key.Plus[w]|negative)
		if negative != 0 {
			p, m = m, p
		}
		dst.Plus[w], dst.Minus[w] = bits.RotateLeft64(p, by), bits.RotateLeft64(m, by)
	}
}
