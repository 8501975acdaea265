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
A document is named by its file, or by a NAME alone. A NAME stands for the file NAME.json in
experiments/results of the checkout in which the command is run.

Exit codes: 0 done; 1 failed; 2 wrong usage.`

func resultsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "results COMMAND",
		Short: "List, show and compare the documents of --save, and put their tables into the texts",
		Long: `Results lists, shows and compares documents. A document is what an instrument writes with --save, one
JSON file for a series of runs. It says on which machine, with which commit and by which command the
series was measured. It has the raw figures of every run. Documents that the project's texts show are
committed in experiments/results.

In a text (*.md), a table of a document stands between two such lines. "lab results docs" makes the table
again from its document:

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
		Long: `List shows each document of a directory in one line. The line has its name and the instrument. It says
when, with which commit and on which machine it was measured. The directory is experiments/results of
the checkout, unless another one is given. A file (*.json) that is not a document is reported as an error.

Exit codes: 0 done; 1 failed, or a file is not a document; 2 wrong usage.`,
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
series of lab pressure has the parts conditions, settings, overview and remarks. A series of lab harm has
conditions, scenes and remarks. The reports of other instruments are printed as a whole.
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
		Short: "Put tables and figures into the texts of a checkout, or check them",
		Long: `Docs puts tables and figures into the texts (*.md) of a checkout. In a text, it replaces what stands
between these two lines by the table of the document NAME in experiments/results:

    <!-- results: NAME [PART...] -->
    <!-- /results -->

PARTs are those of "lab results table". With figure=FILE.svg instead of PARTs, docs draws the document's
figure into that file, which is beside the text or in a directory below. Variants may follow, as after
--curve of "lab results figure". Three other marks begin tables that are not of one document:

    <!-- results: versus=BASE,OTHER NAME... -->    how fast the variant OTHER is against BASE, in several series
    <!-- results: table=NAME -->                   the figures in experiments/results/copied/NAME.csv
    <!-- results: machines= -->                     which series were measured on which machine

Lines that are indented, or in a fence of code, are examples and stay as they are. Docs prints the name of
each file that it changed.

DIR is the checkout, which is by default the one in which the command is run. The same data give the same
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
	cmd.Flags().BoolVar(&check, "check", false, "change nothing, and fail if a table or figure differs from its data")
	return cmd
}

func resultsCompareCommand() *cobra.Command {
	var markdown bool
	cmd := &cobra.Command{
		Use:   "compare OLD NEW",
		Short: "Compare two documents: is the newer series slower than the older one?",
		Long: `Compare compares two series of lab pressure or lab harm, for each setting and variant that both have. For
each series it shows the median, the least and the greatest of tokens per second. It shows the ratio of
the medians, and the least and the greatest ratio of a new run to an old run. The verdict is "slower" or
"faster" only if all new runs are beyond all old runs, and if both series have at least two runs there.

What else differs between the two is listed first: machine, disk, helper and tokens. A difference in speed
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
		Long: `Parquet writes one table with a row for each run of each document in a directory. The directory is
experiments/results of the checkout, unless another one is given. Some columns have what the document says
of the series: document, kind, started, commit, command, cpu, cpus, memory_bytes, kernel and
cgroup_version. The others have the setting of the run, and what was measured. Their names tell the units.
What an instrument does not know of its runs is null, or NaN where it is a fraction. Only lab pressure and
lab harm have runs at settings. Documents of other instruments are left out, and their names are printed.

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
	cmd.Flags().StringVarP(&out, "output", "o", "", "write to this `file`")
	return cmd
}

func resultsFigureCommand() *cobra.Command {
	var out string
	var curves []string
	cmd := &cobra.Command{
		Use:   "figure FILE|NAME -o FILE",
		Short: "Draw a document: tokens per second against the share that fits, or what observers cost",
		Long: `Figure draws a series of lab pressure or of lab overhead.

Of lab pressure it draws tokens per second against the share of the model that fits in memory. It has a
curve of medians for each variant, with upright bars for the range of its runs. It also has the bound,
which no strategy can exceed. Of lab overhead it draws the share of the tokens per second that each
observer takes, with its interval.

The format follows from the file's name: ` + strings.Join(chart.Formats, ", ") + `. The same document gives the same bytes.
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
	cmd.Flags().StringVarP(&out, "output", "o", "", "write the figure to this `file`")
	cmd.Flags().StringArrayVar(&curves, "curve", nil,
		"draw only this variant or observer, as `NAME[=LABEL]`. May be repeated (default: all)")
	return cmd
}

type resultsImportOptions struct {
	out, kind, commit, command string
}

func resultsImportCommand() *cobra.Command {
	var o resultsImportOptions
	cmd := &cobra.Command{
		Use:   "import REPORT -o FILE [--kind KIND --commit COMMIT --command LINE]",
		Short: "Make a document for others from a saved series, without the paths of this machine",
		Long: `Import makes a document that can be committed. It replaces each path of this machine by its last part, in
all texts but those that a model generated.

REPORT is a document, or a report that --save of an older build wrote, which has no schema. For such a
report, --kind says which instrument measured it, --commit with which build, and --command by which
command line. The document says that it has these from the flags. The report itself must say when, and on
which machine, the series was measured.

Kinds: ` + strings.Join(results.Kinds(), ", ") + `.

Exit codes: 0 written; 1 failed; 2 wrong usage.`,
		Example: `  lab results import runs.json -o experiments/results/late-dense.json
  lab results import old.json -o experiments/results/old.json --kind pressure --commit 2c0aaa9 \
      --command 'lab pressure -m model.gguf --x 0.85'`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return o.run(args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.out, "output", "o", "", "write to this `file`")
	f.StringVar(&o.kind, "kind", "", "for a report of an older build: the `name` of the instrument that measured it")
	f.StringVar(&o.commit, "commit", "", "for a report of an older build: the `commit` of the build that measured it, in hexadecimal")
	f.StringVar(&o.command, "command", "", "for a report of an older build: the command `line` that measured it")
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
