package ggml

// These tests scan files of any content.

import (
	"bytes"
	_ "embed"
	"os"
	"testing"
)

//go:embed testdata/ggml.c
var fixture []byte

// FuzzScan checks that Scan ends without a panic, whatever is in a file, and that its result can be
// used.
func FuzzScan(f *testing.F) {
	for _, flags := range [][]string{
		{"-shared", "-fPIC", "-O0", "-s", "-nostdlib"}, {"-shared", "-fPIC", "-O2", "-s", "-nostdlib"},
		{"-shared", "-fPIC", "-Os", "-g", "-nostdlib"},
	} {
		path := compile(f, append(flags, "-DLAYOUT=NOW", "-Wl,-z,max-page-size=4096,-z,noseparate-code")...)
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		arm := bytes.Clone(data)
		arm[18] = 183 // EM_AARCH64: the same bytes as other instructions
		f.Add(arm)
	}
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, data []byte) {
		im, err := scan(bytes.NewReader(data), "/nowhere/fuzzed", "/nowhere", 0)
		if err != nil {
			return
		}
		if len(im.Sites) > maxSymbols || len(im.Ops) > maxOps {
			t.Errorf("%d sites, %d ops, want at most %d and %d", len(im.Sites), len(im.Ops), maxSymbols, maxOps)
		}
		for _, s := range im.Sites {
			if s.Probe < s.Entry || s.Probe-s.Entry > 64 || s.Probe >= uint64(len(data)) {
				t.Errorf("%+v in %d bytes", s, len(data))
			}
		}
		if im.Layout != nil {
			if err := im.Layout.check(); err != nil {
				t.Error(err)
			}
			_ = im.Layout.Check(make([]byte, TensorBytes), len(im.Ops))
		}
		if l, err := Infer([]*Image{im}); err != nil || l == nil {
			t.Errorf("Infer = %v, %v, want a layout", l, err)
		}
	})
}
