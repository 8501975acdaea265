package divergence_test

// This file tests whole comparisons, on small models in a real llama.cpp.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/experiments/divergence"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/gguf/rewrite"
)

var (
	dense = synth.Config{Layers: 2, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1}
	moe   = synth.Config{Layers: 2, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Experts: 4, Used: 2, Type: gguf.Q4_K,
		Seed: 2}
)

// trained is the path of a file that lies beside the repository. It skips the test where there is
// none.
func trained(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join("../../../shared/data/models", name)
	if _, err := os.Stat(path); err != nil {
		t.Skip("no trained models in ../shared/data/models")
	}
	return path
}

// writeText writes a text of n bytes, in which no part is like another.
func writeText(t *testing.T, n int) string {
	t.Helper()
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(' ' + (i*i+i/7)%90)
	}
	path := filepath.Join(t.TempDir(), "text.txt")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func compare(t *testing.T, cfg divergence.Config) *divergence.Report {
	t.Helper()
	r, err := divergence.Compare(t.Context(), llamatest.ForTest(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestItself checks that a model does not diverge from itself, and does from another.
func TestItself(t *testing.T) {
	for name, cfg := range map[string]synth.Config{"dense": dense, "moe": moe} {
		t.Run(name, func(t *testing.T) {
			other := cfg
			other.Seed = 7
			path := llamatest.Model(t, cfg)
			t.Setenv("TMPDIR", t.TempDir())
			done, calls := 0, 0
			texts := []string{writeText(t, 300), writeText(t, 500)}
			r := compare(t, divergence.Config{Reference: path, Texts: texts, Context: 64, Chunks: 5, Parallel: 2,
				Candidates: []divergence.Candidate{{Name: "itself", Path: path},
					{Name: "other", Path: llamatest.Model(t, other), BytesPerWeight: 0.5}},
				Progress: func(d, total int) {
					if d != calls || total != 6 {
						t.Errorf("call %d: %d of %d done, want all calls of 6", calls, d, total)
					}
					done, calls = d, calls+1
				}})
			if done != 6 || len(r.Rows) != 4 || r.Llama == "" || r.Threads != 1 || r.Context != 64 ||
				r.Reference != path {
				t.Fatalf("%d done, %+v", done, r)
			}
			for i, row := range r.Rows {
				chunks := []int{4, 5}[i/2]
				if row.Chunks != chunks || row.Predictions != chunks*31 || row.Text != "text.txt" ||
					row.ReferencePerplexity < 10 {
					t.Errorf("%+v", row)
				}
				if i%2 == 0 && (row.Candidate != "itself" || row.KL != 0 || row.KLMax != 0 || row.KLError != 0 ||
					row.SameTop != 1 || row.Ratio != 1 ||
					row.RatioError != 0 || row.Perplexity != row.ReferencePerplexity ||
					row.BytesPerWeight != r.ReferenceBytesPerWeight) {
					t.Errorf("%+v", row)
				}
				if i%2 == 1 && (row.Candidate != "other" || row.KL < 0.1 || row.KLMax < row.KLP99 ||
					row.KLP99 < row.KL || row.KLError <= 0 || row.SameTop > 0.9 || row.BytesPerWeight != 0.5) {
					t.Errorf("%+v", row)
				}
			}
			if left, err := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 || err != nil {
				t.Errorf("left %v, %v; want nothing", left, err)
			}
		})
	}
}

func TestFails(t *testing.T) {
	in := llamatest.ForTest(t)
	path, words := llamatest.Model(t, dense), dense
	words.Vocab = 300
	ours := errors.New("ours")
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(ours)
	later, stop := context.WithCancelCause(t.Context())
	var run *llama.RunError
	for name, c := range map[string]struct {
		ctx     context.Context
		change  func(*divergence.Config)
		is      error
		as      any
		message string
	}{
		"no candidate": {t.Context(), func(c *divergence.Config) { c.Candidates = nil }, nil, nil,
			"no candidate"},
		"no text": {t.Context(), func(c *divergence.Config) { c.Texts = nil }, nil, nil, "no text"},
		"no reference": {t.Context(), func(c *divergence.Config) { c.Reference += "x" }, os.ErrNotExist, nil,
			"reference"},
		"no such candidate": {t.Context(), func(c *divergence.Config) { c.Candidates[0].Path += "x" },
			os.ErrNotExist, nil, "candidate c"},
		"no such text": {t.Context(), func(c *divergence.Config) { c.Texts[0] += "x" }, nil, &run,
			"No such file"},
		"short text": {t.Context(), func(c *divergence.Config) { c.Texts[0] = writeText(t, 200) }, nil,
			&run, "too few"},
		"another vocabulary": {t.Context(),
			func(c *divergence.Config) { c.Candidates[0].Path = llamatest.Model(t, words) }, divergence.ErrTokens,
			nil, "Vocab:300"},
		"cancelled": {cancelled, func(*divergence.Config) {}, ours, nil, ""},
		"cancelled later": {later, func(c *divergence.Config) {
			c.Progress = func(done, _ int) {
				if done == 1 {
					stop(ours)
				}
			}
		}, ours, nil, ""},
	} {
		cfg := divergence.Config{Reference: path, Candidates: []divergence.Candidate{{Name: "c", Path: path}},
			Texts: []string{writeText(t, 300)}}
		c.change(&cfg)
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			_, err := divergence.Compare(c.ctx, in, cfg)
			if err == nil || c.is != nil && !errors.Is(err, c.is) || c.as != nil && !errors.As(err, c.as) ||
				!strings.Contains(err.Error(), c.message) {
				t.Errorf("error is %v, want %v %q", err, c.is, c.message)
			}
			if left, err := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 || err != nil {
				t.Errorf("left %v, %v; want nothing", left, err)
			}
		})
	}
}

// A comparison that is cut short reports the rows that are done.
func TestInterrupted(t *testing.T) {
	in, path := llamatest.ForTest(t), llamatest.Model(t, dense)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cfg := divergence.Config{Reference: path, Texts: []string{writeText(t, 300)}, Context: 64, Parallel: 1,
		Progress: func(done, _ int) {
			if done == 3 { // the reference and two candidates
				cancel(reason)
			}
		}}
	for _, name := range []string{"a", "b", "c", "d"} {
		cfg.Candidates = append(cfg.Candidates, divergence.Candidate{Name: name, Path: path})
	}
	r, err := divergence.Compare(ctx, in, cfg)
	if !errors.Is(err, reason) || r == nil || !r.Interrupted || len(r.Rows) != 2 || r.Rows[0].Candidate != "a" ||
		r.Rows[1].Candidate != "b" || r.Rows[1].Predictions == 0 {
		t.Fatalf("%v, %+v", err, r)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil || !strings.Contains(b.String(), "INTERRUPTED") {
		t.Errorf("%v\n%s", err, &b)
	}
}

// TestPerplexity checks that the perplexity of a whole text is what llama-perplexity -c 256 found
// (shared/data/README.md). It is computed with Q8_0, which takes half the time of F16.
func TestPerplexity(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole text takes 15 s of a CPU")
	}
	in := llamatest.ForTest(t)
	const want = 4.020
	model := trained(t, "tiny-dense-q8_0.gguf")
	var nll float64
	n := 0
	_, err := in.Score(t.Context(), llama.Options{
		Model: model, TextFile: filepath.Join(filepath.Dir(model), "eval-tech.txt"), Threads: 1, Warmup: "none",
	}, func(l *llama.Logits) error {
		for ; ; n++ {
			target, logits, err := l.Next()
			if err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			sum := 0.0
			for _, x := range logits {
				sum += math.Exp(float64(x - logits[target]))
			}
			nll += math.Log(sum)
		}
	})
	if got := math.Exp(nll / float64(n)); err != nil || math.Abs(got-want) > 0.002 {
		t.Errorf("perplexity %.4f, want %.3f; %v", got, want, err)
	}
}

// TestTrained checks that a coarser quantisation is farther from F16, by factors that are far
// outside the errors. A reconstruction in F32, which rewrite writes as it does for the fabric's
// profiles, is as far as its weights are.
func TestTrained(t *testing.T) {
	f16, q4 := trained(t, "tiny-dense-f16.gguf"), trained(t, "tiny-dense-q4_k_m.gguf")
	exact, reconstructed := filepath.Join(t.TempDir(), "exact.gguf"), filepath.Join(t.TempDir(), "q4.gguf")
	toF32(t, exact, f16)
	toF32(t, reconstructed, q4)
	r := compare(t, divergence.Config{Reference: f16, Texts: []string{trained(t, "eval-prose.txt")}, Chunks: 3,
		Candidates: []divergence.Candidate{
			{Name: "itself", Path: f16}, {Name: "as F32", Path: exact, BytesPerWeight: 2},
			{Name: "q8_0", Path: trained(t, "tiny-dense-q8_0.gguf")},
			{Name: "q6_k", Path: trained(t, "tiny-dense-q6_k.gguf")}, {Name: "q4_k_m", Path: q4},
			{Name: "q4_k_m as F32", Path: reconstructed},
		}})
	// The mean KLs of whole texts are 0, 7e-9 (with AMX; more where ggml rounds the activations to
	// F16, too), 7.8e-5, 3.9e-4, 1.7e-3, and 1.5e-3 without what the activations lose in Q8_K.
	for i, bounds := range [][2]float64{{0, 0}, {1e-10, 5e-6}, {3e-5, 2e-4}, {2e-4, 8e-4}, {8e-4, 4e-3}, {8e-4, 4e-3}} {
		if row := r.Rows[i]; row.KL < bounds[0] || row.KL > bounds[1] || row.SameTop < 0.95 ||
			math.Abs(row.Ratio-1) > 0.02 {
			t.Errorf("%+v, want KL from %g to %g", row, bounds[0], bounds[1])
		}
	}
	if q8, q4 := r.Rows[2].BytesPerWeight, r.Rows[4].BytesPerWeight; math.Abs(q8-34.0/32) > 0.01 ||
		math.Abs(q4-0.59) > 0.02 {
		t.Errorf("q8_0 has %g bytes per weight, q4_k_m %g; want 1.0625 and 0.59", q8, q4)
	}
}

// toF32 writes the model at src to path with its values as F32.
func toF32(t *testing.T, path, src string) {
	t.Helper()
	m, err := gguf.OpenModel(src)
	if err != nil {
		t.Fatal(err)
	}
	weights, err := gguf.OpenWeights(m, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer weights.Close()
	err = rewrite.WriteFile(t.Context(), path, src, func(t *gguf.Tensor) (rewrite.Replacement, bool) {
		return rewrite.F32(func(emit func([]float32) error) error {
			w, _ := weights.Lookup(t.Name)
			v, err := w.Float32()
			if err != nil {
				return err
			}
			defer v.Release()
			return emit(v.Data)
		}), true
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestReport(t *testing.T) {
	r := &divergence.Report{Reference: "ref.gguf", ReferenceBytesPerWeight: 2, Llama: "ggml 1", Threads: 1,
		Context: 256, Rows: []divergence.Row{
			{Candidate: "a|b", Text: "prose.txt", BytesPerWeight: 0.59375, Chunks: 2, Predictions: 254, KL: 0.0016459,
				KLError: 2.4e-5, KLP99: 0.0137, KLMax: 0.0713, SameTop: 0.9756,
				ReferencePerplexity: 4.0786, Perplexity: 4.0863, Ratio: 1.001884, RatioError: 0.00035},
			{Candidate: "c", Text: "tech.txt", BytesPerWeight: 2, Chunks: 1, Predictions: 127, SameTop: 1,
				ReferencePerplexity: 4, Perplexity: 4, Ratio: 1},
		}}
	var table, markdown strings.Builder
	if err := errors.Join(r.WriteText(&table), r.WriteMarkdown(&markdown)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`| prose.txt | a\|b | 0.594 | 0.001646 | 2.4e-05 | 0.0137 | 0.0713 | 97.56 | 4.0863 | 4.0786 | 1.001884 | 0.00035 |`,
		`| tech.txt | c | 2.000 | 0 | - | 0 | 0 | 100.00 | 4.0000 | 4.0000 | 1.000000 | - |`,
		"* reference: ref.gguf, 2.000 bytes/weight; llama.cpp: ggml 1, 1 threads",
		"* prose.txt: 254 predictions in 2 chunks of 256 tokens; tech.txt: 127 predictions in 1 chunks of " +
			"256 tokens",
	} {
		if !strings.Contains(markdown.String(), want+"\n") {
			t.Errorf("no %q in\n%s", want, &markdown)
		}
	}
	for _, want := range []string{"a|b", "0.001646", "reference: ref.gguf"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, &table)
		}
	}
	data, err := json.Marshal(r)
	var back divergence.Report
	if err == nil {
		err = json.Unmarshal(data, &back)
	}
	if err != nil || len(back.Rows) != 2 || back.Rows[0] != r.Rows[0] ||
		!bytes.Contains(data, []byte(`"kl_p99":0.0137`)) {
		t.Errorf("%s, %v", data, err)
	}
}
