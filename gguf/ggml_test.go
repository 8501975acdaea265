package gguf_test

// This file compares the package with ggml's own reader and type table, in the real libggml-base.
// cgo is not allowed in tests, so a small C program calls the library.

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/gguf"
)

// ggmlProbe compiles the C program and returns a function that runs it on the library and returns
// its lines.
func ggmlProbe(t *testing.T) func(args ...string) ([]string, error) {
	t.Helper()
	lib := filepath.Join(llamatest.ForTest(t).Dir, "libggml-base.so")
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not installed, the program that asks libggml-base cannot be built")
	}
	probe := filepath.Join(t.TempDir(), "ggmlprobe")
	if out, err := exec.Command(gcc, "-O1", "-Wall", "-Werror", "-o", probe, "testdata/ggmlprobe.c",
		"-ldl").CombinedOutput(); err != nil {
		t.Fatalf("compile ggmlprobe: %v\n%s", err, out)
	}
	return func(args ...string) ([]string, error) {
		cmd := exec.Command(probe, append([]string{lib}, args...)...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("ggmlprobe %s: %w: %s", strings.Join(args, " "), err, stderr.Bytes())
		}
		return strings.Split(strings.TrimSpace(stdout.String()), "\n"), nil
	}
}

var typeRange = regexp.MustCompile(`should be in \[0, (\d+)\)`)

// ggmlTypes returns a line per type that the library knows. The library shows how many there are
// only when it refuses a file.
func ggmlTypes(t *testing.T, probe func(...string) ([]string, error)) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "beyond.gguf")
	if err := os.WriteFile(path, gguf.OfTypes([]gguf.Type{1 << 30}), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := probe("map", path)
	if err == nil {
		t.Fatal("ggml takes type 2^30")
	}
	count := typeRange.FindStringSubmatch(err.Error())
	if count == nil {
		t.Skipf("this ggml does not say how many types it knows: %v", err)
	}
	lines, err := probe("types", count[1])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestTypesAgainstGGML(t *testing.T) {
	known := map[gguf.Type]bool{}
	for _, line := range ggmlTypes(t, ggmlProbe(t)) {
		var typ gguf.Type
		var elems, bytes int64
		var name string
		if _, err := fmt.Sscan(line, (*uint32)(&typ), &elems, &bytes, &name); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		known[typ] = true
		if !typ.Valid() {
			t.Errorf("ggml knows type %d (%s, %d elements in %d bytes), this package does not", uint32(typ), name,
				elems, bytes)
			continue
		}
		if !strings.EqualFold(typ.String(), name) || typ.BlockElems() != elems || typ.BlockBytes() != bytes {
			t.Errorf("type %d is %v, %d elements in %d bytes; ggml says %s, %d in %d",
				uint32(typ), typ, typ.BlockElems(), typ.BlockBytes(), name, elems, bytes)
		}
	}
	if len(known) < 30 {
		t.Errorf("ggml told %d types", len(known))
	}
	for typ := gguf.Type(0); typ < 64; typ++ {
		if typ.Valid() && !known[typ] {
			t.Logf("this ggml does not know %v: not compared", typ)
		}
	}
}

// compareWithGGML checks that ggml reads the same extents from the file at path.
func compareWithGGML(t *testing.T, probe func(...string) ([]string, error), path string) {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := probe("map", path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(f.DataOffset, f.Alignment, len(f.Tensors)), lines[0]; got != want {
		t.Fatalf("data offset, alignment, tensors %s; ggml says %s", got, want)
	}
	for _, line := range lines[1:] {
		var offset, size int64
		var typ gguf.Type
		var name string
		if _, err := fmt.Sscan(line, &offset, &size, (*uint32)(&typ), &name); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		x, ok := f.Lookup(name)
		if !ok {
			t.Errorf("no tensor %q", name)
			continue
		}
		if x.Offset != f.DataOffset+offset || x.Size != size || x.Type != typ {
			t.Errorf("%s: %d bytes of %v at %d; ggml says %d of %v at %d", name, x.Size, x.Type, x.Offset, size, typ,
				f.DataOffset+offset)
		}
	}
}

func TestEveryTypeAgainstGGML(t *testing.T) {
	probe := ggmlProbe(t)
	var known []gguf.Type
	for _, line := range ggmlTypes(t, probe) {
		var typ gguf.Type
		if _, err := fmt.Sscan(line, (*uint32)(&typ)); err != nil {
			t.Fatal(err)
		}
		known = append(known, typ)
	}
	path := filepath.Join(t.TempDir(), "types.gguf")
	if err := os.WriteFile(path, gguf.OfTypes(known), 0o644); err != nil {
		t.Fatal(err)
	}
	compareWithGGML(t, probe, path)
}

// llama.cpp's own cases are accepted and refused as they say there.
func TestHandcraftedAgainstGGML(t *testing.T) {
	probe := ggmlProbe(t)
	path := filepath.Join(t.TempDir(), "m.gguf")
	for _, h := range gguf.Handcrafteds() {
		if err := os.WriteFile(path, h.Bytes, 0o644); err != nil {
			t.Fatal(err)
		}
		how := "map"
		if h.Data {
			how = "load"
		}
		_, err := probe(how, path)
		as := (err == nil) == h.GGML && (err == nil || !strings.Contains(err.Error(), "signal: "))
		switch {
		case !as && h.Varies != "":
			t.Logf("%s: of some versions of ggml it is known that %s: %v", h.Name, h.Varies, err)
		case !as:
			t.Errorf("%s: ggml says %v, want that it accepts it: %v", h.Name, err, h.GGML)
		}
	}
}

// models returns the trained models beside the repository, or skips the test.
func models(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", "..", "shared", "data", "models", "*.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Skip("no models in ../shared/data/models")
	}
	return paths
}

func TestModelsAgainstGGML(t *testing.T) {
	paths := models(t)
	probe := ggmlProbe(t)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) { compareWithGGML(t, probe, path) })
	}
}

// In a file of a well-behaved writer, tensors follow each other with nothing but padding between
// them, up to the end of the file.
func TestModels(t *testing.T) {
	for _, path := range models(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f, err := gguf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			next := f.DataOffset
			layers, experts := 0, 0
			for i := range f.Tensors {
				x := &f.Tensors[i]
				if x.Offset%f.Alignment != 0 || x.Offset != next {
					t.Errorf("%s begins at %d, the space before it ends at %d", x.Name, x.Offset, next)
				}
				next = (x.End() + f.Alignment - 1) / f.Alignment * f.Alignment
				layers = max(layers, x.Layer()+1)
				experts = max(experts, x.Experts())
			}
			if f.Size != next {
				t.Errorf("the last tensor's padding ends at %d, the file at %d", next, f.Size)
			}
			arch, _ := f.String("general.architecture")
			if n, ok := f.Uint(arch + ".block_count"); !ok || n != uint64(layers) {
				t.Errorf("%d layers, %s.block_count says %d", layers, arch, n)
			}
			if n, _ := f.Uint(arch + ".expert_count"); n != uint64(experts) {
				t.Errorf("%d experts, %s.expert_count says %d", experts, arch, n)
			}
			if tokens, err := f.Strings("tokenizer.ggml.tokens"); err != nil || tokens[0] != "<unk>" {
				t.Errorf("tokens %.3q", tokens)
			}
		})
	}
}
