package pressure

// This file tests what needs neither root nor a disk: order, the bound, the report.

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/internal/stats"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
)

func TestOrder(t *testing.T) {
	for _, test := range []struct {
		n, repeat int
		want      []int
	}{
		{1, 3, []int{0, 0, 0}},
		{2, 4, []int{0, 1, 1, 0, 0, 1, 1, 0}},
		{3, 2, []int{0, 1, 2, 2, 1, 0}},
	} {
		if got := runOrder(test.n, test.repeat); !slices.Equal(got, test.want) {
			t.Errorf("%d variants, %d times: %v, want %v", test.n, test.repeat, got, test.want)
		}
	}
}

func TestDisagree(t *testing.T) {
	for _, test := range []struct {
		group, disk float64
		want        bool
	}{{0, 0, false}, {0, 50e3, false}, {0, 1e6, true}, {100e6, 102e6, false}, {100e6, 104e6, true},
		{104e6, 100e6, true}} {
		if got := accountsDisagree(test.group, test.disk); got != test.want {
			t.Errorf("%v and %v: %v, want %v", test.group, test.disk, got, test.want)
		}
	}
}

func TestBound(t *testing.T) {
	testenv.SkipWithRace(t)
	for _, test := range []struct {
		name              string
		x                 float64
		compute, bw, want float64
		routed            bool
	}{
		{"disk", 0.8, 0.05, 1000e6, 5, false},
		{"compute", 0.8, 0.5, 1000e6, 2, false},
		{"fits", 1.9, 0.05, 1000e6, 20, false},
		{"just fits", 1, 0.05, 1000e6, 20, false},
		{"not measured", 0.8, 0, 1000e6, 0, false},
		{"experts", 0.8, 0.05, 1000e6, 0, true},
	} {
		r := &Report{Model: ModelInfo{TokenBytes: 1000e6, Routed: test.routed}, Compute: test.compute, BW: test.bw}
		if got := r.bound(test.x); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// readings are the readings of a disk that gave so many MB/s.
func readings(speeds ...float64) []DiskReading {
	var all []DiskReading
	for _, s := range speeds {
		all = append(all, DiskReading{Result: DiskResult{Best: DiskPoint{DiskSetting: DiskSetting{1 << 20, 8},
			BytesPerSecond: s * 1e6}}})
	}
	return all
}

// The bandwidth is the median of the readings, not the best, and the throttle if that is slower.
func TestBandwidth(t *testing.T) {
	for _, test := range []struct {
		name     string
		readings []DiskReading
		throttle int64
		disk, bw float64
	}{
		{"one", readings(800), 0, 800e6, 800e6},
		{"one was lucky", readings(800, 3000, 900), 0, 900e6, 900e6},
		{"an even number", readings(800, 3000, 900, 1000), 0, 950e6, 950e6},
		{"throttled", readings(800, 3000, 900), 500e6, 900e6, 500e6},
		{"throttled above what it gives", readings(800, 3000, 900), 5000e6, 900e6, 900e6},
		{"none", nil, 0, 0, 0},
	} {
		r := planted()
		r.Readings, r.Throttle = test.readings, test.throttle
		r.summarise()
		if r.DiskBW != test.disk || r.BW != test.bw {
			t.Errorf("%s: the disk's %v, that of the bound %v; want %v, %v", test.name, r.DiskBW, r.BW, test.disk,
				test.bw)
		}
	}
}

// The faster of pages and folios counts, and for each the better of before and after the series.
func TestCompute(t *testing.T) {
	in := func(unit Unit, speed float64) Run {
		return Run{In: unit, TokS: speed, TextSame: true, Outcome: Finished,
			Loaded: &Loaded{Resident: 100, Large: 90, Huge: 75}}
	}
	for _, test := range []struct {
		name                  string
		runs                  []Run
		pages, folios, faster float64
		want                  string
	}{
		{"folios are faster", []Run{in("", 100), in(Pages, 10), in(Folios, 12.5), in(Pages, 8), in(Folios, 10)},
			0.1, 0.08, 0.08,
			"100 ms a token with the model in single pages, 80.0 ms a token in large folios (75 % have 2 MiB): " +
				"the bound is that of folios"},
		{"pages are faster", []Run{in("", 100), in(Pages, 20), in(Folios, 12.5)}, 0.05, 0.08, 0.05,
			"the bound is that of pages"},
		{"no folios", []Run{in("", 100), in(Pages, 20), in(Pages, 25)}, 0.04, 0, 0.04,
			"in large folios not measured: the file system"},
	} {
		r := planted()
		r.Unlimited = test.runs
		if test.folios == 0 {
			r.NoFolios = "the file system gave them for 0 of 100 MiB"
		}
		r.summarise()
		if r.ComputePages != test.pages || r.ComputeFolios != test.folios || r.Compute != test.faster {
			t.Errorf("%s: %v in pages, %v in folios, the lesser %v", test.name, r.ComputePages, r.ComputeFolios,
				r.Compute)
		}
		if got := r.computeText(); !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// A file counts as loaded in folios if most of it is, or if nobody can tell.
func TestNoFolios(t *testing.T) {
	for _, test := range []struct {
		l    Loaded
		want string
	}{
		{Loaded{Resident: 800 << 20, Large: 790 << 20}, ""},
		{Loaded{Resident: 800 << 20, Large: 300 << 20}, "300 of 800 MiB"},
		{Loaded{Resident: 800 << 20, Unknown: "hidden"}, ""},
		{Loaded{Refused: "MADV_HUGEPAGE: invalid argument"}, "MADV_HUGEPAGE: invalid argument"},
	} {
		if got := test.l.noFolios(); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%+v: %q, want %q", test.l, got, test.want)
		}
	}
}

func TestSteady(t *testing.T) {
	run := Run{Outcome: Finished, TokenMs: []float64{400, 200, 50, 50, 100},
		TokenBytes: []int64{900, 600, 30, 40, 20}, TokenFaults: []int64{50, 20, 1, 3, 2}}
	if s, want := run.steadyAfter(2),
		(Steady{TokS: 15, BytesPerToken: 30, FaultsPerToken: 2, StartShare: 0.75}); s == nil || *s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
	if s := run.steadyAfter(0); s == nil || s.StartShare != 0 || s.TokS != 6.25 || s.BytesPerToken != 318 {
		t.Errorf("without start-up: %+v, want 6.25 tok/s and 318 bytes", s)
	}
	for _, skip := range []int{-1, 5, 6} {
		if s := run.steadyAfter(skip); s != nil {
			t.Errorf("after %d of 5 tokens: %+v, want nil", skip, s)
		}
	}
	if run.Outcome = Killed; run.steadyAfter(2) != nil {
		t.Error("a run that did not finish has a steady state")
	}
}

// tokens are the token times of a run whose mean speed is given. Its first 2 tokens take three
// times as long as the other 4.
func tokens(speed float64) []float64 {
	rest := 6000 / speed / 10
	return []float64{3 * rest, 3 * rest, rest, rest, rest, rest}
}

// planted is a report at two settings whose medians, speedups and noise are known.
func planted() *Report {
	r := &Report{
		Model: ModelInfo{Path: "/models/m|1.gguf", Bytes: 1200e6, TokenBytes: 1000e6}, Own: 100e6, Text: "x", Skip: 2,
		Variants: []Variant{{Name: "plain"}, {Name: "both", Helper: "h"}, {Name: "plain again"}},
		Unlimited: []Run{{TokS: 100, Outcome: Finished, TextSame: true},
			{TokS: 10, In: Pages, Outcome: Finished, TextSame: true},
			{TokS: 12.5, In: Folios, Outcome: Finished, TextSame: true}},
		Readings: readings(900, 1000, 2000),
		Results: []Result{{Setting: Setting{X: 0.8}, Limit: 900e6, ReadaheadKiB: 128},
			{Setting: Setting{X: 0.5}, Limit: 600e6, ReadaheadKiB: 128}},
	}
	add := func(setting int, variant string, speeds ...float64) {
		for i, v := range speeds {
			r.Runs = append(r.Runs, Run{Variant: variant, Setting: setting, Limit: r.Results[setting].Limit,
				Round: i, Outcome: Finished, TextSame: true, TokS: v, P5: v / 2, BytesPerToken: 1e9 / v,
				TokenMs: tokens(v), TokenBytes: []int64{9e8, 8e8, 2e8, 2e8, 1e8, 1e8},
				TokenFaults: []int64{9, 9, 1, 1, 1, 1}})
		}
	}
	add(0, "plain", 1, 2, 3)
	add(0, "both", 4, 4, 9)
	add(0, "plain again", 2, 3, 3.5)
	add(1, "plain", 0.5, 1, 1.5)
	add(1, "both", 1.5, 1, 1.25)
	add(1, "plain again", 1, 1, 1)
	return r
}

func TestSummaries(t *testing.T) {
	r := planted()
	r.summarise()
	if r.Compute != 0.08 || r.BW != 1000e6 || math.Abs(r.Results[0].Bound-5) > 1e-9 ||
		math.Abs(r.Results[1].Bound-2) > 1e-9 || math.Abs(r.Results[1].X-0.5) > 1e-9 {
		t.Errorf("T %v, BW %v, %+v; want 0.08, 1e9, bounds 5 and 2", r.Compute, r.BW, r.Results)
	}
	both := r.Results[0].Summaries[1]
	if want := (stats.Spread{N: 3, Median: 3, Min: 2, Max: 4, MAD: 1}); both.Speedup != want {
		t.Errorf("speedup %+v, want %+v", both.Speedup, want)
	}
	if want := (stats.Spread{N: 3, Median: 4, Min: 4, Max: 9}); both.TokS != want ||
		math.Abs(both.OfBound-0.8) > 1e-9 || both.TextSame != 3 {
		t.Errorf("%+v, want %+v, 0.8 of the bound and 3 times the same text", both, want)
	}
	// The start-up takes 6 of 10 parts of the time, and the 4 tokens after it 4.
	if math.Abs(both.Steady.Median-4*10.0/6) > 1e-9 || math.Abs(both.StartShare.Median-0.6) > 1e-9 ||
		both.SteadyBytes.Median != 1.5e8 || both.SteadyFaults.Median != 1 || math.Abs(both.SteadyOfBound-4.0/3) > 1e-9 {
		t.Errorf("steady state %+v, want 40/6 tok/s, a start-up of 0.6, 1.5e8 bytes and 1 fault", both)
	}
	if there := r.Results[1].Summaries[1]; there.TokS.Median != 1.25 || math.Abs(there.OfBound-0.625) > 1e-9 ||
		there.Speedup.Median != 1 || there.Runs != 3 {
		t.Errorf("at the other setting: %+v, want a median of 1.25 and no speedup", there)
	}
	if n := r.Results[0].Noise; len(n) != 1 || n[0].Difference != 0.4 || n[0].Spread != 0.8 || !n[0].IsWithin() {
		t.Errorf("noise %+v, want a difference of 0.4 within 0.8", n)
	}
	for i := range r.Runs {
		if r.Runs[i].Variant == "plain again" {
			r.Runs[i].TokS = 30
		}
		if r.Runs[i].Variant == "plain" {
			r.Runs[i].TokS = 10
		}
	}
	r.summarise()
	if n := r.Results[0].Noise; len(n) != 1 || n[0].IsWithin() {
		t.Errorf("a difference beyond the spread: %+v, want one that is not within", n)
	}
	for i := range r.Variants {
		if r.Variants[i].Name == "plain again" {
			r.Variants[i].Launcher = "helper --"
		}
	}
	r.summarise()
	if n := r.Results[0].Noise; len(n) != 0 {
		t.Errorf("variants that are started by different commands are taken for the same: %+v", n)
	}
}

func TestReportSaysWhatIsWrong(t *testing.T) {
	r := planted()
	r.Runs[1].Disagree = true
	r.Runs[2].Outcome, r.Runs[2].Error = Killed, "signal: killed"
	r.Runs[2].OOMKills = 1
	r.Runs[3].OOMKills = 1
	r.Runs[3].TextSame = false
	r.Runs[4].Helper = &HelperEnd{Early: true, Status: "exit status 1", Output: "one\ntwo\n"}
	r.Unlimited[1].TextSame = false
	r.Throttle = 500e6
	r.summarise()
	var text, markdown strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteMarkdown(&markdown); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"x = 0.8: plain: in 1 of 2 runs the disk's own counter differs by more than 3 %",
		"x = 0.8: plain, round 3: oom-killed: signal: killed",
		"x = 0.8: both: 1 processes other than the target were killed",
		"x = 0.8: both: THE TEXT DIFFERS from that of the run without a limit in 1 of 3 runs",
		"x = 0.8: both, round 2: the helper ended before the target (exit status 1): two",
		"between runs without a limit",
		"954 MiB/s, the median of 3 readings: 858, 954, 1907",
		"the runs may read 477 MiB/s: their bandwidth is 477 MiB/s",
		"x = 0.80, readahead 128 KiB: limit 858 MiB, of which 763 are left for the model; bound: 2.50 tok/s = " +
			"min(1/T_compute = 12.5, bandwidth / missing bytes = 2.50)",
		"Steady: without the first 2 tokens. Start-up: the share of the time that these took; 33 % if they were " +
			"as fast as the others.",
		"60 %", // of the start-up
		"1 of 3",
		"m|1.gguf",
	} {
		for _, got := range []string{text.String(), markdown.String()} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
	}
	wide, columns := 0, r.table(&r.Results[0]).Columns
	for line := range strings.Lines(markdown.String()) {
		if strings.Contains(line, "plain again | ") && strings.Count(line, "|") == len(columns)+1 {
			wide++
		}
		if n := strings.Count(line, "|"); strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "|-") &&
			n != len(columns)+1 && n != 3+len(r.Variants)+1 {
			t.Errorf("%d columns are neither those of a setting nor those of the overview: %s", n-1, line)
		}
	}
	if wide != 2 {
		t.Errorf("%d tables of settings, want 2:\n%s", wide, markdown.String())
	}
}

// Runs that are too short for a steady state are compared by all their tokens.
func TestNoSteadyState(t *testing.T) {
	r := planted()
	r.Skip = 6
	r.summarise()
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "No steady state: there are runs with no more than the 6 tokens") ||
		!strings.Contains(text.String(), "All settings: tok/s\n") {
		t.Error(text.String())
	}
	if c := r.speedFigure().Panels[0].Curves[2]; c.Points[1].Y != 4 {
		t.Errorf("drawn is %+v, want 4 at the second point", c)
	}
}

