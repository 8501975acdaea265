//go:build !noasm

package kernel

// This file chooses the assembly for tiles.

func (l Level) multiplyTileAsm(t *Tile) bool {
	if l == Go {
		return false
	}
	for r := 0; r < t.Rows; r += TileRows {
		dst, weights, factors := &t.Dst[r*t.Vectors], &t.Weights[r*t.Quads*Quad], &t.Factors[r*t.Quads*QuadLanes]
		if l == AVX512 {
			tile512(t, dst, weights, factors)
			continue
		}
		tile256(t, dst, weights, factors)
		if r+2 < t.Rows {
			tile256(t, &t.Dst[r*t.Vectors+2], &t.Weights[(r+2)*t.Quads*Quad], &t.Factors[(r+2)*t.Quads*QuadLanes])
		}
	}
	return true
}

//go:noescape
func tile512(t *Tile, dst *float32, weights *byte, factors *float32)

//go:noescape
func tile256(t *Tile, dst *float32, weights *byte, factors *float32)
