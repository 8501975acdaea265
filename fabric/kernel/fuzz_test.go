package kernel

// This file compares the assembly with the equivalent Go by fuzzing, with any lengths, tails, and
// start addresses.

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tensorcast/fabric/trit"
)

// at copies v to memory that begins n elements beyond an aligned address, with at least the
// capacity of v.
func at[T any](n uint8, v []T) []T {
	return append(make([]T, n, int(n)+cap(v)+64), v...)[n:]
}

func layoutOf(two bool) trit.Layout {
	if two {
		return trit.TwoBit
	}
	return trit.PT5Striped
}

// makeValid turns any bytes into valid codes of trits.
func makeValid(layout trit.Layout, b []byte) {
	for i, v := range b {
		if layout == trit.PT5Striped {
			b[i] = v % 243
		} else {
			b[i] = v &^ (v >> 1 & v & 0x55) // code 3 becomes 2
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("0123456789012345678901234567890123456789012345678901234567890123"), uint8(0), false, uint8(1))
	f.Add(bytes.Repeat([]byte{242, 0, 121}, 400), uint8(4), true, uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, count uint8, two bool, shift uint8) {
		layout, k := layoutOf(two), int(count)%MaxPlanes+1
		n := len(data) / k / 64 * 64
		data = bytes.Clone(data)
		makeValid(layout, data)
		planes := make([][]byte, k)
		for p := range planes {
			planes[p] = at(shift+uint8(p), data[p*n:(p+1)*n])
		}
		want := make([]byte, n/64*groupTrits(layout))
		Go.Decode(layout, want, planes, n)
		for _, level := range Levels() {
			got := at(shift, append(bytes.Clone(want), 7))
			clear(got[:len(want)])
			level.Decode(layout, got, planes, n)
			if !bytes.Equal(got[:len(want)], want) || got[len(want)] != 7 {
				t.Fatalf("%v, %v, %d planes of %d bytes: got % x, want % x and a 7 behind it",
					level, layout, k, n, got, want)
			}
		}
	})
}

func FuzzMultiply(f *testing.F) {
	for block := range uint8(6) {
		f.Add(uint64(block), block&1 != 0, block, block, uint8(3), 3*block+1, block)
	}
	f.Fuzz(func(t *testing.T, seed uint64, two bool, count, block, rows, groups, shift uint8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p := randomProduct(rng, layoutOf(two), int(count)%MaxPlanes+1,
			[]int{16, 32, 64, 128, 192, 256, 512}[block%7], int(rows%10)+1, int(groups%40)+1)
		for i := range p.Planes {
			p.Planes[i] = at(shift+uint8(i), p.Planes[i])
		}
		p.X, p.Bias, p.Factors = at(shift+3, p.X), at(shift+5, p.Bias), at(shift+7, p.Factors)
		trits := groupTrits(p.Layout)
		weights := make([]byte, p.Count*p.Groups*trits)
		Go.Decode(p.Layout, weights, p.Planes, p.Count*p.Groups*64)
		r := &Rows{
			Small: len(p.Planes) <= SmallPlanes, Weights: at(shift, weights), Pitch: p.Groups * trits, Count: p.Count,
			Stripes: p.Groups * trits / Stripe,
			X:       p.X, Block: p.Block, Bias: p.Bias, Factors: p.Factors, FactorPitch: p.FactorPitch,
		}
		begin := p.Dst
		p.Dst = slices.Clone(begin)
		Go.Multiply(p)
		want := p.Dst
		for _, level := range Levels() {
			p.Dst, r.Dst = at(shift, begin), at(shift, begin)
			level.Multiply(p)
			level.Dot(r)
			if !sameFloats(p.Dst, want) || !sameFloats(r.Dst, want) {
				t.Fatalf("%v: %v and %v, want %v", level, p.Dst, r.Dst, want)
			}
		}
	})
}

// FuzzRows has weights of any byte, also those that planes do not give.
func FuzzRows(f *testing.F) {
	f.Add(uint64(1), uint8(0), uint8(1), uint8(1), uint8(0))
	f.Add(uint64(2), uint8(5), uint8(9), uint8(3), uint8(5))
	f.Fuzz(func(t *testing.T, seed uint64, block, stripes, rows, shift uint8) {
		rng := rand.New(rand.NewPCG(seed, 2))
		r := randomRows(rng, []int{16, 32, 64, 128, 192, 256, 512}[block%7], int(rows%5)+1, int(stripes%60)+1,
			[]int{127, 255}[seed%2])
		r.Weights, r.X, r.Bias = at(shift, r.Weights), at(shift+1, r.X), at(shift+2, r.Bias)
		r.Factors = at(shift+3, r.Factors)
		begin := r.Dst
		r.Dst = slices.Clone(begin)
		Go.Dot(r)
		want := r.Dst
		for _, level := range Levels() {
			r.Dst = at(shift, begin)
			level.Dot(r)
			if !sameFloats(r.Dst, want) {
				t.Fatalf("%v: %v, want %v", level, r.Dst, want)
			}
		}
	})
}

