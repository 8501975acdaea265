package pressure

// This file runs a series: the measurements that are made once, and the variants in turn.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"tensorcast/experiments/confine"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/host"
)

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

	extents []Extent      // what the disk is measured on
	fastest []DiskSetting // of the grid
}

// pressureSettle is a little more than the kernel's interval of two seconds.
const pressureSettle = 2100 * time.Millisecond

// unlimitedRuns counts the runs without a limit: one from a cold cache, and, before the others as
// well as after them, one in each unit and one beside readings of the disk.
const unlimitedRuns = 7

// Measure runs a series. When ctx ends, all processes that it started are ended. If ctx ends or a
// run fails, the report of the runs so far (nil if there are none) is returned with the error. In
// any case, its control groups are removed and the disk's readahead is restored.
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
	s := &series{cfg: cfg, settle: settle, total: unlimitedRuns + cfg.countRuns()}
	if err := s.open(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.model.Close()) }()
	memory, err := cgroup.Host()
	if err != nil {
		return nil, err
	}
	if memory.Available < s.model.Size {
		return nil, fmt.Errorf("%s has %d MiB and this machine %d MiB free: the runs without a limit would be "+
			"under pressure too. Take a smaller model", cfg.Model, s.model.Size>>20, memory.Available>>20)
	}
	before, err := s.disk.readahead()
	if err != nil {
		return nil, err
	}
	before = cfg.readaheadBefore(before)
	if slices.ContainsFunc(cfg.Settings, func(set Setting) bool { return set.Readahead > 0 }) {
		defer func() { err = errors.Join(err, s.disk.setReadahead(before)) }()
	}
	s.report = &Report{
		Started: time.Now(), Host: host.Read(), Target: cfg.Target, Variants: cfg.Variants, Skip: cfg.Skip,
		Throttle: cfg.Throttle, LeftOut: cfg.LeftOut,
		Disk:  DiskInfo{Name: s.disk.name, ReadaheadKiBBefore: before},
		Model: ModelInfo{Path: cfg.Model, Bytes: s.model.Size, TokenBytes: cfg.Weights},
	}
	if cfg.Throttle > 0 {
		if err := s.checkThrottle(); err != nil {
			return nil, err
		}
	}
	if cfg.Earlier != nil {
		if err := s.checkSame(cfg.Earlier); err != nil {
			return nil, err
		}
	}
	err = s.runAll(ctx)
	if err != nil {
		if len(s.report.Runs) == 0 {
			return nil, err
		}
		s.report.Interrupted = true
	}
	if s.report.Routes != nil {
		s.progress("replaying the experts that were chosen")
	}
	err = errors.Join(err, s.report.replay(context.WithoutCancel(ctx))) // which is short
	s.progress("")
	s.report.summarise()
	return s.report, err
}

func (s *series) progress(what string) {
	if s.cfg.Progress != nil {
		s.cfg.Progress(s.done, s.total, what)
	}
}

// runAll makes all measurements and runs.
func (s *series) runAll(ctx context.Context) error {
	if err := s.watchMachine(ctx); err != nil {
		return err
	}
	if err := s.traceWeights(ctx); err != nil {
		return err
	}
	if s.cfg.Earlier != nil {
		if err := s.adopt(s.cfg.Earlier); err != nil {
			return err
		}
		if err := s.readDisk(ctx); err != nil {
			return err
		}
	} else if err := s.measureOnce(ctx); err != nil {
		return err
	}
	r := s.report
	for i, set := range s.cfg.Settings {
		if r.countAt(i) >= len(s.cfg.turns(i)) {
			continue
		}
		if set.Readahead > 0 {
			if err := s.disk.setReadahead(set.Readahead); err != nil {
				return err
			}
		}
		var err error
		if r.Results[i].ReadaheadKiB, err = s.disk.readahead(); err != nil {
			return err
		}
		if err := s.runSetting(ctx, i); err != nil {
			return err
		}
	}
	if err := s.measureCompute(ctx, ", afterwards"); err != nil {
		return err
	}
	if err := s.readBeside(ctx); err != nil {
		return err
	}
	if err := s.watchMachine(ctx); err != nil {
		return err
	}
	s.progress("")
	return nil
}

// watchTime is how long the machine is watched for what others do.
const watchTime = 500 * time.Millisecond

// watchMachine notes what the machine does while nothing of the series runs.
func (s *series) watchMachine(ctx context.Context) error {
	s.progress("looking at what else the machine does")
	state, err := host.Watch(ctx, watchTime)
	if err != nil {
		return err
	}
	s.report.States = append(s.report.States, MachineState{len(s.report.Runs), state})
	return nil
}

// measureOnce measures what all settings have in common.
func (s *series) measureOnce(ctx context.Context) error {
	r := s.report
	// The first run without a limit starts cold. All of the model that it needs is then charged to
	// its group, so the rest of the group's usage is the target's own memory. The others find
	// everything in memory: they measure the computing time.
	own, err := s.runUnlimited(ctx, "own memory", "")
	if err != nil {
		return err
	}
	r.Own, r.Text = own.Own, own.Text
	if err := s.computeLimits(); err != nil {
		return err
	}
	if err := s.measureCompute(ctx, ""); err != nil {
		return err
	}

	s.progress("looking for the disk's best request size")
	if r.Grid, err = DiskBandwidth(ctx, s.cfg.Model, s.extents, s.cfg.Disk); err != nil {
		return err
	}
	s.fastest = r.Grid.Fastest(fastestSettings)
	if err := s.readDisk(ctx); err != nil {
		return err
	}
	return s.readBeside(ctx)
}

