package tryte

// This file tests numbers and vectors against integers.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// wrap returns n modulo 3^depth, in the range around 0, and how often 3^depth was subtracted.
func wrap(n int64, depth int) (int64, int8) {
	size, limit := powers[depth], int64(Max(depth))
	carry := int8(0)
	for n > limit {
		n, carry = n-size, carry+1
	}
	for n < -limit {
		n, carry = n+size, carry-1
	}
	return n, carry
}

func clamp(n int64, depth int) int64 { return max(-int64(Max(depth)), min(n, int64(Max(depth)))) }

// divideRounded returns n / 3^k, rounded. There are no ties.
func divideRounded(n int64, k int) int64 { return int64(math.Round(float64(n) / float64(powers[k]))) }

// shift returns n times 3^k without bounds, for k of -MaxDepth to MaxDepth.
func shift(n int64, k int) int64 {
	if k < 0 {
		return divideRounded(n, -k)
	}
	return n * powers[k]
}

func TestNumbers(t *testing.T) {
	numbers := []int32{Max(MaxDepth), -Max(MaxDepth), Max(MaxDepth) - 1, 1 << 30, -1 << 30}
	for n := -Max(9); n <= Max(9); n++ {
		numbers = append(numbers, n)
	}
	for _, n := range numbers {
		v := Of(n)
		if v.Int() != n || v.plus&v.minus != 0 || v.Neg().Int() != -n || v != Of(v.Int()) {
			t.Fatalf("Of(%d) = %v, which is %d, and negated %d", n, v, v.Int(), v.Neg().Int())
		}
		sum, rest := int64(0), int64(n)
		for d := range MaxDepth {
			sum += int64(v.Trit(d)) * powers[d]
			if d < v.Depth() {
				rest = divideRounded(rest, 1)
			}
		}
		if sum != int64(n) || rest != 0 || (v.Depth() > 0) != (n != 0) || n != 0 && v.Trit(v.Depth()-1) == 0 {
			t.Fatalf("the trits of %d are %v with depth %d: their sum is %d, and dropping all leaves %d",
				n, v, v.Depth(), sum, rest)
		}
	}
	for _, c := range []struct {
		n int32
		s string
	}{{0, "0"}, {1, "+"}, {-1, "-"}, {8, "+0-"}, {-4, "--"}, {5, "+--"}} {
		if got := Of(c.n).String(); got != c.s {
			t.Errorf("Of(%d) is %s, want %s", c.n, got, c.s)
		}
	}
}

// TestArithmetic tries all pairs of numbers of small depths, and random ones of all depths.
func TestArithmetic(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	check := func(a, b int64, depth int) {
		x, y := Of(int32(a)), Of(int32(b))
		sum, carry := x.Add(y, depth)
		if want, c := wrap(a+b, depth); int64(sum.Int()) != want || carry != c {
			t.Fatalf("%d + %d in %d trits: %d carry %d, want %d carry %d", a, b, depth, sum.Int(), carry, want, c)
		}
		difference, carry := x.Sub(y, depth)
		if want, c := wrap(a-b, depth); int64(difference.Int()) != want || carry != c {
			t.Fatalf("%d - %d in %d trits: %d carry %d, want %d carry %d",
				a, b, depth, difference.Int(), carry, want, c)
		}
		want := 0
		if a != b {
			want = 1 - 2*toInt(a < b)
		}
		if got := x.Cmp(y); got != want {
			t.Fatalf("%d compared to %d: %d, want %d", a, b, got, want)
		}
	}
	checkOne := func(a int64, depth int) {
		x := Of(int32(a))
		for trit := int8(-1); trit <= 1; trit++ {
			if got := x.Mul(trit).Int(); int64(got) != a*int64(trit) {
				t.Fatalf("%d * %d = %d, want %d", a, trit, got, a*int64(trit))
			}
			for d := range depth {
				got := x.With(d, trit)
				if want := a + (int64(trit)-int64(x.Trit(d)))*powers[d]; int64(got.Int()) != want {
					t.Fatalf("%d with trit %d %+d: %d, want %d", a, d, trit, got.Int(), want)
				}
			}
		}
		for k := max(-depth-1, -MaxDepth); k <= min(depth+1, MaxDepth); k++ {
			got, fits := x.Shift(k, depth)
			exact := float64(a) * math.Pow(3, float64(k))
			if inside := math.Abs(math.Round(exact)) <= float64(Max(depth)); fits != inside {
				t.Fatalf("%d * 3^%d in %d trits: fits = %v, want %v", a, k, depth, fits, inside)
			}
			if k > 10 {
				continue // the product is beyond 64 bits
			}
			if want, _ := modulo(shift(a, k), depth); int64(got.Int()) != want {
				t.Fatalf("%d * 3^%d in %d trits: %d, want %d", a, k, depth, got.Int(), want)
			}
		}
	}
	for depth := 1; depth <= 4; depth++ {
		limit := int64(Max(depth))
		for a := -limit; a <= limit; a++ {
			checkOne(a, depth)
			for b := -limit; b <= limit; b++ {
				check(a, b, depth)
			}
		}
	}
	for depth := 5; depth <= MaxDepth; depth++ {
		limit := int64(Max(depth))
		for range 500 {
			a, b := r.Int64N(2*limit+1)-limit, r.Int64N(2*limit+1)-limit
			checkOne(a, depth)
			check(a, b, depth)
			check(a, clamp(a+r.Int64N(5)-2, depth), depth)
			check(limit, b, depth)
			check(-limit, b, depth)
		}
	}
}

