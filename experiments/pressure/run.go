package pressure

// This file makes one run: target and helper in a new control group, with counters read while the target runs.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"tensorcast/experiments/confine"
	"tensorcast/experiments/llama"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
	"tensorcast/internal/stats"
)

// Outcome says how a run ended.
type Outcome string

const (
	Finished Outcome = "finished"
	Killed   Outcome = "oom-killed" // the target was killed for lack of memory
	Failed   Outcome = "failed"     // anything else: see Error
)

// Run is one run of the target. Numbers per token cover generation only, without prompt, warm-up
// and loading. They are 0 unless Outcome is Finished. Times are milliseconds.
type Run struct {
	Variant string  `json:"variant"`
	Setting int     `json:"setting"` // index of the setting in [Report.Results]; 0 of runs without a limit
	Round   int     `json:"round"`
	Limit   int64   `json:"limit_bytes"`  // 0: no limit
	In      Unit    `json:"in,omitempty"` // how the model was in memory before the run; empty: not at all
	Outcome Outcome `json:"outcome"`
	Error   string  `json:"error,omitempty"`
	Text    string  `json:"text"`
	// TextSame says that text and tokens are the same as in the first run without a limit.
	TextSame bool    `json:"text_same"`
	Tokens   []int32 `json:"tokens"`

	TokS     float64   `json:"tok_s"`
	P5       float64   `json:"p5_tok_s"` // the slowest 5 % of the tokens came at this speed or slower
	TokenMs  []float64 `json:"token_ms"`
	PromptMs float64   `json:"prompt_ms"`
	LoadMs   float64   `json:"load_ms"`

	// What was read from the disk: by the group's account, and by all processes. Disagree says that
	// the two differ by more than 3 %: another process used the disk, or one of the accounts is
	// wrong.
	BytesPerToken     float64 `json:"bytes_per_token"`
	DiskBytesPerToken float64 `json:"disk_bytes_per_token"`
	Disagree          bool    `json:"disagree"`
	TokenBytes        []int64 `json:"token_bytes"`        // by the group's account, for each token
	TokenFaults       []int64 `json:"token_major_faults"` // of the target, for each token
	TargetPerToken    float64 `json:"target_bytes_per_token"`
	HelperPerToken    float64 `json:"helper_bytes_per_token"`
	// HelperSystemMs is the helper's processor time in the kernel, which counts it in steps of 10 ms.
	HelperSystemMs float64 `json:"helper_system_ms_per_token"`
	FaultsPerToken float64 `json:"major_faults_per_token"` // of the target
	Faults         int64   `json:"major_faults"`           // of the target, from its start to its end

	// Some and Full are the memory pressure of the group during the whole run. Whole says that they
	// are those of the whole machine, because the kernel reports no others.
	Some     time.Duration `json:"pressure_some_ns"`
	Full     time.Duration `json:"pressure_full_ns"`
	Whole    bool          `json:"pressure_of_host"`
	OOMKills int64         `json:"oom_kills"`  // in the group, helper included
	Peak     int64         `json:"peak_bytes"` // largest usage of the group, observed at the marks
	Own      int64         `json:"own_bytes,omitempty"`
	Cached   int64         `json:"cached_bytes"` // bytes of the model in the page cache right before the run
	Loaded   *Loaded       `json:"loaded,omitempty"`

	Steady *Steady    `json:"steady,omitempty"` // nil unless there are tokens after the start-up
	Helper *HelperEnd `json:"helper,omitempty"`
}

// Steady is what a run did after its start-up, which is its first tokens.
type Steady struct {
	TokS           float64 `json:"tok_s"`
	BytesPerToken  float64 `json:"bytes_per_token"`
	FaultsPerToken float64 `json:"major_faults_per_token"`
	StartShare     float64 `json:"startup_share"` // the part of the time of all tokens that the start-up took
}

// steadyAfter returns what the run did after its first skip tokens; nil if it has no more than these.
func (run *Run) steadyAfter(skip int) *Steady {
	n := len(run.TokenMs) - skip
	if run.Outcome != Finished || n <= 0 || skip < 0 {
		return nil
	}
	start, rest := sum(run.TokenMs[:skip]), sum(run.TokenMs[skip:])
	if rest <= 0 {
		return nil
	}
	s := &Steady{TokS: 1000 * float64(n) / rest, StartShare: start / (start + rest)}
	if len(run.TokenBytes) == len(run.TokenMs) {
		s.BytesPerToken = float64(sum(run.TokenBytes[skip:])) / float64(n)
	}
	if len(run.TokenFaults) == len(run.TokenMs) {
		s.FaultsPerToken = float64(sum(run.TokenFaults[skip:])) / float64(n)
	}
	return s
}

func sum[T int64 | float64](values []T) T {
	var all T
	for _, v := range values {
		all += v
	}
	return all
}

