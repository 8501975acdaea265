package prefetch

// This file holds the experts of a mixture. Those that a router has chosen are read at once, all of them beside each other, before the target touches them one page after
// the other. Those that are likely to be chosen soon are kept in what room the trunk leaves: what every token reads comes first.

import (
	"cmp"
	"container/heap"
	"slices"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// experts are all those of a model. They are left to the target while it is compared with tokens without help.
type experts struct {
	layers []expertLayer // in the order of use
	index  map[int32]int // of layers, by their number in the model
	all    int64         // bytes of all experts, without what the blocks have of them
	least  int64         // bytes that have to be in memory while they are used: what two layers choose
	told   bool          // least is what a token was told to choose, not what was learned: the warm-up chooses all
	room   int64         // bytes that may be in memory
	there  int64         // bytes that are, as far as is known
	last   struct {
		decode uint32
		ids    []int32 // in order
	} // choice
	now   int    // index of the layer whose experts are under way
	clock uint64 // selections

	chosen, missed int64  // experts that were chosen, and those of them that were not in memory
	read           int64  // bytes that were read for them
	strays         int64  // bytes of others, which the target's misses had read, and which were paged out
	unread         bool   // some of what was chosen last was left to the target
	strayLayer     int    // index of the layer that was looked at for these last
	strayAt        uint64 // the selection at which to look next
	strayRest      uint64 // the last pause between two looks, in selections

	speculation
}

// expertLayer is what one router chooses from.
type expertLayer struct {
	experts []expert
	parts   int     // tensors that are cut in experts
	step    float64 // what a choice adds to a score: it grows, so that choices of long ago count less
}

// expert is the slices of the layer's tensors that belong together.
type expert struct {
	reads []pages.Range // the slices, in the order of use
	owns  []pages.Range // the whole pages of them that nobody else needs: neighbours share pages, and blocks that every token reads begin within slices; without those that stay for reads, see Pages.Piece
	bytes int64         // of reads, without what the blocks have of them
	score float64       // sum of the steps of the tokens that chose it
	there bool          // in memory, as far as is known
	used  uint64        // the selection that chose it last
	gone  uint64        // the selection after which it was to be paged out last

	away bool // computed elsewhere: the target does not read it

	guessed float64 // the chance that its layer chooses it next, where that was guessed to be likely; 0: it was not
	rest    int64   // bytes of reads that are still to be read for that, while it counts as being there; 0: none
	early   int64   // bytes that were read for that
}

const (
	// scoreMemory is how many tokens a layer's choices are remembered for, about.
	scoreMemory = 256
	// maxExperts bounds how many a layer may have, whatever a target says: llama.cpp's bound is 512.
	maxExperts = 4096
	// maxScore is when scores are scaled down.
	maxScore = 1e200
	// neverScore is the chance, in a token, of an expert that nobody has chosen lately.
	neverScore = 1e-4
	// expertMargin is left free: what is to give way is paged out behind the reads that need its room, and misses of the target read around themselves. With
	// 12 MiB tokens were no faster.
	expertMargin = 24 << 20
)

// newExperts finds the experts in a cycle; nil if it has none. Blocks are those of the schedule, piece is as Pages.Piece.
func newExperts(cycle *pattern.Cycle, blocks []pages.Range, piece func(file int) int64) *experts {
	x := &experts{index: map[int32]int{}}
	var most int64 // bytes that one layer chooses
	chooses := map[int]int64{}
	blocks = slices.Clone(blocks)
	sortRanges(blocks)
	seen := map[place]bool{}
	for i := range cycle.Reads {
		r := &cycle.Reads[i]
		layer := (&gguf.Tensor{Name: r.Tensor}).Layer()
		if !r.Experts || r.Slice <= 0 || r.Length/r.Slice > maxExperts || layer < 0 || seen[place{r.File, r.Offset}] {
			continue
		}
		seen[place{r.File, r.Offset}] = true
		n := int(r.Length / r.Slice)
		l, known := x.index[int32(layer)]
		if !known {
			l = len(x.layers)
			x.index[int32(layer)] = l
			x.layers = append(x.layers, expertLayer{experts: make([]expert, n), step: 1})
		}
		if len(x.layers[l].experts) != n { // a bias of another kind: it is small
			continue
		}
		for e := range n {
			slice := pages.Range{File: r.File, Offset: r.Offset + int64(e)*r.Slice, Length: r.Slice}
			one := &x.layers[l].experts[e]
			one.reads = append(one.reads, slice)
			own := without(slice, blocks)
			one.bytes += own.Length
			x.all += own.Length
			own = wholePages(own)
			for _, p := range pages.SlicePieces(slice, piece(r.File)) {
				from, end := max(own.Offset, p.Offset), min(own.End(), p.End())
				if from == p.Offset && p.Length >= pages.LeastSlice { // the first page of each piece stays, see readSlice
					from += pages.PageSize
				}
				if from < end {
					one.owns = append(one.owns, pages.Range{File: r.File, Offset: from, Length: end - from})
				}
			}
		}
		x.layers[l].parts++
		chooses[l] += int64(r.Slices) * r.Slice
		most = max(most, chooses[l])
	}
	if len(x.layers) == 0 {
		return nil
	}
	x.least = 2 * most
	return x
}

func sortRanges(all []pages.Range) { slices.SortFunc(all, pages.CompareRanges) }

// without is a slice without the blocks that overlap its ends. Blocks are in the order of the files.
func without(r pages.Range, blocks []pages.Range) pages.Range {
	first, end := r.Offset, r.End()
	i, _ := slices.BinarySearchFunc(blocks, r, func(b, r pages.Range) int {
		return cmp.Or(cmp.Compare(b.File, r.File), cmp.Compare(b.End(), r.Offset+1))
	})
	for ; i < len(blocks) && blocks[i].File == r.File && blocks[i].Offset <= first; i++ {
		first = blocks[i].End()
	}
	if i < len(blocks) && blocks[i].File == r.File {
		end = min(end, blocks[i].Offset)
	}
	return pages.Range{File: r.File, Offset: first, Length: max(end-first, 0)}
}

// wholePages are those of a range.
func wholePages(r pages.Range) pages.Range {
	first, end := (r.Offset+pages.PageSize-1)&^(pages.PageSize-1), r.End()&^(pages.PageSize-1)
	return pages.Range{File: r.File, Offset: first, Length: max(end-first, 0)}
}

// choose notes a layer's choice, of one token.
func (l *expertLayer) choose(ids []int32) {
	l.step *= 1 + 1.0/scoreMemory
	for _, id := range ids {
		l.experts[id].score += l.step
	}
	if l.step > maxScore {
		for e := range l.experts {
			l.experts[e].score /= l.step
		}
		l.step = 1
	}
}

// chance is how likely an expert is to be chosen when its layer comes next.
func (l *expertLayer) chance(e *expert) float64 {
	if e.guessed > 0 {
		return e.guessed
	}
	return min(e.score/l.step/scoreMemory+neverScore, 1)
}

// next is after how many tokens an expert is expected to be chosen again, where its layer comes after a part of a token.
func (l *expertLayer) next(e *expert, part float64) float64 { return 1/l.chance(e) - 1 + part }

// part is what part of a token passes until a layer chooses next.
func (x *experts) part(layer int) float64 {
	n := len(x.layers)
	return float64((layer-x.now-1+n)%n) / float64(n)
}

// selected is told which experts a layer is about to read.
func (c *Controller) selected(e event.Selected) error {
	h := c.help
	if h == nil || h.experts == nil || c.watch.aside || h.decode == 0 || h.decode != e.Decode || h.tid != e.TID {
		return nil
	}
	x := h.experts
	at, known := x.index[e.Layer]
	if !known || len(e.IDs) == 0 {
		return nil
	}
	if e.IDRows <= 0 || len(e.IDs)%e.IDRows != 0 {
		c.refuse("the target says that it reads experts of a part of a token", "layer", e.Layer, "experts", len(e.IDs), "tokens", e.IDRows)
		return nil
	}
	l := &x.layers[at]
	for _, id := range e.IDs {
		if id < 0 || int(id) >= len(l.experts) {
			c.refuse("the target says that it reads an expert that its model has not", "layer", e.Layer, "expert", id)
			return nil
		}
	}
	ids := slices.Clone(e.IDs)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if c.opts.Routes != nil {
		// What is computed elsewhere leaves an op with the others.
		if at == x.now && e.Decode == x.last.decode && contained(ids, x.last.ids) {
			return nil
		}
		x.last.decode, x.last.ids = e.Decode, append(x.last.ids[:0], ids...)
		c.sendAway(l, e.Layer)
		ids = slices.DeleteFunc(ids, func(id int32) bool { return l.experts[id].away })
	}
	before, unread := x.now, x.unread
	x.chose(c.now())
	x.now, x.unread = at, false
	x.clock++
	guessed := x.settle(l, ids)
	if err := c.readExperts(l, ids); err != nil {
		return err
	}
	x.asked(c.now())
	if guessed {
		c.refute(l)
	}
	for row := range slices.Chunk(e.IDs, len(e.IDs)/e.IDRows) {
		l.choose(row)
	}
	if e.IDRows == 1 {
		x.needs(l, ids)
	}
	c.makeRoom()
	if err := c.lookForStrays(before, unread); err != nil {
		return err
	}
	c.guess(at, e)
	return nil
}

// contained says whether all of some ids are among others, both in order and once each.
func contained(some, others []int32) bool {
	for _, id := range some {
		if _, found := slices.BinarySearch(others, id); !found {
			return false
		}
	}
	return true
}

// addExperts adds to a cycle those experts of its files that were not read, as they were computed elsewhere: that may change. All of them come behind what else is read, layer by layer.
func (c *Controller) addExperts(cycle *pattern.Cycle) {
	models, err := c.models()
	if err != nil {
		return // those that were read are helped
	}
	var routed []pattern.CycleRead
	chosen := 1
	cycle.Reads = slices.DeleteFunc(cycle.Reads, func(r pattern.CycleRead) bool {
		if r.Experts {
			routed, chosen = append(routed, r), max(chosen, r.Slices)
		}
		return r.Experts
	})
	for i, part := range models.Parts {
		file := slices.IndexFunc(c.known, func(k knownFile) bool { return k.id == models.Mapped[i].ID })
		if file < 0 || part == nil {
			continue
		}
		for k := range part.Tensors {
			t := &part.Tensors[k]
			if t.Experts() == 0 || t.Layer() < 0 || slices.ContainsFunc(routed, func(r pattern.CycleRead) bool { return r.File == file && r.Offset == t.Offset }) {
				continue
			}
			routed = append(routed, pattern.CycleRead{File: file, Tensor: t.Name, Offset: t.Offset, Length: t.Size, Slice: t.ExpertStride(), Slices: chosen, Experts: true, Nanos: -1})
		}
	}
	layer := func(r pattern.CycleRead) int { return (&gguf.Tensor{Name: r.Tensor}).Layer() }
	slices.SortStableFunc(routed, func(a, b pattern.CycleRead) int { return cmp.Compare(layer(a), layer(b)) })
	cycle.Reads = append(cycle.Reads, routed...)
}

// sendAway finds out which experts of a layer are computed elsewhere, and has these paged out.
func (c *Controller) sendAway(l *expertLayer, number int32) {
	for i := range l.experts {
		e := &l.experts[i]
		if e.away = c.opts.Routes.Elsewhere(number, int32(i)); e.away && e.there {
			c.evict(e)
		}
	}
}

// needs notes what a token chooses of a layer. That varies a little between layers, whose tensors may be of different types.
func (x *experts) needs(l *expertLayer, ids []int32) {
	var bytes int64
	for _, id := range ids {
		bytes += l.experts[id].bytes
	}
	if bytes *= 2; !x.told || bytes > x.least {
		x.least, x.told = bytes, true
	}
}

// readExperts reads what is missing of experts, in the order in which the target is going to touch them: tensor by tensor. First what is known to be missing; then what is believed to
// be in memory is looked at, as the kernel may have taken it. What a prompt chooses beyond the room is left to the target: it would take the place of what is read before.
func (c *Controller) readExperts(l *expertLayer, ids []int32) error {
	x := c.help.experts
	x.chosen += int64(len(ids))
	var missing, there []*expert
	var bytes, fresh int64
	for _, id := range ids {
		e := &l.experts[id]
		e.used = x.clock
		if e.there && e.rest == 0 {
			there = append(there, e)
			bytes += e.bytes
		}
	}
	for _, id := range ids {
		e := &l.experts[id]
		if e.there && e.rest == 0 {
			continue
		}
		x.missed++
		if e.there { // some of it was read for a guess
			missing = append(missing, e)
			bytes += e.bytes
			e.rest = 0
			continue
		}
		if bytes += e.bytes; bytes > max(x.room, x.least) {
			x.unread = true
			continue
		}
		missing = append(missing, e)
		e.there = true
		x.there += e.bytes
		fresh += e.bytes
	}
	if fresh > expertMargin/2 {
		c.makeRoom()
	}
	for part := range l.parts {
		for _, e := range missing {
			if part < len(e.reads) {
				c.pages.Expect(e.reads[part])
			}
		}
	}
	for i, all := range [][]*expert{missing, there} {
		for part := range l.parts {
			for _, e := range all {
				if part >= len(e.reads) {
					continue
				}
				n, err := c.readNow(e.reads[part], i == 0)
				if err != nil {
					return err
				}
				x.read += n
				c.help.streamed += n
				x.demands(e.reads[part], n)
			}
		}
	}
	return nil
}

// readNow reads what of a range is not in memory, and says how many bytes that is. What is may be about to be paged out, unless it was to stay: then it is asked for, too.
func (c *Controller) readNow(r pages.Range, gone bool) (bytes int64, err error) {
	if c.pages.Reading(r) { // it was chosen a moment ago, too
		return 0, nil
	}
	there, err := c.pages.Resident(r)
	if err != nil || there >= r.Length && !gone {
		return 0, err
	}
	return max(r.Length-there, 0), c.pages.ReadNow(r)
}

// makeRoom has those experts give way that are expected to be chosen last, until the others fit.
func (c *Controller) makeRoom() {
	x := c.help.experts
	over := x.there - x.room
	if over <= 0 {
		return
	}
	var victims victims
	for i := range x.layers {
		l := &x.layers[i]
		part := x.part(i)
		for j := range l.experts {
			if e := &l.experts[j]; e.there && (e.used != x.clock) {
				victims = append(victims, victim{e, l.next(e, part)})
			}
		}
	}
	heap.Init(&victims)
	for over > 0 && len(victims) > 0 {
		v := heap.Pop(&victims).(victim)
		if !c.evict(v.e) {
			return
		}
		over -= v.e.bytes
	}
}

// victim is an expert that may give way, and after how many tokens it is expected to be chosen.
type victim struct {
	e    *expert
	next float64
}

// victims are a heap, the one that is expected last on top: of thousands few have to give way, which sorting them for each choice would take longer to find than the rest of it.
type victims []victim

func (v victims) Len() int           { return len(v) }
func (v victims) Less(i, j int) bool { return v[i].next > v[j].next }
func (v victims) Swap(i, j int)      { v[i], v[j] = v[j], v[i] }
func (v *victims) Push(x any)        { *v = append(*v, x.(victim)) }
func (v *victims) Pop() any {
	last := (*v)[len(*v)-1]
	*v = (*v)[:len(*v)-1]
	return last
}

// evict has an expert paged out; false if too much is waiting for that.
func (c *Controller) evict(e *expert) bool {
	for _, r := range e.owns {
		if !c.pages.Evict(r) {
			return false
		}
	}
	x := c.help.experts
	e.there, e.rest, e.gone = false, 0, x.clock
	x.there -= e.bytes
	return true
}

// mostStrayRest is how many choices pass at most between two looks for strays: each has the kernel walk what it remembers of the pages that were there, which takes as long as asking for reads does.
const mostStrayRest = 16

// lookForStrays looks for them in the layer that chose before, if some of its experts were left to the target. Else it does so in one layer after the other, the more rarely the longer there was none.
func (c *Controller) lookForStrays(before int, unread bool) error {
	x := c.help.experts
	if unread && before != x.now {
		return c.strays(&x.layers[before])
	}
	if x.clock < x.strayAt {
		return nil
	}
	if x.strayLayer = (x.strayLayer + 1) % len(x.layers); x.strayLayer == x.now { // these are about to be used
		x.strayLayer = (x.strayLayer + 1) % len(x.layers)
	}
	found := x.strays
	if err := c.strays(&x.layers[x.strayLayer]); err != nil {
		return err
	}
	x.strayRest = min(2*max(x.strayRest, 1), mostStrayRest)
	if x.strays > found {
		x.strayRest = 1
	}
	x.strayAt = x.clock + x.strayRest
	return nil
}

// strays pages out what is in memory of a layer's experts that should not be: a miss of the target reads around itself. What was to be paged out within the last token may wait for that.
func (c *Controller) strays(l *expertLayer) error {
	x := c.help.experts
	for i := range l.experts {
		e := &l.experts[i]
		if e.there || e.gone != 0 && e.gone+uint64(len(x.layers)) > x.clock {
			continue
		}
		for _, r := range e.owns {
			n, err := c.pages.Resident(r)
			if err != nil {
				return err
			}
			if n > 0 && c.pages.Evict(r) {
				x.strays += n
				e.gone = x.clock
			}
		}
	}
	return nil
}

// takeExperts finds out which experts are in memory.
func (c *Controller) takeExperts() error {
	x := c.help.experts
	if x == nil {
		return nil
	}
	x.there = 0
	for i := range x.layers {
		for j := range x.layers[i].experts {
			e := &x.layers[i].experts[j]
			e.there, e.rest = true, 0
			some := false
			for _, r := range e.owns {
				n, err := c.pages.Resident(r)
				if err != nil {
					return err
				}
				e.there = e.there && n >= r.Length
				some = some || n > 0
			}
			if e.there {
				x.there += e.bytes
				continue
			}
			if some {
				for _, r := range e.owns {
					c.pages.Evict(r)
				}
			}
		}
	}
	c.makeRoom()
	return nil
}

// shareRoom says how much of the room the experts may take: what the trunk leaves, less what streams of it.
func (c *Controller) shareRoom() {
	h := c.help
	if h == nil || h.experts == nil {
		return
	}
	x := h.experts
	x.room = x.least
	if _, only := c.opts.Strategy.(Stream); only {
		return
	}
	window := h.window.bytes
	if h.wantBytes >= h.schedule.Bytes {
		window = 0
	}
	x.room = max(c.room.Bytes-h.wantBytes-window-expertMargin, x.least)
}

// forget takes no expert to be in memory.
func (x *experts) forget() {
	x.there = 0
	for i := range x.layers {
		for j := range x.layers[i].experts {
			e := &x.layers[i].experts[j]
			e.there, e.rest = false, 0
		}
	}
	x.trial.interrupt()
	x.forgetGuesses()
}

// Experts says what was done for the experts of a mixture. Sizes are bytes.
type Experts struct {
	All    int64 `json:"bytes"`      // of all experts
	Kept   int64 `json:"kept_bytes"` // of those in memory at the end
	Room   int64 `json:"room_bytes"` // that the trunk leaves for them
	Chosen int64 `json:"chosen"`     // experts, once for each layer and decode
	Missed int64 `json:"missed"`     // of these, not in memory when they were chosen
	Read   int64 `json:"read_bytes"` // for these
	Strays int64 `json:"strays"`     // bytes of others that the target's misses read around themselves, and that were paged out unused

	Speculation *Speculated `json:"speculation,omitempty"` // what was read before that; nil if nothing was to be
}

// summary adds what was done to what had been done before, if not nil: when the target was helped last, or with another model.
func (x *experts) summary(before *Experts) *Experts {
	s := &Experts{All: x.all, Kept: x.there, Room: x.room, Chosen: x.chosen, Missed: x.missed, Read: x.read, Strays: x.strays, Speculation: x.speculated()}
	if before != nil {
		s.Chosen += before.Chosen
		s.Missed += before.Missed
		s.Read += before.Read
		s.Strays += before.Strays
		s.Speculation = s.Speculation.after(before.Speculation)
	}
	return s
}
