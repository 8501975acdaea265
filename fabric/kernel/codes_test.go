package kernel

// This file compares products of Q2_0 blocks with sums that follow the definition of the format,
// for single blocks and for whole rows.

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"tensorcast/gguf/half"
)

// randomCodes makes rows of blocks and a vector. Halfs and the factors of the vector, one for 32
// columns, are small powers of two, so that float32 sums are exact in any order. It also returns
// the vector in the order of columns.
func randomCodes(rng *rand.Rand, width, count int) (*Codes, []int8) {
	quads := (width + 3) / 4
	c := &Codes{
		Blocks: make([]byte, count*width*CodeBlock), Width: width, Count: count,
		X: make([]int8, quads*Quad), Bias: make([]int32, quads*QuadLanes), Scale: make([]float32, quads*QuadLanes),
		Dst: make([]float32, count),
	}
	for i := range c.Blocks {
		c.Blocks[i] = byte(rng.Uint32())
	}
	for i := 0; i < len(c.Blocks); i += CodeBlock {
		binary.LittleEndian.PutUint16(c.Blocks[i:], []uint16{0x3c00, 0xc000, 0x3800, 0}[rng.IntN(4)])
	}
	x := make([]int8, quads*Quad)
	for i := range width * CodeCols {
		x[i] = int8(rng.IntN(256) - 128)
		if rng.IntN(4) == 0 {
			x[i] = []int8{-128, 127}[rng.IntN(2)]
		}
		c.Bias[i/16] -= int32(x[i])
	}
	for i := range c.Scale {
		c.Scale[i] = []float32{1, -1, 0.5}[(i/2*7+width)%3]
	}
	Go.Arrange(c.X, x)
	return c, x
}

// codeAt returns a weight without its scale: -1, 0, 1 or 2.
func codeAt(c *Codes, row, col int) int {
	block := c.Blocks[(row*c.Width+col/CodeCols)*CodeBlock:][:CodeBlock]
	return int(block[2+col%CodeCols/4]>>(2*(col%4))&3) - 1
}

func TestArrange(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	for quads := 1; quads < 5; quads++ {
		src := make([]int8, quads*Quad)
		for i := range src {
			src[i] = int8(rng.Uint32())
		}
		for _, level := range Levels() {
			got := make([]int8, len(src)+1)
			level.Arrange(got[:len(src)], src)
			for i, v := range src {
				at := i/Quad*Quad + i%4*64 + i%Quad/64*16 + i%64/4
				if got[at] != v || got[len(src)] != 0 {
					t.Fatalf("%v: column %d of %d is %d, want %d", level, i, len(src), got[at], v)
				}
			}
		}
	}
}

// TestBlockIntegers checks the integer of every 32 columns that share a factor of the vector. All
// other factors are 0, so that it is the result.
func TestBlockIntegers(t *testing.T) {
	rng := rand.New(rand.NewPCG(23, 24))
	for _, width := range []int{1, 2, 3, 4, 5, 6, 7, 8, 64} {
		c, x := randomCodes(rng, width, 5)
		for i := 0; i < len(c.Blocks); i += CodeBlock {
			binary.LittleEndian.PutUint16(c.Blocks[i:], 0x3c00)
		}
		for _, level := range Levels() {
			for part := range 2 * width {
				clear(c.Scale)
				c.Scale[2*part], c.Scale[2*part+1] = 1, 1
				level.MultiplyCodes(c)
				for r, got := range c.Dst {
					want := 0
					for col := 32 * part; col < 32*part+32; col++ {
						want += codeAt(c, r, col) * int(x[col])
					}
					if got != float32(want) {
						t.Fatalf("%v, %d blocks, row %d, columns %d to %d: %v, want %d",
							level, width, r, 32*part, 32*part+31, got, want)
					}
				}
			}
		}
	}
}

func TestMultiplyCodes(t *testing.T) {
	rng := rand.New(rand.NewPCG(25, 26))
	for width := 1; width < 20; width++ {
		for count := 1; count < 11; count++ {
			c, x := randomCodes(rng, width, count)
			want := make([]float32, count)
			for r := range want {
				for col := range width * CodeCols {
					d := half.Float32(binary.LittleEndian.Uint16(c.Blocks[(r*width+col/CodeCols)*CodeBlock:]))
					want[r] += d * c.Scale[col/16] * float32(codeAt(c, r, col)*int(x[col]))
				}
			}
			for _, level := range Levels() {
				clear(c.Dst)
				level.MultiplyCodes(c)
				if !sameFloats(c.Dst, want) {
					t.Fatalf("%v, %d rows of %d blocks: %v, want %v", level, count, width, c.Dst, want)
				}
			}
		}
	}
}

