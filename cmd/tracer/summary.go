package main

// This file prints a summary of the capture at its end.

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

// topRereads is how many tensors the table of repeated reads from disk has.
const topRereads = 10

// maxSummaries is how many processes the text describes. A target may start any number.
const maxSummaries = 8

// summarise describes captures: as JSON, with one object per line, or as text for people.
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
	described := metas[:min(len(metas), maxSummaries)]
	for _, m := range described {
		// These are separate documents, because there is an empty line between the parts of one
		// document.
		parts := []tabular.Document{
			{&tabular.Table{Title: "tracer: " + heading(o, m), Rows: summaryRows(m)}},
			{layerLines(m)},
		}
		for _, d := range parts {
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
	if more := len(metas) - len(described); more > 0 {
		_, err := fmt.Fprintf(w, "tracer: %s (and %s more processes: --json tells of each)\n",
			o.out, humanize.Comma(int64(more)))
		if err != nil {
			return err
		}
	}
	return nil
}

// heading says where the capture is, and how it was made.
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

// indent is in front of each line below the heading.
const indent = "  "

// summaryRows are rows of a name, a number and a remark.
func summaryRows(m *tables.Meta) [][]string {
	c := m.Counters
	count := func(n uint64) string { return humanize.Comma(int64(n)) }
	tokens := fmt.Sprintf("%s generated tokens", humanize.Comma(int64(m.Tokens)))
	if m.Tokens == 0 && m.Steps > 0 { // prompts only, embeddings, a perplexity
		tokens = "none generated a token"
	}
	if m.Contexts > 1 {
		tokens += fmt.Sprintf(", %d contexts", m.Contexts)
	}
	if m.Tokens == 0 && m.Steps > 0 {
		tokens += "; analyze has figures per decode"
	}
	table := [][]string{
		{"decodes", humanize.Comma(int64(m.Steps)), tokens},
		{"rows", humanize.Comma(m.Rows), describeSegments(m.Segments)},
		{"received", count(c.Received), "ops"},
		{"lost", count(c.Lost()), describeLosses(c)},
		{"filtered", count(c.Filtered()), fmt.Sprintf(
			"%s of other threads, %s ops without a weight", count(c.OtherThreads), count(c.NoWeight))},
	}
	if h := m.Hidden; h != nil {
		remark := fmt.Sprintf("inputs of routers and attention, of %d values", h.Values)
		table = append(table, []string{"hidden", humanize.Comma(h.Rows), remark})
	}
	if n := c.Incomplete(); n > 0 {
		remark := "could not be read whole: see counters in " + trace.MetaFile
		table = append(table, []string{"incomplete", count(n), remark})
	}
	for _, row := range table {
		row[0] = indent + row[0]
	}
	return table
}

// layerLines says which layers were computed elsewhere, where the probes do not see them.
func layerLines(m *tables.Meta) tabular.Lines {
	var lines tabular.Lines
	for _, line := range m.LayersText() {
		lines = append(lines, indent+line)
	}
	return lines
}

// describeSegments says how many table files there are, if there is more than one.
func describeSegments(s tables.Segments) string {
	switch {
	case s.Last == 0:
		return ""
	case s.Deleted == 0:
		return fmt.Sprintf("in %d table files", s.Last+1)
	}
	return fmt.Sprintf("in %d table files, of which the oldest %d were removed (%s rows)",
		s.Last+1, s.Deleted, humanize.Comma(s.DeletedRows))
}

// describeLosses says how many events of each kind were lost.
func describeLosses(c event.Counters) string {
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
