package trit

// This file compares the layouts with a naive implementation of their definitions.

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var all = []Layout{PT5, PT5Striped, TwoBit, Sliced}

// packNaively packs one trit after the other, directly by the definitions of the layouts.
func packNaively(l Layout, t []int8) []byte {
	powers := [5]byte{1, 3, 9, 27, 81}
	var b []byte
	switch l {
	case PT5:
		b = bytes.Repeat([]byte{121}, (len(t)+4)/5)
		for i, v := range t {
			b[i/5] += byte(v) * powers[i%5]
		}
	case PT5Striped:
		b = bytes.Repeat([]byte{121}, (len(t)+319)/320*64)
		for i, v := range t {
			b[i/320*64+i%64] += byte(v) * powers[i%320/64]
		}
	case TwoBit:
		b = bytes.Repeat([]byte{0x55}, (len(t)+255)/256*64)
		for i, v := range t {
			b[i/256*64+i%64] += byte(v) << (i % 256 / 64 * 2)
		}
	case Sliced:
		b = make([]byte, (len(t)+63)/64*16)
		for i, v := range t {
			group := i / 64 * 16
			if v < 0 {
				group += 8
			}
			b[group+i%64/8] |= byte(v&1) << (i % 8)
		}
	}
	return b
}

// badByte returns the index of the first byte of a row of n trits that packNaively writes for no
// trits at all. If there is none, it returns the row's trits and -1.
// is none, else with the trits read.
func badByte(l Layout, src []byte, n int) (t []int8, bad int) {
	trits, size := l.Group()
	t = make([]int8, len(src)/size*trits)
	for i := range t {
		g, k := i/trits*size, i%trits
		switch l {
		case PT5:
			t[i] = int8(int(src[g])/[]int{1, 3, 9, 27, 81}[k]%3) - 1
		case PT5Striped:
			t[i] = int8(int(src[g+k%64])/[]int{1, 3, 9, 27, 81}[k/64]%3) - 1
		case TwoBit:
			t[i] = int8(src[g+k%64]>>(k/64*2)&3) - 1
		case Sliced:
			plus, minus := src[g+k/8]>>(k%8)&1, src[g+8+k/8]>>(k%8)&1
			t[i] = int8(plus) - int8(minus)
			if plus+minus == 2 {
				return nil, g + k/8
			}
		}
	}
	if l != Sliced {
		for j, b := range src {
			if l == TwoBit && (b&3 == 3 || b>>2&3 == 3 || b>>4&3 == 3 || b>>6 == 3) || l != TwoBit && b >= 243 {
				return nil, j
			}
		}
	}
	// A trit other than 0 after the last makes the row differ from one that packNaively writes.
	want := packNaively(l, t[:n])
	for i := n; i < len(t); i++ {
		if t[i] != 0 {
			one := slices.Concat(t[:n], make([]int8, i-n), t[i:i+1])
			for j, b := range packNaively(l, one) {
				if b != want[j] {
					return nil, j - toInt(l == Sliced && j%16 >= 8)*8
				}
			}
		}
	}
	return t[:n], -1
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// row returns n trits. The seeds 0 to 2 give a row of one value: -1, 0 or +1. Others give random trits.
func row(n int, seed uint64) []int8 {
	r := rand.New(rand.NewPCG(seed, 1))
	t := make([]int8, n)
	for i := range t {
		if t[i] = int8(r.IntN(3)) - 1; seed < 3 {
			t[i] = int8(seed) - 1
		}
	}
	return t
}

func TestLayouts(t *testing.T) {
	for _, c := range []struct {
		l                    Layout
		name                 string
		trits, size, n, want int
	}{
		{PT5, "pt5", 5, 1, 4096, 820},
		{PT5Striped, "pt5-striped", 320, 64, 4096, 832},
		{TwoBit, "two-bit", 256, 64, 4096, 1024},
		{Sliced, "sliced", 64, 16, 4096, 1024},
		{PT5, "pt5", 5, 1, 0, 0},
		{PT5, "pt5", 5, 1, 6, 2},
		{PT5Striped, "pt5-striped", 320, 64, 1, 64},
		{TwoBit, "two-bit", 256, 64, 257, 128},
		{Sliced, "sliced", 64, 16, 64, 16},
	} {
		trits, size := c.l.Group()
		if got := c.l.RowBytes(c.n); got != c.want || trits != c.trits || size != c.size ||
			c.l.String() != c.name || !c.l.Valid() {
			t.Errorf("%v: RowBytes(%d) = %d, want %d; Group() = %d, %d, want %d, %d",
				c.l, c.n, got, c.want, trits, size, c.trits, c.size)
		}
	}
	for _, l := range []Layout{0, 5} {
		if trits, size := l.Group(); l.Valid() || trits != 0 || size != 0 || !strings.HasPrefix(l.String(), "layout(") {
			t.Errorf("%v: Valid() = %v and Group() has %d trits, want false and 0", l, l.Valid(), trits)
		}
	}
}

// TestPT5Codes checks every code against the sum that defines it.
func TestPT5Codes(t *testing.T) {
	var got [5]int8
	for code := range 256 {
		err := PT5.Unpack(got[:], []byte{byte(code)})
		if code > 242 {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("Unpack of code %d returned %v, want ErrInvalid", code, err)
			}
			continue
		}
		sum := int(got[0]) + 3*int(got[1]) + 9*int(got[2]) + 27*int(got[3]) + 81*int(got[4])
		if err != nil || sum+121 != code || slices.Max(got[:]) > 1 || slices.Min(got[:]) < -1 {
			t.Errorf("code %d was unpacked to %v (error %v), want trits whose sum is %d", code, got, err, code-121)
		}
		var back [1]byte
		if PT5.Pack(back[:], got[:]); back[0] != byte(code) {
			t.Errorf("code %d was unpacked and packed to %d", code, back[0])
		}
	}
}

