package ebpf

// These tests check that what is kept of a target is bounded, whatever the target does.

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/internal/proc"
)

// When the ops of shapes become too many, the shapes that were not used for longest are dropped. A
// shape that is too long by itself is not kept either.
func TestShapesAreBounded(t *testing.T) {
	c, p, other := newCache(1), &target{}, &target{}
	grow := func(id uint32, n int) {
		c.addShape(p, id)
		for range n {
			c.extendShape(p, id, &template{of: p})
		}
	}
	for id := range uint32(4) {
		grow(id, maxShapeOps/4)
	}
	if c.useShape(p, 0) == nil || c.useShape(other, 0) != nil {
		t.Fatal("a shape is not found for its target, or is found for another one")
	}
	grow(4, maxShapeOps/4)
	if c.useShape(p, 0) == nil || c.useShape(p, 1) != nil || len(c.useShape(p, 4).ops) != maxShapeOps/4 ||
		c.shapeOps > maxShapeOps {
		t.Errorf("%d ops of %d shapes: another shape than the oldest was dropped", c.shapeOps, len(c.shapes))
	}
	grow(5, maxShapeOps+1)
	if c.useShape(p, 5) != nil || c.shapeOps != 0 {
		t.Errorf("a shape of too many ops is kept: %d ops of %d shapes", c.shapeOps, len(c.shapes))
	}
	for id := range uint32(2 * maxShapes) {
		grow(id, 1)
	}
	if len(c.shapes) != maxShapes || c.shapeOps != maxShapes {
		t.Errorf("%d ops of %d shapes, want %d of each", c.shapeOps, len(c.shapes), maxShapes)
	}
	c.dropTarget(p)
	if len(c.shapes) != 0 || c.shapeOps != 0 {
		t.Errorf("%d ops of %d shapes are kept of a target that has ended, want none", c.shapeOps, len(c.shapes))
	}
}

// The ids and buffers of threads are bounded, however many threads there are. Ids that did not all
// arrive are not returned.
func TestIDsAreBounded(t *testing.T) {
	c, p := newCache(1), &target{}
	for i := range uint32(4 * maxThreads) {
		c.addIDs(p, &traceIdsEvent{Tid: i, Seq: 1, Tensor: 9, Slots: 1 << 15, Rows: 2, N: 128})
		c.setBuffers(p, &traceBuffersEvent{Tid: i, Seq: 1})
		if len(c.ids) > maxThreads || len(c.buffers) > maxThreads || c.idCount > maxIDs {
			t.Fatalf("ids of %d threads, %d in all, buffers of %d threads; want at most %d, %d, %d",
				len(c.ids), c.idCount, len(c.buffers), maxThreads, maxIDs, maxThreads)
		}
	}
	for i := range uint64(10 * keptIDs) {
		c.addIDs(p, &traceIdsEvent{Tid: 1, Seq: i, Tensor: 9, Slots: 2, Rows: 1, N: 2})
	}
	if n := len(c.ids[1]); n > keptIDs {
		t.Errorf("%d lists of a thread, want at most %d", n, keptIDs)
	}
	if g, ok := c.idsOf(p, 1, 10*keptIDs-1, 9); !ok || len(g.ids) != 2 {
		t.Errorf("the last ids are %+v, want two", g)
	}
	if _, ok := c.idsOf(&target{}, 1, 10*keptIDs-1, 9); ok {
		t.Error("another target has the same ids, want none")
	}
	for _, e := range []traceIdsEvent{
		{Tid: 2, Seq: 5, Slots: 1 << 31, Rows: 1 << 31, N: 2}, {Tid: 2, Seq: 5, Slots: 0, Rows: 7, N: 1},
		{Tid: 2, Seq: 5, Slots: 4, Rows: 1, N: 1 << 31, First: 1 << 31}, {Tid: 2, Seq: 5, Slots: 200, Rows: 1, N: 200},
	} {
		c.addIDs(p, &e)
		if _, ok := c.idsOf(p, 2, 5, 0); ok {
			t.Errorf("%d x %d ids, of which %d from %d on arrived, count as complete", e.Slots, e.Rows, e.N, e.First)
		}
	}
	c.dropTarget(p)
	if len(c.ids) != 0 || c.idCount != 0 || len(c.buffers) != 0 {
		t.Errorf("%d ids of %d threads are kept of a target that has ended, want none", c.idCount, len(c.ids))
	}
}

