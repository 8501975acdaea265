package pressure

// This file tests what needs neither root nor a disk: order, the bound, the report.

import (
	"math"
	"slices"
	"strings"
	"testing"

	"tensorcast/internal/stats"
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
		if got := order(test.n, test.repeat); !slices.Equal(got, test.want) {
			t.Errorf("%d variants, %d times: %v, want %v", test.n, test.repeat, got, test.want)
		}
	}
}

func TestDisagree(t *testing.T) {
	for _, test := range []struct {
		group, disk float64
		want        bool
	}{{0, 0, false}, {0, 50e3, false}, {0, 1e6, true}, {100e6, 102e6, false}, {100e6, 104e6, true}, {104e6, 100e6, true}} {
		if got := disagree(test.group, test.disk); got != test.want {
			t.Errorf("%v and %v: %v, want %v", test.group, test.disk, got, test.want)
		}
	}
}

func TestBound(t *testing.T) {
	for _, test := range []struct {
		name              string
		m, limit, own     int64
		compute, bw, want float64
		routed            bool
	}{
		{"disk", 1000e6, 900e6, 100e6, 0.05, 1000e6, 5, false},
		{"compute", 1000e6, 900e6, 100e6, 0.5, 1000e6, 2, false},
		{"fits", 1000e6, 2000e6, 100e6, 0.05, 1000e6, 20, false},
		{"just fits", 1000e6, 1100e6, 100e6, 0.05, 1000e6, 20, false},
		{"experts", 1000e6, 900e6, 100e6, 0.05, 1000e6, 0, true},
	} {
		r := &Report{Model: ModelInfo{TokenBytes: test.m, Routed: test.routed}, Limit: test.limit, Own: test.own, Compute: test.compute, BW: test.bw}
		if got := bound(r); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// planted is a report whose medians, speedups and noise are known.
func planted() *Report {
	r := &Report{
		Model: ModelInfo{Path: "/models/m|1.gguf", Bytes: 1200e6, TokenBytes: 1000e6}, Limit: 900e6, Own: 100e6, Text: "x",
		Variants:  []Variant{{Name: "plain"}, {Name: "both", Helper: "h"}, {Name: "plain again"}},
		Unlimited: []Run{{TokS: 100, TextSame: true}, {TokS: 10, TextSame: true}, {TokS: 12.5, TextSame: true}},
	}
	r.DiskBefore.Best, r.DiskAfter.Best = DiskPoint{Depth: 8, BytesPerSecond: 900e6}, DiskPoint{Depth: 16, BytesPerSecond: 1000e6}
	add := func(variant string, speeds ...float64) {
		for i, v := range speeds {
			r.Runs = append(r.Runs, Run{Variant: variant, Round: i, Outcome: Finished, TextSame: true, TokS: v, P5: v / 2, BytesPerToken: 1e9 / v})
		}
	}
	add("plain", 1, 2, 3)
	add("both", 4, 4, 9)
	add("plain again", 2, 3, 3.5)
	return r
}

func TestSummaries(t *testing.T) {
	r := planted()
	r.summarise()
	if r.Compute != 0.08 || r.BW != 1000e6 || math.Abs(r.Bound-5) > 1e-9 {
		t.Errorf("T %v, BW %v, bound %v; want 0.08, 1e9, 5", r.Compute, r.BW, r.Bound)
	}
	both := r.Summaries[1]
	if want := (stats.Spread{N: 3, Median: 3, Min: 2, Max: 4, MAD: 1}); both.Speedup != want {
		t.Errorf("speedup %+v, want %+v", both.Speedup, want)
	}
	if want := (stats.Spread{N: 3, Median: 4, Min: 4, Max: 9}); both.TokS != want || both.OfBound != 0.8 || both.TextSame != 3 {
		t.Errorf("%+v", both)
	}
	if len(r.Noise) != 1 || r.Noise[0].Difference != 0.4 || r.Noise[0].Spread != 0.8 || !r.Noise[0].Within() {
		t.Errorf("noise %+v", r.Noise)
	}
	for i := range r.Runs {
		if r.Runs[i].Variant == "plain again" {
			r.Runs[i].TokS = 30
		}
		if r.Runs[i].Variant == "plain" {
			r.Runs[i].TokS = 10
		}
	}
	r.Summaries, r.Noise = nil, nil
	r.summarise()
	if len(r.Noise) != 1 || r.Noise[0].Within() {
		t.Errorf("a difference beyond the spread: %+v", r.Noise)
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
	r.summarise()
	var text, markdown strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteMarkdown(&markdown); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"plain: in 1 of 2 runs the disk's own counter differs by more than 3 %",
		"plain, round 3: oom-killed: signal: killed",
		"both: 1 processes other than the target were killed",
		"both: THE TEXT DIFFERS from that of the run without a limit in 1 of 3 runs",
		"both, round 2: the helper ended before the target (exit status 1): two",
		"between runs without a limit",
		"1 of 3",
		"m|1.gguf",
	} {
		for _, got := range []string{text.String(), markdown.String()} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
	}
	for line := range strings.Lines(markdown.String()) {
		if strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "|-") && strings.Count(line, "|") != len(columns)+1 {
			t.Errorf("%d columns, want %d: %s", strings.Count(line, "|")-1, len(columns), line)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.1234: "0.12", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 123456: "123456", -12.34: "-12.3"} {
		if got := number(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}
