//go:build !noasm

package kernel

// This file chooses the assembly for Q2_0 blocks.

func (l Level) multiplyCodesAsm(c *Codes) bool {
	switch l {
	case AVX512:
		codes512(c)
	case AVX2:
		codes256(c)
	default:
		return false
	}
	return true
}

// codes512 calls the assembly, which computes four rows at a time. The last four rows may overlap
// with those before. If there are fewer than four rows in all, each is computed four times.
func codes512(c *Codes) {
	pitch := c.Width * CodeBlock
	if fours := c.Count &^ 3; fours > 0 {
		codesFour512(c, &c.Dst[0], &c.Blocks[0], pitch, fours)
	}
	switch rest := c.Count & 3; {
	case rest > 0 && c.Count > 4:
		last := c.Count - 4
		codesFour512(c, &c.Dst[last], &c.Blocks[last*pitch], pitch, 4)
	case rest > 0:
		var dst [4]float32
		for r := range rest {
			codesFour512(c, &dst[0], &c.Blocks[r*pitch], 0, 4)
			c.Dst[r] = dst[0]
		}
	}
}

func (l Level) arrangeAsm(dst, src []int8) bool {
	if l == Go {
		return false
	}
	arrange256(&dst[0], &src[0], len(src)/Quad)
	return true
}

func (l Level) decodeCodesAsm(weights []byte, factors []float32, blocks []byte, row int) bool {
	if l != AVX512 {
		return false
	}
	decodeCodes512(&weights[0], &factors[0], &blocks[0], len(blocks)/CodeBlock, 0x1111<<row)
	return true
}

func (l Level) multiplyCodesTileAsm(t *Tile) bool {
	if l != AVX512 {
		return false
	}
	for r := 0; r < t.Rows; r += TileRows {
		codesTile512(t, &t.Dst[r*t.Vectors], &t.Weights[r*t.Quads*Quad], &t.Factors[r/TileRows*t.Quads*QuadLanes])
	}
	return true
}

//go:noescape
func codesFour512(c *Codes, dst *float32, blocks *byte, pitch, count int)

//go:noescape
func decodeCodes512(weights *byte, factors *float32, blocks *byte, count int, lanes uint32)

//go:noescape
func codesTile512(t *Tile, dst *float32, weights *byte, factors *float32)

//go:noescape
func codes256(c *Codes)

//go:noescape
func arrange256(dst, src *int8, quads int)
