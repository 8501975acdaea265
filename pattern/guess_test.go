package pattern_test

// These tests compare guessed cycles with what llama.cpp reads.

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/pattern"
)

// openParts opens the parts of a model.
func openParts(t *testing.T, paths ...string) (files []*gguf.File) {
	t.Helper()
	for _, path := range paths {
		m, err := gguf.OpenPart(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, m.Files[0])
	}
	return files
}

// guessOf returns the guess for the model whose parts are at paths.
func guessOf(t *testing.T, paths ...string) (*pattern.Cycle, error) {
	t.Helper()
	return pattern.Guess(openParts(t, paths...))
}

func names(c *pattern.Cycle) (all []string) {
	for i := range c.Reads {
		all = append(all, c.Reads[i].Tensor)
	}
	return all
}

// The guess has the same reads in the same order as the real llama.cpp.
func TestGuess(t *testing.T) {
	in := llamatest.ForTest(t)
	for name, config := range map[string]synth.Config{
		"dense": {Layers: 3, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1},
		"tied":  {Layers: 12, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1, Tied: true},
		"mixture": {Layers: 3, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Experts: 8, Used: 2, Type: gguf.Q8_0,
			Seed: 1},
		"table": {Layers: 4, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1, Table: 2 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			o := llama.Options{
				Model: llamatest.Model(t, config), Prompt: "x", Tokens: 2, Threads: 2,
				NoRepack: true, Ops: filepath.Join(t.TempDir(), "ops"),
			}
			if _, err := in.Run(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			ops, err := llama.ReadOps(o.Ops)
			if err != nil {
				t.Fatal(err)
			}
			var truth []string
			for _, op := range ops {
				if op.Decode == ops[len(ops)-1].Decode {
					truth = append(truth, op.Tensor)
				}
			}
			guess := pattern.Guess
			if config.Experts > 0 {
				guess = pattern.GuessMixture
			}
			c, err := guess(openParts(t, o.Model))
			if err != nil {
				t.Fatal(err)
			}
			if got := names(c); !slices.Equal(got, truth) {
				t.Errorf("guessed\n%q\ntruth\n%q", got, truth)
			}
		})
	}
}

// tensor returns a tensor of a test model. A bias or norm has one dimension.
func tensor(name string) gguftest.Tensor {
	t := gguftest.Tensor{Name: name, Type: gguf.F32, Shape: []int64{8}}
	switch {
	case strings.HasSuffix(name, ".bias"), strings.Contains(name, "_norm"), strings.HasPrefix(name, "rope"):
	case strings.Contains(name, "_exps"):
		t.Shape = []int64{8, 8, 4}
	default:
		t.Shape = []int64{8, 100}
	}
	return t
}

// The model has tensors that those of other tests lack. It is in two files, and the tensors are not
// in the order in which they are read.
func TestGuessNames(t *testing.T) {
	dir := t.TempDir()
	want := []string{"token_embd.weight", "token_embd_norm.weight", "token_embd_norm.bias"}
	layer := []string{
		"attn_norm.weight", "attn_norm.bias", "attn_q.weight", "attn_q.bias", "attn_q_norm.weight", "(rotation)",
		"attn_v.weight", "attn_k.weight", "attn_k.bias", "(rotation)",
		"attn_mystery.weight", "attn_output.weight", "attn_output.bias", "ffn_norm.weight", "ffn_gate.weight",
		"ffn_up.weight", "mystery.weight", "ffn_down.weight", "post_ffw_norm.weight",
	}
	for l := range 11 { // by name, layer 10 comes before layer 2
		for _, component := range layer {
			if component == "(rotation)" {
				want = append(want, "rope_freqs.weight")
				continue
			}
			want = append(want, fmt.Sprintf("blk.%d.%s", l, component))
		}
	}
	want = append(want, "output_norm.weight", "output.weight", "output.bias")
	var all []gguftest.Tensor
	for _, name := range append([]string{"blk.11.nextn.eh_proj.weight", "blk.11.attn_q.weight"}, want...) {
		if !slices.ContainsFunc(all, func(t gguftest.Tensor) bool { return t.Name == name }) {
			all = append(all, tensor(name))
		}
	}
	slices.SortFunc(all, func(a, b gguftest.Tensor) int { return strings.Compare(b.Name, a.Name) })
	half := len(all) / 2
	paths := []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
	for i, tensors := range [][]gguftest.Tensor{all[:half], all[half:]} {
		(&gguftest.Model{Tensors: tensors}).Write(t, paths[i])
	}
	c, err := guessOf(t, paths...)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(c); !slices.Equal(got, want) {
		t.Errorf("guessed\n%q, want\n%q", got, want)
	}
	models := make([]*gguf.File, len(paths))
	for i, path := range paths {
		m, err := gguf.OpenModel(path)
		if err != nil {
			t.Fatal(err)
		}
		models[i] = m.Files[0]
		files, err := pattern.FilesOf(m)
		if err != nil {
			t.Fatal(err)
		}
		c.Files = append(c.Files, files...)
	}
	for _, r := range c.Reads {
		at, ok := models[r.File].Lookup(r.Tensor)
		if !ok || at.Offset != r.Offset || at.Size != r.Length {
			t.Fatalf("read %+v is of %+v", r, at)
		}
		gathers := int64(0)
		if r.Tensor == "token_embd.weight" {
			gathers = 32
		}
		if r.Slice != gathers || r.Experts {
			t.Errorf("read %+v gathers", r)
		}
	}
	var file strings.Builder
	if err := c.Write(&file); err != nil {
		t.Fatal(err)
	}
	if again, err := pattern.ReadCycle(strings.NewReader(file.String())); err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("written and read again it is another: %v; want %v", err, c)
	}
}

