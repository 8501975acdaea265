package main

// These tests run prefetchd and its target in containers, which have process ids of their own.

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

var tiny = synth.Config{Layers: 3, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1}

// little makes prefetchd lock a part of the tiny model, which would fit.
var little = []string{"--budget", "1500KB", "--lock", "--always"}

// helpedFromStart starts a target, which stands still until prefetchd, the container's first process, has set up everything: see waitSettled.
const helpedFromStart = `said=$1; shift; helper=$1; shift
"$@" > "$said" & target=$!
kill -STOP $target
( until [ "$(cat /proc/1/oom_score_adj)" = 1000 ]; do sleep 0.05; done; kill -CONT $target ) &
exec "$helper" --wait --budget 1500KB --always --json --pid $target`

// In a container prefetchd follows its target as on the host.
func TestInContainer(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{Model: llamatest.Model(t, tiny), Prompt: "the quick brown fox", Tokens: 100, Threads: 1, NoRepack: true, Repeat: 40}
	plain, err := in.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	said := filepath.Join(t.TempDir(), "said.json")
	args := append([]string{"sh", "-c", helpedFromStart, "sh", said, prefetchd}, in.Command(t.Context(), o).Args...)
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
	// It is attached while the target loads its model, so that it misses a few tokens at most.
	if all := o.Tokens * o.Repeat; s.Tokens < all/2 || s.Tokens > all || s.PerToken < info.Size()/2 || s.Pinned == 0 || s.Learned != 1 {
		t.Errorf("summary %+v of %d tokens", s, all)
	}
	text, err := os.ReadFile(said)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := llama.ParseResult(text); err != nil || got.Text != plain.Text || got.PID > 1000 {
		t.Errorf("the target, process %d, says %q, want %q; %v", got.PID, got.Text, plain.Text, err)
	}
}

// The target is in a container that shows its model to nobody else; prefetchd is not.
func TestContainerFromOutside(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, tiny)
	hidden := filepath.Join(t.TempDir(), "hidden")
	if err := os.Mkdir(hidden, 0o755); err != nil {
		t.Fatal(err)
	}
	o := llama.Options{Model: filepath.Join(hidden, "m.gguf"), Prompt: "x", Tokens: 100, Threads: 1, NoRepack: true, Repeat: 1 << 20}
	shown := t.TempDir()
	if err := os.Link(model, filepath.Join(shown, "m.gguf")); err != nil {
		t.Fatal(err)
	}
	target := testenv.Container{First: fmt.Sprintf("mount --bind %s %s", shown, hidden)}.Command(in.Command(t.Context(), o).Args...)
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = target.Process.Kill(); _ = target.Wait() })
	testenv.WaitMapped(t, target.Process.Pid, o.Model)
	h := waiting(t, target.Process.Pid, little...)
	testenv.WaitFor(t, "the model to be held", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Process.Pid))
		return err == nil && field(status, "VmLck:") > 0
	})
	if err := target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = target.Wait()
	if s := h.summary(t); s.Learned != 1 || s.Tokens == 0 {
		t.Errorf("summary %+v", s)
	}
}

// Where prefetchd cannot work it says so at once, in one line.
func TestUselessContainer(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{Model: llamatest.Model(t, tiny), Prompt: "x", Tokens: 100, Threads: 1, NoRepack: true, Repeat: 1 << 20}
	for name, tc := range map[string]struct {
		container testenv.Container
		says      string
	}{
		"user namespace": {testenv.Container{User: true}, "user namespace"},
		"no proc":        {testenv.Container{NoProc: true}, "mount proc"},
		"no types":       {testenv.Container{First: "mount -t tmpfs tmpfs /sys/kernel/btf"}, "/sys/kernel/btf"},
		"no cgroup":      {testenv.Container{Cgroup: true}, "--budget"},
	} {
		t.Run(name, func(t *testing.T) {
			if group, err := cgroup.Find(0); tc.container.Cgroup && (err != nil || group.Name() == "/") {
				t.Skip("the tests run in the root of the hierarchy, which a cgroup namespace shows whole")
			}
			args := append([]string{"sh", "-c", `helper=$1; shift; "$@" > /dev/null & "$helper" --wait --pid $!; status=$?; kill $!; exit $status`, "sh", prefetchd}, in.Command(t.Context(), o).Args...)
			cmd := tc.container.Command(args...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			stop := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
			defer stop.Stop()
			_ = cmd.Run()
			if text := stderr.String(); cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(text, "prefetchd: ") || !strings.Contains(text, tc.says) || strings.Count(text, "\n") != 1 {
				t.Errorf("status %d: %s", cmd.ProcessState.ExitCode(), text)
			}
		})
	}
}
