package rewrite_test

// These tests rewrite files and compare them with the originals.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/gguf/rewrite"
)

// file returns a model's bytes and structure.
func file(t testing.TB, path string) ([]byte, *gguf.File) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b, parse(t, b)
}

func parse(t testing.TB, b []byte) *gguf.File {
	t.Helper()
	f, err := gguf.Parse(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// models are files with every kind of metadata, and weights that are not all zeros.
func models(t testing.TB) map[string]string {
	paths := map[string]string{
		"synth dense": llamatest.Model(t, synth.Config{
			Layers: 1, Embd: 64, FF: 96, Heads: 2, KVHeads: 1, Type: gguf.Q8_0, Seed: 1,
		}),
		"synth moe": llamatest.Model(t, synth.Config{
			Layers: 1, Embd: 256, FF: 256, Heads: 2, KVHeads: 1, Experts: 3, Used: 2, Type: gguf.Q4_K, Seed: 1,
		}),
		"moe": filepath.Join(t.TempDir(), "moe.gguf"),
	}
	gguftest.MoE(2, 4).Write(t, paths["moe"])
	return paths
}

func TestIdentity(t *testing.T) {
	paths := models(t)
	trained, err := filepath.Glob("../../../shared/data/models/*.gguf")
	if err != nil {
		t.Fatal(err)
	}
	if len(trained) == 0 {
		t.Log("no trained models in ../shared/data/models")
	}
	for _, path := range trained {
		paths[filepath.Base(path)] = path
	}
	for name, path := range paths {
		t.Run(name, func(t *testing.T) {
			want, f := file(t, path)
			var same bytes.Buffer
			if err := rewrite.Write(t.Context(), &same, f, bytes.NewReader(want), nil); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(same.Bytes(), want) {
				t.Errorf("%d bytes, the source's %d or others", same.Len(), len(want))
			}
			// The tensors are replaced by themselves.
			out := filepath.Join(t.TempDir(), "out.gguf")
			err := rewrite.WriteFile(t.Context(), out, path, func(t *gguf.Tensor) (rewrite.Replacement, bool) {
				return rewrite.Replacement{Type: t.Type, Write: func(w io.Writer) error {
					_, err := w.Write(want[t.Offset:t.End()])
					return err
				}}, true
			})
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := file(t, out); !bytes.Equal(got, want) {
				t.Error("tensors replaced by themselves give another file")
			}
		})
	}
}

// pattern fills a tensor's bytes depending on its name, so that a wrong offset shows.
func pattern(name string, n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = name[i%len(name)] + byte(i>>8)
	}
	return b
}

// TestReplace gives every second tensor another type, and checks the metadata, the types and all bytes.
func TestReplace(t *testing.T) {
	for name, path := range models(t) {
		t.Run(name, func(t *testing.T) {
			source, f := file(t, path)
			want := map[string][]byte{}
			types := map[string]gguf.Type{}
			replace := func(tensor *gguf.Tensor) (rewrite.Replacement, bool) {
				i := slices.IndexFunc(f.Tensors, func(o gguf.Tensor) bool { return o.Name == tensor.Name })
				types[tensor.Name], want[tensor.Name] = tensor.Type, source[tensor.Offset:tensor.End()]
				if i%2 == 0 {
					return rewrite.Replacement{}, false
				}
				as := []gguf.Type{gguf.F32, gguf.F16, gguf.Q8_0}[i/2%3]
				row, err := as.RowBytes(tensor.Shape[0])
				if err != nil {
					as, row = gguf.F32, 4*tensor.Shape[0]
				}
				for _, n := range tensor.Shape[1:] {
					row *= n
				}
				bytes := pattern(tensor.Name, row)
				types[tensor.Name], want[tensor.Name] = as, bytes
				return rewrite.Replacement{Type: as, Write: func(w io.Writer) error {
					for len(bytes) > 0 { // in odd pieces
						n, err := w.Write(bytes[:min(len(bytes), 1001)])
						if err != nil {
							return err
						}
						bytes = bytes[n:]
					}
					return nil
				}}, true
			}
			var out bytes.Buffer
			if err := rewrite.Write(t.Context(), &out, f, bytes.NewReader(source), replace); err != nil {
				t.Fatal(err)
			}
			got := parse(t, out.Bytes())
			if got.DataOffset != f.DataOffset || got.Size%f.Alignment != 0 || len(got.Tensors) != len(f.Tensors) {
				t.Errorf("data at %d, %d bytes, %d tensors; the source's at %d, %d tensors", got.DataOffset, got.Size,
					len(got.Tensors), f.DataOffset, len(f.Tensors))
			}
			if !reflect.DeepEqual(got.Metadata, f.Metadata) {
				t.Errorf("metadata %v, want %v", got.Metadata, f.Metadata)
			}
			end := got.DataOffset
			for i, tensor := range got.Tensors {
				if tensor.Name != f.Tensors[i].Name || !slices.Equal(tensor.Shape, f.Tensors[i].Shape) ||
					tensor.Type != types[tensor.Name] {
					t.Errorf("tensor %d: %+v, was %+v", i, tensor, f.Tensors[i])
				}
				if !bytes.Equal(out.Bytes()[tensor.Offset:tensor.End()], want[tensor.Name]) {
					t.Errorf("%s: other bytes", tensor.Name)
				}
				if gap := out.Bytes()[end:tensor.Offset]; len(gap) >= int(f.Alignment) ||
					!bytes.Equal(gap, make([]byte, len(gap))) {
					t.Errorf("%v before %s", gap, tensor.Name)
				}
				end = tensor.End()
			}
		})
	}
}

// TestShapeAndNumbers gives tensors another shape and the metadata other numbers, of every width,
// and checks that nothing else changes.
func TestShapeAndNumbers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	m := &gguftest.Model{
		KVs: []gguftest.KV{
			{Key: "first", Value: uint32(1)}, {Key: "s", Value: "text"}, {Key: "half", Value: uint16(7)},
			{Key: "list", Value: []int32{1, 2}}, {Key: "f", Value: float32(1)},
			{Key: "signed", Value: int32(-5)}, {Key: "last", Value: uint32(3)},
		},
		Tensors: []gguftest.Tensor{
			{Name: "a", Type: gguf.F32, Shape: []int64{3, 2}}, {Name: "b", Type: gguf.F16, Shape: []int64{5}},
		},
	}
	m.Write(t, path)
	b, f := file(t, path)
	as := func(shape ...int64) func(*gguf.Tensor) (rewrite.Replacement, bool) {
		return func(t *gguf.Tensor) (rewrite.Replacement, bool) {
			return rewrite.Replacement{Type: gguf.F32, Shape: shape, Write: func(w io.Writer) error {
				_, err := w.Write(pattern("a", 4*3*70))
				return err
			}}, t.Name == "a"
		}
	}
	var out bytes.Buffer
	// The order is not that of the file.
	err := rewrite.Write(t.Context(), &out, f, bytes.NewReader(b), as(3, 70),
		rewrite.Number{Key: "last", Value: 1<<32 - 1}, rewrite.Number{Key: "half", Value: 65535},
		rewrite.Number{Key: "signed", Value: 1<<31 - 1})
	if err != nil {
		t.Fatal(err)
	}
	got := parse(t, out.Bytes())
	for key, want := range map[string]uint64{"first": 1, "half": 65535, "signed": 1<<31 - 1, "last": 1<<32 - 1} {
		if v, ok := got.Uint(key); v != want || !ok {
			t.Errorf("%s is %d, want %d", key, v, want)
		}
	}
	if !reflect.DeepEqual(typesOf(got), typesOf(f)) {
		t.Errorf("metadata %v, were %v", typesOf(got), typesOf(f))
	}
	if s, _ := got.String("s"); s != "text" {
		t.Errorf("s is %q", s)
	}
	x, _ := got.Lookup("a")
	y, _ := got.Lookup("b")
	if !slices.Equal(x.Shape, []int64{3, 70}) || !bytes.Equal(out.Bytes()[x.Offset:x.End()], pattern("a", 4*3*70)) ||
		!slices.Equal(y.Shape, []int64{5}) {
		t.Errorf("tensors %+v, %+v", x, y)
	}
	for name, c := range map[string]struct {
		replace func(*gguf.Tensor) (rewrite.Replacement, bool)
		numbers []rewrite.Number
		is      error
		message string
	}{
		"fewer dimensions": {replace: as(6), message: "shape [6], which was [3 2]"},
		"an empty one":     {replace: as(3, 0), message: "shape [3 0]"},
		"too large":        {replace: as(1<<40, 1<<40), message: "63 bits"},
		"no such entry": {
			numbers: []rewrite.Number{{Key: "none", Value: 1}}, is: gguf.ErrNoValue, message: `"none"`,
		},
		"twice": {
			numbers: []rewrite.Number{{Key: "last", Value: 1}, {Key: "last", Value: 2}}, message: "twice",
		},
		"a string": {numbers: []rewrite.Number{{Key: "s", Value: 1}}, message: "no integer"},
		"a list":   {numbers: []rewrite.Number{{Key: "list", Value: 1}}, message: "no integer"},
		"a float":  {numbers: []rewrite.Number{{Key: "f", Value: 1}}, message: "no integer"},
		"too wide": {numbers: []rewrite.Number{{Key: "half", Value: 65536}}, message: "does not fit type u16"},
		"too wide, signed": {
			numbers: []rewrite.Number{{Key: "signed", Value: 1 << 31}}, message: "does not fit type i32",
		},
	} {
		err := rewrite.Write(t.Context(), io.Discard, f, bytes.NewReader(b), c.replace, c.numbers...)
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v, want %q", name, err, c.message)
		}
	}
}

