package plan

// This file tests plans, with surveys that are made up.

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"tensorcast/fabric/decompose"
	"tensorcast/gguf"
)

// randomSurvey makes a survey of n matrices with forms of random bytes and noise.
func randomSurvey(n, forms int, rng *rand.Rand) *Survey {
	s := &Survey{Weights: int64(n) * 1000, Other: 77}
	for i := range n {
		t := Tensor{
			Name: string(rune('a' + i)), Type: gguf.F16, Rows: 10, Cols: 100,
			Choices: []Choice{{Native: true, Bytes: 2000}},
		}
		for f := range forms {
			c := Choice{Planes: f + 1, Block: 32, Bytes: 100 + rng.Int64N(2200), Noise: rng.Float64()}
			t.Choices = append(t.Choices, c)
		}
		s.Tensors = append(s.Tensors, t)
	}
	return s
}

// forEachCombination calls do with the bytes and noise of each combination of forms.
func forEachCombination(s *Survey, do func(bytes int64, noise float64)) {
	var next func(i int, bytes int64, noise float64)
	next = func(i int, bytes int64, noise float64) {
		if i == len(s.Tensors) {
			do(bytes, noise)
			return
		}
		for _, c := range s.Tensors[i].Choices {
			next(i+1, bytes+c.Bytes, noise+c.Noise/float64(len(s.Tensors)))
		}
	}
	next(0, s.Other, 0)
}

// TestFront compares the front to all combinations of forms. None may have fewer bytes than a point
// of the front and no more noise.
func TestFront(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		s := randomSurvey(4, 5, rng)
		front := s.Front()
		for i, p := range front {
			if i > 0 && (p.Bytes <= front[i-1].Bytes || p.Noise >= front[i-1].Noise) {
				t.Fatalf("points %d and %d are %v and %v, want more bytes and less noise", i-1, i, front[i-1], p)
			}
			if p.BytesPerWeight != float64(p.Bytes)/4000 {
				t.Errorf("%d bytes: BytesPerWeight = %v, want %v", p.Bytes, p.BytesPerWeight, float64(p.Bytes)/4000)
			}
			q, err := s.Within(p.Bytes)
			if err != nil || q.Bytes != p.Bytes || math.Abs(q.Noise-p.Noise) > 1e-12 {
				t.Errorf("within %d bytes: %d bytes, noise %v (error %v); want noise %v",
					p.Bytes, q.Bytes, q.Noise, err, p.Noise)
			}
		}
		forEachCombination(s, func(bytes int64, noise float64) {
			for _, p := range front {
				if bytes <= p.Bytes && noise < p.Noise-1e-12 {
					t.Fatalf("a plan of %d bytes has noise %v, want none better than %v of the front", bytes, noise, p)
				}
			}
		})
		if last := front[len(front)-1]; last.Noise != 0 || !math.IsInf(last.SNR(), 1) {
			t.Errorf("the last point has noise %v, SNR %v, want 0, +Inf", last.Noise, last.SNR())
		}
		if _, err := s.Within(front[0].Bytes - 1); !errors.Is(err, ErrBudget) {
			t.Errorf("a byte fewer than the smallest: error %v, want ErrBudget", err)
		}
		// Between the points Within keeps to the budget, and is no worse than the point before.
		for i := range len(front) - 1 {
			bytes := (front[i].Bytes + front[i+1].Bytes) / 2
			p, err := s.Within(bytes)
			if err != nil || p.Bytes > bytes || p.Noise > front[i].Noise+1e-12 {
				t.Errorf("within %d bytes: %d bytes, noise %v (error %v), want noise of at most %v",
					bytes, p.Bytes, p.Noise, err, front[i].Noise)
			}
		}
	}
}

func TestProfiles(t *testing.T) {
	s := &Survey{Weights: 3000, Other: 500, Tensors: []Tensor{
		{Name: "blk.0.a.weight", Type: gguf.Q8_0, Rows: 10, Cols: 100, Choices: []Choice{
			{Native: true, Bytes: 1062},
			{Exact: true, Planes: 6, Bytes: 1270},
			{Planes: 2, Block: 32, Shared: true, Bytes: 460, Noise: .02, SNR: 17},
			{Planes: 3, Block: 32, Shared: true, Bytes: 660, Noise: .002, SNR: 27},
			{Planes: 4, Block: 32, Shared: true, Bytes: 660, Noise: .001, SNR: 30},
			{Planes: 5, Block: 32, Shared: true, Bytes: 1100, Noise: .0001, SNR: 40},
		}},
		{Name: "blk.0.b.weight", Type: gguf.IQ2S, Rows: 10, Cols: 100, Choices: []Choice{
			{Native: true, Bytes: 320},
			{Planes: 2, Block: 32, Shared: true, Bytes: 460, Noise: .02, SNR: 17},
		}},
		{Name: "output.weight", Type: gguf.F16, Rows: 10, Cols: 100, Choices: []Choice{{Native: true, Bytes: 2000}}},
	}}
	for _, tt := range []struct {
		bound float64
		want  []string
		bytes int64
	}{
		{math.Inf(1), []string{"6 exact", "native", "native"}, 1270 + 320 + 2000 + 500},
		{60, []string{"native", "native", "native"}, 1062 + 320 + 2000 + 500},
		{40, []string{"native", "native", "native"}, 1062 + 320 + 2000 + 500}, // five planes would take more
		{25, []string{"4/32 shared", "native", "native"}, 660 + 320 + 2000 + 500},
		{10, []string{"2/32 shared", "native", "native"}, 460 + 320 + 2000 + 500},
	} {
		p := s.Plan(Profile{"x", tt.bound})
		var got []string
		for i := range p.Tensors {
			got = append(got, p.Tensors[i].String())
		}
		if !slices.Equal(got, tt.want) || p.Bytes != tt.bytes || p.BytesPerWeight() != float64(tt.bytes)/3000 {
			t.Errorf("%g dB: %q, %d bytes; want %q, %d", tt.bound, got, p.Bytes, tt.want, tt.bytes)
		}
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var again Plan
		if err := json.Unmarshal(data, &again); err != nil || !reflect.DeepEqual(&again, p) {
			t.Errorf("written and read as JSON: error %v, %+v; want %+v", err, again, p)
		}
	}
	p, err := s.Uniform(decompose.Fit{Planes: 2, Block: 32, Shared: true})
	if err != nil || p.Bytes != 460+460+2000+500 || math.Abs(p.Noise-.04/3) > 1e-15 {
		t.Errorf("Uniform returned %+v (error %v), want %d bytes and noise %v", p, err, 460+460+2000+500, .04/3)
	}
	if _, err := s.Uniform(decompose.Fit{Planes: 2, Block: 32}); !errors.Is(err, ErrNotMeasured) {
		t.Errorf("a form that was not measured: error %v, want ErrNotMeasured", err)
	}
	bounds := Profiles()
	descending := func(a, b Profile) int { return cmp.Compare(b.Bound, a.Bound) }
	if !slices.IsSortedFunc(bounds, descending) || !math.IsInf(bounds[0].Bound, 1) {
		t.Errorf("Profiles() = %v, want descending bounds from +Inf", bounds)
	}
}
