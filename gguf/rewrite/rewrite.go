// Package rewrite copies a GGUF file and replaces some tensors by other values, possibly of another
// type or shape ([Write], [WriteFile]). Package fabric/plan uses it to see in an unmodified
// llama.cpp what an approximation of the weights does to a model, package experiments/synth to make
// a model's experts larger.
package rewrite

// This file plans where the new file's tensors lie, and writes it.

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
	"slices"

	"tensorcast/gguf"
	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
)

// bufferBytes bounds the memory that writing needs in addition to the tensor table.
const bufferBytes = 1 << 20

// Replacement says what a tensor is replaced by.
type Replacement struct {
	Type gguf.Type
	// Shape is the number of elements per dimension, with as many dimensions as the tensor has.
	// nil: the shape stays the same.
	Shape []int64
	// Write writes all bytes of the tensor, in pieces of any size, in the order of the file:
	// dimension 0 is contiguous, numbers are little-endian. It must return the errors of w; w fails
	// when the context is done.
	Write func(w io.Writer) error
}

// Number is a new value for an integer of the metadata. The entry keeps its type.
type Number struct {
	Key   string
	Value uint64
}

// F32 returns a replacement by float32 values. produce passes all values to emit, in the order of
// the file and in pieces of any size. It must return the errors of emit.
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

