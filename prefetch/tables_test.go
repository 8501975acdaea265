package prefetch_test

// This file tests help for a model with a table of which tokens look up rows, in virtual time.

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
	"tensorcast/sim"
)

const (
	tableRow   = 10000  // bytes: rows begin anywhere in a page
	tableRows  = 100000 // more than three times as much as what every token reads
	tableBytes = tableRow * tableRows
)

// addTable puts a table before the reads of a cycle, in the same file, or in another one.
func addTable(c *pattern.Cycle, file int) *pattern.Cycle {
	offset := int64(4096)
	for i := range c.Reads {
		if r := &c.Reads[i]; r.File == file {
			offset = max(offset, r.End())
		}
	}
	table := pattern.CycleRead{
		File: file, Tensor: "per_layer_token_embd.weight", Op: "GET_ROWS", Offset: offset, Length: tableBytes,
		Slice: tableRow, Slices: 1,
	}
	return &pattern.Cycle{Reads: append([]pattern.CycleRead{table}, c.Reads...)}
}

// tableRig is a rig for a cycle with a table.
type tableRig struct {
	*rig
	rows int // that a decode looks up, each decode others
}

// newTableRig makes a rig whose pages are as small as the kernel's, and whose readahead is Linux's usual one.
func newTableRig(t *testing.T, cycle *pattern.Cycle, limit int64, opts prefetch.Options) *tableRig {
	t.Helper()
	r := &tableRig{rows: 1}
	r.rig = newRigOf(t, cycle, 1, opts, func(c *sim.Config) {
		c.Limit, c.Page, c.Readahead = limit, pages.PageSize, 128<<10
		c.Rows = func(decode int) (ids []int32) {
			random := rand.New(rand.NewPCG(uint64(decode), 1))
			for range r.rows {
				ids = append(ids, random.Int32N(tableRows))
			}
			return ids
		}
		if cycle.Reads[len(cycle.Reads)-1].Experts {
			c.Route = routing(skewed)
		}
	})
	return r
}

