package main

// This file is the list of files that analyze writes. A new analysis is a line here, beside what computes it and what draws it.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"tensorcast/heatmap"
	"tensorcast/internal/outfile"
	"tensorcast/pattern"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// Names of the files written.
const (
	heatmapFile = "heatmap_access_per_token.png"
	parquetFile = "pattern.parquet"
	csvFile     = "pattern.csv"
	cycleFile   = "pattern.json"
)

// analysis is what outputs are made of.
type analysis struct {
	options *options
	meta    *tables.Meta
	pattern *pattern.Pattern
	summary *pattern.Summary
	warn    func(format string, args ...any)
}

// output is a file.
type output struct {
	name string
	// of makes what writes the file; nil if it was not asked for. After an error the file is left out, with a warning: the others can be told all the same.
	of func(a *analysis) (write func(io.Writer) error, err error)
}

var outputs = []output{
	{parquetFile, func(a *analysis) (func(io.Writer) error, error) {
		return func(w io.Writer) error {
			return trace.WriteParquet(w, pattern.Columns(a.pattern.Rows()), tables.Field{Key: "tensorcast.model", Value: fingerprint(a.meta, a.pattern.Model)})
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
	{heatmapFile, func(a *analysis) (func(io.Writer) error, error) {
		if !a.options.heatmap {
			return nil, nil
		}
		m, err := matrix(a.pattern, a.options.order)
		if err != nil {
			return nil, err
		}
		return func(w io.Writer) error { return heatmap.WritePNG(w, m, figureText(a.summary, a.options.order)) }, nil
	}},
}

// writeOutputs writes the files and returns their paths. One that cannot be made does not stay from an earlier capture.
func writeOutputs(ctx context.Context, a *analysis) ([]string, error) {
	var written []string
	for _, o := range outputs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		path := filepath.Join(a.options.output, o.name)
		write, err := o.of(a)
		if err != nil {
			a.warn("%s is left out: %v", o.name, err)
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("remove what an earlier capture left: %w", err)
			}
		}
		if write == nil {
			continue
		}
		if err := outfile.Write(path, write); err != nil {
			return nil, err
		}
		written = append(written, path)
	}
	return written, nil
}

func fingerprint(meta *tables.Meta, model int32) string {
	if int(model) >= len(meta.Models) {
		return ""
	}
	return meta.Models[model].Fingerprint
}
