package pattern

// These tests plant sequences in captures, and check the verdicts about them.

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// denseModel has an embedding, four tensors in each of two layers, and an output.
var denseModel = []tables.StructureRow{
	{Name: "token_embd.weight", Offset: 4096, Size: 64000, Layer: -1, File: "m.gguf"},
	{Name: "blk.0.attn_q.weight", Offset: 68096, Size: 1000, Layer: 0, File: "m.gguf"},
	{Name: "blk.0.attn_k.weight", Offset: 69120, Size: 1000, Layer: 0, File: "m.gguf"},
	{Name: "blk.0.ffn_down.weight", Offset: 70144, Size: 3000, Layer: 0, File: "m.gguf"},
	{Name: "blk.0.ffn_up.weight", Offset: 73144, Size: 2000, Layer: 0, File: "m.gguf"},
	{Name: "blk.1.attn_q.weight", Offset: 75144, Size: 1000, Layer: 1, File: "m.gguf"},
	{Name: "blk.1.attn_k.weight", Offset: 76144, Size: 1000, Layer: 1, File: "m.gguf"},
	{Name: "blk.1.ffn_down.weight", Offset: 77144, Size: 3000, Layer: 1, File: "m.gguf"},
	{Name: "blk.1.ffn_up.weight", Offset: 80144, Size: 2000, Layer: 1, File: "m.gguf"},
	{Name: "unused.weight", Offset: 82144, Size: 500, Layer: -1, File: "m.gguf"},
	{Name: "output.weight", Offset: 82656, Size: 9000, Layer: -1, File: "m.gguf"},
}

// moeModel has two layers of experts.
var moeModel = []tables.StructureRow{
	{Name: "token_embd.weight", Offset: 4096, Size: 64000, Layer: -1},
	{Name: "blk.0.ffn_gate_exps.weight", Offset: 70000, Size: 8000, Layer: 0, Experts: 8, ExpertStride: 1000},
	{Name: "blk.1.ffn_gate_exps.weight", Offset: 80000, Size: 8000, Layer: 1, Experts: 8, ExpertStride: 1000},
}

// planted is one read of a step to be written. Read i of a step begins at 10 i ns and lasts 10 ns.
type planted struct {
	tensor  int32
	op      string
	bytes   int64
	offset  int64 // beyond the tensor's first byte
	experts []int32
}

// denseStep returns the true sequence: the embedding's row, then each layer with ffn_up before
// ffn_down (not the file's order).
func denseStep(row int64) []planted {
	s := []planted{{tensor: 0, op: "GET_ROWS", bytes: 64, offset: row * 64}}
	for _, t := range []int32{1, 2, 4, 3, 5, 6, 8, 7, 10} {
		s = append(s, planted{tensor: t, op: "MUL_MAT", bytes: denseModel[t].Size})
	}
	return s
}

func moeStep(row int64, layer0, layer1 []int32) []planted {
	return []planted{
		{tensor: 0, op: "GET_ROWS", bytes: 64, offset: row * 64},
		{tensor: 1, op: "MUL_MAT_ID", bytes: int64(len(layer0)) * 1000, experts: layer0},
		{tensor: 2, op: "MUL_MAT_ID", bytes: int64(len(layer1)) * 1000, experts: layer1},
	}
}

// capture writes captures step by step.
type capture struct {
	t     *testing.T
	dir   string
	w     *trace.Writer
	meta  *tables.Meta
	model []tables.StructureRow
	step  int32
	token int32
	clock int64

	options Options // Phase and HasPhase
}

func newCapture(t *testing.T, model []tables.StructureRow) *capture {
	t.Helper()
	c := &capture{
		t: t, dir: t.TempDir(), model: model,
		meta: &tables.Meta{Models: []tables.ModelInfo{{Path: "/models/m.gguf", Fingerprint: someFingerprint,
			Tensors: len(model)}}},
	}
	w, err := trace.Create(c.dir, c.meta, model)
	if err != nil {
		t.Fatal(err)
	}
	c.w = w
	return c
}

func (c *capture) add(phase tables.Phase, thread int32, reads []planted) {
	c.t.Helper()
	token := int32(-1)
	if phase == tables.PhaseGeneration {
		token = c.token
		c.token++
	}
	c.clock += 1000
	for i, r := range reads {
		c.write(phase, thread, c.step, token, c.clock+int64(i)*10, r)
	}
	c.step++
}

