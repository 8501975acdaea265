package report

// This file tests what a page holds for its script, and that pages are bounded.

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
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
		Main:    "generation",
		Reads: &ReadMap{ // a quarter of the file in each quarter of the steps
			Size: 1000, Classes: []Class{{"sequential", "#0000ff"}, {"backward", "#ff0000"}}, Columns: steps, Rows: 4,
			StepsPerColumn: 1, About: "what colours mean",
			Cell: func(column, row int) (int, float64) {
				if row == column/10 {
					return column % 2, 1
				}
				return 0, 0
			},
		},
		Spans: []Span{
			{Class{"prompt", "#00ff00"}, 1, 3, "tokens: 30"}, {Class{"generation", "#0000ff"}, 3, 8, "tokens: 37"},
		},
		Maps: []Map{{
			Name: "generated tokens", Unit: "%", About: "who chose what", Rows: []string{"layer 0", "layer 1"},
			Column: "expert", Columns: 4, At: func(row, column int) float64 { return 25 * float64(row*column) },
		}},
		Tables: []Table{{Name: "Tensors", Columns: []Column{{"tensor", ""}, {"bytes", "B"}}, Rows: [][]any{
			{"blk.0.a", 2048.0}, {"blk.1.b", 1048576.0}, {"blk.2.c", math.NaN()}, {"output", 5.0},
		}}},
		Notes: []string{"stalls: --detail op+io records them"},
	}
	// A step of the prompt has 10 tokens, and computes for a second. The others take half of theirs to wait.
	r.Speed = &Speed{Possible: 12, About: "how to read this", Parts: []Part{
		{Class: Class{"computing", "#0000ff"}}, {Class: Class{"waiting", "#ff0000"}},
	}}
	speed := Series{Name: "speed", Unit: "tok/s"}
	for i := range steps {
		phase := "generation"
		if i < 3 {
			phase = "prompt"
		}
		r.Steps = append(r.Steps, Step{fmt.Sprint("token ", i), phase})
		tokens, seconds, waiting := 1.0, 0.125, 0.0625
		if i < 3 {
			tokens, seconds, waiting = 1000, 1, math.NaN()
		}
		r.Speed.Tokens, r.Speed.Seconds = append(r.Speed.Tokens, tokens), append(r.Speed.Seconds, seconds)
		r.Speed.Begins = append(r.Speed.Begins, float64(i))
		for part, v := range []float64{seconds / 2, waiting} {
			r.Speed.Parts[part].Seconds = append(r.Speed.Parts[part].Seconds, v)
		}
		speed.Values = append(speed.Values, float64(i+1))
	}
	speed.Values[7] = math.NaN()
	r.Series = []Series{speed}
	rows := []Row{{Name: "blk.0", Weight: 10}, {Name: "blk.1", Weight: 10}}
	r.Heat = []Heatmap{{Name: "from disk", Unit: "B", Rows: rows,
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
	reads, err := base64.StdEncoding.DecodeString(p.Reads.Cells)
	if err != nil || len(reads) != 160 || p.Reads.PerColumn != 1 {
		t.Fatalf("%d cells of reads, error %v, want 160", len(reads), err)
	}
	for i, got := range reads {
		want := byte(0)
		if row, column := i/40, i%40; row == column/10 {
			want = byte(column%2)<<5 | 31
		}
		if got != want {
			t.Errorf("cell %d of reads is %d, want %d", i, got, want)
		}
	}
	if s := p.Speed; len(s.Tokens) != 40 || s.Seconds[2] != 1 || s.Parts[1].Seconds[2] != 0 ||
		s.Parts[1].Seconds[3] != 0.0625 || s.Possible != 12 {
		t.Errorf("speed %+v, want what was planted", s)
	}
	experts, err := base64.StdEncoding.DecodeString(p.Maps[0].Cells)
	if want := []byte{1, 1, 1, 1, 1, 148, 209, 255}; err != nil || !bytes.Equal(experts, want) || p.Maps[0].Most != 75 {
		t.Errorf("map %v up to %g, error %v, want %v up to 75", experts, p.Maps[0].Most, err, want)
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
	// Every second step reads the half of the file, so that bins of three have a half or a quarter more.
	r.Speed = &Speed{
		Tokens: slices.Repeat([]float64{1}, steps), Seconds: slices.Repeat([]float64{0.5, 0.25}, steps/2),
		Begins: make([]float64, steps), Parts: []Part{{Seconds: slices.Repeat([]float64{0.25}, steps)}},
	}
	r.Reads = &ReadMap{
		Size: 100, Classes: make([]Class, 2), Columns: steps, Rows: 200, StepsPerColumn: 1,
		Cell: func(column, row int) (int, float64) { return 1, float64(column % 2) },
	}
	r.Maps = []Map{{Name: "m", Rows: make([]string, 1000), Columns: 1000, At: func(_, column int) float64 {
		return float64(column % 2)
	}}}
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
	if h.PerRow != 2 || len(h.Rows) != 2500 || h.Rows[0] != (Row{Name: "0 to 1", Weight: 2, Detail: "2 rows"}) ||
		h.Most != 1000 {
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
	if s := p.Speed; len(s.Tokens) != 3334 || s.Tokens[0] != 3 || s.Seconds[0] != 1.25 || s.Seconds[1] != 1 ||
		s.Parts[0].Seconds[0] != 0.75 {
		t.Errorf("the first bin has %g tokens in %g s, want 3 in 1.25", s.Tokens[0], s.Seconds[0])
	}
	// Four columns share a cell, and half of them are empty: all cells are alike.
	reads, err := base64.StdEncoding.DecodeString(p.Reads.Cells)
	if err != nil || p.Reads.Columns != steps/4 || p.Reads.PerColumn != 4 {
		t.Fatalf("%d columns of %g steps, error %v, want %d of 4", p.Reads.Columns, p.Reads.PerColumn, err, steps/4)
	}
	if want := byte(1<<5 | 22); bytes.Count(reads, []byte{want}) != len(reads) { // 22 is 31 times the root of a half
		t.Errorf("the cells begin with %v, want %d in all", reads[:8], want)
	}
	m, err := base64.StdEncoding.DecodeString(p.Maps[0].Cells)
	if err != nil || p.Maps[0].PerColumn != 4 || p.Maps[0].Most != 0.5 || bytes.Count(m, []byte{255}) != len(m) {
		t.Errorf("the map has cells of %d up to %g, error %v, want 4 and 0.5", p.Maps[0].PerColumn, p.Maps[0].Most, err)
	}
	if len(p.Binned) != 3 {
		t.Errorf("the page says %q, want a sentence on steps, one on the heatmap and one on the map", p.Binned)
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
				rows[i] = Row{text, float64(i), text, text}
			}
			for range 6 {
				r.Heat = append(r.Heat,
					Heatmap{text, text, text, rows, func(row, step int) float64 { return float64((row * step) % 97) }})
			}
			r.Reads = &ReadMap{
				Size: 1e9, Classes: []Class{{text, text}}, Columns: steps, Rows: 4 * tensors, StepsPerColumn: 1,
				About: text,
				Cell:  func(column, row int) (int, float64) { return column % 9, 1 },
			}
			part := Part{Class{text, text}, make([]float64, steps)}
			r.Speed = &Speed{
				Tokens: make([]float64, steps), Seconds: make([]float64, steps), Begins: make([]float64, steps),
				Parts: []Part{part, part, part, part, part, part, part, part}, About: text,
			}
			names := slices.Repeat([]string{text}, 3000)
			for range 10_000 {
				r.Spans = append(r.Spans, Span{Class{text, text}, 1, 2, text})
				r.Maps = append(r.Maps, Map{
					Name: text, Unit: text, About: text, Rows: names, Column: text, Columns: 1000,
					At: func(row, column int) float64 { return float64(row) },
				})
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
			if p.Reads == nil || len(p.Maps) != maxMaps || len(p.Heat) != maxHeatmaps || len(p.Tables) != maxTables ||
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
		"series": {Steps: make([]Step, 2), Series: []Series{{Name: "s", Values: make([]float64, 3)}}},
		"speed":  {Steps: make([]Step, 2), Speed: &Speed{Tokens: make([]float64, 1)}},
		"part": {Steps: make([]Step, 1), Speed: &Speed{
			Tokens: make([]float64, 1), Seconds: make([]float64, 1), Begins: make([]float64, 1), Parts: make([]Part, 1),
		}},
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
