package tryteplan

// This file formats a plan for people, as tables.

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"tensorcast/internal/tabular"
)

// WriteText writes the depths for a terminal.
func (t *Plan) WriteText(w io.Writer) error { return t.document().WriteText(w) }

// WriteMarkdown writes the same as Markdown.
func (t *Plan) WriteMarkdown(w io.Writer) error { return t.document().WriteMarkdown(w) }

// document is a table with a row for each layer, and one of the tensors that are left out, if any are.
func (t *Plan) document() tabular.Document {
	layers := &tabular.Table{
		Title: fmt.Sprintf("Trytes: %d values in %.2f trits each, no tensor below %g dB", t.Values,
			float64(t.Trits)/float64(max(1, t.Values)), t.Bound),
		Columns: slices.Concat(tabular.Right("layer", "trits", "tensors", "values", "least SNR", "clipped"),
			tabular.Left("needs", "most needed by")),
	}
	for i := range t.Layers {
		l := &t.Layers[i]
		name := "none"
		if l.Layer >= 0 {
			name = strconv.Itoa(l.Layer)
		}
		values, clipped, least := int64(0), int64(0), math.Inf(1)
		need := map[int]int{}
		most := &l.Tensors[0]
		for j := range l.Tensors {
			c := &l.Tensors[j]
			values, clipped = values+c.Values, clipped+c.Clipped
			need[c.Need]++
			if c.SNR != 0 {
				least = min(least, c.SNR)
			}
			if c.Need > most.Need || c.Need == most.Need && c.Values > most.Values {
				most = c
			}
		}
		var needs []string
		for _, depth := range slices.Sorted(maps.Keys(need)) {
			needs = append(needs, fmt.Sprintf("%d: %d", depth, need[depth]))
		}
		layers.Rows = append(layers.Rows, []string{name, strconv.Itoa(l.Depth), strconv.Itoa(len(l.Tensors)),
			fmt.Sprint(values), formatSNR(least),
			fmt.Sprint(clipped), strings.Join(needs, ", "), most.Name})
	}
	if len(t.Left) == 0 {
		return tabular.Document{layers}
	}
	left := &tabular.Table{Title: "Left out", Columns: tabular.Left("tensor", "why")}
	for _, l := range t.Left {
		left.Rows = append(left.Rows, []string{l.Name, l.Why})
	}
	return tabular.Document{layers, left}
}

// formatSNR is a signal-to-noise ratio for people.
func formatSNR(decibels float64) string {
	if math.IsInf(decibels, 1) {
		return "lossless"
	}
	return fmt.Sprintf("%.1f dB", decibels)
}
