package hyper

// This file measures how much a bundle can hold, and compares the results to theory.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Coding is a way to store key-value pairs in a bundle.
type Coding int

const (
	Majority    Coding = iota // dense vectors, signs of the sum
	Thresholded               // dense vectors, signs of the sum beyond 0.6 standard deviations
	Exact                     // dense vectors, all digits of the sum
	Blocks                    // block codes (1.6 % of the trits), signs of the sum
	// SparseProduct has sparse vectors (2 % of the trits), element-wise products and signs of the
	// sum. It shows that this does not work.
	SparseProduct
	Nested        // records of records of records, with the same number of fields on each level; read by path
	NestedCleanup // the same, with each record on the path looked up among those of its level
)

var codings = [...]string{"majority", "thresholded", "exact", "blocks", "sparse-product", "nested", "nested-cleanup"}

// Codings lists all codings.
func Codings() []Coding {
	all := make([]Coding, len(codings))
	for i := range all {
		all[i] = Coding(i)
	}
	return all
}

func (c Coding) String() string {
	if c < 0 || int(c) >= len(codings) {
		return fmt.Sprintf("Coding(%d)", int(c))
	}
	return codings[c]
}

// MarshalText returns the coding's name.
func (c Coding) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText parses the coding's name.
func (c *Coding) UnmarshalText(text []byte) error {
	for i, name := range codings {
		if string(text) == name {
			*c = Coding(i)
			return nil
		}
	}
	return fmt.Errorf("no coding %q among %q", text, codings)
}

const (
	sparseDensity = 0.02
	bestThreshold = 0.6 // standard deviations
	levels        = 3
)

// CapacityConfig says what Capacity measures: each coding with each dimension and each number of items.
type CapacityConfig struct {
	Codings []Coding
	Dims    []int // multiples of 64
	// Items are the numbers of pairs in a bundle, at most 4096. For nested codings only cubes are
	// measured, because they have the same number of fields on each level.
	Items      []int
	Candidates int // values that the memory knows; 0: as many as items
	Queries    int // per row, over as many new bundles as needed
	Seed       uint64
}

// CapacityRow is the result for one coding, dimension and number of items.
type CapacityRow struct {
	Coding     Coding  `json:"coding"`
	Dim        int     `json:"dim"`
	Items      int     `json:"items"`
	Candidates int     `json:"candidates"`
	Queries    int     `json:"queries"`
	Measured   float64 `json:"measured"`  // share of queries whose best match is the right value
	Predicted  float64 `json:"predicted"` // the same by theory, see theory.go
}

// StandardError is the standard error of Measured, if Predicted is the true probability and all
// queries are independent.
func (r CapacityRow) StandardError() float64 {
	return math.Sqrt(r.Predicted * (1 - r.Predicted) / float64(r.Queries))
}

const maxItems = 4096

// Check returns an error if the configuration is not valid.
func (c CapacityConfig) Check() error {
	var errs []error
	for _, x := range c.Codings {
		if x < 0 || int(x) >= len(codings) {
			errs = append(errs, fmt.Errorf("no such coding: %v", x))
		}
	}
	for _, d := range c.Dims {
		if d <= 0 || d%64 != 0 || d > 1<<20 {
			errs = append(errs, fmt.Errorf("dimension %d: want a multiple of 64 up to %d", d, 1<<20))
		}
	}
	for _, n := range c.Items {
		if n < 1 || n > maxItems {
			errs = append(errs, fmt.Errorf("%d items: want 1 to %d", n, maxItems))
		}
	}
	if c.Candidates < 0 || c.Candidates > maxItems {
		errs = append(errs, fmt.Errorf("%d candidates: want 0 to %d", c.Candidates, maxItems))
	}
	if c.Queries < 1 {
		errs = append(errs, fmt.Errorf("%d queries: want 1 or more", c.Queries))
	}
	return errors.Join(errs...)
}

