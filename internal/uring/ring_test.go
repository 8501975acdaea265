package uring

// This file tests features that only the ring has: refusal by the system, cancelling, and limits on
// the kernel's workers.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
	"golang.org/x/sys/unix"
)

func TestOpen(t *testing.T) {
	want := newRing(t, 1).Name() // or skipped
	q, err := Open(8)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if q.Name() != want {
		t.Errorf("Open returned %s, want %s", q.Name(), want)
	}
}

// A number of entries that no kernel takes is an error, not a reason for the fallback.
func TestOpenFails(t *testing.T) {
	newRing(t, 1) // or skipped
	for _, entries := range []uint32{0, 1 << 20} {
		if q, err := Open(entries); !errors.Is(err, unix.EINVAL) || errors.Is(err, ErrRefused) {
			t.Errorf("Open(%d): %v, error %v; want EINVAL and not %v", entries, q, err, ErrRefused)
		}
	}
}

// Containers refuse io_uring through seccomp, with one of two errors.
func TestOpenRefused(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EPERM, unix.ENOSYS} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			runtime.LockOSThread() // forever: this thread has the filter now, so it must not run another goroutine
			if err := refuseSyscall(unix.SYS_IO_URING_SETUP, errno); err != nil {
				t.Skipf("seccomp: %v", err)
			}
			if ring, err := New(8); ring != nil || !errors.Is(err, ErrRefused) || !errors.Is(err, errno) {
				t.Errorf("New: %v, error %v; want %v and %v", ring, err, ErrRefused, errno)
			}
			f, content := createOnDisk(t, 100)
			q, err := Open(8)
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			if q.Name() != "system calls" {
				t.Errorf("Open returned %s, want system calls", q.Name())
			}
			buf := make([]byte, 100)
			if q.Read(int(f.Fd()), buf, 0, 1); len(reap(t, q, 1)) != 1 || string(buf) != string(content) {
				t.Errorf("the fallback read %q, want %q", buf, content)
			}
		})
	}
}

// refuseSyscall makes a system call fail in this thread and those that it starts.
func refuseSyscall(number uint32, errno unix.Errno) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number: the first field of struct seccomp_data
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: number},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	runtime.KeepAlive(filter)
	return err
}

// Close cancels a read that would wait forever. Data that arrives later stays in the pipe.
func TestCloseCancels(t *testing.T) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	if release := unix.ByteSliceToString(name.Release[:]); strings.HasPrefix(release, "5.") {
		t.Skipf("Linux %s cannot cancel all operations (6.0 can)", release)
	}
	q := newRing(t, 4)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	bufs := [2][]byte{make([]byte, 4), make([]byte, 4)}
	for i, buf := range bufs {
		q.Read(int(r.Fd()), buf, 0, uint64(i))
	}
	submit(t, q, 2)
	q.Close()
	if _, err := w.WriteString("late"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if n, err := r.Read(got); n != 4 || err != nil || string(got) != "late" {
		t.Errorf("the pipe has %q, %v; want late", got[:n], err)
	}
	for _, buf := range bufs {
		if string(buf) != "\x00\x00\x00\x00" {
			t.Errorf("after Close a buffer contains %q, want zeros", buf)
		}
	}
}

// The kernel starts no more workers for advice than the limit allows.
func TestWorkers(t *testing.T) {
	runtime.LockOSThread() // the workers belong to this thread, and end with it after the test
	const limit, pieces = 2, 256
	q := newRing(t, pieces, WithWorkers(limit))
	f, _ := createOnDisk(t, pieces<<16)
	for i := range int64(pieces) {
		q.Fadvise(int(f.Fd()), i<<16, 1<<16, unix.FADV_WILLNEED, 0)
	}
	submit(t, q, pieces)
	reap(t, q, pieces)

	// Idle workers stay for some seconds.
	names, err := filepath.Glob("/proc/self/task/*/comm")
	if err != nil {
		t.Fatal(err)
	}
	workers := 0
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err == nil && strings.TrimSpace(string(comm)) == fmt.Sprintf("iou-wrk-%d", unix.Gettid()) {
			workers++
		}
	}
	if workers == 0 || workers > limit {
		t.Errorf("%d workers, want 1 to %d", workers, limit)
	}

	if err := q.SetWorkers(limit + 1); err != nil {
		t.Error(err)
	}
	// The kernel returns the previous limits.
	previous := [2]uint32{}
	_, errno := q.ring.Register(q.ring.RingFd(), giouring.RegisterIOWQMaxWorkers, unsafe.Pointer(&previous), 2)
	if errno != 0 || previous != [2]uint32{limit + 1, limit + 1} {
		t.Errorf("limits %v, %v; want %d for both", previous, errno, limit+1)
	}
	if q.Close(); !errors.Is(q.SetWorkers(limit), os.ErrClosed) {
		t.Errorf("Workers of a closed ring gave no error that wraps %v", os.ErrClosed)
	}
}
