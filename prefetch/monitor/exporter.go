package monitor

// This file answers Prometheus for all prefetchds of a machine.

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Exporter serves the metrics of all prefetchds of a machine, and takes nothing. Each scrape asks their sockets. It is
// an [http.Handler] for GET /metrics, and may be used concurrently. The rest of its paths are not found.
type Exporter struct {
	dir   string
	log   *slog.Logger
	turns chan struct{} // of the scrapes that may ask at the same time
}

// maxScrapes bounds the scrapes that ask at the same time. More than these are refused.
const maxScrapes = 4

// NewExporter returns an exporter of the prefetchds whose sockets are in a directory ([Dir]).
func NewExporter(dir string, log *slog.Logger) *Exporter {
	return &Exporter{dir: dir, log: log, turns: make(chan struct{}, maxScrapes)}
}

// NewHTTPServer returns an HTTP server of the exporter, whose listener the caller makes. Clients that are slow, or send
// much, are cut off.
func (e *Exporter) NewHTTPServer() *http.Server {
	return &http.Server{
		Handler: e, ErrorLog: slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
		ReadTimeout: timeout, WriteTimeout: 2 * timeout, IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 13,
	}
}

// ServeHTTP answers a scrape.
func (e *Exporter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != "/metrics":
		http.Error(w, "ask for /metrics", http.StatusNotFound)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "metrics can only be read", http.StatusMethodNotAllowed)
		return
	}
	select {
	case e.turns <- struct{}{}:
		defer func() { <-e.turns }()
	default:
		http.Error(w, "too many scrapes at the same time", http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	reports, err := List(ctx, e.dir)
	if err != nil {
		e.log.Warn("some prefetchds could not be asked", "why", err)
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	if WriteMetrics(w, reports...) == nil {
		_ = writeMachine(w, reports, err == nil) // it fails if the client has gone
	}
}

// machineMetric is a metric of a machine, and not of a target.
type machineMetric struct {
	name, help string
	samples    func(reports []Report, complete bool) []machineSample
}

// machineSample is a value of a machine's metric.
type machineSample struct {
	labels string // with braces; "" if there are none
	value  int
}

// machineMetrics are what an exporter adds. All are gauges.
var machineMetrics = []machineMetric{
	{
		"tensorcast_exporter_prefetchds", "Prefetchds that answered: they help a target, or look for targets.",
		func(reports []Report, _ bool) []machineSample {
			searches := 0
			for i := range reports {
				if reports[i].Target == 0 {
					searches++
				}
			}
			return []machineSample{{`{role="help"}`, len(reports) - searches}, {`{role="search"}`, searches}}
		},
	},
	{
		"tensorcast_exporter_waiting_targets", "Processes that wait until a prefetchd is free for them.",
		func(reports []Report, _ bool) []machineSample {
			n := 0
			for i := range reports {
				if s := reports[i].Search; s != nil {
					n += len(s.Waiting)
				}
			}
			return []machineSample{{"", n}}
		},
	},
	{
		"tensorcast_exporter_complete", "1 if all prefetchds could be asked, 0 if some could not.",
		func(_ []Report, complete bool) []machineSample {
			if complete {
				return []machineSample{{"", 1}}
			}
			return []machineSample{{"", 0}}
		},
	},
}

// writeMachine writes the metrics of the machine in Prometheus's text format.
func writeMachine(w io.Writer, reports []Report, complete bool) error {
	var text strings.Builder
	for _, m := range machineMetrics {
		fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s gauge\n", m.name, m.help, m.name)
		for _, s := range m.samples(reports, complete) {
			fmt.Fprintf(&text, "%s%s %d\n", m.name, s.labels, s.value)
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// MetricNames lists the metrics that an [Exporter] serves, for those who check rules and dashboards. What is not known
// of a target is left out when it is served.
func MetricNames() (names []string) {
	for _, m := range metricsOf(&Report{}) {
		if !slices.Contains(names, m.name) {
			names = append(names, m.name)
		}
	}
	for _, m := range machineMetrics {
		names = append(names, m.name)
	}
	return names
}
