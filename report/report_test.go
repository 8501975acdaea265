package report

// This file tests what a page holds for its script, and that pages are bounded.

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"tensorcast/internal/testenv"
)

// planted is a report of a few steps in which every value is known.
func planted() *Report {
	const steps = 40
	r := &Report{
		Title:   `a model </script> & "its" name`,
		Context: []Fact{{"host", "two cores", ""}},
		Verdict: []string{"Bound by the disk."},
		Facts:   []Fact{{"speed", "3.2 tok/s", "the median"}},
		Offsets: &Offsets{
			Size: 1000, Kinds: []string{"sequential", "backward"}, Count: steps,
			At: func(i int) Point { return Point{float64(i), float64(i * 25), 10, i % 2} },
		},
		Tables: []Table{{Name: "Tensors", Columns: []Column{{"tensor", ""}, {"bytes", "B"}}, Rows: [][]any{
			{"blk.0.a", 2048.0}, {"blk.1.b", 1048576.0}, {"blk.2.c", math.NaN()}, {"output", 5.0},
		}}},
		Notes: []string{"stalls: --detail op+io records them"},
	}
	speed := Series{Name: "speed", Unit: "tok/s"}
	for i := range steps {
		phase := "generation"
		if i < 3 {
			phase = "prompt"
		}
		r.Steps = append(r.Steps, Step{fmt.Sprint("token ", i), phase})
		speed.Values = append(speed.Values, float64(i+1))
	}
	speed.Values[7] = math.NaN()
	r.Series = []Series{speed}
	r.Heat = []Heatmap{{Name: "from disk", Unit: "B", Rows: []Row{{"blk.0", 10, ""}, {"blk.1", 10, ""}},
		At: func(row, step int) float64 {
			switch {
			case row == 0 && step == 20:
				return 4096
			case row == 1 && step < 20:
				return math.NaN()
			case row == 1:
				return 16
			}
			return 0
		}}}
	return r
}

