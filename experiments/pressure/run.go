package pressure

// This file makes one run: target and helper in a new control group, with counters read while the target runs.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

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

// Run is one run of the target. Numbers per token cover generation only, without prompt, warm-up and loading. They are 0 unless Outcome is
// Finished. Times are milliseconds.
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
	P5       float64   `json:"p5_tok_s"` // speed of the slowest 5 % of the tokens: they came at this speed or slower
	TokenMs  []float64 `json:"token_ms"`
	PromptMs float64   `json:"prompt_ms"`
	LoadMs   float64   `json:"load_ms"`

	BytesPerToken     float64 `json:"bytes_per_token"`      // read from the disk, by the group's account
	DiskBytesPerToken float64 `json:"disk_bytes_per_token"` // read from the disk by all processes
	Disagree          bool    `json:"disagree"`             // the two numbers above differ by more than 3 %: another process used the disk, or one of the accounts is wrong
	TokenBytes        []int64 `json:"token_bytes"`          // by the group's account, for each token
	TokenFaults       []int64 `json:"token_major_faults"`   // of the target, for each token
	TargetPerToken    float64 `json:"target_bytes_per_token"`
	HelperPerToken    float64 `json:"helper_bytes_per_token"`
	HelperSystemMs    float64 `json:"helper_system_ms_per_token"` // the helper's processor time in the kernel, which counts it in steps of 10 ms
	FaultsPerToken    float64 `json:"major_faults_per_token"`     // of the target
	Faults            int64   `json:"major_faults"`               // of the target, from its start to its end

	Some     time.Duration `json:"pressure_some_ns"` // memory pressure of the group during the whole run
	Full     time.Duration `json:"pressure_full_ns"`
	Whole    bool          `json:"pressure_of_host"` // the pressure is that of the whole machine, because the kernel reports no other
	OOMKills int64         `json:"oom_kills"`        // in the group, helper included
	Peak     int64         `json:"peak_bytes"`       // largest usage of the group, observed at the marks
	Own      int64         `json:"own_bytes,omitempty"`
	Cached   int64         `json:"cached_bytes"` // bytes of the model in the page cache right before the run
	Loaded   *Loaded       `json:"loaded,omitempty"`

	Steady *Steady    `json:"steady,omitempty"` // nil unless there are tokens after the start-up
	Helper *HelperEnd `json:"helper,omitempty"`
}

