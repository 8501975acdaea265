//go:build !noasm

package kernel

// This file chooses the assembly for bands.

func (l Level) bandsAssembly(b *Bands) bool {
	if !l.HasBands(b.Planes) {
		return false
	}
	switch two := b.Planes == 2; {
	case two && b.Vectors == 1:
		bandsTwo1x512(b)
	case two && b.Vectors == 2:
		bandsTwo2x512(b)
	case two:
		bandsTwo4x512(b)
	case b.Vectors == 1:
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
