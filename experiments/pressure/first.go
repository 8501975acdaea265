package pressure

// This file measures how long a user waits for the first token, from the start of a command whose
// model is not in the page cache.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/host"
	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
)

// Starter is one way to start the target.
type Starter struct {
	Name string `json:"name"`
	// Command is in the shell's syntax, and the target's command line follows it. Empty: the target
	// alone.
	Command string `json:"command,omitempty"`
}

// FirstConfig says what to measure. Fields that Config has too mean the same.
type FirstConfig struct {
	Model  string
	Target []string
	// The limit is X times the model file plus the target's own memory. 0: it is Limit.
	X         float64
	Limit     int64 // bytes; 0 with X 0: no limit
	Repeat    int
	Starters  []Starter
	Readahead int
	Disk      DiskOptions
	Progress  func(done, total int, what string)
	Log       *slog.Logger
}

// FirstRun is one run. Times are milliseconds.
type FirstRun struct {
	Starter string `json:"starter"`
	Round   int    `json:"round"`
	// FirstMs is the time from the start of the command, a helper's included, until the prompt was
	// decoded. Then the first token is chosen. SecondMs is the time until the second one.
	FirstMs  float64 `json:"first_ms"`
	SecondMs float64 `json:"second_ms"`
	Read     int64   `json:"read_bytes"` // from the disk by all processes until the first
	// LoadMs, WarmupMs and PromptMs are what the target says of itself.
	LoadMs   float64 `json:"load_ms"`
	WarmupMs float64 `json:"warmup_ms"`
	PromptMs float64 `json:"prompt_ms"`
	Text     string  `json:"text"`
	OOMKills int64   `json:"oom_kills"`
}

// Own is the part of FirstMs that begins with the target's loading.
func (f *FirstRun) Own() float64 { return f.LoadMs + f.WarmupMs + f.PromptMs }

// FirstReport is the result of MeasureFirst.
type FirstReport struct {
	Started      time.Time  `json:"started"`
	Interrupted  bool       `json:"interrupted,omitempty"`
	Host         host.Info  `json:"host"`
	Disk         DiskInfo   `json:"disk"`
	ReadaheadKiB int        `json:"readahead_kib"` // during the runs
	Path         string     `json:"model"`
	Bytes        int64      `json:"model_bytes"`
	Limit        int64      `json:"limit_bytes"` // 0: none
	Own          int64      `json:"own_bytes"`   // 0: not measured
	BW           float64    `json:"bw_disk_bytes"`
	Starters     []Starter  `json:"starters"`
	Runs         []FirstRun `json:"runs"`
}

// MeasureFirst starts the target in each way in turn, with its model dropped from the page cache.
// It cleans up as Measure does.
func MeasureFirst(ctx context.Context, cfg FirstConfig) (r *FirstReport, err error) {
	switch {
	case cfg.Model == "" || len(cfg.Target) == 0 || len(cfg.Starters) == 0 || cfg.Repeat < 1:
		return nil, errors.New("no model, no target, no way to start it or no repeat")
	case os.Geteuid() != 0:
		return nil, ErrNotRoot
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &series{cfg: Config{Model: cfg.Model, Target: cfg.Target, Progress: cfg.Progress, Log: cfg.Log},
		total: 1 + cfg.Repeat*len(cfg.Starters)}
	if err := s.open(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.model.Close()) }()
	before, err := s.disk.readahead()
	if err != nil {
		return nil, err
	}
	readahead := before
	if cfg.Readahead > 0 {
		defer func() { err = errors.Join(err, s.disk.setReadahead(before)) }()
		if err := s.disk.setReadahead(cfg.Readahead); err != nil {
			return nil, err
		}
		readahead = cfg.Readahead
	}
	r = &FirstReport{
		Started: time.Now(), Host: host.Read(),
		Disk: DiskInfo{Name: s.disk.name, ReadaheadKiBBefore: before}, ReadaheadKiB: readahead,
		Path: cfg.Model, Bytes: s.model.Size,
		Limit: cfg.Limit, Starters: cfg.Starters,
	}
	if err := s.measureStarts(ctx, cfg, r); err != nil {
		r.Interrupted = true
		return r, err
	}
	return r, nil
}

