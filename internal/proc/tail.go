package proc

// This file keeps the end of a command's output.

import (
	"strings"
	"sync"
)

// tailBytes is how many bytes a Tail keeps.
const tailBytes = 64 << 10

// Tail keeps the last 64 KiB of what is written to it. It is safe for concurrent use.
type Tail struct {
	mu sync.Mutex
	b  []byte
}

// Write appends bytes. It never fails.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if cut := len(t.b) - tailBytes; cut > 0 {
		t.b = append(t.b[:0], t.b[cut:]...)
	}
	return len(b), nil
}

// String returns the bytes that were kept.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}

// LastLine returns the last line that is not empty.
func (t *Tail) LastLine() string { return LastLine(t.String()) }

// LastLine returns the last line of a text that is not empty.
func LastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}
