package handover

// This file lists what a device can hold of a model, each thing as a whole or not at all.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"tensorcast/fabric/device"
	"tensorcast/gguf"
)

// taken are the types that the backend for ggml hands to the device.
var taken = []gguf.Type{gguf.Q2_0, gguf.TQ1_0, gguf.TQ2_0, gguf.Q1_0, gguf.Q4_0, gguf.Q8_0, gguf.Q4_K, gguf.Q6_K}

// Unit is a matrix that every token is multiplied with, or an expert of a layer: all of its matrices.
type Unit struct {
	device.Tensor
	Layer  int
	Expert int     // -1: none
	Use    float64 // the share of tokens that use it; of an expert, as if a layer used all of them alike
}

// Units are those of f, in an order that does not depend on their use: what every token reads comes first, layer by layer. Any number of the first layers is spread evenly over the model:
// what the others need is read from disk while the device computes. Then come experts, layer by layer.
func Units(f *gguf.File) []Unit {
	_, untied := f.Lookup("output.weight")
	arch, _ := f.String("general.architecture")
	used, _ := f.Uint(arch + ".expert_used_count")
	var all []Unit
	type at struct{ layer, expert int }
	experts := map[at]int{} // of all, by where they are
	for i := range f.Tensors {
		t := &f.Tensors[i]
		if !slices.Contains(taken, t.Type) || !strings.HasSuffix(t.Name, ".weight") || t.Name == "token_embd.weight" && untied || len(t.Shape) > 1 && t.Layer() < 0 && t.Name != "output.weight" && t.Name != "token_embd.weight" ||
			len(t.Shape) == 0 || t.Shape[0]%32 != 0 {
			continue
		}
		switch n := t.Experts(); {
		case n > 0 && len(t.Shape) == 3:
			share := 1.0
			if used > 0 && used < uint64(n) {
				share = float64(used) / float64(n)
			}
			for e := range n {
				k, known := experts[at{t.Layer(), e}]
				if !known {
					k = len(all)
					experts[at{t.Layer(), e}] = k
					all = append(all, Unit{device.Tensor{Name: fmt.Sprintf("blk.%d.expert.%d", t.Layer(), e)}, t.Layer(), e, share})
				}
				all[k].Matrices = append(all[k].Matrices, device.Extent{Offset: t.Offset + int64(e)*t.ExpertStride(), Type: t.Type, Rows: int(t.Shape[1]), Cols: int(t.Shape[0])})
			}
		case n == 0 && len(t.Shape) == 2:
			all = append(all, Unit{device.Tensor{Name: t.Name, Matrices: []device.Extent{{Offset: t.Offset, Type: t.Type, Rows: int(t.Shape[1]), Cols: int(t.Shape[0])}}}, t.Layer(), -1, 1})
		}
	}
	place := func(u *Unit) float64 {
		if u.Layer < 0 {
			return 1 // the output is the last
		}
		_, p := math.Modf(float64(u.Layer) / math.Phi) // multiples of the golden ratio leave no large gap (three-distance theorem)
		return p
	}
	slices.SortStableFunc(all, func(a, b Unit) int {
		return cmp.Or(cmp.Compare(min(a.Expert, 0), min(b.Expert, 0)), cmp.Compare(place(&a), place(&b)))
	})
	return all
}

// Tensors are what a device is told of units.
func Tensors(units []Unit) []device.Tensor {
	tensors := make([]device.Tensor, len(units))
	for i := range units {
		tensors[i] = units[i].Tensor
	}
	return tensors
}
