package gguf

// These tests open models in several parts, complete and incomplete ones.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/internal/testenv"
)

// part is one of the parts of a small split model, as gguf-split writes it: all metadata are in the
// first.
func part(no, count, tensors int) *model {
	m := &model{version: 3, alignment: 32, kvs: []kvSpec{
		{splitNoKey, ValueUint16, u16(uint16(no))},
		{splitCountKey, ValueUint16, u16(uint16(count))},
		{splitTensorsKey, ValueInt32, u32(uint32(tensors))},
	}}
	if no == 0 {
		m.kvs = append(m.kvs, kvSpec{architectureKey, ValueString, str("llama")})
	}
	for i := range 2 {
		m.tensors = append(m.tensors, tensorSpec{
			name: fmt.Sprintf("blk.%d.ffn_up_exps.weight", 2*no+i), dims: []uint64{32, 2, 3}, typ: Q8_0,
		})
	}
	return m
}

// splitModel writes the parts after edits, and returns their paths.
func splitModel(t *testing.T, count int, edit func(parts []*model)) (paths []string) {
	t.Helper()
	parts := make([]*model, count)
	for i := range parts {
		parts[i] = part(i, count, 2*count)
	}
	if edit != nil {
		edit(parts)
	}
	dir := t.TempDir()
	for i, m := range parts {
		path := filepath.Join(dir, fmt.Sprintf("a-model-%05d-of-%05d.gguf", i+1, count))
		paths = append(paths, path)
		if m == nil {
			continue
		}
		if err := os.WriteFile(path, m.encode(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

func TestSplitModel(t *testing.T) {
	paths := splitModel(t, 3, nil)
	for _, path := range paths {
		m, err := OpenModel(path)
		if err != nil {
			t.Fatal(err)
		}
		size := int64(0)
		if len(m.Files) != 3 || m.Tensors() != 6 {
			t.Fatalf("%d files, %d tensors", len(m.Files), m.Tensors())
		}
		for i, f := range m.Files {
			if f.Path != paths[i] {
				t.Errorf("file %d is %s", i, f.Path)
			}
			size += f.Size
			for j := range f.Tensors {
				x := &f.Tensors[j]
				if l, ok := m.Lookup(x.Name); !ok || l != (Location{x, -1, i}) {
					t.Errorf("lookup of %s: %+v", x.Name, l)
				}
				for e := range 3 {
					off := x.Offset + int64(e)*x.ExpertStride()
					for _, off := range []int64{off, off + x.ExpertStride() - 1} {
						if l, ok := m.Locate(i, off); !ok || l != (Location{x, e, i}) {
							t.Errorf("byte %d of file %d: %+v", off, i, l)
						}
					}
				}
			}
			if _, ok := m.Locate(i, f.DataOffset-1); ok {
				t.Error("metadata hold a tensor")
			}
		}
		if m.Size() != size {
			t.Errorf("%d bytes, want %d", m.Size(), size)
		}
		for _, file := range []int{-1, 3} {
			if _, ok := m.Locate(file, m.Files[0].DataOffset); ok {
				t.Errorf("there is a file %d", file)
			}
		}
		if _, ok := m.Lookup("blk.6.ffn_up_exps.weight"); ok {
			t.Error("a tensor that no part has was found")
		}
	}
}

func TestSplitModelHoles(t *testing.T) {
	edit := func(key string, typ ValueType, value []byte) func([]*model) {
		return func(parts []*model) {
			for i, kv := range parts[1].kvs {
				if kv.key == key {
					parts[1].kvs[i].typ, parts[1].kvs[i].value = typ, value
					return
				}
			}
			parts[1].kvs = append(parts[1].kvs, kvSpec{key, typ, value})
		}
	}
	tests := []struct {
		name string
		edit func(parts []*model)
		is   error
		want string // %[n]s is part n's path
	}{
		{"second missing", func(p []*model) { p[1] = nil }, ErrMissingPart, "a-model-00002-of-00003.gguf"},
		{
			"two missing", func(p []*model) { p[1], p[2] = nil, nil }, ErrMissingPart,
			"a-model-00002-of-00003.gguf, a-model-00003-of-00003.gguf",
		},
		{"part truncated", func(p []*model) { p[1].missing = 150 }, ErrTruncated, "a-model-00002-of-00003.gguf"},
		{
			"count differs", edit(splitCountKey, ValueUint16, u16(4)), ErrMismatchedPart,
			"a-model-00002-of-00003.gguf has split.count 4, not 3",
		},
		{
			"count of another type", edit(splitCountKey, ValueString, str("3")), ErrMismatchedPart,
			"has split.count missing, not 3",
		},
		{
			"number differs", edit(splitNoKey, ValueUint16, u16(2)), ErrMismatchedPart,
			"a-model-00002-of-00003.gguf has split.no 2, not 1",
		},
		{
			"number missing", func(p []*model) { p[1].kvs = p[1].kvs[1:] }, ErrMismatchedPart,
			"a-model-00002-of-00003.gguf has split.no missing, not 1",
		},
		{
			"other architecture", edit(architectureKey, ValueString, str("qwen3")), ErrMismatchedPart,
			`a-model-00002-of-00003.gguf is of architecture "qwen3", not "llama"`,
		},
		{
			"other byte order", func(p []*model) { p[1].big = true }, ErrMismatchedPart,
			"a-model-00002-of-00003.gguf has the other byte order",
		},
		{
			"tensor count of the first", func(p []*model) { p[0].kvs[2].value = u32(7) }, ErrMismatchedPart,
			"a-model-00001-of-00003.gguf says that all parts have 7 tensors (split.tensors.count), they have 6",
		},
		{
			"tensor count of the second", edit(splitTensorsKey, ValueInt32, u32(5)), ErrMismatchedPart,
			"a-model-00002-of-00003.gguf says that all parts have 5 tensors",
		},
		{
			"tensor twice", func(p []*model) { p[1].tensors = p[0].tensors }, ErrMismatchedPart,
			`tensor "blk.0.ffn_up_exps.weight" is in`,
		},
		{"part is no GGUF", func(p []*model) { p[1] = nil }, nil, ""}, // see below
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			paths := splitModel(t, 3, tt.edit)
			if tt.is == nil {
				if err := os.WriteFile(paths[1], []byte("<html>"), 0o644); err != nil {
					t.Fatal(err)
				}
				tt.is, tt.want = ErrNotGGUF, paths[1]
			}
			_, err := OpenModel(paths[0])
			if !errors.Is(err, tt.is) || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("error %v, want %v: %q", err, tt.is, tt.want)
			}
		})
	}
}

// A part's metadata say which part it is. A wrong name is an error, and does not lead to another model.
func TestSplitModelNames(t *testing.T) {
	data := part(0, 3, 6).encode()
	tests := []struct {
		name string
		is   error
	}{
		{"model.gguf", ErrPartName},
		{"-00001-of-00003.gguf", ErrPartName},
		{"model-00002-of-00003.gguf", ErrPartName},
		{"model-00001-of-00004.gguf", ErrPartName},
		{"model-1-of-3.gguf", ErrPartName},
		{"model-00001-of-00003.gguf.part", ErrPartName},
		{"model-00001-of-00003.gguf", ErrMissingPart},
	}
	for _, tt := range tests {
		path := filepath.Join(t.TempDir(), tt.name)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenModel(path); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, want %v", tt.name, err, tt.is)
		}
	}
}

