package main

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

// A capture tells of the limit that the target runs in, and of its model's disk what was measured before.
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
	if err := errors.Join(err, os.MkdirAll(filepath.Join(home, "tensorcast"), 0o755), os.WriteFile(filepath.Join(home, "tensorcast", "bandwidths.json"), kept, 0o644)); err != nil {
		t.Fatal(err)
	}
	// Whoever ends within tracer's interval of a second cannot be asked any more.
	target := in.Command(t.Context(), llama.Options{Model: model, Prompt: "a b", Tokens: 50, Repeat: 150, Threads: 1, NoRepack: true}).Args
	args := append([]string{tracerBinary, "-o", dir, "--"}, target...)
	args = confine.In(group, args, "")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+home)
	if r := finish(t, cmd); r.status != 0 {
		t.Fatalf("%d: %s", r.status, r.stderr)
	}
	c, err := trace.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, d := c.Meta.Memory, c.Meta.Disk
	if m == nil || m.LimitBytes != limit || !strings.Contains(m.Of, group.Name()) || m.OtherBytes <= 0 || m.OtherBytes > limit {
		t.Errorf("memory %+v, want %d of %s", m, limit, group.Name())
	}
	if d == nil || d.Device != device || d.BytesPerSecond != 123456789 {
		t.Errorf("disk %+v, want %s", d, device)
	}
}

// A disk is measured once, when the target has ended, and only if that is allowed. What was kept is believed for a week.
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
	gonePID := func() int {
		c := exec.Command("true")
		if err := c.Run(); err != nil {
			t.Fatal(err)
		}
		return c.Process.Pid
	}()
	s := &surroundings{probe: true, cache: filepath.Join(dir, "cache", "disks.json"), log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if m, d := s.tell(os.Getpid(), model, false); m == nil || d == nil || d.Device == "" || d.BytesPerSecond != 0 {
		t.Errorf("while it runs: %+v, %+v", m, d)
	}
	if _, d := s.tell(os.Getpid(), model, true); d == nil || d.BytesPerSecond != 0 {
		t.Errorf("of a process that goes on: %+v", d)
	}
	if _, d := (&surroundings{cache: s.cache, log: s.log}).tell(gonePID, model, true); d == nil || d.BytesPerSecond != 0 {
		t.Errorf("though it was not allowed: %+v", d)
	}
	m, d := s.tell(gonePID, model, true)
	if m != nil || d == nil || d.BytesPerSecond < 1e6 {
		t.Fatalf("at the end: %+v, %+v", m, d)
	}
	if _, again := s.tell(os.Getpid(), model, false); *again != *d {
		t.Errorf("%+v, want what was measured: %+v", again, d)
	}
	old, err := json.Marshal(map[string]measurement{d.Device: {5, time.Now().Add(-2 * measuredFor)}})
	if err := errors.Join(err, os.WriteFile(s.cache, old, 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, d := s.tell(os.Getpid(), model, false); d.BytesPerSecond != 0 {
		t.Errorf("%+v of long ago", d)
	}
	for _, text := range []string{"", "null", "[", `{"a": {"bytes_per_second": -1}}`} {
		if err := os.WriteFile(s.cache, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if known := s.measured(); known == nil || len(known) != 0 {
			t.Errorf("%q: %v", text, known)
		}
	}
	if _, d := s.tell(os.Getpid(), filepath.Join(dir, "none"), true); d != nil {
		t.Errorf("of no file: %+v", d)
	}
}
