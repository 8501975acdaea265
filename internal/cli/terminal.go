package cli

// This file prevents text from controlling a terminal. Others choose names of files and processes,
// and names in models.

import (
	"io"
	"os"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"

	"tensorcast/internal/visible"
)

// Safe returns a writer to w. If w is a terminal, the writer makes characters visible that would
// control it (see package visible). Otherwise Safe returns w, and text stays as it is. [Run] passes
// such writers to commands. They may be used concurrently.
func Safe(w io.Writer) io.Writer {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return w
	}
	return &screen{file: f}
}

// Raw returns the file behind a writer that Safe or Unblocked returned, for callers that move a
// terminal's cursor. It returns other writers as they are.
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

// screen is a terminal that shows text and cannot be controlled by it.
type screen struct {
	file *os.File

	mu   sync.Mutex
	rest []byte // the beginning of a character whose end may come with the next Write
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

// flush writes the bytes of an incomplete character.
func (s *screen) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.file.Write(visible.Append(nil, s.rest)) // nobody is left to whom an error could be reported
	s.rest = nil
}

// Message is an error's text for people. Joined errors have a line each, and nothing else begins a
// new line. So a name with a line break in it cannot look like a message of its own.
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
			break // the rest of the text does not contain the texts of the wrapped errors
		}
		message.WriteString(visible.Line(before) + lines[i])
		text = after
	}
	return message.String() + visible.Line(text)
}