// codesInOrder returns a row's result in ggml's order, computed term by term in exact arithmetic,
// with one rounding for each sum.
func codesInOrder(c *Codes, x []int8, row int) (sum float32) {
	exact := func(v float32) *big.Float { return new(big.Float).SetPrec(200).SetFloat64(float64(v)) }
	round := func(v *big.Float) float32 {
		f, _ := v.Float32()
		return f
	}
	for b := range c.Width {
		inner := exact(0)
		for part := range 2 {
			integer := 0
			for i := range 32 {
				col := b*CodeCols + 32*part + i
				integer += codeAt(c, row, col) * int(x[col])
			}
			p := exact(float32(integer))
			inner = exact(round(inner.Add(inner, p.Mul(p, exact(c.Scale[4*b+2*part])))))
		}
		d := half.Float32(binary.LittleEndian.Uint16(c.Blocks[(row*c.Width+b)*CodeBlock:]))
		sum = round(inner.Mul(inner, exact(d)).Add(inner, exact(sum)))
	}
	return sum
}

// randomizeScales replaces halfs and scales by random finite ones.
func randomizeScales(rng *rand.Rand, c *Codes) {
	randomHalf := func() uint16 {
		if rng.IntN(8) == 0 {
			return uint16(rng.Uint32()) &^ 0x4000 // small, or even denormal
		}
		return 0x2000 + uint16(rng.IntN(0x2000)) | uint16(rng.IntN(2))<<15
	}
	for i := 0; i < len(c.Blocks); i += CodeBlock {
		binary.LittleEndian.PutUint16(c.Blocks[i:], randomHalf())
	}
	for i := 0; i < len(c.Scale); i += 2 {
		c.Scale[i] = half.Float32(randomHalf())
		c.Scale[i+1] = c.Scale[i]
	}
}

// TestCodesInOrder checks that each level's sums are in ggml's order, bit for bit, for single
// vectors and in tiles.
func TestCodesInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(29, 30))
	for n := range 60 {
		c, x := randomCodes(rng, n%23+1, 1+rng.IntN(6))
		randomizeScales(rng, c)
		want := make([]float32, c.Count)
		for r := range want {
			want[r] = codesInOrder(c, x, r)
		}
		for _, level := range Levels() {
			clear(c.Dst)
			level.MultiplyCodes(c)
			if !slices.Equal(c.Dst, want) {
				t.Fatalf("%v, %d blocks: %v, want %v", level, c.Width, c.Dst, want)
			}
			if got := multiplyAsTile(level, c, 4); !slices.Equal(got, want) {
				t.Fatalf("%v, %d blocks, in a tile: %v, want %v", level, c.Width, got, want)
			}
		}
	}
}

// multiplyAsTile computes the product with MultiplyCodesTile. The vector is the last one of the
// given number of vectors.
func multiplyAsTile(level Level, c *Codes, vectors int) (dst []float32) {
	quads := (c.Width + 3) / 4
	padded := (c.Count + TileRows - 1) / TileRows * TileRows
	tile := &Tile{
		Weights: make([]byte, padded*quads*Quad), Factors: make([]float32, padded/TileRows*quads*QuadLanes),
		Rows: c.Count, Quads: quads,
		X: make([]int8, vectors*quads*Quad), Bias: make([]int32, vectors*quads*QuadLanes),
		Scale:   make([]float32, vectors*quads*QuadLanes),
		Vectors: vectors, Dst: make([]float32, padded*vectors),
	}
	last := vectors - 1
	copy(tile.X[last*len(c.X):], c.X)
	copy(tile.Bias[last*len(c.Bias):], c.Bias)
	copy(tile.Scale[last*len(c.Scale):], c.Scale)
	row := c.Width * CodeBlock
	for r := 0; r < c.Count; r += TileRows {
		n := min(TileRows, c.Count-r)
		level.DecodeCodes(tile.Weights[r*quads*Quad:], tile.Factors[r/TileRows*quads*QuadLanes:],
			c.Blocks[r*row:(r+n)*row], c.Width, n)
	}
	level.MultiplyCodesTile(tile)
	for r := range c.Count {
		dst = append(dst, tile.Dst[(r/TileRows*vectors+last)*TileRows+r%TileRows])
	}
	return dst
}

