// Package inspect makes the tables that ggufmap prints about GGUF models: which bytes hold which tensor and which expert ([Structure],
// [Experts]), the metadata ([Metadata]), sums ([Summarise]), and what is wrong with a file ([Check]). It reads metadata, never weights.
package inspect

// This file defines Table and writes it as JSON.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"reflect"
	"strconv"
	"unicode"
	"unicode/utf8"

	"tensorcast/gguf"
)

// Table is a list of columns of the same length.
type Table struct {
	Columns []Column

	typed map[string][]json.RawMessage // columns whose JSON values are not plain text
}

// Column is a column of a table.
type Column struct {
	Name   string
	Values any // []int32, []int64, []float64 or []string
}

// WriteJSON writes the table as a JSON array with an object per row.
func (t *Table) WriteJSON(w io.Writer) error {
	cells := make([][]byte, len(t.Columns))
	values := make([]reflect.Value, len(t.Columns))
	for i, c := range t.Columns {
		cells[i] = append(appendJSON(nil, c.Name), ':')
		values[i] = reflect.ValueOf(c.Values)
	}
	out := []byte{'['}
	for row := range values[0].Len() {
		if row > 0 {
			out = append(out, ',')
		}
		out = append(out, "\n{"...)
		for i, c := range t.Columns {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, cells[i]...)
			if typed := t.typed[c.Name]; typed != nil {
				out = append(out, typed[row]...)
			} else {
				out = appendJSON(out, values[i].Index(row).Interface())
			}
		}
		out = append(out, '}')
	}
	out = append(out, "\n]\n"...)
	if _, err := w.Write(out); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// appendJSON appends a metadata value or a cell as JSON. Floats that are not finite are written as strings, because JSON has no form for
// them. Invalid UTF-8 is replaced.
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
	case string:
		var buf bytes.Buffer
		e := json.NewEncoder(&buf)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			return append(b, `""`...) // cannot happen: a string can always be encoded
		}
		return append(b, bytes.TrimSuffix(buf.Bytes(), []byte{'\n'})...)
	}
	if r := reflect.ValueOf(v); r.Kind() == reflect.Slice {
		b = append(b, '[')
		for i := range r.Len() {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(b, r.Index(i).Interface())
		}
		return append(b, ']')
	}
	return fmt.Append(b, v) // integers and booleans
}

// text formats a value for a cell: a string as it is unless it holds control characters (which could act on a terminal), an array as JSON.
func text(v any) string {
	s, ok := v.(string)
	if !ok {
		return string(appendJSON(nil, v))
	}
	if !utf8.ValidString(s) || containsControl(s) {
		return string(appendJSON(nil, s))
	}
	return s
}

func containsControl(s string) bool {
	for _, r := range s {
		if unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r' || unicode.Is(unicode.Bidi_Control, r) {
			return true
		}
	}
	return false
}

// fileNames returns what the files are called in tables: the base name, or the path where two files have the same base name.
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
