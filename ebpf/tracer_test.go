package ebpf

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func descriptors(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// Loading, attaching, running and closing leaves no descriptor behind (goroutines: TestMain).
func TestNothingLeaks(t *testing.T) {
	llamatest.NeedRoot(t)
	once := func() {
		tr, err := New(Options{PID: os.Getpid(), RingBytes: 4096})
		if err != nil {
			t.Fatal(err)
		}
		if err := tr.AttachMapped(); err != nil {
			t.Fatal(err)
		}
		if err := tr.Ready(); !errors.Is(err, ErrNoGGML) {
			t.Errorf("a Go test has ggml? %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := tr.Run(ctx, func(e trace.Event) error { t.Errorf("event %+v", e); return nil }); err != nil {
			t.Fatal(err)
		}
		if c, err := tr.Counters(); err != nil || c != (trace.Counters{}) {
			t.Errorf("counters %+v, %v", c, err)
		}
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
	}
	once() // opens what the runtime and the library keep
	before := descriptors(t)
	for range 3 {
		once()
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestLaunch(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "ran")
	child, err := Launch(exec.Command("sh", "-c", "touch "+mark+"; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if _, err := os.Stat(mark); err == nil {
		t.Error("the command ran before Release")
	}
	if err := child.Release(); err != nil {
		t.Fatal(err)
	}
	if status, err := child.Wait(); status != 3 || err != nil {
		t.Errorf("status %d, %v", status, err)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Error("the command did not run")
	}
	if _, err := Launch(exec.Command("/no/such/program")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such program: %v", err)
	}
}

func TestWaitExit(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := WaitExit(ctx, cmd.Process.Pid); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	go func() { _ = cmd.Process.Kill() }()
	if err := WaitExit(t.Context(), cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if err := WaitExit(t.Context(), cmd.Process.Pid); err != nil {
		t.Errorf("gone: %v", err)
	}
}
