package inspect

// This file sums the bytes of a model's tensors by several criteria.

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"tensorcast/gguf"
	"tensorcast/internal/visible"
)

// maxLargest is how many of the largest tensors a summary names.
const maxLargest = 10

// Summary holds the sums for one model.
type Summary struct {
	Model string // the first file's name
	Files int
	Bytes int64 // of all files
	Rows  []SummaryRow
	Notes []string // what llama.cpp refuses, one line for each type
}

// SummaryRow is the sum over one group of tensors.
type SummaryRow struct {
	// Group is the criterion, Name the group of tensors under it:
	//
	//	tensors    all tensors
	//	read       by when they are read: "always" (for each token), "lookup" (one row per token),
	//	           "experts" (only the chosen ones); "experts of a token" is the part of these that one
	//	           token reads, by <architecture>.expert_used_count
	//	kind       as gguf.Kind
	//	layer      "0", "1", ...; "none" for tensors in no layer
	//	component  the name after "blk.N.", over all layers
	//	type       ggml's name
	//	largest    single tensors
	Group   string
	Name    string
	Tensors int64
	Bytes   int64
	Share   float64 // of the bytes of all tensors
}

// Summarise sums up the tensors of each model.
func Summarise(models []*gguf.Model) []*Summary {
	names := fileNames(models)
	var all []*Summary
	for _, m := range models {
		s := sumModel(m)
		s.Model = names[m.Files[0]]
		all = append(all, s)
	}
	return all
}

// sums are the rows of a group, in order of their first use.
type sums struct {
	rows  []SummaryRow
	index map[string]int
}

// add adds a tensor to a row.
func (s *sums) add(name string, bytes int64) {
	i, ok := s.index[name]
	if !ok {
		if s.index == nil {
			s.index = map[string]int{}
		}
		i = len(s.rows)
		s.index[name] = i
		s.rows = append(s.rows, SummaryRow{Name: name})
	}
	s.rows[i].Tensors++
	s.rows[i].Bytes += bytes
}

// compareSizes orders rows by size, the largest first, then by name.
func compareSizes(a, b SummaryRow) int {
	return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
}

// layerNumber is the number of a layer's row, -1 for "none".
func layerNumber(name string) int {
	n, err := strconv.Atoi(name)
	if err != nil {
		return -1
	}
	return n
}

// modelSums holds the sums of a model by each criterion.
type modelSums struct {
	total, read, kind, layer, component, typ, single sums
}

// sumModel sums up the tensors of a model.
func sumModel(m *gguf.Model) *Summary {
	var s modelSums
	_, untied := m.Lookup("output.weight")
	for _, f := range m.Files {
		for i := range f.Tensors {
			s.add(&f.Tensors[i], untied)
		}
	}
	s.sort()
	s.addExpertsOfToken(m.Files[0])
	return &Summary{Files: len(m.Files), Bytes: m.Size(), Rows: s.summaryRows(), Notes: m.ForeignTypes()}
}

// add adds a tensor to all criteria. untied says that the model has an output matrix besides the
// token embeddings.
func (s *modelSums) add(t *gguf.Tensor, untied bool) {
	kind := t.Kind()
	s.total.add("all", t.Size)
	when := "always"
	switch {
	case kind == gguf.KindExpert:
		when = "experts"
	case t.IsTable(untied):
		when = "lookup"
	}
	s.read.add(when, t.Size)
	s.kind.add(kind.String(), t.Size)
	layer := "none"
	if n := t.Layer(); n >= 0 {
		layer = strconv.Itoa(n)
	}
	s.layer.add(layer, t.Size)
	s.component.add(visible.Line(t.Component()), t.Size)
	s.typ.add(t.Type.String(), t.Size)
	s.single.rows = append(s.single.rows, SummaryRow{Name: visible.Line(t.Name), Tensors: 1, Bytes: t.Size})
	if len(s.single.rows) == 2*maxLargest {
		slices.SortFunc(s.single.rows, compareSizes)
		s.single.rows = s.single.rows[:maxLargest]
	}
}

// sort sorts the rows of each criterion.
func (s *modelSums) sort() {
	for _, s := range []*sums{&s.kind, &s.component, &s.typ, &s.single} {
		slices.SortFunc(s.rows, compareSizes)
	}
	slices.SortFunc(s.read.rows, func(a, b SummaryRow) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.layer.rows, func(a, b SummaryRow) int {
		return cmp.Compare(layerNumber(a.Name), layerNumber(b.Name))
	})
	s.single.rows = s.single.rows[:min(maxLargest, len(s.single.rows))]
}