// TestRows packs, unpacks, checks and converts rows of many lengths, up to two pieces of Convert.
// Rows are at odd addresses, and the bytes before and after them must stay as they are.
func TestRows(t *testing.T) {
	const guard = 0xa5
	buffer := func(n int) (whole, part []byte) {
		whole = bytes.Repeat([]byte{guard}, n+16)
		return whole, whole[3 : 3+n]
	}
	check := func(what string, whole, part, want []byte) {
		t.Helper()
		if !bytes.Equal(part, want) {
			t.Fatalf("%s: % x, want % x", what, part, want)
		}
		before, after := bytes.Repeat([]byte{guard}, 3), bytes.Repeat([]byte{guard}, 13)
		if !bytes.Equal(whole[:3], before) || !bytes.Equal(whole[3+len(part):], after) {
			t.Fatalf("%s: bytes beside the row were written", what)
		}
	}
	for n := range 1280 + 330 {
		if n > 700 && n%5 > 1 && n%64 > 1 {
			continue
		}
		trits := row(n, uint64(n)%9)
		var want [Sliced + 1][]byte
		for _, l := range all {
			want[l] = packNaively(l, trits)
			whole, part := buffer(l.RowBytes(n))
			l.Pack(part, trits)
			check(fmt.Sprintf("%v, pack %d", l, n), whole, part, want[l])
			out := slices.Repeat([]int8{99}, n+16)
			err := l.Unpack(out[3:3+n], part)
			if err != nil || !slices.Equal(out[3:3+n], trits) || out[2] != 99 || out[3+n] != 99 {
				t.Fatalf("%v, unpack %d: error %v, got %v, want %v between bytes of 99", l, n, err, out, trits)
			}
			if err := l.Check(part, n); err != nil {
				t.Fatalf("%v, check %d: %v", l, n, err)
			}
		}
		for _, from := range all {
			for _, to := range all {
				whole, part := buffer(to.RowBytes(n))
				if err := Convert(part, to, want[from], from, n); err != nil {
					t.Fatalf("%v to %v, %d: %v", from, to, n, err)
				}
				check(fmt.Sprintf("%v to %v, %d", from, to, n), whole, part, want[to])
			}
		}
	}
}