// modulo does what wrap does, without steps.
func modulo(n int64, depth int) (int64, int64) {
	size, limit := powers[depth], int64(Max(depth))
	m := ((n+limit)%size+size)%size - limit
	return m, (n - m) / size
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// pairs returns two vectors of numbers. They are all pairs if there are few, otherwise n random
// ones, with some ends of the range among them.
func pairs(depth, n int) (a, b []int32) {
	limit := Max(depth)
	if depth <= 3 {
		for x := -limit; x <= limit; x++ {
			for y := -limit; y <= limit; y++ {
				a, b = append(a, x), append(b, y)
			}
		}
		return a, b
	}
	r := rand.New(rand.NewPCG(uint64(depth), uint64(n)))
	for range n {
		pick := func() int32 {
			if r.IntN(8) == 0 {
				return []int32{0, 1, -1, limit, -limit, limit - 1}[r.IntN(6)]
			}
			return int32(r.Int64N(2*int64(limit)+1)) - limit
		}
		a, b = append(a, pick()), append(b, pick())
		if r.IntN(8) == 0 {
			b[len(b)-1] = a[len(a)-1]
		}
	}
	return a, b
}

func vectorOf(t testing.TB, x []int32, depth int) *Vector {
	t.Helper()
	v := NewVector(len(x), depth)
	if over := v.SetInts(x); over != 0 {
		t.Fatalf("%d of %d do not fit %d trits", over, len(x), depth)
	}
	return v
}

// checkVector compares v with numbers, its overflows with over, and the bits after the last element
// with 0.
func checkVector(t *testing.T, what string, v *Vector, count int, want []int64, over []int8) {
	t.Helper()
	got := make([]int32, v.Len())
	v.Ints(got)
	n := 0
	for i, w := range want {
		if int64(got[i]) != w || v.At(i).Int() != got[i] || v.Over(i) != over[i] {
			t.Fatalf("%s, element %d: %d (%v), %+d beyond; want %d, %+d",
				what, i, got[i], v.At(i), v.Over(i), w, over[i])
		}
		n += toInt(over[i] != 0)
	}
	if count != n {
		t.Fatalf("%s: %d beyond the range, want %d", what, count, n)
	}
	for d := range v.Depth() {
		plus, minus := v.Plane(d)
		for w := range plus {
			bits := ^uint64(0)
			if 64*w+64 > v.Len() {
				bits = 1<<(v.Len()%64) - 1
			}
			if plus[w]&minus[w] != 0 || (plus[w]|minus[w])&^bits != 0 {
				t.Fatalf("%s, trit %d, word %d: %x and %x, want no common bits, and none after the last element",
					what, d, w, plus[w], minus[w])
			}
		}
	}
}

func TestVectors(t *testing.T) {
	for depth := 1; depth <= MaxDepth; depth++ {
		for _, n := range []int{0, 1, 64, 130} {
			if n != 130 && depth%4 != 0 {
				continue
			}
			a, b := pairs(depth, n)
			va, vb, v := vectorOf(t, a, depth), vectorOf(t, b, depth), NewVector(len(a), depth)
			want, over, none := make([]int64, len(a)), make([]int8, len(a)), make([]int8, len(a))
			what := func(op string, o Overflow) string {
				return fmt.Sprintf("%s, overflow %d, depth %d, %d numbers", op, o, depth, len(a))
			}
			expect := func(o Overflow, exact func(i int) int64) {
				for i := range want {
					e := exact(i)
					if _, over[i] = wrap(e, depth); o == Wrap {
						want[i], _ = wrap(e, depth)
					} else {
						want[i] = clamp(e, depth)
					}
				}
			}
			for _, o := range []Overflow{Wrap, Saturate} {
				expect(o, func(i int) int64 { return int64(a[i]) + int64(b[i]) })
				checkVector(t, what("a+b", o), v, v.Add(va, vb, o), want, over)
				v.Shift(va, 0, o)
				checkVector(t, what("v+b", o), v, v.Add(v, vb, o), want, over)
				v.Shift(vb, 0, o)
				checkVector(t, what("a+v", o), v, v.Add(va, v, o), want, over)
				expect(o, func(i int) int64 { return 2 * int64(a[i]) })
				v.Shift(va, 0, o)
				checkVector(t, what("v+v", o), v, v.Add(v, v, o), want, over)
				expect(o, func(i int) int64 { return int64(a[i]) - int64(b[i]) })
				checkVector(t, what("a-b", o), v, v.Sub(va, vb, o), want, over)
				v.Shift(vb, 0, o)
				checkVector(t, what("a-v", o), v, v.Sub(va, v, o), want, over)
				for k := -depth - 1; k <= depth+1; k++ {
					for _, to := range []int{1, depth, min(depth+3, MaxDepth)} {
						d := NewVector(len(a), to)
						count, wide := 0, make([]int64, len(a))
						sides := make([]int8, len(a))
						for i, n := range a {
							exact := math.Round(float64(n) * math.Pow(3, float64(k)))
							switch {
							case exact > float64(Max(to)):
								sides[i] = 1
							case exact < -float64(Max(to)):
								sides[i] = -1
							}
							if o == Saturate && sides[i] != 0 {
								wide[i] = int64(sides[i]) * int64(Max(to))
							} else {
								s, _ := Of(n).Shift(k, to)
								wide[i] = int64(s.Int())
							}
						}
						if count = d.Shift(va, k, o); to == depth {
							v.Shift(va, 0, o)
							if again := v.Shift(v, k, o); again != count {
								t.Fatalf("%s: %d beyond the range, want %d", what("v<<", o), again, count)
							}
							checkVector(t, what(fmt.Sprint("v<<", k), o), v, count, wide, sides)
						}
						checkVector(t, what(fmt.Sprint("a<<", k, " to ", to), o), d, count, wide, sides)
					}
				}
			}
			for i := range want {
				want[i] = -int64(a[i])
			}
			v.Neg(va)
			checkVector(t, what("-a", Wrap), v, 0, want, none)
			v.Neg(v)
			v.Neg(v)
			checkVector(t, what("-v", Wrap), v, 0, want, none)
			for i := range want {
				want[i] = int64(a[i]) * int64(Of(b[i]).Trit(0))
			}
			v.MulTrits(va, vb)
			checkVector(t, what("a*t", Wrap), v, 0, want, none)
			v.Shift(vb, 0, Wrap)
			v.MulTrits(va, v)
			checkVector(t, what("a*v", Wrap), v, 0, want, none)
			for i := range want {
				want[i] = int64(toInt(a[i] > b[i]) - toInt(a[i] < b[i]))
			}
			v.Compare(va, vb)
			checkVector(t, what("a?b", Wrap), v, 0, want, none)
			v.Shift(va, 0, Wrap)
			v.Compare(v, vb)
			checkVector(t, what("v?b", Wrap), v, 0, want, none)
			signs := NewVector(len(a), 1)
			signs.Compare(va, vb)
			checkVector(t, what("signs", Wrap), signs, 0, want, none)
		}
	}
}

// TestEdits replaces trits and elements one by one, and checks that nothing else changes.
func TestEdits(t *testing.T) {
	a, _ := pairs(7, 130)
	v, r := vectorOf(t, a, 7), rand.New(rand.NewPCG(3, 3))
	want := make([]int64, len(a))
	for i, n := range a {
		want[i] = int64(n)
	}
	for range 3000 {
		i, d, trit := r.IntN(len(a)), r.IntN(7), int8(r.IntN(3))-1
		want[i] += (int64(trit) - int64(Of(int32(want[i])).Trit(d))) * powers[d]
		v.SetTrit(i, d, trit)
		i = r.IntN(len(a))
		want[i] = int64(r.IntN(2*int(Max(7)))) - int64(Max(7))
		v.Set(i, Of(int32(want[i])))
	}
	checkVector(t, "edited", v, 0, want, make([]int8, len(a)))
}

func TestConversions(t *testing.T) {
	ints := []int32{0, 1, 13, 14, -13, -14, math.MaxInt32, math.MinInt32, 5}
	v := NewVector(len(ints), 3)
	over := []int8{0, 0, 0, 1, 0, -1, 1, -1, 0}
	checkVector(t, "integers", v, v.SetInts(ints), []int64{0, 1, 13, 13, -13, -13, 13, -13, 5}, over)

	inf := float32(math.Inf(1))
	floats := []float32{0, 0.5, 1.5, -1.5, 6.5, 6.74, 6.76, -6.76, inf, -inf, float32(math.NaN()), 0.25, 0.75, -0.24}
	v = NewVector(len(floats), 3)
	count := v.SetFloats(floats, 0.5)
	got := make([]float32, len(floats))
	v.Floats(got, 0.5)
	want := []float32{0, 0.5, 1.5, -1.5, 6.5, 6.5, 6.5, -6.5, 6.5, -6.5, 0, 0, 1, 0}
	if !slices.Equal(got, want) || count != 5 {
		t.Errorf("%v, %d beyond the range; want %v, 5", got, count, want)
	}
	for i, side := range []int8{0, 0, 0, 0, 0, 0, 1, -1, 1, -1, 0, 0, 0, 0} {
		if v.Over(i) != side {
			t.Errorf("%v: Over = %+d, want %+d", floats[i], v.Over(i), side)
		}
	}
}

func TestPanics(t *testing.T) {
	v, w, deep := NewVector(5, 3), NewVector(6, 3), NewVector(5, 4)
	for name, f := range map[string]func(){
		"Of":               func() { Of(Max(MaxDepth) + 1) },
		"Trit":             func() { Of(1).Trit(MaxDepth) },
		"With":             func() { Of(1).With(0, 2) },
		"Add":              func() { Of(5).Add(Of(1), 2) },
		"Shift":            func() { Of(5).Shift(1, MaxDepth+1) },
		"NewVector":        func() { NewVector(1, 0) },
		"NewVector, deep":  func() { NewVector(1, MaxDepth+1) },
		"At":               func() { v.At(5) },
		"Set":              func() { v.Set(0, Of(14)) },
		"SetTrit":          func() { v.SetTrit(0, 3, 1) },
		"Add, length":      func() { v.Add(v, w, Wrap) },
		"Add, depth":       func() { v.Add(deep, v, Wrap) },
		"MulTrits":         func() { v.MulTrits(v, w) },
		"Vector.Shift":     func() { v.Shift(w, 0, Wrap) },
		"Compare":          func() { v.Compare(w, w) },
		"Compare, depths":  func() { v.Compare(v, deep) },
		"SetInts":          func() { v.SetInts(make([]int32, 4)) },
		"Ints":             func() { v.Ints(make([]int32, 6)) },
		"SetFloats, scale": func() { v.SetFloats(make([]float32, 5), 0) },
		"Floats":           func() { v.Floats(make([]float32, 4), 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s did not panic, want a panic", name)
				}
			}()
			f()
		}()
	}
}

