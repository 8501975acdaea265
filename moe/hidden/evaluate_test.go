package hidden

// This file tests evaluations on captures of a planted mixture.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tensorcast/event"
	"tensorcast/moe"
	"tensorcast/trace/tables"
)

// recorded is a capture of a planted mixture: a trace, and the rows of its hidden table. Each step has
// several tokens.
func recorded(t testing.TB, r *Routers, tokens, perStep int) (*moe.Trace, []*tables.HiddenRow) {
	t.Helper()
	return record(t, newFlow(t, rand.New(rand.NewPCG(3, 4)), r, 0.1), tokens, perStep)
}

func record(t testing.TB, f *flow, tokens, perStep int) (*moe.Trace, []*tables.HiddenRow) {
	t.Helper()
	r := f.r
	var routes []tables.Route
	var rows []*tables.HiddenRow
	steps := map[int32]moe.Step{}
	empty := &moe.Trace{Experts: r.Experts}
	for _, block := range r.Blocks {
		empty.Layers = append(empty.Layers, moe.Layer{Number: block, Bytes: 1})
	}
	for step := int32(0); int(step)*perStep < tokens; step++ {
		steps[step] = moe.Step{Phase: moe.Prompt}
		var in [][]layerInputs
		var chosen [][][]int32
		for range perStep {
			i, c := f.token()
			in, chosen = append(in, i), append(chosen, c)
		}
		for layer, block := range r.Blocks {
			for position := range int32(perStep) {
				row := func(point event.Point, x []float32) {
					rows = append(rows, &tables.HiddenRow{
						Step: step, Layer: block, Point: point, Position: position, Values: x,
					})
				}
				row(event.PointAttention, in[position][layer].attention)
				row(event.PointRouter, in[position][layer].router)
				for slot, e := range chosen[position][layer] {
					routes = append(routes, tables.Route{
						Step: step, Layer: block, Slot: int32(slot), Expert: e, Position: position,
					})
				}
			}
		}
	}
	tr, err := moe.FromRoutes(empty, func(yield func(tables.Route, error) bool) {
		for _, r := range routes {
			if !yield(r, nil) {
				return
			}
		}
	}, steps)
	if err != nil {
		t.Fatal(err)
	}
	return tr, rows
}

func yielding(rows []*tables.HiddenRow, last error) iter.Seq2[*tables.HiddenRow, error] {
	return func(yield func(*tables.HiddenRow, error) bool) {
		var reused tables.HiddenRow
		for _, r := range rows {
			values := append(reused.Values[:0], r.Values...)
			reused = *r
			reused.Values = values
			if !yield(&reused, nil) {
				return
			}
		}
		if last != nil {
			yield(nil, last)
		}
	}
}

func (st *Study) find(t testing.TB, name string, lead int) *Result {
	t.Helper()
	i := slices.IndexFunc(st.Results, func(r Result) bool { return r.Name == name && r.Lead == lead })
	if i < 0 {
		t.Fatalf("no result of %s, %d ahead", name, lead)
	}
	return &st.Results[i]
}

