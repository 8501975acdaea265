package main

// This file has the subcommand export: a capture becomes a run of a data set.

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"tensorcast/internal/cli"
	"tensorcast/internal/visible"
	"tensorcast/trace"
	"tensorcast/trace/dataset"
)

// exportOptions are the flags of analyze export.
type exportOptions struct {
	directory string
	partition dataset.Options
}

func exportCommand(root *options) *cobra.Command {
	var o exportOptions
	cmd := &cobra.Command{
		Use:   "export --dataset directory [flags]",
		Short: "Append a capture to a data set of many runs",
		Long: `analyze export appends a capture to a data set of many runs. A data set is a directory in which each run is a partition,
model=MODEL/run=RUN, as Apache Hive names them. DuckDB, Spark, pandas and polars read all runs with one query. They take
the columns model and run from the names of the directories. A partition has a Parquet file for each table of the
capture. It also has run.parquet, whose one row describes the run: when, on which machine, with how much memory, and how
many tokens in how many seconds. A capture's column model, which is the number of a model in it, is called model_index
here.

A run appears with all its files or not at all, also if analyze is killed. Several may append at the same time. A second
run of the same name is refused, or with --replace takes the place of the first. Without --run, the name of a run is the
time at which its capture began, and a hash of its description. So the same capture is not appended twice.

Like a capture, a data set tells which tokens were processed. So only their owner can read its files. The table of
hidden states is left out.

Exit status: 0 done; 1 failed; 2 the command line is wrong.`,
		Example: `  sudo tracer -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 32
  analyze export --dataset runs
  analyze export --dataset runs --run monday
  duckdb -c "SELECT model, count(*) AS runs, sum(generation_tokens) / sum(generation_seconds) AS tokens_per_second
    FROM read_parquet('runs/*/*/run.parquet', hive_partitioning = true) GROUP BY model"`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.directory == "" {
				return cli.Usagef("say where the data set is: --dataset DIRECTORY (analyze --export writes the tables " +
					"of one capture to --output)")
			}
			for _, name := range []string{"output", "top", "context", "phase"} {
				if cmd.Flags().Changed(name) {
					return cli.Usagef("--%s is not for export: all of the capture is appended", name)
				}
			}
			return exportRun(cmd.Context(), root, &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.directory, "dataset", "", "`directory` of the data set, which is made if it is not there")
	f.StringVar(&o.partition.Model, "model", "", "`name` of the model in the data set (default: the file name of the largest model)")
	f.StringVar(&o.partition.Run, "run", "", "`name` of the run in the data set (default: when the capture began, and a hash)")
	f.BoolVar(&o.partition.Replace, "replace", false, "replace the run of that name, if there is one")
	return cmd
}

// exportRun is the subcommand.
func exportRun(ctx context.Context, root *options, o *exportOptions, stdout, stderr io.Writer) error {
	capture, err := trace.Open(root.capture)
	if err != nil {
		return err
	}
	warnings := doubts(capture)
	for _, w := range warnings {
		warn(stderr, "%s", w)
	}
	partition, err := dataset.Append(ctx, o.directory, capture, o.partition)
	if errors.Is(err, dataset.ErrExists) {
		return fmt.Errorf("%w: give it another name with --run, or --replace it", err)
	}
	if err != nil {
		return fmt.Errorf("append %s to %s: %w", root.capture, o.directory, err)
	}
	if root.json {
		return cli.WriteJSON(stdout, struct {
			dataset.Partition
			Warnings []string `json:"warnings"`
		}{partition, warnings})
	}
	_, err = fmt.Fprintf(stdout, "appended the run %s of %s to %s: %d tables\n", partition.Run, partition.Model,
		visible.Line(o.directory), len(partition.Files))
	return err
}
