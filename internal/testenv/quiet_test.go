package testenv

// This file tests that tests take turns.

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Who comes second says so, and waits until the first has ended.
func TestLockTurn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := lockTurn(path, func() { t.Error("the first one waits") })
	if err != nil {
		t.Fatal(err)
	}
	waits, got := make(chan struct{}), make(chan error, 1)
	go func() {
		fd, err := lockTurn(path, func() { close(waits) })
		if err == nil {
			err = unix.Close(fd)
		}
		got <- err
	}()
	<-waits
	select {
	case err := <-got:
		t.Fatalf("the second one did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := unix.Close(first); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
	if _, err := lockTurn(t.TempDir(), nil); err == nil {
		t.Error("a directory was locked")
	}
}
