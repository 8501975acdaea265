// Package auto keeps a helper running for each process that computes with ggml, as they come and go.
//
// What a process maps only decides whether a helper is started for it. The helper checks everything, and gives up where
// it is wrong.
package auto

// This file keeps helpers running, and divides memory among them.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"tensorcast/processes"
)

// Options of Run.
type Options struct {
	// Helper returns the command that helps a candidate. budget is its share in bytes, or 0 without a Budget. The
	// command must end on SIGTERM, and when its target ends.
	Helper func(c processes.Candidate, budget int64) []string
	// MaxHelpers is how many candidates are helped at once, at least 1. Others wait until one has ended. A target that
	// maps no model, like a server that only starts others, gives way to one that does.
	MaxHelpers int
	// Budget is how many bytes all helpers may use together. 0 sets no bound. It is divided evenly among those that use
	// memory now. Each other one is told what it would get if it began, and takes nothing of the others' until then.
	Budget int64
	// Using lists the targets whose helpers use memory now. It is asked where there is a Budget.
	Using func(ctx context.Context) (map[int]bool, error)
	// Cap, if not nil, says how many bytes the helper of a candidate may use at most, whatever its share of the Budget;
	// 0 sets no bound. It is asked again and again, because more is known of a candidate when it maps its model.
	Cap func(c processes.Candidate) int64
	// SetShare tells the helper of a target that its share is another one now; 0: there is no bound any more.
	SetShare func(ctx context.Context, target int, bytes int64) error
	// Beside is a target that somebody else helps and who shares the Budget, too; 0: there is none.
	Beside int
	// Interval is how often it looks for processes and divides the budget; 0 means processes.Interval.
	Interval time.Duration
	// Skip says that no processes need be looked for now; nil: they always are.
	Skip func() bool
	// Out gets what a helper has written to standard output, as a whole, when the helper has ended. Err gets what
	// helpers write to standard error, line by line. Each line begins with the helper's target, instead of the
	// helper's name. Writes to Err do not overlap. A helper that fails says there why.
	Out, Err io.Writer
	// NoPrefix leaves out the target: the lines say themselves which target they are about.
	NoPrefix bool
	// Updates, if not nil, changes while Run runs whom it helps, and how.
	Updates <-chan Update
	// OnChange is called when other candidates are helped than before, or others wait; nil: nobody asks. It must not
	// change the slices, and may keep them.
	OnChange func(helped, waiting []processes.Candidate)
	Log      *slog.Logger
}

// Update replaces what Run was told. Helpers that run go on, with other shares, but those of targets that are not
// selected any more are ended. Other changes of how targets are helped are for helpers that are started from now on.
type Update struct {
	Finder     *processes.Finder // which was not asked yet; nil: the one before
	Helper     func(c processes.Candidate, budget int64) []string
	MaxHelpers int
	Budget     int64
	Cap        func(c processes.Candidate) int64
}

// endTimeout is how long helpers have to end before they are killed.
const endTimeout = 10 * time.Second

// Run helps the candidates that f finds until ctx ends. Then it ends all helpers. The end of ctx is no error. helped
// is how many helpers were started. Run locks its goroutine to a thread: the kernel ends the helpers with that thread
// (PR_SET_PDEATHSIG), even if this process is killed.
func Run(ctx context.Context, f *processes.Finder, o Options) (helped int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	k := &keeper{o: o, helpers: map[int]*helper{}, ended: make(chan *helper)}
	if o.Beside != 0 {
		k.beside = &member{share: o.Budget}
	}
	tick := time.NewTicker(cmp.Or(o.Interval, processes.Interval))
	defer tick.Stop()
	defer k.stopHelpers()
	for updated := false; ; {
		if o.Skip == nil || !o.Skip() {
			found, err := f.FindNew(time.Now())
			if err != nil {
				return k.started, err
			}
			k.add(found)
			if updated {
				k.leaveOut(f.Selects)
				updated = false
			}
		}
		k.startHelpers()
		k.divideBudget(ctx)
		k.tell()
		select {
		case <-ctx.Done():
			return k.started, nil
		case h := <-k.ended:
			k.noteEnd(h)
		case u := <-o.Updates:
			if u.Finder != nil {
				f, updated = u.Finder, true
			}
			k.o.Helper, k.o.MaxHelpers, k.o.Budget, k.o.Cap = u.Helper, u.MaxHelpers, u.Budget, u.Cap
		case <-tick.C:
		}
	}
}

