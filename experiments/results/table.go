package results

// This file makes a document's table in Markdown, its figure, and one table of the runs of many documents.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"tensorcast/internal/chart"
	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
	"tensorcast/trace/tables"
)

// WriteTable writes the document's report as Markdown: the named parts in this order, or all of it if none is named.
// Only reports of [Pressure] and [Harm] have parts (see their Sections).
func (d *Document) WriteTable(w io.Writer, parts ...string) error {
	r, err := d.Open()
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return r.WriteMarkdown(w)
	}
	sectioned, ok := r.(interface{ Sections() tabular.Sections })
	if !ok {
		return fmt.Errorf("a report of kind %s has no parts", d.Kind)
	}
	picked, err := sectioned.Sections().Pick(parts...)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := picked.WriteMarkdown(&b); err != nil {
		return err
	}
	if b.Len() == 0 {
		return fmt.Errorf("%s: the report has nothing to show there", strings.Join(parts, ", "))
	}
	_, err = w.Write(b.Bytes())
	return err
}

// ErrNoFigure says that documents of a kind have no figure.
var ErrNoFigure = errors.New("only series of lab pressure and lab overhead have a figure")

// WriteFigure draws the report in one of the formats of package chart. The same document gives the same bytes.
//
//   - That of [Pressure] is tok/s against the share of the model that fits in memory, with a curve for each variant and
//     one for the bound.
//   - That of [Overhead] is what each observer costs, with its interval.
//
// curves name the variants or observers that are drawn, as NAME or NAME=LABEL; without them all are. It fails with
// [ErrNoFigure] for other kinds.
func (d *Document) WriteFigure(w io.Writer, format string, curves ...string) error {
	r, err := d.Open()
	if err != nil {
		return err
	}
	drawn, ok := r.(interface {
		WriteFigure(w io.Writer, format string, shown ...chart.Shown) error
	})
	if !ok {
		return fmt.Errorf("%w: this one is of lab %s", ErrNoFigure, d.Kind)
	}
	var shown []chart.Shown
	for _, curve := range curves {
		shown = append(shown, chart.ParseShown(curve))
	}
	return drawn.WriteFigure(w, format, shown...)
}

// describeFigure is what a reader who cannot see the figure of a kind is told.
func describeFigure(k Kind) string {
	if k == Overhead {
		return "the share of tokens per second that each observer takes"
	}
	return "tok/s against the share that fits in memory"
}

// machineText says in a few words on which machine a series was measured.
func (d *Document) machineText() string {
	return fmt.Sprintf("%d x %s, %.1f GiB, Linux %s, cgroup v%d", d.Machine.CPUs, d.Machine.CPUName(),
		float64(d.Machine.Memory)/(1<<30), d.Machine.Kernel, d.Machine.CgroupVersion)
}

// CommitText is the beginning of the commit, with a plus if there were changes; "unknown" if the build does not
// know it.
func (d *Document) CommitText() string {
	if d.Build.Commit == "" {
		return "unknown"
	}
	text := d.Build.Commit[:min(len(d.Build.Commit), 12)]
	if d.Build.Modified {
		text += "+"
	}
	return text
}

// List writes a line for each document: name, kind, start, commit and machine.
func List(documents []Named) tabular.Document {
	t := &tabular.Table{Columns: tabular.Left("name", "kind", "measured", "commit", "machine")}
	for _, d := range documents {
		kind := string(d.Kind)
		if d.Interrupted {
			kind += " (interrupted)"
		}
		t.Rows = append(t.Rows, []string{d.Name, kind, d.Started.UTC().Format("2006-01-02 15:04"), d.CommitText(),
			d.machineText()})
	}
	return tabular.Document{t}
}

// WriteMachines writes in Markdown what was measured on which machine: for each machine a line that says what it is,
// and a table of its series in chronological order, with what the disk delivered beside them. Machines come in the
// order of their last series, the latest first. Two machines are the same if their processors, memory, kernel and
// version of control groups are.
func WriteMachines(w io.Writer, documents []Named) error {
	byStart := slices.SortedStableFunc(slices.Values(documents), func(a, b Named) int {
		return a.Started.Compare(b.Started)
	})
	var machines []string // the latest last
	series := map[string][]Named{}
	for _, d := range byStart {
		m := d.machineText()
		machines = append(slices.DeleteFunc(machines, func(other string) bool { return other == m }), m)
		series[m] = append(series[m], d)
	}
	slices.Reverse(machines)
	for i, m := range machines {
		before := ""
		if i > 0 {
			before = "\n"
		}
		if _, err := fmt.Fprintf(w, "%s**%s**\n\n", before, m); err != nil {
			return err
		}
		t := &tabular.Table{Columns: tabular.Left("series", "instrument", "measured", "commit", "disk, GiB/s")}
		for _, d := range series[m] {
			disk := "-"
			if d.Disk != nil {
				disk = spreadCell(stats.Describe(inGiB(d.Disk.Readings)))
			}
			t.Rows = append(t.Rows, []string{d.Name, "lab " + string(d.Kind),
				d.Started.UTC().Format("2006-01-02 15:04"), d.CommitText(), disk})
		}
		if err := (tabular.Document{t}).WriteMarkdown(w); err != nil {
			return err
		}
	}
	return nil
}

