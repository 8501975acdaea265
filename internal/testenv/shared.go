package testenv

// This file opens what lies beside the repository and is no part of it.

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// OpenShared opens a file of the directory shared that lies beside the repository, by its path in there. The file is
// closed when the test ends. The test is skipped where there is no such file.
func OpenShared(t testing.TB, path ...string) *os.File {
	t.Helper()
	root, err := filepath.Abs(".") // a test begins in the directory of its package
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if root == filepath.Dir(root) {
			t.Fatal("no directory above has a go.mod")
		}
		root = filepath.Dir(root)
	}
	name := filepath.Join(path...)
	f, err := os.Open(filepath.Join(filepath.Dir(root), "shared", name))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no %s in ../shared", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
