package harm

// This file makes one run: a target in a group with a limit, perhaps a helper beside it, and a
// scene. Then it looks at what is left.

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"tensorcast/experiments/confine"
	"tensorcast/experiments/llama"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
)

// Outcome says how a target ended.
type Outcome string

const (
	Finished Outcome = "finished"   // with all its tokens
	Killed   Outcome = "oom-killed" // for lack of memory
	Failed   Outcome = "failed"     // otherwise, and not by the scene: see Run.Error
	Hung     Outcome = "hung"       // it was ended because it took too long
	Ended    Outcome = "ended"      // by the scene
)

// IsLost reports whether the target died, for another reason than the scene's own signal.
func (o Outcome) IsLost() bool { return o == Killed || o == Failed }

// Run is one run of a target.
type Run struct {
	Scene   string  `json:"scene"`
	X       float64 `json:"x"`
	Pair    int     `json:"pair"`
	Helped  bool    `json:"helped"` // with the helper
	Limit   int64   `json:"limit_bytes"`
	Moment  Moment  `json:"moment"`
	Acted   bool    `json:"acted"`   // the scene happened; false: the target ended before
	Refused bool    `json:"refused"` // the kernel did not set the scene's limit

	Outcome Outcome `json:"outcome"`
	Status  string  `json:"status"` // how the target ended, in the words of package os
	Error   string  `json:"error,omitempty"`
	Tokens  int     `json:"tokens"` // generated
	// TextSame says that tokens and text are those of the reference or, in a run without all
	// tokens, its beginning. It is always true where they are not compared (Config.OtherText).
	TextSame bool `json:"text_same"`
	// TokS is 0 unless Outcome is Finished. It is also 0 if several runs went on at the same time.
	TokS float64 `json:"tok_s"`

	// OOMKills counts the processes that the kernel has killed in the group, target and helper
	// included.
	OOMKills   int64      `json:"oom_kills"`
	Hogs       int        `json:"hogs"`
	HogsKilled int        `json:"hogs_killed"`
	Helper     *HelperEnd `json:"helper,omitempty"`

	// What is there when target and helper have ended: bytes of the model that remain when the page
	// cache is dropped, and processes. The processes were started by the target, the helper or the
	// scene, or are in the group.
	PagesLeft     int64    `json:"pages_left_bytes"`
	ProcessesLeft []string `json:"processes_left,omitempty"`
}

// HelperEnd says how the helper ended.
type HelperEnd struct {
	Killed bool   `json:"killed"` // by SIGKILL, and not by the scene
	Early  bool   `json:"early"`  // it ended before the last token, and not by the scene
	Hung   bool   `json:"hung"`   // it did not end after the target's end and SIGTERM
	Status string `json:"status"`
	Output string `json:"output"` // the end of its stdout and stderr
}

// Moment is when a scene happens.
type Moment struct {
	Token int `json:"token"` // after this many tokens
	// Fraction is a part of the time that the last token took, by which the scene happens later. In the scene "moved",
	// Token is not used, and Fraction is the moment between earliest and latest.
	Fraction float64 `json:"fraction"`
}

// The target is moved between these times after the helper was started: the helper has seen the
// target by then, and not yet taken hold of its pages.
const (
	earliest = 100 * time.Millisecond
	latest   = time.Second
)

// spec is a run that is to be made.
type spec struct {
	scene  Scene
	x      float64
	pair   int
	helped bool
}

// moment draws the scene's moment, the same one for both runs of a pair.
func (s *series) moment(r spec) Moment {
	h := fnv.New64a()
	fmt.Fprint(h, r.scene, r.x, r.pair)
	random := rand.New(rand.NewPCG(s.cfg.Seed, h.Sum64()))
	last := max(s.cfg.Settle, s.cfg.Tokens*3/5)
	return Moment{s.cfg.Settle + random.IntN(last-s.cfg.Settle+1), random.Float64()}
}

// A launcher whose target was ended by a signal has the status shellSignal plus the number of the
// signal.
const shellSignal = 128

var errHung = errors.New("it took too long")

// markVariable is an environment variable that marks the processes of a run. By it those are found that leave their
// group and their parents.
const markVariable = "TENSORCAST_HARM_RUN"

