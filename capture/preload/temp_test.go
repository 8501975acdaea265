package preload

// This file tests the temporary directories of sessions.

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// The next session removes what a killed one left. Directories of living sessions, and those of no
// session, stay.
func TestAbandonedDirectories(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[b]*")
	outside := t.TempDir()
	keep := map[string]bool{}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, kept := range map[string]bool{
		"x-abandoned": false, "other-notes": true, "x-writable": true, "x-others": os.Geteuid() == 0,
	} {
		path := filepath.Join(dir, name)
		must(os.MkdirAll(path, 0o755))
		must(os.WriteFile(filepath.Join(path, "shim.so"), nil, 0o600))
		keep[path] = kept
	}
	must(os.Chmod(filepath.Join(dir, "x-writable"), 0o777))
	if os.Geteuid() == 0 {
		must(os.Chown(filepath.Join(dir, "x-others"), 65534, 65534))
	}
	file := filepath.Join(outside, "precious")
	must(os.WriteFile(file, nil, 0o600))
	must(os.Symlink(outside, filepath.Join(dir, "x-link")))
	must(os.WriteFile(filepath.Join(dir, "x-file"), nil, 0o600))
	keep[file], keep[filepath.Join(dir, "x-link")], keep[filepath.Join(dir, "x-file")] = true, true, true
	first, err := newTemporary(dir, "x-")
	must(err)
	second, err := newTemporary(dir, "x-")
	must(err)
	keep[first.path], keep[second.path] = true, true
	for path, want := range keep {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s is kept: %v, want %v", path, err == nil, want)
		}
	}
	must(errors.Join(first.remove(), second.remove()))
	for _, temp := range []*temporary{first, second} {
		if _, err := os.Lstat(temp.path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v; want %v", temp.path, err, os.ErrNotExist)
		}
	}
}
