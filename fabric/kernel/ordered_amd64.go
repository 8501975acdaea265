//go:build !noasm

package kernel

// This file chooses the assembly for products in ggml's order.

func (l Level) multiplyOrderedAsm(o *Ordered) bool {
	switch l {
	case AVX512:
		ordered512(o)
	case AVX2:
		ordered256(o)
	default:
		return false
	}
	return true
}

func (l Level) multiplyOrderedSuperAsm(o *OrderedSuper) bool {
	switch {
	case l == AVX512 && o.Sixteen:
		orderedSixteen512(o, &scaleLanes[1])
	case l == AVX512:
		orderedEight512(o, &scaleLanes[0])
	case l == AVX2 && o.Sixteen:
		orderedSixteen256(o, &scaleLanes[1])
	case l == AVX2:
		orderedEight256(o, &scaleLanes[0])
	default:
		return false
	}
	return true
}

// scaleLanes holds, for eight and for sixteen scales, the index of the scale that each of the eight
// lanes has, for each 32 columns of a block. The upper eight bytes are not used.
var scaleLanes = func() (all [2][8][16]byte) {
	for part := range 8 {
		for lane := range 8 {
			all[0][part][lane] = byte(part)
			all[1][part][lane] = byte(2*part + lane/4)
		}
	}
	return all
}()

//go:noescape
func ordered512(o *Ordered)

//go:noescape
func orderedEight512(o *OrderedSuper, lanes *[8][16]byte)

//go:noescape
func orderedSixteen512(o *OrderedSuper, lanes *[8][16]byte)

//go:noescape
func ordered256(o *Ordered)

//go:noescape
func orderedEight256(o *OrderedSuper, lanes *[8][16]byte)

//go:noescape
func orderedSixteen256(o *OrderedSuper, lanes *[8][16]byte)
