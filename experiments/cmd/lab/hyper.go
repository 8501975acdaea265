package main

// This file implements "lab hyper", which measures how many key-value pairs a hypervector holds and
// compares with theory. See package hyper.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"tensorcast/experiments/results"
	"tensorcast/fabric/lab/hyper"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
	"tensorcast/internal/tabular"
)

type hyperOptions struct {
	hyper.CapacityConfig
	output
	codings []string
}

func hyperCommand() *cobra.Command {
	var o hyperOptions
	cmd := &cobra.Command{
		Use:   "hyper [flags]",
		Short: "Measure how many key-value pairs a hypervector holds",
		Long: `Hyper measures how many key-value pairs a hypervector holds. A hypervector is a long vector of ternary digits
(trits). Hyper puts random pairs into one, and asks for each value by its key. It counts how often the right
value is the nearest of all candidates. It prints a table for each coding, with the share that was found. The
share that theory expects is in parentheses. Shares below 90 % are marked.

  majority         dense vectors, and the signs of their sum
  thresholded      dense vectors, and the signs of their sum where it is beyond 0.6 standard deviations
  exact            dense vectors, and the sum itself
  blocks           block codes, with 1 trit of 64
  sparse-product   sparse vectors (2 %) that are multiplied element by element. It shows that this does not work
  nested           records of records of records, asked for by path. The number of items must be a cube
  nested-cleanup   the same, but the record is looked up at each step

The same flags give the same figures, on any machine.

Exit codes: 0 measured, whatever came out; 1 not measured; 2 wrong usage.`,
		Example: `  lab hyper
  lab hyper --coding exact --dims 1024,4096 --items 128 --candidates 64 --queries 10000
  lab hyper --markdown --save capacity.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range o.codings {
				var c hyper.Coding
				if err := c.UnmarshalText([]byte(name)); err != nil {
					return cli.Usagef("--coding: %w", err)
				}
				o.Codings = append(o.Codings, c)
			}
			if err := o.Check(); err != nil {
				return cli.Usage(err)
			}
			return o.measure(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	var names []string
	for _, c := range hyper.Codings() {
		names = append(names, c.String())
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.codings = names
	cli.EnumsVar(cmd, &o.codings, "coding", names, "`names` of the codings, with commas")
	f.IntSliceVar(&o.Dims, "dims", []int{1024, 2048, 4096, 8192, 16384, 32768, 65536},
		"numbers of trits of a vector, with commas. They must be multiples of 64")
	f.IntSliceVar(&o.Items, "items", []int{8, 16, 32, 64, 128, 256, 512, 1024},
		"numbers of pairs in one vector, with commas")
	f.IntVar(&o.Candidates, "candidates", 0, "there are `N` values to choose from (default: as many as there are pairs)")
	f.IntVar(&o.Queries, "queries", 1024, "make `N` queries for each figure, on as many new vectors as that needs")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of all vectors")
	o.add(f, results.Hyper, "all figures", "tables")

	return cmd
}

func (o *hyperOptions) measure(ctx context.Context, stdout, stderr io.Writer) error {
	bar := progress.New(stderr, progress.Options{Quiet: o.quiet, What: "figures"})
	defer bar.Close()
	rows, err := hyper.Capacity(ctx, o.CapacityConfig,
		func(done, total int) { bar.Update(int64(done), int64(total), "") })
	bar.Close()
	if len(rows) == 0 {
		return err
	}
	return errors.Join(err, o.print(stdout, &hyperReport{Seed: o.Seed, Rows: rows, Interrupted: err != nil}))
}

// hyperReport is the result of a series.
type hyperReport struct {
	Seed        uint64              `json:"seed"`
	Interrupted bool                `json:"interrupted,omitempty"` // some rows are missing
	Rows        []hyper.CapacityRow `json:"rows"`
}

// WriteText writes a table for each coding.
func (r *hyperReport) WriteText(w io.Writer) error { return r.document(false).WriteText(w) }

// WriteMarkdown writes the same tables for a document.
func (r *hyperReport) WriteMarkdown(w io.Writer) error { return r.document(true).WriteMarkdown(w) }

// enough is the share of items found below which a cell is marked.
const enough = 0.9

func (r *hyperReport) document(markdown bool) (d tabular.Document) {
	for rows := r.Rows; len(rows) > 0; {
		end := 1
		for end < len(rows) && rows[end].Coding == rows[0].Coding {
			end++
		}
		d = append(d, hyperTable(rows[:end], markdown))
		rows = rows[end:]
	}
	if r.Interrupted {
		d = append(d, tabular.Lines{"INTERRUPTED: figures are missing."})
	}
	return d
}

// hyperTable is the table of one coding: a row per dimension, a column per number of items and
// candidates. "-" marks what was not measured.
func hyperTable(rows []hyper.CapacityRow, markdown bool) *tabular.Table {
	// columns has, for each column, the first row of it.
	var dims, columns []int
	for i, r := range rows {
		if !slices.Contains(dims, r.Dim) {
			dims = append(dims, r.Dim)
		}
		if !slices.ContainsFunc(columns, func(c int) bool { return sameColumn(rows[c], r) }) {
			columns = append(columns, i)
		}
	}
	slices.SortStableFunc(columns, func(a, b int) int { return cmp.Compare(rows[a].Items, rows[b].Items) })
	t := tabular.Table{Columns: tabular.Left(rows[0].Coding.String())}
	for _, c := range columns {
		t.Columns = append(t.Columns, tabular.Left(fmt.Sprintf("%d of %d", rows[c].Items, rows[c].Candidates))...)
	}
	for _, dim := range dims {
		cells := []string{fmt.Sprintf("%d trits", dim)}
		for _, c := range columns {
			cell := "-"
			for _, r := range rows {
				if r.Dim == dim && sameColumn(r, rows[c]) {
					cell = hyperCell(r, markdown)
				}
			}
			cells = append(cells, cell)
		}
		t.Rows = append(t.Rows, cells)
	}
	return &t
}

func sameColumn(a, b hyper.CapacityRow) bool {
	return a.Items == b.Items && a.Candidates == b.Candidates
}

func hyperCell(r hyper.CapacityRow, markdown bool) string {
	cell := fmt.Sprintf("%.3f", r.Measured)
	switch {
	case r.Measured < enough && markdown:
		cell = "**" + cell + "**"
	case r.Measured < enough:
		cell += "*"
	}
	return fmt.Sprintf("%s (%.3f)", cell, r.Predicted)
}
