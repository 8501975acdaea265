package sim_test

// These tests check the properties of Linux that the simulation is to have.

import (
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
	"tensorcast/sim"
)

const mib = 1 << 20

// scan returns a cycle of equal reads in the order of the file.
func scan(reads int, bytes, nanos int64) *pattern.Cycle {
	c := &pattern.Cycle{}
	for i := range int64(reads) {
		c.Reads = append(c.Reads, pattern.CycleRead{
			Tensor: "w", Op: "MUL_MAT", Offset: i * bytes, Length: bytes, Nanos: nanos,
		})
	}
	return c
}

func tokens(t *testing.T, m *sim.Machine, c *pattern.Cycle, n int) []sim.Token {
	t.Helper()
	all, err := m.Run(1, c, n)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// near reports whether two times differ by at most a thousandth.
func near(a, b time.Duration) bool { return a > b-b/1000-1 && a < b+b/1000+1 }

// A cyclic scan that fits is read once. If it is slightly too large, it misses everything each
// time.
func TestCyclicScan(t *testing.T) {
	c := scan(64, mib, 1e6)
	m := sim.New(sim.Config{Cycles: []*pattern.Cycle{c}, Limit: 64 * mib, Bandwidth: 1 << 30})
	all := tokens(t, m, c, 3)
	if all[0].TargetBytes != 64*mib || all[1].TargetBytes != 0 || all[2].Misses != 0 {
		t.Errorf("that fits: %+v; want all[0].TargetBytes = %v, all[1].TargetBytes = 0, all[2].Misses = 0", all, 64*mib)
	}
	// There are 64 reads of a millisecond. The first token also waits for 64 MiB at 1 GiB/s, page
	// by page.
	if want := 64 * time.Millisecond; !near(all[1].Time, want) || !near(all[0].Time, want+time.Second/16) {
		t.Errorf("that fits takes %v, then %v", all[0].Time, all[1].Time)
	}
	m = sim.New(sim.Config{Cycles: []*pattern.Cycle{c}, Limit: 63 * mib, Bandwidth: 1 << 30})
	for i, token := range tokens(t, m, c, 4) {
		if token.TargetBytes < 63*mib {
			t.Errorf("too large by a mebibyte, token %d reads %d bytes; want at least %v", i, token.TargetBytes, 63*mib)
		}
	}
	if m.Used() > 63*mib || m.Overcommitted() != 0 {
		t.Errorf("%d bytes in memory", m.Used())
	}
}

// Readahead reads the same bytes in fewer requests. If only a part is needed, it reads bytes that
// nobody wants.
func TestReadahead(t *testing.T) {
	c := scan(16, mib, 0)
	cfg := sim.Config{Cycles: []*pattern.Cycle{c}, Limit: 4 * mib, Bandwidth: 1 << 30, Latency: time.Millisecond}
	plain := tokens(t, sim.New(cfg), c, 1)[0]
	cfg.Readahead = mib
	ahead := tokens(t, sim.New(cfg), c, 1)[0]
	if plain.Misses != 256 || ahead.Misses != 16 || plain.TargetBytes != ahead.TargetBytes {
		t.Errorf("without %+v, with %+v; want plain.Misses = 256, ahead.Misses = 16, plain.TargetBytes = %v", plain,
			ahead, ahead.TargetBytes)
	}
	// Each request has a latency of a millisecond.
	if saved := plain.Time - ahead.Time; !near(saved, 240*time.Millisecond) {
		t.Errorf("saved %v", saved)
	}
	sparse := &pattern.Cycle{}
	for i := range int64(16) {
		sparse.Reads = append(sparse.Reads, pattern.CycleRead{Offset: i * mib, Length: 64 << 10})
	}
	cfg.Cycles = []*pattern.Cycle{sparse}
	if token := tokens(t, sim.New(cfg), sparse, 1)[0]; token.TargetBytes < 15*mib {
		t.Errorf("%d bytes; want at least %v", token.TargetBytes, 15*mib)
	}
}

// idle is a helper that records when it is called.
type idle struct {
	m      *sim.Machine
	events int
	ticks  []time.Time
	do     func()
}

func (h *idle) Handle(event.Event) error { h.events++; return nil }

func (h *idle) Tick() error {
	h.ticks = append(h.ticks, h.m.Now())
	if h.do != nil {
		h.do()
	}
	return nil
}

// A helper is called every tick, with all events. Its waiting takes its own time, not the target's.
func TestHelper(t *testing.T) {
	c := scan(4, mib, 25e6)
	m := sim.New(sim.Config{Cycles: []*pattern.Cycle{c}, Limit: 100 * mib, Bandwidth: 100 * mib,
		Tick: 10 * time.Millisecond})
	levers := m.Pages()
	h := &idle{m: m}
	locked := false
	h.do = func() {
		if locked || len(h.ticks) < 3 {
			return
		}
		locked = true
		if _, _, err := levers.Open(m.Path(0), event.FileID{}); err != nil {
			t.Error(err)
		}
		if err := levers.Lock(pages.Range{Length: 4 * mib}); err != nil {
			t.Error(err)
		}
	}
	m.Attach(h)
	all := tokens(t, m, c, 2)
	// The events are a file, and for each token its beginning, four ops and its end. The last op
	// and its end were not sent yet.
	if h.events != 1+2*6-2 {
		t.Errorf("%d events; want %v", h.events, 1+2*6-2)
	}
	for i := 1; i < len(h.ticks); i++ {
		gap := h.ticks[i].Sub(h.ticks[i-1])
		if waited := i == 3; waited != (gap > 11*time.Millisecond) {
			t.Errorf("tick %d comes %v after the one before; want more than 11ms only for tick 3", i, gap)
		}
	}
	if all[1].Misses != 0 || m.Locked() != 4*mib || !near(all[1].Time, 100*time.Millisecond) {
		t.Errorf("%+v, %d bytes locked", all[1], m.Locked())
	}
}

// Locked pages stay, even if others need the room. Other pages are dropped, or the limit is exceeded.
func TestLocked(t *testing.T) {
	c := scan(16, mib, 0)
	m := sim.New(sim.Config{Cycles: []*pattern.Cycle{c}, Limit: 8 * mib, Bandwidth: 1 << 30})
	levers := m.Pages()
	if _, _, err := levers.Open(m.Path(0), event.FileID{}); err != nil {
		t.Fatal(err)
	}
	first := pages.Range{Length: 6 * mib}
	if err := levers.Lock(first); err != nil {
		t.Fatal(err)
	}
	for i, token := range tokens(t, m, c, 3) {
		if token.TargetBytes != 10*mib {
			t.Errorf("token %d reads %d bytes; want %v", i, token.TargetBytes, 10*mib)
		}
	}
	if n, err := levers.ResidentBytes(first); n != 6*mib || err != nil || m.Overcommitted() != 0 {
		t.Errorf("%d bytes of those that are locked are in memory, %v; %d beyond the limit; want n = %v, "+
			"m.Overcommitted() = 0", n, err, m.Overcommitted(), 6*mib)
	}
	m.SetLimit(4 * mib)
	if m.Used() != 6*mib || m.Overcommitted() != 2*mib {
		t.Errorf("with a smaller limit %d bytes are used, %d beyond it; want m.Used() = %v, m.Overcommitted() = %v",
			m.Used(), m.Overcommitted(), 6*mib, 2*mib)
	}
	if err := levers.Release(first); err != nil {
		t.Fatal(err)
	}
	if m.Used() > 4*mib || m.Locked() != 0 {
		t.Errorf("released: %d bytes are used", m.Used())
	}
}

// Pages that the target touched outlive those that were only read ahead.
func TestReferencedPagesOutliveThoseReadAhead(t *testing.T) {
	c := scan(8, mib, 0)
	m := sim.New(sim.Config{Cycles: []*pattern.Cycle{c}, Limit: 6 * mib, Bandwidth: 1 << 40})
	levers := m.Pages()
	if _, _, err := levers.Open(m.Path(0), event.FileID{}); err != nil {
		t.Fatal(err)
	}
	part := &pattern.Cycle{Reads: c.Reads[:4]}
	tokens(t, m, part, 1)
	ahead := pages.Range{Offset: 4 * mib, Length: 2 * mib}
	levers.ReadAhead(ahead)
	if err := m.Sleep(time.Second); err != nil {
		t.Fatal(err)
	}
	levers.ReadAhead(pages.Range{Offset: 6 * mib, Length: mib}) // one MiB too much
	touched, _ := levers.ResidentBytes(pages.Range{Length: 4 * mib})
	left, _ := levers.ResidentBytes(ahead)
	if touched != 4*mib || left != mib {
		t.Errorf("of what was touched %d bytes are left, of what was read ahead %d; want touched = %v, left = %v",
			touched, left, 4*mib, mib)
	}
}

// Pages that are being read cannot be paged out yet. And paging out needs to know where the target
// maps the file.
func TestPageOut(t *testing.T) {
	c := scan(4, mib, 0)
	m := sim.New(sim.Config{Cycles: []*pattern.Cycle{c}, Limit: 100 * mib, Bandwidth: 1 << 30})
	levers := m.Pages()
	if _, _, err := levers.Open(m.Path(0), event.FileID{}); err != nil {
		t.Fatal(err)
	}
	r := pages.Range{Length: 4 * mib}
	resident := func() int64 { n, _ := levers.ResidentBytes(r); return n }
	out := func() {
		if err := levers.PageOut(r); err != nil {
			t.Fatal(err)
		}
	}
	levers.Map(0, 0x7f0000000000)
	levers.ReadAhead(r)
	if out(); resident() != 4*mib {
		t.Error("pages are gone before they came")
	}
	if err := m.Sleep(time.Second); err != nil {
		t.Fatal(err)
	}
	levers.Map(0, 0)
	if out(); resident() != 4*mib {
		t.Error("paged out of an unknown address")
	}
	levers.Map(0, 0x7f0000000000)
	if out(); resident() != 0 {
		t.Errorf("%d bytes are left; want 0", resident())
	}
	if _, _, err := levers.Open("other.gguf", event.FileID{}); err == nil {
		t.Error("no error for a file that is not there")
	}
}
