package hyper

// This file tests the measurement of capacity, and compares it to theory.

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

func mustMeasure(t *testing.T, c CapacityConfig) []CapacityRow {
	t.Helper()
	rows, err := Capacity(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestCheckpoints compares results to figures that others report for bundles of 128 dense items:
// all found with 4096 trits, 0.67 with 1024. They are for a sum that is not rounded, looked up
// among 64 values.
func TestCheckpoints(t *testing.T) {
	rows := mustMeasure(t, CapacityConfig{
		Codings: []Coding{Exact}, Dims: []int{4096, 1024}, Items: []int{128}, Candidates: 64, Queries: 2560, Seed: 1,
	})
	for i, want := range []float64{1, .67} {
		if math.Abs(rows[i].Measured-want) > .03 || math.Abs(rows[i].Predicted-want) > .01 {
			t.Errorf("%+v, want %v", rows[i], want)
		}
	}
}

// TestCapacity compares measurement and theory for all codings, with sizes at which some items are
// found and some are not.
func TestCapacity(t *testing.T) {
	for _, c := range []CapacityConfig{
		{
			Codings: []Coding{Majority, Thresholded, Exact, Blocks, SparseProduct},
			Dims:    []int{1024, 4096}, Items: []int{8, 64, 200},
		},
		{Codings: []Coding{Majority, Exact, Blocks}, Dims: []int{2048}, Items: []int{64}, Candidates: 1000},
		{Codings: []Coding{SparseProduct}, Dims: []int{4096}, Items: []int{128}, Candidates: 64, Queries: 6000},
		{Codings: []Coding{Majority}, Dims: []int{64}, Items: []int{3, 8}, Candidates: 64, Queries: 5000},
		{Codings: []Coding{Nested}, Dims: []int{1024, 4096}, Items: []int{64, 216}},
		{Codings: []Coding{NestedCleanup}, Dims: []int{128, 256}, Items: []int{27, 125}},
	} {
		c.Queries, c.Seed = max(c.Queries, 500), 5
		between := 0
		for _, r := range mustMeasure(t, c) {
			// Up to 4 standard errors and one query are allowed.
			if math.Abs(r.Measured-r.Predicted) > 4*r.StandardError()+1./float64(r.Queries) {
				t.Errorf("%v, %d trits, %d items, %d candidates: %.3f, want %.3f +- %.3f",
					r.Coding, r.Dim, r.Items, r.Candidates, r.Measured, r.Predicted, r.StandardError())
			}
			if r.Predicted > .1 && r.Predicted < .98 {
				between++
			}
			if r.Predicted > .92 && r.Measured < .9 {
				t.Errorf("%+v: Measured is %v, want at least 0.9", r, r.Measured)
			}
		}
		if between == 0 {
			t.Errorf("%+v: in all rows, nearly all or few items are found, want some rows between", c)
		}
	}
}

func TestCapacityRepeats(t *testing.T) {
	c := CapacityConfig{Codings: Codings(), Dims: []int{128, 512}, Items: []int{8, 10, 27}, Queries: 100, Seed: 3}
	calls := 0
	rows, err := Capacity(t.Context(), c, func(done, total int) {
		if calls++; done != calls || total != 7*2*3-2*2 { // 10 is no cube
			t.Errorf("call %d of progress has %d of %d, want %d of %d", calls, done, total, calls, 7*2*3-2*2)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(rows, mustMeasure(t, c)) {
		t.Error("the same seed gave other rows")
	}
	c.Codings = []Coding{Blocks}
	blocks := slices.DeleteFunc(slices.Clone(rows), func(r CapacityRow) bool { return r.Coding != Blocks })
	if got := mustMeasure(t, c); !slices.Equal(got, blocks) {
		t.Errorf("without other codings the rows are %v, want %v", got, blocks)
	}
	c.Seed++
	if got := mustMeasure(t, c); slices.Equal(got, blocks) {
		t.Error("another seed gave the same rows")
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
		t.Errorf("after the end of the context: error %v, want %v", err, context.Canceled)
	}

	// The rows that are complete when the context ends are returned.
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
		t.Errorf("got %d rows and error %v, want 5 or more, but not all %d, and %v",
			len(rows), err, len(many.Items), context.Canceled)
	}
	for _, r := range rows {
		if r.Measured == 0 || r.Predicted == 0 {
			t.Errorf("row %+v is not complete", r)
		}
	}
}

func TestCodingText(t *testing.T) {
	for _, c := range Codings() {
		text, err := c.MarshalText()
		var back Coding
		if err != nil || back.UnmarshalText(text) != nil || back != c {
			t.Errorf("%v is written as %q and read as %v", c, text, back)
		}
	}
	var c Coding
	if err := c.UnmarshalText([]byte("nonsense")); err == nil {
		t.Error("UnmarshalText accepted nonsense, want an error")
	}
}
