package monitor

// This file says what a prefetchd does in words, for the line on its terminal and for `prefetchd status`.

import (
	"fmt"
	"strings"
	"time"

	"tensorcast/prefetch"
)

// Line says in one line what a prefetchd does. What matters most comes first, because a narrow terminal cuts the
// end. Names and paths in it are as others chose them.
func (r *Report) Line(now time.Time) string {
	s := r.Status
	switch {
	case r.Search != nil:
		return r.Search.line(now, r.Began)
	case s.Activity == prefetch.Waiting:
		return s.String() + ", for " + Ago(now, s.Since)
	case s.LoopPhase == prefetch.Load:
		return "reading the model ahead of the target, which loads it; " + s.Work()
	case s.Activity == prefetch.Idle || r.IdleSince.IsZero():
		return s.String()
	}
	line := "target idle since " + Since(now, r.IdleSince)
	if speed := s.Speed(); speed != "" {
		line += "; last " + speed
	}
	s.Now, s.Early = 0, 0 // nothing is streamed now
	return line + "; " + s.Work()
}

// Wanted says in words which processes are looked for.
func (s *Search) Wanted() string {
	switch {
	case len(s.Names) > 0:
		return strings.Join(s.Names, " or ")
	case s.All:
		return "processes that compute with ggml"
	}
	return "a process that computes with ggml"
}

// line says what is looked for, and what came of it.
func (s *Search) line(now, began time.Time) string {
	what := s.Wanted()
	if len(s.Helped) == 0 {
		return fmt.Sprintf("waiting for %s, for %s", what, Ago(now, began))
	}
	line := "helping " + processes(s.Helped)
	if len(s.Waiting) > 0 {
		line += fmt.Sprintf("; waiting for their turn: %s", processes(s.Waiting))
	}
	return line + "; looking for " + what
}

// processes lists processes by number and name.
func processes(all []Process) string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = fmt.Sprintf("%d %s", p.PID, p.Name)
	}
	return strings.Join(texts, ", ")
}

// Describe describes a prefetchd in a few lines: whom it helps, what it does, with which model, and since when.
func (r *Report) Describe(now time.Time) []string {
	if r.Search != nil {
		way := "--wait"
		if r.Search.All {
			way = "--auto"
		}
		return []string{fmt.Sprintf("prefetchd %s (process %d): %s", way, r.PID, r.Line(now))}
	}
	lines := []string{fmt.Sprintf("%d %s, for %s: %s", r.Target, r.Command, Ago(now, r.Began), r.Line(now))}
	model := "no model is mapped"
	if len(r.Models) > 0 {
		model = "model " + r.Models[0]
	}
	if n := len(r.Models) - 1; n > 0 {
		model += fmt.Sprintf(" and %d more", n)
	}
	if phase := r.Status.LoopPhase; phase != "" { // an older prefetchd does not report it
		model += fmt.Sprintf("; phase %s since %s", phase, Since(now, r.Status.Since))
	}
	lines = append(lines, "    "+model)
	if hot := r.Status.Hot; hot != nil && hot.Experts > 0 {
		lines = append(lines, "    "+hot.String())
	}
	return lines
}

// Since says since when something is so, and for how long: "14:05:07 (12s)".
func Since(now, at time.Time) string {
	format := time.TimeOnly
	if now.Sub(at) >= 24*time.Hour {
		format = time.DateTime
	}
	return fmt.Sprintf("%s (%s)", at.Local().Format(format), Ago(now, at))
}

// Ago says how long ago something was, in whole seconds.
func Ago(now, at time.Time) string {
	return max(now.Sub(at), 0).Truncate(time.Second).String()
}