func (c *capture) write(phase tables.Phase, thread, step, token int32, at int64, r planted) {
	c.t.Helper()
	err := c.w.Access(&tables.Access{
		Timestamp: at, Duration: 10, Step: step, Token: token, Phase: phase, Thread: thread, Op: r.op, Tensor: r.tensor,
		Offset: c.model[r.tensor].Offset + r.offset, Bytes: r.bytes, Layer: c.model[r.tensor].Layer, Experts: r.experts,
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// build reads the capture back and builds its pattern.
func (c *capture) build() (*Pattern, *tables.Meta, error) {
	c.t.Helper()
	if err := c.w.Close(c.meta, true); err != nil {
		c.t.Fatal(err)
	}
	return c.open()
}

// killed leaves the capture as a killed tracer would: with the rows that were flushed, and
// capture.json without "complete".
func (c *capture) killed() (*Pattern, *tables.Meta, error) {
	c.t.Helper()
	if err := c.w.Flush(c.meta); err != nil {
		c.t.Fatal(err)
	}
	return c.open()
}

func (c *capture) open() (*Pattern, *tables.Meta, error) {
	c.t.Helper()
	read, err := trace.Open(c.dir)
	if err != nil {
		c.t.Fatal(err)
	}
	o, err := OptionsOf(read.Meta, read.Steps())
	if err != nil {
		c.t.Fatal(err)
	}
	o.Phase, o.HasPhase = c.options.Phase, c.options.HasPhase
	p, err := Build(read.Structure, read.Accesses(), o)
	return p, read.Meta, err
}

func mustBuild(t *testing.T, build func() (*Pattern, *tables.Meta, error)) (*Pattern, *tables.Meta) {
	t.Helper()
	p, meta, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return p, meta
}

// run plants a warm-up, a prompt and n tokens. change may alter token i's reads.
func run(t *testing.T, n int, change func(i int, reads []planted) []planted) *capture {
	t.Helper()
	c := newCapture(t, denseModel)
	c.add(tables.PhaseWarmup, 1, denseStep(1))
	prompt := denseStep(0)
	prompt[0].bytes = 5 * 64
	c.add(tables.PhasePrompt, 1, prompt)
	for i := range n {
		reads := denseStep(int64(i))
		if change != nil {
			reads = change(i, reads)
		}
		c.add(tables.PhaseGeneration, 1, reads)
	}
	return c
}

func at(token int, change func([]planted) []planted) func(int, []planted) []planted {
	return func(i int, reads []planted) []planted {
		if i == token {
			return change(reads)
		}
		return reads
	}
}

func TestSequenceVerdict(t *testing.T) {
	for _, tc := range []struct {
		name      string
		change    func(int, []planted) []planted
		following int
		distinct  int
		want      []string // differences, as sentences
		kind      Kind
	}{
		{name: "identical", following: 31, distinct: 1},
		{
			name:      "swapped pair in token 7",
			change:    at(7, func(s []planted) []planted { s[3], s[4] = s[4], s[3]; return s }),
			following: 30, distinct: 2, kind: KindOrder,
			want: []string{
				"token 7 differs at position 3: reads blk.0.ffn_down.weight instead of " +
					"blk.0.ffn_up.weight (the same 2 reads in another order)",
			},
		},
		{
			name:      "missing read in token 4",
			change:    at(4, func(s []planted) []planted { return slices.Delete(s, 2, 3) }),
			following: 30, distinct: 2, kind: KindMissing,
			want: []string{"token 4 differs at position 2: does not read blk.0.attn_k.weight"},
		},
		{
			name:      "missing last read in a token that is not the last",
			change:    at(4, func(s []planted) []planted { return s[:len(s)-1] }),
			following: 30, distinct: 2, kind: KindMissing,
			want: []string{"token 4 differs at position 9: does not read output.weight"},
		},
		{
			name: "extra reads in token 0",
			change: at(0, func(s []planted) []planted {
				return append(s, planted{tensor: 9, op: "ADD", bytes: 500},
					planted{tensor: 10, op: "MUL_MAT", bytes: 9000})
			}),
			following: 30, distinct: 2, kind: KindExtra,
			want: []string{"token 0 differs at position 10: reads unused.weight and 1 read more besides"},
		},
		{
			name:      "another size",
			change:    at(30, func(s []planted) []planted { s[0].bytes = 128; return s }),
			following: 30, distinct: 2, kind: KindSize,
			want: []string{"token 30 differs at position 0: reads 128 bytes of token_embd.weight instead of 64"},
		},
		{
			name:      "another op",
			change:    at(2, func(s []planted) []planted { s[9].op = "MUL_MAT+ADD"; return s }),
			following: 30, distinct: 2, kind: KindOp,
			want: []string{"token 2 differs at position 9: reads output.weight by MUL_MAT+ADD instead of MUL_MAT"},
		},
		{
			name: "another tensor",
			change: at(2, func(s []planted) []planted {
				s[9] = planted{
					tensor: 9, op: "MUL_MAT", bytes: 500,
				}
				return s
			}),
			following: 30, distinct: 2, kind: KindOther,
			want: []string{
				"token 2 differs at position 9: reads unused.weight instead of output.weight (1 read " +
					"where the others have 1)",
			},
		},
		{
			name: "two tokens with the same difference, one with another",
			change: func(i int, s []planted) []planted {
				switch i {
				case 9, 11:
					return slices.Delete(s, 9, 10)
				case 10:
					return slices.Delete(s, 0, 1)
				}
				return s
			},
			following: 28, distinct: 3, kind: KindMissing,
			want: []string{
				"tokens 9 and 11 differ at position 9: does not read output.weight",
				"token 10 differs at position 0: does not read token_embd.weight",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, _ := mustBuild(t, run(t, 31, tc.change).build)
			v := p.Sequences(10)
			if v.Tokens != 31 || v.Following != tc.following || v.Distinct != tc.distinct ||
				v.Identical != (tc.following == 31) {
				t.Errorf("%d of %d tokens follow, %d distinct, identical %v; want %d of 31, %d", v.Following,
					v.Tokens, v.Distinct, v.Identical, tc.following, tc.distinct)
			}
			var got []string
			for _, d := range v.Differences {
				got = append(got, d.String())
				if d.Kind != tc.kind {
					t.Errorf("kind %s, want %s", d.Kind, tc.kind)
				}
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("differences\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tc.want, "\n\t"))
			}
			for i := range p.Steps {
				s := &p.Steps[i]
				wantDeviates := slices.ContainsFunc(v.Differences,
					func(d Difference) bool { return slices.Contains(d.Tokens, s.Token) })
				if p.Deviates(s) != wantDeviates {
					t.Errorf("step %d (token %d): Deviates is %v; want %v", s.Number, s.Token, p.Deviates(s),
						wantDeviates)
				}
			}
		})
	}
}

func TestSequencesLimit(t *testing.T) {
	p, _ := mustBuild(t, run(t, 9, func(i int, s []planted) []planted {
		if i < 3 {
			s[0].bytes = int64(1000 + i)
		}
		return s
	}).build)
	v := p.Sequences(2)
	if v.Distinct != 4 || len(v.Differences) != 2 || v.Differences[0].Tokens[0] != 0 {
		t.Errorf("%d distinct, differences %v; want 4, and those of tokens 0 and 1", v.Distinct, v.Differences)
	}
}

// Among sequences of as many steps and reads the first one is the reference.
func TestFirstOfEqualsIsReference(t *testing.T) {
	p, _ := mustBuild(t, run(t, 4, func(i int, s []planted) []planted {
		if i%2 == 1 {
			s[9].op = "MUL_MAT+ADD"
		}
		return s
	}).build)
	want := "tokens 1 and 3 differ at position 9: reads output.weight by MUL_MAT+ADD instead of MUL_MAT"
	if v := p.Sequences(5); v.Following != 2 || len(v.Differences) != 1 || v.Differences[0].String() != want {
		t.Errorf("%d tokens follow, differences %v; want 2, and that %s", v.Following, v.Differences, want)
	}
}

func TestCutShort(t *testing.T) {
	cutAt := func(token, reads int) func(int, []planted) []planted {
		return at(token, func(s []planted) []planted { return s[:reads] })
	}
	for _, tc := range []struct {
		name   string
		tokens int
		change func(int, []planted) []planted
		killed bool
		want   []Cut
		clean  bool // the other tokens are identical
	}{
		{
			name: "tracer killed", tokens: 5, change: cutAt(4, 6), killed: true,
			want: []Cut{{Token: 4, Reads: 6, Expected: 10}}, clean: true,
		},
		{
			name: "target killed", tokens: 5, change: cutAt(4, 6),
			want: []Cut{{Token: 4, Reads: 6, Expected: 10}}, clean: true,
		},
		{
			name: "two tokens, the second cut", tokens: 2, change: cutAt(1, 1),
			want: []Cut{{Token: 1, Reads: 1, Expected: 10}}, clean: true,
		},
		{name: "whole in a killed capture", tokens: 5, killed: true, want: []Cut{}, clean: true},
		{name: "the only token", tokens: 1, change: cutAt(0, 6), killed: true, want: []Cut{}, clean: true},
		{
			// It is not a beginning of the others, and the target ended in order, so this is a real
			// difference.
			name: "last token shorter, target ended", tokens: 5, want: []Cut{},
			change: at(4, func(s []planted) []planted { return slices.Delete(s, 2, 3) }),
		},
		{
			name: "last token shorter, tracer killed", tokens: 5, killed: true,
			want: []Cut{{Token: 4, Reads: 9, Expected: 10}}, clean: true,
			change: at(4, func(s []planted) []planted { return slices.Delete(s, 2, 3) }),
		},
		{name: "a short token before the last", tokens: 5, change: cutAt(3, 6), killed: true, want: []Cut{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := run(t, tc.tokens, tc.change)
			build := c.build
			if tc.killed {
				build = c.killed
			}
			p, meta := mustBuild(t, build)
			s := p.Summarize(meta, 5)
			if !reflect.DeepEqual(s.CutShort, tc.want) {
				t.Errorf("cut short %v, want %v", s.CutShort, tc.want)
			}
			if s.Sequence.Identical != tc.clean {
				t.Errorf("identical %v, want %v: %v", s.Sequence.Identical, tc.clean, s.Sequence.Differences)
			}
			if want := tc.tokens - len(tc.want); s.Sequence.Tokens != want {
				t.Errorf("%d tokens compared, want %d", s.Sequence.Tokens, want)
			}
			if s.Steps.Generation != tc.tokens {
				t.Errorf("%d generated tokens counted, want %d", s.Steps.Generation, tc.tokens)
			}
			if warned := slices.ContainsFunc(s.Warnings,
				func(w string) bool { return strings.Contains(w, "did not end in order") }); warned != tc.killed {
				t.Errorf("warnings %q", s.Warnings)
			}
		})
	}
}

// A stream that ends inside a message still yields everything before. The token that lost its end
// is left out.
func TestTruncatedFile(t *testing.T) {
	c := newCapture(t, denseModel)
	for i := range 3 {
		c.add(tables.PhaseGeneration, 1, denseStep(int64(i)))
	}
	for i, r := range denseStep(3)[:4] {
		c.write(tables.PhaseGeneration, 1, c.step, 3, 9000+int64(i), r)
	}
	if err := c.w.Flush(c.meta); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(c.dir, trace.AccessFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range denseStep(3)[4:] {
		c.write(tables.PhaseGeneration, 1, c.step, 3, 9999, r)
	}
	if err := c.w.Flush(c.meta); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(c.dir, trace.AccessFile), int64(len(whole)+20)); err != nil {
		t.Fatal(err)
	}
	p, meta := mustBuild(t, c.open)
	s := p.Summarize(meta, 5)
	want := []Cut{{Token: 3, Reads: 4, Expected: 10}}
	if !reflect.DeepEqual(s.CutShort, want) || !s.Sequence.Identical ||
		s.Sequence.Tokens != 3 {
		t.Errorf("cut short %v, %d tokens identical %v; want %v, 3, true", s.CutShort, s.Sequence.Tokens,
			s.Sequence.Identical, want)
	}
}

func TestNothingToAnalyse(t *testing.T) {
	_, _, err := newCapture(t, denseModel).build()
	if !errors.Is(err, ErrNoAccesses) {
		t.Errorf("empty capture: %v, want ErrNoAccesses", err)
	}
	c := run(t, 0, nil)
	c.options = Options{Phase: tables.PhaseGeneration, HasPhase: true}
	_, _, err = c.build()
	if !errors.Is(err, ErrNoPhase) || !strings.HasSuffix(err.Error(), "generation") {
		t.Errorf("generation of a prompt only: %v, want ErrNoPhase", err)
	}
}

func TestBuildPassesErrorsOn(t *testing.T) {
	broken := errors.New("broken")
	_, err := Build(denseModel, func(yield func(*tables.Access, error) bool) { yield(nil, broken) }, Options{})
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
	for _, a := range []tables.Access{{Tensor: 11}, {Tensor: -1}, {Phase: 3}} {
		if _, err := Build(denseModel, func(yield func(*tables.Access, error) bool) { yield(&a, nil) },
			Options{}); err == nil {
			t.Errorf("%+v was accepted", a)
		}
	}
}

func TestExperts(t *testing.T) {
	moe := func(choices ...[2][]int32) *Experts {
		c := newCapture(t, moeModel)
		c.add(tables.PhasePrompt, 1, moeStep(0, []int32{0, 1, 2, 3, 4, 5, 6, 7}, []int32{0, 1, 2, 3, 4}))
		for i, e := range choices {
			c.add(tables.PhaseGeneration, 1, moeStep(int64(i), e[0], e[1]))
		}
		p, _ := mustBuild(t, c.build)
		if v := p.Sequences(5); !v.Identical {
			t.Errorf("the experts changed the sequence: %v", v.Differences)
		}
		return p.Experts()
	}
	same := [2][]int32{{1, 5}, {0, 7}}
	for _, tc := range []struct {
		name string
		got  *Experts
		want Experts
		text string
	}{
		{
			"same", moe(same, same, same), Experts{Tokens: 3, Identical: true, FirstToken: -1, Distinct: 1, Kept: 1},
			"the experts chosen are the same for all tokens",
		},
		{
			"same in another order", moe(same, [2][]int32{{5, 1}, {7, 0}}),
			Experts{Tokens: 2, Identical: true, FirstToken: -1, Distinct: 1, Kept: 1},
			"the experts chosen are the same for all tokens",
		},
		{
			"vary from token 3 on, in layer 1", moe(same, same, same, [2][]int32{{1, 5}, {3, 0}},
				[2][]int32{{2, 3}, {3, 0}}),
			Experts{
				Tokens: 5, FirstToken: 3, FirstTensor: "blk.1.ffn_gate_exps.weight", Distinct: 3,
				Kept: (4 + 4 + 3 + 2) / 16.0,
			},
			"the experts chosen differ from token 3 on, first in blk.1.ffn_gate_exps.weight; 3 different choices, " +
				"81 % of a token's experts were the previous token's too",
		},
		{
			"one token", moe(same), Experts{Tokens: 1, Identical: true, FirstToken: -1, Distinct: 1, Kept: -1},
			"one token only: there is no other to compare its experts with",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.got == nil || *tc.got != tc.want {
				t.Errorf("got %+v, want %+v", tc.got, tc.want)
			}
			if got := tc.got.String(); got != tc.text {
				t.Errorf("text %q, want %q", got, tc.text)
			}
		})
	}
	p, _ := mustBuild(t, run(t, 2, nil).build)
	if p.Experts() != nil {
		t.Error("a dense model has a verdict on experts")
	}
}

// The number of selected experts determines the number of bytes, and so is part of the sequence.
func TestExpertCountIsSequence(t *testing.T) {
	c := newCapture(t, moeModel)
	c.add(tables.PhaseGeneration, 1, moeStep(0, []int32{1, 2}, []int32{3, 4}))
	c.add(tables.PhaseGeneration, 1, moeStep(0, []int32{1, 2}, []int32{3, 4}))
	c.add(tables.PhaseGeneration, 1, moeStep(0, []int32{1, 2}, []int32{3, 4, 5}))
	p, _ := mustBuild(t, c.build)
	v := p.Sequences(5)
	if len(v.Differences) != 1 || v.Differences[0].Kind != KindSize || v.Differences[0].Position != 2 {
		t.Errorf("differences %v, want one of size at position 2", v.Differences)
	}
}

// A tied embedding is read twice in a token: a row of it, then all of it.
func TestTiedEmbedding(t *testing.T) {
	tied := func(_ int, s []planted) []planted {
		s[9] = planted{tensor: 0, op: "MUL_MAT", bytes: 64000}
		return s
	}
	p, meta := mustBuild(t, run(t, 4, tied).build)
	s := p.Summarize(meta, 3)
	want := TensorReads{
		Name: "token_embd.weight", Size: 64000, ReadsPerToken: 2, BytesPerToken: 64064,
		RunReads: 1 + 1 + 4*2, RunBytes: 64 + 5*64 + 4*64064,
	}
	if len(s.Top) != 3 || s.Top[0] != want {
		t.Errorf("top tensor %+v, want %+v", s.Top, want)
	}
	if !s.Sequence.Identical || s.Reads != 10 || s.TensorsRead != 9 || s.Tensors != 11 {
		t.Errorf("identical %v, %d reads of %d of %d tensors; want 10 of 9 of 11", s.Sequence.Identical, s.Reads,
			s.TensorsRead, s.Tensors)
	}
}

func TestSummary(t *testing.T) {
	c := run(t, 31, at(7, func(s []planted) []planted { return slices.Delete(s, 9, 10) }))
	c.meta.Counters.OpsLost = 3
	c.meta.Outside = tables.Outside{Tensors: 2, Bytes: 5000, Example: "blk.0.attn_q.weight"}
	p, meta := mustBuild(t, c.build)
	s := p.Summarize(meta, 2)
	token := int64(64 + 14000 + 9000)
	if s.Model != "m.gguf" || s.Steps != (StepCount{1, 1, 31, 31}) ||
		s.BytesPerToken != (Spread{token, token - 9000, token}) {
		t.Errorf("summary %+v; want s.Model = \"m.gguf\", s.Steps = %v, s.BytesPerToken = %v", s,
			(StepCount{1, 1, 31, 31}), (Spread{token, token - 9000, token}))
	}
	if s.Top[0].Name != "output.weight" || s.Top[0].RunBytes != 32*9000 || s.Top[1].Name != "blk.0.ffn_down.weight" ||
		len(s.Top) != 2 {
		t.Errorf("top %+v", s.Top)
	}
	for _, want := range []string{
		"3 events lost", "2 tensors (4.9 KiB, for example blk.0.attn_q.weight)", "--no-repack",
	} {
		if !strings.Contains(strings.Join(s.Warnings, "\n"), want) {
			t.Errorf("warnings %q lack %q", s.Warnings, want)
		}
	}
	var buf bytes.Buffer
	if err := s.WriteText(&buf); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"m.gguf: 11 tensors, 10 of them read for each token",
		"1 warm-up, 1 prompt, 31 generated tokens",
		"10 reads, 23 KiB (23064 bytes), from 14 KiB to 23 KiB",
		"the tensor sequence is identical in 30 of 31 generated tokens",
		"token 7 differs at position 9: does not read output.weight",
		"output.weight",
	} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("text lacks %q:\n%s", want, buf.String())
		}
	}
}

