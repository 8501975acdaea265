package top

// This file has the parts of a pane that are pictures: the strip of the file, and the experts.

import (
	"fmt"
	"math"
	"strings"

	"charm.land/lipgloss/v2"

	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/monitor"
)

// heights are the shares of a cell of the file that are kept, the least first.
var heights = []rune("▁▂▃▄▅▆▇█")

// aboutFile draws the model's files as a strip: what is kept, what was read ahead, and where the target is.
func aboutFile(r *monitor.Report, width int) []string {
	if r.Detail == nil || r.Detail.Strip == nil {
		return nil
	}
	s := r.Detail.Strip
	columns := width - margin - 1
	used, keeps, early := spread(s.Used, columns), spread(s.Kept, columns), spread(s.Ahead, columns)
	var upper, lower runs
	at := -1
	if s.At >= 0 {
		at = min(int(float64(s.At)/float64(s.Cell)/float64(len(s.Used))*float64(columns)), columns-1)
	}
	for c := range columns {
		switch {
		case keeps[c] > 0:
			level := min(int(keeps[c]*float64(len(heights))), len(heights)-1)
			upper.add(heights[level], &kept)
		case used[c] > 0:
			upper.add('.', &faint)
		default:
			upper.add(' ', &plain)
		}
		switch {
		case c == at:
			lower.add('▲', &marker)
		case early[c] > 0:
			lower.add('▸', &ahead)
		default:
			lower.add(' ', &plain)
		}
	}
	return append(named("file", upper.String()), named("", lower.String())...)
}

// spread is a list of shares of 255 with another number of cells. Each is the mean over the part that it stands for, so
// no cell is left out.
func spread(cells []byte, columns int) []float64 {
	out := make([]float64, columns)
	n := float64(len(cells))
	for c := range out {
		from, to := float64(c)*n/float64(columns), float64(c+1)*n/float64(columns)
		for i := int(from); i < len(cells) && float64(i) < to; i++ {
			part := min(to, float64(i+1)) - max(from, float64(i))
			out[c] += max(part, 0) * float64(cells[i]) / math.MaxUint8
		}
		out[c] /= to - from
	}
	return out
}

// runs is text of which neighbours with the same style are rendered at once.
type runs struct {
	text  strings.Builder
	run   strings.Builder
	style *lipgloss.Style
}

// add adds a character. style is one of the package's own: styles are told apart by their addresses.
func (r *runs) add(c rune, style *lipgloss.Style) {
	if r.style != style {
		r.flush()
	}
	r.style = style
	r.run.WriteRune(c)
}

func (r *runs) flush() {
	if r.run.Len() > 0 {
		r.text.WriteString(r.style.Render(r.run.String()))
		r.run.Reset()
	}
}

func (r *runs) String() string {
	r.flush()
	return r.text.String()
}

// inside and outside are experts in memory and not, the least used first.
var (
	inside  = []rune("░▒▓█")
	outside = []rune(" .+*#")
)

// drawExperts draws the experts in so many rows, of which the first says what is drawn.
func drawExperts(h *mixture.Heat, width, rows int) []string {
	about := fmt.Sprintf("%d layers x %d experts: %d of %d in memory", h.Layers, h.Experts, h.Inside, h.All)
	if h.Chosen > 0 {
		about += fmt.Sprintf("; %.1f %% hits", 100*float64(h.Chosen-h.Missed)/float64(h.Chosen))
	}
	lines := named("experts", about)
	rows = min(rows-1, h.Rows)
	columns := width - margin - 1
	wide := max(columns/h.Columns, 1) // columns of an expert
	if columns = min(columns, h.Columns); columns < 1 || rows < 1 {
		return lines
	}
	for row := range rows {
		var line runs
		for c := range columns {
			use, in := meanOf(h, row, rows, c, columns)
			ramp, style := outside, &absent
			if in >= 0.5 {
				ramp, style = inside, &kept
			}
			level := min(int(math.Sqrt(use)*float64(len(ramp))), len(ramp)-1)
			for range wide {
				line.add(ramp[level], style)
			}
		}
		layer := fmt.Sprintf("%*d ", margin-1, row*h.Layers/rows)
		lines = append(lines, faint.Render(layer)+line.String())
	}
	return lines
}

// meanOf is how often the experts of a cell are chosen, as a share of the most used ones, and which share of them is in
// memory. The cell is one of rows x columns, of which the picture has at least as many.
func meanOf(h *mixture.Heat, row, rows, column, columns int) (use, in float64) {
	count := 0
	for r := row * h.Rows / rows; r < (row+1)*h.Rows/rows; r++ {
		for c := column * h.Columns / columns; c < (column+1)*h.Columns/columns; c++ {
			use += float64(h.Use[r*h.Columns+c])
			in += float64(h.Kept[r*h.Columns+c])
			count++
		}
	}
	return use / float64(max(count, 1)) / math.MaxUint8, in / float64(max(count, 1)) / math.MaxUint8
}