// Capacity measures all rows, on all processors. The same configuration always gives the same rows.
// progress, if not nil, is called after each row, by one goroutine at a time. It is an error if
// Check rejects the configuration. If ctx ends, Capacity returns the rows that are complete, with
// ctx's error.
func Capacity(ctx context.Context, c CapacityConfig, progress func(done, total int)) ([]CapacityRow, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	var rows []CapacityRow
	for _, coding := range c.Codings {
		for _, d := range c.Dims {
			for _, n := range c.Items {
				if coding >= Nested && cubeRoot(n) == 0 {
					continue
				}
				m := c.Candidates
				if m == 0 {
					m = n
				}
				rows = append(rows, CapacityRow{Coding: coding, Dim: d, Items: n, Candidates: m, Queries: c.Queries})
			}
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	var mu sync.Mutex
	done, measured := 0, make([]bool, len(rows))
	for i := range rows {
		g.Go(func() error {
			if err := rows[i].measure(ctx, c.Seed); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			measured[i] = true
			if done++; progress != nil {
				progress(done, len(rows))
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		var whole []CapacityRow
		for i, row := range rows {
			if measured[i] {
				whole = append(whole, row)
			}
		}
		return whole, fmt.Errorf("measuring capacity: %w", err)
	}
	return rows, nil
}

// cubeRoot returns the number of fields on each level for n values, or 0 if n is not a cube.
func cubeRoot(n int) int {
	if b := int(math.Round(math.Cbrt(float64(n)))); b*b*b == n {
		return b
	}
	return 0
}

// measure fills in the measured and predicted values.
func (r *CapacityRow) measure(ctx context.Context, seed uint64) error {
	// Each row has its own generator, so that its result does not depend on the other rows.
	rng := rand.New(rand.NewPCG(seed, uint64(r.Coding)<<56|uint64(r.Dim)<<28|uint64(r.Items)<<14|uint64(r.Candidates)))
	trial := newPairs
	if r.Coding >= Nested {
		trial = newTree
	}
	found := 0
	for asked := 0; asked < r.Queries; {
		next := trial(r, rng)
		for i := 0; i < r.Items && asked < r.Queries; i++ {
			if err := ctx.Err(); err != nil {
				return err
			}
			if next(i) {
				found++
			}
			asked++
		}
	}
	r.Measured = float64(found) / float64(r.Queries)
	r.Predicted = r.predict()
	return nil
}

func (r *CapacityRow) threshold() int {
	if r.Coding == Thresholded {
		return int(math.Round(bestThreshold * math.Sqrt(float64(r.Items))))
	}
	return 0
}

func (r *CapacityRow) predict() float64 {
	others := r.Candidates - 1
	switch r.Coding {
	case Exact:
		d, n := float64(r.Dim), float64(r.Items)
		return probBest(d, d*(n-1), d*n, others)
	case Blocks:
		return probBlocks(r.Dim/BlockLength, r.Items, r.Candidates)
	case SparseProduct:
		return probSparseProduct(r.Dim, r.Items, r.Candidates, sparseDensity)
	case Nested, NestedCleanup:
		return probNested(r.Dim, cubeRoot(r.Items), r.Candidates, r.Coding == NestedCleanup)
	}
	mean, active, overall := describeBundle(r.Items, 1, r.threshold())
	return probBestOf(r.Dim, 1, mean, active, overall, others)
}

// newValues returns a memory of the row's candidates, and the number of the candidate that each
// item has. Items have different candidates if there are enough.
func (r *CapacityRow) newValues(random func(Vector), rng *rand.Rand) (m *Memory, item []int) {
	m = NewMemory(r.Dim, r.Candidates)
	v := New(r.Dim)
	for range r.Candidates {
		random(v)
		m.Add(v)
	}
	for len(item) < r.Items {
		item = append(item, rng.Perm(r.Candidates)...)
	}
	return m, item[:r.Items]
}

// newPairs makes a bundle of key-value pairs. The function that it returns queries the value of a
// key, and reports whether it found the right one.
func newPairs(r *CapacityRow, rng *rand.Rand) func(i int) bool {
	random, bind, unbind := func(v Vector) { Random(v, rng) }, Bind, Bind
	switch r.Coding {
	case Blocks:
		random, bind, unbind = func(v Vector) { RandomBlocks(v, rng) }, BlockBind, BlockUnbind
	case SparseProduct:
		random = func(v Vector) { RandomSparse(v, int(math.Round(sparseDensity*float64(r.Dim))), rng) }
	}
	m, item := r.newValues(random, rng)
	keys, sum, pair := NewMemory(r.Dim, r.Items), NewSum(r.Dim), New(r.Dim)
	for i := range item {
		random(pair)
		keys.Add(pair)
		bind(pair, m.At(item[i]), pair)
		sum.Add(pair, 1)
	}
	var bundle []Vector
	if r.Coding == Exact {
		for n := 1; n < 2*r.Items+1; n *= 3 {
			bundle = append(bundle, New(r.Dim))
		}
		sum.Digits(bundle)
	} else {
		bundle = []Vector{New(r.Dim)}
		sum.Ternary(bundle[0], int32(r.threshold()))
	}
	query := make([]Vector, len(bundle))
	for i := range query {
		query[i] = New(r.Dim)
	}
	scores := make([]int32, m.Len())
	return func(i int) bool {
		for p := range query {
			unbind(query[p], bundle[p], keys.At(i))
		}
		return m.Nearest(scores, query...).Item == item[i]
	}
}

// newTree makes a record of records of records of values. The function that it returns queries the
// value at the end of a path, and reports whether it found the right one.
func newTree(r *CapacityRow, rng *rand.Rand) func(i int) bool {
	b := cubeRoot(r.Items)
	random := func(v Vector) { Random(v, rng) }
	m, item := r.newValues(random, rng)
	var roles [levels][]Vector // all records of a level have the same roles
	for l := range roles {
		for range b {
			role := New(r.Dim)
			random(role)
			roles[l] = append(roles[l], role)
		}
	}
	// Value (i*b + j)*b + k is at the path i, j, k. Records are numbered in the same way.
	level := m
	of := item
	var memories [levels]*Memory // what the fields of a level's records hold
	for l := levels - 1; l >= 0; l-- {
		memories[l] = level
		records := NewMemory(r.Dim, len(of)/b)
		for first := 0; first < len(of); first += b {
			record := NewRecord(r.Dim, 0)
			for k, value := range of[first : first+b] {
				record.Put(roles[l][k], level.At(value))
			}
			records.Add(record.Vector())
		}
		level, of = records, make([]int, records.Len())
		for i := range of {
			of[i] = i
		}
	}
	top := level.At(0)
	read, scratch, scores := New(r.Dim), New(r.Dim), make([]int32, max(m.Len(), r.Items))
	return func(i int) bool {
		path := [levels]Vector{roles[0][i/(b*b)], roles[1][i/b%b], roles[2][i%b]}
		if r.Coding == Nested {
			Read(read, scratch, top, path[:]...)
			return m.Nearest(scores[:m.Len()], read).Item == item[i]
		}
		v := top
		match := 0
		for l, role := range path {
			Read(read, scratch, v, role)
			match = memories[l].Nearest(scores[:memories[l].Len()], read).Item
			v = memories[l].At(match)
		}
		return match == item[i]
	}
}
