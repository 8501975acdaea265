package kernel

// This file multiplies by vectors of float32.

// FloatRows is a product of decoded rows by one vector of float32.
type FloatRows struct {
	Weights []byte // Count rows, Pitch bytes apart
	Pitch   int
	Count   int
	Stripes int       // stripes per row
	X       []float32 // Stripes*64 values
	Add     int32     // added to each byte of Weights
	// Block is the number of columns that share a factor, a multiple of 16. Factors are as in Rows.
	Block       int
	Factors     []float32
	FactorPitch int
	// A row's result is added to Dst: the sum over blocks of factor * (weights * x), all in float32.
	Dst []float32
}

// DotFloat computes the product.
func (l Level) DotFloat(r *FloatRows) {
	if r.Count == 0 || r.Stripes == 0 || l.floatAssembly(r) {
		return
	}
	for i := range r.Count {
		w, f := r.Weights[i*r.Pitch:][:r.Stripes*Stripe], r.Factors[i*r.FactorPitch:]
		var sum float32
		for b := 0; b*r.Block < len(w); b++ {
			begin, end := b*r.Block, min((b+1)*r.Block, len(w))
			var s float32
			for c := begin; c < end; c++ {
				s += float32(float32(int32(w[c])+r.Add) * r.X[c])
			}
			sum += float32(f[b] * s)
		}
		r.Dst[i] += sum
	}
}
