// Package soak runs llama.cpp, tracer and prefetchd again and again for minutes, and ends one or
// the other at random moments. After each round it checks whether something was left behind, a text
// differs, or a tool broke. "lab soak" runs it.
//
// There are two lanes, which take turns, each with a copy of the model of its own. In lane A, a
// target runs in a memory control group that holds half of the weights, or four of the disk's
// readaheads. It has a prefetchd or a tracer of its own, and a signal goes to one of them. In lane
// B, one prefetchd --auto lives through all targets, except for one restart. What happens in a life
// follows from seed, lane and number alone. At which point of the target's work it happens depends
// on the machine.
//
// Amounts are bytes. It needs root.
package soak

// This file makes a soak: what is set up once, the lanes' turns, and the end.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"tensorcast/experiments/confine"
	"tensorcast/experiments/llama"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/host"
)

// Config says what to run.
type Config struct {
	Model string
	// Program is what Target runs. A link to it gives lane B's targets a name of their own.
	Program string
	// Target must print what llamarun --stream prints, and the same text each time.
	Target    func(program, model string) []string
	Tokens    int           // tokens that the target generates
	Prefetchd string        // program
	Tracer    string        // program
	Duration  time.Duration // no life begins later than this after the start
	Seed      uint64        // of what happens
	// Dir is a directory on a disk. The soak makes a directory in it for all of its files.
	Dir      string
	Progress func(elapsed time.Duration, what string) // nil: not told
}

func (c *Config) check() error {
	switch {
	case c.Model == "" || c.Program == "" || c.Target == nil || c.Prefetchd == "" || c.Tracer == "":
		return errors.New("no model or program")
	case c.Tokens < 1 || c.Duration <= 0:
		return errors.New("a number or time is not positive")
	}
	return nil
}

// markVariable is an environment variable that marks the processes of a soak.
const markVariable = "TENSORCAST_SOAK"

// soak is the state of one Measure. Its lives are made one after the other.
type soak struct {
	cfg    Config
	root   *cgroup.Group
	dir    string
	name   string // the beginning of its groups' names and of its markers' values
	start  time.Time
	before map[object]bool
	limit  int64
	took   time.Duration // of the reference run
	text   string        // of the reference run
	ids    []int32
	lanes  [2]*lane
	auto   *tool // of lane B

	restarted bool
	report    *Report
}

// lane is a copy of the model with directories, with which one life at a time runs.
type lane struct {
	name    string
	dir     string
	path    string // path of the copy of the model
	model   *confine.Model
	tmp     string // the tools' TMPDIR
	run     string // the tools' --run-dir
	program string
	lives   int
}

// Measure soaks. It is no error if ctx ends: the report is whole then, too, with
// Report.Interrupted. An error is a failure of the instrument. The report then has what was found
// before; it is nil if nothing was set up. In any case the soak's groups, processes and files are
// gone afterwards.
func Measure(ctx context.Context, cfg Config) (report *Report, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s := &soak{cfg: cfg, report: &Report{
		Started: time.Now(), Host: host.Read(), Model: cfg.Model, Seed: cfg.Seed, Tools: map[string]int{},
		Signals: map[string]int{}, Samples: []Sample{}, Findings: []Finding{},
	}}
	if s.root, err = cgroup.Root(); err != nil {
		return nil, err
	}
	if s.before, _, err = objects(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp(cfg.Dir, fmt.Sprintf("tensorcast-soak-%d-", os.Getpid())); err != nil {
		return nil, fmt.Errorf("make the soak's directory: %w", err)
	}
	s.name = filepath.Base(s.dir)
	defer func() {
		for _, what := range []string{"reference", "target", "tool", "auto"} {
			err = errors.Join(err, confine.KillMarked(s.marker(what)))
		}
		for _, l := range s.lanes {
			if l != nil {
				err = errors.Join(err, l.model.Close())
			}
		}
		err = errors.Join(err, os.RemoveAll(s.dir))
	}()
	for i, name := range []string{"a", "b"} {
		s.progress("copying the model")
		if s.lanes[i], err = s.newLane(ctx, name); err != nil {
			return nil, err
		}
	}
	if err := s.runReference(ctx, s.lanes[0]); err != nil {
		return nil, err
	}
	s.start = time.Now()
	err = s.takeTurns(ctx)
	s.report.Interrupted = ctx.Err() != nil
	err = errors.Join(err, s.finish())
	s.report.Seconds = time.Since(s.start).Seconds()
	return s.report, err
}

func (s *soak) marker(what string) string { return markVariable + "=" + s.name + "-" + what }

func (s *soak) progress(what string) {
	if s.cfg.Progress == nil {
		return
	}
	var elapsed time.Duration
	if !s.start.IsZero() {
		elapsed = time.Since(s.start)
	}
	s.cfg.Progress(elapsed, what)
}

func (s *soak) addFinding(kind Kind, life, what string) {
	s.report.Findings = append(s.report.Findings, Finding{kind, what, life, time.Since(s.start).Seconds(), s.cfg.Seed})
}

// newLane makes a lane's directories and its copy of the model.
func (s *soak) newLane(ctx context.Context, name string) (*lane, error) {
	dir := filepath.Join(s.dir, name)
	l := &lane{name: name, dir: dir, path: filepath.Join(dir, "model.gguf"), tmp: filepath.Join(dir, "tmp"),
		run: filepath.Join(dir, "run"), program: filepath.Join(dir, s.targetName(name))}
	for _, d := range []string{dir, l.tmp, l.run} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, fmt.Errorf("make a lane's directory: %w", err)
		}
	}
	program, err := filepath.Abs(s.cfg.Program)
	if err != nil {
		return nil, fmt.Errorf("find the target's program: %w", err)
	}
	if err := os.Symlink(program, l.program); err != nil {
		return nil, fmt.Errorf("name the target's program: %w", err)
	}
	if err := confine.Copy(ctx, l.path, s.cfg.Model); err != nil {
		return nil, err
	}
	if l.model, err = confine.Open(l.path); err != nil {
		return nil, err
	}
	if err := l.model.OnDisk(); err != nil {
		return nil, errors.Join(err, l.model.Close())
	}
	return l, nil
}

