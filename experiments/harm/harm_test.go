package harm

// This file tests whole series, on a target whose text and memory are known, with helpers that do
// harm and with one that does none.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"go.uber.org/goleak"

	"tensorcast/experiments/confine"
	"tensorcast/internal/cc"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/cgroup/cgrouptest"
	"tensorcast/internal/proc"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := checkNothingLeft(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}))
}

// checkNothingLeft fails if a series of this process has left a group or a process.
func checkNothingLeft() error {
	root, err := cgroup.Root()
	if errors.Is(err, cgroup.ErrNoController) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, file := range root.ProcsFiles() {
		left, err := filepath.Glob(filepath.Join(filepath.Dir(file), fmt.Sprintf("tensorcast-harm-%d-*", os.Getpid())))
		if err != nil || len(left) > 0 {
			return fmt.Errorf("control groups are left: %v, %v; want none", left, err)
		}
	}
	all, err := procfs.AllProcs()
	if err != nil {
		return err
	}
	for _, p := range all {
		env, _ := proc.Environ(p.PID) // it may end
		if slices.ContainsFunc(env, func(v string) bool {
			return strings.HasPrefix(v, fmt.Sprintf("%s=tensorcast-harm-%d-", markVariable, os.Getpid()))
		}) {
			return fmt.Errorf("process %d is left: %q", p.PID, proc.CommandLine(p.PID))
		}
	}
	return nil
}

// targetSource reads all of its model first, and then a part of it with each token. The tokens
// change once the file OTHER exists.
const targetSource = `
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
static long now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}
int main(int argc, char **argv) { // MODEL TOKENS MILLISECONDS OTHER
	struct stat st;
	int fd = open(argv[1], O_RDONLY), tokens = atoi(argv[2]);
	if (argc != 5 || fd < 0 || fstat(fd, &st)) return 1;
	volatile char *p = mmap(NULL, st.st_size, PROT_READ, MAP_SHARED, fd, 0), sum = 0;
	if (p == MAP_FAILED) return 1;
	for (long i = 0; i < st.st_size; i += 4096) sum += p[i];
	printf("{}\n");
	for (int n = 0; n < tokens; n++) {
		long begin = now(), part = st.st_size / 8;
		for (long i = n % 8 * part; i < (n % 8 + 1) * part; i += 4096) sum += p[i];
		usleep(1000 * atoi(argv[3]));
		printf("{\"token\":%d,\"id\":%d,\"begin_ns\":%ld,\"end_ns\":%ld,\"text\":\"%s\"}\n",
			n, n + 1, begin, now(), access(argv[4], F_OK) ? "a" : "b");
		fflush(stdout);
	}
	return 0;
}
`

// lockerSource locks the target's model once the target has read it, from outside of the target's
// group. With a third argument it does so in the background, and does not end when it is told to.
const lockerSource = `
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv) { // PID MODEL
	char name[64];
	long size = 0, pages = 0;
	struct stat st;
	int fd = open(argv[2], O_RDONLY);
	if (fd < 0 || fstat(fd, &st)) return 1;
	if (argc > 3) {
		if (fork()) { pause(); return 0; }
		setsid();
		signal(SIGTERM, SIG_IGN);
	}
	snprintf(name, sizeof name, "/proc/%s/statm", argv[1]);
	while (pages * 4096 < st.st_size / 2) {
		FILE *f = fopen(name, "r");
		if (!f) return 1;
		if (fscanf(f, "%ld %ld", &size, &pages) != 2) return 1;
		fclose(f);
		usleep(1000);
	}
	void *p = mmap(NULL, st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED || mlock(p, st.st_size)) { perror("lock"); return 1; }
	pause();
	return 0;
}
`

const modelBytes = 32 << 20

// build compiles a program.
func build(t *testing.T, source string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := cc.Compile(t.Context(), path, source); errors.Is(err, cc.ErrNoCompiler) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	return path
}

