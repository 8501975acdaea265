package pressure

// This file tests the table of metrics for what the compiler does not see.

import (
	"reflect"
	"testing"

	"tensorcast/internal/stats"
)

// Every spread of a summary is filled by one metric. No two metrics have the same name or the same
// position in the table of a setting.
func TestMetrics(t *testing.T) {
	var s Summary
	filled := map[*stats.Spread]int{}
	columns, orders := map[string]int{}, map[int]int{}
	for _, m := range metrics {
		if m.spread != nil {
			filled[m.spread(&s)]++
		}
		if m.column != "" {
			columns[m.column]++
		}
		if m.table != nil {
			orders[m.table.order]++
		}
	}
	for v, i := reflect.ValueOf(&s).Elem(), 0; i < v.NumField(); i++ {
		if field, ok := v.Field(i).Addr().Interface().(*stats.Spread); ok && filled[field] != 1 {
			t.Errorf("%s is filled by %d metrics, want 1", v.Type().Field(i).Name, filled[field])
		}
	}
	for name, n := range columns {
		if n != 1 {
			t.Errorf("%d metrics have the column %s, want 1", n, name)
		}
	}
	for order, n := range orders {
		if n != 1 {
			t.Errorf("%d metrics are shown at position %d, want 1", n, order)
		}
	}
}
