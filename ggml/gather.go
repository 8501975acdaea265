package ggml

// This file is the one table of ggml's gathering ops: those that read, of a weight, only the slices that other tensors' values name.

// Gather says how an op gathers.
type Gather struct {
	Op      string // ggml's name
	Source  int    // of the op's sources, the one that slices are taken of
	IDs     int    // and the one that holds their numbers, int32
	Dim     int    // the dimension of Source that they index: a slice has nb[Dim] bytes
	Experts bool   // the numbers are experts, chosen by a router; else rows
}

// gathers: a new op of that kind is one line here, and `go generate ./ggml`.
var gathers = []Gather{
	{Op: "GET_ROWS", Source: 0, IDs: 1, Dim: 1},                  // token embeddings
	{Op: "MUL_MAT_ID", Source: 0, IDs: 2, Dim: 2, Experts: true}, // experts' matrices
	{Op: "ADD_ID", Source: 1, IDs: 2, Dim: 1, Experts: true},     // experts' biases
}

// GatherOf says how the op of a name gathers; ok is false for one that does not. Fused ops are named by their first.
func GatherOf(op string) (g Gather, ok bool) {
	for _, g := range gathers {
		if g.Op == op {
			return g, true
		}
	}
	return Gather{}, false
}
