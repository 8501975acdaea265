package event

// This file says how many bytes a tensor spans, and compares what a target says of a weight with the model's file. A target may say anything.

import (
	"fmt"
	"math/bits"
	"strings"

	"tensorcast/gguf"
)

// MaxBytes is 64 TiB, more than any tensor has. The extent of a tensor that says to be larger, or says nonsense, is MaxBytes.
const MaxBytes = 1 << 46

// Bytes is the extent that the source spans, in bytes (ggml_nbytes): what an op reads of it unless it gathers. It is in [0, MaxBytes].
func (s *Source) Bytes() int64 { return extent(s.Type, &s.NE, &s.NB) }

// Bytes is the extent that the buffer spans, in bytes (ggml_nbytes). It is in [0, MaxBytes].
func (b *Buffer) Bytes() int64 { return extent(b.Type, &b.NE, &b.NB) }

// extent computes ggml_nbytes; it is 0 for a tensor without elements and for an unknown type.
func extent(t gguf.Type, ne, nb *[4]int64) int64 {
	empty := t.BlockElems() == 0
	for d := range 4 {
		if ne[d] < 0 || nb[d] < 0 {
			return MaxBytes
		}
		empty = empty || ne[d] == 0
	}
	if empty {
		return 0
	}
	var total int64
	add := func(n, size, per int64) {
		hi, lo := bits.Mul64(uint64(n), uint64(size))
		if hi != 0 || lo/uint64(per) > MaxBytes {
			total = MaxBytes
			return
		}
		total = min(total+int64(lo)/per, MaxBytes)
	}
	if elems := t.BlockElems(); elems == 1 {
		add(1, t.BlockBytes(), 1)
		add(ne[0]-1, nb[0], 1)
	} else {
		add(ne[0], nb[0], elems)
	}
	for d := 1; d < 4; d++ {
		add(ne[d]-1, nb[d], 1)
	}
	return total
}

// maxName is how much of a name ggml keeps.
const maxName = 63

// In returns the tensor of file that the source reads, wholly or through a view. files are the known files of that model, file among them.
// The error is ErrLayout with the evidence if what the target says contradicts the files: no tensor is there, or one of another type, or the
// source ends behind it, or the source has the name of another tensor. A name that no tensor has contradicts nothing: a program may use a
// tensor under two names (tied embeddings), and names views as it likes.
func (s *Source) In(file *gguf.File, files ...*gguf.File) (*gguf.Tensor, error) {
	contradicts := func(format string, args ...any) error {
		return fmt.Errorf("%w: it says that %q of type %v has %d bytes at byte %d of %s, where the file has "+format,
			append([]any{ErrLayout, s.Name, s.Type, s.Bytes(), s.Offset, file.Path}, args...)...)
	}
	t, ok := file.At(s.Offset)
	switch {
	case !ok:
		return nil, contradicts("no tensor")
	case t.Type != s.Type:
		return nil, contradicts("%s of type %v", t.Name, t.Type)
	case s.Bytes() > t.End()-s.Offset:
		return nil, contradicts("%s, which ends after %d bytes", t.Name, t.End()-s.Offset)
	case s.Name == "" || len(s.Name) > maxName || strings.ContainsFunc(s.Name, func(c rune) bool { return c < ' ' || c > '~' }):
		return nil, contradicts("%s, and that is no name", t.Name)
	}
	if name, _, _ := strings.Cut(s.Name, " ("); name != t.Name { // else it is the tensor, or a view of it: "blk.0.ssm_a (reshaped)"
		if len(s.Name) >= maxName && (strings.HasPrefix(t.Name, s.Name) || strings.HasPrefix(s.Name, t.Name)) {
			return t, nil // cut
		}
		for _, f := range files {
			if other, ok := f.Lookup(name); ok {
				return nil, contradicts("%s; it has %s at byte %d of %s", t.Name, name, other.Offset, f.Path)
			}
		}
	}
	return t, nil
}

// Slices is how many slices of the source an op can gather that gathers along a dimension, and the bytes of each; 0 and 0 if there is no
// such dimension, or the source says nonsense. Neither is negative, and their product does not wrap.
func (s *Source) Slices(dim int) (n, size int64) {
	if dim <= 0 || dim >= len(s.NE) || s.Bytes() <= 0 || s.Bytes() >= MaxBytes {
		return 0, 0
	}
	n = max(s.NE[dim], 0)
	if size = s.NB[dim]; n <= 1 || size > s.Bytes() { // the stride of a dimension with one element says nothing
		size = s.Bytes()
	}
	return n, size
}
