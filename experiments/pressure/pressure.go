// Package pressure measures a llama.cpp that has less memory than its model, with and without a helper. "lab pressure" runs it.
//
// A run is one target process in a new memory control group with a limit. A helper, if the variant has one, is in the same group, so that
// its memory counts, too. Before a run, the model is dropped from the page cache, and this is verified. Variants take turns (A B B A), so
// that a drift of the machine affects them alike. Measured once are: M, the bytes of weights that a generated token reads (traced); the
// target's own memory, which is its memory except page cache of the model, the time to compute a token, and the text (all without a limit);
// and the disk's bandwidth. They give the bound that no strategy can exceed:
//
//	tok/s <= min(1/T_compute, BW_disk/(M-R)), R = limit - own memory
//
// Numbers per token cover generation only: the target writes a byte to descriptor 3 when the prompt has been decoded and after each token
// (llamarun --mark 3), and the counters are read at each byte.
//
// Amounts are bytes. Everything needs root, to make control groups and to trace.
package pressure

// This file runs a series: the measurements that are made once, and the variants in turn.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"time"

	"tensorcast/experiments/confine"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/host"
)

// Variant is one way to run the target under the limit.
type Variant struct {
	Name   string `json:"name"`
	Helper string `json:"helper,omitempty"` // a simple shell command; {pid} is replaced by the target's process id; empty: none
	Flags  string `json:"flags,omitempty"`  // additional arguments for the target, in the shell's syntax
}

// Config says what to measure.
type Config struct {
	Model string
	// Target is the command line. It must print llamarun's JSON, and write its marks to descriptor 3.
	Target []string
	// Trace is a shorter run of the same, used to count the weights that a token reads. nil means Target. It is not used if Weights is
	// given.
	Trace []string

	X     float64 // limit = X * M + own memory
	Limit int64   // the limit itself, in bytes; then X is 0

	Weights   int64 // M, if it is not to be traced; the disk is then measured over the whole file, and the model is assumed to be dense
	Repeat    int   // runs of each variant
	Variants  []Variant
	Readahead int // of the disk, in KiB, set for the series and restored; 0: unchanged
	Disk      DiskOptions

	// Progress, if not nil, is called with what is being done: done of total runs are complete. It is called from one goroutine at a time.
	Progress func(done, total int, what string)
	Log      *slog.Logger // receives warnings; nil: none
}

func (c *Config) check() error {
	switch {
	case c.Model == "":
		return errors.New("no model")
	case len(c.Target) == 0:
		return errors.New("no target command")
	case (c.X > 0) == (c.Limit > 0):
		return errors.New("give a limit in bytes or a share of the model, one of them")
	case c.X < 0 || c.Limit < 0 || c.Weights < 0 || c.Readahead < 0 || math.IsNaN(c.X) || math.IsInf(c.X, 0):
		return errors.New("a limit, share, size or readahead is not a positive number")
	case c.Repeat < 1:
		return errors.New("a series has at least one repeat")
	case len(c.Variants) == 0:
		return errors.New("no variant")
	}
	for i, v := range c.Variants {
		if v.Name == "" {
			return errors.New("a variant has no name")
		}
		if slices.ContainsFunc(c.Variants[:i], func(o Variant) bool { return o.Name == v.Name }) {
			return fmt.Errorf("two variants are named %s", v.Name)
		}
	}
	return nil
}

// ErrNotRoot says that the caller is not root, as a measurement requires.
var ErrNotRoot = errors.New("not root: a measurement makes control groups, drops the page cache and traces")

// series is the state of one Measure.
type series struct {
	cfg    Config
	model  *confine.Model
	disk   disk
	root   *cgroup.Group
	report *Report
	done   int
	total  int
	settle time.Duration // how long to wait until the kernel has updated the pressure
}

// pressureSettle is a little more than the kernel's interval of two seconds.
const pressureSettle = 2100 * time.Millisecond

// Measure runs a series. When ctx ends, all processes that it started are ended. If ctx ends or a run fails, the report of the runs so far
// (nil if there are none) is returned with the error. In any case, its control groups are removed and the disk's readahead is restored.
func Measure(ctx context.Context, cfg Config) (*Report, error) {
	return measure(ctx, cfg, pressureSettle)
}

