package testenv

// This file has tests of several packages take turns.

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// Files that are locked by the test whose turn it is. Only root uses them, because only root runs such tests.
const (
	turnFile = "/run/tensorcast-tests.lock"
	diskFile = "/run/tensorcast-tests-readahead.lock"
)

// NeedQuiet waits until no other test that goes by how fast a process is runs on this machine, and keeps such tests
// waiting until this one ends: go test runs several packages beside each other. Tests that only wait for what happens
// do not call it. It implies NeedRoot. Where there can be no lock, the test runs without.
func NeedQuiet(t testing.TB) {
	t.Helper()
	takeTurn(t, turnFile, "which needs a quiet machine")
}

// NeedReadahead is the same for tests that change a disk's readahead, or go by what it is. A test that calls both calls
// NeedQuiet first.
func NeedReadahead(t testing.TB) {
	t.Helper()
	takeTurn(t, diskFile, "which needs the disk's readahead as it is")
}

func takeTurn(t testing.TB, path, why string) {
	t.Helper()
	NeedRoot(t)
	fd, err := lockTurn(path, func() { t.Log("waiting for another test, " + why) })
	if err != nil {
		t.Logf("tests of several packages may disturb each other: %v", err)
		return
	}
	t.Cleanup(func() {
		if err := unix.Close(fd); err != nil {
			t.Errorf("unlock %s: %v", path, err)
		}
	})
}

// lockTurn locks a file, which it makes if there is none. It calls waiting once if it has to wait. The lock is released
// when the descriptor is closed.
func lockTurn(path string, waiting func()) (fd int, err error) {
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	how := unix.LOCK_EX | unix.LOCK_NB
	for {
		switch err = unix.Flock(fd, how); err {
		case nil:
			return fd, nil
		case unix.EWOULDBLOCK:
			waiting()
			how = unix.LOCK_EX
		case unix.EINTR: // the runtime's own signals
		default:
			_ = unix.Close(fd)
			return -1, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}
