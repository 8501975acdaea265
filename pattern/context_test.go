package pattern

// These tests build patterns of captures with several contexts, models and batch sizes.

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// twoModels returns denseModel and a draft model whose tensors have the same names.
func twoModels() []tables.StructureRow {
	both := slices.Clone(denseModel)
	for _, r := range denseModel[:3] {
		r.Model, r.File = 1, "draft.gguf"
		both = append(both, r)
	}
	return both
}

// Contexts of two models on one thread, and two contexts of one model, are kept apart.
func TestContextsAreToldApart(t *testing.T) {
	c := newCapture(t, twoModels())
	c.meta.Models = append(c.meta.Models, tables.ModelInfo{Path: "/models/draft.gguf"})
	draft := []planted{{tensor: 11, op: "GET_ROWS", bytes: 64}, {tensor: 12, op: "MUL_MAT", bytes: 1000}}
	write := func(context, step, token int32, reads []planted) {
		for i, r := range reads {
			err := c.w.Access(&tables.Access{
				Timestamp: int64(step)*1000 + int64(i), Step: step, Token: token, Phase: tables.PhaseGeneration,
				Thread: 1, Op: r.op, Tensor: r.tensor, Bytes: r.bytes,
				Offset: c.model[r.tensor].Offset, Context: context, Duration: tables.NotObserved,
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	step := int32(0)
	for token := range int32(4) {
		write(0, step, 2*token, draft)
		write(0, step+1, 2*token+1, draft)
		write(1, step+2, token, denseStep(int64(token)))
		step += 3
	}
	write(2, step, 0, denseStep(0)[:4])   // the same model in another context
	write(0, step+1, 0, denseStep(0)[:2]) // the draft's context was freed, and another one has its address

	p, meta := mustBuild(t, c.build)
	want := []ContextReads{
		{Context: 0, Model: 0, Steps: 1, GenerationSteps: 1, GenerationBytes: 1064, Bytes: 1064},
		{Context: 0, Model: 1, Steps: 8, GenerationSteps: 8, GenerationBytes: 8 * 1064, Bytes: 8 * 1064},
		{Context: 1, Model: 0, Steps: 4, GenerationSteps: 4, GenerationBytes: 4 * 23064, Bytes: 4 * 23064},
		{Context: 2, Model: 0, Steps: 1, GenerationSteps: 1, GenerationBytes: 4064, Bytes: 4064},
	}
	if p.Context != 1 || p.Model != 0 || !reflect.DeepEqual(p.Contexts, want) {
		t.Errorf("context %d of model %d of %+v, want 1 of 0 of %+v", p.Context, p.Model, p.Contexts, want)
	}
	s := p.Summarize(meta, 3)
	if !s.Sequence.Identical || s.Sequence.Tokens != 4 || s.Tensors != len(denseModel) || s.Model != "m.gguf" ||
		s.Context != 1 || len(s.CutShort) != 0 {
		t.Errorf("summary %+v", s)
	}
	if order := p.AccessOrder(); len(order) != len(denseModel) || slices.Max(order) >= len(denseModel) {
		t.Errorf("order %v has tensors of another model; want len(order) = %v, slices.Max(order) less than %v", order,
			len(denseModel), len(denseModel))
	}

	read, err := trace.Open(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	o, err := OptionsOf(read.Meta, read.Steps())
	if err != nil {
		t.Fatal(err)
	}
	o.Context = 0
	p, err = Build(read.Structure, read.Accesses(), o)
	if err != nil {
		t.Fatal(err)
	}
	s = p.Summarize(meta, 3)
	if s.Model != "draft.gguf" || s.Tensors != 3 || s.Sequence.Tokens != 8 || !s.Sequence.Identical {
		t.Errorf("summary of context 0: %+v", s)
	}
	o.Context = 3
	if _, err := Build(read.Structure, read.Accesses(), o); !errors.Is(err, ErrNoContext) ||
		!strings.Contains(err.Error(), "3 is not one of 0, 1, 2") {
		t.Errorf("error %v; want %v, text with \"3 is not one of 0, 1, 2\"", err, ErrNoContext)
	}
}

// Tokens that are generated together may share rows and experts. Different numbers of bytes are
// then no difference.
func TestParallelGeneration(t *testing.T) {
	for _, parallel := range []bool{true, false} {
		c := newCapture(t, moeModel)
		for i, experts := range [][]int32{{1, 2}, {1, 2, 3, 4}, {0, 1, 7}} {
			reads := moeStep(0, experts, []int32{3, 4})
			reads[0].bytes = int64(64 * (i + 1))
			if parallel {
				if err := c.w.Step(&tables.StepRow{
					Step: c.step, Phase: tables.PhaseGeneration, Tokens: 4,
				}); err != nil {
					t.Fatal(err)
				}
			}
			c.add(tables.PhaseGeneration, 1, reads)
		}
		p, meta := mustBuild(t, c.build)
		tokens := 3
		if parallel {
			tokens *= 4
		}
		if v := p.Sequences(5); v.Identical != parallel || v.Steps != 3 || v.Tokens != tokens {
			t.Errorf("parallel %v: identical %v of %d tokens: %v", parallel, v.Identical, v.Tokens, v.Differences)
		}
		if s := p.Summarize(meta, 1); s.BytesPerToken != (Spread{
			Median: 3*64 + 5000, Min: 64 + 4000, Max: 128 + 6000,
		}) {
			t.Errorf("bytes %+v", s.BytesPerToken)
		}
	}
	// Other differences are still found.
	c := newCapture(t, moeModel)
	for i := range int32(3) {
		reads := moeStep(0, []int32{1, 2}, []int32{i})
		reads[1].bytes, reads[2].bytes = int64(1000*i), 1000
		if i == 1 {
			reads = reads[:2]
		}
		if err := c.w.Step(&tables.StepRow{Step: c.step, Phase: tables.PhaseGeneration, Tokens: 2}); err != nil {
			t.Fatal(err)
		}
		c.add(tables.PhaseGeneration, 1, reads)
	}
	p, _ := mustBuild(t, c.build)
	if v := p.Sequences(5); len(v.Differences) != 1 || v.Differences[0].Kind != KindMissing ||
		v.Differences[0].Position != 2 {
		t.Errorf("differences %v, want a missing read at position 2", v.Differences)
	}
}

// A server's slots come and go. Steps of one token are not compared with steps of two tokens. A
// step of two tokens that differs is compared with other steps of two. Tokens are counted, not
// steps.
func TestBatchesOfTwoSizes(t *testing.T) {
	plant := func(odd int) (*Pattern, *tables.Meta) {
		c := newCapture(t, moeModel)
		for i, tokens := range []int32{1, 2, 2, 1, 1, 2, 1, 1} {
			reads := moeStep(int64(i), []int32{1, 2}, []int32{0, 3})
			if tokens == 2 {
				reads[0].op, reads[0].bytes = "GET_ROWS", 128
				reads[1].experts, reads[1].bytes = []int32{1, 2, 5}, 3000
				reads = append(reads, planted{tensor: 0, op: "MUL_MAT", bytes: 64}) // only batches have this read
			}
			if i == odd {
				reads[2].op = "MUL_MAT"
			}
			if err := c.w.Step(&tables.StepRow{
				Step: c.step, Phase: tables.PhaseGeneration, Tokens: tokens,
			}); err != nil {
				t.Fatal(err)
			}
			c.add(tables.PhaseGeneration, 1, reads)
		}
		return mustBuild(t, c.build)
	}
	p, meta := plant(-1)
	want := []Batch{{Tokens: 1, Steps: 5, Following: 5, Reads: 3}, {Tokens: 2, Steps: 3, Following: 3, Reads: 4}}
	v := p.Sequences(5)
	if !v.Identical || v.Steps != 8 || v.Tokens != 11 || v.Following != 11 || v.Distinct != 2 ||
		!slices.Equal(v.Batches, want) || len(v.Differences) != 0 {
		t.Errorf("without a difference: %+v", v)
	}
	var text strings.Builder
	s := p.Summarize(meta, 2)
	if err := s.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, say := range []string{
		"8 that generate 11 tokens", "per step",
		"identical in all 11 generated tokens (each step compared with those of its size: 5 of 1 token, 3 of 2 " +
			"tokens)",
	} {
		if !strings.Contains(text.String(), say) {
			t.Errorf("%q is not said:\n%s", say, text.String())
		}
	}
	if s.Steps.Generation != 8 || s.Steps.Tokens != 11 {
		t.Errorf("steps %+v; want s.Steps.Generation = 8, s.Steps.Tokens = 11", s.Steps)
	}
	for odd, batch := range map[int]int{5: 1, 6: 0} {
		p, _ := plant(odd)
		want := slices.Clone(want)
		want[batch].Following--
		v := p.Sequences(5)
		if v.Identical || v.Following != 11-want[batch].Tokens || v.Distinct != 3 || !slices.Equal(v.Batches, want) ||
			len(v.Differences) != 1 || v.Differences[0].Kind != KindOp || v.Differences[0].Position != 2 ||
			!slices.Equal(v.Differences[0].Tokens, []int32{int32(odd)}) {
			t.Errorf("with another op in step %d: %+v", odd, v)
		}
	}
}

// If the oldest segments were deleted, the first token may lack its beginning.
func TestHeadlessCapture(t *testing.T) {
	for _, deleted := range []bool{true, false} {
		c := newCapture(t, denseModel)
		c.add(tables.PhaseGeneration, 1, denseStep(0))
		if deleted {
			if err := c.w.Rotate(c.meta, 1); err != nil {
				t.Fatal(err)
			}
		}
		c.add(tables.PhaseGeneration, 1, denseStep(1)[6:])
		c.add(tables.PhaseGeneration, 1, denseStep(2))
		c.add(tables.PhaseGeneration, 1, denseStep(3))
		p, meta := mustBuild(t, c.build)
		s := p.Summarize(meta, 2)
		if s.Sequence.Identical != deleted || (len(s.CutShort) == 1) != deleted {
			t.Errorf("deleted %v: identical %v, cut short %v", deleted, s.Sequence.Identical, s.CutShort)
		}
		if warned := strings.Contains(strings.Join(s.Warnings, "\n"),
			"oldest 1 segment of the capture (10 rows"); warned != deleted {
			t.Errorf("warnings %q", s.Warnings)
		}
	}
}
