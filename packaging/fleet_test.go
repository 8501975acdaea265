package packaging_test

// This file tests what Prometheus and Grafana are given: their files are what the programs take, and go by metrics that
// exist.

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/prefetch"
	"tensorcast/prefetch/monitor"
)

// dashboard is what these tests look at of Grafana's dashboard.
type dashboard struct {
	UID    string
	Panels []struct {
		ID          int
		Type        string
		Title       string
		Description string
		GridPos     struct{ X, Y, W, H int }
		FieldConfig struct{ Defaults struct{ Unit string } }
		Targets     []struct{ RefID, Expr string }
	}
	Templating struct {
		List []struct{ Name, Definition string }
	}
	Annotations struct {
		List []struct{ Expr string }
	}
}

// readDashboard reads the dashboard.
func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile("grafana/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// expressions are those of the dashboard, with Grafana's variables replaced as Grafana does.
func (d *dashboard) expressions() (all []string) {
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	for _, a := range d.Annotations.List {
		all = append(all, a.Expr)
	}
	for i := range all {
		all[i] = strings.NewReplacer("$job", "prefetchd", "$instance", "one|two").Replace(all[i])
	}
	return all
}

var (
	series = regexp.MustCompile(`[a-z_]+:tensorcast_\w+:\w+|\btensorcast_\w+`)
	record = regexp.MustCompile(`(?m)^ *- record: (\S+)$`)
	alert  = regexp.MustCompile(`(?m)^ *- alert: (\S+)$`)
	phase  = regexp.MustCompile(`phase="([^"]*)"`)
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Rules, alerts and the dashboard name metrics that prefetchd serves, phases that it has, and rules that are recorded.
func TestMetricsExist(t *testing.T) {
	known := monitor.MetricNames()
	for _, m := range record.FindAllStringSubmatch(read(t, "prometheus/rules.yaml"), -1) {
		if !series.MatchString(m[1]) {
			t.Errorf("the rule %s has no name of the form level:metric:operation", m[1])
		}
		known = append(known, m[1])
	}
	if len(known) < 30 {
		t.Fatalf("%d metrics and rules, want at least 30: this test does not find them", len(known))
	}
	phases := []string{}
	for _, a := range []prefetch.Activity{
		prefetch.Waiting, prefetch.Comparing, prefetch.Helping, prefetch.Giving, prefetch.Idle,
	} {
		phases = append(phases, string(a))
	}
	d := readDashboard(t)
	definitions := []string{}
	for _, v := range d.Templating.List {
		definitions = append(definitions, v.Definition)
	}
	for name, text := range map[string]string{
		"rules.yaml": read(t, "prometheus/rules.yaml"), "alerts.yaml": read(t, "prometheus/alerts.yaml"),
		"tests.yaml":     read(t, "prometheus/tests.yaml"),
		"dashboard.json": strings.Join(append(d.expressions(), definitions...), "\n"),
	} {
		used := series.FindAllString(text, -1)
		if len(used) < 5 {
			t.Errorf("%s names %d metrics, want at least 5: this test does not find them", name, len(used))
		}
		for _, one := range used {
			if !slices.Contains(known, one) {
				t.Errorf("%s names %s, which is no metric and no rule", name, one)
			}
		}
		for _, m := range phase.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(phases, m[1]) {
				t.Errorf("%s names the phase %q, want one of %q", name, m[1], phases)
			}
		}
	}
}

// The panels do not overlap, and say what they show and in which unit. They go by the machines that were chosen.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	if len(d.Panels) < 10 || d.UID == "" {
		t.Fatalf("%d panels and uid %q, want at least 10 and one", len(d.Panels), d.UID)
	}
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s has the id of another panel", p.Title)
		}
		ids[p.ID] = true
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("the panel %q lacks a title, a description, a unit or a query", p.Title)
		}
		if g := p.GridPos; g.X < 0 || g.W < 1 || g.H < 1 || g.X+g.W > 24 {
			t.Errorf("%s is at %+v, want a place within 24 columns", p.Title, g)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, ok := taken[at]; ok && other != p.Title {
					t.Fatalf("%s and %s overlap", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
		for _, target := range p.Targets {
			if strings.Count(target.Expr, "$instance") != len(series.FindAllString(target.Expr, -1)) &&
				!strings.Contains(target.Expr, "up{") {
				t.Errorf("%s: not each series of %s is of the machines that were chosen", p.Title, target.Expr)
			}
		}
	}
}

// promtool returns a function that runs promtool in a copy of the directory of the rules.
func promtool(t *testing.T) func(dir string, args ...string) (out string, err error) {
	t.Helper()
	programs := llamatest.Get(t, llama.Prometheus)
	return func(dir string, args ...string) (string, error) {
		cmd := exec.Command(filepath.Join(programs, "promtool"), args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// copyRules copies the directory of the rules, with a text replaced in one of its files.
func copyRules(t *testing.T, file, old, replacement string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	files, err := filepath.Glob("prometheus/*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatalf("%q, %v; want 4 files", files, err)
	}
	for _, path := range files {
		text := read(t, path)
		if filepath.Base(path) == file {
			if !strings.Contains(text, old) {
				t.Fatalf("%s does not have %q", file, old)
			}
			text = strings.Replace(text, old, replacement, 1)
		}
		write(t, filepath.Join(dir, filepath.Base(path)), text)
	}
	return dir
}

// Prometheus' own tool accepts the example of a configuration and the rules, and the rules pass their tests. The tests
// notice when a rule is not what it was.
func TestRules(t *testing.T) {
	run := promtool(t)
	for _, args := range [][]string{
		{"check", "config", "prometheus.yaml"},
		{"check", "rules", "rules.yaml", "alerts.yaml"},
		{"test", "rules", "tests.yaml"},
	} {
		if out, err := run("prometheus", args...); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	for _, wrong := range [][3]string{
		{"rules.yaml", "tokens_per_second / tensorcast_prefetchd_tokens_per_second_before", "tokens_per_second"},
		{"rules.yaml", "(tensorcast_prefetchd_wanted_bytes > 0)", "tensorcast_prefetchd_wanted_bytes"},
		{"rules.yaml", "0.5, target", "0.9, target"},
		{"alerts.yaml", `up{job="prefetchd"}`, `up`},
		{"alerts.yaml", "< 0.95", "< 0.05"},
		{"alerts.yaml", "== 0\n        for: 5m", "== 0\n        for: 25m"},
		{"alerts.yaml", `phase="idle"`, `phase="helping"`},
		{"alerts.yaml", "> 500e6", "> 5e6"},
	} {
		if out, err := run(copyRules(t, wrong[0], wrong[1], wrong[2]), "test", "rules", "tests.yaml"); err == nil {
			t.Errorf("with %q instead of %q the tests of the rules pass:\n%s", wrong[2], wrong[1], out)
		}
	}
	// Each alert is tested: it has a time at which it fires.
	tests := read(t, "prometheus/tests.yaml")
	for _, m := range alert.FindAllStringSubmatch(read(t, "prometheus/alerts.yaml"), -1) {
		fires := regexp.MustCompile(`alertname: ` + m[1] + `\n +eval_time: \w+\n +exp_alerts:`)
		if !fires.MatchString(tests) {
			t.Errorf("no test has %s fire", m[1])
		}
	}
}

// Prometheus' own tool accepts the dashboard's expressions.
func TestDashboardExpressions(t *testing.T) {
	run := promtool(t)
	d := readDashboard(t)
	rules := "groups:\n  - name: dashboard\n    rules:\n"
	for i, expr := range d.expressions() {
		rules += fmt.Sprintf("      - record: dashboard:panel:%d\n        expr: %q\n", i, expr)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "dashboard.yaml"), rules)
	if out, err := run(dir, "check", "rules", "dashboard.yaml"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Who gets an alert finds what to do.
func TestAlertsAreExplained(t *testing.T) {
	alerts := alert.FindAllStringSubmatch(read(t, "prometheus/alerts.yaml"), -1)
	page := read(t, "../docs/fleet.md")
	if len(alerts) < 10 {
		t.Fatalf("%d alerts, want at least 10: this test does not find them", len(alerts))
	}
	for _, m := range alerts {
		if !strings.Contains(page, "\n| `"+m[1]+"` | ") {
			t.Errorf("docs/fleet.md has no row for the alert %s", m[1])
		}
	}
}
