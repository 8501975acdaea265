package monitor

// This file tests the exporter.

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/prefetch"
)

// scrape asks an exporter.
func scrape(t *testing.T, e *Exporter, method, path string) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader("")))
	return w.Result()
}

// body is the text of an answer.
func body(t *testing.T, r *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The exporter serves what all prefetchds of a machine serve, and how many there are. Where one does not answer as
// prefetchd does, it says so, and serves the others. It serves nothing else.
func TestExporter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	e := NewExporter(dir, slog.New(slog.NewTextHandler(t.Output(), nil)))
	names := regexp.MustCompile(`,(command|unit|model)="[^"]*"`) // of this machine's processes
	has := func(want ...string) {
		t.Helper()
		r := scrape(t, e, http.MethodGet, "/metrics")
		text := body(t, r)
		if kind := r.Header.Get("Content-Type"); r.StatusCode != http.StatusOK || kind != "text/plain; version=0.0.4" {
			t.Errorf("status %d, type %s; want 200 and Prometheus's text format", r.StatusCode, kind)
		}
		for _, line := range want {
			if !strings.Contains("\n"+names.ReplaceAllString(text, ""), "\n"+line+"\n") {
				t.Errorf("there is no line %s in\n%s", line, text)
			}
		}
	}
	has(`tensorcast_exporter_prefetchds{role="help"} 0`, `tensorcast_exporter_prefetchds{role="search"} 0`,
		`tensorcast_exporter_waiting_targets 0`, `tensorcast_exporter_complete 1`)
	for _, target := range []int{1, os.Getpid()} {
		s := listen(t, dir, target)
		defer s.Close()
		s.SetReport(Report{Status: prefetch.Status{Activity: prefetch.Helping, Held: int64(target), Now: 12.5}})
	}
	search, err := ListenSearch(dir, Search{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer search.Close()
	search.SetReport(Report{Search: &Search{Waiting: []Process{{1, "a"}, {2, "b"}}}})
	all := []string{
		`tensorcast_prefetchd_kept_bytes{target_pid="1"} 1`, `tensorcast_prefetchd_tokens_per_second{target_pid="1"} 12.5`,
		`tensorcast_exporter_prefetchds{role="help"} 2`, `tensorcast_exporter_prefetchds{role="search"} 1`,
		`tensorcast_exporter_waiting_targets 2`,
	}
	has(append(all, `tensorcast_exporter_complete 1`)...)
	l, err := net.Listen("unix", filepath.Join(dir, "2.sock"))
	if err != nil {
		t.Fatal(err)
	}
	nonsense := http.Server{Handler: http.NotFoundHandler()}
	served := make(chan error)
	go func() { served <- nonsense.Serve(l) }()
	defer func() { nonsense.Close(); <-served }()
	has(append(all, `tensorcast_exporter_complete 0`)...)

	for _, tt := range []struct {
		method, path string
		want         int
	}{
		{http.MethodHead, "/metrics", http.StatusOK},
		{http.MethodPut, "/metrics", http.StatusMethodNotAllowed},
		{http.MethodPut, "/budget", http.StatusNotFound},
		{http.MethodGet, "/status", http.StatusNotFound},
		{http.MethodGet, "/", http.StatusNotFound},
	} {
		if r := scrape(t, e, tt.method, tt.path); r.StatusCode != tt.want {
			t.Errorf("%s %s: status %d, want %d", tt.method, tt.path, r.StatusCode, tt.want)
		}
	}
	for range maxScrapes {
		e.turns <- struct{}{}
	}
	if r := scrape(t, e, http.MethodGet, "/metrics"); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("more scrapes than may ask: status %d, want %d", r.StatusCode, http.StatusServiceUnavailable)
	}
}

// MetricNames has each metric that is served once.
func TestMetricNames(t *testing.T) {
	var text strings.Builder
	r := Report{Target: 1, Began: time.Now()}
	r.Status = prefetch.Status{Activity: prefetch.Helping, Now: 1, Before: 1, Bound: 1}
	if err := WriteMetrics(&text, r); err != nil {
		t.Fatal(err)
	}
	if err := writeMachine(&text, []Report{r}, true); err != nil {
		t.Fatal(err)
	}
	var served []string
	for line := range strings.Lines(text.String()) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ = strings.Cut(name, " ")
			served = append(served, name)
		}
	}
	if names := MetricNames(); !slices.Equal(names, served) || len(names) < 15 {
		t.Errorf("names %q, served are %q; want the same", names, served)
	}
}
