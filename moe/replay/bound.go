package replay

// This file has lower bounds: the bytes that every policy has to read in memory of some size, and the
// bytes that a policy has to read that does not know the future.

import (
	"container/heap"
	"context"
	"math"
	"slices"

	"tensorcast/moe"
)

// LeastBytes returns how many bytes must be read for each generated token, whatever is kept and whenever it is
// read. The target computes all layers of a token in order, and has room bytes for the model. trunk is
// how many bytes of the model it reads for every token besides experts, spread evenly over the layers.
// Before the first generated token anything may be in memory.
//
// This is Belady's rule (keep what is used next) for single bytes, where what is read need not be kept:
// with equal pieces and equal costs nothing reads less. [Belady] keeps and drops whole experts, and holds
// what computes, so it reads a little more. The sum is a bound. The bytes of a single token are those
// that the rule reads.
func LeastBytes(t *moe.Trace, trunk, room int64) []int64 {
	s := t.Shape()
	first := t.FirstDecode()
	if first == len(t.Tokens) {
		return nil
	}
	b := &byteMemory{room: max(room, 0), items: make([]keptPart, s.Layers*(s.Experts+1))}
	size := func(layer int) int64 { return t.Layers[layer].Bytes }
	trunkOf := func(layer int) int64 {
		n := int64(s.Layers)
		if int64(layer) < trunk%n {
			return trunk/n + 1
		}
		return trunk / n
	}
	// next says when each use's item is used again. An item of the trunk is used again one token later.
	routers := (len(t.Tokens) - first) * s.Layers
	next := make([][]int32, routers)
	coming := make([]int32, s.Layers*s.Experts)
	for id := range coming {
		coming[id] = never
	}
	for router := routers - 1; router >= 0; router-- {
		layer := router % s.Layers
		for _, e := range t.Chosen(first+router/s.Layers, layer) {
			id := layer*s.Experts + int(e)
			next[router] = append(next[router], coming[id])
			coming[id] = int32(router)
		}
	}
	for id, router := range coming {
		if router != never {
			b.keep(id, router, size(id/s.Experts))
		}
	}
	for layer := range s.Layers {
		b.keep(s.Layers*s.Experts+layer, int32(layer), trunkOf(layer))
	}
	b.dropExcess()

	reads := make([]int64, len(t.Tokens)-first)
	for router := range routers {
		layer := router % s.Layers
		read := &reads[router/s.Layers]
		again := int32(router + s.Layers)
		if int(again) >= routers {
			again = never
		}
		*read += b.read(s.Layers*s.Experts+layer, again, trunkOf(layer))
		for slot, e := range t.Chosen(first+router/s.Layers, layer) {
			*read += b.read(layer*s.Experts+int(e), next[router][slot], size(layer))
		}
		b.dropExcess()
	}
	return reads
}

// never is the time of the next use of an expert that is not used again.
const never = math.MaxInt32

// byteMemory is a memory that keeps what is used next, in parts of any size.
type byteMemory struct {
	room  int64
	held  int64
	items []keptPart
	order farthestFirst
}

// keptPart is how much of an item is kept until its next use.
type keptPart struct {
	next int32
	held int64
}

// entry is an item that is kept, and when its next use is, as of its last use.
type entry struct {
	id   int
	next int32
}

// keep keeps an item whose next use is at that time.
func (b *byteMemory) keep(id int, next int32, bytes int64) {
	b.items[id] = keptPart{next, bytes}
	b.held += bytes
	heap.Push(&b.order, entry{id, next})
}

// read returns how much of an item has to be read for a use, and keeps all of it until the next.
func (b *byteMemory) read(id int, next int32, bytes int64) (read int64) {
	had := b.items[id].held
	b.held -= had
	b.keep(id, next, bytes)
	return bytes - had
}

// dropExcess drops what is used last until the rest has room.
func (b *byteMemory) dropExcess() {
	for b.held > b.room {
		e := b.order[0]
		it := &b.items[e.id]
		if it.next == e.next { // otherwise the item was used since
			drop := min(it.held, b.held-b.room)
			it.held -= drop
			b.held -= drop
			if it.held > 0 {
				return
			}
		}
		heap.Pop(&b.order)
	}
}

// farthestFirst is a heap: the item with the farthest use comes first.
type farthestFirst []entry

func (f farthestFirst) Len() int           { return len(f) }
func (f farthestFirst) Less(i, j int) bool { return f[i].next > f[j].next }
func (f farthestFirst) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *farthestFirst) Push(x any)        { *f = append(*f, x.(entry)) }
func (f *farthestFirst) Pop() any {
	last := len(*f) - 1
	e := (*f)[last]
	*f = (*f)[:last]
	return e
}

// BestCausal returns what the best policy reads that neither knows the future nor reads ahead, in a cache
// of room bytes for experts that is full at the beginning. It fails as Run does.
func BestCausal(ctx context.Context, t *moe.Trace, room int64) (*PolicyResult, error) {
	s := t.Shape()
	r := RoomResult{Bytes: room}
	run := func(f Forecast, names []string, configs ...Config) error {
		results, err := Run(ctx, t, f, configs...)
		for i, result := range results {
			r.Policies = append(r.Policies, PolicyResult{Name: names[i], HitRate: result.HitRate(), Result: result})
		}
		return err
	}
	room = max(room, 0)
	var names []string
	var configs []Config
	for _, c := range causal {
		names = append(names, c.name)
		configs = append(configs, Config{Capacity: room, Policy: c.policy(s), Threshold: 1, Full: true})
	}
	if err := run(Forecast{}, names, configs...); err != nil {
		return nil, err
	}
	density := ConfigByIDs(s, room, 1)
	density.Full = true
	if err := run(ForecastByIDs(s), []string{nameDensity}, density); err != nil {
		return nil, err
	}
	return r.bestCausal(), nil
}

// causal are the policies that go by what was chosen, without a forecast.
var causal = []struct {
	name   string
	policy func(moe.Shape) moe.Policy
}{
	{nameLRU, func(s moe.Shape) moe.Policy { return moe.NewLRU(s) }},
	{"LFU by layer", func(s moe.Shape) moe.Policy { return moe.NewLFU(s, 0.93) }},
	{"expected next use", func(s moe.Shape) moe.Policy { return moe.NewExpectedUse(s, 0.93) }},
	{nameScored, func(s moe.Shape) moe.Policy { return moe.NewScored(s) }},
}

// CountAsPrompt returns a trace in which the first n generated tokens count as prompt. What is measured after
// them is the steady state.
func CountAsPrompt(t *moe.Trace, n int) *moe.Trace {
	later := *t
	later.Tokens = slices.Clone(t.Tokens)
	for first := t.FirstDecode(); n > 0 && first < len(later.Tokens); n, first = n-1, first+1 {
		later.Tokens[first].Phase = moe.Prompt
	}
	return &later
}
