package hyper

// This file implements the cleanup memory. It finds the one of many known vectors that is most
// similar to a noisy one.

import (
	"fmt"

	"tensorcast/fabric/lab/popcount"
)

// Memory holds known vectors of one dimension, numbered in the order in which they were added.
type Memory struct {
	words, n    int
	plus, minus []uint64
}

// NewMemory returns an empty memory for vectors of d trits, with room for n. It panics unless d is
// a positive multiple of 64.
func NewMemory(d, n int) *Memory {
	words := len(New(d).Plus)
	return &Memory{words: words, plus: make([]uint64, 0, n*words), minus: make([]uint64, 0, n*words)}
}

// Len is the number of vectors.
func (m *Memory) Len() int { return m.n }

// Add copies v into the memory and returns its number.
func (m *Memory) Add(v Vector) int {
	if len(v.Plus) != m.words || len(v.Minus) != m.words {
		panic(fmt.Sprintf("hyper: a vector of %d/%d words in a memory of %d", len(v.Plus), len(v.Minus), m.words))
	}
	m.plus, m.minus = append(m.plus, v.Plus...), append(m.minus, v.Minus...)
	m.n++
	return m.n - 1
}

// At returns vector i. Changing its trits changes the memory. It is valid until the next Add.
func (m *Memory) At(i int) Vector {
	first, end := i*m.words, (i+1)*m.words
	return Vector{m.plus[first:end:end], m.minus[first:end:end]}
}

// Scores sets dst, which has Len elements, to the dot products of all vectors with the query. The
// query is one vector, or the digits of a sum as from Sum.Digits. Then it stands for the sum of 3^p
// query[p]. The products are exact modulo 2^32.
func (m *Memory) Scores(dst []int32, query ...Vector) {
	if len(dst) != m.n {
		panic(fmt.Sprintf("hyper: %d scores of %d vectors", len(dst), m.n))
	}
	clear(dst)
	var part [64]int32
	// Only a few vectors are processed at a time, so that they stay in the cache for all digits.
	for first := 0; first < m.n; first += len(part) {
		rows := min(len(part), m.n-first)
		plus, minus := m.plus[first*m.words:(first+rows)*m.words], m.minus[first*m.words:(first+rows)*m.words]
		scale := int32(1)
		for _, q := range query {
			popcount.DotRows(part[:rows], q.Plus, q.Minus, plus, minus)
			for i, s := range part[:rows] {
				dst[first+i] += scale * s
			}
			scale *= 3
		}
	}
}

// Match is a vector of a memory, and its dot product with the query.
type Match struct {
	Item  int
	Score int32
}

// Top fills dst with the best scores, the best first. Of equal scores, the one with the lower
// number comes first. It returns how many there are: len(dst), or fewer if there are fewer scores.
func Top(dst []Match, scores []int32) int {
	n := 0
	for i, s := range scores {
		if n == len(dst) {
			if n == 0 || s <= dst[n-1].Score {
				continue
			}
			n--
		}
		at := n
		for at > 0 && dst[at-1].Score < s {
			dst[at] = dst[at-1]
			at--
		}
		dst[at] = Match{i, s}
		n++
	}
	return n
}

// Nearest returns the best match of the query (see Scores). scores is scratch of Len elements. The
// memory must not be empty.
func (m *Memory) Nearest(scores []int32, query ...Vector) Match {
	m.Scores(scores, query...)
	var best [1]Match
	if Top(best[:], scores) == 0 {
		panic("hyper: nearest of no vectors")
	}
	return best[0]
}
