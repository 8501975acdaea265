package kernel

// This file computes the factors of a Product from the scales of its rows and those of its vector.

import "tensorcast/gguf/half"

// Scales are the scales of some rows, in one of two forms.
type Scales struct {
	Rows, Blocks int // Blocks is the number of blocks per row

	// The first form, if not nil: an IEEE 754 half per block.
	Half []uint16

	// The second form: an integer per block, times a half per super-block. Supers is the number of
	// super-blocks per row, Per the number of blocks per super-block: 1, 2, 4, 8 or 16.
	Sub         []int8
	Super       []uint16
	Supers, Per int

	// With has Blocks numbers. Each multiplies its block's scale in every row.
	With []float32
}

// Expand writes the products of the scales and s.With to dst. Rows of dst are pitch elements apart.
func (l Level) Expand(dst []float32, pitch int, s *Scales) {
	if s.Rows > 0 && s.Blocks > 0 && !l.expandAsm(dst, pitch, s) {
		expand(dst, pitch, s)
	}
}

func expand(dst []float32, pitch int, s *Scales) {
	for r := range s.Rows {
		d, with := dst[r*pitch:][:s.Blocks], s.With[:s.Blocks]
		if s.Half != nil {
			for b, h := range s.Half[r*s.Blocks:][:s.Blocks] {
				d[b] = half.Float32(h) * with[b]
			}
			continue
		}
		var super float32
		for b, q := range s.Sub[r*s.Blocks:][:s.Blocks] {
			if b%s.Per == 0 {
				super = half.Float32(s.Super[r*s.Supers+b/s.Per])
			}
			d[b] = float32(super*float32(q)) * with[b]
		}
	}
}

// SubtractSums subtracts from each dst[i] the sum of the n values v[i*pitch:][:n].
func (l Level) SubtractSums(dst, v []float32, pitch, n int) {
	if len(dst) > 0 && n > 0 && !l.subtractAsm(dst, v, pitch, n) {
		for i := range dst {
			var sum float32
			for _, f := range v[i*pitch:][:n] {
				sum += f
			}
			dst[i] -= sum
		}
	}
}
