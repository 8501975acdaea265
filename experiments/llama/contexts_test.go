package llama_test

// This file tests how the driver imitates a server: several contexts, sequences and models in one
// process, and tokens printed as they are generated.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
)

var prompts = []string{"Once upon a time", "The page cache", "zzz", "0123456789"}

// runAlone returns the tokens that each prompt leads to in a process of its own.
func runAlone(t *testing.T, in *llama.Installation, model string, n int) [][]int32 {
	t.Helper()
	var all [][]int32
	for _, p := range prompts {
		all = append(all, run(t, in, llama.Options{Model: model, Prompt: p, Tokens: n, Threads: 1}).Tokens)
	}
	return all
}

func TestContexts(t *testing.T) {
	in := llamatest.ForTest(t)
	const n, repeat = 4, 2
	first, second := llamatest.Model(t, dense), llamatest.Model(t, moe)
	want := map[string][][]int32{first: runAlone(t, in, first, n), second: runAlone(t, in, second, n)}
	for _, concurrent := range []bool{false, true} {
		t.Run(fmt.Sprintf("concurrent=%v", concurrent), func(t *testing.T) {
			r, ops := runOps(t, in, llama.Options{Model: first, Model2: second, Contexts: 2, Concurrent: concurrent,
				Prompt: prompts[0], Prompts: prompts[1:],
				Tokens: n, Threads: 1, Repeat: repeat, NoRepack: true})
			all := r.Generations()
			if len(all) != 4*repeat {
				t.Fatalf("%d generations, want %d", len(all), 4*repeat)
			}
			files := []string{first, first, second, second} // by context
			for i, g := range all {
				if g.Context != i%4 || g.Sequence != 0 || !slices.Equal(g.Tokens, want[files[g.Context]][g.Context]) {
					t.Errorf("generation %d: context %d, sequence %d: %v, want %v", i, g.Context, g.Sequence,
						g.Tokens, want[files[i%4]][i%4])
				}
			}
			// Each context reads its own model, and every decode belongs to one context.
			contextOf, decodes := map[int]int{}, map[int]map[int]bool{}
			for _, op := range ops {
				if filepath.Base(filepath.Dir(op.File)) != filepath.Base(filepath.Dir(files[op.Context])) {
					t.Fatalf("%+v: context %d reads %s", op, op.Context, files[op.Context])
				}
				if c, ok := contextOf[op.Decode]; ok && c != op.Context {
					t.Fatalf("%+v: decode %d is of context %d too", op, op.Decode, c)
				}
				contextOf[op.Decode] = op.Context
				if decodes[op.Context] == nil {
					decodes[op.Context] = map[int]bool{}
				}
				decodes[op.Context][op.Decode] = true
			}
			for c := range 4 {
				if got, want := len(decodes[c]), 1+repeat*(1+n); got != want {
					t.Errorf("context %d: %d decodes, want %d", c, got, want)
				}
			}
		})
	}
}

func TestParallel(t *testing.T) {
	in := llamatest.ForTest(t)
	const n = 4
	eachModel(t, func(t *testing.T, path string) {
		r, ops := runOps(t, in, llama.Options{Model: path, Parallel: 3, Prompt: prompts[0], Prompts: prompts[1:3],
			Tokens: n, Threads: 1, NoRepack: true})
		all := r.Generations()
		if len(all) != 3 {
			t.Fatalf("%d generations, want 3", len(all))
		}
		for s, g := range all {
			if g.Sequence != s || len(g.Tokens) != n {
				t.Errorf("sequence %d: %+v, want %d tokens", s, g, n)
			}
			// A batch rounds otherwise than a single token may, so later tokens need not be the
			// same. The first token follows from the same prompt.
			if one := run(t, in, llama.Options{Model: path, Prompt: prompts[s], Tokens: 1, Threads: 1,
				NoRepack: true}); one.Tokens[0] != g.Tokens[0] {
				t.Errorf("sequence %d begins with %d, want %d as alone", s, g.Tokens[0], one.Tokens[0])
			}
		}
		decodes := map[int]bool{}
		for _, op := range ops {
			decodes[op.Decode] = true
			want := llama.Op{NTokens: 3, Sequences: 3}
			switch op.Decode {
			case 0:
				want = llama.Op{NTokens: 2, Sequences: 1}
			case 1:
				want.NTokens = len(strings.Join(prompts[:3], "")) + 3*(r.PromptTokens-len(prompts[0]))
			}
			if op.NTokens != want.NTokens || op.Sequences != want.Sequences {
				t.Fatalf("%+v: want %d tokens of %d sequences", op, want.NTokens, want.Sequences)
			}
		}
		if len(decodes) != 2+n {
			t.Errorf("%d decodes, want %d", len(decodes), 2+n)
		}
	})
}

