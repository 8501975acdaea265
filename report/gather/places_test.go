package gather

// This file tests what pictures show of where and when is read, and of what steps spent their time with, on planted
// rows.

import (
	"math"
	"testing"

	"tensorcast/report"
	"tensorcast/trace/tables"
)

// readEverything is a collector of steps that each read all of so many tensors of 3 MiB in order, for the whole step.
func readEverything(t *testing.T, tensors, steps int) *Collector {
	t.Helper()
	const size = 3 << 20
	var structure []tables.StructureRow
	for i := range tensors {
		structure = append(structure, tables.StructureRow{
			Name: "t", File: "m.gguf", Offset: int64(i) * size, Size: size, Layer: int32(i),
		})
	}
	var rows []tables.StepRow
	for i := range steps {
		rows = append(rows, tables.StepRow{
			Step: int32(i), Phase: tables.PhaseGeneration, Tokens: 1, Begin: int64(i) * 1e9, End: int64(i+1) * 1e9,
		})
	}
	c := New(structure, 0, 0, rows)
	for step := range steps {
		for i := range tensors {
			if err := c.Access(&tables.Access{
				Step: int32(step), Tensor: int32(i), Offset: structure[i].Offset, Bytes: size,
				Stall:     tables.NotObserved,
				Timestamp: int64(step)*1e9 + int64(i)*1e9/int64(tensors), Duration: 1e9 / int64(tensors),
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return c
}

// What is read evenly looks even, however many tensors and steps there are: every step looks like every other, and
// where a column has whole steps, all of the file is read in it. Of taking every n-th read, waves were seen here.
func TestPlacesAreEven(t *testing.T) {
	for _, tc := range []struct{ tensors, steps int }{
		{147, 34}, {291, 33}, {7, 195}, {7, 500}, {147, 1000}, {13, 2048}, {13, 2049}, {50, 3001}, {3, 20_000},
	} {
		c := readEverything(t, tc.tensors, tc.steps)
		f := c.OffsetsFigure("t")
		perStep := float64(f.Columns) / f.To
		if f.Columns > drawnColumns || f.Rows != placeRows || f.To < float64(tc.steps) ||
			f.To > 1.01*float64(tc.steps)+1 {
			t.Errorf("%+v: a figure of %d columns for %g steps", tc, f.Columns, f.To)
		}
		for row := range f.Rows {
			sum := 0.0
			for column := range f.Columns {
				_, drawn := f.Cell(column, row)
				share := drawn * drawn // see drawn
				sum += share
				if period := int(perStep); perStep >= 1 {
					if _, first := f.Cell(column%period, row); math.Abs(drawn-first) > 0.01 {
						t.Fatalf("%+v: the cell %d, %d has %g, and in the first step %g", tc, column, row, drawn, first)
					}
				} else if math.Abs(share-1) > 1e-3 {
					t.Fatalf("%+v: of the cell %d, %d %g is read, want all", tc, column, row, share)
				}
			}
			if perStep >= 1 && math.Abs(sum-float64(tc.steps)) > 1e-2*float64(tc.steps) {
				t.Fatalf("%+v: row %d is read %g times, want once in each of %d steps", tc, row, sum, tc.steps)
			}
		}
	}
}

// The files of a model lie one behind the other. What another model reads is not among them.
func TestPlacesOfParts(t *testing.T) {
	p := newPlaces([]tables.StructureRow{
		{File: "m-2.gguf", Offset: 0, Size: 300}, {File: "m-1.gguf", Offset: 50, Size: 50},
		{File: "d.gguf", Size: 7, Model: 1},
	}, 0, 1)
	if p.size != 400 || p.begins["m-1.gguf"] != 0 || p.begins["m-2.gguf"] != 100 || p.columns != placeColumns {
		t.Fatalf("places %+v, want 400 bytes", p)
	}
	p.add("d.gguf", 0, 7, 0, 0, 1, gapLarge)
	if !p.isEmpty() {
		t.Error("what another model reads is a read of this one")
	}
	p.add("m-2.gguf", 0, 300, 0, 0.5, 0.5, gapLarge)
	if _, share := p.merged(1)(placeColumns/2, placeRows/4); share < 0.999 {
		t.Errorf("%g of the second part is read, want all", share)
	}
	if _, share := p.merged(1)(placeColumns/2, placeRows/4-1); share != 0 {
		t.Errorf("%g of the first part is read, want nothing", share)
	}
}

// Figures are per token, of all generated tokens but the first. What was nothing has no panel, and without anything
// read again there is no figure of it.
func TestFiguresPerToken(t *testing.T) {
	c := planted(t, 6, true) // step 3 of the tokens in steps 1 to 5 reads half a MiB of blk.1.a again, and waits 80 ms
	layers := c.LayersFigure("layers")
	if want := "layers, per token (mean of 4 generated tokens)"; layers.Title != want {
		t.Errorf("title %q, want %q", layers.Title, want)
	}
	got := map[string][]float64{}
	for _, p := range layers.Panels {
		for _, part := range p.Parts {
			got[p.XLabel+part.Name] = part.Values
		}
	}
	for name, want := range map[string][]float64{
		"reads per token": {1, 1, 1}, "read (MiB per token)": {0.5, 1, 1}, "time of ops (ms per token)": {10, 10, 10},
		"from disk (MiB per token)first time": {0, 1. / 16 / 4, 0}, "from disk (MiB per token)again": {0, 0, 0.125},
		"waiting for disk (ms per token)": {0, 0, 20},
	} {
		for i, v := range want {
			if values := got[name]; len(values) != 3 || math.Abs(values[i]-v) > 1e-9 {
				t.Errorf("%s is %v, want %v", name, values, want)
				break
			}
		}
	}
	if len(got) != 6 {
		t.Errorf("panels %v, want 5", got)
	}
	if r := c.RereadsFigure("r"); len(r.Labels) != 1 || r.Labels[0] != "blk.1.a" || len(r.Panels) != 3 {
		t.Errorf("figure of re-reads %+v, want that of blk.1.a", r)
	}
	phases := c.PhasesFigure("phases")
	if len(phases.Labels) != 2 || phases.Labels[0] != "prompt (tokens: 7)" ||
		math.Abs(phases.Panels[2].Parts[0].Values[0]-2.5/7) > 1e-9 || phases.Panels[2].Parts[0].Values[1] != 2.5 {
		t.Errorf("figure of phases %+v, want 2.5 MiB for 7 tokens of a prompt, and for each generated one", phases)
	}
	gaps := c.GapsFigure("gaps")
	if v := gaps.Panels[0].Parts[0].Values; v[gapBackLarge] != 2 || v[gapLarge] != 1 || v[gapSequential] != 0 {
		t.Errorf("gaps %v per token, want two back and one ahead", v)
	}
	// Without io detail there is nothing from disk, and nothing of waiting.
	less := planted(t, 6, false)
	if r := less.RereadsFigure("r"); len(r.Labels) != 0 {
		t.Errorf("a figure of re-reads %+v where nothing was read again", r)
	}
	if f := less.LayersFigure("l"); len(f.Panels) != 3 {
		t.Errorf("%d panels, want 3: %+v", len(f.Panels), f.Panels)
	}
}

// The time of a token is told apart into computing, waiting and the rest. What is not known is not told apart.
func TestSpeed(t *testing.T) {
	c := planted(t, 6, true)
	s := c.speed(15e6)
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	for i, want := range [][partCount]float64{
		{math.NaN(), 0, math.NaN()}, {0.015, 0, 0.085}, {0.015, 0, 0.085}, {0.015, 0.08, 0.005},
	} {
		for part, v := range want {
			if got := s.Parts[part].Seconds[i]; !near(got, v) && got == got || (got == got) != (v == v) {
				t.Errorf("step %d: %s takes %g s, want %g", i, s.Parts[part].Name, got, v)
			}
		}
	}
	if s.Tokens[0] != 7 || !near(s.Seconds[0], 0.1) || !near(s.Possible, 1/0.015) || s.Begins[3] != 3 {
		t.Errorf("speed %+v, want 7 tokens in 0.1 s at first", s)
	}
	// The figure's scale is that of generated tokens, and so the bar of the prompt is cut.
	f := c.SpeedFigure("t", 15e6)
	if f.Values[0] < 69 || f.High > 11 || f.Bound <= f.High || !near(f.Parts[1].Shares[3], 0.8) {
		t.Errorf("figure up to %g with bars %v and a bound of %g", f.High, f.Values, f.Bound)
	}
	if c := New(structure, 0, 0, []tables.StepRow{{Begin: 5, End: tables.NotObserved}}); c.speed(1) != nil {
		t.Error("a capture without times has a speed")
	}
	// A few steps that are many times as fast do not take the scale from the others.
	if end := scaleEnd([]float64{5, 4, 6, 5, 5, 4, 6, 5, 5, 6, 4, 5, 900}); end < 6 || end > 18 {
		t.Errorf("the scale ends at %g, want about three times the usual", end)
	}
	if end := scaleEnd([]float64{5, 4, 9}); end != 9 {
		t.Errorf("the scale ends at %g, want 9", end)
	}
	// Many steps share bars: as many tokens in as much time.
	long := readEverything(t, 1, 10*mostSpeedBars+3).SpeedFigure("t", 0)
	if len(long.Values) > mostSpeedBars || !near(long.Values[0], 1) || !near(long.Values[len(long.Values)-1], 1) {
		t.Errorf("%d bars %v, want at most %d of a token per second", len(long.Values), long.Values, mostSpeedBars)
	}
}

// Spans are the time before the first step, and the phases. A pause makes two of one.
func TestSpans(t *testing.T) {
	row := func(step int32, phase tables.Phase, begin, end float64) tables.StepRow {
		return tables.StepRow{Step: step, Phase: phase, Tokens: 3, Begin: int64(begin * 1e9), End: int64(end * 1e9)}
	}
	c := New(structure, 0, 0, []tables.StepRow{
		row(0, tables.PhasePrompt, 2, 3), row(1, tables.PhaseGeneration, 3, 3.5),
		row(2, tables.PhaseGeneration, 3.6, 4), row(3, tables.PhaseGeneration, 9, 10),
	})
	c.ObservePageIns()
	c.PageIn(&tables.PageInRow{Step: -1, Tensor: -1, Bytes: 1 << 20, Timestamp: 1e9})
	c.PageIn(&tables.PageInRow{Step: 2, Tensor: 0, Bytes: 1 << 21, Timestamp: 37e8})
	all := c.spans()
	want := []report.Span{
		{Class: report.Class{Name: "start"}, Begin: 0, End: 2},
		{Class: report.Class{Name: "prompt"}, Begin: 2, End: 3, About: "steps: 1, tokens: 3, 0 B from disk"},
		{Class: report.Class{Name: "generation"}, Begin: 3, End: 4, About: "steps: 2, tokens: 6, 2.0 MiB from disk"},
		{Class: report.Class{Name: "generation"}, Begin: 9, End: 10, About: "steps: 1, tokens: 3, 0 B from disk"},
	}
	want[0].About = "before the first step: the program starts and loads the model, 1.0 MiB from disk"
	if len(all) != len(want) {
		t.Fatalf("spans %+v, want %+v", all, want)
	}
	for i := range want {
		want[i].Color = all[i].Color
		if all[i] != want[i] {
			t.Errorf("span %d is %+v, want %+v", i, all[i], want[i])
		}
	}
	// However often a target pauses, there are not more spans than a page shows.
	var rows []tables.StepRow
	for i := range int32(5000) {
		rows = append(rows, row(i, tables.Phase(1+i%2), float64(10*i), float64(10*i+1)))
	}
	if n := len(New(structure, 0, 0, rows).spans()); n > mostSpans {
		t.Errorf("%d spans, want at most %d", n, mostSpans)
	}
}

// A prompt does not take the scale of a heatmap from generated tokens.
func TestGridScaleOfPhase(t *testing.T) {
	g := &Grid{Name: GridDisk, Rows: make([]report.Row, 1), At: func(_, step int) float64 {
		return []float64{1000, 4, 10}[step]
	}}
	generated := tables.StepRow{Phase: tables.PhaseGeneration}
	steps := []tables.StepRow{{Phase: tables.PhasePrompt}, generated, generated}
	m, scale, err := gridMatrix(g, []int{0}, steps, tables.PhaseGeneration)
	if err != nil || scale.most != 10 || m.Values[0] != 100 || m.Values[1] != 0.4 {
		t.Errorf("values %v on a scale to %g, error %v; want it to end at 10", m.Values, scale.most, err)
	}
	if ticks := scale.ticks("B"); ticks[len(ticks)-1].Label != "10 B and more" {
		t.Errorf("the last tick is %q, want that there is more", ticks[len(ticks)-1].Label)
	}
}
