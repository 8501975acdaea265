package llamatest

// This file makes synthetic models.

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"tensorcast/experiments/synth"
)

// keptBytes bounds what [Model] keeps in memory of the models that it has made.
const keptBytes = 512 << 20

// kept holds models that this process has made. The race detector makes synthesis slow (seconds for
// 100 MB), and some packages need the same model for each of dozens of tests.
var kept struct {
	sync.Mutex
	models map[synth.Config][]byte
	bytes  int64
}

// Model writes a synthetic model to a file of the test's own and returns its path.
func Model(t testing.TB, cfg synth.Config) string {
	t.Helper()
	model, err := bytesOf(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(path, model, 0o644); err != nil { // a test may run its target as another user
		t.Fatal(err)
	}
	return path
}

// bytesOf returns a model's file.
func bytesOf(ctx context.Context, cfg synth.Config) ([]byte, error) {
	kept.Lock()
	defer kept.Unlock()
	if model, ok := kept.models[cfg]; ok {
		return model, nil
	}
	plan, err := synth.NewPlan(cfg)
	if err != nil {
		return nil, err
	}
	var model bytes.Buffer
	if err := plan.Write(ctx, &model, nil); err != nil {
		return nil, err
	}
	if size := int64(model.Len()); kept.bytes+size <= keptBytes {
		if kept.models == nil {
			kept.models = map[synth.Config][]byte{}
		}
		kept.models[cfg], kept.bytes = model.Bytes(), kept.bytes+size
	}
	return model.Bytes(), nil
}

// Trained returns the path of a trained model in ../shared/data/models, seen from the module's
// directory. It skips the test where there is no model of this name.
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