// Models that are no plain decoders are not guessed.
func TestGuessNothing(t *testing.T) {
	for name, tensors := range map[string][]string{
		"no layers":  {"token_embd.weight", "output_norm.weight", "output.weight"},
		"an encoder": {"token_embd.weight", "blk.0.attn_q.weight"},
		"two stacks": {"token_embd.weight", "enc.blk.0.attn_q.weight", "dec.blk.0.attn_q.weight",
			"dec.output_norm.weight"},
		"experts":       {"token_embd.weight", "output_norm.weight", "output.weight", "blk.0.ffn_up_exps.weight"},
		"recurrent":     {"token_embd.weight", "output_norm.weight", "output.weight", "blk.0.ssm_in.weight"},
		"no embeddings": {"blk.0.attn_q.weight", "output_norm.weight", "output.weight"},
	} {
		m := &gguftest.Model{}
		for _, n := range tensors {
			m.Tensors = append(m.Tensors, tensor(n))
		}
		path := filepath.Join(t.TempDir(), "model")
		m.Write(t, path)
		if c, err := guessOf(t, path); !errors.Is(err, pattern.ErrNoGuess) {
			t.Errorf("%s: %+v, %v; want %v", name, c, err, pattern.ErrNoGuess)
		}
	}
}

// A mixture is guessed where that is asked for. A token reads as many experts as the metadata say.
func TestGuessMixture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model")
	gguftest.MoE(2, 8).Write(t, path)
	parts := openParts(t, path)
	if c, err := pattern.Guess(parts); !errors.Is(err, pattern.ErrNoGuess) {
		t.Errorf("without asking: %+v, %v; want %v", c, err, pattern.ErrNoGuess)
	}
	c, err := pattern.GuessMixture(parts)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"token_embd.weight",
		"blk.0.attn_norm.weight", "blk.0.attn_q.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_exps.weight",
		"blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight", "blk.0.ffn_down_exps.bias",
		"blk.0.ffn_up_shexp.weight",
		"blk.1.attn_norm.weight", "blk.1.attn_q.weight", "blk.1.ffn_gate_inp.weight", "blk.1.ffn_gate_up_exps.weight",
		"blk.1.ffn_down_exps.weight", "blk.1.ffn_down_exps.bias", "blk.1.ffn_up_shexp.weight",
		"output_norm.weight", "output.weight",
	}
	if got := names(c); !slices.Equal(got, want) {
		t.Errorf("guessed\n%q, want\n%q", got, want)
	}
	for _, r := range c.Reads {
		experts := strings.Contains(r.Tensor, "_exps.")
		if r.Experts != experts || experts && (r.Slice != r.Length/8 || r.Slices != 2) {
			t.Errorf("read %+v, want 2 of 8 experts of each of their tensors, and of no other", r)
		}
	}
}
