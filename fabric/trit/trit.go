// Package trit lays out balanced-ternary digits (trits: -1, 0, +1) in memory, and converts between the layouts.
package trit

// This file holds the layouts: how many bytes a row takes, packing and unpacking.

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrInvalid is wrapped by the errors of Unpack and Convert when bytes hold no trits.
var ErrInvalid = errors.New("not a code of a trit")

// Layout is how a row of trits lies in bytes. A row takes whole groups; what a group has after the row's last trit are trits of value 0.
type Layout uint8

const (
	// PT5 holds 5 trits a byte, in order: byte j is the sum of (t[5j+i] + 1) * 3^i for i of 0 to 4, from 0 to 242. A group is a byte.
	PT5 Layout = 1 + iota
	// PT5Striped holds them 320 to a group of 64 bytes: byte j of a group has its trits j, j+64, j+128, j+192 and j+256, coded as in PT5.
	// A vector of 64 bytes so gives the digits of 64 neighbours, five times.
	PT5Striped
	// TwoBit holds 256 trits to a group of 64 bytes: byte j of a group has t+1 of its trits j, j+64, j+128 and j+192, at bits 0, 2, 4 and 6.
	TwoBit
	// Sliced holds 64 trits to a group of 16 bytes, two little-endian words: bit i of the first is set if trit i is +1, of the second if it
	// is -1.
	Sliced
)

var layouts = [...]struct {
	name         string
	trits, bytes int // of a group
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

// Group is the number of trits and of bytes in a group; 0 if l is not valid.
func (l Layout) Group() (trits, bytes int) {
	if !l.Valid() {
		return 0, 0
	}
	return layouts[l].trits, layouts[l].bytes
}

// RowBytes is the number of bytes of a row of n trits: whole groups. n must not be negative; l must be valid.
func (l Layout) RowBytes(n int) int {
	trits, bytes := l.Group()
	groups := n / trits
	if n%trits != 0 {
		groups++
	}
	return groups * bytes
}

// Pack writes a row of trits to dst, which has RowBytes(len(t)) bytes. It panics if dst is shorter. A value outside -1..1 gives
// bytes that hold no trits.
func (l Layout) Pack(dst []byte, t []int8) {
	dst = dst[:l.RowBytes(len(t))]
	switch l {
	case PT5:
		for j := range dst {
			dst[j] = pack5(t, 5*j, 1)
		}
	case PT5Striped:
		for j := range dst {
			dst[j] = pack5(t, j/64*320+j%64, 64)
		}
	case TwoBit:
		for j := range dst {
			var b byte
			for i := range 4 {
				b |= byte(at(t, j/64*256+j%64+64*i)+1) << (2 * i)
			}
			dst[j] = b
		}
	case Sliced:
		for g := range len(dst) / 16 {
			var plus, minus uint64
			for i, v := range t[64*g : min(64*g+64, len(t))] {
				switch v {
				case 1:
					plus |= 1 << i
				case -1:
					minus |= 1 << i
				}
			}
			binary.LittleEndian.PutUint64(dst[16*g:], plus)
			binary.LittleEndian.PutUint64(dst[16*g+8:], minus)
		}
	default:
		panic("trit: Pack: " + l.String())
	}
}

// at is trit i of a row that goes on with zeros.
func at(t []int8, i int) int8 {
	if i < len(t) {
		return t[i]
	}
	return 0
}

func pack5(t []int8, first, stride int) byte {
	b := 0
	for i := 4; i >= 0; i-- {
		b = 3*b + int(at(t, first+i*stride)) + 1
	}
	return byte(b)
}

// Unpack reads a row of len(dst) trits from src, which has RowBytes(len(dst)) bytes. It panics if src is shorter. Bytes that hold no
// trits, and trits other than 0 after the row's last, are an error that wraps ErrInvalid and tells the byte; dst then holds part of the row.
func (l Layout) Unpack(dst []int8, src []byte) error {
	src = src[:l.RowBytes(len(dst))]
	put := func(i int, t int8, b int) error {
		if i < len(dst) {
			dst[i] = t
		} else if t != 0 {
			return fmt.Errorf("%v row of %d trits, byte %d: a trit after the last: %w", l, len(dst), b, ErrInvalid)
		}
		return nil
	}
	for j := 0; j < len(src); j++ {
		var err error
		switch l {
		case PT5, PT5Striped:
			first, stride := 5*j, 1
			if l == PT5Striped {
				first, stride = j/64*320+j%64, 64
			}
			d := src[j]
			if d > 242 {
				return fmt.Errorf("%v row, byte %d is %d: %w", l, j, d, ErrInvalid)
			}
			for i := 0; i < 5 && err == nil; i++ {
				err = put(first+i*stride, int8(d%3)-1, j)
				d /= 3
			}
		case TwoBit:
			for i := 0; i < 4 && err == nil; i++ {
				code := src[j] >> (2 * i) & 3
				if code == 3 {
					return fmt.Errorf("%v row, byte %d is %#x: %w", l, j, src[j], ErrInvalid)
				}
				err = put(j/64*256+j%64+64*i, int8(code)-1, j)
			}
		case Sliced:
			plus, minus := binary.LittleEndian.Uint64(src[j:]), binary.LittleEndian.Uint64(src[j+8:])
			if plus&minus != 0 {
				return fmt.Errorf("%v row, byte %d: a trit is both +1 and -1: %w", l, j, ErrInvalid)
			}
			for i := 0; i < 64 && err == nil; i++ {
				err = put(4*j+i, int8(plus>>i&1)-int8(minus>>i&1), j)
			}
			j += 15
		}
		if err != nil {
			return err
		}
	}
	return nil
}
