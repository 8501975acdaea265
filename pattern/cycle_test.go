package pattern

// These tests make cycles of captures and of events, and count their bytes.

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/testenv"
	"tensorcast/trace/tables"
)

const someFingerprint = "00112233445566778899aabbccddeeff"

// A token's bytes are the distinct bytes of the files that it touches, however often and through
// whichever views.
func TestBytes(t *testing.T) {
	testenv.SkipWithRace(t)
	whole := func(file int, offset, length int64) CycleRead {
		return CycleRead{File: file, Offset: offset, Length: length}
	}
	gather := func(offset, length, slice int64, n int) CycleRead {
		return CycleRead{Offset: offset, Length: length, Slice: slice, Slices: n}
	}
	for _, tc := range []struct {
		name  string
		reads []CycleRead
		want  int64
	}{
		{"nothing", nil, 0},
		{"two tensors", []CycleRead{whole(0, 500, 100), whole(0, 0, 50)}, 150},
		{"a tensor twice", []CycleRead{whole(0, 0, 50), whole(0, 0, 50)}, 50},
		{"the same place in two files", []CycleRead{whole(0, 0, 50), whole(1, 0, 50)}, 100},
		{"a part and the whole", []CycleRead{whole(0, 20, 10), whole(0, 0, 50)}, 50},
		{"parts that overlap", []CycleRead{whole(0, 20, 10), whole(0, 0, 25)}, 30},
		{"neighbours", []CycleRead{whole(0, 0, 10), whole(0, 10, 10)}, 20},
		{"a row", []CycleRead{gather(0, 1000, 10, 1), whole(0, 1000, 10)}, 20},
		{"a row of what is read whole too", []CycleRead{gather(0, 1000, 10, 1), whole(0, 0, 1000)}, 1000},
		{"a row right behind what is read whole", []CycleRead{whole(0, 0, 1000), gather(1000, 1000, 10, 1)}, 1010},
		{"experts", []CycleRead{gather(0, 1000, 100, 3), gather(1000, 1000, 100, 3)}, 600},
		{"experts of one tensor twice", []CycleRead{gather(0, 1000, 100, 3), gather(0, 1000, 100, 4)}, 400},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := (&Cycle{Reads: tc.reads}).Bytes(); got != tc.want {
				t.Errorf("%d bytes, want %d", got, tc.want)
			}
		})
	}
}

// Bytes gives the same as counting in a bitmap of the files.
func TestBytesOfRandomReads(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var touched [2][300]bool
		c := &Cycle{}
		for range r.IntN(20) {
			read := CycleRead{File: r.IntN(2), Offset: r.Int64N(200), Length: 1 + r.Int64N(100)}
			c.Reads = append(c.Reads, read)
			for i := read.Offset; i < read.End(); i++ {
				touched[read.File][i] = true
			}
		}
		var want int64
		for _, file := range touched {
			for _, on := range file {
				if on {
					want++
				}
			}
		}
		if got := c.Bytes(); got != want {
			t.Fatalf("%d bytes, want %d of %+v", got, want, c.Reads)
		}
	}
}

var (
	theFile = event.FileID{Dev: 1, Ino: 7}
	another = event.FileID{Dev: 1, Ino: 8}
)

func files(id event.FileID) (int, bool) { return 2, id == theFile }

// f32 returns a contiguous weight in theFile.
func f32(name string, offset int64, ne ...int64) event.Source {
	s := event.Source{Name: name, InFile: true, File: theFile, Offset: offset, Type: gguf.F32, NE: [4]int64{1, 1, 1, 1}}
	copy(s.NE[:], ne)
	s.NB[0] = 4
	for d := 1; d < 4; d++ {
		s.NB[d] = s.NB[d-1] * s.NE[d-1]
	}
	return s
}

