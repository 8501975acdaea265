package models

// This file tests the table of a model file's weights.

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/proc"
)

func TestWeightsHold(t *testing.T) {
	w := Weights{{Offset: 100, End: 200}, {Offset: 200, End: 300}, {Offset: 400, End: 500, IsTable: true}}
	for _, tc := range []struct {
		offset, end int64
		want        bool
	}{
		{100, 200, true}, {150, 160, true}, {100, 201, false},
		{200, 300, true}, {199, 201, false}, {99, 150, false},
		{300, 400, false}, {350, 450, false},
		{499, 500, true}, {500, 501, false}, {0, 1, false},
	} {
		if got := w.Hold(tc.offset, tc.end); got != tc.want {
			t.Errorf("Hold(%d, %d) = %v, want %v", tc.offset, tc.end, got, tc.want)
		}
	}
	if tables := w.Tables(100); len(tables) != 1 || tables[0] != w[2] || w.Tables(101) != nil {
		t.Errorf("tables %v, want the last weight", tables)
	}
	if (Weights{}).Hold(0, 1) {
		t.Error("Hold(0, 1) of no weights = true, want false")
	}
}

func TestReadWeights(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	m := &gguftest.Model{Tensors: []gguftest.Tensor{
		{Name: "a", Shape: []int64{32}, Type: gguf.F32}, {Name: "b", Shape: []int64{64}, Type: gguf.F32},
	}}
	m.Write(t, path)
	w, err := ReadWeights(path, readFileID(t, path))
	if err != nil || len(w) != 2 ||
		w[0].End-w[0].Offset != 128 || w[1].End-w[1].Offset != 256 || w[0].End > w[1].Offset {
		t.Errorf("ReadWeights = %v, %v; want weights of 128 and 256 bytes, one behind the other", w, err)
	}
	other := readFileID(t, path)
	other.Ino++
	if _, err := ReadWeights(path, other); !errors.Is(err, proc.ErrOtherFile) {
		t.Errorf("another file at the model's path: %v, want %v", err, proc.ErrOtherFile)
	}
	if err := os.WriteFile(path, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadWeights(path, readFileID(t, path)); !errors.Is(err, gguf.ErrNotGGUF) {
		t.Errorf("a file that is no model: %v, want %v", err, gguf.ErrNotGGUF)
	}
}

// readFileID is the id of the file at path, as a target's events have it.
func readFileID(t *testing.T, path string) event.FileID {
	t.Helper()
	id, err := proc.FileOf(path)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
