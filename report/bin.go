package report

// This file fits a report into the bounds of a page. It bins steps and cells, and cuts tables, and says on the page
// what it did.

import (
	"encoding/base64"
	"fmt"
	"math"
	"unicode/utf8"
)

// bounds is what a page holds at most.
type bounds struct {
	bins       int // of steps, in a series
	heatCells  int // of one heatmap, for each of mean and greatest: 4/3 bytes each
	heatRows   int
	readCells  int // of where is read: 4/3 bytes each
	mapCells   int // of each map: 4/3 bytes each
	tableCells int // of all tables together
	tableText  int // bytes of all tables' texts together, as they are written
}

// usualBounds keep a page below MaxBytes, where texts are as long as they are in models.
var usualBounds = bounds{
	bins: 4096, heatCells: 1 << 20, heatRows: 4096, readCells: 1 << 19, mapCells: 1 << 18,
	tableCells: 160_000, tableText: 4 << 20,
}

// half are bounds of half the size.
func (b bounds) half() bounds {
	return bounds{
		max(1, b.bins/2), max(1, b.heatCells/2), max(1, b.heatRows/2), max(1, b.readCells/2), max(1, b.mapCells/2),
		b.tableCells / 2, b.tableText / 2,
	}
}

const (
	maxHeatmaps = 4
	maxSeries   = 16
	maxTables   = 16
	maxParts    = 8
	maxSpans    = 500
	maxMaps     = 4
	maxText     = 400 // bytes of a text from a capture
)

// pageData is a Report as the page's script reads it.
type pageData struct {
	Title   string       `json:"title"`
	Context []Fact       `json:"context"`
	Verdict []string     `json:"verdict"`
	Facts   []Fact       `json:"facts"`
	Notes   []string     `json:"notes"`
	Binned  []string     `json:"binned"` // sentences about what is not shown as it is
	Steps   int          `json:"steps"`
	PerBin  int          `json:"per_bin"` // steps in each bin of a series
	Labels  []string     `json:"labels"`  // of the first step of each bin
	Phases  []phaseSpan  `json:"phases"`
	Series  []seriesData `json:"series"`
	Main    string       `json:"main"`
	Speed   *speedData   `json:"speed"`
	Spans   []Span       `json:"spans"`
	Heat    []heatCells  `json:"heat"`
	Reads   *readCells   `json:"reads"`
	Maps    []mapCells   `json:"maps"`
	Tables  []rowTable   `json:"tables"`
}

type phaseSpan struct {
	Phase string `json:"phase"`
	From  int    `json:"from"`
	To    int    `json:"to"`
}

// seriesData has a mean and a greatest value for each bin; null where nothing is known.
type seriesData struct {
	Name string     `json:"name"`
	Unit string     `json:"unit"`
	Mean []*float32 `json:"mean"`
	Max  []*float32 `json:"max,omitempty"` // absent where a bin is one step
}

