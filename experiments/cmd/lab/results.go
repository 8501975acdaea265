package main

// This file implements "lab results", which reads the documents that instruments write with --save. See package
// results.

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"tensorcast/experiments/results"
	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// aboutNames says how the subcommands name documents.
const aboutNames = `
A document is named by its file, or by a NAME alone: the file NAME.json in experiments/results of the
checkout that the command is run in.

Exit codes: 0 done; 1 failed; 2 wrong usage.`

func resultsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "results COMMAND",
		Short: "List, show and compare the documents of --save, and put their tables into the texts",
		Long: `A document is what an instrument writes with --save: one JSON file for a series of runs. It says on
which machine, with which commit and by which command the series was measured, and has the raw figures
of every run. Documents that the project's texts show are committed in experiments/results.

In a text (*.md) a table stands between two lines. "lab results docs" makes it again from its document:

    <!-- results: late-dense overview -->
    <!-- /results -->

Exit codes: 0 done; 1 failed; 2 wrong usage.`,
		Example: `  lab results list
  lab results table late-dense overview remarks
  lab results docs --check
  lab results compare late-dense again.json
  lab results parquet -o runs.parquet
  lab results figure late-dense -o speed.svg`,
	}
	cmd.AddCommand(resultsListCommand(), resultsTableCommand(), resultsDocsCommand(), resultsCompareCommand(),
		resultsParquetCommand(), resultsFigureCommand(), resultsImportCommand())
	return cmd
}

// findDocument reads the document that a file or a name on the command line means.
func findDocument(arg string) (results.Named, error) {
	if strings.ContainsRune(arg, filepath.Separator) || strings.HasSuffix(arg, ".json") {
		d, err := results.ReadFile(arg)
		return results.Named{Name: strings.TrimSuffix(filepath.Base(arg), ".json"), Document: d}, err
	}
	root, err := results.FindCheckout(".")
	if err != nil {
		return results.Named{}, fmt.Errorf("%s: %w: give a file whose name ends in .json", arg, err)
	}
	return results.ReadNamed(filepath.Join(root, results.Dir), arg)
}

// documentsDir is the directory that is given, or that of the checkout.
func documentsDir(args []string) (string, error) {
	if len(args) > 0 {
		return args[0], nil
	}
	root, err := results.FindCheckout(".")
	if err != nil {
		return "", fmt.Errorf("%w: give a directory", err)
	}
	return filepath.Join(root, results.Dir), nil
}

func resultsListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list [DIR]",
		Short: "List documents, one in each line",
		Long: `List shows each document of a directory in one line: its name, the instrument, when, with which commit
and on which machine it was measured. The directory is experiments/results of the checkout unless
another one is given. A file (*.json) that is no document is named as an error.

Exit codes: 0 done; 1 failed, or a file is no document; 2 wrong usage.`,
		Example: `  lab results list
  lab results list measured/`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := documentsDir(args)
			if err != nil {
				return err
			}
			all, err := results.ReadDir(dir)
			if len(all) > 0 {
				err = errors.Join(err, results.List(all).WriteText(cmd.OutOrStdout()))
			} else if err == nil {
				err = fmt.Errorf("%s has no documents (*.json)", dir)
			}
			return err
		},
	}
}

func resultsTableCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "table FILE|NAME [PART...]",
		Short: "Print the tables of a document as Markdown",
		Long: `Table prints the report of a document as Markdown. PARTs choose what is printed, in their order. A
series of lab pressure has conditions, settings, overview and remarks, one of lab harm has conditions,
scenes and remarks. The reports of other instruments are printed as a whole.
` + aboutNames,
		Example: `  lab results table late-dense
  lab results table runs.json overview remarks`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := findDocument(args[0])
			if err != nil {
				return err
			}
			if err := d.WriteTable(cmd.OutOrStdout(), args[1:]...); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return nil
		},
	}
}

