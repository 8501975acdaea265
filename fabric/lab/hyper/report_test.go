package hyper

// This file tests the tables of a series of capacities.

import (
	"bytes"
	"testing"
)

func TestReportTables(t *testing.T) {
	rows := []CapacityRow{
		{Coding: Exact, Dim: 64, Items: 8, Candidates: 9, Measured: 0.9, Predicted: 0.8999},
		{Coding: Exact, Dim: 64, Items: 16, Candidates: 16, Measured: 0.8994, Predicted: 1},
		{Coding: Exact, Dim: 128, Items: 8, Candidates: 9, Measured: 1, Predicted: 1},
		{Coding: Exact, Dim: 128, Items: 16, Candidates: 16, Measured: 1, Predicted: 1},
		{Coding: Nested, Dim: 64, Items: 8, Candidates: 8, Measured: 0, Predicted: 0.001},
	}
	for markdown, want := range map[bool]string{
		false: `exact      8 of 9         16 of 16
64 trits   0.900 (0.900)  0.899* (1.000)
128 trits  1.000 (1.000)  1.000 (1.000)

nested    8 of 8
64 trits  0.000* (0.001)
`,
		true: `| exact | 8 of 9 | 16 of 16 |
| --- | --- | --- |
| 64 trits | 0.900 (0.900) | **0.899** (1.000) |
| 128 trits | 1.000 (1.000) | 1.000 (1.000) |

| nested | 8 of 8 |
| --- | --- |
| 64 trits | **0.000** (0.001) |
`} {
		var b bytes.Buffer
		r := Report{Rows: rows}
		write := r.WriteText
		if markdown {
			write = r.WriteMarkdown
		}
		if err := write(&b); err != nil || b.String() != want {
			t.Errorf("%v\n%s\nwant\n%s", err, b.String(), want)
		}
	}
}

// Missing rows become cells without a figure.
func TestReportTableWithHoles(t *testing.T) {
	r := Report{Interrupted: true, Rows: []CapacityRow{
		{Coding: Exact, Dim: 64, Items: 16, Candidates: 16, Measured: 1, Predicted: 1},
		{Coding: Exact, Dim: 128, Items: 8, Candidates: 8, Measured: 1, Predicted: 1},
	}}
	want := `exact      8 of 8         16 of 16
64 trits   -              1.000 (1.000)
128 trits  1.000 (1.000)  -

INTERRUPTED: figures are missing.
`
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil || b.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, &b, want)
	}
}
