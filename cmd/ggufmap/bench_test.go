package main

// This file measures the time that the whole command takes.

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/gguf/gguftest"
)

// BenchmarkProcess times the whole command on a mixture of experts with 5000 tensors and a usual
// vocabulary.
func BenchmarkProcess(b *testing.B) {
	m := gguftest.MoE(666, 128)
	var tokens, merges []string
	for i := range 152_000 {
		tokens = append(tokens, fmt.Sprintf("token%d", i))
		merges = append(merges, fmt.Sprintf("tok en%d", i))
	}
	m.KVs = append(m.KVs, gguftest.KV{Key: "tokens", Value: tokens}, gguftest.KV{Key: "merges", Value: merges})
	if len(m.Tensors) < 4990 || len(m.Tensors) > 5010 {
		b.Fatalf("%d tensors", len(m.Tensors))
	}
	path := filepath.Join(b.TempDir(), "m.gguf")
	m.Write(b, path)
	for _, args := range []string{
		"", "--wide", "--format json", "--format arrow", "--format parquet", "--summary", "--check", "--experts",
	} {
		b.Run(strings.ReplaceAll(args, " ", "="), func(b *testing.B) {
			for b.Loop() {
				cmd := exec.Command(ggufmap, append(strings.Fields(args), path)...)
				if out, err := cmd.CombinedOutput(); err != nil {
					b.Fatalf("%v: %.500s", err, out)
				}
			}
		})
	}
}
