package ggml_test

// This test reads the libraries of the real llama.cpp. It is in package ggml_test because the
// driver of llama.cpp imports package ggml.

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/ggml"
)

// In every variant of the real llama.cpp, stripped or not, the functions to probe are found. Probes
// that fire for each op sit on a push.
func TestScanLlama(t *testing.T) {
	in := llamatest.ForTest(t)
	libraries, err := filepath.Glob(filepath.Join(in.Dir, "lib*.so*"))
	if err != nil || len(libraries) == 0 {
		t.Fatalf("no libraries in %s: %v", in.Dir, err)
	}
	found := map[ggml.Role]int{}
	tables, variants := 0, 0
	for _, path := range libraries {
		stripped := filepath.Join(t.TempDir(), "stripped.so")
		if out, err := exec.Command("strip", "-o", stripped, path).CombinedOutput(); err != nil {
			t.Fatalf("strip: %v\n%s", err, out)
		}
		if strings.HasPrefix(filepath.Base(path), "libggml-cpu") {
			variants++
		}
		whole, err := ggml.Scan(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range whole.Sites {
			found[s.Role]++
			if s.Role == ggml.RoleOp || s.Role == ggml.RoleFused {
				if op := codeAt(t, path, s.Probe); op[0]&^0x07 != 0x50 && (op[0] != 0x41 || op[1]&^0x07 != 0x50) {
					t.Errorf("%s: the probe on %s+%d sits on % x, not on a push", filepath.Base(path), s.Symbol,
						s.Probe-s.Entry, op)
				}
			}
		}
		bare, err := ggml.Scan(stripped)
		if err != nil {
			t.Fatal(err)
		}
		if len(bare.Sites) != len(whole.Sites) || !slices.Equal(bare.Ops, whole.Ops) {
			t.Errorf("%s: %d sites, stripped %d", filepath.Base(path), len(whole.Sites), len(bare.Sites))
		}
		if whole.Ops != nil {
			tables++
			today := ggml.Candidates()[0]
			for _, im := range []*ggml.Image{whole, bare} {
				if im.Layout == nil || !im.Layout.Same(today) || !strings.HasPrefix(im.Layout.Origin, "code of ") {
					t.Errorf("%s: layout %v, %v", filepath.Base(path), im.Layout, im.LayoutErr)
				}
			}
			if !strings.Contains(whole.GGMLVersion, ".") {
				t.Errorf("%s: ggml's version is %q", filepath.Base(path), whole.GGMLVersion)
			}
			if src, ok := ggml.SourcesOf(t, path, &today); !ok || src != today.Src {
				t.Errorf("%s: ggml_mul_mat puts its operands at %d, %v; want %d", filepath.Base(path), src, ok,
					today.Src)
			}
			if whole.Ops[0] != "NONE" || len(whole.Ops) < 80 {
				t.Errorf("%s: %d ops, the first is %s", filepath.Base(path), len(whole.Ops), whole.Ops[0])
			}
		}
	}
	if variants == 0 || found[ggml.RoleOp] != variants || found[ggml.RoleFused] != variants ||
		found[ggml.RoleGraph] != variants || found[ggml.RoleDecode] == 0 || tables == 0 {
		t.Errorf("%d variants of ggml-cpu; sites by role %v, %d tables of op names", variants, found, tables)
	}
}

// codeAt reads 4 bytes of a file.
func codeAt(t *testing.T, path string, offset uint64) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	code := make([]byte, 4)
	if _, err := f.ReadAt(code, int64(offset)); err != nil {
		t.Fatal(err)
	}
	return code
}