func resultsDocsCommand() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "docs [--check] [DIR]",
		Short: "Put tables and figures into the texts of a checkout, or check those there",
		Long: `Docs replaces what stands between these lines in all texts (*.md) of a checkout:

    <!-- results: NAME [PART...] -->
    <!-- /results -->

by the table of the document NAME in experiments/results, and names each file that it changed. PARTs are
those of "lab results table". With figure=FILE.svg instead of PARTs it draws the document's figure into
that file beside the text, or in a directory below; variants may follow, as those of --curve of "lab
results figure" do. Two other marks begin tables that are not of one document:

    <!-- results: versus=BASE,OTHER NAME... -->    how fast the variant OTHER is against BASE, in several series
    <!-- results: table=NAME -->                   the figures in experiments/results/copied/NAME.csv

Lines that are indented, or in a fence of code, are examples and stay.

DIR is the checkout; by default it is the one that the command is run in. The same data give the same
bytes.

Exit codes: 0 done, or with --check nothing differs; 1 failed, or a table or figure differs from its
data; 2 wrong usage.`,
		Example: `  lab results docs
  lab results docs --check`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			from := "."
			if len(args) > 0 {
				from = args[0]
			}
			root, err := results.FindCheckout(from)
			if err != nil {
				return err
			}
			if check {
				return results.CheckDocs(root)
			}
			changed, err := results.UpdateDocs(root)
			for _, file := range changed {
				if _, printed := fmt.Fprintln(cmd.OutOrStdout(), file); printed != nil {
					return errors.Join(err, printed)
				}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "change nothing; fail where a table or figure differs from its data")
	return cmd
}

