package main

// This file is the part of `prefetchd doctor` that asks the prefetchd that helps a process already. What that one does,
// and why it does nothing, it knows better than anybody who looks from outside.

import (
	"context"
	"fmt"
	"time"

	"tensorcast/internal/cli"
	"tensorcast/internal/visible"
	"tensorcast/prefetch"
	"tensorcast/prefetch/monitor"
)

// helperReport is what is known of the prefetchd that helps a process.
type helperReport struct {
	*monitor.Report
	NoAnswer string `json:"no_answer,omitempty"` // why it could not be asked
}

// askHelper asks the prefetchd that helps a process, which answers in a directory of sockets.
func askHelper(ctx context.Context, dir string, pid int) *helperReport {
	if dir == "" {
		return &helperReport{NoAnswer: "--run-dir is empty"}
	}
	r, err := monitor.Ask(ctx, dir, pid)
	if err != nil {
		return &helperReport{NoAnswer: fmt.Sprintf("in %s: %s", dir, cli.Message(err))}
	}
	return &helperReport{Report: &r}
}

// answers says whether there is a helper, and what it does is known.
func (h *helperReport) answers() bool { return h != nil && h.Report != nil }

// helps says whether it does something for the process, or is about to.
func (h *helperReport) helps() bool { return h.Status.Activity != prefetch.Idle }

// line is the verdict in one line.
func (h *helperReport) line(now time.Time) string {
	state := "helps it already"
	switch h.Status.Activity {
	case prefetch.Idle:
		state = "looks after it already, and has nothing to do"
	case prefetch.Waiting:
		state = "looks after it already"
	}
	return visible.Line(fmt.Sprintf("prefetchd (process %d) %s, for %s: %s",
		h.PID, state, monitor.Ago(now, h.Began), h.Line(now)))
}
