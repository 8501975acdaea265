package inspect

// This file makes the table of metadata.

import (
	"encoding/json"
	"fmt"

	"tensorcast/gguf"
)

// Metadata returns a row per metadata entry, in file order, with the columns key, type ("u32", "str", "arr[str]"), length (of an array;
// else 1) and value. Of an array the value shows the first limit elements, all if limit is negative. If there is more than one file, the
// column file comes first. Values are text; arrays and strings with control characters or invalid UTF-8 are written as JSON. WriteJSON
// keeps the values' types.
func Metadata(models []*gguf.Model, limit int64) (*Table, error) {
	var (
		files, keys, types, values []string
		lengths                    []int64
		typed                      []json.RawMessage
		names                      = fileNames(models)
	)
	for _, m := range models {
		for _, f := range m.Files {
			for i := range f.Metadata {
				kv := &f.Metadata[i]
				v, err := f.Value(kv, limit)
				if err != nil {
					return nil, fmt.Errorf("metadata of %s: %w", f.Path, err)
				}
				typ := kv.Type.String()
				if kv.Type == gguf.ValueArray {
					typ = fmt.Sprintf("arr[%v]", kv.Elem)
				}
				files = append(files, names[f])
				keys = append(keys, kv.Key)
				types = append(types, typ)
				lengths = append(lengths, kv.Len)
				values = append(values, text(v))
				typed = append(typed, appendJSON(nil, v))
			}
		}
	}
	t := &Table{typed: map[string][]json.RawMessage{"value": typed}}
	if len(names) > 1 {
		t.Columns = []Column{{"file", files}}
	}
	t.Columns = append(t.Columns, Column{"key", keys}, Column{"type", types}, Column{"length", lengths}, Column{"value", values})
	return t, nil
}
