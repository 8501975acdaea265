// Package gguf reads GGUF model files: the metadata, which bytes of the file hold which tensor, and
// the weights. It treats every number in a file as hostile until it has been checked.
//
// It reads GGUF versions 1 to 3 in either byte order.
//
//   - [Open] and [Parse] read the structure of one file and no weights, as a [File]. Of a split model
//     (metadata key split.count above 1) they read the one part that they are given. [OpenModel]
//     finds the other parts and returns a [Model].
//   - A [Tensor] knows its extent in its file, its layer and component, and the extents of its
//     experts. Locate returns the tensor and expert that hold a byte.
//   - [OpenWeights] maps a model. A [Weight] gives the bytes of a tensor and its values as float32.
//
// The memory that a file makes a reader use is bounded, whatever the file says. What exceeds a
// bound is an error:
//
//   - The metadata have at most 256 MiB. They are read but not kept. (Real ones have up to 13 MB.)
//   - The structure of a model, all its parts together, takes at most 32 MiB of memory. This is enough
//     for some 240,000 tensors with usual names. (384 experts in 60 layers, with tensors of their own,
//     would be 69,120.)
//   - A name has at most 65,535 bytes, a tensor at most four dimensions, and an array holds no arrays.
//
// Names may hold any bytes, and tensors may have types that ggml does not know: such a tensor is
// opaque, and only its extent is known.
//
// Counts and lengths are checked against the file's size before anything is allocated.
//
// Nearly all other packages use this one. Files, models and weights may be used by any number of
// goroutines.
package gguf

// This file defines File: opening it, and looking up tensors in it.

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"tensorcast/internal/regular"
)

// ErrChanged says that a file was changed or replaced after it was opened.
var ErrChanged = errors.New("the file has changed since it was opened")

// File is the structure of one GGUF file. It holds the metadata except for arrays and long strings.
// It holds no file descriptor. So it needs no closing, and stays valid when the file changes. It is
// not modified after Open or Parse. So any number of goroutines may use it.
type File struct {
	Path       string   // as given to Open; empty after Parse
	Size       int64    // bytes
	Version    uint32   // of the format: 1 to 3
	BigEndian  bool     // the byte order of the metadata and of the weights
	Alignment  int64    // bytes, a power of two; every tensor's offset from DataOffset is a multiple of it
	DataOffset int64    // absolute offset of the byte after the metadata and its padding
	Metadata   []KV     // in file order, keys are unique
	Tensors    []Tensor // ordered by Offset, none overlaps with another, names are unique

	// InOrder says that the records of the tensors are in the order of their data.
	InOrder bool

	enc    encoding
	kept   []byte      // values of the metadata that are no arrays and no long strings
	memory int64       // bytes that the structure takes
	r      io.ReaderAt // nil after Open
	info   os.FileInfo // nil after Parse
	byKey  []int32     // indices into Metadata, ordered by key
	byName []int32     // indices into Tensors, ordered by name
}

// Is reports whether a file begins as GGUF files do. Only Parse finds out whether it is a valid one.
func Is(r io.ReaderAt) bool {
	var begin [len(magic)]byte
	n, _ := r.ReadAt(begin[:], 0) // a file that cannot be read counts as no GGUF file
	return n == len(begin) && string(begin[:]) == magic
}

// Open reads the structure of the GGUF file at path. All its errors are [*fs.PathError]; they wrap
// those of the file system or of Parse.
func Open(path string) (*File, error) { return openWith(path, Parse) }

// OpenHead reads of the GGUF file at path only the metadata, as much as there is of them. It is for
// files that Open finds to be truncated. The model has no tensors. The other errors are those of Open.
func OpenHead(path string) (*Model, error) {
	f, err := openWith(path, parseHead)
	if err != nil {
		return nil, err
	}
	return &Model{Files: []*File{f}}, nil
}

