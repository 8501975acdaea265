package main

// This file tests prefetchd and its target in containers, which have their own process ids.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch"
)

// tiny is a model that is quick to load and compute.
var tiny = synth.Config{Layers: 3, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1}

// smallBudget are flags with which prefetchd locks only a part of the tiny model.
var smallBudget = []string{"--budget", "1500KB", "--lock", "--always"}

// helpedFromStart is a script that starts a target and prefetchd, as the container's first process.
// The target is stopped until prefetchd has set up everything: see waitSettled.
const helpedFromStart = `output=$1; shift; helper=$1; shift
"$@" > "$output" & target=$!
kill -STOP $target
( until [ "$(cat /proc/1/oom_score_adj)" = 1000 ]; do sleep 0.05; done; kill -CONT $target ) &
exec "$helper" --wait --budget 1500KB --always --json --pid $target`

// TestInContainer checks that prefetchd helps its target in a container as it does on the host.
func TestInContainer(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{Model: llamatest.Model(t, tiny), Prompt: "the quick brown fox", Tokens: 100,
		Threads: 1, NoRepack: true, Repeat: 20}
	plain, err := in.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(t.TempDir(), "output.json")
	o.Pause = 1 // otherwise a fast machine generates half of the tokens while prefetchd attaches
	args := append([]string{"sh", "-c", helpedFromStart, "sh", output, prefetchd}, in.Command(t.Context(), o).Args...)
	cmd := testenv.Container{}.Command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var s prefetch.Summary
	if err := json.Unmarshal(stdout.Bytes(), &s); err != nil {
		t.Fatalf("%v: %s", err, stdout.String())
	}
	info, err := os.Stat(o.Model)
	if err != nil {
		t.Fatal(err)
	}
	// prefetchd attaches while the target loads its model, so that it misses a few tokens at most.
	if all := o.Tokens * o.Repeat; s.Tokens < all/2 || s.Tokens > all ||
		s.PerToken < info.Size()/2 || s.Pinned == 0 || s.Learned == 0 {
		t.Errorf("summary %+v of %d tokens", s, all)
	}
	text, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := llama.ParseResult(text); err != nil || got.Text != plain.Text || got.PID > 1000 {
		t.Errorf("the target, process %d, generated %q, want %q; %v", got.PID, got.Text, plain.Text, err)
	}
}

// TestContainerFromOutside helps a target in a container from outside. The model's path is visible
// only in the container.
func TestContainerFromOutside(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, tiny)
	hidden := filepath.Join(t.TempDir(), "hidden")
	if err := os.Mkdir(hidden, 0o755); err != nil {
		t.Fatal(err)
	}
	o := llama.Options{Model: filepath.Join(hidden, "m.gguf"), Prompt: "x", Tokens: 100, Threads: 1,
		NoRepack: true, Pause: 5, Repeat: 1 << 20}
	visible := t.TempDir()
	if err := os.Link(model, filepath.Join(visible, "m.gguf")); err != nil {
		t.Fatal(err)
	}
	container := testenv.Container{First: fmt.Sprintf("mount --bind %s %s", visible, hidden)}
	target := container.Command(in.Command(t.Context(), o).Args...)
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = target.Process.Kill(); _ = target.Wait() })
	testenv.WaitMapped(t, target.Process.Pid, o.Model)
	h := startHelper(t, target.Process.Pid, append([]string{"-v"}, smallBudget...)...)
	testenv.WaitFor(t, "the model to be held", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Process.Pid))
		return err == nil && field(status, "VmLck:") > 0
	})
	if err := target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = target.Wait()
	if s := h.summary(t); !hasLearnedOnce(s, h.stderr.String()) || s.Tokens == 0 {
		t.Errorf("summary %+v\n%s", s, h.stderr.String())
	}
}

// TestUselessContainer checks that prefetchd ends at once with one line in containers where it
// cannot work.
func TestUselessContainer(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{Model: llamatest.Model(t, tiny), Prompt: "x", Tokens: 100, Threads: 1,
		NoRepack: true, Pause: 10, Repeat: 1 << 20}
	for name, tc := range map[string]struct {
		container testenv.Container
		want      string // a part of the message
	}{
		"user namespace": {testenv.Container{User: true}, "user namespace"},
		"no proc":        {testenv.Container{NoProc: true}, "mount proc"},
		"no types":       {testenv.Container{First: "mount -t tmpfs tmpfs /sys/kernel/btf"}, "/sys/kernel/btf"},
		"no cgroup":      {testenv.Container{Cgroup: true}, "--budget"},
	} {
		t.Run(name, func(t *testing.T) {
			if group, err := cgroup.Find(0); tc.container.Cgroup && (err != nil || group.Name() == "/") {
				t.Skip("the tests run in the root cgroup, which a cgroup namespace shows completely")
			}
			script := `helper=$1; shift; "$@" > /dev/null & "$helper" --wait --pid $!; status=$?; kill $!; exit $status`
			args := append([]string{"sh", "-c", script, "sh", prefetchd}, in.Command(t.Context(), o).Args...)
			cmd := tc.container.Command(args...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			stop := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
			defer stop.Stop()
			_ = cmd.Run()
			if text := stderr.String(); cmd.ProcessState.ExitCode() != 1 ||
				!strings.HasPrefix(text, "prefetchd: ") || !strings.Contains(text, tc.want) ||
				strings.Count(text, "\n") != 1 {
				t.Errorf("status %d, %q, want status 1 and one line with %q",
					cmd.ProcessState.ExitCode(), text, tc.want)
			}
		})
	}
}
