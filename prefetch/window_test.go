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

// asked remembers which blocks were asked for between two calls of Poll.
type asked struct {
	*sim.Pages
	batch   map[pages.Range]bool
	batches []map[pages.Range]bool
}

func (a *asked) ReadAhead(r pages.Range) bool {
	if !a.Pages.ReadAhead(r) {
		return false
	}
	if a.batch == nil {
		a.batch = map[pages.Range]bool{}
	}
	a.batch[r] = true
	return true
}

func (a *asked) Poll() error {
	if a.batch != nil {
		a.batches = append(a.batches, a.batch)
		a.batch = nil
	}
	return a.Pages.Poll()
}

// Large folios that follow each other in the file, and in the order of use, are asked for at once, up to a place that is the same each time: so that the last can be read
// first, and each finds the next one in memory.
func TestRuns(t *testing.T) {
	const block = 2 * mib
	for _, share := range []float64{0.3, 0.6, 0.85} {
		r := newRig(t, share, prefetch.Options{}, func(c *sim.Config) { c.Block = block })
		disk := &asked{Pages: r.pages}
		r.Controller = prefetch.New(disk, prefetch.Options{Memory: r.Memory(), Now: r.Now, Log: newFailingLog(t)})
		r.Attach(r.Controller)
		r.run(16)
		disk.batches = nil
		token := r.run(10)
		if token.Misses > 2*10 {
			t.Errorf("at %v: %d pages were missing", share, token.Misses)
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
			t.Errorf("at %v: %d of %d blocks were asked for right before what follows them", share, alone, reads)
		}
	}
}

// apart are pages that leave no mark: a block does not have to wait for what follows it.
type apart struct{ *asked }

func (apart) CanReadApart() bool { return true }

// Blocks that can be read apart are asked for as soon as the window has room for one: not four at once, for which more of the window has to be empty.
func TestApart(t *testing.T) {
	atOnce := func(together bool) (most int, token sim.Token) {
		r := newRig(t, 0.3, prefetch.Options{}, func(c *sim.Config) { c.Block = 2 * mib })
		disk := &asked{Pages: r.pages}
		var pages pages.Levers = disk
		if !together {
			pages = apart{disk}
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
	several, slow := atOnce(true)
	one, fast := atOnce(false)
	if one >= several || fast.Time > slow.Time*101/100 {
		t.Errorf("%d tenths of a block are asked for at once, and %d where they cannot be read apart; %v and %v a token", one, several, fast.Time, slow.Time)
	}
}

// What is in memory without being held, staged or needed soon is paged out while the target computes: its reads around a miss would take the room of the others.
func TestSweep(t *testing.T) {
	r := newSettledRig(t, 0.15, prefetch.Options{Strategy: plan.Stream{}, Always: true}, nil)
	now := r.Now().Sub(r.Began())
	var before, after int64
	r.At(now+10*time.Millisecond, func() {
		if !r.pages.ReadAhead(pages.Range{Offset: 240 * mib, Length: 24 * mib}) { // the target is at the beginning
			t.Error("the disk is busy")
		}
		before = r.Used()
	})
	r.At(now+250*time.Millisecond, func() { after = r.Used() })
	r.run(3)
	if before < 30*mib || after > 20*mib {
		t.Errorf("%d bytes were in memory, later %d", before, after)
	}
}

// giant is a cycle with one weight of most of its bytes, as a small model with a large vocabulary has.
func giant() *pattern.Cycle {
	c := model(0, 2)
	const size = 224 * mib
	c.Reads = append(c.Reads, pattern.CycleRead{Tensor: "output.weight", Op: "MUL_MAT", Offset: 64 * mib, Length: size, Nanos: size / 20})
	return c
}

// A weight that is larger than the window is paged out behind the target while it is being read: else the window would be full in the middle of it, and the rest left to the target.
func TestLargeWeight(t *testing.T) {
	for share, bar := range map[float64]int{0.8: 0, 0.5: 80, 0.3: 200} { // without looking into the op 280 and more
		r := newRig(t, share, prefetch.Options{}, func(c *sim.Config) { c.Cycles, c.Block = []*pattern.Cycle{giant()}, 2*mib })
		r.cycle = giant()
		r.run(16)
		late, asked := r.Summary().Late, r.pages.Calls.Touched
		token := r.run(10)
		if s := r.Summary(); token.Misses > bar || s.Late != late {
			t.Errorf("at %v: %d pages were missing in 10 tokens, %d visits late", share, token.Misses, s.Late-late)
		}
		if n := r.pages.Calls.Touched - asked; n > 1200 { // 1280 and more if what was seen to be touched is asked for again
			t.Errorf("at %v: in 10 tokens it was asked %d times what the target has touched", share, n)
		}
	}
}

// A batch may go through a weight more than once: nothing is paged out before its op is over.
func TestLargeWeightOfABatch(t *testing.T) {
	r := newRig(t, 0.5, prefetch.Options{}, func(c *sim.Config) { c.Cycles, c.Block = []*pattern.Cycle{giant()}, 2*mib })
	r.cycle = giant()
	r.run(16)
	single := r.pages.Calls.Touched
	if single == 0 {
		t.Fatal("nobody asked what the target has touched")
	}
	r.Batch = 8
	r.run(3)
	if asked := r.pages.Calls.Touched; asked != single {
		t.Errorf("asked %d times in batches", asked-single)
	}
}

// What was read ahead and taken before its use is read again in time, and counts as taken.
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
		t.Error("nothing was taken: the test does not meet its case")
	}
	if token.Misses > 16*times { // 16 pages are a block: that which is needed next
		t.Errorf("%d pages were missing", token.Misses)
	}
}

