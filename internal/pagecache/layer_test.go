package pagecache

// This file tests that the layer of an overlay that has a file is found, and that another file is not taken for it.

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/internal/mounts"
	"tensorcast/internal/testenv"
)

// Only overlays have layers. A file is looked for in each, the uppermost first.
func TestLayerPaths(t *testing.T) {
	for _, tt := range []struct {
		kind, root string
		options    []string
		path       string
		want       []string
	}{
		{"ext4", "/", []string{"rw", "lowerdir=/l1"}, "/mnt/a/m.gguf", nil},
		{"overlay", "/", []string{"rw", "lowerdir=/l1:/l2", "upperdir=/up", "workdir=/w"}, "/mnt/a/m.gguf", []string{
			"/up/a/m.gguf", "/l1/a/m.gguf", "/l2/a/m.gguf",
		}},
		{"overlay", "/", []string{"lowerdir+=/l1", "lowerdir+=/l2"}, "/m.gguf", []string{"/l1/m.gguf", "/l2/m.gguf"}},
		{"overlay", "/", []string{"lowerdir=l1::/data"}, "/m.gguf", []string{"/data/m.gguf"}},
		{"overlay", "/sub", []string{"lowerdir=/l1"}, "/mnt/m.gguf", []string{"/l1/sub/m.gguf"}},
		{"overlay", "/", nil, "/m.gguf", nil},
	} {
		m := mounts.Mount{Type: tt.kind, Root: tt.root, Point: "/mnt", Options: tt.options}
		if got := layerPaths(&m, tt.path); !slices.Equal(got, tt.want) {
			t.Errorf("%+v, %s: %q, want %q", m, tt.path, got, tt.want)
		}
	}
}

// The layer's file is found on an overlay, and nothing is looked for elsewhere.
func TestLookBelow(t *testing.T) {
	from := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(from, make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"ext4": false, "overlay": true} {
		f, err := os.Open(filepath.Join(testenv.Mount(t, name, from), "file"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r := ResidencyOf(f, nil)
		r.LookBelow()
		if err := r.Check(); err != nil || (r.below != nil) != want || (r.way.Load() == wayBelow) != want {
			t.Errorf("%s: found %v, way %d, %v; want %v", name, r.below != nil, r.way.Load(), err, want)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A file that another layer hides has other pages: with the same size and time it is told apart by its number, or
// because no page of it is in memory.
func TestAnotherFileBelow(t *testing.T) {
	dir := t.TempDir()
	var files []*os.File
	for _, name := range []string{"a", "b"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, 1<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	st := statOf(t, files[0])
	r := ResidencyOf(files[0], nil)
	if n, err := askCachestat(files[0], 0, 1); n == 0 {
		t.Skipf("cachestat does not see pages of this file system: %v", err)
	}
	if !r.hasPagesOf(files[0], st) {
		t.Error("the file itself is not taken for the one with its pages")
	}
	if r.hasPagesOf(files[1], st) {
		t.Error("another file is taken for this one")
	}
	same := *statOf(t, files[1]) // as if their numbers were the same
	if _, err := Drop(t.Context(), files[1]); err != nil {
		t.Fatal(err)
	}
	if r.hasPagesOf(files[1], &same) {
		t.Error("a file without pages is taken for one that has some")
	}
}

func statOf(t *testing.T, f *os.File) *unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	return &st
}