// keeper is the state of one Run.
type keeper struct {
	o       Options
	waiting []processes.Candidate
	helpers map[int]*helper // by target
	beside  *member         // nil: there is none
	started int             // how many helpers were started
	using   int             // how many of those that share the budget used memory, when it was divided last
	ended   chan *helper
	waits   sync.WaitGroup
	mu      sync.Mutex // guards Options.Err

	// What OnChange was told last, if it was told anything.
	told                    bool
	toldHelped, toldWaiting []processes.Candidate
}

// member shares the budget.
type member struct {
	share int64 // bytes, as it was told last
}

// helper is a command that helps.
type helper struct {
	processes.Candidate
	member
	cmd     *exec.Cmd
	out     bytes.Buffer
	stderr  *lineWriter
	gaveWay bool  // it was ended so that another target is helped
	leftOut bool  // it was ended because its target is not selected any more
	result  error // of the command, when it has ended
}

// add notes candidates that were found. Of one that is helped, or waits, more is known now. One whose helper has ended,
// or is ending because it was not to be helped any more, gets another.
func (k *keeper) add(found []processes.Candidate) {
	for _, c := range found {
		i := slices.IndexFunc(k.waiting, func(w processes.Candidate) bool { return w.PID == c.PID })
		switch h := k.helpers[c.PID]; {
		case c.PID == k.o.Beside:
		case h != nil && !h.leftOut && (h.GGML || !c.GGML):
			c.GGML, c.Model = c.GGML || h.GGML, c.Model || h.Model // another Finder may know less so far
			h.Candidate = c
		case i >= 0:
			k.waiting[i] = c
		default: // a helper that was started before there was ggml ends by itself
			k.waiting = append(k.waiting, c)
		}
	}
	slices.SortStableFunc(k.waiting, processes.ModelsFirst)
}

// leaveOut ends the helpers of targets that are not selected any more, and forgets those that wait.
func (k *keeper) leaveOut(isSelected func(pid int) bool) {
	k.waiting = slices.DeleteFunc(k.waiting, func(c processes.Candidate) bool { return !isSelected(c.PID) })
	for pid, h := range k.helpers {
		if h.leftOut || isSelected(pid) || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) { // that one ends by itself
			continue
		}
		k.o.Log.Info("this process is not to be helped any more", "target", pid, "name", h.Name)
		h.leftOut = true
		_ = h.cmd.Process.Signal(syscall.SIGTERM) // it fails if the helper has ended, which k.ended will say
	}
}

// startHelpers starts helpers for candidates that wait, until there are Options.MaxHelpers.
func (k *keeper) startHelpers() {
	later := k.waiting[:0]
	for _, c := range k.waiting {
		switch {
		case errors.Is(syscall.Kill(c.PID, 0), syscall.ESRCH): // it has ended while it waited
		case k.helpers[c.PID] != nil:
			later = append(later, c)
		case len(k.helpers) >= k.o.MaxHelpers:
			later = append(later, c)
			if c.Model {
				k.makeRoom()
			}
		default:
			k.startHelper(c)
		}
	}
	if k.waiting = later; len(k.waiting) > 0 {
		k.o.Log.Debug("as many are helped as may be", "waiting", len(k.waiting))
	}
}

func (k *keeper) startHelper(c processes.Candidate) {
	h := &helper{Candidate: c, stderr: &lineWriter{to: k.o.Err, mu: &k.mu}}
	if !k.o.NoPrefix {
		h.stderr.prefix = fmt.Sprintf("%d %s: ", c.PID, c.Name)
	}
	h.share = k.capped(c, k.o.Budget/int64(k.using+1))
	args := k.o.Helper(c, h.share)
	h.stderr.usual = filepath.Base(args[0]) + ": "
	h.cmd = exec.Command(args[0], args[1:]...)
	h.cmd.Stdout, h.cmd.Stderr = &h.out, h.stderr
	// The helper has a process group of its own: a terminal's signals reach only this process, which passes them on
	// once.
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := h.cmd.Start(); err != nil {
		k.o.Log.Warn("cannot start a helper", "target", c.PID, "name", c.Name, "why", err)
		return
	}
	k.o.Log.Info("helping", "target", c.PID, "name", c.Name)
	k.helpers[c.PID] = h
	k.started++
	k.waits.Go(func() {
		h.result = h.cmd.Wait()
		k.ended <- h
	})
}

// makeRoom ends a helper whose target maps no model, unless one is ending already.
func (k *keeper) makeRoom() {
	var idle *helper
	for _, h := range k.helpers {
		if h.gaveWay {
			return
		}
		if !h.Model {
			idle = h
		}
	}
	if idle == nil {
		return
	}
	k.o.Log.Debug("a target without a model gives way to one with a model", "target", idle.PID)
	idle.gaveWay = true
	_ = idle.cmd.Process.Signal(syscall.SIGTERM) // it fails if the helper has ended, which k.ended will say
}

