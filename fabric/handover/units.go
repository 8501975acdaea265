package handover

// This file lists the units of a model that a device can hold, each as a whole or not at all.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"tensorcast/fabric/device"
	"tensorcast/gguf"
)

// deviceTypes are the types that the backend for ggml hands to the device.
var deviceTypes = []gguf.Type{gguf.Q2_0, gguf.TQ1_0, gguf.TQ2_0, gguf.Q1_0, gguf.Q4_0, gguf.Q8_0, gguf.Q4_K, gguf.Q6_K}

// Unit is a matrix that every token is multiplied with, or an expert of a layer: all of its matrices.
type Unit struct {
	device.Tensor
	Layer  int
	Expert int     // -1: none
	Use    float64 // the share of tokens that use it; for an expert, as if a layer used all experts alike
}

// Units lists the units of f. First come those that every token reads, layer by layer, but not in the order
// of layers: the first few layers of the list are always spread evenly over the model, so that what the
// others need is read from disk while the device computes. Then come experts, layer by layer in the same
// order.
func Units(f *gguf.File) []Unit {
	_, hasOutput := f.Lookup("output.weight")
	arch, _ := f.String("general.architecture")
	used, _ := f.Uint(arch + ".expert_used_count")
	var all []Unit
	experts := map[expertKey]int{} // index of all
	for i := range f.Tensors {
		t := &f.Tensors[i]
		if !isDeviceMatrix(t, hasOutput) {
			continue
		}
		switch n := t.Experts(); {
		case n > 0 && len(t.Shape) == 3:
			share := 1.0
			if used > 0 && used < uint64(n) {
				share = float64(used) / float64(n)
			}
			for e := range n {
				key := expertKey{t.Layer(), e}
				k, known := experts[key]
				if !known {
					k = len(all)
					experts[key] = k
					name := fmt.Sprintf("blk.%d.expert.%d", t.Layer(), e)
					all = append(all, Unit{Tensor: device.Tensor{Name: name}, Layer: t.Layer(), Expert: e, Use: share})
				}
				all[k].Matrices = append(all[k].Matrices, extentOf(t, int64(e)*t.ExpertStride()))
			}
		case n == 0 && len(t.Shape) == 2:
			tensor := device.Tensor{Name: t.Name, Matrices: []device.Extent{extentOf(t, 0)}}
			all = append(all, Unit{Tensor: tensor, Layer: t.Layer(), Expert: -1, Use: 1})
		}
	}
	slices.SortStableFunc(all, func(a, b Unit) int {
		return cmp.Or(cmp.Compare(min(a.Expert, 0), min(b.Expert, 0)), cmp.Compare(spread(a.Layer), spread(b.Layer)))
	})
	return all
}

// isDeviceMatrix reports whether the device can hold a tensor: weights of its types that products use. The
// table of embeddings is among these only if there is no output.weight.
func isDeviceMatrix(t *gguf.Tensor, hasOutput bool) bool {
	if !slices.Contains(deviceTypes, t.Type) || !strings.HasSuffix(t.Name, ".weight") || len(t.Shape) == 0 ||
		t.Shape[0]%32 != 0 {
		return false
	}
	if t.Name == "token_embd.weight" {
		return !hasOutput
	}
	return len(t.Shape) == 1 || t.Layer() >= 0 || t.Name == "output.weight"
}

// extentOf is the matrix of t that begins at offset of it.
func extentOf(t *gguf.Tensor, offset int64) device.Extent {
	return device.Extent{Offset: t.Offset + offset, Type: t.Type, Rows: int(t.Shape[1]), Cols: int(t.Shape[0])}
}

// spread is a layer's position in the order of Units, from 0 to 1. Multiples of the golden ratio leave no
// large gap (three-distance theorem).
func spread(layer int) float64 {
	if layer < 0 {
		return 1 // the output comes last
	}
	_, position := math.Modf(float64(layer) / math.Phi)
	return position
}

// Tensors returns units as a device takes them.
func Tensors(units []Unit) []device.Tensor {
	tensors := make([]device.Tensor, len(units))
	for i := range units {
		tensors[i] = units[i].Tensor
	}
	return tensors
}
