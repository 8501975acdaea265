// Package tabular writes reports for people: lines and tables, as text in aligned columns for a
// terminal, or as Markdown. In a cell or line, line breaks and control characters are made visible
// (see package visible), because names come from others and must not make additional rows.
// (Programs read a report's own value as JSON instead, with numbers that are not rounded.)
//
// A report describes itself once, as a [Document], which can be written in either form:
//
//	d := tabular.Document{
//		tabular.Lines{"machine: 4 x CPU"},
//		&tabular.Table{Columns: slices.Concat(tabular.Left("variant"), tabular.Right("tok/s")), Rows: rows},
//	}
//	err := d.WriteText(os.Stdout)
package tabular

// This file defines the parts of a document and writes them in order.

import (
	"fmt"
	"io"
	"strings"

	"tensorcast/internal/visible"
)

// Document is the content of a report, from top to bottom. Empty parts are left out; an empty line
// separates the others.
type Document []Part

// Part is [Lines] or a [*Table].
type Part interface {
	empty() bool
	text(b *strings.Builder)
	markdown(b *strings.Builder)
}

// Lines are sentences, one per line. In Markdown they become a list.
type Lines []string

// Table is a table with named columns.
type Table struct {
	Title   string // written above the table, if not empty
	Columns []Column
	// Rows have a cell for each column. Missing cells are empty; additional cells are in columns
	// without a name.
	Rows [][]string
}

// Column is a column of a table. If no column has a name, the text form has no row of names.
type Column struct {
	Name  string
	Right bool // align the cells to the right, as for numbers
}

// Left returns columns of text.
func Left(names ...string) []Column { return columns(false, names) }

// Right returns columns of numbers.
func Right(names ...string) []Column { return columns(true, names) }

// columns returns columns with these names.
func columns(right bool, names []string) []Column {
	all := make([]Column, len(names))
	for i, name := range names {
		all[i] = Column{name, right}
	}
	return all
}

// WriteText writes the document for a terminal. Columns are two spaces apart, each as wide as its
// widest cell, counted in characters. The document is written with one call of Write, whose error
// is returned.
func (d Document) WriteText(w io.Writer) error { return d.write(w, Part.text) }

// WriteMarkdown writes the document as Markdown with tables (an extension of CommonMark that GitHub
// has). Bars in cells are escaped. Other Markdown in cells is kept. The document is written with
// one call of Write, whose error is returned.
func (d Document) WriteMarkdown(w io.Writer) error { return d.write(w, Part.markdown) }

func (d Document) write(w io.Writer, part func(Part, *strings.Builder)) error {
	var b strings.Builder
	for _, p := range d {
		if p.empty() {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		part(p, &b)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (l Lines) empty() bool { return len(l) == 0 }

func (l Lines) text(b *strings.Builder) {
	for _, line := range l {
		fmt.Fprintln(b, visible.Line(line))
	}
}

func (l Lines) markdown(b *strings.Builder) {
	for _, line := range l {
		fmt.Fprintf(b, "* %s\n", visible.Line(line))
	}
}
