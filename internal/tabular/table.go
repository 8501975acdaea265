package tabular

// This file lays out a table.

import (
	"slices"
	"strings"
	"unicode/utf8"

	"tensorcast/internal/visible"
)

// gap separates columns of text.
const gap = "  "

// markdownCell is [visible.Line] for a cell in Markdown. It also escapes bars.
func markdownCell(s string) string { return strings.ReplaceAll(visible.Line(s), "|", `\|`) }

func (t *Table) empty() bool { return t.Title == "" && len(t.Columns) == 0 && len(t.Rows) == 0 }

// names returns the row of column names, and whether any column has a name.
func (t *Table) names() ([]string, bool) {
	names, any := make([]string, len(t.Columns)), false
	for i, c := range t.Columns {
		names[i], any = c.Name, any || c.Name != ""
	}
	return names, any
}

// width is the number of columns: of the named ones, or of cells in the longest row if that is more.
func (t *Table) width() int {
	n := len(t.Columns)
	for _, row := range t.Rows {
		n = max(n, len(row))
	}
	return n
}

// fillRow returns a row's cells, with empty cells up to the width of the table. Each cell is passed
// through escape.
func (t *Table) fillRow(row []string, escape func(string) string) []string {
	cells := make([]string, t.width())
	for i, cell := range row {
		cells[i] = escape(cell)
	}
	return cells
}

// isRight reports whether a column is aligned to the right.
func (t *Table) isRight(column int) bool { return column < len(t.Columns) && t.Columns[column].Right }

func (t *Table) text(b *strings.Builder) {
	if t.Title != "" {
		b.WriteString(visible.Line(t.Title) + "\n")
	}
	rows := t.Rows
	if names, any := t.names(); any {
		rows = slices.Concat([][]string{names}, rows)
	}
	widths := make([]int, t.width())
	cells := make([][]string, len(rows))
	for i, row := range rows {
		cells[i] = t.fillRow(row, visible.Line)
		for j, cell := range cells[i] {
			widths[j] = max(widths[j], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range cells {
		for j, cell := range row {
			pad := strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell))
			if t.isRight(j) {
				row[j] = pad + cell
			} else {
				row[j] = cell + pad
			}
		}
		b.WriteString(strings.TrimRight(strings.Join(row, gap), " ") + "\n")
	}
}

func (t *Table) markdown(b *strings.Builder) {
	if t.Title != "" {
		b.WriteString(visible.Line(t.Title) + "\n\n") // a table must begin a paragraph
	}
	names, _ := t.names() // Markdown requires a row of names
	rule := make([]string, t.width())
	for j := range rule {
		rule[j] = "---"
		if t.isRight(j) {
			rule[j] = "---:"
		}
	}
	for _, row := range slices.Concat([][]string{names, rule}, t.Rows) {
		b.WriteString("| " + strings.Join(t.fillRow(row, markdownCell), " | ") + " |\n")
	}
}