func openWith(path string, parse func(io.ReaderAt, int64) (*File, error)) (*File, error) {
	file, info, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	f, err := parse(file, info.Size())
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	f.Path, f.r, f.info = path, nil, info
	return f, nil
}

// openRegular opens a regular file to be read at few, scattered offsets.
func openRegular(path string) (*os.File, os.FileInfo, error) {
	// The path may come from somebody else: that of another part, or of a model that a target maps.
	file, err := regular.Open(path)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, nil, &fs.PathError{Op: "open", Path: path, Err: withoutPath(err)}
	}
	// Reading the metadata must not pull weights into the page cache. For the same reason the file
	// is read, not mapped: a page fault maps the pages around it, and the kernel does not page out
	// pages that a second process maps. FADV_RANDOM is advice; without it, some readahead happens.
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_RANDOM)
	return file, info, nil
}

// Info describes the file as it was when it was opened; nil after Parse.
func (f *File) Info() os.FileInfo { return f.info }

// Reopen opens the file again. It returns ErrChanged if the file has changed since Open.
func (f *File) Reopen() (*os.File, error) {
	if f.info == nil {
		return nil, errors.New("open a model again: it was not read from a file")
	}
	file, info, err := openRegular(f.Path)
	if err != nil {
		return nil, err
	}
	if !os.SameFile(info, f.info) || info.Size() != f.Size || !info.ModTime().Equal(f.info.ModTime()) {
		file.Close()
		return nil, &fs.PathError{Op: "open", Path: f.Path, Err: ErrChanged}
	}
	return file, nil
}

// reread calls do with a reader of the file that was parsed.
func (f *File) reread(do func(io.ReaderAt) error) error {
	if f.r != nil {
		return do(f.r)
	}
	file, err := f.Reopen()
	if err != nil {
		return err
	}
	defer file.Close()
	return do(file)
}

// withoutPath removes the operation and path with which package os prefixes a system error, so that
// they are not printed twice.
func withoutPath(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// At returns the tensor that holds byte off of the file. It reports false if off lies in the
// metadata, in padding or outside the file. It takes O(log n).
func (f *File) At(off int64) (*Tensor, bool) {
	i := sort.Search(len(f.Tensors), func(i int) bool { return f.Tensors[i].Offset > off }) - 1
	if i < 0 || off >= f.Tensors[i].End() {
		return nil, false
	}
	return &f.Tensors[i], true
}

// Locate returns the tensor that holds byte off of the file and, if the tensor has a slice per
// expert, the expert that the byte belongs to. It reports false if off lies in the metadata, in
// padding or outside the file. It takes O(log n).
func (f *File) Locate(off int64) (Location, bool) {
	t, ok := f.At(off)
	if !ok {
		return Location{Expert: -1}, false
	}
	return Location{Tensor: t, Expert: t.ExpertAt(off)}, true
}

// Lookup returns the tensor with that name. It takes O(log n).
func (f *File) Lookup(name string) (*Tensor, bool) {
	i, ok := sort.Find(len(f.byName), func(i int) int { return strings.Compare(name, f.Tensors[f.byName[i]].Name) })
	if !ok {
		return nil, false
	}
	return &f.Tensors[f.byName[i]], true
}

// Fingerprint identifies a model file cheaply: 32 hex digits, which are the first 16 bytes of the
// SHA-256 of the file's bytes [0, DataOffset) followed by its size as a little-endian uint64. Files
// that differ only in their weights have the same fingerprint. Each call reads and hashes all
// metadata; the file must not have changed (ErrChanged).
func (f *File) Fingerprint() (string, error) {
	h := sha256.New()
	err := f.reread(func(r io.ReaderAt) error {
		if n, err := io.Copy(h, io.NewSectionReader(r, 0, f.DataOffset)); err != nil || n < f.DataOffset {
			return cmp.Or(err, ErrChanged)
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("fingerprint: %w", err)
	}
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(f.Size))
	h.Write(size[:])
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}