func TestRows(t *testing.T) {
	p, _ := mustBuild(t, run(t, 5, at(2, func(s []planted) []planted { return slices.Delete(s, 2, 3) })).build)
	rows := p.Rows()
	if len(rows) != 30 {
		t.Fatalf("%d rows, want 10 for each of 3 phases", len(rows))
	}
	order := []int{0, 1, 2, 4, 3, 5, 6, 8, 7, 10}
	for i, r := range rows {
		phase, seq := tables.Phase(i/10), i%10
		want := Row{
			Seq: seq, Tensor: &p.Structure[order[seq]], RelativeTime: float64(seq) / 10, Phase: phase, Op: "MUL_MAT",
			Bytes: denseModel[order[seq]].Size,
		}
		if seq == 0 {
			want.Op, want.Bytes = "GET_ROWS", 64
			if phase == tables.PhasePrompt {
				want.Bytes = 5 * 64
			}
		}
		if r != want {
			t.Errorf("row %d is %+v, want %+v", i, r, want)
		}
	}
}

func TestColumns(t *testing.T) {
	p, _ := mustBuild(t, run(t, 2, nil).build)
	var buf bytes.Buffer
	if err := trace.WriteCSV(&buf, Columns(p.Rows())); err != nil {
		t.Fatal(err)
	}
	table, err := csv.NewReader(&buf).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	wantHead := []string{"seq", "tensor_name", "offset_bytes", "size_bytes", "relative_time", "phase"}
	if got := table[0][:6]; !reflect.DeepEqual(got, wantHead) {
		t.Errorf("columns %v, want %v first", got, wantHead)
	}
	want := []string{
		"3", "blk.0.ffn_up.weight", "73144", "2000", "0.3", "generation", "MUL_MAT", "2000", "0",
		"0", "m.gguf",
	}
	if got := table[1+20+3]; !reflect.DeepEqual(got, want) {
		t.Errorf("row %v, want %v", got, want)
	}
}

