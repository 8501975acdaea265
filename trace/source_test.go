package trace

// This file tests how a source that the target reports is matched with a tensor of the model's files.

import (
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/trace/tables"
)

// longName is a tensor's name, of which ggml keeps 63 bytes.
var longName = "blk.0." + strings.Repeat("a", 60) + ".weight"

func writeModel(t *testing.T, name string, tensors ...gguftest.Tensor) *gguf.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	(&gguftest.Model{KVs: []gguftest.KV{{Key: "general.architecture", Value: "llama"}}, Tensors: tensors}).Write(t,
		path)
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// source is a tensor as a target has it.
func targetSource(t *testing.T, f *gguf.File, name string) event.Source {
	t.Helper()
	w, ok := f.Lookup(name)
	if !ok {
		t.Fatalf("%s has no tensor %s", f.Path, name)
	}
	s := event.Source{Name: name[:min(len(name), 63)], Offset: w.Offset, Type: w.Type, NE: [4]int64{1, 1, 1, 1}}
	copy(s.NE[:], w.Shape)
	s.NB[0] = w.Type.BlockBytes()
	s.NB[1] = s.NB[0] * s.NE[0] / w.Type.BlockElems()
	s.NB[2] = s.NB[1] * s.NE[1]
	s.NB[3] = s.NB[2] * s.NE[2]
	return s
}

// What a target says of a weight is compared with the files. What llama.cpp does with weights is
// allowed: views of them, names that are cut, one tensor under two names.
func TestFindTensor(t *testing.T) {
	f := writeModel(t, "model-00001-of-00002.gguf",
		gguftest.Tensor{Name: "token_embd.weight", Type: gguf.Q8_0, Shape: []int64{64, 100}},
		gguftest.Tensor{Name: "blk.0.attn_q.weight", Type: gguf.Q8_0, Shape: []int64{64, 64}},
		gguftest.Tensor{Name: longName, Type: gguf.F32, Shape: []int64{64}},
		gguftest.Tensor{Name: "blk.0.ssm_a", Type: gguf.F32, Shape: []int64{16, 8}})
	other := writeModel(t, "model-00002-of-00002.gguf",
		gguftest.Tensor{Name: "blk.1.attn_q.weight", Type: gguf.Q8_0, Shape: []int64{64, 64}})
	for what, c := range map[string]struct {
		of     string
		change func(*event.Source)
		want   string // of the evidence; "" if it is allowed
	}{
		"as it is": {"token_embd.weight", func(*event.Source) {}, ""},
		"tied":     {"token_embd.weight", func(s *event.Source) { s.Name = "output.weight" }, ""},
		"cut name": {longName, func(*event.Source) {}, ""},
		"reshaped": {"blk.0.ssm_a", func(s *event.Source) {
			s.Name, s.NE, s.NB = "blk.0.ssm_a (reshaped)", [4]int64{128, 1, 1, 1}, [4]int64{4, 512, 512, 512}
		}, ""},
		"transposed": {"blk.0.ssm_a", func(s *event.Source) {
			s.Name, s.NE, s.NB = "blk.0.ssm_a (transposed)", [4]int64{8, 16, 1, 1}, [4]int64{64, 4, 512, 512}
		}, ""},
		"view of a view": {"blk.0.ssm_a",
			func(s *event.Source) { s.Name, s.Offset, s.NE[1] = "blk.0.ssm_a (reshaped) (view)", s.Offset+64, 7 }, ""},
		"third of Q, K and V": {"blk.0.attn_q.weight",
			func(s *event.Source) { s.Name, s.Offset, s.NE[1] = "wq", s.Offset+16*68, 16 }, ""},
		"view of a cut name": {longName, func(s *event.Source) { s.Name = s.Name[:63] }, ""},
		"nothing of it":      {"blk.0.ssm_a", func(s *event.Source) { s.NE[0] = 0 }, ""},
		"other type": {"token_embd.weight", func(s *event.Source) { s.Type = gguf.F32 },
			"token_embd.weight of type Q8_0"},
		"unknown type": {"token_embd.weight", func(s *event.Source) { s.Type = 9999 }, "type(9999)"},
		"huge": {"token_embd.weight",
			func(s *event.Source) { s.NE[0], s.NE[1] = math.MaxInt64, math.MaxInt64 }, "ends after 6800 bytes"},
		"sum that wraps": {"token_embd.weight",
			func(s *event.Source) { s.NE[2], s.NE[3], s.NB[2], s.NB[3] = 3, 3, 1<<62, 1<<62 }, "ends after 6800 bytes"},
		"row too many":      {"token_embd.weight", func(s *event.Source) { s.NE[1]++ }, "ends after 6800 bytes"},
		"negative elements": {"token_embd.weight", func(s *event.Source) { s.NE[1] = -100 }, "ends after"},
		"negative stride": {"token_embd.weight", func(s *event.Source) { s.NE[1], s.NB[1] = 1, -68 },
			"ends after"},
		"into the next": {"token_embd.weight", func(s *event.Source) { s.Offset += 68 },
			"ends after 6732 bytes"},
		"at another's place": {"token_embd.weight",
			func(s *event.Source) { s.Offset = targetSource(t, f, "blk.0.attn_q.weight").Offset; s.NE[1] = 64 },
			"it has token_embd.weight at byte"},
		"name of another part's": {"blk.0.attn_q.weight", func(s *event.Source) { s.Name = "blk.1.attn_q.weight" },
			"00002-of-00002"},
		"metadata": {"token_embd.weight", func(s *event.Source) { s.Offset = 0 }, "no tensor"},
		"before the file": {"token_embd.weight", func(s *event.Source) { s.Offset = math.MinInt64 },
			"no tensor"},
		"behind the file": {"token_embd.weight", func(s *event.Source) { s.Offset = math.MaxInt64 },
			"no tensor"},
		"no name": {"token_embd.weight", func(s *event.Source) { s.Name = "" }, "no name"},
		"endless name": {"token_embd.weight", func(s *event.Source) { s.Name = strings.Repeat("x", 64) },
			"no name"},
		"escape sequence": {"token_embd.weight", func(s *event.Source) { s.Name = "\x1b[2J" }, `\x1b[2J`},
		"not UTF-8":       {"token_embd.weight", func(s *event.Source) { s.Name = "\xff" }, `\xff`},
	} {
		s := targetSource(t, f, c.of)
		c.change(&s)
		got, err := findTensor(&s, f, []*gguf.File{f, other})
		switch {
		case c.want == "" && (err != nil || got.Name != c.of):
			t.Errorf("%s: got %v and error %v, want %s", what, got, err, c.of)
		case c.want != "" && (!errors.Is(err, event.ErrLayout) || !strings.Contains(err.Error(), c.want) ||
			!utf8.ValidString(err.Error()) || strings.ContainsAny(err.Error(), "\x1b\n")):
			t.Errorf("%s: got error %q, want ErrLayout with %q", what, err, c.want)
		}
		if n := s.Bytes(); n < 0 || n > event.MaxBytes {
			t.Errorf("%s: Bytes = %d, want it in [0, %d]", what, n, int64(event.MaxBytes))
		}
		for dim := -1; dim < 6; dim++ {
			if n, size := s.Slices(dim); n < 0 || size < 0 || n > 0 && size > math.MaxInt64/n {
				t.Errorf("%s: Slices(%d) = %d, %d: want a product that fits int64", what, dim, n, size)
			}
		}
	}
}

