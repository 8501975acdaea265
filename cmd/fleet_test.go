package cmd_test

// This file asks the prefetchds of three machines as a fleet's Prometheus does.

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch"
	"tensorcast/prefetch/monitor"
)

// servedAt matches the line of the exporter that says where it listens.
var servedAt = regexp.MustCompile(`at=http://(127\.0\.0\.1:\d+)/metrics`)

// startExporter starts `prefetchd exporter` for a machine, and returns its address. In the end it is interrupted, and
// has to end without an error.
func startExporter(t *testing.T, runDir string) (address string) {
	t.Helper()
	cmd := exec.Command(bin["prefetchd"], "exporter", "--listen", "127.0.0.1:0", "--run-dir", runDir)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
			t.Errorf("the exporter ended with %v, want no error", err)
		}
	})
	line, err := bufio.NewReader(stderr).ReadString('\n')
	found := servedAt.FindStringSubmatch(line)
	if err != nil || found == nil {
		t.Fatalf("the exporter says %q, %v; want where it listens", line, err)
	}
	return found[1]
}

// startMachine starts what stands for a prefetchd that helps a target, and an exporter beside it.
func startMachine(t *testing.T, status prefetch.Status) (address string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	s, err := monitor.Listen(dir, os.Getpid(), monitor.Controls{}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	s.SetReport(monitor.Report{Status: status})
	return startExporter(t, dir)
}

// prometheus is a running Prometheus.
type prometheus struct{ url string }

// startPrometheus starts Prometheus with the example of a configuration, which asks these addresses each second.
func startPrometheus(t *testing.T, programs string, targets []string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	rules := filepath.Join("..", "packaging", "prometheus")
	config, err := os.ReadFile(filepath.Join(rules, "prometheus.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rules, err = filepath.Abs(rules)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(
		"_interval: 15s", "_interval: 1s",
		"- localhost:9977", "- "+strings.Join(targets, "\n          - "),
		"- rules.yaml", "- "+rules+"/rules.yaml", "- alerts.yaml", "- "+rules+"/alerts.yaml",
	).Replace(string(config))
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // Prometheus does not say which port it has chosen
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(programs, "prometheus"), "--config.file="+file, "--log.level=warn",
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // it may be told to end before it has begun
	})
	return &prometheus{"http://" + address}
}

// query returns the value of an expression for each instance. It is empty while Prometheus starts.
func (p *prometheus) query(t *testing.T, expression string) map[string]string {
	t.Helper()
	r, err := http.Get(p.url + "/api/v1/query?query=" + url.QueryEscape(expression))
	if err != nil {
		return nil
	}
	defer r.Body.Close()
	if r.StatusCode == http.StatusServiceUnavailable {
		return nil
	}
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric struct{ Instance string }
				Value  [2]any
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %s, %v", expression, r.StatusCode, answer.Error, err)
	}
	all := map[string]string{}
	for _, one := range answer.Data.Result {
		all[one.Metric.Instance] = fmt.Sprint(one.Value[1])
	}
	return all
}

// Prometheus asks the prefetchds of three machines with the configuration, the rules and the alerts that are in the
// repository, and computes what they gain.
func TestFleet(t *testing.T) {
	programs := llamatest.Get(t, llama.Prometheus)
	status := func(now, before float64) prefetch.Status {
		return prefetch.Status{
			Activity: prefetch.Helping, Held: 6e8, Wanted: 8e8, PerToken: 8e8, Streamed: 2e8,
			Now: now, Before: before, Bound: 2 * now, Tokens: 100,
		}
	}
	targets := []string{
		startMachine(t, status(12, 1.5)), startMachine(t, status(5, 2)),
		startMachine(t, prefetch.Status{Activity: prefetch.Idle, Why: "everything fits"}),
	}

	// What is served is what Prometheus' own tool takes for metrics.
	r, err := http.Get("http://" + targets[0] + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	check := exec.Command(filepath.Join(programs, "promtool"), "check", "metrics")
	check.Stdin = r.Body
	if out, err := check.CombinedOutput(); err != nil && !isAboutUnits(string(out)) {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}

	p := startPrometheus(t, programs, targets)
	testenv.WaitFor(t, "Prometheus to ask all three machines", func() bool {
		time.Sleep(200 * time.Millisecond)
		return len(p.query(t, `up{job="prefetchd"} == 1`)) == 3 &&
			len(p.query(t, "target:tensorcast_prefetchd_gain:ratio")) == 2 &&
			len(p.query(t, "instance:tensorcast_prefetchd_kept_bytes:sum")) == 3
	})
	for expression, want := range map[string][]string{
		"target:tensorcast_prefetchd_gain:ratio":                         {"8", "2.5", ""},
		"target:tensorcast_prefetchd_possible:ratio":                     {"0.5", "0.5", ""},
		"target:tensorcast_prefetchd_kept:ratio":                         {"0.75", "0.75", ""},
		"instance:tensorcast_prefetchd_kept_bytes:sum":                   {"600000000", "600000000", "0"},
		"target:tensorcast_prefetchd_streamed:bytes_per_second":          {"2400000000", "1000000000", ""},
		`tensorcast_prefetchd_phase{phase="idle"}`:                       {"0", "0", "1"},
		`tensorcast_exporter_prefetchds{role="help"}`:                    {"1", "1", "1"},
		`ALERTS{alertname="PrefetchdUnreachable", alertstate="pending"}`: {"", "", ""},
	} {
		got := p.query(t, expression)
		for i, target := range targets {
			if got[target] != want[i] {
				t.Errorf("%s of machine %d is %q, want %q", expression, i+1, got[target], want[i])
			}
		}
	}
}

// isAboutUnits says whether promtool finds nothing but units that it would name differently. The names are a contract.
func isAboutUnits(complaints string) bool {
	for line := range strings.Lines(complaints) {
		if !strings.Contains(line, "use base unit") && strings.TrimSpace(line) != "" {
			return false
		}
	}
	return true
}

// The flags with which the DaemonSet and its overlays start prefetchd exist.
func TestManifestFlags(t *testing.T) {
	var files []string
	for _, pattern := range []string{"base/daemonset.yaml", "overlays/*/daemonset.yaml"} {
		found, err := filepath.Glob(filepath.Join("..", "packaging", "kubernetes", pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %q, %v; want files", pattern, found, err)
		}
		files = append(files, found...)
	}
	help := helpTexts{}
	texts := help.of(t, []string{"prefetchd"}) + help.of(t, []string{"prefetchd", "exporter"})
	args, checked := regexp.MustCompile(`(?m)^ +args:\n((?: +- --.*\n)+)`), 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range args.FindAllStringSubmatch(string(data), -1) {
			for _, m := range regexp.MustCompile(`- (--[a-z-]+)`).FindAllStringSubmatch(block[1], -1) {
				checked++
				if !regexp.MustCompile(`(?m)^ .*` + m[1] + `\b`).MatchString(texts) {
					t.Errorf("%s starts prefetchd with %s, which it does not have", file, m[1])
				}
			}
		}
	}
	if checked < 6 {
		t.Errorf("%d flags were checked, want at least 6: this test does not find them", checked)
	}
}
