package ebpf

// This file looks for libraries that a target loads late. It looks often while the target starts.
// After that it looks so seldom that a target which waits costs next to nothing.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"tensorcast/internal/proc"
)

const (
	// lookInterval is how often the memory map of a process that has just begun its program is
	// read, for as long as startTime, until ggml is found.
	lookInterval = 2 * time.Millisecond
	startTime    = 2 * time.Second
	// glanceInterval is how often a process that has run for longer is asked for the size of its
	// address space, which every library changes. It is short so that the first ops are not missed.
	glanceInterval = 20 * time.Millisecond
	// patientInterval is the same for a caller that pauses: it would rather not be noticed. Each
	// time costs a Go program some 0.5 ms.
	patientInterval = 500 * time.Millisecond
	// lookAgain is how often the memory map of a process with ggml is read until its first op is
	// seen: the library that is really used may be yet another one.
	lookAgain = 500 * time.Millisecond
	// lookAnyway is how often the memory map is read of a process whose address space keeps its size.
	lookAnyway = 2 * time.Second
	// lookShare is how many times longer than a look the time until the next one is, where a
	// process changes its memory map all the time.
	lookShare = 400
)

// search is the search for a process's libraries. The zero value is that of one whose program has
// not been seen yet.
type search struct {
	begun time.Time     // when the program was first looked at
	next  time.Time     // when something is to be done
	last  time.Time     // when the memory map was last read
	took  time.Duration // to read it
	size  string        // of the address space then, in the kernel's words
}

// isDue reports whether the memory map is to be read now. ready says that ggml is known,
// glanceEvery is how often to ask for the size.
func (s *search) isDue(now time.Time, ready bool, glanceEvery time.Duration, size func() string) bool {
	if now.Before(s.next) {
		return false
	}
	since := now.Sub(s.last)
	if ready || now.Sub(s.begun) < startTime || since >= lookAnyway {
		return true
	}
	s.next = now.Add(glanceEvery)
	return since >= lookShare*s.took && size() != s.size
}

// noteLook notes that the memory map was read between two times. ready says that ggml is known.
func (s *search) noteLook(from, to time.Time, ready bool, size string) {
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
		s.next = to // from now on, the size of the address space decides
	}
}

// lookForLibraries sets probes on what targets have mapped since the last time, where that is due,
// and returns when the next look is.
func (t *Tracer) lookForLibraries() (next time.Time, err error) {
	next = time.Now().Add(lookAnyway)
	for _, p := range t.targets {
		if p.sawOp {
			continue
		}
		size := func() string { return addressSpace(p.pid) }
		if now := time.Now(); p.search.isDue(now, t.checkReady(p) == nil, t.glanceEvery, size) {
			before := size()
			if err := t.attachMapped(p); err != nil && !errors.Is(err, proc.ErrNoProcess) {
				return next, err
			}
			p.search.noteLook(now, time.Now(), t.checkReady(p) == nil, before)
		}
		if p.search.next.Before(next) {
			next = p.search.next
		}
	}
	return next, nil
}

// addressSpace is the size of a process's address space, as the kernel writes it (in pages); empty
// if it has ended.
func addressSpace(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return ""
	}
	size, _, _ := bytes.Cut(text, []byte(" "))
	return string(size)
}
