package auto

// This file keeps helpers running, and divides memory among them.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Options of Run.
type Options struct {
	// Helper is the command that helps a candidate; budget is its share in bytes, 0 without a Budget. It must end on
	// SIGTERM, and when its target does.
	Helper func(c Candidate, budget int64) []string
	// Most is how many are helped at once: others wait until one has ended. At least 1.
	Most int
	// Budget is divided evenly among those that are helped; Share tells a helper what its share is by now. 0: each
	// has what it finds.
	Budget int64
	Share  func(ctx context.Context, target int, bytes int64) error
	// Out gets what helpers write to standard output, each whole, when it has ended. What they write to standard
	// error goes to Err, line by line, with their target before it. Their writes do not overlap.
	Out, Err io.Writer
	Bare     bool // the lines to Err say themselves which target they are about
	Log      *slog.Logger
}

// grace is how long helpers have to end.
const grace = 10 * time.Second

// Run helps whom f finds until ctx ends, then ends all helpers; that is no error. It locks its goroutine to a thread:
// the kernel ends the helpers with it (PR_SET_PDEATHSIG), also if this process is killed.
func Run(ctx context.Context, f *Finder, o Options) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	k := &keeper{o: o, helpers: map[int]*helper{}, ended: make(chan *helper)}
	tick := time.NewTicker(Every)
	defer tick.Stop()
	defer k.stop()
	for {
		found, err := f.Look(time.Now())
		if err != nil {
			return err
		}
		k.waiting = append(k.waiting, found...)
		k.start()
		k.divide(ctx)
		select {
		case <-ctx.Done():
			return nil
		case h := <-k.ended:
			k.done(h)
		case <-tick.C:
		}
	}
}

// keeper is one Run.
type keeper struct {
	o       Options
	waiting []Candidate
	helpers map[int]*helper // by target
	ended   chan *helper
	waits   sync.WaitGroup
	mu      sync.Mutex // of Err
}

// helper is a command that helps.
type helper struct {
	Candidate
	cmd    *exec.Cmd
	out    bytes.Buffer
	said   *lines
	share  int64 // that it was told
	result error
}

// start starts helpers for those that wait, as far as there may be so many.
func (k *keeper) start() {
	for len(k.waiting) > 0 && len(k.helpers) < k.o.Most {
		c := k.waiting[0]
		k.waiting = k.waiting[1:]
		if errors.Is(syscall.Kill(c.PID, 0), syscall.ESRCH) {
			continue // it has ended while it waited
		}
		h := &helper{Candidate: c, said: &lines{to: k.o.Err, mu: &k.mu}}
		if !k.o.Bare {
			h.said.prefix = fmt.Sprintf("%d %s: ", c.PID, c.Name)
		}
		if k.o.Budget > 0 {
			h.share = k.o.Budget / int64(len(k.helpers)+1)
		}
		args := k.o.Helper(c, h.share)
		h.cmd = exec.Command(args[0], args[1:]...)
		h.cmd.Stdout, h.cmd.Stderr = &h.out, h.said
		// A terminal's signals reach this process only, which passes them on once.
		h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
		if err := h.cmd.Start(); err != nil {
			k.o.Log.Warn("cannot start a helper", "target", c.PID, "name", c.Name, "why", err)
			continue
		}
		k.o.Log.Info("helping", "target", c.PID, "name", c.Name)
		k.helpers[c.PID] = h
		k.waits.Go(func() {
			h.result = h.cmd.Wait()
			k.ended <- h
		})
	}
	if len(k.waiting) > 0 {
		k.o.Log.Debug("as many are helped as may be", "waiting", len(k.waiting))
	}
}

// divide tells helpers their shares where these have changed. One that cannot be told yet (it has just begun) is told
// later: until then the shares may come to more than the budget; the limits of control groups and host hold all the
// same.
func (k *keeper) divide(ctx context.Context) {
	if k.o.Budget <= 0 || len(k.helpers) == 0 {
		return
	}
	want := k.o.Budget / int64(len(k.helpers))
	for _, h := range k.helpers {
		if h.share == want {
			continue
		}
		if err := k.o.Share(ctx, h.PID, want); err != nil {
			k.o.Log.Debug("cannot tell a helper its share", "target", h.PID, "why", err)
			continue
		}
		h.share = want
	}
}

// done takes note of a helper's end.
func (k *keeper) done(h *helper) {
	delete(k.helpers, h.PID)
	h.said.flush()
	if _, err := k.o.Out.Write(h.out.Bytes()); err != nil {
		k.o.Log.Warn("cannot write what a helper found", "target", h.PID, "why", err)
	}
	if h.result != nil {
		k.o.Log.Warn("not helped any more", "target", h.PID, "name", h.Name, "why", h.result)
		return
	}
	k.o.Log.Info("done", "target", h.PID, "name", h.Name)
}

// stop ends all helpers, and waits for them.
func (k *keeper) stop() {
	signal := func(s syscall.Signal) {
		for _, h := range k.helpers {
			_ = h.cmd.Process.Signal(s) // else it has ended, which is coming
		}
	}
	signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	for len(k.helpers) > 0 {
		select {
		case h := <-k.ended:
			k.done(h)
		case <-timer.C:
			k.o.Log.Warn("helpers do not end: killed", "helpers", len(k.helpers))
			signal(syscall.SIGKILL)
		}
	}
	k.waits.Wait()
}

// lines writes whole lines, each with a prefix.
type lines struct {
	to     io.Writer
	mu     *sync.Mutex
	prefix string
	rest   string
}

// longest is the longest line that is kept together.
const longest = 1 << 16

func (l *lines) Write(p []byte) (int, error) {
	l.rest += string(p)
	for {
		line, rest, whole := strings.Cut(l.rest, "\n")
		if !whole && len(l.rest) < longest {
			return len(p), nil
		}
		if !whole {
			line, rest = l.rest, ""
		}
		l.rest = rest
		if err := l.write(line); err != nil {
			return 0, err
		}
	}
}

func (l *lines) write(line string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := io.WriteString(l.to, l.prefix+line+"\n")
	return err
}

// flush writes what had no end.
func (l *lines) flush() {
	if l.rest != "" {
		_ = l.write(l.rest) // what it said is lost with the place where it is said
		l.rest = ""
	}
}
