package main

// This file decides whether there is a status line, and what it says.

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"tensorcast/internal/cli"
	"tensorcast/internal/cli/status"
	"tensorcast/trace"
)

// display is the status line on standard error. A nil *display shows nothing.
type display struct {
	line  *status.Line
	meter status.Meter
	shown time.Time
	steps int // when it was shown
}

// displayInterval is less than that of the ticks, which may come a little early.
const displayInterval = 900 * time.Millisecond

// newDisplay returns nil where a line would not be seen, or would be written across the text of the command or ours.
func newDisplay(o options) *display {
	if !cli.IsTerminal(os.Stderr) || o.stdoutUsed() && cli.IsTerminal(os.Stdout) {
		return nil
	}
	return &display{line: status.NewLine(os.Stderr, func() int {
		width, _, err := term.GetSize(int(os.Stderr.Fd()))
		if err != nil {
			return 80
		}
		return width
	})}
}

// Show renews the line, once a second. Before the first decode llama.cpp itself writes to the terminal: it is left alone.
func (d *display) Show(s trace.Status) {
	now := time.Now()
	if d == nil || now.Sub(d.shown) < displayInterval || s.Steps == 0 {
		return
	}
	d.shown = now
	phase := s.Phase.String()
	if !s.Running && s.Steps == d.steps { // else it is only between two decodes
		phase = "waiting"
	}
	d.steps = s.Steps
	if s.Processes > 1 {
		phase = fmt.Sprintf("%d processes  %s", s.Processes, phase)
	}
	sample := status.Sample{Time: now, Events: s.Events, Lost: s.Counters.Lost(), Tokens: s.Tokens}
	d.line.Show(status.Text(phase, sample, d.meter.Add(sample)))
}

// Log is where messages go.
func (d *display) Log() io.Writer {
	if d == nil {
		return cli.Safe(os.Stderr)
	}
	return d.line
}

// Close clears the line, for good.
func (d *display) Close() {
	if d != nil {
		d.line.Close()
	}
}
