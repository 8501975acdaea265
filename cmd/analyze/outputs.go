package main

// This file is the list of files that analyze writes. A new analysis is a line here, beside what computes
// it and what draws it.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"strings"

	"tensorcast/internal/chart"
	"tensorcast/internal/outfile"
	"tensorcast/internal/tabular"
	"tensorcast/internal/visible"
	"tensorcast/pattern"
	"tensorcast/report/gather"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// Names of the files written.
const (
	heatmapFile = "heatmap_access_per_token" // and a format
	parquetFile = "pattern.parquet"
	csvFile     = "pattern.csv"
	cycleFile   = "pattern.json"
	headerFile  = "access_pattern.h"

	hiddenParquet = "hidden.parquet"
	hiddenCSV     = "hidden.csv"
)

// analysis is what outputs are made of.
type analysis struct {
	ctx     context.Context // of the command
	options *options
	meta    *tables.Meta
	pattern *pattern.Pattern
	summary *pattern.Summary
	capture *trace.Capture
	hidden  iter.Seq2[[]tables.Column, error] // the hidden table
	warn    func(format string, args ...any)
}

// output is a file.
type output struct {
	name string
	// prepare returns what writes the file; nil if it was not asked for. After an error the file is left out, with a
	// warning, and the other files are written all the same.
	prepare func(a *analysis) (write func(io.Writer) error, err error)
}

var outputs = append([]output{
	{parquetFile, func(a *analysis) (func(io.Writer) error, error) {
		return func(w io.Writer) error {
			return trace.WriteParquet(w, pattern.Columns(a.pattern.Rows()), modelField(a.meta, a.pattern.Model))
		}, nil
	}},
	{csvFile, func(a *analysis) (func(io.Writer) error, error) {
		return func(w io.Writer) error { return trace.WriteCSV(w, pattern.Columns(a.pattern.Rows())) }, nil
	}},
	{cycleFile, func(a *analysis) (func(io.Writer) error, error) {
		cycle, err := a.pattern.Cycle(a.meta)
		if err != nil {
			return nil, err
		}
		return cycle.Write, nil
	}},
	{headerFile, func(a *analysis) (func(io.Writer) error, error) {
		cycle, err := a.pattern.Cycle(a.meta)
		if err != nil {
			return nil, err
		}
		return cycle.WriteHeader, nil
	}},
	{hiddenParquet, func(a *analysis) (func(io.Writer) error, error) {
		if a.options.hidden != formatParquet {
			return nil, nil
		}
		return func(w io.Writer) error {
			return trace.WriteParquetBatches(w, a.hidden, modelField(a.meta, a.pattern.Model))
		}, a.hasHidden()
	}},
	{hiddenCSV, func(a *analysis) (func(io.Writer) error, error) {
		if a.options.hidden != formatCSV {
			return nil, nil
		}
		return func(w io.Writer) error { return trace.WriteCSVBatches(w, a.hidden) }, a.hasHidden()
	}},
}, slices.Concat(accessHeatmaps(), exports())...)

// accessHeatmaps are the heatmap of --heatmap in each format, of which one is drawn at most.
func accessHeatmaps() (all []output) {
	for _, format := range chart.Formats {
		all = append(all, output{heatmapFile + "." + format, func(a *analysis) (func(io.Writer) error, error) {
			if !a.options.heatmap || a.options.format != format {
				return nil, nil
			}
			fileOrder := a.options.order == orderFile
			f, err := gather.AccessFigure(a.pattern, fileOrder)
			if err != nil {
				return nil, err
			}
			f.Text = gather.AccessText(a.summary, f.Matrix, fileOrder, gather.Caption(a.meta))
			return func(w io.Writer) error { return f.Write(w, format) }, nil
		}})
	}
	return all
}

// exports are the capture's tables as Parquet. The hidden table's is above if --hidden asks for it: with
// --export the same file.
func exports() (all []output) {
	for _, table := range trace.TableNames() {
		all = append(all, output{table + ".parquet", func(a *analysis) (func(io.Writer) error, error) {
			switch {
			case !a.options.export || table+".parquet" == hiddenParquet && a.options.hidden == formatParquet:
				return nil, nil
			case !a.capture.HasTable(table):
				return nil, errAbsent
			}
			return func(w io.Writer) error { return a.capture.WriteTable(a.ctx, table, w) }, nil
		}})
	}
	return all
}

