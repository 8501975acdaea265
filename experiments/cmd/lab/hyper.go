package main

// This file implements "lab hyper", which measures how many key-value pairs a hypervector holds and
// compares with theory. See package hyper.

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"tensorcast/experiments/results"
	"tensorcast/fabric/lab/hyper"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
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
		Long: `Hyper puts random key-value pairs into one hypervector, asks for each value by its key, and counts
how often the right one is the nearest of all candidates. It prints a table per coding: the share
found, and in parentheses what theory expects. Shares below 90 % are marked.

  majority         dense vectors, signs of the sum
  thresholded      dense vectors, signs of the sum beyond 0.6 standard deviations
  exact            dense vectors, the sum itself
  blocks           block codes: 1 trit of 64
  sparse-product   sparse vectors (2 %), multiplied element by element: shows that this does not work
  nested           records of records of records, queried by path (only for numbers of items that are cubes)
  nested-cleanup   the same, the record looked up at each step

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
	cli.EnumsVar(cmd, &o.codings, "coding", names, "codings, several with commas")
	f.IntSliceVar(&o.Dims, "dims", []int{1024, 2048, 4096, 8192, 16384, 32768, 65536},
		"trits of a vector, multiples of 64")
	f.IntSliceVar(&o.Items, "items", []int{8, 16, 32, 64, 128, 256, 512, 1024}, "pairs in one vector")
	f.IntVar(&o.Candidates, "candidates", 0, "values that are known; 0 for as many as there are pairs")
	f.IntVar(&o.Queries, "queries", 1024, "queries for each figure, on as many new vectors as needed")
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
	return errors.Join(err, o.print(stdout, &hyper.Report{Seed: o.Seed, Rows: rows, Interrupted: err != nil}))
}
