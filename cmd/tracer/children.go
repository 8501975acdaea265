package main

// This file finds out whether the target only starts others that compute.

import (
	"errors"
	"fmt"
	"time"

	"tensorcast/internal/visible"
	"tensorcast/processes"
)

// errChildComputes says that a process which the target has started has loaded a model.
var errChildComputes = errors.New("has loaded a model")

// offspring is the processes that the target starts, where these are not followed.
type offspring struct {
	finder    *processes.Finder
	next      time.Time           // when to look again
	computing processes.Candidate // the first that has loaded a model; zero: there is none
}

// followBelow lets the processes be followed that a process has started, if these compute and the process itself does
// not. For CSV, which has no column for the process, it chooses the one that computes.
func (s *session) followBelow() error {
	found, err := processes.Computing(int(s.pid))
	if err != nil || len(found) == 0 || found[0].PID == int(s.pid) {
		return err // if nobody computes, attaching says so
	}
	first := found[0]
	switch name := visible.Line(first.Name); {
	case s.follow:
	case !s.options.csv:
		s.follow = true
		fmt.Fprintf(s.display.Log(), "tracer: process %d computes nothing itself: what it starts is traced, as with --follow "+
			"(now %d %s)\n", s.pid, first.PID, name)
	case len(found) > 1:
		return fmt.Errorf("process %d computes nothing itself, and more than one process below it does: "+
			"with --csv give one of them, such as --pid %d", s.pid, first.PID)
	default:
		fmt.Fprintf(s.display.Log(), "tracer: process %d computes nothing itself: process %d (%s), which it started, "+
			"is traced\n", s.pid, first.PID, name)
		s.pid = processID(first.PID)
	}
	return nil
}

// lookForChildren says once that a process which the command has started has loaded a model, if the command itself has
// decoded nothing so far and is not followed.
func (s *session) lookForChildren(steps int) {
	c := &s.children
	now := time.Now()
	if s.follow || steps > 0 || c.computing.PID != 0 || now.Before(c.next) {
		return
	}
	c.next = now.Add(processes.Interval)
	root := s.capture.PID()
	if c.finder == nil {
		var err error
		if c.finder, err = processes.NewFinder(processes.Selection{Root: root}); err != nil {
			return
		}
	}
	found, err := c.finder.FindNew(now)
	if err != nil {
		return // nothing depends on this
	}
	for _, child := range found {
		if !child.Model || child.PID == root {
			continue
		}
		c.computing = child
		fmt.Fprintf(s.display.Log(), "tracer: process %d (%s), which the target has started, has loaded a model, and is "+
			"not traced: add --follow, or trace it with --pid %d\n", child.PID, visible.Line(child.Name), child.PID)
		return
	}
}
