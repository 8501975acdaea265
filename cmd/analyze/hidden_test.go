package main

// These tests trace a real llama.cpp, and look at what its routers read.

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"tensorcast/event"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/gguf"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
	"tensorcast/moe"
	"tensorcast/moe/hidden"
	"tensorcast/trace"
)

var builtTracer = sync.OnceValues(func() (string, error) {
	path, remove, err := testenv.BuildPackage("tracer", "tensorcast/cmd/tracer")
	removeTracer = remove
	return path, err
})

var removeTracer func()

func TestMain(m *testing.M) {
	code := m.Run()
	if removeTracer != nil {
		removeTracer()
	}
	os.Exit(code)
}

// traceHidden traces llamarun with hidden states, and returns the capture's directory.
func traceHidden(t *testing.T, o llama.Options) string {
	t.Helper()
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	tracer, err := builtTracer()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "capture")
	o.NoRepack = true
	cmd := in.Command(t.Context(), o)
	args := append([]string{"--hidden", "-o", dir, "--"}, cmd.Args...)
	cmd.Path, cmd.Args = tracer, append([]string{tracer}, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return dir
}

// mixtureRecalls are the recalls at K and 2 K of the mixture of all predictors, by lead.
func mixtureRecalls(t *testing.T, dir string) map[int][2]float64 {
	t.Helper()
	in, err := readCaptureRoutes(t.Context(), dir, -1)
	if err != nil {
		t.Fatal(err)
	}
	st, why, err := in.evaluate(t.Context(), "")
	if err != nil || st == nil {
		t.Fatalf("error %v, no study because %q, want a study", err, why)
	}
	all := map[int][2]float64{}
	for _, r := range st.Results {
		t.Logf("%-24s %-40s k %.3f, 2k %.3f", r.When, r.Name, r.At(1).Recall, r.At(2).Recall)
		all[r.Lead] = [2]float64{r.At(1).Recall, r.At(2).Recall} // the mixture is the last of each lead
	}
	return all
}

// The bars, through uprobes, on a trained mixture of experts. Learning was tuned on eval-prose.txt, so it
// is judged on another text, and on what the model generates.
func TestRecall(t *testing.T) {
	model := llamatest.Trained(t, "tiny-moe-q8_0.gguf")
	text := llamatest.Trained(t, "eval-tech.txt")
	dir := t.TempDir()
	begin, err := os.ReadFile(text)
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]llama.Options{
		"text": {Model: model, Threads: 1, Logits: filepath.Join(dir, "logits"), TextFile: text, Context: 64,
			Chunks: 12},
		"generation": {Model: model, Threads: 1, Prompt: string(begin[:160]), Tokens: 300},
	} {
		t.Run(name, func(t *testing.T) {
			got := mixtureRecalls(t, traceHidden(t, o))
			for lead, want := range map[int][2]float64{1: {0.68, 0.86}, 0: {0.72, 0.88}} {
				if r := got[lead]; r[0] < want[0] || r[1] < want[1] {
					t.Errorf("%d ahead: recall %.3f at k, %.3f at 2k, want %v", lead, r[0], r[1], want)
				}
			}
		})
	}
}

// The choice of each kind of router follows from its input.
func TestChoices(t *testing.T) {
	kinds := llamatest.Routers()
	for _, name := range []string{"llama grouped", "deepseek2 sigmoid groups", "gpt-oss", "deepseek4 hashed"} {
		t.Run(name, func(t *testing.T) {
			cfg, ok := kinds[name]
			if !ok {
				t.Fatalf("llamatest has no router %q", name)
			}
			o := llama.Options{Model: llamatest.Model(t, cfg), Prompt: "some words", Tokens: 8, Threads: 1}
			c, err := trace.Open(traceHidden(t, o))
			if err != nil {
				t.Fatal(err)
			}
			m, err := gguf.OpenModel(o.Model)
			if err != nil {
				t.Fatal(err)
			}
			r, err := hidden.ReadRouters(m)
			if err != nil {
				t.Fatal(err)
			}
			type place struct{ step, layer, position int32 }
			chosen := map[place][]int32{}
			for route, err := range c.Routes() {
				if err != nil {
					t.Fatal(err)
				}
				at := place{route.Step, route.Layer, route.Position}
				chosen[at] = append(chosen[at], route.Expert)
			}
			ids := map[int32][]int32{}
			for s, err := range c.Steps() {
				if err != nil {
					t.Fatal(err)
				}
				ids[s.Step] = slices.Clone(s.TokenIDs)
			}
			p, err := hidden.New(r, hidden.Options{IDs: -1})
			if err != nil {
				t.Fatal(err)
			}
			right, all := 0, 0
			for h, err := range c.Hidden() {
				if err != nil {
					t.Fatal(err)
				}
				want := chosen[place{h.Step, h.Layer, h.Position}]
				if h.Point != event.PointRouter || h.Position < 0 || len(want) == 0 {
					continue
				}
				id := int32(moe.UnknownID)
				if of := ids[h.Step]; int(h.Position) < len(of) {
					id = of[h.Position]
				}
				p.Begin(id)
				p.Router(r.Index(h.Layer), h.Values)
				got := p.Choice(r.Index(h.Layer), nil)
				for _, e := range want {
					all++
					if slices.Contains(got, e) {
						right++
					}
				}
			}
			// Weights that are rounded to 8 bits cannot tell experts apart that are nearly equal.
			if all < 8*cfg.Layers*cfg.Used || float64(right) < 0.97*float64(all) {
				t.Errorf("%d of %d choices are right, want 97 %%", right, all)
			}
		})
	}
}

// If something is missing for hidden states, the command says so, and names the flag that helps. If the
// user asked for it, it is an error.
func TestHiddenMissing(t *testing.T) {
	o := llama.Options{
		Model: llamatest.Model(t, llamatest.Routers()["llama top-2"]), Prompt: "hi", Tokens: 6, Threads: 1,
	}
	dir := traceHidden(t, o)
	other := llamatest.Model(t, llamatest.Routers()["llama top-3"])
	moved := filepath.Join(t.TempDir(), "moved.gguf")
	code, stdout, stderr := execute(t, "moe", dir)
	if code != cli.OK || !strings.Contains(stdout, "next router on this input") {
		t.Errorf("exit %d, stderr %q, want a recall with hidden states in\n%s", code, stderr, stdout)
	}
	if err := os.Rename(o.Model, moved); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{dir}, cli.OK, "no recall with hidden states: open " + o.Model + ": no such file or directory; " +
			"--model names the model's file\n"},
		{[]string{"--model", moved, dir}, cli.OK, "next router on this input"},
		{[]string{"--model", other, dir}, cli.Failure, other + " is another model than the capture's\n"},
		{[]string{"--model", dir, dir}, cli.Failure, "not a regular file\n"},
	} {
		code, stdout, stderr := execute(t, append([]string{"moe"}, tc.args...)...)
		if code != tc.code || !strings.Contains(stdout+stderr, tc.says) || code != cli.OK &&
			strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: exit %d, stderr %q, want %d and %q; stdout\n%s", tc.args, code, stderr, tc.code, tc.says,
				stdout)
		}
	}
	_, stdout, _ = execute(t, "moe", "--json", dir)
	var got map[string]any
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || got["hidden"] != nil ||
		!strings.Contains(fmt.Sprint(got["hidden_missing"]), "--model") {
		t.Errorf("%v, hidden %v, hidden_missing %v, want null and the flag --model", err, got["hidden"],
			got["hidden_missing"])
	}
}