func FuzzSparse(f *testing.F) {
	f.Add(uint64(1), uint16(100), uint8(1), uint8(3), uint8(0))
	f.Fuzz(func(t *testing.T, seed uint64, cols uint16, density, rows, shift uint8) {
		r := randomSparse(rand.New(rand.NewPCG(seed, 3)), int(cols)%2000+1, int(rows%5)+1, float64(density)/255)
		r.Entries, r.X, r.Factors = at(shift, r.Entries), at(shift+1, r.X), at(shift+2, r.Factors)
		begin := r.Dst
		r.Dst = slices.Clone(begin)
		Go.DotSparse(r)
		want := r.Dst
		for _, level := range Levels() {
			r.Dst = at(shift, begin)
			level.DotSparse(r)
			if !sameFloats(r.Dst, want) {
				t.Fatalf("%v: %v, want %v", level, r.Dst, want)
			}
		}
	})
}

// FuzzExpand takes scales of any bits. It also compares SubtractSums.
func FuzzExpand(f *testing.F) {
	f.Add([]byte("some scales, and some more of them, to be multiplied"), uint8(3), uint8(2), uint8(1), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, per, rows, shift, pad uint8) {
		s := &Scales{Rows: int(rows%4) + 1, Per: []int{0, 1, 2, 4, 8, 16}[per%6]}
		s.Blocks = len(data) / 2 / s.Rows
		if s.Blocks == 0 {
			return
		}
		halfs := make([]uint16, s.Rows*s.Blocks)
		for i := range halfs {
			halfs[i] = binary.LittleEndian.Uint16(data[2*i:])
		}
		if s.Per == 0 {
			s.Half = at(shift, halfs)
		} else {
			s.Supers = (s.Blocks + s.Per - 1) / s.Per
			s.Super = at(shift, halfs[:s.Rows*s.Supers])
			for _, v := range data[:s.Rows*s.Blocks] {
				s.Sub = append(s.Sub, int8(v))
			}
			s.Sub = at(shift+1, s.Sub)
		}
		with := make([]float32, s.Blocks)
		for i := range with {
			with[i] = float32(i%7) - 3
		}
		s.With = at(shift+2, with)
		pitch := s.Blocks + int(pad%5)
		want := make([]float32, s.Rows*pitch+1)
		Go.Expand(want, pitch, s)
		for _, level := range Levels() {
			got := at(shift, make([]float32, len(want)))
			level.Expand(got, pitch, s)
			if !sameFloats(got, want) {
				t.Fatalf("%v, %d rows of %d blocks, %d of a super-block: %v, want %v",
					level, s.Rows, s.Blocks, s.Per, got, want)
			}
		}
		small := make([]float32, s.Rows*pitch)
		for i := range small {
			small[i] = float32(data[i%len(data)])
		}
		begin := make([]float32, s.Rows)
		wantSums := slices.Clone(begin)
		Go.SubtractSums(wantSums, small, pitch, s.Blocks)
		for _, level := range Levels() {
			got := at(shift, begin)
			level.SubtractSums(got, at(shift, small), pitch, s.Blocks)
			if !sameFloats(got, wantSums) {
				t.Fatalf("%v: sums %v, want %v", level, got, wantSums)
			}
		}
	})
}

// FuzzQuantize takes all finite values.
func FuzzQuantize(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), false, uint8(1))
	f.Add(bytes.Repeat([]byte{0, 0, 128, 63}, 300), true, uint8(1))
	f.Add(bytes.Repeat([]byte{1, 0, 0, 0}, 300), true, uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, large bool, shift uint8) {
		block := 32
		if large {
			block = 256
		}
		x := make([]float32, len(data)/4)
		for i := range x {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
			if x[i]-x[i] != 0 {
				x[i] = 0
			}
		}
		n := (len(x) + 63) / 64 * 64
		want, wantScale, wantSums := make([]int8, n), make([]float32, (len(x)+block-1)/block), make([]int32, n/4)
		Go.Quantize(want, wantScale, x, block)
		Go.SumFours(wantSums, want)
		for _, level := range Levels() {
			q, scale := at(shift, make([]int8, n)), at(shift, make([]float32, len(wantScale)))
			sums := at(shift, make([]int32, n/4))
			level.Quantize(q, scale, at(shift, x), block)
			level.SumFours(sums, q)
			if !slices.Equal(q, want) || !sameFloats(scale, wantScale) || !slices.Equal(sums, wantSums) {
				t.Fatalf("%v, blocks of %d: values %v, factors %v, sums %v, want %v, %v, %v",
					level, block, q, scale, sums, want, wantScale, wantSums)
			}
		}
	})
}
