package synth

// This file writes a planned model to a stream or a file.

import (
	"bufio"
	"context"
	"fmt"
	"io"

	"tensorcast/internal/outfile"
)

// chunkBytes is how much is generated and written at a time; it bounds the memory use.
const chunkBytes = 1 << 20

// Write writes the model to w: exactly p.Size bytes, unless it returns an error. It takes about 2
// MiB of memory for any size. After each piece of at most 1 MiB it calls progress (if not nil) with
// the number of bytes written so far. When ctx ends, it returns the context's cause. Errors of w
// are wrapped.
func (p *Plan) Write(ctx context.Context, w io.Writer, progress func(written int64)) error {
	if progress == nil {
		progress = func(int64) {}
	}
	out := &countingWriter{w: w, progress: progress}
	if _, err := out.Write(p.header); err != nil {
		return fmt.Errorf("write header: %w", err)
	}
	s := newSampler()
	// A model has many small tensors, so buffer them.
	buffered := bufio.NewWriterSize(out, chunkBytes)
	buf := make([]byte, chunkBytes)
	end := int64(len(p.header))
	for _, t := range p.Tensors {
		if _, err := buffered.Write(make([]byte, t.Offset-end)); err != nil {
			return fmt.Errorf("write padding before %s: %w", t.Name, err)
		}
		end = t.Offset + t.Size
		if err := p.writeTensor(ctx, buffered, s, t, buf); err != nil {
			return fmt.Errorf("write %s: %w", t.Name, err)
		}
	}
	if _, err := buffered.Write(make([]byte, p.Size-end)); err != nil {
		return fmt.Errorf("write padding: %w", err)
	}
	if err := buffered.Flush(); err != nil {
		return fmt.Errorf("write end of model: %w", err)
	}
	return nil
}

// writeTensor writes the values of t to w; buf is scratch space.
func (p *Plan) writeTensor(ctx context.Context, w io.Writer, s *sampler, t Tensor, buf []byte) error {
	if t.rows != nil {
		return writeRows(ctx, w, t)
	}
	random := stream(p.Config.Seed, t.Name)
	for _, sp := range t.spans {
		unit := t.Type.BlockBytes() * int64(max(sp.choose, 1))
		wholeBlocks := int64(len(buf)) / unit * unit
		left, err := t.Type.RowBytes(sp.elems)
		if err != nil {
			return err
		}
		for left > 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			piece := buf[:min(left, wholeBlocks)]
			random.Read(piece) // never fails
			if err := s.shape(t.Type, piece, sp); err != nil {
				return err
			}
			if _, err := w.Write(piece); err != nil {
				return err
			}
			left -= int64(len(piece))
		}
	}
	return nil
}

// writeRows writes the values of t, which are computed.
func writeRows(ctx context.Context, w io.Writer, t Tensor) error {
	makeRow := t.rows()
	row := make([]float32, t.Shape[0])
	var encoded []byte
	for i := range elementCount(t.Shape[1:]) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		makeRow(i, row)
		var err error
		if encoded, err = appendRow(encoded[:0], t.Type, row); err != nil {
			return err
		}
		if _, err := w.Write(encoded); err != nil {
			return err
		}
	}
	return nil
}

// countingWriter counts the bytes written through it.
type countingWriter struct {
	w        io.Writer
	written  int64
	progress func(written int64)
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.written += int64(n)
	c.progress(c.written)
	return n, err
}

// WriteFile writes the model to the file at path, as Write does. The file appears completely or not
// at all: it is written under a temporary name next to path and then renamed, possibly over an
// existing file. A symbolic link is followed; a device or a pipe is written directly. The file is
// not synced to disk, because a lost model can be made again.
func (p *Plan) WriteFile(ctx context.Context, path string, progress func(written int64)) error {
	if err := outfile.Write(path, func(w io.Writer) error { return p.Write(ctx, w, progress) }); err != nil {
		return fmt.Errorf("write model: %w", err)
	}
	return nil
}
