package hyper

// This file defines the report of a series of capacities, and its tables.

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"tensorcast/internal/tabular"
)

// Report is the result of a series. Its fields are its JSON.
type Report struct {
	Seed        uint64        `json:"seed"`
	Interrupted bool          `json:"interrupted,omitempty"` // some rows are missing
	Rows        []CapacityRow `json:"rows"`
}

// WriteText writes a table for each coding.
func (r *Report) WriteText(w io.Writer) error { return r.document(false).WriteText(w) }

// WriteMarkdown writes the same tables for a document.
func (r *Report) WriteMarkdown(w io.Writer) error { return r.document(true).WriteMarkdown(w) }

// enough is the share of items found below which a cell is marked.
const enough = 0.9

func (r *Report) document(markdown bool) (d tabular.Document) {
	for rows := r.Rows; len(rows) > 0; {
		end := 1
		for end < len(rows) && rows[end].Coding == rows[0].Coding {
			end++
		}
		d = append(d, capacityTable(rows[:end], markdown))
		rows = rows[end:]
	}
	if r.Interrupted {
		d = append(d, tabular.Lines{"INTERRUPTED: figures are missing."})
	}
	return d
}

// capacityTable is the table of one coding: a row per dimension, a column per number of items and
// candidates. "-" marks what was not measured.
func capacityTable(rows []CapacityRow, markdown bool) *tabular.Table {
	// columns has, for each column, the first row of it.
	var dims, columns []int
	for i, r := range rows {
		if !slices.Contains(dims, r.Dim) {
			dims = append(dims, r.Dim)
		}
		if !slices.ContainsFunc(columns, func(c int) bool { return isSameColumn(rows[c], r) }) {
			columns = append(columns, i)
		}
	}
	slices.SortStableFunc(columns, func(a, b int) int { return cmp.Compare(rows[a].Items, rows[b].Items) })
	t := tabular.Table{Columns: tabular.Left(rows[0].Coding.String())}
	for _, c := range columns {
		t.Columns = append(t.Columns, tabular.Left(fmt.Sprintf("%d of %d", rows[c].Items, rows[c].Candidates))...)
	}
	for _, dim := range dims {
		cells := []string{fmt.Sprintf("%d trits", dim)}
		for _, c := range columns {
			cell := "-"
			for _, r := range rows {
				if r.Dim == dim && isSameColumn(r, rows[c]) {
					cell = capacityCell(r, markdown)
				}
			}
			cells = append(cells, cell)
		}
		t.Rows = append(t.Rows, cells)
	}
	return &t
}

func isSameColumn(a, b CapacityRow) bool {
	return a.Items == b.Items && a.Candidates == b.Candidates
}

func capacityCell(r CapacityRow, markdown bool) string {
	cell := fmt.Sprintf("%.3f", r.Measured)
	switch {
	case r.Measured < enough && markdown:
		cell = "**" + cell + "**"
	case r.Measured < enough:
		cell += "*"
	}
	return fmt.Sprintf("%s (%.3f)", cell, r.Predicted)
}
