package main

// This file tests what a capture says about the memory limit and the disk.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/confine"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
)

// A capture has the memory limit of the target, and the cached measurement of its model's disk.
func TestSurroundings(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	root, err := cgroup.Root()
	if err != nil {
		t.Skip(err)
	}
	group, err := cgroup.Create(root, "tensorcast-surroundings-"+fmt.Sprint(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	}()
	const limit = 512 << 20
	if err := group.SetLimit(limit); err != nil {
		t.Fatal(err)
	}
	model := llamatest.Model(t, denseModel)
	var st unix.Stat_t
	if err := unix.Stat(model, &st); err != nil {
		t.Fatal(err)
	}
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	home, dir := t.TempDir(), filepath.Join(t.TempDir(), "capture")
	kept, err := json.Marshal(map[string]measurement{device: {123456789, time.Now()}, "1:1": {1, time.Now()}})
	err = errors.Join(err, os.MkdirAll(filepath.Join(home, "tensorcast"), 0o755),
		os.WriteFile(filepath.Join(home, "tensorcast", "bandwidths.json"), kept, 0o644))
	if err != nil {
		t.Fatal(err)
	}
	// A target that ends within tracer's interval of a second cannot be examined any more.
	target := in.Command(t.Context(), llama.Options{
		Model: model, Prompt: "a b", Tokens: 50, Repeat: 150, Threads: 1, NoRepack: true,
	}).Args
	args := append([]string{tracerBinary, "-o", dir, "--"}, target...)
	args = confine.In(group, args, "")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+home)
	if r := finish(t, cmd); r.status != 0 {
		t.Fatalf("status %d, want 0: %s", r.status, r.stderr)
	}
	c, err := trace.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, d := c.Meta.Memory, c.Meta.Disk
	if m == nil || m.LimitBytes != limit || !strings.Contains(m.Of, group.Name()) || m.OtherBytes <= 0 ||
		m.OtherBytes > limit {
		t.Errorf("memory %+v, want %d of %s", m, limit, group.Name())
	}
	if d == nil || d.Device != device || d.BytesPerSecond != 123456789 {
		t.Errorf("disk %+v, want %s with the cached bandwidth", d, device)
	}
}

// A disk is measured once, after the target's end, and only if that is allowed. The cached
// measurement is valid for a week.
func TestDiskIsMeasuredOnce(t *testing.T) {
	dir := t.TempDir()
	model := filepath.Join(dir, "model")
	if err := os.WriteFile(model, make([]byte, 64<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(model, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		t.Skipf("no direct I/O here: %v", err)
	}
	unix.Close(fd)
	endedPID := func() int {
		c := exec.Command("true")
		if err := c.Run(); err != nil {
			t.Fatal(err)
		}
		return c.Process.Pid
	}()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	s := &surroundings{probe: true, cache: filepath.Join(dir, "cache", "disks.json"), log: log}
	m, d := s.describe(os.Getpid(), model, false)
	if m == nil || d == nil || d.Device == "" || d.BytesPerSecond != 0 {
		t.Errorf("during the capture: %+v, %+v; want the limit, and the disk without a bandwidth", m, d)
	}
	if _, d := s.describe(os.Getpid(), model, true); d == nil || d.BytesPerSecond != 0 {
		t.Errorf("after the capture of a process that goes on: %+v, want no bandwidth", d)
	}
	forbidden := &surroundings{cache: s.cache, log: log}
	if _, d := forbidden.describe(endedPID, model, true); d == nil || d.BytesPerSecond != 0 {
		t.Errorf("without permission to measure: %+v, want no bandwidth", d)
	}
	m, d = s.describe(endedPID, model, true)
	if m != nil || d == nil || d.BytesPerSecond < 1e6 {
		t.Fatalf("after the end: %+v, %+v; want no limit, and the bandwidth", m, d)
	}
	if _, again := s.describe(os.Getpid(), model, false); *again != *d {
		t.Errorf("%+v, want the cached measurement: %+v", again, d)
	}
	old, err := json.Marshal(map[string]measurement{d.Device: {5, time.Now().Add(-2 * maxAge)}})
	if err := errors.Join(err, os.WriteFile(s.cache, old, 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, d := s.describe(os.Getpid(), model, false); d.BytesPerSecond != 0 {
		t.Errorf("with an old measurement: %+v, want no bandwidth", d)
	}
	for _, text := range []string{"", "null", "[", `{"a": {"bytes_per_second": -1}}`} {
		if err := os.WriteFile(s.cache, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if known := s.readCache(); known == nil || len(known) != 0 {
			t.Errorf("cache %q: %v, want an empty map", text, known)
		}
	}
	if _, d := s.describe(os.Getpid(), filepath.Join(dir, "none"), true); d != nil {
		t.Errorf("without a file: %+v, want nil", d)
	}
}
