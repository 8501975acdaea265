// Package replay runs a routing trace through a cache of experts in virtual time. It says which experts
// are in memory when they are chosen, how many bytes are read, and how long the target waits, for any
// policy and predictor, and for a policy that knows the future.
//
// It is a model. An expert is read and dropped as a whole. The disk serves one request after the other,
// demand before speculation. Nothing else uses the memory or the disk, and making room takes no time.
// Nothing sleeps, and nothing is random.
package replay

// This file follows the target through the trace.

import (
	"cmp"
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
	// Threshold is the least probability of being chosen with which an expert is read ahead. With 1, or
	// without a predictor, nothing is read ahead.
	Threshold float32
	Disk      Disk
	Compute   Compute
	// Full says that memory is full at the beginning, of the first experts of the file: loading a model
	// leaves it so.
	Full bool
}

// MinBandwidth is the least bandwidth of a disk in bytes per second, so that times do not overflow.
const MinBandwidth = 10 << 20

// Forecast is a predictor, and how many routers ahead it is asked each time that a router has chosen. It
// names what to read ahead, and tells a policy that listens, as moe.HitDensity does, what to expect.
type Forecast struct {
	Predictor moe.Predictor // may be nil
	Leads     []int
}

// Disk serves one request after the other.
type Disk struct {
	Bandwidth float64 // bytes per second, at least MinBandwidth; 0: reads take no time
	// Latency is the time from the end of a request's transfer until its bytes can be used. The disk
	// serves the next request meanwhile.
	Latency time.Duration
}

// Compute is how long a layer takes if nothing is missing.
type Compute struct {
	Before time.Duration // attention and router
	After  time.Duration // the experts
}

// Result says what happened. Bytes and times are sums over the tokens.
type Result struct {
	Tokens int `json:"tokens"`
	Used   int `json:"used"` // experts that were chosen
	Hits   int `json:"hits"` // of these: in memory when they were chosen
	Late   int `json:"late"` // of these: being read ahead, but not there yet; the others were missing

	UsedBytes        int64 `json:"used_bytes"`
	DemandBytes      int64 `json:"demand_bytes"`      // read when they were chosen
	SpeculativeBytes int64 `json:"speculative_bytes"` // read ahead
	LateBytes        int64 `json:"late_bytes"`        // of these: the target waited for them
	// Of these: dropped, or left over, without having been used.
	WastedBytes int64         `json:"wasted_bytes"`
	Stall       time.Duration `json:"stall_ns"` // waiting for the disk
	Time        time.Duration `json:"time_ns"`

	TokenBytes []int64 `json:"-"` // DemandBytes of each token
	TokenUsed  []int   `json:"-"` // Used of each token
	TokenHits  []int   `json:"-"` // Hits of each token
}

// HitRate is the share of the chosen experts that were in memory.
func (r *Result) HitRate() float64 { return float64(r.Hits) / float64(max(r.Used, 1)) }

// PerToken is the mean of a number of bytes per token.
func (r *Result) PerToken(bytes int64) int64 { return bytes / int64(max(r.Tokens, 1)) }

// Errors of Run.
var (
	ErrNoDecode = errors.New("the trace has no generated tokens")
	ErrNoSizes  = errors.New("the trace does not tell how large the experts are")
)

// listener is a policy that wants to know how likely the experts of a layer are.
type listener interface {
	Expect(layer int, p []float32)
}

// Run replays a trace in several machines that share only the forecast, and counts what happens from the
// first generated token on. The prompt comes before, token by token: policy and predictor learn from it,
// and the cache is filled. A real target computes a prompt layer by layer. Policies and predictor must be
// new. It fails with ErrNoDecode, ErrNoSizes, or ctx's error.
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
				m.startCounting()
			}
		}
		f.runToken(t, token, p, all)
		if token >= first {
			for _, m := range all {
				m.countToken()
			}
		}
	}
	var results []*Result
	for _, m := range all {
		for id := range m.items {
			if m.items[id].staged {
				m.result.WastedBytes += m.bytesOf(id)
			}
		}
		m.result.Tokens = len(t.Tokens) - first
		m.result.Time = time.Duration(m.now - m.began)
		results = append(results, &m.result)
	}
	return results, nil
}

