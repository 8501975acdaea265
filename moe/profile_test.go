package moe

// This file tests profiles.

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The figures of these traces are known.
func TestProfile(t *testing.T) {
	s := Shape{Layers: 2, Experts: 8, K: 2}
	near := func(a, b float64) bool { return math.Abs(a-b) < 0.011 }
	for _, tc := range []struct {
		name   string
		choose func(token, layer int, before [][]int32) []int32
		want   Profile
	}{
		// Each token chooses the next two experts, so every expert is chosen once in four tokens.
		{"cycle", func(token, _ int, _ [][]int32) []int32 {
			return []int32{int32(token * 2 % 8), int32(token*2%8 + 1)}
		},
			Profile{Entropy: 1, Least: 1, HotLoad: 0.25, Touched: 1, Overlap: 0, New: 0.02, Reuse: [3]int{4, 4, 4}}},
		// One expert is always chosen, the other goes round.
		{"half fixed", func(token, _ int, _ [][]int32) []int32 { return []int32{7, int32(token % 7)} },
			Profile{
				Entropy: (math.Log(2)*0.5*2 + 0.5*math.Log(7)) / math.Log(8), HotLoad: 0.5 + 0.5/7, Touched: 1,
				Overlap: 0.5, New: 8. / 400, Reuse: [3]int{1, 7, 7},
			}},
		// One layer uses two experts, the other all of them.
		{"uneven layers", func(token, layer int, _ [][]int32) []int32 {
			if layer == 0 {
				return []int32{3, 4}
			}
			return []int32{int32(token * 2 % 8), int32(token*2%8 + 1)}
		}, Profile{
			Entropy: (1 + 1./3) / 2, Least: 1. / 3, HotLoad: (1 + 0.25) / 2, Touched: 10. / 16, Overlap: 0.5,
			New: 0.0125, Reuse: [3]int{1, 4, 4},
		}},
	} {
		if tc.want.Least == 0 {
			tc.want.Least = tc.want.Entropy
		}
		got := NewProfile(synthetic(t, s, 200, tc.choose, nil))
		if got.Tokens != 200 || got.Hot != 2 || got.Chance != 0.25 || !near(got.Entropy, tc.want.Entropy) ||
			!near(got.Least, tc.want.Least) || !near(got.HotLoad, tc.want.HotLoad) ||
			!near(got.Touched, tc.want.Touched) || !near(got.Overlap, tc.want.Overlap) ||
			!near(got.New, tc.want.New) || got.Reuse != tc.want.Reuse {
			t.Errorf("%s:\n%+v, want\n%+v", tc.name, got, tc.want)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	random := NewProfile(synthetic(t, s, 2000, func(int, int, [][]int32) []int32 { return distinct(r, s) }, nil))
	between(t, "overlap of random tokens", random.Overlap, random.Chance-0.02, random.Chance+0.02)
	between(t, "the load of a random quarter", random.HotLoad, 0.23, 0.27)
	short := Shape{Layers: 6, Experts: 128, K: 2}
	few := NewProfile(synthetic(t, short, 100, func(int, int, [][]int32) []int32 { return distinct(r, short) }, nil))
	between(t, "that in a short trace", few.HotLoad, 0.15, 0.35)
	between(t, "their entropy", random.Entropy, 0.99, 1)
}
