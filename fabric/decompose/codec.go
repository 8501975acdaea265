package decompose

// This file describes the types with exact planes: where their blocks have codes and scales. It
// splits blocks into these and joins them again. Package gguf, which decodes the blocks, documents
// their formats.

import (
	"encoding/binary"

	"tensorcast/fabric"
	"tensorcast/gguf"
)

// codec describes a type with exact planes. A weight is scale * (code - offset + center) - minimum.
// The planes hold the integer code - offset.
type codec struct {
	planes int
	offset int
	center int32
	block  int  // weights per scale
	halfs  bool // a scale is a half; otherwise it is a small integer times a half that 256 weights share
	min    bool // there are minima, in the same form as scales

	// split splits whole blocks into codes, one byte each, and factors. It returns false if join
	// would not restore the blocks.
	split func(codes []byte, f *factors, src []byte) bool
	// join is the inverse of split.
	join func(dst []byte, codes []byte, f *factors)
}

// factors are the scales and minima of some blocks.
type factors struct{ scale, min factorList }

// factorList is a list of scales or minima: halfs, or small integers in sub with their halfs in super.
type factorList struct {
	half  []uint16
	sub   []int8
	super []uint16
}

var codecs = map[gguf.Type]*codec{
	gguf.Q4_0:  {planes: 3, offset: 8, block: 32, halfs: true, split: split40, join: join40},
	gguf.Q4_1:  {planes: 3, offset: 8, center: 8, block: 32, halfs: true, min: true, split: split41, join: join41},
	gguf.Q5_0:  {planes: 4, offset: 16, block: 32, halfs: true, split: split50, join: join50},
	gguf.Q5_1:  {planes: 4, offset: 16, center: 16, block: 32, halfs: true, min: true, split: split51, join: join51},
	gguf.Q8_0:  {planes: 6, offset: 128, block: 32, halfs: true, split: split80, join: join80},
	gguf.Q1_0:  {planes: 1, offset: 1, block: 128, halfs: true, split: split10, join: join10},
	gguf.Q2_0:  {planes: 2, offset: 1, block: 64, halfs: true, split: split20, join: join20},
	gguf.Q2_K:  {planes: 2, offset: 1, center: 1, block: 16, min: true, split: split2K, join: join2K},
	gguf.Q3_K:  {planes: 2, offset: 4, block: 16, split: split3K, join: join3K},
	gguf.Q4_K:  {planes: 3, offset: 8, center: 8, block: 32, min: true, split: split4K, join: join4K},
	gguf.Q5_K:  {planes: 4, offset: 16, center: 16, block: 32, min: true, split: split5K, join: join5K},
	gguf.Q6_K:  {planes: 4, offset: 32, block: 16, split: split6K, join: join6K},
	gguf.TQ1_0: {planes: 1, offset: 1, block: 256, halfs: true, split: splitT1, join: joinT1},
	gguf.TQ2_0: {planes: 1, offset: 1, block: 256, halfs: true, split: splitT2, join: joinT2},
}

// ExactPlanes is the number of planes that Exact makes for a type. It is 0 if the type has no exact
// planes.
func ExactPlanes(t gguf.Type) int {
	if c := codecs[t]; c != nil {
		return c.planes
	}
	return 0
}

// newScales allocates scales for n weights in whole blocks.
func (c *codec) newScales(n int) fabric.Scales {
	if c.halfs {
		return fabric.Scales{Block: c.block, Half: make([]uint16, n/c.block)}
	}
	return fabric.Scales{Block: c.block, Sub: make([]int8, n/c.block), Super: make([]uint16, n/256)}
}

// factorsOf returns the factors of the matrix's weights from first to end-1, which are whole
// blocks. They share the memory of the matrix.
func (c *codec) factorsOf(m *fabric.Matrix, first, end int) factors {
	cut := func(s *fabric.Scales) factorList {
		if c.halfs {
			return factorList{half: s.Half[first/c.block : end/c.block]}
		}
		return factorList{sub: s.Sub[first/c.block : end/c.block], super: s.Super[first/256 : end/256]}
	}
	f := factors{scale: cut(&m.Terms[0].Scales)}
	if c.min {
		f.min = cut(&m.Min)
	}
	return f
}

