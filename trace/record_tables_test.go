package trace

// These tests check the tables that a recorder writes besides plain accesses: steps, buffers,
// hidden inputs, page-ins, segments, several models.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
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
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/host"
	"tensorcast/trace/tables"
)

// newScriptWith is newScript with other options.
func newScriptWith(t *testing.T, cfg synth.Config, change func(*RecorderOptions)) *script {
	t.Helper()
	s := newScript(t, cfg)
	opts := s.r.opts
	change(&opts)
	var err error
	if s.r, err = NewRecorder(opts); err != nil {
		t.Fatal(err)
	}
	s.time = s.r.begun
	return s
}

// finish ends the capture and opens it.
func (s *script) finish() (*tables.Meta, *Capture) {
	s.t.Helper()
	meta, err := s.r.Finish(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return meta, open(s.t, s.dir)
}

func (s *script) sendFileSeen() {
	s.t.Helper()
	s.handle(seenAt(0, fileID, s.model.Path))
}

func TestRecorderSteps(t *testing.T) {
	s := newScript(t, tiny)
	s.sendFileSeen()
	at := func(ns int64) int64 { s.time = s.r.begun + ns; return s.time }
	begin := func(context uint64, tokens int32, sequences ...int32) {
		s.decode++
		s.handle(event.DecodeBegin{
			Time: s.time, PID: 3, TID: 7, Context: context, Decode: s.decode, Tokens: tokens,
			Sequences: sequences,
		})
	}
	at(100)
	begin(0xa, 3, 0) // a prompt, in two graphs
	s.embed(4, 5)
	s.graph++
	s.embed(4)
	at(5000)
	s.end()

	begin(0xa, 3, 0, 1, 2) // three slots generate
	s.embed(7, 7, 8)
	s.end()

	begin(0xb, 3, 0, 1, 2) // another context's first batch is a prompt, whatever it looks like
	s.end()
	begin(0xb, 3, 0, 2) // a prompt that goes on
	s.end()

	begin(0xa, 1, 1)
	// its ids were lost
	s.op(event.Op{Name: "GET_ROWS", GatherDim: 1, Sources: []event.Source{s.source("token_embd.weight")}})
	s.embed(3)
	s.end()

	begin(0xa, 1, 1) // not all of its ops were seen
	s.handle(event.DecodeEnd{Time: s.time, TID: 7, Decode: s.decode, Partial: true})

	s.decode++
	s.handle(event.DecodeBegin{Time: s.time, PID: 3, TID: 7, Context: 0xa, Decode: s.decode, Tokens: 1, Derived: true})
	// The decode's end comes when another one has begun. The capture ends within that.
	begin(0xb, 1)
	s.handle(event.DecodeEnd{Time: s.time, TID: 7, Decode: s.decode - 1})

	meta, c := s.finish()
	if meta.Steps != 8 || meta.Tokens != 3+1+1+1+1 || meta.Contexts != 2 {
		t.Errorf("%d steps, %d tokens, %d contexts; want 8, 7, 2", meta.Steps, meta.Tokens, meta.Contexts)
	}
	steps := stepsOf(t, c)
	for i := range steps {
		if steps[i].PID != 3 || steps[i].Thread != 7 || int(steps[i].Step) != i {
			t.Errorf("step %+v; want steps[i].PID = 3, steps[i].Thread = 7, int(steps[i].Step) = %v", steps[i], i)
		}
		steps[i].PID, steps[i].Thread, steps[i].Step = 0, 0, 0
		if i > 0 {
			steps[i].Begin = 0
			steps[i].End = min(steps[i].End, 0)
		}
	}
	want := []tables.StepRow{
		{Context: 0, Phase: tables.PhasePrompt, Tokens: 3, Token: -1, TokenIDs: []int32{4, 5, 4},
			Sequences: []int32{0}, Begin: 100, End: 5000},
		{Context: 0, Phase: tables.PhaseGeneration, Tokens: 3, Token: 0, TokenIDs: []int32{7, 7, 8},
			Sequences: []int32{0, 1, 2}},
		{Context: 1, Phase: tables.PhasePrompt, Tokens: 3, Token: -1, Sequences: []int32{0, 1, 2}},
		{Context: 1, Phase: tables.PhasePrompt, Tokens: 3, Token: -1, Sequences: []int32{0, 2}},
		{Context: 0, Phase: tables.PhaseGeneration, Tokens: 1, Token: 1, Sequences: []int32{1}},
		{Context: 0, Phase: tables.PhaseGeneration, Tokens: 1, Token: 2, Sequences: []int32{1},
			End: tables.NotObserved},
		{Context: 0, Phase: tables.PhaseGeneration, Tokens: 1, Token: 3, End: tables.NotObserved, Derived: true},
		{Context: 1, Phase: tables.PhaseGeneration, Tokens: 1, Token: 0, End: tables.NotObserved},
	}
	if !reflect.DeepEqual(steps, want) {
		t.Errorf("steps\n%+v\nwant\n%+v", steps, want)
	}
	rows, err := readRows(c)
	check(t, err)
	var got [][2]int32
	for _, a := range rows {
		got = append(got, [2]int32{a.Context, a.Token})
	}
	if want := [][2]int32{{0, -1}, {0, -1}, {0, 0}, {0, 1}, {0, 1}}; !slices.Equal(got, want) {
		t.Errorf("context and token of the accesses: %v, want %v", got, want)
	}
}

// Steps that end before a weight is read are in the table, too.
func TestRecorderEarlySteps(t *testing.T) {
	s := newScript(t, tiny)
	s.begin(1, 4)
	s.end()
	s.begin(1, 1)
	s.sendFileSeen()
	s.embed(3)
	s.end()
	_, c := s.finish()
	if steps := stepsOf(t, c); len(steps) != 2 || steps[0].Tokens != 4 || steps[1].Phase != tables.PhaseGeneration {
		t.Errorf("steps %+v; want len(steps) = 2, steps[0].Tokens = 4, steps[1].Phase = %v", steps,
			tables.PhaseGeneration)
	}
}

func TestRecorderWithoutTimesAndIDs(t *testing.T) {
	s := newScriptWith(t, tinyMoE, func(o *RecorderOptions) { o.Detail = tables.DetailGraph })
	s.sendFileSeen()
	gate, embd, norm := s.source("blk.0.ffn_gate_exps.weight"), s.source("token_embd.weight"),
		s.source("output_norm.weight")
	op := func(o event.Op) {
		o.Time, o.Duration, o.Stall, o.TID, o.Decode = s.time, tables.NotObserved, tables.NotObserved, 7, s.decode
		s.handle(&o)
	}
	for _, tokens := range []int32{4, 1} {
		s.begin(1, tokens)
		op(event.Op{Name: "GET_ROWS", GatherDim: 1, Sources: []event.Source{embd}})
		op(event.Op{Name: "MUL_MAT_ID", GatherDim: 2, ByExpert: true, Sources: []event.Source{gate}})
		op(event.Op{Name: "RMS_NORM+MUL", Sources: []event.Source{norm}})
		s.end()
	}
	s.begin(1, 1)
	// their number is known
	op(event.Op{Name: "MUL_MAT_ID", GatherDim: 2, ByExpert: true, Selects: 3, Sources: []event.Source{gate}})
	s.end()
	s.decode++
	s.handle(event.DecodeBegin{Time: s.time, TID: 7, Context: 1, Decode: s.decode, Tokens: 1, Warmup: true})
	op(event.Op{Name: "MUL_MAT_ID", GatherDim: 2, ByExpert: true, Sources: []event.Source{gate}})
	s.end()
	meta, c := s.finish()
	if meta.Detail != tables.DetailGraph {
		t.Errorf("detail %q; want %v", meta.Detail, tables.DetailGraph)
	}
	rows, err := readRows(c)
	check(t, err)
	// Four tokens use at most the four experts that there are, one uses two. A warm-up uses all of them.
	for i, want := range []int64{
		4 * embd.NB[1], 4 * gate.NB[2], norm.Bytes(), embd.NB[1], 2 * gate.NB[2], norm.Bytes(),
		3 * gate.NB[2], 4 * gate.NB[2],
	} {
		if a := rows[i]; a.Bytes != want || a.Duration != tables.NotObserved || a.Stall != tables.NotObserved ||
			a.Experts != nil {
			t.Errorf("row %d is %+v, want %d bytes, no times, no experts", i, a, want)
		}
	}
	if steps := stepsOf(t, c); steps[0].TokenIDs != nil {
		t.Errorf("token ids %v, want none", steps[0].TokenIDs)
	}
}

func TestRecorderBuffers(t *testing.T) {
	s := newScript(t, tiny)
	s.sendFileSeen()
	s.begin(1, 1)
	s.embed(1)
	buffer := func(name, root string, write bool) event.Buffer {
		return event.Buffer{
			Name: name, Root: root, Data: 64, Type: gguf.F16, NE: [4]int64{10, 4, 1, 1},
			NB: [4]int64{2, 32, 128, 128}, Write: write,
		}
	}
	s.op(event.Op{
		Name: "MUL_MAT",
		Buffers: []event.Buffer{buffer("k", "cache_k_l0", false), buffer("cache_r_l3 (view)", "", true),
			buffer("inp_tokens", "", false), buffer("leaf_4", "", false), buffer("attn_inp_kq_mask", "", false),
			buffer("Qcur-0", "node_7", true)},
	})
	s.end()
	_, c := s.finish()
	var kinds []string
	for _, b := range buffersOf(t, c) {
		kinds = append(kinds, fmt.Sprint(b.Buffer, " ", b.Root, " ", b.Kind, " ", b.Write))
		// ggml_nbytes of 10 of 16 elements in each of 4 rows
		if b.Bytes != 2+9*2+3*32 || b.Seq != 2 || b.Step != 0 || b.Op != "MUL_MAT" || b.DataPtr != 64 ||
			b.Timestamp != 2000 {
			t.Errorf("row %+v, want op 2, a MUL_MAT of step 0 at 2000 ns, with %d bytes at 64", b, 2+9*2+3*32)
		}
	}
	want := []string{
		"k cache_k_l0 kv false", "cache_r_l3 (view)  kv true", "inp_tokens  input false", "leaf_4  input false",
		"attn_inp_kq_mask  input false", "Qcur-0 node_7 activation true",
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("got %q, want %q", kinds, want)
	}
	s = newScript(t, tiny)
	s.sendFileSeen()
	s.begin(1, 1)
	s.embed(1)
	s.end()
	s.finish()
	if _, err := os.Stat(filepath.Join(s.dir, BufferFile)); err == nil {
		t.Error("there is a buffers table although nothing was observed for it")
	}
}

// A router's input has the same position as its choice in the route table. Inputs of the warm-up
// and of another model are left out.
func TestRecorderHidden(t *testing.T) {
	s := newScript(t, tinyMoE)
	s.sendFileSeen()
	input := func(layer int32, point event.Point, row, rows, n int) {
		t.Helper()
		s.handle(event.RouterInput{
			Time: s.time, TID: 7, Decode: s.decode, Graph: s.graph, Layer: layer, Point: point,
			Row: row, Rows: rows, Values: slices.Repeat([]float32{float32(row) + 0.5}, n),
		})
	}
	gate := s.source("blk.0.ffn_gate_exps.weight")
	choose := func(rows int) {
		t.Helper()
		s.op(event.Op{
			Name: "MUL_MAT_ID", GatherDim: 2, ByExpert: true,
			IDs: slices.Repeat([]int32{3, 1}, rows), IDRows: rows, Sources: []event.Source{gate},
		})
	}
	input(0, event.PointRouter, 0, 1, 4) // before the first whole decode
	s.handle(event.DecodeBegin{Time: s.time, TID: 7, Context: 1, Decode: 1, Tokens: 2, Warmup: true})
	s.decode, s.graph = 1, 1
	input(0, event.PointRouter, 0, 2, 4)
	s.end()
	s.begin(1, 5)
	s.embed(4, 5, 6)
	for row := range 3 {
		input(0, event.PointAttention, row, 3, 4)
	}
	input(0, event.PointRouter, 2, 3, 4)
	choose(3)
	s.graph++ // the batch's second half
	s.embed(7, 8)
	input(0, event.PointRouter, 1, 2, 4)
	choose(2)
	input(0, event.PointRouter, 2, 2, 4)  // there is no such row
	input(0, event.PointRouter, 0, 2, 5)  // another model's
	input(-1, event.PointRouter, 0, 2, 4) // no layer
	s.end()
	s.begin(1, 1)
	s.embed(9)
	input(0, event.PointRouter, 0, 1, 4)
	choose(1)
	s.end()
	meta, c := s.finish()
	var want []tables.HiddenRow
	for _, r := range []struct {
		step, token, position int32
		point                 event.Point
		value                 float32
	}{
		{1, -1, 0, event.PointAttention, 0.5}, {1, -1, 1, event.PointAttention, 1.5},
		{1, -1, 2, event.PointAttention, 2.5}, {1, -1, 2, event.PointRouter, 2.5},
		{1, -1, 4, event.PointRouter, 1.5}, {2, 0, 0, event.PointRouter, 0.5},
	} {
		want = append(want, tables.HiddenRow{
			Step: r.step, Token: r.token, Point: r.point, Position: r.position,
			Values: slices.Repeat([]float32{r.value}, 4),
		})
	}
	if got := hiddenOf(t, c); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if h := meta.Hidden; h == nil || *h != (tables.Hidden{Values: 4, Rows: 6, LeftOut: 5}) {
		t.Errorf("description of the hidden table is %+v, want 6 rows of 4 values, and 5 left out", meta.Hidden)
	}
	chosen := map[int32]bool{}
	for r, err := range c.Routes() {
		check(t, err)
		chosen[r.Position] = chosen[r.Position] || r.Step == 1
	}
	for _, r := range want {
		if r.Step == 1 && !chosen[r.Position] {
			t.Errorf("row %+v, want one whose position is in the route table", r)
		}
	}
}

// The stall of an op is in only one of its rows: the one that reads most.
func TestRecorderStall(t *testing.T) {
	s := newScript(t, tiny)
	s.sendFileSeen()
	s.begin(1, 1)
	s.op(event.Op{
		Name: "MUL_MAT+ADD", Stall: 500,
		Sources: []event.Source{s.source("output_norm.weight"), s.source("output.weight"),
			s.source("blk.0.attn_norm.weight")},
	})
	s.op(event.Op{Name: "MUL_MAT", Stall: 30, Sources: []event.Source{s.source("output.weight")}})
	s.op(event.Op{Name: "MUL_MAT", Sources: []event.Source{s.source("output.weight")}})
	s.end()
	meta, c := s.finish()
	rows, err := readRows(c)
	check(t, err)
	var got []int64
	for _, a := range rows {
		got = append(got, a.Stall)
	}
	if want := []int64{0, 500, 0, 30, 0}; !slices.Equal(got, want) {
		t.Errorf("stalls %v, want %v", got, want)
	}
	if r := meta.Rereads; r == nil || r.StallNS != 530 || len(r.Tensors) != 1 ||
		r.Tensors[0].Name != "output.weight" || r.Tensors[0].StallNS != 530 {
		t.Errorf("rereads %+v, want a stall of 530 ns, all of output.weight", meta.Rereads)
	}
}

// Two models have the same file name, and one of them appears again under another name.
func TestRecorderTwoModels(t *testing.T) {
	s := newScript(t, tiny)
	draft, err := os.ReadFile(llamatest.Model(t, tinyMoE))
	check(t, err)
	path := filepath.Join(t.TempDir(), filepath.Base(s.model.Path))
	check(t, os.WriteFile(path, draft, 0o644))
	link := filepath.Join(t.TempDir(), "another-name.gguf")
	check(t, os.Link(path, link))
	second, err := gguf.Open(path)
	check(t, err)
	// on some file systems a file has two ids
	draftID, linkID := event.FileID{Dev: 8, Ino: 10}, event.FileID{Dev: 9, Ino: 10}

	s.sendFileSeen()
	s.begin(1, 4)
	s.embed(1, 2)
	s.end()
	main := s.model
	s.model = second
	s.handle(seenAt(0, draftID, path))
	s.handle(seenAt(0, linkID, link))
	s.begin(2, 4)
	for _, id := range []event.FileID{draftID, linkID} {
		src := s.source("blk.0.ffn_norm.weight")
		src.File = id
		s.op(event.Op{Name: "MUL", Sources: []event.Source{src}})
	}
	s.end()
	s.model = main
	s.begin(1, 1)
	s.op(event.Op{Name: "MUL", Sources: []event.Source{s.source("blk.0.ffn_norm.weight")}})
	s.end()

	meta, c := s.finish()
	if len(meta.Models) != 2 || meta.Models[0].Path != main.Path || meta.Models[1].Path != path ||
		meta.Models[0].Fingerprint == meta.Models[1].Fingerprint ||
		meta.Models[1].Tensors != len(second.Tensors) || meta.Models[1].Bytes != second.Size {
		t.Errorf("models %+v, want those of %s and %s", meta.Models, main.Path, path)
	}
	for i, f := range []*gguf.File{main, second} {
		want := []tables.ModelFile{
			{Name: filepath.Base(f.Path), Bytes: f.Size, Fingerprint: meta.Models[i].Fingerprint},
		}
		if got := c.Meta.Models[i].Files; !reflect.DeepEqual(got, want) {
			t.Errorf("files %+v, want %+v", got, want)
		}
	}
	if len(c.Structure) != len(main.Tensors)+len(second.Tensors) {
		t.Errorf("%d rows of structure, want %d and %d", len(c.Structure), len(main.Tensors), len(second.Tensors))
	}
	rows, err := readRows(c)
	check(t, err)
	var got []string
	for _, a := range rows {
		row := c.Structure[a.Tensor]
		got = append(got, fmt.Sprint(row.Model, " ", row.Name, " ", row.Offset == a.Offset))
	}
	want := []string{
		"0 token_embd.weight true", "1 blk.0.ffn_norm.weight true", "1 blk.0.ffn_norm.weight true",
		"0 blk.0.ffn_norm.weight true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("accesses of %v, want %v", got, want)
	}
}

// A download cache names the parts of a split model by their content. They are seen one by one, and
// become files of one model.
func TestRecorderPartsByContent(t *testing.T) {
	s := newScript(t, tiny)
	dir := t.TempDir()
	var want []tables.ModelFile
	for no, name := range []string{"sha256-77", "sha256-33"} {
		m := gguftest.Model{
			KVs: []gguftest.KV{
				{Key: "split.no", Value: uint16(no)}, {Key: "split.count", Value: uint16(2)},
				{Key: "split.tensors.count", Value: int32(2)},
			},
			Tensors: []gguftest.Tensor{
				{Name: fmt.Sprintf("blk.%d.attn_norm.weight", no), Type: gguf.F32, Shape: []int64{8}},
			},
		}
		path := filepath.Join(dir, name)
		m.Write(t, path)
		f, err := gguf.Open(path)
		check(t, err)
		fingerprint, err := f.Fingerprint()
		check(t, err)
		want = append(want, tables.ModelFile{Name: name, Bytes: f.Size, Fingerprint: fingerprint})
		s.handle(seenAt(0, event.FileID{Dev: 1, Ino: uint64(no)}, path))
	}
	s.begin(1, 1)
	s.end()
	meta, _ := s.finish()
	if len(meta.Models) != 1 || !reflect.DeepEqual(meta.Models[0].Files, want) ||
		meta.Models[0].Fingerprint != want[0].Fingerprint || meta.Models[0].Bytes != want[0].Bytes+want[1].Bytes {
		t.Errorf("models %+v, want one of the files %+v", meta.Models, want)
	}
}

// A target that maps ever more models does not fill the memory: beyond a limit, further models are
// left out, like other files.
func TestRecorderModelsAreBounded(t *testing.T) {
	s := newScript(t, tiny)
	dir := t.TempDir()
	s.sendFileSeen()
	for no := range maxRecorded + 3 {
		m := gguftest.Model{
			Tensors: []gguftest.Tensor{{Name: "blk.0.attn_norm.weight", Type: gguf.F32, Shape: []int64{int64(8 + no)}}},
		}
		path := filepath.Join(dir, fmt.Sprint(no))
		m.Write(t, path)
		s.handle(seenAt(0, event.FileID{Dev: 1, Ino: uint64(no)}, path))
	}
	s.begin(1, 1)
	s.end()
	if meta, _ := s.finish(); len(meta.Models) != maxRecorded {
		t.Errorf("%d models; want %v", len(meta.Models), maxRecorded)
	}
}

func TestRecorderLayersSeen(t *testing.T) {
	four := tiny
	four.Layers = 4
	s := newScript(t, four)
	s.sendFileSeen()
	s.begin(1, 1)
	for _, layer := range []int{0, 1, 3} {
		s.op(event.Op{Name: "MUL", Sources: []event.Source{s.source(fmt.Sprintf("blk.%d.ffn_norm.weight", layer))}})
	}
	check(t, s.r.updateMeta())
	if m := s.r.meta.Models[0]; m.LayersElsewhere != "" {
		t.Errorf("within the first step, layers %s are said to be elsewhere; want \"\"", m.LayersElsewhere)
	}
	s.end()
	meta, _ := s.finish()
	if m := meta.Models[0]; m.Layers != 4 || m.LayersSeen != "0-1,3" || m.LayersElsewhere != "2" {
		t.Errorf("model %+v; want m.Layers = 4, m.LayersSeen = \"0-1,3\", m.LayersElsewhere = \"2\"", m)
	}
	want := []string{"layers 0-1,3 of 4 were computed on the CPU; 2 elsewhere"}
	if got := meta.LayersText(); !slices.Equal(got, want) {
		t.Errorf("text %q, want %q", got, want)
	}
	h := host.Read()
	if want := (tables.Host{
		Kernel: h.Kernel, Arch: h.Arch, CPU: h.CPU, CPUs: h.CPUs, MemoryBytes: h.Memory,
		PageSize: os.Getpagesize(),
	}); meta.Host != want || h.Kernel == "" {
		t.Errorf("host %+v, want %+v", meta.Host, want)
	}
}

// Layers at the end that only serve drafts are not said to be elsewhere: a decode does not compute them.
func TestRecorderLayersOfDrafts(t *testing.T) {
	m := gguftest.Model{
		KVs: []gguftest.KV{
			{Key: "general.architecture", Value: "glm4moe"}, {Key: "glm4moe.nextn_predict_layers", Value: uint32(2)},
		},
	}
	for layer := range 5 {
		m.Tensors = append(m.Tensors,
			gguftest.Tensor{Name: fmt.Sprintf("blk.%d.ffn_norm.weight", layer), Type: gguf.F32, Shape: []int64{8}})
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	m.Write(t, path)
	s := newScript(t, tiny)
	var err error
	s.model, err = gguf.Open(path)
	check(t, err)
	s.sendFileSeen()
	s.begin(1, 1)
	s.op(event.Op{Name: "MUL", Sources: []event.Source{s.source("blk.0.ffn_norm.weight")}})
	s.end()
	meta, _ := s.finish()
	if m := meta.Models[0]; m.Layers != 5 || m.LayersSeen != "0" || m.LayersElsewhere != "1-2" {
		t.Errorf("model %+v; want m.Layers = 5, m.LayersSeen = \"0\", m.LayersElsewhere = \"1-2\"", m)
	}
}

// Nothing grows without bound: contexts, threads, decodes, tensors outside the mapping,
// dictionaries.
func TestRecorderMemoryIsBounded(t *testing.T) {
	s := newScript(t, tiny)
	s.sendFileSeen()
	out := s.source("output.weight")
	for i := range 3 * maxContexts {
		s.decode++
		tid := int32(i)
		s.handle(event.DecodeBegin{Time: s.time, TID: tid, Context: uint64(i), Decode: s.decode, Tokens: 1})
		for j := range 10 {
			src := out
			src.Name, src.InFile = fmt.Sprint("copy-", 10*i+j), false
			s.handle(&event.Op{TID: tid, Decode: s.decode, Sources: []event.Source{src}})
		}
		s.handle(event.DecodeEnd{TID: tid, Decode: s.decode})
	}
	if n := len(s.r.contexts.known); n > maxContexts {
		t.Errorf("%d contexts are remembered; want at most %v", n, maxContexts)
	}
	if n := len(s.r.outside); n > maxOutside {
		t.Errorf("%d tensors outside are remembered; want at most %v", n, maxOutside)
	}
	if s.r.steps.count() != 0 || len(s.r.early) != 0 || len(s.r.held) != 0 {
		t.Errorf("%d steps, %d early ones, %d page-ins are held; want s.r.steps.count() = 0, len(s.r.early) = 0, "+
			"len(s.r.held) = 0", s.r.steps.count(), len(s.r.early), len(s.r.held))
	}
	if s.r.meta.Contexts != 3*maxContexts {
		t.Errorf("%d contexts were counted; want %v", s.r.meta.Contexts, 3*maxContexts)
	}
}

func TestRecorderRotates(t *testing.T) {
	var now time.Time
	for _, tc := range []struct {
		name   string
		change func(*RecorderOptions)
		busy   bool // another context is decoding all the time
		want   tables.Segments
	}{
		{"never", func(o *RecorderOptions) {}, false, tables.Segments{}},
		{"by size", func(o *RecorderOptions) { o.RotateBytes = 1 }, false, tables.Segments{Last: 6}},
		{"by size, between steps if possible", func(o *RecorderOptions) { o.RotateBytes = 1 << 40 }, true,
			tables.Segments{}},
		{"by time", func(o *RecorderOptions) { o.RotateEvery = 2 * time.Minute }, false, tables.Segments{Last: 3}},
		{"by time, never between steps", func(o *RecorderOptions) { o.RotateEvery = 2 * time.Minute }, true,
			tables.Segments{Last: 1}},
		{"two are kept", func(o *RecorderOptions) { o.RotateEvery, o.RotateKeep = time.Minute, 2 }, false,
			tables.Segments{First: 5, Last: 6, Deleted: 5, DeletedRows: 5}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScriptWith(t, tiny, tc.change)
			now = time.Unix(1000, 0)
			s.r.now = func() time.Time { return now }
			s.sendFileSeen()
			if tc.busy {
				s.handle(event.DecodeBegin{TID: 8, Decode: 1000, Context: 9, Tokens: 1})
			}
			for i := range 6 {
				s.begin(1, 1)
				s.embed(int32(i))
				now = now.Add(time.Minute)
				s.end()
			}
			meta, c := s.finish()
			if meta.Segments != tc.want || c.Meta.Segments != tc.want {
				t.Errorf("segments %+v, want %+v", meta.Segments, tc.want)
			}
			rows, err := readRows(c)
			if want := 6 - int(tc.want.DeletedRows); err != nil || len(rows) != want {
				t.Errorf("%d rows, %v; want %d", len(rows), err, want)
			}
		})
	}
}

// Flush writes buffered rows even if no decode ends, but not more often than the interval.
func TestRecorderFlush(t *testing.T) {
	var out bytes.Buffer
	s := newScriptWith(t, tiny, func(o *RecorderOptions) { o.CSV = &out })
	now := time.Now()
	s.r.now = func() time.Time { return now }
	s.sendFileSeen()
	s.begin(1, 1)
	now = now.Add(flushInterval)
	check(t, s.r.Flush())
	s.embed(3)
	check(t, s.r.Flush())
	if rows, err := readRows(open(t, s.dir)); err != nil || len(rows) != 0 {
		t.Errorf("%d rows, %v within a second; want 0", len(rows), err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 2 {
		t.Errorf("CSV has %d lines after a flush, want the header and one", lines)
	}
	now = now.Add(flushInterval)
	check(t, s.r.Flush())
	if rows, err := readRows(open(t, s.dir)); err != nil || len(rows) != 1 {
		t.Errorf("%d rows, %v after a second; want 1", len(rows), err)
	}
}

func TestCSV(t *testing.T) {
	var out bytes.Buffer
	s := newScriptWith(t, tiny, func(o *RecorderOptions) { o.CSV, o.Dir = &out, "" })
	s.sendFileSeen()
	s.begin(1, 3)
	s.embed(3)
	if strings.Count(out.String(), "\n") != 1 {
		t.Errorf("before the decode's end there is %q; want 1", out.String())
	}
	s.end()
	s.begin(1, 1)
	s.time += 12_000_000_000
	s.op(event.Op{Name: "MUL_MAT", Sources: []event.Source{s.source("output.weight")}})
	s.end()
	embd, output := s.source("token_embd.weight"), s.source("output.weight")
	want := "timestamp,token,tensor_name,data_ptr,bytes_accessed\n" +
		fmt.Sprintf("0.000001000,-1,token_embd.weight,0x%x,%d\n", embd.Data, embd.NB[1]) +
		fmt.Sprintf("12.000002000,0,output.weight,0x%x,%d\n", output.Data, output.Bytes())
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	meta, err := s.r.Finish(nil)
	if err != nil || meta.Rows != 2 || meta.Dir != "" {
		t.Errorf("meta %+v, %v; want meta.Rows = 2, meta.Dir = \"\"", meta, err)
	}
	if _, err := os.Stat(s.dir); err == nil {
		t.Error("a directory was made")
	}
	if err := s.r.csv.writeAccess(&tables.Access{Timestamp: -1}, "=1+2"); err != nil {
		t.Fatal(err)
	}
	check(t, s.r.csv.flush())
	if want := "-0.000000001,0,'=1+2,0x0,0\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("got %q, want %q at the end", out.String(), want)
	}
	if _, err := NewRecorder(RecorderOptions{CSV: &failing{}}); err == nil {
		t.Error("no error from a writer that fails")
	}
}

// page returns the offset of page n of the tensor. Its first byte is in page 0.
func page(src event.Source, n int64) int64 { return (src.Offset/countedPage + n) * countedPage }

func TestPageInRows(t *testing.T) {
	cfg := tinyMoE
	cfg.FF, cfg.Embd = 512, 512
	s := newScriptWith(t, cfg, func(o *RecorderOptions) { o.Detail = tables.DetailOpIO })
	pageIn := func(p event.PageIn) {
		s.t.Helper()
		p.Time, p.PID, p.TID = s.time, cmp.Or(p.PID, 1), 7
		p.File = cmp.Or(p.File, fileID)
		s.handle(p)
	}
	gate := s.source("blk.0.ffn_gate_exps.weight")
	from := page(gate, 1)

	for i := range int64(3) { // the metadata, page by page, and as much of a file that is no model
		pageIn(event.PageIn{Offset: i * countedPage, Bytes: countedPage, Cause: event.CauseRead})
		pageIn(event.PageIn{Offset: i * countedPage, Bytes: countedPage, File: event.FileID{Dev: 1, Ino: 1}})
	}
	pageIn(event.PageIn{Offset: from, Bytes: countedPage, Cause: event.CauseReadahead})
	s.begin(1, 1)
	s.sendFileSeen()
	s.embed(1)
	// its first page again
	pageIn(event.PageIn{
		Decode: s.decode, Seq: s.seq + 1, Offset: from, Bytes: 2 * countedPage,
		Cause: event.CauseFault,
	})
	// and once more
	pageIn(event.PageIn{
		Decode: s.decode, Seq: s.seq + 1, Offset: from, Bytes: countedPage, Cause: event.CauseOther,
		PID: 99,
	})
	// during an op whose event never comes
	pageIn(event.PageIn{Decode: s.decode, Seq: s.seq + 2, Offset: from + 2*countedPage, Bytes: countedPage})
	if len(s.r.held) != 3 {
		t.Errorf("%d page-ins are held, want 3", len(s.r.held))
	}
	s.op(event.Op{
		Name: "MUL_MAT_ID", GatherDim: 2, ByExpert: true, IDs: []int32{0, 1}, IDRows: 1,
		Sources: []event.Source{gate},
	})
	s.end()
	pageIn(event.PageIn{Decode: s.decode, Offset: from, Bytes: countedPage, Cause: event.CauseReadahead})
	meta, c := s.finish()

	rows := pageInsOf(t, c)
	var total int64
	for i, r := range rows {
		total += r.Bytes
		// Every row lies within one tensor or expert, and names the right one.
		l, ok := s.model.Locate(r.Offset)
		if ok != (r.Tensor >= 0) || ok && (c.Structure[r.Tensor].Name != l.Tensor.Name || int(r.Expert) != l.Expert ||
			r.Offset+r.Bytes > l.Tensor.End()) {
			t.Errorf("row %d is %+v, want it within one piece of %+v", i, r, l)
		}
	}
	if want := int64(3+1+2+1+1+1) * countedPage; total != want {
		t.Errorf("%d bytes, want %d", total, want)
	}
	// These are the rows of the pages from the tensor's second on, in order.
	type told struct {
		page          int64
		rereads, step int32
		cause         event.Cause
		op            string
		pid           int32
	}
	var got []told
	for _, r := range rows {
		if r.Offset < from {
			continue
		}
		x := told{(r.Offset - from) / countedPage, r.Rereads, r.Step, r.Cause, r.Op, r.PID}
		if n := len(got); n > 0 && r.Offset%countedPage != 0 {
			continue // the rest of a page that an expert's slice ends in
		}
		got = append(got, x)
	}
	want := []told{
		{0, 0, -1, event.CauseReadahead, "", 1},
		{0, 1, 0, event.CauseFault, "MUL_MAT_ID", 1},
		{1, 0, 0, event.CauseFault, "MUL_MAT_ID", 1},
		{0, 2, 0, event.CauseOther, "MUL_MAT_ID", 99},
		{2, 0, 0, event.CauseFault, "", 1},
		{0, 3, 0, event.CauseReadahead, "", 1},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	if i := slices.IndexFunc(rows, func(r tables.PageInRow) bool { return r.Tensor < 0 }); i != 0 ||
		rows[0].Offset != 0 || rows[0].Bytes != min(3*countedPage, s.model.Tensors[0].Offset) ||
		rows[0].Cause != event.CauseRead {
		t.Errorf("the first row is %+v, want the pages with the metadata, read by a system call", rows[0])
	}
	r := meta.Rereads
	if r == nil || r.FirstBytes != 6*countedPage || r.RereadBytes != 3*countedPage ||
		!reflect.DeepEqual(r.ByCause, map[string]int64{
			"fault": countedPage, "other": countedPage, "readahead": countedPage,
		}) ||
		!reflect.DeepEqual(r.ByProcess, []tables.ProcessBytes{
			{PID: 1, Bytes: 2 * countedPage}, {PID: 99, Bytes: countedPage},
		}) {
		t.Errorf("rereads %+v, want two pages by process 1 and one by process 99", r)
	}
	if len(r.Tensors) != 1 || r.Tensors[0].Name != gate.Name || r.Tensors[0].RereadBytes != 3*countedPage {
		t.Errorf("tensors %+v; want len(r.Tensors) = 1, r.Tensors[0].Name = %v, r.Tensors[0].RereadBytes = %v",
			r.Tensors, gate.Name, 3*countedPage)
	}
	fromTables, err := c.Rereads(context.Background(), rereadTop)
	if err != nil || !reflect.DeepEqual(fromTables, r) {
		t.Errorf("from the tables %+v, %v; want %+v", fromTables, err, r)
	}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Rereads(done, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
	var text strings.Builder
	check(t, r.WriteText(&text, 5))
	for _, want := range []string{
		"24 KiB for the first time, 12 KiB again (fault 33 %, readahead 33 %, other 33 %)",
		"4.0 KiB by process 99", gate.Name,
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("text lacks %q:\n%s", want, text.String())
		}
	}
}

// Page-ins may lie at the edges: past the end of the file, of no bytes, before the file.
func TestPageInsAtTheEdges(t *testing.T) {
	s := newScript(t, tiny)
	s.sendFileSeen()
	last := s.model.Size / countedPage * countedPage
	for _, p := range []event.PageIn{
		{Offset: last, Bytes: 1 << 20}, {Offset: 1 << 50, Bytes: 4096}, {Offset: 0, Bytes: 0},
		{Offset: -4096, Bytes: 4096}, {Offset: 0, Bytes: 1, Cause: 200},
	} {
		p.File = fileID
		s.handle(p)
	}
	s.begin(1, 1)
	s.end()
	meta, c := s.finish()
	if want := s.model.Size - last + 1; meta.Rereads.FirstBytes != want {
		t.Errorf("%d bytes, want %d", meta.Rereads.FirstBytes, want)
	}
	if rows := pageInsOf(t, c); rows[len(rows)-1].Cause != event.CauseOther {
		t.Errorf("rows %+v; want %v", rows, event.CauseOther)
	}
}

func TestPageCountsSaturate(t *testing.T) {
	var c pageCounts
	type piece struct {
		from, to int64
		before   int32
	}
	add := func(from, to int64) (pieces []piece) {
		check(t, c.add(from, to, func(from, to int64, before int32) error {
			pieces = append(pieces, piece{from, to, before})
			return nil
		}))
		return pieces
	}
	edge := int64(countChunk * countedPage) // pages on both sides are counted apart
	for range 70000 {
		add(edge-countedPage, edge)
	}
	if got, want := add(edge-2*countedPage, edge+countedPage+1),
		[]piece{
			{edge - 2*countedPage, edge - countedPage, 0}, {edge - countedPage, edge, 65535},
			{edge, edge + countedPage + 1, 0},
		}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := add(edge+5, edge+9), []piece{{edge + 5, edge + 9, 1}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Pending page-ins become one only if they touch, and one thread caused them in the same way and decode.
func TestPendingPageInsAreJoined(t *testing.T) {
	first := event.PageIn{Offset: 0, Bytes: countedPage, PID: 1, TID: 2, Cause: event.CauseRead, Decode: 3}
	for name, tc := range map[string]struct {
		change func(*event.PageIn)
		runs   int
	}{
		"the next page":   {func(*event.PageIn) {}, 1},
		"a later page":    {func(e *event.PageIn) { e.Offset++ }, 2},
		"another process": {func(e *event.PageIn) { e.PID++ }, 2},
		"another thread":  {func(e *event.PageIn) { e.TID++ }, 2},
		"another cause":   {func(e *event.PageIn) { e.Cause = event.CauseReadahead }, 2},
		"another decode":  {func(e *event.PageIn) { e.Decode++ }, 2},
	} {
		second := first
		second.Offset = countedPage
		tc.change(&second)
		want := []event.PageIn{first, second}
		if tc.runs == 1 {
			want = want[:1]
			want[0].Bytes = 2 * countedPage
		}
		var p pendingPageIns
		p.add(first)
		p.add(second)
		if runs, _ := p.take(first.File); !slices.Equal(runs, want) {
			t.Errorf("%s: %+v, want %+v", name, runs, want)
		}
	}
}

func TestPendingPageInsAreBounded(t *testing.T) {
	var p pendingPageIns
	a, b := event.FileID{Ino: 1}, event.FileID{Ino: 2}
	for i := range int64(pendingRuns) { // none touches another
		p.add(event.PageIn{File: a, Offset: 2 * i * countedPage, Bytes: countedPage})
	}
	for i := range int64(100) { // all touch: one run, which takes the place of a's
		p.add(event.PageIn{File: b, Offset: i * countedPage, Bytes: countedPage})
	}
	runs, dropped := p.take(b)
	if len(runs) != 1 || runs[0].Bytes != 100*countedPage || dropped != 0 {
		t.Errorf("%d runs %+v, %d dropped; want len(runs) = 1, runs[0].Bytes = %v, dropped = 0", len(runs), runs,
			dropped, 100*countedPage)
	}
	if runs, dropped := p.take(a); len(runs) != 0 || dropped != pendingRuns || p.runs != 0 {
		t.Errorf("%d runs and %d dropped of the older file, %d kept altogether; want len(runs) = 0, dropped = %v, "+
			"p.runs = 0", len(runs), dropped, p.runs, pendingRuns)
	}
	for i := range uint64(pendingFiles + 7) {
		p.add(event.PageIn{File: event.FileID{Ino: 10 + i}, Bytes: 1})
	}
	if len(p.files) != pendingFiles || p.lost != 7 || p.runs != pendingFiles {
		t.Errorf("%d files, %d forgotten, %d runs; want len(p.files) = %v, p.lost = 7, p.runs = %v", len(p.files),
			p.lost, p.runs, pendingFiles, pendingFiles)
	}
}

// The description counts the page-ins of the files that were forgotten before it was known what they are.
func TestRecorderCountsForgottenPageIns(t *testing.T) {
	s := newScript(t, tiny)
	for i := range uint64(pendingFiles + 7) {
		s.handle(event.PageIn{File: event.FileID{Dev: 1, Ino: 10 + i}, Bytes: countedPage})
	}
	s.sendFileSeen()
	s.begin(1, 1)
	s.end()
	meta, c := s.finish()
	if meta.Counters.PageInsDropped != 7 || c.Meta.Counters.PageInsDropped != 7 {
		t.Errorf("%d page-ins were dropped, and %d on disk; want 7", meta.Counters.PageInsDropped,
			c.Meta.Counters.PageInsDropped)
	}
}
