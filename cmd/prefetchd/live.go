package main

// This file shows what prefetchd is doing. On a terminal it updates one line; elsewhere it writes a
// line per change.

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"

	"tensorcast/internal/cli"
	"tensorcast/internal/cli/status"
	"tensorcast/internal/visible"
	"tensorcast/prefetch"
)

// live shows the current status, and passes messages on.
type live struct {
	to       io.Writer
	line     *status.Line // nil if to is no terminal
	log      *slog.Logger // nil: statuses are printed as text
	activity prefetch.Activity
}

func newLive(to io.Writer, log *slog.Logger) *live {
	l := &live{to: to, log: log, activity: prefetch.Waiting}
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
	}
	return l
}

// show shows a status.
func (l *live) show(s prefetch.Status) {
	text := visible.Line(s.String())
	switch {
	case s.Activity == prefetch.Helping && s.Now == 0: // it is not decided yet what is kept
		if l.line != nil {
			l.line.Show(text)
		}
		return
	case l.line != nil && s.Activity != prefetch.Idle: // being idle lasts, so it gets a line of its own
		l.line.Show(text)
	case s.Activity != l.activity && l.log != nil:
		l.log.Info(text, "status", s)
	case s.Activity != l.activity:
		fmt.Fprintf(l.to, "prefetchd: %s\n", text)
	}
	l.activity = s.Activity
}

func (l *live) Write(p []byte) (int, error) { return l.to.Write(p) }

// close removes the line.
func (l *live) close() {
	if l.line != nil {
		l.line.Close()
	}
}