// Steady is what a run did after its start-up, which are its first tokens.
type Steady struct {
	TokS           float64 `json:"tok_s"`
	BytesPerToken  float64 `json:"bytes_per_token"`
	FaultsPerToken float64 `json:"major_faults_per_token"`
	StartShare     float64 `json:"startup_share"` // of the time of all tokens, which the start-up took
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

// HelperEnd says how the helper ended.
type HelperEnd struct {
	Early  bool   `json:"early"` // it ended before the last token
	Status string `json:"status"`
	Output string `json:"output"` // the end of its stdout and stderr
	Told   *Told  `json:"told,omitempty"`
}

type runSpec struct {
	variant  Variant
	setting  int
	round    int
	limit    int64  // 0: none
	throttle int64  // bytes per second that the group may read; 0: no limit
	in       Unit   // how the model is in the page cache at the start; empty: it is not
	own      bool   // measure the target's own memory
	beside   func() // called, in a goroutine of its own, when the target begins to generate; the run waits for it
}

// markFD is the descriptor on which the target finds the pipe for its marks.
const markFD = 3

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
	if spec.in != "" {
		loaded, err := s.load(ctx, group, spec.in)
		if err != nil {
			return nil, err
		}
		if why := loaded.noFolios(); spec.in == Folios && why != "" {
			return nil, &noFoliosError{why}
		}
		run.Loaded = &loaded
	}
	if run.Cached, err = s.model.Resident(); err != nil {
		return nil, err
	}
	if spec.limit > 0 {
		if err := group.SetLimit(spec.limit); err != nil {
			return nil, err
		}
	}
	if spec.throttle > 0 {
		if err := group.SetReadRate(s.disk.major, s.disk.minor, spec.throttle); err != nil {
			return nil, err
		}
	}
	if _, err := group.ReadBytes(s.disk.major, s.disk.minor); err != nil {
		return nil, fmt.Errorf("the group's account of disk reads: %w", err)
	}
	pressure, err := group.Pressure()
	if err != nil {
		return nil, err
	}
	started := time.Now()

	args, words := s.cfg.Target, spec.variant.Flags
	if launcher := spec.variant.Launcher; launcher != "" {
		args, words = nil, s.fill(launcher, 0, spec.limit)+" "+proc.Quote(s.cfg.Target...)+" "+words
	}
	t, err := startTarget(ctx, group, args, words)
	if err != nil {
		return nil, err
	}
	defer t.marks.Close()
	// The observer is ready before the helper starts, so that no mark is counted late.
	observer := &observer{group: group, disk: s.disk, target: t.cmd.Process.Pid, launched: spec.variant.Launcher != ""}
	var watchers sync.WaitGroup
	watchers.Go(func() {
		observer.follow(t.marks, func(n int) {
			s.progress(fmt.Sprintf("%s: token %d", run.Variant, n))
			if n == 0 && spec.beside != nil {
				watchers.Go(spec.beside)
			}
		})
	})
	endWatch := func() {
		_ = t.marks.SetReadDeadline(time.Now().Add(time.Second)) // a process that the target started may keep the pipe open
		watchers.Wait()
	}
	var h *helper
	if spec.variant.Helper != "" {
		command := s.fill(spec.variant.Helper, t.cmd.Process.Pid, spec.limit)
		if h, err = startHelper(ctx, group, command); err != nil {
			err = errors.Join(err, t.kill())
			endWatch()
			return nil, err
		}
		observer.helper.Store(h)
	}
	stop := make(chan struct{})
	var own int64
	var ownErr error
	if spec.own {
		watchers.Go(func() { own, ownErr = confine.OwnMemory(group, stop) })
	}
	// The target must not be reaped before its last counters have been read.
	t.exited()
	close(stop)
	endWatch()
	waitErr := t.cmd.Wait()
	run.Helper = h.stop(observer.alone)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", run.Variant, context.Cause(ctx))
	}
	if observer.err != nil {
		return nil, fmt.Errorf("read counters: %w", observer.err)
	}
	if ownErr != nil {
		return nil, fmt.Errorf("measure the target's own memory: %w", ownErr)
	}
	run.Own = own

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
	run.Some, run.Full, run.Whole = after.Some-pressure.Some, after.Full-pressure.Full, after.Whole

	if usage, ok := t.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		run.Faults = usage.Majflt
	}
	return run, run.finish(t, waitErr, observer.samples)
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
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL && run.OOMKills > 0 {
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
		return fail(Failed, "the target generated %d tokens and wrote %d marks to descriptor %d, not one more", n, len(samples), markFD)
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
	run.Disagree = disagree(run.BytesPerToken, run.DiskBytesPerToken)
	run.TargetPerToken, run.HelperPerToken = per(first.target, last.target), per(first.helper, max(first.helper, last.helper))
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

// disagree compares two accounts of bytes per token. Differences below a tenth of a MiB are noise of other programs.
func disagree(group, disk float64) bool {
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

// ---- counters

// sample holds the counters at one mark.
type sample struct {
	group, disk    int64 // bytes read: by the group's account; from the disk by all processes
	target, helper int64 // bytes that these processes have read
	system         int64 // processor time of the helper in the kernel, 1/userHZ s
	faults         int64 // major page faults of the target
	usage          int64
}

// observer reads the counters at each of the target's marks.
type observer struct {
	group  *cgroup.Group
	disk   disk
	target int
	// launched: the target is a child of that process. What the group's processes do is its own then.
	launched bool
	helper   atomic.Pointer[helper] // nil until the helper is started
	samples  []sample
	alone    bool // there was no helper at the last mark
	err      error
}

// follow returns when the pipe ends or its deadline passes.
func (o *observer) follow(marks io.Reader, progress func(token int)) {
	b := make([]byte, 1)
	for {
		if _, err := marks.Read(b); err != nil {
			return
		}
		s, err := o.sample()
		if err != nil {
			o.err = err
			return
		}
		progress(len(o.samples))
		o.samples = append(o.samples, s)
	}
}

func (o *observer) sample() (sample, error) {
	var s sample
	var err error
	// The target first: it continues meanwhile, and may end.
	if s.faults, err = majorFaults(o.target); err != nil {
		return s, err
	}
	s.target = readBytes(o.target)
	if o.launched {
		pids, err := o.group.Procs()
		if err != nil {
			return s, err
		}
		for _, pid := range pids {
			if pid != o.target {
				n, _ := majorFaults(pid) // 0: it has just ended
				s.faults += n
				s.target += readBytes(pid)
			}
		}
	}
	if s.group, err = o.group.ReadBytes(o.disk.major, o.disk.minor); err != nil {
		return s, err
	}
	if s.disk, err = o.disk.readBytes(); err != nil {
		return s, err
	}
	if s.usage, err = o.group.Usage(); err != nil {
		return s, err
	}
	// Which of the two has read is known only if the kernel reports it.
	h := o.helper.Load()
	if o.alone = h.ended(); !o.alone {
		s.helper, s.system = readBytes(h.PID), systemTime(h.PID)
	}
	return s, nil
}

// statOf returns what /proc/PID/stat says of a process; nothing if it has ended.
func statOf(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// majorFaults returns how many major page faults a process has had.
func majorFaults(pid int) (int64, error) {
	stat, err := statOf(pid)
	return int64(stat.MajFlt), err
}

// userHZ is in what parts of a second /proc counts processor time (USER_HZ in Linux's asm-generic/param.h).
const userHZ = 100

// systemTime returns the processor time of a process in the kernel, with that of children it has waited for, whose reads readBytes has as well; 0 if it has ended. io_uring's workers are threads of it.
func systemTime(pid int) int64 {
	stat, _ := statOf(pid)
	return int64(stat.STime) + int64(stat.CSTime)
}

// readBytes returns how many bytes a process has read from disks; 0 if it has ended.
func readBytes(pid int) int64 {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	counters, err := p.IO()
	if err != nil {
		return 0
	}
	return int64(counters.ReadBytes)
}

// ---- processes

// target is a running target.
type target struct {
	cmd            *exec.Cmd
	marks          *os.File
	stdout, stderr bytes.Buffer
}

func startTarget(ctx context.Context, group *cgroup.Group, args []string, flags string) (*target, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	all := confine.In(group, args, flags)
	t := &target{cmd: exec.CommandContext(ctx, all[0], all[1:]...), marks: r}
	t.cmd.WaitDelay = time.Second // for processes that keep its output open
	t.cmd.ExtraFiles = []*os.File{w}
	t.cmd.Stdout, t.cmd.Stderr = &t.stdout, &t.stderr
	err = t.cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("start the target: %w", err)
	}
	confine.Joined(ctx, t.cmd.Process.Pid)
	return t, nil
}

// exited returns when the target has ended; it is not reaped yet.
func (t *target) exited() {
	for unix.Waitid(unix.P_PID, t.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

func (t *target) kill() error {
	err := t.cmd.Process.Kill()
	_ = t.cmd.Wait() // that it was killed is expected
	return err
}

// helper is a running helper; nil if there is none.
type helper struct{ *proc.Group }

// fill replaces the names in braces in a helper's command: see [Variant].
func (s *series) fill(command string, target int, limit int64) string {
	return strings.NewReplacer("{pid}", strconv.Itoa(target), "{limit}", strconv.FormatInt(limit, 10), "{room}", strconv.FormatInt(limit-s.report.Own, 10),
		"{model}", proc.Quote(s.cfg.Model)).Replace(command)
}

func startHelper(ctx context.Context, group *cgroup.Group, command string) (*helper, error) {
	g, err := proc.StartGroup(ctx, confine.In(group, nil, command)...)
	if err != nil {
		return nil, fmt.Errorf("start the helper: %w", err)
	}
	return &helper{g}, nil
}

// ended reports whether there is no helper, or it has ended.
func (h *helper) ended() bool { return h == nil || h.Ended() }

// stop ends the helper and returns how it ended. early says that it ended while the target was still running; ending together with the
// target is not early.
func (h *helper) stop(early bool) *HelperEnd {
	if h == nil {
		return nil
	}
	_ = h.Stop(syscall.SIGTERM) // if it does not end, it is killed
	h.Kill()
	output := h.Output.String()
	return &HelperEnd{Early: early, Status: h.State().String(), Output: output, Told: told(output)}
}
