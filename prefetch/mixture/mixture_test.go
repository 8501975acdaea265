package mixture

// This file tests which experts a mixture has, what is read of a choice, and which experts give way.

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

const page = 4096

// expertsRead is the read of a tensor with slices of n experts, of which a token chooses some.
func expertsRead(file int, name string, offset, slice int64, n, chosen int) pattern.CycleRead {
	return pattern.CycleRead{
		File: file, Tensor: name, Offset: offset, Length: slice * int64(n),
		Slice: slice, Slices: chosen, Experts: true,
	}
}

// rangeOf is a range of so many bytes at an offset.
func rangeOf(file int, offset, length int64) pages.Range {
	return pages.Range{File: file, Offset: offset, Length: length}
}

// newMixture is the mixture of a cycle. Its experts stay as long as there is room. blocks are what every token reads.
func newMixture(levers *recorder, cycle *pattern.Cycle, blocks []pages.Range) *Mixture {
	return New(cycle, blocks, Options{Levers: levers, Keep: true, Refuse: func(string, ...any) {}, Now: time.Now})
}

func TestNewExperts(t *testing.T) {
	needPages(t)
	type want struct {
		layers, parts, experts int
		all, least             int64
		reads                  []pages.Range // of the last expert of the last layer
	}
	for name, tc := range map[string]struct {
		reads []pattern.CycleRead
		want  want
	}{
		"gate, up, down": {
			[]pattern.CycleRead{
				expertsRead(0, "blk.3.ffn_gate_exps.weight", 0, 2*page, 4, 2),
				expertsRead(0, "blk.3.ffn_up_exps.weight", 8*page, 2*page, 4, 2),
				expertsRead(0, "blk.3.ffn_down_exps.weight", 16*page, 3*page, 4, 2),
			},
			want{1, 3, 4, 28 * page, 2 * 14 * page, []pages.Range{
				rangeOf(0, 6*page, 2*page), rangeOf(0, 14*page, 2*page), rangeOf(0, 25*page, 3*page),
			}},
		},
		"fused gate and up": {
			[]pattern.CycleRead{
				expertsRead(0, "blk.3.ffn_gate_up_exps.weight", 0, 4*page, 4, 1),
				expertsRead(0, "blk.3.ffn_down_exps.weight", 16*page, 2*page, 4, 1),
			},
			want{1, 2, 4, 24 * page, 2 * 6 * page, []pages.Range{
				rangeOf(0, 12*page, 4*page), rangeOf(0, 22*page, 2*page),
			}},
		},
		"a bias of another count": {
			[]pattern.CycleRead{
				expertsRead(0, "blk.3.ffn_gate_exps.weight", 0, 2*page, 4, 2),
				expertsRead(0, "blk.3.ffn_gate_exps.bias", 8*page, 64, 5, 2),
			},
			want{1, 1, 4, 8 * page, 2 * 4 * page, []pages.Range{rangeOf(0, 6*page, 2*page)}},
		},
		"a bias of the same count": {
			[]pattern.CycleRead{
				expertsRead(0, "blk.3.ffn_gate_exps.weight", 0, 2*page, 4, 2),
				expertsRead(0, "blk.3.ffn_gate_exps.bias", 8*page, 64, 4, 2),
			},
			want{1, 2, 4, 8*page + 256, 2 * (4*page + 128), []pages.Range{
				rangeOf(0, 6*page, 2*page), rangeOf(0, 8*page+192, 64),
			}},
		},
		"a tensor read twice": {
			[]pattern.CycleRead{
				expertsRead(0, "blk.3.ffn_gate_exps.weight", 0, 2*page, 4, 2),
				expertsRead(0, "blk.3.ffn_gate_exps.weight", 0, 2*page, 4, 2),
			},
			want{1, 1, 4, 8 * page, 2 * 4 * page, []pages.Range{rangeOf(0, 6*page, 2*page)}},
		},
		"several files": {
			[]pattern.CycleRead{
				expertsRead(0, "blk.7.ffn_up_exps.weight", 0, page, 4, 2),
				expertsRead(1, "blk.8.ffn_up_exps.weight", 0, 2*page, 8, 2),
			},
			want{2, 1, 8, 20 * page, 2 * 4 * page, []pages.Range{rangeOf(1, 14*page, 2*page)}},
		},
		"rows, and a tensor of no layer": {
			[]pattern.CycleRead{
				{Tensor: "blk.0.x", Length: 8 * page, Slice: page, Slices: 1},
				expertsRead(0, "x_exps.weight", 0, page, 4, 2),
			},
			want{},
		},
		"too many, and none": {
			[]pattern.CycleRead{
				expertsRead(0, "blk.0.x", 0, 4, 1<<20, 2),
				expertsRead(0, "blk.1.x", 0, 0, 4, 2),
				expertsRead(0, "blk.2.x", 0, -1, 4, 2),
			},
			want{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newMixture(&recorder{}, &pattern.Cycle{Reads: tc.reads}, nil)
			if x == nil {
				if tc.want.layers != 0 {
					t.Fatalf("no mixture, want %+v", tc.want)
				}
				return
			}
			l := &x.layers[len(x.layers)-1]
			if len(x.layers) != tc.want.layers || l.tensors != tc.want.parts || len(l.experts) != tc.want.experts ||
				x.size != tc.want.all || x.least != tc.want.least {
				t.Errorf("%d layers, %d parts, %d experts, %d bytes, at least %d; want %+v",
					len(x.layers), l.tensors, len(l.experts), x.size, x.least, tc.want)
			}
			if last := l.experts[len(l.experts)-1]; !slices.Equal(last.slices, tc.want.reads) {
				t.Errorf("the last expert is %v, want %v", last.slices, tc.want.reads)
			}
			for number, at := range x.index {
				first := x.layers[at].experts[0].slices[0]
				read := slices.IndexFunc(tc.reads, func(r pattern.CycleRead) bool {
					return r.Offset == first.Offset && r.File == first.File
				})
				if name := tc.reads[read].Tensor; !strings.HasPrefix(name, fmt.Sprintf("blk.%d.", number)) {
					t.Errorf("layer %d has the index %d, which has tensor %s", number, at, name)
				}
			}
		})
	}
}

