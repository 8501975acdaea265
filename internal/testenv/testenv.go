// Package testenv is for tests of several packages: root, commands built for a test, patience.
package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// NeedMachine skips the test where only what needs no machine of its own is wanted: no root, no network, no llama.cpp, no patience (go test -short).
func NeedMachine(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("not with -short: it needs root, a llama.cpp, or time")
	}
}

// NeedRoot skips the test with a reason unless it runs as root; in CI (the variable CI is set) it fails instead. It implies NeedMachine.
func NeedRoot(t testing.TB) {
	t.Helper()
	NeedMachine(t)
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("CI must run this test as root")
	}
	t.Skip("eBPF probes and memory cgroups need root")
}

// BuildCommand builds the command of the package in the working directory of the test, for TestMain, and returns its path
// and a function that removes it.
func BuildCommand(name string) (path string, remove func(), err error) {
	return BuildPackage(name, ".")
}

// BuildPackage does that with another command's package ("tensorcast/cmd/tracer").
func BuildPackage(name, pkg string) (path string, remove func(), err error) {
	dir, err := os.MkdirTemp("", name+"-test")
	if err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	path = filepath.Join(dir, name)
	// giouring's link to a guarded symbol: see the Makefile.
	cmd := exec.Command("go", "build", "-ldflags=-checklinkname=0", "-o", path, pkg)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		remove()
		return "", nil, err
	}
	// Tests run it as another user, too.
	if err := os.Chmod(dir, 0o755); err != nil {
		remove()
		return "", nil, err
	}
	return path, remove, nil
}

// WaitFor waits until done, at most a minute: that something happens at all is tested, never how fast.
func WaitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
