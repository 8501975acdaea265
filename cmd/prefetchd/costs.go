package main

// This file is the part of `prefetchd doctor` that measures the costs of reading the model's file,
// touching it and paging it out.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"tensorcast/gguf"
	"tensorcast/holding"
	"tensorcast/internal/cli"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
	"tensorcast/internal/tabular"
	"tensorcast/internal/visible"
	"tensorcast/prefetch/costs"
)

// fileCosts are the costs of reading a file of the model.
type fileCosts struct {
	Path  string   `json:"path"`
	Model []string `json:"model,omitempty"` // what is to be said of the file as a model, a line for each
	// Experts is what memory for experts buys, of a mixture that the user names.
	Experts     *expertsReport `json:"experts,omitempty"`
	Costs       *costs.Costs   `json:"costs,omitempty"`
	NotMeasured string         `json:"not_measured,omitempty"` // why there are none
}

// measureDevices measures the costs for each device that has files of the model. On each device it
// uses the file with most bytes outside the page cache. The error is ctx's.
func measureDevices(ctx context.Context, files []holding.File) ([]fileCosts, error) {
	files = slices.DeleteFunc(slices.Clone(files), func(f holding.File) bool { return f.Changed })
	slices.SortStableFunc(files, func(a, b holding.File) int {
		return cmp.Compare(b.Size-max(b.Resident, 0), a.Size-max(a.Resident, 0))
	})
	var all []fileCosts
	seen := map[uint64]bool{}
	for _, f := range files {
		if seen[f.At.ID.Dev] {
			continue
		}
		seen[f.At.ID.Dev] = true
		c, err := measure(ctx, f.At)
		if ctx.Err() != nil {
			return nil, err
		}
		measured := fileCosts{Path: f.Path, Costs: c}
		if err != nil {
			measured.NotMeasured = cli.Message(err)
		}
		all = append(all, measured)
	}
	return all, nil
}

// measureFile measures the costs on a file that the user names.
func measureFile(ctx context.Context, path string) (fileCosts, error) {
	id, err := proc.FileOf(path)
	if err != nil {
		return fileCosts{}, err
	}
	c, err := measure(ctx, proc.Place{Path: path, ID: id})
	about, experts := describeModel(path)
	return fileCosts{Path: path, Model: about, Experts: experts, Costs: c}, err
}

// describeModel says what is to be said of a file as a model: why it cannot be read, or which types of
// forks it has; and what memory for its experts buys. Costs can be measured all the same, of any file. A
// file that is not in memory is not left there, so that costs can be measured again.
func describeModel(path string) (lines []string, experts *expertsReport) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, nil // measure says why
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		if n, err := pagecache.Resident(f, 0, info.Size()); err == nil && n == 0 {
			defer func() { _ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }()
		}
	}
	m, err := gguf.OpenPart(path)
	if explained := gguf.ExplainOpen(err); explained != err || gguf.IsParseError(err) {
		return []string{visible.Line(cli.Message(explained))}, nil
	}
	if err != nil {
		return nil, nil
	}
	for _, types := range m.ForeignTypes() {
		lines = append(lines, fmt.Sprintf("%s: it has %s; that does not matter here", path, types))
	}
	return lines, reportExperts(path, roomForExperts)
}

// checkStore returns an error if a file's pages are not read from a disk.
func checkStore(at proc.Place) error {
	f, err := at.Open()
	if err != nil {
		return err
	}
	store, system, err := holding.StoreOf(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	switch store {
	case holding.StoreMemory, holding.StoreHuge:
		return fmt.Errorf("%s lies in memory (%s): nothing is read from a disk", at.Path, system)
	case holding.StoreDAX:
		return fmt.Errorf("%s lies in persistent memory: it is mapped without a page cache", at.Path)
	}
	return nil
}

// measure measures the costs on a file. It is an error if the file's pages are not read from a disk.
func measure(ctx context.Context, at proc.Place) (*costs.Costs, error) {
	if err := checkStore(at); err != nil {
		return nil, err
	}
	c, err := costs.Measure(ctx, at)
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: run this as root (sudo), or as the owner of the file", err)
	}
	return c, err
}

// wayNames are the ways' names in the table.
var wayNames = map[costs.Way]string{
	costs.WayPages:        "single pages",
	costs.WayFolios:       "large folios",
	costs.WayFoliosByPage: "large folios, touched before",
}

// printModel writes what is to be said of the file as a model.
func (c fileCosts) printModel(to io.Writer) error {
	for _, line := range c.Model {
		if _, err := fmt.Fprintln(to, "prefetchd doctor: "+line); err != nil {
			return err
		}
	}
	return nil
}

// printExperts writes what memory for experts buys, if the model has any.
func (c fileCosts) printExperts(to io.Writer) error {
	if c.Experts == nil {
		return nil
	}
	_, err := fmt.Fprintf(to, "experts: %s\n\n", c.Experts.Sentence)
	return err
}

// print writes the figures for people.
func (c fileCosts) print(to io.Writer) error {
	heading := "costs of reading " + c.Path
	if c.Costs == nil {
		return tabular.Document{tabular.Lines{heading + ": not measured", "  " + c.NotMeasured}}.WriteText(to)
	}
	table := &tabular.Table{
		Title: heading + ", in microseconds of processor time per MiB",
		Columns: slices.Concat(tabular.Left(""),
			tabular.Right("read", "touch", "page out", "sum", "faults per MiB", "read at", "in folios")),
	}
	rounds := 0
	for _, w := range c.Costs.Ways {
		rounds = max(rounds, w.Rounds)
		table.Rows = append(table.Rows, []string{
			"  " + wayNames[w.Way], fmt.Sprintf("%.0f", w.Read), fmt.Sprintf("%.0f", w.Touch),
			fmt.Sprintf("%.0f", w.PageOut), fmt.Sprintf("%.0f", w.Sum()),
			fmt.Sprintf("%.1f", w.Faults), humanize.IBytes(uint64(w.Bandwidth)) + "/s",
			fmt.Sprintf("%.0f %%", 100*w.InFolios),
		})
	}
	notes := tabular.Lines{fmt.Sprintf("  medians; rounds: %d; read in each: %s", rounds, size(c.Costs.Ways[0].Bytes))}
	if c.Costs.Folio > 0 {
		notes = append(notes, "  large folios are of "+size(c.Costs.Folio))
	} else {
		notes = append(notes, "  no large folios: "+c.Costs.NoFolios)
	}
	if c.Costs.Left > 0 {
		notes = append(notes, fmt.Sprintf("  %s that were read stay in memory: another process uses them now",
			size(c.Costs.Left)))
	}
	return tabular.Document{table, notes}.WriteText(to)
}