// heatCells has a byte for each row and bin. 0 is for what was not observed and 1 for zero. 2 to 255 are
// on a logarithmic scale from Least to Most.
type heatCells struct {
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

// speedData has the sums of each bin's steps whose time is known.
type speedData struct {
	Tokens   []float64  `json:"tokens"`
	Seconds  []float64  `json:"seconds"` // 0: not known
	Begins   []float64  `json:"begins"`  // of each bin's first step
	Parts    []partData `json:"parts"`
	Possible float64    `json:"possible"`
	About    string     `json:"about"`
}

type partData struct {
	Class
	Seconds []float64 `json:"seconds"`
}

// readCells has a byte for each cell, row by row from the beginning of the files. 0 is for nothing. Else the upper
// three bits are the class, and the lower five are the square root of the share that is read: 31 for all.
type readCells struct {
	Size      float64 `json:"size"`
	Classes   []Class `json:"classes"`
	Columns   int     `json:"columns"`
	Rows      int     `json:"rows"`
	PerColumn float64 `json:"per_column"` // steps
	About     string  `json:"about"`
	Cells     string  `json:"cells"` // base64
}

// mapCells has a byte for each cell, row by row: 0 is for what is not known and 1 for zero. 2 to 255 are the square
// root of the value as a share of Most.
type mapCells struct {
	Name      string   `json:"name"`
	Unit      string   `json:"unit"`
	About     string   `json:"about"`
	Rows      []string `json:"rows"`
	Column    string   `json:"column"`
	Columns   int      `json:"columns"`
	PerColumn int      `json:"per_column"`
	Most      float64  `json:"most"`
	Cells     string   `json:"cells"`
}

type rowTable struct {
	Name    string   `json:"name"`
	About   string   `json:"about"`
	Columns []Column `json:"columns"`
	Rows    [][]any  `json:"rows"`
}

// fitReport checks a report and fits it into bounds.
func fitReport(r *Report, b bounds) (*pageData, error) {
	n := len(r.Steps)
	p := &pageData{
		Title: shorten(r.Title), Context: shortenFacts(r.Context), Verdict: shortenAll(r.Verdict),
		Facts: shortenFacts(r.Facts), Notes: shortenAll(r.Notes), Binned: []string{}, Steps: n,
		PerBin: binSize(n, b.bins),
		Labels: []string{}, Phases: []phaseSpan{}, Series: []seriesData{}, Heat: []heatCells{}, Tables: []rowTable{},
		Main: shorten(r.Main), Spans: fitSpans(r.Spans), Maps: []mapCells{},
	}
	p.fitSteps(r.Steps, b)
	if err := p.fitSeries(r.Series); err != nil {
		return nil, err
	}
	if r.Speed != nil {
		if err := p.fitSpeed(r.Speed); err != nil {
			return nil, err
		}
	}
	p.fitHeatmaps(r.Heat, b)
	if r.Reads != nil && n > 0 {
		p.Reads = fitReads(r.Reads, b)
	}
	p.fitMaps(r.Maps, b)
	return p, p.fitTables(r.Tables, b)
}

// noteBinned says on the page what is not shown as it is.
func (p *pageData) noteBinned(format string, args ...any) {
	p.Binned = append(p.Binned, fmt.Sprintf(format, args...))
}

// fitSteps makes the labels of bins and the spans of phases.
func (p *pageData) fitSteps(steps []Step, b bounds) {
	for i, s := range steps {
		if i%p.PerBin == 0 {
			p.Labels = append(p.Labels, shorten(s.Label))
		}
		if i == 0 || steps[i-1].Phase != s.Phase {
			p.Phases = append(p.Phases, phaseSpan{shorten(s.Phase), i, i})
		}
		p.Phases[len(p.Phases)-1].To = i + 1
	}
	if len(p.Phases) > b.bins { // a server's, which change with each request: too many to tell apart
		p.Phases = []phaseSpan{}
		p.noteBinned("phases change too often to be marked")
	}
}

func (p *pageData) fitSeries(all []Series) error {
	for i, s := range all {
		if i == maxSeries {
			p.noteBinned("%d of %d series are shown", maxSeries, len(all))
			break
		}
		if len(s.Values) != p.Steps {
			return fmt.Errorf("series %q has %d values for %d steps", s.Name, len(s.Values), p.Steps)
		}
		p.Series = append(p.Series, binSeries(s, p.PerBin))
	}
	if p.PerBin > 1 {
		p.noteBinned("the timeline shows %d steps in bins of %d, by their mean (line) and their greatest value (shade)",
			p.Steps, p.PerBin)
	}
	return nil
}

func (p *pageData) fitHeatmaps(all []Heatmap, b bounds) {
	for i, h := range all {
		if i == maxHeatmaps {
			p.noteBinned("%d of %d heatmaps are shown", maxHeatmaps, len(all))
			break
		}
		binned := binHeat(h, p.Steps, b)
		p.Heat = append(p.Heat, binned)
		if binned.PerBin > 1 || binned.PerRow > 1 {
			p.noteBinned("the heatmap %q shows %d rows and %d steps in cells of %d and %d, "+
				"by their mean or their greatest value", shorten(h.Name), len(h.Rows), p.Steps, binned.PerRow,
				binned.PerBin)
		}
	}
}

// fitTables shares the room for cells and texts among the tables that are left: what one does not need is for the next.
func (p *pageData) fitTables(all []Table, b bounds) error {
	cells, text := b.tableCells, b.tableText
	for i, t := range all {
		if i == maxTables {
			p.noteBinned("%d of %d tables are shown", maxTables, len(all))
			break
		}
		left := min(len(all), maxTables) - i
		fitted, used, err := fitTable(t, cells/left, text/left)
		if err != nil {
			return err
		}
		if len(fitted.Rows) < len(t.Rows) {
			p.noteBinned("the table %q has its first %d of %d rows", shorten(t.Name), len(fitted.Rows), len(t.Rows))
		}
		cells -= len(fitted.Rows) * len(fitted.Columns)
		text -= used
		p.Tables = append(p.Tables, fitted)
	}
	return nil
}

// binSize is how many of n share a bin if there are to be at most most bins.
func binSize(n, most int) int { return max(1, (n+most-1)/most) }

func shorten(s string) string {
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

func shortenAll(all []string) []string { return shortenLines(all[:min(len(all), maxLines)]) }

func shortenLines(all []string) []string {
	shown := []string{}
	for _, s := range all {
		shown = append(shown, shorten(s))
	}
	return shown
}

func shortenFacts(all []Fact) []Fact {
	shown := []Fact{}
	for _, f := range all[:min(len(all), maxLines)] {
		shown = append(shown, Fact{shorten(f.Name), shorten(f.Value), shorten(f.About)})
	}
	return shown
}

// bin sums up the values in one bin. Unknown values do not count.
type bin struct {
	sum, most float64
	count     int
}

func (b *bin) add(v float64) {
	if isKnown(v) {
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

func numberOrNil(v float64) *float32 {
	if f := float32(v); isKnown(float64(f)) {
		return &f
	}
	return nil
}

func binSeries(s Series, per int) seriesData {
	out := seriesData{Name: shorten(s.Name), Unit: shorten(s.Unit), Mean: []*float32{}}
	for from := 0; from < len(s.Values); from += per {
		var b bin
		for _, v := range s.Values[from:min(from+per, len(s.Values))] {
			b.add(v)
		}
		out.Mean = append(out.Mean, numberOrNil(b.mean()))
		if per > 1 {
			out.Max = append(out.Max, numberOrNil(b.max()))
		}
	}
	return out
}

// binHeat bins a heatmap. It asks for each value once.
func binHeat(h Heatmap, steps int, b bounds) heatCells {
	out := heatCells{
		Name: shorten(h.Name), Unit: shorten(h.Unit), About: shorten(h.About), Rows: []Row{},
		PerRow: binSize(len(h.Rows), b.heatRows), PerBin: 1,
	}
	rows := (len(h.Rows) + out.PerRow - 1) / out.PerRow
	if rows == 0 || steps == 0 {
		return out
	}
	out.PerBin = binSize(steps, max(1, b.heatCells/rows))
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
		out.Rows = append(out.Rows, mergeRows(h.Rows[from:to]))
	}
	least, greatest := math.Inf(1), 0.0
	for i, v := range mean {
		if v := float64(v); isKnown(v) && v > 0 {
			least = min(least, v)
		}
		if v := float64(most[i]); isKnown(v) {
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

// mergeRows makes the row that stands for several.
func mergeRows(rows []Row) Row {
	one := Row{Name: shorten(rows[0].Name), Detail: shorten(rows[0].Detail), Block: shorten(rows[0].Block)}
	if len(rows) > 1 {
		one.Name, one.Detail = shorten(rows[0].Name+" to "+rows[len(rows)-1].Name), fmt.Sprintf("%d rows", len(rows))
	}
	for _, r := range rows {
		if isKnown(r.Weight) && r.Weight > 0 {
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

func (h *heatCells) encode(values []float32) string {
	cells := make([]byte, len(values))
	for i, v := range values {
		cells[i] = h.encodeCell(float64(v))
	}
	return base64.StdEncoding.EncodeToString(cells)
}

func (h *heatCells) encodeCell(v float64) byte {
	switch {
	case !isKnown(v):
		return cellUnknown
	case v <= 0:
		return cellZero
	case h.Most <= h.Least:
		return cellMost
	}
	share := math.Log(v/h.Least) / math.Log(h.Most/h.Least)
	return byte(cellLeast + math.Round(min(max(share, 0), 1)*(cellMost-cellLeast)))
}

// fitSpeed sums steps up in bins.
func (p *pageData) fitSpeed(s *Speed) error {
	if len(s.Tokens) != p.Steps || len(s.Seconds) != p.Steps || len(s.Begins) != p.Steps || len(s.Parts) > maxParts {
		return fmt.Errorf("a speed of %d, %d and %d steps and %d parts, of %d steps", len(s.Tokens), len(s.Seconds),
			len(s.Begins), len(s.Parts), p.Steps)
	}
	bins := (p.Steps + p.PerBin - 1) / p.PerBin
	out := &speedData{
		Tokens: make([]float64, bins), Seconds: make([]float64, bins), Begins: make([]float64, bins),
		Parts: []partData{}, About: shorten(s.About),
	}
	if isKnown(s.Possible) {
		out.Possible = s.Possible
	}
	isTimed := func(step int) bool { return isKnown(s.Seconds[step]) && s.Seconds[step] > 0 && isKnown(s.Tokens[step]) }
	for step := range s.Tokens {
		if step%p.PerBin == 0 && isKnown(s.Begins[step]) {
			out.Begins[step/p.PerBin] = s.Begins[step]
		}
		if isTimed(step) {
			out.Tokens[step/p.PerBin] += s.Tokens[step]
			out.Seconds[step/p.PerBin] += s.Seconds[step]
		}
	}
	for _, part := range s.Parts {
		if len(part.Seconds) != p.Steps {
			return fmt.Errorf("the part %q of a speed has %d of %d steps", part.Name, len(part.Seconds), p.Steps)
		}
		one := partData{Class: part.Class.shortened(), Seconds: make([]float64, bins)}
		for step, v := range part.Seconds {
			if isTimed(step) && isKnown(v) {
				one.Seconds[step/p.PerBin] += v
			}
		}
		out.Parts = append(out.Parts, one)
	}
	p.Speed = out
	return nil
}

func (c Class) shortened() Class { return Class{shorten(c.Name), shorten(c.Color)} }

// fitSpans takes the first spans.
func fitSpans(all []Span) []Span {
	shown := []Span{}
	for _, s := range all[:min(len(all), maxSpans)] {
		if isKnown(s.Begin) && isKnown(s.End) {
			shown = append(shown, Span{s.Class.shortened(), s.Begin, s.End, shorten(s.About)})
		}
	}
	return shown
}

// fitReads encodes where is read. Of columns that share a cell it shows the class of the greatest, and what a step
// reads in them: the sum of the shares where they are parts of a step, and their mean where they are steps.
func fitReads(m *ReadMap, b bounds) *readCells {
	const classes, most = 8, 31
	each := binSize(m.Columns, max(1, b.readCells/max(1, m.Rows)))
	out := &readCells{
		Size: m.Size, Classes: []Class{}, Columns: (m.Columns + each - 1) / each, Rows: m.Rows,
		PerColumn: m.StepsPerColumn * float64(each), About: shorten(m.About),
	}
	for _, c := range m.Classes[:min(len(m.Classes), classes)] {
		out.Classes = append(out.Classes, c.shortened())
	}
	cells := make([]byte, out.Columns*out.Rows)
	for row := range m.Rows {
		for column := range out.Columns {
			from, to := column*each, min((column+1)*each, m.Columns)
			class, greatest, sum := 0, 0.0, 0.0
			for c := from; c < to; c++ {
				one, share := m.Cell(c, row)
				if sum += share; share > greatest {
					class, greatest = one, share
				}
			}
			if sum > 0 {
				steps := max(float64(to-from)*m.StepsPerColumn, 1)
				level := math.Ceil(most * math.Sqrt(min(sum/steps, 1)))
				cells[row*out.Columns+column] = byte(min(max(class, 0), classes-1)<<5 | int(level))
			}
		}
	}
	out.Cells = base64.StdEncoding.EncodeToString(cells)
	return out
}

func (p *pageData) fitMaps(all []Map, b bounds) {
	for i, m := range all {
		if i == maxMaps {
			p.noteBinned("%d of %d maps are shown", maxMaps, len(all))
			break
		}
		one := fitMap(&m, b)
		if one.PerColumn > 1 {
			p.noteBinned("the map %q shows %d columns in cells of %d, by their mean", one.Name, m.Columns,
				one.PerColumn)
		}
		p.Maps = append(p.Maps, one)
	}
}

// fitMap encodes a map. Columns beyond the bounds share cells.
func fitMap(m *Map, b bounds) mapCells {
	rows := m.Rows[:min(len(m.Rows), b.heatRows)]
	each := binSize(m.Columns, max(1, b.mapCells/max(1, len(rows))))
	out := mapCells{
		Name: shorten(m.Name), Unit: shorten(m.Unit), About: shorten(m.About), Rows: shortenLines(rows),
		Column: shorten(m.Column), Columns: (m.Columns + each - 1) / each, PerColumn: each,
	}
	values := make([]float64, 0, len(rows)*out.Columns)
	for row := range rows {
		for column := range out.Columns {
			var one bin
			for c := column * each; c < min((column+1)*each, m.Columns); c++ {
				one.add(m.At(row, c))
			}
			values = append(values, one.mean())
			if v := one.mean(); isKnown(v) {
				out.Most = max(out.Most, v)
			}
		}
	}
	cells := make([]byte, len(values))
	for i, v := range values {
		switch {
		case !isKnown(v):
			cells[i] = cellUnknown
		case v <= 0:
			cells[i] = cellZero
		default:
			cells[i] = byte(cellLeast + math.Round(math.Sqrt(v/out.Most)*(cellMost-cellLeast)))
		}
	}
	out.Cells = base64.StdEncoding.EncodeToString(cells)
	return out
}

// fitTable cuts a table to a number of cells and of bytes of text. It returns how many of these bytes it
// used.
func fitTable(t Table, cells, text int) (out rowTable, used int, err error) {
	out = rowTable{Name: shorten(t.Name), About: shorten(t.About), Columns: t.Columns, Rows: [][]any{}}
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
				if isKnown(c) { // else null
					shown[i] = c
				}
			case string:
				c = shorten(c)
				shown[i] = c
				written += escapedLen(c)
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

// escapedLen is how many bytes a text has in JSON, at most.
func escapedLen(s string) int {
	n := 2 + len(s)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '<' || c == '>' || c == '&' || c == '"' || c == '\\' {
			n += len(`\u0000`) - 1
		}
	}
	return n
}
