package kernel

// This file tests Decode, Dot and Multiply at all levels.

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"tensorcast/fabric/trit"
)

// randomPlanes makes planes of n bytes each, which are valid codes.
func randomPlanes(rng *rand.Rand, l trit.Layout, count, n int) [][]byte {
	all := make([][]byte, count)
	for p := range all {
		all[p] = make([]byte, n)
		for i := range all[p] {
			if l == trit.PT5Striped {
				all[p][i] = byte(rng.IntN(243))
				continue
			}
			for f := range 4 {
				all[p][i] |= byte(rng.IntN(3)) << (2 * f)
			}
		}
	}
	return all
}

// TestDecode compares every level with what package trit unpacks.
func TestDecode(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, layout := range []trit.Layout{trit.PT5Striped, trit.TwoBit} {
		for count := 1; count <= MaxPlanes; count++ {
			for _, groups := range []int{0, 1, 2, 3, 40} {
				n, trits := 64*groups, groups*groupTrits(layout)
				planes := randomPlanes(rng, layout, count, n)
				want := make([]byte, trits)
				power := 1
				for i := range want {
					want[i] = byte(Offset(count))
				}
				for _, p := range planes {
					digits := make([]int8, trits)
					if err := layout.Unpack(digits, p); err != nil {
						t.Fatal(err)
					}
					for i, d := range digits {
						want[i] += byte(power * int(d))
					}
					power *= 3
				}
				for _, level := range Levels() {
					got := make([]byte, trits+1)
					level.Decode(layout, got, planes, n)
					if !bytes.Equal(got[:trits], want) || got[trits] != 0 {
						t.Errorf("%v, %v, %d planes of %d groups: got % x, want % x and a 0 behind it",
							level, layout, count, groups, got, want)
					}
				}
			}
		}
	}
}

// TestDecodePairs decodes all pairs of valid bytes in one word of 16 bits, as the assembly divides
// such words.
func TestDecodePairs(t *testing.T) {
	var plane []byte
	for low := range 243 {
		for high := range 243 {
			plane = append(plane, byte(low), byte(high))
		}
	}
	for len(plane)%64 != 0 {
		plane = append(plane, 0)
	}
	want := make([]byte, len(plane)/64*320)
	Go.Decode(trit.PT5Striped, want, [][]byte{plane}, len(plane))
	for _, level := range Levels() {
		got := make([]byte, len(want))
		level.Decode(trit.PT5Striped, got, [][]byte{plane}, len(plane))
		if !bytes.Equal(got, want) {
			t.Errorf("%v: weights differ from those of %v", level, Go)
		}
	}
}

// randomRows makes a product whose float32 sums are exact in any order, so that results must be
// equal and not only close.
func randomRows(rng *rand.Rand, block, count, stripes int, maxWeight int) *Rows {
	cols := stripes * Stripe
	blocks := (cols + block - 1) / block
	lanes := 16 * stripes
	if block > Stripe {
		lanes = 16 * blocks
	}
	r := &Rows{
		Small: maxWeight < 128,
		Pitch: cols + rng.IntN(3), Count: count, Stripes: stripes, Block: block, FactorPitch: blocks + rng.IntN(3),
		X: make([]int8, cols), Bias: make([]int32, lanes), Dst: make([]float32, count),
	}
	r.Weights = make([]byte, count*r.Pitch)
	r.Factors = make([]float32, count*r.FactorPitch+15)
	for i := range r.Weights {
		r.Weights[i] = byte(rng.IntN(maxWeight + 1))
	}
	for i := range r.X {
		r.X[i] = int8(rng.IntN(256) - 128)
	}
	for i := range r.Bias {
		r.Bias[i] = int32(rng.IntN(20001) - 10000)
	}
	for i := range r.Factors {
		r.Factors[i] = float32(rng.IntN(3) - 1)
	}
	for i := range r.Dst {
		r.Dst[i] = float32(rng.IntN(2001) - 1000)
	}
	return r
}

func TestDot(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, block := range []int{16, 32, 64, 128, 192, 256, 320, 512, 4096} {
		for _, stripes := range []int{1, 2, 3, 4, 5, 7, 8, 9, 16, 17} {
			for _, maxWeight := range []int{2, 127, 255} {
				r := randomRows(rng, block, 1+rng.IntN(3), stripes, maxWeight)
				begin := append([]float32(nil), r.Dst...)
				Go.Dot(r)
				want := r.Dst
				for _, level := range Levels() {
					r.Dst = append([]float32(nil), begin...)
					level.Dot(r)
					if fmt.Sprint(r.Dst) != fmt.Sprint(want) {
						t.Errorf("%v, blocks of %d, %d stripes, weights to %d: %v, want %v",
							level, block, stripes, maxWeight, r.Dst, want)
					}
				}
			}
		}
	}
}

// randomProduct makes a product of planes whose float32 sums are exact in any order.
func randomProduct(rng *rand.Rand, layout trit.Layout, planes, block, count, groups int) *Product {
	trits := groupTrits(layout)
	stripes := groups * trits / Stripe
	blocks := (groups*trits + block - 1) / block
	whole := max(stripes, blocks*block/Stripe)
	r := randomRows(rng, block, count, whole, 1)
	clear(r.X[stripes*Stripe:])
	if block > Stripe {
		// The padding has no bias, as some products skip it.
		clear(r.Bias[16*blocks:])
	}
	p := &Product{
		Layout: layout, Planes: randomPlanes(rng, layout, planes, count*groups*64), Groups: groups, Count: count,
		X: r.X, Block: block, Bias: r.Bias, Factors: r.Factors, FactorPitch: r.FactorPitch, Dst: r.Dst,
		Weights: make([]byte, groups*trits*(1+rng.IntN(3))),
	}
	if block <= Stripe && rng.IntN(2) == 0 {
		// Some groups have only zeros, and so their products and their bias add up to 0.
		Go.SumFours(p.Bias, p.X)
		for i := range p.Bias {
			p.Bias[i] *= -Offset(planes)
		}
		p.Skip = make([]byte, count*groups)
		for g := range p.Skip {
			if p.Skip[g] = byte(rng.IntN(2)); p.Skip[g] != 0 {
				for _, plane := range p.Planes {
					layout.Pack(plane[64*g:], make([]int8, trits))
				}
			}
		}
	}
	return p
}

// TestMultiply compares every level with the Go code, in cases with a single-pass loop and in others.
func TestMultiply(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, layout := range []trit.Layout{trit.PT5Striped, trit.TwoBit} {
		for planes := 1; planes <= MaxPlanes; planes++ {
			for _, block := range []int{16, 32, 64, 128, 256, 512} {
				for groups := 1; groups <= 9; groups++ {
					p := randomProduct(rng, layout, planes, block, 1+rng.IntN(6), groups)
					begin := append([]float32(nil), p.Dst...)
					Go.Multiply(p)
					want := p.Dst
					for _, level := range Levels() {
						p.Dst = append([]float32(nil), begin...)
						level.Multiply(p)
						if fmt.Sprint(p.Dst) != fmt.Sprint(want) {
							t.Errorf("%v, %v, %d planes, blocks of %d, %d groups: %v, want %v",
								level, layout, planes, block, groups, p.Dst, want)
						}
					}
				}
			}
		}
	}
}
