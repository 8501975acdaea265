// Package cgrouptest lets tests make control groups.
package cgrouptest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/testenv"
)

// Need skips the test, with the reason, where control groups for memory cannot be made, and returns the one below which
// they can. It implies testenv.NeedRoot.
func Need(t testing.TB) *cgroup.Group {
	t.Helper()
	testenv.NeedRoot(t)
	root, err := cgroup.Root()
	if errors.Is(err, cgroup.ErrNoController) {
		t.Skipf("there are no control groups for memory here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	probe, err := cgroup.Create(root, fmt.Sprintf("tensorcast-test-%d-%s", os.Getpid(), filepath.Base(t.Name())))
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EBUSY) {
		t.Skipf("control groups cannot be made here: %v", err) // in a container
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := probe.Remove(); err != nil {
		t.Fatal(err)
	}
	return root
}
