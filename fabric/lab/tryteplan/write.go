package tryteplan

// This file writes models with the weights that trytes represent. Any llama.cpp can run them.

import (
	"context"

	"tensorcast/gguf"
	"tensorcast/gguf/rewrite"
)

// WriteModel writes a copy of the model file from to the file to, completely or not at all; w must be from's
// weights. Tensors that are stored as trytes become F32.
func (t *Plan) WriteModel(ctx context.Context, w *gguf.Weights, from, to string) error {
	return rewrite.WriteFile(ctx, to, from, func(tensor *gguf.Tensor) (rewrite.Replacement, bool) {
		if _, _, ok := t.Lookup(tensor.Name); !ok {
			return rewrite.Replacement{}, false
		}
		return rewrite.F32(func(emit func([]float32) error) error { return t.Hold(ctx, w, tensor.Name, emit) }), true
	})
}
