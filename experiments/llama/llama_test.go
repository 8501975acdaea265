package llama_test

// This file tests the driver on real models: the tokens, the ground truth of what ops read, the
// marks and the errors.

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
)

var (
	dense = synth.Config{Layers: 2, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1}
	moe   = synth.Config{Layers: 3, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Experts: 8, Used: 3, Type: gguf.Q8_0,
		Seed: 2}
)

// eachModel runs a subtest for each model: synthetic ones, and trained ones where they are.
func eachModel(t *testing.T, test func(t *testing.T, path string)) {
	tied, q4 := dense, moe
	tied.Tied = true
	q4.Type = gguf.Q4_0
	for name, cfg := range map[string]synth.Config{"dense": dense, "dense-tied": tied, "moe": moe, "moe-q4_0": q4} {
		t.Run(name, func(t *testing.T) { test(t, llamatest.Model(t, cfg)) })
	}
	t.Run("trained", func(t *testing.T) {
		// tensorcast lies beside shared.
		paths, err := filepath.Glob("../../../shared/data/models/tiny-*.gguf")
		if err != nil || len(paths) == 0 {
			t.Skip("no trained models in ../shared/data/models")
		}
		for _, path := range paths {
			t.Run(strings.TrimSuffix(filepath.Base(path), ".gguf"), func(t *testing.T) { test(t, path) })
		}
	})
}