func needPages(t *testing.T) {
	t.Helper()
	if pages.PageSize != page {
		t.Skipf("pages of %d bytes", pages.PageSize)
	}
}

// A slice owns the pages that lie wholly in it, and in no block that every token reads. Its bytes are those that lie
// in no block.
func TestOwnPages(t *testing.T) {
	needPages(t)
	slice := rangeOf(1, 10*page+100, 10*page) // to page 20, byte 100
	for name, tc := range map[string]struct {
		blocks []pages.Range
		bytes  pages.Range
		own    pages.Range
	}{
		"alone": {
			nil,
			slice, rangeOf(1, 11*page, 9*page),
		},
		"blocks of another file": {
			[]pages.Range{rangeOf(0, 0, 100*page), rangeOf(2, 0, 100*page)},
			slice, rangeOf(1, 11*page, 9*page),
		},
		"blocks beside it": {
			[]pages.Range{rangeOf(1, 0, 10*page), rangeOf(1, 21*page, page)},
			slice, rangeOf(1, 11*page, 9*page),
		},
		"one over the beginning": {
			[]pages.Range{rangeOf(1, 0, 14*page)},
			rangeOf(1, 14*page, 6*page+100), rangeOf(1, 14*page, 6*page),
		},
		"one over the end": {
			[]pages.Range{rangeOf(1, 18*page, 14*page)},
			rangeOf(1, 10*page+100, 8*page-100), rangeOf(1, 11*page, 7*page),
		},
		"over both": {
			[]pages.Range{rangeOf(1, 18*page, 14*page), rangeOf(1, 0, 14*page)},
			rangeOf(1, 14*page, 4*page), rangeOf(1, 14*page, 4*page),
		},
		"two over the beginning": {
			[]pages.Range{rangeOf(1, 12*page, 2*page), rangeOf(1, 0, 12*page)},
			rangeOf(1, 14*page, 6*page+100), rangeOf(1, 14*page, 6*page),
		},
		"one over all": {
			[]pages.Range{rangeOf(1, 0, 100*page)},
			rangeOf(1, 100*page, 0), rangeOf(1, 100*page, 0),
		},
		"both meet": {
			[]pages.Range{rangeOf(1, 0, 14*page), rangeOf(1, 14*page, 14*page)},
			rangeOf(1, 28*page, 0), rangeOf(1, 28*page, 0),
		},
		"one that begins as it does": {
			[]pages.Range{rangeOf(1, 10*page+100, page)},
			rangeOf(1, 11*page+100, 9*page), rangeOf(1, 12*page, 8*page),
		},
	} {
		blocks := slices.Clone(tc.blocks)
		sortRanges(blocks)
		got := trimBlocks(slice, blocks)
		own := trimToPages(got)
		if got != tc.bytes && (got.Length > 0 || tc.bytes.Length > 0) ||
			own != tc.own && (own.Length > 0 || tc.own.Length > 0) {
			t.Errorf("%s: bytes %v, pages %v; want %v, %v", name, got, own, tc.bytes, tc.own)
		}
	}
	if own := trimToPages(rangeOf(0, 100, page)); own.Length != 0 {
		t.Errorf("a slice without a whole page owns %v, want nothing", own)
	}
	// No page is owned by two neighbours. Together they own all pages but those that they share.
	cycle := &pattern.Cycle{Reads: []pattern.CycleRead{expertsRead(0, "blk.0.x", 100, 3*page+1000, 8, 2)}}
	x := newMixture(&recorder{}, cycle, []pages.Range{rangeOf(0, 20*page, page), rangeOf(0, 0, 2*page)})
	owner := map[int64]int{}
	var bytes int64
	for i, e := range x.layers[0].experts {
		bytes += e.bytes
		for _, r := range e.owned {
			for at := r.Offset; at < r.End(); at += page {
				if other, twice := owner[at/page]; twice {
					t.Errorf("page %d is owned by expert %d and by expert %d, want one owner", at/page, i, other)
				}
				if at < e.slices[0].Offset || at+page > e.slices[0].End() || at < 2*page || at == 20*page {
					t.Errorf("page %d is owned by expert %d, want none: it is not wholly its own", at/page, i)
				}
				owner[at/page] = i
			}
		}
	}
	if bytes != x.size || x.size >= 8*(3*page+1000)-2*page {
		t.Errorf("experts have %d bytes, want the mixture's %d, which are less than %d",
			bytes, x.size, 8*(3*page+1000)-2*page)
	}
}

