package hyper

// This file tests single vectors, and has vectors for other tests.

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

func dense(d int, rng *rand.Rand) Vector {
	v := New(d)
	Random(v, rng)
	return v
}

func sparse(d, n int, rng *rand.Rand) Vector {
	v := New(d)
	RandomSparse(v, n, rng)
	return v
}

func trits(v Vector) []int8 {
	t := make([]int8, v.Dim())
	for i := range t {
		t[i] = v.At(i)
	}
	return t
}

func equal(a, b Vector) bool { return slices.Equal(a.Plus, b.Plus) && slices.Equal(a.Minus, b.Minus) }

// product returns a bound with b.
func product(a, b Vector) Vector {
	v := New(a.Dim())
	Bind(v, a, b)
	return v
}

func permuted(v Vector, k int) Vector {
	p := New(v.Dim())
	Permute(p, v, k)
	return p
}

func panics(f func()) (p bool) {
	defer func() { p = recover() != nil }()
	f()
	return false
}

func TestSetAt(t *testing.T) {
	v := New(192)
	want := make([]int8, 192)
	rng := newRand(1)
	for range 2000 {
		i, trit := rng.IntN(192), int8(rng.IntN(3)-1)
		v.Set(i, trit)
		want[i] = trit
	}
	if !slices.Equal(trits(v), want) {
		t.Errorf("trits %v, want %v", trits(v), want)
	}
}

func TestRandom(t *testing.T) {
	const d = 1 << 14
	rng := newRand(2)
	a, b := dense(d, rng), dense(d, rng)
	if Dot(a, a) != d {
		t.Errorf("a dense vector has %d trits that are not 0, want %d", Dot(a, a), d)
	}
	if dot := math.Abs(float64(Dot(a, b))); dot > 5*math.Sqrt(d) {
		t.Errorf("the dot product of random vectors is %v, want at most %v", dot, 5*math.Sqrt(d))
	}
	for _, n := range []int{0, 1, 327, 64 * 3} {
		s := New(64 * 8)
		if n > s.Dim() {
			s = New(d)
		}
		RandomSparse(s, n, rng)
		if Dot(s, s) != int32(n) {
			t.Errorf("%d trits are not 0, want %d", Dot(s, s), n)
		}
	}
	s := sparse(d, 1000, rng)
	sum := 0
	for _, x := range trits(s) {
		sum += int(x)
	}
	if sum < -160 || sum > 160 {
		t.Errorf("1000 signs have the sum %d, want -160 to 160", sum)
	}
}

func TestBind(t *testing.T) {
	const d = 512
	rng := newRand(3)
	for _, n := range []int{512, 300, 10} {
		a, b, c, key := sparse(d, n, rng), sparse(d, n, rng), sparse(d, n, rng), dense(d, rng)
		ab := product(a, b)
		for i := range d {
			if ab.At(i) != a.At(i)*b.At(i) {
				t.Fatalf("trit %d: %d * %d = %d, want %d", i, a.At(i), b.At(i), ab.At(i), a.At(i)*b.At(i))
			}
		}
		if !equal(ab, product(b, a)) {
			t.Error("binding is not commutative")
		}
		if !equal(product(ab, c), product(a, product(b, c))) {
			t.Error("binding is not associative")
		}
		if !equal(product(product(a, key), key), a) {
			t.Error("a dense key is not its own inverse")
		}
		if Dot(product(a, key), product(b, key)) != Dot(a, b) {
			t.Error("a dense key changes distances")
		}
		// A sparse key leaves the value only where the key is not 0.
		back := product(ab, b)
		for i := range d {
			if back.At(i) != a.At(i)*b.At(i)*b.At(i) {
				t.Fatalf("trit %d was restored as %d, want %d", i, back.At(i), a.At(i)*b.At(i)*b.At(i))
			}
		}
		inPlace := New(d)
		inPlace.Copy(a)
		if Bind(inPlace, inPlace, b); !equal(inPlace, ab) {
			t.Error("binding in place gives another result")
		}
	}
}

