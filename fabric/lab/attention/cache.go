// Package attention computes attention over a cache of keys and values while it reads only a few of
// them. It estimates the scores of all positions with bit counts on ternary copies of query and
// keys. It evaluates the best positions exactly, and falls back to all positions if the estimated
// error is too large. Package measure compares it to dense attention.
//
// A [Cache] holds keys and values in float32. For every 64 positions (a block), the keys get a
// ternary copy. The block's mean is subtracted, and the rest is rotated (see rotation). It is
// written as one or two balanced ternary digits per element, with one scale per position. Let m be
// the mean of the block of position j, R the rotation, and k' and q' the ternary copies of R (k_j -
// m) and R q. Then
//
//	q k_j = q m + (R q) (R (k_j - m)) ~ q m + q' k'
//
// and q' k' takes a few bit counts ([popcount.DotRows]). The mean is what the keys have in common,
// which is often more than their differences. The rotation spreads elements that stand out. So the
// error of a ternary key has no preferred direction, and its effect can be predicted.
// [Cache.Attend] describes the further steps. [Cache.Dense] is exact.
//
// For d elements (a power of two, at least 64) and p digits, a position takes 8 d bytes in float32,
// d p / 4 + 8 bytes for the ternary copy, and d / 8 bytes for the means.
//
// A Cache is for one goroutine.
package attention

// This file defines the cache: what it stores, and how positions are appended.

import (
	"errors"
	"fmt"

	"tensorcast/internal/vec"
)

// block is the number of positions that share a mean and get their ternary copy at the same time.
const block = 64

// ErrFull says that the cache has no room for another position.
var ErrFull = errors.New("the cache is full")

// Config is the shape of a Cache.
type Config struct {
	Heads       int // heads of keys and values
	Group       int // query heads per head of keys and values
	Dim         int // elements of a head's vector; multiples of 16 are fast
	Capacity    int // largest number of positions
	KeyDigits   int // ternary digits per element of a key, 1 or 2
	QueryDigits int // ternary digits per element of a query, 1 to 3
}

// Cache holds the keys and values of the positions so far.
type Cache struct {
	cfg      Config
	n        int // positions
	sealed   int // positions with a ternary copy: those of complete blocks
	heads    []head
	rotation rotation
	all      []int32 // 0, 1, 2, ...: the list of all positions
	scratch  scratch
}

// head is the part of a Cache for one head. Rows are positions or blocks.
type head struct {
	keys, values []float32 // a row of Dim elements per position
	means        []float32 // a row of Dim elements per block: the means of the keys
	valueMeans   []float32
	valueSquares []float32  // by block: mean of |value|^2
	plus, minus  [][]uint64 // by digit: a row of words per position
	scales       []float32  // by position: scale of the ternary copy
	residuals    []float32  // by position: squared error of the ternary copy
	residual     float64    // sum of residuals
	pauses       []int      // by query head: calls left of Options.Pause
}

// New returns an empty cache and allocates all its memory.
func New(cfg Config) (*Cache, error) {
	for _, v := range []struct {
		name       string
		value, max int
	}{
		{"heads", cfg.Heads, 1 << 16},
		{"query heads for each", cfg.Group, 1 << 16},
		{"elements of a head", cfg.Dim, 1 << 14},
		{"positions", cfg.Capacity, 1 << 28},
		{"digits of a key", cfg.KeyDigits, 2},
		{"digits of a query", cfg.QueryDigits, maxPlanes},
	} {
		if v.value < 1 || v.value > v.max {
			return nil, fmt.Errorf("a cache with %d %s: want 1 to %d", v.value, v.name, v.max)
		}
	}
	c := &Cache{
		cfg: cfg, heads: make([]head, cfg.Heads), rotation: newRotation(cfg.Dim), all: make([]int32, cfg.Capacity),
	}
	for i := range c.all {
		c.all[i] = int32(i)
	}
	words, blocks := len(c.rotation.signs)/64, cfg.Capacity/block
	for i := range c.heads {
		h := &c.heads[i]
		h.keys, h.values = make([]float32, cfg.Capacity*cfg.Dim), make([]float32, cfg.Capacity*cfg.Dim)
		h.means, h.valueMeans = make([]float32, blocks*cfg.Dim), make([]float32, blocks*cfg.Dim)
		h.pauses = make([]int, cfg.Group)
		h.valueSquares = make([]float32, blocks)
		h.plus, h.minus = newPlanes(cfg.KeyDigits, blocks*block*words), newPlanes(cfg.KeyDigits, blocks*block*words)
		h.scales, h.residuals = make([]float32, blocks*block), make([]float32, blocks*block)
	}
	c.scratch = newScratch(cfg, words)
	return c, nil
}

// newPlanes allocates words for each digit.
func newPlanes(digits, words int) [][]uint64 {
	p := make([][]uint64, digits)
	for i := range p {
		p[i] = make([]uint64, words)
	}
	return p
}

// Len returns the number of positions.
func (c *Cache) Len() int { return c.n }

// Append adds a position. keys and values have Heads x Dim elements each, and are copied. It panics
// if the lengths do not fit.
func (c *Cache) Append(keys, values []float32) error {
	d := c.cfg.Dim
	if len(keys) != len(c.heads)*d || len(values) != len(c.heads)*d {
		panic(fmt.Sprintf("attention: %d elements of keys and %d of values for %d heads of %d",
			len(keys), len(values), len(c.heads), d))
	}
	if c.n == c.cfg.Capacity {
		return fmt.Errorf("append position %d: %w", c.n, ErrFull)
	}
	for i := range c.heads {
		copy(c.heads[i].keys[c.n*d:], keys[i*d:][:d])
		copy(c.heads[i].values[c.n*d:], values[i*d:][:d])
	}
	if c.n++; c.n == c.sealed+block {
		for i := range c.heads {
			c.sealBlock(&c.heads[i])
		}
		c.sealed = c.n
	}
	return nil
}

// sealBlock makes the ternary copy of the block that begins at position c.sealed.
func (c *Cache) sealBlock(h *head) {
	d, words := c.cfg.Dim, len(c.rotation.signs)/64
	keys, positions := h.keys[c.sealed*d:][:block*d], c.all[c.sealed:][:block]
	mean, valueMean := h.means[c.sealed/block*d:][:d], h.valueMeans[c.sealed/block*d:][:d]
	vec.AddRows(mean, c.scratch.even, h.keys, positions)
	vec.AddRows(valueMean, c.scratch.even, h.values, positions)
	values := h.values[c.sealed*d:][:block*d]
	h.valueSquares[c.sealed/block] = vec.Dot(values, values) / block
	s := &c.scratch
	for i := range block {
		position := c.sealed + i
		copy(s.vector, keys[i*d:][:d])
		vec.AXPY(s.vector, -1, mean)
		c.rotation.apply(s.rotated, s.vector)
		for p := range h.plus {
			s.keyPlus[p] = h.plus[p][position*words:][:words]
			s.keyMinus[p] = h.minus[p][position*words:][:words]
		}
		h.scales[position], h.residuals[position] = ternarise(s.keyPlus, s.keyMinus, s.rotated)
		h.residual += float64(h.residuals[position])
	}
}