// runSpec says what to run.
type runSpec struct {
	variant  Variant
	setting  int
	round    int
	limit    int64 // 0: none
	throttle int64 // bytes per second that the group may read; 0: no limit
	in       Unit  // how the model is in the page cache at the start; empty: it is not
	own      bool  // measure the target's own memory
	// beside, if not nil, is called in a goroutine of its own when the target begins to generate. The run waits for it.
	beside func()
}

// tolerance is by how much the accounts of the group and the disk may differ.
const tolerance = 0.03

// run makes one run. A failure of the target is recorded in Run; an error is a failure of the instrument.
func (s *series) run(ctx context.Context, spec runSpec) (run *Run, err error) {
	run = &Run{Variant: spec.variant.Name, Setting: spec.setting, Round: spec.round, Limit: spec.limit, In: spec.in}
	s.progress(run.Variant + ": preparing")
	if err := s.model.Drop(ctx); err != nil {
		return nil, err
	}
	group, err := cgroup.Create(s.root, fmt.Sprintf("tensorcast-pressure-%d-%d", os.Getpid(), s.done))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, group.Remove()) }()
	if err := s.prepare(ctx, group, spec, run); err != nil {
		return nil, err
	}
	before, err := group.Pressure()
	if err != nil {
		return nil, err
	}
	started := time.Now()
	t, observer, waitErr, err := s.runTarget(ctx, group, spec, run)
	if err != nil {
		return nil, err
	}
	if run.OOMKills, err = group.OOMKills(); err != nil {
		return nil, err
	}
	if spec.limit > 0 {
		s.progress(run.Variant + ": waiting for the kernel's account of pressure")
		select {
		case <-time.After(max(0, s.settle-time.Since(started))):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	after, err := group.Pressure()
	if err != nil {
		return nil, err
	}
	run.Some, run.Full, run.Whole = after.Some-before.Some, after.Full-before.Full, after.Whole
	if usage, ok := t.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		run.Faults = usage.Majflt
	}
	return run, run.finish(t, waitErr, observer.samples)
}

// prepare gets memory and group into the state in which the target starts: the model loaded or not, the limits set.
func (s *series) prepare(ctx context.Context, group *cgroup.Group, spec runSpec, run *Run) (err error) {
	if spec.in != "" {
		loaded, err := s.load(ctx, group, spec.in)
		if err != nil {
			return err
		}
		if why := loaded.noFolios(); spec.in == Folios && why != "" {
			return &noFoliosError{why}
		}
		run.Loaded = &loaded
	}
	if run.Cached, err = s.model.Resident(); err != nil {
		return err
	}
	if spec.limit > 0 {
		if err := group.SetLimit(spec.limit); err != nil {
			return err
		}
	}
	if spec.throttle > 0 {
		if err := group.SetReadRate(s.disk.major, s.disk.minor, spec.throttle); err != nil {
			return err
		}
	}
	if _, err := group.ReadBytes(s.disk.major, s.disk.minor); err != nil {
		return fmt.Errorf("the group's account of disk reads: %w", err)
	}
	return nil
}

// runTarget starts target and helper, and waits for their ends. waitErr is how the target ended. What is known of the
// helper's end and of the target's own memory goes to run.
func (s *series) runTarget(
	ctx context.Context, group *cgroup.Group, spec runSpec, run *Run,
) (t *target, o *observer, waitErr, err error) {
	args, words := s.cfg.Target, spec.variant.Flags
	if launcher := spec.variant.Launcher; launcher != "" {
		args, words = nil, s.fillIn(launcher, 0, spec.limit)+" "+proc.Quote(s.cfg.Target...)+" "+words
	}
	if t, err = startTarget(ctx, group, args, words); err != nil {
		return nil, nil, nil, err
	}
	defer t.marks.Close()
	// The observer is ready before the helper starts, so that no mark is counted late.
	o = &observer{group: group, disk: s.disk, target: t.cmd.Process.Pid, launched: spec.variant.Launcher != ""}
	var watchers sync.WaitGroup
	watchers.Go(func() {
		o.follow(t.marks, func(n int) {
			s.progress(fmt.Sprintf("%s: token %d", run.Variant, n))
			if n == 0 && spec.beside != nil {
				watchers.Go(spec.beside)
			}
		})
	})
	endWatch := func() {
		// A process that the target started may keep the pipe open.
		_ = t.marks.SetReadDeadline(time.Now().Add(time.Second))
		watchers.Wait()
	}
	var h *helper
	if spec.variant.Helper != "" {
		command := s.fillIn(spec.variant.Helper, t.cmd.Process.Pid, spec.limit)
		if h, err = startHelper(ctx, group, command); err != nil {
			err = errors.Join(err, t.kill())
			endWatch()
			return nil, nil, nil, err
		}
		o.helper.Store(h)
	}
	stop := make(chan struct{})
	var ownErr error
	if spec.own {
		watchers.Go(func() { run.Own, ownErr = confine.OwnMemory(group, stop) })
	}
	// The target must not be reaped before its last counters have been read.
	t.waitForExit()
	close(stop)
	endWatch()
	waitErr = t.cmd.Wait()
	run.Helper = h.stop(o.helperGone)
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("%s: %w", run.Variant, context.Cause(ctx))
	case o.err != nil:
		err = fmt.Errorf("read counters: %w", o.err)
	case ownErr != nil:
		err = fmt.Errorf("measure the target's own memory: %w", ownErr)
	}
	return t, o, waitErr, err
}

