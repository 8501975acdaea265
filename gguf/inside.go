package gguf

// This file finds GGUF files inside of other files, which are not read as models: programs that carry
// their model (llamafile), and archives.

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

const (
	// maxDirectory bounds how many bytes are read of an archive's directory, and so the memory for it.
	maxDirectory = 4 << 20

	// scanned is how many bytes of a file are looked at for a model behind a program, which begins with
	// a page of pageBytes so that it can be mapped.
	scanned   = 16 << 20
	pageBytes = 4 << 10
)

// LookInside says where in another file a GGUF file lies, and what to do; "" if none was found, or if r
// cannot be read. One is found where it is stored uncompressed in a zip archive, which may be behind a
// program (llamafile), where it begins with a page of the first 16 MiB, and at the given offsets.
func LookInside(r io.ReaderAt, size int64, starts ...int64) string {
	if name, offset, ok := findInArchive(r, size); ok {
		return fmt.Sprintf("the GGUF file %.100q begins at its byte %d: it is not read there, so take it out (unzip)",
			name, offset)
	}
	for start := int64(pageBytes); start < min(size, scanned); start += pageBytes {
		starts = append(starts, start)
	}
	for _, start := range starts {
		part := io.NewSectionReader(r, start, size-start)
		if start >= size || !Is(part) {
			continue
		}
		if _, err := Parse(part, part.Size()); err == nil { // the four letters alone may be text
			return fmt.Sprintf("a GGUF file begins at its byte %d: it is not read there, so copy it to a file of its own",
				start)
		}
	}
	return ""
}

// ExplainOpen adds to an error of Open, of OpenModel or of OpenPart what LookInside says of a file that
// is no GGUF file.
func ExplainOpen(err error) error {
	var failed *fs.PathError
	if !errors.Is(err, ErrNotGGUF) || !errors.As(err, &failed) {
		return err
	}
	file, info, errOpen := openRegular(failed.Path)
	if errOpen != nil {
		return err
	}
	defer file.Close()
	if inside := LookInside(file, info.Size()); inside != "" {
		err = &fs.PathError{Op: failed.Op, Path: failed.Path, Err: fmt.Errorf("%w; %s", failed.Err, inside)}
	}
	return err
}

// findInArchive finds a GGUF file in an archive: its name there, and the offset at which it begins.
func findInArchive(r io.ReaderAt, size int64) (name string, offset int64, ok bool) {
	archive, err := zip.NewReader(&limitedReaderAt{r, maxDirectory}, size)
	if err != nil {
		return "", 0, false
	}
	for _, f := range archive.File {
		if f.Method != zip.Store || !strings.HasSuffix(f.Name, ".gguf") {
			continue
		}
		at, err := f.DataOffset()
		if err == nil && at <= size-int64(len(magic)) && Is(io.NewSectionReader(r, at, size-at)) {
			return f.Name, at, true
		}
	}
	return "", 0, false
}

// limitedReaderAt is a reader that fails once so many bytes were read.
type limitedReaderAt struct {
	r    io.ReaderAt
	left int64
}

func (l *limitedReaderAt) ReadAt(b []byte, off int64) (int, error) {
	if l.left -= int64(len(b)); l.left < 0 {
		return 0, errors.New("the archive's directory is too long")
	}
	return l.r.ReadAt(b, off)
}
