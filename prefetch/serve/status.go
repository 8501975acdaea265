package serve

// This file reports what is being done, to the caller and to whoever asks at the socket.

import (
	"os"
	"slices"
	"time"

	"tensorcast/event"
	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/monitor"
)

const (
	// reportInterval is how often the status is reported at most.
	reportInterval = 250 * time.Millisecond
	// detailInterval is how often a detail is made while somebody looks at it.
	detailInterval = time.Second
	// idleAfter is how long a target that has ended a decode is not called idle. A server's clients, and programs
	// between two prompts, pause for shorter than that.
	idleAfter = 3 * time.Second
	// stoppedAfter is the same for a target in the middle of a decode. A single op of a large prompt that waits for
	// the disk may take long.
	stoppedAfter = 30 * time.Second
	// modelsInterval is how often it is looked which models the target maps, while there are none.
	modelsInterval = 2 * time.Second
	// mostModels are named. A target may map as many files as it likes, but a report is bounded.
	mostModels = 100
)

// statusReporter passes on what the controller does, and what the target does.
type statusReporter struct {
	tell       func(monitor.Report) // nil: nobody is told
	monitor    *monitor.Server      // nil: nobody can ask
	report     monitor.Report       // as it was told last
	reportedAt time.Time

	models     func() (models.Model, error)
	tellModels func(paths []string) // is told of other models than before; nil: nobody is
	lookedAt   time.Time            // when the models were looked at

	// What is known of the target's decodes.
	heard    time.Time // of the last event of a decode, or since when they are observed; zero: they are not
	decoding bool      // that was an event, and not the end of a decode
}

// open begins to answer at the socket, if there is to be one. What somebody sets there is told to controls, by any
// goroutine.
func (r *statusReporter) open(o *Options, controls monitor.Controls) {
	r.tell, r.models = o.OnStatus, models.MappedBy(o.PID)
	r.report = monitor.Report{PID: os.Getpid(), Target: o.PID, Began: time.Now()}
	if o.SocketDir == "" || o.Dry {
		return
	}
	m, err := monitor.Listen(o.SocketDir, o.PID, controls, o.Log)
	if err != nil {
		o.Log.Info("prefetchd status will not tell of this", "why", err)
		return
	}
	r.monitor = m
}

func (r *statusReporter) close() error {
	if r.monitor == nil {
		return nil
	}
	return r.monitor.Close()
}

// note takes notice of an event of the target.
func (r *statusReporter) note(ev event.Event) {
	switch ev.(type) {
	case event.DecodeBegin, *event.Op:
		r.decoding = true
	case event.DecodeEnd:
		r.decoding = false
	default:
		return
	}
	r.heard = time.Now()
}

// beginObserving is called when the target's events come from now on.
func (r *statusReporter) beginObserving() { r.heard, r.decoding = time.Now(), false }

// forgetTarget is called when the target is not observed any more: then it is not known whether it is idle.
func (r *statusReporter) forgetTarget() { r.heard, r.decoding = time.Time{}, false }

// idleSince is when the target stopped computing; zero if it computes, or if that is not known.
func (r *statusReporter) idleSince(now time.Time) time.Time {
	after := idleAfter
	if r.decoding {
		after = stoppedAfter
	}
	if r.heard.IsZero() || now.Sub(r.heard) < after {
		return time.Time{}
	}
	return r.heard
}

// isDue says whether somebody is to be told now.
func (r *statusReporter) isDue() bool {
	return (r.tell != nil || r.monitor != nil || r.tellModels != nil) && time.Since(r.reportedAt) >= reportInterval
}

// pass passes on what a controller does. isLoaded says whether the target has loaded ggml, as far as is known.
func (r *statusReporter) pass(c *prefetch.Controller, isLoaded func() bool) {
	now := time.Now()
	r.reportedAt = now
	status := c.Status()
	if changed := status.LoopPhase != r.report.Status.LoopPhase; changed ||
		len(r.report.Models) == 0 && now.Sub(r.lookedAt) > modelsInterval {
		r.lookedAt = now
		r.lookAtModels()
	}
	if status.Activity == prefetch.Waiting {
		status.Why = r.awaited(isLoaded())
	}
	r.report.Status, r.report.IdleSince = status, r.idleSince(now)
	if r.tell != nil {
		r.tell(r.report)
	}
	if r.monitor != nil {
		r.monitor.SetReport(r.report)
		if r.monitor.WantsDetail(now, detailInterval) {
			detail := c.Detail()
			r.monitor.SetDetail(now, &detail)
		}
	}
}

// lookAtModels looks which models the target maps. If that cannot be found out now, the last answer stays.
func (r *statusReporter) lookAtModels() {
	found, err := r.models()
	if err != nil {
		return
	}
	named := found.Mapped[:min(len(found.Mapped), mostModels)]
	paths := make([]string, len(named)) // a new slice: others may still read the last one
	for i, m := range named {
		paths[i] = m.Path
	}
	if r.tellModels != nil && !slices.Equal(paths, r.report.Models) {
		r.tellModels(paths)
	}
	r.report.Models = paths
}

// awaited says what is waited for before anything is known of the target's reads.
func (r *statusReporter) awaited(loaded bool) string {
	switch {
	case !loaded:
		return "the target has not loaded ggml"
	case len(r.report.Models) == 0:
		return "the target maps no model"
	case r.decoding:
		return "the target computes; what its first tokens read is learned"
	}
	return "the target computes nothing; its next token is learned from"
}
