package kernel

// This file compares products in ggml's order with sums that are computed term by term in exact
// arithmetic, and rounded where ggml rounds.

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

// fused returns x*y + z in one rounding.
func fused(x, y, z float32) float32 {
	exact := func(v float32) *big.Float { return new(big.Float).SetPrec(400).SetFloat64(float64(v)) }
	p := new(big.Float).SetPrec(400).Mul(exact(x), exact(y))
	f, _ := p.Add(p, exact(z)).Float32()
	return f
}

// randomFloat returns a finite number of any sign, whose magnitude is within some 60 binary orders.
func randomFloat(rng *rand.Rand) float32 {
	return math.Float32frombits(rng.Uint32()&0x807fffff | uint32(90+rng.IntN(60))<<23)
}

// randomOrdered makes a product with weights up to maxWeight.
func randomOrdered(rng *rand.Rand, blocks, count, cols, maxWeight int) Ordered {
	pitch := blocks*cols + 64*rng.IntN(3)
	o := Ordered{
		Weights: make([]byte, pitch*count), Pitch: pitch, Count: count, Blocks: blocks, X: make([]int8, blocks*cols),
		Bias: make([]int32, blocks*cols/4), Factors: make([]float32, blocks*count),
	}
	for i := range o.Weights {
		o.Weights[i] = byte([]int{rng.IntN(maxWeight + 1), maxWeight}[rng.IntN(8)/7])
	}
	for i := range o.X {
		o.X[i] = int8([]int{rng.IntN(256) - 128, -128, 127}[max(0, rng.IntN(10)-7)])
	}
	for i := range o.Bias {
		o.Bias[i] = int32(rng.IntN(1<<17) - 1<<16)
	}
	for i := range o.Factors {
		o.Factors[i] = randomFloat(rng)
	}
	return o
}

// randomSuper makes a product with blocks of 256.
func randomSuper(rng *rand.Rand, blocks, count int, sixteen bool) *OrderedSuper {
	o, per := &OrderedSuper{Ordered: randomOrdered(rng, blocks, count, 256, 127), Sixteen: sixteen}, 8
	if sixteen {
		per = 16
	}
	o.Sub, o.Sums = make([]int8, blocks*count*per), make([]int16, blocks*per)
	for i := range o.Sub {
		o.Sub[i] = int8(rng.Uint32())
	}
	for i := range o.Sums {
		o.Sums[i] = int16(rng.IntN(8193) - 4096)
	}
	if !sixteen {
		o.Min, o.MinFactors = make([]int8, len(o.Sub)), make([]float32, len(o.Factors))
		for i := range o.Min {
			o.Min[i] = int8(rng.Uint32())
		}
		for i := range o.MinFactors {
			o.MinFactors[i] = randomFloat(rng)
		}
	}
	return o
}

// orderedRow computes the result of row r term by term.
func orderedRow(o *Ordered, r int) float32 {
	var s [8]float32
	for b := range o.Blocks {
		for j := range s {
			n := int(o.Bias[8*b+j])
			for c := 32*b + 4*j; c < 32*b+4*j+4; c++ {
				n += int(o.Weights[r*o.Pitch+c]) * int(o.X[c])
			}
			s[j] = fused(o.Factors[r*o.Blocks+b], float32(n), s[j])
		}
	}
	return sumOfEight(s)
}

func sumOfEight(s [8]float32) float32 {
	var four [4]float32
	for i := range four {
		four[i] = s[i+4] + s[i]
	}
	return (four[0] + four[2]) + (four[1] + four[3])
}

// orderedSuperRow computes the result of row r term by term.
func orderedSuperRow(o *OrderedSuper, r int) float32 {
	var s [8]float32
	var m [4]float32
	per := len(o.Sums) / o.Blocks
	for b := range o.Blocks {
		sub, x := o.Sub[(r*o.Blocks+b)*per:][:per], o.Sums[b*per:][:per]
		for j := range s {
			n := 0
			for part := range 8 {
				v := int(o.Bias[64*b+8*part+j])
				for c := 32*part + 4*j; c < 32*part+4*j+4; c++ {
					v += int(o.Weights[r*o.Pitch+256*b+c]) * int(o.X[256*b+c])
				}
				n += v * int(sub[(32*part+4*j)*per/256])
			}
			if o.Sixteen {
				n -= 32 * (int(x[2*j])*int(sub[2*j]) + int(x[2*j+1])*int(sub[2*j+1]))
			}
			s[j] = fused(o.Factors[r*o.Blocks+b], float32(int32(n)), s[j])
		}
		for j := range m {
			if !o.Sixteen {
				at := r*o.Blocks + b
				n := int(o.Min[8*at+2*j])*int(x[2*j]) + int(o.Min[8*at+2*j+1])*int(x[2*j+1])
				m[j] = fused(o.MinFactors[at], float32(n), m[j])
			}
		}
	}
	sum := sumOfEight(s)
	if !o.Sixteen {
		sum += (m[0] + m[2]) + (m[1] + m[3])
	}
	return sum
}

// FuzzOrdered compares all levels bit for bit with sums term by term, on memory at any address.
func FuzzOrdered(f *testing.F) {
	f.Add(uint64(1), uint8(0), uint8(1), uint8(0))
	f.Add(uint64(2), uint8(6), uint8(4), uint8(3))
	f.Add(uint64(3), uint8(13), uint8(2), uint8(7))
	f.Add(uint64(4), uint8(30), uint8(3), uint8(1))
	f.Fuzz(func(t *testing.T, seed uint64, blocks, rows, shift uint8) {
		rng := rand.New(rand.NewPCG(seed, 5))
		n, count := int(blocks%40)+1, int(rows%5)+1
		o := randomOrdered(rng, n, count, OrderCols, 255)
		move := func(o *Ordered) {
			o.Weights, o.X = slices.Clip(at(shift, o.Weights)), at(shift+1, o.X)
			o.Bias, o.Factors = at(shift+2, o.Bias), at(shift+3, o.Factors)
		}
		move(&o)
		compare := func(what string, dst *[]float32, want func(r int) float32, multiply func(Level)) {
			for _, level := range Levels() {
				*dst = at(shift, make([]float32, count))
				multiply(level)
				for r, got := range *dst {
					if math.Float32bits(got) != math.Float32bits(want(r)) {
						t.Fatalf("%v, %s, %d blocks, row %d: %v, want %v", level, what, n, r, got, want(r))
					}
				}
			}
		}
		compare("32 columns", &o.Dst, func(r int) float32 { return orderedRow(&o, r) },
			func(l Level) { l.MultiplyOrdered(&o) })
		n = n%10 + 1
		for what, sixteen := range map[string]bool{"eight scales": false, "sixteen scales": true} {
			s := randomSuper(rng, n, count, sixteen)
			move(&s.Ordered)
			s.Sub, s.Sums = slices.Clip(at(shift, s.Sub)), at(shift+4, s.Sums)
			s.Min, s.MinFactors = slices.Clip(at(shift, s.Min)), at(shift+5, s.MinFactors)
			compare(what, &s.Dst, func(r int) float32 { return orderedSuperRow(s, r) },
				func(l Level) { l.MultiplyOrderedSuper(s) })
		}
	})
}