// tableResident is how many bytes of a rig's table are in memory.
func (r *tableRig) tableResident() int64 {
	r.t.Helper()
	table := &r.cycle.Reads[0]
	file, _, err := r.pages.Open(r.Path(table.File), sim.FileID(table.File))
	if err != nil {
		r.t.Fatal(err)
	}
	n, err := r.pages.ResidentBytes(pages.Range{File: file, Offset: table.Offset, Length: table.Length})
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// The rows of a prompt are read beside each other before the target touches them one after the other. Neither these
// nor what faults read around rows takes the room of what is kept, and they do not stay. That holds for dense models
// and for mixtures.
func TestTable(t *testing.T) {
	const prompt = 512
	for name, tc := range map[string]struct {
		cycle   *pattern.Cycle
		limit   int64
		weights int64 // that every token reads
	}{
		"dense":   {addTable(model(0, 4), 0), 80 * mib, 4 * 28 * mib},
		"mixture": {addTable(mixtureCycle(), 0), mixShared + 160*mib, mixShared},
	} {
		t.Run(name, func(t *testing.T) {
			alone := newTableRig(t, tc.cycle, tc.limit, prefetch.Options{})
			alone.Attach(nil)
			r := newTableRig(t, tc.cycle, tc.limit, prefetch.Options{Always: true})
			run := func(r *tableRig, rows, decodes int) sim.Token {
				r.rows = rows
				return r.run(decodes)
			}
			run(alone, 1, 20)
			run(r, 1, 20)
			before := r.Summary()
			plain, helped := run(alone, prompt, 1), run(r, prompt, 1)
			after := r.Summary()
			x := after.Tables
			if x == nil || before.Tables == nil || x.All != tableBytes {
				t.Fatalf("tables %+v", x)
			}
			if rows, missed := x.Rows-before.Tables.Rows, x.Missed-before.Tables.Missed; rows < prompt*9/10 ||
				missed < rows*9/10 {
				t.Errorf("%d rows are looked up for a prompt, of which %d are missing; want nearly %d", rows, missed, prompt)
			}
			// Its disk takes 80 us for each row that is read by itself.
			if gain := plain.Time - helped.Time; gain < prompt*60*time.Microsecond {
				t.Errorf("a prompt takes %v with help, %v without", helped.Time, plain.Time)
			}
			if name == "dense" && helped.Misses > prompt/10 {
				t.Errorf("the target misses %d pages of a prompt, want nearly none of its %d rows", helped.Misses, prompt)
			}
			run(r, 1, 60)
			s := r.Summary()
			if s.PerToken < tc.weights || s.PerToken > tc.weights+mib {
				t.Errorf("each token reads %d bytes, want %d", s.PerToken, tc.weights)
			}
			if got := r.tableResident(); got > 8*mib {
				t.Errorf("%d bytes of the table stay in memory", got)
			}
			if taken := s.Taken - before.Taken; s.Tables.Strays == 0 || taken > 0 {
				t.Errorf("%d bytes of strays were paged out, and %d of what is kept were taken", s.Tables.Strays, taken)
			}
			if r.Overcommitted() > 0 {
				t.Errorf("%d bytes exceed the limit, want 0", r.Overcommitted())
			}
			t.Logf("a prompt takes %v alone, %v with help; %+v", plain.Time, helped.Time, s.Tables)
		})
	}
}

// Where all but the table has room, everything fits, however large the table is. That is so if the table has a file of
// its own, too, and if another model that has one is mapped.
func TestTableFits(t *testing.T) {
	const weights = 10 * 28 * mib
	for _, file := range []int{0, 1} {
		cycle := addTable(model(0, 10), file)
		var opts prefetch.Options
		opts.Target.Models = func() (m models.Model, err error) {
			for i := range 2 {
				size := int64(weights + tableBytes)
				part := &gguf.File{Tensors: []gguf.Tensor{{Name: "blk.0.w", Shape: []int64{1}, Size: weights}}}
				if i == 1 {
					size = tableBytes + 28*mib
					part.Tensors = []gguf.Tensor{
						{Name: "per_layer_token_embd.weight", Shape: []int64{tableRow, tableRows}, Size: tableBytes},
					}
				}
				m.Files = append(m.Files, pattern.CycleFile{Size: size})
				m.Mapped = append(m.Mapped, models.Mapped{Path: fmt.Sprint(i), ID: sim.FileID(i), Base: 1 << 40})
				m.Parts = append(m.Parts, part)
			}
			return m, nil
		}
		for limit, fits := range map[int64]bool{weights + 100*mib: true, weights: false} {
			r := newTableRig(t, cycle, limit, opts)
			_, err := r.Run(1, r.cycle, 10)
			var stood *prefetch.StandBack
			if is := errors.As(err, &stood) && stood.Reason == prefetch.Fits; is != fits {
				t.Errorf("with the table in file %d and room for %d bytes it fits: %v (%v)", file, limit, is, err)
			}
			if fits && stood != nil && stood.Bytes > weights+30*mib {
				t.Errorf("%d bytes of weights, want %d", stood.Bytes, weights)
			}
		}
	}
}

// rowReader stands for who only passes lookups on, while nothing else is to be won.
type rowReader struct{ *prefetch.Controller }

func (r rowReader) Handle(e event.Event) error {
	if e, is := e.(event.Lookup); is {
		return r.LookUp(e)
	}
	return nil
}

func (r rowReader) Tick() error {
	_, err := r.Look()
	return err
}

// Where all but the table fits, its rows are read ahead all the same, and nothing is paged out.
func TestTableFitsBesides(t *testing.T) {
	const weights, limit = 4 * 28 * mib, 4*28*mib + 100*mib
	r := newTableRig(t, addTable(model(0, 4), 0), limit, prefetch.Options{})
	_, err := r.Run(1, r.cycle, 10)
	var stood *prefetch.StandBack
	if !errors.As(err, &stood) || stood.Reason != prefetch.Fits || stood.Tables != tableBytes || !r.ReadsRows() {
		t.Fatalf("%v, reads rows: %v", err, r.ReadsRows())
	}
	if !strings.Contains(stood.Error(), "rows are read when they are looked up") {
		t.Errorf("it says %q", stood)
	}
	alone := newTableRig(t, r.cycle, limit, prefetch.Options{})
	alone.Attach(nil)
	alone.run(10)
	r.Attach(rowReader{r.Controller})
	r.rows, alone.rows = 512, 512
	for range 2 {
		plain, helped := alone.run(1), r.run(1)
		if plain.Time-helped.Time < 512*60*time.Microsecond {
			t.Errorf("a prompt takes %v with help, %v without", helped.Time, plain.Time)
		}
	}
	if x := r.Summary().Tables; x == nil || x.Rows < 900 || x.Missed < 900 || x.Strays != 0 {
		t.Errorf("tables %+v, want two prompts of 512 rows", x)
	}
	if got := r.tableResident(); got < 900*tableRow {
		t.Errorf("%d bytes of the table are in memory, want all rows that were looked up", got)
	}
	small := newTableRig(t, addTable(model(0, 4), 0), weights+tableBytes+100*mib, prefetch.Options{})
	if _, err := small.Run(1, small.cycle, 10); !errors.As(err, &stood) || stood.Tables != 0 || small.ReadsRows() {
		t.Errorf("with room for the table: %v, reads rows: %v", err, small.ReadsRows())
	}
}

// A model that another control group has read, but for its table, is left alone as one that has none.
func TestTableOfOthers(t *testing.T) {
	cycle := addTable(model(0, 10), 0)
	table := cycle.Reads[0]
	var opts prefetch.Options
	opts.Target.Weights = func(string, event.FileID) (models.Weights, error) {
		return models.Weights{
			{Offset: 0, End: table.Offset}, {Offset: table.Offset, End: table.End(), IsTable: true},
		}, nil
	}
	opts.Target.Models = func() (m models.Model, err error) {
		return models.Model{
			Files:  []pattern.CycleFile{{Size: table.End()}},
			Mapped: []models.Mapped{{Path: "model-0.gguf", ID: sim.FileID(0), Base: 1 << 40}},
		}, nil
	}
	for _, hidden := range []bool{false, true} {
		r := newTableRig(t, cycle, 100*mib, opts)
		r.HidePayers = hidden
		r.CacheBorrowed(pages.Range{Length: table.Offset &^ (pages.PageSize - 1)})
		stood, err := r.Spare()
		if err != nil || !hidden && (stood == nil || stood.Reason != prefetch.Fits) {
			t.Errorf("Spare = %v, %v, want a stand back", stood, err)
		}
	}
}
