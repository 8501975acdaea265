package mixture

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

// gathers is a read of n experts.
func gathers(file int, name string, offset, slice int64, n, chosen int) pattern.CycleRead {
	return pattern.CycleRead{File: file, Tensor: name, Offset: offset, Length: slice * int64(n), Slice: slice, Slices: chosen, Experts: true}
}

// newWith is the mixture of a cycle, whose experts stay as long as there is room.
func newWith(levers *noting, cycle *pattern.Cycle, blocks []pages.Range) *Mixture {
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
			[]pattern.CycleRead{gathers(0, "blk.3.ffn_gate_exps.weight", 0, 2*page, 4, 2), gathers(0, "blk.3.ffn_up_exps.weight", 8*page, 2*page, 4, 2), gathers(0, "blk.3.ffn_down_exps.weight", 16*page, 3*page, 4, 2)},
			want{1, 3, 4, 28 * page, 2 * 14 * page, []pages.Range{{File: 0, Offset: 6 * page, Length: 2 * page}, {File: 0, Offset: 14 * page, Length: 2 * page}, {File: 0, Offset: 25 * page, Length: 3 * page}}},
		},
		"fused gate and up": {
			[]pattern.CycleRead{gathers(0, "blk.3.ffn_gate_up_exps.weight", 0, 4*page, 4, 1), gathers(0, "blk.3.ffn_down_exps.weight", 16*page, 2*page, 4, 1)},
			want{1, 2, 4, 24 * page, 2 * 6 * page, []pages.Range{{File: 0, Offset: 12 * page, Length: 4 * page}, {File: 0, Offset: 22 * page, Length: 2 * page}}},
		},
		"a bias of another count": {
			[]pattern.CycleRead{gathers(0, "blk.3.ffn_gate_exps.weight", 0, 2*page, 4, 2), gathers(0, "blk.3.ffn_gate_exps.bias", 8*page, 64, 5, 2)},
			want{1, 1, 4, 8 * page, 2 * 4 * page, []pages.Range{{File: 0, Offset: 6 * page, Length: 2 * page}}},
		},
		"a bias of the same count": {
			[]pattern.CycleRead{gathers(0, "blk.3.ffn_gate_exps.weight", 0, 2*page, 4, 2), gathers(0, "blk.3.ffn_gate_exps.bias", 8*page, 64, 4, 2)},
			want{1, 2, 4, 8*page + 256, 2 * (4*page + 128), []pages.Range{{File: 0, Offset: 6 * page, Length: 2 * page}, {File: 0, Offset: 8*page + 192, Length: 64}}},
		},
		"a tensor read twice": {
			[]pattern.CycleRead{gathers(0, "blk.3.ffn_gate_exps.weight", 0, 2*page, 4, 2), gathers(0, "blk.3.ffn_gate_exps.weight", 0, 2*page, 4, 2)},
			want{1, 1, 4, 8 * page, 2 * 4 * page, []pages.Range{{File: 0, Offset: 6 * page, Length: 2 * page}}},
		},
		"several files": {
			[]pattern.CycleRead{gathers(0, "blk.7.ffn_up_exps.weight", 0, page, 4, 2), gathers(1, "blk.8.ffn_up_exps.weight", 0, 2*page, 8, 2)},
			want{2, 1, 8, 20 * page, 2 * 4 * page, []pages.Range{{File: 1, Offset: 14 * page, Length: 2 * page}}},
		},
		"rows, and what is in no layer": {
			[]pattern.CycleRead{{Tensor: "blk.0.x", Length: 8 * page, Slice: page, Slices: 1}, gathers(0, "x_exps.weight", 0, page, 4, 2)}, want{},
		},
		"too many, and none": {
			[]pattern.CycleRead{gathers(0, "blk.0.x", 0, 4, 1<<20, 2), gathers(0, "blk.1.x", 0, 0, 4, 2), gathers(0, "blk.2.x", 0, -1, 4, 2)}, want{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newWith(&noting{}, &pattern.Cycle{Reads: tc.reads}, nil)
			if x == nil {
				if tc.want.layers != 0 {
					t.Fatal("no experts")
				}
				return
			}
			l := &x.layers[len(x.layers)-1]
			if len(x.layers) != tc.want.layers || l.tensors != tc.want.parts || len(l.experts) != tc.want.experts || x.size != tc.want.all || x.least != tc.want.least {
				t.Errorf("%d layers, %d parts, %d experts, %d bytes, at least %d; want %+v", len(x.layers), l.tensors, len(l.experts), x.size, x.least, tc.want)
			}
			if last := l.experts[len(l.experts)-1]; !slices.Equal(last.slices, tc.want.reads) {
				t.Errorf("the last expert is %v, want %v", last.slices, tc.want.reads)
			}
			for number, at := range x.index {
				if !strings.HasPrefix(tc.reads[slices.IndexFunc(tc.reads, func(r pattern.CycleRead) bool {
					return r.Offset == x.layers[at].experts[0].slices[0].Offset && r.File == x.layers[at].experts[0].slices[0].File
				})].Tensor, fmt.Sprintf("blk.%d.", number)) {
					t.Errorf("layer %d is at %d", number, at)
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

// A slice owns the whole pages that lie in it alone, and in no block that every token reads. Its bytes are those that no block has.
func TestOwnPages(t *testing.T) {
	needPages(t)
	slice := pages.Range{File: 1, Offset: 10*page + 100, Length: 10 * page} // to page 20, byte 100
	for name, tc := range map[string]struct {
		blocks []pages.Range
		bytes  pages.Range
		own    pages.Range
	}{
		"alone":                      {nil, slice, pages.Range{File: 1, Offset: 11 * page, Length: 9 * page}},
		"blocks of another file":     {[]pages.Range{{File: 0, Offset: 0, Length: 100 * page}, {File: 2, Offset: 0, Length: 100 * page}}, slice, pages.Range{File: 1, Offset: 11 * page, Length: 9 * page}},
		"blocks beside it":           {[]pages.Range{{File: 1, Offset: 0, Length: 10 * page}, {File: 1, Offset: 21 * page, Length: page}}, slice, pages.Range{File: 1, Offset: 11 * page, Length: 9 * page}},
		"one over the beginning":     {[]pages.Range{{File: 1, Offset: 0, Length: 14 * page}}, pages.Range{File: 1, Offset: 14 * page, Length: 6*page + 100}, pages.Range{File: 1, Offset: 14 * page, Length: 6 * page}},
		"one over the end":           {[]pages.Range{{File: 1, Offset: 18 * page, Length: 14 * page}}, pages.Range{File: 1, Offset: 10*page + 100, Length: 8*page - 100}, pages.Range{File: 1, Offset: 11 * page, Length: 7 * page}},
		"over both":                  {[]pages.Range{{File: 1, Offset: 18 * page, Length: 14 * page}, {File: 1, Offset: 0, Length: 14 * page}}, pages.Range{File: 1, Offset: 14 * page, Length: 4 * page}, pages.Range{File: 1, Offset: 14 * page, Length: 4 * page}},
		"two over the beginning":     {[]pages.Range{{File: 1, Offset: 12 * page, Length: 2 * page}, {File: 1, Offset: 0, Length: 12 * page}}, pages.Range{File: 1, Offset: 14 * page, Length: 6*page + 100}, pages.Range{File: 1, Offset: 14 * page, Length: 6 * page}},
		"one over all":               {[]pages.Range{{File: 1, Offset: 0, Length: 100 * page}}, pages.Range{File: 1, Offset: 100 * page, Length: 0}, pages.Range{File: 1, Offset: 100 * page, Length: 0}},
		"both meet":                  {[]pages.Range{{File: 1, Offset: 0, Length: 14 * page}, {File: 1, Offset: 14 * page, Length: 14 * page}}, pages.Range{File: 1, Offset: 28 * page, Length: 0}, pages.Range{File: 1, Offset: 28 * page, Length: 0}},
		"one that begins as it does": {[]pages.Range{{File: 1, Offset: 10*page + 100, Length: page}}, pages.Range{File: 1, Offset: 11*page + 100, Length: 9 * page}, pages.Range{File: 1, Offset: 12 * page, Length: 8 * page}},
	} {
		blocks := slices.Clone(tc.blocks)
		sortRanges(blocks)
		got := trimBlocks(slice, blocks)
		if own := trimToPages(got); got != tc.bytes && (got.Length > 0 || tc.bytes.Length > 0) || own != tc.own && (own.Length > 0 || tc.own.Length > 0) {
			t.Errorf("%s: %v, pages %v; want %v, %v", name, got, own, tc.bytes, tc.own)
		}
	}
	if own := trimToPages(pages.Range{File: 0, Offset: 100, Length: page}); own.Length != 0 {
		t.Errorf("a slice without a whole page owns %v", own)
	}
	// Neighbours own no page twice; together, all but those that they share.
	x := newWith(&noting{}, &pattern.Cycle{Reads: []pattern.CycleRead{gathers(0, "blk.0.x", 100, 3*page+1000, 8, 2)}}, []pages.Range{{File: 0, Offset: 20 * page, Length: page}, {File: 0, Offset: 0, Length: 2 * page}})
	owner := map[int64]int{}
	var bytes int64
	for i, e := range x.layers[0].experts {
		bytes += e.bytes
		for _, r := range e.owned {
			for at := r.Offset; at < r.End(); at += page {
				if other, twice := owner[at/page]; twice || at < e.slices[0].Offset || at+page > e.slices[0].End() || at < 2*page || at == 20*page {
					t.Errorf("page %d is expert %d's, and %d's", at/page, i, other)
				}
				owner[at/page] = i
			}
		}
	}
	if bytes != x.size || x.size >= 8*(3*page+1000)-2*page {
		t.Errorf("experts have %d bytes, all of them %d", bytes, x.size)
	}
}

// Choices of long ago count less; that scores are scaled down does not change their order.
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
		t.Errorf("after %v, %v, %v, %v tokens", next(0), next(1), next(2), next(3))
	}
	if n := next(3); n > 2 {
		t.Errorf("what all tokens chose is expected after %v", n)
	}
	never := l.tokensUntil(&expert{}, 0)
	if next(0) >= never || never > 1/neverScore {
		t.Errorf("what was never chosen is expected after %v tokens, after %v what was once", never, next(0))
	}
	before := []float64{next(0), next(1), next(2), next(3)}
	l.step *= maxScore
	for e := range l.experts {
		l.experts[e].score *= maxScore
	}
	l.addChoice(nil)
	if l.step != 1 {
		t.Fatalf("a step of %g: not scaled down", l.step)
	}
	for e, was := range before {
		if now := next(e); now < was || now+1 > (was+1)*1.01 { // one more token has passed
			t.Errorf("expert %d is expected after %v tokens, before scores were scaled down after %v", e, now, was)
		}
	}
}

// Of a slice that is read in several pieces the first page of each stays, unless it is shared or the piece is short.
func TestPieces(t *testing.T) {
	needPages(t)
	const inPiece = pages.MinSlice / page
	piece := func(int) int64 { return 2 * pages.MinSlice }
	slice := int64(5*pages.MinSlice - 3*page + 7) // pieces of 2, 2 and less than 1 MinSlice
	x := newWith(&noting{piece: piece}, &pattern.Cycle{Reads: []pattern.CycleRead{gathers(0, "blk.0.x", 10*page, slice, 2, 1)}}, nil)
	got := [][]pages.Range{x.layers[0].experts[0].owned, x.layers[0].experts[1].owned}
	at := func(first, end int64) pages.Range {
		return pages.Range{File: 0, Offset: first * page, Length: (end - first) * page}
	}
	second := int64(10 + 5*inPiece - 3) // the page in which the second slice begins, which both have
	want := [][]pages.Range{
		{at(11, 10+2*inPiece), at(10+2*inPiece+1, 10+4*inPiece), at(10+4*inPiece, second)},
		{at(second+1, second+2*inPiece), at(second+2*inPiece+1, second+4*inPiece), at(second+4*inPiece, second+5*inPiece-3)},
	}
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, want %v", got, want)
	}
}

// noting are pages that note what is asked of them.
type noting struct {
	pages.Levers
	evicted, read []pages.Range
	there         map[pages.Range]int64
	underWay      []pages.Range
	folios        []pages.Range // being read as such
	full          int           // how many more may be evicted; 0: all
	piece         func(int) int64
}

func (p *noting) SlicePieceBytes(file int) int64 {
	if p.piece == nil {
		return 0
	}
	return p.piece(file)
}

func (p *noting) Evict(r pages.Range) bool {
	if p.full > 0 && len(p.evicted) >= p.full {
		return false
	}
	p.evicted = append(p.evicted, r)
	return true
}
func (p *noting) Announce(pages.Range)                       {}
func (p *noting) ReadNow(r pages.Range) error                { p.read = append(p.read, r); return nil }
func (p *noting) ResidentBytes(r pages.Range) (int64, error) { return p.there[r], nil }
func (p *noting) IsReading(r pages.Range) bool               { return slices.Contains(p.folios, r) }
func (p *noting) HasArrived(r pages.Range) (bool, error)     { return !slices.Contains(p.underWay, r), nil }

// smallMixture is a mixture of four layers with four experts of 1 and 2 pages each.
func smallMixture(levers *noting) *Mixture {
	cycle := &pattern.Cycle{}
	for layer := range int64(4) {
		cycle.Reads = append(cycle.Reads, gathers(0, fmt.Sprintf("blk.%d.a", layer), layer*12*page, page, 4, 1), gathers(0, fmt.Sprintf("blk.%d.b", layer), layer*12*page+4*page, 2*page, 4, 1))
	}
	return newWith(levers, cycle, nil)
}

// Those give way that are expected last: the rarely chosen before the often chosen; of equals, those of the layer that was just used before those of the next one; never what is being used.
func TestMakeRoom(t *testing.T) {
	needPages(t)
	levers := &noting{}
	x := smallMixture(levers)
	for i := range x.layers {
		l := &x.layers[i]
		l.experts[0].score, l.experts[1].score = 100, 50 // 2 is chosen never, 3 is not there
		for j := range 3 {
			l.experts[j].resident = true
			x.resident += l.experts[j].bytes
		}
	}
	x.now, x.clock, x.room = 1, 1, x.resident
	x.layers[1].experts[2].chosenAt = 1
	x.MakeRoom()
	if len(levers.evicted) > 0 {
		t.Fatalf("evicted %v though all have room", levers.evicted)
	}
	expect := func(layer, e int) {
		t.Helper()
		n := len(levers.evicted)
		x.room = x.resident - 1
		x.MakeRoom()
		if one := &x.layers[layer].experts[e]; !slices.Equal(levers.evicted[n:], one.owned) || one.resident || one.evictedAt != x.clock {
			t.Errorf("evicted %v; want expert %d of layer %d: %v", levers.evicted[n:], e, layer, one.owned)
		}
	}
	expect(0, 2) // layers 2, 3 and 0 come next, in this order; 1 is being used
	expect(3, 2)
	expect(2, 2)
	expect(1, 1)
	expect(0, 1)
	if x.resident != 7*3*page {
		t.Errorf("%d bytes are there", x.resident)
	}
	x.room = 0
	levers.full = len(levers.evicted) + 3
	x.MakeRoom()
	if x.resident != 6*3*page {
		t.Errorf("%d bytes are there after one could be evicted whole", x.resident)
	}
	levers.full = 0
	x.MakeRoom()
	if one := &x.layers[1].experts[2]; !one.resident || x.resident != one.bytes {
		t.Errorf("%d bytes are there; what is being used: %v", x.resident, one.resident)
	}
}

// What is missing of a choice is read tensor by tensor; what was to be paged out is asked for though it is still in memory, what was to stay is only looked at.
func TestReadExperts(t *testing.T) {
	needPages(t)
	levers := &noting{there: map[pages.Range]int64{}}
	x := smallMixture(levers)
	x.room = x.size
	l := &x.layers[2]
	for e := range 3 {
		for _, r := range l.experts[e].slices {
			if e < 2 {
				levers.there[r] = r.Length
			}
		}
	}
	stays, taken := &l.experts[0], &l.experts[2]
	stays.resident, taken.resident = true, true
	x.resident = stays.bytes + taken.bytes
	if _, err := x.Select(event.Selected{Decode: 5, Layer: 2, IDs: []int32{3, 1, 0, 2}, IDRows: 1}); err != nil {
		t.Fatal(err)
	}
	part := func(e, part int) pages.Range { return l.experts[e].slices[part] }
	if want := []pages.Range{part(1, 0), part(3, 0), part(1, 1), part(3, 1), part(2, 0), part(2, 1)}; !slices.Equal(levers.read, want) {
		t.Errorf("read %v, want %v", levers.read, want)
	}
	if x.total.chosen != 4 || x.total.missed != 2 || x.total.read != 6*page || x.resident != 4*3*page {
		t.Errorf("%+v, %d bytes there", *x.Summary(nil), x.resident)
	}
	if x.least != 2*4*3*page {
		t.Errorf("at least %d bytes have to be there, of a token that chose four", x.least)
	}
	// What two tokens chose is read once.
	if _, err := x.Select(event.Selected{Decode: 5, Layer: 1, IDs: []int32{0, 1, 1, 0}, IDRows: 2}); err != nil {
		t.Fatal(err)
	}
	if len(levers.read) != 6+4 || x.total.chosen != 6 || x.total.missed != 4 {
		t.Errorf("read %v; %d experts were chosen, %d missing", levers.read, x.total.chosen, x.total.missed)
	}
}

// What a miss of the target read around itself is paged out, unless that is under way.
func TestStrays(t *testing.T) {
	needPages(t)
	levers := &noting{there: map[pages.Range]int64{}}
	x := smallMixture(levers)
	l := &x.layers[1]
	for e := range l.experts {
		levers.there[l.experts[e].owned[0]] = page
	}
	x.clock = 20
	l.experts[0].resident = true
	l.experts[1].evictedAt = 18
	l.experts[2].evictedAt = 10
	if err := x.evictStrays(l); err != nil {
		t.Fatal(err)
	}
	if want := []pages.Range{l.experts[2].owned[0], l.experts[3].owned[0]}; !slices.Equal(levers.evicted, want) || x.total.strays != 2*page || l.experts[3].evictedAt != 20 {
		t.Errorf("evicted %v, want %v; %d bytes", levers.evicted, want, x.total.strays)
	}
}

// Strays are looked for in all layers by turns, after fewer choices where there were some, after more where there were none.
func TestLookForStrays(t *testing.T) {
	needPages(t)
	levers := &noting{there: map[pages.Range]int64{}}
	x := smallMixture(levers)
	looks := func(choices int) (n int) {
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
	looks(4 * mostStrayRest)
	if x.strays.rest != mostStrayRest {
		t.Fatalf("a look after %d choices, want %d", x.strays.rest, mostStrayRest)
	}
	for i := range x.layers {
		levers.there[x.layers[i].experts[3].owned[0]] = page
	}
	looks(8 * mostStrayRest)
	found := map[pages.Range]bool{}
	for _, r := range levers.evicted {
		found[r] = true
	}
	if len(found) != len(x.layers) {
		t.Errorf("strays of %d layers were found, of %d", len(found), len(x.layers))
	}
	if n := looks(100); n < 20 { // they do not go: it is a test
		t.Errorf("%d looks in 100 choices while there are strays", n)
	}
}

// What is being read, as large folios of a choice before, is not asked for again.
func TestReadExpertsOnce(t *testing.T) {
	needPages(t)
	levers := &noting{there: map[pages.Range]int64{}}
	x := smallMixture(levers)
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
