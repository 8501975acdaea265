package kernel

// This file multiplies decoded rows in the order in which ggml's kernels for AVX2 and beyond add,
// so that results are the same bit for bit. It covers Q8_0 and Q4_0 times Q8_0, and Q4_K and Q6_K
// times Q8_K.
//
// These kernels have eight sums of floats. Each sum gets four of every 32 columns. The products of
// a block's columns are added up as an exact integer. For Q8_0 and Q4_0 a block has 32 columns. For
// Q4_K and Q6_K it has 256, and the products are first multiplied by small integers, the scales of
// their columns. The integer times the block's factor is added to the sum in one rounding. At the
// end the eight sums are added in pairs.

// OrderCols is the number of columns that the eight sums take in one round, four each.
const OrderCols = 32

// Ordered is a product of decoded rows by one vector, in ggml's order.
type Ordered struct {
	Weights []byte // Count rows, Pitch bytes apart
	Pitch   int
	Count   int
	Blocks  int     // in a row
	X       []int8  // the vector
	Bias    []int32 // added to the integers: one for each four columns
	Factors []float32
	// Dst gets the result of each row.
	Dst []float32
}

// OrderedSuper is the same with blocks of 256 columns, which have integers as scales of their
// parts. No weight is above 127.
type OrderedSuper struct {
	Ordered
	// Sub has the scales: 8 for each block, each for 32 columns. If Sixteen is set, it has 16, each
	// for 16 columns.
	Sub     []int8
	Sixteen bool
	// Sums has, for each scale, the sum of the elements of X in its columns.
	Sums []int16
	// Minima, if there are eight scales. Min has the same form as Sub. MinFactors has one factor
	// for each block, negated. Minima are summed in four lanes of 64 columns each.
	Min        []int8
	MinFactors []float32
}

// MultiplyOrdered computes the product with blocks of 32. Factors has one factor for each block of
// a row, and then those of the next row. The result is the same at all levels.
func (l Level) MultiplyOrdered(o *Ordered) {
	if o.Count > 0 && o.Blocks > 0 && !l.multiplyOrderedAsm(o) {
		multiplyOrdered(o)
	}
}

// MultiplyOrderedSuper computes the product with blocks of 256. With sixteen scales, weights are
// too large by 32. This is subtracted as in ggml's loop: for both of the scales 2j and 2j+1, lane j
// subtracts 32 times the scale times the sum of its columns. The result is the same at all levels.
func (l Level) MultiplyOrderedSuper(o *OrderedSuper) {
	if o.Count > 0 && o.Blocks > 0 && !l.multiplyOrderedSuperAsm(o) {
		multiplyOrderedSuper(o)
	}
}

// dotFour returns the exact integer of four columns.
func dotFour(w []byte, x []int8, bias int32) int32 {
	w, x = w[:4], x[:4]
	return bias + int32(w[0])*int32(x[0]) + int32(w[1])*int32(x[1]) + int32(w[2])*int32(x[2]) + int32(w[3])*int32(x[3])
}

// addInPairs adds up eight sums in ggml's order.
func addInPairs(s *[8]float32) float32 {
	return float32(float32(s[0]+s[4])+float32(s[2]+s[6])) + float32(float32(s[1]+s[5])+float32(s[3]+s[7]))
}

func multiplyOrdered(o *Ordered) {
	for r := range o.Count {
		w, f := o.Weights[r*o.Pitch:][:o.Blocks*OrderCols], o.Factors[r*o.Blocks:]
		var sums [8]float32
		for i := range o.Blocks * 8 {
			s := dotFour(w[4*i:], o.X[4*i:], o.Bias[i])
			sums[i%8] = fma(f[i/8], float32(s), sums[i%8])
		}
		o.Dst[r] = addInPairs(&sums)
	}
}

func multiplyOrderedSuper(o *OrderedSuper) {
	per := 8
	if o.Sixteen {
		per = 16
	}
	for r := range o.Count {
		w := o.Weights[r*o.Pitch:][:o.Blocks*256]
		var sums [8]float32
		var mins [4]float32
		for b := range o.Blocks {
			at := r*o.Blocks + b
			sub, x := o.Sub[at*per:][:per], o.Sums[b*per:][:per]
			var lanes [8]int32
			for i := range 64 {
				lanes[i%8] += int32(sub[i*per/64]) * dotFour(w[256*b+4*i:], o.X[256*b+4*i:], o.Bias[64*b+i])
			}
			for i := range 8 {
				if o.Sixteen {
					lanes[i] -= 32 * (int32(sub[2*i])*int32(x[2*i]) + int32(sub[2*i+1])*int32(x[2*i+1]))
				}
				sums[i] = fma(o.Factors[at], float32(lanes[i]), sums[i])
			}
			for i := range mins {
				if !o.Sixteen {
					m := o.Min[8*at+2*i:]
					s := int32(m[0])*int32(x[2*i]) + int32(m[1])*int32(x[2*i+1])
					mins[i] = fma(o.MinFactors[at], float32(s), mins[i])
				}
			}
		}
		o.Dst[r] = addInPairs(&sums)
		if !o.Sixteen {
			o.Dst[r] += float32(float32(mins[0]+mins[2]) + float32(mins[1]+mins[3]))
		}
	}
}
