package chart

// This file tests figures of curves by comparing pictures.

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gonum.org/v1/plot/cmpimg"

	"tensorcast/internal/testenv"
)

var update = flag.Bool("update", false, "rewrite the golden images in testdata")

// many returns a figure of three panels in two columns, with more curves than there are colours.
func many() *Figure {
	f := &Figure{Columns: 2, From: 0, To: 10, High: 100, XLabel: "layer", YLabel: "recall (%)", Beside: true}
	for panel := range 3 {
		p := Panel{Title: fmt.Sprint("panel ", panel)}
		for i := range 14 {
			c := Curve{Name: fmt.Sprint("predictor ", i), Bound: i == 13}
			for x := range 10 {
				if i == panel {
					break // this curve has no points here, and keeps its colour in the other panels
				}
				y := 7*float64(i) + 3*math.Sin(float64(x+i))
				at := Point{X: float64(x), Y: y}
				if i == 4 {
					at.Low, at.High = y-4, y+2
				}
				c.Points = append(c.Points, at)
			}
			p.Curves = append(p.Curves, c)
		}
		f.Panels = append(f.Panels, p)
	}
	return f
}

func picture(t *testing.T, f *Figure, format string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := f.Write(&b, format); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The figure looks like the golden image, which people have checked.
func TestFigure(t *testing.T) {
	testenv.SkipWithRace(t)
	f := many()
	got := picture(t, f, "png")
	path := filepath.Join("testdata", "many.png")
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
		t.Errorf("the figure does not look like %s; see -update", path)
	}
	for i := range f.Panels[2].Curves[5].Points {
		f.Panels[2].Curves[5].Points[i].Y += 5
	}
	if same(picture(t, f, "png"), want) {
		t.Error("a figure with another curve looks the same to this test")
	}
}

func TestFormats(t *testing.T) {
	testenv.SkipWithRace(t)
	for format, want := range map[string]string{"png": "\x89PNG", "svg": "<?xml", "pdf": "%PDF"} {
		if got := picture(t, many(), format); !bytes.HasPrefix(got, []byte(want)) {
			t.Errorf("%s begins with %q, want %q", format, got[:8], want)
		}
	}
	svg := string(picture(t, many(), "svg"))
	for _, want := range []string{"panel 2", "predictor 13", "recall (%)"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the SVG has no text %q", want)
		}
	}
	if got := FormatOf("a.b/speed.SVG"); got != "svg" {
		t.Errorf("FormatOf = %q, want svg", got)
	}
}

func TestRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Figure)
		format string
		want   error
	}{
		"no panel":   {func(f *Figure) { f.Panels = nil }, "png", ErrEmpty},
		"no range":   {func(f *Figure) { f.To = f.From }, "png", ErrEmpty},
		"no numbers": {func(f *Figure) { f.From, f.To = math.NaN(), math.NaN() }, "png", ErrEmpty},
		"no height":  {func(f *Figure) { f.High = 0 }, "png", ErrEmpty},
		"no room":    {func(f *Figure) { f.Low = f.High }, "png", ErrEmpty},
		"too wide":   {func(f *Figure) { f.To = math.Inf(1) }, "png", ErrTooLarge},
		"too high":   {func(f *Figure) { f.High = math.Inf(1) }, "png", ErrTooLarge},
		"no format":  {func(*Figure) {}, "gif", nil},
	} {
		f := many()
		test.change(f)
		var b bytes.Buffer
		err := f.Write(&b, test.format)
		if err == nil || test.want != nil && !errors.Is(err, test.want) || b.Len() > 0 {
			t.Errorf("%s: error %v, %d bytes; want %v (nil: any error), 0", name, err, b.Len(), test.want)
		}
	}
}

func TestEvenTicks(t *testing.T) {
	for _, test := range []struct{ low, high float64 }{
		{0, 1}, {0, 20.5}, {0.27, 0.88}, {0.82, 0.88}, {0, 0.003}, {1e20, 1.0000000000001e20}, {0, math.MaxFloat64},
	} {
		ticks := evenTicks(test.low, test.high)
		if len(ticks) > 10 {
			t.Errorf("%v: %d ticks, want at most 10", test, len(ticks))
		}
		for _, tick := range ticks {
			if tick.Value > test.high || tick.Value < test.low*(1-1e-9) {
				t.Errorf("%v: a tick at %v, want all within the range", test, tick.Value)
			}
		}
	}
	if ticks := evenTicks(0.27, 0.88); len(ticks) < 4 || ticks[0].Label != "0.3" {
		t.Errorf("ticks %+v, want at least 4, the first at 0.3", ticks)
	}
}