// The relative time is the median over the tokens, not the mean, so one slow token changes nothing.
func TestRelativeTimeIsMedian(t *testing.T) {
	c := newCapture(t, denseModel)
	for i, second := range []int64{100, 110, 900} {
		begin := int64(i) * 10000
		c.write(tables.PhaseGeneration, 1, int32(i), int32(i), begin, planted{tensor: 1, op: "MUL_MAT", bytes: 1000})
		c.write(tables.PhaseGeneration, 1, int32(i), int32(i), begin+second,
			planted{tensor: 2, op: "MUL_MAT", bytes: 1000})
		c.write(tables.PhaseGeneration, 1, int32(i), int32(i), begin+990,
			planted{tensor: 3, op: "MUL_MAT", bytes: 1000})
	}
	p, _ := mustBuild(t, c.build)
	var got []float64
	for _, r := range p.Rows() {
		got = append(got, r.RelativeTime)
	}
	if want := []float64{0, 0.11, 0.99}; !reflect.DeepEqual(got, want) {
		t.Errorf("relative times %v, want %v", got, want)
	}
}

// Two contexts decode at the same time. Their rows interleave, but their steps do not.
func TestInterleavedThreads(t *testing.T) {
	c := newCapture(t, denseModel)
	for i := range int32(6) {
		for at, r := range denseStep(int64(i)) {
			c.write(tables.PhaseGeneration, 1, 2*i, 2*i, int64(i)*1000+int64(at)*10, r)
			c.write(tables.PhaseGeneration, 2, 2*i+1, 2*i+1, int64(i)*1000+int64(at)*10+5, r)
		}
	}
	p, _ := mustBuild(t, c.build)
	if v := p.Sequences(5); !v.Identical || v.Tokens != 12 {
		t.Errorf("%d tokens, identical %v; want 12, true: %v", v.Tokens, v.Identical, v.Differences)
	}
}

