package hyper

// This file owns block codes: sparse vectors that can be bound.
//
// The product of two vectors with few trits has next to none. In a block code every block of 64 positions has one trit that is not 0 (1.6 % of all),
// and binding adds positions modulo 64 and multiplies signs: the bound vector is as sparse as its factors, and like neither. A block is a word, so
// that binding is a rotation. (Laiho et al., "High-dimensional computing with sparse vectors", 2015, here with signs.)

import (
	"math/bits"
	"math/rand/v2"
)

// BlockLength is the number of trits in a block.
const BlockLength = 64

// RandomBlocks fills v with a block code: one trit of +1 or -1 in every word.
func RandomBlocks(v Vector, rng *rand.Rand) {
	for w := range v.Plus {
		r := rng.Uint64()
		bit := uint64(1) << (r & 63)
		sign := -(r >> 63) // all ones if negative
		v.Plus[w], v.Minus[w] = bit&^sign, bit&sign
	}
}

// BlockBind sets dst to a bound by the block code key. a may be any vector, as a sum of block codes. dst may be a or key.
func BlockBind(dst, a, key Vector) { turn(dst, a, key, 1) }

// BlockUnbind takes the binding by key back. dst may be a or key.
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
