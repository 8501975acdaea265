package trace

// This file finds the tensor of a model file that a source reads. What the target says of the
// source is compared with the file first: a wrong assumption about the target's memory layout must
// not end up in a capture.

import (
	"fmt"
	"slices"
	"strings"

	"tensorcast/event"
	"tensorcast/gguf"
)

// maxSourceName is how many bytes of a tensor's name ggml keeps.
const maxSourceName = 63

// findTensor returns the tensor of file that the source reads, wholly or through a view. files are
// the known files of that model, file among them. The error is event.ErrLayout with the evidence if
// the source contradicts the files: no tensor is there, or one of another type, or the source ends
// behind it, or the source has the name of another tensor. A name that no tensor has contradicts
// nothing: a program may use a tensor under two names (tied embeddings), and may name views as it
// likes. Of an opaque tensor only the place and the name are compared.
func findTensor(s *event.Source, file *gguf.File, files []*gguf.File) (*gguf.Tensor, error) {
	contradicts := func(format string, args ...any) error {
		return fmt.Errorf("%w: it says that %q of type %v has %d bytes at byte %d of %s, where the file has "+format,
			slices.Concat([]any{event.ErrLayout, s.Name, s.Type, s.Bytes(), s.Offset, file.Path}, args)...)
	}
	t, ok := file.At(s.Offset)
	switch {
	case !ok:
		return nil, contradicts("no tensor")
	case s.Name == t.Name && t.Opaque():
		return t, nil
	case uint32(s.Type) != t.Type.Number() && !t.Opaque():
		return nil, contradicts("%s of type %v", t.Name, t.Type)
	case s.Bytes() > t.End()-s.Offset && !t.Opaque():
		return nil, contradicts("%s, which ends after %d bytes", t.Name, t.End()-s.Offset)
	case len(s.Name) > maxSourceName || !isPrintable(s.Name):
		return nil, contradicts("%s, and that is no name", t.Name)
	}
	name, _, _ := strings.Cut(s.Name, " (") // a view of a tensor is called "blk.0.ssm_a (reshaped)"
	if name == t.Name || isCutName(s.Name, t.Name) {
		return t, nil
	}
	for _, f := range files {
		if other, ok := f.Lookup(name); ok {
			return nil, contradicts("%s; it has %s at byte %d of %s", t.Name, name, other.Offset, f.Path)
		}
	}
	return t, nil
}

// isCutName reports whether ggml had to cut name, and it may be that of the tensor or of a view of it.
func isCutName(name, tensor string) bool {
	return len(name) >= maxSourceName && (strings.HasPrefix(tensor, name) || strings.HasPrefix(name, tensor))
}

// isPrintable reports whether name is printable ASCII, and not empty.
func isPrintable(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c > '~' })
}
