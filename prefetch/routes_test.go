package prefetch

// This file tests what is done for a mixture of which experts are computed elsewhere.

import (
	"slices"
	"testing"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// device holds experts, by layer and number.
type device map[[2]int32]bool

func (d device) Elsewhere(layer, expert int32) bool { return d[[2]int32{layer, expert}] }

// What is computed elsewhere is not read, and gives way; when it comes back it is read like any other.
func TestRoutes(t *testing.T) {
	needPages(t)
	levers := &noting{}
	c, x := smallMixture(levers)
	holds := device{{1, 2}: true}
	c.opts.Routes = holds
	x.room = x.all
	l := &x.layers[1]
	for i := range l.experts { // all were in memory before
		l.experts[i].there = i != 0
		if i != 0 {
			x.there += l.experts[i].bytes
			for _, r := range l.experts[i].owns {
				if levers.there == nil {
					levers.there = map[pages.Range]int64{}
				}
				levers.there[r] = r.Length
			}
			for _, r := range l.experts[i].reads {
				levers.there[r] = r.Length
			}
		}
	}
	all := x.there
	choose := func(ids ...int32) {
		t.Helper()
		if err := c.selected(event.Selected{Decode: 5, TID: 6, Layer: 1, IDs: ids, IDRows: 1}); err != nil {
			t.Fatal(err)
		}
	}
	choose(0, 2)
	if !slices.Equal(levers.read, l.experts[0].reads) {
		t.Errorf("read %v, want %v", levers.read, l.experts[0].reads)
	}
	if !slices.Equal(levers.evicted, l.experts[2].owns) || l.experts[2].there || x.there != all+l.experts[0].bytes-l.experts[2].bytes {
		t.Errorf("paged out %v, want %v; %d bytes are there", levers.evicted, l.experts[2].owns, x.there)
	}
	if x.chosen != 1 || x.missed != 1 {
		t.Errorf("%d chosen, %d missed", x.chosen, x.missed)
	}
	// The products that the others are computed by choose them once more: that is the same choice.
	clock := x.clock
	choose(0)
	if x.clock != clock || x.chosen != 1 || len(levers.read) != len(l.experts[0].reads) {
		t.Errorf("a part of a choice counts as another one: %d chosen", x.chosen)
	}
	// The device lets it go.
	delete(holds, [2]int32{1, 2})
	for _, r := range append(slices.Clone(l.experts[2].owns), l.experts[2].reads...) {
		delete(levers.there, r)
	}
	x.last.decode, levers.read = 0, nil // the next token
	choose(2, 3)
	if !slices.Equal(levers.read, l.experts[2].reads) || !l.experts[2].there {
		t.Errorf("read %v, want %v", levers.read, l.experts[2].reads)
	}
}

// Experts that the target did not read, as they were computed elsewhere, are known all the same, those of a layer beside each other; what is no expert stays where it was.
func TestAddExperts(t *testing.T) {
	exps := func(name string, offset int64) gguf.Tensor {
		return gguf.Tensor{Name: name, Shape: []int64{32, 4, 8}, Type: gguf.Q8_0, Offset: offset, Size: 8 * 4 * 34}
	}
	part := &gguf.File{Tensors: []gguf.Tensor{
		exps("blk.0.ffn_gate_exps.weight", 0), exps("blk.0.ffn_down_exps.weight", 2000), {Name: "blk.0.attn_q.weight", Shape: []int64{32, 4}, Type: gguf.Q8_0, Offset: 4000, Size: 136},
		exps("blk.1.ffn_gate_exps.weight", 5000), exps("blk.1.ffn_down_exps.weight", 7000),
	}}
	mine, other := event.FileID{Ino: 7}, event.FileID{Ino: 8}
	c := New(&noting{}, Options{Models: func() (Model, error) {
		return Model{Mapped: []Mapped{{ID: other}, {ID: mine}}, Parts: []*gguf.File{part, part}}, nil // the first is not followed
	}})
	c.known = []knownFile{{id: mine}}
	cycle := &pattern.Cycle{Reads: []pattern.CycleRead{
		gathers(0, "blk.1.ffn_gate_exps.weight", 5000, 136, 8, 2), {Tensor: "blk.0.attn_q.weight", Offset: 4000, Length: 136},
	}}
	c.addExperts(cycle)
	var got []string
	for _, r := range cycle.Reads {
		got = append(got, r.Tensor)
		if r.Experts && (r.Slice != 136 || r.Length != 8*136 || r.Slices != 2 || r.File != 0) {
			t.Errorf("%+v", r)
		}
	}
	want := []string{"blk.0.attn_q.weight", "blk.0.ffn_gate_exps.weight", "blk.0.ffn_down_exps.weight", "blk.1.ffn_gate_exps.weight", "blk.1.ffn_down_exps.weight"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
