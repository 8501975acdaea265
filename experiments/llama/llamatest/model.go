package llamatest

// This file makes synthetic models.

import (
	"os"
	"path/filepath"
	"testing"

	"tensorcast/experiments/synth"
)

// Model writes a synthetic model and returns its path.
func Model(t testing.TB, cfg synth.Config) string {
	t.Helper()
	plan, err := synth.NewPlan(cfg)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := plan.WriteFile(t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	return path
}

// Trained returns the path of a trained model in ../shared/data/models, seen from the module's directory. The test is skipped where that has none of this name.
func Trained(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Skip("the test runs outside the module")
		}
		dir = up
	}
	path := filepath.Join(dir, "..", "shared", "data", "models", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no trained model %s in ../shared/data/models", name)
	}
	return path
}
