// Package devicetest runs a device in the process of a test.
package devicetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"tensorcast/fabric/device"
)

// Running is a device that serves.
type Running struct {
	Device *device.Device
	Socket string
	// Stop ends it, as the test's end does, and waits until it has ended. Any number of calls is fine.
	Stop func()
}

// Start runs a device at a socket of its own.
func Start(t testing.TB, o device.Options) Running {
	t.Helper()
	socket := filepath.Join(Dir(t), "s")
	d, err := device.Listen(socket, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background()) // the test's own ends before its cleanups
	done := make(chan error, 1)
	go func() { done <- d.Serve(ctx) }() // Stop waits for it
	stop := sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, d.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return Running{d, socket, stop}
}

// Dir makes a directory that only this user can enter, as a device's socket needs.
func Dir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
