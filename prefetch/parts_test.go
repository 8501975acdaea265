package prefetch_test

// This file tests the list of what is held and what is streamed.

import (
	"bytes"
	"encoding/csv"
	"slices"
	"testing"

	"tensorcast/pattern"
	"tensorcast/prefetch"
)

// Each byte that a token reads is in exactly one part, of its tensor. A part is marked as kept if the Controller
// holds it.
func TestParts(t *testing.T) {
	c := model(0, 10)
	for i := range c.Reads {
		c.Reads[i].Tensor = "blk." + string(rune('a'+i%7)) + string(rune('0'+i/7))
	}
	c.Reads = append(c.Reads, c.Reads[0]) // a second use, far from the first
	c.Reads[1].Tensor = "=HYPERLINK()"
	r := newIdealRig(t, c, 0.7, 2e9, prefetch.Options{Always: true})
	if parts := r.Parts(); len(parts) != 0 {
		t.Errorf("%d parts before anything is known, want none", len(parts))
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
		if read < 0 || p.Offset < c.Reads[read].Offset || p.Offset+p.Bytes > c.Reads[read].End() ||
			p.File != "model-0.gguf" || p.Visits < 1 {
			t.Errorf("part %+v, want it in a read of model-0.gguf, with at least one visit", p)
		}
		if i > 0 && p.Offset < parts[i-1].Offset+parts[i-1].Bytes {
			t.Errorf("%+v and %+v overlap or are not in order, want them one behind the other", parts[i-1], p)
		}
	}
	for _, read := range c.Reads {
		if byTensor[read.Tensor] != read.Length {
			t.Errorf("%s: %d bytes in parts, want %d", read.Tensor, byTensor[read.Tensor], read.Length)
		}
	}
	if all != c.Bytes() || kept > s.Pinned || kept < s.Pinned-mib { // the first block begins before the first tensor
		t.Errorf("%d bytes in parts, want %d; %d are kept, want about the summary's %d", all, c.Bytes(), kept, s.Pinned)
	}
	var out bytes.Buffer
	if err := prefetch.WriteParts(&out, parts); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	header := []string{"file", "offset_bytes", "size_bytes", "tensor_name", "visits", "state"}
	if err != nil || len(rows) != len(parts)+1 || !slices.Equal(rows[0], header) {
		t.Errorf("%d rows, %v; want %d, below the header %q", len(rows), err, len(parts)+1, header)
	}
	if !slices.ContainsFunc(rows, func(row []string) bool { return row[3] == "'=HYPERLINK()" }) {
		t.Errorf("rows %q, want one whose formula is quoted with an apostrophe", rows)
	}
}
