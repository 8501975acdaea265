package holding

// This file tests what is made of tables, of which a token reads only the rows that it looks up.

import (
	"fmt"
	"slices"
	"testing"

	"tensorcast/ggml"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
)

// A table says nothing about what a helper can do, however large it is: not whether the rest is worth it, nor where the
// weights are, nor whether all of them are in memory.
func TestJudgeTables(t *testing.T) {
	file := func(change func(f *File)) *Holding {
		f := File{
			Path: "/a.gguf", Store: StoreDisk, PageOut: true, Size: 100 << 30, PerToken: 1 << 30, Tables: 99 << 30,
			Resident: 600 << 20,
		}
		if change != nil {
			change(&f)
		}
		h := &Holding{
			PID: 5, Files: []File{f}, Weights: Weights{Mapped: f.Size}, PerToken: f.PerToken, Tables: f.Tables,
		}
		h.Mode = h.decideMode()
		return h
	}
	for name, tc := range map[string]struct {
		h      *Holding
		room   int64
		blocks []Reason
	}{
		"the rest has no room": {file(nil), 512 << 20, nil},
		"the rest has room":    {file(nil), 2 << 30, []Reason{Fits}},
		"others pay for the rest": {
			file(func(f *File) { f.Resident, f.TablesResident = 2<<30, 1<<30 }), 512 << 20, []Reason{Fits},
		},
		"others pay for some rows": {
			file(func(f *File) { f.Resident, f.TablesResident = 2<<30, 3<<29 }), 512 << 20, nil,
		},
		"nobody knows what of the table is in memory": {
			file(func(f *File) { f.Resident, f.TablesResident = 2<<30, -1 }), 512 << 20, nil,
		},
	} {
		v := tc.h.JudgeInGroup(tc.room, false)
		if !slices.Equal(reasonsOf(v, true), tc.blocks) {
			t.Errorf("%s: %s\n%+v", name, v.Line(), v)
		}
	}
	copied := file(nil)
	copied.PerToken, copied.Files[0].PerToken = 0, 0
	copied.Weights.Mapped, copied.Weights.Copied = copied.Tables, 1<<30
	if mode := copied.decideMode(); mode != ModeCopied {
		t.Errorf("copies of all but a table: %s, want %s", mode, ModeCopied)
	}
}

// Tables are found by their names. Of a model without an output matrix, all of the token embeddings is read.
func TestTables(t *testing.T) {
	for name, tc := range map[string]struct {
		tensors []string
		tables  []int // of these
	}{
		"untied": {[]string{"token_embd.weight", "blk.0.ffn_up.weight", "output.weight"}, []int{0}},
		"tied":   {[]string{"token_embd.weight", "blk.0.ffn_up.weight"}, nil},
		"for each layer": {
			[]string{"token_embd.weight", "per_layer_token_embd.weight", "blk.0.ffn_up.weight"}, []int{1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var tensors []gguftest.Tensor
			for _, n := range tc.tensors {
				tensors = append(tensors, gguftest.Tensor{Name: n, Type: gguf.F32, Shape: []int64{1024, 1024}})
			}
			f := newFakeOf(t, 1<<10, tensors)
			f.putTensors(t, ggml.Candidates()[0], slices.Repeat([]uint64{1}, len(tensors))...)
			h := f.examine(t)
			want := int64(len(tc.tables)) * weightSize
			got := fmt.Sprint(h.Tables, h.PerToken, h.Files[0].Tables, h.Files[0].TablesResident >= 0)
			if got != fmt.Sprint(want, int64(len(tensors))*weightSize-want, want, true) {
				t.Errorf("tables, per token, tables of the file, known: %s; want %d bytes of tables", got, want)
			}
		})
	}
}
