// Package pressure measures a llama.cpp that has less memory than its model, with and without a helper. "lab pressure" runs it.
//
// A run is one target process in a new memory control group with a limit. A helper, if the variant has one, is in the same group, so that
// its memory counts, too. Before a run, the model is dropped from the page cache, and this is verified. A series has one or more settings (how
// much memory, how much readahead), one after the other. At each, variants take turns (A B B A), so that a drift of the machine affects them
// alike. Measured once are: M, the bytes of weights that a generated token reads (traced); the target's own memory, which is its memory
// without page cache, the time to compute a token, and the text (all without a limit). The disk's bandwidth is measured before,
// between and after the runs. They give the bound that no strategy can exceed:
//
//	tok/s <= min(1/T_compute, BW_disk/(M-R)), R = limit - own memory
//
// With experts, M-R is what is read of a token's weights by whom knows all choices of the routers in advance (Belady's rule), in the mean: the choices are those of a
// traced run without a limit. Beside it is told what the best policy needs that does not know the future.
//
// T_compute is the lesser of that with the model in single pages and that with it in large folios. BW_disk is the median of the readings, or
// the rate at which the runs may read, if that is less. The disk's best request size and depth are looked for on a grid, once; a reading is
// the best of the three that were the fastest there. Before and after the series it is also read while the target computes with all in memory, which may leave the
// disk less than it delivers by itself: what is left of the bound then is told beside it.
//
// Numbers per token cover generation only: the target writes a byte to descriptor 3 when the prompt has been decoded and after each token
// (llamarun --mark 3), and the counters are read at each byte. The first tokens are the start-up, in which a helper takes hold; what comes
// after them is the steady state, for which there are numbers apart.
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
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/confine"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/host"
)

// Variant is one way to run the target under the limit.
type Variant struct {
	Name string `json:"name"`
	// Helper is a simple shell command; empty: none. In it are replaced: {pid} by the target's process id, {model} by the model's path, {limit} by the
	// run's limit and {room} by what that leaves for the model, limit - own memory, both in bytes.
	Helper string `json:"helper,omitempty"`
	// Launcher is the beginning of a shell command whose end is the target, which it is to run: a helper that starts its target. The same as in Helper is replaced in it, but the process id.
	// Page faults are those of all processes in the group then. Empty: the target is started by itself.
	Launcher string `json:"launcher,omitempty"`
	Flags    string `json:"flags,omitempty"` // additional arguments for the target, in the shell's syntax
}

// Setting is what all variants are run under, in turn. One of X, Limit and Experts is given.
type Setting struct {
	X         float64 `json:"x,omitempty"`             // limit = X * M + own memory
	Limit     int64   `json:"limit_bytes,omitempty"`   // the limit itself
	Experts   float64 `json:"experts,omitempty"`       // of a mixture of experts: limit = Experts * bytes of all experts + what every token reads besides them + own memory
	Readahead int     `json:"readahead_kib,omitempty"` // of the disk, set for the runs and restored; 0: as it is
}

