// Package rewrite writes a GGUF file from another one, with some tensors replaced by other values, possibly of another type. What an
// approximation of the weights does to a model is then seen in an unmodified llama.cpp.
package rewrite

// This file owns the new file: where its tensors lie, and their bytes.

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"

	"tensorcast/gguf"
	"tensorcast/internal/outfile"
)

// bufferBytes bounds the memory that writing takes, besides the tensor table.
const bufferBytes = 1 << 20

// Replacement is what a tensor becomes. Its shape stays.
type Replacement struct {
	Type gguf.Type
	// Write writes all bytes of the tensor, in as many pieces as it likes, in the order of the file: dimension 0 is contiguous, numbers are
	// little-endian. It passes on the errors of w, which end it when the context ends.
	Write func(w io.Writer) error
}

// F32 is a replacement by float32 values. produce calls emit with all of them in the order of the file, in as many pieces as it likes, and
// passes on its errors.
func F32(produce func(emit func(values []float32) error) error) Replacement {
	return Replacement{Type: gguf.F32, Write: func(w io.Writer) error {
		buf := make([]byte, 0, 64<<10)
		return produce(func(values []float32) error {
			for len(values) > 0 {
				n := min(len(values), cap(buf)/4)
				b := buf
				for _, v := range values[:n] {
					b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
				}
				if _, err := w.Write(b); err != nil {
					return err
				}
				values = values[n:]
			}
			return nil
		})
	}}
}

// Write writes to w the file f, which r holds, with the tensors for which replace reports true replaced. It calls replace once for each tensor
// before it writes anything, and each Replacement's Write once, in the order of the file. nil replaces nothing.
//
// The metadata stay bit for bit, general.file_type among them: llama.cpp goes by the tensors' own types. The tensors keep the order of the file's
// table and follow each other closely, as ggml demands; each is padded with zeros to the alignment. What a file written by ggml or its
// Python package becomes if nothing is replaced is the same file.
//
// Memory does not grow with the tensors. Errors are ctx's cause, those of r, w and the replacements, gguf.ErrChanged if r no longer holds f,
// gguf.ErrTruncated, errors.ErrUnsupported for a big-endian file, and others for replacements that do not fit. w then has a part of the file.
func Write(ctx context.Context, w io.Writer, f *gguf.File, r io.ReaderAt, replace func(*gguf.Tensor) (Replacement, bool)) error {
	if f.BigEndian {
		return fmt.Errorf("rewrite: a big-endian file: %w", errors.ErrUnsupported)
	}
	head, err := walk(f, r)
	if err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	p, err := newPlan(f, head, replace)
	if err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	out := bufio.NewWriterSize(&contextWriter{ctx, w}, bufferBytes)
	if err := p.write(ctx, out, r); err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	return nil
}

// WriteFile writes to the file at path what the GGUF file at src becomes, as Write does. The file appears whole or not at all: it is written
// beside path under a temporary name and then renamed, over an older file if there is one, be it src itself. A symbolic link is followed.
// It is not synced to disk: it can be made again.
func WriteFile(ctx context.Context, path, src string, replace func(*gguf.Tensor) (Replacement, bool)) error {
	in, err := os.Open(src)
	if err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	// The file that is parsed is the one that is copied, whatever happens to its name.
	f, err := gguf.Parse(in, info.Size())
	if err != nil {
		return fmt.Errorf("rewrite %s: %w", src, err)
	}
	return outfile.Write(path, func(w io.Writer) error { return Write(ctx, w, f, in, replace) })
}

// plan is the new file.
type plan struct {
	file    *gguf.File
	head    head
	table   []byte // the tensor table, with the padding after it
	tensors []planned
}

type planned struct {
	*gguf.Tensor
	size int64        // bytes in the new file
	by   *Replacement // nil: the tensor stays
}