// runToken leads the machines through a token. p has room for all experts.
func (f *Forecast) runToken(t *moe.Trace, token int, p []float32, all []*machine) {
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

// machine is a running simulation. An expert's id is layer*Experts + expert.
type machine struct {
	cfg         *Config
	trace       *moe.Trace
	shape       moe.Shape
	now         int64 // virtual time, ns
	began       int64 // when the first counted token began
	diskFree    int64 // when the disk has served all requests
	items       []item
	cached      []int // the experts that are in memory or being read
	cachedBytes int64 // their bytes
	wishes      []wish
	chosenReady int64 // when everything that was chosen is there
	scratch     []int32
	// victims are the experts of each layer that are in memory, the least worth first. That order changes only when
	// the layer chooses, or is expected to choose. So to find the next of all only the first of each layer are
	// compared: of a model with thousands of experts in memory a pass over all would take most of the time.
	victims  []layerVictims
	listener listener
	router   int // how many routers have chosen
	result   Result
	counted  Result // the sums of result that are in its lists of tokens
}

type item struct {
	index   int   // in machine.cached, from 1; 0: not in memory
	readyAt int64 // when its read ends
	staged  bool  // read ahead, and not used yet
	busy    bool  // chosen by the layer that computes
	wanted  bool  // in machine.wishes, or probable in a layer to come
}

// wish is an expert that is to be read ahead.
type wish struct {
	id          int
	probability float32
	due         int // the router that may choose it
}

func newMachine(t *moe.Trace, cfg *Config) *machine {
	s := t.Shape()
	m := &machine{
		cfg: cfg, trace: t, shape: s, items: make([]item, s.Layers*s.Experts), scratch: make([]int32, s.Experts),
	}
	m.listener, _ = cfg.Policy.(listener)
	m.victims = make([]layerVictims, s.Layers)
	for id := 0; cfg.Full && id < len(m.items) && m.cachedBytes+m.bytesOf(id) <= cfg.Capacity; id++ {
		m.insert(id, 0)
	}
	return m
}

// startCounting begins to count.
func (m *machine) startCounting() {
	m.result, m.counted, m.began = Result{}, Result{}, m.now
	for id := range m.items {
		m.items[id].staged = false
	}
}

// countToken notes what the sums have become since the last token.
func (m *machine) countToken() {
	r := &m.result
	r.TokenBytes = append(r.TokenBytes, r.DemandBytes-m.counted.DemandBytes)
	r.TokenUsed = append(r.TokenUsed, r.Used-m.counted.Used)
	r.TokenHits = append(r.TokenHits, r.Hits-m.counted.Hits)
	m.counted.DemandBytes, m.counted.Used, m.counted.Hits = r.DemandBytes, r.Used, r.Hits
}

func (m *machine) layerOf(id int) int   { return id / m.shape.Experts }
func (m *machine) bytesOf(id int) int64 { return m.trace.Layers[m.layerOf(id)].Bytes }

// choose has a layer's router choose, and reads what is missing.
func (m *machine) choose(layer int, chosen []int32) {
	m.advance(m.now + int64(m.cfg.Compute.Before))
	m.cfg.Policy.Observe(layer, chosen)
	m.dropWishes(layer)
	m.victims[layer].stale = true
	m.chosenReady = m.readMissing(layer, chosen)
}

// compute waits for what was chosen, and computes.
func (m *machine) compute(layer int, chosen []int32) {
	m.readAhead()
	m.router++
	if m.chosenReady > m.now {
		m.result.Stall += time.Duration(m.chosenReady - m.now)
		m.advance(m.chosenReady)
	}
	m.advance(m.now + int64(m.cfg.Compute.After))
	for _, e := range chosen {
		m.items[layer*m.shape.Experts+int(e)].busy = false
	}
}

// dropWishes drops the wishes for a layer, as its router has chosen.
func (m *machine) dropWishes(layer int) {
	m.wishes = slices.DeleteFunc(m.wishes, func(w wish) bool { return m.layerOf(w.id) == layer })
	for id := layer * m.shape.Experts; id < (layer+1)*m.shape.Experts; id++ {
		m.items[id].wanted = false
	}
}

// readMissing reads the chosen experts that are missing, and returns when all chosen ones are there.
func (m *machine) readMissing(layer int, chosen []int32) (ready int64) {
	r := &m.result
	for _, e := range chosen {
		m.items[layer*m.shape.Experts+int(e)].busy = true
	}
	for _, e := range chosen {
		id := layer*m.shape.Experts + int(e)
		it := &m.items[id]
		r.Used++
		r.UsedBytes += m.bytesOf(id)
		switch {
		case it.index == 0:
			r.DemandBytes += m.bytesOf(id)
			read := m.startRead(m.now, m.bytesOf(id))
			ready = max(ready, read)
			if m.makeRoom(m.bytesOf(id), true) { // otherwise it is used from a buffer, and forgotten
				m.insert(id, read)
			}
		case it.readyAt > m.now:
			r.Late++
			r.LateBytes += m.bytesOf(id)
			ready = max(ready, it.readyAt)
		default:
			r.Hits++
		}
		it.staged = false
	}
	return ready
}

// expect passes probabilities to the policy, and wishes for the experts that are probable.
func (m *machine) expect(target, lead int, p []float32) {
	if m.listener != nil {
		m.listener.Expect(target, p)
		m.victims[target].stale = true
	}
	if m.cfg.Threshold >= 1 || lead >= m.shape.Layers {
		return
	}
	for _, e := range moe.Top(p, m.scratch, 3*m.shape.K) {
		if p[e] < m.cfg.Threshold {
			break
		}
		id := target*m.shape.Experts + int(e)
		if it := &m.items[id]; !it.wanted {
			it.wanted = true // what is in memory is not evicted now either
			if it.index == 0 {
				m.wishes = append(m.wishes, wish{id: id, probability: p[e], due: m.router + lead})
			}
		}
	}
}

// startRead has the disk transfer bytes, and returns when they are there.
func (m *machine) startRead(now, bytes int64) int64 {
	if m.cfg.Disk.Bandwidth == 0 {
		return now
	}
	m.diskFree = max(m.diskFree, now) + int64(float64(bytes)/m.cfg.Disk.Bandwidth*1e9)
	return m.diskFree + int64(m.cfg.Disk.Latency)
}

// advance advances time, and lets the disk read ahead when it is idle.
func (m *machine) advance(t int64) {
	for len(m.wishes) > 0 && max(m.diskFree, m.now) < t {
		m.now = max(m.diskFree, m.now)
		if !m.readAhead() {
			break
		}
	}
	m.now = max(m.now, t)
}

// readAhead starts reads of wishes while the disk is idle. There is one read at a time, so that demand
// waits for one at most. The nearest layer comes first, then what is most probable. It reports whether it
// started any.
func (m *machine) readAhead() (begun bool) {
	for len(m.wishes) > 0 && m.diskFree <= m.now {
		best := 0
		for i := range m.wishes {
			if m.wishes[i].isBefore(&m.wishes[best]) {
				best = i
			}
		}
		w := m.wishes[best]
		m.wishes = slices.Delete(m.wishes, best, best+1)
		if !m.makeRoom(m.bytesOf(w.id), false) {
			m.items[w.id].wanted = false
			continue
		}
		begun = true
		m.insert(w.id, m.startRead(m.now, m.bytesOf(w.id)))
		m.items[w.id].staged = true
		m.result.SpeculativeBytes += m.bytesOf(w.id)
	}
	return begun
}

// isBefore says which wish goes first.
func (w *wish) isBefore(v *wish) bool {
	return w.due < v.due || w.due == v.due && w.probability > v.probability
}

func (m *machine) insert(id int, ready int64) {
	m.cached = append(m.cached, id)
	m.items[id].index, m.items[id].readyAt = len(m.cached), ready
	m.cachedBytes += m.bytesOf(id)
	m.addVictim(id)
}

func (m *machine) remove(id int) {
	it := &m.items[id]
	last := m.cached[len(m.cached)-1]
	m.cached[it.index-1] = last
	m.items[last].index = it.index
	m.cached = m.cached[:len(m.cached)-1]
	it.index = 0
	m.cachedBytes -= m.bytesOf(id)
	m.removeVictim(id)
	if it.staged {
		it.staged = false
		m.result.WastedBytes += m.bytesOf(id)
	}
}

// makeRoom evicts experts until there is room for bytes, and reports whether there is. It spares what
// computes, what is being read and, unless must is set, what is wanted soon.
func (m *machine) makeRoom(bytes int64, must bool) bool {
	for m.cachedBytes+bytes > m.cfg.Capacity {
		victim := m.nextVictim(false)
		if victim < 0 && must {
			victim = m.nextVictim(true)
		}
		if victim < 0 {
			return false
		}
		m.remove(victim)
	}
	return true
}

// layerVictims are the experts of a layer that are in memory, the least worth first.
type layerVictims struct {
	order []keepWorth
	stale bool // the policy has learned something since
}

// sortVictims has the victims of a layer in order.
func (m *machine) sortVictims(layer int) []keepWorth {
	v := &m.victims[layer]
	if !v.stale {
		return v.order
	}
	v.stale, v.order = false, v.order[:0]
	for e := range m.shape.Experts {
		if id := layer*m.shape.Experts + e; m.items[id].index > 0 {
			v.order = append(v.order, keepWorth{id, m.cfg.Policy.Worth(layer, int32(e))})
		}
	}
	slices.SortFunc(v.order, keepWorth.compare)
	return v.order
}

// addVictim adds an expert that has come into memory.
func (m *machine) addVictim(id int) {
	layer := m.layerOf(id)
	v := &m.victims[layer]
	if v.stale {
		return // it is found when the order is made
	}
	added := keepWorth{id, m.cfg.Policy.Worth(layer, int32(id%m.shape.Experts))}
	at, _ := slices.BinarySearchFunc(v.order, added, keepWorth.compare)
	v.order = slices.Insert(v.order, at, added)
}

// removeVictim removes one that has left it.
func (m *machine) removeVictim(id int) {
	v := &m.victims[m.layerOf(id)]
	if at := slices.IndexFunc(v.order, func(v keepWorth) bool { return v.id == id }); at >= 0 {
		v.order = slices.Delete(v.order, at, at+1)
	}
}

// nextVictim is the expert that is worth least; -1 if none can be evicted. Of equals it is the one with
// the lowest id, whatever the order of reads was. If wanted is set it may be one that is wanted soon.
func (m *machine) nextVictim(wanted bool) int {
	best := keepWorth{id: -1}
	for layer := range m.victims {
		for _, v := range m.sortVictims(layer) {
			if !m.isEvictable(v.id, wanted) {
				continue
			}
			// The value is of when the order was made. Since then another layer may have been observed.
			v.value = m.cfg.Policy.Worth(layer, int32(v.id%m.shape.Experts))
			if best.id < 0 || v.compare(best) < 0 {
				best = v
			}
			break
		}
	}
	return best.id
}

// isEvictable says whether an expert may be evicted.
func (m *machine) isEvictable(id int, wanted bool) bool {
	it := &m.items[id]
	return it.index > 0 && !it.busy && (!it.wanted || wanted) && it.readyAt <= m.now
}

// keepWorth is how much it is worth to keep an expert.
type keepWorth struct {
	id    int
	value float32
}

// compare says which of two is dropped first.
func (a keepWorth) compare(b keepWorth) int {
	switch {
	case a.value < b.value:
		return -1
	case a.value > b.value:
		return 1
	}
	return cmp.Compare(a.id, b.id)
}

// ProbableThreshold is a threshold with which no more is read than LRU would read, even if the disk has
// time for all of it. It was found on one public trace (Qwen3-30B with room for 6, 12 and 24 % of its
// experts). Another model may need another one.
const ProbableThreshold = 0.45

// ForecastByIDs is the best forecast here for a model of which only ids are seen. It is asked for the
// next layer, and for the same layer one token later, which says what to keep.
func ForecastByIDs(s moe.Shape) Forecast {
	leads := []int{1, s.Layers}
	return Forecast{Predictor: moe.NewIDMixture(s, leads, tableBytes), Leads: leads}
}

// ConfigByIDs has the policy that does best with that forecast.
func ConfigByIDs(s moe.Shape, capacity int64, threshold float32) Config {
	return Config{Capacity: capacity, Policy: moe.NewHitDensity(s, 0.93), Threshold: threshold}
}

// tableBytes bounds the tables of a predictor.
const tableBytes = 64 << 20
