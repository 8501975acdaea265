package gguf

// This file defines Model, the one or more files of a model, and finds the parts of a split model.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
)

// Metadata keys of split models, as llama.cpp's gguf-split writes them.
const (
	splitCountKey   = "split.count"         // number of parts
	splitNoKey      = "split.no"            // number of this part, from 0
	splitTensorsKey = "split.tensors.count" // tensors in all parts
	architectureKey = "general.architecture"
)

var (
	// ErrPartName says that a part of a split model does not have the name of one, so that the
	// other parts cannot be found.
	ErrPartName = errors.New("a part of a split model must be named <model>-00001-of-00009.gguf")

	// ErrMissingPart says that parts of a split model are not in the directory of the one that was
	// opened.
	ErrMissingPart = errors.New("missing parts of the split model")

	// ErrMismatchedPart says that a file has the name of another part, but does not belong to the
	// same model.
	ErrMismatchedPart = errors.New("not a part of the same model")
)

// Model is the structure of a model: of its one file, or of all parts of a split one. It does not
// change after OpenModel. So any number of goroutines may use it.
type Model struct {
	// Files are in the order of the parts. The first has the model's metadata, the others may have
	// nothing but tensors.
	Files []*File

	byName []Location // ordered by name
}

// Location says where in a model something is: in which tensor and, if the tensor has a slice per
// expert, in which expert's.
type Location struct {
	Tensor *Tensor
	Expert int // -1 if it belongs to no single expert
	File   int // index into Model.Files; 0 if a File was queried
}

// OpenModel reads the structure of a model. path is its file, or any of its parts. The other parts
// must be in the same directory and be named as llama.cpp names them. Besides the errors of Open it
// returns ErrPartName, ErrMissingPart and ErrMismatchedPart, which name the files.
func OpenModel(path string) (*Model, error) {
	return openModel(path, Open, func(given *File, prefix string, count uint64) error {
		if missing := missingParts(prefix, count); missing != nil {
			return fmt.Errorf("%w: beside %s there is no %s", ErrMissingPart, given.Path, strings.Join(missing, ", "))
		}
		return nil
	})
}

// OpenModelBy is OpenModel for a model that lies elsewhere, for example on a web server. open reads
// the structure of one file by its path, as Parse does, and sets File.Path to that path. It is
// called for path, and for the paths of the other parts in the same directory. Errors of open are
// returned as they are, also of a part that is not there.
func OpenModelBy(path string, open func(path string) (*File, error)) (*Model, error) {
	return openModel(path, open, func(*File, string, uint64) error { return nil })
}

// openModel opens a model by open. check is called before the other parts of a split model are
// opened. It is told the part that was given, and the beginning of all parts' paths.
func openModel(path string, open func(string) (*File, error), check func(*File, string, uint64) error) (*Model, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	m := &Model{Files: []*File{f}}
	count, ok := f.Uint(splitCountKey)
	if ok && count > 1 {
		if m.Files, err = openParts(f, count, open, check); err != nil {
			return nil, err
		}
	}
	if err := m.indexNames(); err != nil {
		return nil, err
	}
	return m, nil
}

// OpenPart is OpenModel for one file: of a split model it opens this part alone. Only the first
// part has the model's metadata.
func OpenPart(path string) (*Model, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	m := &Model{Files: []*File{f}}
	if err := m.indexNames(); err != nil {
		return nil, err
	}
	return m, nil
}

// partPath is the path of part no of count, as llama_split_path makes it.
func partPath(prefix string, no, count uint64) string {
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", prefix, no+1, count)
}

// partName matches the end of what partPath makes.
var partName = regexp.MustCompile(`-[0-9]{5}-of-[0-9]{5}\.gguf$`)

// IsPart reports whether a file has a name like a part of a split model.
func IsPart(path string) bool { return partName.MatchString(path) }

// openParts returns all parts of the model that given belongs to.
func openParts(
	given *File, count uint64, open func(string) (*File, error), check func(*File, string, uint64) error,
) ([]*File, error) {
	no, ok := given.Uint(splitNoKey)
	if !ok || no >= count {
		err := fmt.Errorf("part number %d (%s) of %d (%s): %w", no, splitNoKey, count, splitCountKey, ErrMismatchedPart)
		return nil, &fs.PathError{Op: "read", Path: given.Path, Err: err}
	}
	base := filepath.Base(given.Path)
	prefix, ok := strings.CutSuffix(base, partPath("", no, count))
	if !ok || prefix == "" {
		return nil, fmt.Errorf("%w: %s is part %d of %d, and is not named <model>%s", ErrPartName, given.Path, no+1,
			count, partPath("", no, count))
	}
	prefix = filepath.Join(filepath.Dir(given.Path), prefix)
	if err := check(given, prefix, count); err != nil {
		return nil, err
	}

	var files []*File
	tensors, memory := uint64(0), int64(0)
	for i := range count {
		f := given
		if i != no {
			var err error
			if f, err = open(partPath(prefix, i, count)); err != nil {
				return nil, err
			}
			if err := matchPart(f, given, i, count); err != nil {
				return nil, fmt.Errorf("%w as %s: %s %w", ErrMismatchedPart, given.Path, f.Path, err)
			}
		}
		files = append(files, f)
		tensors += uint64(len(f.Tensors))
		if memory += f.memory; memory > maxStructure {
			err := fmt.Errorf("the structure of the %d parts up to here takes more than %d MiB of memory", i+1,
				maxStructure>>20)
			return nil, &fs.PathError{Op: "read", Path: f.Path, Err: err}
		}
	}
	for _, f := range files {
		if want, ok := f.Uint(splitTensorsKey); ok && want != tensors {
			return nil, fmt.Errorf("%w: %s says that all parts have %d tensors (%s), they have %d", ErrMismatchedPart,
				f.Path, want, splitTensorsKey, tensors)
		}
	}
	return files, nil
}