// errAbsent says that a capture lacks what an output is of, as many do: nothing is said of that, and an
// earlier capture's output goes.
var errAbsent = errors.New("not in this capture")

// hasHidden says whether there is a hidden table to export.
func (a *analysis) hasHidden() error {
	for _, err := range a.hidden {
		if errors.Is(err, trace.ErrNoHidden) {
			return fmt.Errorf("%w: trace with --hidden", err)
		}
		break // other errors are told when it is written
	}
	return nil
}

// writeOutputs writes the files, and more, and returns their paths. One that cannot be made does not stay
// from an earlier capture either.
func writeOutputs(ctx context.Context, more []file, a *analysis) ([]string, error) {
	var files []file
	var why []string // outputs are left out, and which
	left := map[string][]string{}
	for _, o := range outputs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		write, err := o.prepare(a)
		if err != nil {
			files = append(files, file{name: o.name})
			if errors.Is(err, errAbsent) {
				continue
			}
			text := err.Error()
			if left[text] == nil {
				why = append(why, text)
			}
			left[text] = append(left[text], o.name)
		} else if write != nil {
			files = append(files, file{o.name, write})
		}
	}
	for _, text := range why {
		a.warn("left out: %s: %s", strings.Join(left[text], ", "), text)
	}
	return writeAll(ctx, a.options.output, append(files, more...))
}

// file is a file to be written; an earlier one is removed. Without write it is only removed.
type file struct {
	name  string
	write func(io.Writer) error
}

// tableFiles are a table as CSV and as Parquet.
func tableFiles(name string, columns []tables.Column, fields ...tables.Field) []file {
	return []file{
		{name + ".csv", func(w io.Writer) error { return trace.WriteCSV(w, columns) }},
		{name + ".parquet", func(w io.Writer) error { return trace.WriteParquet(w, columns, fields...) }},
	}
}

// writtenLines are a line for each file that was written.
func writtenLines(files []string) (lines tabular.Lines) {
	for _, f := range files {
		lines = append(lines, "wrote "+visible.Line(f))
	}
	return lines
}

// drawing is a figure of any kind.
type drawing interface {
	Write(w io.Writer, format string) error
}

// drawingOf is a figure of lines as a drawing: nil if there is no figure.
func drawingOf(f *chart.Figure) drawing {
	if f == nil {
		return nil
	}
	return f
}

// figureFiles are a figure in one of its formats, and the others' names: one of an earlier run does not
// stay. Without a figure nothing is drawn.
func figureFiles(name string, d drawing, format string) (files []file) {
	for _, other := range chart.Formats {
		one := file{name: name + "." + other}
		if other == format && d != nil {
			one.write = func(w io.Writer) error { return d.Write(w, format) }
		}
		files = append(files, one)
	}
	return files
}

// writeAll writes files in a directory, which is made if need be, and returns their paths. All are made
// before the first appears, and those of an earlier capture are removed before that, so that at no moment
// files of two captures are mixed.
func writeAll(ctx context.Context, path string, files []file) (written []string, err error) {
	dir, err := outfile.OpenDir(path, 0o755)
	if err != nil {
		return nil, fmt.Errorf("output directory: %w", err)
	}
	var made []*outfile.File
	defer func() {
		if err != nil {
			dir.Forget()
		} else {
			dir.Close()
		}
	}()
	defer func() {
		for _, f := range made {
			f.Discard() // unless it has been committed
		}
	}()
	for _, o := range files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if o.write == nil {
			continue
		}
		f, err := dir.Begin(o.name, 0o666)
		if err != nil {
			return nil, err
		}
		made = append(made, f)
		if err := o.write(f); err != nil {
			return nil, err
		}
		written = append(written, dir.Path(o.name))
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, o := range files {
		if err := dir.Remove(o.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("replace the earlier output: %w", err)
		}
	}
	for _, f := range made {
		if err := f.Commit(); err != nil {
			return nil, err
		}
	}
	return written, nil
}

// modelField is the metadata that says of which model a table is: the model's fingerprint, "" if it is not known.
func modelField(meta *tables.Meta, model int32) tables.Field {
	f := tables.Field{Key: "tensorcast.model"}
	if int(model) < len(meta.Models) {
		f.Value = meta.Models[model].Fingerprint
	}
	return f
}
