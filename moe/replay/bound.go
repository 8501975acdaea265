package replay

// This file has what no policy can do without: the bytes that must be read if memory holds so many, and
// what those need that do not know the future.

import (
	"container/heap"
	"context"
	"math"
	"slices"

	"tensorcast/moe"
)

// Least returns how many bytes must be read for each generated token, whatever is kept and whenever it is
// read, by a target that computes all layers of a token in order and has room bytes for the model. trunk
// is what it reads of the model for every token besides experts, spread evenly over the layers. Before
// the first generated token anything may be in memory.
//
// It is Belady's rule (keep what is used next) for single bytes, where what is read need not be kept:
// with equal pieces and equal costs nothing reads less. [Belady] keeps and drops whole experts, and holds
// what computes, so it reads a little more. The sum is a bound; of a single token it is what that rule
// reads.
func Least(t *moe.Trace, trunk, room int64) []int64 {
	s := t.Shape()
	first := t.FirstDecode()
	if first == len(t.Tokens) {
		return nil
	}
	b := &bytewise{room: max(room, 0), items: make([]part, s.Layers*(s.Experts+1))}
	size := func(layer int) int64 { return t.Layers[layer].Bytes }
	trunkOf := func(layer int) int64 {
		n := int64(s.Layers)
		if int64(layer) < trunk%n {
			return trunk/n + 1
		}
		return trunk / n
	}
	// next says when each use's item is used again: of the trunk it is always a token later.
	routers := (len(t.Tokens) - first) * s.Layers
	next := make([][]int32, routers)
	coming := make([]int32, s.Layers*s.Experts)
	for id := range coming {
		coming[id] = never
	}
	for at := routers - 1; at >= 0; at-- {
		layer := at % s.Layers
		for _, e := range t.Chosen(first+at/s.Layers, layer) {
			id := layer*s.Experts + int(e)
			next[at] = append(next[at], coming[id])
			coming[id] = int32(at)
		}
	}
	for id, at := range coming {
		if at != never {
			b.add(id, at, size(id/s.Experts))
		}
	}
	for layer := range s.Layers {
		b.add(s.Layers*s.Experts+layer, int32(layer), trunkOf(layer))
	}
	b.shrink()

	reads := make([]int64, len(t.Tokens)-first)
	for at := range routers {
		layer := at % s.Layers
		read := &reads[at/s.Layers]
		again := int32(at + s.Layers)
		if int(again) >= routers {
			again = never
		}
		*read += b.use(s.Layers*s.Experts+layer, again, trunkOf(layer))
		for slot, e := range t.Chosen(first+at/s.Layers, layer) {
			*read += b.use(layer*s.Experts+int(e), next[at][slot], size(layer))
		}
		b.shrink()
	}
	return reads
}

const never = math.MaxInt32

// bytewise is a memory that keeps what is used next, in parts of any size.
type bytewise struct {
	room  int64
	held  int64
	items []part
	order farthest
}

// part is how much of an item is kept until its next use.
type part struct {
	next int32
	held int64
}

// entry is an item that is kept, as of when it was used last.
type entry struct {
	id   int
	next int32
}

// add has something kept that is used next at that time.
func (b *bytewise) add(id int, next int32, bytes int64) {
	b.items[id] = part{next, bytes}
	b.held += bytes
	heap.Push(&b.order, entry{id, next})
}

// use returns how much of an item has to be read, and keeps all of it for its next use.
func (b *bytewise) use(id int, next int32, bytes int64) (read int64) {
	had := b.items[id].held
	b.held -= had
	b.add(id, next, bytes)
	return bytes - had
}

// shrink drops what is used last until what is kept has room.
func (b *bytewise) shrink() {
	for b.held > b.room {
		e := b.order[0]
		it := &b.items[e.id]
		if it.next == e.next { // else it was used since
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

// farthest is a heap: what is used last comes first.
type farthest []entry

func (f farthest) Len() int           { return len(f) }
func (f farthest) Less(i, j int) bool { return f[i].next > f[j].next }
func (f farthest) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *farthest) Push(x any)        { *f = append(*f, x.(entry)) }
func (f *farthest) Pop() any {
	last := len(*f) - 1
	e := (*f)[last]
	*f = (*f)[:last]
	return e
}

// Unforeseen returns what the best policy reads that neither knows the future nor reads ahead, in a cache
// of room bytes for experts that is full at the beginning. It fails as Run does.
func Unforeseen(ctx context.Context, t *moe.Trace, room int64) (*PolicyResult, error) {
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
	chance := Causal(s, room, 1)
	chance.Full = true
	if err := run(IDs(s), []string{nameChance}, chance); err != nil {
		return nil, err
	}
	return r.best(), nil
}

// causal are the policies that go by what was chosen, without a forecast.
var causal = []struct {
	name   string
	policy func(moe.Shape) moe.Policy
}{
	{nameLRU, func(s moe.Shape) moe.Policy { return moe.NewLRU(s) }},
	{"LFU by layer", func(s moe.Shape) moe.Policy { return moe.NewLFU(s, 0.93) }},
	{"expected next use", func(s moe.Shape) moe.Policy { return moe.NewExpectedUse(s, 0.93) }},
}

// Later is a trace in which the first n generated tokens count as the prompt: what is measured after them
// is the steady state.
func Later(t *moe.Trace, n int) *moe.Trace {
	later := *t
	later.Tokens = slices.Clone(t.Tokens)
	for first := t.FirstDecode(); n > 0 && first < len(later.Tokens); n, first = n-1, first+1 {
		later.Tokens[first].Phase = moe.Prompt
	}
	return &later
}
