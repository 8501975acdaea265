package gguf

// This test opens any files from disk.

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzOpen does with a file everything that can be done with one on disk, and cuts it short while
// it is mapped. Each step gives an error or a result that is consistent.
func FuzzOpen(f *testing.F) {
	for _, enc := range encodings {
		m := small()
		m.version, m.big = enc.version, enc.big
		b := m.encode()
		f.Add(b, uint32(len(b)-1))
	}
	f.Add(part(0, 2, 4).encode(), uint32(0))
	path := filepath.Join(f.TempDir(), "m-00001-of-00002.gguf")

	f.Fuzz(func(t *testing.T, b []byte, cut uint32) {
		check(t, os.WriteFile(path, b, 0o644))
		m, err := OpenModel(path)
		if err != nil {
			// The part alone is valid, but the other parts are missing.
			if _, one := Open(path); one == nil && !errors.Is(err, ErrMissingPart) &&
				!errors.Is(err, ErrMismatchedPart) && !errors.Is(err, ErrPartName) {
				t.Fatalf("Open succeeds, OpenModel: %v", err)
			}
			return
		}
		checkInvariants(t, m.Files[0])
		w, err := OpenWeights(m, 1<<16)
		check(t, err)
		defer func() { check(t, w.Close()) }()
		read := func(size int64) {
			for i := range m.Files[0].Tensors {
				x := &m.Files[0].Tensors[i]
				h := w.At(Location{x, x.Experts() - 1, 0})
				present := h.extent.off+h.extent.size <= size
				sum := 0
				err := h.View(func(b []byte) error {
					for _, v := range b {
						sum += int(v)
					}
					return nil
				})
				// Behind the end of the file, the last page reads as zeros.
				if err != nil && (present || !errors.Is(err, ErrTruncated)) {
					t.Fatalf("%s of %d bytes: %v", x.Name, size, err)
				}
				v, err := h.Float32()
				if err == nil {
					v.Release()
				} else if !errors.Is(err, ErrNoDecoder) && !errors.Is(err, ErrCacheFull) &&
					!errors.Is(err, errors.ErrUnsupported) &&
					(present || !errors.Is(err, ErrTruncated)) {
					t.Fatalf("%s of %d bytes: %v", x.Name, size, err)
				}
			}
		}
		read(m.Files[0].Size)
		size := min(m.Files[0].Size, int64(cut))
		check(t, unix.Truncate(path, size))
		read(size)
	})
}
