package kernel

// This file multiplies decoded rows by several vectors at once. The sums of a tile, i.e. of some
// rows and some vectors, are in registers, so that each loaded value is used more than once.

// Tile is a product of decoded rows by several vectors. Columns are in quads of 256, in any order
// that weights and vectors share. Lane l of the sums has bytes 4l to 4l+3 of each of the four
// stripes of a quad.
type Tile struct {
	// Rows of weights and their factors, one after the other. The assembly reads whole tiles, up to
	// TileRows-1 rows beyond the last.
	Weights []byte    // Quads*256 per row, from up to MaxTilePlanes planes
	Factors []float32 // Quads*16 per row: one per lane
	Rows    int
	Quads   int
	// Vectors, one after the other. Their number is even.
	X       []int8    // Quads*256 per vector
	Bias    []int32   // Quads*16 per vector: added to the integer of a lane
	Scale   []float32 // Quads*16 per vector: multiplies the integer of a lane, as the row's factor does
	Vectors int
	// The result of row r and vector v is written to Dst[v*TileRows+r%TileRows +
	// r/TileRows*Vectors*TileRows].
	Dst []float32
}

// TileRows is the number of rows of a tile. Dst has one such column of results after the other.
const TileRows = 4

// MaxTilePlanes is the largest number of planes whose decoded weights Tile multiplies. It is 0 if
// the level has no tiles.
func (l Level) MaxTilePlanes() int {
	switch l {
	case AVX512:
		return MaxPlanes
	case AVX2:
		return 3 // products of weights up to 31 add up in 16 bits
	}
	return 0
}

// MultiplyTile computes the product. The integer of a lane is exact.
func (l Level) MultiplyTile(t *Tile) {
	if t.Rows > 0 && t.Quads > 0 && t.Vectors > 0 && !l.multiplyTileAsm(t) {
		multiplyTile(t)
	}
}

func multiplyTile(t *Tile) {
	cols, lanes := t.Quads*Quad, t.Quads*QuadLanes
	for r := range t.Rows {
		w, f := t.Weights[r*cols:][:cols], t.Factors[r*lanes:][:lanes]
		for v := range t.Vectors {
			x, bias, scale := t.X[v*cols:][:cols], t.Bias[v*lanes:][:lanes], t.Scale[v*lanes:][:lanes]
			var sum float32
			for l, s := range bias {
				for stripe := range 4 {
					at := l/QuadLanes*Quad + stripe*Stripe + l%QuadLanes*4
					for i := range 4 {
						s += int32(w[at+i]) * int32(x[at+i])
					}
				}
				sum += float32(float32(f[l]*scale[l]) * float32(s))
			}
			t.Dst[(r/TileRows*t.Vectors+v)*TileRows+r%TileRows] = sum
		}
	}
}
