package top

// This file has what was seen of the prefetchds over time.

import (
	"cmp"
	"slices"
	"time"

	"tensorcast/internal/visible"
	"tensorcast/prefetch"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/monitor"
)

// goneTime is how long a prefetchd that has ended is still shown, unless it is the one that is looked at.
const goneTime = time.Minute

// watched is a prefetchd as it was seen last.
type watched struct {
	report monitor.Report
	at     time.Time // when it said so
	help   rate      // read from disk for help
	faults rate      // read from disk by the target's own faults

	silent bool      // it did not answer last time
	gone   time.Time // when it was not there any more; zero: it is there
	killed bool      // its socket is left, so it did not end by itself
}

// rate is bytes per second between two reports.
type rate struct {
	perSecond float64
	known     bool
}

// newRate is the rate between two numbers of bytes that were read, negative ones of which are not known.
func newRate(before, now int64, passed time.Duration) rate {
	if before < 0 || now < before || passed <= 0 {
		return rate{}
	}
	return rate{float64(now-before) / passed.Seconds(), true}
}

// is says whether this is the prefetchd that a report comes from.
func (w *watched) is(r *monitor.Report) bool {
	return w.report.PID == r.PID && w.report.Target == r.Target && w.report.Began.Equal(r.Began)
}

// update takes a newer report.
func (w *watched) update(r monitor.Report, at time.Time) {
	passed := at.Sub(w.at)
	w.help = newRate(w.report.OwnRead, r.OwnRead, passed)
	w.faults = newRate(w.report.TargetRead, r.TargetRead, passed)
	w.report, w.at, w.silent, w.gone = r, at, false, time.Time{}
}

// fleet is all that were seen, in the order of their targets. Those that look for targets come last.
type fleet []*watched

// update takes a survey.
func (f fleet) update(s monitor.Survey, now time.Time, selected *watched) fleet {
	there := map[*watched]bool{}
	for _, r := range s.Reports {
		r = clean(r)
		i := slices.IndexFunc(f, func(w *watched) bool { return w.is(&r) })
		if i >= 0 {
			f[i].update(r, now)
			there[f[i]] = true
			continue
		}
		w := &watched{report: r, at: now}
		there[w] = true
		f = append(f, w)
	}
	for _, w := range f {
		target := w.report.Target
		switch {
		case there[w] || !w.gone.IsZero():
		case target != 0 && slices.Contains(s.Silent, target):
			w.silent = true
		default:
			w.gone, w.killed, w.silent = now, target != 0 && slices.Contains(s.Left, target), false
		}
	}
	f = slices.DeleteFunc(f, func(w *watched) bool {
		replaced := func(other *watched) bool {
			return other != w && other.gone.IsZero() && w.report.Target != 0 && other.report.Target == w.report.Target
		}
		return !w.gone.IsZero() &&
			(w != selected && now.Sub(w.gone) > goneTime || slices.ContainsFunc(f, replaced))
	})
	slices.SortStableFunc(f, compare)
	return f
}

// compare orders prefetchds by their targets. Those without one come last.
func compare(a, b *watched) int {
	if (a.report.Target == 0) != (b.report.Target == 0) {
		return cmp.Compare(b.report.Target, a.report.Target)
	}
	return cmp.Or(cmp.Compare(a.report.Target, b.report.Target), cmp.Compare(a.report.PID, b.report.PID))
}

// clean makes of a report one whose texts control no terminal, and whose lists have the lengths that they should.
func clean(r monitor.Report) monitor.Report {
	r.Command = visible.Line(r.Command)
	r.Status.Why, r.Status.Level = visible.Line(r.Status.Why), visible.Line(r.Status.Level)
	r.Status.Activity = prefetch.Activity(visible.Line(string(r.Status.Activity)))
	r.Status.LoopPhase = prefetch.Phase(visible.Line(string(r.Status.LoopPhase)))
	if r.Search != nil {
		s := *r.Search
		s.Names = slices.Clone(s.Names)
		for i := range s.Names {
			s.Names[i] = visible.Line(s.Names[i])
		}
		s.Helped, s.Waiting = cleanNames(s.Helped), cleanNames(s.Waiting)
		r.Search = &s
	}
	r.Models = slices.Clone(r.Models)
	for i := range r.Models {
		r.Models[i] = visible.Line(r.Models[i])
	}
	if r.Detail != nil {
		d := *r.Detail
		d.Bound = visible.Line(d.Bound)
		d.Happenings = slices.Clone(d.Happenings)
		for i := range d.Happenings {
			d.Happenings[i].What = visible.Line(d.Happenings[i].What)
		}
		if !isStrip(d.Strip) {
			d.Strip = nil
		}
		if !isHeat(d.Experts) {
			d.Experts = nil
		}
		r.Detail = &d
	}
	return r
}

func cleanNames(all []monitor.Process) []monitor.Process {
	all = slices.Clone(all)
	for i := range all {
		all[i].Name = visible.Line(all[i].Name)
	}
	return all
}

// isStrip says whether a strip can be drawn.
func isStrip(s *prefetch.Strip) bool {
	return s != nil && s.Bytes > 0 && s.Cell > 0 && len(s.Used) > 0 &&
		len(s.Kept) == len(s.Used) && len(s.Ahead) == len(s.Used)
}

// isHeat says whether a picture of experts can be drawn.
func isHeat(h *mixture.Heat) bool {
	return h != nil && h.Rows > 0 && h.Columns > 0 && h.Rows <= len(h.Use) && h.Columns <= len(h.Use) &&
		h.Rows*h.Columns == len(h.Use) && len(h.Kept) == len(h.Use)
}
