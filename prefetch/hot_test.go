package prefetch_test

// This file tests in virtual time that the experts which were chosen most before are read first.

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/prefetch"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
	"tensorcast/sim"
)

// memory keeps scores from one rig to the next.
type memory struct {
	scores mixture.Scores
	kept   int // times
	from   mixture.Source
}

// options are those of a Controller that begins with what was kept, and keeps what it learns.
func (m *memory) options(o prefetch.Options) prefetch.Options {
	o.Experts.Known = func(models.Model) *mixture.Known {
		if m.scores == nil {
			return nil
		}
		return &mixture.Known{Scores: m.scores, From: cmp.Or(m.from, mixture.LastRun)}
	}
	o.Experts.Keep = func(_ models.Model, s mixture.Scores) { m.scores, m.kept = s, m.kept+1 }
	return o
}

// warmUp has a rig's target do its warm-up, which reads all experts, and then nothing for a while.
func (r *rig) warmUp(pause time.Duration) {
	r.t.Helper()
	r.Warmup = true
	r.run(1)
	r.Warmup = false
	if err := r.Sleep(pause); err != nil {
		r.t.Fatal(err)
	}
}

// likeliest are the experts that have room for so many bytes, by their chance in a run of many tokens.
func likeliest(route func(token, layer int) []int32, bytes int64) (all [][2]int) {
	counts := map[[2]int]int{}
	for token := 1; token < 2000; token++ {
		for layer := range mixLayers {
			for _, id := range route(token, layer) {
				counts[[2]int{layer, int(id)}]++
			}
		}
	}
	for x := range counts {
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b [2]int) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), slices.Compare(a[:], b[:]))
	})
	return all[:min(int(bytes/mixExpert), len(all))]
}

// countResident counts those experts that are in memory as a whole.
func (r *rig) countResident(experts [][2]int) (n int) {
	r.t.Helper()
	for _, x := range experts {
		whole := true
		for _, c := range r.cycle.Reads {
			if !c.Experts || !strings.HasPrefix(c.Tensor, fmt.Sprintf("blk.%d.", x[0])) {
				continue
			}
			part := pages.Range{Offset: c.Offset + int64(x[1])*c.Slice, Length: c.Slice}
			bytes, err := r.pages.ResidentBytes(part)
			if err != nil {
				r.t.Fatal(err)
			}
			whole = whole && bytes >= c.Slice
		}
		if whole {
			n++
		}
	}
	return n
}

// newHotRig is a rig of a mixture whose target has mapped its model, and been seen from then on.
func newHotRig(t *testing.T, m *memory, opts prefetch.Options) *rig {
	t.Helper()
	r := newMixtureRig(t, 300*mib, skewed, m.options(opts), nil)
	r.run(0)
	return r
}

