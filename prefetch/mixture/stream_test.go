package mixture

// This file tests which experts are streamed for a prompt, how far ahead, and what is paged out behind the target.

import (
	"slices"
	"testing"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// streamer is a small mixture with a target that computes prompts.
type streamer struct {
	*Mixture
	t      *testing.T
	levers *recorder
	decode uint32
}

// newStreamer has room for so many of the 48 pages of a small mixture. Each of its four layers has 12: a tensor with a
// page for each of four experts, and one with two.
func newStreamer(t *testing.T, room int64) *streamer {
	t.Helper()
	needPages(t)
	levers := &recorder{there: map[pages.Range]int64{}}
	s := &streamer{newSmallMixture(levers), t, levers, 0}
	s.room = room * page
	return s
}

// choose has a layer choose all experts for so many tokens.
func (s *streamer) choose(layer int32, rows int) {
	s.t.Helper()
	var ids []int32
	for row := range rows {
		ids = append(ids, int32(row%4))
	}
	if _, err := s.Select(event.Selected{Decode: s.decode, Layer: layer, IDs: ids, IDRows: rows}); err != nil {
		s.t.Fatal(err)
	}
}

// expect compares what was read ahead and evicted since the last call, in pages.
func (s *streamer) expect(when string, ahead, evicted [][2]int64) {
	s.t.Helper()
	if _, err := s.StreamAhead(); err != nil {
		s.t.Fatal(err)
	}
	inPages := func(all []pages.Range) (pairs [][2]int64) {
		for _, r := range all {
			pairs = append(pairs, [2]int64{r.Offset / page, r.Length / page})
		}
		return pairs
	}
	if got := inPages(s.levers.ahead); !slices.Equal(got, ahead) {
		s.t.Errorf("%s: read ahead %v, want %v (first page, pages)", when, got, ahead)
	}
	if got := inPages(s.levers.evicted); !slices.Equal(got, evicted) {
		s.t.Errorf("%s: evicted %v, want %v (first page, pages)", when, got, evicted)
	}
	s.levers.ahead, s.levers.evicted = nil, nil
}

// A prompt is read ahead as far as the window goes, in the order of use. An expert of each layer is kept, as there is
// room for it. The others are paged out when the target has passed them. Nothing is read on demand, but in the last
// layer, which computes only the tokens whose logits are wanted.
func TestStream(t *testing.T) {
	s := newStreamer(t, 32)
	s.BeginDecode(64)
	s.expect("before the first choice", [][2]int64{{0, 1}, {1, 3}, {4, 2}, {6, 6}, {12, 1}, {13, 3}, {16, 2}}, nil)
	s.choose(0, 64)
	s.expect("the first layer", nil, nil)
	s.NoteRead(0, 0)
	s.expect("a tensor is over", [][2]int64{{18, 6}, {24, 1}}, [][2]int64{{1, 3}})
	s.levers.busy = true
	s.NoteRead(0, 4*page)
	s.expect("the disk is busy", nil, [][2]int64{{6, 6}})
	s.levers.busy = false
	s.choose(1, 64)
	s.expect("the second layer", [][2]int64{{25, 3}, {28, 2}}, nil)
	s.choose(2, 64)
	// Of the last layer nothing is read ahead. The next pass is expected, as the target has not generated anything.
	s.expect("the third layer", [][2]int64{{30, 6}, {0, 1}, {1, 3}, {4, 2}}, [][2]int64{{13, 3}, {18, 6}})
	if len(s.levers.read) > 0 {
		t.Errorf("read %v on demand in streamed layers, want nothing", s.levers.read)
	}
	s.choose(3, 1)
	if want := []pages.Range{s.layers[3].experts[0].slices[0], s.layers[3].experts[0].slices[1]}; !slices.Equal(
		s.levers.read, want) {
		t.Errorf("read %v on demand in the last layer, want %v", s.levers.read, want)
	}
	s.levers.evicted = nil // an expert may have made room
	if s.Staged() > s.stream.window || s.resident > s.keepable() {
		t.Errorf("%d bytes are staged, %d resident, want at most %d and %d",
			s.Staged(), s.resident, s.stream.window, s.keepable())
	}
	s.EndDecode()
	s.BeginDecode(1)
	if s.stream.on || s.Staged() != 0 || s.keepable() != s.room {
		t.Errorf("while a token is generated: %+v, want that nothing is streamed", s.stream)
	}
	if len(s.levers.evicted) == 0 {
		t.Error("what was staged is left in memory, want it paged out")
	}
}

// What the target reaches first it reads by itself. It is paged out all the same, and reading goes on ahead of it.
func TestStreamBehind(t *testing.T) {
	s := newStreamer(t, 32)
	s.levers.busy = true
	s.BeginDecode(64)
	s.expect("the disk is busy", nil, nil)
	s.choose(0, 64)
	s.choose(1, 64)
	s.levers.busy = false
	s.expect("a layer later", [][2]int64{{12, 1}, {13, 3}, {16, 2}, {18, 6}, {24, 1}, {25, 3}, {28, 2}},
		[][2]int64{{1, 3}, {6, 6}})
}

// Where half of the room is too small for two tensors nothing is streamed, nor for few tokens, nor where tokens were
// seen to choose alike.
func TestStreamsNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		room   int64
		tokens int
		alike  bool
		want   bool
	}{
		"room":          {32, 64, false, true},
		"little room":   {31, 64, false, false},
		"few tokens":    {32, leastRows, false, false},
		"tokens alike":  {32, 64, true, false},
		"all resident":  {48, 64, false, true},
		"hardly a half": {40, 64, false, true},
	} {
		s := newStreamer(t, tc.room)
		for range 200 {
			if tc.alike {
				s.learnLocality(&s.layers[0], 1, 64)
			} else {
				s.learnLocality(&s.layers[0], 4, 64)
			}
		}
		if s.BeginDecode(tc.tokens); s.stream.on != tc.want {
			t.Errorf("%s: it is streamed: %v, want %v", name, s.stream.on, tc.want)
		}
	}
}

