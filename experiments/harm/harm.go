// Package harm looks for harm that a helper does to a llama.cpp: does it die with a helper, or
// generate another text, where it would not without one? "lab harm" runs it.
//
// A run is one target in a new memory control group that holds a share x of the model. A helper,
// any command, starts beside it, outside of that group. While the target generates, at a random
// moment, a [Scene] happens: another process in the group takes memory, the limit changes, somebody
// is killed or stopped. Afterwards it is recorded who was killed, whether the text is that of a
// reference run without a limit, and what is left when target and helper have ended: processes, and
// pages of the model that cannot be dropped.
//
// Runs are made in pairs, with and without the helper, that share the scene's moment. Which of the
// two is first alternates. Kills and texts need no quiet machine, so several pairs may run at the
// same time, each on a copy of the model, because its pages would be shared otherwise.
//
// Amounts are bytes. Everything needs root, to make control groups and to trace.
package harm

// This file makes a series: what is measured once, and the pairs.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tensorcast/experiments/confine"
	"tensorcast/experiments/llama"
	"tensorcast/internal/cc"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/host"
)

// Config says what to run.
type Config struct {
	Model string
	// Others are models that the target reads, too, in processes of its own. With them only one pair
	// runs at a time.
	Others []string
	// Target is the command line that runs a model. It must print what llamarun --stream prints,
	// and generate the same text each time.
	Target func(model string) []string
	// Trace runs one of the models for a few tokens, to count the weights that a token reads. It is not
	// used if Weights is given.
	Trace   func(model string) []string
	Weights int64 // what a token reads, in bytes

	// Helper is a simple shell command. {pid} in it is replaced by the target's process id. A
	// command that ends in {target} starts the target itself, in the target's group.
	Helper   string
	X        []float64
	Scenes   []Scene
	Pairs    int           // of each scene and x
	Tokens   int           // that the target generates
	Settle   int           // no scene happens before this many tokens
	Seed     uint64        // of the moments
	Hold     time.Duration // how long a scene lasts, once it is complete
	Timeout  time.Duration // of a run; a target that takes longer hangs
	Parallel int           // pairs that run at the same time
	// HelpedOnly leaves out the runs without the helper. Then every target that is lost counts as
	// harmed.
	HelpedOnly bool
	// OtherText says that the helper may change the text. It is not compared in runs with the
	// helper.
	OtherText bool
	// Dir is where copies of the model and a program are put; with Parallel 1 only the program.
	Dir string

	// Progress, if not nil, is called with what is being done: done of total runs are complete. It
	// is called from one goroutine at a time.
	Progress func(done, total int, what string)
	Log      *slog.Logger // receives warnings; nil: none
}

// launcher is the beginning of the helper's command, if it starts the target itself.
func (c *Config) launcher() (string, bool) { return strings.CutSuffix(c.Helper, "{target}") }

// isCompared reports whether a scene has runs without the helper, too.
func (c *Config) isCompared(s Scene) bool { return !c.HelpedOnly && !s.concernsHelper() }

func (c *Config) check() error {
	switch {
	case c.Model == "":
		return errors.New("no model")
	case c.Target == nil || c.Weights == 0 && c.Trace == nil:
		return errors.New("no target command")
	case c.Helper == "":
		return errors.New("no helper")
	case len(c.Others) > 0 && c.Parallel > 1:
		return errors.New("a target of several models has no copies: one pair runs at a time")
	case len(c.X) == 0 || len(c.Scenes) == 0 || c.Pairs < 1 || c.Parallel < 1:
		return errors.New("nothing to run: want shares, scenes, pairs")
	case c.Settle < 1 || c.Tokens <= c.Settle:
		return errors.New("the target must generate more tokens than those before a scene, which are at least one")
	case c.Hold < 0 || c.Timeout <= 0 || c.Weights < 0:
		return errors.New("a time or size is not a positive number")
	case slices.ContainsFunc(c.X, func(x float64) bool { return !(x > 0) || math.IsInf(x, 0) }):
		return errors.New("a share of the model is not a positive number")
	}
	if _, starts := c.launcher(); starts &&
		slices.ContainsFunc(c.Scenes, func(s Scene) bool { return s.kind == moved }) {
		return errors.New("scene moved: a helper that starts the target is in its group from the beginning")
	}
	return nil
}

