package ggml

// This file holds the one table of ggml's gathering ops: ops that read only those slices of a
// weight whose numbers another tensor holds.

import (
	"fmt"
	"slices"
	"strings"
)

// Gather describes a gathering op.
type Gather struct {
	Op      string // ggml's name of it
	Source  int    // index of the source that slices are read from
	IDs     int    // index of the source that holds the slices' numbers, as int32
	Dim     int    // dimension of Source that the numbers index: a slice has nb[Dim] bytes
	Experts bool   // true: the numbers are experts, chosen by a router; false: rows
}

// gathers is the table. To support a new gathering op, add a line. C programs that are compiled at
// run time include the table ([IncludeGathers]). The BPF programs of package ebpf receive it with
// the target's configuration.
var gathers = []Gather{
	{Op: "GET_ROWS", Source: 0, IDs: 1, Dim: 1},                  // token embeddings
	{Op: "MUL_MAT_ID", Source: 0, IDs: 2, Dim: 2, Experts: true}, // experts' matrices
	{Op: "ADD_ID", Source: 1, IDs: 2, Dim: 1, Experts: true},     // experts' biases
}

// Gathers returns a copy of the table. C code has it in the same order.
func Gathers() []Gather { return slices.Clone(gathers) }

// GatherOf returns the table's entry for an op; ok is false if the op does not gather. For a fused
// op, pass the name of its first part.
func GatherOf(op string) (g Gather, ok bool) {
	for _, g := range gathers {
		if g.Op == op {
			return g, true
		}
	}
	return Gather{}, false
}

// IncludeGathers returns C source (C99) in which the table replaces the line
//
//	#include "gathers.h"
//
// It declares struct gather (the members of [Gather]), the array gathers, and its length GATHERS.
// It takes a single line, so that the line numbers in a compiler's messages stay right.
func IncludeGathers(source string) string {
	var b strings.Builder
	b.WriteString("struct gather { const char *op; int source, ids, dim, experts; }; ")
	b.WriteString("static const struct gather gathers[] = {")
	for _, g := range gathers {
		experts := 0
		if g.Experts {
			experts = 1
		}
		fmt.Fprintf(&b, "{%q, %d, %d, %d, %d}, ", g.Op, g.Source, g.IDs, g.Dim, experts)
	}
	b.WriteString("}; enum { GATHERS = sizeof gathers / sizeof *gathers };")
	return strings.Replace(source, `#include "gathers.h"`, b.String(), 1)
}
