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
