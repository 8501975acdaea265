// Package replay runs a routing trace through a cache of experts, in virtual time: which experts are in
// memory when they are chosen, how many bytes are read, how long the target waits, for any policy and
// predictor, and for one that knows the future.
//
// It is a model. An expert is read and dropped whole; the disk serves one request after the other, demand
// before speculation; nothing else uses the memory or the disk; making room takes no time. Nothing sleeps
// and nothing is random.
package replay

// This file follows the target through the trace.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"tensorcast/moe"
)

// Config says what to simulate.
type Config struct {
	Capacity int64 // bytes of experts that may be in memory
	Policy   moe.Policy
	// Threshold: an expert is read ahead if it is chosen with at least this probability. With 1, or
	// without a predictor, nothing is.
	Threshold float32
	Disk      Disk
	Compute   Compute
	Full      bool // memory is full at the beginning, of the first experts of the file: loading a model leaves it so
}

// MinBandwidth is the least that a disk may have, in bytes per second, so that times do not overflow.
const MinBandwidth = 1e7

// Forecast is a predictor, and how many routers ahead it is asked each time that a router has chosen. It
// names what to read ahead, and tells a policy that listens (moe.Chance) what to expect.
type Forecast struct {
	Predictor moe.Predictor // may be nil
	Leads     []int
}

// Disk serves one request after the other.
type Disk struct {
	Bandwidth float64 // bytes per second, at least MinBandwidth; 0: reads take no time
	// from a request's end of transfer to when it is usable; the disk serves the next one meanwhile
	Latency time.Duration
}

// Compute is how long a layer takes if nothing is missing.
type Compute struct {
	Before time.Duration // attention and router
	After  time.Duration // the experts
}

// Result is what happened. Bytes and times are sums over the tokens.
type Result struct {
	Tokens int `json:"tokens"`
	Used   int `json:"used"` // experts that were chosen
	Hits   int `json:"hits"` // of them: in memory when they were chosen
	Late   int `json:"late"` // of them: being read ahead, but not there yet; the others were missing

	UsedBytes        int64 `json:"used_bytes"`
	DemandBytes      int64 `json:"demand_bytes"`      // read when they were chosen
	SpeculativeBytes int64 `json:"speculative_bytes"` // read ahead of that
	LateBytes        int64 `json:"late_bytes"`        // of those: awaited all the same
	// of those: dropped, or left over, without having been used
	WastedBytes int64         `json:"wasted_bytes"`
	Stall       time.Duration `json:"stall_ns"` // waiting for the disk
	Time        time.Duration `json:"time_ns"`

	TokenBytes []int64 `json:"-"` // by token: DemandBytes
}

// HitRate is the share of the chosen experts that were in memory.
func (r *Result) HitRate() float64 { return float64(r.Hits) / float64(max(r.Used, 1)) }

// PerToken is a number of bytes as a mean per token.
func (r *Result) PerToken(bytes int64) int64 { return bytes / int64(max(r.Tokens, 1)) }

// Errors of Run.
var (
	ErrNoDecode = errors.New("the trace has no generated tokens")
	ErrNoSizes  = errors.New("the trace does not tell how large the experts are")
)

// listener is a policy that wants to know what is expected.
type listener interface {
	Expect(layer int, p []float32)
}

