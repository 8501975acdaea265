package chart

// This file tests maps, stacks, logarithmic axes and texts that are broken into lines.

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

// cells is a map of two classes, of which one is the paler the higher it lies.
func cells() *Map {
	return &Map{
		Title: "a model: where is read", XLabel: "step", YLabel: "offset (MiB)", To: 20, High: 100,
		Columns: 200, Rows: 50,
		Classes: []MapClass{{"sequential", 0}, {"back", 3}, {"nowhere", 1}},
		Caption: strings.Repeat("a long caption ", 30),
		Cell: func(column, row int) (int, float64) {
			switch {
			case column%10 == row/5:
				return 0, 1
			case column%10 == 9:
				return 1, 1 - float64(row)/50
			}
			return 0, 0
		},
	}
}

// bars is a stack of two parts, with a bar that is higher than the figure, and a time that is not told apart.
func bars() *Stack {
	return &Stack{
		Title: "a model: tokens per second", XLabel: "step", YLabel: "tokens per second", To: 6, High: 5,
		Values: []float64{9, 0, 4, 3, 2, 1}, Unknown: "not told apart", Bound: 4.5, BoundName: "if nothing waited",
		Parts: []StackPart{
			{Name: "computing", Color: 0, Shares: []float64{0, 0, 1, 0.7, 0.5, 0.2}},
			{Name: "waiting", Color: 3, Shares: []float64{0, 0, 0, 0.3, 0.25, 0.8}},
		},
	}
}

// powers is a figure of seven curves on a logarithmic axis, of which the last two are the same.
func powers() *Figure {
	f := &Figure{
		To: 25, Low: 0.5, High: 200, XLabel: "memory (GiB)", YLabel: "tokens per second", Beside: true,
		Panels: []Panel{{Title: strings.Repeat("a title that does not fit a line ", 3)}},
	}
	for i, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		c := Curve{Name: name}
		for x := range 25 {
			c.Points = append(c.Points, Point{X: float64(x), Y: math.Pow(1.2, float64(x))*float64(1+min(i, 5)) - 1})
		}
		f.Panels[0].Curves = append(f.Panels[0].Curves, c)
	}
	return f
}

func TestMapRefused(t *testing.T) {
	for name, m := range map[string]*Map{
		"no columns": {Rows: 1, To: 1, High: 1}, "no rows": {Columns: 1, To: 1, High: 1},
		"no end": {Columns: 1, Rows: 1, High: 1}, "no height": {Columns: 1, Rows: 1, To: 1, High: math.NaN()},
	} {
		if err := m.Write(&bytes.Buffer{}, "svg"); !errors.Is(err, ErrEmpty) {
			t.Errorf("%s: error %v, want %v", name, err, ErrEmpty)
		}
	}
	if err := (&Map{Columns: math.MaxInt, Rows: 2, To: 1, High: 1}).Write(&bytes.Buffer{}, "svg"); !errors.Is(err,
		ErrTooLarge) {
		t.Errorf("error %v, want %v", err, ErrTooLarge)
	}
	if err := (&Stack{To: 1, High: 1}).Write(&bytes.Buffer{}, "svg"); !errors.Is(err, ErrEmpty) {
		t.Errorf("a stack without bars: error %v, want %v", err, ErrEmpty)
	}
	if err := (&Stack{To: 1, High: math.Inf(1), Values: []float64{1}}).Write(&bytes.Buffer{}, "svg"); !errors.Is(err,
		ErrTooLarge) {
		t.Errorf("an endless stack: error %v, want %v", err, ErrTooLarge)
	}
}

// The least that is read can be seen, and all of it has the whole colour.
func TestTint(t *testing.T) {
	for share, want := range map[float64]uint8{0: 191, 0.5: 96, 1: 0, 7: 0} {
		if got := Tint(Color(0), share).R; got != want {
			t.Errorf("red of %g is %d, want %d", share, got, want)
		}
	}
}

// Only what is in a figure is in its legend.
func TestLegends(t *testing.T) {
	for name, tc := range map[string]struct {
		write    func(*bytes.Buffer) error
		has, not []string
	}{
		"map": {func(b *bytes.Buffer) error { return cells().Write(b, "svg") }, []string{"sequential", "back"},
			[]string{"nowhere"}},
		"stack": {func(b *bytes.Buffer) error { return bars().Write(b, "svg") },
			[]string{"computing", "waiting", "not told apart", "if nothing waited"}, nil},
		"whole stack": {func(b *bytes.Buffer) error {
			s := bars()
			s.Values[0], s.Values[4], s.Bound = 0, 0, 0
			return s.Write(b, "svg")
		}, []string{"computing", "waiting"}, []string{"not told apart", "if nothing waited"}},
	} {
		var b bytes.Buffer
		if err := tc.write(&b); err != nil {
			t.Fatal(err)
		}
		for _, text := range tc.has {
			if !strings.Contains(b.String(), ">"+text+"<") {
				t.Errorf("%s: the legend lacks %q", name, text)
			}
		}
		for _, text := range tc.not {
			if strings.Contains(b.String(), ">"+text+"<") {
				t.Errorf("%s: the legend has %q", name, text)
			}
		}
	}
}

// Texts are broken at spaces, within words that are too long, and at line feeds. What is more than the most lines is
// cut.
func TestWrap(t *testing.T) {
	fits := func(line string) bool { return len([]rune(line)) <= 10 }
	for s, want := range map[string][]string{
		"":                                  nil,
		"short":                             {"short"},
		"a text of several words":           {"a text of", "several", "words"},
		"first\nsecond":                     {"first", "second"},
		"äöüäöüäöüäöüäöü a":                 {"äöüäöüäöüä", "öüäöü a"},
		"one two three four five six seven": {"one two", "three four", "five six…"},
	} {
		if got := Wrap(s, 3, fits); !reflect.DeepEqual(got, want) {
			t.Errorf("%q is broken into %q, want %q", s, got, want)
		}
	}
	if got := Wrap("abc", 9, func(string) bool { return false }); !reflect.DeepEqual(got, []string{"a", "b", "c"}) {
		t.Errorf("where nothing fits: %q, want a line for each letter", got)
	}
}

func TestLogTicks(t *testing.T) {
	for _, tc := range []struct {
		low, high float64
		want      string
	}{
		{0.5, 30, "0.5 1 2 5 10 20"}, {0.001, 3000, "0.001 0.01 0.1 1 10 100 1000"},
		{3.1, 4.2, "3.2 3.4 3.6 3.8 4 4.2"},
	} {
		var got []string
		for _, tick := range logTicks(tc.low, tc.high) {
			got = append(got, tick.Label)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("from %g to %g: ticks %q, want %q", tc.low, tc.high, got, tc.want)
		}
	}
}

// Of curves that are the same, each has marks of its own.
func TestMarksDoNotHide(t *testing.T) {
	points := toXYs(powers().Panels[0].Curves[0].Points)
	seen := map[float64]int{}
	for number := range 3 {
		marks := someMarks(points, number)
		if len(marks) < 4 || len(marks) > 8 {
			t.Errorf("curve %d of %d points has %d marks, want about 5", number, len(points), len(marks))
		}
		for _, m := range marks {
			seen[m.X]++
		}
	}
	for x, n := range seen {
		if n > 1 {
			t.Errorf("%d curves have a mark at %g", n, x)
		}
	}
	if few := points[:5]; len(someMarks(few, 1)) != 5 {
		t.Error("of a few points not all have marks")
	}
}
