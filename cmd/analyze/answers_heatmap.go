package main

// This file has the analysis heatmap: what each step does with each tensor.

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"tensorcast/internal/cli"
	"tensorcast/internal/tabular"
	"tensorcast/report/gather"
)

const gridFile = "heatmap"

// Values of --order.
const (
	orderAccess = "access"
	orderFile   = "file"
)

// Values of --fold.
const (
	foldMean     = "mean"
	foldGreatest = "greatest"
)

func heatmapFlags(cmd *cobra.Command, s *study) {
	const byItself = "auto"
	s.grid = byItself
	cli.EnumVar(cmd, &s.grid, "value", "", append([]string{byItself}, gather.GridNames()...),
		"what a cell shows: bytes from disk (disk), those of them that were read again (rereads), waiting for the disk "+
			"(stall), time per byte (pace), time, or bytes read (reads). auto shows what differs between tokens")
	cli.EnumVar(cmd, &s.fold, "fold", "", []string{foldMean, foldGreatest},
		"with more than 1200 steps a column stands for several: whether it shows their mean, or the greatest")
	cli.EnumVar(cmd, &s.order, "order", "", []string{orderAccess, orderFile},
		"order of rows: access is as they are first read, file is as in the model's file")
}

// heatmapAnswer makes the table and the figure of one grid.
func heatmapAnswer(_ context.Context, s *study) (*answer, error) {
	name := s.grid
	if !slices.Contains(gather.GridNames(), name) {
		name = s.sums.DefaultGrid()
	}
	grids := s.sums.Grids()
	at := slices.IndexFunc(grids, func(g gather.Grid) bool { return g.Name == name })
	if at < 0 {
		return nil, fmt.Errorf("--value %s: the capture has none of it: "+
			"tracer --detail op+io records what came from disk and waiting, --detail op times", name)
	}
	g := &grids[at]
	fileOrder := s.order == orderFile
	a := &answer{files: tableFiles(gridFile, s.sums.GridColumns(g, fileOrder), s.modelField())}
	var picture drawing
	f, most, err := s.sums.GridFigure(g, fileOrder, s.fold == foldGreatest)
	if err != nil {
		s.in.warn("left out: the figure: %v", err)
	} else {
		f.Text.Title, f.Text.Caption = s.title(g.Subject()), s.caption()
		picture = f
	}
	a.files = append(a.files, figureFiles(gridFile, picture, s.format)...)
	text := fmt.Sprintf("%s of each tensor in each step", g.Subject())
	if g.Empty {
		text = fmt.Sprintf("nothing: no tensor has %s", g.Subject())
	}
	a.text = tabular.Document{tabular.Lines{text}}
	a.data = map[string]any{"value": name, "unit": g.Unit, "most": most, "empty": g.Empty}
	return a, nil
}
