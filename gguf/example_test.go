package gguf_test

// This file has the example of the package documentation.

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"tensorcast/experiments/synth"
	"tensorcast/gguf"
)

// This example finds out where a tensor lies in its file, and which tensor a byte of the file
// belongs to.
func ExampleOpenModel() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "model.gguf")
	if err := small(path); err != nil {
		fmt.Println(err)
		return
	}

	m, err := gguf.OpenModel(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	at, _ := m.Lookup("blk.1.ffn_up_exps.weight")
	t := at.Tensor
	fmt.Println(t.Name, t.Type, t.Shape, t.Size, "bytes; experts:", t.Experts())
	third, _ := m.Locate(at.File, t.Offset+2*t.ExpertStride())
	fmt.Println("expert", third.Expert, "of layer", third.Tensor.Layer())
	// Output:
	// blk.1.ffn_up_exps.weight Q8_0 [64 96 4] 26112 bytes; experts: 4
	// expert 2 of layer 1
}

// small writes a model with experts and random weights.
func small(path string) error {
	plan, err := synth.NewPlan(synth.Config{
		Layers: 2, Embd: 64, FF: 96, Heads: 2, KVHeads: 2, Experts: 4, Used: 2, Type: gguf.Q8_0,
	})
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := plan.Write(context.Background(), &b, nil); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o600)
}
