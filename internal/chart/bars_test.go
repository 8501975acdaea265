package chart

// This file tests bars, dots and steps by comparing pictures.

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gonum.org/v1/plot/cmpimg"

	"tensorcast/internal/testenv"
)

// stacked returns bars in two panels, one of which has several parts, with a label that is too long
// and a caption.
func stacked() *Bars {
	return &Bars{
		Title: "a model: what is read again",
		Labels: []string{
			"blk.0.ffn_up.weight", "blk.1." + strings.Repeat("long_", 20) + "weight", "output.weight", "never",
		},
		Panels: []BarPanel{
			{XLabel: "read again (MiB)", Parts: []BarPart{
				{"fault", []float64{1200, 300, 0, 0}}, {"readahead", []float64{1800, 0, 50, 0}},
			}},
			{XLabel: "waiting (ms)", Parts: []BarPart{{"", []float64{1, 2, 3, 0}}}},
		},
		Caption: "2 CPUs; Linux 6.1; llama-cli -m model.gguf",
	}
}

// dots returns a figure with many points in each of two curves.
func dots() *Figure {
	f := &Figure{
		To: 10, High: 100, XLabel: "step", YLabel: "offset (MiB)", Beside: true, Caption: "a caption",
		Panels: []Panel{{Title: "where is read"}},
	}
	for i, name := range []string{"sequential", "backward"} {
		c := Curve{Name: name, Dots: true}
		for n := range 200 {
			c.Points = append(c.Points, Point{X: float64(n) / 20, Y: float64((n*7+i*31)%97) + float64(i)})
		}
		f.Panels[0].Curves = append(f.Panels[0].Curves, c)
	}
	return f
}

// stairs returns a figure with a curve in steps and one with marks.
func stairs() *Figure {
	curves := []Curve{
		{Name: "steps", Steps: true, Points: []Point{{X: 0, Y: 100}, {X: 4, Y: 50}, {X: 9, Y: 10}, {X: 10, Y: 10}}},
		{Name: "marks", Points: []Point{{X: 1, Y: 20}, {X: 8, Y: 70}}},
	}
	return &Figure{
		To: 10, High: 100, XLabel: "memory (GiB)", YLabel: "missed (%)",
		Panels: []Panel{{Title: "a curve in steps", Curves: curves}},
	}
}

// intervals returns estimates, of which one has no interval and one lies below 0.
func intervals() *Intervals {
	return &Intervals{
		Title: "a model: what is lost", XLabel: "tokens per second that are lost (%)", Caption: "2 CPUs; Linux 6.1",
		Labels: []string{"none", "graph", "op, which has a longer name", "three pairs only"},
		Rows:   []Interval{{-0.3, -1.7, 0.9}, {0.3, -0.1, 0.7}, {1.3, 0.4, 2.3}, {2, 0, 0}},
	}
}

