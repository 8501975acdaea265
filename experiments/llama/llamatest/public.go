package llamatest

// This file is for tests that run llama.cpp as another user.

import (
	"os"
	"path/filepath"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/internal/testenv"
)

// Public gives every user a llama.cpp for the time of the test, because the installed one may lie
// in root's home. Its files are hard links or copies, so a test may replace them.
func Public(t testing.TB, in *llama.Installation) *llama.Installation {
	t.Helper()
	dir := testenv.PublicDir(t)
	entries, err := os.ReadDir(in.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		from, err := filepath.EvalSymlinks(filepath.Join(in.Dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, e.Name())
		if os.Link(from, to) == nil {
			continue
		}
		data, err := os.ReadFile(from) // on another file system
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &llama.Installation{Dir: dir, Driver: filepath.Join(dir, filepath.Base(in.Driver))}
}