func getHalf(b []byte) uint16    { return binary.LittleEndian.Uint16(b) }
func putHalf(b []byte, h uint16) { binary.LittleEndian.PutUint16(b, h) }
func word(b []byte) uint64       { return binary.LittleEndian.Uint64(b) }
func putWord(b []byte, w uint64) { binary.LittleEndian.PutUint64(b, w) }

// ones has the lowest bit of each byte set. So ones times a byte repeats that byte.
const ones = 0x0101010101010101

// negative is the sign bit of a half: Q4_1 and Q5_1 add their minimum instead of subtracting it.
const negative = 0x8000

// splitNibbles splits 16 bytes into 32 codes. The low nibbles are the first 16 codes, the high
// nibbles the others.
func splitNibbles(codes, q []byte) {
	codes, q = codes[:32], q[:16]
	for j := 0; j < 16; j += 8 {
		w := word(q[j:])
		putWord(codes[j:], w&(15*ones))
		putWord(codes[j+16:], w>>4&(15*ones))
	}
}

func joinNibbles(q, codes []byte) {
	codes, q = codes[:32], q[:16]
	for j := range q {
		q[j] = codes[j]&15 | codes[j+16]<<4
	}
}

// splitFifth adds the fifth bits, which are in four bytes, to 32 codes.
func splitFifth(codes, bits []byte) {
	codes, bits = codes[:32], bits[:4]
	for j, b := range bits {
		// Byte i keeps only bit i of b. Adding the constant carries that bit into bit 7.
		w := uint64(b) * ones & 0x8040201008040201
		w = (w + 0x00406070787c7e7f) >> 7 & ones
		putWord(codes[8*j:], word(codes[8*j:])|w<<4)
	}
}

func joinFifth(bits, codes []byte) {
	codes, bits = codes[:32], bits[:4]
	for j := range bits {
		bits[j] = 0
		for i, c := range codes[8*j : 8*j+8] {
			bits[j] |= c >> 4 & 1 << i
		}
	}
}

func split40(codes []byte, f *factors, src []byte) bool {
	for i := range f.scale.half {
		b := src[18*i:]
		f.scale.half[i] = getHalf(b)
		splitNibbles(codes[32*i:], b[2:])
	}
	return true
}

func join40(dst []byte, codes []byte, f *factors) {
	for i, h := range f.scale.half {
		b := dst[18*i:]
		putHalf(b, h)
		joinNibbles(b[2:], codes[32*i:])
	}
}

func split41(codes []byte, f *factors, src []byte) bool {
	for i := range f.scale.half {
		b := src[20*i:]
		f.scale.half[i], f.min.half[i] = getHalf(b), getHalf(b[2:])^negative
		splitNibbles(codes[32*i:], b[4:])
	}
	return true
}

func join41(dst []byte, codes []byte, f *factors) {
	for i, h := range f.scale.half {
		b := dst[20*i:]
		putHalf(b, h)
		putHalf(b[2:], f.min.half[i]^negative)
		joinNibbles(b[4:], codes[32*i:])
	}
}

func split50(codes []byte, f *factors, src []byte) bool {
	for i := range f.scale.half {
		b := src[22*i:]
		f.scale.half[i] = getHalf(b)
		splitNibbles(codes[32*i:], b[6:])
		splitFifth(codes[32*i:], b[2:])
	}
	return true
}

func join50(dst []byte, codes []byte, f *factors) {
	for i, h := range f.scale.half {
		b := dst[22*i:]
		putHalf(b, h)
		joinFifth(b[2:], codes[32*i:])
		joinNibbles(b[6:], codes[32*i:])
	}
}

