// Package backend_test builds libggml-tfmbs.so and libtfmbs_intercept.so (C), has an unmodified llama.cpp load
// them, and compares what it computes with and without them.
package backend_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
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
	"sync/atomic"
	"syscall"
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

// buildBackend builds libggml-tfmbs.so.
func buildBackend(t testing.TB, flags ...string) string {
	t.Helper()
	return buildLibrary(t, backendtest.Backend, flags...)
}

// built holds the libraries that this process has built, by kind and flags, because each takes the compiler seconds and
// nearly all tests need one.
var built struct {
	sync.Mutex
	libraries map[string][]byte
}

// buildLibrary builds a library, or writes one that was built before.
func buildLibrary(t testing.TB, l backendtest.Library, flags ...string) string {
	t.Helper()
	path, key := filepath.Join(t.TempDir(), "lib.so"), fmt.Sprintf("%d %q", l, flags)
	built.Lock()
	defer built.Unlock()
	if library, ok := built.libraries[key]; ok {
		if err := os.WriteFile(path, library, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	checkCompiled(t, path, backendtest.Compile(t.Context(), "../..", path, l, append([]string{"-g"}, flags...)...))
	library, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if built.libraries == nil {
		built.libraries = map[string][]byte{}
	}
	built.libraries[key] = library
	return path
}

// compile compiles a program or library of a test.
func compile(t testing.TB, path, source string, flags ...string) {
	t.Helper()
	checkCompiled(t, path, cc.Compile(t.Context(), path, source, flags...))
}

// checkCompiled skips the test if there is no compiler, and fails it if path could not be compiled.
func checkCompiled(t testing.TB, path string, err error) {
	t.Helper()
	switch {
	case errors.Is(err, cc.ErrNoCompiler):
		t.Skipf("%s is not built: %v", filepath.Base(path), err)
	case err != nil:
		t.Fatal(err)
	}
}

// startDevice runs a device in this process until the test ends, or until stop. Programs that the test starts find it.
func startDevice(t testing.TB) (d *device.Device, stop func()) {
	t.Helper()
	d, environ, stop := startDeviceFor(t)
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	return d, stop
}

// startDeviceFor is startDevice for programs that are given the variables of the environment with which they find the
// device. Unlike startDevice, it can be called by tests that run in parallel.
func startDeviceFor(t testing.TB) (d *device.Device, environ []string, stop func()) {
	t.Helper()
	r := devicetest.Start(t, device.Options{PoolBytes: 2 << 30})
	return r.Device, []string{"TFMBS_SOCKET=" + r.Socket, "TFMBS_DEVICE=/nowhere"}, r.Stop
}

// small has another shape for each kind of matrix.
var small = synth.Config{Layers: 3, Embd: 256, FF: 704, Heads: 4, KVHeads: 2, Type: gguf.Q2_0, Seed: 7}

// mixture has experts instead. With eight of them, and four times the prompt in one batch, some experts have
// many vectors of a batch and some have one.
var mixture = synth.Config{Layers: 3, Embd: 256, FF: 320, Heads: 4, KVHeads: 2, Experts: 8, Used: 3,
	Type: gguf.Q2_0, Seed: 7}

// convertToQ2 writes the model from to dir, with all matrices in Q2_0.
func convertToQ2(t testing.TB, dir, from string) string {
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
			_, err = out.Write(encodeQ2(v.Data))
			return err
		}}, true
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// encodeQ2 makes blocks of Q2_0 with all four codes. The scale is half of the largest magnitude.
func encodeQ2(v []float32) (b []byte) {
	for block := range slices.Chunk(v, 64) {
		var largest float32
		for _, x := range block {
			largest = max(largest, x, -x)
		}
		scale := half.Round(largest / 2)
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

// logits are a model's predictions of a text, without repacked weights.
func logits(t *testing.T, in *llama.Installation, model, text string) [][]float32 {
	t.Helper()
	return scoreText(t, in, model, text, true)
}

// scoreText returns a model's predictions of a text, with or without repacked weights.
func scoreText(t *testing.T, in *llama.Installation, model, text string, noRepack bool) (all [][]float32) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := llama.Options{Model: model, Context: 96, Chunks: 2, TextFile: file, Threads: 1, NoRepack: noRepack}
	_, err := in.Score(t.Context(), o, func(l *llama.Logits) error {
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

// generate returns the greedy tokens after the prompt.
func generate(t testing.TB, in *llama.Installation, model string, tokens int) []int32 {
	t.Helper()
	r, err := in.Run(t.Context(), llama.Options{Model: model, Prompt: prompt, Tokens: tokens, Threads: 1,
		NoRepack: true})
	if err != nil {
		t.Fatal(err)
	}
	return r.Tokens
}

// computed holds what cpuTokens has returned, by the hash of the model's file.
var computed struct {
	sync.Mutex
	tokens map[[sha256.Size]byte][]int32
}

// cpuTokens is generate, to be called where ggml computes everything itself. Tests of the same model share the tokens,
// of which the first ones are those of any shorter text, as long as all fit into the context of 512 tokens that the
// target has at least.
func cpuTokens(t testing.TB, in *llama.Installation, model string, tokens int) []int32 {
	t.Helper()
	if len(prompt)+tokens > 500 {
		t.Fatalf("%d tokens have a larger context", tokens)
	}
	data, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256(data)
	computed.Lock()
	defer computed.Unlock()
	if len(computed.tokens[hash]) < tokens {
		if computed.tokens == nil {
			computed.tokens = map[[sha256.Size]byte][]int32{}
		}
		computed.tokens[hash] = generate(t, in, model, tokens)
	}
	return slices.Clone(computed.tokens[hash][:tokens])
}

// target is a llama.cpp that runs: what it has written to standard error, and whether it has ended.
type target struct {
	stderr func() string
	ended  func() bool
}

// repeatUntil has llama.cpp generate a text of o.Tokens tokens again and again until during returns, and a whole one
// after that. So the target still runs when during has done what it does, on any machine. repeatUntil returns all
// texts, and what is on standard error.
func repeatUntil(t *testing.T, in *llama.Installation, o llama.Options, environ []string,
	during func(target)) (texts [][]int32, stderr string) {
	t.Helper()
	o.Stream, o.Repeat = true, 1<<20
	cmd := in.Command(t.Context(), o)
	cmd.Env = append(os.Environ(), environ...)
	errs, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer errs.Close()
	cmd.Stderr = errs
	said := func() string {
		text, err := os.ReadFile(errs.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var begun atomic.Int64 // texts
	ended := make(chan error, 1)
	hasEnded := func() bool { return len(ended) > 0 }
	go func() {
		s, err := llama.NewStream(out)
		for err == nil {
			var token llama.Token
			if token, err = s.Next(); err == nil {
				if token.Token == 0 {
					texts = append(texts, nil)
					begun.Add(1)
				}
				texts[len(texts)-1] = append(texts[len(texts)-1], token.ID)
			}
		}
		ended <- err
	}()
	wait := sync.OnceFunc(func() {
		if err := <-ended; err != io.EOF {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, said())
		}
	})
	defer func() {
		_ = cmd.Process.Kill() // it may have ended
		wait()
	}()
	during(target{said, hasEnded})
	for before := begun.Load(); begun.Load() < before+2 && !hasEnded(); {
		time.Sleep(5 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	wait()
	return texts, said()
}

// compareTexts fails the test unless there are texts, and all of them are the CPU's.
func compareTexts(t *testing.T, texts [][]int32, want []int32) {
	t.Helper()
	if len(texts) == 0 {
		t.Error("there is no text")
	}
	for i, got := range texts {
		if !slices.Equal(got, want) {
			t.Errorf("text %d: the first %d tokens are the CPU's, want all %d", i, commonPrefix(got, want), len(want))
		}
	}
}

// TestProducts: each product of a run, of single tokens and of batches, is that of ggml's plain loop, bit for bit.
func TestProducts(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := buildBackend(t, "-DTFMBS_CHECK")
	for name, model := range models(t) {
		t.Run(name, func(t *testing.T) {
			d, _ := startDevice(t)
			t.Setenv("GGML_BACKEND_PATH", lib)
			cmd := in.Command(t.Context(), llama.Options{Model: model, Prompt: strings.Repeat(prompt, 4),
				Tokens: 8, Threads: 1})
			var errs bytes.Buffer
			cmd.Stderr = &errs
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v: %s", err, errs.Bytes())
			}
			c := parseChecks(t, &errs)
			t.Logf("%d products, %d of one vector, at most %d vectors: the largest error is %.2g of the norm",
				c.count, c.single, c.most, c.worst)
			if s := d.Status(); uint64(c.count) > s.Products || s.Failed != 0 || c.single < 100 || c.most <= 64 {
				t.Errorf("%d products, %d of one vector, at most %d vectors; want at least 100, more than 64 vectors; "+
					"the device: %+v", c.count, c.single, c.most, s)
			}
			if c.worst != 0 {
				t.Errorf("the largest error of a product is %.2g of its norm, want 0", c.worst)
			}
		})
	}
}

// checks sums up what a backend built with TFMBS_CHECK says of its products.
type checks struct {
	count, single, most int // products, those of one vector, and the most vectors of one
	// The largest error of a product, and that of all together, as parts of their norms.
	worst, typical float64
	vectors        map[string]int // how many vectors each weight was multiplied by
}

// parseChecks reads what the backend has written to standard error.
func parseChecks(t *testing.T, stderr io.Reader) (c checks) {
	t.Helper()
	c.vectors = map[string]int{}
	var allOff, allNorm float64
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		var weight string
		var n int
		var off, norm float64
		if _, err := fmt.Sscanf(lines.Text(), "check %s %d %g %g", &weight, &n, &off, &norm); err != nil ||
			n < 1 || norm <= 0 {
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
		t.Fatalf("%d products were checked, want some: %v", c.count, err)
	}
	c.typical = math.Sqrt(allOff / allNorm)
	return c
}

// TestTypes: types other than Q2_0 are computed as planes. Exact planes of Q4_0, Q4_K and Q8_0 (and of Q6_K,
// see TestAccurate) give ggml's results, bit for bit. Sums of the other types are rounded in another order than
// ggml's. With balanced and fast, products have the error of the profile.
func TestTypes(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := buildBackend(t, "-DTFMBS_CHECK")
	for _, test := range []struct {
		kind        gguf.Type
		profile     string
		least, most float64 // bounds of the error of all products, as a part of their norm
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
			d, _ := startDevice(t)
			t.Setenv("GGML_BACKEND_PATH", lib)
			t.Setenv("TFMBS_PROFILE", test.profile)
			cmd := in.Command(t.Context(), llama.Options{Model: model, Prompt: strings.Repeat(prompt, 4),
				Tokens: 8, Threads: 1, NoRepack: true})
			var errs bytes.Buffer
			cmd.Stderr = &errs
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v: %s", err, errs.Bytes())
			}
			c, s := parseChecks(t, &errs), d.Status()
			t.Logf("%d products, %.2g of their norm off, at most %.2g", c.count, c.typical, c.worst)
			if s.Failed != 0 || c.single < 100 || c.most <= 64 || c.typical < test.least || c.typical > test.most {
				t.Errorf("%+v, want an error of %v to %v; the device: %+v", c, test.least, test.most, s)
			}
			m, err := gguf.OpenModel(model)
			if err != nil {
				t.Fatal(err)
			}
			var weights float64 // of all products together
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
		startDevice(t)
		t.Setenv("GGML_BACKEND_PATH", lib)
		t.Setenv("TFMBS_PROFILE", "quick")
		cmd := in.Command(t.Context(), llama.Options{Model: llamatest.Model(t, small), Prompt: prompt,
			Tokens: 2, Threads: 1})
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "want accurate, balanced or fast") {
			t.Errorf("error %v, output %s; want that it says which profiles there are", err, out)
		}
	})
}

// accurateModels are the trained models all of whose types have exact planes that are multiplied in ggml's order.
var accurateModels = []string{"tiny-dense-q8_0.gguf", "tiny-dense-q6_k.gguf", "tiny-dense-q4_k_m.gguf",
	"tiny-moe-q8_0.gguf"}

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

// cpuAnswersOf is answersOf where ggml computes everything itself.
func cpuAnswersOf(t *testing.T, in *llama.Installation, model string) answers {
	t.Helper()
	return answers{logits(t, in, model, passage), cpuTokens(t, in, model, 128)}
}

// compare fails the test if the answers differ in a single bit.
func (got *answers) compare(t *testing.T, want *answers) {
	t.Helper()
	if len(want.logits) < 90 || len(got.logits) != len(want.logits) || len(want.tokens) != 128 {
		t.Fatalf("%d predictions; the CPU makes %d, want at least 90, and %d tokens, want 128",
			len(got.logits), len(want.logits), len(want.tokens))
	}
	for i := range got.logits {
		if !slices.Equal(got.logits[i], want.logits[i]) {
			off := largestDifference(got.logits[i:i+1], want.logits[i:i+1])
			t.Errorf("prediction %d: %v..., want the CPU's %v...; the error is %.2g of its norm", i,
				got.logits[i][:4], want.logits[i][:4], off)
		}
	}
	if !slices.Equal(got.tokens, want.tokens) {
		t.Errorf("the first %d tokens are the CPU's, want all %d", commonPrefix(got.tokens, want.tokens),
			len(want.tokens))
	}
}

// largestDifference is that of a prediction, as a part of its norm.
func largestDifference(got, want [][]float32) (worst float64) {
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

// tokenBytes returns how many bytes of the file a token's weights are (all), how many of these are of types
// with exact planes (kept), and how many bytes these planes are.
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

// TestAccurate: with the profile accurate, predictions and tokens are those of ggml's CPU code without repacked
// weights, bit for bit. This is so for dense models and mixtures, with the backend and with the interposer. The
// device reads nearly all weights of a token. Predictions with repacked weights differ more from those than
// that.
func TestAccurate(t *testing.T) {
	in := llamatest.ForTest(t)
	backend, interposer := buildBackend(t), buildInterposer(t)
	for _, name := range accurateModels {
		t.Run(name, func(t *testing.T) {
			model := llamatest.Trained(t, name)
			want, repacked := cpuAnswersOf(t, in, model), scoreText(t, in, model, passage, false)
			t.Setenv("TFMBS_PROFILE", "accurate")
			for variable, library := range map[string]string{"GGML_BACKEND_PATH": backend, "LD_PRELOAD": interposer} {
				t.Run(variable, func(t *testing.T) {
					d, _ := startDevice(t)
					t.Setenv(variable, library)
					const few = 4
					read := func(tokens int) (text []int32, bytes uint64) { // of planes, by the device
						before := d.Status().WeightBytes
						text = generate(t, in, model, tokens)
						return text, d.Status().WeightBytes - before
					}
					got := answers{logits: logits(t, in, model, passage)}
					text, many := read(len(want.tokens))
					got.tokens = text
					got.compare(t, &want)
					_, less := read(few)
					token := (many - less) / uint64(len(want.tokens)-few)
					all, kept, planes := tokenBytes(t, model)
					t.Logf("predictions have an error of %.2g of their norm, with repacked weights %.2g",
						largestDifference(got.logits, want.logits), largestDifference(repacked, want.logits))
					t.Logf("the device has %d of %d bytes of a token's weights, in %d bytes", kept, all, token)
					if s := d.Status(); s.Failed != 0 || s.Misses != 0 || token != planes ||
						float64(kept) < 0.95*float64(all) {
						t.Errorf("the device reads %d bytes of planes for a token, want %d, for %d of %d bytes: %+v",
							token, planes, kept, all, s)
					}
				})
			}
		})
	}
}

// models are synthetic ones (dense, a mixture, and one whose experts have gate and up in one tensor), and
// trained ones if there are any.
func models(t *testing.T) map[string]string {
	fused := mixture
	fused.Arch, fused.Fused, fused.KVHeads = "deepseek2", true, mixture.Heads
	m := map[string]string{"synthetic": llamatest.Model(t, small), "mixture": llamatest.Model(t, mixture),
		"fused": llamatest.Model(t, fused)}
	t.Run("trained models", func(sub *testing.T) {
		m["trained"] = convertedToQ2(sub, t.TempDir(), llamatest.Trained(sub, "tiny-dense-f16.gguf"))
		m["trained mixture"] = convertedToQ2(sub, t.TempDir(), llamatest.Trained(sub, "tiny-moe-q8_0.gguf"))
	})
	return m
}

// converted holds what convertToQ2 has made, by the model's path.
var converted = map[string][]byte{}

// convertedToQ2 is convertToQ2, once for each model. Tests that run in parallel must not call it.
func convertedToQ2(t testing.TB, dir, from string) string {
	t.Helper()
	if model, ok := converted[from]; ok {
		to := filepath.Join(dir, "q2_0.gguf")
		if err := os.WriteFile(to, model, 0o600); err != nil {
			t.Fatal(err)
		}
		return to
	}
	to := convertToQ2(t, dir, from)
	model, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	converted[from] = model
	return to
}

// TestLikeCPU: predictions and tokens are those of ggml's CPU code, bit for bit, as the device sums in the same order.
func TestLikeCPU(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := buildBackend(t)
	for name, model := range models(t) {
		t.Run(name, func(t *testing.T) {
			want := cpuAnswersOf(t, in, model)
			d, _ := startDevice(t)
			t.Setenv("GGML_BACKEND_PATH", lib)
			got := answersOf(t, in, model)
			if s := d.Status(); s.Products == 0 || s.Failed != 0 {
				t.Fatalf("the device: %+v, want products, and none that failed", s)
			}
			got.compare(t, &want)
		})
	}
}

// TestRounding: ggml's code for processors without fused multiply-adds rounds sums of Q2_0 in another way, and so does
// a build whose compiler chose to. Then the library says so, and otherwise it says nothing.
func TestRounding(t *testing.T) {
	in := llamatest.ForTest(t)
	old := &llama.Installation{Dir: t.TempDir()}
	old.Driver = filepath.Join(old.Dir, filepath.Base(in.Driver))
	files, err := os.ReadDir(in.Dir)
	if err != nil {
		t.Fatal(err)
	}
	variant := false
	for _, f := range files {
		if strings.HasPrefix(f.Name(), "libggml-cpu-") {
			if f.Name() != "libggml-cpu-sandybridge.so" {
				continue
			}
			variant = true
		}
		data, err := os.ReadFile(filepath.Join(in.Dir, f.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(old.Dir, f.Name()), data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !variant {
		t.Skip("this llama.cpp has no code for processors without fused multiply-adds")
	}
	lib := buildBackend(t)
	model := llamatest.Model(t, small)
	for _, tt := range []struct {
		in   *llama.Installation
		told bool
	}{{in, false}, {old, true}} {
		d, _ := startDevice(t)
		cmd := tt.in.Command(t.Context(), llama.Options{Model: model, Prompt: "a", Tokens: 2, Threads: 1})
		cmd.Env = append(os.Environ(), "GGML_BACKEND_PATH="+lib)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil || d.Status().Products == 0 {
			t.Fatalf("%v, %+v: %s", err, d.Status(), &stderr)
		}
		if n := strings.Count(stderr.String(), "rounds each product of Q2_0"); n > 1 || (n == 1) != tt.told {
			t.Errorf("%s: said %d times that sums are rounded in another way, want it told: %t\n%s", tt.in.Dir, n, tt.told,
				&stderr)
		}
	}
}

// commonPrefix counts the first elements that are the same.
func commonPrefix(a, b []int32) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// TestShare: the device computes with nearly all weights of a token, and they are moved there once. With a
// range of layers, it computes with these. Of a mixture's experts, it computes with the chosen ones.
func TestShare(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := buildBackend(t)
	for name, c := range map[string]synth.Config{"dense": small, "mixture": mixture} {
		t.Run(name, func(t *testing.T) { checkShare(t, in, lib, c) })
	}
}

func checkShare(t *testing.T, in *llama.Installation, lib string, c synth.Config) {
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
	d, _ := startDevice(t)
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
		first, second := s[1].WeightBytes-s[0].WeightBytes, s[2].WeightBytes-s[1].WeightBytes
		return (second - first) / (many - few), s[1].Moved - s[0].Moved
	}
	all, moved := count()
	t.Logf("%d of a token's %d bytes of weights", all, token)
	if float64(all) < 0.95*float64(token) || all > token || moved != kept {
		t.Errorf("the device computes with %d bytes of weights, want nearly all %d; it was given %d, want %d",
			all, token, moved, kept)
	}
	t.Setenv("TFMBS_LAYERS", "1-1")
	one, _ := count()
	t.Setenv("TFMBS_LAYERS", "0-0")
	if zero, _ := count(); one != zero || all-one != 2*layer {
		t.Errorf("layer 1: %d bytes, layer 0: %d, all: %d; want two layers of %d less than all for each", one,
			zero, all, layer)
	}
}

// TestGoesOn: without a device, with one that ends, and with a wrong setting, llama.cpp goes on, and says why
// in one line. The subtests run in parallel, because where there is no device, llama.cpp waits five seconds for one.
func TestGoesOn(t *testing.T) {
	t.Parallel()
	in := llamatest.ForTest(t)
	for name, c := range map[string]synth.Config{"dense": small, "mixture": mixture} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkGoesOn(t, in, llamatest.Model(t, c))
		})
	}
}

func checkGoesOn(t *testing.T, in *llama.Installation, model string) {
	const tokens = 48
	want := cpuTokens(t, in, model, tokens)
	lib := "GGML_BACKEND_PATH=" + buildBackend(t)
	o := llama.Options{Model: model, Prompt: prompt, Tokens: tokens, Threads: 1, NoRepack: true}
	// run generates the text once and, if there is something to do meanwhile, again until it is done.
	run := func(t *testing.T, environ []string, during func(target)) string {
		t.Helper()
		environ = append(environ, lib)
		if during == nil {
			text, said := runIntercepted(t, in, o, "", "", environ...)
			compareTexts(t, [][]int32{text}, want)
			return said
		}
		texts, said := repeatUntil(t, in, o, environ, during)
		compareTexts(t, texts, want)
		return said
	}
	oneLine := func(t *testing.T, said, word string) {
		t.Helper()
		if strings.Count(said, "tfmbs: ") != 1 || strings.Count(said, "\n") != 1 || !strings.Contains(said, word) {
			t.Errorf("standard error: %q, want one line with %q", said, word)
		}
	}
	t.Run("no device", func(t *testing.T) {
		t.Parallel()
		_, environ, stop := startDeviceFor(t)
		stop()
		oneLine(t, run(t, environ, nil), "there is no device")
	})
	t.Run("it ends", func(t *testing.T) {
		t.Parallel()
		d, environ, stop := startDeviceFor(t)
		oneLine(t, run(t, environ, func(target) {
			testenv.WaitFor(t, "some products", func() bool { return d.Status().Products > 60 })
			stop()
		}), "the device failed")
	})
	t.Run("it ends, and there is no memory", func(t *testing.T) {
		t.Parallel()
		d, environ, stop := startDeviceFor(t)
		cmd := in.Command(t.Context(), llama.Options{Model: model, Prompt: prompt, Tokens: 1 << 14,
			Context: 1 << 15, Threads: 1})
		cmd.Env = append(append(os.Environ(), environ...),
			"GGML_BACKEND_PATH="+buildBackend(t, "-DTFMBS_NO_MEMORY"))
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.WaitFor(t, "some products", func() bool { return d.Status().Products > 60 })
		stop()
		if err := cmd.Wait(); err == nil || out.Len() > 0 || !strings.Contains(errs.String(), "the device failed") {
			t.Errorf("error %v, output %q, %q; want that llama.cpp fails, as nobody computed a product", err,
				out.Bytes(), errs.Bytes())
		}
	})
	t.Run("wrong layers", func(t *testing.T) {
		t.Parallel()
		oneLine(t, run(t, []string{"TFMBS_LAYERS=3-1"}, nil), "TFMBS_LAYERS")
	})
}

// TestHandedOverExperts: the device holds some experts of each layer, and others later on. The CPU computes
// with those that it does not hold. The tokens are the same, also after a long prompt. Nothing has to be
// brought back for a product.
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
	const tokens = 100
	o := llama.Options{Model: model, Prompt: strings.Repeat(prompt, 8), Tokens: tokens, Threads: 1, NoRepack: true}
	plain, err := in.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	interposed := buildInterposer(t)
	backend := buildBackend(t)
	for _, test := range []struct {
		name    string
		first   []int
		then    [][]int
		backend string // or none
		preload string // or none
	}{
		{"half", slices.Concat(trunk, even), nil, backend, ""},
		{"half, and the interposer", slices.Concat(trunk, even), nil, "", interposed},
		{"other halves", slices.Concat(trunk, even), [][]int{odd, slices.Concat(even, trunk), odd}, backend, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, _ := startDevice(t)
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
			environ := []string{"TFMBS_HANDOVER=1", "GGML_BACKEND_PATH=" + test.backend}
			var texts [][]int32
			var said string
			if test.then == nil {
				texts = make([][]int32, 1)
				texts[0], said = runIntercepted(t, in, o, "", test.preload, environ...)
			} else {
				texts, said = repeatUntil(t, in, o, environ, func(target) {
					products := func() uint64 { return d.Status().Products }
					testenv.WaitFor(t, "some products", func() bool { return products() > 100 })
					for _, wish := range test.then {
						before := products()
						d.Wish(wish)
						held := func() bool { h := d.Status().Holding; return h.Tensors == len(wish) }
						testenv.WaitFor(t, "what is wished", held)
						testenv.WaitFor(t, "some products", func() bool { return products() > before+100 })
					}
				})
			}
			compareTexts(t, texts, plain.Tokens)
			if said != "" {
				t.Errorf("standard error %q, want none", said)
			}
			s := d.Status()
			t.Logf("%d products, %d of them failed", s.Products, s.Failed)
			mostFailed := uint64(3*3*8 + 1) // jobs that looked for a matrix that is not held
			if s.Products < tokens || s.Misses != 0 || s.Evictions != 0 || s.Moved != 0 ||
				len(test.then) == 0 && s.Failed > mostFailed {
				t.Errorf("%+v, want at least %d products, at most %d failed, and nothing moved", s, tokens, mostFailed)
			}
		})
	}
}

// TestHandedOver: products with weights that the device holds of the file are computed there, and nothing is
// uploaded. The CPU computes with weights that the device does not hold or lets go, and when the device ends.
// The tokens are the same, as products with Q2_0 are.
func TestHandedOver(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := buildBackend(t)
	for name, c := range map[string]synth.Config{"dense": small, "mixture": mixture} {
		t.Run(name, func(t *testing.T) { checkHandedOver(t, in, lib, llamatest.Model(t, c)) })
	}
}

func checkHandedOver(t *testing.T, in *llama.Installation, lib, model string) {
	const tokens = 48
	want := cpuTokens(t, in, model, tokens)
	f, err := gguf.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	tensors := handover.Tensors(handover.Units(f))
	for _, test := range []struct {
		name   string
		room   uint64
		during func(d *device.Device, stop func())
		said   int // lines on standard error
	}{
		{"all", 1 << 30, nil, 0},
		{"half", 0, nil, 0},
		{"let go", 1 << 30, func(d *device.Device, _ func()) { d.Room(0) }, 0},
		{"some let go", 1 << 30, func(d *device.Device, _ func()) { d.Room(d.Status().Holding.Planes / 2) }, 0},
		{"killed", 1 << 30, func(_ *device.Device, stop func()) { stop() }, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, stop := startDevice(t)
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
			s, begun, ended := device.Status{}, false, false
			end := sync.OnceFunc(func() {
				cancel()
				if begun {
					if err := <-over; !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				}
				s, ended = d.Status(), true
			})
			defer end()
			o := llama.Options{Model: model, Prompt: prompt, Tokens: tokens, Threads: 1, NoRepack: true}
			texts, said := repeatUntil(t, in, o, []string{"TFMBS_HANDOVER=1", "GGML_BACKEND_PATH=" + lib},
				func(target) {
					begun = true
					go func() { over <- d.Hold(ctx, file, tensors, device.Form{Layout: trit.TwoBit}) }()
					if test.during != nil {
						testenv.WaitFor(t, "some products", func() bool { return d.Status().Products > 60 })
						test.during(d, func() { end(); stop() })
					}
				})
			if !ended {
				s = d.Status()
			}
			compareTexts(t, texts, want)
			if n := strings.Count(said, "\n"); n != test.said {
				t.Errorf("%d lines on standard error, want %d: %s", n, test.said, said)
			}
			h, all := s.Holding, test.name == "all" || test.name == "killed"
			if h.Tensors == len(tensors) != all || s.Moved != 0 || s.Shared != 0 || s.Products < 60 {
				t.Errorf("%d of %d tensors are held (want all: %v), %d products, %d bytes moved, %d uploads shared",
					h.Tensors, len(tensors), all, s.Products, s.Moved, s.Shared)
			}
		})
	}
}

// TestHandedOverDivergence measures what the profiles' errors do to the next token, with all weights of trained
// models handed over: the mean of KL(CPU || device).
func TestHandedOverDivergence(t *testing.T) {
	in := llamatest.ForTest(t)
	lib := buildBackend(t)
	text := llamatest.Trained(t, "eval-prose.txt")
	predictions := func(t *testing.T, model string) (all [][]float64) { // probabilities
		o := llama.Options{Model: model, Context: 256, Chunks: 8, TextFile: text, Threads: 1, NoRepack: true}
		_, err := in.Score(t.Context(), o, func(l *llama.Logits) error {
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
			d, stop := startDevice(t)
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
			t.Logf("%s, %s: %.4f nats in %d predictions; %d of %d tensors, %.3f of their bytes", name,
				profile.name, mean, len(want), h.Tensors, len(tensors), float64(h.Planes)/float64(h.Bytes))
			if !(mean > last && mean < profile.most) || s.Products == 0 || h.Tensors < len(tensors)*9/10 {
				t.Errorf("%s, %s: %.4f nats, want more than %.4f and less than %.4f; %d products, %+v",
					name, profile.name, mean, last, profile.most, s.Products, *h)
			}
			last = mean
		}
	}
}

// TestStartsNoThreads: however many threads ggml may use, it starts none for the ops between the products of a
// token. They would spin where the device computes. The tokens are the CPU's.
func TestStartsNoThreads(t *testing.T) {
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, small)
	counter := filepath.Join(t.TempDir(), "counter.so")
	compile(t, counter, `#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
static int started;
typedef int create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *p) {
	create *real = (create *)dlsym(RTLD_NEXT, "pthread_create");
	__atomic_fetch_add(&started, 1, __ATOMIC_SEQ_CST);
	return real(t, a, f, p);
}
__attribute__((destructor)) static void tell(void) { fprintf(stderr, "started %d\n", started); }
`, "-shared", "-fPIC")
	startDevice(t)
	lib := buildBackend(t)
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
	if cpu < 40 { // one or more for each token
		t.Skipf("this ggml does not start its threads anew: %d", cpu)
	}
	if many-few > 3 || !slices.Equal(text, want) {
		t.Errorf("%d threads were started for 10 tokens, %d for 40, want at most 3 more; tokens %v, want %v",
			few, many, text, want)
	}
}

// TestUnknownVersion: a ggml that is not known is refused with one line. Nothing of it is called.
func TestUnknownVersion(t *testing.T) {
	testenv.NeedMachine(t)
	lib := buildBackend(t)
	const host = `
#include <dlfcn.h>
#include <stdio.h>
#ifdef OTHER
#define F(name) void name(void) {}
const char *ggml_version(void) { return "99.1.0"; }
F(ggml_op_name) F(ggml_type_name) F(ggml_get_name) F(ggml_get_data) F(ggml_nbytes) F(ggml_blck_size)
F(ggml_type_size) F(ggml_graph_n_nodes) F(ggml_graph_node) F(ggml_graph_view)
F(ggml_backend_graph_compute) F(ggml_backend_free) F(ggml_backend_get_device)
F(ggml_backend_dev_supports_op) F(ggml_backend_cpu_buffer_type) F(ggml_backend_buft_is_host)
F(ggml_backend_buffer_is_host) F(ggml_backend_buffer_get_usage)
#endif
int main(int argc, char **argv) {
	void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
	if (!lib) return puts(dlerror()), 1;
	int (*score)(void) = (int (*)(void))dlsym(lib, "ggml_backend_score");
	void *(*init)(void) = (void *(*)(void))dlsym(lib, "ggml_backend_init");
	return !score || !init || score() != 0 || init() != 0;
}`
	for flag, want := range map[string]string{"-DOTHER": "version 99.1.0 of ggml is not known",
		"-DNONE": "this ggml has no function ggml_version"} {
		program := filepath.Join(t.TempDir(), "host")
		if err := cc.Compile(t.Context(), program, host, "-rdynamic", flag); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), program, lib).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s: error %v, output %q; want one line with %q", flag, err, out, want)
		}
	}
}

