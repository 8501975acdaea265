package main

// This file tests the analyses on a planted capture in which no step generates a token.

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/internal/cli"
	"tensorcast/pattern"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// decodesBasis is the sentence that says of what the figures of plantDecodes are.
const decodesBasis = "no decode generated a single token: figures are per decode of 4 tokens, which goes through the " +
	"model 2 times"

// plantDecodes writes a capture of the scene's mixture that computes a perplexity: four decodes of four tokens. Each
// goes through the model twice, with two tokens. Of the first pass no output is wanted. A decode reads 3 of 4 experts,
// the last one all of them. From the second decode on attn_q comes from disk in the first pass, and is waited for.
func plantDecodes(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "decodes")
	meta := &tables.Meta{
		Detail: tables.DetailOpIO,
		Models: []tables.ModelInfo{{
			Path: "/models/s.gguf", Fingerprint: planted.Fingerprint, Bytes: 9050000,
			Files: []tables.ModelFile{{Name: "s.gguf", Bytes: 9050000, Fingerprint: planted.Fingerprint}},
		}},
		Host: tables.Host{Kernel: "6.1", CPUs: 2, MemoryBytes: 1 << 30}, Command: []string{"llama-perplexity"},
		Memory: &tables.Memory{LimitBytes: 3 << 20, Of: "/group memory.max"},
	}
	w, err := trace.Create(dir, meta, scene)
	if err != nil {
		t.Fatal(err)
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for step := range int32(4) {
		begin := int64(step) * 1e9
		a := tables.Access{Step: step, Token: -1, Phase: tables.PhasePrompt}
		read := func(tensor int32, op string, bytes, at, took, stall int64, experts ...int32) {
			a.Tensor, a.Op, a.Offset, a.Bytes, a.Timestamp, a.Duration, a.Stall, a.Experts = tensor, op,
				scene[tensor].Offset, bytes, begin+at, took, stall, experts
			check(w.Access(&a))
		}
		stall := int64(0)
		if step > 0 {
			stall = 70e6
			check(w.PageIn(&tables.PageInRow{
				Step: step, Tensor: 1, File: "s.gguf", Offset: 10496, Bytes: 100000, Timestamp: begin + 20e6,
				Rereads: step, Expert: -1,
			}))
		}
		second := []int32{1, 2}
		if step == 3 {
			second = []int32{2, 3}
		}
		for pass, experts := range [][]int32{{0, 1}, second} {
			at := int64(pass) * 100e6
			read(0, "GET_ROWS", 128, at, 1000, 0)
			read(1, "MUL_MAT", 100000, at+10e6, 10e6+stall, stall)
			read(2, "MUL_MAT_ID", int64(len(experts))*1000000, at+90e6, 5e6, 0, experts...)
			stall = 0
		}
		read(3, "MUL_MAT", 50000, 196e6, 2e6, 0)
		check(w.Step(&tables.StepRow{
			Step: step, Phase: tables.PhasePrompt, Tokens: 4, Token: -1, Begin: begin, End: begin + 200e6,
		}))
	}
	check(w.Close(meta, true))
	return dir
}