// Figures look like the golden images, which people have checked.
func TestPictures(t *testing.T) {
	testenv.SkipWithRace(t)
	type drawn interface {
		Write(w io.Writer, format string) error
	}
	other := stacked()
	other.Panels[1].Parts[0].Values[1] = 1
	moved := dots()
	for i := range moved.Panels[0].Curves[0].Points {
		moved.Panels[0].Curves[0].Points[i].Y /= 2
	}
	paler := cells()
	whole := paler.Cell
	paler.Cell = func(column, row int) (int, float64) {
		class, share := whole(column, row)
		return class, share / 2
	}
	computing := bars()
	computing.Parts[0].Shares[3], computing.Parts[1].Shares[3] = 1, 0
	linear := powers()
	linear.Low = 0
	wider := intervals()
	wider.Rows[2].High = 4
	joined := stairs()
	joined.Panels[0].Curves[0].Steps = false
	for name, of := range map[string]struct{ figure, other drawn }{
		"stairs": {stairs(), joined}, "bars": {stacked(), other}, "dots": {dots(), moved},
		"map": {cells(), paler}, "stack": {bars(), computing}, "logarithmic": {powers(), linear},
		"intervals": {intervals(), wider},
	} {
		t.Run(name, func(t *testing.T) {
			draw := func(d drawn, format string) []byte {
				var b bytes.Buffer
				if err := d.Write(&b, format); err != nil {
					t.Fatal(err)
				}
				return b.Bytes()
			}
			got, path := draw(of.figure, "png"), filepath.Join("testdata", name+".png")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v (run the test with -update to make it)", err)
			}
			same := func(a []byte) bool {
				ok, err := cmpimg.EqualApprox("png", a, want, 0.05)
				if err != nil {
					t.Fatal(err)
				}
				return ok
			}
			if !same(got) {
				t.Errorf("the figure does not look like %s; see -update", path)
			}
			if same(draw(of.other, "png")) {
				t.Error("a figure of other values looks the same to this test")
			}
			for format, begin := range map[string]string{"svg": "<?xml", "pdf": "%PDF"} {
				if b := draw(of.figure, format); !strings.HasPrefix(string(b), begin) {
					t.Errorf("%s begins with %.10q, want %q", format, b, begin)
				}
			}
		})
	}
}

// Bars that cannot be drawn are refused before anything is written.
func TestBarsRefused(t *testing.T) {
	oneBar := func(value float64) *Bars {
		return &Bars{Labels: []string{"a"}, Panels: []BarPanel{{Parts: []BarPart{{"", []float64{value}}}}}}
	}
	for name, of := range map[string]struct {
		bars *Bars
		want error
	}{
		"no labels": {&Bars{Panels: make([]BarPanel, 1)}, ErrEmpty},
		"no panels": {&Bars{Labels: []string{"a"}}, ErrEmpty},
		"too many":  {&Bars{Labels: make([]string, MaxBars+1), Panels: make([]BarPanel, 1)}, ErrTooLarge},
		"infinite":  {oneBar(math.Inf(1)), ErrTooLarge},
		"unknown":   {oneBar(math.NaN()), ErrTooLarge},
		"values":    {&Bars{Labels: []string{"a"}, Panels: []BarPanel{{Parts: []BarPart{{"", nil}}}}}, nil},
	} {
		var b bytes.Buffer
		if err := of.bars.Write(&b, "svg"); err == nil || of.want != nil && !errors.Is(err, of.want) || b.Len() > 0 {
			t.Errorf("%s: error %v, %d bytes; want %v (nil: any error), 0", name, err, b.Len(), of.want)
		}
	}
	var b bytes.Buffer
	if err := oneBar(0).Write(&b, "svg"); err != nil || b.Len() == 0 {
		t.Errorf("bars of length 0: error %v, %d bytes; want a picture", err, b.Len())
	}
}

// Intervals that cannot be drawn are refused before anything is written.
func TestIntervalsRefused(t *testing.T) {
	one := func(low float64) *Intervals {
		return &Intervals{Labels: []string{"a"}, Rows: []Interval{{1, low, 2}}}
	}
	for name, of := range map[string]struct {
		figure *Intervals
		want   error
	}{
		"none":     {&Intervals{}, ErrEmpty},
		"too many": {&Intervals{Labels: make([]string, MaxBars+1), Rows: make([]Interval, MaxBars+1)}, ErrTooLarge},
		"infinite": {one(math.Inf(-1)), ErrTooLarge},
		"unknown":  {one(math.NaN()), ErrTooLarge},
		"labels":   {&Intervals{Rows: []Interval{{1, 0, 2}}}, nil},
	} {
		var b bytes.Buffer
		if err := of.figure.Write(&b, "svg"); err == nil || of.want != nil && !errors.Is(err, of.want) || b.Len() > 0 {
			t.Errorf("%s: error %v, %d bytes; want %v (nil: any error), 0", name, err, b.Len(), of.want)
		}
	}
}