// A saved report comes back with all its numbers, and can be shown with another start-up.
func TestReadReport(t *testing.T) {
	r := planted()
	r.summarise()
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ReadReport(data, -1)
	if err != nil || !reflect.DeepEqual(again, r) {
		t.Errorf("%v\n%+v\nwant\n%+v", err, again, r)
	}
	if again, err = ReadReport(data, 0); err != nil || again.Results[0].Summaries[1].Steady.Median != 4 {
		t.Errorf("%v, without a start-up %+v, want a median of 4", err, again.Results)
	}
	for what, change := range map[string]func(*Report){
		"no variants":    func(r *Report) { r.Variants = nil },
		"no results":     func(r *Report) { r.Results = nil },
		"no model":       func(r *Report) { r.Model.TokenBytes = 0 },
		"a limit":        func(r *Report) { r.Unlimited[1].Limit = 5 },
		"an odd setting": func(r *Report) { r.Runs[3].Setting = 2 },
		"a negative one": func(r *Report) { r.Runs[3].Setting = -1 },
	} {
		bad := planted()
		change(bad)
		data, err := json.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadReport(data, -1); !errors.Is(err, ErrNotReport) {
			t.Errorf("%s: %v, want ErrNotReport", what, err)
		}
	}
	if _, err := ReadReport([]byte("GGUF"), -1); !errors.Is(err, ErrNotReport) {
		t.Errorf("no JSON: %v, want ErrNotReport", err)
	}
}

