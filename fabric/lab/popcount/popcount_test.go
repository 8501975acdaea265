package popcount

// This file compares all variants with the definition of a dot product.

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomTrits returns n words of each slice, with trits of which the share density is not zero.
func randomTrits(rng *rand.Rand, n int, density float64) (plus, minus []uint64) {
	plus, minus = make([]uint64, n), make([]uint64, n)
	for i := range 64 * n {
		if rng.Float64() < density {
			if rng.IntN(2) == 0 {
				plus[i/64] |= 1 << (i % 64)
			} else {
				minus[i/64] |= 1 << (i % 64)
			}
		}
	}
	return plus, minus
}

// trits returns the numbers that the vectors represent.
func trits(plus, minus []uint64) []int {
	t := make([]int, 64*len(plus))
	for i := range t {
		t[i] = int(plus[i/64]>>(i%64)&1) - int(minus[i/64]>>(i%64)&1)
	}
	return t
}

// naiveDot returns the dot product, computed by its definition.
func naiveDot(ap, am, bp, bm []uint64) int32 {
	sum := 0
	b := trits(bp, bm)
	for i, t := range trits(ap, am) {
		sum += t * b[i]
	}
	return int32(sum)
}

// TestLengths compares every variant with the definition, for all short lengths and numbers of
// rows. The slices are in the middle of others that are full of ones. So reading a word too far
// changes the result, and writing too far is noticed, too.
func TestLengths(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	inside := func(s []uint64, shift int) []uint64 {
		around := slices.Repeat([]uint64{^uint64(0)}, len(s)+shift+8)
		return append(append(around[:shift:shift], s...), around[shift+len(s):]...)[shift:][:len(s)]
	}
	const guard = int32(-77)
	for words := range 37 {
		for _, rows := range []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 23} {
			qp, qm := randomTrits(rng, words, .7)
			rp, rm := randomTrits(rng, words*rows, .7)
			expect := make([]int32, rows)
			for r := range expect {
				expect[r] = naiveDot(qp, qm, rp[r*words:][:words], rm[r*words:][:words])
			}
			qp, qm, rp, rm = inside(qp, words%3), inside(qm, 1), inside(rp, rows%5), inside(rm, 2)
			for _, v := range Variants() {
				dst := slices.Repeat([]int32{guard}, rows+16)
				v.DotRows(dst[:rows], qp, qm, rp, rm)
				if !slices.Equal(dst[:rows], expect) {
					t.Fatalf("%v, %d words, %d rows: %v, want %v", v, words, rows, dst[:rows], expect)
				}
				if slices.ContainsFunc(dst[rows:], func(d int32) bool { return d != guard }) {
					t.Fatalf("%v, %d words, %d rows: wrote behind the result: %v", v, words, rows, dst[rows:])
				}
			}
		}
	}
}

// TestExtremes has the largest and the least sums, which would overflow narrow counters.
func TestExtremes(t *testing.T) {
	const words = 5003
	ones, none := slices.Repeat([]uint64{^uint64(0)}, words), make([]uint64, words)
	for _, v := range Variants() {
		for _, test := range []struct {
			name           string
			ap, am, bp, bm []uint64
			want           int32
		}{
			{"equal", ones, none, ones, none, 64 * words},
			{"both negative", none, ones, none, ones, 64 * words},
			{"opposite", ones, none, none, ones, -64 * words},
			{"zero", ones, none, none, none, 0},
			{"empty", nil, nil, nil, nil, 0},
		} {
			if got := v.Dot(test.ap, test.am, test.bp, test.bm); got != test.want {
				t.Errorf("%v, %s: %d, want %d", v, test.name, got, test.want)
			}
		}
	}
}

func TestShapes(t *testing.T) {
	for _, n := range [][5]int{
		{1, 2, 3, 2, 2}, {1, 2, 2, 3, 2}, {1, 2, 2, 2, 3}, {2, 2, 2, 2, 4}, {2, 2, 2, 4, 2}, {0, 2, 2, 2, 2},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("slices of %v: did not panic, want a panic", n)
				}
			}()
			words := func(n int) []uint64 { return make([]uint64, n) }
			DotRows(make([]int32, n[0]), words(n[1]), words(n[2]), words(n[3]), words(n[4]))
		}()
	}
}

func TestNoAllocation(t *testing.T) {
	qp, qm := randomTrits(rand.New(rand.NewPCG(1, 2)), 64, .7)
	dst := make([]int32, 1)
	if n := testing.AllocsPerRun(100, func() { Dot(qp, qm, qm, qp); DotRows(dst, qp, qm, qp, qm) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// FuzzVariants compares the variants for any trits, lengths and alignments.
func FuzzVariants(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789abcdef"), uint8(1), uint8(0))
	f.Add(make([]byte, 16*9*10), uint8(9), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, words, shift uint8) {
		n := int(words)
		if n == 0 {
			return
		}
		rows := len(data)/(16*n) - 1
		if rows < 1 {
			return
		}
		total := n * (rows + 1)
		plus, minus := make([]uint64, total+int(shift)), make([]uint64, total+int(shift))
		plus, minus = plus[shift:], minus[shift:]
		for i := range total {
			plus[i] = binary.LittleEndian.Uint64(data[16*i:])
			minus[i] = binary.LittleEndian.Uint64(data[16*i+8:]) &^ plus[i]
		}
		expect, dst := make([]int32, rows), make([]int32, rows)
		for r := range expect {
			expect[r] = naiveDot(plus[:n], minus[:n], plus[n*(r+1):][:n], minus[n*(r+1):][:n])
		}
		for _, v := range Variants() {
			if v.DotRows(dst, plus[:n], minus[:n], plus[n:], minus[n:]); !slices.Equal(dst, expect) {
				t.Errorf("%v, %d words, %d rows: %v, want %v", v, n, rows, dst, expect)
			}
		}
	})
}

// BenchmarkDotRows reports trits per second for rows as short as an attention head's, as long as a
// hypervector's, and for more than the caches hold.
func BenchmarkDotRows(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, shape := range []struct{ words, rows int }{
		{1, 256}, {2, 256}, {4, 128}, {3, 128}, {64, 16}, {64, 512}, {1024, 512},
	} {
		qp, qm := randomTrits(rng, shape.words, .7)
		rp, rm := randomTrits(rng, shape.words*shape.rows, .7)
		dst := make([]int32, shape.rows)
		for _, v := range Variants() {
			b.Run(fmt.Sprintf("%dx%d/%v", shape.rows, 64*shape.words, v), func(b *testing.B) {
				b.SetBytes(int64(16 * len(rp)))
				for b.Loop() {
					v.DotRows(dst, qp, qm, rp, rm)
				}
				b.ReportMetric(float64(64*len(rp))*float64(b.N)/b.Elapsed().Seconds(), "trits/s")
			})
		}
	}
}
