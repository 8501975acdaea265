package pressure

// This file tests what is computed for a mixture of experts, on routes whose least reads are known,
// and what helpers tell.

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/plot/cmpimg"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/trace"
)

// rounds are the routes of one layer with three experts of 100 MB, which are chosen one after the
// other: for a prompt of 3 tokens and 12 generated ones. Besides there is a trunk of 200 MB.
func rounds() *Routes {
	r := &Routes{Trunk: 200e6, Experts: 3, Bytes: []int64{100e6}, Prompt: 3}
	for token := range int32(15) {
		r.IDs, r.Chosen = append(r.IDs, token), append(r.Chosen, [][]int32{{token % 3}})
	}
	return r
}

// mixture is a report of the routes of rounds, at three limits: for two experts beside the trunk,
// for half of the trunk, and for everything.
func mixture(t *testing.T) *Report {
	t.Helper()
	r := &Report{
		Model: ModelInfo{Path: "/models/moe.gguf", Bytes: 550e6, TokenBytes: 300e6, Routed: true}, Own: 100e6,
		Text: "x", Skip: 3, Routes: rounds(),
		Variants:  []Variant{{Name: "plain"}, {Name: "live", Helper: "h"}, {Name: "mute", Helper: "m"}},
		Unlimited: []Run{{TokS: 50, In: Pages, Outcome: Finished, TextSame: true}},
		Readings:  readings(1000),
		Results: []Result{{Limit: 500e6, ReadaheadKiB: 128}, {Limit: 200e6, ReadaheadKiB: 128},
			{Limit: 610e6, ReadaheadKiB: 128}},
	}
	told := &HelperReport{Tokens: 10, TokS: 25, Expected: 30, Streamed: 900e6, Late: 3,
		Beyond: Beyond{Window: 5, Swept: 7},
		Experts: &HelperExperts{Chosen: 10, Missed: 4, Read: 400e6, Speculative: Speculative{Read: 100e6, Used: 60e6},
			Strays: 9}}
	for setting, speeds := range [][]float64{{10, 24, 12}, {4, 3.8, 4}, {48, 47, 49}} {
		for v, speed := range speeds {
			for round := range 2 {
				run := Run{Variant: r.Variants[v].Name, Setting: setting, Round: round,
					Limit: r.Results[setting].Limit, Outcome: Finished, TextSame: true, TokS: speed, P5: speed,
					BytesPerToken: 150e6}
				for range 12 {
					run.TokenMs, run.TokenBytes, run.TokenFaults = append(run.TokenMs, 1000/speed),
						append(run.TokenBytes, int64(1e9/speed)), append(run.TokenFaults, 1)
				}
				run.Tokens = make([]int32, 12)
				switch v {
				case 1:
					run.Helper, run.HelperPerToken, run.HelperSystemMs = &HelperEnd{Report: told}, 100<<20, 12
				case 2:
					run.Helper = &HelperEnd{Output: "hello\n"}
				}
				r.Runs = append(r.Runs, run)
			}
		}
	}
	if err := r.replay(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.summarise()
	return r
}

func near(got, want float64) bool { return math.Abs(got-want) <= 1e-9*math.Abs(want) }

// Where two of three experts fit, one of three tokens has to read an expert. Where only half of the
// trunk fits, the other half and every expert are read for each token.
func TestExpertBound(t *testing.T) {
	r := mixture(t)
	e := r.Results[0].Experts
	for _, reads := range []Reads{e.Whole, e.Steady} {
		if !near(reads.Least, 100e6/3) || !near(reads.Bound, 30) || reads.Causal < reads.Least ||
			reads.Causal > 100e6 || !near(reads.CausalTokS, 1e9/reads.Causal) || reads.Policy == "" {
			t.Errorf("two fit: %+v, want 33.3e6 bytes at least and a bound of 30", reads)
		}
	}
	if !near(e.Share, 2./3) || !near(r.Results[0].Bound, 30) || !near(r.Results[0].SteadyBound, 30) {
		t.Errorf("%+v, %+v; want a share of 2/3 and bounds of 30", e, r.Results[0])
	}
	if e := r.Results[1].Experts; e.Share != 0 || !near(e.Steady.Least, 200e6) || !near(e.Steady.Causal, 200e6) ||
		!near(e.Steady.Bound, 5) || !near(e.Steady.CausalTokS, 5) {
		t.Errorf("half of the trunk: %+v, want 200e6 bytes and a bound of 5", e)
	}
	if e := r.Results[2].Experts; !near(e.Share, 3.1/3) || e.Steady.Least != 0 || !near(e.Steady.Bound, 50) ||
		e.Steady.Causal != 0 || !near(e.Steady.CausalTokS, 50) {
		t.Errorf("all fits: %+v, want no reads and a bound of 50", e)
	}

	plain, live, mute := r.Results[0].Summaries[0], r.Results[0].Summaries[1], r.Results[0].Summaries[2]
	if !near(live.OfBound, 0.8) || !near(live.SteadyOfBound, 0.8) ||
		!near(live.OfCausal, 24/r.Results[0].Experts.Steady.CausalTokS) || !near(live.Stall.Median, 1000./24-20) {
		t.Errorf("%+v, want 0.8 of the bound and a stall of 21.7 ms", live)
	}
	if !near(live.Demand.Median, 40e6) || !near(live.Speculative.Median, 10e6) || !near(live.Expected.Median, 30) ||
		!near(live.OfExpected, 0.8) {
		t.Errorf("told: %+v, want a demand of 40e6, 10e6 speculative, and 0.8 of the expected 30", live)
	}
	if !near(live.System.Median, 120) || plain.System.N != 0 || mute.System.N != 0 {
		t.Errorf("kernel time: %+v, %+v, %+v; want 120, none and none", live.System, plain.System, mute.System)
	}
	if plain.Demand.Median != 100e6 || plain.Speculative.Median != 0 || plain.Speculative.N != 2 ||
		plain.Expected.N != 0 {
		t.Errorf("without a helper: %+v, want a demand of 100e6 and nothing speculative", plain)
	}
	if mute.Demand.N != 0 || mute.Speculative.N != 0 || mute.Stall.N != 2 {
		t.Errorf("a helper that tells nothing: %+v, want no demand and 2 stalls", mute)
	}
	if want := []LeastSpeedup{{"live", 3.8 / 4, 1, 3.8 / 4, 1}, {"mute", 1, 1, 1, 1}}; !slices.Equal(r.Least, want) {
		t.Errorf("least speedups %+v, want %+v", r.Least, want)
	}

	// With another start-up the mean is another one. Of the last three tokens (experts 0, 1 and now
	// 0) none need be missing.
	r.Skip = 9
	r.Routes.Chosen[14] = [][]int32{{0}}
	if err := r.replay(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := r.Results[0].Experts; e.Steady.Least != 0 || e.Whole.Least == 0 {
		t.Errorf("%+v, want no reads in the steady state, and some in all", e)
	}
	// Without tokens after the start-up there is no steady state.
	r.Skip = 12
	if err := r.replay(t.Context()); err != nil || r.Results[0].Experts.Steady != (Reads{}) {
		t.Errorf("%v, %+v; want no steady state", err, r.Results[0].Experts)
	}
	r.summarise()
	if at := r.Results[0]; at.SteadyBound != 0 || at.Bound == 0 || at.Summaries[1].OfCausal == 0 {
		t.Errorf("%+v, want a bound for all tokens only", at)
	}
}

func TestExpertReport(t *testing.T) {
	r := mixture(t)
	var text, markdown strings.Builder
	if err := errors.Join(r.WriteText(&text), r.WriteMarkdown(&markdown)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"experts: 3 in each of 1 layers, 286 MiB in all; every token reads 191 MiB besides; the choices are those " +
			"of a traced run of 12 tokens",
		"67 % of the experts fit, readahead 128 KiB: limit 477 MiB, of which 381 are left for the model; bound: " +
			"30.0 tok/s = min(1/T_compute = 50.0, bandwidth / what Belady's rule reads, 31.8 MiB a token); the " +
			"best policy that does not know the future (",
		"of causal bound", "stall ms/token", "demand MiB/token", "helper's kernel us/MiB", "120", "expected tok/s",
		"38.1", "9.54", "21.7",
		"experts that fit",
		"Least speedup of live: 0.95x (0 % of the experts fit, readahead 128 KiB); in the steady state 0.95x (0 % " +
			"of the experts fit, readahead 128 KiB).",
		"Stall: a token's time beyond T_compute",
	} {
		for _, got := range []string{text.String(), markdown.String()} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
	}
	if strings.Contains(text.String(), "not known") || strings.Contains(text.String(), "NaN") {
		t.Error(text.String())
	}
	// The report of a dense model has nothing of experts.
	dense := planted()
	dense.summarise()
	text.Reset()
	if err := dense.WriteText(&text); err != nil || strings.Contains(text.String(), "stall ms") ||
		strings.Contains(text.String(), "expected") || strings.Contains(text.String(), "Stall") {
		t.Errorf("%v\n%s", err, &text)
	}
}

func TestExpertColumns(t *testing.T) {
	r := mixture(t)
	cells := map[string][]float64{}
	for _, c := range r.Columns() {
		if v, ok := c.Values.([]float64); ok {
			cells[c.Name] = v
		}
	}
	nan := math.NaN()
	// The values are those of plain, live and mute at the first setting, and of the run without a
	// limit.
	for name, want := range map[string][4]float64{
		"experts_share":                         {2. / 3, 2. / 3, 2. / 3, nan},
		"steady_least_bytes_per_token":          {100e6 / 3., 100e6 / 3., 100e6 / 3., nan},
		"steady_bound_tok_s":                    {30, 30, 30, nan},
		"steady_stall_ms_per_token":             {80, 1000./24 - 20, 1000./12 - 20, nan},
		"demand_bytes_per_token":                {150e6, 40e6, nan, 0},
		"speculative_bytes_per_token":           {0, 10e6, nan, 0},
		"helper_expected_tok_s":                 {nan, 30, nan, nan},
		"helper_tok_s":                          {nan, 25, nan, nan},
		"helper_system_ms_per_token":            {0, 12, 0, 0},
		"helper_late":                           {nan, 3, nan, nan},
		"helper_window_bytes":                   {nan, 5, nan, nan},
		"helper_swept_bytes_per_token":          {nan, 7, nan, nan},
		"helper_experts_missed":                 {nan, 4, nan, nan},
		"helper_experts_speculative_bytes":      {nan, 100e6, nan, nan},
		"helper_experts_speculative_used_bytes": {nan, 60e6, nan, nan},
	} {
		if len(cells[name]) != 19 {
			t.Errorf("%s: %d rows, want 19", name, len(cells[name]))
			continue
		}
		for i, row := range []int{0, 2, 4, 18} {
			if got := cells[name][row]; !near(got, want[i]) && !(math.IsNaN(got) && math.IsNaN(want[i])) {
				t.Errorf("%s of row %d: %v, want %v", name, row, got, want[i])
			}
		}
	}
	if err := trace.WriteParquet(io.Discard, r.Columns()); err != nil {
		t.Error(err)
	}
}

// Saved routes are replayed again. Impossible ones are refused.
func TestReadRoutes(t *testing.T) {
	r := mixture(t)
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ReadReport(data, -1)
	if err != nil || !reflect.DeepEqual(again, r) {
		t.Errorf("%v\n%+v\nwant\n%+v", err, again, r)
	}
	for name, change := range map[string]func(r *Routes){
		"no generated token":    func(r *Routes) { r.Prompt = 15 },
		"a negative prompt":     func(r *Routes) { r.Prompt = -1 },
		"an id too few":         func(r *Routes) { r.IDs = r.IDs[1:] },
		"an unknown expert":     func(r *Routes) { r.Chosen[5][0][0] = 3 },
		"an expert twice":       func(r *Routes) { r.Chosen[5][0] = []int32{1, 1} },
		"an unknown layer":      func(r *Routes) { r.Chosen[5] = append(r.Chosen[5], []int32{1}) },
		"experts of no size":    func(r *Routes) { r.Bytes[0] = 0 },
		"experts of less":       func(r *Routes) { r.Bytes[0] = -1 },
		"no layers":             func(r *Routes) { r.Bytes = nil },
		"a negative trunk":      func(r *Routes) { r.Trunk = -1 },
		"an immeasurable trunk": func(r *Routes) { r.Trunk = math.MaxInt64 },
	} {
		bad := mixture(t)
		change(bad.Routes)
		data, err := json.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadReport(data, -1); !errors.Is(err, ErrNotReport) {
			t.Errorf("%s: %v, want ErrNotReport", name, err)
		}
	}
	// Without routes nothing is known of experts, whatever the file claims.
	r.Routes = nil
	if data, err = json.Marshal(r); err != nil {
		t.Fatal(err)
	}
	if again, err := ReadReport(data, -1); err != nil || again.Results[0].Experts != nil ||
		again.Results[0].Bound != 0 {
		t.Errorf("%v, %+v; want no experts and no bound", err, again.Results[0])
	}
}

// Golden images that have been looked at.
func TestExpertFigures(t *testing.T) {
	r := mixture(t)
	speed := func(w io.Writer, format string) error { return r.WriteFigure(w, format) }
	for name, write := range map[string]func(io.Writer, string) error{"experts.png": speed,
		"bytes.png": r.WriteBytesFigure} {
		var got strings.Builder
		if err := write(&got, "png"); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v (run the test with -update to make it)", err)
		}
		if same, err := cmpimg.EqualApprox("png", []byte(got.String()), want, 0.05); !same || err != nil {
			t.Errorf("the figure is not %s (%v); see -update", path, err)
		}
	}
	f := r.bytesFigure()
	if len(f.Panels) != 3 || len(f.Panels[0].Curves) != 4 ||
		f.Panels[0].Curves[1].Points[4].Y != float64(int64(1e9)/24)/mib {
		t.Fatalf("%+v, want 3 panels of 4 curves", f)
	}
	sum := 0.0
	for _, p := range f.Panels[0].Curves[3].Points {
		sum += p.Y * mib
	}
	if !near(sum, 400e6) {
		t.Errorf("at least %v bytes in 12 tokens, want 400 MB", sum)
	}
	// The bound is drawn over the shares. It agrees with the bounds of the settings.
	for _, p := range r.speedFigure().Panels[0].Curves[0].Points {
		if p.X >= 1 && !near(p.Y, 50) || p.X < 0.66 && p.Y > 30 {
			t.Errorf("bound %v at %v, want 50 from 1 on, and at most 30 below 2/3", p.Y, p.X)
		}
	}
	// For a dense model, what has no room is missing for each token.
	dense := drawn()
	for i := range dense.Runs {
		dense.Runs[i].TokenBytes = []int64{5e6, 6e6 + int64(i)}
	}
	dense.summarise()
	c := dense.bytesFigure().Panels[0].Curves
	if len(c) != 4 || len(c[0].Points) != 2 || len(c[3].Points) != 2 || !near(c[3].Points[1].Y, 0.15*800e6/mib) {
		t.Errorf("%+v, want 4 curves of 2 points, the last at the missing bytes", c)
	}
}

func TestTold(t *testing.T) {
	const summary = `{
 "strategy": "auto",
 "tokens": 40,
 "tokens_per_sec": 9.5,
 "expected_tokens_per_sec": 11,
 "streamed_bytes": 1000,
 "beyond": {
  "window": 5
 },
 "experts": {
  "read_bytes": 70,
  "speculation": {
   "state": "won",
   "read_bytes": 8,
   "used_bytes": 6
  }
 }
}
`
	want := &HelperReport{Tokens: 40, TokS: 9.5, Expected: 11, Streamed: 1000, Beyond: Beyond{Window: 5},
		Experts: &HelperExperts{Read: 70, Speculative: Speculative{8, 6}}}
	for output, want := range map[string]*HelperReport{
		summary:                                want,
		"{\nhello\n" + summary + "bye {\n":     want,
		strings.Replace(summary, "40", "0", 1): nil,
		"x" + summary:                          nil,
		summary[:len(summary)-3]:               nil,
		"":                                     nil,
		"{":                                    nil,
		`{"tokens": "many"}`:                   nil,
		`{"tokens": 3}` + "\n" + `{"error": "no"}`:  {Tokens: 3},
		`{"tokens": 3}` + "\n" + `{"tokens": 4}`:    {Tokens: 4},
		`{"tokens": 3, "late": 1e300}`:              nil,
		`{"tokens": 3, "expected_tokens_per_sec":1`: nil,
	} {
		if got := parseHelperReport(output); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, want %+v", output, got, want)
		}
	}
}

