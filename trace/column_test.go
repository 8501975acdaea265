package trace

// This file tests the buffers of columns against Arrow's own builders.

import (
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/float16"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// Columns hold the same as arrays that Arrow's own builders make of the same values, also when they
// are used again.
func TestColumnsAreAsArrowsBuilders(t *testing.T) {
	fields := []arrow.Field{
		{Name: "int64", Type: arrow.PrimitiveTypes.Int64},
		{Name: "int64 or null", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "int32", Type: arrow.PrimitiveTypes.Int32},
		{Name: "int32 or null", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "uint64", Type: arrow.PrimitiveTypes.Uint64}, {Name: "int8", Type: arrow.PrimitiveTypes.Int8},
		{Name: "bool", Type: arrow.FixedWidthTypes.Boolean}, {Name: "list", Type: int32List, Nullable: true},
		{Name: "halves", Type: arrow.FixedSizeListOfNonNullable(3, arrow.FixedWidthTypes.Float16)},
	}
	random := rand.New(rand.NewPCG(1, 2))
	s := &stream{maxRows: 1 << 20, schema: arrow.NewSchema(fields, nil), dicts: make([]*dictionary, len(fields))}
	var builders []array.Builder
	for _, f := range fields {
		s.columns = append(s.columns, newColumnBuffer(f.Type, f.Nullable))
		builders = append(builders, array.NewBuilder(memory.DefaultAllocator, f.Type))
	}
	for _, rows := range []int{0, 1, 7, 8, 9, 64, 1000, 0, 3} {
		for range rows {
			v, there, list := random.Int64(), random.IntN(3) > 0, []int32{}
			for range random.IntN(4) {
				list = append(list, random.Int32())
			}
			s.int64(v)
			builders[0].(*array.Int64Builder).Append(v)
			if there {
				s.int64(v)
			} else {
				s.null()
			}
			s.int32(int32(v))
			builders[2].(*array.Int32Builder).Append(int32(v))
			if there {
				s.int32(int32(v))
				builders[1].(*array.Int64Builder).Append(v)
				builders[3].(*array.Int32Builder).Append(int32(v))
			} else {
				s.null()
				builders[1].AppendNull()
				builders[3].AppendNull()
				list = nil
			}
			s.uint64(uint64(v))
			s.shortIndex(uint8(v) & 0x7f)
			s.bool(there)
			s.list(list)
			builders[4].(*array.Uint64Builder).Append(uint64(v))
			builders[5].(*array.Int8Builder).Append(int8(v & 0x7f))
			builders[6].(*array.BooleanBuilder).Append(there)
			if b := builders[7].(*array.ListBuilder); list == nil {
				b.AppendNull()
			} else {
				b.Append(true)
				b.ValueBuilder().(*array.Int32Builder).AppendValues(list, nil)
			}
			values := []float32{float32(random.IntN(2049)), -0.5, 0x1p-14}
			s.halfValues(values)
			halves := builders[8].(*array.FixedSizeListBuilder)
			halves.Append(true)
			for _, v := range values {
				halves.ValueBuilder().(*array.Float16Builder).Append(float16.New(v))
			}
			if err := s.endRow(); err != nil {
				t.Fatal(err)
			}
		}
		if s.rows != rows {
			t.Fatalf("%d rows are held, want %d", s.rows, rows)
		}
		for i, f := range fields {
			if err := s.columns[i].check(s.rows); err != nil {
				t.Errorf("%d rows of %s: %v", rows, f.Name, err)
			}
			want, got := builders[i].NewArray(), s.columns[i].array(s.rows)
			if !array.Equal(want, got) || got.NullN() != want.NullN() {
				t.Fatalf("%d rows of %s: %v, want %v", rows, f.Name, got, want)
			}
			s.columns[i].reset()
		}
		s.rows = 0
	}
}