// traceWeights finds out what a token reads, unless the configuration says it.
func (s *series) traceWeights(ctx context.Context) error {
	s.extents = []Extent{{0, s.model.Size}}
	if s.cfg.Weights > 0 {
		return nil
	}
	r := s.report
	s.progress("tracing what a token reads")
	w, err := confine.TraceWeights(ctx, s.cfg.Trace, s.cfg.Log)
	if err == nil && w.Routed && !slices.Equal(s.cfg.Trace, s.cfg.Target) {
		s.progress("tracing which experts are chosen")
		w, err = confine.TraceWeights(ctx, s.cfg.Target, s.cfg.Log)
	}
	if err != nil {
		return fmt.Errorf("measure the weights that a token reads: %w", err)
	}
	s.extents, r.Model.TokenBytes, r.Model.Routed = nil, w.TokenBytes, w.Routed
	if w.Routes != nil {
		r.Routes = newRoutes(w.Routes, w.Trunk)
	}
	for _, e := range w.Extents {
		s.extents = append(s.extents, Extent(e))
	}
	return nil
}

// runSetting makes the runs of a setting that are missing, and measures the disk in the middle and at the end.
func (s *series) runSetting(ctx context.Context, setting int) error {
	r := s.report
	turns := s.cfg.turns(setting)
	inRound := len(turns) / s.cfg.Repeat
	for i := r.countAt(setting); i < len(turns); i++ {
		run, err := s.run(ctx, runSpec{
			variant: s.cfg.Variants[turns[i]], setting: setting, round: i / inRound,
			limit: r.Results[setting].Limit, throttle: s.cfg.Throttle,
		})
		if err != nil {
			return err
		}
		first := &r.Unlimited[0]
		run.TextSame = run.Outcome == Finished && run.Text == first.Text && slices.Equal(run.Tokens, first.Tokens)
		r.Runs = append(r.Runs, *run)
		s.done++
		if err := s.keep(); err != nil {
			return err
		}
		if i+1 == len(turns)/2 || i+1 == len(turns) {
			if err := s.readDisk(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// keep has the caller keep what was measured so far.
func (s *series) keep() error {
	if s.cfg.Keep == nil {
		return nil
	}
	r := s.report
	r.Interrupted = true
	defer func() { r.Interrupted = false }()
	r.summarise() // without a replay of experts, which takes seconds: who reads the report makes it
	if err := s.cfg.Keep(r); err != nil {
		return fmt.Errorf("keep what was measured: %w", err)
	}
	return nil
}

// computeLimits computes the limits of all settings. It fails if one of them is too small, before
// the others are measured for nothing.
func (s *series) computeLimits() error {
	r := s.report
	for _, set := range s.cfg.Settings {
		result := Result{Setting: set, Limit: set.Limit}
		switch {
		case set.X > 0:
			result.Limit = int64(set.X*float64(r.Model.TokenBytes)) + r.Own
		case set.Experts > 0 && r.Routes == nil:
			return errors.New("it is not known how large the experts are: the model has none, or layers differ in " +
				"how many they have. Give a limit in bytes or a share of the weights")
		case set.Experts > 0:
			result.Limit = int64(set.Experts*float64(r.Routes.totalBytes())) + r.Routes.Trunk + r.Own
		}
		result.Limit &^= int64(os.Getpagesize() - 1) // as the kernel does
		if result.Limit <= r.Own {
			return fmt.Errorf("the limit of %d MiB leaves nothing for the model: the target's own memory is %d MiB",
				result.Limit>>20, r.Own>>20)
		}
		r.Results = append(r.Results, result)
	}
	return nil
}

// checkThrottle fails if groups cannot be throttled here. It is called before anything is measured.
func (s *series) checkThrottle() (err error) {
	group, err := cgroup.Create(s.root, fmt.Sprintf("tensorcast-pressure-%d-throttle", os.Getpid()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, group.Remove()) }()
	return group.SetReadRate(s.disk.major, s.disk.minor, s.cfg.Throttle)
}

// measureCompute measures how long a token takes with the model in memory, in pages and, where
// there are any, in folios. when is added to the names of the runs.
func (s *series) measureCompute(ctx context.Context, when string) error {
	if _, err := s.runUnlimited(ctx, "in pages"+when, Pages); err != nil {
		return err
	}
	if s.report.NoFolios != "" {
		s.total--
		return nil
	}
	_, err := s.runUnlimited(ctx, "in folios"+when, Folios)
	if none := (*noFoliosError)(nil); errors.As(err, &none) {
		s.report.NoFolios = none.why
		s.total--
		return nil
	}
	return err
}

// runUnlimited runs the plain target without a limit, with all of the model in memory or none of it.
func (s *series) runUnlimited(ctx context.Context, name string, in Unit) (*Run, error) {
	run, err := s.run(ctx, runSpec{variant: Variant{Name: name}, in: in, own: in == ""})
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
		s.cfg.Log.Warn("the target's text differs between runs without a limit: equal text proves nothing here",
			"first", first.Text, "now", run.Text)
	}
	s.report.Unlimited = append(s.report.Unlimited, *run)
	s.done++
	return run, nil
}

// runOrder returns the variant, of n, for each of n*repeat runs: forward, then backward, so that a
// steady drift affects all alike.
func runOrder(n, repeat int) []int {
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

// open opens the model, which the caller closes. It has the control groups account for what is read from its disk.
func (s *series) open() (err error) {
	if s.model, err = confine.Open(s.cfg.Model); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.model.Close())
		}
	}()
	if s.disk, err = diskOf(s.cfg.Model); err != nil {
		return err
	}
	if s.root, err = cgroup.Root(); err != nil {
		return err
	}
	return s.root.AccountReads(s.disk.major, s.disk.minor)
}
