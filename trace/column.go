package trace

// This file buffers the rows of a table that are not yet written, as columns in Arrow's memory
// layout, which a batch uses without a copy. (Arrow's builders do the same at ten times the cost
// per value.)

import (
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/bitutil"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"tensorcast/gguf/half"
)

// columnBuffer holds one column: values of a fixed width, bits, lists of int32, or the same number of
// halves (16-bit floats) for each row.
type columnBuffer struct {
	typ      arrow.DataType // of the indices if the column has a dictionary
	nullable bool
	width    int    // bytes per row; 0 for bits and lists
	values   []byte // in host byte order; for lists, their items
	ends     []byte // where each list ends in values (int32), after a leading 0
	valid    []byte // bits
	nulls    int
}

func newColumnBuffer(typ arrow.DataType, nullable bool) columnBuffer {
	c := columnBuffer{typ: typ, nullable: nullable}
	if f, ok := typ.(arrow.FixedWidthDataType); ok {
		c.width = f.BitWidth() / 8
	}
	if l, ok := typ.(*arrow.FixedSizeListType); ok {
		c.width = int(l.Len()) * arrow.Float16SizeBytes
	}
	c.reset()
	return c
}

func (c *columnBuffer) reset() {
	c.values, c.ends, c.valid, c.nulls = c.values[:0], c.ends[:0], c.valid[:0], 0
	if c.typ.ID() == arrow.LIST {
		c.ends = append(c.ends, 0, 0, 0, 0)
	}
}

// markValid records whether the row has a value.
func (c *columnBuffer) markValid(row int, there bool) {
	if c.nullable {
		c.valid = appendBit(c.valid, row, there)
	}
}

// null appends a null.
func (c *columnBuffer) null(row int) {
	c.markValid(row, false)
	c.nulls++
	if c.typ.ID() == arrow.LIST {
		c.end()
		return
	}
	for range c.width {
		c.values = append(c.values, 0)
	}
}

// list appends a list.
func (c *columnBuffer) list(row int, items []int32) {
	c.markValid(row, true)
	for _, v := range items {
		c.values = binary.NativeEndian.AppendUint32(c.values, uint32(v))
	}
	c.end()
}

// halves appends a row of values, rounded to half precision. Values beyond that become infinite.
func (c *columnBuffer) halves(row int, values []float32) {
	c.markValid(row, true)
	for _, v := range values {
		c.values = binary.NativeEndian.AppendUint16(c.values, half.Round(v))
	}
}

func (c *columnBuffer) end() {
	c.ends = binary.NativeEndian.AppendUint32(c.ends, uint32(len(c.values)/4))
}

// check returns an error if the column does not have one value per row, or has a null although it
// is not nullable.
func (c *columnBuffer) check(rows int) error {
	bits := (rows + 7) / 8
	got, want := len(c.values), rows*c.width
	switch {
	case c.typ.ID() == arrow.LIST:
		got, want = len(c.ends), 4*(rows+1)
	case c.width == 0:
		want = bits
	}
	switch {
	case c.typ.ID() != arrow.LIST && len(c.ends) > 0:
		return fmt.Errorf("a list is in a column of %s", c.typ)
	case got != want:
		return fmt.Errorf("values for %d rows of %s take %d bytes, not %d", rows, c.typ, got, want)
	case c.nullable && len(c.valid) != bits:
		return fmt.Errorf("%d bytes say which values of %d rows are null, not %d", len(c.valid), rows, bits)
	case !c.nullable && c.nulls > 0:
		return fmt.Errorf("%d values are null, which the schema does not allow", c.nulls)
	}
	return nil
}

// array returns the first rows as an array. It is valid until the column is changed.
func (c *columnBuffer) array(rows int) arrow.Array {
	buffers := []*memory.Buffer{nil, memory.NewBufferBytes(c.values)}
	if c.nulls > 0 {
		buffers[0] = memory.NewBufferBytes(c.valid)
	}
	var items []arrow.ArrayData
	if l, ok := c.typ.(*arrow.ListType); ok {
		data := array.NewData(l.Elem(), len(c.values)/4, []*memory.Buffer{nil, buffers[1]}, nil, 0, 0)
		defer data.Release()
		items, buffers[1] = []arrow.ArrayData{data}, memory.NewBufferBytes(c.ends)
	}
	if l, ok := c.typ.(*arrow.FixedSizeListType); ok {
		data := array.NewData(l.Elem(), rows*int(l.Len()), []*memory.Buffer{nil, buffers[1]}, nil, 0, 0)
		defer data.Release()
		items, buffers = []arrow.ArrayData{data}, buffers[:1]
	}
	data := array.NewData(c.typ, rows, buffers, items, c.nulls, 0)
	defer data.Release()
	return array.MakeFromData(data)
}

// appendBit appends a bit. at is its number, that is how many bits there are already.
func appendBit(bits []byte, at int, v bool) []byte {
	for len(bits) <= at/8 {
		bits = append(bits, 0)
	}
	if v {
		bitutil.SetBit(bits, at)
	}
	return bits
}
