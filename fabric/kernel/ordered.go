package kernel

// This file multiplies decoded rows in the order in which ggml's kernels for AVX2 and beyond sum, so that results are theirs, bit for bit: those for Q8_0 and Q4_0 times Q8_0, and for Q4_K and
// Q6_K times Q8_K.
//
// They have eight sums of floats. Each gets the products of four columns of each 32, which are exact integers: of Q8_0 and Q4_0 for each block, of Q4_K and Q6_K for each block of 256, times the small integers
// that are its scales. That times the block's factor is added to the sum in one rounding, and at the end the eight are added in pairs.

// OrderCols is the number of columns of eight lanes.
const OrderCols = 32

// Ordered is a product of decoded rows by one vector, in ggml's order.
type Ordered struct {
	Weights []byte // Count rows, Pitch bytes apart
	Pitch   int
	Count   int
	Blocks  int     // in a row
	X       []int8  // the vector
	Bias    []int32 // added to the integers: eight for each 32 columns, each for four
	Factors []float32
	// A row's result is written to Dst.
	Dst []float32
}

// OrderedSuper is the same with blocks of 256 columns, whose parts have integers as scales. No weight is above 127.
type OrderedSuper struct {
	Ordered
	// Sub has eight scales for each block, each for 32 columns, or if Sixteen is set 16, each for 16.
	Sub     []int8
	Sixteen bool
	// Sums are the sums of X by the columns of a scale.
	Sums []int16
	// With eight scales: minima in the same form, whose factors are those of blocks and are negated. They are summed in four lanes, each of 64 columns.
	Min        []int8
	MinFactors []float32
}

// MultiplyOrdered computes the product with blocks of 32. Factors has one for each block of a row; the next row's follow. The result is the same at all levels.
func (l Level) MultiplyOrdered(o *Ordered) {
	if o.Count > 0 && o.Blocks > 0 && !l.orderedAssembly(o) {
		multiplyOrdered(o)
	}
}

// MultiplyOrderedSuper computes the product with blocks of 256. With sixteen scales, 32 is taken off each weight: as in ggml's loop, lane j has the 32 times the sums of the scales 2j and 2j+1.
// The result is the same at all levels.
func (l Level) MultiplyOrderedSuper(o *OrderedSuper) {
	if o.Count > 0 && o.Blocks > 0 && !l.orderedSuperAssembly(o) {
		multiplyOrderedSuper(o)
	}
}

// lane is the exact integer of four columns.
func lane(w []byte, x []int8, bias int32) int32 {
	w, x = w[:4], x[:4]
	return bias + int32(w[0])*int32(x[0]) + int32(w[1])*int32(x[1]) + int32(w[2])*int32(x[2]) + int32(w[3])*int32(x[3])
}

// inPairs adds eight sums.
func inPairs(s *[8]float32) float32 {
	return float32(float32(s[0]+s[4])+float32(s[2]+s[6])) + float32(float32(s[1]+s[5])+float32(s[3]+s[7]))
}

func multiplyOrdered(o *Ordered) {
	for r := range o.Count {
		w, f := o.Weights[r*o.Pitch:][:o.Blocks*OrderCols], o.Factors[r*o.Blocks:]
		var sums [8]float32
		for i := range o.Blocks * 8 {
			s := lane(w[4*i:], o.X[4*i:], o.Bias[i])
			sums[i%8] = fma(f[i/8], float32(s), sums[i%8])
		}
		o.Dst[r] = inPairs(&sums)
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
				lanes[i%8] += int32(sub[i*per/64]) * lane(w[256*b+4*i:], o.X[256*b+4*i:], o.Bias[64*b+i])
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
					mins[i] = fma(o.MinFactors[at], float32(int32(m[0])*int32(x[2*i])+int32(m[1])*int32(x[2*i+1])), mins[i])
				}
			}
		}
		o.Dst[r] = inPairs(&sums)
		if !o.Sixteen {
			o.Dst[r] += float32(float32(mins[0]+mins[2]) + float32(mins[1]+mins[3]))
		}
	}
}
