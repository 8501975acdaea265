package main

// This file tests --keep-warm.

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
)

// TestKeepWarm checks that pages of a model that fits are read back if others took them while the
// target computes nothing, and that the target's control group pays for them.
func TestKeepWarm(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, 60)
	r.options.Pause = 70 // so that it computes until it is stopped
	r.start()
	h := r.help("--keep-warm")
	testenv.WaitFor(t, "prefetchd to be idle because everything fits", func() bool {
		return strings.Contains(h.stderr.String(), "prefetchd: idle: everything fits")
	})
	pid := r.target.Process.Pid
	// This stands for a server without requests, which computes nothing either.
	if err := r.target.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	full := r.resident()
	pageOut(t, pid, r.options.Model)
	if left := r.resident(); left > full/4 {
		t.Fatalf("%d of %d bytes are still in memory after paging out, want less than a quarter", left, full)
	}
	testenv.WaitFor(t, "the weights to be read back", func() bool { return r.resident() > full*98/100 })
	if s, err := r.group.Stat(); err != nil || s.File < full*9/10 {
		t.Errorf("the control group's memory is %+v (%v), want that it pays for the model's %d bytes", s, err, full)
	}
	if err := r.target.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.finish()
	if s := h.summary(t); s.Warmed < full*7/10 || s.Warmed > full*11/10 || !strings.Contains(s.Idle, "fits") {
		t.Errorf("summary %+v\n%s", s, h.stderr.String())
	}
}

// TestKeepWarmForATime checks that pages are not read back any more when the target has computed nothing for the time
// of --keep-warm, and are when it has computed again.
func TestKeepWarmForATime(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, 40)
	r.options.Repeat, r.options.Pause = 1<<20, 20 // until it is ended
	r.start()
	h := r.help("--keep-warm=3s")
	testenv.WaitFor(t, "prefetchd to be idle because everything fits", func() bool {
		return strings.Contains(h.stderr.String(), "prefetchd: idle: everything fits")
	})
	pid := r.target.Process.Pid
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := r.target.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	full := r.resident()
	signal(syscall.SIGSTOP)
	time.Sleep(6 * time.Second) // prefetchd looks about once a second
	pageOut(t, pid, r.options.Model)
	time.Sleep(4 * time.Second)
	if left := r.resident(); left > full/2 {
		t.Errorf("%d of %d bytes were read back though the target has computed nothing for long", left, full)
	}
	signal(syscall.SIGCONT)
	time.Sleep(2 * time.Second)
	signal(syscall.SIGSTOP)
	pageOut(t, pid, r.options.Model)
	testenv.WaitFor(t, "the weights to be read back", func() bool { return r.resident() > full*98/100 })
	signal(syscall.SIGKILL)
	_ = r.target.Wait()
	if s := h.summary(t); s.Warmed == 0 {
		t.Errorf("summary %+v", s)
	}
}

// pageOut pages out what a process maps of a file.
func pageOut(t *testing.T, pid int, path string) {
	t.Helper()
	p, err := proc.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	fs, err := procfs.NewProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	maps, err := fs.ProcMaps()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range maps {
		if m.Pathname != path {
			continue
		}
		if err := p.PageOut(uint64(m.StartAddr), int64(m.EndAddr-m.StartAddr)); err != nil {
			t.Fatal(fmt.Errorf("page out %s: %w", path, err))
		}
	}
}
