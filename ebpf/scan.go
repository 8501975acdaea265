package ebpf

// This file looks for ggml's functions in files. Each file is read once, and those that can carry
// probes stay open.

import (
	"errors"
	"fmt"
	"os"

	"tensorcast/ggml"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
)

// maxImages bounds the files with probes. A llama.cpp has about ten: one for each kind of processor.
const maxImages = 256

// scannedFile is what scanFile has found.
type scannedFile struct {
	image *ggml.Image // nil if there is no such file, or err is set
	id    proc.FileID
	file  *os.File // nil if image is
	err   error
}

// scan returns the image of a file; each file is read once. The image is nil if the path does not
// lead to a file (any more, or in this mount namespace).
func (t *Tracer) scan(path string) (*ggml.Image, error) {
	if key, err := proc.FileOf(path); err == nil && t.images[key] != nil {
		return t.images[key], nil // no need to open it
	}
	s, ahead := t.scanned[path]
	delete(t.scanned, path)
	if !ahead {
		s = scanFile(path)
	}
	if s.image == nil {
		return nil, s.err
	}
	t.images[s.id] = s.image
	if len(s.image.Sites) == 0 || len(t.files) >= maxImages {
		return s.image, s.file.Close()
	}
	t.files[s.image] = s.file
	return s.image, nil
}

func scanFile(path string) scannedFile {
	f, err := regular.Open(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, regular.ErrNotRegular) {
		return scannedFile{} // deleted, in another mount namespace, or something that is only named like a library
	}
	if err != nil {
		return scannedFile{err: fmt.Errorf("look for ggml: %w", err)}
	}
	info, err := f.Stat()
	if err != nil {
		return scannedFile{err: errors.Join(fmt.Errorf("look for ggml: %w", err), f.Close())}
	}
	im, err := ggml.ScanFile(f)
	if err != nil {
		return scannedFile{err: errors.Join(err, f.Close())}
	}
	return scannedFile{image: im, id: proc.IDOf(info), file: f}
}

// scanLikely scans what a program is likely to load. The result is by path; a library with several
// names is scanned once.
func scanLikely(p Program) map[string]scannedFile {
	all := map[string]scannedFile{p.Path: scanFile(p.Path)}
	seen := map[proc.FileID]bool{}
	for _, path := range ggml.LikelyLibraries(p.Path, p.Env) {
		id, err := proc.FileOf(path)
		if err != nil || seen[id] {
			continue
		}
		seen[id] = true
		all[path] = scanFile(path)
	}
	return all
}

// closeScanned closes the files that were scanned ahead and never asked for.
func (t *Tracer) closeScanned() error {
	var errs []error
	for _, s := range t.scanned {
		if s.file != nil {
			errs = append(errs, s.file.Close())
		}
	}
	t.scanned = nil
	return errors.Join(errs...)
}