// The table has a row for each run, and only numbers that are known.
func TestColumns(t *testing.T) {
	r := planted()
	r.Runs[2].Outcome, r.Runs[2].TokS = Killed, 0
	r.summarise()
	cells := map[string]any{}
	for _, c := range r.Columns() {
		cells[c.Name] = c.Values
		if n := reflect.ValueOf(c.Values).Len(); n != 21 {
			t.Errorf("%s: %d rows, want 18 runs with a limit and 3 without", c.Name, n)
		}
	}
	if got := cells["variant"].([]string); got[3] != "both" || got[9] != "plain" {
		t.Errorf("variants %q, want both in row 3 and plain in row 9", got)
	}
	if got := cells["helper"].([]string); got[3] != "h" || got[0] != "" || got[19] != "" {
		t.Errorf("helpers %q, want h in row 3 and none in rows 0 and 19", got)
	}
	if got := cells["phase"].([]string); got[17] != "limited" || got[18] != "unlimited" {
		t.Errorf("phases %q, want limited up to row 17 and then unlimited", got)
	}
	// The values are those of a run at each setting, of one that was killed, and of one without a
	// limit.
	for name, want := range map[string][4]float64{
		"x":                      {0.8, 0.5, 0.8, math.NaN()},
		"bound_tok_s":            {5, 2, 5, math.NaN()},
		"tok_s":                  {9, 1.25, math.NaN(), 10},
		"steady_tok_s":           {15, 1.25 / 0.6, math.NaN(), math.NaN()},
		"startup_share":          {0.6, 0.6, math.NaN(), math.NaN()},
		"steady_bytes_per_token": {1.5e8, 1.5e8, math.NaN(), math.NaN()},
	} {
		got := cells[name].([]float64)
		for i, row := range []int{5, 14, 2, 19} {
			if !(math.Abs(got[row]-want[i]) < 1e-9) && !(math.IsNaN(got[row]) && math.IsNaN(want[i])) {
				t.Errorf("%s of row %d: %v, want %v", name, row, got[row], want[i])
			}
		}
	}
	if err := trace.WriteParquet(io.Discard, r.Columns()); err != nil {
		t.Error(err)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.1234: "0.12", 1.234: "1.23", 12.34: "12.3", 123.4: "123",
		123456: "123456", -12.34: "-12.3"} {
		if got := number(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

// The report says what the disk delivers beside the computing target and what that costs the
// target. The bound is computed from what the disk delivers by itself.
func TestBeside(t *testing.T) {
	beside := func(mbs ...float64) (all []BesideReading) {
		for _, r := range readings(mbs...) {
			r.Result.Points = []DiskPoint{{Bytes: 60e6}, {Bytes: 40e6}}
			all = append(all, BesideReading{r, 0.1, 2})
		}
		return all
	}
	r := &Report{
		Model: ModelInfo{Path: "model.gguf", Bytes: 1000e6, TokenBytes: 1000e6}, Own: 10e6,
		Readings: readings(2000, 4000, 4000), Beside: beside(1000, 2000),
		Unlimited: []Run{{In: Pages, Outcome: Finished, TokS: 50}}, Variants: []Variant{{Name: "plain"}},
		Results: []Result{{Setting: Setting{X: 0.5}, Limit: 510e6}},
		Runs:    []Run{{Variant: "plain", Outcome: Finished, TokS: 2}},
	}
	r.summarise()
	if at := r.Results[0]; r.BesideBW != 1500e6 || r.BW != 4000e6 || at.Bound != 8 {
		t.Errorf("the disk's %v, beside computing %v; the bound %v; want 4e9, 1.5e9 and 8", r.BW, r.BesideBW, at.Bound)
	}
	// Two tokens of 20 ms took 100 ms, while 100 MB were read.
	if math.Abs(r.DiskCost-0.06/100e6) > 1e-15 {
		t.Errorf("a byte costs %v s, want 6e-10", r.DiskCost)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"delivers 1431 MiB/s (2 readings), 38 % of that, and each MiB has the target compute 629 us longer",
		"= 8.00), or 3.00 with what the disk delivers beside computing and takes from it",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, text.String())
		}
	}
	// Of reading 50 MB, 33 ms, and computing, 20 ms and 30 more, the longer counts.
	if got := r.boundBeside(50e6); math.Abs(got-20) > 1e-9 {
		t.Errorf("%v tokens per second with 50 MB to read, want 20", got)
	}
	r.Beside = nil
	if r.summarise(); r.BesideBW != 0 || r.DiskCost != 0 {
		t.Errorf("%v bytes per second of no reading, %v s per byte; want 0 and 0", r.BesideBW, r.DiskCost)
	}
}

func TestTokensIn(t *testing.T) {
	ms := []float64{10, 20, 30}
	for in, want := range map[time.Duration]float64{0: 0, 5 * time.Millisecond: 0.5, 20 * time.Millisecond: 1.5,
		59 * time.Millisecond: 2 + 29./30} {
		if got, enough := countTokensIn(ms, in); math.Abs(got-want) > 1e-9 || !enough {
			t.Errorf("%v tokens in %v, %v; want %v", got, in, enough, want)
		}
	}
	if _, enough := countTokensIn(ms, 61*time.Millisecond); enough {
		t.Error("tokens of 60 ms are enough for 61")
	}
}