// Run replays a trace in several machines that share nothing but what is forecast, and counts what
// happens from the first generated token on. The prompt comes before, token by token: policy and
// predictor learn from it, and the cache is filled. (A real target computes a prompt layer by layer.)
// Policies and predictor must be new. It fails with ErrNoDecode, ErrNoSizes, or ctx's error.
func Run(ctx context.Context, t *moe.Trace, f Forecast, configs ...Config) ([]*Result, error) {
	first := t.FirstDecode()
	switch {
	case first == len(t.Tokens):
		return nil, ErrNoDecode
	case t.TokenBytes() == 0:
		return nil, ErrNoSizes
	}
	var all []*machine
	for i := range configs {
		cfg := &configs[i]
		if cfg.Capacity < 0 || cfg.Disk.Bandwidth != 0 && !(cfg.Disk.Bandwidth >= MinBandwidth) {
			return nil, fmt.Errorf("a cache of %d bytes, a disk of %g bytes per second", cfg.Capacity,
				cfg.Disk.Bandwidth)
		}
		all = append(all, newMachine(t, cfg))
	}
	p := make([]float32, t.Experts)
	for token := range t.Tokens {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if token == first {
			for _, m := range all {
				m.begin()
			}
		}
		f.token(t, token, p, all)
		if token >= first {
			for _, m := range all {
				m.result.TokenBytes = append(m.result.TokenBytes, m.result.DemandBytes-m.told)
				m.told = m.result.DemandBytes
			}
		}
	}
	var results []*Result
	for _, m := range all {
		for id := range m.items {
			if m.items[id].staged {
				m.result.WastedBytes += m.bytes(id)
			}
		}
		m.result.Tokens = len(t.Tokens) - first
		m.result.Time = time.Duration(m.now - m.began)
		results = append(results, &m.result)
	}
	return results, nil
}

// token leads the machines through a token. p has room for all experts.
func (f *Forecast) token(t *moe.Trace, token int, p []float32, all []*machine) {
	if f.Predictor != nil {
		f.Predictor.Begin(t.Tokens[token].ID)
	}
	for layer := range t.Layers {
		chosen := t.Chosen(token, layer)
		for _, m := range all {
			m.choose(layer, chosen)
		}
		if f.Predictor != nil {
			f.Predictor.Observe(layer, chosen)
			for _, lead := range f.Leads {
				target := (layer + lead) % len(t.Layers)
				f.Predictor.Scores(target, p)
				for e, z := range p {
					p[e] = 1 / (1 + float32(math.Exp(-float64(z))))
				}
				for _, m := range all {
					m.expect(target, lead, p)
				}
			}
		}
		for _, m := range all {
			m.compute(layer, chosen)
		}
	}
}

// machine is a running simulation. An expert's number is layer*Experts + expert.
type machine struct {
	cfg    *Config
	trace  *moe.Trace
	shape  moe.Shape
	now    int64 // ns
	began  int64 // when the first counted token began
	free   int64 // when the disk has served all requests
	items  []item
	in     []int // the experts that are in memory or being read
	used   int64 // their bytes
	queue  []wish
	ready  int64 // when what was chosen is there
	order  []int32
	least  []worth // what may go next, as of the last change of the policy's mind; a few, found with one look at all
	listen listener
	router int // how many have chosen
	result Result
	told   int64 // of Result.DemandBytes, in Result.TokenBytes
}

type item struct {
	at     int   // in machine.in, from 1; 0: not in memory
	ready  int64 // when its read ends
	staged bool  // read ahead, and not used yet
	busy   bool  // chosen by the layer that computes
	wanted bool  // in the queue, or probable in a layer to come
}

// wish is an expert to be read ahead.
type wish struct {
	id  int
	p   float32
	due int // the router that may choose it
}

func newMachine(t *moe.Trace, cfg *Config) *machine {
	s := t.Shape()
	m := &machine{
		cfg: cfg, trace: t, shape: s, items: make([]item, s.Layers*s.Experts), order: make([]int32, s.Experts),
	}
	m.listen, _ = cfg.Policy.(listener)
	m.least = make([]worth, 0, 2*s.K)
	for id := 0; cfg.Full && id < len(m.items) && m.used+m.bytes(id) <= cfg.Capacity; id++ {
		m.insert(id, 0)
	}
	return m
}

// begin begins to count.
func (m *machine) begin() {
	m.result, m.began = Result{}, m.now
	for id := range m.items {
		m.items[id].staged = false
	}
}

func (m *machine) layer(id int) int   { return id / m.shape.Experts }
func (m *machine) bytes(id int) int64 { return m.trace.Layers[m.layer(id)].Bytes }

