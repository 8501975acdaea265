package tables

// This file defines what an export is made of.

// Column is a column of a table to export.
type Column struct {
	Name string
	// Values is []int32, []int64, []float64 or []string. All columns of a table have the same length.
	Values any
}

// Field is a pair that describes a table as a whole.
type Field struct{ Key, Value string }
