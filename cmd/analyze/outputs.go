package main

// This file has the list of files that analyze writes without a subcommand, and writes the files of all
// subcommands.

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
	heatmapFile = "heatmap_access_per_token" // without its format
	parquetFile = "pattern.parquet"
	csvFile     = "pattern.csv"
	cycleFile   = "pattern.json"
	headerFile  = "access_pattern.h"

	hiddenParquet = "hidden.parquet"
	hiddenCSV     = "hidden.csv"
)

// analysis is what the outputs are made from.
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

// outputSpec is a file that may be written.
type outputSpec struct {
	name string
	// prepare returns what writes the file; nil if it was not asked for. After an error the file is left out, with a
	// warning, and the other files are written all the same.
	prepare func(a *analysis) (write func(io.Writer) error, err error)
}

var outputs = append([]outputSpec{
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
		return func(w io.Writer) error { return cycle.WriteHeader(w, a.pattern.Basis()) }, nil
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

// accessHeatmaps are the heatmap of --heatmap in each format. One of them is drawn at most.
func accessHeatmaps() (all []outputSpec) {
	for _, format := range chart.Formats {
		all = append(all, outputSpec{heatmapFile + "." + format, func(a *analysis) (func(io.Writer) error, error) {
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

// exports are the capture's tables as Parquet. The hidden table is left out if --hidden asks for the same
// file.
func exports() (all []outputSpec) {
	for _, table := range trace.TableNames() {
		all = append(all, outputSpec{table + ".parquet", func(a *analysis) (func(io.Writer) error, error) {
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

// errAbsent says that a capture has no table for an output, as many have none. This is no warning, but an
// output of an earlier capture is removed.
var errAbsent = errors.New("not in this capture")

// hasHidden returns an error if there is no hidden table to export.
func (a *analysis) hasHidden() error {
	for _, err := range a.hidden {
		if errors.Is(err, trace.ErrNoHidden) {
			return fmt.Errorf("%w: trace with --hidden", err)
		}
		break // other errors are reported when the table is written
	}
	return nil
}

// writeOutputs writes the files that were asked for, and more, and returns their paths. A file that
// cannot be made is removed if it is there from an earlier capture.
func writeOutputs(ctx context.Context, more []file, a *analysis) ([]string, error) {
	var files []file
	var why []string // reasons why outputs are left out
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

// file is a file to be written. An earlier one is removed. If write is nil, it is only removed.
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

// drawingOf turns a figure into a drawing, which is nil if there is no figure.
func drawingOf(f *chart.Figure) drawing {
	if f == nil {
		return nil
	}
	return f
}

// figureFiles are a figure in one format. The files of the other formats are removed, so that none stays
// from an earlier run. If d is nil, all are removed.
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

// writeAll writes files to a directory, which is made if need be, and returns their paths. All files are
// made before the first appears, and those of an earlier capture are removed before that. So files of two
// captures are never mixed.
func writeAll(ctx context.Context, path string, files []file) (written []string, err error) {
	dir, err := outfile.OpenDir(path, 0o755)
	if err != nil {
		return nil, fmt.Errorf("output directory: %w", err)
	}
	var made []*outfile.File
	defer func() {
		if err != nil {
			dir.CloseAndRemoveEmpty()
		} else {
			dir.Close()
		}
	}()
	defer func() {
		for _, f := range made {
			f.Discard() // does nothing once it has been committed
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

// modelField is the metadata that says of which model a table is. It is the model's fingerprint, or "" if
// that is not known.
func modelField(meta *tables.Meta, model int32) tables.Field {
	f := tables.Field{Key: "tensorcast.model"}
	if int(model) < len(meta.Models) {
		f.Value = meta.Models[model].Fingerprint
	}
	return f
}