// choose has a layer's router choose, and what is missing read.
func (m *machine) choose(layer int, chosen []int32) {
	m.until(m.now + int64(m.cfg.Compute.Before))
	m.cfg.Policy.Observe(layer, chosen)
	m.refute(layer)
	m.least = m.least[:0]
	m.ready = m.demand(layer, chosen)
}

// compute waits for what was chosen, and computes.
func (m *machine) compute(layer int, chosen []int32) {
	m.least = m.least[:0]
	m.speculate()
	m.router++
	if m.ready > m.now {
		m.result.Stall += time.Duration(m.ready - m.now)
		m.until(m.ready)
	}
	m.until(m.now + int64(m.cfg.Compute.After))
	for _, e := range chosen {
		m.items[layer*m.shape.Experts+int(e)].busy = false
	}
}

// refute takes what was wished for a layer out of the queue: its router has chosen.
func (m *machine) refute(layer int) {
	m.queue = slices.DeleteFunc(m.queue, func(w wish) bool { return m.layer(w.id) == layer })
	for id := layer * m.shape.Experts; id < (layer+1)*m.shape.Experts; id++ {
		m.items[id].wanted = false
	}
}

// demand has the chosen experts read, and returns when they are all there.
func (m *machine) demand(layer int, chosen []int32) (ready int64) {
	r := &m.result
	for _, e := range chosen {
		m.items[layer*m.shape.Experts+int(e)].busy = true
	}
	for _, e := range chosen {
		id := layer*m.shape.Experts + int(e)
		it := &m.items[id]
		r.Used++
		r.UsedBytes += m.bytes(id)
		switch {
		case it.at == 0:
			r.DemandBytes += m.bytes(id)
			read := m.read(m.now, m.bytes(id))
			ready = max(ready, read)
			if m.room(m.bytes(id), true) { // else it is used from a buffer, and forgotten
				m.insert(id, read)
			}
		case it.ready > m.now:
			r.Late++
			r.LateBytes += m.bytes(id)
			ready = max(ready, it.ready)
		default:
			r.Hits++
		}
		it.staged = false
	}
	return ready
}

// expect tells the policy what is expected of a layer, and wishes for what is probable.
func (m *machine) expect(target, lead int, p []float32) {
	if m.listen != nil {
		m.listen.Expect(target, p)
	}
	if m.cfg.Threshold >= 1 || lead >= m.shape.Layers {
		return
	}
	for _, e := range moe.Top(p, m.order, 3*m.shape.K) {
		if p[e] < m.cfg.Threshold {
			break
		}
		id := target*m.shape.Experts + int(e)
		if it := &m.items[id]; !it.wanted {
			it.wanted = true // also what is there is not taken out now
			if it.at == 0 {
				m.queue = append(m.queue, wish{id: id, p: p[e], due: m.router + lead})
			}
		}
	}
}

// read has the disk transfer bytes, and returns when they are there.
func (m *machine) read(now, bytes int64) int64 {
	if m.cfg.Disk.Bandwidth == 0 {
		return now
	}
	m.free = max(m.free, now) + int64(float64(bytes)/m.cfg.Disk.Bandwidth*1e9)
	return m.free + int64(m.cfg.Disk.Latency)
}

// until advances time, and lets the disk speculate when it is idle.
func (m *machine) until(t int64) {
	for len(m.queue) > 0 && max(m.free, m.now) < t {
		m.now = max(m.free, m.now)
		if !m.speculate() {
			break
		}
	}
	m.now = max(m.now, t)
}

// speculate begins reads of the queue while the disk is idle: one at a time, so that demand waits for no
// more than that. What is nearest comes first, then what is most probable. It reports whether it began
// any.
func (m *machine) speculate() (begun bool) {
	for len(m.queue) > 0 && m.free <= m.now {
		best := 0
		for i := range m.queue {
			if m.queue[i].before(&m.queue[best]) {
				best = i
			}
		}
		w := m.queue[best]
		m.queue = slices.Delete(m.queue, best, best+1)
		if !m.room(m.bytes(w.id), false) {
			m.items[w.id].wanted = false
			continue
		}
		begun = true
		m.insert(w.id, m.read(m.now, m.bytes(w.id)))
		m.items[w.id].staged = true
		m.result.SpeculativeBytes += m.bytes(w.id)
	}
	return begun
}

