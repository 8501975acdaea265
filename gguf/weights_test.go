package gguf

// These tests read weights through mappings: their bytes, their values, the cache of these, and
// files that change while they are mapped.

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
)

// weightsModel has tensors of several pages and types, random weights, and two parts.
func weightsModel(t testing.TB) (paths []string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	dir := t.TempDir()
	for i := range 2 {
		m := &model{version: 3, alignment: 32, kvs: []kvSpec{
			{splitNoKey, ValueUint16, u16(uint16(i))},
			{splitCountKey, ValueUint16, u16(2)},
		}}
		for j := range 3 {
			layer := 3*i + j
			m.tensors = append(m.tensors,
				tensorSpec{name: fmt.Sprintf("blk.%d.attn_norm.weight", layer), dims: []uint64{100}, typ: F32},
				tensorSpec{name: fmt.Sprintf("blk.%d.attn_q.weight", layer), dims: []uint64{256, 100}, typ: Q8_0},
				tensorSpec{
					name: fmt.Sprintf("blk.%d.ffn_up_exps.weight", layer), dims: []uint64{256, 30, 4}, typ: Q4_0,
				},
			)
		}
		b := m.encode()
		for k := mustParse(t, b).DataOffset; k < int64(len(b)); k++ {
			b[k] = byte(rng.Uint32())
		}
		path := filepath.Join(dir, fmt.Sprintf("w-%05d-of-00002.gguf", i+1))
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func openWeights(t testing.TB, path string, cacheBytes int64) *Weights {
	t.Helper()
	m, err := OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := OpenWeights(m, cacheBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// handles returns a handle of every tensor and of every expert.
func (w *Weights) handles() (all []Weight) {
	for i, f := range w.Model.Files {
		for j := range f.Tensors {
			x := &f.Tensors[j]
			for e := -1; e < x.Experts(); e++ {
				all = append(all, w.At(Location{x, e, i}))
			}
		}
	}
	return all
}

func TestWeights(t *testing.T) {
	paths := weightsModel(t)
	w := openWeights(t, paths[1], 1<<20)
	all := w.handles()
	if len(all) != 6*(3+4) {
		t.Fatalf("%d handles", len(all))
	}
	for _, h := range all {
		file, err := os.ReadFile(paths[h.extent.file])
		check(t, err)
		off, size := h.Tensor.Offset, h.Tensor.Size
		if h.Expert >= 0 {
			size /= 4
			off += int64(h.Expert) * size
		}
		want := file[off : off+size]
		got, err := h.Bytes()
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s, expert %d: bytes differ, %v", h.Tensor.Name, h.Expert, err)
		}
		err = h.View(func(b []byte) error {
			if &b[0] != &got[0] || len(b) != len(got) || cap(b) != len(b) {
				t.Errorf("%s: View sees other bytes", h.Tensor.Name)
			}
			return fs.ErrInvalid
		})
		if !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), h.Tensor.Name) {
			t.Errorf("error %v, want %v", err, fs.ErrInvalid)
		}
		floats := make([]float32, size/h.Tensor.Type.BlockBytes()*h.Tensor.Type.BlockElems())
		check(t, Dequantize(floats, h.Tensor.Type, want))
		v, err := h.Float32()
		check(t, err)
		if !slices.EqualFunc(v.Data, floats, func(a, b float32) bool { return a == b || a != a && b != b }) {
			t.Errorf("%s, expert %d: values differ", h.Tensor.Name, h.Expert)
		}
		v.Release()
		check(t, h.Prefetch())
	}
	if h, ok := w.Lookup("blk.5.attn_q.weight"); !ok || h.Expert != -1 || h.extent.file != 1 {
		t.Errorf("%+v, want the whole tensor in the second file", h)
	}
	if _, ok := w.Lookup("blk.6.attn_q.weight"); ok {
		t.Error("found a tensor that is not there")
	}
	// There is no expert behind the last one.
	experts := all[len(all)-1].Tensor
	if h := w.At(Location{experts, experts.Experts(), 1}); h.Expert != -1 || h.extent.size != experts.Size {
		t.Errorf("expert %d of %d: %+v, want the whole tensor", experts.Experts(), experts.Experts(), h)
	}
}

// Advice takes whole pages only: what begins within a page is unmapped with the rest of that page.
func TestUnmapsWholePages(t *testing.T) {
	paths := weightsModel(t)
	f, err := Open(paths[0])
	check(t, err)
	m, err := mapFile(f)
	check(t, err)
	defer func() { check(t, m.close()) }()
	page := int64(os.Getpagesize())
	off, size := 3*page+5, 2*page
	// isMapped reads whether this process maps the page at an offset (bit 63: proc_pid_pagemap(5)).
	pagemap, err := os.Open("/proc/self/pagemap")
	check(t, err)
	defer pagemap.Close()
	isMapped := func(off int64) bool {
		var entry [8]byte
		at := int64(uintptr(unsafe.Pointer(&m.bytes[off]))) / page * 8
		if _, err := pagemap.ReadAt(entry[:], at); err != nil {
			t.Fatal(err)
		}
		return entry[7]&0x80 != 0
	}
	bytes.Clone(m.bytes[3*page : 6*page])
	if !isMapped(3*page) || !isMapped(5*page) {
		t.Fatal("pages that were touched are not mapped")
	}
	m.unmapPages(off, size)
	if isMapped(3*page) || isMapped(4*page) || isMapped(5*page) {
		t.Error("pages of what was unmapped are still mapped")
	}
}

// A tensor larger than what is dequantised at once.
func TestWeightsInPieces(t *testing.T) {
	m := &model{version: 3, alignment: 32, tensors: []tensorSpec{{name: "x", dims: []uint64{256, 3001}, typ: Q6_K}}}
	b := m.encode()
	f := mustParse(t, b)
	rng := rand.New(rand.NewPCG(5, 6))
	for i := f.DataOffset; i < f.Size; i++ {
		b[i] = byte(rng.Uint32()) & 0x3f // finite scales
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	check(t, os.WriteFile(path, b, 0o644))
	w := openWeights(t, path, 4<<20)
	h, _ := w.Lookup("x")
	v, err := h.Float32()
	check(t, err)
	want := make([]float32, 256*3001)
	check(t, Dequantize(want, Q6_K, b[f.DataOffset:f.Tensors[0].End()]))
	if h.extent.size < 4*prefetchBytes || !slices.Equal(v.Data, want) {
		t.Error("values differ")
	}
}

func TestFloat32Cache(t *testing.T) {
	const norm, q = 4 * 100, 4 * 256 * 100 // bytes of values
	w := openWeights(t, weightsModel(t)[0], 2*q+norm)
	get := func(name string) *Floats {
		t.Helper()
		h, ok := w.Lookup(name)
		if !ok {
			t.Fatalf("no %s", name)
		}
		v, err := h.Float32()
		check(t, err)
		return v
	}
	a, b := get("blk.0.attn_q.weight"), get("blk.1.attn_q.weight")
	if again := get("blk.0.attn_q.weight"); &again.Data[0] != &a.Data[0] {
		t.Error("a cached tensor was computed again")
	} else {
		again.Release()
		again.Release() // does nothing
	}
	h, _ := w.Lookup("blk.2.attn_q.weight")
	if _, err := h.Float32(); !errors.Is(err, ErrCacheFull) || !strings.Contains(err.Error(), "blk.2.attn_q.weight") {
		t.Errorf("values that are held were evicted: %v", err)
	}
	n := get("blk.0.attn_norm.weight") // there is room for this one
	firstA, firstB := &a.Data[0], &b.Data[0]
	want := a.Data[7]
	b.Release()
	a.Release()
	if a.Data != nil {
		t.Error("released values can still be used")
	}
	if again := get("blk.0.attn_q.weight"); &again.Data[0] != firstA || again.Data[7] != want {
		t.Error("released values are not cached")
	} else {
		again.Release()
	}
	c := get("blk.2.attn_q.weight") // b was released longest ago
	if &c.Data[0] != firstB {
		t.Error("the evicted buffer was not used again")
	}
	if again := get("blk.0.attn_q.weight"); &again.Data[0] != firstA {
		t.Error("the tensor that was released last was evicted")
	} else {
		again.Release()
	}
	// The experts' slices are smaller. A buffer of another size is not used for them, but dropped
	// to make room.
	h, _ = w.Lookup("blk.0.ffn_up_exps.weight")
	h = w.At(Location{h.Tensor, 3, 0})
	v, err := h.Float32()
	check(t, err)
	if len(v.Data) != 256*30 {
		t.Errorf("%d values", len(v.Data))
	}
	for _, v := range []*Floats{v, c, n} {
		v.Release()
	}
	if w.cache.used > w.cache.limit {
		t.Errorf("%d bytes of %d", w.cache.used, w.cache.limit)
	}
	// All four slices in one are larger than the cache.
	h, _ = w.Lookup("blk.0.ffn_up_exps.weight")
	if v, err := h.Float32(); err != nil {
		t.Error(err)
	} else {
		v.Release()
	}
	small := openWeights(t, w.Model.Files[0].Path, 4*256*30*4-1)
	h, _ = small.Lookup("blk.0.ffn_up_exps.weight")
	if _, err := h.Float32(); !errors.Is(err, ErrCacheFull) {
		t.Errorf("error %v, want %v", err, ErrCacheFull)
	}
}

// With any number of goroutines, values do not change while they are held, and memory stays bounded.
func TestWeightsConcurrently(t *testing.T) {
	const goroutines, limit = 8, 2 << 20
	w := openWeights(t, weightsModel(t)[0], limit)
	all := w.handles()
	want := make([][]float32, len(all))
	for i, h := range all {
		b, err := h.Bytes()
		check(t, err)
		want[i] = make([]float32, int64(len(b))/h.Tensor.Type.BlockBytes()*h.Tensor.Type.BlockElems())
		check(t, Dequantize(want[i], h.Tensor.Type, b))
	}
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 0))
			for range 200 {
				i := rng.IntN(len(all))
				v, err := all[i].Float32()
				if errors.Is(err, ErrCacheFull) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if !slices.EqualFunc(v.Data, want[i], func(a, b float32) bool { return a == b || a != a && b != b }) {
					t.Errorf("%s: values differ", all[i].Tensor.Name)
				}
				v.Release()
			}
		})
	}
	wg.Wait()
	total := int64(0)
	for _, e := range w.cache.entries {
		total += int64(cap(e.values)) * floatBytes
	}
	for _, b := range w.cache.free {
		total += int64(cap(b)) * floatBytes
	}
	if total != w.cache.used || total > limit || w.cache.idle.Len() != len(w.cache.entries) {
		t.Errorf("%d bytes, counted %d, limit %d; %d entries, %d of them idle", total, w.cache.used, limit,
			len(w.cache.entries), w.cache.idle.Len())
	}
}

