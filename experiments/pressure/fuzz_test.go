package pressure

// This file fuzzes the reader of saved reports.

import (
	"encoding/json"
	"io"
	"testing"
)

// FuzzReadReport checks that any file is refused or can be shown in all forms.
func FuzzReadReport(f *testing.F) {
	r := planted()
	r.summarise()
	data, err := json.Marshal(r)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data, 1)
	f.Add([]byte(`{"model": {"token_bytes": 1000}, "variants": [{"name": "plain"}], "results": [{"limit_bytes": 500}], "routes": {"trunk_bytes": 100, "experts": 2, "expert_bytes": [300],
		"prompt_tokens": 1, "ids": [1, 2], "chosen": [[[0]], [[1]]]}, "runs": [{"variant": "plain", "limit_bytes": 500, "outcome": "finished", "tok_s": 1, "token_ms": [1000]}]}`), 0)
	f.Add([]byte(`{"model": {"token_bytes": 1000}, "variants": [{"name": "plain"}], "results": [{"limit_bytes": 500}],
		"runs": [{"variant": "plain", "limit_bytes": 500, "outcome": "finished", "tok_s": 1, "token_ms": [1000, 1]}]}`), 1)
	f.Fuzz(func(t *testing.T, data []byte, skip int) {
		r, err := ReadReport(data, skip)
		if err != nil {
			return
		}
		r.Columns()
		_ = r.WriteText(io.Discard) // errors are those of the writer
		_ = r.WriteFigure(io.Discard, "svg")
		_ = r.WriteBytesFigure(io.Discard, "svg")
	})
}
