package pattern

// These tests plant captures in which no step generates a token: a perplexity, embeddings, a benchmark of
// prompts, the check of a draft's tokens. Decodes have several tokens, and go through the model several times.

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tensorcast/trace/tables"
)

// decode adds a step of the prompt phase with its row of the steps table.
func (c *capture) decode(phase tables.Phase, tokens int32, passes ...[]planted) {
	c.t.Helper()
	err := c.w.Step(&tables.StepRow{
		Step: c.step, Thread: 1, Phase: phase, Tokens: tokens, Token: -1, Begin: c.clock, End: c.clock + 1000,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.add(phase, 1, slices.Concat(passes...))
}

// pass is a pass of so many tokens, all of which look up another row. Without output it ends before the
// last read.
func pass(tokens int64, output bool) []planted {
	reads := denseStep(0)
	reads[0].bytes = 64 * tokens
	if !output {
		reads = reads[:len(reads)-1]
	}
	return reads
}

// Decodes of a prompt are compared like tokens, whatever their size, and a decode's passes through the
// model are told apart. The cycle is that of one pass, as a token's is.
func TestDecodesThatGenerateNothing(t *testing.T) {
	c := newCapture(t, denseModel)
	c.meta.Models[0].Files = []tables.ModelFile{{Name: "m.gguf", Bytes: 1 << 20, Fingerprint: someFingerprint}}
	c.decode(tables.PhaseWarmup, 2, pass(2, true))
	for range 3 {
		c.decode(tables.PhasePrompt, 10, pass(4, false), pass(4, false), pass(2, true))
	}
	c.decode(tables.PhasePrompt, 4, pass(3, true))
	p, meta := mustBuild(t, c.build)
	if p.Generates() || p.Phase != tables.PhasePrompt || p.Passes() != 3 {
		t.Errorf("phase %v, %d passes; want prompt, 3", p.Phase, p.Passes())
	}
	want := "no decode generated a single token: figures are per decode of 4 to 10 tokens, which goes through " +
		"the model 1 to 3 times"
	if got := p.Basis(); got != want {
		t.Errorf("basis %q, want %q", got, want)
	}
	s := p.Summarize(meta, 2)
	const layers = 2 * 7000
	if s.Reads != 28 || s.TensorsRead != 10 || len(s.CutShort) != 0 || s.Steps != (StepCount{Warmup: 1, Prompt: 4}) ||
		s.BytesPerToken != (Spread{3*layers + 9000 + 640, layers + 9000 + 192, 3*layers + 9000 + 640}) {
		t.Errorf("summary %+v", s)
	}
	if d := s.Decodes; d.Basis != want || d.Phase != "prompt" || d.Tokens != (Spread{10, 4, 10}) ||
		d.Passes != (Spread{3, 1, 3}) {
		t.Errorf("decodes %+v", s.Decodes)
	}
	wantVerdict := "the tensor sequence is identical in all 4 decodes (each compared with those of as many passes: " +
		"1 of 1 pass, 3 of 3 passes)"
	if got := s.Sequence.String(); got != wantVerdict || !s.Sequence.Identical || s.Sequence.Tokens != 34 {
		t.Errorf("verdict %q of %+v, want %q", got, s.Sequence, wantVerdict)
	}
	var text bytes.Buffer
	if err := s.WriteText(&text); err != nil || !strings.Contains(text.String(), "reads/decode") ||
		!strings.Contains(text.String(), "28 reads in most, ") || strings.Contains(text.String(), "/token") {
		t.Errorf("%v, text %q; want figures per decode", err, text.String())
	}

	cycle, err := p.Cycle(meta)
	if err != nil {
		t.Fatal(err)
	}
	oneToken := newCapture(t, denseModel)
	oneToken.meta.Models = meta.Models
	oneToken.add(tables.PhaseGeneration, 1, denseStep(0))
	token, _ := mustBuild(t, oneToken.build)
	tokens, err := token.Cycle(meta)
	if err != nil {
		t.Fatal(err)
	}
	if want := (&Cycle{Files: tokens.Files, Reads: tokens.Reads}); !reflect.DeepEqual(cycle, want) {
		t.Errorf("the cycle is\n%+v, want that of a token\n%+v", cycle, want)
	}
	var header bytes.Buffer
	if err := cycle.WriteHeader(&header, p.Basis()); err != nil || !strings.Contains(header.String(), want) {
		t.Errorf("%v, header %q, want %q in it", err, header.String(), want)
	}
}

// Decodes of which it is not known how many tokens they compute do not count as small ones.
func TestDecodesOfUnknownSize(t *testing.T) {
	c := newCapture(t, denseModel)
	for _, tokens := range []int32{0, 10, 0, 4, 6, 0} {
		c.decode(tables.PhasePrompt, tokens, pass(3, true))
	}
	p, meta := mustBuild(t, c.build)
	want := "no decode generated a single token: figures are per decode of 4 to 10 tokens"
	if d := p.Summarize(meta, 1).Decodes; d.Tokens != (Spread{6, 4, 10}) || d.Basis != want {
		t.Errorf("%+v, want 4 to 10 tokens, 6 in the median, and the basis %q", d, want)
	}
}

// A decode that reads in another order is found, and named by its step.
func TestDecodeThatDiffers(t *testing.T) {
	c := newCapture(t, denseModel)
	for i := range 4 {
		reads := pass(5, true)
		if i == 2 {
			reads[2], reads[3] = reads[3], reads[2]
		}
		c.decode(tables.PhasePrompt, 5, reads)
	}
	p, meta := mustBuild(t, c.build)
	s := p.Summarize(meta, 5)
	d := s.Sequence.Differences
	if s.Sequence.Identical || len(d) != 1 || !slices.Equal(d[0].Steps, []int32{2}) || len(d[0].Tokens) != 0 ||
		d[0].Position != 2 {
		t.Fatalf("%+v, want one difference, of step 2 at position 2", s.Sequence)
	}
	for want, got := range map[string]string{
		"the tensor sequence is identical in 3 of 4 decodes": s.Sequence.String(),
		"step 2 differs at position 2: reads blk.0.ffn_up.weight instead of blk.0.attn_k.weight (the same 2 reads " +
			"in another order)": d[0].String(),
		"no decode generated a single token: figures are per decode of 5 tokens": p.Basis(),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	verdict, err := p.Determinism(map[int32]int32{0: 5, 1: 5, 2: 5, 3: 5}, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := verdict.Document(3).WriteText(&text); err != nil ||
		!strings.HasPrefix(text.String(), "prompt: 3 of 4 steps (75 %) read exactly the canonical sequence") {
		t.Errorf("%v, %q", err, text.String())
	}
}

// Of a single decode, its passes are compared.
func TestOneDecode(t *testing.T) {
	for passes, want := range map[int]string{
		1: "one decode only: there is no other to compare it with",
		3: "one decode only: the tensor sequence repeats in its 3 passes",
	} {
		c := newCapture(t, denseModel)
		c.decode(tables.PhasePrompt, 12, slices.Repeat(pass(4, true), passes))
		p, meta := mustBuild(t, c.build)
		if s := p.Summarize(meta, 1); s.Sequence.String() != want || s.BytesPerToken.Median != int64(passes)*23256 {
			t.Errorf("%d passes: %q, %+v; want %q", passes, s.Sequence, s.BytesPerToken, want)
		}
	}
}

// The experts of a step of several tokens are counted once for all of its passes and tensors.
func TestExpertsOfDecodes(t *testing.T) {
	c := newCapture(t, append(slices.Clone(moeModel), tables.StructureRow{
		Name: "blk.0.ffn_up_exps.weight", Offset: 90000, Size: 8000, Layer: 0, Experts: 8, ExpertStride: 1000,
	}))
	twice := func(layer0, layer1 []int32) []planted { // two tensors of layer 0 have the same experts
		reads := moeStep(0, layer0, layer1)
		up := reads[1]
		up.tensor = 3
		return slices.Insert(reads, 2, up)
	}
	for i := range int32(3) {
		c.decode(tables.PhasePrompt, 8,
			twice([]int32{0, 1, 2}, []int32{3}), twice([]int32{2, 4}, []int32{3 + i}))
	}
	p, _ := mustBuild(t, c.build)
	e := p.Experts()
	if e == nil || e.Touched == nil || *e.Touched != (Touched{Spread{6, 5, 6}, 16}) || e.FirstStep != 1 {
		t.Fatalf("experts %+v, want 5 to 6 of 16 touched", e)
	}
	want := "a decode reads 6 different experts of 16 (5 to 6), all layers together; they differ from step 1 on, " +
		"first in blk.1.ffn_gate_exps.weight; 3 different choices, 92 % of a decode's experts were the previous " +
		"one's too"
	if got := e.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// The user chooses prompts, though others generated tokens, or a context that generated nothing.
func TestPhaseIsChosen(t *testing.T) {
	c := newCapture(t, denseModel)
	c.options = Options{Phase: tables.PhasePrompt, HasPhase: true}
	c.decode(tables.PhasePrompt, 7, pass(7, true))
	c.decode(tables.PhasePrompt, 3, pass(3, true))
	for i := range 4 {
		c.add(tables.PhaseGeneration, 1, denseStep(int64(i)))
	}
	p, meta := mustBuild(t, c.build)
	want := "figures are per decode of the prompts, of 3 to 7 tokens"
	if p.Basis() != want || p.Phase != tables.PhasePrompt {
		t.Errorf("basis %q of %v, want %q", p.Basis(), p.Phase, want)
	}
	if s := p.Summarize(meta, 0); s.Sequence.Steps != 2 || s.Steps.Generation != 4 || s.Steps.Tokens != 4 {
		t.Errorf("summary %+v, want 2 steps compared, and 4 that generate", s)
	}
}

// What does not look like passes is one pass.
func TestPassesOf(t *testing.T) {
	read := func(names string) (reads []Read) {
		for _, r := range names {
			reads = append(reads, Read{Tensor: int32(r), Op: "MUL_MAT"})
		}
		return reads
	}
	for names, want := range map[string]string{
		"abcd":           "[abcd]",
		"abcabcabcd":     "[abc abc abcd]",
		"abcdabcabcd":    "[abcd abc abcd]",
		"abcdacdabcd":    "[abcd acd abcd]", // a read is left out
		"abcdadbabcd":    "[abcdadbabcd]",   // another order
		"aaa":            "[a a a]",
		"abcabxabc":      "[abcabxabc]", // a read besides
		"abcabcab":       "[abc abc ab]",
		"abcda":          "[abcd a]",
		"embedding":      "[embedding]",
		"abcdabcdeabcde": "[abcd abcde abcde]",
	} {
		var got []string
		for _, pass := range passesOf(read(names)) {
			text := ""
			for _, r := range pass {
				text += string(rune(r.Tensor))
			}
			got = append(got, text)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", names, got, want)
		}
	}
}

// Two captures without generated tokens are compared per decode, and their sequences per pass.
func TestCompareDecodes(t *testing.T) {
	tally := func(tokens int32, passes ...[]planted) *Tally {
		c := newCapture(t, denseModel)
		for range 3 {
			c.decode(tables.PhasePrompt, tokens, passes...)
		}
		p, meta := mustBuild(t, c.build)
		sum := NewTally(p, meta, false)
		for i := range p.Steps {
			row := tables.StepRow{Step: p.Steps[i].Number, Phase: p.Phase, Tokens: tokens, Token: -1, End: 8e6}
			if err := sum.Step(&row); err != nil {
				t.Fatal(err)
			}
		}
		return sum
	}
	c := Compare(tally(4, pass(4, true)), tally(8, pass(4, false), pass(4, true)))
	if !c.Identical || !c.PerDecode() || c.Sides[0].Tokens != 12 || c.Sides[1].Tokens != 24 ||
		c.Sides[0].Bytes != (14000+9000+256)/4 || *c.Sides[1].MedianNS != 1e6 {
		t.Errorf("%+v, identical %v", c.Sides, c.Identical)
	}
	var text bytes.Buffer
	if err := c.Document([2]string{"a", "b"}, 3).WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"as they go through the model (10 reads)", "a decode, median     8 ms    8 ms ",
		"read per decode    23 KiB  37 KiB ", "2.9 KiB  5.9 KiB ", "differ most, per decode",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "per token") {
		t.Errorf("figures per token in\n%s", text.String())
	}
}