// ErrNotRoot says that the caller is not root.
var ErrNotRoot = errors.New("not root: it makes control groups, drops the page cache and traces")

// series is the state of one Measure.
type series struct {
	cfg    Config
	root   *cgroup.Group
	name   string // the beginning of its groups' names; no other series has it
	hog    string // the path of the program that takes memory
	report *Report
	runs   atomic.Int64 // started so far

	mu    sync.Mutex // protects what follows, and report.Runs
	done  int
	total int
}

// lane is a copy of the model, with which one pair at a time runs. A target's other models have no
// copies, and belong to the first lane.
type lane struct {
	path   string
	size   int64            // bytes of the file at path
	models []*confine.Model // this model, and then the others
}

func (l *lane) close() error {
	var errs []error
	for _, m := range l.models {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// drop drops all models from the page cache. It fails with [confine.ErrStillCached] if some of one remains.
func (l *lane) drop(ctx context.Context) error {
	for _, m := range l.models {
		if err := m.Drop(ctx); err != nil {
			return err
		}
	}
	return nil
}

// dropAndCount drops all models, and returns how many bytes remain nevertheless.
func (l *lane) dropAndCount(ctx context.Context) (left int64, err error) {
	for _, m := range l.models {
		n, err := m.DropAndCount(ctx)
		if err != nil {
			return 0, err
		}
		left += n
	}
	return left, nil
}

// Measure runs a series. When ctx ends, all processes that it started are ended. If ctx ends or a
// run fails, the report of the whole pairs so far (nil if there are none) is returned with the
// error. In any case its control groups, processes and files are gone afterwards.
func Measure(ctx context.Context, cfg Config) (report *Report, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &series{cfg: cfg}
	if s.root, err = cgroup.Root(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(cfg.Dir, fmt.Sprintf("tensorcast-harm-%d-", os.Getpid()))
	if err != nil {
		return nil, err
	}
	s.name = filepath.Base(dir)
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s.hog = filepath.Join(dir, "hog")
	if err := cc.Compile(ctx, s.hog, hogSource); err != nil {
		return nil, fmt.Errorf("compile the program that takes memory: %w", err)
	}
	specs := s.specs()
	for _, pair := range specs {
		s.total += len(pair)
	}
	s.report = &Report{
		Started: time.Now(), Host: host.Read(), Model: cfg.Model, TokenBytes: cfg.Weights, Helper: cfg.Helper,
		Seed: cfg.Seed, Hold: cfg.Hold, Settle: cfg.Settle, Parallel: cfg.Parallel, Runs: []Run{},
	}
	first, err := openLane(append([]string{cfg.Model}, cfg.Others...)...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, first.close()) }()
	for _, m := range first.models {
		if err := m.OnDisk(); err != nil {
			return nil, err
		}
		s.report.ModelBytes += m.Size
	}
	memory, err := cgroup.Host()
	if err != nil {
		return nil, err
	}
	if need := s.report.ModelBytes * int64(cfg.Parallel); memory.Available < need {
		return nil, fmt.Errorf("%d runs at a time of %s need %d MiB and this machine has %d MiB free: it would be "+
			"under pressure itself", cfg.Parallel, cfg.Model, need>>20, memory.Available>>20)
	}
	if err := s.runReference(ctx, first); err != nil {
		return nil, err
	}
	err = s.runPairs(ctx, first, dir, specs)
	if err != nil {
		if len(s.report.Runs) == 0 {
			return nil, err
		}
		s.report.Interrupted = true
	}
	s.report.summarise(cfg)
	return s.report, err
}

// openLane opens a lane's models, of which the first is the one that is copied.
func openLane(paths ...string) (*lane, error) {
	l := &lane{path: paths[0]}
	for _, path := range paths {
		m, err := confine.Open(path)
		if err != nil {
			return nil, errors.Join(err, l.close())
		}
		l.models = append(l.models, m)
	}
	l.size = l.models[0].Size
	return l, nil
}

func (s *series) progress(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.Progress != nil {
		s.cfg.Progress(s.done, s.total, what)
	}
}

// specs lists the runs of each pair, in the order in which they are made. All scenes take turns, so
// that a series that is cut short has some of each.
func (s *series) specs() [][]spec {
	var all [][]spec
	for n := range s.cfg.Pairs {
		for _, x := range s.cfg.X {
			for _, scene := range s.cfg.Scenes {
				pair := []spec{{scene, x, n, true}}
				if s.cfg.isCompared(scene) {
					pair = append(pair, spec{scene, x, n, false})
				}
				if n%2 == 1 {
					slices.Reverse(pair)
				}
				all = append(all, pair)
			}
		}
	}
	return all
}

// runReference runs the target without limit and helper. All others must generate its text, and the
// limit follows from its memory.
func (s *series) runReference(ctx context.Context, l *lane) (err error) {
	if s.report.TokenBytes == 0 {
		s.progress("tracing what a token reads")
		for _, path := range append([]string{l.path}, s.cfg.Others...) {
			w, err := confine.TraceWeights(ctx, s.cfg.Trace(path), s.cfg.Log)
			if err != nil {
				return fmt.Errorf("measure the weights that a token reads: %w", err)
			}
			s.report.TokenBytes += w.TokenBytes
		}
	}
	s.progress("reference run")
	if err := l.drop(ctx); err != nil {
		return err
	}
	name := s.name + "-reference"
	group, err := cgroup.Create(s.root, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, confine.KillMarked(markVariable+"="+name), group.Remove()) }()
	running, cancel := context.WithTimeoutCause(ctx, s.cfg.Timeout, errHung)
	defer cancel()
	t, err := confine.StartTarget(running, group, s.cfg.Target(l.path), markVariable+"="+name)
	if err != nil {
		return err
	}
	defer t.Kill(cancel)
	var own int64
	var ownErr error
	var watch sync.WaitGroup
	watch.Go(func() { own, ownErr = confine.OwnMemory(group, t.Done) })
	t.Follow(func(int, llama.Token) {})
	watch.Wait()
	switch {
	case running.Err() != nil:
		return fmt.Errorf("the target without a limit: %w", context.Cause(running))
	case ownErr != nil:
		return fmt.Errorf("measure the target's own memory: %w", ownErr)
	case !t.State().Success() || t.OutputError() != nil || len(t.IDs) != s.cfg.Tokens:
		return fmt.Errorf("the target fails without a limit: %s", t.Problem())
	}
	s.report.Own, s.report.Text, s.report.TokenIDs = own, t.Text.String(), t.IDs
	return nil
}

// limit is the limit of a group which holds the share x of what a token reads.
func (s *series) limit(x float64) int64 {
	return (int64(x*float64(s.report.TokenBytes)) + s.report.Own) &^ int64(os.Getpagesize()-1) // as the kernel does
}

// runPairs runs the pairs, several at the same time if so configured.
func (s *series) runPairs(ctx context.Context, first *lane, dir string, specs [][]spec) (err error) {
	lanes := []*lane{first}
	for n := 1; n < min(s.cfg.Parallel, len(specs)); n++ {
		s.progress("copying the model")
		path := filepath.Join(dir, fmt.Sprintf("model-%d.gguf", n))
		if err := confine.Copy(ctx, path, s.cfg.Model); err != nil {
			return err
		}
		l, err := openLane(path)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.close()) }()
		lanes = append(lanes, l)
	}
	next := make(chan []spec)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(next)
		for _, pair := range specs {
			select {
			case next <- pair:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	for _, l := range lanes {
		g.Go(func() error {
			for pair := range next {
				if err := s.runPair(ctx, l, pair); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// runPair makes the runs of a pair, and reports them when it is whole.
func (s *series) runPair(ctx context.Context, l *lane, pair []spec) error {
	var runs []Run
	for _, r := range pair {
		run, err := s.run(ctx, l, r)
		if err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
		runs = append(runs, *run)
		s.mu.Lock()
		s.done++
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Runs = append(s.report.Runs, runs...)
	return nil
}
