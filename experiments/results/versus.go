package results

// This file makes one table of several series: how fast one variant is against another.

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"tensorcast/experiments/pressure"
	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
)

// WriteVersus writes a table in Markdown with a row for each setting of several series of [Pressure], in their order:
// the model, the share of it that fits in memory, the tokens per second of both variants with their least and greatest,
// the ratio of the same rounds, and how much of the bound the other variant reaches. Speeds are those of the steady
// state. A setting at which one of the two was not run has no row. It fails for documents of other kinds, and for those
// that lack a variant.
func WriteVersus(w io.Writer, documents []Named, base, other string) error {
	t := &tabular.Table{Columns: slices.Concat(tabular.Left("model"), tabular.Right("in memory"),
		tabular.Left(base+", tok/s", other+", tok/s", "times", "of the bound"))}
	for _, d := range documents {
		r, err := d.Open()
		if err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
		p, ok := r.(*pressure.Report)
		if !ok {
			return fmt.Errorf("%s is a series of lab %s, and only those of lab pressure have variants to compare", d.Name,
				d.Kind)
		}
		if p.Variants[0].Name != base {
			return fmt.Errorf("%s compares with its first variant, which is %q and not %q", d.Name, p.Variants[0].Name, base)
		}
		if !slices.ContainsFunc(p.Variants, func(v pressure.Variant) bool { return v.Name == other }) {
			return fmt.Errorf("%s: %w: %q", d.Name, pressure.ErrNoVariant, other)
		}
		model := strings.TrimSuffix(filepath.Base(p.Model.Path), ".gguf")
		for i := range p.Results {
			if row := versusRow(model, &p.Results[i], base, other); row != nil {
				t.Rows = append(t.Rows, row)
				model = "" // once is enough
			}
		}
	}
	return tabular.Document{t}.WriteMarkdown(w)
}

// versusRow is the row of one setting; nil if one of the variants was not run there.
func versusRow(model string, at *pressure.Result, base, other string) []string {
	find := func(name string) *pressure.Summary {
		i := slices.IndexFunc(at.Summaries, func(s pressure.Summary) bool { return s.Variant == name })
		if i < 0 || at.Summaries[i].Runs == 0 {
			return nil
		}
		return &at.Summaries[i]
	}
	a, b := find(base), find(other)
	if a == nil || b == nil {
		return nil
	}
	share := tabular.Number(at.X)
	if at.Experts != nil {
		share = tabular.Number(at.Experts.Share)
	}
	ofBound := "-"
	if b.SteadyOfBound > 0 {
		ofBound = fmt.Sprintf("%.0f %%", 100*b.SteadyOfBound)
	}
	return []string{model, share, speedCell(a), speedCell(b), spreadCell(b.SteadySpeedup), ofBound}
}

// speedCell is the speed of a variant, or what became of its runs.
func speedCell(s *pressure.Summary) string {
	cell := spreadCell(s.Steady)
	if failed := s.Runs - s.Finished; failed > 0 {
		cell += fmt.Sprintf(", %d of %d runs failed", failed, s.Runs)
	}
	return cell
}

// spreadCell is a median with the least and the greatest value; a dash if there are no values.
func spreadCell(s stats.Spread) string {
	switch {
	case s.N == 0:
		return "-"
	case s.N == 1 || s.Min == s.Max:
		return tabular.Number(s.Median)
	}
	return fmt.Sprintf("%s (%s to %s)", tabular.Number(s.Median), tabular.Number(s.Min), tabular.Number(s.Max))
}