// known is the configuration of a series with the target of this file. At the end of the test none
// of its files may be left.
func known(t *testing.T, helper string, scenes ...string) Config {
	t.Helper()
	t.Parallel()
	cgrouptest.Need(t)
	dir := t.TempDir()
	model := filepath.Join(dir, "model")
	if err := os.WriteFile(model, make([]byte, modelBytes), 0o644); err != nil {
		t.Fatal(err)
	}
	program, other := build(t, targetSource), filepath.Join(dir, "other")
	helper = strings.NewReplacer("{model}", model, "{other}", other).Replace(helper)
	all, err := ParseScenes(scenes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if all, err := os.ReadDir(dir); err != nil ||
			slices.ContainsFunc(all, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), "tensorcast") }) {
			t.Errorf("files are left: %v, %v", all, err)
		}
	})
	return Config{
		Model: model, Weights: modelBytes, Helper: helper, X: []float64{0.85}, Scenes: all, Pairs: 1, Tokens: 12,
		Settle: 4, Seed: 1,
		Hold: 100 * time.Millisecond, Timeout: time.Minute, Parallel: 1, Dir: dir,
		Target: func(model string) []string { return []string{program, model, "12", "20", other} },
	}
}

// longer makes the target generate so many tokens, each in 20 ms or more.
func (c *Config) longer(tokens int) {
	c.Tokens = tokens
	target := c.Target
	c.Target = func(model string) []string {
		args := target(model)
		args[2] = strconv.Itoa(tokens)
		return args
	}
}

