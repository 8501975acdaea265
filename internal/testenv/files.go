package testenv

// This file helps tests with files.

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// PublicDir creates a directory that every user can reach. It is removed at the end of the test.
func PublicDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// WaitMapped waits until a process maps a file.
func WaitMapped(t testing.TB, pid int, path string) {
	t.Helper()
	WaitFor(t, fmt.Sprintf("process %d to map %s", pid, path), func() bool {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		if errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("process %d has ended", pid)
		}
		return err == nil && bytes.Contains(maps, []byte(path+"\n"))
	})
}