func TestDecodeCodes(t *testing.T) {
	rng := rand.New(rand.NewPCG(27, 28))
	for width := 1; width < 14; width++ {
		const rows = 3
		c, _ := randomCodes(rng, width, rows)
		pitch := len(c.X)
		for _, level := range Levels() {
			weights, factors := bytes.Repeat([]byte{9}, rows*pitch+1), make([]float32, len(c.Bias)+1)
			for i := range factors {
				factors[i] = 9
			}
			level.DecodeCodes(weights, factors, c.Blocks, width, rows)
			if weights[rows*pitch] != 9 || factors[len(c.Bias)] != 9 || factors[3] != 9 {
				t.Fatalf("%v, %d blocks: wrote beyond the %d rows", level, width, rows)
			}
			for r := range rows {
				for col := range pitch {
					at := col/Quad*Quad + col%4*64 + col%Quad/64*16 + col%64/4
					code, d := byte(0), float32(0)
					if col < width*CodeCols {
						block := c.Blocks[(r*width+col/CodeCols)*CodeBlock:]
						code, d = byte(codeAt(c, r, col)+1), half.Float32(binary.LittleEndian.Uint16(block))
					}
					if f := factors[col/CodeCols*4+r]; weights[r*pitch+at] != code || f != d {
						t.Fatalf("%v, %d blocks, row %d, column %d: %d times %v, want %d times %v",
							level, width, r, col, weights[r*pitch+at], f, code, d)
					}
				}
			}
		}
	}
}

// FuzzCodes compares the levels bit for bit, on memory at any address, with any codes and scales.
func FuzzCodes(f *testing.F) {
	f.Add(uint64(1), uint8(0), uint8(1), uint8(0))
	f.Add(uint64(2), uint8(6), uint8(4), uint8(3))
	f.Fuzz(func(t *testing.T, seed uint64, width, rows, shift uint8) {
		rng := rand.New(rand.NewPCG(seed, 4))
		c, x := randomCodes(rng, int(width%70)+1, int(rows%9)+1)
		randomizeScales(rng, c)
		c.Blocks, c.X = slices.Clip(at(shift, c.Blocks)), at(shift+1, c.X)
		c.Bias, c.Scale = at(shift+2, c.Bias), at(shift+3, c.Scale)
		want := make([]float32, c.Count)
		c.Dst = want
		Go.MultiplyCodes(c)
		if r := int(seed % uint64(c.Count)); codesInOrder(c, x, r) != want[r] {
			t.Fatalf("row %d: %v, want %v", r, want[r], codesInOrder(c, x, r))
		}
		arranged := make([]int8, len(x))
		for _, level := range Levels() {
			c.Dst = at(shift, make([]float32, c.Count))
			level.MultiplyCodes(c)
			level.Arrange(arranged, at(shift, x))
			if !slices.Equal(c.Dst, want) || !slices.Equal(arranged, c.X) {
				t.Fatalf("%v: %v, want %v", level, c.Dst, want)
			}
			if got := multiplyAsTile(level, c, 2); !slices.Equal(got, want) {
				t.Fatalf("%v, in a tile: %v, want %v", level, got, want)
			}
		}
	})
}

// A sum that lies just beside the middle between two float32 is rounded once: to the nearer one, even where float64
// rounds it to that middle or beside it.
func TestFusedMultiplyAddRoundsOnce(t *testing.T) {
	exactly := func(x, y, z float32) float32 {
		exact := func(v float32) *big.Float { return new(big.Float).SetPrec(200).SetFloat64(float64(v)) }
		sum := exact(x)
		sum.Mul(sum, exact(y)).Add(sum, exact(z))
		want, _ := sum.Float32()
		return want
	}
	const middle = 1 + 0x1p-24 // between 1 and the next float32
	met := map[uint64]int{}    // by the last bit of what float64 gives
	for i := 1; i < 1<<16; i++ {
		x := 1 + float32(i)*0x1p-20
		y := float32(middle / float64(x))
		p := float64(x) * float64(y)
		for _, beside := range []float64{-0x1p-52 + 0x1p-54, -0x1p-54, 0x1p-54, 0x1p-52 - 0x1p-54, 0x1p-52 + 0x1p-54} {
			exact := middle - p + beside // float64 holds it, because p is next to middle
			z := float32(exact)
			if float64(z) != exact {
				continue // no float32 brings the sum there
			}
			met[math.Float64bits(p+float64(z))&1]++
			for _, sign := range []float32{1, -1} {
				if got, want := fma(sign*x, y, sign*z), exactly(sign*x, y, sign*z); got != want {
					t.Fatalf("%v * %v + %v = %v, want %v", sign*x, y, sign*z, got, want)
				}
			}
		}
	}
	if met[0] < 100 || met[1] < 100 {
		t.Errorf("met %v, want many sums whose last bit is 0, and many whose last bit is 1", met)
	}
}