// Choices of long ago count less. Their order stays when scores are scaled down.
func TestScores(t *testing.T) {
	l := &layer{experts: make([]expert, 4), step: 1}
	for range 20 {
		l.addChoice([]int32{0})
	}
	for range scoreMemory * 3 {
		l.addChoice([]int32{3})
	}
	for range 10 {
		l.addChoice([]int32{1})
	}
	l.addChoice([]int32{1, 2})
	next := func(e int) float64 { return l.tokensUntil(&l.experts[e], 0) }
	if !(next(3) < next(1) && next(1) < next(2) && next(2) < next(0)) {
		t.Errorf("experts 0 to 3 are expected after %v, %v, %v, %v tokens, want the order 3, 1, 2, 0",
			next(0), next(1), next(2), next(3))
	}
	if n := next(3); n > 2 {
		t.Errorf("the expert that all tokens chose is expected after %v tokens, want at most 2", n)
	}
	never := l.tokensUntil(&expert{}, 0)
	if next(0) >= never || never > 1/neverScore {
		t.Errorf("an expert that was never chosen is expected after %v tokens, want more than the %v of one that was, "+
			"and at most %v", never, next(0), 1/neverScore)
	}
	before := []float64{next(0), next(1), next(2), next(3)}
	l.step *= maxScore
	for e := range l.experts {
		l.experts[e].score *= maxScore
	}
	l.addChoice(nil)
	if l.step != 1 {
		t.Fatalf("a step of %g, want it scaled down to 1", l.step)
	}
	for e, was := range before {
		if now := next(e); now < was || now+1 > (was+1)*(1+1.1/scoreMemory) { // one more token has passed
			t.Errorf("expert %d is expected after %v tokens, want about %v as before scores were scaled down",
				e, now, was)
		}
	}
}

