// Package trit stores balanced-ternary digits (trits: -1, 0, +1) in memory in several layouts, and
// converts between them. Package fabric and its subpackages build on it.
package trit

// This file defines the layouts: the size of a row, and packing, unpacking, checking and converting
// rows of any length.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"
)

// ErrInvalid is wrapped by the errors that Unpack, Check and Convert return for bytes that are not
// a valid code.
var ErrInvalid = errors.New("not a code of a trit")

// Layout says how a row of trits is stored. A row consists of whole groups; trits of a group beyond
// the end of the row are 0.
type Layout uint8

const (
	// PT5 stores 5 trits per byte, in order: byte j is the sum of (t[5j+i] + 1) * 3^i for i of 0 to
	// 4, from 0 to 242. A group is one byte.
	PT5 Layout = 1 + iota
	// PT5Striped stores 320 trits in a group of 64 bytes: byte j has the group's trits j, j+64,
	// j+128, j+192 and j+256, coded as in PT5. If such a group is loaded as a vector of 64 bytes,
	// the first digits of all its bytes are 64 neighbouring trits, the second digits are the next
	// 64, and so on.
	PT5Striped
	// TwoBit stores 256 trits in a group of 64 bytes. Byte j has t+1 for the group's trits j, j+64,
	// j+128 and j+192, at bits 0, 2, 4 and 6.
	TwoBit
	// Sliced stores 64 trits in a group of 16 bytes, as two little-endian words of 64 bits. Bit i
	// of the first word is set if trit i is +1. Bit i of the second is set if it is -1.
	Sliced
)

var layouts = [...]struct {
	name         string
	trits, bytes int // size of a group
}{PT5: {"pt5", 5, 1}, PT5Striped: {"pt5-striped", 320, 64}, TwoBit: {"two-bit", 256, 64}, Sliced: {"sliced", 64, 16}}

// Valid reports whether l is one of the constants.
func (l Layout) Valid() bool { return l >= PT5 && l <= Sliced }

// String is the layout's name ("pt5-striped"), or "layout(N)" if it is not valid.
func (l Layout) String() string {
	if !l.Valid() {
		return fmt.Sprintf("layout(%d)", uint8(l))
	}
	return layouts[l].name
}

// Group returns the number of trits and of bytes in a group; 0 if l is not valid.
func (l Layout) Group() (trits, bytes int) {
	if !l.Valid() {
		return 0, 0
	}
	return layouts[l].trits, layouts[l].bytes
}

// RowBytes is the size in bytes of a row of n trits, in whole groups. n must not be negative; l
// must be valid.
func (l Layout) RowBytes(n int) int {
	trits, bytes := l.Group()
	groups := n / trits
	if n%trits != 0 {
		groups++
	}
	return groups * bytes
}

// Pack writes a row of trits to the first RowBytes(len(t)) bytes of dst. It panics if dst is
// shorter or l is not valid. Every value must be -1, 0 or +1; the result for others is undefined.
func (l Layout) Pack(dst []byte, t []int8) {
	dst = dst[:l.RowBytes(len(t))]
	trits, size := l.block()
	blocks := len(t) / trits
	whole, bytes := blocks*trits, blocks*size
	l.packBlocks(dst[:bytes], asBytes(t[:whole]))
	if whole < len(t) {
		var last [maxTrits]int8
		var code [maxBytes]byte
		copy(last[:], t[whole:])
		l.packBlocks(code[:size], asBytes(last[:trits]))
		copy(dst[bytes:], code[:])
	}
}

// Unpack reads a row of len(dst) trits from the first RowBytes(len(dst)) bytes of src. It panics if
// src is shorter or l is not valid. Invalid codes, and trits other than 0 after the end of the row,
// are errors that wrap ErrInvalid and name the byte; dst may then hold a part of the row.
func (l Layout) Unpack(dst []int8, src []byte) error {
	src = src[:l.RowBytes(len(dst))]
	if !l.validCodes(src) {
		return l.firstError(src, len(dst))
	}
	trits, size := l.block()
	blocks := len(dst) / trits
	whole, bytes := blocks*trits, blocks*size
	l.unpackBlocks(asBytes(dst[:whole]), src[:bytes])
	if whole < len(dst) {
		var last [maxTrits]int8
		if !l.unpackLast(&last, src[bytes:], len(dst)-whole) {
			return l.firstError(src, len(dst))
		}
		copy(dst[whole:], last[:])
	}
	return nil
}