// A decode of several ubatches goes through all layers once for each. What follows the last one is not read where
// tokens are generated.
func TestStreamPasses(t *testing.T) {
	s := newStreamer(t, 32)
	s.BeginDecode(1)
	s.BeginDecode(2*64 + 3)
	for pass := range 2 {
		for layer := range int32(3) {
			s.choose(layer, 64)
			if _, err := s.StreamAhead(); err != nil {
				t.Fatal(err)
			}
			if !s.stream.on || s.stream.end != 2*8 {
				t.Fatalf("pass %d, layer %d: %+v, want two passes of 8 tensors to be streamed", pass, layer, s.stream)
			}
		}
	}
	if s.choose(0, 3); s.stream.on {
		t.Error("the last three tokens are streamed, want them read when they have chosen")
	}
}

// A layer that turns out to choose for all tokens is streamed from then on, even if it is the last one. What was read
// of the next pass gives way to it.
func TestStreamLastLayer(t *testing.T) {
	s := newStreamer(t, 32)
	s.BeginDecode(2 * 64)
	for layer := range int32(3) {
		s.choose(layer, 64)
		if _, err := s.StreamAhead(); err != nil {
			t.Fatal(err)
		}
	}
	s.levers.ahead, s.levers.evicted = nil, nil
	s.choose(3, 64)
	s.expect("the last layer", [][2]int64{{36, 1}, {37, 3}, {40, 2}, {42, 6}, {0, 1}, {1, 3}, {4, 2}},
		[][2]int64{{1, 3}, {25, 3}, {30, 6}})
	if len(s.levers.read) > 0 || s.layers[3].few {
		t.Errorf("read %v on demand, want nothing; it is said to choose for few tokens: %v, want for all",
			s.levers.read, s.layers[3].few)
	}
}

// A cycle that was learned from a prompt tells which layers choose for few of its tokens, and how many experts a token
// chooses.
func TestStreamLearned(t *testing.T) {
	cycle := &pattern.Cycle{Reads: []pattern.CycleRead{
		chosenRead(0, 8), chosenRead(1, 2), chosenRead(2, 8),
	}}
	x := newMixture(&recorder{}, cycle, nil)
	if x.layers[0].few || !x.layers[1].few || x.stream.perToken != 2 {
		t.Errorf("layers choose for few tokens: %v, %v; %d experts a token; want false, true and 2",
			x.layers[0].few, x.layers[1].few, x.stream.perToken)
	}
}

// chosenRead is the read of a layer's tensor with eight experts, of which so many were chosen.
func chosenRead(layer int64, chosen int) pattern.CycleRead {
	return expertsRead(0, []string{"blk.0.a", "blk.1.a", "blk.2.a"}[layer], layer*8*page, page, 8, chosen)
}

// Ranges that are asked for at once are whole blocks, as far as there are some.
func TestCutAhead(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct{ offset, length, want int64 }{
		{0, 52 * mib, 8 * mib},
		{mib / 2, 52 * mib, 3 * mib / 2},
		{2 * mib, 3 * mib, 2 * mib},
		{2 * mib, mib, mib},
		{mib / 2, mib, mib},
	} {
		if got := cutAhead(rangeOf(0, tc.offset, tc.length), 2*mib); got != rangeOf(0, tc.offset, tc.want) {
			t.Errorf("of %d bytes at %d: %v, want %d bytes", tc.length, tc.offset, got, tc.want)
		}
	}
}

// Little that was left over of a range is paged out before the rest is read. What is not little stays.
func TestStreamScraps(t *testing.T) {
	s := newStreamer(t, 32)
	rest := rangeOf(0, 6*page, 6*page)
	s.levers.there[rest] = page / 2
	s.levers.there[rangeOf(0, page, 3*page)] = 2 * page
	s.BeginDecode(64)
	if _, err := s.StreamAhead(); err != nil {
		t.Fatal(err)
	}
	if want := []pages.Range{rest}; !slices.Equal(s.levers.pagedOut, want) {
		t.Errorf("paged out %v, want %v", s.levers.pagedOut, want)
	}
}

// When the room becomes too small for the window, what is staged gives way at once.
func TestStreamWithoutRoom(t *testing.T) {
	s := newStreamer(t, 32)
	s.BeginDecode(64)
	s.choose(0, 64)
	s.expect("with room", [][2]int64{{0, 1}, {1, 3}, {4, 2}, {6, 6}, {12, 1}, {13, 3}, {16, 2}}, nil)
	s.SetRoom(margin + 31*page)
	if s.stream.on || s.Staged() != 0 || s.keepable() != 31*page {
		t.Errorf("%+v, %d bytes may be resident, want that nothing is streamed, and %d", s.stream, s.keepable(), 31*page)
	}
	s.expect("without room", nil, [][2]int64{{1, 3}, {6, 6}, {13, 3}, {18, 6}})
}
