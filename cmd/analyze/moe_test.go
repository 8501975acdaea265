package main

// This file tests the subcommand moe on routing traces and captures whose answers are known.

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/cli"
	"tensorcast/trace/tables"
	"tensorcast/trace/tracetest"
)

const routeTrace = `# route_trace v1
# model=/m/planted.gguf n_layer=2 n_expert=4 n_expert_used=1
# layer=0 expert_bytes=1000000
# layer=1 expert_bytes=1000000
turn,phase,step,layer,slot,expert
0,0,0,0,0,1
0,0,0,1,0,2
0,1,1,0,0,1
0,1,1,1,0,2
0,1,2,0,0,1
0,1,2,1,0,3
`

func TestMoE(t *testing.T) {
	dir := t.TempDir()
	file, capture := filepath.Join(dir, "a.csv"), filepath.Join(dir, "capture")
	if err := os.WriteFile(file, []byte(routeTrace), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tracetest.Write(capture, tracetest.Options{Segments: 3}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		says []string
	}{
		{[]string{file}, []string{"planted.gguf: 2 layers with 4 experts, of which a token chooses 1; 1 tokens of " +
			"prompts, 2 generated", "experts: 7.6 MiB in all, 1.9 MiB per token", "Belady"}},
		// The draft model's context has no experts. The ids of tokens are known.
		{[]string{"--room", "4kB,5kB", capture}, []string{"moe.gguf: 2 layers with 8 experts, of which a token " +
			"chooses 2; 1 tokens of prompts, 13 generated", "same token before",
			"4.9 KiB of experts in memory (31 %)"}},
	} {
		code, stdout, stderr := execute(t, append([]string{"moe"}, tc.args...)...)
		if code != cli.OK || stderr != "" || !strings.HasPrefix(stdout, "with 40 % of the experts in memory (") {
			t.Fatalf("%v: exit %d, stderr %q, stdout\n%s", tc.args, code, stderr, stdout)
		}
		for _, want := range tc.says {
			if !strings.Contains(stdout, want) {
				t.Errorf("%v: output lacks %q:\n%s", tc.args, want, stdout)
			}
		}
	}
	code, stdout, stderr := execute(t, "moe", "--json", "--compute", "10ms", "--bandwidth", "100MB", "--latency",
		"1ms", "--room", "2MB", file)
	var got struct {
		Verdict []string
		Rooms   []struct {
			Policies []struct {
				Name       string
				Used, Hits int
				Time       int64 `json:"time_ns"`
			}
		}
	}
	if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil || stderr != "" ||
		len(got.Verdict) < 4 || len(got.Rooms) != 1 {
		t.Fatalf("exit %d, %v, stderr %q, stdout\n%s", code, err, stderr, stdout)
	}
	// The prompt left experts 1 and 2 in memory, so three of four are hits. The other one is read in 10
	// ms, and is there 1 ms later.
	if lru := got.Rooms[0].Policies[0]; lru.Name != "LRU" || lru.Used != 4 || lru.Hits != 3 || lru.Time != 2*10e6+11e6 {
		t.Errorf("policy %+v, want LRU with 3 hits of 4 in 31 ms", lru)
	}
}

// What the flags do not say of the machine is the capture's, and where nothing tells it is said to be assumed.
func TestMoEMachine(t *testing.T) {
	capture := plantMixture(t, 8, 40, func(token, layer int) []int32 { return []int32{int32(token+layer) % 8} })
	file := filepath.Join(t.TempDir(), "a.csv")
	if err := os.WriteFile(file, []byte(routeTrace), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args           []string
		compute        time.Duration
		disk           float64
		computeFrom    string
		diskFrom, says string
	}{
		{[]string{capture}, 20 * time.Millisecond, 1e9, "as the capture has it", "as tracer has measured it",
			"a token computes for 20 ms: as the capture has it"},
		{[]string{"--compute", "7ms", capture}, 7 * time.Millisecond, 1e9, "as --compute says",
			"as tracer has measured it", "a token computes for 7 ms: as --compute says"},
		{[]string{"--bandwidth", "2GB", capture}, 20 * time.Millisecond, 2e9, "as the capture has it",
			"as --bandwidth says", "the disk reads 1.86 GiB/s: as --bandwidth says"},
		{[]string{file}, 50 * time.Millisecond, 1.5e9, "assumed", "assumed", "a token computes for 50 ms: assumed"},
	} {
		code, stdout, stderr := execute(t, append([]string{"moe", "--json"}, tc.args...)...)
		var got moeResult
		if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil {
			t.Fatalf("%v: exit %d, %v, %s", tc.args, code, err, stderr)
		}
		if m := got.Machine; m.Compute != tc.compute || m.Bandwidth != tc.disk ||
			!strings.HasPrefix(m.ComputeFrom, tc.computeFrom) || !strings.HasPrefix(m.BandwidthFrom, tc.diskFrom) {
			t.Errorf("%v: %+v, want %v (%s) and %g (%s)", tc.args, m, tc.compute, tc.computeFrom, tc.disk, tc.diskFrom)
		}
		if l := got.Locality; l.Compute != tc.compute || l.Bandwidth != tc.disk {
			t.Errorf("%v: it is replayed with %v and %g, want %v and %g", tc.args, l.Compute, l.Bandwidth, tc.compute,
				tc.disk)
		}
		if _, stdout, _ := execute(t, append([]string{"moe"}, tc.args...)...); !strings.Contains(stdout, tc.says) {
			t.Errorf("%v: output lacks %q:\n%s", tc.args, tc.says, stdout)
		}
	}
}

// Figures are drawn besides. A figure without data is left out, and an earlier one does not stay.
func TestMoEFigures(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	withoutSizes := strings.ReplaceAll(strings.ReplaceAll(routeTrace, "# layer=0 expert_bytes=1000000\n", ""),
		"# layer=1 expert_bytes=1000000\n", "")
	for name, text := range map[string]string{"a.csv": routeTrace, "b.csv": withoutSizes} {
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, plain, _ := execute(t, "moe", in("a.csv"))
	code, stdout, stderr := execute(t, "moe", "-o", in("figures"), "--format", "svg", in("a.csv"))
	if code != cli.OK || stderr != "" || !strings.HasPrefix(stdout, plain) || strings.Count(stdout, "\nwrote ") != 3 {
		t.Fatalf("exit %d, stderr %q, stdout\n%s\nwithout figures\n%s", code, stderr, stdout, plain)
	}
	for name, want := range map[string]string{
		"hits.svg": "Belady", "recall.svg": "mixture of all", "reads.svg": "planted.gguf",
	} {
		if data, err := os.ReadFile(filepath.Join(in("figures"), name)); err != nil ||
			!strings.Contains(string(data), want) {
			t.Errorf("%s: %v, it has no %q", name, err, want)
		}
	}
	code, stdout, stderr = execute(t, "moe", "-o", in("figures"), "--format", "svg", "--json", in("b.csv"))
	left, err := os.ReadDir(in("figures"))
	if code != cli.OK || stderr != "" || !json.Valid([]byte(stdout)) || err != nil || len(left) != 1 ||
		left[0].Name() != "recall.svg" {
		t.Errorf("exit %d, stderr %q, files %v, %v, want recall.svg only; stdout\n%s", code, stderr, left, err, stdout)
	}
	// What was found is printed, even if it cannot be drawn.
	code, stdout, stderr = execute(t, "moe", "-o", in("a.csv"), in("a.csv"))
	if code != cli.Failure || stdout != plain || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, stderr %q, want %d and one line; stdout\n%s\nwant\n%s", code, stderr, cli.Failure, stdout,
			plain)
	}
}