// An evaluation finds what the predictors know, in steps of one token and of several.
func TestEvaluate(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 4, 40, 16, 2)
	r.Blocks = []int32{1, 2, 5, 6} // there are blocks without experts between them
	const tokens = 600
	for _, perStep := range []int{1, 50} {
		tr, rows := recorded(t, r, tokens, perStep)
		st, err := Evaluate(t.Context(), tr, r, yielding(rows, nil), tr.Split())
		if err != nil {
			t.Fatal(err)
		}
		if st.Trained != tokens/2 || st.Scored != tokens/2 || st.Inputs != int64(len(rows)) || len(st.Results) != 11 {
			t.Errorf("study %+v, want 11 results on %d tokens and %d rows", st, tokens/2, len(rows))
		}
		for _, lead := range []int{0, 1} {
			guess, learned := st.find(t, nameGuess, lead), st.find(t, nameLinks, lead)
			if all := st.find(t, nameAll, lead); guess.At(1).Recall < 0.25 ||
				learned.At(1).Recall < guess.At(1).Recall+0.05 || all.At(2).Recall < learned.At(2).Recall-0.03 ||
				all.Curve[0] == 0 || all.ByLayer[1] == 0 || all.ByLayer[0] != 0 {
				t.Errorf("%d tokens a step, lead %d: the guess is not good, or not the worst: %+v\n%+v\n%+v", perStep,
					lead, guess, learned, all)
			}
		}
		if a, b := st.find(t, nameAll, 2).At(1).Recall, st.find(t, nameAll, 1).At(1).Recall; a >= b ||
			a < st.find(t, nameIDs, 2).At(1).Recall+0.05 {
			t.Errorf("recall %.3f 2 ahead, %.3f 1 ahead, want less 2 ahead, but more than by ids", a, b)
		}
		var text strings.Builder
		if err := st.Document().WriteText(&text); err != nil || !strings.Contains(text.String(), nameGuess) ||
			strings.Contains(text.String(), "NaN") {
			t.Errorf("error %v, document\n%s", err, text.String())
		}
		if _, err := json.Marshal(st); err != nil {
			t.Errorf("the study is no JSON: %v", err)
		}
	}
}

// Where layers have nothing to do with each other, an evaluation finds nothing: no predictor sees what
// comes later.
func TestEvaluateNothing(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 4, 24, 16, 2)
	f := newFlow(t, rand.New(rand.NewPCG(3, 4)), r, 0)
	f.fresh = true
	tr, rows := record(t, f, 1200, 20)
	st, err := Evaluate(t.Context(), tr, r, yielding(rows, nil), 300)
	if err != nil {
		t.Fatal(err)
	}
	ids := st.find(t, nameIDs, 1).At(1).Recall
	for _, res := range st.Results {
		if got := res.At(1).Recall; got > ids+0.02 || got > 0.22 {
			t.Errorf("%s, %s: recall %.3f, want that of ids, %.3f", res.When, res.Name, got, ids)
		}
	}
}

// Inputs were recorded of one token in three. Only those tokens are scored and learned from.
func TestEvaluateSome(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 3, 24, 8, 2)
	tr, rows := recorded(t, r, 300, 1)
	rows = slices.DeleteFunc(rows, func(r *tables.HiddenRow) bool { return r.Step%3 != 0 })
	st, err := Evaluate(t.Context(), tr, r, yielding(rows, nil), 0)
	if err != nil || st.Scored != 100 || st.find(t, nameAll, 1).At(1).Recall < 0.3 {
		t.Errorf("error %v, study %+v, want 100 tokens scored", err, st)
	}
}

func TestEvaluateRefuses(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 3, 24, 8, 2)
	tr, rows := recorded(t, r, 20, 1)
	other := planted(rand.New(rand.NewPCG(1, 2)), 3, 32, 8, 2)
	fewer := planted(rand.New(rand.NewPCG(1, 2)), 2, 24, 8, 2)
	more := planted(rand.New(rand.NewPCG(1, 2)), 3, 24, 16, 2)
	mixed := slices.Concat(rows[30:60], rows[:30], rows[60:])
	damaged := fmt.Errorf("a damaged row: %w", fs.ErrInvalid)
	for name, tc := range map[string]struct {
		r    *Routers
		rows []*tables.HiddenRow
		last error
		want error
	}{
		"no rows":       {r, nil, nil, ErrNoInputs},
		"other width":   {other, rows, nil, ErrNoInputs},
		"fewer layers":  {fewer, rows, nil, ErrNoRouters},
		"other experts": {more, rows, nil, ErrNoRouters},
		"damaged":       {r, rows, damaged, fs.ErrInvalid},
	} {
		if _, err := Evaluate(t.Context(), tr, tc.r, yielding(tc.rows, tc.last), 10); !errors.Is(err, tc.want) {
			t.Errorf("%s: error %v, want %v", name, err, tc.want)
		}
	}
	if _, err := Evaluate(t.Context(), tr, r, yielding(mixed, nil), 10); err == nil {
		t.Error("Evaluate took rows of steps that do not ascend, want an error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Evaluate(ctx, tr, r, yielding(rows, nil), 10); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}
