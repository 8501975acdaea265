package trit

// This file has the loops over whole blocks of each layout. They process eight bytes at a time, as
// one word of 64 bits. Unpacked trits are one byte each. Sums, products and shifts are chosen such
// that nothing carries from one byte of a word to the next.

// maxTrits and maxBytes are the size of the largest block.
const maxTrits, maxBytes = 320, 64

const (
	ones   = 0x0101010101010101
	threes = 0x0303030303030303
	tops   = 0x8080808080808080
	evens  = 0x00ff00ff00ff00ff // the even bytes, as 16-bit lanes
)

// block returns the number of trits and bytes that the loops process at a time: a group, or eight
// groups in PT5.
func (l Layout) block() (trits, bytes int) {
	if l == PT5 {
		return 40, 8
	}
	return l.Group()
}

// packBlocks packs whole blocks. t has as many trits as dst has room for.
func (l Layout) packBlocks(dst, t []byte) {
	switch l {
	case PT5:
		packPT5(dst, t)
	case PT5Striped:
		packStriped(dst, t)
	case TwoBit:
		packTwoBit(dst, t)
	case Sliced:
		packSliced(dst, t)
	}
}

// unpackBlocks is the inverse of packBlocks. The codes must be valid.
func (l Layout) unpackBlocks(t, src []byte) {
	switch l {
	case PT5:
		unpackPT5(t, src)
	case PT5Striped:
		unpackStriped(t, src)
	case TwoBit:
		unpackTwoBit(t, src)
	case Sliced:
		unpackSliced(t, src)
	}
}

// validCodes reports whether all bytes of a row are valid codes.
func (l Layout) validCodes(src []byte) bool {
	var bad uint64
	switch l {
	case PT5, PT5Striped:
		// A byte above 242 has its top bit set, and adding 13 to its other seven bits carries into
		// that bit.
		for ; len(src) >= 8; src = src[8:] {
			w := word(src)
			bad |= (w&^tops + 13*ones) & w & tops
		}
		for _, b := range src {
			if b > 242 {
				bad = 1
			}
		}
	case TwoBit:
		for ; len(src) >= 8; src = src[8:] {
			w := word(src)
			bad |= w & (w >> 1) & 0x5555555555555555
		}
	case Sliced:
		for ; len(src) >= 16; src = src[16:] {
			bad |= word(src) & word(src[8:])
		}
	}
	return bad == 0
}

// digitsOf adds 1 to each of eight trits, which gives digits from 0 to 2.
func digitsOf(t uint64) uint64 { return (t&threes + ones) & threes }

// tritsOf is the inverse of digitsOf: it subtracts 1 from each byte, which must be 0 to 2.
func tritsOf(d uint64) uint64 { return (d | tops) - ones ^ tops }

// pt5Code returns the code of the trits in the five low bytes. Byte 4 of the product is the sum of
// each digit times its power of three. The bytes below it are at most 240, so nothing carries into
// it.
func pt5Code(t uint64) byte {
	const powers = 1<<32 | 3<<24 | 9<<16 | 27<<8 | 81
	return byte(digitsOf(t) * powers >> 32)
}

func packPT5(dst, t []byte) {
	for len(t) >= 40 && len(dst) >= 8 {
		d, b := (*[8]byte)(dst), (*[40]byte)(t)
		d[0] = pt5Code(word(b[0:8]))
		d[1] = pt5Code(word(b[5:13]))
		d[2] = pt5Code(word(b[10:18]))
		d[3] = pt5Code(word(b[15:23]))
		d[4] = pt5Code(word(b[20:28]))
		d[5] = pt5Code(word(b[25:33]))
		d[6] = pt5Code(word(b[30:38]))
		d[7] = pt5Code(word(b[32:40]) >> 24)
		dst, t = dst[8:], t[40:]
	}
}

// pt5Trits holds the trits of each code, in the five low bytes.
var pt5Trits = func() (table [256]uint64) {
	for code := range 243 {
		for i := range 5 {
			table[code] |= uint64(byte(pt5Trit(byte(code), i))) << (8 * i)
		}
	}
	return
}()

