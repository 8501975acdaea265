// Command ggufmap prints which bytes of GGUF model files hold which tensor and which expert, as tables.
package main

// This file has the command line, opens the models and writes the table.

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"sync"

	"github.com/spf13/cobra"

	"tensorcast/gguf"
	"tensorcast/gguf/inspect"
	"tensorcast/internal/cli"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

const long = `ggufmap prints the structure of GGUF model files. It prints one row for each tensor, in the order of the file, with the
columns

  tensor_name   the name in the file. Control characters, and bytes that are not UTF-8, are written like \x1b
  offset_bytes  where the tensor begins, from the file's first byte
  size_bytes    its size without padding. If its type is not known, this is the size up to the next tensor
  type          ggml's element type (F16, Q8_0, Q4_K, ...), a fork's (IQ4_KS, I2_S, ...), or type(N)
  layer         N of blk.N., or -1 if the tensor is in no layer
  component     the name behind blk.N., or else the whole name

For a split model, give any of its parts. The others are found beside it. If there is more than one file, there is a
seventh column, file. Only the metadata is read, so a model of any size takes milliseconds. Other tables:

  --wide      more columns: file, shape, expert_count, expert_stride_bytes, kind and resident_bytes. The last says how
              many bytes are in the page cache. It is empty for a file that you neither own nor may write to, because
              Linux does not tell you then
  --experts   a row for each expert's part of a tensor: where it lies, the expert, and the projection (gate, up, down or
              gate_up)
  --metadata  a row for each metadata entry. --elements sets how many elements of an array are shown
  --summary   sums of bytes by layer, by component, by type and by when they are read, and the largest tensors. This is
              text unless --format is given
  --check     problems of the files, one per line. The exit code is 1 if there are any

A tensor may have a type that ggml's main line does not read. It is mapped, too. --summary and --check tell of it, and
--strict refuses the file. If a file is cut off behind its metadata, --metadata still shows the metadata.

In CSV, text that a spreadsheet would run as a formula gets a leading apostrophe.

Exit codes: 0 the table is written; 1 a file cannot be read, is not a GGUF, is truncated or malformed, a part is
missing, the output cannot be written, or --check has findings; 2 wrong usage.`

const example = `  ggufmap model.gguf > structure.csv
  ggufmap --wide --format parquet -o structure.parquet model-00001-of-00004.gguf
  ggufmap --experts model.gguf | grep ',ffn_down_exps.weight,7,'
  ggufmap --summary model.gguf
  ggufmap --metadata --elements -1 --format json model.gguf | jq '.[] | select(.key == "tokenizer.ggml.tokens")'
  ggufmap --check *.gguf`

// findingsError says that --check has findings.
type findingsError struct{ findings, files int }

func (e findingsError) Error() string {
	return fmt.Sprintf("%d findings in %d files", e.findings, e.files)
}

func main() {
	// Tables are made while they are written. The limit keeps their garbage from growing to the
	// size of the live memory.
	debug.SetMemoryLimit(memoryLimit)
	cli.Main(newCommand())
}

// memoryLimit is the size of the heap in bytes above which garbage is collected more often. The
// largest accepted structure takes 32 MiB.
const memoryLimit = 96 << 20