// typesOf lists the metadata without their values.
func typesOf(f *gguf.File) (list []string) {
	for _, kv := range f.Metadata {
		list = append(list, kv.Key, kv.Type.String())
	}
	return list
}

func TestF32(t *testing.T) {
	var b bytes.Buffer
	many := make([]float32, 100_000)
	many[99_999] = -2
	err := rewrite.F32(func(emit func([]float32) error) error {
		return errors.Join(emit([]float32{1}), emit(nil), emit(many))
	}).Write(&b)
	if err != nil || b.Len() != 400_004 || !bytes.HasPrefix(b.Bytes(), []byte{0, 0, 0x80, 0x3f, 0}) ||
		!bytes.HasSuffix(b.Bytes(), []byte{0, 0, 0, 0, 0xc0}) {
		t.Errorf("%d bytes, %v", b.Len(), err)
	}
}

// TestFails checks that failures are reported, leave neither a file nor a temporary one, and do not
// harm an older file.
func TestFails(t *testing.T) {
	path := llamatest.Model(t, synth.Config{
		Layers: 1, Embd: 64, FF: 96, Heads: 2, KVHeads: 1, Type: gguf.Q8_0, Seed: 1,
	})
	ours := errors.New("ours")
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(ours)
	later, stop := context.WithCancelCause(t.Context())
	with := func(as gguf.Type, write func(io.Writer) error) func(*gguf.Tensor) (rewrite.Replacement, bool) {
		return func(t *gguf.Tensor) (rewrite.Replacement, bool) {
			return rewrite.Replacement{Type: as, Write: write}, t.Name == "output_norm.weight" // 64 elements
		}
	}
	bytesOf := func(n int) func(io.Writer) error {
		return func(w io.Writer) error {
			_, err := w.Write(make([]byte, n))
			return err
		}
	}
	for _, c := range []struct {
		name    string
		ctx     context.Context
		replace func(*gguf.Tensor) (rewrite.Replacement, bool)
		is      error
		message string
	}{
		{"cancelled", cancelled, nil, ours, "ours"},
		{
			"cancelled while it writes", later,
			with(gguf.F32, func(w io.Writer) error { stop(ours); return bytesOf(256)(w) }), ours, "ours",
		},
		{
			"failure", t.Context(), with(gguf.F32, func(io.Writer) error { return ours }), ours,
			"replace output_norm.weight: ours",
		},
		{"too little", t.Context(), with(gguf.F32, bytesOf(255)), nil, "1 of 256 bytes were not written"},
		{"too much", t.Context(), with(gguf.F32, bytesOf(260)), nil, "4 bytes more"},
		{
			"too much, unnoticed", t.Context(),
			with(gguf.F32, func(w io.Writer) error { _ = bytesOf(260)(w); return bytesOf(256)(w) }), nil,
			"4 bytes more",
		},
		{"no whole block", t.Context(), with(gguf.Q4_K, bytesOf(144)), nil, "replace output_norm.weight by Q4_K"},
		{"unknown type", t.Context(), with(gguf.Type(4), bytesOf(144)), nil, "replace output_norm.weight"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			out := filepath.Join(dir, "out.gguf")
			if err := os.WriteFile(out, []byte("older"), 0o600); err != nil {
				t.Fatal(err)
			}
			err := rewrite.WriteFile(c.ctx, out, path, c.replace)
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.message) {
				t.Errorf("error is %v, want %q", err, c.message)
			}
			if old, err := os.ReadFile(out); string(old) != "older" || err != nil {
				t.Errorf("the older file has %q, %v", old, err)
			}
			if entries, err := os.ReadDir(dir); len(entries) != 1 || err != nil {
				t.Errorf("left %v, %v", entries, err)
			}
		})
	}

	for name, err := range map[string]error{
		"no source": rewrite.WriteFile(t.Context(), filepath.Join(t.TempDir(), "out"),
			filepath.Join(t.TempDir(), "none"), nil),
		"a source that is no model": rewrite.WriteFile(t.Context(), filepath.Join(t.TempDir(), "out"), os.DevNull, nil),
		"to a directory":            rewrite.WriteFile(t.Context(), t.TempDir(), path, nil),
		"in no directory": rewrite.WriteFile(t.Context(), filepath.Join(t.TempDir(), "none", "out"), path,
			nil),
		"full device": rewrite.WriteFile(t.Context(), "/dev/full", path, nil),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestInPlace checks that the source may be the target, also through a symbolic link.
func TestInPlace(t *testing.T) {
	path := llamatest.Model(t, synth.Config{
		Layers: 1, Embd: 64, FF: 96, Heads: 2, KVHeads: 1, Type: gguf.Q8_0, Seed: 1,
	})
	link := filepath.Join(t.TempDir(), "link.gguf")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	want, _ := file(t, path)
	if err := rewrite.WriteFile(t.Context(), link, path, nil); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link became %v, %v", info.Mode(), err)
	}
	if got, _ := file(t, path); !bytes.Equal(got, want) {
		t.Error("rewriting a file in place changed it")
	}
}