// missingParts names the first few parts that do not exist; nil if all do. It ends after these, so
// a hostile count of parts costs nothing.
func missingParts(prefix string, count uint64) (names []string) {
	const limit = 5
	for i := range count {
		path := partPath(prefix, i, count)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			names = append(names, filepath.Base(path))
		}
		if len(names) == limit+1 {
			names[limit] = "..."
			break
		}
	}
	return names
}

// matchPart checks that f is part no of the count parts of the model that given belongs to. The
// error says why it is not.
func matchPart(f, given *File, no, count uint64) error {
	if got, ok := f.Uint(splitCountKey); !ok || got != count {
		return fmt.Errorf("has %s %s, not %d", splitCountKey, formatCount(got, ok), count)
	}
	if got, ok := f.Uint(splitNoKey); !ok || got != no {
		return fmt.Errorf("has %s %s, not %d", splitNoKey, formatCount(got, ok), no)
	}
	if f.BigEndian != given.BigEndian {
		return errors.New("has the other byte order")
	}
	// Writers store the architecture in the first part only, or in all parts.
	a, inPart := f.String(architectureKey)
	if b, inGiven := given.String(architectureKey); inPart && inGiven && a != b {
		return fmt.Errorf("is of architecture %.50q, not %.50q", a, b)
	}
	return nil
}

// formatCount writes a number that a file has, if ok.
func formatCount(n uint64, ok bool) string {
	if !ok {
		return "missing"
	}
	return fmt.Sprint(n)
}

// indexNames sorts the tensors of all files by name. A name that occurs twice is an error.
func (m *Model) indexNames() error {
	n := 0
	for _, f := range m.Files {
		n += len(f.Tensors)
	}
	m.byName = make([]Location, 0, n)
	for i, f := range m.Files {
		for _, j := range f.byName {
			m.byName = append(m.byName, Location{Tensor: &f.Tensors[j], Expert: -1, File: i})
		}
	}
	if len(m.Files) == 1 {
		return nil // the order of the file's byName is right already
	}
	sort.Slice(m.byName, func(i, j int) bool { return m.byName[i].Tensor.Name < m.byName[j].Tensor.Name })
	for i := 1; i < n; i++ {
		if a, b := m.byName[i-1], m.byName[i]; a.Tensor.Name == b.Tensor.Name {
			return fmt.Errorf("%w: tensor %.100q is in %s and in %s", ErrMismatchedPart, a.Tensor.Name,
				m.Files[a.File].Path, m.Files[b.File].Path)
		}
	}
	return nil
}

// Lookup returns where the tensor with that name is; the location's expert is -1. It takes O(log n).
func (m *Model) Lookup(name string) (Location, bool) {
	i, ok := sort.Find(len(m.byName), func(i int) int { return strings.Compare(name, m.byName[i].Tensor.Name) })
	if !ok {
		return Location{}, false
	}
	return m.byName[i], true
}

// Locate returns what byte off of m.Files[file] belongs to. It reports false if that lies in the
// metadata, in padding or outside the file, or there is no such file. It takes O(log n).
func (m *Model) Locate(file int, off int64) (Location, bool) {
	if file < 0 || file >= len(m.Files) {
		return Location{}, false
	}
	l, ok := m.Files[file].Locate(off)
	l.File = file
	return l, ok
}

// CheckTypes returns an error if a tensor has a type that ggml's main line does not read.
func (m *Model) CheckTypes() error {
	for _, f := range m.Files {
		for i := range f.Tensors {
			if t := &f.Tensors[i]; !t.Type.Valid() {
				err := fmt.Errorf("tensor %.100q: %v is not a type that ggml reads", t.Name, t.Type)
				return &fs.PathError{Op: "read", Path: f.Path, Err: err}
			}
		}
	}
	return nil
}

// Size is the number of bytes of all files.
func (m *Model) Size() int64 {
	var n int64
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// Tensors is the number of tensors in all files.
func (m *Model) Tensors() int { return len(m.byName) }
