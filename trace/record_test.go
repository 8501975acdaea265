package trace

// These tests feed a recorder with events by a script, and check the accesses and routes that it
// writes.

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/trace/tables"
)

// script feeds a recorder with events, as a capturer would.
type script struct {
	t      *testing.T
	r      *Recorder
	dir    string
	model  *gguf.File
	decode uint32
	graph  uint32
	seq    uint64
	time   int64
}

var fileID = event.FileID{Dev: 8, Ino: 9}

func newScript(t *testing.T, cfg synth.Config) *script {
	t.Helper()
	f, err := gguf.Open(llamatest.Model(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, dir: filepath.Join(t.TempDir(), "capture"), model: f}
	if s.r, err = NewRecorder(RecorderOptions{Dir: s.dir, PID: 1}); err != nil {
		t.Fatal(err)
	}
	s.time = s.r.begun
	return s
}

func (s *script) handle(e event.Event) {
	s.t.Helper()
	if err := s.r.Handle(e); err != nil {
		s.t.Fatal(err)
	}
}

func (s *script) begin(context uint64, tokens int32) {
	s.t.Helper()
	s.decode++
	s.graph++
	s.handle(event.DecodeBegin{Time: s.time, TID: 7, Context: context, Decode: s.decode, Tokens: tokens})
}

func (s *script) end() {
	s.t.Helper()
	s.handle(event.DecodeEnd{Time: s.time, TID: 7, Decode: s.decode})
}

// source returns a tensor of the model as an op sees it.
func (s *script) source(name string) event.Source {
	s.t.Helper()
	t, ok := s.model.Lookup(name)
	if !ok {
		s.t.Fatalf("the model has no %s", name)
	}
	return sourceOf(t)
}

func sourceOf(t *gguf.Tensor) event.Source {
	src := event.Source{
		Name: t.Name, Data: 0x10000 + uint64(t.Offset), InFile: true, File: fileID, Offset: t.Offset,
		Type: t.Type, NE: [4]int64{1, 1, 1, 1},
	}
	copy(src.NE[:], t.Shape)
	src.NB[0] = t.Type.BlockBytes()
	src.NB[1] = src.NB[0] * src.NE[0] / t.Type.BlockElems()
	src.NB[2] = src.NB[1] * src.NE[1]
	src.NB[3] = src.NB[2] * src.NE[2]
	return src
}

func (s *script) op(o event.Op) {
	s.t.Helper()
	s.seq++
	s.time += 1000
	o.Time, o.Duration, o.TID, o.Decode, o.Graph, o.Seq = s.time, 900, 7, s.decode, s.graph, s.seq
	s.handle(&o)
}

func (s *script) embed(ids ...int32) {
	s.t.Helper()
	s.op(event.Op{
		Name: "GET_ROWS", GatherDim: 1, IDs: ids, IDRows: 1,
		Sources: []event.Source{s.source("token_embd.weight")},
	})
}

var tiny = synth.Config{Layers: 1, Embd: 256, FF: 256, Heads: 4, KVHeads: 4, Type: gguf.Q8_0, Seed: 1}
var tinyMoE = synth.Config{
	Layers: 1, Embd: 256, FF: 256, Heads: 4, KVHeads: 4, Experts: 4, Used: 2, Type: gguf.Q8_0,
	Seed: 1,
}

func TestSourceBytesEqualTensorSize(t *testing.T) {
	s := newScript(t, tinyMoE)
	for i := range s.model.Tensors {
		want := &s.model.Tensors[i]
		src := s.source(want.Name)
		if got := src.Bytes(); got != want.Size {
			t.Errorf("%s: %d bytes, the file says %d", want.Name, got, want.Size)
		}
	}
}

// A server decodes two tokens of id 0 before the first prompt of a context, to try something. That is no prompt,
// so what follows is not a generated token yet. Later on the same ids are a prompt.
func TestServersProbeIsWarmup(t *testing.T) {
	s := newScript(t, tiny)
	s.sendFileSeen()
	for _, ids := range [][]int32{s.r.models[0].warmupIDs, {0, 0}, {9}, {5}, {0, 0}} {
		s.begin(1, int32(len(ids)))
		s.embed(ids...)
		s.end()
	}
	meta, c := s.finish()
	var phases []tables.Phase
	for _, step := range stepsOf(t, c) {
		phases = append(phases, step.Phase)
	}
	want := []tables.Phase{
		tables.PhaseWarmup, tables.PhaseWarmup, tables.PhasePrompt, tables.PhaseGeneration, tables.PhasePrompt,
	}
	if !slices.Equal(phases, want) || meta.Tokens != 1 {
		t.Errorf("phases %v and %d tokens, want %v and 1", phases, meta.Tokens, want)
	}
}

func TestRecorderPhasesAndBytes(t *testing.T) {
	s := newScript(t, tiny)
	bos, _ := s.model.Uint("tokenizer.ggml.bos_token_id")
	eos, _ := s.model.Uint("tokenizer.ggml.eos_token_id")
	s.handle(seenAt(0, fileID, s.model.Path))

	// a warm-up, then a prompt of two other tokens that repeat one row, then two generated tokens
	s.begin(1, 2)
	s.embed(int32(bos), int32(eos))
	s.op(event.Op{Name: "MUL_MAT", Sources: []event.Source{s.source("blk.0.attn_q.weight")}})
	s.end()
	s.begin(1, 4)
	s.embed(9, 8, 9, 9)
	s.end()
	s.begin(1, 1)
	s.embed(5)
	s.end()
	s.begin(2, 1) // another context's prompt of one token
	s.embed(6)
	s.end()
	s.begin(1, 1)
	s.embed(0)
	s.op(event.Op{Name: "RMS_NORM+MUL", Sources: []event.Source{s.source("output_norm.weight")}})
	s.end()

	meta, err := s.r.Finish(nil)
	if err != nil {
		t.Fatal(err)
	}
	if meta.Steps != 5 || meta.Tokens != 2 || meta.Rows != 7 {
		t.Errorf("steps %d, tokens %d, rows %d; want meta.Steps = 5, meta.Tokens = 2, meta.Rows = 7", meta.Steps,
			meta.Tokens, meta.Rows)
	}
	c, err := Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := readRows(c)
	if err != nil {
		t.Fatal(err)
	}
	embd, q, norm := s.source("token_embd.weight"), s.source("blk.0.attn_q.weight"), s.source("output_norm.weight")
	row := embd.NB[1]
	want := []struct {
		step, token   int32
		phase         tables.Phase
		op, tensor    string
		offset, bytes int64
		layer         int32
	}{
		{0, -1, tables.PhaseWarmup, "GET_ROWS", "token_embd.weight", embd.Offset, 2 * row, -1},
		{0, -1, tables.PhaseWarmup, "MUL_MAT", "blk.0.attn_q.weight", q.Offset, q.Bytes(), 0},
		{1, -1, tables.PhasePrompt, "GET_ROWS", "token_embd.weight", embd.Offset, 2 * row, -1},
		{2, 0, tables.PhaseGeneration, "GET_ROWS", "token_embd.weight", embd.Offset + 5*row, row, -1},
		{3, -1, tables.PhasePrompt, "GET_ROWS", "token_embd.weight", embd.Offset + 6*row, row, -1},
		{4, 1, tables.PhaseGeneration, "GET_ROWS", "token_embd.weight", embd.Offset, row, -1},
		{4, 1, tables.PhaseGeneration, "RMS_NORM+MUL", "output_norm.weight", norm.Offset, norm.Bytes(), -1},
	}
	if len(rows) != len(want) {
		t.Fatalf("%d rows, want %d", len(rows), len(want))
	}
	for i, w := range want {
		g := rows[i]
		if g.Step != w.step || g.Token != w.token || g.Phase != w.phase || g.Op != w.op ||
			c.Structure[g.Tensor].Name != w.tensor ||
			g.Offset != w.offset || g.Bytes != w.bytes || g.Layer != w.layer || g.Duration != 900 ||
			g.Timestamp != int64(i+1)*1000 {
			t.Errorf("row %d is %+v, want %+v", i, g, w)
		}
	}
}

func TestRecorderRoutes(t *testing.T) {
	s := newScript(t, tinyMoE)
	s.handle(seenAt(0, fileID, s.model.Path))
	gate, up := s.source("blk.0.ffn_gate_exps.weight"), s.source("blk.0.ffn_up_exps.weight")
	prompt := []int32{0, 1, 1, 3, 0, 3} // three tokens, two slots
	s.begin(1, 5)
	for _, src := range []event.Source{gate, up} {
		s.op(event.Op{
			Name: "MUL_MAT_ID", GatherDim: 2, ByExpert: true, IDs: prompt, IDRows: 3,
			Sources: []event.Source{src},
		})
	}
	s.graph++ // the batch's second half
	s.op(event.Op{
		Name: "MUL_MAT_ID", GatherDim: 2, ByExpert: true, IDs: []int32{2, 0, 2, 1}, IDRows: 2,
		Sources: []event.Source{gate},
	})
	s.end()
	if _, err := s.r.Finish(nil); err != nil {
		t.Fatal(err)
	}
	c, err := Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := readRows(c)
	if err != nil {
		t.Fatal(err)
	}
	if rows[0].Bytes != 3*gate.NB[2] || len(rows[0].Experts) != 3 || rows[2].Bytes != 3*gate.NB[2] {
		t.Errorf("bytes %d and %d, experts %v; an expert's slice has %d; want rows[0].Bytes = %v, "+
			"len(rows[0].Experts) = 3, rows[2].Bytes = %v", rows[0].Bytes, rows[2].Bytes,
			rows[0].Experts, gate.NB[2], 3*gate.NB[2], 3*gate.NB[2])
	}
	var got []tables.Route
	for r, err := range c.Routes() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r)
	}
	var want []tables.Route
	for i, e := range append(prompt, 2, 0, 2, 1) {
		want = append(want, tables.Route{Token: -1, Slot: int32(i % 2), Expert: e, Position: int32(i / 2)})
	}
	if len(got) != len(want) {
		t.Fatalf("%d routes, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("route %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}

// The last layers of many models compute only the tokens whose output is wanted.
func TestRecorderRoutesOfWantedOutputs(t *testing.T) {
	cfg := tinyMoE
	cfg.Layers = 2
	s := newScript(t, cfg)
	s.sendFileSeen()
	choose := func(layer, rows int) {
		t.Helper()
		s.op(event.Op{
			Name: "MUL_MAT_ID", GatherDim: 2, ByExpert: true, IDs: slices.Repeat([]int32{3}, rows), IDRows: rows,
			Sources: []event.Source{s.source(fmt.Sprintf("blk.%d.ffn_gate_exps.weight", layer))},
		})
	}
	s.begin(1, 5)
	s.embed(4, 5, 6) // the batch's first part, of which no output is wanted
	choose(0, 3)
	s.graph++
	choose(0, 3) // the same choice, in another graph of this part
	s.graph++
	s.embed(7, 8)
	choose(0, 2)
	s.graph++ // the same part
	choose(1, 1)
	s.end()
	s.handle(event.DecodeBegin{
		Time: s.time, TID: 7, Context: 1, Decode: s.decode + 1, Tokens: 4, Sequences: []int32{0, 1},
	})
	s.decode++
	s.embed(1, 2, 3, 4)
	choose(0, 4)
	choose(1, 2) // the last of each sequence, wherever it is
	s.end()
	s.handle(event.DecodeBegin{
		Time: s.time, TID: 7, Context: 1, Decode: s.decode + 1, Tokens: 4, Sequences: []int32{0, 1},
	})
	s.decode++
	s.embed(1, 2, 3, 4)
	choose(0, 4)
	choose(1, 1) // of one of them
	s.end()
	_, c := s.finish()
	got := map[string][]int32{}
	for r, err := range c.Routes() {
		check(t, err)
		place := fmt.Sprintf("step %d layer %d", r.Step, r.Layer)
		got[place] = append(got[place], r.Position)
	}
	const unknown = tables.NoPosition
	want := map[string][]int32{
		"step 0 layer 0": {0, 1, 2, 3, 4}, "step 0 layer 1": {4},
		"step 1 layer 0": {0, 1, 2, 3}, "step 1 layer 1": {unknown, unknown},
		"step 2 layer 0": {0, 1, 2, 3}, "step 2 layer 1": {unknown},
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("positions are %v, want %v", got, want)
	}
}

// Ids are numbers of the tensor's slices. In a graph that is reported before it runs they are not
// computed yet, and may be anything. Negative ids gather nothing.
func TestRecorderChecksIDs(t *testing.T) {
	experts := func(s *script, duration int64, ids ...int32) error {
		s.seq++
		return s.r.Handle(&event.Op{
			Name: "MUL_MAT_ID", GatherDim: 2, ByExpert: true, IDs: ids, IDRows: 1, Duration: duration, TID: 7,
			Decode: s.decode, Graph: s.graph, Seq: s.seq,
			Sources: []event.Source{s.source("blk.0.ffn_up_exps.weight")},
		})
	}
	begin := func() *script {
		s := newScript(t, tinyMoE)
		s.handle(seenAt(0, fileID, s.model.Path))
		s.begin(1, 1)
		return s
	}
	for _, ids := range [][]int32{{4, 1}, {0, math.MaxInt32}} {
		if err := experts(begin(), 5, ids...); !errors.Is(err, event.ErrLayout) ||
			!strings.Contains(err.Error(), "which has 4") {
			t.Errorf("experts %v: %v; want %v, text with \"which has 4\"", ids, err, event.ErrLayout)
		}
	}
	s := begin()
	s.embed(3, -1)
	if err := experts(s, 5, 2, -1, math.MinInt32); err != nil {
		t.Fatal(err)
	}
	if err := experts(s, -1, 1<<30, 2); err != nil { // of a graph that has not begun to run
		t.Fatal(err)
	}
	s.end()
	s.r.now = func() time.Time { return time.Now().Add(flushInterval) }
	if err := s.r.Flush(); err != nil { // must not count it, and the end once more
		t.Fatal(err)
	}
	meta, err := s.r.Finish(nil)
	if err != nil || meta.Counters.Clipped != 1 {
		t.Errorf("%v, counters %+v; want 1", err, meta.Counters)
	}
	c, err := Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	up, _ := s.model.Lookup("blk.0.ffn_up_exps.weight")
	var bytes []int64
	for a, err := range c.Accesses() {
		if err != nil {
			t.Fatal(err)
		}
		bytes = append(bytes, a.Bytes)
	}
	if want := []int64{272, up.ExpertStride(), 2 * up.ExpertStride()}; !slices.Equal(bytes, want) {
		t.Errorf("bytes %v, want %v", bytes, want)
	}
	for r, err := range c.Routes() {
		if err != nil || r.Expert != 2 {
			t.Errorf("%+v, %v; want 2", r, err)
		}
	}
	for step, err := range c.Steps() {
		if err != nil || !slices.Equal(step.TokenIDs, []int32{3}) {
			t.Errorf("tokens %v, %v; want %v", step.TokenIDs, err, []int32{3})
		}
	}
}

// Memory stays bounded if decodes never end, in ever more threads, with ever more tokens.
func TestRecorderIsBounded(t *testing.T) {
	s := newScript(t, tiny)
	s.handle(seenAt(0, fileID, s.model.Path))
	embed := event.Op{
		Name: "GET_ROWS", GatherDim: 1, IDs: make([]int32, 1<<16), IDRows: 1,
		Sources: []event.Source{s.source("token_embd.weight")},
	}
	for i := range 2 * maxSteps {
		tid := int32(100 + i)
		s.handle(event.DecodeBegin{TID: tid, Context: 1, Decode: uint32(i + 1), Tokens: math.MinInt32})
		o := embed
		o.TID, o.Decode = tid, uint32(i+1)
		if i%128 == 0 {
			s.handle(&o)
		}
		if s.r.steps.count() > maxSteps || s.r.steps.tokenIDs > maxTokenIDs {
			t.Fatalf("%d steps are open, with %d tokens; want s.r.steps.count() at most %v, s.r.steps.tokenIDs at "+
				"most %v", s.r.steps.count(), s.r.steps.tokenIDs, maxSteps, maxTokenIDs)
		}
	}
	if _, err := s.r.Finish(nil); err != nil || s.r.steps.tokenIDs != 0 {
		t.Errorf("%d tokens, %v; want 0", s.r.steps.tokenIDs, err)
	}
	c, err := Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for step, err := range c.Steps() {
		if err != nil || step.Tokens != -1 {
			t.Fatalf("%+v, %v; want %v", step, err, -1)
		}
		n++
	}
	if n != 2*maxSteps {
		t.Errorf("%d steps; want %v", n, 2*maxSteps)
	}
}

func TestRecorderRefuses(t *testing.T) {
	t.Run("wrong layout", func(t *testing.T) {
		for name, change := range map[string]func(*event.Source){
			"type":         func(s *event.Source) { s.Type = gguf.F16 },
			"name":         func(s *event.Source) { s.Name = "\x01\xff" },
			"no name":      func(s *event.Source) { s.Name = "" },
			"past tensors": func(s *event.Source) { s.Offset = 1 << 40 },
			"in metadata":  func(s *event.Source) { s.Offset = 100 },
			"other's name": func(s *event.Source) { s.Name = "token_embd.weight" },
			"too long":     func(s *event.Source) { s.NE[1] *= 1 << 40 },
			"outside":      func(s *event.Source) { s.InFile, s.NE[1] = false, 1<<60 },
		} {
			s := newScript(t, tiny)
			s.handle(seenAt(0, fileID, s.model.Path))
			s.begin(1, 1)
			src := s.source("output.weight")
			change(&src)
			err := s.r.Handle(&event.Op{Name: "MUL_MAT", TID: 7, Decode: s.decode, Sources: []event.Source{src}})
			if !errors.Is(err, event.ErrLayout) {
				t.Errorf("%s: %v; want %v", name, err, event.ErrLayout)
			}
		}
	})
	t.Run("copied weights", func(t *testing.T) {
		s := newScript(t, tiny)
		s.handle(seenAt(0, fileID, s.model.Path))
		s.begin(1, 1)
		s.embed(3)
		src := s.source("output.weight")
		src.InFile = false
		s.op(event.Op{Name: "MUL_MAT", Sources: []event.Source{src}})
		s.end()
		meta, err := s.r.Finish(nil)
		if !errors.Is(err, event.ErrOutside) || !strings.Contains(err.Error(), "--no-repack") {
			t.Errorf("error: %v; want %v, text with \"--no-repack\"", err, event.ErrOutside)
		}
		if meta.Outside.Tensors != 1 || meta.Outside.Bytes != src.Bytes() || meta.Rows != 1 {
			t.Errorf("meta: %+v; want meta.Outside.Tensors = 1, meta.Outside.Bytes = %v, meta.Rows = 1", meta,
				src.Bytes())
		}
	})
	t.Run("nothing decoded", func(t *testing.T) {
		s := newScript(t, tiny)
		if _, err := s.r.Finish(nil); !errors.Is(err, event.ErrNoDecode) {
			t.Errorf("error: %v; want %v", err, event.ErrNoDecode)
		}
	})
	t.Run("middle of a decode", func(t *testing.T) {
		s := newScript(t, tiny)
		s.handle(seenAt(0, fileID, s.model.Path))
		s.embed(3) // no begin was seen
		s.begin(1, 1)
		s.embed(4)
		s.end()
		s.embed(5)
		meta, err := s.r.Finish(nil)
		if err != nil || meta.Rows != 1 {
			t.Errorf("%d rows, %v; want 1", meta.Rows, err)
		}
	})
}

// With a memo an op gets the same rows as without: the first time, again, in another recorder, and
// after another file was added.
func TestMemo(t *testing.T) {
	memos := map[string]*event.Memo{}
	var captures [][]tables.Access
	for _, with := range []bool{false, true, true} {
		s := newScript(t, tinyMoE)
		s.sendFileSeen()
		up := s.source("blk.0.ffn_up_exps.weight")
		outside := s.source("output.weight")
		outside.InFile = false
		elsewhere := s.source("blk.0.attn_q.weight")
		elsewhere.File.Ino++
		ops := []event.Op{
			{Name: "GET_ROWS", GatherDim: 1, IDs: []int32{3, 4, 3}, IDRows: 3,
				Sources: []event.Source{s.source(event.TokenEmbeddings)}},
			{Name: "MUL_MAT", Sources: []event.Source{s.source("blk.0.attn_q.weight"), outside}},
			{Name: "MUL_MAT_ID", GatherDim: 2, ByExpert: true, IDs: []int32{1, 0, 1, 3, 2, 2}, IDRows: 3,
				Sources: []event.Source{up}},
			{Name: "MUL", Sources: []event.Source{elsewhere}},
		}
		for token := range 4 {
			if token == 2 { // the same model by another name: its rows count from now on
				s.handle(seenAt(0, elsewhere.File, s.model.Path))
			}
			s.begin(1, 3)
			for i, o := range ops {
				if with {
					if memos[o.Name] == nil {
						memos[o.Name] = &event.Memo{}
					}
					o.Memo = memos[o.Name]
				}
				o.IDs = append([]int32(nil), ops[i].IDs...)
				s.op(o)
			}
			s.end()
		}
		meta, err := s.r.Finish(nil)
		if !errors.Is(err, event.ErrOutside) || meta.Outside.Tensors != 1 {
			t.Fatalf("%d tensors outside, %v; want %v, meta.Outside.Tensors = 1", meta.Outside.Tensors, err,
				event.ErrOutside)
		}
		c := open(t, s.dir)
		rows, err := readRows(c)
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows { // recorders begin at different times
			rows[i].Timestamp -= rows[0].Timestamp
		}
		captures = append(captures, rows)
	}
	if len(captures[0]) != 4*3+2 {
		t.Errorf("%d rows; want %v", len(captures[0]), 4*3+2)
	}
	for _, c := range captures[1:] {
		if !reflect.DeepEqual(c, captures[0]) {
			t.Errorf("with a memo got\n%+v\nwant, as without,\n%+v", c, captures[0])
		}
	}
}

// seenAt returns the event that a process maps the file at path. If there is no such file, the
// event is what a capturer sends that did not find the file.
func seenAt(pid int32, file event.FileID, path string) event.FileSeen {
	id, _ := proc.FileOf(path)
	return event.FileSeen{PID: pid, File: file, Path: path, ID: id}
}