// If a slice is read in several pieces, the first page of each piece stays in memory, shared with a neighbour or not. A
// short piece has no such page.
func TestPieces(t *testing.T) {
	needPages(t)
	const inPiece = pages.MinSlice / page
	piece := func(int) int64 { return 2 * pages.MinSlice }
	slice := int64(5*pages.MinSlice - 3*page + 7) // pieces of 2, 2 and less than 1 MinSlice
	cycle := &pattern.Cycle{Reads: []pattern.CycleRead{expertsRead(0, "blk.0.x", 10*page, slice, 2, 1)}}
	x := newMixture(&recorder{piece: piece}, cycle, nil)
	got := [][]pages.Range{x.layers[0].experts[0].owned, x.layers[0].experts[1].owned}
	at := func(first, end int64) pages.Range { return rangeOf(0, first*page, (end-first)*page) }
	second := int64(10 + 5*inPiece - 3) // the page in which the second slice begins; both slices have bytes in it
	want := [][]pages.Range{
		{at(11, 10+2*inPiece), at(10+2*inPiece+1, 10+4*inPiece), at(10+4*inPiece, second)},
		{
			at(second+1, second+2*inPiece),
			at(second+2*inPiece+1, second+4*inPiece),
			at(second+4*inPiece, second+5*inPiece-3),
		},
	}
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("owned pages = %v, want %v", got, want)
	}
}

// recorder are pages that note what is evicted and read.
type recorder struct {
	pages.Levers
	evicted, read []pages.Range
	there         map[pages.Range]int64 // bytes in memory
	underWay      []pages.Range         // not arrived yet
	folios        []pages.Range         // being read as large folios
	full          int                   // largest number of evictions in all; 0: any
	piece         func(int) int64       // bytes of a piece, by file; nil: slices are read whole
	ahead         []pages.Range         // read ahead
	pagedOut      []pages.Range
	busy          bool // nothing can be read ahead
	looked        int  // calls of ResidentBytes
}

func (p *recorder) ReadAhead(r pages.Range) bool {
	if !p.busy {
		p.ahead = append(p.ahead, r)
	}
	return !p.busy
}

func (p *recorder) PageOut(r pages.Range) error { p.pagedOut = append(p.pagedOut, r); return nil }
func (p *recorder) BlockBytes() int64           { return pages.MinBlock }
func (p *recorder) Poll() error                 { return nil }

func (p *recorder) SlicePieceBytes(file int) int64 {
	if p.piece == nil {
		return 0
	}
	return p.piece(file)
}

func (p *recorder) Evict(r pages.Range) bool {
	if p.full > 0 && len(p.evicted) >= p.full {
		return false
	}
	p.evicted = append(p.evicted, r)
	return true
}
func (p *recorder) Announce(pages.Range)                       {}
func (p *recorder) ReadNow(r pages.Range) error                { p.read = append(p.read, r); return nil }
func (p *recorder) ResidentBytes(r pages.Range) (int64, error) { p.looked++; return p.there[r], nil }
func (p *recorder) IsReading(r pages.Range) bool               { return slices.Contains(p.folios, r) }
func (p *recorder) HasArrived(r pages.Range) (bool, error) {
	return !slices.Contains(p.underWay, r), nil
}

// newSmallMixture is a mixture of four layers with four experts. Each has a slice of one page and one of two pages.
func newSmallMixture(levers *recorder) *Mixture {
	cycle := &pattern.Cycle{}
	for layer := range int64(4) {
		cycle.Reads = append(cycle.Reads,
			expertsRead(0, fmt.Sprintf("blk.%d.a", layer), layer*12*page, page, 4, 1),
			expertsRead(0, fmt.Sprintf("blk.%d.b", layer), layer*12*page+4*page, 2*page, 4, 1))
	}
	return newMixture(levers, cycle, nil)
}