// options holds the values of the flags.
type options struct {
	output, format                          string
	wide, experts, metadata, summary, check bool
	part, strict                            bool
	elements                                int64
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:                   "ggufmap [flags] MODEL.gguf...",
		DisableFlagsInUseLine: true,
		Short:                 "Print which bytes of GGUF model files hold which tensor",
		Long:                  long,
		Example:               example,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("a model file is needed")
			}
			return o.validate(cmd.OutOrStdout())
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&o.wide, "wide", false, "print more columns: file, shape, experts, kind, and bytes in the page cache")
	flags.BoolVar(&o.experts, "experts", false, "print a row for each expert's part of a tensor")
	flags.BoolVar(&o.metadata, "metadata", false, "print the metadata instead of the tensors")
	flags.Int64Var(&o.elements, "elements", 8, "with --metadata: show the first `N` elements of each array, or with -1 all")
	flags.BoolVar(&o.summary, "summary", false, "print sums of bytes instead of the tensors")
	flags.BoolVar(&o.check, "check", false, "print problems of the files instead of the tensors")
	flags.BoolVar(&o.part, "part", false, "read only the given parts of a split model (default: all its parts)")
	flags.BoolVar(&o.strict, "strict", false, "refuse files with types that ggml's main line does not read")
	formats := []string{"csv", "json", "arrow", "parquet"}
	cli.EnumVar(cmd, &o.format, "format", "", formats, "format of the table; arrow is an Arrow IPC file (default csv; text with --summary and --check)")
	flags.StringVarP(&o.output, "output", "o", "-", "write to `FILE`, or with - to standard output")
	return cmd
}

// validate returns an error about flags that exclude each other.
func (o *options) validate(stdout io.Writer) error {
	modes := 0
	for _, set := range []bool{o.wide, o.experts, o.metadata, o.summary, o.check} {
		if set {
			modes++
		}
	}
	if modes > 1 {
		return errors.New("--wide, --experts, --metadata, --summary and --check exclude each other")
	}
	if (o.format == "arrow" || o.format == "parquet") && o.output == "-" && cli.IsTerminal(stdout) {
		return fmt.Errorf("%s is not for a terminal: add -o FILE", o.format)
	}
	return nil
}

// opened is what was found at the paths.
type opened struct {
	models   []*gguf.Model
	findings []inspect.Finding
	cut      error // the first error of a file of which only metadata could be read
}

// run writes the requested table. All files have been read and checked before anything is written.
// A table on standard output that is longer than the buffer remains incomplete if a file changes
// meanwhile.
func (o *options) run(ctx context.Context, paths []string, stdout, stderr io.Writer) error {
	found, err := o.open(ctx, paths)
	if err != nil {
		return err
	}
	models, findings := found.models, found.findings
	write := func(w io.Writer) error {
		out := bufio.NewWriterSize(interruptible{ctx, w}, outputBuffer)
		if err := o.write(ctx, out, stderr, models, findings); err != nil {
			return err
		}
		return out.Flush()
	}
	if o.output == "-" {
		err = write(stdout)
	} else {
		err = writeOutput(o.output, paths, models, write)
	}
	if err != nil {
		return err
	}
	if len(findings) > 0 {
		files := map[string]bool{}
		for _, f := range findings {
			files[f.File] = true
		}
		return findingsError{len(findings), len(files)}
	}
	return found.cut
}

// outputBuffer is the size of the output buffer in bytes. Shorter tables are written at once.
const outputBuffer = 1 << 20

// interruptible is a writer that fails once the context has ended.
type interruptible struct {
	ctx context.Context
	w   io.Writer
}

func (i interruptible) Write(b []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.w.Write(b)
}

// open opens the models that the paths name, each once. With --check, a file that cannot be opened
// is a finding, not an error. With --metadata, of a file that is cut off what there is of them is
// shown.
func (o *options) open(ctx context.Context, paths []string) (found opened, err error) {
	var seen []os.FileInfo
	for _, path := range paths {
		if err := ctx.Err(); err != nil {
			return found, err
		}
		info, err := os.Stat(path)
		if err == nil && isOneOf(info, seen) {
			continue // part of a model that is already open
		}
		m, err := o.openModel(path)
		if errors.Is(err, gguf.ErrTruncated) && o.metadata {
			if head, errHead := gguf.OpenHead(path); errHead == nil {
				found.cut = cmp.Or(found.cut, fmt.Errorf("only metadata could be read: %w", err))
				m, err = head, nil
			}
		}
		if err != nil {
			if !o.check {
				return found, err
			}
			var e *fs.PathError
			if errors.As(err, &e) && e.Path == path { // the finding names the file already
				err = e.Err
			}
			found.findings = append(found.findings, inspect.Finding{File: path, Text: err.Error()})
			continue
		}
		for _, f := range m.Files {
			if info, err := os.Stat(f.Path); err == nil {
				seen = append(seen, info)
			}
		}
		found.models = append(found.models, m)
		if o.check {
			found.findings = append(found.findings, inspect.Check(m)...)
		}
	}
	return found, nil
}

