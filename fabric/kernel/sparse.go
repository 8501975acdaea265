package kernel

// This file multiplies sparse planes. It uses a list of the trits that are not 0.

import "math"

// MaxSparseCols is the largest number of columns for which entries can be encoded.
const MaxSparseCols = 1 << 15

// SparseRows is a product of rows of one sparse plane by one vector.
type SparseRows struct {
	// Begin holds the index of each row's first entry: Count+1 numbers.
	Begin []uint32
	// Entries describe the trits that are not 0: each is the column times 2, plus 1 if the trit is
	// negative.
	Entries []uint16
	Count   int
	X       []int8 // the assembly reads up to 3 bytes beyond the last column
	Weight  float32
	Shift   uint32 // 1 << Shift columns share a factor
	Factors []float32
	// FactorPitch is as in Rows.
	FactorPitch int
	// Each row's result is added to its element of Dst: Weight times the sum of trit * x * factor.
	// The products trit * x are exact.
	Dst []float32
}

// DotSparse computes the product.
func (l Level) DotSparse(r *SparseRows) {
	if r.Count == 0 || l.dotSparseAsm(r) {
		return
	}
	for i := range r.Count {
		f := r.Factors[i*r.FactorPitch:]
		entries := r.Entries[r.Begin[i]:r.Begin[i+1]]
		// There are four sums, as an addition takes longer than everything else for an entry.
		var a, b, c, d float32
		for ; len(entries) >= 4; entries = entries[4:] {
			a += r.product(f, entries[0])
			b += r.product(f, entries[1])
			c += r.product(f, entries[2])
			d += r.product(f, entries[3])
		}
		for _, e := range entries {
			a += r.product(f, e)
		}
		r.Dst[i] += float32(float32(float32(a+b)+float32(c+d)) * r.Weight)
	}
}

// product returns x * factor of an entry's column, with the sign of the entry. It has no branch,
// which would often be predicted wrongly, as signs are as good as random.
func (r *SparseRows) product(factors []float32, e uint16) float32 {
	col := e >> 1
	v := float32(float32(r.X[col]) * factors[col>>r.Shift])
	return math.Float32frombits(math.Float32bits(v) ^ uint32(e)<<31)
}
