package kernel

// This file tests that rows are the same after packing to a band and unpacking, and that products
// of bands are those of their weights, at all levels.

import (
	"math/rand/v2"
	"slices"
	"testing"

	"tensorcast/gguf/half"
)

// band is five rows of weights.
type band struct {
	weights [BandRows][]byte
	halfs   [BandRows][]uint16
}

// randomBand makes rows whose factors are small powers of two, so that float32 sums of their
// products are exact in any order.
func randomBand(rng *rand.Rand, cols, planes int) (b band) {
	levels := 9
	if planes == 3 {
		levels = 27
	}
	for r := range b.weights {
		for range cols {
			w := byte(rng.IntN(levels))
			if rng.IntN(4) == 0 {
				w = byte((levels - 1) * rng.IntN(2))
			}
			b.weights[r] = append(b.weights[r], w)
		}
		for range (cols + BandBlock - 1) / BandBlock {
			b.halfs[r] = append(b.halfs[r], []uint16{0x3c00, 0xc000, 0x3800, 0}[rng.IntN(4)])
		}
	}
	return b
}

func TestPackBand(t *testing.T) {
	rng := rand.New(rand.NewPCG(51, 52))
	for blocks := 8; blocks < 50; blocks += 8 {
		for planes := 2; planes <= 3; planes++ {
			cols := blocks * BandBlock
			b := randomBand(rng, cols, planes)
			packed := make([]byte, BandBytes(cols, planes)+1)
			packed[len(packed)-1] = 7
			PackBand(packed[:len(packed)-1], &b.weights, &b.halfs, blocks, planes)
			var got band
			var factors [BandRows][]float32
			for r := range got.weights {
				got.weights[r], factors[r] = make([]byte, cols), make([]float32, blocks)
			}
			unpackBand(&got.weights, &factors, packed, blocks, planes)
			for r := range got.weights {
				if !slices.Equal(got.weights[r], b.weights[r]) {
					t.Fatalf("%d blocks, %d planes, row %d: weights %d, want %d",
						blocks, planes, r, got.weights[r], b.weights[r])
				}
				for k, f := range factors[r] {
					if want := half.Float32(b.halfs[r][k]); f != want {
						t.Fatalf("%d blocks, row %d, block %d: factor %v, want %v", blocks, r, k, f, want)
					}
				}
			}
			if packed[len(packed)-1] != 7 {
				t.Fatalf("%d blocks, %d planes: PackBand wrote behind the band", blocks, planes)
			}
		}
	}
}

// TestCoarsenBand writes coarse bands over or near their source. They must have the same weights
// without their lowest trit.
func TestCoarsenBand(t *testing.T) {
	rng := rand.New(rand.NewPCG(57, 58))
	for blocks := 8; blocks < 50; blocks += 8 {
		for _, before := range []int{0, 1, 100, 300} {
			cols := blocks * BandBlock
			b := randomBand(rng, cols, 3)
			for r := range b.halfs {
				for k := range b.halfs[r] {
					b.halfs[r][k] = []uint16{0x3c00, 0, 0x0001, 0x1234, MaxCoarsenFactor}[rng.IntN(5)]
				}
			}
			size := BandBytes(cols, 2)
			memory := make([]byte, before+BandBytes(cols, 3))
			PackBand(memory[before:], &b.weights, &b.halfs, blocks, 3)
			CoarsenBand(memory[:size], memory[before:], blocks)
			var want [BandRows][]uint16
			for r := range b.weights {
				for c := range b.weights[r] {
					b.weights[r][c] /= 3
				}
				for _, h := range b.halfs[r] {
					want[r] = append(want[r], half.Round(3*half.Float32(h)))
				}
			}
			packed := make([]byte, size)
			PackBand(packed, &b.weights, &want, blocks, 2)
			if !slices.Equal(memory[:size], packed) {
				t.Fatalf("%d blocks, written %d bytes before the source: got band % x, want % x",
					blocks, before, memory[:size], packed)
			}
			if h := half.Float32(want[0][0]); h > 65504 {
				t.Fatalf("largest factor is %v, want at most 65504", h)
			}
		}
	}
}