// TestChanged checks that a file that has changed since it was parsed is refused.
func TestChanged(t *testing.T) {
	b, f := file(t, llamatest.Model(t, synth.Config{
		Layers: 1, Embd: 64, FF: 96, Heads: 2, KVHeads: 1, Type: gguf.Q8_0, Seed: 1,
	}))
	for name, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"zeros":               {make([]byte, len(b)), gguf.ErrChanged},
		"another tensor name": {bytes.Replace(b, []byte("output_norm"), []byte("other__norm"), 1), gguf.ErrChanged},
		"another length": {
			bytes.Replace(b, append([]byte("general.name"), 8, 0, 0, 0),
				append([]byte("general.name"), 8, 0, 0, 0, 255), 1)[:len(b)],
			gguf.ErrChanged,
		},
		"metadata cut off": {b[:f.DataOffset/2], gguf.ErrChanged},
		"weights cut off":  {b[:len(b)-100], gguf.ErrTruncated},
	} {
		if err := rewrite.Write(t.Context(), io.Discard, f, bytes.NewReader(c.bytes), nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	f.BigEndian = true
	if err := rewrite.Write(t.Context(), io.Discard, f, bytes.NewReader(b),
		nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a big-endian file: %v", err)
	}
}

// TestLlama checks that a real llama.cpp loads what was written, and that it generates the same
// tokens with dequantised weights as with quantised ones. It does so only for a few tokens, because
// llama.cpp quantises activations for the one and not for the other.
func TestLlama(t *testing.T) {
	in := llamatest.ForTest(t)
	for name, cfg := range map[string]synth.Config{
		"dense": {Layers: 2, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1},
		"moe":   {Layers: 2, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Experts: 4, Used: 2, Type: gguf.Q8_0, Seed: 1},
	} {
		t.Run(name, func(t *testing.T) {
			path := llamatest.Model(t, cfg)
			out := filepath.Join(t.TempDir(), "f32.gguf")
			if err := rewrite.WriteFile(t.Context(), out, path, dequantised(t, path)); err != nil {
				t.Fatal(err)
			}
			if _, f := file(t, out); slices.ContainsFunc(f.Tensors,
				func(t gguf.Tensor) bool { return t.Type != gguf.F32 }) {
				t.Error("not all tensors are F32")
			}
			generate := func(path string) []int32 {
				r, err := in.Run(t.Context(), llama.Options{
					Model: path, Prompt: "Once upon a time", Tokens: 6, Threads: 1, Warmup: "none",
				})
				if err != nil {
					t.Fatal(err)
				}
				return r.Tokens
			}
			if want, got := generate(path), generate(out); !slices.Equal(got, want) {
				t.Errorf("says %v, with Q8_0 %v", got, want)
			}
		})
	}
}

// dequantised replaces each tensor of the model at path by its values as float32.
func dequantised(t *testing.T, path string) func(*gguf.Tensor) (rewrite.Replacement, bool) {
	t.Helper()
	m, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	weights, err := gguf.OpenWeights(m, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { weights.Close() })
	return func(t *gguf.Tensor) (rewrite.Replacement, bool) {
		return rewrite.F32(func(emit func([]float32) error) error {
			w, _ := weights.Lookup(t.Name)
			v, err := w.Float32()
			if err != nil {
				return err
			}
			defer v.Release()
			return emit(v.Data)
		}), true
	}
}

// FuzzWrite checks that every file that can be parsed is rewritten to one that parses to the same,
// with the same bytes of the tensors.
func FuzzWrite(f *testing.F) {
	for _, m := range []*gguftest.Model{
		gguftest.MoE(1, 2),
		{},
		{
			KVs: []gguftest.KV{
				{Key: "general.alignment", Value: uint32(gguftest.Alignment)}, {Key: "a", Value: true},
				{Key: "b", Value: []int32{1, 2}}, {Key: "c", Value: uint16(3)},
			},
			Tensors: []gguftest.Tensor{
				{Name: "x", Type: gguf.F32, Shape: []int64{3}},
				{Name: "y", Type: gguf.F16, Shape: []int64{1, 2, 3, 4}},
			},
		},
	} {
		path := filepath.Join(f.TempDir(), "seed")
		m.Write(f, path)
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(b, 1, 2, 3))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := gguf.Parse(bytes.NewReader(b), int64(len(b)))
		if err != nil || file.BigEndian {
			return
		}
		var out bytes.Buffer
		if err := rewrite.Write(t.Context(), &out, file, bytes.NewReader(b), nil); err != nil {
			t.Fatal(err)
		}
		got := parse(t, out.Bytes())
		if got.DataOffset != file.DataOffset || !reflect.DeepEqual(got.Metadata, file.Metadata) ||
			len(got.Tensors) != len(file.Tensors) {
			t.Fatalf("another structure: data at %d, was at %d", got.DataOffset, file.DataOffset)
		}
		for _, was := range file.Tensors {
			is, ok := got.Lookup(was.Name)
			if !ok || is.Type != was.Type || !slices.Equal(is.Shape, was.Shape) ||
				!bytes.Equal(out.Bytes()[is.Offset:is.End()], b[was.Offset:was.End()]) {
				t.Fatalf("%+v became %+v", was, is)
			}
		}
		// Writing it a second time changes nothing.
		var again bytes.Buffer
		if err := rewrite.Write(t.Context(), &again, got, bytes.NewReader(out.Bytes()), nil); err != nil ||
			!bytes.Equal(again.Bytes(), out.Bytes()) {
			t.Fatalf("another file the second time: %v", err)
		}
	})
}