// Of an opaque tensor the file tells the place and the name. What the target says of its size is taken
// where it agrees with the extent.
func TestOpaqueTensor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	const extent = 8 * 1024
	(&gguftest.Model{
		Tensors: []gguftest.Tensor{
			{Name: "blk.0.ffn_up_exps.weight", Type: 999, Shape: []int64{64, 16, 8}},
			{Name: "blk.0.attn_q.weight", Type: gguf.F32, Shape: []int64{64}},
		},
		Sizes: map[string]int64{"blk.0.ffn_up_exps.weight": extent},
	}).Write(t, path)
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	source := func(typ gguf.Type, row int64) event.Source {
		return event.Source{
			Name: "blk.0.ffn_up_exps.weight", Offset: f.Tensors[0].Offset, Type: typ,
			NE: [4]int64{64, 16, 8, 1}, NB: [4]int64{1, row, 16 * row, 128 * row},
		}
	}
	for what, c := range map[string]struct {
		source              event.Source
		bytes, slices, each int64
	}{
		"the target knows its type":        {source(gguf.Q8_0, 34), 128 * 2 * 34 / 64 * 32, 8, 16 * 34},
		"strides that fit":                 {source(999, 60), 8 * 16 * 60, 8, 16 * 60},
		"strides larger than the extent":   {source(999, 1<<20), extent, 8, extent / 8},
		"strides of nothing":               {source(999, 0), extent, 8, extent / 8},
		"a type that the target renumbers": {source(1000, 64), extent, 8, extent / 8},
	} {
		if c.source.Type == gguf.Q8_0 {
			c.source.NB[0] = 17 // half a block per 32 elements, so that a row has 34 bytes
			c.bytes = 64*17/32 + 15*34 + 7*16*34
		}
		x, err := findTensor(&c.source, f, []*gguf.File{f})
		if err != nil || x != &f.Tensors[0] {
			t.Errorf("%s: %v, %v", what, x, err)
			continue
		}
		read := sourceRead{Access: tables.Access{Offset: c.source.Offset, Bytes: c.source.Bytes()}}
		read.slices, read.stride = c.source.Slices(2)
		read.boundBy(x, &c.source, 2)
		if read.Bytes != c.bytes || read.slices != c.slices || read.stride != c.each {
			t.Errorf("%s: %d bytes, %d slices of %d; want %d, %d of %d", what, read.Bytes, read.slices, read.stride,
				c.bytes, c.slices, c.each)
		}
	}
	other := source(999, 64)
	other.Name = "blk.0.attn_q.weight"
	if _, err := findTensor(&other, f, []*gguf.File{f}); !errors.Is(err, event.ErrLayout) {
		t.Errorf("with another's name: %v", err)
	}
}