func TestAccessOrder(t *testing.T) {
	c := newCapture(t, denseModel)
	c.add(tables.PhasePrompt, 1, []planted{{tensor: 9, op: "ADD", bytes: 500}, {tensor: 0, op: "GET_ROWS", bytes: 64}})
	c.add(tables.PhaseGeneration, 1, []planted{
		{tensor: 10, op: "MUL_MAT", bytes: 9000}, {tensor: 2, op: "MUL_MAT", bytes: 1000},
		{tensor: 10, op: "MUL_MAT", bytes: 9000},
	})
	p, _ := mustBuild(t, c.build)
	if got, want := p.AccessOrder(), []int{10, 2, 9, 0, 1, 3, 4, 5, 6, 7, 8}; !reflect.DeepEqual(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	sum := make([]int64, len(denseModel))
	p.Steps[1].AddBytes(sum)
	if sum[10] != 18000 || sum[2] != 1000 || sum[9] != 0 {
		t.Errorf("bytes by tensor %v; want sum[10] = 18000, sum[2] = 1000, sum[9] = 0", sum)
	}
}

func TestNumberList(t *testing.T) {
	for want, tokens := range map[string][]int32{
		"token 7":                         {7},
		"tokens 7 and 9":                  {7, 9},
		"tokens 1, 2, 3, 4 and 5":         {1, 2, 3, 4, 5},
		"tokens 1, 2, 3, 4, 5 and 2 more": {1, 2, 3, 4, 5, 6, 7},
	} {
		if got := numberList("token", tokens); got != want {
			t.Errorf("numberList(%v) = %q, want %q", tokens, got, want)
		}
	}
}

func ExampleSummary_WriteText() {
	s := Summary{
		Model: "m.gguf", Tensors: 3, TensorsRead: 2, Reads: 2, BytesPerToken: Spread{3000, 3000, 3000},
		Steps: StepCount{1, 1, 2, 2},
		Sequence: Sequences{
			Identical: true, Tokens: 2, Following: 2, Steps: 2, Distinct: 1,
			Batches: []Batch{{Tokens: 1, Steps: 2, Following: 2, Reads: 2}},
		},
		Top: []TensorReads{
			{Name: "output.weight", Size: 2000, ReadsPerToken: 1, BytesPerToken: 2000, RunReads: 4, RunBytes: 8000},
		},
	}
	var buf bytes.Buffer
	if err := s.WriteText(&buf); err != nil {
		fmt.Println(err)
	}
	fmt.Print(buf.String())
	// Output:
	// model      m.gguf: 3 tensors, 2 of them read for each token
	// steps      1 warm-up, 1 prompt, 2 generated tokens
	// per token  2 reads, 2.9 KiB (3000 bytes)
	// sequence   the tensor sequence is identical in all 2 generated tokens
	//
	// most read tensors, from memory or disk, by bytes over the whole run
	//    size  reads/token  bytes/token   share  run total  times its size  tensor
	// 2.0 KiB            1      2.0 KiB  66.7 %    7.8 KiB               4  output.weight
}

// Which tensors are read most is left out where it is known that memory held them.
func TestSummaryOfMemory(t *testing.T) {
	s := Summary{Top: []TensorReads{{Name: "output.weight", Size: 2000, RunReads: 4, RunBytes: 8000}}}
	for _, tc := range []struct {
		rereads *tables.Rereads
		want    bool
	}{{nil, true}, {&tables.Rereads{FirstBytes: 2000}, false}, {&tables.Rereads{RereadBytes: 2000}, true}} {
		s.Rereads = tc.rereads
		var text bytes.Buffer
		if err := s.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(text.String(), "most read tensors"); got != tc.want {
			t.Errorf("%+v: the table is there: %v, want %v:\n%s", tc.rereads, got, tc.want, &text)
		}
	}
}

// The memory for a capture is bounded, and sums do not overflow.
func TestTooMuch(t *testing.T) {
	structure := []tables.StructureRow{{Name: "a.weight", Size: math.MaxInt64}}
	for name, tc := range map[string]struct {
		rows int
		row  func(i int) tables.Access
		says string
	}{
		"reads of a step": {maxStepReads + 1, func(int) tables.Access { return tables.Access{Op: "MUL_MAT"} },
			"step 0 has 262144 reads of 0 bytes, and one of 0"},
		"bytes of a step": {2, func(int) tables.Access { return tables.Access{Bytes: 1<<52 + 1} },
			"step 0 has 1 reads of 4503599627370497 bytes"},
		"bytes of a read": {1, func(int) tables.Access { return tables.Access{Bytes: math.MaxInt64} },
			"and one of 9223372036854775807"},
		"bytes of a capture": {513, func(i int) tables.Access {
			return tables.Access{
				Step: int32(i), Bytes: maxStepBytes,
			}
		}, "after 4611686018427387904 bytes in all"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Build(structure, func(yield func(*tables.Access, error) bool) {
				for i := range tc.rows {
					if a := tc.row(i); !yield(&a, nil) {
						return
					}
				}
			}, Options{Context: MostRead})
			if !errors.Is(err, ErrTooMuch) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %q", err, tc.says)
			}
		})
	}
}