func TestWeightsClose(t *testing.T) {
	paths := weightsModel(t)
	w := openWeights(t, paths[0], 1<<20)
	h, _ := w.Lookup("blk.0.attn_q.weight")
	v, err := h.Float32()
	check(t, err)
	inView, closed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(closed)
		<-inView
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	sum := 0
	check(t, h.View(func(b []byte) error {
		close(inView)
		// The mapping lives as long as this runs.
		for range 100 {
			for _, x := range b {
				sum += int(x)
			}
		}
		return nil
	}))
	<-closed
	if sum == 0 || len(v.Data) != 256*100 || v.Data[0] != v.Data[0] {
		t.Error("values are gone")
	}
	v.Release()
	_, err1 := h.Bytes()
	_, err2 := h.Float32()
	for _, err := range []error{err1, err2, h.Prefetch(), h.View(func([]byte) error { return nil })} {
		if !errors.Is(err, fs.ErrClosed) {
			t.Errorf("error %v, want %v", err, fs.ErrClosed)
		}
	}
	check(t, w.Close())
}

func TestOpenWeightsOfChangedFile(t *testing.T) {
	paths := weightsModel(t)
	m, err := OpenModel(paths[0])
	check(t, err)
	check(t, os.Truncate(paths[1], 5000))
	if _, err := OpenWeights(m, 0); !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), paths[1]) {
		t.Errorf("error %v, want %v", err, ErrChanged)
	}
	if _, err := OpenWeights(&Model{Files: []*File{mustParse(t, small().encode())}}, 0); err == nil {
		t.Error("mapped a model that is in no file")
	}
}

