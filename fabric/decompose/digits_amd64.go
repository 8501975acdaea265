//go:build !noasm

package decompose

// This file packs stripes with AVX-512 VBMI, which looks up bytes in tables.

import (
	"golang.org/x/sys/cpu"

	"tensorcast/fabric/trit"
)

var hasVBMI = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VBMI

// vbmiTables are the tables of packStripesVBMI. A vector lookup has 64 entries. So codes with more
// values are split into their three low digits and the high ones, with at most 27 values each.
type vbmiTables struct {
	high  [256]byte // the code of the high digits: 13 more than their integer
	cut   [64]byte  // what to subtract from a code, so that the code of its low digits remains
	parts [8][5][64]byte
}

// vector is what packStripes needs in addition to contributions. t is nil if the processor lacks
// the instructions, or the layout has no stripes.
type vector struct {
	t         *vbmiTables
	low, high int // numbers of planes that are made of the codes or their low digits, and of their high digits
}

// prepareVBMI makes the tables if the processor and the layout can use them.
func (p *packer) prepareVBMI() {
	if !hasVBMI || p.layout != trit.PT5Striped && p.layout != trit.TwoBit {
		return
	}
	t, low, high := &vbmiTables{}, p.planes, 0
	if 2*p.offset > 64 {
		low, high = 3, p.planes-3
	}
	for c := range t.high {
		t.high[c] = byte((c - p.offset + 13 + 27*13) / 27)
	}
	for c := range t.parts[0][0] {
		t.cut[c] = byte(p.offset + 27*(c-13) - 13)
		v := [2]int{c - p.offset}
		if high > 0 {
			v = [2]int{c - 13, c - 13}
		}
		for d := range p.planes {
			digit := int(popDigit(&v[min(d/low, 1)])) + 1
			for i := range t.parts[d] {
				if p.layout == trit.PT5Striped {
					t.parts[d][i][c] = byte(digit)
					digit *= 3
				} else if i < 4 {
					t.parts[d][i][c] = byte(digit)
					digit *= 4
				}
			}
		}
	}
	p.vector = vector{t, low, high}
}

// packStripes is like packStripesGo, but uses the fastest loop that the processor supports.
func (p *packer) packStripes(planes [][]byte, at int, codes *[tileElems]byte, groups int) {
	v := &p.vector
	if v.t == nil {
		p.packStripesGo(planes, at, codes, groups)
		return
	}
	var dst [8]*byte
	for d := range p.planes {
		dst[d] = &planes[d][at : at+64*groups][0]
	}
	perByte := 4
	if p.layout == trit.PT5Striped {
		perByte = 5
	}
	packStripesVBMI(&dst, v.low, v.high, &codes[0], groups, perByte, v.t)
}

//go:noescape
func packStripesVBMI(planes *[8]*byte, low, high int, codes *byte, groups, perByte int, t *vbmiTables)