// run makes one run with a lane's model. What a target or a helper does wrong is recorded in Run;
// an error is a failure of the instrument, or the context's. In any case the run's groups and
// processes are gone afterwards.
func (s *series) run(ctx context.Context, l *lane, r spec) (run *Run, err error) {
	run = &Run{Scene: r.scene.String(), X: r.x, Pair: r.pair, Helped: r.helped, Moment: s.moment(r), Hogs: r.scene.hogs}
	run.Limit = s.limit(r.x)
	s.progress(r.String() + ": preparing")
	if err := l.drop(ctx); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s-%d", s.name, s.runs.Add(1))
	marker := markVariable + "=" + name
	group, err := cgroup.Create(s.root, name)
	if err != nil {
		return nil, err
	}
	groups := []*cgroup.Group{group}
	defer func() {
		err = errors.Join(err, confine.KillMarked(marker))
		for _, g := range groups {
			err = errors.Join(err, g.Remove())
		}
	}()
	if err := group.SetLimit(run.Limit); err != nil {
		return nil, err
	}
	home, outside := group, (*cgroup.Group)(nil)
	if r.scene.usesOutside() {
		if outside, err = cgroup.Create(s.root, name+"-outside"); err != nil {
			return nil, err
		}
		groups = append(groups, outside)
	}

	running, cancel := context.WithTimeoutCause(ctx, s.cfg.Timeout, errHung)
	defer cancel()
	stopSharer := func() {}
	// What cannot be started because time is up says only that a context has ended, or that it was killed.
	explain := func(err error) error {
		if running.Err() != nil {
			return context.Cause(running)
		}
		return err
	}
	switch r.scene.kind {
	case moved:
		home = outside
	case cached:
		if err := readShare(running, outside, l, r.scene.factor); err != nil {
			return nil, explain(err)
		}
	case shared:
		if stopSharer, err = s.startSharer(running, outside, l, marker); err != nil {
			return nil, explain(err)
		}
	}
	defer func() { stopSharer() }()
	launcher, launched := s.cfg.launcher()
	launched = launched && r.helped
	t, err := s.startTarget(running, home, l, launcher, launched, marker)
	if err != nil {
		return nil, explain(err)
	}
	defer t.Kill(cancel)
	var h *proc.Group
	if r.helped && !launched {
		command := "export " + marker + "; exec " + strings.ReplaceAll(s.cfg.Helper, "{pid}", strconv.Itoa(t.PID))
		if h, err = proc.StartGroup(ctx, "/bin/sh", "-c", command); err != nil {
			return nil, fmt.Errorf("start the helper: %w", err)
		}
		defer h.Kill()
	}
	a := &actor{scene: r.scene, group: group, limit: run.Limit, target: t.PID, model: l.path, helper: h,
		hold: s.cfg.Hold, done: t.Done}
	if launched {
		a.launched = func() (helper, target int) { return t.PID, launchedBy(marker, s.cfg.Target(l.path)) }
	}
	defer func() {
		_, releaseErr := a.release()
		err = errors.Join(err, releaseErr)
	}()
	if err := a.prepare(ctx, s.hog, marker); err != nil {
		return nil, err
	}

	early, err := s.follow(ctx, running, t, a, r, run.Moment)
	if err != nil {
		return nil, err
	}
	if h != nil {
		run.Helper = endHelper(h, early, a)
	}
	if launched {
		status, _ := t.State().Sys().(syscall.WaitStatus)
		killed := status.Signaled() && status.Signal() == syscall.SIGKILL
		run.Helper = &HelperEnd{
			Status: t.State().String(), Output: t.Problem(), Killed: killed && !(a.acted && a.scene.kind == killHelper),
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	run.Acted, run.Refused, run.HogsKilled = a.acted, a.refused, a.killed
	for _, g := range groups {
		n, err := g.OOMKills()
		if err != nil {
			return nil, err
		}
		run.OOMKills += n
	}
	if err := run.finish(t, running, a, s); err != nil {
		return nil, err
	}
	stopSharer()
	if run.ProcessesLeft, err = confine.ListLeft(ctx, marker, groups); err != nil {
		return nil, err
	}
	run.PagesLeft, err = l.dropAndCount(ctx)
	return run, err
}

// readShare has a process in a group read a share of a lane's model, from the beginning of the file.
func readShare(ctx context.Context, group *cgroup.Group, l *lane, share float64) error {
	const block = 1 << 20
	args := []string{"dd", "if=" + l.path, "of=/dev/null", fmt.Sprintf("bs=%d", block), "status=none",
		fmt.Sprintf("count=%d", int64(math.Ceil(share*float64(l.size)/block)))}
	in := confine.In(group, args, "")
	if out, err := exec.CommandContext(ctx, in[0], in[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("read the model in another group: %w: %s", err, out)
	}
	return nil
}

// startSharer starts a process in a group that computes with a lane's model again and again. It returns when that has
// loaded the model. stop must be called.
func (s *series) startSharer(
	ctx context.Context, group *cgroup.Group, l *lane, marker string,
) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	loaded := make(chan error, 1)
	var loop sync.WaitGroup
	loop.Go(func() {
		var once sync.Once
		defer once.Do(func() { loaded <- context.Cause(ctx) })
		for ctx.Err() == nil {
			t, err := confine.StartTarget(ctx, group, s.cfg.Target(l.path), marker)
			if err != nil {
				once.Do(func() { loaded <- err })
				return
			}
			t.Follow(func(int, llama.Token) { once.Do(func() { loaded <- nil }) })
		}
	})
	stop = func() {
		cancel()
		loop.Wait()
	}
	if err := <-loaded; err != nil {
		stop()
		return func() {}, fmt.Errorf("share the model with another target: %w", err)
	}
	return stop, nil
}

// startTarget starts the target in its home group, by the launcher if launched says so.
func (s *series) startTarget(
	running context.Context, home *cgroup.Group, l *lane, launcher string, launched bool, marker string,
) (*confine.Target, error) {
	args := s.cfg.Target(l.path)
	if launched {
		args = append([]string{"/bin/sh", "-c", "exec " + launcher + ` "$@"`, "launcher"}, args...)
	}
	t, err := confine.StartTarget(running, home, args, marker)
	if err != nil && errors.Is(context.Cause(running), errHung) {
		return nil, fmt.Errorf("start the target: %w: %v", errHung, s.cfg.Timeout)
	}
	return t, err
}

// follow reads the target's tokens to its end, and makes the scene happen at its moment. early says that the helper had
// ended at the last token.
func (s *series) follow(
	ctx, running context.Context, t *confine.Target, a *actor, r spec, at Moment,
) (early bool, err error) {
	var helperEnded atomic.Bool
	moment := make(chan time.Duration, 1)
	if r.scene.kind == moved {
		moment <- earliest + time.Duration(at.Fraction*float64(latest-earliest))
	}
	acting := a.actAfter(running, moment)
	t.Follow(func(n int, token llama.Token) {
		helperEnded.Store(a.helper != nil && a.helper.Ended())
		if n == at.Token && r.scene.kind != moved {
			moment <- time.Duration(at.Fraction * float64(token.End-token.Begin))
		}
		s.progress(fmt.Sprintf("%s: token %d", r, n))
	})
	if err := <-acting; err != nil && ctx.Err() == nil {
		return false, fmt.Errorf("scene %s: %w", r.scene, err)
	}
	// The hogs still wait if the target ended before the scene.
	if _, err := a.release(); err != nil {
		return false, fmt.Errorf("scene %s: %w", r.scene, err)
	}
	return helperEnded.Load(), nil
}

func (r spec) String() string {
	who := "without"
	if r.helped {
		who = "with"
	}
	return fmt.Sprintf("%s x=%g %s", r.scene, r.x, who)
}

// launchedBy finds a run's target among its processes by its command line. It returns 0 if the
// target does not run.
func launchedBy(marker string, args []string) int {
	pids, err := confine.ListMarked(marker)
	if err != nil {
		return 0
	}
	for _, pid := range pids {
		if slices.Equal(proc.CommandLine(pid), args) {
			return pid
		}
	}
	return 0
}

// finish fills in how the target ended. If the helper has started the target, the helper's status
// tells, as a shell's does.
func (run *Run) finish(t *confine.Target, running context.Context, a *actor, s *series) error {
	run.Status, run.Tokens = t.State().String(), len(t.IDs)
	text := t.Text.String()
	run.TextSame = len(t.IDs) <= len(s.report.TokenIDs) && slices.Equal(t.IDs, s.report.TokenIDs[:len(t.IDs)]) &&
		strings.HasPrefix(s.report.Text, text)
	if len(t.IDs) == len(s.report.TokenIDs) {
		run.TextSame = run.TextSame && text == s.report.Text
	}
	run.TextSame = run.TextSame || run.Helped && s.cfg.OtherText
	status, _ := t.State().Sys().(syscall.WaitStatus)
	killed := status.Signaled() && status.Signal() == syscall.SIGKILL
	success := status.Exited() && status.ExitStatus() == 0
	if a.launched != nil {
		killed = killed || status.Exited() && status.ExitStatus() > shellSignal
		// A launcher that was killed leaves the target alone. If that has all tokens, the run is a
		// success.
		success = success || status.Signaled() && status.Signal() == syscall.SIGKILL
	}
	switch {
	case status.Exited() && status.ExitStatus() == confine.ExitNotJoined:
		return fmt.Errorf("put the target into the control group: %s", t.Problem())
	case success && len(t.IDs) == len(s.report.TokenIDs):
		run.Outcome = Finished
		if s.cfg.Parallel == 1 {
			run.TokS = t.Speed()
		}
	case killed && a.ended:
		run.Outcome = Ended
	case killed && errors.Is(context.Cause(running), errHung):
		run.Outcome, run.Error = Hung, fmt.Sprintf("%v: %d of %d tokens in %v", errHung, len(t.IDs),
			len(s.report.TokenIDs), s.cfg.Timeout)
	case killed && run.OOMKills > 0:
		run.Outcome = Killed
	default:
		run.Outcome, run.Error = Failed, t.Problem()
	}
	return nil
}

// endHelper ends the helper, and returns how it ended. A helper that the scene has killed or
// stopped is not to blame.
func endHelper(h *proc.Group, early bool, a *actor) *HelperEnd {
	byScene := a.acted && (a.scene.kind == killHelper || a.scene.kind == termHelper)
	err := h.Stop(syscall.SIGTERM)
	h.Kill()
	status, _ := h.State().Sys().(syscall.WaitStatus)
	return &HelperEnd{
		Killed: err == nil && status.Signaled() && status.Signal() == syscall.SIGKILL &&
			!(byScene && a.scene.kind == killHelper),
		Early: early && !byScene, Hung: err != nil, Status: h.State().String(), Output: h.Output.String(),
	}
}
