package kernel

// This file compares products of tiles at all levels.

import (
	"math/rand/v2"
	"testing"
)

// randomTile makes a product whose float32 sums are exact in any order.
func randomTile(rng *rand.Rand, rows, quads, vectors, maxWeight int) *Tile {
	padded := (rows + TileRows - 1) / TileRows * TileRows
	t := &Tile{
		Weights: make([]byte, padded*quads*Quad), Factors: make([]float32, padded*quads*QuadLanes), Rows: rows,
		Quads: quads,
		X:     make([]int8, vectors*quads*Quad), Bias: make([]int32, vectors*quads*QuadLanes),
		Scale:   make([]float32, vectors*quads*QuadLanes),
		Vectors: vectors, Dst: make([]float32, padded*vectors),
	}
	for i := range t.Weights {
		t.Weights[i] = byte(rng.IntN(maxWeight + 1))
		if rng.IntN(3) == 0 {
			t.Weights[i] = byte(maxWeight)
		}
	}
	for i := range t.X {
		switch {
		case maxWeight > 127: // so that sums are below 2^23
			t.X[i] = int8(rng.IntN(17) - 8)
		case rng.IntN(3) == 0:
			t.X[i] = []int8{-128, 127}[i>>10&1]
		default:
			t.X[i] = int8(rng.IntN(256) - 128)
		}
	}
	for i := range t.Bias {
		t.Bias[i] = int32(rng.IntN(2001) - 1000)
	}
	for i := range t.Factors {
		t.Factors[i] = []float32{1, 0, -0.5}[rng.IntN(3)]
	}
	for i := range t.Scale {
		t.Scale[i] = []float32{1, 0, 2}[rng.IntN(3)]
	}
	return t
}

// sameTile reports whether the results of all rows are the same. Elements of a and b for the
// padding of the last tile are ignored.
func sameTile(t *Tile, a, b []float32) bool {
	for r := range t.Rows {
		for v := range t.Vectors {
			if i := (r/TileRows*t.Vectors+v)*TileRows + r%TileRows; a[i] != b[i] {
				return false
			}
		}
	}
	return true
}

// checkTile compares random products at all levels. Their memory is shift elements off an aligned
// address.
func checkTile(t *testing.T, rng *rand.Rand, rows, quads, vectors int, shift uint8) {
	t.Helper()
	for _, maxWeight := range []int{3, 26, 255} {
		tile := randomTile(rng, rows, quads, vectors, maxWeight)
		tile.Weights, tile.Factors = at(shift, tile.Weights), at(shift+1, tile.Factors)
		tile.X, tile.Bias, tile.Scale = at(shift+2, tile.X), at(shift+3, tile.Bias), at(shift+4, tile.Scale)
		Go.MultiplyTile(tile)
		want := tile.Dst
		for _, level := range Levels() {
			if maxWeight == 255 && level.MaxTilePlanes() < MaxPlanes {
				continue
			}
			tile.Dst = make([]float32, len(want))
			level.MultiplyTile(tile)
			if !sameTile(tile, tile.Dst, want) {
				t.Fatalf("%v, %d rows of %d quads, %d vectors, weights to %d: %v, want %v",
					level, rows, quads, vectors, maxWeight, tile.Dst, want)
			}
		}
	}
}

func TestMultiplyTile(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	for rows := 1; rows < 10; rows++ {
		for quads := 1; quads < 4; quads++ {
			for vectors := 2; vectors < 8; vectors += 2 {
				checkTile(t, rng, rows, quads, vectors, 0)
			}
		}
	}
}

// Tiles of as many planes as a level allows are exact where all products are as large as they can be.
func TestTileOfMaxPlanes(t *testing.T) {
	for _, level := range Levels() {
		planes := level.MaxTilePlanes()
		if planes == 0 {
			continue
		}
		largest := 1
		for range planes {
			largest *= 3
		}
		largest = min(largest-1, 255)
		for _, x := range []int8{-128, 127} {
			tile := randomTile(rand.New(rand.NewPCG(1, 2)), TileRows, 1, 2, 3)
			for i := range tile.Weights {
				tile.Weights[i] = byte(largest)
			}
			for i := range tile.X {
				tile.X[i] = x
			}
			clear(tile.Bias)
			for i := range tile.Factors {
				tile.Factors[i] = 1
			}
			for i := range tile.Scale {
				tile.Scale[i] = 1
			}
			level.MultiplyTile(tile)
			for i, got := range tile.Dst {
				if want := float32(largest * int(x) * Quad); got != want {
					t.Fatalf("%v, %d planes: product %d is %v, want %v", level, planes, i, got, want)
				}
			}
		}
	}
}

func FuzzTile(f *testing.F) {
	f.Add(uint64(1), uint8(4), uint8(1), uint8(0), uint8(1))
	f.Fuzz(func(t *testing.T, seed uint64, rows, quads, vectors, shift uint8) {
		checkTile(t, rand.New(rand.NewPCG(seed, 5)), int(rows%9)+1, int(quads%5)+1, 2*int(vectors%4)+2, shift)
	})
}
