// Package ggmltest lets tests and benchmarks compare with the real ggml: the dot products and
// quantisers of libggml-cpu, called the rival.
//
// They run in a separate C program (rival.c, compiled by gcc for each test), which loads the
// library with dlopen and loops over rows itself. There are two reasons: this repository's tests
// are built without cgo, and calls from Go would cost the rival time.
package ggmltest

import (
	"bufio"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/gguf"
)

//go:embed rival.c
var source string

// Rival is the running C program. It is for one goroutine.
type Rival struct {
	Library string // file name of the library in use: the one that llama.cpp would choose on this processor

	in   io.WriteCloser
	out  *bufio.Reader
	cmd  *exec.Cmd
	errs strings.Builder
	rows int
}

type request struct {
	Op, Type          uint32
	Rows, Cols, Count uint64
}

const (
	opQuantize = 1 + iota
	opLoad
	opMultiply
	opRead
)

// ForTest starts a Rival that ends with the test. If that is impossible, it skips the test with the
// reason; in CI the test fails instead.
func ForTest(tb testing.TB) *Rival {
	tb.Helper()
	dir := llamatest.ForTest(tb).Dir
	program := filepath.Join(tb.TempDir(), "rival")
	gcc := exec.Command("gcc", "-std=gnu11", "-O2", "-Wall", "-x", "c", "-o", program, "-", "-ldl")
	gcc.Stdin = strings.NewReader(source)
	if out, err := gcc.CombinedOutput(); err != nil {
		if errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") == "" {
			tb.Skip("gcc is not installed, the program that calls libggml-cpu cannot be built")
		}
		tb.Fatalf("compile rival.c: %v\n%s", err, out)
	}
	cpu, err := filepath.Glob(filepath.Join(dir, "libggml-cpu*.so"))
	if err != nil || len(cpu) == 0 {
		tb.Fatalf("no libggml-cpu in %s (%v)", dir, err)
	}
	r := &Rival{cmd: exec.Command(program, append([]string{filepath.Join(dir, "libggml-base.so")}, cpu...)...)}
	r.cmd.Stderr = &r.errs
	out, err := r.cmd.StdoutPipe()
	if err == nil {
		r.in, err = r.cmd.StdinPipe()
	}
	if err == nil {
		err = r.cmd.Start()
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		r.in.Close()
		if err := r.cmd.Wait(); err != nil {
			tb.Errorf("rival: %v: %s", err, r.errs.String())
		}
	})
	r.out = bufio.NewReaderSize(out, 1<<16)
	line, err := r.out.ReadString('\n')
	if err != nil {
		tb.Fatalf("start the rival: %v", err)
	}
	r.Library = filepath.Base(strings.TrimSpace(line))
	return r
}

func (r *Rival) send(q request, data any) error {
	w := bufio.NewWriterSize(r.in, 1<<20)
	if err := binary.Write(w, binary.NativeEndian, q); err != nil {
		return fmt.Errorf("ask the rival: %w", err)
	}
	if data != nil {
		if err := binary.Write(w, binary.NativeEndian, data); err != nil {
			return fmt.Errorf("ask the rival: %w", err)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("ask the rival: %w", err)
	}
	return nil
}

// Quantize returns x in ggml's blocks of type t, Q8_0 or Q8_K; len(x) must be a multiple of the
// block length. The Rival keeps the result for Multiply.
func (r *Rival) Quantize(t gguf.Type, x []float32) ([]byte, error) {
	n, err := t.RowBytes(int64(len(x)))
	if err != nil {
		return nil, err
	}
	if err := r.send(request{Op: opQuantize, Type: uint32(t), Cols: uint64(len(x))}, x); err != nil {
		return nil, err
	}
	blocks := make([]byte, n)
	if _, err := io.ReadFull(r.out, blocks); err != nil {
		return nil, fmt.Errorf("the rival quantises: %w", err)
	}
	return blocks, nil
}

// Load sends a matrix of type t, with rows of cols elements. The Rival keeps the given number of
// consecutive copies, if possible on huge pages.
func (r *Rival) Load(t gguf.Type, rows, cols, copies int, data []byte) error {
	n, err := t.RowBytes(int64(cols))
	if err != nil {
		return err
	}
	if int64(len(data)) != int64(rows)*n {
		return fmt.Errorf("%d bytes for %d rows of %d %v", len(data), rows, cols, t)
	}
	r.rows = rows
	return r.send(request{Op: opLoad, Type: uint32(t), Rows: uint64(rows), Cols: uint64(cols),
		Count: uint64(copies)}, data)
}

// Multiply multiplies the matrix, of type t, by the activations count times, each time with the
// next copy. It returns the time of the loop in C, and the last product, of rows elements.
func (r *Rival) Multiply(t gguf.Type, count int) (time.Duration, []float32, error) {
	if err := r.send(request{Op: opMultiply, Type: uint32(t), Count: uint64(count)}, nil); err != nil {
		return 0, nil, err
	}
	answer := make([]byte, 8+4*r.rows)
	if _, err := io.ReadFull(r.out, answer); err != nil {
		return 0, nil, fmt.Errorf("the rival multiplies: %w", err)
	}
	dst := make([]float32, r.rows)
	for i := range dst {
		dst[i] = math.Float32frombits(binary.NativeEndian.Uint32(answer[8+4*i:]))
	}
	return time.Duration(binary.NativeEndian.Uint64(answer)), dst, nil
}

// Read reads the bytes of the matrix count times, each time of the next copy, with the widest loads
// that the processor has, and prefetching ahead bytes in advance. It returns the time, from which
// follows the bandwidth that a kernel can reach.
func (r *Rival) Read(count, ahead int) (time.Duration, error) {
	if err := r.send(request{Op: opRead, Type: uint32(gguf.Q8_K), Cols: uint64(ahead), Count: uint64(count)},
		nil); err != nil {
		return 0, err
	}
	var ns [8]byte
	if _, err := io.ReadFull(r.out, ns[:]); err != nil {
		return 0, fmt.Errorf("the rival reads: %w", err)
	}
	return time.Duration(binary.NativeEndian.Uint64(ns[:])), nil
}