// BenchmarkCoarsenBand reports the bytes of three planes that are converted in a second.
func BenchmarkCoarsenBand(b *testing.B) {
	const cols = 2048
	rng := rand.New(rand.NewPCG(59, 60))
	weights := randomBand(rng, cols, 3)
	src := make([]byte, BandBytes(cols, 3))
	PackBand(src, &weights.weights, &weights.halfs, cols/BandBlock, 3)
	dst := make([]byte, BandBytes(cols, 2))
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		CoarsenBand(dst, src, cols/BandBlock)
	}
}

// TestBandBytes checks that every pair of q and r has a byte of its own, and that a band is as
// large as its trits and factors.
func TestBandBytes(t *testing.T) {
	seen := map[byte]bool{}
	for q := range byte(27) {
		for r := range byte(9) {
			b := bandByte(q, r)
			if p, s := splitBand(b); p != q || s != r || seen[b] {
				t.Errorf("bandByte(%d, %d) = %d (taken: %v), which splitBand makes %d, %d", q, r, b, seen[b], p, s)
			}
			seen[b] = true
		}
	}
	if n := BandBytes(4096, 3); n != 4096*3+128*10 {
		t.Errorf("BandBytes(4096, 3) = %d, want %d", n, 4096*3+128*10)
	}
}

// randomBands makes a product. It also returns the weights and factors of each band, and the
// vectors in the order of columns.
func randomBands(rng *rand.Rand, cols, planes, count, vectors int) (p *Bands, all []band, x [][]int8) {
	p = &Bands{
		Planes: planes, Blocks: BandBlocks(cols), Count: count, Pitch: BandBytes(cols, planes),
		Vectors: vectors, Dst: make([]float32, count*vectors*8),
	}
	for range count {
		b := randomBand(rng, p.Blocks*BandBlock, planes)
		bytes := make([]byte, p.Pitch)
		PackBand(bytes, &b.weights, &b.halfs, p.Blocks, planes)
		p.Bytes, all = append(p.Bytes, bytes...), append(all, b)
	}
	supers := BandSupers(p.Blocks)
	for range vectors {
		v := make([]int8, p.Blocks*BandBlock)
		bias, scale := make([]int32, supers*SuperBlocks), make([]float32, supers*SuperBlocks)
		for c := range cols {
			v[c] = int8(rng.IntN(256) - 128)
			bias[c/BandBlock] -= int32(v[c]) * BandOffset(planes)
			scale[c/BandBlock] = []float32{1, -1, 0.5}[c/BandBlock*7%3]
		}
		arranged := make([]int8, supers*SuperCols)
		ArrangeBlocks(arranged, v)
		p.X, x = append(p.X, arranged...), append(x, v)
		p.Bias, p.Scale = append(p.Bias, bias...), append(p.Scale, scale...)
	}
	return p, all, x
}

func TestMultiplyBands(t *testing.T) {
	rng := rand.New(rand.NewPCG(53, 54))
	for _, cols := range []int{32, 256, 288, 480, 512, 640, 768, 800, 1024} {
		for planes := 2; planes <= 3; planes++ {
			for _, vectors := range []int{1, 2, 4} {
				p, all, x := randomBands(rng, cols, planes, 3, vectors)
				want := make([]float32, len(p.Dst))
				for n, b := range all {
					for v := range x {
						for r := range b.weights {
							for c, w := range b.weights[r][:cols] {
								scale := p.Scale[v*BandSupers(p.Blocks)*SuperBlocks+c/BandBlock]
								want[(n*vectors+v)*8+r] += half.Float32(b.halfs[r][c/BandBlock]) * scale *
									float32((int32(w)-Offset(planes))*int32(x[v][c]))
							}
						}
					}
				}
				for _, level := range Levels() {
					clear(p.Dst)
					level.MultiplyBands(p)
					if !sameFloats(p.Dst, want) {
						t.Fatalf("%v, %d columns, %d planes, %d vectors: %v, want %v",
							level, cols, planes, vectors, p.Dst, want)
					}
				}
			}
		}
	}
}

