package ggml

import (
	"debug/elf"
	"testing"
)

// Same exports same for tests outside the package.
func (l Layout) Same(o Layout) bool { return l.same(o) }

// SourcesOf is where ggml_mul_mat of a library puts its operands in a tensor.
func SourcesOf(t *testing.T, path string, l *Layout) (uint32, bool) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := &symbols{byName: map[string]symbol{}}
	if err := all.collect(f); err != nil {
		t.Fatal(err)
	}
	return sourcesOf(f, all, l)
}