// Write copies file f, which it reads from r, to w, and replaces the tensors for which replace
// reports true. It calls replace once for each tensor before it writes anything, and then the Write
// of each Replacement once, in the order of the file. A nil replace replaces nothing.
//
// The metadata stay the same bit for bit, except for numbers. That includes general.file_type;
// llama.cpp uses the types of the tensors instead. The tensors keep the order of the file's table
// and are stored without gaps, as ggml demands, each padded with zeros to the alignment. If nothing
// is replaced, a file that was written by ggml or its Python package is copied exactly.
//
// Memory use does not depend on the size of the tensors. After an error, w holds part of a file.
// Errors are:
//
//   - ctx's cause, and the errors of r, w and the replacements
//   - gguf.ErrChanged if r no longer holds f, and gguf.ErrTruncated
//   - gguf.ErrNoValue for a number that f has no entry for
//   - errors.ErrUnsupported for a big-endian file
//   - others for replacements and numbers that do not fit
func Write(
	ctx context.Context, w io.Writer, f *gguf.File, r io.ReaderAt,
	replace func(*gguf.Tensor) (Replacement, bool), numbers ...Number,
) error {
	if f.BigEndian {
		return fmt.Errorf("rewrite: a big-endian file: %w", errors.ErrUnsupported)
	}
	head, err := readHead(f, r, numbers)
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

// WriteFile is Write from the GGUF file at src to the file at path. The new file appears completely
// or not at all: it is written under a temporary name beside path and then renamed, possibly over
// an existing file, even over src. A symbolic link is followed. The file is not synced to disk,
// because it can be made again.
func WriteFile(ctx context.Context, path, src string, replace func(*gguf.Tensor) (Replacement, bool)) error {
	in, err := regular.Open(src)
	if err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	// Parse what is open, so that the file that is parsed is the one that is copied even if its
	// name is reused.
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
	tensors []plannedTensor
}

// plannedTensor is a tensor of the new file.
type plannedTensor struct {
	*gguf.Tensor
	size int64        // bytes in the new file
	by   *Replacement // nil: the tensor is copied
}

// newPlan asks replace about each tensor, and makes the new tensor table.
func newPlan(f *gguf.File, h head, replace func(*gguf.Tensor) (Replacement, bool)) (*plan, error) {
	p := &plan{file: f, head: h}
	end := int64(0) // end of the data, relative to its start
	for _, t := range h.tensors {
		n := plannedTensor{t, t.Size, nil}
		typ, shape := t.Type, t.Shape
		if replace != nil {
			if by, ok := replace(t); ok {
				if by.Shape != nil {
					shape = by.Shape
				}
				var err error
				if n.size, err = h.sizeOf(t, by.Type, shape); err != nil {
					return nil, fmt.Errorf("replace %s by %v: %w", t.Name, by.Type, err)
				}
				n.by, typ = &by, by.Type
			}
		}
		p.table = h.appendRecord(p.table, t, typ, shape, end)
		if n.size > math.MaxInt64-end-f.DataOffset-f.Alignment {
			return nil, fmt.Errorf("replace %s: the file's size does not fit 63 bits", t.Name)
		}
		end += n.size + padding(n.size, f.Alignment)
		p.tensors = append(p.tensors, n)
	}
	// The table keeps its length, so the data begin where they did.
	p.table = append(p.table, make([]byte, f.DataOffset-h.metadataEnd-int64(len(p.table)))...)
	return p, nil
}

// sizeOf is the number of bytes that t has with another type and shape.
func (h *head) sizeOf(t *gguf.Tensor, as gguf.Type, shape []int64) (int64, error) {
	if len(shape) != len(t.Shape) || slices.Min(shape) < 1 {
		return 0, fmt.Errorf("shape %v, which was %v", shape, t.Shape)
	}
	if h.wide == 4 && slices.Max(shape) > math.MaxUint32 {
		return 0, fmt.Errorf("shape %v does not fit version 1 of the format", shape)
	}
	row, err := as.RowBytes(shape[0])
	if err != nil {
		return 0, err
	}
	size := uint64(row)
	for _, n := range shape[1:] {
		var hi uint64
		if hi, size = bits.Mul64(size, uint64(n)); hi != 0 || size > math.MaxInt64 {
			return 0, errors.New("its size does not fit 63 bits")
		}
	}
	return int64(size), nil
}

// padding is the number of bytes from size to the next multiple of the alignment, a power of two.
func padding(size, alignment int64) int64 { return -size & (alignment - 1) }

// write writes the new file.
func (p *plan) write(ctx context.Context, w io.Writer, r io.ReaderAt) error {
	buf := make([]byte, bufferBytes)
	if err := p.writeMetadata(w, r, buf); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	if _, err := w.Write(p.table); err != nil {
		return fmt.Errorf("tensor table: %w", err)
	}
	for _, t := range p.tensors {
		if ctx.Err() != nil { // checked here as well, because small tensors stay in the buffer
			return context.Cause(ctx)
		}
		if t.by == nil {
			if err := copyRange(w, r, t.Offset, t.Size, buf); err != nil {
				return fmt.Errorf("%s: %w", t.Name, err)
			}
		} else {
			l := &limitedWriter{w: w, left: t.size}
			err := t.by.Write(l)
			// The writer's own error says more than what the replacement made of it. It is reported
			// even if the replacement dropped it.
			if err := cmp.Or(l.err, err); err != nil {
				return fmt.Errorf("replace %s: %w", t.Name, err)
			}
			if l.left > 0 {
				return fmt.Errorf("replace %s by %v: %d of %d bytes were not written", t.Name, t.by.Type, l.left,
					t.size)
			}
		}
		if _, err := w.Write(make([]byte, padding(t.size, p.file.Alignment))); err != nil {
			return fmt.Errorf("padding after %s: %w", t.Name, err)
		}
	}
	return nil
}

// writeMetadata copies all that precedes the tensor table, with the patches. buf is working space.
func (p *plan) writeMetadata(w io.Writer, r io.ReaderAt, buf []byte) error {
	at := int64(0)
	for _, patch := range p.head.patches {
		if err := copyRange(w, r, at, patch.at-at, buf); err != nil {
			return err
		}
		if _, err := w.Write(patch.bytes); err != nil {
			return err
		}
		at = patch.at + int64(len(patch.bytes))
	}
	return copyRange(w, r, at, p.head.metadataEnd-at, buf)
}

// copyRange copies n bytes from offset off. buf is working space.
func copyRange(w io.Writer, r io.ReaderAt, off, n int64, buf []byte) error {
	copied, err := io.CopyBuffer(struct{ io.Writer }{w}, io.NewSectionReader(r, off, n), buf)
	if err == nil && copied < n {
		err = fmt.Errorf("%w at byte %d", gguf.ErrTruncated, off+copied)
	}
	return err
}

// contextWriter fails once its context is done.
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

// limitedWriter accepts at most left bytes, and remembers its first error.
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
