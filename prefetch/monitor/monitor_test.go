package monitor

// This file tests servers that run in its own process.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/outfile"
	"tensorcast/prefetch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listen starts a server for a target.
func listen(t *testing.T, dir string, target int) *Server {
	t.Helper()
	s, err := Listen(dir, target, Controls{}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// List asks each server for its latest status, in order. It leaves out servers that have ended, or were killed.
func TestList(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if all, err := List(t.Context(), dir); len(all) != 0 || err != nil {
		t.Errorf("without a directory: %v, %v; want none", all, err)
	}
	first, second := listen(t, dir, os.Getpid()), listen(t, dir, 1)
	defer first.Close()
	status := prefetch.Status{Activity: prefetch.Helping, Held: 5 << 20, PerToken: 7 << 20, Now: 12.5, Before: 1.5}
	first.SetReport(Report{Status: status})
	status.Activity, status.Held, status.Now = prefetch.Giving, 4<<20, 11.5
	first.SetReport(Report{Status: status})
	all, err := List(t.Context(), dir)
	if err != nil || len(all) != 2 {
		t.Fatalf("List = %+v, %v; want 2 reports", all, err)
	}
	if r := all[0]; r.Target != 1 || r.PID != os.Getpid() || r.Status.Activity != prefetch.Waiting || r.Command == "" {
		t.Errorf("first %+v, want one of target 1 that waits", r)
	}
	got := all[1]
	s := got.Status
	if got.Target != os.Getpid() || s.Activity != status.Activity || s.Now != status.Now || s.Held != status.Held {
		t.Errorf("second %+v, want status %+v of target %d", got, status, os.Getpid())
	}
	if got.Faults < 0 || got.OwnBytes <= 0 || got.TargetRead < 0 || got.OwnRead != got.TargetRead {
		t.Errorf("second %+v, want faults, own memory, and what this process has read", got)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	left, err := net.Listen("unix", filepath.Join(dir, "7.sock")) // of a killed prefetchd
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	if all, err = List(t.Context(), dir); err != nil || len(all) != 1 {
		t.Errorf("List = %+v, %v; want 1 report", all, err)
	}
	again := listen(t, dir, 7)
	if all, err = List(t.Context(), dir); err != nil || len(all) != 2 || all[0].Target != 7 && all[1].Target != 7 {
		t.Errorf("after another server has replaced a socket: %+v, %v; want 2 reports, one of target 7", all, err)
	}
	for own, want := range map[int]int{7: 1, 1 << 20: 2} { // a prefetchd does not ask itself
		all, err := ListOthers(t.Context(), dir, own)
		if err != nil || len(all) != want || slices.ContainsFunc(all, func(r Report) bool { return r.Target == own }) {
			t.Errorf("others than %d: %+v, %v, want %d", own, all, err, want)
		}
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if names, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(names) != 1 {
		t.Errorf("%v are left, want 1, %v", names, err)
	}
}

// One without a target is listed with what it looks for. It has no metrics, and takes no budget.
// Whoever ends while it is asked is left out: it is no error.
func TestEndsWhileAsked(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, socketName(7)))
	if err != nil {
		t.Fatal(err)
	}
	var closer sync.WaitGroup
	closer.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close() // as when a process ends: nothing was read
		}
	})
	for range 2000 {
		if reports, err := ListOthers(t.Context(), dir, 1); err != nil || len(reports) > 0 {
			t.Errorf("%v, %v; want nothing", reports, err)
			break
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	closer.Wait()
}

func TestSearch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s, err := ListenSearch(dir, Search{Names: []string{"llama-server"}, All: true}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	target := listen(t, dir, os.Getpid())
	defer target.Close()
	s.SetReport(Report{Search: &Search{
		Names: []string{"llama-server"}, All: true,
		Helped: []Process{{os.Getpid(), "llama-server"}}, Waiting: []Process{{1, "llama-server"}},
	}})
	all, err := List(t.Context(), dir)
	if err != nil || len(all) != 2 {
		t.Fatalf("List = %+v, %v; want 2 reports", all, err)
	}
	r := all[1]
	if r.Search == nil || r.PID != os.Getpid() || r.Target != 0 || len(r.Search.Helped) != 1 ||
		r.Search.Waiting[0].PID != 1 || !r.Search.All || all[0].Search != nil {
		t.Errorf("%+v with search %+v; want one that looks for processes, behind one with a target", r, r.Search)
	}
	var metrics strings.Builder
	if err := WriteMetrics(&metrics, all...); err != nil || strings.Contains(metrics.String(), `target_pid="0"`) ||
		!strings.Contains(metrics.String(), fmt.Sprintf("target_pid=%q", fmt.Sprint(os.Getpid()))) {
		t.Errorf("%v, metrics:\n%s\nwant those of the target only", err, metrics.String())
	}
	if r, err := Ask(t.Context(), dir, os.Getpid()); err != nil || r.Target != os.Getpid() {
		t.Errorf("Ask = %+v, %v", r, err)
	}
	if r, err := Ask(t.Context(), dir, 1); err == nil {
		t.Errorf("Ask for one that nobody helps = %+v, want an error", r)
	}
	socket := filepath.Join(dir, fmt.Sprintf("search-%d.sock", os.Getpid()))
	if err := request(t.Context(), socket, http.MethodPut, "/budget", strings.NewReader("1GB"), nil); err == nil {
		t.Error("one without a target takes a budget")
	}
}

// leaveSocket leaves a socket as a killed prefetchd does.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// Sockets that killed prefetchds have left are removed by the next server, by List, and by Sweep. A socket at which
// somebody listens stays, and so does what has another name or is no socket. Everything stays while somebody makes
// a socket, and in a directory of others.
func TestSweep(t *testing.T) {
	names := func(dir string) string {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, e := range entries {
			all = append(all, e.Name())
		}
		return strings.Join(all, " ")
	}
	for how, act := range map[string]func(dir string) error{
		"sweep": Sweep,
		"list": func(dir string) error {
			all, err := List(t.Context(), dir)
			if err == nil && len(all) != 1 {
				return fmt.Errorf("%d reports, want 1", len(all))
			}
			return err
		},
		"listen": func(dir string) error { return listen(t, dir, 3).Close() },
	} {
		dir := filepath.Join(t.TempDir(), "run")
		alive := listen(t, dir, 5)
		for _, name := range []string{"7.sock", "8.sock", "search-7.sock", "07.sock", "x.sock", "7.sock.old"} {
			leaveSocket(t, filepath.Join(dir, name))
		}
		if err := os.WriteFile(filepath.Join(dir, "9.sock"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("x.sock", filepath.Join(dir, "10.sock")); err != nil {
			t.Fatal(err)
		}
		const kept = "07.sock 10.sock 5.sock 7.sock.old 9.sock x.sock"
		if how == "list" { // which fails where it cannot ask
			for _, name := range []string{"9.sock", "10.sock"} {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := act(dir); err != nil {
			t.Errorf("%s: %v", how, err)
		}
		want := kept
		if how == "list" {
			want = "07.sock 5.sock 7.sock.old x.sock"
		}
		if got := names(dir); got != want {
			t.Errorf("%s: left are %s, want %s", how, got, want)
		}
		if err := alive.Close(); err != nil {
			t.Error(err)
		}
	}

	dir := filepath.Join(t.TempDir(), "run")
	if err := Sweep(dir); err != nil {
		t.Errorf("no directory: %v", err)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("Sweep has made the directory")
	}
	d, err := outfile.OpenDir(dir, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	leaveSocket(t, filepath.Join(dir, "7.sock"))
	if err := d.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(dir); err != nil || names(dir) != "7.sock" {
		t.Errorf("while another has the directory: %v, left are %q, want 7.sock", err, names(dir))
	}
	d.Close()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(dir); err != nil || names(dir) != "7.sock" {
		t.Errorf("where anybody can write: %v, left are %q, want 7.sock", err, names(dir))
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Lchown(filepath.Join(dir, "7.sock"), 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if err := Sweep(dir); err != nil || names(dir) != "7.sock" {
			t.Errorf("a socket of somebody else: %v, left are %q, want 7.sock", err, names(dir))
		}
		if err := os.Lchown(filepath.Join(dir, "7.sock"), 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := Sweep(dir); err != nil || names(dir) != "" {
		t.Errorf("Sweep: %v, left are %q, want nothing", err, names(dir))
	}
}

// A directory in which others could make sockets is not used. A server that answers nonsense is an error, beside
// the reports of the others.
func TestWrong(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if s, err := Listen(open, 1, Controls{}, slog.Default()); err == nil {
		s.Close()
		t.Error("Listen makes a socket where anybody could")
	}
	dir := filepath.Join(t.TempDir(), "run")
	s := listen(t, dir, 1)
	defer s.Close()
	l, err := net.Listen("unix", filepath.Join(dir, "2.sock"))
	if err != nil {
		t.Fatal(err)
	}
	answer := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "[1") }
	nonsense := http.Server{Handler: http.HandlerFunc(answer)}
	served := make(chan error)
	go func() { served <- nonsense.Serve(l) }()
	defer func() { nonsense.Close(); <-served }()
	if all, err := List(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "2.sock") || len(all) != 1 {
		t.Errorf("List = %+v, %v; want 1 report and an error of 2.sock", all, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := List(gone, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("List with a cancelled context: %v, want %v", err, context.Canceled)
	}
}

// Those who may enter the directory can set a budget. Nonsense is refused.
func TestSetBudget(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	set := make(chan int64, 1)
	s, err := Listen(dir, 5, Controls{Budget: func(bytes int64) { set <- bytes }}, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := SetBudget(t.Context(), dir, 5, 600e6); err != nil || <-set != 600e6 {
		t.Errorf("SetBudget(600e6): %v, or another budget was set", err)
	}
	for _, bytes := range []int64{1, 0} { // 0 takes it away
		if err := SetBudget(t.Context(), dir, 5, bytes); err != nil || <-set != bytes {
			t.Errorf("SetBudget(%d): %v, or another budget was set", bytes, err)
		}
	}
	if err := SetBudget(t.Context(), dir, 5, -1); err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("a negative budget: %v, want status 400", err)
	}
	if err := SetBudget(t.Context(), dir, 6, 1); err == nil || !strings.Contains(err.Error(), "process 6") {
		t.Errorf("of a target without a prefetchd: %v, want an error that names process 6", err)
	}
	for text, ok := range map[string]bool{
		"2GiB": true, "600MB\n": true, "much": false, "0": false, "": false, strings.Repeat("1", 100): false,
		"12": false, "12B": true,
	} {
		socket := filepath.Join(dir, "5.sock")
		err := request(t.Context(), socket, http.MethodPut, "/budget", strings.NewReader(text), nil)
		if (err == nil) != ok {
			t.Errorf("%q: %v, want success: %v", text, err, ok)
		}
		if ok {
			<-set
		}
	}
}

// Metrics have a description once for each name, and a sample for each prefetchd, except for what is not known.
func TestMetrics(t *testing.T) {
	known := Report{
		Target: 12, Faults: 3, OwnBytes: 9 << 20, Waits: MemoryPressure{0.5, 0.25},
		TargetRead: 5, OwnRead: 6,
		Status: prefetch.Status{
			Activity: prefetch.Giving, Held: 100, Now: 2.5, Before: 0.5, PromptTokens: 77, ReadAhead: 4096, Taken: 8192,
		},
	}
	unknown := Report{
		Target: 13, Faults: -1, TargetRead: -1, OwnRead: -1, Waits: MemoryPressure{-1, -1},
		Status: prefetch.Status{Activity: prefetch.Waiting},
	}
	var text strings.Builder
	if err := WriteMetrics(&text, known, unknown); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	has := func(line string, want int) {
		t.Helper()
		n := 0
		for _, l := range lines {
			if l == line {
				n++
			}
		}
		if n != want {
			t.Errorf("%d lines %q, want %d, in\n%s", n, line, want, text.String())
		}
	}
	has(`tensorcast_prefetchd_kept_bytes{target_pid="12"} 100`, 1)
	has(`tensorcast_prefetchd_kept_bytes{target_pid="13"} 0`, 1)
	has(`# TYPE tensorcast_prefetchd_kept_bytes gauge`, 1)
	has(`tensorcast_prefetchd_tokens_per_second{target_pid="12"} 2.5`, 1)
	has(`tensorcast_prefetchd_tokens_per_second_before{target_pid="12"} 0.5`, 1)
	has(`tensorcast_prefetchd_tokens_per_second{target_pid="13"} 0`, 0)
	has(`# TYPE tensorcast_prefetchd_target_major_faults_total counter`, 1)
	has(`tensorcast_prefetchd_target_major_faults_total{target_pid="12"} 3`, 1)
	has(`tensorcast_prefetchd_target_major_faults_total{target_pid="13"} -1`, 0)
	has(`tensorcast_prefetchd_phase{target_pid="12",phase="giving back"} 1`, 1)
	has(`tensorcast_prefetchd_phase{target_pid="13",phase="giving back"} 0`, 1)
	has(`tensorcast_prefetchd_phase{target_pid="13",phase="waiting"} 1`, 1)
	has(`# TYPE tensorcast_prefetchd_phase gauge`, 1)
	has(`tensorcast_prefetchd_host_memory_waiting_some_percent{target_pid="12"} 0.5`, 1)
	has(`tensorcast_prefetchd_up{target_pid="12",role="target"} 1`, 1)
	has(`# TYPE tensorcast_prefetchd_read_ahead_bytes_total counter`, 1)
	has(`tensorcast_prefetchd_read_ahead_bytes_total{target_pid="12"} 4096`, 1)
	has(`tensorcast_prefetchd_taken_bytes_total{target_pid="12"} 8192`, 1)
	has(`tensorcast_prefetchd_prompt_tokens_total{target_pid="12"} 77`, 1)
	has(`tensorcast_prefetchd_target_read_bytes_total{target_pid="12"} 5`, 1)
	has(`tensorcast_prefetchd_target_read_bytes_total{target_pid="13"} -1`, 0)
}

// Prometheus's own checker reads what is written, whatever a target calls itself.
func TestPromtool(t *testing.T) {
	promtool := filepath.Join(llamatest.Get(t, llama.Prometheus), "promtool")
	r := Report{Target: 12, Command: "a\"b\\c\nd\xff{}", Unit: "x.service", Models: []string{"/m/ü\t.gguf"}}
	r.Status.Now, r.Status.Before = 2, 1
	for name, reports := range map[string][]Report{"nobody": nil, "two": {r, {PID: 3, Search: &Search{All: true}}}} {
		var text bytes.Buffer
		if err := WriteMetrics(&text, reports...); err != nil {
			t.Fatal(err)
		}
		check := exec.CommandContext(t.Context(), promtool, "check", "metrics")
		check.Stdin = &text
		if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// Labels say whom a prefetchd helps. What a target chose cannot break the format. Those that look for targets, and
// those that do not answer, are only up or not; without any nobody is up.
func TestLabels(t *testing.T) {
	target := Report{
		Target: 12, Command: "a\"b\\c\nd\xff", Unit: "ollama.service", Models: []string{"/models/x 1.gguf", "/y"},
		Status: prefetch.Status{Activity: prefetch.Helping, Tokens: 5},
	}
	searches := []Report{{PID: 3, Search: &Search{All: true}}, {PID: 4, Search: &Search{Names: []string{"x"}}}}
	write := func(reports ...Report) string {
		t.Helper()
		var text strings.Builder
		if err := WriteMetrics(&text, reports...); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	const labels = `target_pid="12",command="a\"b\\c\nd` + "\uFFFD" + `",unit="ollama.service",model="x 1.gguf"`
	text := write(append(searches, target)...)
	for _, line := range []string{
		"tensorcast_prefetchd_tokens_total{" + labels + "} 5\n",
		"tensorcast_prefetchd_phase{" + labels + `,phase="helping"} 1` + "\n",
		`tensorcast_prefetchd_up{prefetchd_pid="3",role="auto"} 1` + "\n",
		`tensorcast_prefetchd_up{prefetchd_pid="4",role="wait"} 1` + "\n",
		"tensorcast_prefetchd_up{" + labels + `,role="target"} 1` + "\n",
	} {
		if strings.Count(text, line) != 1 {
			t.Errorf("there is not one line %q in\n%s", line, text)
		}
	}
	if n := strings.Count(text, "prefetchd_pid="); n != 2 {
		t.Errorf("those without a target have %d samples, want 2:\n%s", n, text)
	}
	err := errors.Join(&askError{"/run/prefetchd/7.sock", io.EOF}, errors.Join(&askError{"/x/search-8.sock", io.EOF}),
		&askError{"/x/other.sock", io.EOF}, io.EOF)
	text = write(Down(err)...)
	for _, line := range []string{
		`tensorcast_prefetchd_up{target_pid="7",role="target"} 0` + "\n",
		`tensorcast_prefetchd_up{prefetchd_pid="8",role="auto"} 0` + "\n",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
	if n := strings.Count(text, "\n"); n != 4 {
		t.Errorf("%d lines of those that are down, want 2 and 2 samples:\n%s", n, text)
	}
	if text := write(); !strings.HasSuffix(text, "\ntensorcast_prefetchd_up 0\n") {
		t.Errorf("nobody runs:\n%s", text)
	}
	if Down(nil) != nil || Down(io.EOF) != nil {
		t.Error("somebody is down without an error of a socket")
	}
}