func newPlan(f *gguf.File, h head, replace func(*gguf.Tensor) (Replacement, bool)) (*plan, error) {
	p := &plan{file: f, head: h}
	end := int64(0) // of the data, relative to its begin
	for _, t := range h.tensors {
		n := planned{t, t.Size, nil}
		typ := t.Type
		if replace != nil {
			if by, ok := replace(t); ok {
				var err error
				if n.size, err = sizeOf(t, by.Type); err != nil {
					return nil, fmt.Errorf("replace %s by %v: %w", t.Name, by.Type, err)
				}
				n.by, typ = &by, by.Type
			}
		}
		p.table = h.record(p.table, t, typ, end)
		if n.size > math.MaxInt64-end-f.DataOffset-f.Alignment {
			return nil, fmt.Errorf("replace %s: the file's size does not fit 63 bits", t.Name)
		}
		end += n.size + padding(n.size, f.Alignment)
		p.tensors = append(p.tensors, n)
	}
	// The table is as long as it was: the data begins where it did.
	p.table = append(p.table, make([]byte, f.DataOffset-h.metadataEnd-int64(len(p.table)))...)
	return p, nil
}

// sizeOf is the number of bytes that t takes as type as.
func sizeOf(t *gguf.Tensor, as gguf.Type) (int64, error) {
	row, err := as.RowBytes(t.Shape[0])
	if err != nil {
		return 0, err
	}
	size := uint64(row)
	for _, n := range t.Shape[1:] {
		var hi uint64
		if hi, size = bits.Mul64(size, uint64(n)); hi != 0 || size > math.MaxInt64 {
			return 0, errors.New("its size does not fit 63 bits")
		}
	}
	return int64(size), nil
}

func padding(size, alignment int64) int64 { return -size & (alignment - 1) }

func (p *plan) write(ctx context.Context, w io.Writer, r io.ReaderAt) error {
	buf := make([]byte, bufferBytes)
	if err := copyRange(w, r, 0, p.head.metadataEnd, buf); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	if _, err := w.Write(p.table); err != nil {
		return fmt.Errorf("tensor table: %w", err)
	}
	for _, t := range p.tensors {
		if ctx.Err() != nil { // small tensors stay in the buffer
			return context.Cause(ctx)
		}
		if t.by == nil {
			if err := copyRange(w, r, t.Offset, t.Size, buf); err != nil {
				return fmt.Errorf("%s: %w", t.Name, err)
			}
		} else {
			l := &limitedWriter{w: w, left: t.size}
			err := t.by.Write(l)
			// A writer's error tells more than what its caller made of it, and must not be lost if the caller did.
			if err := cmp.Or(l.err, err); err != nil {
				return fmt.Errorf("replace %s: %w", t.Name, err)
			}
			if l.left > 0 {
				return fmt.Errorf("replace %s by %v: %d of %d bytes were not written", t.Name, t.by.Type, l.left, t.size)
			}
		}
		if _, err := w.Write(make([]byte, padding(t.size, p.file.Alignment))); err != nil {
			return fmt.Errorf("padding after %s: %w", t.Name, err)
		}
	}
	return nil
}

// copyRange copies n bytes from off on, with buf as working space.
func copyRange(w io.Writer, r io.ReaderAt, off, n int64, buf []byte) error {
	copied, err := io.CopyBuffer(struct{ io.Writer }{w}, io.NewSectionReader(r, off, n), buf)
	if err == nil && copied < n {
		err = fmt.Errorf("%w at byte %d", gguf.ErrTruncated, off+copied)
	}
	return err
}

// contextWriter ends with its context.
type contextWriter struct {
	ctx context.Context
	w   io.Writer
}

func (c *contextWriter) Write(b []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.w.Write(b)
}

// limitedWriter refuses more than left bytes, and keeps its first error.
type limitedWriter struct {
	w    io.Writer
	left int64
	err  error
}

func (l *limitedWriter) Write(b []byte) (int, error) {
	if l.err != nil {
		return 0, l.err
	}
	if int64(len(b)) > l.left {
		l.err = fmt.Errorf("%d bytes more than the tensor has", int64(len(b))-l.left)
		return 0, l.err
	}
	var n int
	n, l.err = l.w.Write(b)
	l.left -= int64(n)
	return n, l.err
}
