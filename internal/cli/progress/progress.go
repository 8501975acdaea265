// Package progress shows on a terminal how far a command is. It is the only user of the progress bar's library, and apart from package cli
// because a command that shows no progress should not carry that.
package progress

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"tensorcast/internal/cli"
)

// Bar is a line on a terminal that shows how much is done; elsewhere, as in a pipe, it is silent. Close takes the line away. Its methods
// may be called concurrently.
type Bar struct {
	w     io.Writer
	o     Options
	shown bool // w is a terminal, and not to be quiet

	mu    sync.Mutex
	bar   *progressbar.ProgressBar // nil before there is something to show, and after Close
	total int64                    // of bar; -1: not known
	what  string
	stop  func() // ends the goroutine that keeps the line moving
}

// Options says what a Bar shows.
type Options struct {
	Quiet   bool   // nothing
	Bytes   bool   // amounts are bytes
	Predict bool   // how long it will take: for parts that take equally long
	What    string // what is being done, until Update says something else
	Width   int    // columns for what is being done, so that the bar stands still when that changes; 0: as many as it takes
}

// New begins a line on w if that is a terminal. It is seen from the first Update on, or at once if o.What says what is being done.
func New(w io.Writer, o Options) *Bar {
	p := &Bar{w: w, o: o, shown: !o.Quiet && cli.IsTerminal(w), what: o.What}
	if o.What != "" {
		p.Update(0, 0, "")
	}
	return p
}

// Update says that done of total (0 or less: not known) is done, and what is being done now; "" leaves that as it is.
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
		done = min(done, total-1) // at its end the bar goes away, which is for Close to do
	}
	_ = p.bar.Set64(done) // a terminal that is gone is not the command's failure
}

// begin replaces the bar by one of that length.
func (p *Bar) begin(total int64, count bool) {
	if p.bar != nil {
		_ = p.bar.Finish() // likewise
	}
	options := []progressbar.Option{
		progressbar.OptionSetWriter(p.w), progressbar.OptionSetWidth(20), progressbar.OptionSetDescription(p.description()),
		progressbar.OptionShowBytes(p.o.Bytes), progressbar.OptionClearOnFinish(), progressbar.OptionSetElapsedTime(true),
		progressbar.OptionSetPredictTime(p.o.Predict && total > 0), progressbar.OptionSpinnerType(14), progressbar.OptionThrottle(turn / 2),
		progressbar.OptionSetSpinnerChangeInterval(0), // else a goroutine that nobody ends would turn it
	}
	if total > 0 || count {
		options = append(options, progressbar.OptionShowCount())
	}
	p.bar, p.total = progressbar.NewOptions64(total, options...), total
	if p.stop == nil {
		p.stop = p.move()
	}
}

func (p *Bar) description() string {
	if p.o.Width > 0 {
		return fmt.Sprintf("%-*.*s", p.o.Width, p.o.Width, p.what)
	}
	return p.what
}

// turn is how often the line is drawn if nothing happens: its clock goes on.
const turn = 200 * time.Millisecond

// move starts the goroutine that does that, and returns what ends it.
func (p *Bar) move() (stop func()) {
	stopping, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(turn)
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

// Write writes to the terminal, or whatever it is, in place of the line, which comes back with its next change.
func (p *Bar) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear() // likewise
	}
	return p.w.Write(b)
}

// Close takes the line away. It may be called again; an Update after it is too late and shows nothing.
func (p *Bar) Close() {
	p.mu.Lock()
	stop := p.stop
	p.stop = nil
	if p.bar != nil {
		_ = p.bar.Finish() // likewise
	}
	p.bar, p.shown = nil, false
	p.mu.Unlock()
	if stop != nil {
		stop()
	}
}
