package gather

// This file turns the columns of a table into rows for JSON.

import (
	"math"

	"tensorcast/trace/tables"
)

// Records are a table's rows, each with its values by column name. Nulls and NaNs become nil, which JSON writes as
// null. It is nil if there are no columns or no rows. Columns of other types than those of this package's tables are
// left out.
func Records(columns []tables.Column) []map[string]any {
	var rows []map[string]any
	set := func(name string, n int, value func(i int) any) {
		for len(rows) < n {
			rows = append(rows, map[string]any{})
		}
		for i := range n {
			rows[i][name] = value(i)
		}
	}
	for _, c := range columns {
		switch v := c.Values.(type) {
		case []string:
			set(c.Name, len(v), func(i int) any { return v[i] })
		case []int64:
			set(c.Name, len(v), func(i int) any { return v[i] })
		case []*int64:
			set(c.Name, len(v), func(i int) any { return v[i] })
		case []float64:
			set(c.Name, len(v), func(i int) any {
				if math.IsNaN(v[i]) {
					return nil
				}
				return v[i]
			})
		}
	}
	return rows
}
