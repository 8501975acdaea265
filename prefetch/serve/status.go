package serve

// This file reports what is being done, to the caller and to whoever asks at the socket.

import (
	"time"

	"tensorcast/prefetch"
	"tensorcast/prefetch/monitor"
)

// reportInterval is how often the status is reported at most.
const reportInterval = 250 * time.Millisecond

// statusReporter passes the controller's status on.
type statusReporter struct {
	tell       func(prefetch.Status) // nil: nobody is told
	monitor    *monitor.Server       // nil: nobody can ask
	reportedAt time.Time
}

// open begins to answer at the socket, if there is to be one. setBudget is called when somebody sets the budget, by
// any goroutine.
func (r *statusReporter) open(o *Options, setBudget func(bytes int64)) {
	r.tell = o.OnStatus
	if o.SocketDir == "" || o.Dry {
		return
	}
	m, err := monitor.Listen(o.SocketDir, o.PID, setBudget, o.Log)
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

// report passes the status on. Unless it must be now, it does nothing within reportInterval after the last report.
func (r *statusReporter) report(c *prefetch.Controller, now bool) {
	if r.tell == nil && r.monitor == nil || !now && time.Since(r.reportedAt) < reportInterval {
		return
	}
	r.reportedAt = time.Now()
	status := c.Status()
	if r.tell != nil {
		r.tell(status)
	}
	if r.monitor != nil {
		r.monitor.SetStatus(status)
	}
}