// finish fills in what follows from the target's result and the samples.
func (run *Run) finish(t *target, waitErr error, samples []sample) error {
	fail := func(outcome Outcome, format string, args ...any) error {
		run.Outcome, run.Error = outcome, fmt.Sprintf(format, args...)
		return nil
	}
	var exit *exec.ExitError
	switch {
	case errors.As(waitErr, &exit):
		message := exit.Error()
		if text := strings.TrimSpace(t.stderr.String()); text != "" {
			message += ": " + text
		}
		if exit.ExitCode() == confine.ExitNotJoined {
			return fmt.Errorf("put the target into the control group: %s", message)
		}
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() &&
			status.Signal() == syscall.SIGKILL && run.OOMKills > 0 {
			return fail(Killed, "%s", message)
		}
		return fail(Failed, "%s", message)
	case waitErr != nil:
		return fmt.Errorf("run the target: %w", waitErr)
	}
	result, err := llama.ParseResult(t.stdout.Bytes())
	if err != nil {
		return fail(Failed, "%v", err)
	}
	n := len(result.TokenMs)
	switch {
	case n == 0:
		return fail(Failed, "the target generated no token")
	case len(samples) != n+1:
		return fail(Failed, "the target generated %d tokens and wrote %d marks to descriptor %d, not one more", n,
			len(samples), markFD)
	}

	run.Outcome, run.Text, run.Tokens = Finished, result.Text, result.Tokens
	run.TokS, run.TokenMs, run.PromptMs, run.LoadMs = result.TokS, result.TokenMs, result.PromptMs, result.LoadMs
	speeds := make([]float64, n)
	for i, ms := range run.TokenMs {
		speeds[i] = 1000 / ms
	}
	run.P5 = stats.Quantile(speeds, 0.05)
	first, last := samples[0], samples[n]
	per := func(from, to int64) float64 { return float64(to-from) / float64(n) }
	run.BytesPerToken, run.DiskBytesPerToken = per(first.group, last.group), per(first.disk, last.disk)
	run.Disagree = accountsDisagree(run.BytesPerToken, run.DiskBytesPerToken)
	run.TargetPerToken, run.HelperPerToken = per(first.target, last.target), per(first.helper, max(first.helper,
		last.helper))
	run.HelperSystemMs = per(first.system, max(first.system, last.system)) * 1000 / userHZ
	run.FaultsPerToken = per(first.faults, last.faults)
	for i := range n {
		run.TokenBytes = append(run.TokenBytes, samples[i+1].group-samples[i].group)
		run.TokenFaults = append(run.TokenFaults, samples[i+1].faults-samples[i].faults)
	}
	for _, s := range samples {
		run.Peak = max(run.Peak, s.usage)
	}
	return nil
}

// accountsDisagree compares two accounts of bytes per token. Differences below a tenth of a MiB are noise of other
// programs.
func accountsDisagree(group, disk float64) bool {
	diff := max(group-disk, disk-group)
	return diff > tolerance*max(group, disk) && diff > 0.1*(1<<20)
}

// noFoliosError says why a run in large folios cannot be made.
type noFoliosError struct{ why string }

func (e *noFoliosError) Error() string { return "no large folios: " + e.why }

// load has the model loaded by a process of the group, so that the group is charged.
func (s *series) load(ctx context.Context, group *cgroup.Group, unit Unit) (l Loaded, err error) {
	if s.cfg.Load == nil {
		return Load(ctx, s.cfg.Model, unit)
	}
	args := confine.In(group, slices.Concat(s.cfg.Load, []string{string(unit), s.cfg.Model}), "")
	cmd := proc.GroupCommand(ctx, args...)
	var stderr proc.Tail
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return l, context.Cause(ctx)
	case err != nil:
		return l, fmt.Errorf("load the model into memory: %w: %s", err, stderr.LastLine())
	}
	if err := json.Unmarshal(out, &l); err != nil {
		return l, fmt.Errorf("load the model into memory: %w", err)
	}
	return l, nil
}
