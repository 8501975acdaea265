package ggml

// This file exports what tests in package ggml_test need.

import (
	"debug/elf"
	"testing"
)

// Same exports equalOffsets for tests outside the package.
func (l Layout) Same(o Layout) bool { return l.equalOffsets(o) }

// SourcesOf returns the offset in a tensor at which the ggml_mul_mat of a library stores its operands.
func SourcesOf(t *testing.T, path string, l *Layout) (uint32, bool) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := &symbols{byName: map[string]symbol{}}
	if err := all.addTables(f); err != nil {
		t.Fatal(err)
	}
	return findSources(f, all, l)
}