// measure runs a series to its end. A test of pages must be on a disk.
func measure(t *testing.T, cfg Config) *Report {
	t.Helper()
	r, err := Measure(t.Context(), cfg)
	if errors.Is(err, confine.ErrInMemory) {
		t.Skipf("%v: set TMPDIR to a directory on a disk", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var text, markdown strings.Builder
	if err := errors.Join(r.WriteText(&text), r.WriteMarkdown(&markdown)); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
	data, err := json.Marshal(r)
	if again := new(Report); err != nil || json.Unmarshal(data, again) != nil ||
		!reflect.DeepEqual(again.Runs, r.Runs) || !reflect.DeepEqual(again.Rows, r.Rows) {
		t.Errorf("the report does not survive JSON: %v", err)
	}
	return r
}

// A helper that does nothing does no harm in any scene; each scene happens, and is undone.
func TestHarmless(t *testing.T) {
	// A scene begins before three fifths of them. What is left is time enough for it, even on a
	// busy machine.
	const all = 30
	cfg := known(t, "sleep 1000", "instant:12MB", "swarm:6x2MB", "limit:0.5", "none", "kill-helper", "term-helper",
		"stop-helper", "stop-target", "kill-target")
	cfg.longer(all)
	r := measure(t, cfg)
	if harm := r.Harm(); harm != "" {
		t.Error(harm)
	}
	if r.Own <= 0 || r.Own > 8<<20 || r.Text != strings.Repeat("a", all) || len(r.Rows) != 9 || len(r.Runs) != 2*9-3 {
		t.Errorf("own memory %d, text %q, %d rows, %d runs; want a few MB, 30 tokens, 9 rows and 15 runs", r.Own,
			r.Text, len(r.Rows), len(r.Runs))
	}
	for _, run := range r.Runs {
		want, tokens := Finished, all
		if run.Scene == "kill-target" {
			want, tokens = Ended, run.Moment.Token
		}
		// A target that is to be killed may still write a few more.
		if run.Outcome != want || run.Tokens < tokens || !run.TextSame || !run.Acted || run.Refused ||
			run.OOMKills != 0 || run.HogsKilled != 0 || run.PagesLeft != 0 || run.ProcessesLeft != nil {
			t.Errorf("%+v", run)
		}
		if x := 0.85; run.Limit != (int64(x*modelBytes)+r.Own)&^4095 {
			t.Errorf("limit %d, want 0.85 of the model beside the own memory of %d", run.Limit, r.Own)
		}
		status := "signal: terminated"
		if run.Scene == "kill-helper" {
			status = "signal: killed"
		}
		if h := run.Helper; run.Helped != (h != nil) || h != nil &&
			(h.Status != status || h.Killed || h.Early || h.Hung) {
			t.Errorf("%s: helper %+v", run.Scene, h)
		}
	}
	for _, row := range r.Rows {
		if (row.Without == nil) != strings.HasSuffix(row.Scene, "-helper") ||
			(row.Ratio == nil) != (row.Without == nil || row.Scene == "kill-target") {
			t.Errorf("%+v", row)
		}
	}
}

// A helper that locks what the target has read leaves nothing that the kernel could take when
// another process needs memory.
func TestLockingIsHarm(t *testing.T) {
	cfg := known(t, build(t, lockerSource)+" {pid} {model}", "instant:12MB")
	cfg.longer(60)
	cfg.Settle = 30 // there is time to lock
	r := measure(t, cfg)
	if row := r.Rows[0]; row.With.OOMKilled != 1 || row.With.Lost != 1 || row.Without.Lost != 0 ||
		row.With.PagesLeft != 0 {
		t.Errorf("%+v, without %+v", row.With, row.Without)
	}
	if want := "the target was lost in 1 runs with the helper and in 0 without it"; r.Harm() != want {
		t.Errorf("%q, want %q", r.Harm(), want)
	}
	for _, run := range r.Runs {
		if run.Helped && (run.Status != "signal: killed" || run.OOMKills == 0 || !run.TextSame) {
			t.Errorf("%+v", run)
		}
	}
}

// A target is moved while it runs, and reads its model again on the account of the group with the limit.
func TestMoved(t *testing.T) {
	cfg := known(t, "sh -c 'while cat /proc/{pid}/cgroup; do sleep 0.05; done'", "moved")
	cfg.longer(80)
	usage := watchUsage(t, &cfg)
	r := measure(t, cfg)
	if len(r.Runs) != 2 || r.Harm() != "" || !r.Runs[0].Acted || !r.Runs[1].Acted {
		t.Fatalf("%s: %+v", r.Harm(), r.Runs)
	}
	if output := r.Runs[0].Helper.Output; !strings.Contains(output, "-1-outside\n") ||
		!strings.Contains(output, "-1\n") || strings.LastIndex(output, "-1-outside\n") > strings.LastIndex(output,
		"-1\n") {
		t.Errorf("groups:\n%s", output)
	}
	if all := *usage; len(all) != 2 || all[0] < modelBytes/2 || all[1] < modelBytes/2 {
		t.Errorf("%d bytes are charged to the groups with the limit, want half of the model or more in each of 2", all)
	}
}

// If another group has the model in memory, the target's group pays for next to nothing.
func TestSharing(t *testing.T) {
	for _, scene := range []string{"cached:1", "shared"} {
		t.Run(scene, func(t *testing.T) {
			cfg := known(t, "sleep 60", scene)
			cfg.longer(80)
			usage := watchUsage(t, &cfg)
			r := measure(t, cfg)
			if len(r.Runs) != 2 || r.Harm() != "" {
				t.Fatalf("%s: %+v", r.Harm(), r.Runs)
			}
			if all := *usage; len(all) != 2 || all[0] > modelBytes/4 || all[1] > modelBytes/4 {
				t.Errorf("%d bytes are charged to the groups with the limit, want a quarter of the model at most in each of 2",
					all)
			}
		})
	}
}

// watchUsage notes what is charged to the groups with the limit at the 80th token of each run.
func watchUsage(t *testing.T, cfg *Config) (usage *[]int64) {
	t.Helper()
	usage = new([]int64)
	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Progress = func(_, _ int, what string) {
		if !strings.HasSuffix(what, " token 80") {
			return
		}
		for _, name := range []string{"memory.usage_in_bytes", "memory.current"} { // of either version
			series, err := filepath.Glob(filepath.Join(cfg.Dir, "tensorcast-harm-*"))
			if err != nil || len(series) != 1 {
				t.Errorf("the directory of the series: %q, %v; want one", series, err)
				return
			}
			files, err := filepath.Glob(filepath.Join(root.Dir(), filepath.Base(series[0])+"-[12]", name))
			if err != nil {
				t.Error(err)
			}
			for _, file := range files {
				text, err := os.ReadFile(file)
				n, parseErr := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
				if err != nil || parseErr != nil {
					t.Error(err, parseErr)
				}
				*usage = append(*usage, n)
			}
		}
	}
	return usage
}

// A process that the helper leaves behind, with pages that it holds, is found, and ended before the next run.
func TestLeftovers(t *testing.T) {
	cfg := known(t, build(t, lockerSource)+" {pid} {model} stay", "none")
	// There is room for each page, whoever is first to read it.
	cfg.X = []float64{2}
	r := measure(t, cfg)
	for _, run := range r.Runs {
		if run.Helped && (run.PagesLeft != modelBytes || len(run.ProcessesLeft) != 1 ||
			!strings.Contains(run.ProcessesLeft[0], cfg.Model+" stay")) {
			t.Fatalf("%d bytes, processes %q", run.PagesLeft, run.ProcessesLeft)
		}
		if !run.Helped && (run.PagesLeft != 0 || run.ProcessesLeft != nil) {
			t.Errorf("without the helper: %d bytes, processes %q; want nothing left", run.PagesLeft, run.ProcessesLeft)
		}
		if run.Outcome != Finished {
			t.Errorf("%+v", run)
		}
	}
	if want := "pages of the model were left after 1 runs; processes were left after 1 runs"; r.Harm() != want {
		t.Errorf("%q, want %q", r.Harm(), want)
	}
	pid, _, _ := strings.Cut(r.Runs[0].ProcessesLeft[0], " ")
	if n, err := strconv.Atoi(pid); err != nil {
		t.Error(err)
	} else if p, err := proc.Open(n); err == nil { // perhaps nobody has waited for it
		defer p.Close()
		if ended, err := p.Ended(); !ended || err != nil {
			t.Errorf("process %d is still there: %v", n, err)
		}
	} else if !errors.Is(err, proc.ErrNoProcess) {
		t.Error(err)
	}
}

// Pages are also looked for that are left of a target's other models.
func TestOtherModel(t *testing.T) {
	cfg := known(t, build(t, lockerSource)+" {pid} {model} stay", "none")
	second := filepath.Join(filepath.Dir(cfg.Model), "second")
	if err := os.WriteFile(second, make([]byte, modelBytes), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg.Others, cfg.X = []string{second}, []float64{3}
	cfg.Helper = strings.ReplaceAll(cfg.Helper, cfg.Model+" ", second+" ")
	r := measure(t, cfg)
	for _, run := range r.Runs {
		if want := map[bool]int64{true: modelBytes}[run.Helped]; run.PagesLeft != want || run.Outcome != Finished {
			t.Errorf("%+v: want %d bytes left", run, want)
		}
	}
	if r.ModelBytes != 2*modelBytes {
		t.Errorf("the models have %d bytes, want %d", r.ModelBytes, 2*modelBytes)
	}
}

// A helper starts the target itself, in its group. A helper that is killed leaves the target alone.
// A helper that ends because it was asked to ends the target.
func TestLauncher(t *testing.T) {
	const all = 20
	helper := `sh -c 'touch {other}; "$@" & trap "kill $!" TERM; wait $!; s=$?; rm -f {other}; exit $s' launcher {target}`
	cfg := known(t, helper, "instant:12MB", "none", "kill-helper", "term-helper", "stop-helper", "stop-target",
		"kill-target")
	cfg.longer(all)
	cfg.OtherText, cfg.HelpedOnly = true, true
	r := measure(t, cfg)
	if harm := r.Harm(); harm != "" || len(r.Runs) != 7 {
		t.Errorf("%d runs: %s; want 7 without harm", len(r.Runs), harm)
	}
	for _, run := range r.Runs {
		want, tokens := Finished, all
		if run.Scene == "kill-target" || run.Scene == "term-helper" {
			want, tokens = Ended, run.Moment.Token
		}
		if h := run.Helper; run.Outcome != want || run.Tokens < tokens || !run.TextSame || !run.Acted || h == nil ||
			h.Killed || run.PagesLeft != 0 || run.ProcessesLeft != nil {
			t.Errorf("%+v, helper %+v", run, h)
		}
		_ = os.Remove(cfg.Target(cfg.Model)[4]) // a helper that was killed leaves this file
	}
	cfg.Scenes = []Scene{{text: "moved", kind: moved}}
	if _, err := Measure(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "moved") {
		t.Errorf("a launcher and the scene moved: %v, want an error", err)
	}
}

// There is harm without a lack of memory, too: another text, and a target that is killed, stopped
// for good, or waits for its helper.
func TestOtherHarm(t *testing.T) {
	for name, want := range map[string]struct {
		helper  string
		outcome Outcome
		harm    string
	}{
		"text": {"sh -c 'echo > {other}; exec sleep 1000'", Finished,
			"the text differs in 1 runs with the helper and in 0 without it"},
		"kill": {"sh -c 'kill -9 {pid}; exec sleep 1000'", Failed,
			"the target was lost in 1 runs with the helper and in 0 without it"},
		"stop": {"sh -c 'kill -19 {pid}; exec sleep 1000'", Hung,
			"the target hung in 1 runs with the helper and in 0 without it"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := known(t, want.helper, "none")
			if want.outcome == Hung {
				cfg.Timeout = 5 * time.Second
			}
			cfg.Progress = func(_, _ int, what string) { // the run without the helper is the second one
				if strings.Contains(what, "without") {
					_ = os.Remove(filepath.Join(cfg.Dir, "other"))
				}
			}
			r := measure(t, cfg)
			if run := r.Runs[0]; !run.Helped || run.Outcome != want.outcome || run.OOMKills != 0 ||
				(want.outcome != Finished) != (run.Error != "") {
				t.Errorf("%+v", run)
			}
			if r.Harm() != want.harm {
				t.Errorf("%q, want %q", r.Harm(), want.harm)
			}
		})
	}
}

// A helper that fails is reported: a series with it would prove nothing.
func TestHelperFails(t *testing.T) {
	cfg := known(t, "sh -c 'echo no such target >&2; exit 3'", "none")
	r := measure(t, cfg)
	var text strings.Builder
	if err := r.WriteText(&text); err != nil ||
		!strings.Contains(text.String(), "the helper ended before the target (exit status 3): no such target") ||
		r.Rows[0].With.HelperEarly != 1 {
		t.Errorf("%v\n%s", err, &text)
	}
}

// Several runs at the same time have files of their own: a drop of the page cache in one takes no
// page from another.
func TestParallel(t *testing.T) {
	cfg := known(t, "sleep 1000", "instant:12MB", "swarm:6x2MB")
	cfg.Parallel, cfg.Pairs = 3, 2
	models := map[string]bool{}
	cfg.Progress = func(done, total int, what string) {
		if total != 8 || done > total {
			t.Errorf("%d of %d runs: %s", done, total, what)
		}
		if all, err := filepath.Glob(filepath.Join(cfg.Dir, "tensorcast-harm-*", "model-*")); err == nil {
			for _, path := range all {
				models[path] = true
				a, aErr := os.Stat(path)
				b, bErr := os.Stat(cfg.Model)
				if aErr == nil && bErr == nil && os.SameFile(a, b) {
					t.Errorf("%s is the model itself", path)
				}
			}
		}
	}
	r := measure(t, cfg)
	if r.Harm() != "" || len(r.Runs) != 8 || len(models) != 2 {
		t.Errorf("%s; %d runs, models %v; want no harm, 8 runs and 2 models", r.Harm(), len(r.Runs), models)
	}
	for _, run := range r.Runs {
		if run.Outcome != Finished || run.TokS != 0 {
			t.Errorf("%+v", run)
		}
	}
}

// If there are no runs without the helper, every target that is lost was harmed.
func TestHelpedOnly(t *testing.T) {
	cfg := known(t, "sleep 1000", "kill-target")
	cfg.HelpedOnly, cfg.Pairs = true, 2
	r := measure(t, cfg)
	if len(r.Runs) != 2 || len(r.Rows) != 1 || r.Rows[0].Without != nil || r.Rows[0].With.Runs != 2 {
		t.Errorf("%d runs, rows %+v", len(r.Runs), r.Rows)
	}
	lost := &Report{Rows: []Row{{With: Side{Runs: 2, Lost: 1}}}}
	if lost.Harm() == "" {
		t.Error("a lost target is no harm where there are no runs without the helper")
	}
}

// A series that is cut short ends its processes and reports whole pairs. Without any there is no
// report.
func TestInterrupted(t *testing.T) {
	for after, want := range map[int]int{1: 0, 3: 2} {
		t.Run(strconv.Itoa(after), func(t *testing.T) {
			cfg := known(t, "sleep 1000", "swarm:6x2MB")
			cfg.Pairs, cfg.Hold = 5, time.Minute
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cfg.Progress = func(done, _ int, what string) {
				if done == after && strings.HasSuffix(what, " token 10") {
					cancel()
				}
			}
			r, err := Measure(ctx, cfg)
			if errors.Is(err, confine.ErrInMemory) {
				t.Skip(err)
			}
			if !errors.Is(err, context.Canceled) || (r == nil) != (want == 0) {
				t.Fatalf("%v, %+v", err, r)
			}
			if r == nil {
				return
			}
			var text strings.Builder
			if err := r.WriteText(&text); err != nil || len(r.Runs) != want || !r.Interrupted ||
				!strings.Contains(text.String(), "INTERRUPTED after 2 runs") {
				t.Errorf("%v\n%s", err, &text)
			}
		})
	}
}

func TestMeasureRefuses(t *testing.T) {
	good := known(t, "sleep 1000", "none")
	for name, test := range map[string]struct {
		change func(c *Config)
		want   string
	}{
		"no model":     {func(c *Config) { c.Model += "-not" }, "no such file"},
		"no helper":    {func(c *Config) { c.Helper = "" }, "helper"},
		"no scene":     {func(c *Config) { c.Scenes = nil }, "scenes"},
		"no share":     {func(c *Config) { c.X = []float64{0} }, "share"},
		"few tokens":   {func(c *Config) { c.Settle = c.Tokens }, "more tokens"},
		"no directory": {func(c *Config) { c.Dir = "/nonexistent" }, "no such file"},
		"other tokens": {func(c *Config) { c.Tokens = 13 }, "exit status 0 after 12 tokens"},
		"no target": {func(c *Config) { c.Target = func(string) []string { return []string{"/nonexistent"} } },
			"nonexistent"},
		"too large": {func(c *Config) { c.Parallel = 1 << 20 }, "under pressure itself"},
		"no copies": {func(c *Config) { c.Others, c.Parallel = []string{c.Model}, 2 }, "one pair runs at a time"},
		"too slow":  {func(c *Config) { c.Timeout = time.Millisecond }, "it took too long"},
	} {
		cfg := good
		test.change(&cfg)
		if _, err := Measure(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), test.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one line with %q", name, err, test.want)
		}
	}
}
