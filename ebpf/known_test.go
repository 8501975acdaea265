package ebpf

import (
	"errors"
	"os"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/internal/proc"
)

// The shapes of graphs are forgotten, those that were not used for longest first, when their ops become many. One that is too long alone is none.
func TestShapesAreBounded(t *testing.T) {
	k, p, other := newKnown(1), &target{}, &target{}
	grow := func(id uint32, n int) {
		k.learn(p, id)
		for range n {
			k.extend(p, id, &template{of: p})
		}
	}
	for id := range uint32(4) {
		grow(id, maxShaped/4)
	}
	if k.shape(p, 0) == nil || k.shape(other, 0) != nil {
		t.Fatal("a shape is not that of its target")
	}
	grow(4, maxShaped/4)
	if k.shape(p, 0) == nil || k.shape(p, 1) != nil || len(k.shape(p, 4).ops) != maxShaped/4 || k.shaped > maxShaped {
		t.Errorf("%d ops of %d shapes: not the oldest was forgotten", k.shaped, len(k.shapes))
	}
	grow(5, maxShaped+1)
	if k.shape(p, 5) != nil || k.shaped != 0 {
		t.Errorf("a shape of too many ops is kept: %d ops of %d shapes", k.shaped, len(k.shapes))
	}
	for id := range uint32(2 * maxShapes) {
		grow(id, 1)
	}
	if len(k.shapes) != maxShapes || k.shaped != maxShapes {
		t.Errorf("%d ops of %d shapes", k.shaped, len(k.shapes))
	}
	k.forget(p)
	if len(k.shapes) != 0 || k.shaped != 0 {
		t.Errorf("%d ops of %d shapes of a target that has ended", k.shaped, len(k.shapes))
	}
}

// Ids of threads and buffers of threads do not add up, and those that were not sent whole are not given.
func TestIDsAreBounded(t *testing.T) {
	k, p := newKnown(1), &target{}
	for i := range uint32(4 * maxThreads) {
		k.collect(p, &traceIdsEvent{Tid: i, Seq: 1, Tensor: 9, Slots: 1 << 15, Rows: 2, N: 128})
		k.keepBuffers(p, &traceBuffersEvent{Tid: i, Seq: 1})
		if len(k.ids) > maxThreads || len(k.buffers) > maxThreads || k.idCount > maxIDs {
			t.Fatalf("ids of %d threads, %d in all; buffers of %d threads", len(k.ids), k.idCount, len(k.buffers))
		}
	}
	for i := range uint64(10 * keptIDs) {
		k.collect(p, &traceIdsEvent{Tid: 1, Seq: i, Tensor: 9, Slots: 2, Rows: 1, N: 2})
	}
	if n := len(k.ids[1]); n > keptIDs {
		t.Errorf("%d lists of a thread", n)
	}
	if g, ok := k.gathered(p, 1, 10*keptIDs-1, 9); !ok || len(g.ids) != 2 {
		t.Errorf("the last ids are not there: %+v", g)
	}
	if _, ok := k.gathered(&target{}, 1, 10*keptIDs-1, 9); ok {
		t.Error("another target has them, too")
	}
	for _, e := range []traceIdsEvent{
		{Tid: 2, Seq: 5, Slots: 1 << 31, Rows: 1 << 31, N: 2}, {Tid: 2, Seq: 5, Slots: 0, Rows: 7, N: 1}, {Tid: 2, Seq: 5, Slots: 4, Rows: 1, N: 1 << 31, First: 1 << 31}, {Tid: 2, Seq: 5, Slots: 200, Rows: 1, N: 200},
	} {
		k.collect(p, &e)
		if _, ok := k.gathered(p, 2, 5, 0); ok {
			t.Errorf("%d x %d ids, %d of them from %d, are whole", e.Slots, e.Rows, e.N, e.First)
		}
	}
	k.forget(p)
	if len(k.ids) != 0 || k.idCount != 0 || len(k.buffers) != 0 {
		t.Errorf("%d ids of %d threads of a target that has ended", k.idCount, len(k.ids))
	}
}

// A process that reads from more files than any model has is told the first; the others are counted.
func TestFilesAreBounded(t *testing.T) {
	k := newKnown(8)
	p := &target{pid: tgid, announced: true, files: map[string]event.FileID{}, seen: map[event.FileID]bool{}, known: k}
	hint := t.TempDir() + "/model"
	if err := os.WriteFile(hint, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := proc.FileOf(hint)
	if err != nil {
		t.Fatal(err)
	}
	tr := &Tracer{opts: Options{Hints: []string{hint}}, known: k}
	files := 0
	for i := range 2 * maxFiles {
		o := event.Op{Sources: []event.Source{{InFile: true, File: event.FileID{Dev: uint64(i), Ino: id.Ino}}}}
		if err := tr.show(p, &o, func(event.Event) error { files++; return nil }); err != nil {
			t.Fatal(err)
		}
		if told := i < maxFiles; len(o.Sources) == 1 != told || o.Clipped == told {
			t.Fatalf("file %d: %+v", i, o)
		}
	}
	if files != maxFiles || tr.unresolved.Load() != maxFiles {
		t.Errorf("%d files, %d unresolved", files, tr.unresolved.Load())
	}
	o := event.Op{Sources: []event.Source{{InFile: true, File: event.FileID{Ino: id.Ino + 1}}}}
	clear(p.seen)
	p.seen[event.FileID{}] = true // not the first: it was unmapped, or the process is about to end
	if err := tr.show(p, &o, func(event.Event) error { t.Error("told of a file that nobody can name"); return nil }); err != nil || !o.Clipped || len(o.Sources) != 0 {
		t.Errorf("%+v, %v", o, err)
	}
}

// A target that makes mappings without end has them looked at for a while, then now and then.
func TestMappingsAreBounded(t *testing.T) {
	k := newKnown(1)
	if _, err := k.mappings(os.Getpid()); err != nil || k.spent <= 0 {
		t.Fatalf("%v, took %v", err, k.spent)
	}
	k.spent = 2 * mapTime
	if _, err := k.mappings(os.Getpid()); !errors.Is(err, errTooOften) {
		t.Errorf("after %v: %v", k.spent, err)
	}
	k.begun = k.begun.Add(-2 * mapShare * mapTime)
	if _, err := k.mappings(os.Getpid()); err != nil {
		t.Errorf("later: %v", err)
	}
}

// The memory map of a process that is about to end is cut anywhere: what is not in it may have been mapped.
func TestCutMemoryMap(t *testing.T) {
	p := &target{known: newKnown(1), memory: []proc.Mapping{{Path: "/model", Start: 0x1000, End: 0x5000, Offset: 0x2000}, {Path: "/libc", Start: 0x9000, End: 0xa000}}, read: time.Now().Add(time.Hour)}
	for address, want := range map[uint64]struct{ resolved, inFile bool }{0x1800: {true, true}, 0x6000: {true, false}, 0xa000: {false, false}} {
		s := event.Source{Data: address}
		if resolved := p.resolve(&s); resolved != want.resolved || s.InFile != want.inFile || s.InFile && s.Offset != 0x2800 {
			t.Errorf("%#x: %v, %+v", address, resolved, s)
		}
	}
	p.memory = nil
	if s := (event.Source{Data: 0x1800}); p.resolve(&s) {
		t.Error("a process without memory has copied its weights")
	}
}