// addExpertsOfToken adds the part of the experts that one token reads, if the metadata say how many
// it uses. f has the model's metadata.
func (s *modelSums) addExpertsOfToken(f *gguf.File) {
	arch, _ := f.String("general.architecture")
	count, _ := f.Uint(arch + ".expert_count")
	used, ok := f.Uint(arch + ".expert_used_count")
	i := slices.IndexFunc(s.read.rows, func(r SummaryRow) bool { return r.Name == "experts" })
	if i < 0 || !ok || used > count || count == 0 {
		return
	}
	r := s.read.rows[i]
	part := float64(used) / float64(count)
	s.read.rows = append(s.read.rows, SummaryRow{
		Name: "experts of a token", Tensors: r.Tensors, Bytes: int64(float64(r.Bytes) * part),
	})
}

// summaryRows returns the rows of all criteria; nil if there are no tensors.
func (s *modelSums) summaryRows() []SummaryRow {
	if len(s.total.rows) == 0 {
		return nil
	}
	groups := []struct {
		name string
		sums *sums
	}{
		{"tensors", &s.total}, {"read", &s.read}, {"kind", &s.kind}, {"type", &s.typ}, {"layer", &s.layer},
		{"component", &s.component}, {"largest", &s.single},
	}
	n := 0
	for _, g := range groups {
		g.sums.index = nil // frees memory: a file may have 200,000 tensors, each with a component of its own
		n += len(g.sums.rows)
	}
	rows := make([]SummaryRow, 0, n)
	for _, g := range groups {
		for _, r := range g.sums.rows {
			r.Group = g.name
			r.Share = float64(r.Bytes) / float64(s.total.rows[0].Bytes)
			rows = append(rows, r)
		}
	}
	return rows
}

// SummaryTable returns a row per sum: group, name, tensors, size_bytes and share. If there is more
// than one model, the column model comes first.
func SummaryTable(summaries []*Summary) *Table {
	columns := []column{{"group", text}, {"name", text}, {"tensors", int64s}, {"size_bytes", int64s}, {"share", floats}}
	if len(summaries) > 1 {
		columns = append([]column{{"model", text}}, columns...)
	}
	return &Table{columns: columns, each: func(row func([]cell) error) error {
		for _, s := range summaries {
			for _, r := range s.Rows {
				cells := []cell{str(s.Model), str(r.Group), str(r.Name), num(r.Tensors), num(r.Bytes), {f: r.Share}}
				if err := row(cells[len(cells)-len(columns):]); err != nil {
					return err
				}
			}
		}
		return nil
	}}
}

// maxWidth is the largest width of the column of names. llama.cpp refuses longer names of tensors.
// If a file has one nevertheless, it sticks out.
const maxWidth = maxGGMLName

// WriteText writes the summary for people.
func (s *Summary) WriteText(w io.Writer) error {
	out := bufio.NewWriterSize(w, bufferBytes) // it keeps its error for Flush
	files := "1 file"
	if s.Files > 1 {
		files = fmt.Sprintf("%d files", s.Files)
	}
	fmt.Fprintf(out, "%s: %s in %s\n", visible.Line(s.Model), humanize.IBytes(uint64(s.Bytes)), files)
	width := 0
	for _, r := range s.Rows {
		width = max(width, min(maxWidth, utf8.RuneCountInString(r.Name)))
	}
	group := ""
	for _, r := range s.Rows {
		if r.Group != group {
			group = r.Group
			fmt.Fprintf(out, "\n%-*s  %8s  %16s  %10s  %7s\n", width, group, "tensors", "bytes", "", "share")
		}
		fmt.Fprintf(out, "%-*s  %8d  %16d  %10s  %5.1f %%\n",
			width, r.Name, r.Tensors, r.Bytes, humanize.IBytes(uint64(r.Bytes)), 100*r.Share)
	}
	if len(s.Notes) > 0 {
		fmt.Fprintln(out)
	}
	for _, n := range s.Notes {
		fmt.Fprintf(out, "llama.cpp refuses the file: it has %s\n", n)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	return nil
}
