package gguf_test

// This file compares the package with gguf-py, the Python package of llama.cpp's own converters: maps and metadata of
// files, floats of quantised blocks, and odd files that it writes.

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
)

// askGGUFPy runs testdata/ggufpy.py and returns what it prints.
func askGGUFPy(t *testing.T, stdin string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), llamatest.Python(t),
		append([]string{filepath.Join("testdata", "ggufpy.py")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("gguf-py, %v: %v\n%s", args, err, stderr.Bytes())
	}
	return out
}

// sameAsGGUFPy compares what the package and gguf-py say of a file, and returns it.
func sameAsGGUFPy(t *testing.T, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var want struct {
		Tensors   [][5]any
		Metadata  map[string]any
		Alignment int64
	}
	if err := json.Unmarshal(askGGUFPy(t, "", "map", path), &want); err != nil {
		t.Fatal(err)
	}
	if f.Alignment != want.Alignment || len(f.Tensors) != len(want.Tensors) {
		t.Fatalf("%s: alignment %d and %d tensors, want %d and %d", path, f.Alignment, len(f.Tensors), want.Alignment,
			len(want.Tensors))
	}
	got := map[string]string{}
	for i := range f.Tensors {
		x := &f.Tensors[i]
		got[x.Name] = fmt.Sprint([]any{x.Name, int(x.Type), x.Shape, x.Offset, x.Size})
	}
	for _, w := range want.Tensors {
		// Numbers of JSON are floats, which are exact up to 2^53.
		var shape []int64
		for _, n := range w[2].([]any) {
			shape = append(shape, int64(n.(float64)))
		}
		text := fmt.Sprint([]any{w[0], int(w[1].(float64)), shape, int64(w[3].(float64)), int64(w[4].(float64))})
		if got[w[0].(string)] != text {
			t.Errorf("%s: tensor %s, want %s", path, got[w[0].(string)], text)
		}
	}
	for key, v := range want.Metadata {
		switch v := v.(type) {
		case string:
			if got, ok := f.String(key); !ok || got != v {
				t.Errorf("%s: %s is %q, want %q", path, key, got, v)
			}
		case float64:
			if got, ok := f.Uint(key); v >= 0 && v < 1<<53 && (!ok || got != uint64(v)) {
				t.Errorf("%s: %s is %d, want %v", path, key, got, v)
			}
		}
	}
	return f
}

func TestGGUFPyMaps(t *testing.T) {
	t.Parallel()
	paths := []string{llamatest.Gemma(t).File}
	for _, c := range []synth.Config{
		{Layers: 2, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q4_K, Seed: 1},
		{Layers: 2, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Experts: 8, Used: 2, Seed: 1},
		{Layers: 1, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Type: gguf.TQ1_0, Seed: 1, Tied: true},
	} {
		paths = append(paths, llamatest.Model(t, c))
	}
	for _, path := range paths {
		if f := sameAsGGUFPy(t, path); len(f.Tensors) < 10 {
			t.Errorf("%s has %d tensors", path, len(f.Tensors))
		}
	}
}

// typeNamed returns the type of this name.
func typeNamed(t *testing.T, name string) gguf.Type {
	t.Helper()
	for typ := gguf.Type(0); typ < 256; typ++ {
		if typ.Valid() && typ.String() == name {
			return typ
		}
	}
	t.Fatalf("no type is named %s", name)
	return 0
}

// TestGGUFPyDequantize decodes random blocks of all types that both know. ggml computes in single precision as this
// package does, and numpy mostly does, so results are equal but for the last bits of some types.
func TestGGUFPyDequantize(t *testing.T) {
	const blocks = 512
	random := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	var lines strings.Builder
	floats := map[string][]float32{}
	names := []string{"BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0",
		"TQ2_0", "MXFP4", "NVFP4", "IQ4_NL", "IQ4_XS"}
	for _, name := range names {
		typ := typeNamed(t, name)
		raw := make([]byte, blocks*typ.BlockBytes())
		for i := range raw {
			raw[i] = byte(random.Uint32())
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&lines, name, path)
		dst := make([]float32, blocks*typ.BlockElems())
		if err := gguf.Dequantize(dst, typ, raw); err != nil {
			t.Fatal(err)
		}
		floats[name] = dst
	}
	askGGUFPy(t, lines.String(), "dequantize")
	for _, name := range names {
		raw, err := os.ReadFile(filepath.Join(dir, name+".f32"))
		if err != nil {
			t.Fatal(err)
		}
		got := floats[name]
		if len(raw) != 4*len(got) {
			t.Fatalf("%s: gguf-py has %d floats, want %d", name, len(raw)/4, len(got))
		}
		finite, differ := 0, 0
		for i, v := range got {
			w := math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
			a, b := float64(v), float64(w)
			if math.IsNaN(a) || math.IsInf(a, 0) || math.IsNaN(b) || math.IsInf(b, 0) {
				continue // of random scales that are not finite
			}
			if finite++; math.Abs(a-b) > 1e-6*math.Max(math.Abs(a), math.Abs(b)) {
				if differ++; differ < 4 {
					t.Errorf("%s: element %d is %g, want %g", name, i, v, w)
				}
			}
		}
		if finite < len(got)/2 || differ > 0 {
			t.Errorf("%s: %d of %d finite floats differ", name, differ, finite)
		}
	}
}

// TestGGUFPyWrites reads odd files: other alignments, the other byte order, integers, no tensors at all.
func TestGGUFPyWrites(t *testing.T) {
	dir := t.TempDir()
	askGGUFPy(t, "", "write", dir)
	files, err := filepath.Glob(filepath.Join(dir, "*.gguf"))
	if err != nil || len(files) != 5 {
		t.Fatalf("%v, %v, want 5 files", files, err)
	}
	for _, path := range files {
		f := sameAsGGUFPy(t, path)
		if names, err := f.Strings("odd.names"); err != nil || !slices.Equal(names, []string{"", "a", "ä"}) {
			t.Errorf("%s: odd.names are %q, %v", path, names, err)
		}
		if yes, ok := f.Bool("odd.yes"); !ok || !yes {
			t.Errorf("%s: odd.yes is %t, %t", path, yes, ok)
		}
		if words, _ := f.String("odd.words"); words != "zwölf Bären\nand a line" {
			t.Errorf("%s: odd.words is %q", path, words)
		}
		if f.BigEndian != (filepath.Base(path) == "big.gguf") {
			t.Errorf("%s: big-endian %t", path, f.BigEndian)
		}
		if x, ok := f.Lookup("three.dims"); ok && !slices.Equal(x.Shape, []int64{4, 3, 2}) {
			t.Errorf("%s: shape %v, want 4, 3, 2", path, x.Shape)
		}
	}
}
