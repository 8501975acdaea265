package tables

// This file defines the parts of an exported table.

// Column is a column of a table to export.
type Column struct {
	Name string
	// Values is one of []int32, []int64, []uint64, []float64, []bool, []string, [][]int64, and
	// [][]float32 whose rows all have the same size. Where nulls occur, it is []*int64, []*string
	// or [][]int32, and nil stands for null. All columns of a table have the same length.
	Values any
}

// Field is a key and value that describe a table as a whole.
type Field struct{ Key, Value string }