func resultsCompareCommand() *cobra.Command {
	var markdown bool
	cmd := &cobra.Command{
		Use:   "compare OLD NEW",
		Short: "Compare two documents: is the newer series slower than the older one?",
		Long: `Compare shows, for each setting and variant that two series of lab pressure or lab harm both have, the
median of tokens per second with the least and the greatest, and the ratio of the medians with the least
and the greatest ratio of a new run to an old one. The verdict is "slower" or "faster" only if all new
runs are beyond all old ones, and if both series have two runs or more there.

What else differs between the two is listed first: machine, disk, helper, tokens. A difference in speed
may come from that.
` + aboutNames,
		Example: `  lab results compare late-dense again.json
  lab results compare --markdown old.json new.json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var both [2]results.Named
			for i := range both {
				var err error
				if both[i], err = findDocument(args[i]); err != nil {
					return err
				}
			}
			c, err := results.Compare(both[0], both[1])
			if err != nil {
				return err
			}
			if markdown {
				return c.Document().WriteMarkdown(cmd.OutOrStdout())
			}
			return c.Document().WriteText(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&markdown, "markdown", false, "print the comparison as Markdown")
	return cmd
}

func resultsParquetCommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "parquet -o FILE [DIR]",
		Short: "Write the runs of all documents as one Parquet table",
		Long: `Parquet writes one table with a row for each run of each document in a directory, which is
experiments/results of the checkout unless another one is given. Columns say what the document says
(document, kind, started, commit, command, cpu, cpus, memory_bytes, kernel, cgroup_version), under which
setting the run was made, and what was measured; their names tell the units. What an instrument does not
know of its runs is null, or NaN where it is a fraction. Only lab pressure and lab harm have runs at
settings; documents of other instruments are left out, and named.

Exit codes: 0 written; 1 failed; 2 wrong usage.`,
		Example: `  lab results parquet -o runs.parquet
  lab results parquet -o runs.parquet measured/`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if out == "" {
				return cli.Usagef("no output: give -o FILE")
			}
			dir, err := documentsDir(args)
			if err != nil {
				return err
			}
			all, err := results.ReadDir(dir)
			if err != nil {
				return err
			}
			columns, left, err := results.Columns(all)
			if err != nil {
				return err
			}
			if len(columns) == 0 {
				return fmt.Errorf("%s has no documents with runs at settings", dir)
			}
			if len(left) > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "left out, because they have no runs at settings: %s\n",
					strings.Join(left, ", "))
			}
			return outfile.Write(out, func(w io.Writer) error {
				return trace.WriteParquet(w, columns, tables.Field{Key: "schema", Value: results.Schema},
					tables.Field{Key: "version", Value: fmt.Sprint(results.Version)})
			})
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "the `file` that is written")
	return cmd
}

func resultsFigureCommand() *cobra.Command {
	var out string
	var curves []string
	cmd := &cobra.Command{
		Use:   "figure FILE|NAME -o FILE",
		Short: "Draw a document: tokens per second against the share that fits, or what observers cost",
		Long: `Figure draws a series of lab pressure or of lab overhead.

Of lab pressure it draws the medians against the share of the model that fits in memory, with a curve for
each variant, the range of its runs as upright bars, and the bound that no strategy can exceed. Of lab
overhead it draws the share of the tokens per second that each observer takes, with its interval.

The format follows from the name: ` + strings.Join(chart.Formats, ", ") + `. The same document gives the same bytes.
` + aboutNames,
		Example: `  lab results figure late-dense -o speed.svg
  lab results figure demo/matrix/dense-q8_0.json -o speed.svg --curve plain --curve auto=prefetchd`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format := chart.FormatOf(out)
			if !slices.Contains(chart.Formats, format) {
				return cli.Usagef("-o %q: want a file whose name ends in %s", out, cli.OneOf(chart.Formats))
			}
			d, err := findDocument(args[0])
			if err != nil {
				return err
			}
			return outfile.Write(out, func(w io.Writer) error { return d.WriteFigure(w, format, curves...) })
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "the `file` that is drawn")
	cmd.Flags().StringArrayVar(&curves, "curve", nil,
		"draw this variant or observer, `NAME[=LABEL]`; may be repeated (default: all)")
	return cmd
}

type resultsImportOptions struct {
	out, kind, commit, command string
}

func resultsImportCommand() *cobra.Command {
	var o resultsImportOptions
	cmd := &cobra.Command{
		Use:   "import REPORT -o FILE [--kind KIND --commit COMMIT --command LINE]",
		Short: "Make a document for others of a saved series: with base names instead of paths",
		Long: `Import makes a document that can be committed: paths of this machine are replaced by their last parts,
in all texts but those that a model generated.

REPORT is a document, or the report that --save of an older build wrote, which has no schema. Of such a
report, --kind says which instrument measured it, --commit with which build, and --command by which
command line. The document says that these were told. When and on which machine the series was measured
must be in the report.

Kinds: ` + strings.Join(results.Kinds(), ", ") + `.

Exit codes: 0 written; 1 failed; 2 wrong usage.`,
		Example: `  lab results import runs.json -o experiments/results/late-dense.json
  lab results import old.json -o experiments/results/old.json --kind pressure --commit 2c0aaa9 \
      --command 'lab pressure -m model.gguf --x 0.85'`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return o.run(args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.out, "output", "o", "", "the `file` that is written")
	f.StringVar(&o.kind, "kind", "", "the instrument of a report without a document, a `name` of lab's subcommands")
	f.StringVar(&o.commit, "commit", "", "the `commit` of the build that measured it, in hexadecimal")
	f.StringVar(&o.command, "command", "", "the command `line` that measured it")
	return cmd
}

func (o *resultsImportOptions) run(path string) error {
	if o.out == "" {
		return cli.Usagef("no output: give -o FILE")
	}
	data, err := regular.Read(path, results.MaxBytes)
	if err != nil {
		return err
	}
	d, err := results.Parse(data)
	told := o.kind != "" || o.commit != "" || o.command != ""
	switch {
	case err == nil && told:
		return cli.Usagef("%s is a document, which says itself what --kind, --commit and --command tell", path)
	case errors.Is(err, results.ErrBareReport):
		if o.kind == "" || o.commit == "" || o.command == "" {
			return cli.Usagef("%s is a report of an older build: give --kind, --commit and --command", path)
		}
		kind, err := results.ParseKind(o.kind)
		if err != nil {
			return cli.Usage(err)
		}
		if d, err = results.Import(kind, data, o.command, o.commit); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}
	if _, err := d.Open(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if d, err = d.Publish(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return outfile.Write(o.out, d.Write)
}