// before says which wish goes first.
func (w *wish) before(v *wish) bool { return w.due < v.due || w.due == v.due && w.p > v.p }

func (m *machine) insert(id int, ready int64) {
	m.in = append(m.in, id)
	m.items[id].at, m.items[id].ready = len(m.in), ready
	m.used += m.bytes(id)
}

func (m *machine) remove(id int) {
	it := &m.items[id]
	last := m.in[len(m.in)-1]
	m.in[it.at-1] = last
	m.items[last].at = it.at
	m.in = m.in[:len(m.in)-1]
	it.at = 0
	m.used -= m.bytes(id)
	if it.staged {
		it.staged = false
		m.result.WastedBytes += m.bytes(id)
	}
}

// room takes experts out until there is room for bytes, and reports whether there is. It spares what
// computes, what is being read and, unless it must not, what is wanted soon.
func (m *machine) room(bytes int64, must bool) bool {
	for m.used+bytes > m.cfg.Capacity {
		victim := m.victim(false)
		if victim < 0 && must {
			victim = m.victim(true)
		}
		if victim < 0 {
			return false
		}
		m.remove(victim)
	}
	return true
}

// victim is what is worth least; -1 if there is nothing to be taken out. Among equals it is the first,
// whatever the order of reads was. With wanted it may be what is wanted soon.
func (m *machine) victim(wanted bool) int {
	if wanted {
		m.least = m.least[:0]
	}
	for len(m.least) > 0 {
		id := m.least[0].id
		m.least = slices.Delete(m.least, 0, 1)
		if m.mayGo(id, false) {
			return id
		}
	}
	for _, id := range m.in {
		if !m.mayGo(id, wanted) {
			continue
		}
		v := worth{id, m.cfg.Policy.Worth(m.layer(id), int32(id%m.shape.Experts))}
		at := len(m.least)
		for at > 0 && v.less(&m.least[at-1]) {
			at--
		}
		if at == cap(m.least) {
			continue
		}
		if len(m.least) == cap(m.least) {
			m.least = m.least[:len(m.least)-1]
		}
		m.least = slices.Insert(m.least, at, v)
	}
	if len(m.least) == 0 {
		return -1
	}
	id := m.least[0].id
	m.least = slices.Delete(m.least, 0, 1)
	if wanted {
		m.least = m.least[:0]
	}
	return id
}

// mayGo says whether an expert may be taken out.
func (m *machine) mayGo(id int, wanted bool) bool {
	it := &m.items[id]
	return it.at > 0 && !it.busy && (!it.wanted || wanted) && it.ready <= m.now
}

// worth is what keeping an expert is worth.
type worth struct {
	id int
	w  float32
}

func (a *worth) less(b *worth) bool { return a.w < b.w || a.w == b.w && a.id < b.id }

// Probable is a threshold with which no more is read than LRU would read, even if the disk has time for
// all of it: found on one public trace (Qwen3-30B with room for 6, 12 and 24 % of its experts). Another
// model may want another one.
const Probable = 0.45

// IDs is the forecast that is known best here for a model whose ids alone are seen: of what comes next,
// and of the same layer one token later, which says what to keep.
func IDs(s moe.Shape) Forecast {
	leads := []int{1, s.Layers}
	return Forecast{Predictor: moe.NewIDs(s, leads, tableBytes), Leads: leads}
}

// Causal is the policy that does best with it.
func Causal(s moe.Shape, capacity int64, threshold float32) Config {
	return Config{Capacity: capacity, Policy: moe.NewChance(s, 0.93), Threshold: threshold}
}

// tableBytes bounds the tables of a predictor.
const tableBytes = 64 << 20
