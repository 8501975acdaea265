package pattern

// This file tells a cycle's model from other models.

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"tensorcast/gguf"
)

// ErrOtherModel means that a cycle is of another model than the one at hand.
var ErrOtherModel = errors.New("the pattern is of another model")

// FilesOf describes the files of a model, in the order of its parts. It reads their metadata. The
// errors are those of gguf.File.Fingerprint.
func FilesOf(m *gguf.Model) ([]CycleFile, error) {
	files := make([]CycleFile, 0, len(m.Files))
	for _, f := range m.Files {
		fingerprint, err := f.Fingerprint()
		if err != nil {
			return nil, fmt.Errorf("identify %s: %w", f.Path, err)
		}
		files = append(files, CycleFile{Name: filepath.Base(f.Path), Size: f.Size, Fingerprint: fingerprint})
	}
	return files, nil
}

// isSameFile reports whether two descriptions are of the same file, whatever its name.
func (f CycleFile) isSameFile(o CycleFile) bool {
	return f.Size == o.Size && f.Fingerprint == o.Fingerprint
}

func (f CycleFile) String() string {
	return fmt.Sprintf("%s (%d bytes, fingerprint %.8s)", f.Name, f.Size, f.Fingerprint)
}

// MatchFiles returns the cycle with CycleRead.File renumbered as an index of files. These may be in another
// order and include files of other models. The error is ErrOtherModel, and says which file is
// missing.
func (c *Cycle) MatchFiles(files []CycleFile) (*Cycle, error) {
	index := make([]int, len(c.Files))
	for i, f := range c.Files {
		index[i] = slices.IndexFunc(files, f.isSameFile)
		if index[i] < 0 {
			return nil, fmt.Errorf("%w: it reads %v, which is not among the files here", ErrOtherModel, f)
		}
	}
	in := &Cycle{Files: slices.Clone(files), Reads: slices.Clone(c.Reads)}
	for i := range in.Reads {
		in.Reads[i].File = index[in.Reads[i].File]
	}
	return in, nil
}