func inGiB(bytes []float64) (all []float64) {
	for _, b := range bytes {
		all = append(all, b/(1<<30))
	}
	return all
}

// ---- a table of all runs

// Columns is a table with a row for each run of all documents: what a document says of its series, and then what the
// instruments say of a run. Documents of kinds other than [Pressure] and [Harm] have no rows; left says which they are.
// What a kind does not know of its runs is null, or NaN where it is a fraction.
func Columns(documents []Named) (columns []tables.Column, left []string, err error) {
	u := &union{index: map[string]int{}}
	for _, d := range documents {
		r, err := kindOfRuns(d.Document)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", d.Name, err)
		}
		if r == nil {
			left = append(left, d.Name)
			continue
		}
		rows := r.Columns()
		if len(rows) == 0 {
			continue
		}
		n, err := countRows(rows[0])
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", d.Name, err)
		}
		if err := u.add(slices.Concat(d.columns(n), rows), n); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", d.Name, err)
		}
	}
	return u.columns, left, nil
}

// withRuns is a report with a table of its runs.
type withRuns interface{ Columns() []tables.Column }

// kindOfRuns reads a document's report; nil if that has no table of its runs.
func kindOfRuns(d *Document) (withRuns, error) {
	if d.Kind != Pressure && d.Kind != Harm {
		return nil, nil
	}
	r, err := d.Open()
	if err != nil {
		return nil, err
	}
	return r.(withRuns), nil
}

// columns are what a document says of its series, n times.
func (d Named) columns(n int) []tables.Column {
	text := func(name, value string) tables.Column {
		return tables.Column{Name: name, Values: slices.Repeat([]string{value}, n)}
	}
	count := func(name string, value int64) tables.Column {
		return tables.Column{Name: name, Values: slices.Repeat([]int64{value}, n)}
	}
	return []tables.Column{
		text("document", d.Name), text("kind", string(d.Kind)),
		text("started", d.Started.UTC().Format("2006-01-02T15:04:05Z")),
		text("commit", d.Build.Commit), text("command", d.Command), text("cpu", d.Machine.CPU),
		count("cpus", int64(d.Machine.CPUs)), count("memory_bytes", d.Machine.Memory), text("kernel", d.Machine.Kernel),
		count("cgroup_version", int64(d.Machine.CgroupVersion)),
	}
}

// union collects tables with different columns into one.
type union struct {
	columns []tables.Column // of []*string, []*int64 and []float64
	index   map[string]int  // of a column, by its name
	rows    int
}

// add appends n rows.
func (u *union) add(columns []tables.Column, n int) error {
	seen := map[string]bool{}
	for _, c := range columns {
		if seen[c.Name] {
			return fmt.Errorf("there are two columns %q", c.Name)
		}
		seen[c.Name] = true
		at, known := u.index[c.Name]
		if !known {
			at = len(u.columns)
			empty := tables.Column{Name: c.Name}
			switch c.Values.(type) {
			case []string:
				empty.Values = make([]*string, u.rows)
			case []int64:
				empty.Values = make([]*int64, u.rows)
			case []float64:
				empty.Values = slices.Repeat([]float64{math.NaN()}, u.rows)
			}
			u.columns, u.index[c.Name] = append(u.columns, empty), at
		}
		to := &u.columns[at]
		switch from := c.Values.(type) {
		case []string:
			if to.Values, known = appendPointers(to.Values, from); !known {
				return fmt.Errorf("column %q has text here and numbers elsewhere", c.Name)
			}
		case []int64:
			if to.Values, known = appendPointers(to.Values, from); !known {
				return fmt.Errorf("column %q has whole numbers here and something else elsewhere", c.Name)
			}
		case []float64:
			all, ok := to.Values.([]float64)
			if !ok {
				return fmt.Errorf("column %q has fractions here and something else elsewhere", c.Name)
			}
			to.Values = append(all, from...)
		default:
			return fmt.Errorf("column %q holds %T", c.Name, c.Values)
		}
	}
	u.rows += n
	for i := range u.columns {
		switch all := u.columns[i].Values.(type) {
		case []*string:
			u.columns[i].Values = append(all, make([]*string, u.rows-len(all))...)
		case []*int64:
			u.columns[i].Values = append(all, make([]*int64, u.rows-len(all))...)
		case []float64:
			u.columns[i].Values = append(all, slices.Repeat([]float64{math.NaN()}, u.rows-len(all))...)
		}
	}
	return nil
}

// appendPointers appends values to a slice of pointers. ok is false if it is a slice of something else.
func appendPointers[T any](to any, values []T) (all any, ok bool) {
	pointers, ok := to.([]*T)
	if !ok {
		return to, false
	}
	for i := range values {
		pointers = append(pointers, &values[i])
	}
	return pointers, true
}

// countRows counts the values of a column.
func countRows(c tables.Column) (int, error) {
	switch v := c.Values.(type) {
	case []string:
		return len(v), nil
	case []int64:
		return len(v), nil
	case []float64:
		return len(v), nil
	}
	return 0, fmt.Errorf("column %q holds %T", c.Name, c.Values)
}