// BenchmarkPaired runs a model with and without the device, in turns (package offload), and reports medians of
// tokens/s and of their ratios. TFMBS_BENCH_MODEL=model.gguf replaces the synthetic model of 30 MB,
// TFMBS_BENCH_PROMPT=256 the prompt of 8 tokens, TFMBS_BENCH_TOKENS=48 the
// 24 tokens that are generated. -benchtime 5x makes five turns.
func BenchmarkPaired(b *testing.B) {
	in := llamatest.ForTest(b)
	d, _ := startDevice(b)
	lib := buildBackend(b)
	model := os.Getenv("TFMBS_BENCH_MODEL")
	if model == "" {
		model = llamatest.Model(b, synth.Config{Layers: 8, Embd: 1024, FF: 2816, Heads: 16, KVHeads: 4,
			Type: gguf.Q2_0, Seed: 7})
	}
	number := func(name, otherwise string) int {
		n, err := strconv.Atoi(cmp.Or(os.Getenv(name), otherwise))
		if err != nil || n < 2 {
			b.Fatalf("%s: want a number of tokens: %v", name, err)
		}
		return n
	}
	length, tokens := number("TFMBS_BENCH_PROMPT", "8"), number("TFMBS_BENCH_TOKENS", "24")
	c := offload.Config{Model: model, Prompt: length, Tokens: tokens, Batches: []int{1}, Turns: 1, Backend: lib,
		Socket: os.Getenv("TFMBS_SOCKET")}
	values := map[string][]float64{} // by metric
	for b.Loop() {
		r, err := offload.Compare(b.Context(), in, c, func(int, int) {})
		if err != nil {
			b.Fatal(err)
		}
		for _, v := range r.Results {
			b.Logf("%s: %.2f tokens/s, prompt %.1f tokens/s, load %.0f ms, %d of %d tokens the same", v.Name,
				v.TokS, v.PromptTokS, v.LoadMs, v.Same, tokens)
			name := strings.ReplaceAll(strings.ReplaceAll(v.Name, ", ", "-"), " ", "-")
			for metric, x := range map[string]float64{"tok/s": v.TokS, "x": v.Ratio.Estimate,
				"prompt-tok/s": v.PromptTokS, "prompt-x": v.PromptRatio.Estimate} {
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
