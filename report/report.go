// Package report makes one HTML file of what was found in a capture: it needs no network, opens in any
// current browser, and stays below [MaxBytes] for any capture.
//
// It does not know how its figures were computed: a [Report] is plain numbers, in the order of the
// tokens. What has more of them than a page can hold is binned here, by the mean and by the greatest
// value of each bin, and the page says so.
package report

// This file is what the page shows.

import "math"

// MaxBytes bounds the file.
const MaxBytes = 15 << 20

// Report is what a page shows, from the top to the bottom.
type Report struct {
	Title   string   // one line, e.g. the model's name
	Context []Fact   // where it comes from: host, limit, command
	Verdict []string // sentences; empty: the page has none
	Facts   []Fact   // the most important figures
	// Steps are in the order of time; every Series and Heatmap has a value for each. A step is a token
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
	About string `json:"about,omitempty"` // how it was got, shown as a tooltip
}

// Step is one decode.
type Step struct {
	Label string // of the step, e.g. its token's number
	Phase string // "warm-up", "prompt", "generation"
}

// Series is a value per step: NaN where it is not known.
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
	// once for each, rows in order.
	At func(row, step int) float64
}

// Row is a row of a heatmap.
type Row struct {
	Name   string  `json:"name"`
	Weight float64 `json:"weight"` // e.g. bytes
	Detail string  `json:"detail,omitempty"`
}

// Offsets is what was read when and where: points in the order of time.
type Offsets struct {
	Size  float64 // of the file, in bytes
	Kinds []string
	Count int
	// At returns a point: the step with the fraction of it that has passed, the offset in the file in
	// bytes, how many bytes, and the index of its kind. It is called for increasing i.
	At func(i int) Point
}

// Point is one of Offsets.
type Point struct {
	Step, Offset, Bytes float64
	Kind                int
}

// Table is shown with its columns sortable and its rows filtered by a text. Cells are strings or
// float64s; numbers are shown in the column's unit.
type Table struct {
	Name    string
	About   string
	Columns []Column
	Rows    [][]any
}

// Column is a column of a table.
type Column struct {
	Name string `json:"name"`
	// "B" for bytes, "ns" for times: both are scaled. Others are shown behind the number.
	Unit string `json:"unit,omitempty"`
}

// known says whether a value is one.
func known(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
