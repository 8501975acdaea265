package prefetch_test

// This file tests the window in virtual time: what is read together, what is swept, and what is lost before its use.

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/plan"
	"tensorcast/sim"
)

// readRecorder are pages that remember which blocks were asked for between two calls of Poll.
type readRecorder struct {
	*sim.Pages
	batch   map[pages.Range]bool
	batches []map[pages.Range]bool
}

func (a *readRecorder) ReadAhead(r pages.Range) bool {
	if !a.Pages.ReadAhead(r) {
		return false
	}
	if a.batch == nil {
		a.batch = map[pages.Range]bool{}
	}
	a.batch[r] = true
	return true
}

func (a *readRecorder) Poll() error {
	if a.batch != nil {
		a.batches = append(a.batches, a.batch)
		a.batch = nil
	}
	return a.Pages.Poll()
}

// Large folios that follow each other in the file, and in the order of use, are asked for together, up to an offset
// that is the same each time. So the last one can be read first, and each finds the next one in memory.
func TestRuns(t *testing.T) {
	const block = 2 * mib
	for _, share := range []float64{0.3, 0.6, 0.85} {
		r := newRig(t, share, prefetch.Options{}, func(c *sim.Config) { c.Block = block })
		disk := &readRecorder{Pages: r.pages}
		r.Controller = prefetch.New(disk, prefetch.Options{Memory: r.Memory(), Now: r.Now, Log: newFailingLog(t)})
		r.Attach(r.Controller)
		r.run(16)
		disk.batches = nil
		token := r.run(10)
		if token.Misses > 2*10 {
			t.Errorf("share %v: %d pages missing in 10 tokens, want at most 20", share, token.Misses)
		}
		reads, alone := 0, 0
		for i, batch := range disk.batches[:len(disk.batches)-1] {
			for b := range batch {
				reads++
				next := pages.Range{File: b.File, Offset: b.End(), Length: block}
				if b.End()%(4*block) != 0 && !batch[next] && disk.batches[i+1][next] {
					alone++
				}
			}
		}
		if reads == 0 || alone > reads/50 {
			t.Errorf("share %v: %d of %d blocks were asked for one batch before what follows them in the file, "+
				"want at most a fiftieth of some", share, alone, reads)
		}
	}
}

// apartPages are pages whose blocks can be read apart: a block does not have to wait for what follows it.
type apartPages struct{ *readRecorder }

func (apartPages) CanReadApart() bool { return true }

// Blocks that can be read apart are asked for as soon as the window has room for one. They do not wait until four can
// be read together, for which more of the window has to be empty.
func TestApart(t *testing.T) {
	// countPerBatch is ten times the mean number of blocks that are asked for together, with a token on average.
	countPerBatch := func(together bool) (tenths int, token sim.Token) {
		r := newRig(t, 0.3, prefetch.Options{}, func(c *sim.Config) { c.Block = 2 * mib })
		disk := &readRecorder{Pages: r.pages}
		var pages pages.Levers = disk
		if !together {
			pages = apartPages{disk}
		}
		r.Controller = prefetch.New(pages, prefetch.Options{Memory: r.Memory(), Now: r.Now, Log: newFailingLog(t)})
		r.Attach(r.Controller)
		r.run(16)
		disk.batches = nil
		token = r.run(10)
		blocks := 0
		for _, batch := range disk.batches {
			blocks += len(batch)
		}
		return 10 * blocks / len(disk.batches), token
	}
	several, slow := countPerBatch(true)
	one, fast := countPerBatch(false)
	if one >= several || fast.Time > slow.Time*101/100 {
		t.Errorf("%d tenths of a block per batch, and %v a token; want less than the %d, and about the %v, "+
			"of blocks that cannot be read apart", one, fast.Time, several, slow.Time)
	}
}

// What is in memory without being held, staged or needed soon is paged out while the target computes. The target
// reads it around a miss, and it would take the room of the rest.
func TestSweep(t *testing.T) {
	r := newSettledRig(t, 0.15, prefetch.Options{Strategy: plan.Stream{}, Always: true}, nil)
	now := r.Now().Sub(r.Began())
	var before, after int64
	r.At(now+10*time.Millisecond, func() {
		// The target is at the beginning.
		if !r.pages.ReadAhead(pages.Range{Offset: 240 * mib, Length: 24 * mib}) {
			t.Error("ReadAhead = false: the disk is busy, and the test does not meet its case")
		}
		before = r.Used()
	})
	r.At(now+250*time.Millisecond, func() { after = r.Used() })
	r.run(3)
	if before < 30*mib || after > 20*mib {
		t.Errorf("%d bytes were in memory, want at least %d; later %d, want at most %d", before, 30*mib, after, 20*mib)
	}
}