// TestInvalid writes codes to the bytes of a row. Those that are invalid, or have a trit after the
// last, must be refused with an error that names the byte.
func TestInvalid(t *testing.T) {
	checkRefused := func(l Layout, src []byte, n, at int) {
		t.Helper()
		want := fmt.Sprintf("%v row of %d trits, byte %d", l, n, at)
		dst := make([]byte, 4096)
		errs := []error{l.Check(src, n), l.Unpack(make([]int8, n), src)}
		errs = append(errs, Convert(dst, l, src, l, n), Convert(dst, all[at%2*3], src, l, n))
		for i, err := range errs {
			if !errors.Is(err, ErrInvalid) ||
				!strings.HasPrefix(err.Error(), want+" ") && !strings.HasPrefix(err.Error(), want+":") {
				t.Fatalf("call %d: error %v, want ErrInvalid that begins with %q", i, err, want)
			}
		}
	}
	for _, l := range all {
		for _, n := range []int{1, 4, 5, 64, 65, 256, 321} {
			src := packNaively(l, row(n, 7))
			step := 1 + len(src)/8*2 // odd, so that in long rows every code is tried, each at some of the bytes
			code := 0
			for j, b := range src {
				for ; code < 256; code += step {
					src[j] = byte(code)
					if _, bad := badByte(l, src, n); bad >= 0 {
						checkRefused(l, src, n, bad)
					}
				}
				code -= 256
				src[j] = b
			}
		}
	}
}

func TestAllocations(t *testing.T) {
	const n = 4000
	trits := row(n, 9)
	a, b := make([]byte, 2048), make([]byte, 2048)
	for _, from := range all {
		for _, to := range all {
			if got := testing.AllocsPerRun(10, func() {
				from.Pack(a, trits)
				if Convert(b, to, a, from, n) != nil || to.Unpack(trits, b) != nil || to.Check(b, n) != nil {
					t.Fatal("a valid row was refused")
				}
			}); got != 0 {
				t.Errorf("%v to %v: %v allocations, want 0", from, to, got)
			}
		}
	}
}

func FuzzRow(f *testing.F) {
	for _, l := range all {
		for _, n := range []int{0, 1, 41, 321, 1500} {
			f.Add(byte(l), n, packNaively(l, row(n, 5)))
		}
	}
	f.Fuzz(func(t *testing.T, layout byte, n int, src []byte) {
		l := all[int(layout)%len(all)]
		trits, size := l.Group()
		groups := len(src) / size
		if n < 0 || groups == 0 {
			return
		}
		src = src[:groups*size]
		n = (groups-1)*trits + n%trits + 1
		want, bad := badByte(l, src, n)
		got := make([]int8, n)
		err := l.Unpack(got, src)
		if check := l.Check(src, n); fmt.Sprint(check) != fmt.Sprint(err) {
			t.Fatalf("Check returned %v, want what Unpack returned: %v", check, err)
		}
		if bad >= 0 {
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprintf("byte %d", bad)) {
				t.Fatalf("%v row of %d trits, % x: error %v, want one about byte %d", l, n, src, err, bad)
			}
			return
		}
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%v row of %d trits, % x: got %v (error %v), want %v", l, n, src, got, err, want)
		}
		for _, to := range all {
			dst := make([]byte, to.RowBytes(n))
			if err := Convert(dst, to, src, l, n); err != nil || !bytes.Equal(dst, packNaively(to, want)) {
				t.Fatalf("%v to %v, %d trits: got % x (error %v), want % x", l, to, n, dst, err, packNaively(to, want))
			}
		}
	})
}

// benchTrits is the length of a row in the benchmarks. They report a trit as a byte: 1000 MB/s are
// 1 billion trits per second.
const benchTrits = 4096

func BenchmarkPack(b *testing.B) {
	trits := row(benchTrits, 9)
	for _, l := range all {
		b.Run(l.String(), func(b *testing.B) {
			dst := make([]byte, l.RowBytes(benchTrits))
			b.SetBytes(benchTrits)
			for b.Loop() {
				l.Pack(dst, trits)
			}
		})
	}
}

func BenchmarkUnpack(b *testing.B) {
	dst := make([]int8, benchTrits)
	for _, l := range all {
		b.Run(l.String(), func(b *testing.B) {
			src := packNaively(l, row(benchTrits, 9))
			b.SetBytes(benchTrits)
			for b.Loop() {
				if err := l.Unpack(dst, src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkConvert(b *testing.B) {
	for _, from := range all {
		for _, to := range all {
			b.Run(from.String()+"/"+to.String(), func(b *testing.B) {
				src, dst := packNaively(from, row(benchTrits, 9)), make([]byte, to.RowBytes(benchTrits))
				b.SetBytes(benchTrits)
				for b.Loop() {
					if err := Convert(dst, to, src, from, benchTrits); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
