package serve

// This file keeps what is learned of a mixture's routing from one target to the next (Options.Learned).

import (
	"errors"
	"fmt"
	"io/fs"
	"math"

	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
	"tensorcast/moe/hidden"
)

const (
	// routingSuffix is that of the files' names. The routers' ID comes before it.
	routingSuffix = ".routers"
	// maxRoutings is how many models are kept, of some 4 MB each: those that ran last.
	maxRoutings = 16
)

// routingFile is a predictor, and the name of the file that keeps what it learns.
type routingFile struct {
	predictor *hidden.Predictor // nil: nothing is to be kept
	name      string
}

// loadRouting lets a predictor begin with what was learned of the same routers before, and remembers the predictor
// for saveRouting. What cannot be read is learned anew.
func (s *server) loadRouting(p *hidden.Predictor, routers *hidden.Routers) {
	if s.opts.LearnedDir == "" {
		return
	}
	s.routing = routingFile{p, routers.ID + routingSuffix}
	switch err := s.routing.load(s.opts.LearnedDir); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		s.opts.Log.Warn("routing is learned anew", "why", err)
	default:
		s.opts.Log.Info("begins with what was learned of these routers before", "directory", s.opts.LearnedDir)
	}
}

// saveRouting writes what was learned, if anything was, and forgets the predictor.
func (s *server) saveRouting() {
	r := s.routing
	s.routing = routingFile{}
	if r.predictor == nil || !r.predictor.HasLearned() {
		return
	}
	if err := r.save(s.opts.LearnedDir); err != nil {
		s.opts.Log.Warn("what was learned of the routers is not kept", "why", err)
	}
}

func (r *routingFile) load(path string) error {
	dir, err := outfile.OpenDir(path, 0o700)
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := regular.OpenHere(dir.Path(r.name))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := r.predictor.Load(f); err != nil {
		return fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return nil
}

func (r *routingFile) save(path string) error {
	dir, err := outfile.OpenDir(path, 0o700)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Write(r.name, 0o600, r.predictor.Save); err != nil {
		return err
	}
	return dir.RemoveOldest(routingSuffix, r.name, maxRoutings, math.MaxInt64)
}
