package mixture

// This file tests what is done for a mixture when some of its experts are computed elsewhere.

import (
	"slices"
	"testing"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// device is one that computes experts, by layer and number.
type device map[[2]int32]bool

func (d device) Elsewhere(layer, expert int32) bool { return d[[2]int32{layer, expert}] }

// An expert that is computed elsewhere is not read, and gives way. When it comes back it is read like any other.
func TestRoutes(t *testing.T) {
	needPages(t)
	levers := &recorder{}
	x := newSmallMixture(levers)
	holds := device{{1, 2}: true}
	x.opts.Routes = holds
	x.room = x.size
	l := &x.layers[1]
	for i := range l.experts { // all were in memory before
		l.experts[i].resident = i != 0
		if i != 0 {
			x.resident += l.experts[i].bytes
			for _, r := range l.experts[i].owned {
				if levers.there == nil {
					levers.there = map[pages.Range]int64{}
				}
				levers.there[r] = r.Length
			}
			for _, r := range l.experts[i].slices {
				levers.there[r] = r.Length
			}
		}
	}
	all := x.resident
	choose := func(ids ...int32) {
		t.Helper()
		if _, err := x.Select(event.Selected{Decode: 5, Layer: 1, IDs: ids, IDRows: 1}); err != nil {
			t.Fatal(err)
		}
	}
	choose(0, 2)
	if !slices.Equal(levers.read, l.experts[0].slices) {
		t.Errorf("read %v, want %v", levers.read, l.experts[0].slices)
	}
	resident := all + l.experts[0].bytes - l.experts[2].bytes
	if !slices.Equal(levers.evicted, l.experts[2].owned) || l.experts[2].resident || x.resident != resident {
		t.Errorf("paged out %v, want %v; %d bytes are resident, want %d",
			levers.evicted, l.experts[2].owned, x.resident, resident)
	}
	if x.total.chosen != 1 || x.total.missed != 1 {
		t.Errorf("%d chosen, %d missed, want 1 of both", x.total.chosen, x.total.missed)
	}
	// The other products of the same layer select a part of these experts once more. That is the same choice.
	clock := x.clock
	choose(0)
	if x.clock != clock || x.total.chosen != 1 || len(levers.read) != len(l.experts[0].slices) {
		t.Errorf("after a part of the same choice: clock %d, %d chosen, %d reads; want %d, 1, %d",
			x.clock, x.total.chosen, len(levers.read), clock, len(l.experts[0].slices))
	}
	// The device gives the expert back.
	delete(holds, [2]int32{1, 2})
	for _, r := range append(slices.Clone(l.experts[2].owned), l.experts[2].slices...) {
		delete(levers.there, r)
	}
	x.last.decode, levers.read = 0, nil // the next token
	choose(2, 3)
	if !slices.Equal(levers.read, l.experts[2].slices) || !l.experts[2].resident {
		t.Errorf("read %v, want %v", levers.read, l.experts[2].slices)
	}
}

// Experts that the target did not read, because they were computed elsewhere, are added to the cycle, those of a
// layer beside each other. All other reads stay where they were.
func TestAddExperts(t *testing.T) {
	exps := func(name string, offset int64) gguf.Tensor {
		return gguf.Tensor{Name: name, Shape: []int64{32, 4, 8}, Type: gguf.Q8_0, Offset: offset, Size: 8 * 4 * 34}
	}
	part := &gguf.File{Tensors: []gguf.Tensor{
		exps("blk.0.ffn_gate_exps.weight", 0),
		exps("blk.0.ffn_down_exps.weight", 2000),
		{Name: "blk.0.attn_q.weight", Shape: []int64{32, 4}, Type: gguf.Q8_0, Offset: 4000, Size: 136},
		exps("blk.1.ffn_gate_exps.weight", 5000),
		exps("blk.1.ffn_down_exps.weight", 7000),
	}}
	cycle := &pattern.Cycle{Reads: []pattern.CycleRead{
		expertsRead(0, "blk.1.ffn_gate_exps.weight", 5000, 136, 8, 2),
		{Tensor: "blk.0.attn_q.weight", Offset: 4000, Length: 136},
	}}
	AddUnread(cycle, 0, part)
	var got []string
	for _, r := range cycle.Reads {
		got = append(got, r.Tensor)
		if r.Experts && (r.Slice != 136 || r.Length != 8*136 || r.Slices != 2 || r.File != 0) {
			t.Errorf("%+v, want 8 slices of 136 bytes in file 0, of which a token chooses 2", r)
		}
	}
	want := []string{
		"blk.0.attn_q.weight", "blk.0.ffn_gate_exps.weight", "blk.0.ffn_down_exps.weight",
		"blk.1.ffn_gate_exps.weight", "blk.1.ffn_down_exps.weight",
	}
	if !slices.Equal(got, want) {
		t.Errorf("reads of %v, want %v", got, want)
	}
}
