package loadflags

// This file foresees which weights of a model a program copies when it loads it. ggml copies matrices of some types to
// a layout that its processor multiplies faster (ggml_repack_get_optimal_repack_type in ggml-cpu/repack.cpp).

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/cpu"

	"tensorcast/gguf"
)

// Copies are weights that a program will have in memory of its own, beside the model's file.
type Copies struct {
	Bytes int64    `json:"bytes"`
	Types []string `json:"types"` // of these weights
	// Layout says that they are copied to have another layout. Otherwise the program was asked to read all weights into
	// memory of its own.
	Layout bool `json:"layout"`
}

// Text says what is copied, and why.
func (c Copies) Text() string {
	why := "as its flags or variables say"
	if c.Layout {
		why = "to have " + strings.Join(c.Types, " and ") + " in another layout"
	}
	return fmt.Sprintf("%s of weights into memory of its own, %s", humanize.IBytes(uint64(max(c.Bytes, 0))), why)
}

// Foresee returns what the program will copy of a model's weights, at most. Of a program that may compute on a GPU
// nothing is foreseen.
func (p Program) Foresee(m *gguf.Model) Copies {
	unmapped := len(p.request.Unmapped) > 0
	c := Copies{Layout: !unmapped}
	if p.gpu || !unmapped && p.request.InLayout {
		return c
	}
	c.add(m, func(t *gguf.Tensor, hasOutput bool) bool {
		return unmapped || p.builtFor[t.Type] && isMultiplied(t, hasOutput) && isRepacked(t, thisProcessor())
	})
	return c
}

// ForeseeUsual returns what a llama.cpp as it is usually built copies of a model's weights to another layout on this
// processor, if nothing asks it not to, and if it computes nothing on a GPU.
func ForeseeUsual(m *gguf.Model) Copies {
	c := Copies{Layout: true}
	c.add(m, func(t *gguf.Tensor, hasOutput bool) bool {
		return isMultiplied(t, hasOutput) && isRepacked(t, thisProcessor())
	})
	return c
}

// add adds those weights that are copied.
func (c *Copies) add(m *gguf.Model, isCopied func(t *gguf.Tensor, hasOutput bool) bool) {
	_, hasOutput := m.Lookup("output.weight")
	for _, f := range m.Files {
		for i := range f.Tensors {
			t := &f.Tensors[i]
			if !isCopied(t, hasOutput) {
				continue
			}
			c.Bytes += t.Size
			if name := t.Type.String(); !slices.Contains(c.Types, name) {
				c.Types = append(c.Types, name)
			}
		}
	}
	slices.Sort(c.Types)
}

// AdviseAgainst says what to do so that these copies are not made.
func (p Program) AdviseAgainst(c Copies) string {
	if c.Layout {
		return p.Advise(KeepLayout)
	}
	return p.Advise(MapFile, KeepLayout)
}

// isMultiplied reports whether a tensor is a matrix that vectors are multiplied with. Rows are looked up in a table of
// embeddings. If the model has no other matrix for the output, the table is that, too.
func isMultiplied(t *gguf.Tensor, hasOutput bool) bool {
	switch {
	case t.Name == "token_embd.weight":
		return !hasOutput
	case t.Name == "per_layer_token_embd.weight", !strings.HasSuffix(t.Name, ".weight"):
		return false
	}
	return len(t.Shape) == 2 || t.Experts() > 0
}

// processor is what of a processor decides.
type processor struct{ avx2, avx512, dotProduct bool }

func thisProcessor() processor {
	return processor{
		avx2: cpu.X86.HasAVX2, avx512: cpu.X86.HasAVX512F,
		dotProduct: runtime.GOARCH == "arm64" && cpu.ARM64.HasASIMDDP,
	}
}

// isRepacked reports whether ggml has another layout for a matrix on a processor.
func isRepacked(t *gguf.Tensor, on processor) bool {
	if len(t.Shape) < 2 {
		return false
	}
	if on.dotProduct {
		switch t.Type {
		case gguf.Q4_0, gguf.Q8_0, gguf.IQ4NL, gguf.MXFP4:
			return t.Shape[1]%4 == 0
		case gguf.Q4_K, gguf.Q5_K, gguf.Q6_K:
			return t.Shape[1]%8 == 0
		}
		return false
	}
	switch t.Type {
	case gguf.Q4_0, gguf.Q4_K, gguf.IQ4NL, gguf.MXFP4:
		return on.avx2 && t.Shape[1]%8 == 0
	case gguf.Q2_K:
		return on.avx512 && t.Shape[1]%8 == 0
	}
	return false
}
