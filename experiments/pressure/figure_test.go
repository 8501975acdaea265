package pressure

// This file tests the figure: what it is made of, and a picture of it that has been looked at.

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gonum.org/v1/plot/cmpimg"

	"tensorcast/internal/chart"
	"tensorcast/internal/testenv"
)

var update = flag.Bool("update", false, "rewrite the golden image in testdata")

// drawn is the report of a series of three variants at four shares and two readaheads.
func drawn() *Report {
	r := &Report{
		Model: ModelInfo{Path: "/models/model-0.8B-Q8_0.gguf", Bytes: 840e6, TokenBytes: 800e6}, Own: 20e6, Skip: 1,
		Readings:  readings(1500),
		Variants:  []Variant{{Name: "plain"}, {Name: "static", Helper: "pin"}, {Name: "prefetchd", Helper: "h"}},
		Unlimited: []Run{{In: Folios, TokS: 19, Outcome: Finished}},
	}
	for i, readahead := range []int{8192, 128} { // the panels are in order of the readahead nevertheless
		for _, x := range []float64{0.85, 0.3, 0.5, 0.7} {
			setting := len(r.Results)
			r.Results = append(r.Results, Result{Limit: 20e6 + int64(x*800e6), ReadaheadKiB: readahead})
			for v, factor := range []float64{0.1, 0.3, 0.62} {
				if v == 1 && x == 0.3 {
					continue // all were killed
				}
				for round := range 3 {
					speed := factor * 1.5 / 0.8 / (1 - x) * (1 + 0.1*float64(round-1) - 0.2*float64(i))
					r.Runs = append(r.Runs, Run{Variant: r.Variants[v].Name, Setting: setting, Round: round,
						Limit: r.Results[setting].Limit, Outcome: Finished, TokS: speed / 2,
						TokenMs: []float64{3000 / speed, 1000 / speed}})
				}
			}
		}
	}
	r.summarise()
	return r
}

// Only the variants that are shown are in the figure, in their order and under their names, and its height is theirs.
func TestShown(t *testing.T) {
	r := drawn()
	f := r.speedFigure()
	all := f.High
	if err := r.show(f, []chart.Shown{{Name: "static", Label: "pinned"}, {Name: "plain"}}); err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Panels {
		if c := p.Curves; len(c) != 3 || !c[0].Bound || c[1].Name != "pinned" || len(c[1].Points) != 3 ||
			c[2].Name != "plain" || len(c[2].Points) != 4 {
			t.Errorf("%s: %+v, want the bound, pinned and plain", p.Title, c)
		}
	}
	if f.High <= 0 || f.High > all {
		t.Errorf("a height of %v, want no more than %v", f.High, all)
	}
	if err := r.WriteFigure(io.Discard, "svg", chart.Shown{Name: "none"}); !errors.Is(err, ErrNoVariant) {
		t.Errorf("%v, want ErrNoVariant", err)
	}
}

func TestSpeeds(t *testing.T) {
	r := drawn()
	f := r.speedFigure()
	if len(f.Panels) != 2 || !strings.HasSuffix(f.Panels[0].Title, "readahead 128 KiB") ||
		!strings.HasSuffix(f.Panels[1].Title, "readahead 8192 KiB") {
		t.Fatalf("%+v, want two panels, for 128 and 8192 KiB", f)
	}
	if f.From >= 0.3 || f.To <= 0.85 || f.High <= 12.5 {
		t.Errorf("x from %v to %v, up to %v tok/s; want more than 0.3 to 0.85, and more than 12.5", f.From, f.To,
			f.High)
	}
	for _, p := range f.Panels {
		if n := []int{len(p.Curves[1].Points), len(p.Curves[2].Points), len(p.Curves[3].Points)}; n[0] != 4 ||
			n[1] != 3 || n[2] != 4 {
			t.Errorf("%s: curves of %d points, want 4, 3 and 4", p.Title, n)
		}
	}
	c := f.Panels[1].Curves[3]
	steady := 0.62 * 1.5 / 0.8 / 0.3
	if got := c.Points[2]; c.Name != "prefetchd" || math.Abs(got.X-0.7) > 1e-6 || math.Abs(got.Y-steady) > 1e-6 ||
		math.Abs(got.Low-0.9*steady) > 1e-6 || math.Abs(got.High-1.1*steady) > 1e-6 {
		t.Errorf("%s: %+v, want %v at 0.7", c.Name, got, steady)
	}
	bound := f.Panels[0].Curves[0]
	for _, at := range bound.Points {
		if want := min(19, 1.5/0.8/(1-at.X)); at.X < 1 && math.Abs(at.Y-want) > 1e-6 {
			t.Errorf("bound %v at %v, want %v", at.Y, at.X, want)
		}
	}
	if !bound.Bound || len(bound.Points) == 0 {
		t.Errorf("the bound is %+v, want points", bound)
	}
	r.Model.Routed = true
	r.summarise()
	if f := r.speedFigure(); len(f.Panels[0].Curves[0].Points) != 0 {
		t.Error("there is a bound for a model with experts whose routes are not known")
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
	testenv.SkipWithRace(t)
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
			t.Errorf("%s begins with %q, want %q", format, got[:8], want)
		}
	}
	if svg := string(picture(t, r, "svg")); !strings.Contains(svg, "prefetchd") ||
		!strings.Contains(svg, "readahead 8192 KiB") {
		t.Error("the SVG has no text to search for")
	}
	var b bytes.Buffer
	if err := r.WriteFigure(&b, "gif"); err == nil || b.Len() > 0 {
		t.Errorf("gif: %v, %d bytes; want an error and nothing written", err, b.Len())
	}
	r.Runs = nil
	r.summarise()
	if err := r.WriteFigure(&b, "png"); !errors.Is(err, ErrNoFigure) || b.Len() > 0 {
		t.Errorf("no runs: %v, %d bytes; want ErrNoFigure and nothing written", err, b.Len())
	}
	one := drawn()
	one.Runs, one.Results = one.Runs[:1], one.Results[:1]
	one.summarise()
	picture(t, one, "png")
}
