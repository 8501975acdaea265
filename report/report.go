// Package report makes one HTML file of what was found in a capture. The file needs no network, opens in
// any current browser, and stays below [MaxBytes] for any capture.
//
// The package does not know how its figures were computed: a [Report] is plain numbers, in the order of
// the tokens. Where there are more numbers than a page can hold, they are binned. A bin shows the mean
// and the greatest of its values, and the page says so.
package report

// This file defines what a page shows.

import "math"

// MaxBytes bounds the file.
const MaxBytes = 15 << 20

// Report is what a page shows, from top to bottom.
type Report struct {
	Title   string   // one line, e.g. the model's name
	Context []Fact   // where the capture comes from: host, limit, command
	Verdict []string // sentences; if there are none, the page has no verdict
	Facts   []Fact   // the most important figures
	// Steps are in the order of time. Every Series and Heatmap has a value for each. A step is a token
	// where one sequence is generated.
	Steps   []Step
	Series  []Series
	Heat    []Heatmap
	Offsets *Offsets // nil: not known
	Tables  []Table
	Notes   []string // what the capture lacks, and the flag that records it
}

// Fact is a figure with its name.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	About string `json:"about,omitempty"` // how the figure was measured, shown as a tooltip
}

// Step is one decode.
type Step struct {
	Label string // of the step, e.g. its token's number
	Phase string // "warm-up", "prompt", "generation"
}

// Series is a value per step; NaN where it is not known.
type Series struct {
	Name   string
	Unit   string
	Values []float64
}

// Heatmap is a value for each row and step. Rows are drawn as high as their weight.
type Heatmap struct {
	Name  string
	Unit  string
	About string // what a value is
	Rows  []Row
	// At returns a row's value in a step: NaN where nothing was observed, else 0 or more. It is called
	// once for each row and step, row by row.
	At func(row, step int) float64
}

// Row is a row of a heatmap.
type Row struct {
	Name   string  `json:"name"`
	Weight float64 `json:"weight"` // e.g. bytes
	Detail string  `json:"detail,omitempty"`
}

// Offsets is where in a file was read, and when: points in the order of time.
type Offsets struct {
	Size  float64 // of the file, in bytes
	Kinds []string
	Count int
	// At returns a point. It is called for increasing i.
	At func(i int) Point
}

// Point is one of Offsets: the step, with the fraction of it that has passed; the offset in the file and
// the number of bytes; and the index of its kind.
type Point struct {
	Step, Offset, Bytes float64
	Kind                int
}

// Table has columns that can be sorted, and rows that can be filtered by a text. Cells are strings or
// float64s. Numbers are shown in the column's unit.
type Table struct {
	Name    string
	About   string
	Columns []Column
	Rows    [][]any
}

// Column is a column of a table.
type Column struct {
	Name string `json:"name"`
	// Unit is "B" for bytes or "ns" for times, which are both scaled. Any other unit is shown behind the
	// number.
	Unit string `json:"unit,omitempty"`
}

// isKnown says whether a value is a number.
func isKnown(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
