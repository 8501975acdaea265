package cli

// This file keeps text from acting on a terminal: names in models, of files and of processes are chosen by others.

import (
	"io"
	"os"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"

	"tensorcast/internal/visible"
)

// Safe returns a writer to w that makes visible what would act on a terminal (see package visible) if w is one; else it returns w, and what
// is written stays as it is. [Run] passes such writers to commands. It may be used concurrently.
func Safe(w io.Writer) io.Writer {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return w
	}
	return &screen{file: f}
}

// Raw returns the file behind a writer that Safe or Unblocked returned, for those that move a terminal's cursor; else w.
func Raw(w io.Writer) io.Writer {
	switch w := w.(type) {
	case *screen:
		return w.file
	case *unblocked:
		return w.file
	}
	return w
}

// IsTerminal reports whether w, or a command's standard stream, is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := Raw(w).(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// screen is a terminal on which text is shown, and does nothing else.
type screen struct {
	file *os.File

	mu   sync.Mutex
	rest []byte // the beginning of a character whose end the next Write may bring
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := append(s.rest, p...)
	s.rest = nil
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		if last := text[len(text)-back:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				text, s.rest = text[:len(text)-back], append([]byte(nil), last...)
			}
			break
		}
	}
	if _, err := s.file.Write(visible.Append(nil, text)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// end writes what was held back.
func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.file.Write(visible.Append(nil, s.rest)) // half a character: there is nobody left to tell
	s.rest = nil
}

// Message is an error's text for people: errors that were joined have a line each, and nothing else makes a line. A name with a line break
// in it cannot pass for a message of its own.
func Message(err error) string {
	var inner []error
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		inner = e.Unwrap()
	case interface{ Unwrap() error }:
		inner = []error{e.Unwrap()}
	}
	var texts, lines []string
	for _, e := range inner {
		if e != nil {
			texts, lines = append(texts, e.Error()), append(lines, Message(e))
		}
	}
	text := err.Error()
	if len(texts) > 1 && text == strings.Join(texts, "\n") {
		return strings.Join(lines, "\n")
	}
	var message strings.Builder
	for i := range texts {
		before, after, ok := strings.Cut(text, texts[i])
		if !ok {
			break // the rest is not made of the errors that it wraps
		}
		message.WriteString(visible.Line(before) + lines[i])
		text = after
	}
	return message.String() + visible.Line(text)
}
