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
	return errors.Join(err, o.print(stdout, &hyper.Report{Seed: o.Seed, Rows: rows, Interrupted: err != nil}))
}