// If a file is cut short while it is mapped, reading the mapping gives an error and does not end
// the process.
func TestTruncatedUnderMapping(t *testing.T) {
	paths := weightsModel(t)
	w := openWeights(t, paths[0], 1<<20)
	h, _ := w.Lookup("blk.2.ffn_up_exps.weight") // the last in the file
	last := w.At(Location{h.Tensor, 3, 0})
	check(t, os.Truncate(paths[0], 8192))
	if _, err := h.Bytes(); !errors.Is(err, ErrTruncated) {
		t.Errorf("error %v, want %v", err, ErrTruncated)
	}
	sum := 0
	deferred := false
	err := h.View(func(b []byte) error {
		defer func() { deferred = true }()
		for _, x := range b {
			sum += int(x)
		}
		return nil
	})
	if !errors.Is(err, ErrTruncated) || !strings.Contains(err.Error(), paths[0]+" has 8192 bytes now") || !deferred {
		t.Errorf("error %v, deferred calls ran: %v", err, deferred)
	}
	for range 2 { // an error is not cached
		if _, err := last.Float32(); !errors.Is(err, ErrTruncated) {
			t.Errorf("error %v, want %v", err, ErrTruncated)
		}
	}
	if len(w.cache.entries) != 0 {
		t.Errorf("%d entries", len(w.cache.entries))
	}
	// The rest can still be read.
	first, _ := w.Lookup("blk.0.attn_norm.weight")
	if v, err := first.Float32(); err != nil {
		t.Error(err)
	} else {
		v.Release()
	}
}

