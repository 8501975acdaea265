package kernel

// This file makes factors of scales: what a Product takes.

import "tensorcast/gguf/half"

// Scales are those of some rows, in blocks of columns.
type Scales struct {
	Rows, Blocks int       // blocks of a row
	Half         []uint16  // if not nil, an IEEE 754 half per block
	Sub          []int8    // else an integer per block,
	Super        []uint16  // times the half of Per blocks;
	Supers, Per  int       // Supers of a row. Per is 1, 2, 4, 8 or 16
	With         []float32 // Blocks numbers, of which each multiplies its block's scale in every row
}

// Expand writes the products of scales with s.With to dst: a row's, then the next row's pitch later.
func (l Level) Expand(dst []float32, pitch int, s *Scales) {
	if s.Rows > 0 && s.Blocks > 0 && !l.expandAssembly(dst, pitch, s) {
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

// SubtractSums subtracts from each of dst a sum of n values: of v[i*pitch:][:n] from dst[i].
func (l Level) SubtractSums(dst, v []float32, pitch, n int) {
	if len(dst) > 0 && n > 0 && !l.subtractAssembly(dst, v, pitch, n) {
		for i := range dst {
			var sum float32
			for _, f := range v[i*pitch:][:n] {
				sum += f
			}
			dst[i] -= sum
		}
	}
}
