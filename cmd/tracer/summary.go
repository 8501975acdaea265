package main

// This file says at the end what was captured.

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize"

	"tensorcast/event"
	"tensorcast/internal/tabular"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// topRereads is how many tensors the table of what was read from disk again has.
const topRereads = 10

// maxTold is how many processes people read of: a target may start any number.
const maxTold = 8

// summarise describes captures: as JSON, one object a line, or for people to read.
func summarise(w io.Writer, o options, metas []*tables.Meta) error {
	if o.json {
		enc := json.NewEncoder(w)
		for _, m := range metas {
			if err := enc.Encode(m); err != nil {
				return err
			}
		}
		return nil
	}
	told := metas[:min(len(metas), maxTold)]
	for _, m := range told {
		parts := []tabular.Document{{&tabular.Table{Title: "tracer: " + heading(o, m), Rows: rows(m)}}, {layers(m)}}
		for _, d := range parts { // each by itself: between parts of one document is an empty line
			if err := d.WriteText(w); err != nil {
				return err
			}
		}
		if m.Rereads != nil {
			if err := m.Rereads.WriteText(w, topRereads); err != nil {
				return err
			}
		}
	}
	if more := len(metas) - len(told); more > 0 {
		if _, err := fmt.Fprintf(w, "tracer: %s (and %s more processes: --json tells of each)\n", o.out, humanize.Comma(int64(more))); err != nil {
			return err
		}
	}
	return nil
}

func heading(o options, m *tables.Meta) string {
	where := m.Dir
	switch {
	case o.out == toStdout:
		where = "standard output"
	case o.csv:
		where = o.out
	case where == "":
		where = "nothing was written" // no model was read
	}
	if o.follow {
		where += fmt.Sprintf(", process %d", m.PID)
	}
	return fmt.Sprintf("%s (detail %s, %.1f s)", where, m.Detail, m.Seconds)
}

// indent stands before each line below the heading.
const indent = "  "

// rows are name, number, remark.
func rows(m *tables.Meta) [][]string {
	c := m.Counters
	count := func(n uint64) string { return humanize.Comma(int64(n)) }
	tokens := fmt.Sprintf("%s generated tokens", humanize.Comma(int64(m.Tokens)))
	if m.Contexts > 1 {
		tokens += fmt.Sprintf(", %d contexts", m.Contexts)
	}
	table := [][]string{
		{"decodes", humanize.Comma(int64(m.Steps)), tokens},
		{"rows", humanize.Comma(m.Rows), segments(m.Segments)},
		{"received", count(c.Received), "ops"},
		{"lost", count(c.Lost()), losses(c)},
		{"filtered", count(c.Filtered()), fmt.Sprintf("%s of other threads, %s ops without a weight", count(c.OtherThreads), count(c.NoWeight))},
	}
	if h := m.Hidden; h != nil {
		table = append(table, []string{"hidden", humanize.Comma(h.Rows), fmt.Sprintf("inputs of routers and attention, of %d values", h.Values)})
	}
	if n := c.Incomplete(); n > 0 {
		table = append(table, []string{"incomplete", count(n), "could not be read whole: see counters in " + trace.MetaFile})
	}
	for _, row := range table {
		row[0] = indent + row[0]
	}
	return table
}

// layers says which layers were computed where it was not seen.
func layers(m *tables.Meta) tabular.Lines {
	var lines tabular.Lines
	for _, line := range m.LayersText() {
		lines = append(lines, indent+line)
	}
	return lines
}

func segments(s tables.Segments) string {
	switch {
	case s.Last == 0:
		return ""
	case s.Deleted == 0:
		return fmt.Sprintf("in %d table files", s.Last+1)
	}
	return fmt.Sprintf("in %d table files, of which the oldest %d were removed (%s rows)", s.Last+1, s.Deleted, humanize.Comma(s.DeletedRows))
}

// losses says what was lost, for each kind that was.
func losses(c event.Counters) string {
	var kinds []string
	for _, k := range []struct {
		n    uint64
		name string
	}{
		{c.OpsLost, "ops"}, {c.OthersLost, "other events"}, {c.Misses, "hits that the kernel skipped"},
		{c.PagesLost + c.PageInsDropped, "page-ins"}, {c.InputsLost, "routers' inputs"},
	} {
		if k.n > 0 {
			kinds = append(kinds, humanize.Comma(int64(k.n))+" "+k.name)
		}
	}
	return strings.Join(kinds, ", ")
}
