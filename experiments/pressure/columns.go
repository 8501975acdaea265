package pressure

// This file makes a table of the runs, for other programs.

import (
	"slices"

	"tensorcast/trace/tables"
)

// Columns is a table with a row for each run: those under a limit first, in chronological order,
// then those without (phase "unlimited"). The names tell the units. What a run does not have, for
// instance because it did not finish, is NaN.
func (r *Report) Columns() []tables.Column {
	steady := r.hasSteady()
	var runs []*runView
	for _, run := range slices.Concat(r.Runs, r.Unlimited) {
		runs = append(runs, r.viewRun(&run, steady))
	}
	var columns []tables.Column
	for i := range metrics {
		m := &metrics[i]
		if m.column == "" {
			continue
		}
		c := tables.Column{Name: m.column}
		switch {
		case m.text != nil:
			c.Values = columnOf(runs, m.text)
		case m.count != nil:
			c.Values = columnOf(runs, m.count)
		default:
			c.Values = columnOf(runs, m.amount)
		}
		columns = append(columns, c)
	}
	return columns
}

func columnOf[T any](runs []*runView, of func(*runView) T) []T {
	values := make([]T, len(runs))
	for i, run := range runs {
		values[i] = of(run)
	}
	return values
}