// Config says what to measure.
type Config struct {
	Model string
	// Target is the command line. It must print llamarun's JSON, and write its marks to descriptor 3.
	Target []string
	// Trace is a shorter run of the same, used to count the weights that a token reads; if these are experts, Target is traced, too. nil means
	// Target. It is not used if Weights is given.
	Trace []string

	Settings []Setting
	Weights  int64 // M, if it is not to be traced; the disk is then measured over the whole file, and the model is assumed to be dense
	Repeat   int   // runs of each variant at each setting
	Skip     int   // tokens that are the start-up
	Variants []Variant
	Throttle int64 // bytes per second that target and helper may read from the disk together, under the limit; 0: what it gives
	Disk     DiskOptions

	// Load is a command that loads the model into the page cache; it is called with a [Unit] and the model's path, and prints what [Load]
	// returns as JSON. It is run in the group of the run, which is charged. nil: this process loads, and its own group is charged.
	Load []string

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
	case len(c.Settings) == 0:
		return errors.New("give a limit in bytes or a share of the model")
	case c.Weights < 0 || c.Throttle < 0 || c.Skip < 0:
		return errors.New("a size, rate or number of tokens is not a positive number")
	case c.Repeat < 1:
		return errors.New("a series has at least one repeat")
	case len(c.Variants) == 0:
		return errors.New("no variant")
	}
	for i, set := range c.Settings {
		given := 0
		for _, is := range []bool{set.X != 0, set.Limit != 0, set.Experts != 0} {
			if is {
				given++
			}
		}
		if given != 1 {
			return errors.New("give a limit in bytes or a share of the model or of its experts, one of them")
		}
		if set.X < 0 || set.Limit < 0 || set.Experts < 0 || set.Readahead < 0 || !(set.X+set.Experts < math.Inf(1)) {
			return errors.New("a limit, share or readahead is not a positive number")
		}
		if set.Experts > 0 && c.Weights > 0 {
			return errors.New("a share of the experts takes tracing: the weights that a token reads cannot be given then")
		}
		if slices.Contains(c.Settings[:i], set) {
			return fmt.Errorf("two settings are the same: %s", set)
		}
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

// String describes the setting: "x = 0.85, readahead 128 KiB".
func (s Setting) String() string {
	text := fmt.Sprintf("x = %g", s.X)
	switch {
	case s.Limit > 0:
		text = fmt.Sprintf("limit %s MiB", number(float64(s.Limit)/mib))
	case s.Experts > 0:
		text = fmt.Sprintf("%g of the experts", s.Experts)
	}
	if s.Readahead > 0 {
		text += fmt.Sprintf(", readahead %d KiB", s.Readahead)
	}
	return text
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

	extents []Extent      // what the disk is measured on
	fastest []DiskSetting // of the grid
}

// pressureSettle is a little more than the kernel's interval of two seconds.
const pressureSettle = 2100 * time.Millisecond

// unlimitedRuns are one from a cold cache, and one of each unit and one beside the disk before and after the others.
const unlimitedRuns = 7

// fastestSettings is how many of the grid's settings are measured again: the best of a single grid may have been best by chance.
const fastestSettings = 3

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
	s := &series{cfg: cfg, settle: settle, total: unlimitedRuns + len(cfg.Settings)*cfg.Repeat*len(cfg.Variants)}
	if err := s.open(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.model.Close()) }()
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
	if slices.ContainsFunc(cfg.Settings, func(set Setting) bool { return set.Readahead > 0 }) {
		defer func() { err = errors.Join(err, s.disk.setReadahead(before)) }()
	}
	s.report = &Report{
		Started: time.Now(), Host: host.Read(), Target: cfg.Target, Variants: cfg.Variants, Skip: cfg.Skip, Throttle: cfg.Throttle,
		Disk:  DiskInfo{Name: s.disk.name, ReadaheadKiBBefore: before},
		Model: ModelInfo{Path: cfg.Model, Bytes: s.model.Size, TokenBytes: cfg.Weights},
	}
	if cfg.Throttle > 0 {
		if err := s.tryThrottle(); err != nil {
			return nil, err
		}
	}
	err = s.all(ctx)
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

