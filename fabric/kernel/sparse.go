package kernel

// This file multiplies planes of which most trits are 0: by their other trits.

// MaxSparseCols is the number of columns that an entry can tell apart.
const MaxSparseCols = 1 << 15

// SparseRows is a product of rows of one plane with one vector.
type SparseRows struct {
	// Begin tells where the entries of each row begin: Count+1 numbers.
	Begin []uint32
	// Entries are a trit each that is not 0: its column times 2, plus 1 if it is negative.
	Entries []uint16
	Count   int
	X       []int8 // from which up to 3 bytes beyond the last column are read
	Weight  float32
	Shift   uint32 // a factor's block of columns is 1 << Shift
	Factors []float32
	// FactorPitch is as in Rows.
	FactorPitch int
	// Dst gets, added to what is there, Weight times a row's sum of trit * x * factor. The products trit * x are exact.
	Dst []float32
}

// DotSparse multiplies.
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
