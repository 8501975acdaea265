package decompose

// This file converts codes, one byte per weight, to planes.
//
// A code c represents the integer c - offset, whose balanced-ternary digits are the trits of the
// planes. All planes are made at the same time. A table has a word for each position in a byte of
// trits and each code. The word has one byte per plane: what the digit contributes to that byte of
// the plane. The sum of five such words (four in the two-bit layout) is a complete byte of each
// plane. There are no carries.

import (
	"encoding/binary"

	"tensorcast/fabric/trit"
)

// tileElems is the number of weights that are converted at a time. These are whole groups of every
// layout and whole blocks of every type, and few enough to stay in the first-level cache.
const tileElems = 1280

// contributions has, by position in a byte and by code, what the digits of the code contribute to
// that byte of each plane.
type contributions [5][256]uint64

// packer writes planes of one layout.
type packer struct {
	layout trit.Layout
	planes int
	offset int // the code of the integer 0
	table  contributions
	vector vector // tables of the assembly for stripes
}

// newPacker makes the tables for codes whose integers fit into the number of planes. The entries of
// other codes are meaningless.
func newPacker(layout trit.Layout, planes, offset int) *packer {
	p := &packer{layout: layout, planes: planes, offset: offset}
	for c := range 256 {
		var digits [8]int8
		p.digits(digits[:planes], byte(c))
		weight := 1
		for i := range p.table {
			for d := range planes {
				p.table[i][c] |= uint64(int(digits[d]+1)*weight&0xff) << (8 * d)
			}
			if layout == trit.TwoBit {
				weight *= 4
			} else {
				weight *= 3
			}
		}
	}
	p.prepareVBMI()
	return p
}

// digits writes the digits of a code to t, least significant first.
func (p *packer) digits(t []int8, code byte) {
	v := int(code) - p.offset
	for d := range t {
		t[d] = popDigit(&v)
	}
}

// popDigit removes the least significant balanced digit (-1, 0 or 1) from v and returns it.
func popDigit(v *int) int8 {
	digit := ((*v+1)%3+3)%3 - 1
	*v = (*v - digit) / 3
	return int8(digit)
}

// pack writes n codes, 1 to tileElems, to the planes, from byte at of each plane on. It may change
// codes after the n-th.
func (p *packer) pack(planes [][]byte, at int, codes *[tileElems]byte, n int) {
	size := p.layout.RowBytes(n)
	elems, _ := p.layout.Group()
	for i := n; i < min(ceilDiv(n, elems)*elems, tileElems); i++ {
		codes[i] = byte(p.offset)
	}
	switch p.layout {
	case trit.PT5Striped, trit.TwoBit:
		p.packStripes(planes, at, codes, size/64)
	case trit.PT5:
		// Eight bytes are computed at a time. Those beyond the last one come from meaningless codes
		// and are dropped.
		for j := 0; j < size; j += 8 {
			var r [8]uint64
			c := (*[40]byte)(codes[5*j:])
			for b := range r {
				r[b] = p.table[0][c[5*b]] + p.table[1][c[5*b+1]] + p.table[2][c[5*b+2]] +
					p.table[3][c[5*b+3]] + p.table[4][c[5*b+4]]
			}
			transpose(&r)
			for d := range p.planes {
				plane := planes[d][at+j : at+size]
				if len(plane) >= 8 {
					binary.LittleEndian.PutUint64(plane, r[d])
					continue
				}
				for b := range plane {
					plane[b] = byte(r[d] >> (8 * b))
				}
			}
		}
	default:
		var digits [8]int8
		var row [8][tileElems]int8
		for i, c := range codes[:n] {
			p.digits(digits[:p.planes], c)
			for d := range p.planes {
				row[d][i] = digits[d]
			}
		}
		for d := range p.planes {
			p.layout.Pack(planes[d][at:at+size], row[d][:n])
		}
	}
}

// packStripesGo writes groups of 64 bytes, in which the trits of a byte are 64 weights apart, from
// byte at of each plane on. It computes eight bytes at a time.
func (p *packer) packStripesGo(planes [][]byte, at int, codes *[tileElems]byte, groups int) {
	elems, _ := p.layout.Group()
	five := elems == 320
	t := &p.table
	for g := range groups {
		for j := 0; j < 64; j += 8 {
			c := codes[g*elems+j:]
			w0, w1 := binary.LittleEndian.Uint64(c), binary.LittleEndian.Uint64(c[64:])
			w2, w3 := binary.LittleEndian.Uint64(c[128:]), binary.LittleEndian.Uint64(c[192:])
			var r [8]uint64
			if five {
				w4 := binary.LittleEndian.Uint64(c[256:])
				for b := range r {
					r[b] = t[0][byte(w0)] + t[1][byte(w1)] + t[2][byte(w2)] + t[3][byte(w3)] + t[4][byte(w4)]
					w0, w1, w2, w3, w4 = w0>>8, w1>>8, w2>>8, w3>>8, w4>>8
				}
			} else {
				for b := range r {
					r[b] = t[0][byte(w0)] + t[1][byte(w1)] + t[2][byte(w2)] + t[3][byte(w3)]
					w0, w1, w2, w3 = w0>>8, w1>>8, w2>>8, w3>>8
				}
			}
			transpose(&r)
			for d := range p.planes {
				binary.LittleEndian.PutUint64(planes[d][at+64*g+j:], r[d])
			}
		}
	}
}

// transpose swaps byte j of word i with byte i of word j. It swaps the quarters of the square
// first, then the quarters of these, then single bytes (Warren, Hacker's Delight, 7-3).
func transpose(r *[8]uint64) {
	for i := range 4 {
		t := (r[i]>>32 ^ r[i+4]) & 0xffffffff
		r[i], r[i+4] = r[i]^t<<32, r[i+4]^t
	}
	for _, i := range [...]int{0, 1, 4, 5} {
		t := (r[i]>>16 ^ r[i+2]) & 0x0000ffff0000ffff
		r[i], r[i+2] = r[i]^t<<16, r[i+2]^t
	}
	for _, i := range [...]int{0, 2, 4, 6} {
		t := (r[i]>>8 ^ r[i+1]) & 0x00ff00ff00ff00ff
		r[i], r[i+1] = r[i]^t<<8, r[i+1]^t
	}
}