func split51(codes []byte, f *factors, src []byte) bool {
	for i := range f.scale.half {
		b := src[24*i:]
		f.scale.half[i], f.min.half[i] = getHalf(b), getHalf(b[2:])^negative
		splitNibbles(codes[32*i:], b[8:])
		splitFifth(codes[32*i:], b[4:])
	}
	return true
}

func join51(dst []byte, codes []byte, f *factors) {
	for i, h := range f.scale.half {
		b := dst[24*i:]
		putHalf(b, h)
		putHalf(b[2:], f.min.half[i]^negative)
		joinFifth(b[4:], codes[32*i:])
		joinNibbles(b[8:], codes[32*i:])
	}
}

// The codes of Q8_0 are signed. Inverting the top bit adds 128.

func split80(codes []byte, f *factors, src []byte) bool {
	for i := range f.scale.half {
		b, c := (*[34]byte)(src[34*i:]), (*[32]byte)(codes[32*i:])
		f.scale.half[i] = getHalf(b[:])
		putWord(c[:], word(b[2:])^0x80*ones)
		putWord(c[8:], word(b[10:])^0x80*ones)
		putWord(c[16:], word(b[18:])^0x80*ones)
		putWord(c[24:], word(b[26:])^0x80*ones)
	}
	return true
}

func join80(dst []byte, codes []byte, f *factors) {
	for i, h := range f.scale.half {
		b, c := dst[34*i:34*i+34], codes[32*i:32*i+32]
		putHalf(b, h)
		for j := 0; j < 32; j += 8 {
			putWord(b[2+j:], word(c[j:])^0x80*ones)
		}
	}
}

// The codes of Q1_0 are 0 and 2. Less the offset of 1 they are -1 and +1.

func split10(codes []byte, f *factors, src []byte) bool {
	for i := range f.scale.half {
		b := src[18*i : 18*i+18]
		f.scale.half[i] = getHalf(b)
		for j, q := range b[2:] {
			for n := range 8 {
				codes[128*i+8*j+n] = q >> n & 1 << 1
			}
		}
	}
	return true
}

func join10(dst []byte, codes []byte, f *factors) {
	for i, h := range f.scale.half {
		b := dst[18*i : 18*i+18]
		putHalf(b, h)
		for j := range b[2:] {
			var q byte
			for n := range 8 {
				q |= codes[128*i+8*j+n] >> 1 << n
			}
			b[2+j] = q
		}
	}
}

func split20(codes []byte, f *factors, src []byte) bool {
	for i := range f.scale.half {
		b := src[18*i : 18*i+18]
		f.scale.half[i] = getHalf(b)
		for j, q := range b[2:] {
			for n := range 4 {
				codes[64*i+4*j+n] = q >> (2 * n) & 3
			}
		}
	}
	return true
}

func join20(dst []byte, codes []byte, f *factors) {
	for i, h := range f.scale.half {
		b := dst[18*i : 18*i+18]
		putHalf(b, h)
		for j := range b[2:] {
			var q byte
			for n := range 4 {
				q |= codes[64*i+4*j+n] << (2 * n)
			}
			b[2+j] = q
		}
	}
}

// splitPairs splits bytes into four codes of two bits. The codes of a byte are 32 apart: 32 bytes
// hold 128 codes.
func splitPairs(codes, q []byte) {
	for j := 0; j < len(q); j += 8 {
		w, c := word(q[j:]), codes[j/32*128+j%32:]
		putWord(c, w&(3*ones))
		putWord(c[32:], w>>2&(3*ones))
		putWord(c[64:], w>>4&(3*ones))
		putWord(c[96:], w>>6&(3*ones))
	}
}

func joinPairs(q, codes []byte) {
	for j := 0; j < len(q); j += 8 {
		c := codes[j/32*128+j%32:]
		putWord(q[j:], word(c)|word(c[32:])<<2|word(c[64:])<<4|word(c[96:])<<6)
	}
}