func TestAllocations(t *testing.T) {
	a, b := pairs(6, 1000)
	va, vb, v := vectorOf(t, a, 6), vectorOf(t, b, 6), NewVector(1000, 6)
	floats := make([]float32, 1000)
	if n := testing.AllocsPerRun(10, func() {
		v.Add(va, vb, Saturate)
		v.Sub(v, vb, Wrap)
		v.Shift(v, 1, Wrap)
		v.MulTrits(v, va)
		v.Compare(va, vb)
		v.SetInts(a)
		v.Floats(floats, 0.5)
		v.SetFloats(floats, 0.5)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// FuzzVector does operations that the input determines on a vector and on integers.
func FuzzVector(f *testing.F) {
	f.Add(uint8(3), uint8(70), []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xff, 0x80, 17})
	f.Add(uint8(20), uint8(1), []byte("saturate and wrap"))
	f.Fuzz(func(t *testing.T, depthByte, lenByte uint8, ops []byte) {
		depth, n := 1+int(depthByte)%MaxDepth, int(lenByte)
		v, other := NewVector(n, depth), NewVector(n, depth)
		ints, others := make([]int64, n), make([]int64, n)
		r := rand.New(rand.NewPCG(uint64(depthByte), uint64(lenByte)))
		for _, op := range ops {
			o := Overflow(op >> 7)
			store := func(i int, exact int64) {
				if ints[i], _ = modulo(exact, depth); o == Saturate {
					ints[i] = clamp(exact, depth)
				}
			}
			switch op & 7 {
			case 0:
				v.Add(v, other, o)
				for i := range ints {
					store(i, ints[i]+others[i])
				}
			case 1:
				v.Sub(v, other, o)
				for i := range ints {
					store(i, ints[i]-others[i])
				}
			case 2:
				k := int(op>>3&15) - 8
				v.Shift(v, k, o)
				for i := range ints {
					store(i, shift(ints[i], k))
				}
			case 3:
				v.Neg(v)
				for i := range ints {
					ints[i] = -ints[i]
				}
			case 4:
				v, other, ints, others = other, v, others, ints
			case 5:
				v.MulTrits(v, other)
				for i := range ints {
					ints[i] *= int64(Of(int32(others[i])).Trit(0))
				}
			case 6:
				if n > 0 {
					i, d := r.IntN(n), r.IntN(depth)
					trit := int8(op>>3%3) - 1
					ints[i] += (int64(trit) - int64(v.At(i).Trit(d))) * powers[d]
					v.SetTrit(i, d, trit)
				}
			case 7:
				for i := range ints {
					ints[i] = r.Int64N(powers[depth]) - int64(Max(depth))
					v.Set(i, Of(int32(ints[i])))
				}
			}
			for i, want := range ints {
				if got := v.At(i).Int(); int64(got) != want {
					t.Fatalf("after %#x, depth %d, element %d: %d, want %d", op, depth, i, got, want)
				}
			}
		}
	})
}

func BenchmarkVector(b *testing.B) {
	const n = 4096
	for _, depth := range []int{3, 5, 10} {
		x, y := pairs(depth, n)
		for len(x) < n {
			x, y = append(x, x...), append(y, y...)
		}
		x, y = x[:n], y[:n]
		vx, vy, v := vectorOf(b, x, depth), vectorOf(b, y, depth), NewVector(n, depth)
		z, floats := make([]int32, n), make([]float32, n)
		for _, c := range []struct {
			name string
			f    func()
		}{
			{"add", func() { v.Add(vx, vy, Wrap) }},
			{"add-saturate", func() { v.Add(vx, vy, Saturate) }},
			{"compare", func() { v.Compare(vx, vy) }},
			{"set-ints", func() { v.SetInts(x) }},
			{"ints", func() { vx.Ints(z) }},
			{"set-floats", func() { v.SetFloats(floats, 0.5) }},
			// The same sum in int32, wrapped to the range.
			{"add-int32", func() {
				size, limit := int32(powers[depth]), Max(depth)
				for i := range z {
					s := x[i] + y[i]
					if s > limit {
						s -= size
					}
					if s < -limit {
						s += size
					}
					z[i] = s
				}
			}},
			{"one-by-one", func() {
				for i := range z {
					s, _ := Of(x[i]).Add(Of(y[i]), depth)
					z[i] = s.Int()
				}
			}},
		} {
			b.Run(fmt.Sprintf("depth=%d/%s", depth, c.name), func(b *testing.B) {
				b.SetBytes(n) // MB/s are millions of elements per second
				for b.Loop() {
					c.f()
				}
			})
		}
	}
}
