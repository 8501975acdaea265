package hot

// This file keeps scores in a directory, and reads them again.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/models"
)

const (
	// subDirectory is made in the directory that a Store is given.
	subDirectory = "experts"
	// suffix is that of the files' names. The model's identity comes before it.
	suffix = ".experts"
	// maxFiles and maxBytes bound the directory. Of more models those are kept that ran last.
	maxFiles = 64
	maxBytes = 8 << 20
)

var (
	// ErrOtherModel says that scores are of a model with other experts.
	ErrOtherModel = errors.New("the scores are of another model")
	// ErrUnsafe says that a file is not its user's alone.
	ErrUnsafe = errors.New("others may have written it, or may read it")
)

// Store keeps scores in a directory. It holds nothing open, and several processes may use one directory.
type Store struct{ dir string }

// NewStore returns a Store in a subdirectory of dir, which is made when something is kept. Both must be of nobody else
// (see package outfile).
func NewStore(dir string) *Store { return &Store{dir} }

// open opens the subdirectory. With make it is made if it is missing.
func (s *Store) open(make bool) (*outfile.Dir, error) {
	if !make {
		if _, err := os.Lstat(filepath.Join(s.dir, subDirectory)); err != nil {
			return nil, err
		}
	}
	parent, err := outfile.OpenDir(s.dir, 0o700)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	return parent.OpenSub(subDirectory, 0o700)
}

// Load returns the scores of a model, as Save has kept them. The error wraps fs.ErrNotExist if there are none,
// ErrInvalid, ErrOtherModel or ErrUnsafe if those that there are cannot be used, or is of the file system.
func (s *Store) Load(m models.Model) (mixture.Scores, error) {
	dir, err := s.open(false)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	id := identify(&m)
	path := dir.Path(id.String() + suffix)
	b, err := readOwn(path)
	if err != nil {
		return nil, err
	}
	of, scores, err := decode(b)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", path, err)
	case of != id:
		return nil, fmt.Errorf("read %s: %w", path, ErrOtherModel)
	}
	if err := checkGeometry(m.Parts, scores); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return scores, nil
}

// readOwn reads a regular file that belongs to this user, and that nobody else can read or write.
func readOwn(path string) ([]byte, error) {
	f, err := regular.OpenHere(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return nil, &fs.PathError{Op: "read", Path: path, Err: ErrUnsafe}
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	return b, nil // decode says whether it is too long
}

// Save keeps the scores of a model. They appear whole or not at all. Files of other models are removed if there are too
// many.
func (s *Store) Save(m models.Model, scores mixture.Scores) error {
	id := identify(&m)
	b, err := encode(id, scores)
	if err != nil {
		return err
	}
	dir, err := s.open(true)
	if err != nil {
		return err
	}
	defer dir.Close()
	name := id.String() + suffix
	err = dir.Write(name, 0o600, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
	if err != nil {
		return err
	}
	return dir.RemoveOldest(suffix, name, maxFiles, maxBytes)
}

// Forget removes the scores of a model, if there are any.
func (s *Store) Forget(m models.Model) error {
	dir, err := s.open(false)
	if err == nil {
		defer dir.Close()
		err = dir.Remove(identify(&m).String() + suffix)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