func split2K(codes []byte, f *factors, src []byte) bool {
	for i := range f.scale.super {
		b := src[84*i : 84*i+84]
		f.scale.super[i], f.min.super[i] = getHalf(b[80:]), getHalf(b[82:])
		for s, v := range b[:16] {
			f.scale.sub[16*i+s], f.min.sub[16*i+s] = int8(v&15), int8(v>>4)
		}
		splitPairs(codes[256*i:], b[16:80])
	}
	return true
}

func join2K(dst []byte, codes []byte, f *factors) {
	for i := range f.scale.super {
		b := dst[84*i : 84*i+84]
		putHalf(b[80:], f.scale.super[i])
		putHalf(b[82:], f.min.super[i])
		for s := range 16 {
			b[s] = byte(f.scale.sub[16*i+s]) | byte(f.min.sub[16*i+s])<<4
		}
		joinPairs(b[16:80], codes[256*i:])
	}
}

func split3K(codes []byte, f *factors, src []byte) bool {
	for i := range f.scale.super {
		b, c := src[110*i:110*i+110], codes[256*i:256*i+256]
		f.scale.super[i] = getHalf(b[108:])
		for s := range 16 {
			v := b[96+s%8]>>(s/8*4&7)&15 | b[104+s%4]>>(s/4*2&7)&3<<4
			f.scale.sub[16*i+s] = int8(v) - 32
		}
		splitPairs(c, b[32:96])
		for n := range 8 {
			for j := 0; j < 32; j += 8 {
				third := word(b[j:]) >> n & ones
				putWord(c[32*n+j:], word(c[32*n+j:])|third<<2)
			}
		}
	}
	return true
}

func join3K(dst []byte, codes []byte, f *factors) {
	for i := range f.scale.super {
		b, c := dst[110*i:110*i+110], codes[256*i:256*i+256]
		clear(b)
		putHalf(b[108:], f.scale.super[i])
		for s := range 16 {
			v := byte(f.scale.sub[16*i+s] + 32)
			b[96+s%8] |= v & 15 << (s / 8 * 4 & 7)
			b[104+s%4] |= v >> 4 << (s / 4 * 2 & 7)
		}
		var low [256]byte
		for j, v := range c {
			low[j] = v & 3
			b[j%32] |= v >> 2 << (j / 32 & 7)
		}
		joinPairs(b[32:96], low[:])
	}
}

// splitScales unpacks the 6-bit scales and minima of Q4_K and Q5_K.
func splitScales(scale, min []int8, b []byte) {
	scale, min, b = scale[:8], min[:8], b[:12]
	for s := range 4 {
		scale[s], min[s] = int8(b[s]&63), int8(b[s+4]&63)
		scale[s+4], min[s+4] = int8(b[s+8]&15|b[s]>>6<<4), int8(b[s+8]>>4|b[s+4]>>6<<4)
	}
}

func joinScales(b []byte, scale, min []int8) {
	scale, min, b = scale[:8], min[:8], b[:12]
	for s := range 4 {
		b[s] = byte(scale[s]) | byte(scale[s+4])>>4<<6
		b[s+4] = byte(min[s]) | byte(min[s+4])>>4<<6
		b[s+8] = byte(scale[s+4])&15 | byte(min[s+4])<<4
	}
}

func split4K(codes []byte, f *factors, src []byte) bool {
	for i := range f.scale.super {
		b, c := src[144*i:144*i+144], codes[256*i:256*i+256]
		f.scale.super[i], f.min.super[i] = getHalf(b), getHalf(b[2:])
		splitScales(f.scale.sub[8*i:], f.min.sub[8*i:], b[4:])
		splitHalves(c, b[16:])
	}
	return true
}

func join4K(dst []byte, codes []byte, f *factors) {
	for i := range f.scale.super {
		b := dst[144*i : 144*i+144]
		putHalf(b, f.scale.super[i])
		putHalf(b[2:], f.min.super[i])
		joinScales(b[4:], f.scale.sub[8*i:], f.min.sub[8*i:])
		joinHalves(b[16:], codes[256*i:256*i+256])
	}
}