// Check returns the error that Unpack would return for a row of n trits.
func (l Layout) Check(src []byte, n int) error {
	src = src[:l.RowBytes(n)]
	trits, size := l.block()
	bytes := n / trits * size
	var last [maxTrits]int8
	if !l.validCodes(src) || n%trits != 0 && !l.unpackLast(&last, src[bytes:], n%trits) {
		return l.firstError(src, n)
	}
	return nil
}

// unpackLast unpacks the n trits of an incomplete last block, whose codes must be valid. It reports
// whether the rest of the block is zeros.
func (l Layout) unpackLast(dst *[maxTrits]int8, src []byte, n int) bool {
	trits, size := l.block()
	var code [maxBytes]byte
	l.fillZero(code[copy(code[:], src):])
	l.unpackBlocks(asBytes(dst[:trits]), code[:size])
	var rest int8
	for _, t := range dst[n:trits] {
		rest |= t
	}
	return rest == 0
}

// fillZero sets the bytes of a row to the code of zero trits.
func (l Layout) fillZero(b []byte) {
	code := [...]byte{PT5: 121, PT5Striped: 121, TwoBit: 0x55, Sliced: 0}[l]
	for i := range b {
		b[i] = code
	}
}

// Convert converts a row of n trits from src in one layout to dst in another. If the layouts are
// the same, it copies. dst has to.RowBytes(n) bytes and src from.RowBytes(n) bytes. They must not
// overlap. Convert panics if one is shorter or a layout is not valid. Errors are those of
// from.Unpack; dst may then hold a part of the row. Convert does not allocate.
func Convert(dst []byte, to Layout, src []byte, from Layout, n int) error {
	dst, src = dst[:to.RowBytes(n)], src[:from.RowBytes(n)]
	if to == from {
		copy(dst, src)
		return from.Check(src, n)
	}
	// A piece is whole groups of every layout, and stays in the first-level cache between the two
	// passes.
	const piece = 1280
	var t [piece]int8
	for at := 0; at < n; at += piece {
		part := t[:min(piece, n-at)]
		a, b := from.RowBytes(at), to.RowBytes(at)
		if err := from.Unpack(part, src[a:]); err != nil {
			return from.firstError(src, n)
		}
		to.Pack(dst[b:], part)
	}
	return nil
}

// firstError describes the first invalid byte or trit in a row of n trits, which must have one.
func (l Layout) firstError(src []byte, n int) error {
	trits, bytes := l.Group()
	for j, b := range src {
		bad := b > 242
		switch l {
		case TwoBit:
			bad = b&(b>>1)&0x55 != 0
		case Sliced:
			bad = j%16 < 8 && b&src[j+8] != 0
		}
		if bad {
			return fmt.Errorf("%v row of %d trits, byte %d is %#02x: %w", l, n, j, b, ErrInvalid)
		}
	}
	for i := n; i < len(src)/bytes*trits; i++ {
		if j, t := l.tritAt(src, i); t != 0 {
			return fmt.Errorf("%v row of %d trits, byte %d: trit %d after the last is %+d: %w",
				l, n, j, i, t, ErrInvalid)
		}
	}
	return nil
}

// tritAt returns trit i of a row with valid codes, and the index of its byte. In a sliced row,
// where a trit is in two bytes, it is the index of the first.
func (l Layout) tritAt(src []byte, i int) (j int, t int8) {
	switch l {
	case PT5:
		return i / 5, pt5Trit(src[i/5], i%5)
	case PT5Striped:
		j = i/320*64 + i%64
		return j, pt5Trit(src[j], i%320/64)
	case TwoBit:
		j = i/256*64 + i%64
		return j, int8(src[j]>>(2*(i%256/64))&3) - 1
	}
	j = i/64*16 + i%64/8
	return j, int8(src[j]>>(i%8)&1) - int8(src[j+8]>>(i%8)&1)
}

// pt5Trit returns trit i of a valid PT5 byte.
func pt5Trit(b byte, i int) int8 {
	for range i {
		b /= 3
	}
	return int8(b%3) - 1
}

// asBytes reinterprets t as bytes, for the word-wise code of this package.
func asBytes(t []int8) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(t))), len(t))
}

func word(b []byte) uint64       { return binary.LittleEndian.Uint64(b) }
func putWord(b []byte, w uint64) { binary.LittleEndian.PutUint64(b, w) }
