package pages

// This file tests which head is read, and how much of it.

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/testenv"
)

// The head of the largest model that a command line names is read, as far as there is room.
func TestNamedHead(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	write := func(name string, layers int) string {
		plan, err := synth.NewPlan(synth.Config{
			Layers: layers, Embd: 512, FF: 2048, Heads: 2, KVHeads: 2, Vocab: 300, Ctx: 64, Type: gguf.Q8_0, Seed: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := plan.WriteFile(t.Context(), filepath.Join(dir, name), nil); err != nil {
			t.Fatal(err)
		}
		return name
	}
	model, draft, part := write("model.gguf", 6), write("draft.gguf", 1), write("model-00001-of-00002.gguf", 1)
	if err := os.WriteFile("none.gguf", make([]byte, 64<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	size := func(name string) int64 {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	for name, tc := range map[string]struct {
		args  []string
		most  int64
		want  int64 // bytes; 0: none is named
		named int64 // bytes of all that are named; 0: not known
	}{
		"all": {[]string{"llama-cli", "-m", model, "-md", draft, "-n", "1"},
			1 << 30, size(model), size(model) + size(draft)},
		"after =":       {[]string{"llama-cli", "--model=" + model}, 1 << 30, size(model), size(model)},
		"most":          {[]string{"llama-cli", "-m", model}, 12 << 20, 12 << 20, size(model)},
		"budget":        {[]string{"llama-cli", "-m", model}, 9<<20 + 4096, 9<<20 + 4096, size(model)},
		"no room":       {[]string{"llama-cli", "-m", model}, 0, -1, size(model)},
		"none":          {[]string{"llama-cli", "-p", "x"}, 1 << 30, 0, 0},
		"nothing there": {[]string{"llama-cli", "-m", "missing.gguf", "-m", "none.gguf", "-m", dir}, 1 << 30, 0, 0},
		"split":         {[]string{"llama-cli", "-m", model, "-md", part}, 1 << 30, size(model), 0},
	} {
		h := OpenNamedHead(tc.args, tc.most)
		if (h == nil) != (tc.want == 0) {
			t.Errorf("%s: head %v, want one: %v", name, h, tc.want != 0)
			continue
		}
		if h == nil {
			continue
		}
		if h.NamedBytes() != tc.named {
			t.Errorf("%s: NamedBytes = %d, want %d", name, h.NamedBytes(), tc.named)
		}
		testenv.NeedMachine(t)
		f, err := os.OpenFile(model, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if left, err := pagecache.Drop(t.Context(), f); left > 0 || err != nil {
			t.Skipf("%d bytes stay in memory, %v: set TMPDIR to a directory on a disk", left, err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		h.Read(ended)
		h.Read(t.Context())
		want := max(tc.want, 0)
		there, err := pagecache.Resident(f, 0, (want+PageSize-1)/PageSize*PageSize)
		beyond, _ := pagecache.Resident(f, (want+PageSize-1)/PageSize*PageSize, size(model)-want)
		if err != nil || there < want || beyond > 0 {
			t.Errorf("%s: %d bytes are there, and %d beyond; want %d and 0", name, there, beyond, want)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		f.Close()
	}
}
