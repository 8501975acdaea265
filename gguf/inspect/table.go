// Package inspect makes the tables that ggufmap prints about GGUF models: which bytes hold which
// tensor and which expert ([Structure], [Experts]), the metadata ([Metadata]), sums ([Summarise]),
// and what is wrong with a file ([Check]). It reads metadata, never weights.
//
// A table is made while it is written. Small files can describe large tables, so no more than a few
// MiB of one are in memory at a time.
package inspect

// This file defines Table and writes it as JSON.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strconv"

	"tensorcast/gguf"
	"tensorcast/internal/visible"
)

// Table is a table that is made again each time it is written. If it shows metadata or residency,
// the models that it describes must not have changed since they were opened (gguf.ErrChanged).
type Table struct {
	columns []column
	each    func(row func([]cell) error) error // calls row with each row; the cells are valid until it returns
}

// column is the name of a column and the type of its values.
type column struct {
	name string
	kind kind
}

// kind is the type of a column's values.
type kind uint8

const (
	text kind = iota
	int32s
	int64s
	int64sOrNull
	floats
)

// cell is a value; the column says which field holds it.
type cell struct {
	s     string
	n     int64
	f     float64
	null  bool
	value *value // instead of s: a text that may be too long for memory
}

func str(s string) cell { return cell{s: s} }

// shown is a name that a file chose, with what is no printable text made visible.
func shown(name string) cell { return str(visible.Line(name)) }

func num[T int | int64](n T) cell { return cell{n: int64(n)} }

// Names are the names of the columns.
func (t *Table) Names() []string {
	var names []string
	for _, c := range t.columns {
		names = append(names, c.name)
	}
	return names
}

// bufferBytes is how many bytes are passed on at once.
const bufferBytes = 64 << 10

// WriteJSON writes the table as a JSON array with an object per row. Metadata values keep their types.
func (t *Table) WriteJSON(w io.Writer) error {
	out := bufio.NewWriterSize(w, bufferBytes)
	var names [][]byte
	for _, c := range t.columns {
		names = append(names, append(appendJSON(nil, c.name), ':'))
	}
	var b []byte
	separator := "[\n"
	err := t.each(func(row []cell) error {
		b = append(append(b[:0], separator...), '{')
		separator = ",\n"
		for i, c := range t.columns {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, names[i]...)
			if v := row[i].value; v != nil {
				if _, err := out.Write(b); err != nil {
					return err
				}
				b = b[:0]
				if err := v.writeJSON(out); err != nil {
					return err
				}
				continue
			}
			b = c.appendJSON(b, row[i])
		}
		_, err := out.Write(append(b, '}'))
		return err
	})
	if err == nil {
		if separator != ",\n" {
			_ = out.WriteByte('[') // a bufio.Writer keeps its error for Flush
		}
		_, _ = out.WriteString("\n]\n")
		err = out.Flush()
	}
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// appendJSON appends a cell as JSON.
func (c column) appendJSON(b []byte, v cell) []byte {
	switch {
	case v.null:
		return append(b, "null"...)
	case c.kind == text:
		return appendJSON(b, v.s)
	case c.kind == floats:
		return appendJSON(b, v.f)
	}
	return strconv.AppendInt(b, v.n, 10)
}

// appendJSON appends a value as JSON. Floats that are not finite are written as strings, because
// JSON has no form for them. Invalid UTF-8 is replaced.
func appendJSON(b []byte, v any) []byte {
	float := func(f float64, bits int) []byte {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return strconv.AppendQuote(b, strconv.FormatFloat(f, 'g', -1, bits))
		}
		return strconv.AppendFloat(b, f, 'g', -1, bits)
	}
	switch v := v.(type) {
	case float32:
		return float(float64(v), 32)
	case float64:
		return float(v, 64)
	case uint8: // the fallback takes five times longer, and arrays are long
		return strconv.AppendUint(b, uint64(v), 10)
	case int32:
		return strconv.AppendInt(b, int64(v), 10)
	case string:
		var buf bytes.Buffer
		e := json.NewEncoder(&buf)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			return append(b, `""`...) // cannot happen: a string can always be encoded
		}
		return append(b, bytes.TrimSuffix(buf.Bytes(), []byte{'\n'})...)
	}
	return fmt.Append(b, v) // other integers and booleans
}

// fileNames returns the names of the files in tables: the base name, or the path where two files
// have the same base name.
func fileNames(models []*gguf.Model) map[*gguf.File]string {
	count := map[string]int{}
	names := map[*gguf.File]string{}
	for _, m := range models {
		for _, f := range m.Files {
			count[filepath.Base(f.Path)]++
		}
	}
	for _, m := range models {
		for _, f := range m.Files {
			names[f] = filepath.Base(f.Path)
			if count[names[f]] > 1 {
				names[f] = f.Path
			}
		}
	}
	return names
}
