// Package testenv helps tests of several packages: it skips tests that need root or a real machine,
// builds commands, and waits for conditions.
package testenv

// This file skips tests, builds commands and waits.

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// NeedMachine skips the test in short mode (go test -short), which is for tests without root,
// network, llama.cpp or long waits.
func NeedMachine(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("not with -short: it needs root, a llama.cpp, or time")
	}
}

// NeedRoot skips the test unless it runs as root; in CI (the variable CI is set) the test fails
// instead. It implies NeedMachine.
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

// NeedLife skips the test unless make life runs it, as CI does. Such a test does all that a user
// does, and takes a minute of both processors.
func NeedLife(t testing.TB) {
	t.Helper()
	if os.Getenv("LIFE") == "" {
		t.Skip("it does all that a user does, for a minute: make life runs it, as CI does")
	}
}

// BuildCommand builds the command in the test's working directory. It returns the path of the
// program, and a function that removes it. It is meant for TestMain.
func BuildCommand(name string) (path string, remove func(), err error) {
	return BuildPackage(name, ".")
}

// BuildPackage is BuildCommand for another package's command ("tensorcast/cmd/tracer").
func BuildPackage(name, pkg string) (path string, remove func(), err error) {
	dir, err := os.MkdirTemp("", name+"-test")
	if err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	path = filepath.Join(dir, name)
	if err := BuildAt(path, pkg); err != nil {
		remove()
		return "", nil, err
	}
	// Tests also run the program as another user.
	if err := os.Chmod(dir, 0o755); err != nil {
		remove()
		return "", nil, err
	}
	return path, remove, nil
}

// BuildAt builds a package's command at path. Errors are those of the build, which has told of them.
func BuildAt(path, pkg string) error {
	// -checklinkname=0 is needed for giouring: see the Makefile. Without tables for debuggers (-s -w) it links in half
	// the time. Other than go build, go run keeps what it has linked for tests of other packages; cp copies that.
	cmd := exec.Command("go", "run", "-ldflags=-checklinkname=0 -s -w", "-exec", "cp", pkg, path)
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

// WaitFor waits until done returns true, at most a minute. Tests check that something happens, not
// how fast.
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
