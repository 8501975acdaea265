package ggml

// This file is the one table of ggml's gathering ops: those that read, of a weight, only the slices that other tensors' values name.

import (
	"fmt"
	"slices"
	"strings"
)

// Gather says how an op gathers.
type Gather struct {
	Op      string // ggml's name
	Source  int    // of the op's sources, the one that slices are taken of
	IDs     int    // and the one that holds their numbers, int32
	Dim     int    // the dimension of Source that they index: a slice has nb[Dim] bytes
	Experts bool   // the numbers are experts, chosen by a router; else rows
}

// gathers: a new op of that kind is one line here. Programs in C get the table when they are compiled at run time
// ([IncludeGathers]), the probes of package ebpf with what they are told of a target.
var gathers = []Gather{
	{Op: "GET_ROWS", Source: 0, IDs: 1, Dim: 1},                  // token embeddings
	{Op: "MUL_MAT_ID", Source: 0, IDs: 2, Dim: 2, Experts: true}, // experts' matrices
	{Op: "ADD_ID", Source: 1, IDs: 2, Dim: 1, Experts: true},     // experts' biases
}

// Gathers returns the table; in C its order is the same.
func Gathers() []Gather { return slices.Clone(gathers) }

// GatherOf says how the op of a name gathers; ok is false for one that does not. Fused ops are named by their first.
func GatherOf(op string) (g Gather, ok bool) {
	for _, g := range gathers {
		if g.Op == op {
			return g, true
		}
	}
	return Gather{}, false
}

// IncludeGathers returns C source (C99) with the table in the place of its line
//
//	#include "gathers.h"
//
// as struct gather, which has the members of [Gather], the array gathers, and GATHERS, how many these are. It takes one line, so that
// a compiler's messages have the right line numbers.
func IncludeGathers(source string) string {
	var b strings.Builder
	b.WriteString("struct gather { const char *op; int source, ids, dim, experts; }; static const struct gather gathers[] = {")
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
