package gguf

// This file has the words for tensors whose type ggml's main line does not read.

import (
	"fmt"
	"maps"
	"slices"
)

// ForeignTypes says of each type in files that ggml's main line does not read how many tensors have it.
func ForeignTypes(files ...*File) (lines []string) {
	count := map[Type]int{}
	for _, f := range files {
		for i := range f.Tensors {
			if t := f.Tensors[i].Type; !t.Valid() {
				count[t]++
			}
		}
	}
	for _, t := range slices.Sorted(maps.Keys(count)) {
		lines = append(lines, DescribeType(t, count[t]))
	}
	return lines
}

// ForeignTypes is the function of that name for all files of a model.
func (m *Model) ForeignTypes() []string { return ForeignTypes(m.Files...) }

// DescribeType says what n tensors of a type are that ggml's main line does not read.
func DescribeType(t Type, n int) string {
	tensors := fmt.Sprintf("%d tensors of", n)
	if n == 1 {
		tensors = "1 tensor of"
	}
	switch {
	case t == Q2_0G128:
		return tensors + " type Q2_0 in groups of 128, as it was published before ggml had it with groups of 64"
	case t.Known():
		return fmt.Sprintf("%s type %v of %s", tensors, t, t.Fork())
	}
	return fmt.Sprintf("%s unknown %v, of which only the extent is known (mapping, tracing and replay need no more)",
		tensors, t)
}
