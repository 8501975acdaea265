// Package report makes one HTML file of what was found in a capture. The file needs no network, opens in
// any current browser, and stays below [MaxBytes] for any capture. Each of its charts can be saved as SVG.
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
	// Steps are in the order of time. Speed, every Series and every Heatmap have a value for each. A step is a token
	// where one sequence is generated.
	Steps []Step
	// Main is the phase that the figures are of. Scales are those of its steps: a prompt, which takes as long as many
	// tokens, would leave nothing of them to these.
	Main   string
	Speed  *Speed // what the page opens with; nil: not known
	Spans  []Span // what the target did when, in the order of time
	Series []Series
	Heat   []Heatmap
	Reads  *ReadMap // nil: not known
	Maps   []Map
	Tables []Table
	Notes  []string // what the capture lacks, and the flag that records it
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

// Class is a kind of something that is shown in a colour of its own, such as #0072b2.
type Class struct {
	Name  string `json:"name"`
	Color string `json:"color"`
}

// Speed is how many tokens each step computed, how long it took, and what it spent that time with.
type Speed struct {
	Tokens  []float64 // of each step
	Seconds []float64 // of each step; NaN where it is not known
	Begins  []float64 // seconds from the beginning of the capture
	Parts   []Part    // what is in none of them is shown as not known
	// Possible is how many tokens a second has if steps of the phase Report.Main wait for nothing; 0: not known.
	Possible float64
	About    string
}

// Part is a part of each step's time.
type Part struct {
	Class
	Seconds []float64 // of each step; NaN where it is not known
}

// Span is a time in which the target did one thing.
type Span struct {
	Class
	Begin float64 `json:"begin"` // seconds from the beginning of the capture
	End   float64 `json:"end"`
	About string  `json:"about"` // what was done, e.g. how many tokens were computed
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
	// Block is the group that the row belongs to, such as a layer; "" if to none. Where rows are too low for labels of
	// their own, those of a block, which are neighbours, have one together.
	Block string `json:"block,omitempty"`
}

// ReadMap is where in a model's files is read, and when: cells of equal size, of which the columns are times and the
// rows are places.
type ReadMap struct {
	Size    float64 // of all rows, in bytes
	Classes []Class // of reads; at most 8
	Columns int
	Rows    int
	// StepsPerColumn is a whole number, or one divided by a whole number. The last column may have fewer steps.
	StepsPerColumn float64
	// Cell is the class of most of what was read in a cell, and which share of its bytes that is; 0 if nothing was
	// read. Rows count from the beginning of the files.
	Cell  func(column, row int) (class int, share float64)
	About string
}

// Map is a value for each row and column, which are no steps, such as layers and experts.
type Map struct {
	Name    string
	Unit    string
	About   string
	Rows    []string
	Column  string // what a column is, such as "expert"
	Columns int
	// At returns the value of a cell: NaN where it is not known, else 0 or more.
	At func(row, column int) float64
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
