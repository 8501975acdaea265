// Package tabular writes reports for people: lines and tables, for a terminal as text in aligned columns, for a document as Markdown. (What a
// program reads is the report's own value as JSON, with numbers that are not rounded.)
//
// A report describes itself once, as a [Document], and is then written in either form:
//
//	d := tabular.Document{
//		tabular.Lines{"machine: 4 x CPU"},
//		&tabular.Table{Columns: slices.Concat(tabular.Left("variant"), tabular.Right("tok/s")), Rows: rows},
//	}
//	err := d.WriteText(os.Stdout)
package tabular

// This file has the parts of a document, and the order in which they are written.

import (
	"fmt"
	"io"
	"strings"
)

// Document is what a report says, from top to bottom. Parts with nothing in them are left out; between the others is an empty line.
type Document []Part

// Part is [Lines] or a [*Table].
type Part interface {
	empty() bool
	text(b *strings.Builder)
	markdown(b *strings.Builder)
}

// Lines are sentences, one a line; in Markdown they are the items of a list.
type Lines []string

// Table has a row of names and rows of cells.
type Table struct {
	Title   string // a line above the table; none if it is empty
	Columns []Column
	// Rows have a cell for each column. One that is shorter ends in empty cells. Further cells are in columns without a name.
	Rows [][]string
}

// Column is one column of a table. A table whose columns have no names has, as text, no row of names.
type Column struct {
	Name  string
	Right bool // cells end at the same place, as numbers do, and not begin there
}

// Left are columns of text.
func Left(names ...string) []Column { return columns(false, names) }

// Right are columns of numbers.
func Right(names ...string) []Column { return columns(true, names) }

func columns(right bool, names []string) []Column {
	all := make([]Column, len(names))
	for i, name := range names {
		all[i] = Column{name, right}
	}
	return all
}

// WriteText writes the document for a terminal. Columns are two spaces apart, each as wide as its widest cell, in characters. The document is
// one Write; an error is the writer's.
func (d Document) WriteText(w io.Writer) error { return d.write(w, Part.text) }

// WriteMarkdown writes the document as Markdown with tables (GitHub's, and CommonMark's where it has that extension). A bar in a cell is
// escaped; other Markdown in cells is kept. The document is one Write; an error is the writer's.
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
		fmt.Fprintln(b, line)
	}
}

func (l Lines) markdown(b *strings.Builder) {
	for _, line := range l {
		fmt.Fprintf(b, "* %s\n", oneLine.Replace(line))
	}
}