// isOneOf reports whether a file has been seen.
func isOneOf(info os.FileInfo, seen []os.FileInfo) bool {
	for _, s := range seen {
		if os.SameFile(info, s) {
			return true
		}
	}
	return false
}

// openModel opens the model of a file, or with --part only the file.
func (o *options) openModel(path string) (m *gguf.Model, err error) {
	switch {
	case o.part:
		m, err = gguf.OpenPart(path)
	default:
		m, err = gguf.OpenModel(path)
		if errors.Is(err, gguf.ErrMissingPart) || errors.Is(err, gguf.ErrPartName) {
			err = fmt.Errorf("%w; --part takes this file alone", err)
		}
	}
	if err == nil && o.strict {
		err = m.CheckTypes()
	}
	return m, gguf.ExplainOpen(err)
}

// write writes the requested table in the requested format.
func (o *options) write(
	ctx context.Context, w, stderr io.Writer, models []*gguf.Model, findings []inspect.Finding,
) error {
	var t *inspect.Table
	var err error
	switch {
	case o.check && o.format == "":
		for _, f := range findings {
			if _, err := fmt.Fprintln(w, f); err != nil {
				return fmt.Errorf("write the findings: %w", err)
			}
		}
		return nil
	case o.summary && o.format == "":
		for i, s := range inspect.Summarise(models) {
			if i > 0 {
				fmt.Fprintln(w)
			}
			if err := s.WriteText(w); err != nil {
				return err
			}
		}
		return nil
	case o.check:
		t = inspect.FindingsTable(findings)
	case o.summary:
		t = inspect.SummaryTable(inspect.Summarise(models))
	case o.metadata:
		t = inspect.Metadata(models, o.elements)
	case o.experts:
		t, err = inspect.Experts(models)
	case o.wide:
		var warn sync.Once
		t = inspect.Wide(models, func(err error) {
			warn.Do(func() { fmt.Fprintf(stderr, "ggufmap: resident_bytes is empty: %s\n", cli.Message(err)) })
		})
	default:
		t = inspect.Structure(models)
	}
	if err != nil {
		return err
	}
	switch o.format {
	case "json":
		return t.WriteJSON(w)
	case "arrow", "parquet":
		return o.writeColumns(ctx, w, t, models)
	}
	return t.WriteCSV(w)
}

// writeColumns writes the table in a format that is laid out by column.
func (o *options) writeColumns(ctx context.Context, w io.Writer, t *inspect.Table, models []*gguf.Model) error {
	var fields []tables.Field
	if len(models) == 1 {
		fingerprint, err := models[0].Files[0].Fingerprint()
		if err != nil {
			return err
		}
		fields = append(fields, tables.Field{Key: "tensorcast.model", Value: fingerprint})
	}
	batches := func(yield func([]tables.Column, error) bool) {
		for batch, err := range t.Batches() {
			columns := make([]tables.Column, len(batch))
			for i, c := range batch {
				columns[i] = tables.Column(c)
			}
			// Parquet is written only once much has been gathered, so the writer alone would notice
			// the context's end late.
			if !yield(columns, cmp.Or(ctx.Err(), err)) {
				return
			}
		}
	}
	write := trace.WriteParquetBatches
	if o.format == "arrow" {
		write = trace.WriteArrowBatches
	}
	err := write(w, batches, fields...)
	if errors.Is(err, inspect.ErrLongValue) {
		err = fmt.Errorf("%w: use --format csv or json", err)
	}
	return err
}