// read decodes the data that a page holds for its script.
func read(t *testing.T, page []byte) (p pageData) {
	t.Helper()
	const begin = `<script type="application/json" id="data">`
	_, rest, ok := bytes.Cut(page, []byte(begin))
	if !ok {
		t.Fatal("the page has no data")
	}
	data, _, _ := bytes.Cut(rest, []byte("</script>"))
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func write(t *testing.T, r *Report) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A short report is shown as it is.
func TestWhole(t *testing.T) {
	b := write(t, planted())
	for _, mark := range []string{"@TITLE@", "@DATA@", "/*STYLE*/", "/*SCRIPT*/", "http://", "https://"} {
		if bytes.Contains(b, []byte(mark)) {
			t.Errorf("the page contains %q", mark)
		}
	}
	p := read(t, b)
	if p.Title != planted().Title || p.Steps != 40 || p.PerBin != 1 || len(p.Binned) != 0 || len(p.Labels) != 40 {
		t.Errorf("page %+v, want one of 40 steps without bins", p)
	}
	if want := []phaseSpan{{"prompt", 0, 3}, {"generation", 3, 40}}; len(p.Phases) != 2 || p.Phases[0] != want[0] ||
		p.Phases[1] != want[1] {
		t.Errorf("phases %+v, want %+v", p.Phases, want)
	}
	if s := p.Series[0]; s.Mean[7] != nil || *s.Mean[8] != 9 || s.Max != nil {
		t.Errorf("series %+v, want the planted values without greatest ones", s)
	}
	h := p.Heat[0]
	cells, err := base64.StdEncoding.DecodeString(h.Mean)
	if err != nil || len(cells) != 80 || h.Least != 16 || h.Most != 4096 {
		t.Fatalf("%d cells from %g to %g, error %v, want 80 from 16 to 4096", len(cells), h.Least, h.Most, err)
	}
	for i, want := range map[int]byte{
		0: cellZero, 20: cellMost, 40: cellUnknown, 59: cellUnknown, 60: cellLeast, 79: cellLeast,
	} {
		if cells[i] != want {
			t.Errorf("cell %d is %d, want %d", i, cells[i], want)
		}
	}
	if rows := p.Tables[0].Rows; rows[2][1] != nil || rows[1][1] != 1048576.0 || rows[3][0] != "output" {
		t.Errorf("rows %v, want those planted", rows)
	}
}

// Steps beyond what a page holds share bins, which have the mean and the greatest of the known values.
func TestBins(t *testing.T) {
	const steps = 10_000
	r := &Report{Steps: make([]Step, steps)}
	values := make([]float64, steps)
	for i := range values {
		values[i] = float64(i % 3)
	}
	values[0], values[1], values[2] = math.NaN(), math.NaN(), math.NaN()
	values[5000] = 70
	r.Series = []Series{{Name: "s", Values: values}}
	rows := make([]Row, 5000)
	for i := range rows {
		rows[i] = Row{Name: fmt.Sprint(i), Weight: 1}
	}
	r.Heat = []Heatmap{{Name: "h", Rows: rows, At: func(row, step int) float64 {
		if row == 4321 && step == 9876 {
			return 1000
		}
		return 1
	}}}
	p := read(t, write(t, r))
	if p.PerBin != 3 || len(p.Series[0].Mean) != 3334 || len(p.Labels) != 3334 {
		t.Fatalf("bins of %d, %d, %d labels", p.PerBin, len(p.Series[0].Mean), len(p.Labels))
	}
	s := p.Series[0]
	if s.Mean[0] != nil || s.Max[0] != nil || *s.Mean[1] != 1 || *s.Max[1] != 2 || *s.Max[5000/3] != 70 ||
		*s.Mean[5000/3] != float32((0.0+1+70)/3) {
		t.Errorf("the bin of the peak: mean %v, greatest %v, want 71/3 and 70", *s.Mean[5000/3], *s.Max[5000/3])
	}
	h := p.Heat[0]
	if h.PerRow != 2 || len(h.Rows) != 2500 || h.Rows[0] != (Row{"0 to 1", 2, "2 rows"}) || h.Most != 1000 {
		t.Errorf("%d rows of %d, the first %+v, at most %g, want 2500 of 2, at most 1000", len(h.Rows), h.PerRow,
			h.Rows[0], h.Most)
	}
	cells, err := base64.StdEncoding.DecodeString(h.Max)
	if err != nil || len(cells) != len(h.Rows)*h.Bins {
		t.Fatalf("%d cells, error %v, want %d", len(cells), err, len(h.Rows)*h.Bins)
	}
	if got, want := bytes.Count(cells, []byte{cellMost}), 1; got != want ||
		cells[4321/2*h.Bins+9876/h.PerBin] != cellMost {
		t.Errorf("%d greatest cells, want %d", got, want)
	}
	if len(p.Binned) != 2 {
		t.Errorf("the page says %q, want a sentence on steps and one on the heatmap", p.Binned)
	}
}

// No capture makes the page larger than its bound: neither one of ten million rows, nor that of a hostile
// file.
func TestBound(t *testing.T) {
	testenv.SkipWithRace(t)
	for name, text := range map[string]string{
		"common": "blk.12.ffn_down.weight", "hostile": strings.Repeat("<\x00", 5000),
	} {
		t.Run(name, func(t *testing.T) {
			const steps, tensors = 34_000, 300
			r := &Report{
				Title: text, Steps: make([]Step, steps), Verdict: make([]string, 10_000),
				Notes: make([]string, 10_000), Facts: make([]Fact, 10_000),
			}
			for i := range r.Steps {
				r.Steps[i] = Step{text, text[:1+i%2]}
			}
			for range 100 {
				r.Series = append(r.Series, Series{text, text, make([]float64, steps)})
			}
			rows := make([]Row, tensors)
			for i := range rows {
				rows[i] = Row{text, float64(i), text}
			}
			for range 6 {
				r.Heat = append(r.Heat,
					Heatmap{text, text, text, rows, func(row, step int) float64 { return float64((row * step) % 97) }})
			}
			r.Offsets = &Offsets{
				Size: 1e9, Kinds: []string{text}, Count: steps * tensors,
				At: func(i int) Point { return Point{float64(i / tensors), float64(i), 1, 0} },
			}
			table := Table{Name: text, Columns: []Column{{text[:22], ""}, {"n", "B"}}}
			for i := range 1_000_000 {
				table.Rows = append(table.Rows, []any{text, float64(i)})
			}
			for range 20 {
				r.Tables = append(r.Tables, table)
			}
			b := write(t, r)
			if len(b) > MaxBytes || len(b) < 1<<20 {
				t.Errorf("the page has %d bytes, want at least %d, at most %d", len(b), 1<<20, MaxBytes)
			}
			p := read(t, b)
			if p.Offsets == nil || len(p.Heat) != maxHeatmaps || len(p.Tables) != maxTables ||
				len(p.Tables[maxTables-1].Rows) == 0 {
				t.Errorf("%d heatmaps, %d tables, want %d and %d", len(p.Heat), len(p.Tables), maxHeatmaps, maxTables)
			}
			t.Logf("%d bytes", len(b))
		})
	}
}

// A report that contradicts itself is refused. An empty report is a page.
func TestRefused(t *testing.T) {
	for name, r := range map[string]*Report{
		"series":   {Steps: make([]Step, 2), Series: []Series{{Name: "s", Values: make([]float64, 3)}}},
		"row":      {Tables: []Table{{Name: "t", Columns: make([]Column, 2), Rows: [][]any{{"x"}}}}},
		"cell":     {Tables: []Table{{Name: "t", Columns: make([]Column, 1), Rows: [][]any{{7}}}}},
		"writer":   {},
		"no steps": {},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			switch name {
			case "writer":
				if err := r.Write(full{}); !errors.Is(err, errFull) {
					t.Errorf("error %v, want %v", err, errFull)
				}
			case "no steps":
				if err := r.Write(&b); err != nil || read(t, b.Bytes()).Steps != 0 {
					t.Errorf("error %v, want a page without steps", err)
				}
			default:
				if err := r.Write(&b); err == nil || b.Len() > 0 || strings.Contains(err.Error(), "\n") {
					t.Errorf("error %v after %d bytes, want one line and nothing written", err, b.Len())
				}
			}
		})
	}
}

var errFull = errors.New("full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }
