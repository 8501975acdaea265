package room

// This file tests which groups are joined, and how a thread is scheduled.

import (
	"errors"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Without a systemd that answers, no unit is joined. Other groups are.
func TestFragile(t *testing.T) {
	bus := "unix:path=" + filepath.Join(t.TempDir(), "none")
	for group, want := range map[string]string{
		"/":                                   "",
		"/jobs/llama":                         "",
		"/system.slice/a.service":             "/system.slice/a.service",
		"/system.slice/a.service/worker":      "/system.slice/a.service",
		"/u.slice/user@1.service/x/b.service": "/u.slice/user@1.service/x/b.service",
		"/--host=evil.service":                "/--host=evil.service",
		"/run-1.scope":                        "/run-1.scope",
	} {
		if unit, err := findFragileUnit(t.Context(), bus, group); unit != want || (err != nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", group, unit, err, want)
		}
	}
}

// SetUrgent changes the calling thread, and changes it back.
func TestUrgent(t *testing.T) {
	done := make(chan struct{})
	skip := false
	go func() { // the thread ends with it
		defer close(done)
		runtime.LockOSThread()
		policy := func() *unix.SchedAttr {
			a, err := unix.SchedGetAttr(0, 0)
			if err != nil {
				t.Error(err)
				return &unix.SchedAttr{}
			}
			return a
		}
		for range 2 {
			err := SetUrgent(true)
			if skip = errors.Is(err, unix.EPERM); skip {
				return
			}
			resets := func(a *unix.SchedAttr) bool { return a.Flags&unix.SCHED_FLAG_RESET_ON_FORK != 0 }
			if a := policy(); err != nil || a.Policy != unix.SCHED_FIFO || a.Priority != 1 || !resets(a) {
				t.Errorf("urgent: %+v, %v; want SCHED_FIFO at priority 1, reset on fork", a, err)
			}
			err = SetUrgent(false)
			if a := policy(); err != nil || a.Policy != unix.SCHED_NORMAL || a.Nice != niceness {
				t.Errorf("not urgent: %+v, %v; want SCHED_NORMAL at nice value %d", a, err, niceness)
			}
		}
	}()
	<-done
	if skip {
		t.Skip("changing how threads are scheduled takes CAP_SYS_NICE, and a cgroup with time for SCHED_FIFO")
	}
}
