package serve

// This file keeps what is learned of a mixture's routing from one target to the next, for a warm start.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
	"tensorcast/moe/hidden"
)

const (
	// learnedSuffix is that of the files: the routers' ID comes before it.
	learnedSuffix = ".routers"
	// mostLearned is how many models are remembered, of some 4 MB each: those that ran last.
	mostLearned = 16
)

// learned is a predictor, and where what it learns is kept.
type learned struct {
	predictor *hidden.Predictor
	name      string // of its file
}

// begin lets a predictor begin with what was learned of the same routers before, and remembers it. What cannot be
// read is learned anew.
func (v *server) begin(p *hidden.Predictor, routers *hidden.Routers) {
	if v.o.Learned == "" {
		return
	}
	v.learned = learned{p, routers.ID + learnedSuffix}
	switch err := v.learned.load(v.o.Learned); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		v.o.Log.Warn("routing is learned anew", "why", err)
	default:
		v.o.Log.Info("begins with what was learned of these routers before", "directory", v.o.Learned)
	}
}

func (l *learned) load(path string) error {
	dir, err := outfile.OpenDir(path, 0o700)
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := regular.OpenHere(dir.Path(l.name))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := l.predictor.Load(f); err != nil {
		return fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return nil
}

// keep writes what was learned, if anything was, for the next time.
func (v *server) keep() {
	l := v.learned
	v.learned = learned{}
	if l.predictor == nil || !l.predictor.Learned() {
		return
	}
	if err := l.save(v.o.Learned); err != nil {
		v.o.Log.Warn("what was learned of the routers is not kept", "why", err)
	}
}

func (l *learned) save(path string) error {
	dir, err := outfile.OpenDir(path, 0o700)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Write(l.name, 0o600, l.predictor.Save); err != nil {
		return err
	}
	return forget(dir, l.name)
}

// forget removes the files of models that ran longest ago, beyond those that are remembered, and what a killed
// process has left of one.
func forget(dir *outfile.Dir, but string) error {
	entries, err := dir.Entries()
	if err != nil {
		return err
	}
	type file struct {
		name string
		at   time.Time
	}
	var files []file
	for _, e := range entries {
		if strings.HasSuffix(outfile.Temporary(e.Name), learnedSuffix) {
			err = errors.Join(err, dir.Remove(e.Name))
			continue
		}
		if e.Dir || !strings.HasSuffix(e.Name, learnedSuffix) || e.Name == but {
			continue
		}
		info, statErr := os.Lstat(dir.Path(e.Name))
		if statErr != nil {
			err = errors.Join(err, statErr)
			continue
		}
		files = append(files, file{e.Name, info.ModTime()})
	}
	slices.SortFunc(files, func(a, b file) int { return b.at.Compare(a.at) })
	for i, f := range files {
		if i+1 >= mostLearned {
			err = errors.Join(err, dir.Remove(f.name))
		}
	}
	return err
}