// Everything that a capture without a generated token is asked for is answered per decode, and the user is told so
// once.
func TestDecodes(t *testing.T) {
	capture, out := plantDecodes(t), t.TempDir()
	ask := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := execute(t, append(args, "-o", out)...)
		if code != cli.OK || strings.Count(stderr, "\n") != strings.Count(stderr, decodesBasis+"\n") ||
			!strings.Contains(stderr, decodesBasis) {
			t.Fatalf("%s: exit %d, stderr %q, want 0 and %q", args, code, stderr, decodesBasis)
		}
		return strings.Join(strings.Fields(stdout), " ")
	}
	for _, want := range []struct {
		args []string
		text string
	}{
		{nil, "steps 0 warm-up, 4 prompt, 0 generated tokens "},
		{nil, "decodes of 4 tokens "},
		{nil, "per decode 7 reads, 4.1 MiB (4250256 bytes), in 2 passes "},
		{nil, "the tensor sequence is identical in all 4 decodes "},
		{nil, "a decode reads 3 different experts of 4 (3 to 4), all layers together; they differ from step 3 on"},
		{nil, "Memory is short: for the 4.05 MiB that a decode reads, 97.7 KiB come from disk"},
		{nil, "Waiting for the disk takes 35 % of a decode's time"},
		{[]string{"determinism"}, "prompt: 4 of 4 steps (100 %) read exactly"},
		{[]string{"determinism"}, "2 different choices of experts in 4 decodes; 92 % of a decode's experts"},
		{[]string{"compare", capture, capture}, "as they go through the model (4 reads)"},
		{[]string{"compare", capture, capture}, "a decode, median 200 ms"},
		{[]string{"compare", capture, capture}, "stall per decode 52.5 ms"},
		{[]string{"whatif", "--disk", "1GB/s", "--blocks", "extents"}, "7 steps read 2 MiB per pass through the model"},
		{[]string{"whatif", "--disk", "1GB/s"}, "tokens per step: 2;"},
		{[]string{"report"}, "No decode generated a single token: figures are per decode of 4 tokens"},
	} {
		t.Run(want.text, func(t *testing.T) {
			args := want.args
			if len(args) == 0 || args[0] != "compare" {
				args = append(slices.Clone(args), "-c", capture)
			}
			if got := ask(args...); !strings.Contains(got, want.text) {
				t.Errorf("%q is not in\n%s", want.text, got)
			}
		})
	}

	var said struct {
		Outlook struct {
			TokensPerSecond float64 `json:"tokens_per_second"`
			Read            float64 `json:"read_bytes_per_token"`
			TokensPerStep   float64 `json:"tokens_per_step"`
			Passes          int     `json:"passes_per_step"`
		}
		Decodes pattern.Decodes
	}
	if err := json.Unmarshal([]byte(ask("--json", "-c", capture)), &said); err != nil {
		t.Fatal(err)
	}
	if o := said.Outlook; o.TokensPerSecond != 20 || o.Read != 4250256./4 || o.TokensPerStep != 4 || o.Passes != 2 {
		t.Errorf("outlook %+v, want the speed and the bytes of a token", o)
	}
	if said.Decodes.Basis != decodesBasis || said.Decodes.Phase != "prompt" {
		t.Errorf("decodes %+v", said.Decodes)
	}

	// The files are of one pass, too.
	f, err := os.Open(filepath.Join(out, cycleFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cycle, err := pattern.ReadCycle(f)
	if err != nil {
		t.Fatal(err)
	}
	if len(cycle.Reads) != 4 || cycle.Reads[0].Slices != 2 || !cycle.Reads[2].Experts || cycle.Reads[2].Slices != 2 ||
		cycle.Reads[1].Nanos != 10e6 || cycle.Reads[3].Length != 50000 {
		t.Errorf("cycle %+v, want that of the pass with an output", cycle.Reads)
	}
	header, err := os.ReadFile(filepath.Join(out, headerFile))
	if err != nil || !strings.Contains(string(header), "a pass gathers 2 x ") {
		t.Errorf("%v, header %s", err, header)
	}
}

// The user chooses the phase: the prompt of a run that generated tokens.
func TestPhaseFlag(t *testing.T) {
	code, stdout, stderr := execute(t, "--phase", "prompt", "-c", plantScene(t), "-o", t.TempDir())
	if want := "analyze: figures are per decode of the prompts, of 2 tokens\n"; code != cli.OK || stderr != want ||
		!strings.Contains(stdout, "per decode  4 reads, ") || !strings.Contains(stdout, "3 generated tokens") {
		t.Errorf("exit %d, stderr %q, stdout %s; want %q", code, stderr, stdout, want)
	}
	if code, _, stderr := execute(t, "moe", "--phase", "prompt", plantScene(t)); code != cli.BadUsage {
		t.Errorf("moe: exit %d, stderr %q, want %d", code, stderr, cli.BadUsage)
	}
}

// With a draft model, the context that generates token after token is the draft's. The hint says how to get at the
// other one's decodes, and these are then analysed.
func TestDraft(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "draft")
	structure := []tables.StructureRow{
		{Name: "output.weight", Size: 1000, Layer: -1, File: "big.gguf"},
		{Name: "output.weight", Size: 10, Layer: -1, File: "small.gguf", Model: 1},
	}
	meta := &tables.Meta{Models: []tables.ModelInfo{{Path: "/m/big.gguf"}, {Path: "/m/small.gguf"}}}
	w, err := trace.Create(dir, meta, structure)
	if err != nil {
		t.Fatal(err)
	}
	step := int32(0)
	decode := func(context, tokens, token int32) {
		t.Helper()
		phase := tables.PhasePrompt
		if token >= 0 {
			phase = tables.PhaseGeneration
		}
		a := tables.Access{
			Timestamp: int64(step) * 1000, Step: step, Token: token, Phase: phase, Context: context, Op: "MUL_MAT",
			Tensor: context, Bytes: structure[context].Size, Duration: 10, Stall: tables.NotObserved,
		}
		row := tables.StepRow{
			Step: step, Context: context, Phase: phase, Tokens: tokens, Token: token, Begin: a.Timestamp,
			End: a.Timestamp + 20,
		}
		if err := errors.Join(w.Access(&a), w.Step(&row)); err != nil {
			t.Fatal(err)
		}
		step++
	}
	decode(0, 9, -1)
	decode(1, 9, -1)
	for round := range int32(3) {
		for i := range int32(3) {
			decode(1, 1, 3*round+i)
		}
		decode(0, 4, -1) // the check
	}
	if err := w.Close(meta, true); err != nil {
		t.Fatal(err)
	}
	const hint = "big.gguf read more in other decodes than those that generate a token: if small.gguf drafts for it, " +
		"--context 0 --phase prompt tells of the decodes that check the draft's tokens"
	for _, tc := range []struct {
		args []string
		said string
		text string
	}{
		{nil, hint, "9 generated tokens"},
		{
			[]string{"--context", "0", "--phase", "prompt"}, "figures are per decode of 4 to 9 tokens",
			"1 read, 1000 B (1000 ",
		},
	} {
		code, stdout, stderr := execute(t, append(tc.args, "-c", dir, "-o", t.TempDir())...)
		if code != cli.OK || !strings.Contains(stderr, tc.said) || !strings.Contains(stdout, tc.text) {
			t.Errorf("%v: exit %d, stderr %s, stdout %s; want %q and %q", tc.args, code, stderr, stdout, tc.said,
				tc.text)
		}
	}
}