// Those experts give way first that are expected last: rarely chosen ones before often chosen ones. Of equals, those
// of the layer that was just used go before those of the next one. What is being used never goes.
func TestMakeRoom(t *testing.T) {
	needPages(t)
	levers := &recorder{}
	x := newSmallMixture(levers)
	for i := range x.layers {
		l := &x.layers[i]
		l.experts[0].score, l.experts[1].score = 100, 50 // 2 was never chosen, 3 is not in memory
		for j := range 3 {
			l.experts[j].resident = true
			x.resident += l.experts[j].bytes
		}
	}
	x.now, x.clock, x.room = 1, 1, x.resident
	x.layers[1].experts[2].chosenAt = 1
	x.MakeRoom()
	if len(levers.evicted) > 0 {
		t.Fatalf("evicted %v though all have room, want nothing", levers.evicted)
	}
	expectEvicted := func(layer, e int) {
		t.Helper()
		n := len(levers.evicted)
		x.room = x.resident - 1
		x.MakeRoom()
		one := &x.layers[layer].experts[e]
		if !slices.Equal(levers.evicted[n:], one.owned) || one.resident || one.evictedAt != x.clock {
			t.Errorf("evicted %v, want expert %d of layer %d: %v", levers.evicted[n:], e, layer, one.owned)
		}
	}
	expectEvicted(0, 2) // layers 2, 3 and 0 come next, in this order; 1 is being used
	expectEvicted(3, 2)
	expectEvicted(2, 2)
	expectEvicted(1, 1)
	expectEvicted(0, 1)
	if x.resident != 7*3*page {
		t.Errorf("%d bytes are resident, want %d", x.resident, 7*3*page)
	}
	x.room = 0
	levers.full = len(levers.evicted) + 3
	x.MakeRoom()
	if x.resident != 6*3*page {
		t.Errorf("%d bytes are resident after one expert could be evicted whole, want %d", x.resident, 6*3*page)
	}
	levers.full = 0
	x.MakeRoom()
	if one := &x.layers[1].experts[2]; !one.resident || x.resident != one.bytes {
		t.Errorf("without room: %d bytes are resident, want the %d of the expert that is being used; "+
			"it is resident: %v",
			x.resident, one.bytes, one.resident)
	}
}

// As long as nothing says that the kernel takes memory, one slice of some choices is looked at. If it is missing,
// everything is, for some tokens.
func TestSampledResidency(t *testing.T) {
	needPages(t)
	levers := &recorder{there: map[pages.Range]int64{}}
	x := newSmallMixture(levers)
	x.room = x.size
	l := &x.layers[2]
	for e := range 4 {
		l.experts[e].resident = true
		x.resident += l.experts[e].bytes
		for _, r := range l.experts[e].slices {
			levers.there[r] = r.Length
		}
	}
	choose := func() {
		t.Helper()
		levers.looked = 0
		if _, err := x.Select(event.Selected{Decode: 5, Layer: 2, IDs: []int32{0, 1, 2, 3}, IDRows: 1}); err != nil {
			t.Fatal(err)
		}
	}
	x.strays.at = 1 << 60 // nobody looks for strays
	looked := 0
	for range 2 * sampleEvery {
		choose()
		looked += levers.looked
	}
	if looked != 2 {
		t.Errorf("%d slices were looked at in %d choices, want 2", looked, 2*sampleEvery)
	}
	for _, r := range l.experts[3].slices { // the kernel takes an expert
		levers.there[r] = 0
	}
	tries := 0
	for ; len(levers.read) == 0 && tries < 8*sampleEvery; tries++ {
		choose()
	}
	if len(levers.read) == 0 {
		t.Fatalf("nobody noticed that an expert is missing in %d choices", tries)
	}
	choose()
	if want := l.experts[3].slices; levers.looked != 8 || !slices.Contains(levers.read, want[0]) ||
		!slices.Contains(levers.read, want[1]) {
		t.Errorf("after that %d slices were looked at, and %v read; want 8, and %v", levers.looked, levers.read, want)
	}
}

