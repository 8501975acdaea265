package kernel

// This file chooses the assembly for Q2_0 blocks.

func (l Level) codesAssembly(c *Codes) bool {
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

// codes512 has the assembly compute four rows at a time. The last four may overlap with those before; fewer than four are computed four times each.
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

func (l Level) arrangeAssembly(dst, src []int8) bool {
	if l == Go {
		return false
	}
	arrange256(&dst[0], &src[0], len(src)/Quad)
	return true
}

func (l Level) decodeCodesAssembly(weights []byte, factors []float32, blocks []byte) bool {
	switch l {
	case AVX512:
		decodeCodes512(&weights[0], &factors[0], &blocks[0], len(blocks)/CodeBlock)
	case AVX2:
		clear(weights[len(weights)-Quad:])
		clear(factors[len(factors)-QuadLanes:])
		decodeCodes256(&weights[0], &factors[0], &blocks[0], len(blocks)/CodeBlock)
	default:
		return false
	}
	return true
}

//go:noescape
func codesFour512(c *Codes, dst *float32, blocks *byte, pitch, count int)

//go:noescape
func decodeCodes512(weights *byte, factors *float32, blocks *byte, count int)

//go:noescape
func codes256(c *Codes)

//go:noescape
func decodeCodes256(weights *byte, factors *float32, blocks *byte, count int)

//go:noescape
func arrange256(dst, src *int8, quads int)
