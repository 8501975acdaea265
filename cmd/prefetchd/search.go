package main

// This file tells what prefetchd looks for while it has no target itself: on its terminal, and to
// `prefetchd status`.

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"tensorcast/prefetch/monitor"
	"tensorcast/processes"
)

// search is what is looked for, and whoever is told of it.
type search struct {
	ctx    context.Context // bounds questions to helpers
	dir    string          // of the sockets; empty: there are none
	live   *live
	server *monitor.Server // nil: nobody can ask
	disk   monitor.Disk    // what the line says of the disk of the only target

	mu     sync.Mutex // guards report, which the line's goroutine reads
	report monitor.Report
}

// beginSearch begins to tell what is looked for. The caller must call close.
func beginSearch(ctx context.Context, what monitor.Search, live *live, dir string, log *slog.Logger) *search {
	what.Names = append([]string{}, what.Names...) // in JSON [] instead of null
	what.Helped, what.Waiting = []monitor.Process{}, []monitor.Process{}
	s := &search{ctx: ctx, dir: dir, live: live, report: monitor.Report{Began: time.Now(), Search: &what}}
	if dir != "" {
		var err error
		if s.server, err = monitor.ListenSearch(dir, what, log); err != nil {
			log.Info("prefetchd status will not tell of this", "why", err)
		}
	}
	live.say(s.line)
	live.announce("waiting for " + what.Wanted())
	return s
}

// set says who is helped and who waits from now on.
func (s *search) set(helped, waiting []processes.Candidate) {
	s.mu.Lock()
	what := *s.report.Search
	what.Helped, what.Waiting = processesOf(helped), processesOf(waiting)
	s.report.Search = &what
	report := s.report
	s.mu.Unlock()
	if s.server != nil {
		s.server.SetReport(report)
	}
	s.live.redraw()
}

// rename says that processes with other names are looked for from now on.
func (s *search) rename(names []string) {
	s.mu.Lock()
	what := *s.report.Search
	what.Names = append([]string{}, names...) // in JSON [] instead of null
	s.report.Search = &what
	report := s.report
	s.mu.Unlock()
	if s.server != nil {
		s.server.SetReport(report)
	}
}

func processesOf(all []processes.Candidate) []monitor.Process {
	list := make([]monitor.Process, len(all))
	for i, c := range all {
		list[i] = monitor.Process{PID: c.PID, Name: c.Name}
	}
	return list
}

// line is what the terminal's line says. A single target's own report is more interesting than that it is helped.
func (s *search) line(now time.Time) string {
	s.mu.Lock()
	report := s.report
	s.mu.Unlock()
	if helped := report.Search.Helped; len(helped) == 1 && len(report.Search.Waiting) == 0 && s.dir != "" {
		if of, err := monitor.Ask(s.ctx, s.dir, helped[0].PID); err == nil {
			return fmt.Sprintf("%d %s: %s", helped[0].PID, helped[0].Name, of.Brief(now, s.disk.Read(&of, now)))
		}
	}
	return report.Line(now)
}

// close ends it. What is looked for is not said any more.
func (s *search) close() error {
	s.live.say(nil)
	if s.server == nil {
		return nil
	}
	return s.server.Close()
}
