package main

// This file shows what prefetchd is doing. On a terminal it updates one line; elsewhere it writes a
// line per change.

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"tensorcast/internal/cli"
	"tensorcast/internal/cli/status"
	"tensorcast/internal/visible"
	"tensorcast/prefetch"
	"tensorcast/prefetch/monitor"
)

// redrawInterval is how often the line is written anew even if nothing happens: it says how long
// something has been so.
const redrawInterval = time.Second

// live shows the current status, and passes messages on. Its methods may be called concurrently.
type live struct {
	to   io.Writer
	line *status.Line // nil if to is no terminal
	log  *slog.Logger // nil: statuses are printed as text
	stop func()       // ends the goroutine that redraws the line
	disk monitor.Disk // what the line says of the disk

	mu       sync.Mutex // guards what follows, and calls of line.Show
	activity prefetch.Activity
	text     func(now time.Time) string // what the line says; nil: nothing
	closed   bool
}

// newLive shows statuses on to. The caller must call close.
func newLive(to io.Writer, log *slog.Logger) *live {
	l := &live{to: to, log: log, activity: prefetch.Waiting, stop: func() {}}
	if log != nil {
		return l
	}
	if f, ok := cli.Raw(to).(*os.File); ok && cli.IsTerminal(to) {
		l.line = status.NewLine(f, func() int {
			width, _, err := term.GetSize(int(f.Fd()))
			if err != nil {
				return 0 // the terminal is gone
			}
			return width
		})
		l.to = l.line
		l.stop = l.startRedrawing()
	}
	return l
}

// startRedrawing starts the goroutine that redraws the line, and returns what ends it.
func (l *live) startRedrawing() (stop func()) {
	stopping := make(chan struct{})
	var redrawing sync.WaitGroup
	redrawing.Go(func() {
		tick := time.NewTicker(redrawInterval)
		defer tick.Stop()
		for {
			select {
			case <-stopping:
				return
			case <-tick.C:
				l.redraw()
			}
		}
	})
	return sync.OnceFunc(func() {
		close(stopping)
		redrawing.Wait()
	})
}

// redraw writes the line, if there is one and it has something to say.
func (l *live) redraw() {
	if l.line == nil {
		return
	}
	l.mu.Lock()
	text := l.text
	l.mu.Unlock()
	if text == nil {
		return
	}
	now := visible.Line(text(time.Now())) // it may have to ask another process
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text != nil && !l.closed {
		l.line.Show(now)
	}
}

// say has the line say something else from now on, or with nil nothing. Where there is no line, it is not said.
func (l *live) say(text func(now time.Time) string) {
	l.mu.Lock()
	l.text = text
	l.mu.Unlock()
	l.redraw()
}

// show shows what is being done for a target.
func (l *live) show(r monitor.Report) {
	s := r.Status
	if s.Activity == prefetch.Idle {
		l.say(func(now time.Time) string {
			return "idle since " + monitor.Since(now, s.Since) + "; whether that changes is looked at every second"
		})
	} else {
		l.say(func(now time.Time) string { return r.Brief(now, l.disk.Read(&r, now)) })
	}
	undecided := s.Activity == prefetch.Helping && s.Now == 0 // what is kept
	l.mu.Lock()
	defer l.mu.Unlock()
	if undecided || s.Activity == l.activity {
		return
	}
	l.activity = s.Activity
	switch text := visible.Line(s.String()); {
	case l.log != nil:
		l.log.Info(text, "status", s)
	case l.line == nil || s.Activity == prefetch.Idle: // why it is idle stays on a terminal
		fmt.Fprintf(l.to, "prefetchd: %s\n", text)
	}
}

// note writes a line that stays, except with --log json: there the log says the same.
func (l *live) note(format string, args ...any) {
	if l.log == nil {
		fmt.Fprintf(l.to, "prefetchd: "+format+"\n", args...)
	}
}

// announce says once what begins now, where there is no line that goes on saying it: in a pipe, and in the log.
func (l *live) announce(text string) {
	switch {
	case l.log != nil:
		l.log.Info(text)
	case l.line == nil:
		fmt.Fprintf(l.to, "prefetchd: %s\n", visible.Line(text))
	}
}

func (l *live) Write(p []byte) (int, error) { return l.to.Write(p) }

// close removes the line, and what it says is not said any more.
func (l *live) close() {
	l.stop()
	if l.line == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.line.Close()
}