// A panic of the caller's function is passed on.
func TestViewPanics(t *testing.T) {
	w := openWeights(t, weightsModel(t)[0], 0)
	h, _ := w.Lookup("blk.0.attn_q.weight")
	for name, do := range map[string]func([]byte) error{
		"panic":       func([]byte) error { panic("mine") },
		"nil pointer": func([]byte) error { var p *int; *p = 1; return nil },
		"index":       func(b []byte) error { n := len(b); b[n] = 1; return nil },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			_ = h.View(do)
		}()
	}
	check(t, w.Close()) // the panics have left
}

func TestFloat32Unsupported(t *testing.T) {
	for name, m := range map[string]*model{
		"big endian": {
			version: 3, big: true, alignment: 32, tensors: []tensorSpec{{name: "x", dims: []uint64{32}, typ: F32}},
		},
		"no decoder": {version: 3, alignment: 32, tensors: []tensorSpec{{name: "x", dims: []uint64{32}, typ: I64}}},
	} {
		path := filepath.Join(t.TempDir(), "m.gguf")
		check(t, os.WriteFile(path, m.encode(), 0o644))
		h, _ := openWeights(t, path, 1<<20).Lookup("x")
		if _, err := h.Float32(); !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, ErrNoDecoder) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// sparseModel makes a model of about size bytes that takes no space.
func sparseModel(t testing.TB, size int64) string {
	t.Helper()
	m := &model{
		version: 3, alignment: 32,
		tensors: []tensorSpec{
			{name: "blk.0.ffn_up_exps.weight", dims: []uint64{1 << 20, uint64(size >> 28), 256}, typ: I8},
		},
	}
	b, data := m.meta()
	path := filepath.Join(t.TempDir(), "huge.gguf")
	check(t, os.WriteFile(path, b, 0o644))
	err := os.Truncate(path, int64(len(b)+32)+data)
	if errors.Is(err, unix.EFBIG) || errors.Is(err, unix.EINVAL) {
		t.Skipf("the file system does not hold files of %d bytes: %v", size, err)
	}
	check(t, err)
	return path
}

// What opening a model costs, and what of it is in memory afterwards, does not depend on its size.
func TestOpeningTouchesNoWeights(t *testing.T) {
	var allocs [2]float64
	for i, size := range []int64{1 << 30, 1 << 40} {
		path := sparseModel(t, size)
		w := openWeights(t, path, 1<<20)
		f := w.Model.Files[0]
		if f.Size < size || w.Model.Tensors() != 1 {
			t.Fatalf("%d bytes, %d tensors", f.Size, w.Model.Tensors())
		}
		l, ok := w.Model.Locate(0, f.DataOffset+size-1)
		if !ok || l.Expert != 255 {
			t.Fatalf("the last byte is in %+v", l)
		}
		file, err := os.Open(path)
		check(t, err)
		resident, err := pagecache.Resident(file, 0, f.Size)
		if err != nil || resident > pieceBytes+4096 {
			t.Errorf("%d bytes of %d are in memory, %v", resident, f.Size, err)
		}
		if b, err := w.At(l).Bytes(); err != nil || int64(len(b)) != size/256 || b[len(b)-1] != 0 {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		if n, err := pagecache.Resident(file, 0, f.Size); err != nil || n <= resident || n > resident+64<<10 {
			t.Errorf("after one was touched, %d bytes are in memory, %v", n, err)
		}
		check(t, file.Close())
		if _, err := w.At(Location{l.Tensor, -1, 0}).Float32(); !errors.Is(err, ErrCacheFull) {
			t.Errorf("error %v, want %v", err, ErrCacheFull)
		}
		allocs[i] = testing.AllocsPerRun(10, func() {
			m, err := OpenModel(path)
			check(t, err)
			w, err := OpenWeights(m, 1<<20)
			check(t, err)
			check(t, w.Close())
		})
	}
	if math.Abs(allocs[0]-allocs[1]) > 2 { // the runtime allocates now and then, too
		t.Errorf("%v allocations for 1 GiB, %v for 1 TiB", allocs[0], allocs[1])
	}
}