// TestSparseProduct checks that binding keeps rho^2 D trits, which is the reason for block codes.
func TestSparseProduct(t *testing.T) {
	const d, n, pairs = 4096, 82, 400
	rng := newRand(4)
	kept := 0
	for range pairs {
		ab := product(sparse(d, n, rng), sparse(d, n, rng))
		kept += int(Dot(ab, ab))
	}
	want := float64(n*n) / d
	if got := float64(kept) / pairs; math.Abs(got-want) > 5*math.Sqrt(want/pairs) {
		t.Errorf("on average %.2f trits are not 0, want %.2f", got, want)
	}
}

func TestPermute(t *testing.T) {
	rng := newRand(5)
	for _, d := range []int{64, 128, 320} {
		a, b := sparse(d, d/2, rng), sparse(d, d/2, rng)
		for k := -2*d - 1; k <= 2*d+1; k++ {
			p := permuted(a, k)
			for i := range d {
				if p.At(((i+k)%d+d)%d) != a.At(i) {
					t.Fatalf("%d trits, permuted by %d: trit %d is not where it should be", d, k, i)
				}
			}
			if !equal(permuted(p, -k), a) {
				t.Fatalf("permuting by %d and back gives another vector", k)
			}
			if !equal(permuted(product(a, b), k), product(p, permuted(b, k))) {
				t.Fatalf("permuting by %d does not distribute over binding", k)
			}
		}
		if !equal(permuted(permuted(a, 5), 60), permuted(a, 65)) {
			t.Error("permuting by 5 and 60 differs from permuting by 65")
		}
	}
}

func TestShapes(t *testing.T) {
	v, w := New(64), New(128)
	for name, f := range map[string]func(){
		"new 0":     func() { New(0) },
		"new 65":    func() { New(65) },
		"new -64":   func() { New(-64) },
		"bind":      func() { Bind(v, v, w) },
		"permute":   func() { Permute(v, w, 1) },
		"copy":      func() { v.Copy(w) },
		"dot":       func() { Dot(v, w) },
		"sparse":    func() { RandomSparse(v, 65, newRand(1)) },
		"planes":    func() { Bind(v, v, Vector{v.Plus, w.Minus}) },
		"sum":       func() { NewSum(64).Add(w, 1) },
		"ternary":   func() { NewSum(64).Ternary(w, 0) },
		"memory":    func() { NewMemory(64, 1).Add(w) },
		"query":     func() { m := NewMemory(64, 1); m.Add(v); m.Nearest(make([]int32, 1), w) },
		"scores":    func() { NewMemory(64, 1).Scores(make([]int32, 1), v) },
		"nearest":   func() { NewMemory(64, 1).Nearest(nil, v) },
		"block":     func() { BlockBind(v, v, w) },
		"put":       func() { NewRecord(64, 0).Put(v, w) },
		"role":      func() { NewRecord(64, 0).Put(w, v) },
		"child":     func() { NewRecord(64, 0).Child(w) },
		"lens":      func() { NewRecord(64, 0).Lens(w, v) },
		"lensValue": func() { NewRecord(64, 0).Lens(v, w) },
		"read":      func() { Read(v, New(64), v, w) },
	} {
		if !panics(f) {
			t.Errorf("%s: did not panic, want a panic", name)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	const d = 1024
	rng := newRand(6)
	a, b, dst, scratch := dense(d, rng), dense(d, rng), New(d), New(d)
	sum, m, scores := NewSum(d), NewMemory(d, 2), make([]int32, 2)
	m.Add(a)
	m.Add(b)
	digits := []Vector{New(d), New(d)}
	top := make([]Match, 2)
	record := NewRecord(d, 0)
	child := record.Child(a)
	lens := child.Lens(b, a)
	if n := testing.AllocsPerRun(10, func() {
		Random(a, rng)
		RandomSparse(dst, 20, rng)
		Bind(dst, a, b)
		Permute(dst, a, 77)
		sum.Add(dst, 1)
		sum.Ternary(dst, 1)
		sum.Digits(digits)
		m.Nearest(scores, digits...)
		Top(top, scores)
		RandomBlocks(dst, rng)
		BlockBind(dst, a, dst)
		child.Put(a, b)
		lens.Set(5, -lens.At(5))
		Read(dst, scratch, a, a, b)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
