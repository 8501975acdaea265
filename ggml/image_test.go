package ggml

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama/llamatest"
)

func TestFirstPush(t *testing.T) {
	for name, tc := range map[string]struct {
		code         string
		skip, pushed int
	}{
		"push at once":         {"\x55\x48\x89\xe5", 0, 0},                                                           // push %rbp; mov %rsp,%rbp
		"endbr64":              {"\xf3\x0f\x1e\xfa\x41\x57", 4, 0},                                                   // endbr64; push %r15
		"aligned stack":        {"\xf3\x0f\x1e\xfa\x4c\x8d\x54\x24\x08\x48\x83\xe4\xc0\x41\xff\x72\xf8\x55", 17, -1}, // lea 8(%rsp),%r10; and $-64,%rsp; push -8(%r10); push %rbp
		"push of memory":       {"\x41\xff\x72\xf8\x55", 4, 8},                                                       // push -8(%r10); push %rbp
		"argument overwritten": {"\x89\xff\x55", 0, 0},                                                               // mov %edi,%edi; push
		"argument lost":        {"\x48\x8d\x7c\x24\x08\x55", 0, 0},                                                   // lea 8(%rsp),%rdi; push
		"no push":              {"\x48\x83\xec\x18\xc3", 0, 0},                                                       // sub $24,%rsp; ret
		"jump":                 {"\xe9\x00\x00\x00\x00\x55", 0, 0},                                                   // jmp; push
		"cut short":            {"\x48", 0, 0},
		"empty":                {"", 0, 0},
	} {
		skip, pushed := firstPush([]byte(tc.code))
		if skip != tc.skip || pushed != tc.pushed {
			t.Errorf("%s: %d, %d, want %d, %d", name, skip, pushed, tc.skip, tc.pushed)
		}
	}
}

// On every variant of the real llama.cpp, stripped too, the probes are found, and those that fire for each op sit on a push.
func TestScanLlama(t *testing.T) {
	in := llamatest.ForTest(t)
	libraries, err := filepath.Glob(filepath.Join(in.Dir, "lib*.so*"))
	if err != nil || len(libraries) == 0 {
		t.Fatalf("no libraries in %s: %v", in.Dir, err)
	}
	found := map[Role]int{}
	tables, variants := 0, 0
	for _, path := range libraries {
		stripped := filepath.Join(t.TempDir(), "stripped.so")
		if out, err := exec.Command("strip", "-o", stripped, path).CombinedOutput(); err != nil {
			t.Fatalf("strip: %v\n%s", err, out)
		}
		if strings.HasPrefix(filepath.Base(path), "libggml-cpu") {
			variants++
		}
		whole, err := Scan(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range whole.Sites {
			found[s.Role]++
			if s.Role == RoleOp || s.Role == RoleFused {
				if op := codeAt(t, path, s.Probe); op[0]&^0x07 != 0x50 && (op[0] != 0x41 || op[1]&^0x07 != 0x50) {
					t.Errorf("%s: the probe on %s+%d sits on % x, not on a push", filepath.Base(path), s.Symbol, s.Probe-s.Entry, op)
				}
			}
		}
		bare, err := Scan(stripped)
		if err != nil {
			t.Fatal(err)
		}
		if len(bare.Sites) != len(whole.Sites) || !slices.Equal(bare.Ops, whole.Ops) {
			t.Errorf("%s: %d sites, stripped %d", filepath.Base(path), len(whole.Sites), len(bare.Sites))
		}
		if whole.Ops != nil {
			tables++
			today := Candidates()[0]
			for _, im := range []*Image{whole, bare} {
				if im.Layout == nil || !im.Layout.same(today) || !strings.HasPrefix(im.Layout.Origin, "code of ") {
					t.Errorf("%s: layout %v, %v", filepath.Base(path), im.Layout, im.LayoutErr)
				}
			}
			if !strings.Contains(whole.GGMLVersion, ".") {
				t.Errorf("%s: ggml's version is %q", filepath.Base(path), whole.GGMLVersion)
			}
			f, err := elf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			all := &symbols{byName: map[string]symbol{}}
			if err := all.collect(f); err != nil {
				t.Fatal(err)
			}
			if src, ok := sourcesOf(f, all, &today); !ok || src != today.Src {
				t.Errorf("%s: ggml_mul_mat puts its operands at %d, %v; want %d", filepath.Base(path), src, ok, today.Src)
			}
			f.Close()
			if whole.Ops[0] != "NONE" || len(whole.Ops) < 80 {
				t.Errorf("%s: %d ops, the first is %s", filepath.Base(path), len(whole.Ops), whole.Ops[0])
			}
		}
	}
	if variants == 0 || found[RoleOp] != variants || found[RoleFused] != variants || found[RoleGraph] != variants || found[RoleDecode] == 0 || tables == 0 {
		t.Errorf("%d variants of ggml-cpu; sites by role %v, %d tables of op names", variants, found, tables)
	}
}

// The libraries for arm64 can be read here, too: npm pack @node-llama-cpp/linux-arm64, unpack, and name bins/linux-arm64.
func TestScanARM64(t *testing.T) {
	dir := os.Getenv("TENSORCAST_LLAMA_ARM64")
	if dir == "" {
		t.Skip("TENSORCAST_LLAMA_ARM64 names no directory with llama.cpp's libraries for arm64")
	}
	libraries, err := filepath.Glob(filepath.Join(dir, "lib*.so*"))
	if err != nil || len(libraries) == 0 {
		t.Fatalf("no libraries in %s: %v", dir, err)
	}
	found := map[Role]int{}
	var images []*Image
	for _, path := range libraries {
		im := mustScan(t, path)
		images = append(images, im)
		for _, s := range im.Sites {
			found[s.Role]++
			if s.Probe != s.Entry || s.Pushed != 0 || s.Cost != CostUnknown {
				t.Errorf("%s: %+v", path, s)
			}
		}
		if im.Ops != nil && (im.Ops[0] != "NONE" || len(im.Ops) < 80 || !im.Layout.same(Candidates()[0]) || !strings.Contains(im.GGMLVersion, ".")) {
			t.Errorf("%s: ops %q, layout %v, version %q", path, im.Ops, im.Layout, im.GGMLVersion)
		}
	}
	for r := RoleOp; r <= RoleBufferFree; r++ {
		if found[r] == 0 {
			t.Errorf("no function for %v", r)
		}
	}
	if l, err := Infer(images); err != nil || !strings.HasPrefix(l.Origin, "code of ") {
		t.Errorf("%v, %v", l, err)
	}
}

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

func TestScanOtherFiles(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{script, "/bin/true"} {
		im, err := Scan(path)
		if err != nil || len(im.Sites) != 0 || im.Ops != nil {
			t.Errorf("%s: %+v, %v", path, im, err)
		}
	}
	if _, err := Scan(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that does not exist: no error")
	}
}
