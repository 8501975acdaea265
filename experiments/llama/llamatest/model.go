package llamatest

// This file makes synthetic models.

import (
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
