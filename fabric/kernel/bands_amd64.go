//go:build !noasm

package kernel

// This file chooses the assembly for bands. The names say how many planes there are, how many
// vectors ("Some" is any number), and the bits of the registers.

func (l Level) multiplyBandsAsm(b *Bands) bool {
	if !l.HasBands(b.Planes) {
		return false
	}
	switch two, one := b.Planes == 2, b.Vectors == 1; {
	case l == AVX2 && two && one:
		bandsTwo1x256(b)
	case l == AVX2 && two:
		bandsTwoSome256(b)
	case l == AVX2 && one:
		bandsThree1x256(b)
	case l == AVX2:
		bandsThreeSome256(b)
	case two && one:
		bandsTwo1x512(b)
	case two && b.Vectors == 2:
		bandsTwo2x512(b)
	case two:
		bandsTwo4x512(b)
	case one:
		bandsThree1x512(b)
	case b.Vectors == 2:
		bandsThree2x512(b)
	default:
		bandsThree4x512(b)
	}
	return true
}

//go:noescape
func bandsTwo1x512(b *Bands)

//go:noescape
func bandsTwo2x512(b *Bands)

//go:noescape
func bandsTwo4x512(b *Bands)

//go:noescape
func bandsThree1x512(b *Bands)

//go:noescape
func bandsThree2x512(b *Bands)

//go:noescape
func bandsThree4x512(b *Bands)

//go:noescape
func bandsTwo1x256(b *Bands)

//go:noescape
func bandsThree1x256(b *Bands)

//go:noescape
func bandsTwoSome256(b *Bands)

//go:noescape
func bandsThreeSome256(b *Bands)
