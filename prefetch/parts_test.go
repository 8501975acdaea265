package prefetch_test

import (
	"bytes"
	"encoding/csv"
	"slices"
	"testing"

	"tensorcast/pattern"
	"tensorcast/prefetch"
)

// Each byte that a token reads is in one part, of its tensor, which is kept where the controller holds it.
func TestParts(t *testing.T) {
	c := model(0, 10)
	for i := range c.Reads {
		c.Reads[i].Tensor = "blk." + string(rune('a'+i%7)) + string(rune('0'+i/7))
	}
	c.Reads = append(c.Reads, c.Reads[0]) // a second use, far from the first
	c.Reads[1].Tensor = "=HYPERLINK()"
	r := machine(t, c, 0.7, 2e9, prefetch.Options{Always: true})
	if parts := r.Parts(); len(parts) != 0 {
		t.Errorf("%d parts before anything is known", len(parts))
	}
	r.run(20)
	parts, s := r.Parts(), r.Summary()
	var all, kept int64
	byTensor := map[string]int64{}
	for i, p := range parts {
		if all += p.Bytes; p.Kept {
			kept += p.Bytes
		}
		byTensor[p.Tensor] += p.Bytes
		read := slices.IndexFunc(c.Reads, func(r pattern.CycleRead) bool { return r.Tensor == p.Tensor })
		if read < 0 || p.Offset < c.Reads[read].Offset || p.Offset+p.Bytes > c.Reads[read].End() || p.File != "model-0.gguf" || p.Visits < 1 {
			t.Errorf("%+v", p)
		}
		if i > 0 && p.Offset < parts[i-1].Offset+parts[i-1].Bytes {
			t.Errorf("%+v and %+v overlap", parts[i-1], p)
		}
	}
	for _, read := range c.Reads {
		if byTensor[read.Tensor] != read.Length {
			t.Errorf("%s: %d of %d bytes", read.Tensor, byTensor[read.Tensor], read.Length)
		}
	}
	if all != c.Bytes() || kept > s.Pinned || kept < s.Pinned-mib { // the first block begins before the first tensor
		t.Errorf("%d of %d bytes, of which %d are kept, %d by the summary", all, c.Bytes(), kept, s.Pinned)
	}
	var out bytes.Buffer
	if err := prefetch.WriteParts(&out, parts); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil || len(rows) != len(parts)+1 || !slices.Equal(rows[0], []string{"file", "offset_bytes", "size_bytes", "tensor_name", "visits", "state"}) {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	if !slices.ContainsFunc(rows, func(row []string) bool { return row[3] == "'=HYPERLINK()" }) {
		t.Error("a formula is in it")
	}
}