// token returns the ops of a token of a model with experts.
func token(rows, experts []int32, duration int64) []*event.Op {
	op := func(name string, sources ...event.Source) *event.Op {
		return &event.Op{Name: name, Duration: duration, Stall: -1, Sources: sources}
	}
	ops := []*event.Op{
		op("GET_ROWS", f32("token_embd.weight", 4000, 10, 100)),
		op("MUL", f32("blk.0.attn_norm.weight (view)", 8000, 10)),
		op("MUL_MAT_ID", f32("blk.0.ffn_up_exps.weight", 9000, 10, 5, 8)),
		op("ADD_ID", f32("blk.0.ffn_up_exps.bias", 20000, 10, 8)),
		op("MUL_MAT", f32("output.weight", 30000, 10, 10), f32("output.scale", 40000, 1)),
	}
	ops[0].GatherDim, ops[0].IDs = 1, rows
	for i, dim := range []int{2, 1} {
		ops[2+i].GatherDim, ops[2+i].ByExpert, ops[2+i].IDs = dim, true, experts
	}
	return ops
}

func step(b *Builder, ops []*event.Op) {
	b.Begin()
	for _, o := range ops {
		b.Op(o)
	}
	b.End()
}

func TestBuilder(t *testing.T) {
	b := NewBuilder(files)
	if b.Cycle() != nil || b.Steps() != 0 {
		t.Error("there is a cycle before the first decode")
	}
	b.Op(token(nil, nil, 1)[0]) // between decodes
	b.End()
	if b.Cycle() != nil {
		t.Error("there is a cycle of no decode")
	}
	ops := token([]int32{5}, []int32{1, 3, 1}, 100)
	ops[1].Stall = 30  // the op computes for 70
	ops[3].Stall = 130 // summed over several threads
	step(b, ops)
	want := []CycleRead{
		{File: 2, Tensor: "token_embd.weight", Op: "GET_ROWS", Offset: 4000, Length: 4000, Slice: 40, Slices: 1,
			Nanos: 100},
		{File: 2, Tensor: "blk.0.attn_norm.weight", Op: "MUL", Offset: 8000, Length: 40, Nanos: 70},
		{File: 2, Tensor: "blk.0.ffn_up_exps.weight", Op: "MUL_MAT_ID", Offset: 9000, Length: 1600, Slice: 200,
			Slices: 2, Experts: true, Nanos: 100},
		{File: 2, Tensor: "blk.0.ffn_up_exps.bias", Op: "ADD_ID", Offset: 20000, Length: 320, Slice: 40, Slices: 2,
			Experts: true, Nanos: 0},
		{File: 2, Tensor: "output.weight", Op: "MUL_MAT", Offset: 30000, Length: 400, Nanos: 100},
		{File: 2, Tensor: "output.scale", Op: "MUL_MAT", Offset: 40000, Length: 4, Nanos: 0},
	}
	check := func(what string, steps int) {
		t.Helper()
		if c := b.Cycle(); !reflect.DeepEqual(c.Reads, want) || b.Steps() != steps {
			t.Errorf("%s: %d steps of\n%+v, want %d of\n%+v", what, b.Steps(), c.Reads, steps, want)
		}
	}
	check("first", 1)
	first := b.Cycle()

	// The sequence is the same. The shortest time of each op counts, and the last number of slices.
	// Which experts were chosen does not matter.
	ops = token([]int32{7}, []int32{6, 0, 2}, 80)
	ops[0].Duration = 150
	ops[2].Duration = -1
	step(b, ops)
	want[1].Nanos, want[2].Slices, want[3].Slices, want[4].Nanos = 70, 3, 3, 80
	check("second", 2)
	if first.Reads[2].Slices != 2 {
		t.Error("a cycle changed after it was made")
	}

	// Three things change nothing: a decode whose end is lost, one that reads nothing, and ops
	// between decodes.
	b.Begin()
	b.Op(ops[0])
	step(b, ops)
	step(b, nil)
	b.Op(ops[0])
	check("undisturbed", 3)

	// Another sequence replaces what was learned.
	step(b, ops[:3])
	want = want[:3]
	want[0].Nanos, want[1].Nanos, want[2].Nanos = 150, 80, -1
	check("another", 1)
}

