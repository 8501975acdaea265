package ebpf

// These tests look at the reported inputs of routers and attention. A router's matrix times its
// input must give the experts that were chosen.

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
)

// dequantizer returns a function that dequantises a tensor of a model, given its name as a format.
func dequantizer(t *testing.T, path string) func(format string, args ...any) ([]float32, *gguf.Tensor) {
	t.Helper()
	m, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := gguf.OpenWeights(m, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(format string, args ...any) ([]float32, *gguf.Tensor) {
		h, ok := w.Lookup(fmt.Sprintf(format, args...))
		if !ok {
			t.Fatalf("the model has no "+format, args...)
		}
		f, err := h.Float32()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Release()
		return slices.Clone(f.Data), h.Tensor
	}
}

// topRows returns the numbers of the k rows of a matrix whose products with a vector are largest,
// in ascending order.
func topRows(matrix, v []float32, k int) (at []int32) {
	var scores []float64
	for row := range slices.Chunk(matrix, len(v)) {
		sum := 0.0
		for i := range row {
			sum += float64(row[i]) * float64(v[i])
		}
		at = append(at, int32(len(scores)))
		scores = append(scores, sum)
	}
	slices.SortFunc(at, func(a, b int32) int { return cmp.Compare(scores[b], scores[a]) })
	at = at[:k]
	slices.Sort(at)
	return at
}

// normMeanSquare divides the result of a norm by the norm's weights, and returns the mean square.
// It is 1 if v is such a result.
func normMeanSquare(v, weight []float32) float64 {
	sum := 0.0
	for i := range v {
		x := float64(v[i] / weight[i])
		sum += x * x
	}
	return sum / float64(len(v))
}

// layerRun identifies a layer in one graph.
type layerRun struct {
	decode, graph uint32
	layer         int32
}

// choices returns the experts of each layer and graph, token by token, according to the ops that
// read them.
func choices(t *testing.T, events []event.Event) map[layerRun][][]int32 {
	t.Helper()
	routes := map[layerRun][][]int32{}
	for _, o := range eventsOf[*event.Op](events) {
		if at := (layerRun{o.Decode, o.Graph, 0}); o.ByExpert {
			at.layer = layerOf(t, o)
			routes[at] = slices.Collect(slices.Chunk(o.IDs, len(o.IDs)/o.IDRows))
		}
	}
	return routes
}

// The inputs of each layer and token, in the prompt and in generation, times the router's matrix
// give exactly the experts that are chosen. They arrive before these run.
func TestInputs(t *testing.T) {
	models := mixtures(t)
	models["pieces"] = func(t *testing.T) (*llama.Installation, llama.Options) { // a row takes three pieces
		return llamaOptions(t, synth.Config{
			Layers: 2, Embd: 1280, FF: 64, Heads: 10, KVHeads: 2, Vocab: 300, Ctx: 256, Type: gguf.Q8_0, Seed: 4,
			Experts: 8, Used: 2,
		})
	}
	for name, model := range models {
		for variant, opts := range map[string]Options{
			"alone": {}, "with choices": {Selected: true, AtOnce: true, Interval: time.Millisecond, Small: true},
		} {
			t.Run(name+" "+variant, func(t *testing.T) {
				in, o := model(t)
				opts.Inputs, opts.RingBytes = 1, 8<<20
				events, _, counters := watchLossy(t, opts, in.Command(t.Context(), o), func(*proc.Child) {},
					func(event.Event) {})
				inputs := eventsOf[event.RouterInput](events)
				if counters.Lost() != 0 || counters.Incomplete() != 0 || counters.InputsSent != uint64(len(inputs)) {
					t.Errorf("%d inputs, counters %+v", len(inputs), counters)
				}
				weight := dequantizer(t, o.Model)
				routes := choices(t, events)
				began := map[layerRun]int64{} // the first op that reads an expert
				for _, op := range eventsOf[*event.Op](events) {
					if op.ByExpert {
						at := layerRun{op.Decode, op.Graph, layerOf(t, op)}
						began[at] = cmp.Or(began[at], op.Time)
					}
				}
				right, prompts, generated := 0, 0, 0
				rows := map[layerRun]map[event.Point]int{}
				for i := range inputs {
					e := &inputs[i]
					at := layerRun{e.Decode, e.Graph, e.Layer}
					if rows[at] == nil {
						rows[at] = map[event.Point]int{}
					}
					if e.Row != rows[at][e.Point] || e.Decode == 0 || e.TID == 0 || e.PID == 0 || e.Time > began[at] {
						t.Fatalf("layer %d, %v: row %d of %d, want %d; at %d, experts at %d", e.Layer, e.Point, e.Row,
							e.Rows, rows[at][e.Point], e.Time, began[at])
					}
					rows[at][e.Point]++
					kind := "attn"
					if e.Point == event.PointRouter {
						kind = "ffn"
						matrix, tensor := weight("blk.%d.ffn_gate_inp.weight", e.Layer)
						if len(e.Values) != int(tensor.Shape[0]) || e.Rows != len(routes[at]) {
							t.Fatalf("%d values, shape %v; %d rows, %d choices", len(e.Values), tensor.Shape, e.Rows,
								len(routes[at]))
						}
						want := slices.Sorted(slices.Values(routes[at][e.Row]))
						if got := topRows(matrix, e.Values, len(want)); !slices.Equal(got, want) {
							t.Errorf("layer %d, row %d of %d: the router's matrix chooses %v, the target %v", e.Layer,
								e.Row, e.Rows, got, want)
						} else {
							right++
						}
						if e.Rows > 1 {
							prompts++
						} else {
							generated++
						}
					}
					norm, _ := weight("blk.%d.%s_norm.weight", e.Layer, kind)
					if m := normMeanSquare(e.Values, norm); math.Abs(m-1) > 0.1 { // the norm adds an epsilon
						t.Errorf("layer %d, %v, row %d: no norm's result, its mean square is %g", e.Layer, e.Point,
							e.Row, m)
					}
				}
				for at := range routes {
					if rows[at][event.PointRouter] != len(routes[at]) ||
						rows[at][event.PointAttention] < len(routes[at]) {
						t.Errorf("%+v: %d rows of choices, inputs of %v", at, len(routes[at]), rows[at])
					}
				}
				if prompts == 0 || generated < o.Tokens-1 {
					t.Errorf("inputs of %d rows of prompts, %d single ones", prompts, generated)
				}
				t.Logf("%d rows of routers' inputs, %d chosen right", prompts+generated, right)
			})
		}
	}
}

// One in N tokens is reported. Of decodes of one token, that is the first and every Nth after it.
// Of a batch, it is the last row and others before it, as many as were wanted.
func TestInputsOfSome(t *testing.T) {
	in, o := llamaOptions(t, moe)
	o.Tokens = 9
	for _, tc := range []struct {
		every, most int
	}{{2, 0}, {3, 2}, {1, 1}, {100, 0}} {
		events, _ := watch(t, Options{Inputs: tc.every, InputRows: tc.most}, in.Command(t.Context(), o), nil)
		tokens, singles, wanted := map[uint32]int32{}, 0, map[uint32]bool{}
		for _, d := range eventsOf[event.DecodeBegin](events) {
			tokens[d.Decode] = d.Tokens
			if wanted[d.Decode] = d.Tokens != 1; d.Tokens == 1 {
				wanted[d.Decode] = singles%tc.every == 0
				singles++
			}
		}
		rows := map[uint32][]int{} // of the first layer's attention, which all tokens pass
		for _, e := range eventsOf[event.RouterInput](events) {
			if !wanted[e.Decode] {
				t.Fatalf("one in %d: an input of decode %d, of %d tokens", tc.every, e.Decode, tokens[e.Decode])
			}
			if e.Layer == 0 && e.Point == event.PointAttention {
				rows[e.Decode] = append(rows[e.Decode], e.Row)
			}
		}
		for decode, want := range wanted {
			if !want {
				continue
			}
			n := int(tokens[decode])
			got, most := rows[decode], cmp.Or(tc.most, defaultInputRows)
			stride := max(tc.every, (n+most-1)/most)
			if len(got) != (n-1)/stride+1 || got[len(got)-1] != n-1 || len(got) > most {
				t.Fatalf("one in %d, at most %d: rows %v of %d", tc.every, most, got, n)
			}
			for i := range got[1:] {
				if got[i+1]-got[i] != stride {
					t.Errorf("one in %d, at most %d: rows %v of %d", tc.every, most, got, n)
				}
			}
		}
		if len(wanted) < 10 || singles < 8 {
			t.Errorf("%d decodes, %d of one token", len(wanted), singles)
		}
	}
}

// Inputs can be switched off and on again, for the decodes that begin after that.
func TestTellInputs(t *testing.T) {
	in, o := llamaOptions(t, moe)
	o.Tokens = 400
	cmd := in.Command(t.Context(), o)
	cmd.Stdout, cmd.Stderr = io.Discard, os.Stderr
	child, err := proc.Launch(cmd)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(Options{PID: child.PID(), Hints: cmd.Args, Inputs: 1, AtOnce: true, Interval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := tr.AttachLikely(cmd.Path, os.Environ()); err != nil {
		t.Fatal(err)
	}
	type change struct{ before, after int64 }
	var changes []change // off, on
	begun, told := map[uint32]int64{}, map[uint32]bool{}
	now := func() int64 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Error(err)
		}
		return ts.Nano()
	}
	since := 0 // decodes that began after the last change
	runToEnd(t, tr, child, child.Release, func(e event.Event) error {
		switch e := e.(type) {
		case event.RouterInput:
			told[e.Decode] = true
		case event.DecodeBegin:
			begun[e.Decode] = e.Time
			if len(changes) == 0 || e.Time > changes[len(changes)-1].after {
				since++
			}
			if since < 40 || len(changes) == 2 {
				return nil
			}
			c := change{before: now()}
			if err := tr.WantInputs(len(changes) == 1); err != nil {
				return err
			}
			c.after = now()
			changes, since = append(changes, c), 0
		}
		return nil
	})
	if len(changes) != 2 || since < 10 {
		t.Fatalf("%d changes, %d decodes after the last one", len(changes), since)
	}
	off, on := changes[0], changes[1]
	// The program checks whether inputs are wanted within moment (in ns) after it noted a decode's
	// begin.
	const moment = 10e6
	silent := 0
	for decode, at := range begun {
		switch is := told[decode]; {
		case (at < off.before-moment || at > on.after) && !is:
			t.Errorf("decode %d has no inputs, though they were wanted", decode)
		case at > off.after && at < on.before-moment && is:
			t.Errorf("decode %d has inputs, though they were not wanted", decode)
		case at > off.after && at < on.before-moment:
			silent++
		}
	}
	if silent == 0 {
		t.Error("no decode begins while inputs are not wanted")
	}
}

// Rows that the ring buffer has no room for are counted. Rows that are handed over are complete.
func TestInputsLost(t *testing.T) {
	in, o := llamaOptions(t, moe)
	o.Tokens = 40
	run := func(ring uint32, slow bool) (n int, c event.Counters) {
		each := func(e event.Event) {
			if r, is := e.(event.RouterInput); is {
				if len(r.Values) != moe.Embd {
					t.Errorf("a row of %d values, want %d", len(r.Values), moe.Embd)
				}
				if slow {
					time.Sleep(20 * time.Millisecond)
				}
				slow = false
			}
		}
		opts := Options{Inputs: 1, RingBytes: ring}
		events, _, c := watchLossy(t, opts, in.Command(t.Context(), o), func(*proc.Child) {}, each)
		return len(eventsOf[event.RouterInput](events)), c
	}
	all, whole := run(8<<20, false)
	some, lossy := run(16<<10, true)
	if whole.InputsLost != 0 || whole.InputsSent != uint64(all) || all == 0 {
		t.Errorf("%d inputs, counters %+v", all, whole)
	}
	if lossy.InputsLost == 0 || lossy.InputsSent != uint64(some) ||
		lossy.InputsSent+lossy.InputsLost != whole.InputsSent || lossy.Lost() < lossy.InputsLost {
		t.Errorf("of %d inputs %d were handed over, counters %+v", all, some, lossy)
	}
}

// Options that contradict each other are refused.
func TestInputsRefused(t *testing.T) {
	for _, opts := range []Options{{Inputs: -1}, {InputRows: -1}, {Inputs: 1, Detail: DetailGraph}} {
		opts.PID = unix.Getpid()
		if tr, err := New(opts); err == nil {
			t.Errorf("New(%+v): no error", opts)
			tr.Close()
		}
	}
}
