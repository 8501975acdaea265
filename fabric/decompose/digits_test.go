//go:build amd64 && !noasm

package decompose

// This file compares the assembly for digits with Go.

import (
	"bytes"
	"testing"

	"tensorcast/fabric/trit"
)

// FuzzStripes compares the assembly with Go: all forms of codes that types have, rows of any
// length, planes that begin at any byte.
func FuzzStripes(f *testing.F) {
	for i := range uint8(40) {
		f.Add([]byte("some codes: \x00\x01\x7f\x80\xff"), i, uint16(33*int(i)), i)
	}
	f.Fuzz(func(t *testing.T, codes []byte, form uint8, n uint16, at uint8) {
		if !hasVBMI {
			t.Skip("the processor has no AVX-512 VBMI")
		}
		forms := []struct{ planes, offset, codes int }{
			{1, 1, 3}, {2, 4, 9}, {2, 4, 8}, {2, 1, 4}, {3, 8, 16}, {3, 13, 27},
			{4, 16, 32}, {4, 32, 64}, {4, 40, 81}, {5, 121, 243}, {6, 128, 256},
		}
		c := forms[int(form)%len(forms)]
		layout := []trit.Layout{trit.PT5Striped, trit.TwoBit}[form%2]
		size := 1 + int(n)%tileElems
		var a [tileElems]byte
		for i := range size {
			a[i] = byte(i)
			if len(codes) > 0 {
				a[i] += codes[i%len(codes)]
			}
			a[i] = byte(int(a[i]) % c.codes)
		}
		b := a
		p := newPacker(layout, c.planes, c.offset)
		planes := func() (planes [][]byte) {
			for range c.planes {
				planes = append(planes, bytes.Repeat([]byte{0xee}, int(at)+layout.RowBytes(size)+64))
			}
			return planes
		}
		got, want := planes(), planes()
		p.pack(got, int(at), &a, size)
		p.vector = vector{}
		p.pack(want, int(at), &b, size)
		for d := range want {
			if !bytes.Equal(got[d], want[d]) {
				t.Errorf("%v, %d planes, offset %d, %d codes, at byte %d: plane %d is % x, want % x",
					layout, c.planes, c.offset, size, at, d, got[d], want[d])
			}
		}
	})
}
