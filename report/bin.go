package report

// This file fits what a page shows into its bounds: it bins steps, thins points and cuts tables, and
// counts what it did.

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"
)

// bounds is what a page holds at most.
type bounds struct {
	bins       int // of steps, in a series
	heatCells  int // of one heatmap, for each of mean and greatest: 4/3 bytes each
	heatRows   int
	points     int // 8 bytes each
	tableCells int // of all tables
	tableText  int // bytes of all tables' texts, as they are written
}

// common are bounds that keep a page below MaxBytes where texts are as long as they are in models.
var common = bounds{
	bins: 4096, heatCells: 1 << 20, heatRows: 4096, points: 60_000, tableCells: 160_000, tableText: 4 << 20,
}

// half are smaller ones.
func (b bounds) half() bounds {
	return bounds{
		max(1, b.bins/2), max(1, b.heatCells/2), max(1, b.heatRows/2), max(1, b.points/2), b.tableCells / 2,
		b.tableText / 2,
	}
}

const (
	maxHeatmaps = 4
	maxSeries   = 16
	maxTables   = 16
	maxText     = 400 // bytes of a text from a capture
)

// page is a Report as the page's script reads it.
type page struct {
	Title   string     `json:"title"`
	Context []Fact     `json:"context"`
	Verdict []string   `json:"verdict"`
	Facts   []Fact     `json:"facts"`
	Notes   []string   `json:"notes"`
	Binned  []string   `json:"binned"` // what is not shown as it is
	Steps   int        `json:"steps"`
	PerBin  int        `json:"per_bin"` // steps in each bin of a series
	Labels  []string   `json:"labels"`  // of the first step of each bin
	Phases  []span     `json:"phases"`
	Series  []series   `json:"series"`
	Heat    []heat     `json:"heat"`
	Offsets *points    `json:"offsets"`
	Tables  []rowTable `json:"tables"`
}

type span struct {
	Phase string `json:"phase"`
	From  int    `json:"from"`
	To    int    `json:"to"`
}

// series has a mean and a greatest value for each bin: null where nothing is known.
type series struct {
	Name string     `json:"name"`
	Unit string     `json:"unit"`
	Mean []*float32 `json:"mean"`
	Max  []*float32 `json:"max,omitempty"` // absent where a bin is one step
}