// targetName is the name that a lane's targets have as processes, at most 15 bytes. No other soak that runs has it.
func (s *soak) targetName(lane string) string { return fmt.Sprintf("soak-%s-%d", lane, os.Getpid()) }

// readsInFlight is for how many of the disk's readaheads a group has room at least: two that the target waits for,
// and as much that a tool has asked for. What is being read cannot be reclaimed: where a group has no other pages, the
// kernel kills its target.
const readsInFlight = 4

// runReference runs the target without limit and tool. All others must generate its text. The limit
// follows from its memory, and the moments from its time.
func (s *soak) runReference(ctx context.Context, l *lane) (err error) {
	s.progress("reference run")
	group, err := cgroup.Create(s.root, s.name+"-reference")
	if err != nil {
		return err
	}
	marker := s.marker("reference")
	defer func() { err = errors.Join(err, confine.KillMarked(marker), group.Remove()) }()
	running, cancel := context.WithTimeoutCause(ctx, lifetime, errHung)
	defer cancel()
	began := time.Now()
	t, err := confine.StartTarget(running, group, s.cfg.Target(l.program, l.path), marker)
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
	s.took, s.text, s.ids = time.Since(began), t.Text.String(), t.IDs
	ahead, err := l.model.ReadAhead()
	if err != nil {
		return err
	}
	s.limit = own + max(l.model.Size/2, readsInFlight*ahead)
	return nil
}

// takeTurns makes lives until the time is over, in the lanes by turns.
func (s *soak) takeTurns(ctx context.Context) error {
	if err := s.startAuto(); err != nil {
		return err
	}
	for turn := 0; ctx.Err() == nil && time.Since(s.start) < s.cfg.Duration; turn++ {
		l := s.lanes[turn%2]
		p := drawPlan(s.cfg.Seed, l.name, l.lives)
		l.lives++
		// The restart is within the first third, once lane B was helped. What was measured before
		// is of another process than what grows later.
		if l == s.lanes[1] && !s.restarted && time.Since(s.start) >= s.cfg.Duration/6 {
			p.restart, s.restarted = true, true
		}
		life := fmt.Sprintf("lane %s, life %d: %s", l.name, l.lives, p)
		s.progress(life)
		if err := s.runLife(ctx, l, p, life); err != nil {
			return fmt.Errorf("%s: %w", life, err)
		}
	}
	return nil
}

// finish ends prefetchd --auto, and looks for what can only be seen without it.
func (s *soak) finish() error {
	const life = "end"
	if s.auto != nil {
		s.endAuto(life)
	}
	var err error
	for _, l := range s.lanes {
		err = errors.Join(err, s.checkLeftovers(life, l, false))
	}
	left, lookErr := leftGroups(s.root, s.name)
	err = errors.Join(err, lookErr)
	s.addFindings(Groups, life, left)
	left, lookErr = leftObjects(settle, s.before, s.marker("tool"))
	err = errors.Join(err, lookErr)
	s.addFindings(BPF, life, left)
	s.addFindings(Growth, life, findGrowth(s.report.Samples))
	return err
}

func (s *soak) addFindings(kind Kind, life string, what []string) {
	for _, w := range what {
		s.addFinding(kind, life, w)
	}
}

// names are a map's keys, sorted.
func names(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }
