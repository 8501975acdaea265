package preload

// This file compares the Go types of the shared memory with wire.h.

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"tensorcast/ggml"
)

// The Go types of the shared memory match wire.h as the C compiler lays it out. If this fails, `go
// generate ./capture/preload` was forgotten.
func TestWireIsTheShims(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"wire.h", "defs.go"} {
		if err := copyFile(filepath.Join(dir, name), name); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sh", "-c", "go tool cgo -godefs defs.go | gofmt")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	made, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile("wire_defs.go")
	if err != nil {
		t.Fatal(err)
	}
	if len(made) == 0 || string(made) != string(committed) {
		t.Errorf("wire_defs.go is not what wire.h says:\n%s", made)
	}
	if sampleBytes != ggml.TensorBytes {
		t.Errorf("samples of %d bytes, but %d are looked at", sampleBytes, ggml.TensorBytes)
	}
}
