// Command hypercapacity measures how many key-value pairs a hypervector holds, beside what theory expects. See package hyper.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tensorcast/fabric/hyper"
	"tensorcast/internal/outfile"
)

type options struct {
	hyper.CapacityConfig
	codings  []string
	json     string
	markdown bool
	quiet    bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	usage := true // until the flags are accepted, errors are the user's
	cmd := &cobra.Command{
		Use:   "hypercapacity [flags]",
		Short: "Measure how many key-value pairs a hypervector holds",
		Long: `Hypercapacity puts random key-value pairs into one hypervector, asks for each value by its key, and counts how often the right one is the nearest
of all candidates. It prints a table per coding: the share found, and in parentheses what theory expects. What is below 90 % is marked.

  majority         dense vectors, signs of the sum
  thresholded      dense vectors, signs of the sum beyond 0.6 standard deviations
  exact            dense vectors, the sum itself
  blocks           block codes: 1 trit of 64
  sparse-product   sparse vectors (2 %), multiplied element by element: what does not work
  nested           records of records of records, asked by path (numbers of items that are cubes)
  nested-cleanup   the same, the record looked up at each step

The same flags give the same figures, on any machine.

Exit codes: 0 measured, whatever came out; 1 not measured; 2 wrong usage.`,
		Example: `  hypercapacity
  hypercapacity --coding exact --dims 1024,4096 --items 128 --candidates 64 --queries 10000
  hypercapacity --markdown --json capacity.json`,
		SilenceUsage: true, SilenceErrors: true,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range o.codings {
				var c hyper.Coding
				if err := c.UnmarshalText([]byte(name)); err != nil {
					return fmt.Errorf("--coding: %w", err)
				}
				o.Codings = append(o.Codings, c)
			}
			if err := o.Check(); err != nil {
				return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
			}
			usage = false
			return o.measure(cmd.Context(), stdout, stderr)
		},
	}
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	var names []string
	for _, c := range hyper.Codings() {
		names = append(names, c.String())
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVar(&o.codings, "coding", names, "codings")
	f.IntSliceVar(&o.Dims, "dims", []int{1024, 2048, 4096, 8192, 16384, 32768, 65536}, "trits of a vector, multiples of 64")
	f.IntSliceVar(&o.Items, "items", []int{8, 16, 32, 64, 128, 256, 512, 1024}, "pairs in one vector")
	f.IntVar(&o.Candidates, "candidates", 0, "values that are known; 0 for as many as there are pairs")
	f.IntVar(&o.Queries, "queries", 1024, "questions for each figure, to as many fresh vectors as needed")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of all vectors")
	f.StringVar(&o.json, "json", "", "write all figures to this `file` as JSON; - is standard output, instead of the tables")
	f.BoolVar(&o.markdown, "markdown", false, "print the tables as Markdown")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")

	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "hypercapacity:", err)
		if usage {
			return 2
		}
		return 1
	}
	return 0
}

func (o *options) measure(ctx context.Context, stdout, stderr io.Writer) error {
	var progress func(done, total int)
	if file, ok := stderr.(*os.File); ok && !o.quiet && term.IsTerminal(int(file.Fd())) {
		bar := progressbar.NewOptions(1, progressbar.OptionSetWriter(stderr), progressbar.OptionSetWidth(20), progressbar.OptionShowCount(), progressbar.OptionClearOnFinish())
		defer func() { _ = bar.Finish() }() // a terminal that is gone is not the measurement's failure
		progress = func(done, total int) {
			bar.ChangeMax(total)
			_ = bar.Set(done)
		}
	}
	rows, err := hyper.Capacity(ctx, o.CapacityConfig, progress)
	if err != nil {
		return err
	}
	if o.json != "" {
		data, err := json.MarshalIndent(struct {
			Seed uint64              `json:"seed"`
			Rows []hyper.CapacityRow `json:"rows"`
		}{o.Seed, rows}, "", " ")
		if err != nil {
			return fmt.Errorf("encoding the figures: %w", err)
		}
		data = append(data, '\n')
		if o.json == "-" {
			_, err := stdout.Write(data)
			return err
		}
		if err := outfile.Write(o.json, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
			return err
		}
	}
	return write(stdout, rows, o.markdown)
}

// enough is the share of values found below which a figure is marked.
const enough = 0.9

// write writes a table for each coding: a line per dimension, a column per number of items.
func write(w io.Writer, rows []hyper.CapacityRow, markdown bool) error {
	for first := 0; first < len(rows); {
		end := first
		for end < len(rows) && rows[end].Coding == rows[first].Coding {
			end++
		}
		if first > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if err := table(w, rows[first:end], markdown); err != nil {
			return err
		}
		first = end
	}
	return nil
}

func table(w io.Writer, rows []hyper.CapacityRow, markdown bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(cells []string) { fmt.Fprintln(tw, strings.Join(cells, "\t")) }
	if markdown {
		line = func(cells []string) { fmt.Fprintf(tw, "| %s |\n", strings.Join(cells, " | ")) }
	}
	per := 0 // rows of one dimension
	head, rule := []string{rows[0].Coding.String()}, []string{"---"}
	for per < len(rows) && rows[per].Dim == rows[0].Dim {
		head = append(head, fmt.Sprintf("%d of %d", rows[per].Items, rows[per].Candidates))
		rule = append(rule, "---")
		per++
	}
	line(head)
	if markdown {
		line(rule)
	}
	for ; len(rows) > 0; rows = rows[per:] {
		cells := []string{fmt.Sprintf("%d trits", rows[0].Dim)}
		for _, r := range rows[:per] {
			cell := fmt.Sprintf("%.3f", r.Measured)
			switch {
			case r.Measured < enough && markdown:
				cell = "**" + cell + "**"
			case r.Measured < enough:
				cell += "*"
			}
			cells = append(cells, fmt.Sprintf("%s (%.3f)", cell, r.Predicted))
		}
		line(cells)
	}
	return tw.Flush()
}
