package hyper

// This file tests the cleanup memory.

import (
	"cmp"
	"slices"
	"testing"
)

func TestScores(t *testing.T) {
	const d, n = 256, 150 // more than a piece
	rng := newRand(21)
	m := NewMemory(d, 0)
	for i := range n {
		if got := m.Add(sparse(d, 100, rng)); got != i {
			t.Fatalf("Add returned %d, want %d", got, i)
		}
	}
	s := NewSum(d)
	for i := range s.Counts {
		s.Counts[i] = int32(rng.IntN(81) - 40)
	}
	digits := []Vector{New(d), New(d), New(d), New(d)}
	if !s.Digits(digits) {
		t.Fatal("Digits = false for 4 digits and counts up to 40, want true")
	}
	scores, exact := make([]int32, n), make([]int32, n)
	m.Scores(scores, digits[0])
	m.Scores(exact, digits...)
	for i := range n {
		dot := int32(0)
		for j, c := range s.Counts {
			dot += c * int32(m.At(i).At(j))
		}
		if exact[i] != dot || scores[i] != Dot(digits[0], m.At(i)) {
			t.Errorf("vector %d scores %d and %d, want %d and %d",
				i, exact[i], scores[i], dot, Dot(digits[0], m.At(i)))
		}
	}
}

func TestTop(t *testing.T) {
	rng := newRand(22)
	for n := range 40 {
		scores := make([]int32, n)
		want := make([]Match, n)
		for i := range scores {
			scores[i] = int32(rng.IntN(12) - 6) // many equal
			want[i] = Match{i, scores[i]}
		}
		slices.SortStableFunc(want, func(a, b Match) int { return cmp.Compare(b.Score, a.Score) })
		for k := range 45 {
			top := make([]Match, k)
			if got := top[:Top(top, scores)]; !slices.Equal(got, want[:min(k, n)]) {
				t.Fatalf("best %d of %v: %v, want %v", k, scores, got, want[:min(k, n)])
			}
		}
	}
}

// TestNearest looks for a vector of which 40 % was flipped among 2000 others. Its score is 8
// standard deviations above theirs.
func TestNearest(t *testing.T) {
	const d = 2048
	rng := newRand(23)
	m := NewMemory(d, 2000)
	for range 2000 {
		m.Add(dense(d, rng))
	}
	scores, q := make([]int32, m.Len()), New(d)
	for _, planted := range []int{0, 63, 64, 1999} {
		q.Copy(m.At(planted))
		for _, i := range rng.Perm(d)[:d*2/5] {
			q.Set(i, -q.At(i))
		}
		if got := m.Nearest(scores, q); got != (Match{planted, d - 2*(d*2/5)}) {
			t.Errorf("Nearest = %+v, want vector %d with score %d", got, planted, d-2*(d*2/5))
		}
	}
}
