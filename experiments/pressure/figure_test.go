package pressure

// This file tests the figure: what it is made of, and a picture of it that has been looked at.

import (
	"bytes"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gonum.org/v1/plot/cmpimg"
)

var update = flag.Bool("update", false, "rewrite the golden image in testdata")

// drawn is a series of three variants at four shares and two readaheads.
func drawn() *Report {
	r := &Report{
		Model: ModelInfo{Path: "/models/model-0.8B-Q8_0.gguf", Bytes: 840e6, TokenBytes: 800e6}, Own: 20e6, Skip: 1, Readings: readings(1500),
		Variants:  []Variant{{Name: "plain"}, {Name: "static", Helper: "pin"}, {Name: "prefetchd", Helper: "h"}},
		Unlimited: []Run{{In: Folios, TokS: 19, Outcome: Finished}},
	}
	for i, readahead := range []int{8192, 128} { // panels are in order of the readahead all the same
		for _, x := range []float64{0.85, 0.3, 0.5, 0.7} {
			setting := len(r.Results)
			r.Results = append(r.Results, Result{Limit: 20e6 + int64(x*800e6), ReadaheadKiB: readahead})
			for v, factor := range []float64{0.1, 0.3, 0.62} {
				if v == 1 && x == 0.3 {
					continue // all were killed
				}
				for round := range 3 {
					speed := factor * 1.5 / 0.8 / (1 - x) * (1 + 0.1*float64(round-1) - 0.2*float64(i))
					r.Runs = append(r.Runs, Run{Variant: r.Variants[v].Name, Setting: setting, Round: round, Limit: r.Results[setting].Limit, Outcome: Finished, TokS: speed / 2,
						TokenMs: []float64{3000 / speed, 1000 / speed}})
				}
			}
		}
	}
	r.summarise()
	return r
}

func TestPanels(t *testing.T) {
	r := drawn()
	all, from, to, high := r.panels()
	if len(all) != 2 || all[0].readahead != 128 || all[1].readahead != 8192 {
		t.Fatalf("%+v", all)
	}
	if from >= 0.3 || to <= 0.85 || high <= 12.5 {
		t.Errorf("x from %v to %v, up to %v tok/s", from, to, high)
	}
	for _, p := range all {
		if n := []int{len(p.curves[0].points), len(p.curves[1].points), len(p.curves[2].points)}; n[0] != 4 || n[1] != 3 || n[2] != 4 {
			t.Errorf("readahead %d: curves of %d points", p.readahead, n)
		}
	}
	c := all[1].curves[2]
	steady := 0.62 * 1.5 / 0.8 / 0.3
	if got := c.points[2]; c.variant != "prefetchd" || math.Abs(got.x-0.7) > 1e-6 || math.Abs(got.speed-steady) > 1e-6 || math.Abs(got.low-0.9*steady) > 1e-6 || math.Abs(got.high-1.1*steady) > 1e-6 {
		t.Errorf("%s: %+v, want %v at 0.7", c.variant, got, steady)
	}
	for _, at := range all[0].bound {
		if want := min(19, 1.5/0.8/(1-at.X)); at.X < 1 && math.Abs(at.Y-want) > 1e-6 {
			t.Errorf("bound %v at %v, want %v", at.Y, at.X, want)
		}
	}
	r.Model.Routed = true
	r.summarise()
	if all, _, _, _ := r.panels(); len(all[0].bound) != 0 {
		t.Error("there is a bound for a model with experts")
	}
}

func picture(t *testing.T, r *Report, format string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteFigure(&b, format); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The golden image has been looked at.
func TestFigure(t *testing.T) {
	r := drawn()
	got := picture(t, r, "png")
	path := filepath.Join("testdata", "speed.png")
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, got, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run the test with -update to make it)", err)
	}
	same := func(a, b []byte) bool {
		ok, err := cmpimg.EqualApprox("png", a, b, 0.05)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !same(got, want) {
		t.Errorf("the figure is not %s; see -update", path)
	}
	for i := range r.Runs {
		r.Runs[i].TokenMs[1] *= 0.9
	}
	r.summarise()
	if same(picture(t, r, "png"), want) {
		t.Error("a figure of other speeds passes for the golden image")
	}
}

func TestFigureFormats(t *testing.T) {
	r := drawn()
	for format, want := range map[string]string{"png": "\x89PNG", "svg": "<?xml", "pdf": "%PDF"} {
		if got := picture(t, r, format); !bytes.HasPrefix(got, []byte(want)) {
			t.Errorf("%s begins with %q", format, got[:8])
		}
	}
	if svg := string(picture(t, r, "svg")); !strings.Contains(svg, "prefetchd") || !strings.Contains(svg, "readahead 8192 KiB") {
		t.Error("the SVG has no text to search for")
	}
	var b bytes.Buffer
	if err := r.WriteFigure(&b, "gif"); err == nil || b.Len() > 0 {
		t.Errorf("gif: %v, %d bytes", err, b.Len())
	}
	r.Runs = nil
	r.summarise()
	if err := r.WriteFigure(&b, "png"); !errors.Is(err, ErrNoFigure) || b.Len() > 0 {
		t.Errorf("no runs: %v, %d bytes", err, b.Len())
	}
	one := drawn()
	one.Runs, one.Results = one.Runs[:1], one.Results[:1]
	one.summarise()
	picture(t, one, "png")
}

func TestEvenTicks(t *testing.T) {
	for _, test := range []struct{ low, high float64 }{{0, 1}, {0, 20.5}, {0.27, 0.88}, {0.82, 0.88}, {0, 0.003}, {1e20, 1.0000000000001e20}, {0, math.MaxFloat64}} {
		ticks := evenTicks(test.low, test.high)
		if len(ticks) > 10 {
			t.Errorf("%v: %d ticks", test, len(ticks))
		}
		for _, tick := range ticks {
			if tick.Value > test.high || tick.Value < test.low*(1-1e-9) {
				t.Errorf("%v: a tick at %v", test, tick.Value)
			}
		}
	}
	if ticks := evenTicks(0.27, 0.88); len(ticks) < 4 || ticks[0].Label != "0.3" {
		t.Errorf("%+v", ticks)
	}
}
