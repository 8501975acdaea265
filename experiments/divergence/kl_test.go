package divergence

// This file tests the divergence of two distributions against closed forms.

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"tensorcast/experiments/llama"
)

func near(got, want, relative float64) bool {
	return math.Abs(got-want) <= relative*math.Abs(want)
}

func mustCompare(t *testing.T, p, q []float32, target int) pair {
	t.Helper()
	r, err := compare(p, q, target, make([]float64, len(p)))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestBernoulli checks two outcomes with probabilities a and b, whose divergence has a closed form,
// whatever is added to the logits.
func TestBernoulli(t *testing.T) {
	for _, a := range []float64{0.001, 0.25, 0.5, 0.75, 0.999} {
		for _, b := range []float64{0.001, 0.25, 0.5, 0.75, 0.999} {
			for _, shift := range []float64{0, 100, -1000} {
				p := []float32{float32(math.Log(a) + shift), float32(math.Log(1-a) + shift)}
				q := []float32{float32(math.Log(b) - shift), float32(math.Log(1-b) - shift)}
				r := mustCompare(t, p, q, 1)
				want := a*math.Log(a/b) + (1-a)*math.Log((1-a)/(1-b))
				// float32 holds a logit of 1000 to 3e-5.
				if math.Abs(r.kl-want) > 1e-6+math.Abs(shift)*3e-7 ||
					math.Abs(r.nllP+math.Log(1-a)) > 1e-6+math.Abs(shift)*1e-7 ||
					math.Abs(r.nllQ+math.Log(1-b)) > 1e-6+math.Abs(shift)*1e-7 ||
					r.sameTop != ((a >= 0.5) == (b >= 0.5)) {
					t.Errorf("p(0) %g, q(0) %g, shift %g: %+v, want KL %g", a, b, shift, r, want)
				}
			}
		}
	}
}

// TestUniform checks n equal logits against one logit of x and n-1 of 0. Their divergence is
// log(n-1+e^x) - x/n - log n.
func TestUniform(t *testing.T) {
	for _, n := range []int{1, 2, 259, 100_000} {
		for _, x := range []float64{0, 1, -3, 80} {
			q := make([]float32, n)
			q[n/2] = float32(x)
			r := mustCompare(t, make([]float32, n), q, n-1)
			want := math.Log(float64(n-1)+math.Exp(x)) - x/float64(n) - math.Log(float64(n))
			if math.Abs(r.kl-want) > 1e-11*(1+want) || !near(r.nllP, math.Log(float64(n)), 1e-12) {
				t.Errorf("%d tokens, logit %g: %+v, want KL %g", n, x, r, want)
			}
		}
	}
}

// TestSmall checks small divergences: to second order KL(p
//
// p + d) is half the variance of d under p. It is small where approximations are good, and must not
// drown in rounding.
func TestSmall(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, size := range []float64{1e-2, 1e-3, 1e-4} {
		p, q := make([]float32, 500), make([]float32, 500)
		var sum, mean, square float64
		for i := range p {
			p[i] = float32(random.NormFloat64() * 3)
			q[i] = p[i] + float32(random.NormFloat64()*size)
			w, d := math.Exp(float64(p[i])), float64(q[i])-float64(p[i])
			sum, mean, square = sum+w, mean+w*d, square+w*d*d
		}
		want := (square/sum - mean/sum*mean/sum) / 2
		if r := mustCompare(t, p, q, 0); !near(r.kl, want, 10*size) {
			t.Errorf("changes of %g: KL %g, want %g", size, r.kl, want)
		}
		if r := mustCompare(t, p, p, 0); r.kl != 0 || !r.sameTop || r.nllP != r.nllQ {
			t.Errorf("with itself: %+v, want no divergence", r)
		}
	}
}

// TestRange checks that logits as large as float32 has them overflow nothing.
func TestRange(t *testing.T) {
	r := mustCompare(t, []float32{math.MaxFloat32, -math.MaxFloat32, 0},
		[]float32{math.MaxFloat32, 0, -math.MaxFloat32}, 0)
	if r.kl != 0 || r.nllP != 0 || r.nllQ != 0 {
		t.Errorf("%+v, want zeros", r)
	}
	if r := mustCompare(t, []float32{1e30, 0}, []float32{0, 1e30}, 0); !near(r.kl, 1e30, 1e-6) ||
		!near(r.nllQ, 1e30, 1e-6) || r.sameTop {
		t.Errorf("%+v, want a divergence of 1e30", r)
	}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, bad := range []float32{inf, -inf, nan} {
		for i := range 3 {
			broken, good := []float32{1, 2, 3}, []float32{1, 2, 3}
			broken[i] = bad
			for target := range 3 {
				_, first := compare(broken, good, target, make([]float64, 3))
				_, second := compare(good, broken, target, make([]float64, 3))
				_, both := compare(broken, broken, target, make([]float64, 3))
				for _, err := range []error{first, second, both} {
					if !errors.Is(err, errNotFinite) {
						t.Errorf("logit %d is %v: %v, want errNotFinite", i, bad, err)
					}
				}
			}
		}
	}
}

// FuzzCompare checks that a divergence is a number that is not negative, whatever the logits, or
// that there is an error.
func FuzzCompare(f *testing.F) {
	f.Add(float32(1), float32(2), float32(3), float32(1), float32(2), float32(3))
	f.Add(float32(-1e38), float32(0), float32(1e38), float32(1e-40), float32(2), float32(100))
	f.Fuzz(func(t *testing.T, a, b, c, x, y, z float32) {
		r, err := compare([]float32{a, b, c}, []float32{x, y, z}, 1, make([]float64, 3))
		for _, v := range []float32{a, b, c, x, y, z} {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				if err == nil {
					t.Fatalf("%v, no error", v)
				}
				return
			}
		}
		if err != nil || !(r.kl >= 0) || math.IsInf(r.kl, 0) || r.nllP < -1e-15 || r.nllQ < -1e-15 {
			t.Fatalf("%+v, %v", r, err)
		}
	})
}

// TestRow checks two chunks of two predictions, of two equally likely tokens against probabilities
// of 1/4 and 3/4.
func TestRow(t *testing.T) {
	s := newSums(llama.LogitsHeader{Vocab: 2, Context: 6, Chunks: 2, Scored: 2})
	even, odd := []float32{0, 0}, []float32{0, float32(math.Log(3))}
	for _, add := range []struct {
		q      []float32
		target int
	}{{even, 0}, {even, 1}, {odd, 0}, {odd, 1}} {
		if err := s.add(even, add.q, add.target); err != nil {
			t.Fatal(err)
		}
	}
	r := s.row()
	kl := math.Log(4/math.Sqrt(3)) - math.Log(2)
	ratio := math.Exp((math.Log(2) + math.Log(2.0/3)) / 4)
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"KL", r.KL, kl / 2}, {"its error", r.KLError, kl / 2}, {"99 %", r.KLP99, kl}, {"max", r.KLMax, kl},
		{"same top", r.SameTop, 0.5},
		{"reference's perplexity", r.ReferencePerplexity, 2}, {"perplexity", r.Perplexity, 2 * ratio},
		{"ratio", r.Ratio, ratio},
		{"its error", r.RatioError, ratio * math.Log(ratio)}, {"chunks", float64(r.Chunks), 2},
		{"predictions", float64(r.Predictions), 4},
	} {
		if !near(c.got, c.want, 1e-7) {
			t.Errorf("%s: %g, want %g", c.name, c.got, c.want)
		}
	}
}
