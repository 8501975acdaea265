package processes

// This file says which processes of a tree compute: a process, or what it has started.

import (
	"fmt"
	"time"

	"tensorcast/internal/proc"
)

// Computing returns the processes of a tree that compute now, as far as can be told from outside. If root maps a model,
// that is root. Otherwise it is those below root that map one: root only started them. Where nobody maps a model, it
// is root if that has ggml's code, or those below it that have. There may be none.
func Computing(root int) ([]Candidate, error) {
	f, err := NewFinder(Selection{Root: root})
	if err != nil {
		return nil, err
	}
	// Mostly it is root, and then no other process need be looked at.
	if own, _, err := f.contents.examine(root, time.Now()); err == nil && own.Model {
		stat, err := statOf(root)
		return []Candidate{{PID: root, Name: stat.Comm, Root: root, Evidence: own}}, err
	}
	all, err := f.FindNew(time.Now())
	if err != nil {
		return nil, err
	}
	for _, counts := range []func(c Candidate) bool{
		func(c Candidate) bool { return c.Model },
		func(c Candidate) bool { return c.PID == root },
		func(Candidate) bool { return true },
	} {
		var found []Candidate
		for _, c := range all {
			if counts(c) {
				found = append(found, c)
			}
		}
		if len(found) > 0 {
			return found, nil
		}
	}
	return nil, nil
}

// Topmost returns the one of some processes that is above all others. ok is false if there is none. The error wraps
// proc.ErrNoProcess if one of them does not exist.
func Topmost(pids []int) (top int, ok bool, err error) {
	above := map[int]map[int]bool{} // by process: it, and those above it
	for _, pid := range pids {
		above[pid] = map[int]bool{}
		for at := pid; at != 0 && len(above[pid]) < maxDepth; {
			stat, err := statOf(at)
			if err != nil && at == pid {
				return 0, false, fmt.Errorf("process %d: %w", pid, proc.ErrNoProcess)
			} else if err != nil {
				break // it has just ended
			}
			above[pid][at] = true
			at = stat.PPID
		}
	}
	for _, pid := range pids {
		ok = true
		for _, chain := range above {
			ok = ok && chain[pid]
		}
		if ok {
			return pid, true, nil
		}
	}
	return 0, false, nil
}
