package proc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"tensorcast/internal/testenv"
)

// A process in another mount namespace knows other files by the same paths.
func TestHostPath(t *testing.T) {
	testenv.NeedRoot(t)
	ours, theirs := t.TempDir(), t.TempDir()
	both, hidden, only, replaced := filepath.Join(ours, "both"), filepath.Join(ours, "hidden"), filepath.Join(ours, "only"), filepath.Join(ours, "replaced")
	for _, path := range []string{both, hidden, replaced, filepath.Join(theirs, "hidden"), filepath.Join(theirs, "only"), filepath.Join(theirs, "replaced")} {
		if err := os.WriteFile(path, []byte(path), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(both, filepath.Join(theirs, "both")); err != nil {
		t.Fatal(err)
	}
	inode := func(path string) uint64 {
		t.Helper()
		id, err := FileOf(path)
		if err != nil {
			t.Fatal(err)
		}
		return id.Ino
	}
	cmd := exec.Command("unshare", "--mount", "sh", "-c", `mount --bind "$1" "$0" && exec sleep 600`, ours, theirs)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := cmd.Process.Pid
	inside := func(path string) string { return fmt.Sprintf("/proc/%d/root%s", pid, path) }
	testenv.WaitFor(t, "the process to have mounts of its own", func() bool {
		_, err := os.Stat(inside(only))
		return err == nil
	})
	nowhere := filepath.Join(ours, "nowhere")
	for _, tc := range []struct {
		name string
		path string
		ino  uint64
		want string
	}{
		{"the same file", both, 0, both},
		{"the same file, by inode", both, inode(both), both},
		{"another file", hidden, 0, inside(hidden)},
		{"theirs, by inode", hidden, inode(filepath.Join(theirs, "hidden")), inside(hidden)},
		{"ours, by inode", hidden, inode(hidden), hidden},
		{"only theirs", only, 0, inside(only)},
		{"neither, by inode", replaced, 1, inside(replaced)},
		{"no file", nowhere, 0, nowhere},
		{"no file, by inode", nowhere, 7, nowhere},
	} {
		if got := HostPath(pid, tc.path, tc.ino); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := HostPath(pid, hidden, 0); got != hidden {
		t.Errorf("of a process that is gone: %s, want %s", got, hidden)
	}
}
