package proc

// This file tests that WatchMaps notices mappings, also after an execve, and nothing else.

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"testing"
	"time"

	"tensorcast/internal/testenv"
)

func TestWatchMaps(t *testing.T) {
	testenv.NeedRoot(t)
	cmd := exec.Command("sh", "-c", `read x; exec cat`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	p, err := Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ease, err := KeepWatchReady()
	if err != nil {
		t.Skipf("perf events are not permitted here: %v", err) // in a container
	}
	defer ease.Close()
	w, err := p.WatchMaps()
	if err != nil {
		t.Fatal(err) // perf events work, as KeepWatchReady has shown
	}
	defer w.Close()
	waitForQuiet := func() {
		t.Helper()
		for began := time.Now(); ; { // until it has mapped everything that its start maps
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			err := w.Wait(ctx)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				return
			}
			if err != nil || time.Since(began) > time.Minute {
				t.Fatalf("a process that waits maps something: %v", err)
			}
		}
	}
	waitForQuiet()
	sendLine := func() {
		t.Helper()
		if _, err := io.WriteString(in, "line\n"); err != nil {
			t.Fatal(err)
		}
	}
	sendLine() // it becomes cat, which maps libraries
	if err := w.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitForQuiet()
	sendLine()
	if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	waitForQuiet() // it has copied a line, and mapped nothing
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; err = w.Wait(t.Context()) { // it may notice mappings at its end
	}
	if !errors.Is(err, ErrNoProcess) {
		t.Errorf("Wait after the end: error %v, want %v", err, ErrNoProcess)
	}
	if _, err := p.WatchMaps(); !errors.Is(err, ErrNoProcess) {
		t.Errorf("WatchMaps after the end: error %v, want %v", err, ErrNoProcess)
	}
}
