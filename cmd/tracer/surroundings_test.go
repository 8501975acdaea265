package main

// This file tests what a capture says about the memory limit and the disk.

import (
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
	"tensorcast/internal/disk"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
	"tensorcast/trace/tables"
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
	is, err := disk.Find(uint64(unix.Major(st.Dev))<<20 | uint64(unix.Minor(st.Dev)))
	if err != nil || is.Identity == "" {
		t.Skipf("this machine does not tell which disk it is: %v", err)
	}
	const kept = 1 << 50 // faster than any target reads
	speeds := disk.Speeds(filepath.Join(home, disk.FileName))
	if err := errors.Join(speeds.Put(is, disk.SpeedOf(kept)),
		speeds.Put(disk.Disk{Identity: "another"}, disk.SpeedOf(1))); err != nil {
		t.Fatal(err)
	}
	// A target that ends within tracer's interval of a second cannot be examined any more.
	target := in.Command(t.Context(), llama.Options{
		Model: model, Prompt: "a b", Tokens: 50, Repeat: 15, Pause: 5, Threads: 1, NoRepack: true,
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
	if d == nil || d.Device != device || d.Identity != is.Identity || d.BytesPerSecond != kept {
		t.Errorf("disk %+v, want %s, %s, with the kept measurement", d, device, is.Identity)
	}
	if rate := c.Meta.Host.MemoryBytesPerSecond; rate < 1e8 || rate > 1e13 {
		t.Errorf("memory of %g bytes per second, want 1e8 to 1e13", rate)
	}
}

// A disk is measured after the target's end, and only if that is allowed, unless it was some minutes before; again if
// that is wanted, or if a target reads faster. So is memory, once.
func TestDiskIsMeasuredOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model")
	if err := os.WriteFile(path, make([]byte, 64<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT, 0)
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
	s := &surroundings{probe: true, speeds: disk.Speeds(filepath.Join(dir, "cache", "speeds.json")), log: log}
	model := trace.Seen{Path: path}
	describe := func(s *surroundings, pid int, model trace.Seen, over bool) *tables.Disk {
		return s.describe(pid, model, over).Disk
	}
	a := s.describe(os.Getpid(), model, false)
	if d := a.Disk; a.Memory == nil || d == nil || d.Device == "" || d.BytesPerSecond != 0 || a.MemoryRate != 0 {
		t.Fatalf("during the capture: %+v, %+v; want the limit, and the disk without a bandwidth", a, d)
	}
	d := a.Disk
	if d.Identity == "" {
		t.Skipf("this machine does not tell which disk %s is", d.Device)
	}
	if d := describe(s, os.Getpid(), model, true); d == nil || d.BytesPerSecond != 0 {
		t.Errorf("after the capture of a process that goes on: %+v, want no bandwidth", d)
	}
	forbidden := &surroundings{speeds: s.speeds, log: log}
	a = forbidden.describe(endedPID, model, true)
	if a.Disk == nil || a.Disk.BytesPerSecond != 0 || a.MemoryRate != 0 {
		t.Errorf("without permission to measure: %+v, %+v, want no bandwidth", a, a.Disk)
	}
	a = s.describe(endedPID, model, true)
	if d = a.Disk; a.Memory != nil || d == nil || d.BytesPerSecond < 1e6 || d.Least > d.BytesPerSecond ||
		d.Most < d.BytesPerSecond || time.Since(d.Measured) > time.Minute || a.MemoryRate < 1e8 {
		t.Fatalf("after the end: %+v, %+v; want no limit, and the bandwidths", a, d)
	}
	if again := describe(s, os.Getpid(), model, false); *again != *d {
		t.Errorf("%+v, want the kept measurement: %+v", again, d)
	}
	old := disk.SpeedOf(2 * d.BytesPerSecond)
	old.Measured = old.Measured.Add(-2 * disk.FreshFor)
	if err := s.speeds.Put(disk.Disk{Identity: d.Identity}, old); err != nil {
		t.Fatal(err)
	}
	d = describe(s, os.Getpid(), model, true)
	if d.BytesPerSecond != old.BytesPerSecond || !d.Measured.Equal(old.Measured) {
		t.Errorf("of a process that goes on: %+v, want the old measurement and its time: %+v", d, old)
	}
	d = describe(s, endedPID, model, true)
	if d.BytesPerSecond == old.BytesPerSecond || d.Measured.Equal(old.Measured) {
		t.Errorf("after the end: %+v, want a new measurement", d)
	}

	const wrong = 5e6
	put := func(speed float64) {
		if err := s.speeds.Put(disk.Disk{Identity: d.Identity}, disk.SpeedOf(speed)); err != nil {
			t.Fatal(err)
		}
	}
	put(wrong)
	slow, fast := model, model
	slow.BytesPerSecond, fast.BytesPerSecond = wrong, 2*wrong
	if d := describe(s, endedPID, slow, true); d.BytesPerSecond != wrong {
		t.Errorf("of a target that reads as fast as was measured: %+v, want %g", d, wrong)
	}
	if d := describe(s, os.Getpid(), fast, false); d.BytesPerSecond != fast.BytesPerSecond {
		t.Errorf("while a target reads faster than was measured: %+v, want what it reads, %g", d, fast.BytesPerSecond)
	}
	if d := describe(s, endedPID, fast, true); d.BytesPerSecond <= fast.BytesPerSecond {
		t.Errorf("after a target has read faster than was measured: %+v, want more than %g", d, fast.BytesPerSecond)
	}
	impossible := model
	impossible.BytesPerSecond = 1 << 50
	if d := describe(s, endedPID, impossible, true); d.BytesPerSecond != impossible.BytesPerSecond {
		t.Errorf("the disk was slow when it was measured again: %+v, want what the target has read, %g", d,
			impossible.BytesPerSecond)
	}
	put(wrong)
	s.again = true
	if d := describe(s, endedPID, model, true); d.BytesPerSecond <= wrong {
		t.Errorf("measured again: %+v, want more than %g", d, wrong)
	}
	if d := describe(s, os.Getpid(), trace.Seen{Path: filepath.Join(dir, "none")}, true); d != nil {
		t.Errorf("without a file: %+v, want nil", d)
	}
}

// What is on a tmpfs has no disk, whatever had its device number before.
func TestMemoryIsNoDisk(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(file, make([]byte, 64<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(testenv.Mount(t, "tmpfs", file), "model")
	s := &surroundings{probe: true, log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	d, err := s.describeDisk(trace.Seen{Path: path}, true)
	if err != nil || d.BytesPerSecond != 0 || d.Identity != "" {
		t.Errorf("%+v, %v; want no bandwidth and no identity", d, err)
	}
}
