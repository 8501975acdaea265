// Package sim simulates a machine in virtual time: a page cache with a limit and readahead, a disk,
// a target that computes tokens, and a helper that gets the target's events and then a tick, as in
// reality. In the tests the helper is package prefetch's controller. Nothing sleeps and nothing is
// random, so the same configuration always gives the same run.
//
// It is a model, not the kernel. It has the properties of Linux that decide whether prefetching
// works. A cyclic scan larger than the cache always misses. Pages that were touched outlive pages
// that were only read ahead. A miss reads the pages around it, which evicts others. The disk serves
// one request after the other. Locked pages are never reclaimed. Reclaim and page faults take no
// time, except for Costs.
//
// A [Machine] is not safe for concurrent use. [Pages] and [Memory] are its implementations of
// package prefetch's interfaces.
package sim

// This file advances virtual time: what the target does, and when the helper is called.

import (
	"fmt"
	"slices"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// Config describes a machine and its target.
type Config struct {
	// Cycles are what the target's contexts read per token. Each read is of the whole extent, and
	// its Nanos are the time that computing takes. All cycles use the same file numbers.
	Cycles []*pattern.Cycle
	Limit  int64 // size of the page cache for the models, in bytes
	// Page is the page size of the cache in bytes. 0 means 64 KiB, which is coarser than the
	// kernel's, so that long runs are fast.
	Page      int64
	Block     int64         // size of the blocks that the helper reads, see pages.Levers; 0 means 1 MiB
	Readahead int64         // bytes that a miss of the target reads, aligned; at least a page
	Bandwidth float64       // of the disk, bytes per second
	Latency   time.Duration // of each request, in addition to the transfer
	Tick      time.Duration // interval between calls of the helper; 0 means a millisecond
	Costs     Costs
	// Route returns the experts that a layer's router chooses, for each row of the batch, one row
	// after the other. Tokens count from 0. The tensors of experts must be named "blk.N.…". Route
	// is nil if Cycles have no experts.
	Route func(token, layer int) []int32
	// Rows returns the rows that a decode looks up in tables: reads that gather, and not experts. Decodes
	// count from 0. It is nil if Cycles have no tables.
	Rows func(decode int) []int32
}

// Costs are times that the helper's calls take, per MiB.
type Costs struct{ PageOut, ReadAhead time.Duration }

// Helper gets the target's events, and a tick at each interval.
type Helper interface {
	Handle(event.Event) error
	Tick() error
}

// Token is the result of computing one token.
type Token struct {
	Time        time.Duration
	Misses      int   // pages that were not in memory when the target touched them
	TargetBytes int64 // read from disk by the target's misses
	HelperBytes int64 // read from disk by the helper meanwhile
}

// Machine is a running simulation. Make it with New.
type Machine struct {
	Batch      int32  // tokens of each decode from now on; 0 means 1
	Ubatch     int32  // tokens that go through the model at once, for which Config.Route chooses; 0 means Batch
	Warmup     bool   // decodes from now on belong to the warm-up
	Partial    bool   // not all ops of decodes from now on are seen
	Group      uint64 // the control group of target and helper; what is read from now on is charged to it
	HidePayers bool   // PayingGroup tells nothing
	cfg        Config
	cache      cache
	disk       disk
	helper     Helper
	now        int64 // the target's time, ns
	tick       int64 // when the helper is called next, ns
	doing      int64 // the helper's time, ns, which is ahead of now while the helper waits or works
	base       uint64
	queued     []event.Event
	told       map[int]bool // files for which FileSeen was sent
	shared     map[int]bool // files that another process maps
	decode     uint32
	layer      int     // the layer whose experts were chosen last in this token; -1: none yet
	chosen     []int32 // the experts of that layer
	token      Token
	timers     []timer
	err        error
}

type timer struct {
	at int64
	do func()
}

// epoch is the start of virtual time. It is not the zero time, which programs may interpret as "never".
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// New returns a machine with an empty page cache.
func New(cfg Config) *Machine {
	if cfg.Page == 0 {
		cfg.Page = 64 << 10
	}
	if cfg.Block == 0 {
		cfg.Block = 1 << 20
	}
	if cfg.Tick == 0 {
		cfg.Tick = time.Millisecond
	}
	cfg.Readahead = max(cfg.Readahead, cfg.Page)
	m := &Machine{cfg: cfg, Group: 1, base: 0x7f0000000000, told: map[int]bool{}, shared: map[int]bool{}}
	m.cache.init(&cfg)
	m.disk = disk{bandwidth: cfg.Bandwidth, latency: int64(cfg.Latency)}
	return m
}

// Attach gives the machine a helper, or another one after the helper has failed. Without a helper
// the target runs alone.
func (m *Machine) Attach(h Helper) { m.helper, m.tick, m.err = h, m.now, nil }

// Now returns the time of the helper's clock.
func (m *Machine) Now() time.Time { return epoch.Add(time.Duration(max(m.now, m.doing))) }

// Began returns the time at which that clock began.
func (m *Machine) Began() time.Time { return epoch }

// At schedules do at a time after the beginning, between two steps of the target. It can change the
// limit, for example, or remap files.
func (m *Machine) At(after time.Duration, do func()) {
	m.timers = append(m.timers, timer{int64(after), do})
}

// SetLimit changes the limit. Pages in excess are reclaimed at once.
func (m *Machine) SetLimit(bytes int64) {
	m.cfg.Limit = bytes
	m.cache.limit = bytes
	m.cache.reclaim(m.now)
}

// Take reclaims bytes of the page cache, as if another process had needed them and freed them
// since.
func (m *Machine) Take(bytes int64) {
	limit := m.cache.limit
	m.cache.limit = max(m.cache.used-bytes, 0)
	m.cache.reclaim(m.now)
	m.cache.limit = limit
}

// Occupy lets another process read bytes from the disk.
func (m *Machine) Occupy(bytes int64) { m.disk.read(max(m.now, m.doing), bytes) }

// Backlog returns how long a request that is made now waits for others at the disk.
func (m *Machine) Backlog() time.Duration {
	return time.Duration(max(m.disk.free-max(m.now, m.doing), 0))
}

// Limit returns the limit in bytes.
func (m *Machine) Limit() int64 { return m.cfg.Limit }

// Map sets whether another process maps a file. While it does, the file's pages cannot be paged
// out.
func (m *Machine) Map(file int, mapped bool) { m.shared[file] = mapped }

// Base returns the address at which the target maps the first byte of a file.
func (m *Machine) Base(file int) uint64 { return m.base + uint64(file)<<36 }

// Remap changes the addresses at which the target maps its files, from the next op on, as if it had
// loaded its model again.
func (m *Machine) Remap() { m.base += 1 << 40 }

// RemapTo has the target read its files at other addresses from the next op on, of which this one is that of file 0: a
// target that has loaded its model twice reads it by turns.
func (m *Machine) RemapTo(base uint64) { m.base = base }

// CacheBorrowed puts a part of a file into memory, at the expense of another control group. DropBorrowed takes it
// from there.
func (m *Machine) CacheBorrowed(r pages.Range) {
	for n := r.Offset / m.cfg.Page; n < (r.End()+m.cfg.Page-1)/m.cfg.Page && n < m.cache.pages(r.File); n++ {
		if p := m.cache.page(r.File, n); !p.present {
			*p = page{present: true, ready: m.now, borrowed: true}
		}
	}
}

// DropBorrowed undoes CacheBorrowed for what is still in memory of a part of a file.
func (m *Machine) DropBorrowed(r pages.Range) {
	for n := r.Offset / m.cfg.Page; n < (r.End()+m.cfg.Page-1)/m.cfg.Page && n < m.cache.pages(r.File); n++ {
		if p := m.cache.page(r.File, n); p.borrowed {
			m.cache.remove(p)
		}
	}
}

// Used returns how many bytes of the models are in memory.
func (m *Machine) Used() int64 { return m.cache.used }

// Locked returns how many bytes are locked.
func (m *Machine) Locked() int64 { return m.cache.locked }

// Overcommitted returns the largest number of bytes by which the cache ever exceeded its limit,
// because the remaining pages were locked or being read. A real kernel would call the out-of-memory
// killer.
func (m *Machine) Overcommitted() int64 { return m.cache.over }

// Run computes tokens of one of the machine's cycles in a context, and returns a result for each.
// If the helper fails, it returns the helper's error.
func (m *Machine) Run(context uint64, cycle *pattern.Cycle, tokens int) ([]Token, error) {
	var all []Token
	for range tokens {
		m.token, m.layer = Token{}, -1
		begun := m.now
		m.decode++
		m.send(event.DecodeBegin{
			Time: m.now, PID: 1, TID: 1, Context: context, Decode: m.decode, Tokens: max(m.Batch, 1),
			Warmup: m.Warmup,
		})
		for i := range cycle.Reads {
			r := &cycle.Reads[i]
			if r.Experts && m.err == nil {
				m.route(r)
			}
			if m.err == nil {
				m.read(r)
			}
		}
		m.send(event.DecodeEnd{Time: m.now, PID: 1, TID: 1, Decode: m.decode, Partial: m.Partial})
		if m.err != nil {
			return all, m.err
		}
		m.token.Time = time.Duration(m.now - begun)
		all = append(all, m.token)
	}
	return all, nil
}

// Sleep advances time while the target does nothing.
func (m *Machine) Sleep(d time.Duration) error {
	m.until(m.now + int64(d))
	return m.err
}

// Rest advances time while neither the target nor the helper does anything, after the helper gave
// up and Run returned its error.
func (m *Machine) Rest(d time.Duration) {
	m.err, m.helper = nil, nil
	m.until(m.now + int64(d))
}

// route chooses the experts of a read's layer, if this is the first read of experts in that layer.
// The helper gets the event at once.
func (m *Machine) route(r *pattern.CycleRead) {
	var layer int
	if _, m.err = fmt.Sscanf(r.Tensor, "blk.%d.", &layer); m.err != nil || layer == m.layer {
		return
	}
	m.layer, m.chosen = layer, m.cfg.Route(int(m.decode)-1, layer)
	if m.helper != nil {
		m.send(event.Selected{
			Time: m.now, PID: 1, TID: 1, Decode: m.decode, Layer: int32(layer), IDs: m.chosen,
			IDRows: m.rows(),
		})
		m.call()
	}
}

// rows is for how many tokens the present ops compute.
func (m *Machine) rows() int {
	if m.Ubatch > 0 {
		return int(m.Ubatch)
	}
	return int(max(m.Batch, 1))
}

// read simulates an op that reads one weight, or the chosen experts of it. It touches the pages in
// order, and computes in between.
func (m *Machine) read(r *pattern.CycleRead) {
	if !m.told[r.File] {
		m.told[r.File] = true
		m.send(event.FileSeen{PID: 1, File: FileID(r.File), ID: FileID(r.File), Path: m.Path(r.File)})
	}
	op := &event.Op{Time: m.now, Stall: -1, PID: 1, TID: 1, Decode: m.decode, Name: r.Op}
	// its type is 0, which is F32
	source := event.Source{
		Name: r.Tensor, Data: m.Base(r.File) + uint64(r.Offset), InFile: true, File: FileID(r.File),
		Offset: r.Offset,
	}
	parts := []pages.Range{{File: r.File, Offset: r.Offset, Length: r.Length}}
	source.NE, source.NB = [4]int64{r.Length / 4, 1, 1, 1}, [4]int64{4, r.Length, r.Length, r.Length}
	if r.Gathers() {
		n := r.Length / r.Slice
		source.NE, source.NB = [4]int64{r.Slice / 4, 1, n, 1}, [4]int64{4, r.Slice, r.Slice, r.Length}
		op.GatherDim, op.ByExpert, op.IDs, op.IDRows = 2, true, m.chosen, m.rows()
		ids := distinct(m.chosen)
		if !r.Experts {
			source.NE, source.NB = [4]int64{r.Slice / 4, n, 1, 1}, [4]int64{4, r.Slice, r.Length, r.Length}
			op.GatherDim, op.ByExpert, op.IDs, op.IDRows = 1, false, m.cfg.Rows(int(m.decode)-1), 1
			ids = op.IDs // in the order of the batch
			m.send(event.Lookup{Time: m.now, PID: 1, TID: 1, Decode: m.decode, Table: source, IDs: ids})
			if m.helper != nil && len(ids) > 1 {
				m.call()
			}
		}
		parts = nil
		for _, id := range ids {
			parts = append(parts, pages.Range{File: r.File, Offset: r.Offset + int64(id)*r.Slice, Length: r.Slice})
		}
	}
	var pages int64
	for _, s := range parts {
		pages += (s.End()-1)/m.cfg.Page - s.Offset/m.cfg.Page + 1
	}
	for _, s := range parts {
		for page := s.Offset / m.cfg.Page; page <= (s.End()-1)/m.cfg.Page; page++ {
			m.touch(s.File, page)
			m.until(m.now + max(r.Nanos, 0)/pages)
		}
	}
	op.Duration = m.now - op.Time
	op.Sources = []event.Source{source}
	m.send(op)
}

// distinct returns each id once, in ascending order, as a target computes with them.
func distinct(ids []int32) []int32 {
	return slices.Compact(slices.Sorted(slices.Values(ids)))
}

// touch waits until a page is in memory. A miss reads it first.
func (m *Machine) touch(file int, page int64) {
	p := m.cache.page(file, page)
	if !p.present {
		m.token.Misses++
		around := m.cfg.Readahead / m.cfg.Page
		start := page / around * around
		m.token.TargetBytes += m.load(file, start, start+around, m.now)
	}
	if p.ready > m.now {
		m.until(p.ready)
	}
	m.cache.touch(p)
}

// load reads the absent pages of [from, to) in one request made at time now, and returns how many
// bytes they have.
func (m *Machine) load(file int, from, to, now int64) (bytes int64) {
	var absent []*page
	for n := from; n < min(to, m.cache.pages(file)); n++ {
		if p := m.cache.page(file, n); !p.present {
			absent = append(absent, p)
		}
	}
	if len(absent) == 0 {
		return 0
	}
	bytes = int64(len(absent)) * m.cfg.Page
	ready := m.disk.read(now, bytes)
	for _, p := range absent {
		m.cache.insert(p, ready, now)
		p.payer = m.Group
	}
	return bytes
}

// until advances the target's time to t, and runs timers and the helper when they are due.
func (m *Machine) until(t int64) {
	for m.err == nil {
		next := t
		timer := -1
		for i, tm := range m.timers {
			if tm.at <= next {
				next, timer = tm.at, i
			}
		}
		if m.helper != nil && m.tick <= next {
			m.now = max(m.now, m.tick)
			m.call()
			continue
		}
		m.now = max(m.now, next)
		if timer < 0 {
			return
		}
		do := m.timers[timer].do
		m.timers = append(m.timers[:timer], m.timers[timer+1:]...)
		do()
	}
}

// call passes the queued events and a tick to the helper. The helper's time advances by itself
// while the target continues.
func (m *Machine) call() {
	m.doing = m.now
	events := m.queued
	m.queued = nil
	for _, e := range events {
		if m.err = m.helper.Handle(e); m.err != nil {
			return
		}
	}
	if m.err = m.helper.Tick(); m.err != nil {
		return
	}
	m.tick = max(m.tick+int64(m.cfg.Tick), m.doing)
	m.doing = 0
}

func (m *Machine) send(e event.Event) {
	if m.helper != nil {
		m.queued = append(m.queued, e)
	}
}

// FileID returns the identity of a file in events.
func FileID(file int) event.FileID { return event.FileID{Dev: 1, Ino: uint64(file) + 1} }

// Path returns the path of a file in events.
func (m *Machine) Path(file int) string { return fmt.Sprintf("model-%d.gguf", file) }