// splitHalves splits 128 bytes into 256 codes. Each 32 bytes have 32 codes in their low nibbles and
// the next 32 in their high nibbles.
func splitHalves(c, q []byte) {
	for g := range 4 {
		for j := 0; j < 32; j += 8 {
			w := word(q[32*g+j:])
			putWord(c[64*g+j:], w&(15*ones))
			putWord(c[64*g+32+j:], w>>4&(15*ones))
		}
	}
}

func joinHalves(q, c []byte) {
	for g := range 4 {
		for j := 0; j < 32; j += 8 {
			putWord(q[32*g+j:], word(c[64*g+j:])&(15*ones)|word(c[64*g+32+j:])&(15*ones)<<4)
		}
	}
}

func split5K(codes []byte, f *factors, src []byte) bool {
	for i := range f.scale.super {
		b, c := src[176*i:176*i+176], codes[256*i:256*i+256]
		f.scale.super[i], f.min.super[i] = getHalf(b), getHalf(b[2:])
		splitScales(f.scale.sub[8*i:], f.min.sub[8*i:], b[4:])
		splitHalves(c, b[48:])
		for n := range 8 {
			for j := 0; j < 32; j += 8 {
				fifth := word(b[16+j:]) >> n & ones
				putWord(c[32*n+j:], word(c[32*n+j:])|fifth<<4)
			}
		}
	}
	return true
}

func join5K(dst []byte, codes []byte, f *factors) {
	for i := range f.scale.super {
		b, c := dst[176*i:176*i+176], codes[256*i:256*i+256]
		putHalf(b, f.scale.super[i])
		putHalf(b[2:], f.min.super[i])
		joinScales(b[4:], f.scale.sub[8*i:], f.min.sub[8*i:])
		joinHalves(b[48:], c)
		for j := 0; j < 32; j += 8 {
			var fifth uint64
			for n := range 8 {
				fifth |= word(c[32*n+j:]) >> 4 & ones << n
			}
			putWord(b[16+j:], fifth)
		}
	}
}

func split6K(codes []byte, f *factors, src []byte) bool {
	for i := range f.scale.super {
		b := src[210*i : 210*i+210]
		f.scale.super[i] = getHalf(b[208:])
		for s, v := range b[192:208] {
			f.scale.sub[16*i+s] = int8(v)
		}
		for n := range 2 {
			c, low, high := codes[256*i+128*n:256*i+128*n+128], b[64*n:64*n+64], b[128+32*n:160+32*n]
			for j := 0; j < 32; j += 8 {
				w0, w1, h := word(low[j:]), word(low[32+j:]), word(high[j:])
				putWord(c[j:], w0&(15*ones)|h&(3*ones)<<4)
				putWord(c[32+j:], w1&(15*ones)|h&(12*ones)<<2)
				putWord(c[64+j:], w0>>4&(15*ones)|h&(48*ones))
				putWord(c[96+j:], w1>>4&(15*ones)|h>>2&(48*ones))
			}
		}
	}
	return true
}

func join6K(dst []byte, codes []byte, f *factors) {
	for i := range f.scale.super {
		b := dst[210*i : 210*i+210]
		putHalf(b[208:], f.scale.super[i])
		for s := range 16 {
			b[192+s] = byte(f.scale.sub[16*i+s])
		}
		for n := range 2 {
			c, low, high := codes[256*i+128*n:256*i+128*n+128], b[64*n:64*n+64], b[128+32*n:160+32*n]
			for j := 0; j < 32; j += 8 {
				c0, c1, c2, c3 := word(c[j:]), word(c[32+j:]), word(c[64+j:]), word(c[96+j:])
				putWord(low[j:], c0&(15*ones)|c2&(15*ones)<<4)
				putWord(low[32+j:], c1&(15*ones)|c3&(15*ones)<<4)
				putWord(high[j:], c0>>4&(3*ones)|c1>>2&(12*ones)|c2&(48*ones)|c3&(48*ones)<<2)
			}
		}
	}
}