// heat has a byte for each row and bin: 0 for what was not observed, 1 for zero, else 2 to 255 on a
// logarithmic scale from Least to Most.
type heat struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	About  string  `json:"about"`
	Rows   []Row   `json:"rows"`
	PerBin int     `json:"per_bin"`
	PerRow int     `json:"per_row"`
	Bins   int     `json:"bins"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
	Mean   string  `json:"mean"`
	Max    string  `json:"max,omitempty"`
}

type points struct {
	Size  float64  `json:"size"`
	Kinds []string `json:"kinds"`
	// XY is three little-endian uint16 for each point: step (of all steps), offset (of the size), each as
	// a share of 65535, and the kind.
	XY string `json:"xy"`
}

type rowTable struct {
	Name    string   `json:"name"`
	About   string   `json:"about"`
	Columns []Column `json:"columns"`
	Rows    [][]any  `json:"rows"`
}

// fit checks a report and fits it.
func fit(r *Report, b bounds) (*page, error) {
	n := len(r.Steps)
	p := &page{Title: short(r.Title), Verdict: texts(r.Verdict), Notes: texts(r.Notes), Context: facts(r.Context),
		Facts: facts(r.Facts), Binned: []string{}, Steps: n, PerBin: perBin(n, b.bins),
		Phases: []span{}, Series: []series{}, Heat: []heat{}, Tables: []rowTable{}, Labels: []string{}}
	for i, s := range r.Steps {
		if i%p.PerBin == 0 {
			p.Labels = append(p.Labels, short(s.Label))
		}
		if i == 0 || r.Steps[i-1].Phase != s.Phase {
			p.Phases = append(p.Phases, span{short(s.Phase), i, i})
		}
		p.Phases[len(p.Phases)-1].To = i + 1
	}
	if len(p.Phases) > b.bins { // a server's, between many requests: too many to tell apart
		p.Phases = []span{}
		p.Binned = append(p.Binned, "phases change too often to be marked")
	}
	for i, s := range r.Series {
		if i == maxSeries {
			p.Binned = append(p.Binned, fmt.Sprintf("%d of %d series are shown", maxSeries, len(r.Series)))
			break
		}
		if len(s.Values) != n {
			return nil, fmt.Errorf("series %q has %d values for %d steps", s.Name, len(s.Values), n)
		}
		p.Series = append(p.Series, binSeries(s, p.PerBin))
	}
	if p.PerBin > 1 {
		p.Binned = append(p.Binned, fmt.Sprintf("the timeline shows %d steps in bins of %d, by their mean (line) "+
			"and their greatest value (shade)", n, p.PerBin))
	}
	for i, h := range r.Heat {
		if i == maxHeatmaps {
			p.Binned = append(p.Binned, fmt.Sprintf("%d of %d heatmaps are shown", maxHeatmaps, len(r.Heat)))
			break
		}
		binned := binHeat(h, n, b)
		p.Heat = append(p.Heat, binned)
		if binned.PerBin > 1 || binned.PerRow > 1 {
			p.Binned = append(p.Binned, fmt.Sprintf("the heatmap %q shows %d rows and %d steps in cells of %d and "+
				"%d, by their mean or their greatest value", short(h.Name), len(h.Rows), n, binned.PerRow,
				binned.PerBin))
		}
	}
	if o := r.Offsets; o != nil && n > 0 {
		thin := perBin(o.Count, b.points)
		p.Offsets = fitPoints(o, n, thin)
		if thin > 1 {
			p.Binned = append(p.Binned, fmt.Sprintf("of %d reads one in %d is a point", o.Count, thin))
		}
	}
	cells, text := b.tableCells, b.tableText
	for i, t := range r.Tables {
		if i == maxTables {
			p.Binned = append(p.Binned, fmt.Sprintf("%d of %d tables are shown", maxTables, len(r.Tables)))
			break
		}
		left := min(len(r.Tables), maxTables) - i
		fitted, used, err := fitTable(t, cells/left, text/left)
		if err != nil {
			return nil, err
		}
		if len(fitted.Rows) < len(t.Rows) {
			p.Binned = append(p.Binned, fmt.Sprintf("the table %q has its first %d of %d rows", short(t.Name),
				len(fitted.Rows), len(t.Rows)))
		}
		cells -= len(fitted.Rows) * len(fitted.Columns)
		text -= used
		p.Tables = append(p.Tables, fitted)
	}
	return p, nil
}

// perBin is how many of n must be one, so that at most most are left.
func perBin(n, most int) int { return max(1, (n+most-1)/most) }

func short(s string) string {
	if len(s) <= maxText {
		return s
	}
	for i := range s { // at the beginning of a character
		if i > maxText-4 {
			return s[:i] + "…"
		}
	}
	return s
}

// maxLines bounds sentences, notes and facts.
const maxLines = 100

func texts(all []string) []string {
	shown := []string{}
	for _, s := range all[:min(len(all), maxLines)] {
		shown = append(shown, short(s))
	}
	return shown
}

func facts(all []Fact) []Fact {
	shown := []Fact{}
	for _, f := range all[:min(len(all), maxLines)] {
		shown = append(shown, Fact{short(f.Name), short(f.Value), short(f.About)})
	}
	return shown
}

// bin gathers the values of one.
type bin struct {
	sum, most float64
	count     int
}

func (b *bin) add(v float64) {
	if known(v) {
		if b.count == 0 || v > b.most {
			b.most = v
		}
		b.sum += v
		b.count++
	}
}

func (b *bin) mean() float64 {
	if b.count == 0 {
		return math.NaN()
	}
	return b.sum / float64(b.count)
}

func (b *bin) max() float64 {
	if b.count == 0 {
		return math.NaN()
	}
	return b.most
}

func number(v float64) *float32 {
	if f := float32(v); known(float64(f)) {
		return &f
	}
	return nil
}

func binSeries(s Series, per int) series {
	out := series{Name: short(s.Name), Unit: short(s.Unit), Mean: []*float32{}}
	for from := 0; from < len(s.Values); from += per {
		var b bin
		for _, v := range s.Values[from:min(from+per, len(s.Values))] {
			b.add(v)
		}
		out.Mean = append(out.Mean, number(b.mean()))
		if per > 1 {
			out.Max = append(out.Max, number(b.max()))
		}
	}
	return out
}

// binHeat reads a heatmap once.
func binHeat(h Heatmap, steps int, b bounds) heat {
	out := heat{
		Name: short(h.Name), Unit: short(h.Unit), About: short(h.About), Rows: []Row{},
		PerRow: perBin(len(h.Rows), b.heatRows), PerBin: 1,
	}
	rows := (len(h.Rows) + out.PerRow - 1) / out.PerRow
	if rows == 0 || steps == 0 {
		return out
	}
	out.PerBin = perBin(steps, max(1, b.heatCells/rows))
	out.Bins = (steps + out.PerBin - 1) / out.PerBin
	var bins []bin
	mean, most := make([]float32, rows*out.Bins), make([]float32, rows*out.Bins)
	for row := range rows {
		bins = append(bins[:0], make([]bin, out.Bins)...)
		from, to := row*out.PerRow, min((row+1)*out.PerRow, len(h.Rows))
		for r := from; r < to; r++ {
			for step := range steps {
				bins[step/out.PerBin].add(h.At(r, step))
			}
		}
		for i := range bins {
			mean[row*out.Bins+i], most[row*out.Bins+i] = float32(bins[i].mean()), float32(bins[i].max())
		}
		out.Rows = append(out.Rows, together(h.Rows[from:to]))
	}
	least, greatest := math.Inf(1), 0.0
	for i, v := range mean {
		if v := float64(v); known(v) && v > 0 {
			least = min(least, v)
		}
		if v := float64(most[i]); known(v) {
			greatest = max(greatest, v)
		}
	}
	if greatest == 0 {
		least, greatest = 1, 1
	}
	out.Least, out.Most = least, greatest
	out.Mean = out.encode(mean)
	if out.PerBin > 1 || out.PerRow > 1 {
		out.Max = out.encode(most)
	}
	return out
}

// together is the row that stands for several.
func together(rows []Row) Row {
	one := Row{Name: short(rows[0].Name), Detail: short(rows[0].Detail)}
	if len(rows) > 1 {
		one.Name, one.Detail = short(rows[0].Name+" to "+rows[len(rows)-1].Name), fmt.Sprintf("%d rows", len(rows))
	}
	for _, r := range rows {
		if known(r.Weight) && r.Weight > 0 {
			one.Weight += r.Weight
		}
	}
	return one
}

// The bytes of a heatmap's cells.
const (
	cellUnknown = 0
	cellZero    = 1
	cellLeast   = 2
	cellMost    = 255
)

func (h *heat) encode(values []float32) string {
	cells := make([]byte, len(values))
	for i, v := range values {
		cells[i] = h.cell(float64(v))
	}
	return base64.StdEncoding.EncodeToString(cells)
}

func (h *heat) cell(v float64) byte {
	switch {
	case !known(v):
		return cellUnknown
	case v <= 0:
		return cellZero
	case h.Most <= h.Least:
		return cellMost
	}
	share := math.Log(v/h.Least) / math.Log(h.Most/h.Least)
	return byte(cellLeast + math.Round(min(max(share, 0), 1)*(cellMost-cellLeast)))
}

// fitPoints takes one point of every thin.
func fitPoints(o *Offsets, steps, thin int) *points {
	out := &points{Size: o.Size, Kinds: texts(o.Kinds)}
	share := func(v, of float64) uint16 {
		if !known(v) || of <= 0 {
			return 0
		}
		return uint16(math.Round(min(max(v/of, 0), 1) * math.MaxUint16))
	}
	var xy []byte
	for i := 0; i < o.Count; i += thin {
		at := o.At(i)
		xy = binary.LittleEndian.AppendUint16(xy, share(at.Step, float64(steps)))
		xy = binary.LittleEndian.AppendUint16(xy, share(at.Offset, o.Size))
		xy = binary.LittleEndian.AppendUint16(xy, uint16(min(max(at.Kind, 0), math.MaxUint16)))
	}
	out.XY = base64.StdEncoding.EncodeToString(xy)
	return out
}

// fitTable cuts a table to a number of cells, and of bytes of text: it returns how many these are.
func fitTable(t Table, cells, text int) (out rowTable, used int, err error) {
	out = rowTable{Name: short(t.Name), About: short(t.About), Columns: t.Columns, Rows: [][]any{}}
	if out.Columns == nil {
		out.Columns = []Column{}
	}
	for _, row := range t.Rows[:min(len(t.Rows), cells/max(1, len(t.Columns)))] {
		if len(row) != len(t.Columns) {
			return out, 0, fmt.Errorf("table %q has a row of %d cells and %d columns", t.Name, len(row), len(t.Columns))
		}
		shown, written := make([]any, len(row)), 0
		for i, c := range row {
			switch c := c.(type) {
			case float64:
				if known(c) { // else null
					shown[i] = c
				}
			case string:
				c = short(c)
				shown[i] = c
				written += escaped(c)
			default:
				return out, 0, fmt.Errorf("table %q has a cell of type %T", t.Name, c)
			}
		}
		if used+written > text {
			break
		}
		used += written
		out.Rows = append(out.Rows, shown)
	}
	return out, used, nil
}

// escaped is how many bytes a text has in JSON, at most.
func escaped(s string) int {
	n := 2 + len(s)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '<' || c == '>' || c == '&' || c == '"' || c == '\\' {
			n += len(`\u0000`) - 1
		}
	}
	return n
}
