package gguftest

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"tensorcast/gguf"
)

// WriteImatrix writes an importance matrix to a new file, as llama.cpp's llama-imatrix does, and returns its path.
// counts are how many tokens each expert got, by the name of the weight. kind is the file's general.type: "imatrix",
// unless it is to be another.
func WriteImatrix(tb testing.TB, kind string, counts map[string][]float32) (path string) {
	tb.Helper()
	m := &Model{KVs: []KV{{Key: "general.type", Value: kind}, {Key: "imatrix.chunk_count", Value: uint32(3)}}}
	for name, values := range counts {
		n := int64(len(values))
		m.Tensors = append(m.Tensors,
			Tensor{Name: name + ".in_sum2", Type: gguf.F32, Shape: []int64{8, n}},
			Tensor{Name: name + ".counts", Type: gguf.F32, Shape: []int64{1, n}})
	}
	path = filepath.Join(tb.TempDir(), "imatrix.gguf")
	m.Write(tb, path)
	f, err := gguf.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	for name, values := range counts {
		at, _ := f.Lookup(name + ".counts")
		for i, v := range values {
			binary.LittleEndian.PutUint32(b[at.Offset+4*int64(i):], math.Float32bits(v))
		}
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}