// measureStarts makes all measurements and runs.
func (s *series) measureStarts(ctx context.Context, cfg FirstConfig, r *FirstReport) error {
	bandwidth := func() error {
		s.progress("measuring the disk")
		d, err := DiskBandwidth(ctx, cfg.Model, []Extent{{0, s.model.Size}}, cfg.Disk)
		r.BW = max(r.BW, d.Best.BytesPerSecond)
		return err
	}
	if err := bandwidth(); err != nil {
		return err
	}
	if cfg.X > 0 {
		s.report = &Report{}
		own, err := s.runUnlimited(ctx, "own memory", "")
		if err != nil {
			return err
		}
		r.Own = own.Own
		r.Limit = (int64(cfg.X*float64(s.model.Size)) + own.Own) &^ int64(os.Getpagesize()-1)
	}
	for i, k := range runOrder(len(cfg.Starters), cfg.Repeat) {
		run, err := s.startOnce(ctx, cfg.Starters[k], r.Limit)
		if err != nil {
			return err
		}
		run.Round = i / len(cfg.Starters)
		r.Runs = append(r.Runs, *run)
		s.done++
	}
	return bandwidth()
}

// startOnce makes one run. A target that fails is an error: there is nothing to compare then.
func (s *series) startOnce(ctx context.Context, how Starter, limit int64) (run *FirstRun, err error) {
	s.progress(how.Name)
	if err := s.model.Drop(ctx); err != nil {
		return nil, err
	}
	group, err := cgroup.Create(s.root, fmt.Sprintf("tensorcast-pressure-%d-%d", os.Getpid(), s.done))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, group.Remove()) }()
	if limit > 0 {
		if err := group.SetLimit(limit); err != nil {
			return nil, err
		}
	}
	args := s.cfg.Target
	if how.Command != "" {
		args = slices.Concat([]string{"/bin/sh", "-c", "exec " + how.Command + ` "$@"`, "sh"}, args)
	}
	run = &FirstRun{Starter: how.Name}
	read, err := s.disk.readBytes()
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	// At the end of ctx the command is not killed but told: a helper passes it on to its target.
	t, err := startTarget(context.WithoutCancel(ctx), group, args, "")
	if err != nil {
		return nil, err
	}
	defer t.marks.Close()
	stop := context.AfterFunc(ctx, func() {
		_ = t.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = t.marks.SetReadDeadline(time.Now())
	})
	defer stop()
	// A target that ends early closes the pipe, so reading ends with the target.
	mark := make([]byte, 1)
	if _, err = io.ReadFull(t.marks, mark); err == nil {
		run.FirstMs = ms(time.Since(begun))
		now, readErr := s.disk.readBytes()
		run.Read = now - read
		if _, err = io.ReadFull(t.marks, mark); err == nil {
			run.SecondMs = ms(time.Since(begun))
		}
		err = errors.Join(err, readErr)
	}
	waitErr := t.cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", how.Name, context.Cause(ctx))
	case waitErr != nil:
		return nil, fmt.Errorf("%s: %w: %s", how.Name, waitErr, t.stderr.String())
	case err != nil:
		return nil, fmt.Errorf("%s: wait for the first token: %w", how.Name, err)
	}
	result, err := llama.ParseResult(t.stdout.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", how.Name, err)
	}
	run.LoadMs, run.WarmupMs, run.PromptMs, run.Text = result.LoadMs, result.WarmupMs, result.PromptMs, result.Text
	run.OOMKills, err = group.OOMKills()
	return run, err
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// passes is how often the model is computed before the first token: the warm-up, and the prompt.
const passes = 2

// Needed is how many bytes must be read from the disk before the first token: the file once, as it
// is loaded, and in each pass what has no room. That holds for a model that a token reads whole.
// Without a limit, or if it is not known what the limit leaves for the model, it is the file.
func (r *FirstReport) Needed() int64 {
	needed := r.Bytes
	if r.Limit > 0 && r.Own > 0 {
		needed += passes * max(r.Bytes-(r.Limit-r.Own), 0)
	}
	return needed
}

// leastMs is how long the disk takes for what is needed, in milliseconds; 0 if that was not
// measured.
func (r *FirstReport) leastMs() float64 {
	if r.BW <= 0 {
		return 0
	}
	return float64(r.Needed()) / r.BW * 1000
}

