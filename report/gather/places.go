package gather

// This file sums up where in a model's files is read, and when. Reads are put into cells of time and place, with the
// bytes that lie in each: to take every n-th read instead would beat with the number of reads of a step, and show
// patterns that are not there.

import (
	"fmt"
	"math"
	"slices"

	"tensorcast/internal/chart"
	"tensorcast/report"
	"tensorcast/trace/tables"
)

const (
	// placeColumns and placeRows bound the cells: 2 MiB for each class of gaps that there is.
	placeColumns = 2048
	placeRows    = 256
	// drawnColumns is how many columns a figure has at most: so many that a line of one column can be seen.
	drawnColumns = 512
	// mostMerged is how many columns a figure takes together at most.
	mostMerged = placeColumns / drawnColumns
)

// places are the bytes that were read, by time, place and class of gap. The files of a model lie one behind the other.
type places struct {
	begins  map[string]float64 // where each file begins
	size    float64            // bytes of all files, as far as the structure table has tensors in them
	steps   int
	perStep int // columns of a step; 1 where steps share columns
	shared  int // steps of a column; 1 where steps have columns of their own
	columns int
	cells   [gapBackLarge + 1][]float32 // by class, column by column; nil: there is none
}

// newPlaces makes empty cells for the files of a model, and for so many steps. A column is a part of a step, or several
// whole steps: so none has the end of one step and not of another.
func newPlaces(structure []tables.StructureRow, model int32, steps int) *places {
	p := &places{begins: map[string]float64{}, steps: steps, perStep: 1, shared: 1}
	if steps > 0 && steps <= placeColumns {
		p.perStep = placeColumns / steps
		for p.perStep > 1 && p.perStep%mostMerged != 0 && mostMerged%p.perStep != 0 {
			p.perStep-- // so that the columns of figures, too, are parts of a step or whole steps
		}
		p.columns = steps * p.perStep
	} else if steps > 0 {
		p.shared = ceilDiv(steps, placeColumns)
		p.columns = ceilDiv(steps, p.shared)
	}
	ends := map[string]float64{}
	var files []string
	for i := range structure {
		s := &structure[i]
		if s.Model != model {
			continue
		}
		if _, known := ends[s.File]; !known {
			files = append(files, s.File)
		}
		ends[s.File] = max(ends[s.File], float64(s.Offset)+float64(s.Size))
	}
	slices.Sort(files) // the parts of a model have numbers in their names
	for _, file := range files {
		p.begins[file] = p.size
		p.size += ends[file]
	}
	return p
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// add adds a read. from and to are when it began and ended, in parts of its step. It is taken to go evenly through its
// bytes.
func (p *places) add(file string, offset, bytes int64, step int, from, to float64, class gap) {
	begin, known := p.begins[file]
	if !known || bytes <= 0 || p.columns == 0 || p.size <= 0 {
		return
	}
	if p.cells[class] == nil {
		p.cells[class] = make([]float32, p.columns*placeRows)
	}
	at, length := begin+float64(offset), float64(bytes)
	if p.perStep == 1 {
		p.addColumn(step/p.shared, at, at+length, class)
		return
	}
	first, parts := step*p.perStep, float64(p.perStep)
	from, to = min(max(from, 0), 1)*parts, min(max(to, 0), 1)*parts
	last := min(int(to), p.perStep-1)
	for column := min(int(from), p.perStep-1); column <= last; column++ {
		share := func(when float64) float64 { // of the bytes, that were read until then
			if to <= from {
				return 1
			}
			return min(max((when-from)/(to-from), 0), 1)
		}
		begins, ends := share(float64(column)), share(float64(column+1))
		if to <= from {
			begins = 0
		}
		if column == last {
			ends = 1
		}
		p.addColumn(first+column, at+begins*length, at+ends*length, class)
	}
}

// addColumn adds the bytes from one place to another to a column.
func (p *places) addColumn(column int, from, to float64, class gap) {
	height := p.size / placeRows
	cells := p.cells[class][column*placeRows : (column+1)*placeRows]
	for row := min(max(int(from/height), 0), placeRows-1); row < placeRows; row++ {
		bottom, top := float64(row)*height, float64(row+1)*height
		if bottom >= to {
			break
		}
		if part := min(to, top) - max(from, bottom); part > 0 {
			cells[row] += float32(part)
		}
	}
}

// merged gives cells of so many columns each: the class of most of the bytes that were read there, and how much that
// was, of all classes. That is the share of the cell's bytes that a step reads. For columns that are parts of a step it
// is the share that was read then.
func (p *places) merged(each int) func(column, row int) (class int, share float64) {
	height := p.size / placeRows
	return func(column, row int) (int, float64) {
		from, to := column*each, min((column+1)*each, p.columns)
		best, most, all := 0, float32(0), float32(0)
		for class, cells := range p.cells {
			sum := float32(0)
			for c := from; cells != nil && c < to; c++ {
				sum += cells[c*placeRows+row]
			}
			if all += sum; sum > most {
				best, most = class, sum
			}
		}
		steps := float64(to*p.shared-from*p.shared) / float64(p.perStep)
		if to == p.columns && p.shared > 1 { // the last column may have fewer steps
			steps = float64(p.steps - from*p.shared)
		}
		return best, min(float64(all)/(height*max(steps, 1)), 1)
	}
}

// stepsPerColumn is how many steps, or which part of a step, a column has.
func (p *places) stepsPerColumn() float64 { return float64(p.shared) / float64(p.perStep) }

// drawnEach is how many columns a figure takes together: 1, 2 or 4, or those of whole steps. A step that had only a few
// columns would be a few stripes, some of which nothing falls into: steps that are all alike would look hatched.
func (p *places) drawnEach() int {
	const leastParts = 8
	each := 1
	for each < mostMerged && ceilDiv(p.columns, each) > drawnColumns {
		each *= 2
	}
	if p.perStep > 1 && p.perStep/each < leastParts {
		return p.perStep * ceilDiv(p.steps, drawnColumns)
	}
	return each
}

// isEmpty says whether nothing was read.
func (p *places) isEmpty() bool {
	for _, cells := range p.cells {
		if cells != nil {
			return false
		}
	}
	return true
}

// drawn is how strong the colour of a share is: by the square root, which makes small shares visible.
func drawn(share float64) float64 { return math.Sqrt(share) }

// OffsetsFigure shows where in the model's files is read, and when. It is nil if nothing was read.
func (c *Collector) OffsetsFigure(title string) *chart.Map {
	p := c.places
	if p.isEmpty() {
		return nil
	}
	each := p.drawnEach()
	columns, cell := ceilDiv(p.columns, each), p.merged(each)
	f := &chart.Map{
		Title: title, XLabel: "step", YLabel: "offset in the file (MiB)",
		To:   float64(columns*each) * p.stepsPerColumn(), // the last column may have fewer steps than it has room for
		High: p.size / mib, Columns: columns, Rows: placeRows,
		Cell: func(column, row int) (int, float64) {
			class, share := cell(column, row)
			return class, drawn(share)
		},
		Caption: c.placesAbout(each),
	}
	for i, name := range gapNames {
		f.Classes = append(f.Classes, chart.MapClass{Name: name, Color: gapColors[i]})
	}
	if len(p.begins) > 1 {
		f.YLabel = fmt.Sprintf("offset in the %d files, one behind the other (MiB)", len(p.begins))
	}
	return f
}

// placesAbout says what the cells of a picture of so many columns each show.
func (c *Collector) placesAbout(each int) string {
	p := c.places
	text := "A colour says how far the read began from the end of the one before, in the same file; paler: a smaller " +
		"part of the bytes at that place is read"
	if steps := each * p.shared; p.perStep == 1 && steps > 1 {
		text += fmt.Sprintf(", in the mean of %d steps", steps)
	}
	return text + "."
}

// readMap is the same for a page.
func (c *Collector) readMap() *report.ReadMap {
	p := c.places
	if p.isEmpty() {
		return nil
	}
	m := &report.ReadMap{
		Size: p.size, Columns: p.columns, Rows: placeRows, StepsPerColumn: p.stepsPerColumn(),
		Cell: p.merged(1), About: c.placesAbout(1),
	}
	for i, name := range gapNames {
		m.Classes = append(m.Classes, report.Class{Name: name, Color: chart.ColorText(gapColors[i])})
	}
	return m
}
