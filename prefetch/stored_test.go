package prefetch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/pattern"
)

// A process's models are found by what they are, not by their names, with the place where they are mapped.
func TestMappedModels(t *testing.T) {
	plan, err := synth.NewPlan(synth.Config{Layers: 1, Embd: 64, FF: 64, Heads: 2, KVHeads: 2, Vocab: 300, Ctx: 64, Type: gguf.Q8_0, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "a name")
	if err := plan.WriteFile(t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "no.gguf")
	if err := os.WriteFile(other, make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	mapped := map[string][]byte{}
	for _, p := range []string{path, other} {
		f, err := os.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if mapped[p], err = unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED); err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(mapped[p])
	}
	models := MappedModels(os.Getpid())
	for range 2 {
		m, err := models()
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Files) != 1 || len(m.Mapped) != 1 || m.Mapped[0] != (Mapped{path, idOf(t, path), uint64(uintptr(unsafe.Pointer(&mapped[path][0])))}) {
			t.Fatalf("found %+v", m)
		}
		part, err := gguf.OpenPart(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := pattern.FilesOf(part)
		if err != nil || m.Files[0] != want[0] {
			t.Errorf("%+v, want %+v, %v", m.Files, want, err)
		}
	}
	if _, err := MappedModels(1 << 22)(); !errors.Is(err, proc.ErrNoProcess) {
		t.Errorf("a process that is not there: %v", err)
	}
}
