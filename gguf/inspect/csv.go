package inspect

// This file writes a table as CSV.

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"strconv"

	"tensorcast/gguf"
)

// WriteCSV writes the table as CSV (RFC 4180, line feeds, with a header). Null is an empty cell.
// Text that a spreadsheet would take for a formula gets a leading apostrophe.
func (t *Table) WriteCSV(w io.Writer) error {
	c := newCSVWriter(w)
	err := c.writeCells(t.Names())
	if err == nil {
		err = c.out.WriteByte('\n')
	}
	if err == nil {
		var cells []string
		err = t.each(func(row []cell) error {
			cells = cells[:0]
			for i, column := range t.columns {
				if row[i].value == nil { // a cell with a value is the last one, and is written below
					cells = append(cells, column.format(row[i]))
				}
			}
			if err := c.writeCells(cells); err != nil {
				return err
			}
			if v := row[len(row)-1].value; v != nil {
				if err := c.writeValue(v); err != nil {
					return err
				}
			}
			return c.out.WriteByte('\n')
		})
	}
	if err == nil {
		err = c.out.Flush()
	}
	if err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}

// format returns a cell's text.
func (c column) format(v cell) string {
	switch {
	case v.null:
		return ""
	case c.kind == text:
		return gguf.SpreadsheetCell(v.s)
	case c.kind == floats:
		return strconv.FormatFloat(v.f, 'g', -1, 64)
	}
	return strconv.FormatInt(v.n, 10)
}

// csvWriter writes the cells of CSV.
type csvWriter struct {
	out  *bufio.Writer
	line bytes.Buffer
	csv  *csv.Writer // writes to line
	long longCell
	in   *bufio.Writer // writes to long
}

func newCSVWriter(w io.Writer) *csvWriter {
	c := &csvWriter{out: bufio.NewWriterSize(w, bufferBytes)}
	c.csv = csv.NewWriter(&c.line)
	c.long.out = c.out
	c.in = bufio.NewWriter(&c.long)
	return c
}

// writeCells writes cells without the line's end.
func (c *csvWriter) writeCells(cells []string) error {
	c.line.Reset()
	if err := c.csv.Write(cells); err != nil {
		return err
	}
	c.csv.Flush()
	_, err := c.out.Write(bytes.TrimSuffix(c.line.Bytes(), []byte{'\n'}))
	return err
}

// writeValue writes a further cell.
func (c *csvWriter) writeValue(v *value) error {
	if err := c.out.WriteByte(','); err != nil {
		return err
	}
	c.long.first, c.long.quoted = c.long.first[:0], false
	if err := v.writeText(c.in); err != nil {
		return err
	}
	if err := c.in.Flush(); err != nil {
		return err
	}
	if c.long.quoted {
		return c.out.WriteByte('"')
	}
	return c.writeCells([]string{gguf.SpreadsheetCell(string(c.long.first))})
}

// longCell is a cell whose text comes in pieces. Short text is collected, and written like other
// cells. Longer text is written at once, in quotes.
type longCell struct {
	out    *bufio.Writer
	first  []byte
	quoted bool
}

func (c *longCell) Write(b []byte) (int, error) {
	if !c.quoted && len(c.first)+len(b) <= bufferBytes {
		c.first = append(c.first, b...)
		return len(b), nil
	}
	text := b
	if !c.quoted {
		c.quoted = true
		text = []byte(gguf.SpreadsheetCell(string(append(c.first, b...))))
		if err := c.out.WriteByte('"'); err != nil {
			return 0, err
		}
	}
	if _, err := c.out.Write(bytes.ReplaceAll(text, []byte{'"'}, []byte{'"', '"'})); err != nil {
		return 0, err
	}
	return len(b), nil
}