// Reads outside the model's files are not part of the cycle. Copies of weights in memory are
// reported.
func TestBuilderOutside(t *testing.T) {
	b := NewBuilder(files)
	copied, foreign := f32("blk.0.attn_q.weight", 0, 10, 10), f32("x", 64, 10)
	copied.InFile = false
	foreign.File = another
	ops := []*event.Op{
		{Name: "MUL_MAT", Duration: 9, Sources: []event.Source{copied}},
		{Name: "MUL", Duration: 9, Sources: []event.Source{foreign}},
	}
	step(b, ops)
	if b.Cycle() != nil || b.Outside() != (Outside{Reads: 1, Bytes: 400}) {
		t.Errorf("cycle %+v, outside %+v; want %v", b.Cycle(), b.Outside(), (Outside{Reads: 1, Bytes: 400}))
	}
	step(b, append(ops, token([]int32{1}, []int32{1}, 5)...))
	if c := b.Cycle(); len(c.Reads) != 6 || b.Outside() != (Outside{Reads: 1, Bytes: 400}) {
		t.Errorf("cycle %+v, outside %+v; want len(c.Reads) = 6, b.Outside() = %v", c, b.Outside(),
			(Outside{Reads: 1, Bytes: 400}))
	}
	step(b, token([]int32{1}, []int32{1}, 5))
	if b.Outside() != (Outside{}) {
		t.Errorf("outside %+v of a decode that read nothing there; want %v", b.Outside(), (Outside{}))
	}
}

