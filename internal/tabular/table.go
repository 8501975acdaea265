package tabular

// This file lays a table out.

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// gap is between columns of text.
const gap = "  "

// oneLine keeps a cell on its line.
var oneLine = strings.NewReplacer("\r\n", " ", "\n", " ", "\t", " ")

// inCell also keeps a cell of Markdown in its column.
var inCell = strings.NewReplacer("\r\n", " ", "\n", " ", "\t", " ", "|", `\|`)

func (t *Table) empty() bool { return t.Title == "" && len(t.Columns) == 0 && len(t.Rows) == 0 }

// names is the row of names, and whether there is any.
func (t *Table) names() ([]string, bool) {
	names, any := make([]string, len(t.Columns)), false
	for i, c := range t.Columns {
		names[i], any = c.Name, any || c.Name != ""
	}
	return names, any
}

// width is the number of columns: of those with a name, or of the longest row.
func (t *Table) width() int {
	n := len(t.Columns)
	for _, row := range t.Rows {
		n = max(n, len(row))
	}
	return n
}

// filled returns a row's cells, as many as the table has columns, none longer than a line.
func (t *Table) filled(row []string, replace *strings.Replacer) []string {
	cells := make([]string, t.width())
	for i, cell := range row {
		cells[i] = replace.Replace(cell)
	}
	return cells
}

func (t *Table) right(column int) bool { return column < len(t.Columns) && t.Columns[column].Right }

func (t *Table) text(b *strings.Builder) {
	if t.Title != "" {
		b.WriteString(t.Title + "\n")
	}
	rows := t.Rows
	if names, any := t.names(); any {
		rows = slices.Concat([][]string{names}, rows)
	}
	widths := make([]int, t.width())
	cells := make([][]string, len(rows))
	for i, row := range rows {
		cells[i] = t.filled(row, oneLine)
		for j, cell := range cells[i] {
			widths[j] = max(widths[j], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range cells {
		for j, cell := range row {
			pad := strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell))
			if t.right(j) {
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
		b.WriteString(t.Title + "\n\n") // a table begins a paragraph
	}
	names, _ := t.names() // Markdown has no table without that row
	rule := make([]string, t.width())
	for j := range rule {
		rule[j] = "---"
		if t.right(j) {
			rule[j] = "---:"
		}
	}
	for _, row := range slices.Concat([][]string{names, rule}, t.Rows) {
		b.WriteString("| " + strings.Join(t.filled(row, inCell), " | ") + " |\n")
	}
}
