package trace

// This file measures what writing and reading a row costs.

import (
	"path/filepath"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/trace/tables"
)

// BenchmarkRecorder records tokens of a model with 22 layers, 70 ms each by the clock. It reports
// what a row costs: its own work, and its share of the flushes.
func BenchmarkRecorder(b *testing.B) {
	f, err := gguf.Open(llamatest.Model(b, synth.Config{
		Layers: 22, Embd: 256, FF: 256, Heads: 4, KVHeads: 4, Type: gguf.Q8_0, Seed: 1,
	}))
	if err != nil {
		b.Fatal(err)
	}
	s := &script{model: f}
	if s.r, err = NewRecorder(RecorderOptions{Dir: filepath.Join(b.TempDir(), "capture"), PID: 1}); err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	s.r.now = func() time.Time { return now }
	handle := func(e event.Event) {
		if err := s.r.Handle(e); err != nil {
			b.Fatal(err)
		}
	}
	handle(seenAt(0, fileID, f.Path))
	var ops []event.Op
	for i := range f.Tensors {
		o := event.Op{TID: 7, Name: "MUL_MAT", Sources: []event.Source{sourceOf(&f.Tensors[i])}, Memo: &event.Memo{}}
		switch {
		case o.Sources[0].Name == event.TokenEmbeddings:
			o.Name, o.GatherDim, o.IDs, o.IDRows = "GET_ROWS", 1, []int32{5}, 1
		case len(f.Tensors[i].Shape) == 1:
			o.Name = "RMS_NORM+MUL"
		}
		ops = append(ops, o)
	}
	at, seq, decode := s.r.begun, uint64(0), uint32(0)
	b.ReportAllocs()
	for b.Loop() {
		decode++
		handle(event.DecodeBegin{Time: at, TID: 7, Decode: decode, Tokens: 1})
		for i := range ops {
			o := ops[i]
			seq++
			at += 300_000 + int64(seq*0x9e3779b97f4a7c15>>48)
			o.Time, o.Duration, o.Stall, o.Decode, o.Graph, o.Seq = at, 290_000+int64(seq*0xbf58476d1ce4e5b9>>47), -1,
				decode, decode, seq
			handle(&o)
		}
		now = now.Add(70 * time.Millisecond)
		handle(event.DecodeEnd{Time: at, TID: 7, Decode: decode})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ops)), "ns/row")
	if _, err := s.r.Finish(nil); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAccesses reports what reading a row costs.
func BenchmarkAccesses(b *testing.B) {
	dir := b.TempDir()
	meta := &tables.Meta{}
	w, err := Create(dir, meta, testStructure)
	if err != nil {
		b.Fatal(err)
	}
	rows := testRows(10 * batchRows)
	for i := range rows {
		if err := w.Access(&rows[i]); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(meta, true); err != nil {
		b.Fatal(err)
	}
	c, err := Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, err := range c.Accesses() {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(rows)), "ns/row")
}