// What is missing of a choice is read tensor by tensor. Experts that were to be paged out are read though they may
// still be in memory. Of those that were to stay, only what the kernel has taken is read.
func TestReadExperts(t *testing.T) {
	needPages(t)
	levers := &recorder{there: map[pages.Range]int64{}}
	x := newSmallMixture(levers)
	x.room = x.size
	l := &x.layers[2]
	for e := range 3 {
		for _, r := range l.experts[e].slices {
			if e < 2 {
				levers.there[r] = r.Length
			}
		}
	}
	stays, taken := &l.experts[0], &l.experts[2] // nothing of the latter is in memory
	stays.resident, taken.resident = true, true
	x.resident = stays.bytes + taken.bytes
	x.Doubt() // the kernel said that memory was short
	if _, err := x.Select(event.Selected{Decode: 5, Layer: 2, IDs: []int32{3, 1, 0, 2}, IDRows: 1}); err != nil {
		t.Fatal(err)
	}
	part := func(e, part int) pages.Range { return l.experts[e].slices[part] }
	want := []pages.Range{part(1, 0), part(3, 0), part(1, 1), part(3, 1), part(2, 0), part(2, 1)}
	if !slices.Equal(levers.read, want) {
		t.Errorf("read %v, want %v", levers.read, want)
	}
	if x.total.chosen != 4 || x.total.missed != 2 || x.total.read != 6*page || x.resident != 4*3*page {
		t.Errorf("%+v, %d bytes resident; want 4 chosen, 2 missed, %d bytes read, %d resident",
			*x.Summary(nil), x.resident, 6*page, 4*3*page)
	}
	if x.least != 2*4*3*page {
		t.Errorf("after a token that chose four, the least room is %d bytes, want %d", x.least, 2*4*3*page)
	}
	// An expert that two tokens chose is read once.
	if _, err := x.Select(event.Selected{Decode: 5, Layer: 1, IDs: []int32{0, 1, 1, 0}, IDRows: 2}); err != nil {
		t.Fatal(err)
	}
	if len(levers.read) != 6+4 || x.total.chosen != 6 || x.total.missed != 4 {
		t.Errorf("read %v, %d chosen, %d missed; want 10 reads, 6 chosen, 4 missed",
			levers.read, x.total.chosen, x.total.missed)
	}
}

// Strays are pages of experts that nobody chose: a fault of the target reads around itself. They are paged out,
// unless that is under way.
func TestStrays(t *testing.T) {
	needPages(t)
	levers := &recorder{there: map[pages.Range]int64{}}
	x := newSmallMixture(levers)
	l := &x.layers[1]
	for e := range l.experts {
		levers.there[l.experts[e].owned[0]] = page
	}
	x.clock = 20
	l.experts[0].resident = true
	l.experts[1].evictedAt = 18
	l.experts[2].evictedAt = 10
	if err := x.evictStrays(l.experts); err != nil {
		t.Fatal(err)
	}
	want := []pages.Range{l.experts[2].owned[0], l.experts[3].owned[0]}
	if !slices.Equal(levers.evicted, want) || x.total.strays != 2*page || l.experts[3].evictedAt != 20 {
		t.Errorf("evicted %v, want %v; %d bytes of strays, want %d; the last at choice %d, want 20",
			levers.evicted, want, x.total.strays, 2*page, l.experts[3].evictedAt)
	}
}

// Strays are looked for in all layers by turns: more often as long as some are found, more rarely while there are none.
func TestLookForStrays(t *testing.T) {
	needPages(t)
	levers := &recorder{there: map[pages.Range]int64{}}
	x := newSmallMixture(levers)
	countLooks := func(choices int) (n int) {
		for range choices {
			x.clock++
			x.now = (x.now + 1) % len(x.layers)
			at := x.strays.at
			if err := x.lookForStrays(0, false); err != nil {
				t.Fatal(err)
			}
			if x.strays.at != at {
				n++
			}
		}
		return n
	}
	countLooks(4 * mostStrayRest)
	if x.strays.rest != mostStrayRest {
		t.Fatalf("a look after %d choices, want %d", x.strays.rest, mostStrayRest)
	}
	for i := range x.layers {
		levers.there[x.layers[i].experts[3].owned[0]] = page
	}
	countLooks(8 * mostStrayRest)
	found := map[pages.Range]bool{}
	for _, r := range levers.evicted {
		found[r] = true
	}
	if len(found) != len(x.layers) {
		t.Errorf("strays of %d layers were found, want all %d", len(found), len(x.layers))
	}
	if n := countLooks(100); n < 20 { // the test's pages stay in memory
		t.Errorf("%d looks in 100 choices while there are strays, want at least 20", n)
	}
}

// What is still being read in large folios, for an earlier choice, is not asked for again.
func TestReadExpertsOnce(t *testing.T) {
	needPages(t)
	levers := &recorder{there: map[pages.Range]int64{}}
	x := newSmallMixture(levers)
	x.room = x.size
	l := &x.layers[2]
	levers.folios = []pages.Range{l.experts[1].slices[1]}
	if _, err := x.Select(event.Selected{Decode: 5, Layer: 2, IDs: []int32{1}, IDRows: 1}); err != nil {
		t.Fatal(err)
	}
	if want := []pages.Range{l.experts[1].slices[0]}; !slices.Equal(levers.read, want) {
		t.Errorf("read %v, want %v", levers.read, want)
	}
}