func measure(ctx context.Context, cfg Config, settle time.Duration) (report *Report, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Trace == nil {
		cfg.Trace = cfg.Target
	}
	s := &series{cfg: cfg, settle: settle, total: 3 + cfg.Repeat*len(cfg.Variants)}
	if s.model, err = confine.Open(cfg.Model); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.model.Close()) }()
	if s.disk, err = diskOf(cfg.Model); err != nil {
		return nil, err
	}
	if s.root, err = cgroup.Root(); err != nil {
		return nil, err
	}
	if err := s.root.AccountReads(s.disk.major, s.disk.minor); err != nil {
		return nil, err
	}
	memory, err := cgroup.Host()
	if err != nil {
		return nil, err
	}
	if memory.Available < s.model.Size {
		return nil, fmt.Errorf("%s has %d MiB and this machine %d MiB free: the runs without a limit would be under pressure too. Take a smaller model", cfg.Model, s.model.Size>>20, memory.Available>>20)
	}
	before, err := s.disk.readahead()
	if err != nil {
		return nil, err
	}
	if cfg.Readahead > 0 {
		defer func() { err = errors.Join(err, s.disk.setReadahead(before)) }()
		if err := s.disk.setReadahead(cfg.Readahead); err != nil {
			return nil, err
		}
	}
	readahead, err := s.disk.readahead()
	if err != nil {
		return nil, err
	}
	s.report = &Report{
		Started: time.Now(), Host: host.Read(), Target: cfg.Target, X: cfg.X, Limit: cfg.Limit, Variants: cfg.Variants,
		Disk:  DiskInfo{Name: s.disk.name, ReadaheadKiB: readahead, ReadaheadKiBBefore: before},
		Model: ModelInfo{Path: cfg.Model, Bytes: s.model.Size, TokenBytes: cfg.Weights},
	}
	err = s.all(ctx)
	if err != nil {
		if len(s.report.Runs) == 0 {
			return nil, err
		}
		s.report.Interrupted = true
	}
	s.report.summarise()
	return s.report, err
}

func (s *series) progress(what string) {
	if s.cfg.Progress != nil {
		s.cfg.Progress(s.done, s.total, what)
	}
}

func (s *series) all(ctx context.Context) error {
	r := s.report
	extents := []Extent{{0, s.model.Size}}
	if s.cfg.Weights == 0 {
		s.progress("tracing what a token reads")
		w, err := confine.TraceWeights(ctx, s.cfg.Trace, s.cfg.Log)
		if err != nil {
			return fmt.Errorf("measure the weights that a token reads: %w", err)
		}
		extents, r.Model.TokenBytes, r.Model.Routed = nil, w.TokenBytes, w.Routed
		for _, e := range w.Extents {
			extents = append(extents, Extent(e))
		}
	}

	var err error
	s.progress("measuring the disk")
	if r.DiskBefore, err = DiskBandwidth(ctx, s.cfg.Model, extents, s.cfg.Disk); err != nil {
		return err
	}

	// The first run without a limit starts cold: all of the model that it needs is then charged to its group, so the rest of the group's
	// usage is the target's own memory. The second run finds everything in memory: it measures the computing time.
	own, err := s.unlimited(ctx, "own memory", false)
	if err != nil {
		return err
	}
	r.Own, r.Text = own.Own, own.Text
	if _, err := s.unlimited(ctx, "in memory", true); err != nil {
		return err
	}
	if r.Limit == 0 {
		r.Limit = int64(s.cfg.X*float64(r.Model.TokenBytes)) + r.Own
	}
	r.Limit &^= int64(os.Getpagesize() - 1) // as the kernel does
	if r.Limit <= r.Own {
		return fmt.Errorf("the limit of %d MiB leaves nothing for the model: the target's own memory is %d MiB", r.Limit>>20, r.Own>>20)
	}

	for i, v := range order(len(s.cfg.Variants), s.cfg.Repeat) {
		variant := s.cfg.Variants[v]
		run, err := s.run(ctx, runSpec{variant: variant, round: i / len(s.cfg.Variants), limit: r.Limit})
		if err != nil {
			return err
		}
		run.TextSame = run.Outcome == Finished && run.Text == own.Text && slices.Equal(run.Tokens, own.Tokens)
		r.Runs = append(r.Runs, *run)
		s.done++
	}

	if _, err := s.unlimited(ctx, "in memory, afterwards", true); err != nil {
		return err
	}
	s.progress("measuring the disk again")
	if r.DiskAfter, err = DiskBandwidth(ctx, s.cfg.Model, extents, s.cfg.Disk); err != nil {
		return err
	}
	s.progress("")
	return nil
}

// unlimited runs the plain target without a limit, with all of the model in memory or none of it.
func (s *series) unlimited(ctx context.Context, name string, warm bool) (*Run, error) {
	run, err := s.run(ctx, runSpec{variant: Variant{Name: name}, warm: warm, own: !warm})
	if err != nil {
		return nil, err
	}
	if run.Outcome != Finished {
		return nil, fmt.Errorf("the target fails without a limit: %s", run.Error)
	}
	first := run
	if len(s.report.Unlimited) > 0 {
		first = &s.report.Unlimited[0]
	}
	run.TextSame = run.Text == first.Text && slices.Equal(run.Tokens, first.Tokens)
	if !run.TextSame {
		s.cfg.Log.Warn("the target's text differs between runs without a limit: equal text proves nothing here", "first", first.Text, "now", run.Text)
	}
	s.report.Unlimited = append(s.report.Unlimited, *run)
	s.done++
	return run, nil
}

// order returns the variant, of n, for each of n*repeat runs: forward, then backward, so that a steady drift affects all alike.
func order(n, repeat int) []int {
	var all []int
	for round := range repeat {
		for i := range n {
			if round%2 == 1 {
				i = n - 1 - i
			}
			all = append(all, i)
		}
	}
	return all
}