// What is read beyond what has no room is accounted for: the parts add up.
func TestBeyond(t *testing.T) {
	for _, share := range []float64{0.85, 0.5} {
		r := newSettledRig(t, share, prefetch.Options{}, nil)
		token := r.run(10)
		s := r.Summary()
		b := s.Beyond
		missing := r.cycle.Bytes() - r.Limit()
		if b.Window != window || b.Reserve != reserve {
			t.Errorf("at %v: %+v", share, b)
		}
		if diff := token.HelperBytes - (missing + b.Window + b.Reserve + b.LeftFree + b.Unused + b.Twice + b.Taken); diff < -4*mib || diff > 4*mib {
			t.Errorf("at %v: %d bytes read, %d missing: %+v leaves %d", share, token.HelperBytes, missing, b, diff)
		}
	}
}

// A target that ends frees its own memory first: that is not room which was left unused.
func TestBeyondOfAnEnd(t *testing.T) {
	r := newSettledRig(t, 0.85, prefetch.Options{}, nil)
	r.run(10)
	before := r.Summary()
	r.SetLimit(r.Limit() + 40*mib)
	if err := r.Sleep(120 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if s := r.Summary(); s.Beyond != before.Beyond || s.Room != before.Room || s.Window != before.Window {
		t.Errorf("room for %d, before %d; %+v, before %+v", s.Room, before.Room, s.Beyond, before.Beyond)
	}
	r.run(3)
	if s := r.Summary(); s.Room <= before.Room {
		t.Errorf("room for %d, before %d, while it goes on", s.Room, before.Room)
	}
}

// busyQueue is the pages of a machine whose reads begin late: those before them are under way.
type busyQueue struct {
	*sim.Pages
	now     func() time.Time
	waiting []late
}

type late struct {
	pages.Range
	at time.Time
}

func (q *busyQueue) ReadAhead(r pages.Range) bool {
	q.waiting = append(q.waiting, late{r, q.now().Add(15 * time.Millisecond)})
	return true
}

func (q *busyQueue) IsReading(r pages.Range) bool {
	return slices.ContainsFunc(q.waiting, func(l late) bool { return l.Range == r })
}

func (q *busyQueue) Poll() error {
	q.waiting = slices.DeleteFunc(q.waiting, func(l late) bool { return !q.now().Before(l.at) && q.Pages.ReadAhead(l.Range) })
	return q.Pages.Poll()
}

// A read that has not begun yet is not one whose pages were taken by the kernel: no more is left free for it.
func TestReadsThatBeginLate(t *testing.T) {
	r := newRig(t, 0.4, prefetch.Options{}, func(c *sim.Config) { c.Block = 2 * mib })
	pages := &busyQueue{Pages: r.pages, now: r.Now}
	r.Controller = prefetch.New(pages, prefetch.Options{Memory: r.Memory(), Now: r.Now, Log: newFailingLog(t), Always: true})
	r.Attach(r.Controller)
	r.run(12)
	before := r.Summary()
	r.run(20)
	s := r.Summary()
	// What is read too late, after its use, takes the room of others now and then. If each such read were taken for a loss, 13 MB would be left free, and a seventh would be read again.
	if taken, streamed := s.Taken-before.Taken, s.Streamed-before.Streamed; streamed == 0 || taken > streamed/50 || s.Beyond.LeftFree > 6*mib {
		t.Errorf("%d bytes were taken, %d are left free, %d streamed", taken, s.Beyond.LeftFree, streamed)
	}
}

// What is read ahead beside the ops is what keeps the disk busy: more where it is fast, or where the loop looks rarely.
func TestWindowByMeasurement(t *testing.T) {
	window := func(bandwidth float64, tick time.Duration) int64 {
		r := newRig(t, 0.5, prefetch.Options{Always: true}, func(c *sim.Config) { c.Block, c.Bandwidth, c.Tick = 2*mib, bandwidth, tick })
		r.run(40)
		return r.Summary().Window
	}
	usual := window(1.5e9, time.Millisecond)
	if slow := window(0.4e9, time.Millisecond); slow > usual {
		t.Errorf("a slow disk has a window of %d MiB, a fast one of %d", slow/mib, usual/mib)
	}
	if rare := window(1.5e9, 4*time.Millisecond); rare < usual+2*mib {
		t.Errorf("looking every 4 ms has a window of %d MiB, every 1 ms of %d", rare/mib, usual/mib)
	}
	if fast := window(12e9, time.Millisecond); fast < usual+2*mib {
		t.Errorf("a disk eight times as fast has a window of %d MiB, else %d", fast/mib, usual/mib)
	}
}

// Where ops are large, a hundredth of what a token reads is for them: else what streams of one would not be in the window at once.
func TestWindowOfLargeOps(t *testing.T) {
	c := &pattern.Cycle{Files: []pattern.CycleFile{{Name: "model.gguf", Size: 4 << 30}}}
	const weight = 64 * mib
	for i := range int64(60) {
		c.Reads = append(c.Reads, pattern.CycleRead{Tensor: fmt.Sprintf("blk.%d.ffn_up.weight", i), Op: "MUL_MAT", Offset: i * weight, Length: weight, Nanos: weight / 20})
	}
	r := newRigOf(t, c, 0.5, prefetch.Options{Always: true}, func(cfg *sim.Config) { cfg.Block, cfg.Page = 2*mib, mib })
	r.run(6)
	if got := r.Summary().Window; got < 44*mib || got > 64*mib {
		t.Errorf("a window of %d MiB", got/mib)
	}
}
