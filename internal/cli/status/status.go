// Package status shows the progress of a capture on one line of a terminal, updated every second:
// [Meter] computes rates, [Text] formats the line, [Line] shows it. cmd/tracer uses it.
package status

// This file computes rates, and shows them on a line.

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/visible"
)

// Sample holds the counts of a capture at one moment. They never decrease.
type Sample struct {
	Time   time.Time
	Events uint64 // events received
	Lost   uint64
	Tokens int // tokens generated
}

// window is the time over which rates are averaged. It is long enough for steady numbers, and short
// enough to follow changes.
const window = 5 * time.Second

// Meter computes rates. The zero value is ready to use; it is not safe for concurrent use.
type Meter struct {
	samples []Sample // in order of time: the samples of the last window, and the one before
}

// Rates are averages per second over the last seconds.
type Rates struct{ Tokens, Events float64 }

// Add adds a sample and returns the rates up to it; they are 0 until there are two samples.
func (m *Meter) Add(s Sample) Rates {
	m.samples = append(m.samples, s)
	first := 0
	for first+1 < len(m.samples) && s.Time.Sub(m.samples[first+1].Time) >= window {
		first++
	}
	m.samples = append(m.samples[:0], m.samples[first:]...)
	from := m.samples[0]
	seconds := s.Time.Sub(from.Time).Seconds()
	if seconds <= 0 {
		return Rates{}
	}
	return Rates{float64(s.Tokens-from.Tokens) / seconds, float64(s.Events-from.Events) / seconds}
}

// Text formats the line for a sample: what the target is doing, how fast, and how many events were
// lost.
func Text(phase string, s Sample, r Rates) string {
	return fmt.Sprintf("%s  %.1f tok/s  %s tokens  %s events/s  %s lost",
		phase, r.Tokens, humanize.Comma(int64(s.Tokens)),
		humanize.Comma(int64(r.Events)), humanize.Comma(int64(s.Lost)))
}

// Line is a line on a terminal. A goroutine writes it, so that the caller never waits for the
// terminal, which may be stopped (Ctrl-S). Text that has not been written yet is replaced by newer
// text.
type Line struct {
	width func() int
	next  chan string
	done  chan struct{}
	close sync.Once

	mu    sync.Mutex // held while writing
	w     io.Writer
	shown bool
}

// NewLine returns a line on w, a terminal whose width in columns is width(). The caller must call
// Close.
func NewLine(w io.Writer, width func() int) *Line {
	l := &Line{w: w, width: width, next: make(chan string, 1), done: make(chan struct{})}
	go l.run()
	return l
}

const erase = "\r\x1b[K" // move to the start of the line, clear to its end

// run writes the line. Errors are ignored: nothing depends on the terminal.
func (l *Line) run() {
	defer close(l.done)
	for text := range l.next {
		// A line as long as the terminal is wide would wrap, and could not be erased.
		if n := l.width() - 1; n >= 0 && len(text) > n {
			text = text[:n]
		}
		// The cursor is left at the start of the line, so that other output replaces the line
		// instead of following it.
		l.mu.Lock()
		_, _ = fmt.Fprint(l.w, erase, text, "\r")
		l.shown = true
		l.mu.Unlock()
	}
	_, _ = l.Write(nil)
}

// Show replaces the text of the line, which must be ASCII. It must not be called concurrently, or
// after Close.
func (l *Line) Show(text string) {
	for {
		select {
		case l.next <- text:
			return
		default:
		}
		select {
		case <-l.next:
		default:
		}
	}
}

// Write removes the line and writes complete messages to the terminal. Characters that would
// control the terminal are made visible. The line comes back with the next Show. Write may be
// called concurrently, and after Close.
func (l *Line) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown {
		l.shown = false
		if _, err := io.WriteString(l.w, erase); err != nil {
			return 0, err
		}
	}
	if len(p) == 0 {
		return 0, nil
	}
	if _, err := l.w.Write(visible.Append(nil, p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close removes the line. It may be called more than once.
func (l *Line) Close() {
	l.close.Do(func() { close(l.next) })
	<-l.done
}