// This runs a real mixture of experts. The choices of its routers are known before the runs, and
// nobody is faster than the bound. A limit for half of the experts has room for half of their
// bytes.
func TestLlamaExperts(t *testing.T) {
	in := llamatest.ForTest(t)
	needControlGroups(t)
	plan, err := synth.NewPlan(synth.Config{Layers: 3, Embd: 256, FF: 4096, Heads: 4, KVHeads: 4, Experts: 8,
		Used: 2, Vocab: synth.ByteVocab, Ctx: 512, Type: gguf.Q8_0, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	o := llama.Options{Model: filepath.Join(t.TempDir(), "model.gguf"), Prompt: "a b c", Tokens: 6, Threads: 1,
		NoRepack: true, Mark: 3}
	if err := plan.WriteFile(t.Context(), o.Model, nil); err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Model: o.Model, Target: in.Command(t.Context(), o).Args, Settings: []Setting{{Experts: 0.5}}, Repeat: 1,
		Skip: 1, Disk: DiskOptions{Settings: []DiskSetting{{1 << 20, 4}}, PointTime: 50 * time.Millisecond},
		Variants: []Variant{{Name: "plain"},
			{Name: "told", Helper: `sh -c 'echo "{\"tokens\": 5, \"experts\": {\"read_bytes\": 50}}"; exec sleep 1000'`}},
	}
	o.Tokens = 2
	cfg.Trace = in.Command(t.Context(), o).Args
	r, err := measure(t.Context(), cfg, 0)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &text)
	n := r.Routes
	if n == nil || n.Experts != 8 || len(n.Bytes) != 3 || len(n.Chosen)-n.Prompt != 6 || n.Prompt < 3 {
		t.Fatalf("%+v, want 8 experts in 3 layers and 6 generated tokens", n)
	}
	// gate, up and down of Q8_0: 34 bytes for 32 weights.
	if want := int64(3 * 256 * 4096 / 32 * 34); n.Bytes[0] != want || n.Trunk+3*2*want != r.Model.TokenBytes {
		t.Errorf("experts of %d bytes, want %d; trunk %d and six of them are not %d", n.Bytes[0], want, n.Trunk,
			r.Model.TokenBytes)
	}
	at := &r.Results[0]
	e := at.Experts
	if e == nil || math.Abs(e.Share-0.5) > 0.01 || e.Whole.Least <= 0 || e.Whole.Least > e.Whole.Causal ||
		e.Steady.Bound <= 0 {
		t.Fatalf("%+v, want half of the experts, and the least reads below the causal ones", e)
	}
	for _, s := range at.Summaries {
		// Two faults read 16 MiB each around themselves, which is much of this limit.
		if s.Killed > 0 {
			t.Logf("%s was killed for lack of memory", s.Variant)
		} else if s.Finished != 1 || s.TextSame != 1 || s.Demand.N != 1 {
			t.Errorf("%+v, want one finished run with the same text and a demand", s)
		}
	}
	if h := r.Runs[1].Helper; h == nil || h.Report == nil || h.Report.Experts == nil || h.Report.Experts.Read != 50 {
		t.Errorf("the helper told %+v, want 50 bytes for experts", h)
	}
	if told := at.Summaries[1]; told.Finished > 0 && told.Demand.Median != 10 {
		t.Errorf("%+v, want a demand of 10", told)
	}
	if s := at.Summaries[0]; s.Finished > 0 && s.Bytes.Median < e.Whole.Least*0.9 {
		t.Errorf("plain read %v bytes a token, at least %v must be", s.Bytes.Median, e.Whole.Least)
	}
}

// A share of the experts can only be given for a model that has some.
func TestNoExperts(t *testing.T) {
	s := &series{cfg: Config{Settings: []Setting{{Experts: 0.5}}}, report: &Report{Model: ModelInfo{TokenBytes: 1000}}}
	if err := s.computeLimits(); err == nil || !strings.Contains(err.Error(), "the model has none") {
		t.Error(err)
	}
	for _, set := range []Setting{{X: 0.5, Experts: 0.5}, {Experts: -1}, {Experts: math.NaN()},
		{Experts: math.Inf(1)}} {
		cfg := Config{Model: "m", Target: []string{"t"}, Settings: []Setting{set}, Repeat: 1,
			Variants: []Variant{{Name: "plain"}}}
		if err := cfg.check(); err == nil {
			t.Errorf("%+v is accepted, want an error", set)
		}
	}
	cfg := Config{Model: "m", Target: []string{"t"}, Settings: []Setting{{Experts: 0.5}}, Repeat: 1,
		Variants: []Variant{{Name: "plain"}}}
	if err := cfg.check(); err != nil {
		t.Error(err)
	}
	if cfg.Weights = 1; cfg.check() == nil {
		t.Error("a share of the experts is taken without tracing")
	}
}
