package prefetch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/proc"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

func TestWeightsHold(t *testing.T) {
	w := Weights{{100, 200}, {200, 300}, {400, 500}}
	for _, tc := range []struct {
		offset, end int64
		want        bool
	}{
		{100, 200, true}, {150, 160, true}, {100, 201, false}, {200, 300, true}, {199, 201, false}, {99, 150, false}, {300, 400, false}, {350, 450, false}, {499, 500, true}, {500, 501, false}, {0, 1, false},
	} {
		if got := w.Hold(tc.offset, tc.end); got != tc.want {
			t.Errorf("%d to %d: %v", tc.offset, tc.end, got)
		}
	}
	if (Weights{}).Hold(0, 1) {
		t.Error("no weights hold something")
	}
}

func TestReadWeights(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	m := &gguftest.Model{Tensors: []gguftest.Tensor{{Name: "a", Shape: []int64{32}, Type: gguf.F32}, {Name: "b", Shape: []int64{64}, Type: gguf.F32}}}
	m.Write(t, path)
	w, err := ReadWeights(path, fileID(t, path))
	if err != nil || len(w) != 2 || w[0].End-w[0].Offset != 128 || w[1].End-w[1].Offset != 256 || w[0].End > w[1].Offset {
		t.Errorf("%v, %v", w, err)
	}
	other := fileID(t, path)
	other.Ino++
	if _, err := ReadWeights(path, other); !errors.Is(err, proc.ErrOtherFile) {
		t.Errorf("a file that took the place of the model: %v", err)
	}
	if err := os.WriteFile(path, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadWeights(path, fileID(t, path)); !errors.Is(err, gguf.ErrNotGGUF) {
		t.Error(err)
	}
}

// Sums of lengths must not wrap: a sparse file can be as large as a process can map.
func TestCycleOfTooManyBytes(t *testing.T) {
	const size = 1 << 47
	for reads, want := range map[int]bool{1: true, maxCycleBytes / size: true, maxCycleBytes/size + 1: false, 1 << 16: false, 1 << 17: false} {
		c := New(nil, Options{})
		c.known = []knownFile{{size: size}}
		cycle := &pattern.Cycle{Reads: make([]pattern.CycleRead, reads)}
		for i := range cycle.Reads {
			cycle.Reads[i] = pattern.CycleRead{Length: size}
		}
		if got := c.checkReads(cycle) != nil; got != want {
			t.Errorf("%d reads of %d bytes: accepted %v", reads, int64(size), got)
		}
	}
	c := &pattern.Cycle{Reads: make([]pattern.CycleRead, maxCycleBytes/size)}
	for i := range c.Reads {
		c.Reads[i] = pattern.CycleRead{Length: size}
	}
	if s := NewSchedule(c, pages.MinBlock, 0); len(s.Blocks) == 0 || len(s.Blocks) > maxBlocks || s.Bytes != size {
		t.Errorf("%d blocks, %d bytes", len(s.Blocks), s.Bytes)
	}
}

// fileID is the id of the file at path, as a target's events have it.
func fileID(t *testing.T, path string) event.FileID {
	t.Helper()
	id, err := proc.FileOf(path)
	if err != nil {
		t.Fatal(err)
	}
	return event.FileID(id)
}
