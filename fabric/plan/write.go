package plan

// This file writes models with the weights that a plan's planes represent. Any llama.cpp can run these.

import (
	"context"
	"io"

	"tensorcast/fabric/decompose"
	"tensorcast/gguf"
	"tensorcast/gguf/rewrite"
)

// WriteModel writes a copy of the model file from to the file to, completely or not at all. w must
// be the weights of from. Tensors that stay native are copied. Those with exact planes keep their
// type, and those with fitted planes become F32.
func (p *Plan) WriteModel(ctx context.Context, w *gguf.Weights, from, to string) error {
	planned := map[string]*Planned{}
	for i := range p.Tensors {
		if t := &p.Tensors[i]; !t.Native {
			planned[t.Name] = t
		}
	}
	return rewrite.WriteFile(ctx, to, from, func(tensor *gguf.Tensor) (rewrite.Replacement, bool) {
		t := planned[tensor.Name]
		switch {
		case t == nil:
			return rewrite.Replacement{}, false
		case t.Exact:
			return rewrite.Replacement{Type: tensor.Type, Write: func(dst io.Writer) error {
				m, err := p.Decompose(ctx, t, w, decompose.Options{})
				if err != nil {
					return err
				}
				b := make([]byte, tensor.Size)
				if err := decompose.RestoreBlocks(b, m); err != nil {
					return err
				}
				_, err = dst.Write(b)
				return err
			}}, true
		}
		return rewrite.F32(func(emit func([]float32) error) error {
			m, err := p.Decompose(ctx, t, w, decompose.Options{})
			if err != nil {
				return err
			}
			row := make([]float32, m.Cols)
			for r := range m.Rows {
				if err := decompose.Dequantize(row, m, r); err != nil {
					return err
				}
				if err := emit(row); err != nil {
					return err
				}
			}
			return nil
		}), true
	})
}
