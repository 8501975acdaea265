package inspect

// This file makes the table of metadata.

import (
	"fmt"

	"tensorcast/gguf"
)

// Metadata returns a row per metadata entry, in file order, with the columns key, type ("u32",
// "str", "arr[str]"), length (of an array; else 1) and value. Of an array the value shows the first
// limit elements, all if limit is negative. If there is more than one file, the column file comes
// first. Values are text; arrays and strings with control characters or invalid UTF-8 are written
// as JSON. WriteJSON keeps the values' types.
func Metadata(models []*gguf.Model, limit int64) *Table {
	names := fileNames(models)
	t := &Table{columns: []column{{"key", text}, {"type", text}, {"length", int64s}, {"value", text}}}
	if len(names) > 1 {
		t.columns = append([]column{{"file", text}}, t.columns...)
	}
	t.each = func(row func([]cell) error) error {
		cells := make([]cell, 0, len(t.columns))
		for _, m := range models {
			for _, f := range m.Files {
				for i := range f.Metadata {
					kv := &f.Metadata[i]
					typ := kv.Type.String()
					if kv.Type == gguf.ValueArray {
						typ = fmt.Sprintf("arr[%v]", kv.Elem)
					}
					cells = cells[:0]
					if len(names) > 1 {
						cells = append(cells, str(names[f]))
					}
					cells = append(cells, shown(kv.Key), str(typ), num(kv.Len), cell{value: &value{f, kv, limit}})
					if err := row(cells); err != nil {
						return fmt.Errorf("metadata of %s: %w", f.Path, err)
					}
				}
			}
		}
		return nil
	}
	return t
}
