package gguf_test

// This file compares the package with what a real llama.cpp reads.

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
)

// Each weight that an op reads lies where OpenModel says: in the file that is mapped at its
// address, and at the same offset. This holds for a model in one file and for the same model in
// parts. (The driver takes file and offset from /proc/self/maps.)
func TestModelAgainstLlama(t *testing.T) {
	in := llamatest.ForTest(t)
	whole := llamatest.Model(t, synth.Config{
		Layers: 3, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Experts: 8, Used: 3, Type: gguf.Q8_0, Seed: 2,
	})
	b, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for i, part := range gguf.Split(t, b, 3) {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("m-%05d-of-00003.gguf", i+1)), part, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, path := range map[string]string{
		"one file": whole, "three files": filepath.Join(dir, "m-00001-of-00003.gguf"),
	} {
		t.Run(name, func(t *testing.T) {
			path, err := filepath.EvalSymlinks(path) // as the kernel calls it
			if err != nil {
				t.Fatal(err)
			}
			m, err := gguf.OpenModel(path)
			if err != nil {
				t.Fatal(err)
			}
			o := llama.Options{
				Model: path, Prompt: "aaaa", Tokens: 3, Threads: 1, NoRepack: true, Warmup: "all",
				Ops: filepath.Join(t.TempDir(), "ops.jsonl"),
			}
			if _, err := in.Run(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			ops, err := llama.ReadOps(o.Ops)
			if err != nil {
				t.Fatal(err)
			}
			read := map[gguf.Location]bool{}
			for _, op := range ops {
				want, ok := m.Lookup(op.Tensor)
				if !ok {
					t.Fatalf("op %s reads %s, which the model does not have", op.Name, op.Tensor)
				}
				if op.File != m.Files[want.File].Path || op.Offset != want.Tensor.Offset {
					t.Errorf("%s reads %s at byte %d of %s, the map has it at %d of %s", op.Name, op.Tensor,
						op.Offset, op.File, want.Tensor.Offset, m.Files[want.File].Path)
				}
				got, ok := m.Locate(want.File, op.Offset)
				if !ok || got.Tensor != want.Tensor || (got.Expert == 0) != (op.Op == "MUL_MAT_ID") {
					t.Errorf("%s (%s) reads %s, byte %d is in %+v", op.Name, op.Op, op.Tensor, op.Offset, got)
				}
				read[want] = true
			}
			if len(read) != m.Tensors() {
				t.Errorf("%d of %d tensors were read", len(read), m.Tensors())
			}
		})
	}
}