func TestSplitModelClaims(t *testing.T) {
	for name, tt := range map[string]struct {
		no, count []byte
		is        error
	}{
		"number beyond the count": {u16(3), u16(3), ErrMismatchedPart},
		"65535 parts":             {u16(0), u16(65535), ErrMissingPart},
	} {
		m := part(0, 3, 6)
		m.kvs[0].value, m.kvs[1].value = tt.no, tt.count
		path := filepath.Join(t.TempDir(), "m-00001-of-65535.gguf")
		if err := os.WriteFile(path, m.encode(), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := OpenModel(path)
		if !errors.Is(err, tt.is) {
			t.Errorf("%s: error %v", name, err)
		}
		if tt.is == ErrMissingPart && !strings.HasSuffix(err.Error(),
			"m-00002-of-65535.gguf, m-00003-of-65535.gguf, m-00004-of-65535.gguf, m-00005-of-65535.gguf, "+
				"m-00006-of-65535.gguf, ...") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// A model in one file may have any name, and may say that it is part one of one.
func TestOpenModelOfOneFile(t *testing.T) {
	for _, m := range []*model{small(), part(0, 1, 2)} {
		path := filepath.Join(t.TempDir(), "anything")
		if err := os.WriteFile(path, m.encode(), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := OpenModel(path)
		if err != nil {
			t.Fatal(err)
		}
		f := got.Files[0]
		for i := range f.Tensors {
			if l, ok := got.Lookup(f.Tensors[i].Name); !ok || l.Tensor != &f.Tensors[i] {
				t.Errorf("%s is not found", f.Tensors[i].Name)
			}
		}
		if len(got.Files) != 1 || got.Size() != f.Size || got.Tensors() != len(f.Tensors) {
			t.Errorf("%+v, want one file with %d tensors", got, len(f.Tensors))
		}
	}
	if _, err := OpenModel(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
}

// The bound on a structure's memory holds for all parts together.
func TestSplitModelBound(t *testing.T) {
	testenv.SkipWithRace(t)
	for count, fits := range map[int]bool{maxStructure/maxKeptAll - 1: true, maxStructure/maxKeptAll + 1: false} {
		paths := splitModel(t, count, func(parts []*model) {
			for _, m := range parts {
				for i := range maxKeptAll / maxKept {
					m.kvs = append(m.kvs, kvSpec{fmt.Sprint(i), ValueString, str(strings.Repeat("x", maxKept))})
				}
			}
		})
		if _, err := OpenModel(paths[0]); (err == nil) != fits ||
			!fits && !strings.Contains(err.Error(), "takes more than 32 MiB of memory") {
			t.Errorf("%d parts: %v", count, err)
		}
	}
}
