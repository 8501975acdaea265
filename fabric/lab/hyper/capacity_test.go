package hyper

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

func measured(t *testing.T, c CapacityConfig) []CapacityRow {
	t.Helper()
	rows, err := Capacity(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestCheckpoints has figures that others report for bundles of 128 dense items: all found with 4096 trits, 0.67 with 1024. They hold for a sum that is
// not rounded, looked up among 64 values.
func TestCheckpoints(t *testing.T) {
	rows := measured(t, CapacityConfig{Codings: []Coding{Exact}, Dims: []int{4096, 1024}, Items: []int{128}, Candidates: 64, Queries: 2560, Seed: 1})
	for i, want := range []float64{1, .67} {
		if math.Abs(rows[i].Measured-want) > .03 || math.Abs(rows[i].Predicted-want) > .01 {
			t.Errorf("%+v, want %v", rows[i], want)
		}
	}
}

// TestCapacity compares measurement and theory where neither all nor nothing is found, for all codings.
func TestCapacity(t *testing.T) {
	for _, c := range []CapacityConfig{
		{Codings: []Coding{Majority, Thresholded, Exact, Blocks, SparseProduct}, Dims: []int{1024, 4096}, Items: []int{8, 64, 200}},
		{Codings: []Coding{Majority, Exact, Blocks}, Dims: []int{2048}, Items: []int{64}, Candidates: 1000},
		{Codings: []Coding{SparseProduct}, Dims: []int{4096}, Items: []int{128}, Candidates: 64, Queries: 6000},
		{Codings: []Coding{Majority}, Dims: []int{64}, Items: []int{3, 8}, Candidates: 64, Queries: 5000},
		{Codings: []Coding{Nested}, Dims: []int{1024, 4096}, Items: []int{64, 216}},
		{Codings: []Coding{NestedCleanup}, Dims: []int{128, 256}, Items: []int{27, 125}},
	} {
		c.Queries, c.Seed = max(c.Queries, 500), 5
		between := 0
		for _, r := range measured(t, c) {
			// 4 standard errors, and one query.
			if math.Abs(r.Measured-r.Predicted) > 4*r.StandardError()+1./float64(r.Queries) {
				t.Errorf("%v, %d trits, %d items, %d candidates: %.3f, want %.3f +- %.3f", r.Coding, r.Dim, r.Items, r.Candidates, r.Measured, r.Predicted, r.StandardError())
			}
			if r.Predicted > .1 && r.Predicted < .98 {
				between++
			}
			if r.Predicted > .92 && r.Measured < .9 {
				t.Errorf("%+v: less than 90 %% where theory allows more", r)
			}
		}
		if between == 0 {
			t.Errorf("%+v: nothing but all or nothing", c)
		}
	}
}

func TestCapacityRepeats(t *testing.T) {
	c := CapacityConfig{Codings: Codings(), Dims: []int{128, 512}, Items: []int{8, 10, 27}, Queries: 100, Seed: 3}
	calls := 0
	rows, err := Capacity(t.Context(), c, func(done, total int) {
		if calls++; done != calls || total != 7*2*3-2*2 { // 10 is no cube
			t.Errorf("%d of %d after %d rows", done, total, calls)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(rows, measured(t, c)) {
		t.Error("the same seed gives other rows")
	}
	c.Codings = []Coding{Blocks}
	blocks := slices.DeleteFunc(slices.Clone(rows), func(r CapacityRow) bool { return r.Coding != Blocks })
	if got := measured(t, c); !slices.Equal(got, blocks) {
		t.Error("a row depends on others")
	}
	c.Seed++
	if got := measured(t, c); slices.Equal(got, blocks) {
		t.Error("the seed does not matter")
	}
}

func TestCapacityFails(t *testing.T) {
	good := CapacityConfig{Codings: []Coding{Majority}, Dims: []int{64}, Items: []int{8}, Queries: 10}
	for want, change := range map[string]func(*CapacityConfig){
		"coding":         func(c *CapacityConfig) { c.Codings = []Coding{99} },
		"dimension 100":  func(c *CapacityConfig) { c.Dims = []int{100} },
		"0 items":        func(c *CapacityConfig) { c.Items = []int{0} },
		"5000 items":     func(c *CapacityConfig) { c.Items = []int{5000} },
		"-1 candidates":  func(c *CapacityConfig) { c.Candidates = -1 },
		"0 queries":      func(c *CapacityConfig) { c.Queries = 0 },
		"dimension -640": func(c *CapacityConfig) { c.Dims = []int{64, -640} },
	} {
		c := good
		change(&c)
		if _, err := Capacity(t.Context(), c, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Capacity(ctx, good, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v", err)
	}

	// What is done when the context ends is returned.
	ctx, cancel = context.WithCancel(t.Context())
	many := good
	for range 1000 {
		many.Items = append(many.Items, 8)
	}
	rows, err := Capacity(ctx, many, func(done, _ int) {
		if done == 5 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || len(rows) < 5 || len(rows) == len(many.Items) {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	for _, r := range rows {
		if r.Measured == 0 || r.Predicted == 0 {
			t.Errorf("%+v", r)
		}
	}
}

func TestCodingText(t *testing.T) {
	for _, c := range Codings() {
		text, err := c.MarshalText()
		var back Coding
		if err != nil || back.UnmarshalText(text) != nil || back != c {
			t.Errorf("%v becomes %q becomes %v", c, text, back)
		}
	}
	var c Coding
	if err := c.UnmarshalText([]byte("nonsense")); err == nil {
		t.Error("nonsense is a coding")
	}
}
