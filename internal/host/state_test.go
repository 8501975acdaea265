package host

// This file tests what is said of a machine's state, on texts whose shares are known.

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/procfs"
)

func TestState(t *testing.T) {
	var s State
	s.setShares(&procfs.CPUStat{User: 10, Idle: 100, Steal: 1},
		&procfs.CPUStat{User: 11, System: 1, IRQ: 1, Idle: 104, Iowait: 1, Steal: 3})
	if s.Busy != 0.3 || s.Steal != 0.2 {
		t.Errorf("%+v, want 3 of 10 s busy and 2 of 10 stolen", s)
	}
	s = State{}
	if s.setShares(&procfs.CPUStat{User: 10}, &procfs.CPUStat{User: 9}); s != (State{}) {
		t.Errorf("%+v of a counter that goes backwards, want nothing", s)
	}

	dir := t.TempDir()
	for name, text := range map[string]string{"stat": "cpu 10 0 0 100 0 0 0 0 0 0\n", "loadavg": "0.5 0.2 0.1 1/2 3\n",
		"meminfo": "MemTotal: 2048 kB\nMemAvailable: 1024 kB\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := watch(t.Context(), time.Millisecond, dir)
	if err != nil || s.Load != 0.5 || s.Available != 1<<20 || s.Busy != 0 || time.Since(s.Time) > time.Minute {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := watch(t.Context(), 0, filepath.Join(dir, "none")); err != nil || s.Load != 0 {
		t.Errorf("without /proc: %+v, %v; want an empty state", s, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := watch(ctx, time.Hour, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
}