// divideBudget tells helpers their shares where these have changed. A helper that has just begun cannot be told
// yet, and is told later. Until then the shares may come to more than the budget. The limits of control groups and
// the host hold all the same.
func (k *keeper) divideBudget(ctx context.Context) {
	if len(k.helpers) == 0 {
		return
	}
	using := map[int]bool{}
	if k.o.Budget > 0 {
		var err error
		if using, err = k.o.Using(ctx); err != nil {
			k.o.Log.Debug("cannot ask every helper whether it uses memory", "why", err)
		}
	}
	members := map[int]*member{}
	for pid, h := range k.helpers {
		members[pid] = &h.member
	}
	if k.beside != nil {
		members[k.o.Beside] = k.beside
	}
	k.using = 0
	for pid := range members {
		if using[pid] {
			k.using++
		}
	}
	for pid, m := range members {
		want := k.o.Budget / int64(k.using+1)
		if using[pid] {
			want = k.o.Budget / int64(k.using)
		}
		if h := k.helpers[pid]; h != nil { // who helps the one beside knows its cap
			want = k.capped(h.Candidate, want)
		}
		if m.share == want {
			continue
		}
		if err := k.o.SetShare(ctx, pid, want); err != nil {
			k.o.Log.Debug("cannot tell a helper its share", "target", pid, "why", err)
			continue
		}
		m.share = want
	}
}

// capped is the lesser of a share and the candidate's cap, where 0 is no bound.
func (k *keeper) capped(c processes.Candidate, share int64) int64 {
	if k.o.Cap == nil {
		return share
	}
	if most := k.o.Cap(c); most > 0 && (share == 0 || most < share) {
		return most
	}
	return share
}

// noteEnd passes on what a helper that has ended wrote, and logs how it ended.
func (k *keeper) noteEnd(h *helper) {
	delete(k.helpers, h.PID)
	h.stderr.flush()
	if _, err := k.o.Out.Write(h.out.Bytes()); err != nil {
		k.o.Log.Warn("cannot write what a helper found", "target", h.PID, "why", err)
	}
	if h.gaveWay && !h.leftOut {
		k.waiting = append(k.waiting, h.Candidate)
		return
	}
	if failed := (*exec.ExitError)(nil); errors.As(h.result, &failed) && failed.Exited() {
		k.o.Log.Debug("not helped any more", "target", h.PID, "name", h.Name, "why", h.result) // it has said why
		return
	}
	if h.result != nil {
		k.o.Log.Warn("not helped any more", "target", h.PID, "name", h.Name, "why", h.result)
		return
	}
	k.o.Log.Info("done", "target", h.PID, "name", h.Name)
}

// stopHelpers ends all helpers, and waits for them.
func (k *keeper) stopHelpers() {
	signal := func(s syscall.Signal) {
		for _, h := range k.helpers {
			_ = h.cmd.Process.Signal(s) // it fails if the helper has ended, which k.ended will say
		}
	}
	signal(syscall.SIGTERM)
	timer := time.NewTimer(endTimeout)
	defer timer.Stop()
	for len(k.helpers) > 0 {
		select {
		case h := <-k.ended:
			k.noteEnd(h)
		case <-timer.C:
			k.o.Log.Warn("helpers do not end: killed", "helpers", len(k.helpers))
			signal(syscall.SIGKILL)
		}
	}
	k.waits.Wait()
}

// lineWriter writes whole lines, each with a prefix. It is for one goroutine, but several may have the same mutex.
type lineWriter struct {
	to     io.Writer
	mu     *sync.Mutex
	prefix string
	usual  string // with which lines may begin, and which prefix replaces; only with a prefix
	rest   string // of a line that has no end so far
}

// maxLine is the length in bytes of the longest line that is kept together.
const maxLine = 1 << 16

func (l *lineWriter) Write(p []byte) (int, error) {
	l.rest += string(p)
	for {
		line, rest, whole := strings.Cut(l.rest, "\n")
		if !whole && len(l.rest) < maxLine {
			return len(p), nil
		}
		if !whole {
			line, rest = l.rest, ""
		}
		l.rest = rest
		if err := l.writeLine(line); err != nil {
			return 0, err
		}
	}
}

func (l *lineWriter) writeLine(line string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.prefix != "" {
		line = l.prefix + strings.TrimPrefix(line, l.usual)
	}
	_, err := io.WriteString(l.to, line+"\n")
	return err
}

// flush writes a last line that had no end.
func (l *lineWriter) flush() {
	if l.rest != "" {
		_ = l.writeLine(l.rest) // if Err cannot be written, nobody can be told
		l.rest = ""
	}
}
