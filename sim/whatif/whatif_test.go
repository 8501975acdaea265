package whatif

// These tests estimate for a cyclic scan, whose results are known.

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"tensorcast/sim/reuse"
)

// cycle returns the reads of n steps, each of which reads all of a model of 100 MB, in blocks of 1
// MB.
func cycle(t *testing.T, n int) *reuse.Sequence {
	t.Helper()
	s := reuse.New(1e6, nil, 1)
	for range n {
		s.Step()
		if err := s.Read(0, 0, 100e6); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// never is a cancelled function for Ask that never cancels.
func never() error { return nil }

// The reads are a cyclic scan. LRU reads all of it unless all fits. A fixed set reads what does not
// fit. Reading ahead takes the longer of reading and computing.
func TestCycle(t *testing.T) {
	c := Config{Sequence: cycle(t, 21), From: 1, Compute: 20 * time.Millisecond, Bandwidth: 1e9, TokensPerStep: 1}
	a, err := c.Estimate([]int64{85e6, 50e6, 100e6}, never)
	if err != nil {
		t.Fatal(err)
	}
	if a.Steps != 20 || a.WorkingSet != 100e6 || a.PerToken != 100e6 {
		t.Errorf("%d steps, %d bytes, %g per token; want a.Steps = 20, a.WorkingSet = 100e6, a.PerToken = 100e6",
			a.Steps, a.WorkingSet, a.PerToken)
	}
	for i, want := range []struct{ lru, pin, stream, pinned float64 }{
		{1 / 0.120, 1 / 0.035, 1 / 0.020, 15e6}, // 15 ms of reading are hidden by 20 of computing
		{1 / 0.120, 1 / 0.070, 1 / 0.050, 50e6},
		{1 / 0.020, 1 / 0.020, 1 / 0.020, 0},
	} {
		r := a.Rows[i].Results
		if !near(r[0].TokS, want.lru) || !near(r[3].TokS, want.pin) || !near(r[4].TokS, want.stream) ||
			r[4].Missed != want.pinned {
			t.Errorf("with %d bytes %+v, want %+v", a.Rows[i].Memory, r, want)
		}
		bound := r[len(r)-1]
		for j, other := range r {
			// a fixed set needs no room for blocks that stream through, but Belady holds them
			if other.TokS > bound.TokS*1.03 {
				t.Errorf("%s is faster than the bound: %g and %g; want at most %v", a.Strategies[j].Name, other.TokS,
					bound.TokS, bound.TokS*1.03)
			}
		}
	}
	// Two tokens in a step read once for both, and compute twice as long.
	c.TokensPerStep, c.Compute = 2, 2*c.Compute
	two, err := c.Estimate([]int64{50e6}, never)
	if err != nil {
		t.Fatal(err)
	}
	if r := two.Rows[0].Results; !near(r[0].TokS, 2/0.140) || !near(r[4].TokS, 2/0.050) || r[4].Missed != 25e6 ||
		two.PerToken != 50e6 {
		t.Errorf("two tokens in a step: %+v", r)
	}
}

func near(a, b float64) bool { return a > b*0.9999 && a < b*1.0001 }

// The answer is given in words, as tables, as JSON and as a figure.
func TestTold(t *testing.T) {
	c := Config{Sequence: cycle(t, 5), From: 1, Compute: time.Millisecond, Bandwidth: 1e9, TokensPerStep: 1}
	a, err := c.Estimate([]int64{50e6}, never)
	if err != nil {
		t.Fatal(err)
	}
	a.Blocks, a.ComputeFrom = "folios", "as it was said"
	all := Answers{a}
	var text, picture bytes.Buffer
	if err := all.Document().WriteText(&text); err != nil || !strings.Contains(text.String(), "50 %") ||
		!strings.Contains(text.String(), "as it was said") || strings.Count(text.String(), "the bound") != 1 {
		t.Errorf("error %v, text %q; want it with 50 %%, what was said, and the bound once", err, text.String())
	}
	if _, err := json.Marshal(a); err != nil {
		t.Error(err)
	}
	columns := all.Columns()
	if got := columns[3].Values.([]string); len(got) != len(a.Strategies) || got[4] != "pin + stream" {
		t.Errorf("strategies %q; want len(got) = %v, got[4] = \"pin + stream\"", got, len(a.Strategies))
	}
	curve := all.CurveColumns()
	if sizes, ratio := curve[1].Values.([]int64), curve[2].Values.([]float64); len(sizes) != 2 || sizes[1] != 100e6 ||
		ratio[0] != 1 || ratio[1] != 0 {
		t.Errorf("curve %v, %v", sizes, ratio)
	}
	if err := all.Figure().Write(&picture, "svg"); err != nil || !strings.Contains(picture.String(), "Belady") {
		t.Errorf("%v; want text with \"Belady\"", err)
	}
}

// Questions that cannot be answered give an error.
func TestRefuses(t *testing.T) {
	stop := errors.New("stop")
	for name, c := range map[string]Config{
		"one step":   {Sequence: cycle(t, 1), From: 1, Compute: 1, Bandwidth: 1},
		"no compute": {Sequence: cycle(t, 3), From: 1, Bandwidth: 1},
		"no disk":    {Sequence: cycle(t, 3), From: 1, Compute: 1},
	} {
		if _, err := c.Estimate([]int64{1}, never); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one in one line", name, err)
		}
	}
	c := Config{Sequence: cycle(t, 3), From: 1, Compute: 1, Bandwidth: 1}
	if _, err := c.Estimate([]int64{1}, func() error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// The strategies of prefetchd are estimated if its behaviour is known. The other results stay the
// same.
func TestPrefetchd(t *testing.T) {
	c := Config{
		Sequence: cycle(t, 5), From: 1, Compute: time.Millisecond, Bandwidth: 2e9, Touched: 1e9,
		TokensPerStep: 1,
	}
	some, err := c.Estimate([]int64{50e6}, never)
	if err != nil {
		t.Fatal(err)
	}
	c.Pinned = func(memory int64) Pinned {
		return Pinned{Kept: []reuse.Extent{{Bytes: 30e6}}, Rest: memory - 30e6}
	}
	c.Helped = func(memory int64) (float64, time.Duration) { return float64(100e6 - memory), 40 * time.Millisecond }
	all, err := c.Estimate([]int64{50e6}, never)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(all.Strategies); n != len(all.Rows[0].Results) || len(some.Strategies) != n-2 ||
		len(some.Rows[0].Results) != n-2 {
		t.Fatalf("rows %+v with prefetchd and %+v without, want two strategies more", all.Rows, some.Rows)
	}
	j := 0
	for i, s := range all.Strategies {
		switch got := all.Rows[0].Results[i]; s.Name {
		case Pin: // the cyclic scan of the rest always misses
			if got.Missed != 70e6 || !near(got.TokS, 1/0.071) {
				t.Errorf("%s: %+v, want 70 MB missed at %g tokens per second", s.Name, got, 1/0.071)
			}
		case Auto:
			if got.Missed != 50e6 || !near(got.TokS, 25) {
				t.Errorf("%s: %+v, want 50 MB missed at 25 tokens per second", s.Name, got)
			}
		default:
			if some.Strategies[j].Name != s.Name || some.Rows[0].Results[j] != got {
				t.Errorf("%s: %+v, want %+v as without prefetchd", s.Name, got, some.Rows[0].Results[j])
			}
			j++
		}
	}
	c.Helped, c.Chosen = nil, true // as with pin, because no experts are chosen
	chosen, err := c.Estimate([]int64{50e6}, never)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range chosen.Strategies {
		if got := chosen.Rows[0].Results[i]; s.Name == Auto && (got.Missed != 70e6 || !near(got.TokS, 1/0.071)) {
			t.Errorf("chosen: %+v", got)
		}
	}
}

// Several numbers of tokens per step have a panel each. Miss-ratio curves that are the same are one, with all its
// names.
func TestToldOfSeveral(t *testing.T) {
	var all Answers
	for _, tokens := range []int{1, 2, 4} {
		c := Config{
			Sequence: cycle(t, 9), From: 1, Compute: time.Duration(tokens) * time.Millisecond, Bandwidth: 1e9,
			TokensPerStep: tokens,
		}
		if tokens == 1 { // what prefetchd does for several tokens together is not known here
			c.Helped = func(int64) (float64, time.Duration) { return 0, 20 * time.Millisecond }
		}
		a, err := c.Estimate([]int64{50e6}, never)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	// The whole model is read, and half of it is streamed while a step computes.
	gains := [][]string{{"48 MiB", "plain", "9.9", "19.6", "38.5"}, {"48 MiB", "prefetchd", "50", "-", "-"},
		{"48 MiB", "Belady", "20", "40", "80"}}
	if got := all.gains().Rows; !reflect.DeepEqual(got, gains) {
		t.Errorf("tokens per second by tokens per step are %q, want %q", got, gains)
	}
	if f := all.Figure(); len(f.Panels) != 3 || f.Low <= 0 ||
		!strings.HasSuffix(f.Panels[2].Title, "tokens per step: 4") {
		t.Errorf("figure %+v, want three panels on a logarithmic axis", f)
	}
	if f := all.MissFigure(); len(f.Panels[0].Curves) != 1 ||
		f.Panels[0].Curves[0].Name != "LRU, tokens per step: 1, 2, 4" {
		t.Errorf("curves %+v, want one with three names", f.Panels[0].Curves)
	}
	var text bytes.Buffer
	if err := all.Document().WriteText(&text); err != nil || strings.Count(text.String(), "the bound") != 1 ||
		!strings.Contains(text.String(), "tokens per second, by tokens per step") {
		t.Errorf("error %v, text %s", err, text.String())
	}
}