func unpackPT5(t, src []byte) {
	for len(t) >= 40 && len(src) >= 8 {
		b, s := (*[40]byte)(t), (*[8]byte)(src)
		// Each word writes three bytes too many, which the next one overwrites.
		putWord(b[0:8], pt5Trits[s[0]])
		putWord(b[5:13], pt5Trits[s[1]])
		putWord(b[10:18], pt5Trits[s[2]])
		putWord(b[15:23], pt5Trits[s[3]])
		putWord(b[20:28], pt5Trits[s[4]])
		putWord(b[25:33], pt5Trits[s[5]])
		six := pt5Trits[s[6]]
		putWord(b[30:38], six)
		putWord(b[32:40], six>>16|pt5Trits[s[7]]<<24)
		t, src = t[40:], src[8:]
	}
}

func packStriped(dst, t []byte) {
	for len(t) >= 320 && len(dst) >= 64 {
		d, b := (*[64]byte)(dst), (*[320]byte)(t)
		for j := 0; j <= 56; j += 8 {
			w := digitsOf(word(b[256+j:]))
			w = 3*w + digitsOf(word(b[192+j:]))
			w = 3*w + digitsOf(word(b[128+j:]))
			w = 3*w + digitsOf(word(b[64+j:]))
			w = 3*w + digitsOf(word(b[j:]))
			putWord(d[j:], w)
		}
		dst, t = dst[64:], t[320:]
	}
}

// divideByThree divides each byte by three and rounds down. Bytes are up to 242, for which x/3 =
// 171x >> 9.
func divideByThree(w uint64) uint64 {
	const low7 = 0x007f007f007f007f
	return w&evens*171>>9&low7 | w>>8&evens*171>>9&low7<<8
}

func unpackStriped(t, src []byte) {
	for len(t) >= 320 && len(src) >= 64 {
		b, s := (*[320]byte)(t), (*[64]byte)(src)
		for j := 0; j <= 56; j += 8 {
			w := word(s[j:])
			for i := 0; i < 256; i += 64 {
				q := divideByThree(w)
				putWord(b[i+j:], tritsOf(w-3*q))
				w = q
			}
			putWord(b[256+j:], tritsOf(w))
		}
		t, src = t[320:], src[64:]
	}
}

func packTwoBit(dst, t []byte) {
	for len(t) >= 256 && len(dst) >= 64 {
		d, b := (*[64]byte)(dst), (*[256]byte)(t)
		for j := 0; j <= 56; j += 8 {
			w := digitsOf(word(b[j:]))
			w |= digitsOf(word(b[64+j:])) << 2
			w |= digitsOf(word(b[128+j:])) << 4
			w |= digitsOf(word(b[192+j:])) << 6
			putWord(d[j:], w)
		}
		dst, t = dst[64:], t[256:]
	}
}

func unpackTwoBit(t, src []byte) {
	for len(t) >= 256 && len(src) >= 64 {
		b, s := (*[256]byte)(t), (*[64]byte)(src)
		for j := 0; j <= 56; j += 8 {
			w := word(s[j:])
			putWord(b[j:], tritsOf(w&threes))
			putWord(b[64+j:], tritsOf(w>>2&threes))
			putWord(b[128+j:], tritsOf(w>>4&threes))
			putWord(b[192+j:], tritsOf(w>>6&threes))
		}
		t, src = t[256:], src[64:]
	}
}

// gatherBits moves bit 0 of byte i to bit i. In the multiplication only the products 2^(8i) *
// 2^(56-7i) end up in the top byte.
func gatherBits(w uint64) uint64 { return w & ones * 0x0102040810204080 >> 56 }

func packSliced(dst, t []byte) {
	for len(t) >= 64 && len(dst) >= 16 {
		b := (*[64]byte)(t)
		var plus, minus uint64
		for i := 0; i <= 56; i += 8 {
			w := word(b[i:])
			plus |= gatherBits(w&^(w>>7)) << i
			minus |= gatherBits(w>>7) << i
		}
		putWord(dst, plus)
		putWord(dst[8:], minus)
		dst, t = dst[16:], t[64:]
	}
}

// scatteredBits is the inverse of gatherBits, as a table: bit i of the index is bit 0 of byte i.
var scatteredBits = func() (table [256]uint64) {
	for b := range table {
		for i := range 8 {
			table[b] |= uint64(b>>i&1) << (8 * i)
		}
	}
	return
}()

func unpackSliced(t, src []byte) {
	for len(t) >= 64 && len(src) >= 16 {
		b, s := (*[64]byte)(t), (*[16]byte)(src)
		for i := range 8 {
			putWord(b[8*i:], scatteredBits[s[i]]|scatteredBits[s[8+i]]*0xff)
		}
		t, src = t[64:], src[16:]
	}
}