// A process that reads from more files than any model has is an error that names the limit: no rows are
// lost without a word.
func TestFilesAreBounded(t *testing.T) {
	c := newCache(8)
	p := &target{
		pid: tgid, announced: true, files: map[string]event.FileID{}, fileFound: map[event.FileID]bool{}, cache: c,
	}
	hint := t.TempDir() + "/model"
	if err := os.WriteFile(hint, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := proc.FileOf(hint)
	if err != nil {
		t.Fatal(err)
	}
	tr := &Tracer{opts: Options{Hints: []string{hint}}, cache: c}
	files := 0
	for i := range maxFiles + 1 {
		o := event.Op{Sources: []event.Source{{InFile: true, File: event.FileID{Dev: uint64(i), Ino: id.Ino}}}}
		err := tr.announceFiles(p, &o, func(event.Event) error { files++; return nil })
		if i == maxFiles {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than %d files", maxFiles)) {
				t.Errorf("one file too many: %v", err)
			}
		} else if err != nil || len(o.Sources) != 1 || o.Clipped {
			t.Fatalf("file %d: %+v, %v", i, o, err)
		}
	}
	if files != maxFiles || tr.unresolved.Load() != 0 {
		t.Errorf("%d files, want %d; %d unresolved", files, maxFiles, tr.unresolved.Load())
	}
	o := event.Op{Sources: []event.Source{{InFile: true, File: event.FileID{Ino: id.Ino + 1}}}}
	clear(p.fileFound)
	p.fileFound[event.FileID{}] = true // not the first: it was unmapped, or the process is about to end
	err = tr.announceFiles(p, &o, func(event.Event) error {
		t.Error("a file that nobody can name was reported")
		return nil
	})
	if err != nil || !o.Clipped || len(o.Sources) != 0 {
		t.Errorf("%+v, %v, want a clipped op without sources", o, err)
	}
}

// The mappings of a target that makes them without end are read for a while, and then now and then.
func TestMappingsAreBounded(t *testing.T) {
	c := newCache(1)
	if _, err := c.readMappings(os.Getpid()); err != nil || c.mapsSpent <= 0 {
		t.Fatalf("the first time: %v, took %v", err, c.mapsSpent)
	}
	c.mapsSpent = 2 * mapTime
	if _, err := c.readMappings(os.Getpid()); !errors.Is(err, errTooOften) {
		t.Errorf("after %v: %v, want %v", c.mapsSpent, err, errTooOften)
	}
	c.begun = c.begun.Add(-2 * mapShare * mapTime)
	if _, err := c.readMappings(os.Getpid()); err != nil {
		t.Errorf("later: %v, want no error", err)
	}
}

// The memory map of a process that is about to end may stop anywhere. What is not in it may have
// been mapped.
func TestCutMemoryMap(t *testing.T) {
	p := &target{
		cache: newCache(1),
		mappings: []proc.Mapping{
			{Path: "/model", Start: 0x1000, End: 0x5000, Offset: 0x2000}, {Path: "/libc", Start: 0x9000, End: 0xa000},
		},
		mappingsAt: time.Now().Add(time.Hour),
	}
	for address, want := range map[uint64]struct{ resolved, inFile bool }{
		0x1800: {true, true}, 0x6000: {true, false}, 0xa000: {false, false},
	} {
		s := event.Source{Data: address}
		if resolved := p.resolveSource(&s); resolved != want.resolved || s.InFile != want.inFile ||
			s.InFile && s.Offset != 0x2800 {
			t.Errorf("%#x: %v, %+v, want %+v", address, resolved, s, want)
		}
	}
	p.mappings = nil
	if s := (event.Source{Data: 0x1800}); p.resolveSource(&s) {
		t.Error("a source of a process without a memory map counts as resolved")
	}
}
