package main

// This file bounds the memory that the command takes for hostile files.

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tensorcast/gguf"
)

// hostile writes GGUF files that are small on disk and claim to have much content.
type hostile struct {
	t    *testing.T
	file *os.File
	w    *bufio.Writer
	off  int64
	b    []byte
}

func newHostile(t *testing.T, path string, tensors, entries int) *hostile {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{t: t, file: file, w: bufio.NewWriter(file)}
	le := binary.LittleEndian
	b := le.AppendUint32([]byte("GGUF"), 3)
	b = le.AppendUint64(b, uint64(tensors))
	h.write(le.AppendUint64(b, uint64(entries)))
	return h
}

func (h *hostile) write(b []byte) {
	h.off += int64(len(b))
	if _, err := h.w.Write(b); err != nil {
		h.t.Fatal(err)
	}
}

// hole leaves a hole of n bytes in the file.
func (h *hostile) hole(n int64) {
	h.off += n
	if err := h.w.Flush(); err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.file.Seek(h.off, 0); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hostile) name(s string) []byte {
	return append(binary.LittleEndian.AppendUint64(h.b[:0], uint64(len(s))), s...)
}

// entry writes the beginning of a metadata entry. The caller writes its value, or leaves a hole.
func (h *hostile) entry(key string, t gguf.ValueType, length uint64) {
	le := binary.LittleEndian
	h.write(le.AppendUint64(le.AppendUint32(h.name(key), uint32(t)), length))
}

// array writes the beginning of a metadata entry that is an array of n elements.
func (h *hostile) array(key string, elem gguf.ValueType, n uint64) {
	le := binary.LittleEndian
	b := le.AppendUint32(h.name(key), uint32(gguf.ValueArray))
	b = le.AppendUint32(b, uint32(elem))
	h.write(le.AppendUint64(b, n))
}

// tensor writes the record of a tensor of bytes.
func (h *hostile) tensor(name string, offset uint64, dims ...uint64) {
	le := binary.LittleEndian
	b := le.AppendUint32(h.name(name), uint32(len(dims)))
	for _, n := range dims {
		b = le.AppendUint64(b, n)
	}
	h.write(le.AppendUint64(le.AppendUint32(b, uint32(gguf.I8)), offset))
}

// end completes the header, adds data zero bytes, and closes the file.
func (h *hostile) end(data int64) {
	if err := h.w.Flush(); err != nil {
		h.t.Fatal(err)
	}
	if err := h.file.Truncate((h.off+31)/32*32 + data); err != nil {
		h.t.Fatal(err)
	}
	if err := h.file.Close(); err != nil {
		h.t.Fatal(err)
	}
}

// With any file, ggufmap takes less than 256 MB of memory in all modes. (The kernel's figure
// includes the memory of this process when it started the command.)
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("not with -short: it takes ten seconds")
	}
	const limit = 256e6
	files := map[string]func(path string){
		"string": func(path string) { // of NULs, each of which is six bytes of JSON
			h := newHostile(t, path, 1, 1)
			h.entry("k", gguf.ValueString, 255<<20)
			h.hole(255 << 20)
			h.tensor("x", 0, 32)
			h.end(32)
		},
		"text": func(path string) { // as long as a cell of Parquet may be
			h := newHostile(t, path, 0, 1)
			h.entry("k", gguf.ValueString, 15<<20)
			for range 15 << 10 {
				h.write([]byte(strings.Repeat("0123456789abcdef", 64)))
			}
			h.end(0)
		},
		"arrays": func(path string) {
			h := newHostile(t, path, 0, 4000)
			for i := range 4000 {
				h.array(fmt.Sprint(i), gguf.ValueUint8, 64<<10)
				h.hole(64 << 10)
			}
			h.end(0)
		},
		"strings": func(path string) {
			h := newHostile(t, path, 0, 1)
			h.array("tokenizer.ggml.tokens", gguf.ValueString, 255<<17)
			h.hole(255 << 20)
			h.end(0)
		},
		"keys": func(path string) {
			const n = 500_000
			h := newHostile(t, path, 0, n)
			for i := range n {
				key := h.name(fmt.Sprintf("%05x", i))
				h.write(append(binary.LittleEndian.AppendUint32(key, uint32(gguf.ValueUint8)), 1))
			}
			h.end(0)
		},
		"tensors": func(path string) { // each in a layer of its own, with its own component and a gap behind it
			const n = 200_000
			h := newHostile(t, path, n, 0)
			for i := range uint64(n) {
				h.tensor(fmt.Sprintf("blk.%d.%x", 2*i, i), 64*i, 1)
			}
			h.end(64 * n)
		},
		"long names": func(path string) {
			const n = 400
			h := newHostile(t, path, n, 0)
			for i := range uint64(n) {
				h.tensor(fmt.Sprintf("blk.%d.%065000x", 2*i, i), 64*i, 1)
			}
			h.end(64 * n)
		},
		"experts": func(path string) {
			h := newHostile(t, path, 1, 0)
			h.tensor("blk.0.ffn_up_exps.weight", 0, 1, 1, 2e6)
			h.end(2e6)
		},
	}
	// Each kind of file is run in the modes that take most memory or time for it. Modes that would
	// do the same are left out.
	runs := map[string][]string{
		"string":     {"", "--metadata --format json", "--metadata --format parquet"},
		"text":       {"--metadata --format parquet"},
		"arrays":     {"", "--metadata", "--metadata --elements 1000 --format json", "--metadata --format parquet"},
		"strings":    {"", "--metadata --elements -1 --format json", "--metadata --elements -1 --format parquet"},
		"keys":       {"", "--metadata"},
		"tensors":    {"--format json", "--wide --format parquet", "--wide", "--summary", "--check"},
		"long names": {"--format json", "--wide --format parquet", "--summary", "--check --format json"},
		"experts":    {"--experts"},
	}
	dir := t.TempDir()
	for name, modes := range runs {
		path := filepath.Join(dir, name+".gguf")
		files[name](path)
		for _, mode := range modes {
			cmd := exec.Command(ggufmap, append(strings.Fields(mode), path, "-o", "/dev/null")...)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil {
				t.Fatal(err)
			}
			used := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
			t.Logf("%-10s %-44s %4d MB %5.2f s  exit %d %.200s", name, mode, used/1e6,
				cmd.ProcessState.UserTime().Seconds(), cmd.ProcessState.ExitCode(), out)
			if used >= limit {
				t.Errorf("%s %s: %d MB, want less than %d MB", name, mode, used/1e6, int64(limit/1e6))
			}
			tooLong := strings.Contains(string(out), "use --format csv or json")
			if want := strings.Contains(mode, "parquet") && (name == "string" || name == "strings"); tooLong != want {
				t.Errorf("%s %s: %s; want the advice to use csv or json: %v", name, mode, out, want)
			}
			if code := cmd.ProcessState.ExitCode(); code != 0 && !tooLong && !strings.Contains(mode, "--check") {
				t.Errorf("%s %s: exit %d, want 0: %s", name, mode, code, out)
			}
		}
	}
}
