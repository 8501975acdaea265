// Package progress shows on a terminal how far a command is ([Bar]). It is the only package that
// imports the progress bar's library. It is separate from package cli so that commands without
// progress do not link that library.
package progress

// This file shows a progress bar.

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"tensorcast/internal/cli"
	"tensorcast/internal/visible"
)

// Bar shows on one line of a terminal how much is done. If the output is no terminal, nothing is
// shown. Close removes the line. Its methods may be called concurrently.
type Bar struct {
	w     io.Writer // for messages
	raw   io.Writer // the same output without cli.Safe, for the line
	o     Options
	shown bool // w is a terminal, and Quiet is not set

	mu    sync.Mutex
	bar   *progressbar.ProgressBar // nil before the first output and after Close
	total int64                    // length of bar; -1: unknown
	what  string
	stop  func() // ends the goroutine that redraws the line
}

// Options configure a Bar.
type Options struct {
	Quiet   bool   // show nothing
	Bytes   bool   // amounts are bytes
	Predict bool   // show the estimated remaining time; useful if parts take equally long
	What    string // describes what is being done, until Update changes it
	// columns reserved for What, so that the bar stays where it is when What changes; 0: as many as
	// needed
	Width int
}

// New prepares a line on w if that is a terminal. The line is shown at the first Update, or at once
// if o.What is set.
func New(w io.Writer, o Options) *Bar {
	p := &Bar{w: cli.Safe(w), raw: cli.Raw(w), o: o, shown: !o.Quiet && cli.IsTerminal(w), what: o.What}
	if o.What != "" {
		p.Update(0, 0, "")
	}
	return p
}

// Update sets how much is done, the total (0 or less: unknown), and what is being done ("": unchanged).
func (p *Bar) Update(done, total int64, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.shown {
		return
	}
	if total <= 0 {
		total = -1
	}
	if p.bar == nil || p.total != total {
		p.begin(total, done > 0)
	}
	if what != "" && what != p.what {
		p.what = what
		p.bar.Describe(p.description())
	}
	if total > 0 {
		done = min(done, total-1) // a complete bar would disappear before Close
	}
	_ = p.bar.Set64(done) // a failing terminal must not fail the command
}

// begin replaces the bar by one of length total.
func (p *Bar) begin(total int64, count bool) {
	if p.bar != nil {
		_ = p.bar.Finish() // ignored for the same reason
	}
	options := []progressbar.Option{
		progressbar.OptionSetWriter(p.raw),
		progressbar.OptionSetWidth(20),
		progressbar.OptionSetDescription(p.description()),
		progressbar.OptionShowBytes(p.o.Bytes),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetElapsedTime(true),
		progressbar.OptionSetPredictTime(p.o.Predict && total > 0),
		progressbar.OptionSpinnerType(14),
		progressbar.OptionThrottle(redrawInterval / 2),
		progressbar.OptionSetSpinnerChangeInterval(0), // otherwise the library starts a goroutine that never ends
	}
	if total > 0 || count {
		options = append(options, progressbar.OptionShowCount())
	}
	p.bar, p.total = progressbar.NewOptions64(total, options...), total
	if p.stop == nil {
		p.stop = p.startRedrawing()
	}
}

func (p *Bar) description() string {
	what := visible.Line(p.what)
	if p.o.Width > 0 {
		return fmt.Sprintf("%-*.*s", p.o.Width, p.o.Width, what)
	}
	return what
}

// redrawInterval is how often the line is redrawn even without changes, because it shows the
// elapsed time.
const redrawInterval = 200 * time.Millisecond

// startRedrawing starts the goroutine that redraws the line, and returns the function that ends it.
func (p *Bar) startRedrawing() (stop func()) {
	stopping, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(redrawInterval)
		defer tick.Stop()
		for {
			select {
			case <-stopping:
				return
			case <-tick.C:
				p.mu.Lock()
				if p.bar != nil {
					p.bar.Describe(p.description())
				}
				p.mu.Unlock()
			}
		}
	}()
	return func() {
		close(stopping)
		<-ended
	}
}

// Write removes the line and writes b to the output. The line comes back with its next change.
func (p *Bar) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear() // ignored for the same reason
	}
	return p.w.Write(b)
}

// Close removes the line. It may be called more than once. A later Update shows nothing.
func (p *Bar) Close() {
	p.mu.Lock()
	stop := p.stop
	p.stop = nil
	if p.bar != nil {
		_ = p.bar.Finish() // ignored for the same reason
	}
	p.bar, p.shown = nil, false
	p.mu.Unlock()
	if stop != nil {
		stop()
	}
}