func (s *series) all(ctx context.Context) error {
	r := s.report
	s.extents = []Extent{{0, s.model.Size}}
	if s.cfg.Weights == 0 {
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
	}

	// The first run without a limit starts cold: all of the model that it needs is then charged to its group, so the rest of the group's
	// usage is the target's own memory. The others find everything in memory: they measure the computing time.
	own, err := s.unlimited(ctx, "own memory", "")
	if err != nil {
		return err
	}
	r.Own, r.Text = own.Own, own.Text
	if err := s.place(); err != nil {
		return err
	}
	if err := s.inMemory(ctx, ""); err != nil {
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
	if err := s.readBeside(ctx); err != nil {
		return err
	}
	for i, set := range s.cfg.Settings {
		if set.Readahead > 0 {
			if err := s.disk.setReadahead(set.Readahead); err != nil {
				return err
			}
		}
		if r.Results[i].ReadaheadKiB, err = s.disk.readahead(); err != nil {
			return err
		}
		if err := s.at(ctx, i); err != nil {
			return err
		}
	}
	if err := s.inMemory(ctx, ", afterwards"); err != nil {
		return err
	}
	if err := s.readBeside(ctx); err != nil {
		return err
	}
	s.progress("")
	return nil
}

// at runs all variants at a setting, and measures the disk in the middle and at the end.
func (s *series) at(ctx context.Context, setting int) error {
	r := s.report
	turns := order(len(s.cfg.Variants), s.cfg.Repeat)
	for i, v := range turns {
		run, err := s.run(ctx, runSpec{
			variant: s.cfg.Variants[v], setting: setting, round: i / len(s.cfg.Variants), limit: r.Results[setting].Limit, throttle: s.cfg.Throttle,
		})
		if err != nil {
			return err
		}
		first := &r.Unlimited[0]
		run.TextSame = run.Outcome == Finished && run.Text == first.Text && slices.Equal(run.Tokens, first.Tokens)
		r.Runs = append(r.Runs, *run)
		s.done++
		if i+1 == len(turns)/2 || i+1 == len(turns) {
			if err := s.readDisk(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// readDisk takes a reading of the disk.
func (s *series) readDisk(ctx context.Context) error {
	s.progress("measuring the disk")
	options := s.cfg.Disk
	options.Settings = s.fastest
	result, err := DiskBandwidth(ctx, s.cfg.Model, s.extents, options)
	if err != nil {
		return err
	}
	s.report.Readings = append(s.report.Readings, DiskReading{len(s.report.Runs), result})
	return nil
}

// readBeside takes a reading of the disk while the target computes with all of the model in memory. Both read memory at the same time, and a virtual disk may need the processors, too: the disk may deliver
// less then than when it is measured by itself.
func (s *series) readBeside(ctx context.Context) error {
	in := Folios
	if s.report.NoFolios != "" {
		in = Pages
	}
	var result DiskResult
	var failed error
	var took time.Duration
	run, err := s.run(ctx, runSpec{variant: Variant{Name: "beside the disk"}, in: in, beside: func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with its priority
		if failed = unix.Setpriority(unix.PRIO_PROCESS, 0, besideNice); failed != nil {
			failed = fmt.Errorf("raise the priority of reads beside the target: %w", failed)
			return
		}
		begun := time.Now()
		options := s.cfg.Disk
		options.Settings, options.PointTime = s.fastest, besideTime
		result, failed = DiskBandwidth(ctx, s.cfg.Model, s.extents, options)
		took = time.Since(begun)
	}})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	s.done++
	tokens, enough := tokensIn(run.TokenMs, took)
	if !enough { // it went on beside nothing
		return nil
	}
	s.report.Beside = append(s.report.Beside, BesideReading{DiskReading{len(s.report.Runs), result}, took.Seconds(), tokens})
	return nil
}

// tokensIn is how many tokens, and parts of one, were generated in a time from the first one's beginning on, if that ended before they did. ms are the times of each.
func tokensIn(ms []float64, in time.Duration) (tokens float64, enough bool) {
	left := in.Seconds() * 1000
	for _, took := range ms {
		if left < took {
			return tokens + left/took, true
		}
		tokens++
		left -= took
	}
	return tokens, false
}

const (
	besideTime = 200 * time.Millisecond // for each of the fastest settings
	besideNice = -15                    // as a helper that the target waits for has: its threads compute on all processors
)

// place computes the limits. None may be so small that it is for nothing that the others are measured.
func (s *series) place() error {
	r := s.report
	for _, set := range s.cfg.Settings {
		result := Result{Setting: set, Limit: set.Limit}
		switch {
		case set.X > 0:
			result.Limit = int64(set.X*float64(r.Model.TokenBytes)) + r.Own
		case set.Experts > 0 && r.Routes == nil:
			return errors.New("it is not known how large the experts are: the model has none, or layers differ in how many they have. Give a limit in bytes or a share of the weights")
		case set.Experts > 0:
			result.Limit = int64(set.Experts*float64(r.Routes.totalBytes())) + r.Routes.Trunk + r.Own
		}
		result.Limit &^= int64(os.Getpagesize() - 1) // as the kernel does
		if result.Limit <= r.Own {
			return fmt.Errorf("the limit of %d MiB leaves nothing for the model: the target's own memory is %d MiB", result.Limit>>20, r.Own>>20)
		}
		r.Results = append(r.Results, result)
	}
	return nil
}

// tryThrottle fails if groups cannot be throttled here, before anything is measured.
func (s *series) tryThrottle() (err error) {
	group, err := cgroup.Create(s.root, fmt.Sprintf("tensorcast-pressure-%d-throttle", os.Getpid()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, group.Remove()) }()
	return group.SetReadRate(s.disk.major, s.disk.minor, s.cfg.Throttle)
}

// inMemory measures how long a token takes with the model in memory, in pages and, where there are any, in folios.
func (s *series) inMemory(ctx context.Context, when string) error {
	if _, err := s.unlimited(ctx, "in pages"+when, Pages); err != nil {
		return err
	}
	if s.report.NoFolios != "" {
		s.total--
		return nil
	}
	_, err := s.unlimited(ctx, "in folios"+when, Folios)
	if none := (*noFoliosError)(nil); errors.As(err, &none) {
		s.report.NoFolios = none.why
		s.total--
		return nil
	}
	return err
}

// unlimited runs the plain target without a limit, with all of the model in memory or none of it.
func (s *series) unlimited(ctx context.Context, name string, in Unit) (*Run, error) {
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

// open opens the model, which the caller closes, and has the control groups account for what is read from its disk.
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
