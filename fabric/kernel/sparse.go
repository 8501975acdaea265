package kernel

// This file multiplies sparse planes, using a list of the trits that are not 0.

// MaxSparseCols is the largest number of columns for which entries can be encoded.
const MaxSparseCols = 1 << 15

// SparseRows is a product of rows of one sparse plane by one vector.
type SparseRows struct {
	// Begin holds the index of each row's first entry: Count+1 numbers.
	Begin []uint32
	// Entries describe the trits that are not 0: the column times 2, plus 1 if the trit is negative.
	Entries []uint16
	Count   int
	X       []int8 // read up to 3 bytes beyond the last column
	Weight  float32
	Shift   uint32 // the columns of a factor's block are 1 << Shift
	Factors []float32
	// FactorPitch is as in Rows.
	FactorPitch int
	// A row's result is added to Dst: Weight times the sum of trit * x * factor. The products trit * x are exact.
	Dst []float32
}

// DotSparse computes the product.
func (l Level) DotSparse(r *SparseRows) {
	if r.Count == 0 || l.sparseAssembly(r) {
		return
	}
	for i := range r.Count {
		f := r.Factors[i*r.FactorPitch:]
		var sum float32
		for _, e := range r.Entries[r.Begin[i]:r.Begin[i+1]] {
			col := e >> 1
			v := float32(r.X[col]) * f[col>>r.Shift]
			if e&1 != 0 {
				v = -v
			}
			sum += v
		}
		r.Dst[i] += float32(sum * r.Weight)
	}
}