// cycleOfLargeWeight is a cycle of which one weight has most of the bytes, as in a small model with a large vocabulary.
func cycleOfLargeWeight() *pattern.Cycle {
	c := model(0, 2)
	const size = 224 * mib
	c.Reads = append(c.Reads, pattern.CycleRead{
		Tensor: "output.weight", Op: "MUL_MAT", Offset: 64 * mib, Length: size, Nanos: size / 20,
	})
	return c
}

// newLargeWeightRig is a rig for cycleOfLargeWeight.
func newLargeWeightRig(t *testing.T, share float64) *rig {
	t.Helper()
	r := newRig(t, share, prefetch.Options{}, func(c *sim.Config) {
		c.Cycles, c.Block = []*pattern.Cycle{cycleOfLargeWeight()}, 2*mib
	})
	r.cycle = cycleOfLargeWeight()
	return r
}

// A weight that is larger than the window is paged out behind the target while its op reads it. Otherwise the window
// would be full in the middle of it, and the rest left to the target.
func TestLargeWeight(t *testing.T) {
	// If only the ends of ops were seen, 280 pages and more would be missing.
	for share, bar := range map[float64]int{0.8: 0, 0.5: 80, 0.3: 200} {
		r := newLargeWeightRig(t, share)
		r.run(16)
		late, asked := r.Summary().Late, r.pages.Calls.Touched
		token := r.run(10)
		if s := r.Summary(); token.Misses > bar || s.Late != late {
			t.Errorf("share %v: %d pages missing in 10 tokens, want at most %d; %d visits late, want 0",
				share, token.Misses, bar, s.Late-late)
		}
		// There would be 1280 and more if it asked again about what was already seen as touched.
		if n := r.pages.Calls.Touched - asked; n > 1200 {
			t.Errorf("share %v: %d calls of Touched in 10 tokens, want at most 1200", share, n)
		}
	}
}

// A batch may go through a weight more than once. So nothing of it is paged out before its op is over.
func TestLargeWeightOfABatch(t *testing.T) {
	r := newLargeWeightRig(t, 0.5)
	r.run(16)
	single := r.pages.Calls.Touched
	if single == 0 {
		t.Fatal("no calls of Touched for single tokens: the test does not meet its case")
	}
	r.Batch = 8
	r.run(3)
	if asked := r.pages.Calls.Touched; asked != single {
		t.Errorf("%d calls of Touched in batches, want 0", asked-single)
	}
}

// When the kernel takes what was read ahead before it is used, it is read again in time, and counts as taken.
func TestLostBeforeUse(t *testing.T) {
	r := newSettledRig(t, 0.5, prefetch.Options{}, nil)
	before := r.Summary().Taken
	now := r.Now().Sub(r.Began())
	const times = 10
	for i := range times {
		r.At(now+time.Duration(20*i)*time.Millisecond, func() { r.Take(24 * mib) })
	}
	token := r.run(3)
	if s := r.Summary(); s.Taken == before {
		t.Error("nothing counts as taken, want some")
	}
	if token.Misses > 16*times { // 16 pages: the block that is needed next
		t.Errorf("%d pages missing, want at most %d", token.Misses, 16*times)
	}
}

// Summary.Beyond accounts for all bytes that are read beyond those for which there is no room. Its parts add up.
func TestBeyond(t *testing.T) {
	for _, share := range []float64{0.85, 0.5} {
		r := newSettledRig(t, share, prefetch.Options{}, nil)
		token := r.run(10)
		s := r.Summary()
		b := s.Beyond
		missing := r.cycle.Bytes() - r.Limit()
		if b.Window != window || b.Reserve != reserve {
			t.Errorf("share %v: %+v, want a window of %d and a reserve of %d", share, b, window, reserve)
		}
		sum := missing + b.Window + b.Reserve + b.LeftFree + b.Unused + b.Twice + b.Taken
		if diff := token.HelperBytes - sum; diff < -4*mib || diff > 4*mib {
			t.Errorf("share %v: %d bytes read, want %d: the %d missing, and %+v",
				share, token.HelperBytes, sum, missing, b)
		}
	}
}