// Each error is one line that says what to do.
func TestMoERefuses(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		"other": "a,b\n", "bad": routeTrace + "0,1,3,0,0,4\n", "good": routeTrace,
	} {
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(in("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tracetest.Write(in("capture"), tracetest.Options{}); err != nil {
		t.Fatal(err)
	}
	dense := plant(t, tables.Meta{}, true, whole, whole)
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{in("nothing")}, cli.Failure, "nothing: no such file or directory"},
		{[]string{in("fifo")}, cli.Failure, "fifo: not a regular file"},
		{[]string{in("other")}, cli.Failure, "other: no capture's directory, and no routing trace: it does not " +
			"begin with"},
		{[]string{in("bad")}, cli.Failure, "bad: line 12: expert 4, want 0 to 3"},
		{[]string{dir}, cli.Failure, "no capture"},
		{[]string{dense}, cli.Failure, "no routes: trace a mixture-of-experts model"},
		{[]string{"--context", "1", in("capture")}, cli.Failure, "no routes: trace a mixture-of-experts model"},
		{[]string{}, cli.BadUsage, "0 arguments: want one, a capture's directory or a routing trace"},
		{[]string{in("good"), in("good")}, cli.BadUsage, "2 arguments"},
		{[]string{in("good"), "--capture", in("capture")}, cli.BadUsage, "want one of them"},
		{[]string{"--capture", dense}, cli.Failure, "no routes: trace a mixture-of-experts model"},
		{[]string{"--top", "3", in("good")}, cli.BadUsage, "--top: nothing that moe prints"},
		{[]string{"--room", "much", in("good")}, cli.BadUsage, `--room "much": want a size`},
		{[]string{"--bandwidth", "1kB", in("good")}, cli.BadUsage, "--bandwidth is 1000 B per second, want 10 MiB " +
			"or more"},
		{[]string{"--compute", "-1s", in("good")}, cli.BadUsage, "want 0 to 1m0s"},
		{[]string{"--format", "svg", in("good")}, cli.BadUsage, "--format is of figures: say where with --output"},
		{[]string{"-o", "x", "--format", "gif", in("good")}, cli.BadUsage, "gif"},
		{[]string{"--context", "-1", in("good")}, cli.BadUsage, "--context is -1, want 0 or more"},
	} {
		code, stdout, stderr := execute(t, append([]string{"moe"}, tc.args...)...)
		if code != tc.code || stdout != "" || !strings.Contains(stderr, tc.says) ||
			strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "analyze moe: ") {
			t.Errorf("%v: exit %d, stderr %q, want %d, %q", tc.args, code, stderr, tc.code, tc.says)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&cli.Interrupted{Signal: syscall.SIGINT})
	var out, errs strings.Builder
	if code := cli.Run(ctx, command(), []string{"moe", in("good")}, &out, &errs); code != cli.Failure ||
		errs.String() != "analyze moe: interrupted by SIGINT\n" {
		t.Errorf("exit %d, stderr %q, want %d and the signal", code, errs.String(), cli.Failure)
	}
	if code, _, stderr := execute(t, "mo"); code != cli.BadUsage ||
		!strings.Contains(stderr, `unexpected argument "mo"`) {
		t.Errorf("exit %d, stderr %q, want %d", code, stderr, cli.BadUsage)
	}
}
