package inspect

// This file gives a table's columns to writers of formats that store tables by column.

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"iter"
)

// Column is a column of some rows of a table.
type Column struct {
	Name   string
	Values any // []int32, []int64, []*int64 (nil: unknown), []float64 or []string
}

// ErrLongValue says that a metadata value is too long for a table that is held in memory.
var ErrLongValue = errors.New("the value is longer than a cell of such a table may be")

const (
	// maxCell is the length in bytes of the longest text of a cell. The merges of the largest
	// vocabularies take two thirds of it.
	maxCell = 16 << 20

	// A batch has as many rows as fit both bounds, but at least one.
	batchRows  = 1 << 13
	batchBytes = 2 << 20 // of text
)

// Batches are the columns of the table, some rows at a time. There is at least one batch, which may
// have no rows. An error is the last item. It wraps ErrLongValue if the text of a metadata value
// has more than 16 MiB.
func (t *Table) Batches() iter.Seq2[[]Column, error] {
	return func(yield func([]Column, error) bool) {
		b := t.newBatch()
		done := false // set once yield wants no more
		flush := func() error {
			if done = !yield(b.columns(), nil); done {
				return errors.New("stopped")
			}
			b = t.newBatch()
			return nil
		}
		sawRow := false
		err := t.each(func(row []cell) error {
			sawRow = true
			if err := b.add(row); err != nil {
				return err
			}
			if b.rows >= batchRows || b.bytes >= batchBytes {
				return flush()
			}
			return nil
		})
		if err == nil && (b.rows > 0 || !sawRow) {
			err = flush()
		}
		if err != nil && !done {
			yield(nil, err)
		}
	}
}

// batch collects rows. Each column has its values in the slice of its kind.
type batch struct {
	table    *Table
	rows     int
	bytes    int // of text
	texts    [][]string
	int64s   [][]int64
	nullable [][]*int64
	int32s   [][]int32
	floats   [][]float64
}

func (t *Table) newBatch() *batch {
	n := len(t.columns)
	return &batch{
		table: t, texts: make([][]string, n), int64s: make([][]int64, n), nullable: make([][]*int64, n),
		int32s: make([][]int32, n), floats: make([][]float64, n),
	}
}

func (b *batch) add(row []cell) error {
	b.rows++
	for i, c := range b.table.columns {
		v := row[i]
		switch c.kind {
		case text:
			if v.value != nil {
				s, err := v.value.text()
				if err != nil {
					return err
				}
				v.s = s
			}
			b.texts[i] = append(b.texts[i], v.s)
			b.bytes += len(v.s)
		case int32s:
			b.int32s[i] = append(b.int32s[i], int32(v.n))
		case int64s:
			b.int64s[i] = append(b.int64s[i], v.n)
		case int64sOrNull:
			var n *int64
			if !v.null {
				n = &v.n
			}
			b.nullable[i] = append(b.nullable[i], n)
		case floats:
			b.floats[i] = append(b.floats[i], v.f)
		}
	}
	return nil
}

func (b *batch) columns() []Column {
	columns := make([]Column, len(b.table.columns))
	for i, c := range b.table.columns {
		columns[i].Name = c.name
		switch c.kind {
		case text:
			columns[i].Values = b.texts[i]
		case int32s:
			columns[i].Values = b.int32s[i]
		case int64s:
			columns[i].Values = b.int64s[i]
		case int64sOrNull:
			columns[i].Values = b.nullable[i]
		case floats:
			columns[i].Values = b.floats[i]
		}
	}
	return columns
}

// text is the value as text, at most maxCell bytes of it.
func (v *value) text() (string, error) {
	var all bytes.Buffer
	tooLong := fmt.Errorf("%w: that of %.100q has more than %d MiB as text", ErrLongValue, v.entry.Key, maxCell>>20)
	w := bufio.NewWriter(&limitedWriter{&all, maxCell, tooLong})
	if err := v.writeText(w); err != nil {
		return "", err
	}
	if err := w.Flush(); err != nil {
		return "", err
	}
	return all.String(), nil
}