// TestGuess checks that the tokens are those without guesses. A trained model repeats itself, so it
// needs fewer decodes; a random one may need any number.
func TestGuess(t *testing.T) {
	in := llamatest.ForTest(t)
	compare := func(t *testing.T, path string, n, most int) {
		o := llama.Options{Model: path, Prompt: "The page cache", Tokens: n, Threads: 1, NoRepack: true}
		want := run(t, in, o)
		o.Guess = 3
		got := run(t, in, o)
		if !slices.Equal(got.Tokens, want.Tokens) || len(got.TokenMs) != n {
			t.Errorf("%v, want %v", got.Tokens, want.Tokens)
		}
		if got.Decodes < n/4 || got.Decodes > most || want.Decodes != 0 {
			t.Errorf("%d tokens of %d decodes, and %d", n, got.Decodes, want.Decodes)
		}
		o.Parallel = 2
		if _, err := in.Run(t.Context(), o); err == nil {
			t.Error("guesses in two sequences")
		}
	}
	eachModel(t, func(t *testing.T, path string) { compare(t, path, 40, 40) })
	t.Run("trained", func(t *testing.T) { compare(t, llamatest.Trained(t, "tiny-dense-q8_0.gguf"), 100, 90) })
}

// TestCountOps checks that the counts add up, that they grow by the same number for each more
// token, and that counting changes nothing.
func TestCountOps(t *testing.T) {
	in := llamatest.ForTest(t)
	path := llamatest.Model(t, moe)
	o := llama.Options{Model: path, Prompt: "x", Tokens: 2, Threads: 1}
	plain := run(t, in, o)
	if plain.Nodes != 0 || plain.Ops != nil {
		t.Errorf("counted unasked: %d, %v; want nothing", plain.Nodes, plain.Ops)
	}
	o.CountOps = true
	var nodes []int64
	for tokens := 1; tokens <= 3; tokens++ {
		o.Tokens = tokens
		r := run(t, in, o)
		var sum int64
		for n := range maps.Values(r.Ops) {
			sum += n
		}
		if sum != r.Nodes || r.Ops["MUL_MAT_ID"] != int64(3*moe.Layers*(2+tokens)) {
			t.Errorf("%d nodes, by op %v; want their sum", r.Nodes, r.Ops)
		}
		if tokens == 2 && !slices.Equal(r.Tokens, plain.Tokens) {
			t.Errorf("tokens with counting %v, want %v", r.Tokens, plain.Tokens)
		}
		nodes = append(nodes, r.Nodes)
	}
	if nodes[1]-nodes[0] != nodes[2]-nodes[1] || nodes[1] <= nodes[0] {
		t.Errorf("nodes with 1, 2 and 3 tokens: %v", nodes)
	}
}

func TestStream(t *testing.T) {
	in := llamatest.ForTest(t)
	const n, repeat = 3, 2
	o := llama.Options{Model: llamatest.Model(t, dense), Prompt: "x", Prompts: []string{"y"}, Parallel: 2,
		Tokens: n, Threads: 1, Repeat: repeat, CountOps: true}
	want := run(t, in, o)
	o.Stream = true
	cmd := in.Command(t.Context(), o)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	s, err := llama.NewStream(bytes.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	if s.Run.PID != cmd.Process.Pid || s.Run.PromptTokens != want.PromptTokens || s.Run.Threads != 1 ||
		s.Run.Lib != want.Lib {
		t.Errorf("%+v", s.Run)
	}
	var end int64
	for g := range repeat {
		texts, tokens := make([]string, 2), make([][]int32, 2)
		for i := range n {
			for q := range 2 {
				tok, err := s.Next()
				if err != nil {
					t.Fatal(err)
				}
				if tok.Generation != g || tok.Token != i || tok.Sequence != q || tok.Context != 0 ||
					tok.End <= tok.Begin || q == 0 && tok.Begin < end {
					t.Errorf("%+v after %d: want token %d of sequence %d, generation %d", tok, end, i, q, g)
				}
				end = tok.End
				texts[q] += tok.Text
				tokens[q] = append(tokens[q], tok.ID)
			}
		}
		for q := range 2 {
			if w := want.Generations()[g*2+q]; !slices.Equal(tokens[q], w.Tokens) || texts[q] != w.Text {
				t.Errorf("generation %d, sequence %d: %v %q, want %v %q", g, q, tokens[q], texts[q], w.Tokens, w.Text)
			}
		}
	}
	if _, err := s.Next(); err != io.EOF {
		t.Errorf("after the last token: %v, want io.EOF", err)
	}
	if s.Run.Nodes != want.Nodes || !maps.Equal(s.Run.Ops, want.Ops) {
		t.Errorf("counts %d %v, want %d %v", s.Run.Nodes, s.Run.Ops, want.Nodes, want.Ops)
	}
}

func TestStreamBroken(t *testing.T) {
	if _, err := llama.NewStream(strings.NewReader("")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("an empty stream: %v, want io.ErrUnexpectedEOF", err)
	}
	s, err := llama.NewStream(strings.NewReader("{}\n{\"token\":1}\n{\"token\""))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(); err != nil {
		t.Error(err)
	}
	if _, err := s.Next(); err == nil || !strings.Contains(err.Error(), "line 3") {
		t.Errorf("a line cut short: %v, want an error at line 3", err)
	}
}
