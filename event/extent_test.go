package event

// This file tests the extents of types that ggml's main line does not read.

import (
	"testing"

	"tensorcast/gguf"
)

func TestExtentsOfForks(t *testing.T) {
	const rows, slices = 64, 8
	for _, tt := range []struct {
		what         string
		typ          gguf.Type
		block, row   int64 // nb[0] and nb[1]
		bytes, slice int64
	}{
		{"IQ4_KS, with a head in each row", 144, 136, 4 + 2*136, slices * rows * (4 + 2*136), rows * (4 + 2*136)},
		{"Q2_0 in groups of 64", gguf.Q2_0, 18, 8 * 18, slices * rows * 8 * 18, rows * 8 * 18},
		{"Q2_0 in groups of 128", gguf.Q2_0, 34, 4 * 34, slices * rows * 4 * 34, rows * 4 * 34},
		{"I2_S, whose strides are those of bytes", 36, 1, 512, slices*rows*512/4 + 32, slices*rows*512/4/slices + 4},
		{"an unknown type", 999, 50, 100, slices * rows * 100, rows * 100},
		{"no type at all", 1 << 20, 50, 100, 0, 0},
	} {
		s := Source{Type: tt.typ, NE: [4]int64{512, rows, slices, 1},
			NB: [4]int64{tt.block, tt.row, rows * tt.row, slices * rows * tt.row}}
		n, slice := s.Slices(2)
		if s.Bytes() != tt.bytes || slice != tt.slice || tt.bytes > 0 && n != slices {
			t.Errorf("%s: %d bytes, %d slices of %d; want %d, slices of %d", tt.what, s.Bytes(), n, slice, tt.bytes,
				tt.slice)
		}
	}
	if n := (&Source{Type: 36, NE: [4]int64{1 << 62, 1 << 62, 1, 1}}).Bytes(); n != MaxBytes {
		t.Errorf("a shape that overflows has %d bytes", n)
	}
}
