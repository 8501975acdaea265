package ebpf

// This file looks for libraries that a target loads late: often while it is starting, and so seldom after that that waiting costs next to nothing.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"tensorcast/internal/proc"
)

const (
	// lookInterval is how often a process that has just begun its program is looked at, for as long as startTime, until ggml is found.
	lookInterval = 2 * time.Millisecond
	startTime    = 2 * time.Second
	// glanceInterval is how often one that runs for longer is asked for the size of its address space, which every library changes: so that its first ops are not missed.
	glanceInterval = 20 * time.Millisecond
	// patientInterval is the same for a caller that pauses: it would rather not be noticed. Each time costs a Go program some 0.5 ms.
	patientInterval = 500 * time.Millisecond
	// lookAgain is how often a process with ggml is looked at until its first op is seen: the library that is really used may be yet another one. lookAnyway is the same
	// for one whose address space keeps its size.
	lookAgain  = 500 * time.Millisecond
	lookAnyway = 2 * time.Second
	// lookShare is how much longer than looking not looking takes, where a process changes its memory map all the time.
	lookShare = 400
)

// search is the search for a process's libraries. The zero value is that of one whose program has not been seen yet.
type search struct {
	begun time.Time // when the program was first looked at
	next  time.Time // when something is to be done
	last  time.Time // when the memory map was last read
	took  time.Duration
	size  string // of the address space then, in the kernel's words
}

// due reports whether the memory map is to be read now. glance is how often to ask for the size.
func (s *search) due(now time.Time, ready bool, glance time.Duration, size func() string) bool {
	if now.Before(s.next) {
		return false
	}
	since := now.Sub(s.last)
	if ready || now.Sub(s.begun) < startTime || since >= lookAnyway {
		return true
	}
	s.next = now.Add(glance)
	return since >= lookShare*s.took && size() != s.size
}

// done notes that the memory map was read between two times; ready says that ggml is known.
func (s *search) done(from, to time.Time, ready bool, size string) {
	if s.begun.IsZero() {
		s.begun = from
	}
	s.last, s.took, s.size = from, to.Sub(from), size
	switch {
	case ready:
		s.next = to.Add(lookAgain)
	case from.Sub(s.begun) < startTime:
		s.next = to.Add(lookInterval)
	default:
		s.next = to // the size tells, from now on
	}
}

// lookForLibraries sets probes on what targets have mapped since the last time, where that is due, and returns when the next is.
func (t *Tracer) lookForLibraries() (next time.Time, err error) {
	next = time.Now().Add(lookAnyway)
	for _, p := range t.targets {
		if p.begun {
			continue
		}
		size := func() string { return addressSpace(p.pid) }
		if now := time.Now(); p.search.due(now, t.ready(p) == nil, t.glance, size) {
			before := size()
			if err := t.attachMapped(p); err != nil && !errors.Is(err, proc.ErrNoProcess) {
				return next, err
			}
			p.search.done(now, time.Now(), t.ready(p) == nil, before)
		}
		if p.search.next.Before(next) {
			next = p.search.next
		}
	}
	return next, nil
}

// addressSpace is the size of a process's address space; empty if it has ended.
func addressSpace(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return ""
	}
	size, _, _ := bytes.Cut(text, []byte(" "))
	return string(size)
}