func run(t *testing.T, in *llama.Installation, o llama.Options) *llama.Result {
	t.Helper()
	r, err := in.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// runOps runs the driver and returns its ground truth too.
func runOps(t *testing.T, in *llama.Installation, o llama.Options) (*llama.Result, []llama.Op) {
	t.Helper()
	o.Ops = filepath.Join(t.TempDir(), "ops.jsonl")
	r := run(t, in, o)
	ops, err := llama.ReadOps(o.Ops)
	if err != nil {
		t.Fatal(err)
	}
	return r, ops
}

func TestRepeatIsIdentical(t *testing.T) {
	in := llamatest.ForTest(t)
	eachModel(t, func(t *testing.T, path string) {
		const n = 5
		r := run(t, in, llama.Options{Model: path, Prompt: "Once upon a time", Tokens: n, Threads: 1, Repeat: 3})
		all := r.Generations()
		if len(all) != 3 {
			t.Fatalf("%d generations, want 3", len(all))
		}
		for i, g := range all {
			if !slices.Equal(g.Tokens, r.Tokens) || g.Text != r.Text {
				t.Errorf("generation %d: %v %q, want the first's %v %q", i, g.Tokens, g.Text, r.Tokens, r.Text)
			}
			if len(g.Tokens) != n || len(g.TokenMs) != n || g.TokS <= 0 || g.PromptMs <= 0 {
				t.Errorf("generation %d: %+v, want %d tokens with their times", i, g, n)
			}
		}
		// Without the callback the tokens are the same: watching does not change what is computed.
		watched, _ := runOps(t, in, llama.Options{Model: path, Prompt: "Once upon a time", Tokens: n, Threads: 1})
		if !slices.Equal(watched.Tokens, r.Tokens) {
			t.Errorf("with --ops %v, want %v as without", watched.Tokens, r.Tokens)
		}
	})
}

// TestOps compares the ground truth with the file: the structure that package gguf reads, and what
// an op of each kind must read.
func TestOps(t *testing.T) {
	in := llamatest.ForTest(t)
	eachModel(t, func(t *testing.T, path string) {
		const n, repeat = 3, 2
		file, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		path, err = filepath.EvalSymlinks(path)
		if err != nil {
			t.Fatal(err)
		}
		if path, err = filepath.Abs(path); err != nil {
			t.Fatal(err)
		}
		result, ops := runOps(t, in, llama.Options{Model: path, Prompt: "aaaaaaaaaaaa", Tokens: n, Threads: 1,
			Repeat: repeat, NoRepack: true, Warmup: "all"})

		used := 0
		if u, ok := file.Uint("llama.expert_used_count"); ok {
			used = int(u)
		}
		read := map[int]map[string]bool{} // by decode
		type layerRead struct{ decode, layer int }
		routed := map[layerRead][]int32{}
		last := llama.Op{Node: -1}
		for _, op := range ops {
			if op.Decode < last.Decode || op.Decode == last.Decode &&
				(op.Node < last.Node || op.Node == last.Node && op.Src <= last.Src) {
				t.Fatalf("%+v comes after %+v", op, last)
			}
			last = op
			if read[op.Decode] == nil {
				read[op.Decode] = map[string]bool{}
			}
			read[op.Decode][op.Tensor] = true

			// Decode 0 is the warm-up of BOS and EOS, then each generation is one prompt and n tokens.
			inGeneration := (op.Decode - 1) % (1 + n)
			want := llama.Op{Warmup: op.Decode == 0, NTokens: 1}
			switch {
			case op.Decode == 0:
				want.NTokens = 2
			case inGeneration == 0:
				want.NTokens = result.PromptTokens
			}
			if op.Decode > 0 {
				want.Repeat = (op.Decode - 1) / (1 + n)
			}
			if op.Warmup != want.Warmup || op.NTokens != want.NTokens || op.Repeat != want.Repeat {
				t.Fatalf("%+v: want warmup %v, n_tokens %d, repeat %d", op, want.Warmup, want.NTokens, want.Repeat)
			}

			tensor, ok := file.Lookup(op.Tensor)
			if !ok {
				t.Fatalf("%+v: the file has no such tensor", op)
			}
			if op.Offset != tensor.Offset || op.File != path {
				t.Errorf("%s: at %d of %s, want %d of %s as in the file", op.Tensor, op.Offset, op.File,
					tensor.Offset, path)
			}
			switch op.Op {
			case "GET_ROWS":
				row := tensor.Size / tensor.Shape[1]
				rows := op.Bytes / row
				if op.Bytes%row != 0 || rows < 1 || rows > int64(op.NTokens) || rows > 2 && op.NTokens > 2 &&
					rows > int64(op.NTokens)/2 {
					t.Errorf("%s: %d bytes for %d tokens of which most are the same, rows have %d", op.Tensor,
						op.Bytes, op.NTokens, row)
				}
			case "MUL_MAT_ID":
				if op.Bytes != int64(len(op.Experts))*tensor.ExpertStride() || tensor.Experts() == 0 {
					t.Errorf("%s: %d bytes for experts %v of stride %d", op.Tensor, op.Bytes, op.Experts,
						tensor.ExpertStride())
				}
				distinct := slices.Clone(op.Experts)
				slices.Sort(distinct)
				distinct = slices.Compact(distinct)
				if len(distinct) != len(op.Experts) || distinct[0] < 0 ||
					int(distinct[len(distinct)-1]) >= tensor.Experts() {
					t.Errorf("%s: experts %v", op.Tensor, op.Experts)
				}
				k := used
				if op.Warmup {
					k = tensor.Experts()
				}
				if len(op.LastExperts) != k || (op.Warmup || op.NTokens == 1) && len(op.Experts) != k ||
					len(op.Experts) < k {
					t.Errorf("%s: experts %v, of the last token %v, want %d for each", op.Tensor, op.Experts,
						op.LastExperts, k)
				}
				if op.NTokens == 1 && !slices.Equal(op.Experts, op.LastExperts) {
					t.Errorf("%s: one token's experts %v differ from the last one's %v", op.Tensor, op.Experts,
						op.LastExperts)
				}
				at := layerRead{op.Decode, tensor.Layer()}
				if first, ok := routed[at]; ok && !slices.Equal(first, op.Experts) {
					t.Errorf("%s: experts %v, another matrix of the layer has %v", op.Tensor, op.Experts, first)
				}
				routed[at] = op.Experts
			default:
				if op.Bytes != tensor.Size || op.Experts != nil {
					t.Errorf("%s %s: %d bytes, want the tensor's %d", op.Op, op.Tensor, op.Bytes, tensor.Size)
				}
			}
		}

		if want := 1 + repeat*(1+n); len(read) != want {
			t.Errorf("%d decodes, want %d", len(read), want)
		}
		for decode, names := range read {
			if len(names) != len(file.Tensors) { // no name is unknown, see above
				t.Errorf("decode %d reads %d tensors, want all %d", decode, len(names), len(file.Tensors))
			}
		}
		layers := 0
		for _, tensor := range file.Tensors {
			if tensor.Component() == "ffn_gate_exps.weight" {
				layers++
			}
		}
		if len(routed) != layers*len(read) {
			t.Errorf("%d routings, want %d MoE layers in each of %d decodes", len(routed), layers, len(read))
		}
	})
}

func TestWarmup(t *testing.T) {
	in := llamatest.ForTest(t)
	path := llamatest.Model(t, moe)
	for mode, want := range map[string]struct{ nTokens, slots int }{
		"":     {2, moe.Used}, // as llama-cli
		"cli":  {2, moe.Used},
		"all":  {2, moe.Experts},
		"none": {0, 0},
	} {
		_, ops := runOps(t, in, llama.Options{Model: path, Prompt: "x", Tokens: 1, Threads: 1, Warmup: mode})
		var got struct{ nTokens, slots int }
		for _, op := range ops {
			if op.Warmup && op.Op == "MUL_MAT_ID" {
				got.nTokens, got.slots = op.NTokens, len(op.LastExperts)
			}
		}
		if got != want {
			t.Errorf("warm-up %q: %+v, want %+v", mode, got, want)
		}
	}
}

// TestLastExperts checks that the last token of a prompt takes the same experts as when it is
// generated alone, after the same text.
func TestLastExperts(t *testing.T) {
	in := llamatest.ForTest(t)
	path := llamatest.Model(t, moe)
	// Only the first layer's experts are compared, in no order. Later ones may differ by rounding,
	// because a batch is computed in another way.
	experts := func(ops []llama.Op, decode int) []int32 {
		for _, op := range ops {
			if op.Decode == decode && op.Tensor == "blk.0.ffn_gate_exps.weight" {
				return slices.Sorted(slices.Values(op.LastExperts))
			}
		}
		t.Fatalf("decode %d has no experts in layer 0", decode)
		return nil
	}
	text := "Once"
	for range 4 {
		r, ops := runOps(t, in, llama.Options{Model: path, Prompt: text, Tokens: 1, Threads: 1, Warmup: "none"})
		alone := experts(ops, 1)
		text += r.Text
		longer, ops := runOps(t, in, llama.Options{Model: path, Prompt: text, Threads: 1, Warmup: "none"})
		if longer.PromptTokens != r.PromptTokens+1 {
			t.Fatalf("%q has %d tokens, want %d", text, longer.PromptTokens, r.PromptTokens+1)
		}
		if got := experts(ops, 0); !slices.Equal(got, alone) {
			t.Errorf("%q: last token's experts %v, want %v as alone", text, got, alone)
		}
	}
}

// TestLongPrompt checks a prompt that llama.cpp computes in pieces of 512 tokens, with logits only
// for the last piece. It is one decode nevertheless. The ops that an earlier piece passes over
// because no output needs them read nothing.
func TestLongPrompt(t *testing.T) {
	in := llamatest.ForTest(t)
	r, ops := runOps(t, in, llama.Options{Model: llamatest.Model(t, dense), Prompt: strings.Repeat("ab", 600),
		Threads: 1, Warmup: "none"})
	reads := map[string]int{}
	for _, op := range ops {
		if op.Decode != 0 || op.NTokens != r.PromptTokens {
			t.Fatalf("%+v: want decode 0 of %d tokens", op, r.PromptTokens)
		}
		reads[op.Tensor]++
	}
	if reads["output.weight"] != 1 || reads["blk.0.attn_q.weight"] != 3 {
		t.Errorf("output.weight read %d times and blk.0.attn_q.weight %d times, want 1 and 3",
			reads["output.weight"], reads["blk.0.attn_q.weight"])
	}
}

func TestWhereWeightsAre(t *testing.T) {
	in := llamatest.ForTest(t)
	cfg := dense
	cfg.Type = gguf.Q4_0 // repacked by default, on many processors
	path := llamatest.Model(t, cfg)
	var first *llama.Result
	for _, c := range []struct {
		name           string
		o              llama.Options
		mapped, copied bool // what is allowed
	}{
		{"default", llama.Options{}, true, true},
		{"no repack", llama.Options{NoRepack: true}, true, false},
		{"mmap, no repack", llama.Options{NoRepack: true, LoadMode: "mmap"}, true, false},
		{"none", llama.Options{LoadMode: "none"}, false, true},
		{"none, no repack", llama.Options{NoRepack: true, LoadMode: "none"}, false, true},
		{"dio, no repack", llama.Options{NoRepack: true, LoadMode: "dio"}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Model, c.o.Prompt, c.o.Tokens, c.o.Threads = path, "x", 3, 1
			r, ops := runOps(t, in, c.o)
			for _, op := range ops {
				mapped := op.Offset >= 0
				if mapped && !c.mapped || !mapped && !c.copied || mapped != (op.File != "") {
					t.Fatalf("%s at %d of %q", op.Tensor, op.Offset, op.File)
				}
			}
			if first == nil {
				first = r
			} else if c.o.NoRepack && len(ops) == 0 {
				t.Error("no ops")
			}
			if r.PromptTokens != first.PromptTokens || len(r.Tokens) != 3 {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestDriverFails(t *testing.T) {
	in := llamatest.ForTest(t)
	dir := t.TempDir()
	good := llamatest.Model(t, dense)
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name    string
		o       llama.Options
		code    int
		message string
	}{
		{"no such file", llama.Options{Model: filepath.Join(dir, "none.gguf")}, 1, "No such file"},
		{"not a GGUF", llama.Options{Model: file("text.gguf", []byte("hello, world"))}, 1, "text.gguf"},
		{"empty", llama.Options{Model: file("empty.gguf", nil)}, 1, "empty.gguf"},
		{"a directory", llama.Options{Model: dir}, 1, dir},
		{"truncated", llama.Options{Model: file("short.gguf", whole[:len(whole)*2/3])}, 1, "short.gguf"},
		{"context too small", llama.Options{Model: good, Prompt: "abcdef", Tokens: 10, Context: 8}, 1,
			"-c 8 is too small"},
		{"ops in no directory", llama.Options{Model: good, Prompt: "x", Ops: filepath.Join(dir, "none", "ops")}, 1,
			"No such file"},
		{"unknown load mode", llama.Options{Model: good, Prompt: "x", LoadMode: "teleport"}, 2, "teleport"},
		{"unknown warm-up", llama.Options{Model: good, Prompt: "x", Warmup: "sauna"}, 2, "sauna"},
		{"negative tokens", llama.Options{Model: good, Prompt: "x", Tokens: -1}, 2, "-n -1"},
		{"no model", llama.Options{}, 1, "No such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := in.Run(t.Context(), c.o)
			var run *llama.RunError
			if !errors.As(err, &run) {
				t.Fatalf("error is %v, want a RunError", err)
			}
			if code := run.Exit.ExitCode(); code != c.code || !strings.Contains(run.Message, c.message) ||
				strings.Contains(run.Message, "\n") {
				t.Errorf("exit code %d, message %q; want %d and one line with %q", code, run.Message, c.code, c.message)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); left != nil {
				t.Errorf("left %v, want nothing", left)
			}
		})
	}
}

// TestOutput checks that the raw output is nothing but JSON in UTF-8, also for prompts that are
// neither.
func TestOutput(t *testing.T) {
	in := llamatest.ForTest(t)
	path := llamatest.Model(t, dense)
	for _, prompt := range []string{"--help", "\"\\\n\x01", "日本語", "\xff\xfe", "a"} {
		cmd := in.Command(t.Context(), llama.Options{Model: path, Prompt: prompt, Tokens: 40, Threads: 1})
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil || stderr.Len() > 0 {
			t.Fatalf("%q: %v, stderr %q", prompt, err, stderr.String())
		}
		if !utf8.Valid(out) || !json.Valid(out) {
			t.Fatalf("%q: output is not JSON in UTF-8: %q", prompt, out)
		}
		r, err := llama.ParseResult(out)
		if err != nil {
			t.Fatal(err)
		}
		if r.PromptTokens < len(prompt) { // one token per byte, and BOS
			t.Errorf("%q: %d prompt tokens, want at least one for each byte", prompt, r.PromptTokens)
		}
		if r.Lib != in.Dir && !sameFile(t, r.Lib, in.Dir) {
			t.Errorf("libraries from %s, want %s", r.Lib, in.Dir)
		}
	}
}

// TestStrings has the driver print bytes of all kinds. It uses a file name, which may hold the same
// bytes as a model's text and comes back in the dump.
func TestStrings(t *testing.T) {
	in := llamatest.ForTest(t)
	name := "\x01\t\"\\\x7f é日\ue123𝄞 \xff \xc3 \xc0\x80 \xe0\x80\x80 \xed\xa0\x80 \xf0\x80\x80\x80 " +
		"\xf4\x90\x80\x80 \xf8 \xe6\x97.gguf"
	path := filepath.Join(filepath.Dir(llamatest.Model(t, dense)), name)
	if err := os.Rename(filepath.Join(filepath.Dir(path), "model.gguf"), path); err != nil {
		t.Fatal(err)
	}
	o := llama.Options{Model: path, Prompt: "x", Threads: 1, Warmup: "none", Ops: filepath.Join(t.TempDir(), "ops")}
	run(t, in, o)
	if raw, err := os.ReadFile(o.Ops); err != nil || !utf8.Valid(raw) {
		t.Errorf("the dump is not UTF-8 (%v): %q", err, raw[:min(400, len(raw))])
	}
	ops, err := llama.ReadOps(o.Ops)
	if err != nil {
		t.Fatal(err)
	}
	want := string([]rune(name)) // each invalid byte becomes U+FFFD
	if got := filepath.Base(ops[0].File); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestThreads checks that what is read does not depend on how many threads share the work.
func TestThreads(t *testing.T) {
	in := llamatest.ForTest(t)
	path := llamatest.Model(t, dense)
	one, opsOne := runOps(t, in, llama.Options{Model: path, Prompt: "x", Tokens: 2, Threads: 1})
	two, opsTwo := runOps(t, in, llama.Options{Model: path, Prompt: "x", Tokens: 2, Threads: 2})
	if one.Threads != 1 || two.Threads != 2 {
		t.Errorf("%d and %d threads, want 1 and 2", one.Threads, two.Threads)
	}
	same := func(a, b llama.Op) bool {
		a.Data, b.Data = 0, 0 // addresses are random
		return reflect.DeepEqual(a, b)
	}
	if !slices.EqualFunc(opsOne, opsTwo, same) {
		t.Error("one and two threads read differently")
	}
}

// TestThreadsOfEnvironment checks that LLAMA_ARG_THREADS counts where no other number is given, as it does for
// llama.cpp's own programs.
func TestThreadsOfEnvironment(t *testing.T) {
	in := llamatest.ForTest(t)
	o := llama.Options{Model: llamatest.Model(t, dense), Prompt: "x", Tokens: 1}
	t.Setenv("LLAMA_ARG_THREADS", "3")
	if r := run(t, in, o); r.Threads != 3 {
		t.Errorf("%d threads, want 3", r.Threads)
	}
	o.Threads = 1
	if r := run(t, in, o); r.Threads != 1 {
		t.Errorf("%d threads, want the one that was asked for", r.Threads)
	}
	t.Setenv("LLAMA_ARG_THREADS", "many")
	if r := run(t, in, o); r.Threads != 1 {
		t.Errorf("%d threads, want the one that was asked for", r.Threads)
	}
	o.Threads = 0
	_, err := in.Run(t.Context(), o)
	var failed *llama.RunError
	if !errors.As(err, &failed) || !strings.Contains(failed.Message, "LLAMA_ARG_THREADS many") {
		t.Errorf("error is %v, want one that names the variable", err)
	}
}

func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := os.Stat(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.Stat(b)
	if err != nil {
		t.Fatal(err)
	}
	return os.SameFile(x, y)
}

// TestUsersLlama runs from a directory that the user names; here it holds the libraries of the
// prebuilt llama.cpp.
func TestUsersLlama(t *testing.T) {
	in := llamatest.ForTest(t)
	t.Setenv("TENSORCAST_LLAMA", in.Dir)
	user, err := llama.Install(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if user.Dir == in.Dir {
		t.Fatalf("installed to the user's directory %s", user.Dir)
	}
	o := llama.Options{Model: llamatest.Model(t, dense), Prompt: "x", Tokens: 3, Threads: 1}
	if a, b := run(t, in, o), run(t, user, o); !slices.Equal(a.Tokens, b.Tokens) {
		t.Errorf("tokens %v, from the user's directory %v; want the same", a.Tokens, b.Tokens)
	}
}

func TestReadOpsBroken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ops")
	if err := os.WriteFile(path, []byte(`{"decode":0,"op":"MUL"}`+"\n"+`{"decode":0,"op`), 0o644); err != nil {
		t.Fatal(err)
	}
	if ops, err := llama.ReadOps(path); err == nil || !strings.Contains(err.Error(), "record 2") {
		t.Errorf("%v, %v; want an error at record 2", ops, err)
	}
}

// TestMark checks that the driver says when it begins to generate, and when each token is done.
func TestMark(t *testing.T) {
	in := llamatest.ForTest(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := in.Command(t.Context(), llama.Options{Model: llamatest.Model(t, dense), Prompt: "x", Tokens: 3,
		Threads: 1, Repeat: 2, Mark: 3})
	cmd.ExtraFiles = []*os.File{w}
	out, err := cmd.CombinedOutput()
	w.Close()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if marks, err := io.ReadAll(r); string(marks) != "btttbttt" || err != nil {
		t.Errorf("marks %q, %v; want btttbttt", marks, err)
	}
}