// A sequence that is too long for a cycle is refused, and a list of contexts stays short.
func TestLongSequenceAndManyContexts(t *testing.T) {
	structure := []tables.StructureRow{{Name: "a.weight", Size: 100, File: "m.gguf"}}
	rows := func(n int, context func(i int) int32) func(yield func(*tables.Access, error) bool) {
		return func(yield func(*tables.Access, error) bool) {
			for i := range n {
				a := tables.Access{
					Op: "MUL_MAT", Bytes: 1, Phase: tables.PhaseGeneration, Context: context(i),
					Step: context(i),
				}
				if !yield(&a, nil) {
					return
				}
			}
		}
	}
	p, err := Build(structure, rows(maxReads+1, func(int) int32 { return 0 }),
		Options{Context: MostRead, Complete: true})
	if err != nil {
		t.Fatal(err)
	}
	meta := &tables.Meta{Models: []tables.ModelInfo{{Bytes: 1000, Fingerprint: someFingerprint}}}
	if _, err := p.Cycle(meta); !errors.Is(err, ErrInvalid) ||
		!strings.Contains(err.Error(), "32769 reads (at most 32768)") {
		t.Errorf("error %v; want %v, text with \"32769 reads (at most 32768)\"", err, ErrInvalid)
	}
	_, err = Build(structure, rows(5000, func(i int) int32 { return int32(i) }), Options{Context: 5000, Complete: true})
	if !errors.Is(err, ErrNoContext) || !strings.HasSuffix(err.Error(), "14, 15, ...") || len(err.Error()) > 200 {
		t.Errorf("error %.300v", err)
	}
}