// TestBandsExtremes checks that the assembly's integers of 16 bits do not overflow with the largest
// weights and values.
func TestBandsExtremes(t *testing.T) {
	rng := rand.New(rand.NewPCG(61, 62))
	for planes := 2; planes <= 3; planes++ {
		for _, vectors := range []int{1, 2, 4} {
			for _, value := range []int8{-128, 127} {
				p, all, _ := randomBands(rng, SuperCols, planes, 1, vectors)
				for r := range all[0].weights {
					for c := range all[0].weights[r] {
						all[0].weights[r][c] = byte(2 * Offset(planes))
					}
				}
				PackBand(p.Bytes, &all[0].weights, &all[0].halfs, p.Blocks, planes)
				for i := range p.X {
					p.X[i] = value
				}
				for i := range p.Bias {
					p.Bias[i] = -BandOffset(planes) * BandBlock * int32(value)
				}
				Go.MultiplyBands(p)
				want := slices.Clone(p.Dst)
				for _, level := range Levels() {
					level.MultiplyBands(p)
					if !sameFloats(p.Dst, want) {
						t.Fatalf("%v, %d planes, %d vectors, values of %d: %v, want %v",
							level, planes, vectors, value, p.Dst, want)
					}
				}
			}
		}
	}
}

// TestBandsApart checks that an infinite factor in one row changes the result of no other row, with
// whole supers and without.
func TestBandsApart(t *testing.T) {
	rng := rand.New(rand.NewPCG(55, 56))
	for _, cols := range []int{256, 512, 768} {
		for bad := range BandRows {
			p, all, _ := randomBands(rng, cols, 3, 1, 1)
			Go.MultiplyBands(p)
			want := slices.Clone(p.Dst[:BandRows])
			for b := range all[0].halfs[bad] {
				all[0].halfs[bad][b] = 0x7c00
			}
			PackBand(p.Bytes, &all[0].weights, &all[0].halfs, p.Blocks, 3)
			for _, level := range Levels() {
				level.MultiplyBands(p)
				p.Dst[bad] = want[bad]
				if !sameFloats(p.Dst[:BandRows], want) {
					t.Fatalf("%v, %d columns, row %d is infinite: %v, want %v",
						level, cols, bad, p.Dst[:BandRows], want)
				}
			}
		}
	}
}

// FuzzBands compares the assembly with the equivalent Go.
func FuzzBands(f *testing.F) {
	f.Add(uint64(1), uint8(1), uint8(1), uint8(0), false, uint8(0))
	f.Add(uint64(2), uint8(3), uint8(2), uint8(1), true, uint8(5))
	f.Add(uint64(3), uint8(8), uint8(3), uint8(2), true, uint8(1))
	f.Fuzz(func(t *testing.T, seed uint64, eights, count, vectors uint8, three bool, shift uint8) {
		rng := rand.New(rand.NewPCG(seed, 5))
		planes := 2
		if three {
			planes = 3
		}
		p, _, _ := randomBands(rng, int(eights%11+1)*256-32*rng.IntN(8), planes, int(count%5)+1,
			[]int{1, 2, 4}[vectors%3])
		for i := range p.Bias {
			p.Bias[i] += int32(rng.IntN(1<<10) - 1<<9)
		}
		p.Bytes, p.X, p.Bias, p.Scale = at(shift, p.Bytes), at(shift+1, p.X), at(shift+2, p.Bias), at(shift+3, p.Scale)
		Go.MultiplyBands(p)
		want := p.Dst
		for _, level := range Levels() {
			p.Dst = at(shift, make([]float32, len(want)))
			level.MultiplyBands(p)
			if !sameFloats(p.Dst, want) {
				t.Fatalf("%v: %v, want %v", level, p.Dst, want)
			}
		}
	})
}