// fractions are tables that decode the bytes of TQ1_0. Five base-3 digits, the most significant
// first, form an integer below 243. A byte has this integer divided by 243 as a fraction of 256,
// rounded up (see quantize_row_tq1_0_ref in ggml-quants.c).
var fractions = func() (t struct {
	digits [256][5]byte
	used   [256]bool // whether encodeFraction makes this byte of any five digits
	four   [256]bool // whether it makes this byte of four digits and a 0
}) {
	for v := range 243 {
		q := (v*256 + 242) / 243
		for n, rest := 4, v; n >= 0; n-- {
			t.digits[q][n] = byte(rest % 3)
			rest /= 3
		}
		t.used[q] = true
		t.four[q] = v%3 == 0
	}
	return t
}()

// encodeFraction returns the byte of TQ1_0 for five digits.
func encodeFraction(digits *[5]byte) byte {
	v := 0
	for _, d := range digits {
		v = 3*v + int(d)
	}
	return byte((v*256 + 242) / 243)
}

// In a block of TQ1_0, the digits of a byte are 32 weights apart in the first 32 bytes, and 16
// apart in the next 16. In the last 4 bytes, which have only four digits each, they are 4 apart.

func splitT1(codes []byte, f *factors, src []byte) bool {
	ok := true
	for i := range f.scale.half {
		b, c := src[54*i:54*i+54], codes[256*i:256*i+256]
		f.scale.half[i] = getHalf(b[52:])
		for j, q := range b[:32] {
			ok = ok && fractions.used[q]
			d := &fractions.digits[q]
			c[j], c[j+32], c[j+64], c[j+96], c[j+128] = d[0], d[1], d[2], d[3], d[4]
		}
		for j, q := range b[32:48] {
			ok = ok && fractions.used[q]
			d, c := &fractions.digits[q], c[160+j:]
			c[0], c[16], c[32], c[48], c[64] = d[0], d[1], d[2], d[3], d[4]
		}
		for j, q := range b[48:52] {
			ok = ok && fractions.four[q]
			d, c := &fractions.digits[q], c[240+j:]
			c[0], c[4], c[8], c[12] = d[0], d[1], d[2], d[3]
		}
	}
	return ok
}

func joinT1(dst []byte, codes []byte, f *factors) {
	for i, h := range f.scale.half {
		b, c := dst[54*i:54*i+54], codes[256*i:256*i+256]
		putHalf(b[52:], h)
		for j := range 32 {
			b[j] = encodeFraction(&[5]byte{c[j], c[j+32], c[j+64], c[j+96], c[j+128]})
		}
		for j := range 16 {
			c := c[160+j:]
			b[32+j] = encodeFraction(&[5]byte{c[0], c[16], c[32], c[48], c[64]})
		}
		for j := range 4 {
			c := c[240+j:]
			b[48+j] = encodeFraction(&[5]byte{c[0], c[4], c[8], c[12]})
		}
	}
}

// splitT2 returns false if there is a code 3. For ggml it is 2 times the scale, but it is not a trit.
func splitT2(codes []byte, f *factors, src []byte) bool {
	var both uint64
	for i := range f.scale.half {
		b := src[66*i : 66*i+66]
		f.scale.half[i] = getHalf(b[64:])
		for j := 0; j < 64; j += 8 {
			w := word(b[j:])
			both |= w & (w >> 1) & (0x55 * ones)
		}
		splitPairs(codes[256*i:], b[:64])
	}
	return both == 0
}

func joinT2(dst []byte, codes []byte, f *factors) {
	for i, h := range f.scale.half {
		b := dst[66*i : 66*i+66]
		putHalf(b[64:], h)
		joinPairs(b[:64], codes[256*i:])
	}
}
