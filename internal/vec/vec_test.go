package vec

// This file tests what the functions guarantee: error bounds against float64, exact results,
// special values and panics. Each check runs for every variant that the machine supports.

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

const u = 0x1p-24

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

func forVariants(t *testing.T, f func(t *testing.T, v variant)) {
	for _, v := range variants() {
		t.Run(v.String(), func(t *testing.T) { f(t, v) })
	}
}

func randomFloats(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// sameFloat reports whether two results are the same bit for bit. All NaNs count as the same, and
// so do both zeros.
func sameFloat(a, b float32) bool { return a == b || a != a && b != b }

func isNear(got float32, want, tolerance float64) bool {
	return math.Abs(float64(got)-want) <= tolerance+0x1p-149 // subnormal products round to multiples of that
}

// lengths returns lengths that give every tail after none, one and several whole pieces.
func lengths() []int {
	var n []int
	for i := range 200 {
		n = append(n, i)
	}
	return append(n, 255, 256, 257, 1000, 4096, 4099)
}

// checkKernels compares all kernels of v with plain float64 arithmetic. The slices a, b and n have
// the same length and are only read. dst is overwritten. Values may be anything. Bounds are checked
// if they and the results are finite.
func checkKernels(v variant, dst, a, b []float32, n []int32, s float32) error {
	size := len(a)
	finite := func(x float64) bool { return math.Abs(x) < math.MaxFloat32/2 }
	var dot, mag, squares float64
	for i, x := range a {
		p := float64(x) * float64(b[i])
		dot += p
		mag += math.Abs(p)
		squares += float64(x * x)
	}
	if got := v.dot(a, b); finite(mag) && !isNear(got, dot, (float64(size)/4+8)*u*mag+float64(size)*0x1p-149) {
		return fmt.Errorf("dot is %v, want %v, magnitudes %v", got, dot, mag)
	}
	if got := v.sumSquares(a); !(math.Abs(got-squares) <= 1e-12*squares) &&
		!(math.IsNaN(squares) && math.IsNaN(got)) && got != squares {
		return fmt.Errorf("sum of squares is %v, want %v", got, squares)
	}
	checkEach := func(name string, want func(i int) (value, tolerance float64)) error {
		for i, got := range dst {
			value, tolerance := want(i)
			if !sameFloat(got, float32(value)) &&
				!(math.Abs(value) <= math.MaxFloat32 && isNear(got, value, tolerance)) {
				return fmt.Errorf("%s: element %d of %d is %v, want %v within %v", name, i, size, got, value, tolerance)
			}
		}
		return nil
	}
	exact := func(x float32) (float64, float64) { return float64(x), 0 }
	// Products beyond the range may be rounded or not before the sum.
	anything := func(i int) (float64, float64) { return float64(dst[i]), 0 }
	v.add(dst, a, b)
	if err := checkEach("add", func(i int) (float64, float64) { return exact(a[i] + b[i]) }); err != nil {
		return err
	}
	copy(dst, a)
	v.scale(dst, s)
	if err := checkEach("scale", func(i int) (float64, float64) { return exact(a[i] * s) }); err != nil {
		return err
	}
	v.mulScaled(dst, a, b, s)
	if err := checkEach("mulScaled",
		func(i int) (float64, float64) { return exact(float32(a[i]*s) * b[i]) }); err != nil {
		return err
	}
	copy(dst, a)
	v.axpy(dst, b, s)
	if err := checkEach("axpy", func(i int) (float64, float64) {
		p := float64(s) * float64(b[i])
		if !finite(p) {
			return anything(i)
		}
		return float64(a[i]) + p, u * (math.Abs(float64(a[i])) + 2*math.Abs(p)) * 1.01
	}); err != nil {
		return err
	}
	copy(dst, a)
	v.addInt32(dst, b, n, s)
	if err := checkEach("addInt32", func(i int) (float64, float64) {
		w := float64(s * b[i])
		p := w * float64(n[i])
		if !finite(w) || !finite(p) {
			return anything(i)
		}
		return float64(a[i]) + p, u*(math.Abs(float64(a[i]))+3*math.Abs(p))*1.01 + 0x1p-149*math.Abs(float64(n[i]))
	}); err != nil {
		return err
	}
	sum := v.expSum(dst, a, s)
	var want float64
	if err := checkEach("exp", func(i int) (float64, float64) {
		want += float64(dst[i])
		if a[i]-s < -87 {
			return 0, 0
		}
		e := math.Exp(float64(a[i] - s))
		return e, ulp(e)
	}); err != nil {
		return err
	}
	if !(math.Abs(sum-want) <= 1e-12*want) && sum != want && !(math.IsNaN(sum) && math.IsNaN(want)) {
		return fmt.Errorf("sum of powers is %v, want %v", sum, want)
	}
	largest, count, below, magnitude := -inf, 0, 0.0, 0.0
	var index []int32
	for i, x := range a {
		if x > largest {
			largest = x
		}
		if x < s {
			below += float64(x)
			magnitude += math.Abs(float64(x))
		}
		if x >= s {
			count++
			index = append(index, int32(i))
		}
	}
	if got := v.max(a); !sameFloat(got, largest) {
		return fmt.Errorf("max is %v, want %v", got, largest)
	}
	if got := v.sumBelow(a, s); !(math.Abs(got-below) <= 1e-12*magnitude) && got != below {
		return fmt.Errorf("the sum of what is less than %v is %v, want %v", s, got, below)
	}
	if got := v.countAtLeast(a, s); got != count {
		return fmt.Errorf("%d elements of %d are %v or more, want %d", got, size, s, count)
	}
	at := make([]int32, size)
	if got := at[:v.indexAtLeast(at, a, s)]; !slices.Equal(got, index) {
		return fmt.Errorf("the elements that are %v or more are %v, want %v", s, got, index)
	}
	return nil
}

// ulp returns the distance between float32 numbers around x, which is not subnormal.
func ulp(x float64) float64 {
	_, e := math.Frexp(x)
	return math.Ldexp(1, e-24)
}

// checkRows compares the kernels on rows of v with float64 arithmetic.
func checkRows(v variant, d, rows int, at []int32, rng *rand.Rand) error {
	q, k, dst := randomFloats(rng, d), randomFloats(rng, d*rows), randomFloats(rng, len(at))
	w := randomFloats(rng, len(at))
	v.dotRows(dst, q, k, at)
	for i, r := range at {
		var dot, mag float64
		for j, x := range q {
			p := float64(x) * float64(k[int(r)*d+j])
			dot += p
			mag += math.Abs(p)
		}
		if !isNear(dst[i], dot, (float64(d)/4+8)*u*mag) {
			return fmt.Errorf("row %d (%d of %d) of %d elements: %v, want %v", r, i, len(at), d, dst[i], dot)
		}
	}
	sum := slices.Clone(q)
	v.addRows(sum, w, k, at)
	for j, x := range q {
		value, mag := float64(x), math.Abs(float64(x))
		for i, r := range at {
			p := float64(w[i]) * float64(k[int(r)*d+j])
			value += p
			mag += math.Abs(p)
		}
		if !isNear(sum[j], value, float64(len(at)+4)*u*mag) {
			return fmt.Errorf("column %d of %d, %d rows: %v, want %v", j, d, len(at), sum[j], value)
		}
	}
	return nil
}

func TestKernels(t *testing.T) {
	forVariants(t, func(t *testing.T, v variant) {
		rng := rand.New(rand.NewPCG(1, 2))
		for _, size := range lengths() {
			ints := make([]int32, size)
			for i := range ints {
				ints[i] = int32(rng.IntN(1<<25+1) - 1<<24)
			}
			a, b, s := randomFloats(rng, size), randomFloats(rng, size), float32(rng.NormFloat64())
			if err := checkKernels(v, make([]float32, size), a, b, ints, s); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestSpecialValues has NaN, infinities, zeros of both signs, subnormals, and values equal to what
// they are compared with, at every position.
func TestSpecialValues(t *testing.T) {
	special := []float32{nan, inf, -inf, 0, float32(math.Copysign(0, -1)), 1e-45, -1e-40, math.MaxFloat32, 1, -1}
	forVariants(t, func(t *testing.T, v variant) {
		rng := rand.New(rand.NewPCG(9, 10))
		for size := range 150 {
			for _, kinds := range []int{len(special), 1, 3} { // all of them; NaN alone; what is not finite
				a, b, n := randomFloats(rng, size), randomFloats(rng, size), make([]int32, size)
				for i := range a {
					if rng.IntN(3) == 0 {
						a[i] = special[rng.IntN(kinds)]
					}
					if rng.IntN(10) == 0 {
						b[i] = special[rng.IntN(kinds)]
					}
					n[i] = int32(rng.IntN(100) - 50)
				}
				for _, s := range []float32{1, 0, inf} {
					if err := checkKernels(v, make([]float32, size), a, b, n, s); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	})
}

func TestRows(t *testing.T) {
	forVariants(t, func(t *testing.T, v variant) {
		rng := rand.New(rand.NewPCG(3, 4))
		for _, d := range []int{1, 7, 8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 128, 130, 256} {
			for n := range 12 {
				const rows = 30
				at := make([]int32, n)
				for i := range at {
					at[i] = int32(rng.IntN(rows))
				}
				if err := checkRows(v, d, rows, at, rng); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestExp tries every 4001st float32 that is not NaN as the argument.
func TestExp(t *testing.T) {
	forVariants(t, func(t *testing.T, v variant) {
		const piece = 4096
		x, y := make([]float32, 0, piece), make([]float32, piece)
		var worst float64
		flush := func() {
			v.expSum(y[:len(x)], x, 0)
			for i, arg := range x {
				got, want := float64(y[i]), math.Exp(float64(arg))
				if want > math.MaxFloat32+ulp(math.MaxFloat32)/2 {
					if got != math.Inf(1) {
						t.Fatalf("e^%v is %v, want +Inf", arg, got)
					}
					continue
				}
				if arg < -87 {
					if got != 0 {
						t.Fatalf("e^%v is %v, want 0", arg, got)
					}
					continue
				}
				worst = max(worst, math.Abs(got-want)/ulp(want))
			}
			x = x[:0]
		}
		for bits := uint64(0); bits < 1<<32; bits += 4001 {
			arg := math.Float32frombits(uint32(bits))
			if arg != arg || math.Abs(float64(arg)) > 110 && bits%16 != 0 {
				continue
			}
			if x = append(x, arg); len(x) == piece {
				flush()
			}
		}
		flush()
		t.Logf("largest error %.4f ulp", worst)
		if worst > 1 {
			t.Errorf("largest error %v ulp, want at most 1", worst)
		}
	})
}

func TestExpSpecial(t *testing.T) {
	forVariants(t, func(t *testing.T, v variant) {
		x := []float32{0, float32(math.Copysign(0, -1)), -inf, inf, nan, -87.01, -1e30, 89, 1e30}
		want := []float32{1, 1, 0, inf, nan, 0, 0, inf, inf}
		for i := range x {
			// These lengths put the value into whole pieces and into tails. Other elements must not
			// be affected.
			for _, n := range []int{1, 7, 8, 9, 16, 17} {
				arg, got := make([]float32, n), make([]float32, n)
				arg[n-1] = x[i]
				sum := v.expSum(got, arg, 0)
				if !sameFloat(got[n-1], want[i]) || !sameFloat(float32(sum), want[i]+float32(n-1)) {
					t.Errorf("e^%v is %v, and the sum with %d zeros %v, want %v and %v",
						x[i], got[n-1], n-1, sum, want[i], want[i]+float32(n-1))
				}
				if n > 1 && got[0] != 1 {
					t.Errorf("e^%v changes e^0 in the same slice to %v, want 1", x[i], got[0])
				}
			}
		}
	})
}

func TestSoftmax(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, size := range lengths()[1:] {
		for _, s := range []float32{1, 0.125, 30, -2} {
			x := randomFloats(rng, size)
			want := make([]float64, size)
			largest, sum := math.Inf(-1), 0.0
			for i := range x {
				want[i] = float64(x[i] * s)
				largest = max(largest, want[i])
			}
			for _, y := range want {
				sum += math.Exp(y - largest)
			}
			Softmax(x, s)
			for i, y := range want {
				e := math.Exp(y-largest) / sum
				if !isNear(x[i], e, (math.Abs(y-largest)+8)*u*e) && y-largest > -87 {
					t.Fatalf("element %d of %d, scale %v: %v, want %v", i, size, s, x[i], e)
				}
			}
		}
	}
}

func TestSoftmaxSpecial(t *testing.T) {
	for _, test := range []struct{ x, want []float32 }{
		{nil, nil},
		{[]float32{5}, []float32{1}},
		{[]float32{3e38, 3e38}, []float32{0.5, 0.5}},
		{[]float32{-inf, 1, 1}, []float32{0, 0.5, 0.5}},
		{[]float32{-inf, -inf}, []float32{nan, nan}},
		{[]float32{inf, 1}, []float32{nan, nan}},
		{[]float32{1, nan, 1}, []float32{nan, nan, nan}},
	} {
		got := slices.Clone(test.x)
		Softmax(got, 1)
		if !slices.EqualFunc(got, test.want, sameFloat) {
			t.Errorf("softmax of %v is %v, want %v", test.x, got, test.want)
		}
	}
}

func TestRMSNorm(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	const eps = 1e-5
	for _, size := range lengths()[1:] {
		x, w, dst := randomFloats(rng, size), randomFloats(rng, size), make([]float32, size)
		// These are ggml's loops. The sum is added in another order here. So the mean may be
		// rounded the other way, by one unit, which moves the scale by less.
		var sum float64
		for _, v := range x {
			sum += float64(v * v)
		}
		mean := float32(sum / float64(size))
		scale := 1 / float32(math.Sqrt(float64(mean+eps)))
		RMSNorm(dst, x, w, eps)
		for i := range dst {
			if want := float32(x[i]*scale) * w[i]; dst[i] != want {
				t.Fatalf("element %d of %d: %v, want %v", i, size, dst[i], want)
			}
		}
	}
	RMSNorm(nil, nil, nil, eps)
	x := []float32{0, 0}
	RMSNorm(x, x, []float32{1, 1}, eps)
	if x[0] != 0 || x[1] != 0 {
		t.Errorf("the norm of zeros is %v, want 0, 0", x)
	}
}

// TestInPlace tests the exported functions, with dst the same slice as a source.
func TestInPlace(t *testing.T) {
	x, y := []float32{1, 2, 3}, []float32{10, 20, 30}
	Add(x, x, y)
	AXPY(x, 2, y)
	Scale(x, 0.5)
	AddInt32(x, 0.5, []float32{1, 2, 4}, []int32{2, 1, -1})
	if !slices.Equal(x, []float32{16.5, 32, 44.5}) { // (x + y + 2 y) / 2 + w n / 2
		t.Errorf("x = %v, want 16.5, 32, 44.5", x)
	}
	if got := Dot(y, y); got != 1400 {
		t.Errorf("Dot = %v, want 1400", got)
	}
	if Max(y) != 30 || Max(nil) != -inf || CountAtLeast(y, 20) != 2 || SumBelow(y, 30) != 30 {
		t.Errorf("Max = %v and %v, CountAtLeast = %v, SumBelow = %v, want 30 and -Inf, 2, 30",
			Max(y), Max(nil), CountAtLeast(y, 20), SumBelow(y, 30))
	}
	at := make([]int32, 3)
	if n := IndexAtLeast(at, y, 20); n != 2 || at[0] != 1 || at[1] != 2 {
		t.Errorf("IndexAtLeast = %v, want 1, 2", at[:n])
	}
	rows := []float32{1, 2, 3, 4, 5, 6}
	sum, dots := []float32{1, 1}, make([]float32, 2)
	DotRows(dots, []float32{1, 1}, rows, []int32{2, 0})
	AddRows(sum, []float32{1, 10}, rows, []int32{2, 0})
	if dots[0] != 11 || dots[1] != 3 || sum[0] != 16 || sum[1] != 27 {
		t.Errorf("DotRows = %v, AddRows = %v, want 11, 3 and 16, 27", dots, sum)
	}
}

func TestPanics(t *testing.T) {
	two, three := make([]float32, 2), make([]float32, 3)
	ints := make([]int32, 2)
	for name, f := range map[string]func(){
		"dot":              func() { Dot(two, three) },
		"add":              func() { Add(two, two, three) },
		"axpy":             func() { AXPY(three, 1, two) },
		"exp":              func() { ExpSum(two, three, 0) },
		"norm":             func() { RMSNorm(two, two, three, 0) },
		"int32":            func() { AddInt32(three, 1, three, ints) },
		"index":            func() { IndexAtLeast(ints, three, 0) },
		"no row":           func() { DotRows(two, two, three, []int32{0, 1}) },
		"negative row":     func() { AddRows(two, two, three, []int32{0, -1}) },
		"rows of nothing":  func() { DotRows(two, nil, three, ints) },
		"rows and results": func() { DotRows(three, two, three, ints) },
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
	x := make([]float32, 100)
	at := make([]int32, 100)
	if n := testing.AllocsPerRun(10, func() {
		q := [8]float32{1, 2} // stays on the stack
		Dot(q[:], x[:8])
		DotRows(x[:4], q[:], x, at[:4])
		Softmax(x, 1)
		RMSNorm(x, x, x, 1e-5)
		IndexAtLeast(at, x, 0.5)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// FuzzKernels tries any floats, at any address and of any length. The elements around the
// destination must stay as they are.
func FuzzKernels(f *testing.F) {
	f.Add([]byte{}, uint8(0), float32(1))
	f.Add(binary.LittleEndian.AppendUint32(nil, 0x7fc00000), uint8(1), nan)
	seed := make([]byte, 12*37)
	for i := range seed {
		seed[i] = byte(i * 37)
	}
	f.Add(seed, uint8(3), float32(-3))
	f.Fuzz(func(t *testing.T, data []byte, shift uint8, s float32) {
		n := len(data) / 12
		off := int(shift % 16)
		a, b, dst, ints := make([]float32, off+n), make([]float32, off/2+n), make([]float32, off+n+20), make([]int32, n)
		a, b = a[off:], b[off/2:]
		for i := range n {
			a[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[12*i:]))
			b[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[12*i+4:]))
			ints[i] = int32(binary.LittleEndian.Uint32(data[12*i+8:])) >> 7
		}
		for i := range dst {
			dst[i] = 42
		}
		for _, v := range variants() {
			if err := checkKernels(v, dst[off:][:n:n], a, b, ints, s); err != nil {
				t.Errorf("%v: %v", v, err)
			}
		}
		for i, x := range dst {
			if (i < off || i >= off+n) && x != 42 {
				t.Fatalf("element %d beside the destination (elements %d to %d) is %v, want 42 as before",
					i, off, off+n-1, x)
			}
		}
	})
}

func FuzzRows(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5}, uint16(64), uint64(1))
	f.Fuzz(func(t *testing.T, picks []byte, d uint16, seed uint64) {
		d = d%300 + 1
		at := make([]int32, len(picks))
		for i, p := range picks {
			at[i] = int32(p)
		}
		for _, v := range variants() {
			if err := checkRows(v, int(d), 256, at, rand.New(rand.NewPCG(seed, 0))); err != nil {
				t.Errorf("%v: %v", v, err)
			}
		}
	})
}