// The second run of a model has its hot experts in memory after the warm-up, and its first tokens read less than those
// of the first run. What is kept is how often the experts were chosen.
func TestSecondRun(t *testing.T) {
	var m memory
	first := newHotRig(t, &m, prefetch.Options{})
	first.warmUp(time.Second)
	cold := first.run(48)
	if x := first.Summary().Experts; x.Hot != nil {
		t.Errorf("the first run: %+v was read first, want nothing", *x.Hot)
	}
	first.run(200)
	for range 3 {
		if err := first.Sleep(20 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if m.scores == nil || m.kept != 1 { // nothing was chosen since
		t.Errorf("kept %d times in a minute, %d layers; want scores, kept once", m.kept, len(m.scores))
	}
	first.KeepScores()
	if m.kept != 2 {
		t.Errorf("kept %d times in the end, want twice", m.kept)
	}
	second := newHotRig(t, &m, prefetch.Options{})
	second.warmUp(time.Second)
	s := second.Status()
	if s.LoopPhase != prefetch.Mixture || s.Hot == nil || !s.Hot.Over || s.Hot.Experts == 0 {
		t.Fatalf("after the warm-up: phase %s, %+v read first; want %s, and experts",
			s.LoopPhase, s.Hot, prefetch.Mixture)
	}
	room := second.Summary().Experts.Room
	hot := likeliest(routing(skewed), room)
	before, after := first.countResident(hot), second.countResident(hot)
	if after < len(hot)*85/100 {
		t.Errorf("%d of the %d likeliest experts are in memory after the warm-up (%d after the first run), "+
			"want at least 85 %%", after, len(hot), before)
	}
	warm := second.run(48)
	t.Logf("48 tokens: %v each cold, %v with hot experts; %d and %d bytes", cold.Time, warm.Time,
		cold.HelperBytes+cold.TargetBytes, warm.HelperBytes+warm.TargetBytes)
	if read, was := warm.HelperBytes+warm.TargetBytes, cold.HelperBytes+cold.TargetBytes; read > was*8/10 ||
		warm.Time > cold.Time*9/10 {
		t.Errorf("a token of the first 48 reads %d bytes in %v, want at most 8 tenths of the first run's %d, "+
			"and 9 tenths of its %v", read, warm.Time, was, cold.Time)
	}
	if first.Overcommitted() > 0 || second.Overcommitted() > 0 {
		t.Errorf("%d and %d bytes exceed the limit, want 0", first.Overcommitted(), second.Overcommitted())
	}
	if x := second.Summary().Experts.Hot; x == nil || x.From != mixture.LastRun || x.Read < room/4 {
		t.Errorf("%+v was read first, want at least a quarter of %d bytes, because of the last run", x, room)
	}
}

// loadedMixture is a mixture like that of mixtureCycle, as a file.
func loadedMixture() *gguftest.Model {
	m := &gguftest.Model{KVs: []gguftest.KV{
		{Key: "general.architecture", Value: "llama"}, {Key: "llama.expert_used_count", Value: uint32(mixChosen)},
	}}
	add := func(name string, shape ...int64) {
		m.Tensors = append(m.Tensors, gguftest.Tensor{Name: name, Type: gguf.F32, Shape: shape})
	}
	add("token_embd.weight", 1<<10, 1<<8)
	for layer := range mixLayers {
		add(fmt.Sprintf("blk.%d.attn_q.weight", layer), 1<<10, 8<<8)
		for _, name := range []string{"gate", "up", "down"} {
			add(fmt.Sprintf("blk.%d.ffn_%s_exps.weight", layer, name), 1<<10, 1<<8, mixExperts)
		}
	}
	add("output.weight", 1<<10, 1<<10)
	add("output_norm.weight", 1<<10)
	return m
}

// A target that is seen to load the model has help from then on. What it loads of hot experts stays in memory, whether
// its warm-up sends tokens to all experts, as that of an older llama.cpp, or not.
func TestHotAfterLoad(t *testing.T) {
	route := routing(skewed)
	load := func(m *memory, warmup bool) *loader {
		t.Helper()
		l := newLoaderOf(t, loadedMixture(), 1, m.options(prefetch.Options{}), nil, func(c *sim.Config) {
			c.Limit, c.Readahead = 300*mib, 256<<10
			first := 1 // the first decode is the load
			if !warmup {
				first = 0
			}
			c.Route = func(token, layer int) []int32 { return route(max(token-first, 0), layer) }
		})
		if err := l.Sleep(50 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
		l.load(true)
		if err := l.Sleep(20 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if warmup {
			l.Warmup = true
			l.compute()
			l.Warmup = false
		}
		if err := l.Sleep(3 * time.Millisecond); err != nil { // until its end is reported
			t.Fatal(err)
		}
		return l
	}
	var m memory
	first := load(&m, false)
	first.compute()
	first.run(250)
	first.KeepScores()
	for _, warmup := range []bool{false, true} {
		second := load(&m, warmup)
		s := second.Summary()
		if !s.Guessed || s.Learned != 1 || second.Status().LoopPhase != prefetch.Mixture || s.Pinned < mixShared {
			t.Fatalf("warm-up %v: %+v in phase %s, want the guessed cycle, learned once, "+
				"and what every token reads held", warmup, s, second.Status().LoopPhase)
		}
		if h := s.Experts.Hot; h == nil || h.Loaded < h.Wanted*3/4 {
			t.Errorf("warm-up %v: %+v, want at least three quarters of the hot experts to stay from the load",
				warmup, h)
		}
		hot := likeliest(route, s.Experts.Room)
		if n := second.countResident(hot); n < len(hot)*85/100 {
			t.Errorf("warm-up %v: %d of the %d likeliest experts are in memory, want at least 85 %%",
				warmup, n, len(hot))
		}
		token := second.compute()
		if most := int64(mixLayers * mixChosen * mixExpert / 2); token.HelperBytes+token.TargetBytes > most {
			t.Errorf("warm-up %v: the first token: %+v, want at most %d bytes read", warmup, token, most)
		}
		if second.Overcommitted() > 0 {
			t.Errorf("warm-up %v: %d bytes exceed the limit, want 0", warmup, second.Overcommitted())
		}
	}
}

// Where the target computes at once, its tokens come first: with hot experts none is much slower than without.
func TestHotWhileComputing(t *testing.T) {
	var m memory
	first := newHotRig(t, &m, prefetch.Options{Always: true})
	first.warmUp(0)
	var cold []sim.Token
	for range 100 {
		cold = append(cold, first.run(1))
	}
	first.KeepScores()
	second := newHotRig(t, &m, prefetch.Options{Always: true})
	second.warmUp(0)
	var sum, sumCold time.Duration
	for n := range 48 {
		token := second.run(1)
		sum, sumCold = sum+token.Time, sumCold+cold[n].Time
		if n < 4 && token.Time > cold[n].Time*13/10 {
			t.Errorf("token %d takes %v while hot experts are read, want about the %v without",
				n, token.Time, cold[n].Time)
		}
	}
	if sum > sumCold*95/100 {
		t.Errorf("48 tokens take %v, want at most 95 %% of the %v of the first run", sum, sumCold)
	}
	if h := second.Status().Hot; h == nil || h.Experts == 0 {
		t.Errorf("%+v was read first, want some", h)
	}
}

// With wrong scores it is no slower in the long run: what is chosen takes their place.
func TestWrongScores(t *testing.T) {
	var m memory
	right := newHotRig(t, &m, prefetch.Options{Always: true})
	right.warmUp(0)
	right.run(600)
	settled := right.run(50)
	m.scores = mixture.Scores{99: {1, 1}}
	for layer := range int32(mixLayers) {
		s := make([]float32, mixExperts)
		for _, id := range []int{0, 1, 2, 3} {
			s[id] = 0.5
		}
		m.scores[layer] = s
	}
	wrong := newHotRig(t, &m, prefetch.Options{Always: true})
	wrong.warmUp(time.Second)
	if h := wrong.Status().Hot; h == nil || h.Experts == 0 {
		t.Errorf("%+v was read first, want some: the test does not meet its case", h)
	}
	wrong.run(600)
	if token := wrong.run(50); token.Time > settled.Time*11/10 {
		t.Errorf("in the end a token takes %v, want about %v", token.Time, settled.Time)
	}
}

// Where help does not win, what was kept is forgotten. A run of which something is known begins with help, without
// measuring tokens first.
func TestHotWithoutWin(t *testing.T) {
	m := memory{scores: mixture.Scores{}}
	r := newHotRig(t, &m, prefetch.Options{})
	r.warmUp(10 * time.Millisecond)
	if s := r.Status(); s.LoopPhase != prefetch.Mixture {
		t.Errorf("after the warm-up: %+v, want phase %s", s, prefetch.Mixture)
	}
	for i := range r.cycle.Reads {
		r.cycle.Reads[i].Nanos *= 1000 // what is read makes no difference
	}
	_, err := r.Run(1, r.cycle, 300)
	var stood *prefetch.StandBack
	if !errors.As(err, &stood) || stood.Reason != prefetch.NoWin {
		t.Fatalf("%v, want a stand back (%v)", err, prefetch.NoWin)
	}
	if m.scores != nil || m.kept == 0 {
		t.Errorf("kept %v, %d times, want nothing in the end", m.scores, m.kept)
	}
}

// A dense model is not affected by what is known of experts.
func TestHotOfDenseModel(t *testing.T) {
	m := memory{scores: mixture.Scores{0: {1}}}
	r := newRig(t, 0.6, m.options(prefetch.Options{}), nil)
	r.warmUp(10 * time.Millisecond)
	if s := r.Status(); s.LoopPhase != prefetch.Compare || s.Hot != nil {
		t.Errorf("after the warm-up: %+v, want phase %s", s, prefetch.Compare)
	}
	r.run(20)
	if r.KeepScores(); m.kept > 0 {
		t.Errorf("kept %d times, want nothing kept", m.kept)
	}
}
