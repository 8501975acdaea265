package ggml

// These tests choose probes in prologues, and scan files of other kinds and for other processors.

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFirstPush(t *testing.T) {
	for name, tc := range map[string]struct {
		code         string
		skip, pushed int
	}{
		// push %rbp; mov %rsp,%rbp
		"push at once": {"\x55\x48\x89\xe5", 0, 0},
		// endbr64; push %r15
		"endbr64": {"\xf3\x0f\x1e\xfa\x41\x57", 4, 0},
		// lea 8(%rsp),%r10; and $-64,%rsp; push -8(%r10); push %rbp
		"aligned stack": {"\xf3\x0f\x1e\xfa\x4c\x8d\x54\x24\x08\x48\x83\xe4\xc0\x41\xff\x72\xf8\x55", 17, -1},
		// push -8(%r10); push %rbp
		"push of memory": {"\x41\xff\x72\xf8\x55", 4, 8},
		// mov %edi,%edi; push
		"argument overwritten": {"\x89\xff\x55", 0, 0},
		// lea 8(%rsp),%rdi; push
		"argument lost": {"\x48\x8d\x7c\x24\x08\x55", 0, 0},
		// sub $24,%rsp; ret
		"no push": {"\x48\x83\xec\x18\xc3", 0, 0},
		// jmp; push
		"jump":      {"\xe9\x00\x00\x00\x00\x55", 0, 0},
		"cut short": {"\x48", 0, 0},
		"empty":     {"", 0, 0},
	} {
		skip, pushed := findFirstPush([]byte(tc.code))
		if skip != tc.skip || pushed != tc.pushed {
			t.Errorf("%s: %d, %d, want %d, %d", name, skip, pushed, tc.skip, tc.pushed)
		}
	}
}

// The libraries for arm64 can be read on any machine: npm pack @node-llama-cpp/linux-arm64, unpack
// it, and set TENSORCAST_LLAMA_ARM64 to its bins/linux-arm64.
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
		if im.Ops != nil && (im.Ops[0] != "NONE" || len(im.Ops) < 80 || !im.Layout.equalOffsets(Candidates()[0]) ||
			!strings.Contains(im.GGMLVersion, ".")) {
			t.Errorf("%s: ops %q, layout %v, version %q", path, im.Ops, im.Layout, im.GGMLVersion)
		}
	}
	for r := RoleOp; r <= RoleBufferFree; r++ {
		if found[r] == 0 {
			t.Errorf("no function for %v", r)
		}
	}
	if l, err := Infer(images); err != nil || !strings.HasPrefix(l.Origin, "code of ") {
		t.Errorf("Infer = %v, %v, want a layout from the code", l, err)
	}
}

func TestScanOtherFiles(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{script, "/bin/true"} {
		im, err := Scan(path)
		if err != nil || len(im.Sites) != 0 || im.Ops != nil {
			t.Errorf("%s: %+v, %v, want an empty image", path, im, err)
		}
	}
	if _, err := Scan(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that does not exist: no error")
	}
}