// WriteText writes the report for people.
func (r *FirstReport) WriteText(w io.Writer) error { return r.document().WriteText(w) }

// WriteMarkdown writes the report as Markdown.
func (r *FirstReport) WriteMarkdown(w io.Writer) error { return r.document().WriteMarkdown(w) }

func (r *FirstReport) document() tabular.Document {
	limit := "no limit"
	if r.Limit > 0 {
		limit = fmt.Sprintf("limit %d MiB", r.Limit/mib)
	}
	if r.Own > 0 {
		limit += fmt.Sprintf(", of which the target's own memory takes %d", r.Own/mib)
	}
	lines := tabular.Lines{
		fmt.Sprintf("model: %s, %d MiB; %s", filepath.Base(r.Path), r.Bytes/mib, limit),
		fmt.Sprintf("machine: %d x %s, %s GiB, Linux %s, cgroup v%d",
			r.Host.CPUs, r.Host.CPUName(), number(float64(r.Host.Memory)/(1<<30)), r.Host.Kernel, r.Host.CgroupVersion),
		fmt.Sprintf("disk: %s, readahead %d KiB, %.0f MiB/s (O_DIRECT)", r.Disk.Name, r.ReadaheadKiB, r.BW/mib),
		fmt.Sprintf("needed before the first token: %d MiB, which takes the disk %.2f s", r.Needed()/mib,
			r.leastMs()/1000),
	}
	if r.Interrupted {
		lines = append(lines, "INTERRUPTED: runs are missing")
	}
	table := &tabular.Table{Columns: slices.Concat(tabular.Left("start"), tabular.Right("first token s", "min..max",
		"x needed/disk", "next token s", "load s", "warm-up s", "prompt s", "their sum x needed/disk", "MiB read",
		"speedup", "OOM-killed"))}
	var plain []FirstRun // the runs of the first starter
	for k, starter := range r.Starters {
		var runs []FirstRun
		for _, run := range r.Runs {
			if run.Starter == starter.Name {
				runs = append(runs, run)
			}
		}
		if len(runs) == 0 {
			continue
		}
		if k == 0 {
			plain = runs
		}
		table.Rows = append(table.Rows, r.row(starter.Name, runs, plain))
	}
	remark := fmt.Sprintf("Medians over the runs, which took turns. The first token is there when the prompt is "+
		"decoded. "+
		"Speedup: over %s in the same round.", r.Starters[0].Name)
	return tabular.Document{lines, table, tabular.Lines{remark}}
}

// row is the table's row for the runs of one starter, compared with those of the first one.
func (r *FirstReport) row(name string, runs, plain []FirstRun) []string {
	values := func(of func(*FirstRun) float64) (all []float64) {
		for i := range runs {
			all = append(all, of(&runs[i]))
		}
		return all
	}
	median := func(of func(*FirstRun) float64) float64 { return stats.Median(values(of)) }
	decimals := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	seconds := func(of func(*FirstRun) float64) string { return decimals(median(of) / 1000) }
	firstMs := func(f *FirstRun) float64 { return f.FirstMs }
	all := values(firstMs)
	var gains []float64
	kills := int64(0)
	for i := range runs {
		kills += runs[i].OOMKills
		if i < len(plain) {
			gains = append(gains, plain[i].FirstMs/runs[i].FirstMs)
		}
	}
	return []string{
		name,
		seconds(firstMs),
		decimals(slices.Min(all)/1000) + ".." + decimals(slices.Max(all)/1000),
		decimals(median(firstMs) / r.leastMs()),
		seconds(func(f *FirstRun) float64 { return f.SecondMs - f.FirstMs }),
		seconds(func(f *FirstRun) float64 { return f.LoadMs }),
		seconds(func(f *FirstRun) float64 { return f.WarmupMs }),
		seconds(func(f *FirstRun) float64 { return f.PromptMs }),
		decimals(median((*FirstRun).Own) / r.leastMs()),
		fmt.Sprintf("%.0f", median(func(f *FirstRun) float64 { return float64(f.Read) })/mib),
		decimals(stats.Median(gains)) + "x",
		fmt.Sprint(kills),
	}
}
