// Package backend_test builds libggml-tfmbs.so (C), has an unmodified llama.cpp load it, and compares what that computes with and without.
package backend_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/offload"
	"tensorcast/experiments/synth"
	"tensorcast/fabric/backend/backendtest"
	"tensorcast/fabric/decompose"
	"tensorcast/fabric/device"
	"tensorcast/fabric/device/devicetest"
	"tensorcast/fabric/handover"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
	"tensorcast/gguf/half"
	"tensorcast/gguf/rewrite"
	"tensorcast/internal/cc"
	"tensorcast/internal/stats"
	"tensorcast/internal/testenv"
)

// library builds the backend.
func library(t testing.TB, flags ...string) string {
	t.Helper()
	return build(t, backendtest.Backend, flags...)
}

// build makes a library.
func build(t testing.TB, l backendtest.Library, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lib.so")
	compiled(t, path, backendtest.Compile(t.Context(), "../..", path, l, append([]string{"-g"}, flags...)...))
	return path
}

// compile compiles a program or library of a test.
func compile(t testing.TB, path, source string, flags ...string) {
	t.Helper()
	compiled(t, path, cc.Compile(t.Context(), path, source, flags...))
}

// compiled skips the test if there is no compiler, and fails it if path could not be compiled.
func compiled(t testing.TB, path string, err error) {
	t.Helper()
	switch {
	case errors.Is(err, cc.ErrNoCompiler):
		t.Skipf("%s is not built: %v", filepath.Base(path), err)
	case err != nil:
		t.Fatal(err)
	}
}

// start runs a device in this process, for all that is started until the test ends; stop ends it before.
func start(t testing.TB) (d *device.Device, stop func()) {
	t.Helper()
	r := devicetest.Start(t, device.Options{PoolBytes: 2 << 30})
	t.Setenv("TFMBS_SOCKET", r.Socket)
	t.Setenv("TFMBS_DEVICE", "/nowhere")
	return r.Device, r.Stop
}

// small has a shape of its own for each kind of matrix.
var small = synth.Config{Layers: 3, Embd: 256, FF: 704, Heads: 4, KVHeads: 2, Type: gguf.Q2_0, Seed: 7}

// mixture has experts instead. With eight of them and four prompts in one batch, some experts have many vectors of a batch and some one.
var mixture = synth.Config{Layers: 3, Embd: 256, FF: 320, Heads: 4, KVHeads: 2, Experts: 8, Used: 3, Type: gguf.Q2_0, Seed: 7}

