package gguf

// These benchmarks and tests measure parsing: time, allocations and memory.

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"tensorcast/internal/testenv"
)

// vocabulary is the metadata of a model with the largest vocabularies of the field: 262k tokens and
// 515k merges.
func vocabulary() *model {
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []byte {
		var elems []byte
		word := make([]byte, 20)
		for range n {
			w := word[:1+rng.IntN(len(word)-1)]
			for i := range w {
				w[i] = 'a' + byte(rng.IntN(26))
			}
			elems = append(elems, str(string(w))...)
		}
		return array(ValueString, uint64(n), elems)
	}
	const tokens, merges = 262144, 515000
	m := small()
	m.kvs[14].value = random(tokens)
	m.kvs[15].value = array(ValueFloat32, tokens, make([]byte, 4*tokens))
	m.kvs = append(m.kvs, kvSpec{"tokenizer.ggml.merges", ValueArray, random(merges)})
	for i := range 500 {
		m.tensors = append(m.tensors, tensorSpec{name: fmt.Sprintf("blk.%d.x", i), dims: []uint64{32, 4}, typ: F16})
	}
	return m
}

func BenchmarkOpenVocabulary(b *testing.B) {
	data := vocabulary().encode()
	path := filepath.Join(b.TempDir(), "v.gguf")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(mustParse(b, data).DataOffset)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Open(path); err != nil {
			b.Fatal(err)
		}
	}
}

func TestVocabulary(t *testing.T) {
	testenv.SkipWithRace(t)
	b := vocabulary().encode()
	f := mustParse(t, b)
	checkInvariants(t, f)
	// This is far more than one piece. Every token must be returned as it is in the file.
	tokens, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil {
		t.Fatal(err)
	}
	var joined []byte
	for _, token := range tokens {
		joined = append(joined, str(token)...)
	}
	if len(tokens) != 262144 || !bytes.Contains(b, joined) {
		t.Errorf("%d tokens differ from the file's", len(tokens))
	}
}

// A vocabulary costs one allocation per tensor and a few more, and no copy of the file.
func TestVocabularyMemory(t *testing.T) {
	testenv.SkipWithRace(t)
	b := vocabulary().encode()
	var f *File
	allocs := testing.AllocsPerRun(1, func() { f = mustParse(t, b) })
	if limit := float64(len(f.Tensors) + 1000); allocs >= limit {
		t.Errorf("%v allocations for %d tensors", allocs, len(f.Tensors))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	mustParse(t, b)
	runtime.ReadMemStats(&after)
	// The sum of all allocations is an upper bound of the memory in use.
	if used := after.TotalAlloc - before.TotalAlloc; used >= uint64(f.DataOffset)/10 {
		t.Errorf("%d bytes allocated for %d bytes of metadata", used, f.DataOffset)
	}
}

// Opening for access to the weights takes the same time, whatever their size.
func BenchmarkOpenWeights(b *testing.B) {
	for _, size := range []int64{1 << 30, 1 << 40} {
		b.Run(fmt.Sprintf("%dGiB", size>>30), func(b *testing.B) {
			path := sparseModel(b, size)
			b.ReportAllocs()
			for b.Loop() {
				m, err := OpenModel(path)
				if err != nil {
					b.Fatal(err)
				}
				w, err := OpenWeights(m, 0)
				if err != nil {
					b.Fatal(err)
				}
				if err := w.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