// If a capturer reports incomplete or nonsensical sources, the cycle is still valid and can be
// written.
func TestBuilderOfOddOps(t *testing.T) {
	for name, tc := range map[string]struct {
		op   event.Op
		want CycleRead
	}{
		"rows whose ids were lost": {event.Op{GatherDim: 1, Sources: []event.Source{f32("w", 0, 10, 100)}},
			CycleRead{Length: 4000, Slice: 40, Slices: 1}},
		"experts whose ids were lost": {event.Op{
			GatherDim: 2, ByExpert: true, Sources: []event.Source{f32("w", 0, 10, 5, 8)},
		},
			CycleRead{Length: 1600, Slice: 200, Slices: 8, Experts: true}},
		"only the number of experts": {event.Op{
			GatherDim: 2, ByExpert: true, Selects: 3, Sources: []event.Source{f32("w", 0, 10, 5, 8)},
		},
			CycleRead{Length: 1600, Slice: 200, Slices: 3, Experts: true}},
		"more ids than rows": {event.Op{
			GatherDim: 1, IDs: []int32{1, -5, 1 << 30, 7},
			Sources: []event.Source{f32("w", 0, 10, 3)},
		}, CycleRead{Length: 120, Slice: 40, Slices: 3}},
		"many ids": {event.Op{
			GatherDim: 1, IDs: slices.Repeat([]int32{1, 2, 3}, 20),
			Sources: []event.Source{f32("w", 0, 10, 30)},
		}, CycleRead{Length: 1200, Slice: 40, Slices: 3}},
		"no such dimension": {event.Op{
			GatherDim: 4, IDs: []int32{1}, Sources: []event.Source{f32("w", 0, 10, 3)},
		}, CycleRead{Length: 120}},
		"a stride beyond the tensor": {event.Op{
			GatherDim: 1, IDs: []int32{1},
			Sources: []event.Source{{Name: "w", InFile: true, File: theFile, NE: [4]int64{10, 1, 1, 1},
				NB: [4]int64{4, 1 << 60, 40, 40}}},
		}, CycleRead{Length: 40}},
		"a negative time": {event.Op{Duration: -7, Sources: []event.Source{f32("w", 0, 10)}},
			CycleRead{Length: 40, Nanos: -1}},
		"more stall than time": {event.Op{Duration: 7, Stall: 8, Sources: []event.Source{f32("w", 0, 10)}},
			CycleRead{Length: 40}},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBuilder(func(event.FileID) (int, bool) { return 0, true })
			tc.op.Name = "OP"
			// no elements
			empty := event.Op{Name: "NONE", Sources: []event.Source{{Name: "e", InFile: true, File: theFile}}}
			step(b, []*event.Op{&empty, &tc.op})
			tc.want.Tensor, tc.want.Op = "w", "OP"
			c := b.Cycle()
			if len(c.Reads) != 1 || c.Reads[0] != tc.want {
				t.Errorf("%+v, want %+v", c.Reads, tc.want)
			}
			c.Files = []CycleFile{{Name: "m.gguf", Size: 1 << 20, Fingerprint: someFingerprint}}
			if err := c.Write(&bytes.Buffer{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A decode that never ends takes no more memory than a sequence may, and teaches nothing.
func TestBuilderIsBounded(t *testing.T) {
	b := NewBuilder(files)
	ops := token([]int32{1}, []int32{1}, 5)
	step(b, ops)
	b.Begin()
	for range maxReads {
		for _, o := range ops {
			b.Op(o)
		}
	}
	b.End()
	if c := b.Cycle(); len(c.Reads) != 6 || cap(b.step) > 2*maxReads {
		t.Errorf("%d reads, room for %d; want len(c.Reads) = 6, cap(b.step) at most %v", len(c.Reads), cap(b.step),
			2*maxReads)
	}
}

// A sequence has as many reads as a file may hold, and not one more.
func TestBuilderKeepsWhatCanBeWritten(t *testing.T) {
	ops := token([]int32{1}, nil, 1)
	for reads, want := range map[int]int{maxReads: maxReads, maxReads + 1: 0} {
		b := NewBuilder(files)
		b.Begin()
		for len(b.step) < reads && b.open {
			b.Op(ops[0])
		}
		b.End()
		got := 0
		if c := b.Cycle(); c != nil {
			got = len(c.Reads)
		}
		if got != want {
			t.Errorf("%d reads became %d, want %d", reads, got, want)
		}
	}
}

// Op allocates nothing once the decode's length is known.
func TestBuilderAllocatesNothing(t *testing.T) {
	b := NewBuilder(files)
	ops := token([]int32{1}, []int32{1, 2, 3, 4, 5, 6}, 5)
	step(b, ops)
	step(b, ops)
	step(b, ops)
	if n := testing.AllocsPerRun(100, func() { step(b, ops) }); n > 0 {
		t.Errorf("%g allocations per decode; want at most 0", n)
	}
}

func BenchmarkBuilder(b *testing.B) {
	bu := NewBuilder(files)
	var ops []*event.Op
	for range 200 {
		ops = append(ops, token([]int32{1}, []int32{1, 2, 3, 4, 5, 6}, 5)...)
	}
	b.ReportAllocs()
	for b.Loop() {
		step(bu, ops)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(ops)), "ns/op-event")
}

// The cycle of a capture has the offsets, slices and shortest times of the sequence that most
// tokens have.
func TestCycleOfCapture(t *testing.T) {
	model := []tables.StructureRow{
		{Name: "token_embd.weight", Offset: 4096, Size: 64000, Layer: -1, File: "m-1.gguf", Shape: []int64{16, 1000}},
		{Name: "blk.0.ffn_gate_exps.weight", Offset: 70016, Size: 8000, File: "m-2.gguf", Experts: 8,
			ExpertStride: 1000, Shape: []int64{10, 25, 8}},
		{Name: "blk.0.ssm_a", Offset: 80000, Size: 8000, File: "m-2.gguf", Shape: []int64{2000}},
		{Name: "unread", Offset: 80000, Size: 8000, File: "m-2.gguf", Model: 1},
	}
	c := newCapture(t, model)
	c.meta.Models = []tables.ModelInfo{
		{Fingerprint: someFingerprint, Files: []tables.ModelFile{{Name: "m-1.gguf", Bytes: 1e5,
			Fingerprint: someFingerprint}, {Name: "m-2.gguf", Bytes: 1e6, Fingerprint: someFingerprint}}},
		{},
	}
	write := func(step int32, phase tables.Phase, experts []int32, nanos ...int64) {
		token := step - 1
		rows := []tables.Access{
			{Timestamp: 0, Tensor: 0, Op: "GET_ROWS+SCALE", Offset: 4096 + 64*int64(step), Bytes: 64,
				Duration: nanos[0], Stall: -1},
			{Timestamp: 1000, Tensor: 1, Op: "MUL_MAT_ID", Offset: 70016, Bytes: 1000 * int64(len(experts)),
				Experts: experts, Duration: nanos[1], Stall: 0},
			{Timestamp: 2000, Tensor: 2, Op: "SSM", Offset: 80100, Bytes: 400, Duration: nanos[2], Stall: 0}, // a view
			{Timestamp: 2000, Tensor: 0, Op: "SSM", Offset: 4096, Bytes: 64000, Duration: nanos[2], Stall: 20},
		}
		if phase == tables.PhaseWarmup {
			token = -1
		}
		for _, a := range rows {
			a.Timestamp += int64(step) * 10000
			a.Step, a.Token, a.Phase = step, token, phase
			if err := c.w.Access(&a); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(0, tables.PhaseWarmup, []int32{1, 2}, 1, 1, 21) // the fastest, but of another phase
	write(1, tables.PhaseGeneration, []int32{1, 2}, 100, 50, 70)
	write(2, tables.PhaseGeneration, []int32{7, 0}, 90, 60, 30)
	write(3, tables.PhaseGeneration, []int32{7, 0, 5}, 10, 10, 40) // departs from the reference
	p, meta := mustBuild(t, c.build)
	got, err := p.Cycle(meta)
	if err != nil {
		t.Fatal(err)
	}
	want := []CycleRead{
		{File: 0, Tensor: "token_embd.weight", Op: "GET_ROWS+SCALE", Offset: 4096, Length: 64000, Slice: 64,
			Slices: 1, Nanos: 90},
		{File: 1, Tensor: "blk.0.ffn_gate_exps.weight", Op: "MUL_MAT_ID", Offset: 70016, Length: 8000, Slice: 1000,
			Slices: 2, Experts: true, Nanos: 50},
		{File: 1, Tensor: "blk.0.ssm_a", Op: "SSM", Offset: 80100, Length: 400, Nanos: 10},
		{File: 0, Tensor: "token_embd.weight", Op: "SSM", Offset: 4096, Length: 64000, Nanos: 0},
	}
	if !reflect.DeepEqual(got.Reads, want) {
		t.Errorf("reads\n%+v, want\n%+v", got.Reads, want)
	}
	if got.Bytes() != 64000+2000+400 || len(got.Files) != 2 ||
		got.Files[1] != (CycleFile{"m-2.gguf", 1e6, someFingerprint}) {
		t.Errorf("%d bytes of %+v; want got.Bytes() = %v, len(got.Files) = 2, got.Files[1] = %v", got.Bytes(),
			got.Files, 64000+2000+400, (CycleFile{"m-2.gguf", 1e6, someFingerprint}))
	}

	meta.Models[0].Files = nil // as in captures of an earlier version, which did not list the parts
	if _, err := p.Cycle(meta); !errors.Is(err, ErrNoFiles) {
		t.Errorf("error %v; want %v", err, ErrNoFiles)
	}
	for what, damage := range map[string]func(m *tables.Meta){
		"no model": func(m *tables.Meta) { m.Models = nil },
		"a missing part": func(m *tables.Meta) {
			m.Models[0].Files = []tables.ModelFile{{Name: "m-1.gguf", Bytes: 1e5, Fingerprint: someFingerprint}}
		},
		"a shorter file":   func(m *tables.Meta) { m.Models[0].Files[1].Bytes = 80499 },
		"a fingerprint":    func(m *tables.Meta) { m.Models[0].Files[1].Fingerprint = "x" },
		"a name that goes": func(m *tables.Meta) { m.Models[0].Files[1].Name = "../m-2.gguf" },
	} {
		_, meta, err := c.open()
		if err != nil {
			t.Fatal(err)
		}
		damage(meta)
		if _, err := p.Cycle(meta); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: error %v; want %v", what, err, ErrInvalid)
		}
	}
}

// Tokens that are generated together gather different numbers of slices. The median number counts,
// and the shortest time of any number.
func TestCycleOfParallelGeneration(t *testing.T) {
	model := slices.Clone(moeModel)
	for i := range model {
		model[i].File, model[i].Shape = "m.gguf", []int64{16, 1000}
		if model[i].Experts > 0 {
			model[i].Shape = []int64{10, 25, 8}
		}
	}
	c := newCapture(t, model)
	c.meta.Models = []tables.ModelInfo{{Bytes: 1e6, Fingerprint: someFingerprint}}
	for _, experts := range [][]int32{{1, 2}, {1, 2, 3, 4}, {0, 1, 7}} {
		if err := c.w.Step(&tables.StepRow{Step: c.step, Phase: tables.PhaseGeneration, Tokens: 4}); err != nil {
			t.Fatal(err)
		}
		for i, r := range moeStep(0, experts, []int32{3, 4}) {
			err := c.w.Access(&tables.Access{
				Timestamp: int64(c.step)*1000 + int64(i), Step: c.step, Token: c.step, Phase: tables.PhaseGeneration,
				Op: r.op, Tensor: r.tensor,
				Offset: model[r.tensor].Offset, Bytes: r.bytes, Experts: r.experts,
				Duration: 100 + (3*int64(c.step)+int64(i))%7, Stall: -1,
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		c.step++
	}
	p, meta := mustBuild(t, c.build)
	got, err := p.Cycle(meta)
	if err != nil {
		t.Fatal(err)
	}
	want := []CycleRead{
		{Tensor: "token_embd.weight", Op: "GET_ROWS", Offset: 4096, Length: 64000, Slice: 64, Slices: 1, Nanos: 100},
		{Tensor: "blk.0.ffn_gate_exps.weight", Op: "MUL_MAT_ID", Offset: 70000, Length: 8000, Slice: 1000, Slices: 3,
			Experts: true, Nanos: 100},
		{Tensor: "blk.1.ffn_gate_exps.weight", Op: "MUL_MAT_ID", Offset: 80000, Length: 8000, Slice: 1000, Slices: 2,
			Experts: true, Nanos: 101},
	}
	if !reflect.DeepEqual(got.Reads, want) {
		t.Errorf("reads\n%+v, want\n%+v", got.Reads, want)
	}
}

func TestFilesAndIn(t *testing.T) {
	dir := t.TempDir()
	model := func(name string, layers int) *gguf.File {
		path := filepath.Join(dir, name)
		gguftest.MoE(layers, 4).Write(t, path)
		m, err := gguf.OpenModel(path)
		if err != nil {
			t.Fatal(err)
		}
		return m.Files[0]
	}
	m := &gguf.Model{Files: []*gguf.File{model("a.gguf", 1), model("b.gguf", 2)}}
	files, err := FilesOf(m)
	if err != nil {
		t.Fatal(err)
	}
	print, err := m.Files[1].Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 || files[1] != (CycleFile{"b.gguf", m.Files[1].Size, print}) {
		t.Fatalf("files %+v; want len(files) = 2, files[1] = %v", files, (CycleFile{"b.gguf", m.Files[1].Size, print}))
	}
	c := &Cycle{Files: files, Reads: []CycleRead{{File: 0, Tensor: "x", Length: 1}, {File: 1, Tensor: "y", Length: 1}}}
	moved := slices.Clone(files)
	moved[0].Name = "elsewhere.gguf"
	draft := CycleFile{"draft.gguf", 5, someFingerprint}
	in, err := c.MatchFiles([]CycleFile{files[1], draft, moved[0]})
	if err != nil {
		t.Fatal(err)
	}
	if in.Reads[0].File != 2 || in.Reads[1].File != 0 || in.Reads[1].Tensor != "y" || len(in.Files) != 3 ||
		c.Reads[0].File != 0 {
		t.Errorf("renumbered %+v", in)
	}
	for what, change := range map[string]func(f *CycleFile){
		"other size":    func(f *CycleFile) { f.Size++ },
		"other content": func(f *CycleFile) { f.Fingerprint = someFingerprint },
	} {
		other := slices.Clone(files)
		change(&other[1])
		if _, err := c.MatchFiles(other); !errors.Is(err, ErrOtherModel) || !strings.Contains(err.Error(), "b.gguf (") {
			t.Errorf("%s: error %v; want %v, text with \"b.gguf (\"", what, err, ErrOtherModel)
		}
	}
	if _, err := c.MatchFiles([]CycleFile{draft, files[1]}); !errors.Is(err, ErrOtherModel) ||
		!strings.Contains(err.Error(), "a.gguf") {
		t.Errorf("error %v; want %v, text with \"a.gguf\"", err, ErrOtherModel)
	}
}
