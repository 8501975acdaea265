package tables

// This file defines the parts of an exported table.

// Column is a column of a table to export.
type Column struct {
	Name string
	// Values is []int32, []int64, []uint64, []float64, []bool, []string, [][]int64, or [][]float32,
	// whose rows are all of one size; or, with nil for null, []*int64, []*string or [][]int32. All
	// columns of a table have the same length.
	Values any
}

// Field is a key and value that describe a table as a whole.
type Field struct{ Key, Value string }