// A target that ends frees its own memory first. That does not count as room which was left unused.
func TestBeyondOfAnEnd(t *testing.T) {
	r := newSettledRig(t, 0.85, prefetch.Options{}, nil)
	r.run(10)
	before := r.Summary()
	r.SetLimit(r.Limit() + 40*mib)
	if err := r.Sleep(120 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if s := r.Summary(); s.Beyond != before.Beyond || s.Room != before.Room || s.Window != before.Window {
		t.Errorf("right after memory came free: room for %d bytes and %+v, want %d and %+v as before",
			s.Room, s.Beyond, before.Room, before.Beyond)
	}
	r.run(3)
	if s := r.Summary(); s.Room <= before.Room {
		t.Errorf("when the target goes on: room for %d bytes, want more than %d", s.Room, before.Room)
	}
}

// busyQueue is the pages of a machine whose reads begin late, because others are before them in the disk's queue.
type busyQueue struct {
	*sim.Pages
	now     func() time.Time
	waiting []queuedRead
}

// queuedRead is a read that begins at a time.
type queuedRead struct {
	pages.Range
	at time.Time
}

func (q *busyQueue) ReadAhead(r pages.Range) bool {
	q.waiting = append(q.waiting, queuedRead{r, q.now().Add(15 * time.Millisecond)})
	return true
}

func (q *busyQueue) IsReading(r pages.Range) bool {
	return slices.ContainsFunc(q.waiting, func(w queuedRead) bool { return w.Range == r })
}

func (q *busyQueue) Poll() error {
	q.waiting = slices.DeleteFunc(q.waiting, func(w queuedRead) bool {
		return !q.now().Before(w.at) && q.Pages.ReadAhead(w.Range)
	})
	return q.Pages.Poll()
}

// A read that has not begun yet is not taken for one whose pages the kernel has taken away. So it is no reason to
// leave more memory free.
func TestReadsThatBeginLate(t *testing.T) {
	r := newRig(t, 0.4, prefetch.Options{}, func(c *sim.Config) { c.Block = 2 * mib })
	pages := &busyQueue{Pages: r.pages, now: r.Now}
	r.Controller = prefetch.New(pages, prefetch.Options{
		Memory: r.Memory(), Now: r.Now, Log: newFailingLog(t), Always: true,
	})
	r.Attach(r.Controller)
	r.run(12)
	before := r.Summary()
	r.run(20)
	s := r.Summary()
	// Blocks that are read after their use displace others now and then. If each late read were taken for a loss, 13
	// MB would be left free, and a seventh would be read again.
	taken, streamed := s.Taken-before.Taken, s.Streamed-before.Streamed
	if streamed == 0 || taken > streamed/50 || s.Beyond.LeftFree > 6*mib {
		t.Errorf("%d bytes were taken, want at most a fiftieth of the %d that were streamed; "+
			"%d are left free, want at most %d",
			taken, streamed, s.Beyond.LeftFree, 6*mib)
	}
}

// The window is as large as it takes to keep the disk busy: larger if the disk is fast, or if the loop ticks rarely.
func TestWindowByMeasurement(t *testing.T) {
	measureWindow := func(bandwidth float64, tick time.Duration) int64 {
		r := newRig(t, 0.5, prefetch.Options{Always: true}, func(c *sim.Config) {
			c.Block, c.Bandwidth, c.Tick = 2*mib, bandwidth, tick
		})
		r.run(40)
		return r.Summary().Window
	}
	usual := measureWindow(1.5e9, time.Millisecond)
	if slow := measureWindow(0.4e9, time.Millisecond); slow > usual {
		t.Errorf("a slow disk: a window of %d MiB, want at most the usual %d", slow/mib, usual/mib)
	}
	if rare := measureWindow(1.5e9, 4*time.Millisecond); rare < usual+2*mib {
		t.Errorf("a tick each 4 ms: a window of %d MiB, want 2 more than the %d with one each ms", rare/mib, usual/mib)
	}
	if fast := measureWindow(12e9, time.Millisecond); fast < usual+2*mib {
		t.Errorf("a disk eight times as fast: a window of %d MiB, want 2 more than the usual %d", fast/mib, usual/mib)
	}
}

// If ops are large, a hundredth of what a token reads is added to the window for them. Otherwise the window could not
// have all that is streamed of one op at a time.
func TestWindowOfLargeOps(t *testing.T) {
	c := &pattern.Cycle{Files: []pattern.CycleFile{{Name: "model.gguf", Size: 4 << 30}}}
	const weight = 64 * mib
	for i := range int64(60) {
		c.Reads = append(c.Reads, pattern.CycleRead{
			Tensor: fmt.Sprintf("blk.%d.ffn_up.weight", i), Op: "MUL_MAT",
			Offset: i * weight, Length: weight, Nanos: weight / 20,
		})
	}
	r := newRigOf(t, c, 0.5, prefetch.Options{Always: true}, func(cfg *sim.Config) { cfg.Block, cfg.Page = 2*mib, mib })
	r.run(6)
	if got := r.Summary().Window; got < 44*mib || got > 64*mib {
		t.Errorf("a window of %d MiB, want 44 to 64", got/mib)
	}
}
