package gguf

// This file parses files that were changed at random, with types that ggml does not know.

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// forksModel has tensors of types of all kinds, in order of their offsets.
func forksModel() *model {
	m := small()
	for i, typ := range []Type{144, 36, 142, 143, 999, 38, 31, 335, Q2_0, MXFP4, MaxNumber} {
		t := tensorSpec{name: string(rune('a' + i)), dims: []uint64{512, 8}, typ: typ}
		if i%3 == 0 {
			t.name = "blk.2.ffn_" + []string{"up", "down", "gate", "gate_up"}[i/3] + "_exps.weight"
			t.dims = []uint64{256, 4, 4}
		}
		var err error
		if t.bytes, err = typ.Bytes([]int64{int64(t.dims[0]), 16}); err != nil {
			t.bytes = int64(100 * (i + 1))
		}
		m.tensors = append(m.tensors, t)
	}
	return m
}

// typesAt are the positions of the types of a model's tensors, whose records begin at a byte of the file.
func (m *model) typesAt(records int) (all []int) {
	for _, t := range m.tensors {
		at := records + 8 + len(t.name) + 4 + 8*len(t.dims)
		all, records = append(all, at), at+4+8
	}
	return all
}

// mutate changes some bytes of a file, most of them in the records of its tensors.
func mutate(r *rand.Rand, b []byte, types []int, records, data int) []byte {
	b = bytes.Clone(b)
	numbers := []uint64{
		0, 1, 2, 4, 5, 31, 36, 39, 42, 142, 143, 144, 145, 399, 400, 999, 1 << 15, MaxNumber, MaxNumber + 1, 1 << 31,
		1 << 32, 1 << 40, 1 << 62, math.MaxInt64, math.MaxUint64, math.MaxUint64 - 31, uint64(len(b)),
		uint64(len(b) - data),
	}
	for range 1 + r.IntN(4) {
		from := records
		if r.IntN(8) == 0 {
			from = 0
		}
		at := from + r.IntN(data-from)
		switch r.IntN(12) {
		case 0:
			b[at] = byte(r.Uint32())
		case 1:
			b[at] ^= 1 << r.IntN(8)
		case 2:
			binary.LittleEndian.PutUint32(b[at:], uint32(numbers[r.IntN(len(numbers))]))
		case 3:
			binary.LittleEndian.PutUint64(b[at:], numbers[r.IntN(len(numbers))])
		case 4: // exchange numbers of two records
			other := from + r.IntN(data-from)
			for i := range 8 {
				b[at+i], b[other+i] = b[other+i], b[at+i]
			}
		default:
			binary.LittleEndian.PutUint32(b[types[r.IntN(len(types))]:], uint32(r.IntN(512)))
		}
	}
	if r.IntN(10) == 0 {
		b = b[:r.IntN(len(b))]
	}
	return b
}

// Ten thousand changed files end in an error or in a File that keeps its promises, and none takes much
// memory. Opening them from disk and asking for their weights does neither.
func TestMutations(t *testing.T) {
	const (
		count = 10_000
		limit = 500 << 20
	)
	base := forksModel()
	whole := base.encode()
	sound := mustParse(t, whole)
	checkInvariants(t, sound)
	own := *base
	own.tensors = nil
	kvs, _ := own.meta()
	r := rand.New(rand.NewPCG(42, 0))
	path := filepath.Join(t.TempDir(), "m.gguf")
	var accepted, opaque int
	var before, after runtime.MemStats
	for i := range count {
		b := mutate(r, whole, base.typesAt(len(kvs)), len(kvs), int(sound.DataOffset))
		runtime.ReadMemStats(&before)
		f, err := Parse(bytes.NewReader(b), int64(len(b)))
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > limit {
			t.Fatalf("file %d: %d bytes allocated", i, n)
		}
		if err != nil {
			continue
		}
		accepted++
		checkInvariants(t, f)
		for j := range f.Tensors {
			if f.Tensors[j].Opaque() {
				opaque++
			}
		}
		if i%20 == 0 {
			check(t, os.WriteFile(path, b, 0o600))
			useWeights(t, path)
		}
	}
	if accepted < count/10 || opaque < count/10 {
		t.Errorf("%d of %d files were accepted, with %d opaque tensors: too few to tell", accepted, count, opaque)
	}
	t.Logf("%d of %d files were accepted, with %d opaque tensors; the heap had %d MiB at most", accepted, count, opaque,
		after.HeapSys>>20)
	if after.Sys > limit {
		t.Errorf("the process has taken %d MiB", after.Sys>>20)
	}
}

// useWeights opens a model and asks for the bytes and values of each tensor, and of each expert's slice.
func useWeights(t *testing.T, path string) {
	t.Helper()
	m, err := OpenPart(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := OpenWeights(m, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { check(t, w.Close()) }()
	for i := range m.Files[0].Tensors {
		x := &m.Files[0].Tensors[i]
		for _, expert := range []int{-1, 0, x.Experts() - 1} {
			h := w.At(Location{Tensor: x, Expert: expert})
			b, err := h.Bytes()
			if err != nil || int64(len(b)) > x.Size {
				t.Fatalf("%q, expert %d: %d bytes of %d, %v", x.Name, expert, len(b), x.Size, err)
			}
			if v, err := h.Float32(); err == nil {
				v.Release()
			} else if x.Type.Valid() && decoder(x.Type) != nil && !m.Files[0].BigEndian && x.Size < 1<<18 {
				t.Fatalf("%q, expert %d: %v", x.Name, expert, err)
			}
			check(t, h.Prefetch())
		}
	}
}
