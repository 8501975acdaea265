package main

// This file shows the status line, where one can be seen.

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/term"

	"tensorcast/internal/cli"
	"tensorcast/internal/cli/status"
	"tensorcast/trace"
)

// display is the status line on standard error. A nil *display shows nothing.
type display struct {
	line  *status.Line
	meter status.Meter
	shown time.Time // when the line was shown last
	steps int       // steps at that time
}

// displayInterval is a little less than the second between two ticks, which may come early.
const displayInterval = 900 * time.Millisecond

// newDisplay returns nil where a line would not be seen, or would be mixed with the output of the
// command or of tracer.
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

// Show updates the line once a second. Before the first decode it shows nothing, because llama.cpp
// itself writes to the terminal then.
func (d *display) Show(s trace.Status) {
	now := time.Now()
	if d == nil || now.Sub(d.shown) < displayInterval || s.Steps == 0 {
		return
	}
	d.shown = now
	phase := s.Phase.String()
	if !s.Running && s.Steps == d.steps { // with a new step it is only between two decodes
		phase = "waiting"
	}
	d.steps = s.Steps
	if s.Tokens == 0 && s.Steps > 1 { // prompts only, embeddings, a perplexity: tokens do not tell how far it is
		phase = fmt.Sprintf("%s  %s decodes", phase, humanize.Comma(int64(s.Steps)))
	}
	if s.Processes > 1 {
		phase = fmt.Sprintf("%d processes  %s", s.Processes, phase)
	}
	sample := status.Sample{Time: now, Events: s.Events, Lost: s.Counters.Lost(), Tokens: s.Tokens}
	d.line.Show(status.Text(phase, sample, d.meter.Add(sample)))
}

// Log is the writer for messages.
func (d *display) Log() io.Writer {
	if d == nil {
		return cli.Safe(os.Stderr)
	}
	return d.line
}

// Close removes the line.
func (d *display) Close() {
	if d != nil {
		d.line.Close()
	}
}