// converted writes to dir the model from with all matrices in Q2_0.
func converted(t testing.TB, dir, from string) string {
	t.Helper()
	m, err := gguf.OpenModel(from)
	if err != nil {
		t.Fatal(err)
	}
	w, err := gguf.OpenWeights(m, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	to := filepath.Join(dir, "q2_0.gguf")
	err = rewrite.WriteFile(t.Context(), to, from, func(tensor *gguf.Tensor) (rewrite.Replacement, bool) {
		if len(tensor.Shape) < 2 || tensor.Shape[0]%64 != 0 || tensor.Type == gguf.F32 {
			return rewrite.Replacement{}, false
		}
		return rewrite.Replacement{Type: gguf.Q2_0, Write: func(out io.Writer) error {
			h, _ := w.Lookup(tensor.Name)
			v, err := h.Float32()
			if err != nil {
				return err
			}
			defer v.Release()
			_, err = out.Write(quantise(v.Data))
			return err
		}}, true
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// quantise makes blocks of Q2_0 with all four codes. The scale is a part of the largest magnitude.
func quantise(v []float32) (b []byte) {
	for block := range slices.Chunk(v, 64) {
		var most float32
		for _, x := range block {
			most = max(most, x, -x)
		}
		scale := half.Round(most / 2)
		f := half.Float32(scale)
		b = binary.LittleEndian.AppendUint16(b, scale)
		var codes [16]byte
		for i, x := range block {
			c := 1.0
			if f > 0 {
				c = min(max(math.RoundToEven(float64(x/f)), -1), 2) + 1
			}
			codes[i/4] |= byte(c) << (i % 4 * 2)
		}
		b = append(b, codes[:]...)
	}
	return b
}

// logits are those of a text, one prediction after the other.
func logits(t *testing.T, in *llama.Installation, model, text string) [][]float32 {
	t.Helper()
	return score(t, in, model, text, true)
}

func score(t *testing.T, in *llama.Installation, model, text string, noRepack bool) (all [][]float32) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := in.Score(t.Context(), llama.Options{Model: model, Context: 96, Chunks: 2, TextFile: file, Threads: 1, NoRepack: noRepack}, func(l *llama.Logits) error {
		for {
			_, v, err := l.Next()
			if err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			all = append(all, slices.Clone(v))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const prompt = "The page cache keeps what was read from a file"

func generate(t testing.TB, in *llama.Installation, model string, tokens int) []int32 {
	t.Helper()
	r, err := in.Run(t.Context(), llama.Options{Model: model, Prompt: prompt, Tokens: tokens, Threads: 1, NoRepack: true})
	if err != nil {
		t.Fatal(err)
	}
	return r.Tokens
}

// Each product of a run, of single tokens and of batches, is the plain loop's, bit for bit.
func TestProducts(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := library(t, "-DTFMBS_CHECK")
	for name, model := range models(t) {
		t.Run(name, func(t *testing.T) {
			d, _ := start(t)
			t.Setenv("GGML_BACKEND_PATH", lib)
			cmd := in.Command(t.Context(), llama.Options{Model: model, Prompt: strings.Repeat(prompt, 4), Tokens: 8, Threads: 1})
			var errs bytes.Buffer
			cmd.Stderr = &errs
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v: %s", err, errs.Bytes())
			}
			c := parseChecks(t, &errs)
			t.Logf("%d products, %d of one vector, at most %d vectors: at most %.2g of their norm off", c.count, c.single, c.most, c.worst)
			if s := d.Status(); uint64(c.count) > s.Products || s.Failed != 0 || c.single < 100 || c.most <= 64 {
				t.Errorf("%d products, %d of one vector, at most %d vectors; the device: %+v", c.count, c.single, c.most, s)
			}
			if c.worst != 0 {
				t.Errorf("a product is off by %.2g of its norm", c.worst)
			}
		})
	}
}

// checks sums up what a backend built with TFMBS_CHECK says of its products.
type checks struct {
	count, single, most int            // products, those of one vector, and most vectors
	worst, typical      float64        // error of a product, and of all together, of their norm
	vectors             map[string]int // that a weight was multiplied by
}

func parseChecks(t *testing.T, stderr io.Reader) (c checks) {
	t.Helper()
	c.vectors = map[string]int{}
	var allOff, allNorm float64
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		var weight string
		var n int
		var off, norm float64
		if _, err := fmt.Sscanf(lines.Text(), "check %s %d %g %g", &weight, &n, &off, &norm); err != nil || n < 1 || norm <= 0 {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		c.count++
		c.vectors[weight] += n
		if n == 1 {
			c.single++
		}
		c.most = max(c.most, n)
		c.worst = max(c.worst, math.Sqrt(off/norm))
		allOff, allNorm = allOff+off, allNorm+norm
	}
	if err := lines.Err(); err != nil || c.count == 0 {
		t.Fatalf("%d products: %v", c.count, err)
	}
	c.typical = math.Sqrt(allOff / allNorm)
	return c
}

// Other types than Q2_0 are computed as planes. Exact ones of Q4_0, Q4_K and Q8_0 (and of Q6_K, see TestAccurate) give ggml's results, bit for bit; other types' sums are rounded in another order than ggml's. With balanced and fast
// products have the error of the profile.
func TestTypes(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := library(t, "-DTFMBS_CHECK")
	for _, test := range []struct {
		kind        gguf.Type
		profile     string
		least, most float64 // error of all products, of their norm
		planes      float64
	}{
		{gguf.TQ1_0, "", 0, 1e-6, 1},
		{gguf.TQ2_0, "accurate", 0, 1e-6, 1},
		{gguf.Q1_0, "accurate", 0, 1e-6, 1},
		{gguf.Q4_0, "accurate", 0, 0, 3},
		{gguf.Q4_K, "accurate", 0, 0, 3},
		{gguf.Q4_K, "balanced", 0, 1e-6, 3}, // three planes are exact
		{gguf.Q8_0, "accurate", 0, 0, 6},
		{gguf.Q8_0, "balanced", 0.01, 0.067, 3}, // 23.5 dB
		{gguf.Q8_0, "fast", 0.05, 0.178, 2},     // 15 dB
	} {
		t.Run(test.kind.String()+" "+test.profile, func(t *testing.T) {
			cfg := small
			cfg.FF, cfg.Type = 768, test.kind
			model := llamatest.Model(t, cfg)
			d, _ := start(t)
			t.Setenv("GGML_BACKEND_PATH", lib)
			t.Setenv("TFMBS_PROFILE", test.profile)
			cmd := in.Command(t.Context(), llama.Options{Model: model, Prompt: strings.Repeat(prompt, 4), Tokens: 8, Threads: 1, NoRepack: true})
			var errs bytes.Buffer
			cmd.Stderr = &errs
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v: %s", err, errs.Bytes())
			}
			c, s := parseChecks(t, &errs), d.Status()
			t.Logf("%d products, %.2g of their norm off, at most %.2g", c.count, c.typical, c.worst)
			if s.Failed != 0 || c.single < 100 || c.most <= 64 || c.typical < test.least || c.typical > test.most {
				t.Errorf("%+v; the device: %+v", c, s)
			}
			m, err := gguf.OpenModel(model)
			if err != nil {
				t.Fatal(err)
			}
			var weights float64 // in all products
			for _, f := range m.Files {
				for _, x := range f.Tensors {
					n := float64(c.vectors[x.Name])
					for _, of := range x.Shape {
						n *= float64(of)
					}
					weights += n
				}
			}
			if planes := float64(s.Ops) / weights; math.Abs(planes-test.planes) > 0.01 {
				t.Errorf("%.2f planes, want %.0f", planes, test.planes)
			}
		})
	}
	t.Run("unknown profile", func(t *testing.T) {
		start(t)
		t.Setenv("GGML_BACKEND_PATH", lib)
		t.Setenv("TFMBS_PROFILE", "quick")
		cmd := in.Command(t.Context(), llama.Options{Model: llamatest.Model(t, small), Prompt: prompt, Tokens: 2, Threads: 1})
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "want accurate, balanced or fast") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// accurateModels are the trained ones whose types all have exact planes that are multiplied in ggml's order.
var accurateModels = []string{"tiny-dense-q8_0.gguf", "tiny-dense-q6_k.gguf", "tiny-dense-q4_k_m.gguf", "tiny-moe-q8_0.gguf"}

// passage is long enough for 94 predictions.
var passage = strings.Repeat("Memory that was mapped is read when somebody touches it, a page at a time. ", 8)

// answers are a model's predictions of a text, which is decoded in batches, and 128 greedy tokens.
type answers struct {
	logits [][]float32
	tokens []int32
}

func answersOf(t *testing.T, in *llama.Installation, model string) answers {
	t.Helper()
	return answers{logits(t, in, model, passage), generate(t, in, model, 128)}
}

// compare fails the test if anything differs in a single bit.
func (got *answers) compare(t *testing.T, want *answers) {
	t.Helper()
	if len(want.logits) < 90 || len(got.logits) != len(want.logits) || len(want.tokens) != 128 {
		t.Fatalf("%d predictions, the CPU makes %d, and %d tokens", len(got.logits), len(want.logits), len(want.tokens))
	}
	for i := range got.logits {
		if !slices.Equal(got.logits[i], want.logits[i]) {
			t.Errorf("prediction %d is %.2g of its norm off: %v..., the CPU's is %v...", i, apart(got.logits[i:i+1], want.logits[i:i+1]), got.logits[i][:4], want.logits[i][:4])
		}
	}
	if !slices.Equal(got.tokens, want.tokens) {
		t.Errorf("the first %d of %d tokens are the CPU's", common(got.tokens, want.tokens), len(want.tokens))
	}
}

// apart is the largest difference of a prediction, as a part of its norm.
func apart(got, want [][]float32) (worst float64) {
	for i := range got {
		off, norm := 0.0, 0.0
		for k, v := range want[i] {
			d := float64(got[i][k]) - float64(v)
			off, norm = off+d*d, norm+float64(v)*float64(v)
		}
		worst = max(worst, math.Sqrt(off/norm))
	}
	return worst
}

// perToken is how many bytes of planes the device reads for a token.
func perToken(t *testing.T, in *llama.Installation, d *device.Device, model string) uint64 {
	t.Helper()
	const few, many = 4, 20
	s := []device.Status{d.Status()}
	for _, n := range []int{few, many} {
		generate(t, in, model, n)
		s = append(s, d.Status())
	}
	return ((s[2].WeightBytes - s[1].WeightBytes) - (s[1].WeightBytes - s[0].WeightBytes)) / (many - few)
}

// tokenBytes are the bytes of a token's weights, in the file; of these, those of types with planes; and these planes' bytes.
func tokenBytes(t *testing.T, model string) (all, kept, planes uint64) {
	t.Helper()
	m, err := gguf.OpenModel(model)
	if err != nil {
		t.Fatal(err)
	}
	used, _ := m.Files[0].Uint("llama.expert_used_count")
	for _, x := range m.Files[0].Tensors {
		if x.Name == "token_embd.weight" { // one row of it
			continue
		}
		size, rows := uint64(x.Size), uint64(1)
		for _, n := range x.Shape[1:] {
			rows *= uint64(n)
		}
		if len(x.Shape) == 3 {
			size, rows = size*used/uint64(x.Shape[2]), rows*used/uint64(x.Shape[2])
		}
		all += size
		if n := decompose.ExactPlanes(x.Type); n > 0 {
			kept += size
			planes += rows * uint64(n*trit.TwoBit.RowBytes(int(x.Shape[0])))
		}
	}
	return all, kept, planes
}

// With profile accurate, predictions and tokens are those of ggml's CPU code without repacked weights, bit for bit, dense and of a mixture, through the backend and through the interposer; nearly all
// weights of a token are read by the device. What llama.cpp has with repacked weights is further off than that.
func TestAccurate(t *testing.T) {
	in := llamatest.ForTest(t)
	lib, interposer := library(t), interposer(t)
	for _, name := range accurateModels {
		t.Run(name, func(t *testing.T) {
			model := llamatest.Trained(t, name)
			want, repacked := answersOf(t, in, model), score(t, in, model, passage, false)
			t.Setenv("TFMBS_PROFILE", "accurate")
			for variable, library := range map[string]string{"GGML_BACKEND_PATH": lib, "LD_PRELOAD": interposer} {
				t.Run(variable, func(t *testing.T) {
					d, _ := start(t)
					t.Setenv(variable, library)
					got := answersOf(t, in, model)
					got.compare(t, &want)
					all, kept, planes := tokenBytes(t, model)
					token := perToken(t, in, d, model)
					t.Logf("predictions are %.2g of their norm off, those with repacked weights %.2g; %d of %d bytes of a token's weights are the device's, in %d bytes of planes", apart(got.logits, want.logits), apart(repacked, want.logits), kept, all, token)
					if s := d.Status(); s.Failed != 0 || s.Misses != 0 || token != planes || float64(kept) < 0.95*float64(all) {
						t.Errorf("the device reads %d bytes of planes for a token, want %d, which are %d of %d bytes: %+v", token, planes, kept, all, s)
					}
				})
			}
		})
	}
}

// models are synthetic ones, dense and a mixture, one whose experts' gate and up are one tensor, and trained ones if there are any.
func models(t *testing.T) map[string]string {
	fused := mixture
	fused.Arch, fused.Fused, fused.KVHeads = "deepseek2", true, mixture.Heads
	m := map[string]string{"synthetic": llamatest.Model(t, small), "mixture": llamatest.Model(t, mixture), "fused": llamatest.Model(t, fused)}
	t.Run("trained models", func(sub *testing.T) {
		m["trained"] = converted(sub, t.TempDir(), llamatest.Trained(sub, "tiny-dense-f16.gguf"))
		m["trained mixture"] = converted(sub, t.TempDir(), llamatest.Trained(sub, "tiny-moe-q8_0.gguf"))
	})
	return m
}

// Predictions and tokens are those of ggml's CPU code, bit for bit, as the device sums in its order.
func TestLikeCPU(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := library(t)
	for name, model := range models(t) {
		t.Run(name, func(t *testing.T) {
			want := answersOf(t, in, model)
			d, _ := start(t)
			t.Setenv("GGML_BACKEND_PATH", lib)
			got := answersOf(t, in, model)
			if s := d.Status(); s.Products == 0 || s.Failed != 0 {
				t.Fatalf("the device has not computed: %+v", s)
			}
			got.compare(t, &want)
		})
	}
}

// common counts the first elements that are the same.
func common(a, b []int32) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// What a token's weights are is nearly all computed by the device, and moved there once. With a range of layers it is these. Of a mixture's experts, the
// chosen ones are computed.
func TestShare(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := library(t)
	for name, c := range map[string]synth.Config{"dense": small, "mixture": mixture} {
		t.Run(name, func(t *testing.T) { share(t, in, lib, c) })
	}
}

func share(t *testing.T, in *llama.Installation, lib string, c synth.Config) {
	model := llamatest.Model(t, c)
	m, err := gguf.OpenModel(model)
	if err != nil {
		t.Fatal(err)
	}
	var token, layer, kept uint64 // bytes
	for _, tensor := range m.Files[0].Tensors {
		size := uint64(tensor.Size)
		if tensor.Name == "token_embd.weight" { // one row of it
			continue
		}
		if tensor.Type == gguf.Q2_0 {
			kept += size
		}
		if len(tensor.Shape) == 3 {
			size = size / uint64(c.Experts) * uint64(c.Used)
		}
		token += size
		if strings.HasPrefix(tensor.Name, "blk.1.") && tensor.Type == gguf.Q2_0 {
			layer += size
		}
	}
	d, _ := start(t)
	t.Setenv("GGML_BACKEND_PATH", lib)
	const few, many = 4, 20
	count := func() (perToken, moved uint64) {
		s := []device.Status{d.Status()}
		for _, n := range []int{few, many} {
			generate(t, in, model, n)
			s = append(s, d.Status())
		}
		if s[1].Moved-s[0].Moved != s[2].Moved-s[1].Moved || s[2].Misses != 0 {
			t.Errorf("weights were moved after they were loaded: %+v", s)
		}
		return ((s[2].WeightBytes - s[1].WeightBytes) - (s[1].WeightBytes - s[0].WeightBytes)) / (many - few), s[1].Moved - s[0].Moved
	}
	all, moved := count()
	t.Logf("%d of a token's %d bytes of weights", all, token)
	if float64(all) < 0.95*float64(token) || all > token || moved != kept {
		t.Errorf("the device computes %d of %d bytes of weights, and was given %d of %d", all, token, moved, kept)
	}
	t.Setenv("TFMBS_LAYERS", "1-1")
	one, _ := count()
	t.Setenv("TFMBS_LAYERS", "0-0")
	if zero, _ := count(); one != zero || all-one != 2*layer {
		t.Errorf("layer 1: %d bytes, layer 0: %d, all: %d; a layer has %d", one, zero, all, layer)
	}
}

// Without a device, with one that ends, with a wrong setting: llama.cpp goes on, and says why in one line.
func TestGoesOn(t *testing.T) {
	in := llamatest.ForTest(t)
	for name, c := range map[string]synth.Config{"dense": small, "mixture": mixture} {
		t.Run(name, func(t *testing.T) { goesOn(t, in, llamatest.Model(t, c)) })
	}
}

func goesOn(t *testing.T, in *llama.Installation, model string) {
	const tokens = 200 // more than are done while somebody looks
	want := generate(t, in, model, tokens)
	run := func(t *testing.T, same int, during func()) string {
		t.Helper()
		cmd := in.Command(t.Context(), llama.Options{Model: model, Prompt: prompt, Tokens: tokens, Threads: 1, NoRepack: true})
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		during()
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %s", err, errs.Bytes())
		}
		r, err := llama.ParseResult(out.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Tokens) != len(want) || common(r.Tokens, want) < same {
			t.Errorf("tokens %v, want %v", r.Tokens, want)
		}
		return errs.String()
	}
	oneLine := func(t *testing.T, said, word string) {
		t.Helper()
		if strings.Count(said, "tfmbs: ") != 1 || strings.Count(said, "\n") != 1 || !strings.Contains(said, word) {
			t.Errorf("said %q, want one line with %q", said, word)
		}
	}
	lib := library(t)
	t.Run("no device", func(t *testing.T) {
		_, stop := start(t)
		stop()
		t.Setenv("GGML_BACKEND_PATH", lib)
		oneLine(t, run(t, tokens, func() {}), "there is no device")
	})
	t.Run("it ends", func(t *testing.T) {
		d, stop := start(t)
		t.Setenv("GGML_BACKEND_PATH", lib)
		oneLine(t, run(t, tokens, func() {
			testenv.WaitFor(t, "some products", func() bool { return d.Status().Products > 60 })
			stop()
		}), "the device failed")
	})
	t.Run("it ends, and there is no memory", func(t *testing.T) {
		d, stop := start(t)
		t.Setenv("GGML_BACKEND_PATH", library(t, "-DTFMBS_NO_MEMORY"))
		cmd := in.Command(t.Context(), llama.Options{Model: model, Prompt: prompt, Tokens: 1 << 14, Context: 1 << 15, Threads: 1})
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.WaitFor(t, "some products", func() bool { return d.Status().Products > 60 })
		stop()
		if err := cmd.Wait(); err == nil || out.Len() > 0 || !strings.Contains(errs.String(), "the device failed") {
			t.Errorf("%v: %q, %q: a product that nobody computed is not told", err, out.Bytes(), errs.Bytes())
		}
	})
	t.Run("wrong layers", func(t *testing.T) {
		t.Setenv("GGML_BACKEND_PATH", lib)
		t.Setenv("TFMBS_LAYERS", "3-1")
		oneLine(t, run(t, tokens, func() {}), "TFMBS_LAYERS")
	})
}

// TestHandedOverExperts: the device holds some experts of each layer, and others later on. The CPU computes those that it does not hold: the tokens are the same, of prompts, too. What is believed to be
// held is: nothing has to be brought back.
func TestHandedOverExperts(t *testing.T) {
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, mixture)
	f, err := gguf.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	units := handover.Units(f)
	var even, odd, trunk []int
	for i, u := range units {
		switch {
		case u.Expert < 0:
			trunk = append(trunk, i)
		case u.Expert%2 == 0:
			even = append(even, i)
		default:
			odd = append(odd, i)
		}
	}
	const tokens, enough = 400, 1200 // enough for two seconds: the target still runs when the last wish is fulfilled
	long := strings.Repeat(prompt, 8)
	plain, err := in.Run(t.Context(), llama.Options{Model: model, Prompt: long, Tokens: enough, Threads: 1, NoRepack: true})
	if err != nil {
		t.Fatal(err)
	}
	interposed := interposer(t)
	backend := library(t)
	for _, test := range []struct {
		name    string
		tokens  int
		first   []int
		then    [][]int
		preload bool
	}{
		{"half", tokens, slices.Concat(trunk, even), nil, false},
		{"half, and the interposer", tokens, slices.Concat(trunk, even), nil, true},
		{"other halves", enough, slices.Concat(trunk, even), [][]int{odd, slices.Concat(even, trunk), odd}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, _ := start(t)
			file, err := f.Reopen()
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			d.WillHold()
			d.Wish(test.first)
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() { over <- d.Hold(ctx, file, handover.Tensors(units), device.Form{Layout: trit.TwoBit}) }()
			defer func() {
				cancel()
				if err := <-over; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}()
			want := plain.Tokens[:test.tokens]
			cmd := in.Command(t.Context(), llama.Options{Model: model, Prompt: long, Tokens: test.tokens, Threads: 1, NoRepack: true})
			cmd.Env = append(os.Environ(), "TFMBS_HANDOVER=1", "GGML_BACKEND_PATH="+backend)
			if test.preload {
				cmd.Env = append(os.Environ(), "TFMBS_HANDOVER=1", "LD_PRELOAD="+interposed)
			}
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for _, wish := range test.then {
				before := d.Status().Products
				time.Sleep(50 * time.Millisecond)
				d.Wish(wish)
				held := func() bool { h := d.Status().Holding; return h.Tensors == len(wish) }
				testenv.WaitFor(t, "what is wished", held)
				testenv.WaitFor(t, "some products", func() bool { return d.Status().Products > before+100 })
			}
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%v: %s", err, errs.Bytes())
			}
			r, err := llama.ParseResult(out.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			s := d.Status()
			if !slices.Equal(r.Tokens, want) || errs.Len() > 0 {
				t.Errorf("%d of %d tokens are the CPU's: %q", common(r.Tokens, want), len(want), errs.Bytes())
			}
			t.Logf("%d products, %d of them failed", s.Products, s.Failed)
			if s.Products < tokens || s.Misses != 0 || s.Evictions != 0 || s.Moved != 0 || len(test.then) == 0 && s.Failed > uint64(3*3*8+1) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// What the device holds of the file, and hands over, is computed there, and nothing is uploaded. What it does not hold, lets go, or cannot compute any more, the CPU computes: the tokens are the
// same, as products with Q2_0 are.
func TestHandedOver(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := library(t)
	for name, c := range map[string]synth.Config{"dense": small, "mixture": mixture} {
		t.Run(name, func(t *testing.T) { handedOver(t, in, lib, llamatest.Model(t, c)) })
	}
}

func handedOver(t *testing.T, in *llama.Installation, lib, model string) {
	const tokens = 300
	want := generate(t, in, model, tokens)
	f, err := gguf.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	tensors := handover.Tensors(handover.Units(f))
	for _, test := range []struct {
		name   string
		room   uint64
		during func(d *device.Device, stop func())
		said   int // lines
	}{
		{"all", 1 << 30, nil, 0},
		{"half", 0, nil, 0},
		{"let go", 1 << 30, func(d *device.Device, _ func()) { d.Room(0) }, 0},
		{"some let go", 1 << 30, func(d *device.Device, _ func()) { d.Room(d.Status().Holding.Planes / 2) }, 0},
		{"killed", 1 << 30, func(_ *device.Device, stop func()) { stop() }, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, stop := start(t)
			file, err := f.Reopen()
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			if test.room == 0 {
				for i := range tensors {
					for _, e := range tensors[i].Matrices {
						row, _ := e.Type.RowBytes(int64(e.Cols))
						test.room += uint64(row) * uint64(e.Rows) / 2
					}
				}
			}
			d.Room(test.room)
			d.WillHold() // the target waits for it
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error, 1)
			t.Setenv("TFMBS_HANDOVER", "1")
			t.Setenv("GGML_BACKEND_PATH", lib)
			cmd := in.Command(t.Context(), llama.Options{Model: model, Prompt: prompt, Tokens: tokens, Threads: 1, NoRepack: true})
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			go func() { over <- d.Hold(ctx, file, tensors, device.Form{Layout: trit.TwoBit}) }()
			s, ended := device.Status{}, false
			end := sync.OnceFunc(func() {
				cancel()
				if err := <-over; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				s, ended = d.Status(), true
			})
			defer end()
			if test.during != nil {
				testenv.WaitFor(t, "some products", func() bool { return d.Status().Products > 60 })
				test.during(d, func() { end(); stop() })
			}
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%v: %s", err, errs.Bytes())
			}
			r, err := llama.ParseResult(out.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			if !ended {
				s = d.Status()
			}
			if !slices.Equal(r.Tokens, want) {
				t.Errorf("%d of %d tokens are the CPU's", common(r.Tokens, want), len(want))
			}
			if said := strings.Count(errs.String(), "\n"); said != test.said {
				t.Errorf("%d lines, want %d: %s", said, test.said, errs.Bytes())
			}
			if h := s.Holding; h.Tensors == len(tensors) != (test.name == "all" || test.name == "killed") || s.Moved != 0 || s.Shared != 0 || s.Products < 60 {
				t.Errorf("%d of %d tensors, %d products, %d bytes moved, %d uploads", h.Tensors, len(tensors), s.Products, s.Moved, s.Shared)
			}
		})
	}
}

// TestHandedOverDivergence: what the profiles' errors do to the next token, with all weights of trained models handed over: the mean of KL(CPU || device).
func TestHandedOverDivergence(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := library(t)
	text := llamatest.Trained(t, "eval-prose.txt")
	predictions := func(t *testing.T, model string) (all [][]float64) { // probabilities
		_, err := in.Score(t.Context(), llama.Options{Model: model, Context: 256, Chunks: 8, TextFile: text, Threads: 1, NoRepack: true}, func(l *llama.Logits) error {
			for {
				_, v, err := l.Next()
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
				p, sum, most := make([]float64, len(v)), 0.0, slices.Max(v)
				for i, x := range v {
					p[i] = math.Exp(float64(x - most))
					sum += p[i]
				}
				for i := range p {
					p[i] /= sum
				}
				all = append(all, p)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	for _, name := range []string{"tiny-dense-q8_0.gguf", "tiny-moe-q8_0.gguf"} {
		model := llamatest.Trained(t, name)
		want := predictions(t, model)
		last := 0.0
		for _, profile := range []struct {
			name string
			most float64 // nats
		}{{"balanced", 0.004}, {"fast", 0.04}} {
			d, stop := start(t)
			f, err := gguf.Open(model)
			if err != nil {
				t.Fatal(err)
			}
			file, err := f.Reopen()
			if err != nil {
				t.Fatal(err)
			}
			form, err := handover.ParseForm(profile.name, "")
			if err != nil {
				t.Fatal(err)
			}
			tensors := handover.Tensors(handover.Units(f))
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error, 1)
			d.WillHold()
			go func() { over <- d.Hold(ctx, file, tensors, form) }()
			testenv.WaitFor(t, "all to be held", func() bool { return !d.Status().Holding.Loading })
			h := d.Status().Holding
			t.Setenv("TFMBS_HANDOVER", "1")
			t.Setenv("GGML_BACKEND_PATH", lib)
			got := predictions(t, model)
			t.Setenv("GGML_BACKEND_PATH", "")
			s := d.Status()
			cancel()
			<-over
			stop()
			file.Close()
			mean := 0.0
			for i, p := range want {
				for k, v := range p {
					if v > 0 {
						mean += v * math.Log(v/max(got[i][k], 1e-300)) / float64(len(want))
					}
				}
			}
			t.Logf("%s, %s: %.4f nats in %d predictions; %d of %d tensors, %.3f of their bytes", name, profile.name, mean, len(want), h.Tensors, len(tensors), float64(h.Planes)/float64(h.Bytes))
			if !(mean > last && mean < profile.most) || s.Products == 0 || h.Tensors < len(tensors)*9/10 {
				t.Errorf("%s, %s: %.4f nats, more than %.4f and less than %.4f are expected; %d products, %+v", name, profile.name, mean, last, profile.most, s.Products, *h)
			}
			last = mean
		}
	}
}

// However many threads ggml has, it starts none for what lies between the products of a token: they would spin where the device computes. The tokens are the CPU's.
func TestStartsNoThreads(t *testing.T) {
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, small)
	counter := filepath.Join(t.TempDir(), "counter.so")
	compile(t, counter, `#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
static int started;
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *p) {
	int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
	__atomic_fetch_add(&started, 1, __ATOMIC_SEQ_CST);
	return real(t, a, f, p);
}
__attribute__((destructor)) static void tell(void) { fprintf(stderr, "started %d\n", started); }
`, "-shared", "-fPIC")
	start(t)
	lib := library(t)
	run := func(backend string, tokens int) (started int, text []int32) {
		cmd := in.Command(t.Context(), llama.Options{Model: model, Prompt: prompt, Tokens: tokens, Threads: 1})
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+counter, "GGML_BACKEND_PATH="+backend)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, errs.Bytes())
		}
		r, err := llama.ParseResult(out.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscanf(errs.String(), "started %d", &started); err != nil {
			t.Fatalf("%q: %v", errs.String(), err)
		}
		return started, r.Tokens
	}
	few, _ := run(lib, 10)
	many, text := run(lib, 40)
	cpu, want := run("", 40)
	if cpu < 40 { // one for each token
		t.Skipf("this ggml does not start its threads anew: %d", cpu)
	}
	if many-few > 3 || !slices.Equal(text, want) {
		t.Errorf("%d threads were started for 10 tokens, %d for 40; tokens %v, the CPU's are %v", few, many, text, want)
	}
}

// A ggml that is not known is refused with one line: nothing of it is touched.
func TestUnknownVersion(t *testing.T) {
	testenv.NeedMachine(t)
	lib := library(t)
	const host = `
#include <dlfcn.h>
#include <stdio.h>
#ifdef OTHER
#define F(name) void name(void) {}
const char *ggml_version(void) { return "99.1.0"; }
F(ggml_op_name) F(ggml_type_name) F(ggml_get_name) F(ggml_get_data) F(ggml_nbytes) F(ggml_blck_size) F(ggml_type_size) F(ggml_graph_n_nodes) F(ggml_graph_node)
F(ggml_graph_view) F(ggml_backend_graph_compute) F(ggml_backend_free) F(ggml_backend_get_device) F(ggml_backend_dev_supports_op)
F(ggml_backend_cpu_buffer_type) F(ggml_backend_buft_is_host) F(ggml_backend_buffer_is_host) F(ggml_backend_buffer_get_usage)
#endif
int main(int argc, char **argv) {
	void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
	if (!lib) return puts(dlerror()), 1;
	int (*score)(void) = (int (*)(void))dlsym(lib, "ggml_backend_score");
	void *(*init)(void) = (void *(*)(void))dlsym(lib, "ggml_backend_init");
	return !score || !init || score() != 0 || init() != 0;
}`
	for flag, want := range map[string]string{"-DOTHER": "version 99.1.0 of ggml is not known", "-DNONE": "this ggml has no function ggml_version"} {
		program := filepath.Join(t.TempDir(), "host")
		if err := cc.Compile(t.Context(), program, host, "-rdynamic", flag); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), program, lib).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s: %v: %q", flag, err, out)
		}
	}
}

// BenchmarkPaired runs a model with and without the device, in turns (package offload), and reports medians in tokens/s and of what is won. TFMBS_BENCH_MODEL=model.gguf replaces the synthetic model of 30 MB, TFMBS_BENCH_PROMPT=256 the prompt of 8 tokens,
// TFMBS_BENCH_TOKENS=48 the 24 that are generated. -benchtime 5x makes five turns.
func BenchmarkPaired(b *testing.B) {
	in := llamatest.ForTest(b)
	d, _ := start(b)
	lib := library(b)
	model := os.Getenv("TFMBS_BENCH_MODEL")
	if model == "" {
		model = llamatest.Model(b, synth.Config{Layers: 8, Embd: 1024, FF: 2816, Heads: 16, KVHeads: 4, Type: gguf.Q2_0, Seed: 7})
	}
	number := func(name, otherwise string) int {
		n, err := strconv.Atoi(cmp.Or(os.Getenv(name), otherwise))
		if err != nil || n < 2 {
			b.Fatalf("%s: want a number of tokens: %v", name, err)
		}
		return n
	}
	length, tokens := number("TFMBS_BENCH_PROMPT", "8"), number("TFMBS_BENCH_TOKENS", "24")
	c := offload.Config{Model: model, Prompt: length, Tokens: tokens, Batches: []int{1}, Turns: 1, Backend: lib, Socket: os.Getenv("TFMBS_SOCKET")}
	values := map[string][]float64{} // by metric
	for b.Loop() {
		r, err := offload.Compare(b.Context(), in, c, func(int, int) {})
		if err != nil {
			b.Fatal(err)
		}
		for _, v := range r.Results {
			b.Logf("%s: %.2f tokens/s, prompt %.1f tokens/s, load %.0f ms, %d of %d tokens the same", v.Name, v.TokS, v.PromptTokS, v.LoadMs, v.Same, tokens)
			name := strings.ReplaceAll(strings.ReplaceAll(v.Name, ", ", "-"), " ", "-")
			for metric, x := range map[string]float64{"tok/s": v.TokS, "x": v.Ratio.Estimate, "prompt-tok/s": v.PromptTokS, "prompt-x": v.PromptRatio.Estimate} {
				values[name+"-"+metric] = append(values[name+"-"+metric], x)
			}
		}
	}
	if s := d.Status(); s.Products == 0 || s.Failed != 0 {
		b.Errorf("the device: %+v", s)
	}
	for metric, x := range values {
		b.ReportMetric(stats.Median(x), metric)
	}
	b.ReportMetric(0, "ns/op") // a turn's length says nothing
}
