package prefetch_test

// This file tests the control loop in virtual time: staging, evicting, shrinking, relearning, late reads, contexts. No root, no clock, no disk.

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/plan"
	"tensorcast/prefetch/room"
	"tensorcast/sim"
)

const mib = 1 << 20

// model is a cycle of layers of 28 MiB in which, as in many files, the order in the file is not that of use.
func model(file, layers int) *pattern.Cycle {
	c := &pattern.Cycle{}
	offset := int64(4096)
	for range layers {
		sizes := []int64{8 * mib, 16 << 10, 2 * mib, 2 * mib, 16 << 10, 8 * mib, 8 * mib} // ffn_down, attn_norm, attn_q, attn_output, ffn_norm, ffn_gate, ffn_up
		at := make([]int64, len(sizes))
		for i, n := range sizes {
			at[i] = offset
			offset += n
		}
		for _, i := range []int{1, 2, 3, 4, 5, 6, 0} {
			c.Reads = append(c.Reads, pattern.CycleRead{
				File: file, Tensor: "w", Op: "MUL_MAT", Offset: at[i], Length: sizes[i], Nanos: sizes[i] / 20, // 20 bytes in a nanosecond
			})
		}
	}
	return c
}

const (
	reserve = 12 * mib // is what a Controller leaves free
	window  = 16 * mib // what it reads ahead
)

// rig is a machine whose limit is a share of the model, with a helper.
type rig struct {
	*sim.Machine
	*prefetch.Controller
	t       *testing.T
	cycle   *pattern.Cycle // of context 1
	another *pattern.Cycle // a smaller one, of another file, of context 2
	pages   *sim.Pages
}

func newRig(t *testing.T, share float64, opts prefetch.Options, change func(*sim.Config)) *rig {
	t.Helper()
	return rigOf(t, model(0, 10), share, opts, change)
}

func rigOf(t *testing.T, cycle *pattern.Cycle, share float64, opts prefetch.Options, change func(*sim.Config)) *rig {
	t.Helper()
	r := &rig{t: t, cycle: cycle, another: model(1, 1)}
	cfg := sim.Config{
		Cycles: []*pattern.Cycle{r.cycle, r.another}, Limit: int64(share * float64(r.cycle.Bytes())), Readahead: 8 * mib, Bandwidth: 1.5e9, Latency: 80 * time.Microsecond,
		Costs: sim.Costs{PageOut: 200 * time.Microsecond, ReadAhead: 80 * time.Microsecond},
	}
	if change != nil {
		change(&cfg)
	}
	r.Machine = sim.New(cfg)
	r.pages = r.Pages()
	opts.Memory, opts.Now = r.Memory(), r.Now
	r.Controller = prefetch.New(r.pages, opts)
	r.Attach(r.Controller)
	t.Cleanup(func() {
		if err := r.pages.Close(); err != nil {
			t.Error(err)
		}
		if r.Locked() != 0 {
			t.Errorf("%d bytes are locked in the end", r.Locked())
		}
	})
	return r
}

// run computes tokens in the first context, and returns their means.
func (r *rig) run(tokens int) sim.Token { return r.runOther(1, r.cycle, tokens) }

func (r *rig) runOther(context uint64, c *pattern.Cycle, tokens int) (mean sim.Token) {
	r.t.Helper()
	all, err := r.Run(context, c, tokens)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, one := range all {
		mean.Time += one.Time / time.Duration(tokens)
		mean.Misses += one.Misses
		mean.TargetBytes += one.TargetBytes / int64(tokens)
		mean.HelperBytes += one.HelperBytes / int64(tokens)
	}
	return mean
}

// alone is the same machine without a helper.
func alone(t *testing.T, share float64, change func(*sim.Config)) sim.Token {
	t.Helper()
	r := newRig(t, share, prefetch.Options{}, change)
	r.Attach(nil)
	r.run(5)
	return r.run(10)
}

// settled is a rig whose helper has held what it can.
func settled(t *testing.T, share float64, opts prefetch.Options, change func(*sim.Config)) *rig {
	t.Helper()
	r := newRig(t, share, opts, change)
	r.run(16)
	if r.Summary().Learned != 1 {
		t.Fatalf("learned %d times", r.Summary().Learned)
	}
	return r
}

// In the steady state the target finds everything in memory, no byte is read that is held, and the disk never rests.
func TestStaging(t *testing.T) {
	for _, share := range []float64{0.95, 0.85, 0.7, 0.5, 0.3} {
		for _, lock := range []bool{false, true} {
			r := settled(t, share, prefetch.Options{Lock: lock}, nil)
			late := r.Summary().Late // in the first token
			token := r.run(20)
			s := r.Summary()
			if token.Misses != 0 || token.TargetBytes != 0 || s.Late != late {
				t.Errorf("locked %v, at %v: %d pages were missing, %d visits late", lock, share, token.Misses, s.Late-late)
			}
			if least := int64(share*float64(r.cycle.Bytes())) - reserve - window - 2*mib; s.Pinned < least {
				t.Errorf("locked %v, at %v: %d bytes held, %d have room", lock, share, s.Pinned, least)
			}
			missing := r.cycle.Bytes() - s.Pinned
			if token.HelperBytes < missing-mib || token.HelperBytes > missing+missing/10+4*mib {
				t.Errorf("locked %v, at %v: %d bytes read for a token that misses %d", lock, share, token.HelperBytes, missing)
			}
			if disk := time.Duration(float64(token.HelperBytes) / 1.5); token.Time > disk+disk/5 {
				t.Errorf("locked %v, at %v: a token takes %v, the disk %v", lock, share, token.Time, disk)
			}
			if plain := alone(t, share, nil); plain.Time < token.Time*5/4 || plain.TargetBytes < r.cycle.Bytes()*95/100 {
				t.Errorf("locked %v, at %v: %v a token, %v without help, which reads %d bytes", lock, share, token.Time, plain.Time, plain.TargetBytes)
			}
			if expected := float64(time.Second) / float64(token.Time); s.Expected < expected*0.8 || s.Expected > expected*1.25 {
				t.Errorf("locked %v, at %v: expected %.2f tok/s, came to %.2f", lock, share, s.Expected, expected)
			}
		}
	}
}

// What the target has passed is paged out: beside what is held there is never more than the window and what is on its way out.
func TestEviction(t *testing.T) {
	for _, opts := range []prefetch.Options{{}, {Lock: true}, {Strategy: plan.Stream{}}} {
		r := settled(t, 0.6, opts, nil)
		over := 0
		for i := range 200 {
			r.At(time.Duration(i)*time.Millisecond+r.Now().Sub(r.Began()), func() {
				if r.Used() > r.Summary().Pinned+window+12*mib { // a tensor that is under way is evicted when its op is over
					over++
				}
			})
		}
		r.run(4)
		if over > 0 || r.Overcommitted() > 0 {
			t.Errorf("%s: too much was in memory at %d looks of 200; %d bytes beyond the limit", r.Summary().Strategy, over, r.Overcommitted())
		}
	}
}

// A strategy that streams nothing leaves the rest to the target, and pages it out behind it, so that nothing takes what is held.
func TestPinOnly(t *testing.T) {
	for _, lock := range []bool{false, true} {
		r := settled(t, 0.85, prefetch.Options{Strategy: plan.Pin{}, Lock: lock}, nil)
		out := r.pages.Calls.PageOut
		token, s := r.run(10), r.Summary()
		if token.HelperBytes != 0 || r.pages.Calls.PageOut == out || token.TargetBytes == 0 || s.Taken > 0 {
			t.Errorf("locked %v: %d bytes read by the helper, %d by the target; %d were taken", lock, token.HelperBytes, token.TargetBytes, s.Taken)
		}
		if rest := s.PerToken - s.Pinned; token.TargetBytes < rest || token.TargetBytes > rest+rest/4 {
			t.Errorf("locked %v: %d bytes a token, %d are not held", lock, token.TargetBytes, rest)
		}
		if plain := alone(t, 0.85, nil); token.TargetBytes > plain.TargetBytes/2 {
			t.Errorf("locked %v: %d bytes a token, %d without help", lock, token.TargetBytes, plain.TargetBytes)
		}
	}
}

// A limit that is cut is followed with the next tick; room that has come free is used within a second.
func TestShrinking(t *testing.T) {
	for _, lock := range []bool{false, true} {
		r := settled(t, 0.9, prefetch.Options{Lock: lock}, nil)
		full, before := r.Limit(), r.Summary().Pinned
		cut := r.Now().Sub(r.Began()) + 3*time.Millisecond
		var after int64
		r.At(cut, func() { r.SetLimit(full / 2) })
		r.At(cut+20*time.Millisecond, func() { after = r.Summary().Pinned })
		r.run(10)
		s := r.Summary()
		if after > full/2-reserve || s.Shrunk == 0 || s.Pinned < full/2-reserve-window-8*mib {
			t.Errorf("locked %v: of %d bytes %d were held 20 ms after the limit fell to %d, %d in the end", lock, before, after, full/2, s.Pinned)
		}
		if locked := r.Locked(); locked > full/2-reserve {
			t.Errorf("locked %v: %d bytes are locked", lock, locked)
		}
		// What is locked cannot be reclaimed in the moment of the cut. What is kept can.
		if over := r.Overcommitted(); (over > 0) != lock {
			t.Errorf("locked %v: %d bytes beyond the limit", lock, over)
		}
		r.SetLimit(full)
		r.run(20)
		if again := r.Summary().Pinned; again < before-8*mib {
			t.Errorf("locked %v: %d bytes held again of %d", lock, again, before)
		}
		if token := r.run(5); token.Misses > 0 {
			t.Errorf("locked %v: %d pages were missing after the limit was as before", lock, token.Misses)
		}
	}
}

// What the kernel takes of kept blocks is noticed when the target is about to need it, and is read again. More is left free for a while.
func TestTaken(t *testing.T) {
	r := settled(t, 0.9, prefetch.Options{}, nil)
	before := r.Summary()
	r.Take(before.Pinned / 2)
	first := r.run(1)
	if s := r.Summary(); s.Taken < before.Pinned/4 {
		t.Errorf("%d bytes were taken of %d", s.Taken, before.Pinned)
	}
	if first.TargetBytes > 48*mib { // what was staged was taken, too, and the target reads 8 MiB around each page that it misses
		t.Errorf("the target read %d bytes itself", first.TargetBytes)
	}
	r.run(2)
	if s := r.Summary(); s.Pinned < before.Pinned*3/4 || s.Pinned > before.Pinned-8*mib || s.Room >= before.Room {
		t.Errorf("%d bytes are held again of %d; there is room for %d, before %d", s.Pinned, before.Pinned, s.Room, before.Room)
	}
	r.run(160)
	if s := r.Summary(); s.Pinned < before.Pinned-8*mib || s.Learned != 1 {
		t.Errorf("a while later %d bytes are held of %d", s.Pinned, before.Pinned)
	}
	// A few pages are read again, and no more said.
	taken := r.Summary().Taken
	r.Take(4 * mib)
	if token, s := r.run(2), r.Summary(); s.Taken < taken+2*mib || s.Pinned < before.Pinned-8*mib || token.TargetBytes > 2*mib { // some of it was in the window
		t.Errorf("%d bytes were taken, %d are held; the target read %d", s.Taken-taken, s.Pinned, token.TargetBytes)
	}
}

// While the target rests, too, and before its next token.
func TestTakenWhileResting(t *testing.T) {
	r := settled(t, 0.9, prefetch.Options{}, nil)
	before := r.Summary().Pinned
	r.Take(before / 2)
	if err := r.Sleep(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if s := r.Summary(); s.Taken == 0 || s.Pinned < before-8*mib {
		t.Errorf("%d bytes are held of %d, %d were taken", s.Pinned, before, s.Taken)
	}
	if token := r.run(1); token.TargetBytes > 8*mib { // the window was full: one block before it may be missing, around which the target reads 8 MiB
		t.Errorf("the target read %d bytes itself", token.TargetBytes)
	}
}

// A limit that is cut while blocks are still being read to be held ends that.
func TestShrinkingWhileHolding(t *testing.T) {
	r := newRig(t, 0.9, prefetch.Options{}, func(c *sim.Config) { c.Bandwidth = 0.3e9 })
	full := r.Limit()
	met := false
	for at := time.Duration(0); at < 8*time.Second; at += 10 * time.Millisecond {
		r.At(at, func() {
			if held := r.Summary().Pinned; met || held < full/8 || held > full*3/4 {
				return
			}
			met = true
			r.SetLimit(full / 8)
			r.At(at+100*time.Millisecond, func() {
				if held := r.Summary().Pinned; held > full/8 {
					t.Errorf("%d bytes are held with a limit of %d", held, full/8)
				}
			})
		})
	}
	if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0)}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Sleep(4 * time.Second); err != nil {
		t.Fatal(err)
	}
	if !met {
		t.Error("the test did not meet the moment")
	}
}

// What the target alone left in memory is taken over at once: the first token with help misses only what was not there.
func TestTakeHold(t *testing.T) {
	r := newRig(t, 0.85, prefetch.Options{}, nil)
	for _, tokens := range []int{0, 1} {
		r.run(tokens)
		if err := r.Sleep(5 * time.Millisecond); err != nil { // the helper looks each millisecond
			t.Fatal(err)
		}
	}
	held := r.Summary().Pinned
	if held < r.cycle.Bytes()*6/10 {
		t.Errorf("%d bytes are held after the token that was learned from", held)
	}
	if first := r.run(1); first.TargetBytes+first.HelperBytes > r.cycle.Bytes()/2 {
		t.Errorf("the first token with help reads %d bytes of %d", first.TargetBytes+first.HelperBytes, r.cycle.Bytes())
	}
}

// A target that maps its model anew is learned anew, and helped as before.
func TestRelearning(t *testing.T) {
	r := settled(t, 0.8, prefetch.Options{}, nil)
	before := r.run(5)
	r.Remap()
	r.run(12)
	s, token := r.Summary(), r.run(5)
	if s.Learned != 2 || token.Misses > 0 || token.Time > before.Time*11/10 {
		t.Errorf("learned %d times; a token takes %v, before %v; %d pages missing", s.Learned, token.Time, before.Time, token.Misses)
	}
}

// A target that reads other weights, as some are computed elsewhere from now on or no more, is learned anew, and helped with what it reads then.
func TestElsewhere(t *testing.T) {
	version := uint64(0)
	r := settled(t, 0.4, prefetch.Options{Target: prefetch.Target{Elsewhere: func() uint64 { return version }}}, nil)
	whole := r.cycle.Reads
	for n, reads := range [][]pattern.CycleRead{whole[:len(whole)*8/10], whole, whole[:len(whole)/10]} { // at last all of it has room, and is to be kept nevertheless: between it lies the rest
		r.cycle.Reads = reads
		version++
		r.run(16)
		token, s := r.run(5), r.Summary()
		if s.Learned != 2+n || token.Misses > 0 || s.PerToken < r.cycle.Bytes() || s.PerToken > r.cycle.Bytes()*21/20 {
			t.Errorf("a token reads %d bytes, and %d were learned, %d times; %d pages missing", r.cycle.Bytes(), s.PerToken, s.Learned, token.Misses)
		}
	}
	// Where there was nothing to win, it is looked again.
	f := fitting(t, prefetch.Options{Target: prefetch.Target{Elsewhere: func() uint64 { return version }}})
	if again, err := f.Look(); again || err != nil {
		t.Errorf("again: %t, %v", again, err)
	}
	version++
	if again, err := f.Look(); !again || err != nil {
		t.Errorf("what is computed elsewhere has changed; again: %t, %v", again, err)
	}
}

// A server that loads the same model again, in a new context, is followed there.
func TestReloadInAnotherContext(t *testing.T) {
	r := settled(t, 0.8, prefetch.Options{}, nil)
	before := r.run(5)
	r.Remap()
	r.runOther(5, r.cycle, 12)
	if token, s := r.runOther(5, r.cycle, 5), r.Summary(); s.Learned != 2 || token.Misses > 0 || token.Time > before.Time*11/10 {
		t.Errorf("learned %d times; a token takes %v, before %v; %d pages missing", s.Learned, token.Time, before.Time, token.Misses)
	}
}

// The same in a context that is known already, as it decoded before.
func TestReloadInKnownContext(t *testing.T) {
	r := settled(t, 0.8, prefetch.Options{}, nil)
	r.runOther(5, r.cycle, 2)
	r.Remap()
	r.runOther(5, r.cycle, 12)
	if token, s := r.runOther(5, r.cycle, 5), r.Summary(); s.Learned != 2 || token.Misses > 0 {
		t.Errorf("learned %d times; %d pages missing", s.Learned, token.Misses)
	}
}

// A second context on the same mapping is followed as the first one is, without learning anew.
func TestSecondContextOfTheModel(t *testing.T) {
	r := settled(t, 0.8, prefetch.Options{}, nil)
	if token, s := r.runOther(5, r.cycle, 5), r.Summary(); s.Learned != 1 || token.Misses > 0 {
		t.Errorf("learned %d times; %d pages missing", s.Learned, token.Misses)
	}
}

// A helper that comes late (it has no core) wins nothing. It finds that out, and leaves the target alone.
func TestLateReads(t *testing.T) {
	slow := func(c *sim.Config) { c.Tick = 40 * time.Millisecond }
	r := newRig(t, 0.6, prefetch.Options{}, slow)
	tokens, err := r.Run(1, r.cycle, 100)
	var stood *prefetch.StandBack
	if !errors.As(err, &stood) || stood.Reason != prefetch.NoWin || stood.With < stood.Without*97/100 {
		t.Fatalf("%v", err)
	}
	var sum time.Duration
	for _, token := range tokens[3:] {
		sum += token.Time
	}
	if r.Summary().Late == 0 {
		t.Error("no visit was late: the test does not meet its case")
	}
	if plain := alone(t, 0.6, slow); sum/time.Duration(len(tokens)-3) > plain.Time*102/100 {
		t.Errorf("%v a token, %v without help", sum/time.Duration(len(tokens)-3), plain.Time)
	}
	if s := r.Summary(); s.Pinned != 0 || r.Overcommitted() > 0 {
		t.Errorf("%d bytes are held, %d beyond the limit", s.Pinned, r.Overcommitted())
	}
	full := r.Limit()
	for _, limit := range []int64{full, full + 2*mib, full - 8*mib} { // memory is never quite the same
		r.SetLimit(limit)
		if again, err := r.Look(); again || err != nil {
			t.Errorf("it would try again at once, with %d bytes instead of %d (%v)", limit, full, err)
		}
	}
	r.Rest(10 * time.Minute)
	if again, err := r.Look(); !again || err != nil {
		t.Errorf("it never tries again (%v)", err)
	}
}

// Where help begins before a token was seen without it, it is compared early, and given up if it does not win; no token is without where a part of one shows that it wins.
func TestFirstComparisonOfAStoredCycle(t *testing.T) {
	for name, test := range map[string]struct {
		tick      time.Duration
		readahead int64
		lost      bool
	}{"no core": {40 * time.Millisecond, 8 * mib, true}, "a core": {time.Millisecond, 128 << 10, false}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 0.6, prefetch.Options{}, func(c *sim.Config) { c.Tick, c.Readahead = test.tick, test.readahead })
			if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0)}}); err != nil {
				t.Fatal(err)
			}
			if err := r.Sleep(time.Second); err != nil {
				t.Fatal(err)
			}
			_, err := r.Run(1, r.cycle, 40)
			with := r.Summary().Tokens
			if !test.lost {
				if err != nil || with < 39 { // of the first one nothing is known before it is over
					t.Errorf("%d of 40 tokens had help, %v", with, err)
				}
				return
			}
			if stood := new(prefetch.StandBack); !errors.As(err, &stood) || stood.Reason != prefetch.NoWin || with > 20 {
				t.Errorf("%d tokens had help, %v", with, err)
			}
		})
	}
}

// What would fit without the helper's own needs is soon left alone, as its tokens do not wait for the disk then.
func TestFitsAlone(t *testing.T) {
	r := newRig(t, 1, prefetch.Options{}, func(c *sim.Config) { c.Limit += 20 * mib; c.Tick = time.Millisecond })
	if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0)}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Sleep(time.Second); err != nil {
		t.Fatal(err)
	}
	_, err := r.Run(1, r.cycle, 60)
	if stood := new(prefetch.StandBack); !errors.As(err, &stood) || stood.Reason != prefetch.NoWin || r.Summary().Streamed == 0 || r.Summary().Tokens > 30 {
		t.Errorf("%d tokens had help, %v", r.Summary().Tokens, err)
	}
}

// A draft model decodes between the tokens of the model that it drafts for, an embedding context now and then: they read nothing of what is held, which
// is no reason to give it up.
func TestContextsAreFollowedApart(t *testing.T) {
	r := settled(t, 0.9, prefetch.Options{}, nil)
	held := r.Summary().Pinned
	for range 10 {
		r.runOther(2, r.another, 5)
		r.run(1)
		if now := r.Summary().Pinned; now < held-40*mib { // the draft's own pages take some room
			t.Fatalf("%d bytes are held of %d", now, held)
		}
	}
	for decode := range uint32(5) { // decodes that read no weight of a file at all
		for _, e := range []event.Event{event.DecodeBegin{TID: 1, Context: 3, Decode: 1000 + decode, Tokens: 1}, event.DecodeEnd{TID: 1, Decode: 1000 + decode}} {
			if err := r.Handle(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s := r.Summary(); s.Learned != 1 || s.Pinned < held-40*mib {
		t.Errorf("learned %d times, %d bytes held of %d", s.Learned, s.Pinned, held)
	}
	if token := r.run(5); token.Misses > 0 {
		t.Errorf("%d pages were missing", token.Misses)
	}
}

// The model that is read most is helped, whichever decodes first.
func TestLargestContextIsFollowed(t *testing.T) {
	r := newRig(t, 0.7, prefetch.Options{Target: prefetch.Target{Models: func() (m models.Model, err error) {
		for i, size := range []int64{280 * mib, 28 * mib} {
			m.Files = append(m.Files, pattern.CycleFile{Size: size})
			m.Mapped = append(m.Mapped, models.Mapped{Path: fmt.Sprintf("model-%d.gguf", i), ID: sim.FileID(i)})
		}
		return m, nil
	}}}, nil)
	r.runOther(2, r.another, 3)
	small := r.Summary()
	if small.PerToken < r.another.Bytes() || small.PerToken > r.another.Bytes()+2*mib {
		t.Fatalf("follows a cycle of %d bytes, the first context reads %d", small.PerToken, r.another.Bytes())
	}
	r.run(12)
	if s := r.Summary(); s.PerToken < r.cycle.Bytes() || s.Learned != 2 {
		t.Errorf("follows a cycle of %d bytes, the larger one has %d", s.PerToken, r.cycle.Bytes())
	}
	// That model is unloaded; the small one goes on alone.
	r.runOther(2, r.another, 80)
	if s := r.Summary(); s.PerToken > r.another.Bytes()+2*mib || s.Pinned > s.PerToken {
		t.Errorf("still follows a cycle of %d bytes and holds %d, of which nothing was read for 80 tokens", s.PerToken, s.Pinned)
	}
}

// A cycle that is known from a file is held before the first token.
func TestStoredCycle(t *testing.T) {
	r := newRig(t, 0.85, prefetch.Options{}, nil)
	if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0)}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Sleep(time.Second); err != nil {
		t.Fatal(err)
	}
	held := r.Summary().Pinned
	if held < r.cycle.Bytes()/2 {
		t.Fatalf("%d bytes are held before the first token", held)
	}
	first := r.run(1)
	if first.TargetBytes > r.cycle.Bytes()/20 {
		t.Errorf("the first token read %d bytes by itself", first.TargetBytes)
	}
	if token, s := r.run(5), r.Summary(); token.Misses > 0 || s.Learned != 1 {
		t.Errorf("%d pages were missing; learned %d times", token.Misses, s.Learned)
	}
}

// A stored cycle that the target contradicts is given up for what it reads.
func TestStoredCycleContradicted(t *testing.T) {
	r := newRig(t, 0.85, prefetch.Options{}, nil)
	half := &pattern.Cycle{Reads: r.cycle.Reads[:len(r.cycle.Reads)*9/10]}
	if err := r.Use(half, []models.Mapped{{Path: r.Path(0)}}); err != nil {
		t.Fatal(err)
	}
	r.run(12)
	if s := r.Summary(); s.Learned != 2 || s.PerToken < r.cycle.Bytes() {
		t.Errorf("learned %d times, follows %d bytes of %d", s.Learned, s.PerToken, r.cycle.Bytes())
	}
	if token := r.run(5); token.Misses > 0 {
		t.Errorf("%d pages were missing", token.Misses)
	}
}

// A strategy that goes by the stored pattern only neither learns another one nor learns one at all.
func TestPatternOnly(t *testing.T) {
	opts := prefetch.Options{Strategy: plan.Pattern{}}
	r := newRig(t, 0.85, opts, nil)
	half := &pattern.Cycle{Reads: r.cycle.Reads[:len(r.cycle.Reads)*9/10]}
	if err := r.Use(half, []models.Mapped{{Path: r.Path(0)}}); err != nil {
		t.Fatal(err)
	}
	var stood *prefetch.StandBack
	if _, err := r.Run(1, r.cycle, 5); !errors.As(err, &stood) || stood.Reason != prefetch.Differs || r.Summary().Pinned != 0 {
		t.Errorf("%v; %d bytes are held", err, r.Summary().Pinned)
	}
	if again, err := r.Look(); again || err != nil {
		t.Errorf("it would try again with the same model (%v)", err)
	}
	r = newRig(t, 0.85, opts, nil)
	r.run(10)
	if s := r.Summary(); s.Learned != 0 || s.Pinned != 0 {
		t.Errorf("learned %d times without a pattern", s.Learned)
	}
	if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0), Base: r.Base(0)}}); err != nil {
		t.Fatal(err)
	}
	r.run(20)
	if s := r.Summary(); s.Learned != 1 || s.Pinned == 0 || s.Idle != "" {
		t.Errorf("%+v", s)
	}
}

func TestStoredCycleBeyondTheFile(t *testing.T) {
	r := newRig(t, 0.85, prefetch.Options{}, nil)
	wrong := &pattern.Cycle{Reads: []pattern.CycleRead{{Offset: 1 << 40, Length: 4096}}}
	if err := r.Use(wrong, []models.Mapped{{Path: r.Path(0)}}); err == nil {
		t.Error("no error")
	}
}

// Reads that do not lie within the file are left out; lengths whose sum wraps are no exception.
func TestReadsBeyondTheFile(t *testing.T) {
	r := settled(t, 0.85, prefetch.Options{}, nil)
	before := r.Summary()
	for i, extent := range [][2]int64{{1 << 40, 4096}, {4096, 1 << 62}, {-4096, 8192}, {1<<63 - 4096, 1<<63 - 4096}} {
		decode := uint32(2000 + i)
		op := &event.Op{TID: 9, Decode: decode, Name: "MUL_MAT", Sources: []event.Source{{
			Name: "w", InFile: true, File: sim.FileID(0), Offset: extent[0], NE: [4]int64{extent[1] / 4, 1, 1, 1}, NB: [4]int64{4, 0, 0, 0},
		}}}
		for _, e := range []event.Event{event.DecodeBegin{TID: 9, Context: 9, Decode: decode, Tokens: 1}, op, event.DecodeEnd{TID: 9, Decode: decode}} {
			if err := r.Handle(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s := r.Summary(); s.PerToken != before.PerToken || s.Learned != 1 {
		t.Errorf("%+v, before %+v", s, before)
	}
}

// What is no weight of the file, as its own table has it, is left to the target, in a cycle that is learned and in a stored one.
func TestReadsOfNoWeight(t *testing.T) {
	learned := model(0, 10)
	table := models.Weights{}
	for _, at := range learned.Reads {
		table = append(table, models.Weight{Offset: at.Offset, End: at.End()})
	}
	slices.SortFunc(table, func(a, b models.Weight) int { return cmp.Compare(a.Offset, b.Offset) })
	left := table[3]
	table = slices.Delete(table, 3, 4)
	opts := prefetch.Options{Target: prefetch.Target{Weights: func(string, event.FileID) (models.Weights, error) { return table, nil }}}
	r := settled(t, 0.85, opts, nil)
	if s := r.Summary(); s.PerToken < r.cycle.Bytes()-(left.End-left.Offset) || s.PerToken > r.cycle.Bytes()-(left.End-left.Offset)+2*mib {
		t.Errorf("follows %d bytes of %d, of which %d are no weight", s.PerToken, r.cycle.Bytes(), left.End-left.Offset)
	}
	r = newRig(t, 0.85, opts, nil)
	if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0)}}); err == nil {
		t.Error("a stored cycle that reads what is no weight is used")
	}
	// A file that is no model has no weights.
	opts.Target.Weights = func(string, event.FileID) (models.Weights, error) { return nil, gguf.ErrNotGGUF }
	r = newRig(t, 0.85, opts, nil)
	r.run(12)
	if s := r.Summary(); s.Learned != 0 || s.Pinned != 0 || s.Streamed != 0 {
		t.Errorf("helps with a file that is no model: %+v", s)
	}
	broken := errors.New("broken")
	opts.Target.Weights = func(string, event.FileID) (models.Weights, error) { return nil, broken }
	r = newRig(t, 0.85, opts, nil)
	if _, err := r.Run(1, r.cycle, 1); !errors.Is(err, broken) {
		t.Errorf("a model that cannot be read: %v", err)
	}
}

// The same run twice is the same.
func TestDeterministic(t *testing.T) {
	a, b := settled(t, 0.7, prefetch.Options{}, nil), settled(t, 0.7, prefetch.Options{}, nil)
	if x, y := a.run(10), b.run(10); x != y || a.Summary() != b.Summary() {
		t.Errorf("%+v and %+v", x, y)
	}
}

// stored are options to begin with a cycle once the target maps its model.
func stored(c *pattern.Cycle, models func() (models.Model, error)) prefetch.Options {
	named := *c
	named.Files = []pattern.CycleFile{{Name: "model.gguf", Size: 1 << 40, Fingerprint: "a"}}
	return prefetch.Options{Stored: &named, Target: prefetch.Target{Models: models}}
}

// The model may be mapped after a while, beside another one.
func TestStoredCycleOfModelMappedLater(t *testing.T) {
	asked := 0
	opts := stored(model(0, 10), func() (m models.Model, err error) {
		switch asked++; {
		case asked > 8:
			m.Files = []pattern.CycleFile{{Name: "draft.gguf", Size: 7, Fingerprint: "b"}, {Name: "renamed.gguf", Size: 1 << 40, Fingerprint: "a"}}
			m.Mapped = []models.Mapped{{Path: "model-1.gguf"}, {Path: "model-0.gguf"}}
		case asked > 4:
			m.Files = []pattern.CycleFile{{Name: "draft.gguf", Size: 7, Fingerprint: "b"}}
		}
		return m, nil
	})
	r := newRig(t, 0.85, opts, nil)
	if err := r.Sleep(3 * time.Second); err != nil {
		t.Fatal(err)
	}
	if held := r.Summary().Pinned; held < r.cycle.Bytes()/2 || asked < 9 {
		t.Errorf("%d bytes are held; asked %d times", held, asked)
	}
	if token, s := r.run(5), r.Summary(); s.Learned != 1 || token.TargetBytes > r.cycle.Bytes()/20 {
		t.Errorf("learned %d times, %d bytes read by the target", s.Learned, token.TargetBytes)
	}
}

func TestStoredCycleOfAnotherModel(t *testing.T) {
	opts := stored(model(0, 10), func() (m models.Model, err error) {
		m.Files = []pattern.CycleFile{{Name: "other.gguf", Size: 7, Fingerprint: "b"}}
		return m, nil
	})
	r := newRig(t, 0.85, opts, nil)
	if err := r.Sleep(10 * time.Second); !errors.Is(err, pattern.ErrOtherModel) {
		t.Errorf("%v", err)
	}
	// A target that computes already is not waited for.
	r = newRig(t, 0.85, opts, nil)
	if _, err := r.Run(1, r.cycle, 3); !errors.Is(err, pattern.ErrOtherModel) {
		t.Errorf("%v", err)
	}
}

// A target whose models have ample room need not be observed, until they have none, or it maps more than was named. It may map them only after a while.
func TestEarly(t *testing.T) {
	var mapped int64
	opts := prefetch.Options{Target: prefetch.Target{Models: func() (models.Model, error) { return models.Model{Files: []pattern.CycleFile{{Size: mapped}}}, nil }}}
	ample := room.Room{Bytes: 1 << 30, Limit: 1 << 30}
	for name, change := range map[string]func(r *rig){
		"a lower limit":       func(r *rig) { r.SetLimit(r.cycle.Bytes() / 2) },
		"more than was named": func(*rig) { mapped += mib },
	} {
		mapped = 0
		r := newRig(t, 3, opts, nil)
		bytes := r.cycle.Bytes()
		if stood := r.Early(bytes, ample); stood.Reason != prefetch.Fits || r.Status().Activity != prefetch.Idle {
			t.Errorf("%s: %v, %v", name, stood, r.Status())
		}
		for _, mapped = range []int64{0, bytes} {
			if again, err := r.Look(); again || err != nil {
				t.Errorf("%s: nothing has changed with %d bytes mapped, and it looks again (%v)", name, mapped, err)
			}
		}
		change(r)
		if again, err := r.Look(); !again || err != nil {
			t.Errorf("%s: it does not look again (%v)", name, err)
		}
	}

	tight := ample
	tight.Bytes = 400 * mib
	for name, tc := range map[string]struct {
		opts  prefetch.Options
		room  room.Room
		bytes int64
		want  bool
	}{
		"ample":              {opts, ample, 300 * mib, true},
		"no model is named":  {opts, ample, 0, false},
		"it just fits":       {opts, tight, 300 * mib, false},
		"a budget":           {prefetch.Options{Budget: 1 << 40}, ample, 300 * mib, false},
		"help in any case":   {prefetch.Options{Always: true}, ample, 300 * mib, false},
		"to be kept warm":    {prefetch.Options{KeepWarm: true}, ample, 300 * mib, false},
		"a pattern is given": {prefetch.Options{Stored: model(0, 1)}, ample, 300 * mib, false},
	} {
		if got := tc.opts.IsAmple(tc.bytes, tc.room); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// Where everything fits nothing is held, until the room shrinks or another model is mapped.
func TestFits(t *testing.T) {
	var more int64
	opts := prefetch.Options{Target: prefetch.Target{Models: func() (models.Model, error) {
		return models.Model{Files: []pattern.CycleFile{{Size: 280 * mib}, {Size: more}}, Mapped: []models.Mapped{{ID: sim.FileID(0)}, {ID: sim.FileID(7)}}}, nil
	}}}
	for name, change := range map[string]func(r *rig){
		"a lower limit": func(r *rig) { r.SetLimit(r.cycle.Bytes()) },
		"another model": func(*rig) { more = 300 * mib },
	} {
		more = 0
		r := newRig(t, 1.5, opts, nil)
		var stood *prefetch.StandBack
		if tokens, err := r.Run(1, r.cycle, 5); !errors.As(err, &stood) || stood.Reason != prefetch.Fits || len(tokens) > 1 {
			t.Fatalf("%s: %v after %d tokens", name, err, len(tokens))
		}
		if s := r.Status(); s.Activity != prefetch.Idle || !strings.Contains(s.String(), "fits") || s.Held != 0 {
			t.Errorf("%s: %v", name, s)
		}
		if again, err := r.Look(); again || err != nil {
			t.Errorf("%s: nothing has changed, and it looks again (%v)", name, err)
		}
		change(r)
		if again, err := r.Look(); !again || err != nil {
			t.Errorf("%s: it does not look again (%v)", name, err)
		}
	}
	// Where nothing is to be won nothing begins; where it is, and again after that was over, it begins before anything is read.
	begun := 0
	var r *rig
	opts.Host.Begin = func() {
		if begun++; r.pages.Calls != (sim.Calls{}) && begun == 1 || r.Summary().Pinned > 0 {
			t.Errorf("%+v before it begins", r.pages.Calls)
		}
	}
	more = 0
	r = newRig(t, 1.5, opts, nil)
	if _, err := r.Run(1, r.cycle, 5); err == nil || begun != 0 {
		t.Errorf("begun %d times, though all fits (%v)", begun, err)
	}
	full := r.Limit()
	for i := range 2 {
		r.SetLimit(r.cycle.Bytes() * 8 / 10)
		if again, err := r.Look(); !again || err != nil {
			t.Fatal(err)
		}
		r.Attach(r.Controller)
		r.run(20)
		if begun != i+1 || r.Summary().Pinned == 0 {
			t.Errorf("begun %d times", begun)
		}
		r.SetLimit(full)
		if _, err := r.Run(1, r.cycle, 30); err == nil || begun != i+1 {
			t.Errorf("begun %d times; %v", begun, err)
		}
	}
	// What comes to fit while it is held is let go.
	r = settled(t, 0.8, prefetch.Options{}, nil)
	r.SetLimit(2 * r.cycle.Bytes())
	var stood *prefetch.StandBack
	if _, err := r.Run(1, r.cycle, 30); !errors.As(err, &stood) || stood.Reason != prefetch.Fits || r.Summary().Pinned != 0 {
		t.Errorf("%v; %d bytes are held", err, r.Summary().Pinned)
	}
	// A caller's budget is no limit of the target's.
	r = settled(t, 1.5, prefetch.Options{Budget: 200 * mib}, nil)
	if s := r.Summary(); s.Pinned == 0 || s.Level != room.LevelBudget {
		t.Errorf("%+v", s)
	}
	// It may change while it holds: what is too much is given back, and taken again.
	var share atomic.Int64
	share.Store(150 * mib)
	r = settled(t, 0.8, prefetch.Options{Share: share.Load}, nil)
	var held []int64
	for _, bytes := range []int64{150 * mib, 80 * mib, 120 * mib} {
		share.Store(bytes)
		if _, err := r.Run(1, r.cycle, 12); err != nil {
			t.Fatal(err)
		}
		s := r.Summary()
		if s.Pinned > bytes || s.Level != room.LevelBudget {
			t.Errorf("of a budget of %d MiB %d are held (%s)", bytes/mib, s.Pinned/mib, s.Level)
		}
		held = append(held, s.Pinned)
	}
	if held[1] >= held[0] || held[2] <= held[1] {
		t.Errorf("held %v", held)
	}
}

// Tokens are measured without help before anything is held, and again when those with help take as long: the target has become slower in computing.
func TestCompared(t *testing.T) {
	r := newRig(t, 0.85, prefetch.Options{}, nil)
	r.run(2)
	if s := r.Status(); s.Activity != prefetch.Comparing || s.Held != 0 || r.Locked() != 0 {
		t.Errorf("%+v", s)
	}
	r.run(20)
	s := r.Status()
	if s.Activity != prefetch.Helping || s.Before <= 0 || s.Now < s.Before*5/4 || s.Streamed <= 0 || s.Streamed > s.PerToken/2 {
		t.Errorf("%+v", s)
	}
	for i := range r.cycle.Reads {
		r.cycle.Reads[i].Nanos *= 18
	}
	held := s.Held
	compared := false
	for range 60 {
		r.run(1)
		compared = compared || r.Status().Activity == prefetch.Comparing
	}
	if s := r.Status(); !compared || s.Activity != prefetch.Helping || s.Held < held-8*mib || s.Now < s.Before*101/100 || s.Before > 10 {
		t.Errorf("compared %v: %+v", compared, s)
	}
	if s := r.Summary(); s.Taken > mib || s.Learned != 1 {
		t.Errorf("%+v", s)
	}
}

// A target that has executed another program, or unloaded its model, is not held for.
func TestUnmapped(t *testing.T) {
	mapped := []models.Mapped{{}}
	opts := prefetch.Options{Target: prefetch.Target{Models: func() (m models.Model, err error) {
		m.Mapped = mapped
		m.Files = make([]pattern.CycleFile, len(mapped))
		return m, nil
	}}}
	r := newRig(t, 0.85, opts, nil)
	mapped[0].Base = r.Base(0)
	r.run(16)
	if err := r.Sleep(time.Minute); err != nil {
		t.Fatal(err)
	}
	if held := r.Summary().Pinned; held == 0 {
		t.Error("what the target maps is given up while it rests")
	}
	// In the middle of a decode.
	if err := r.Handle(event.DecodeBegin{TID: 1, Context: 1, Decode: 7000, Tokens: 1}); err != nil {
		t.Fatal(err)
	}
	mapped = nil
	if err := r.Sleep(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if s := r.Summary(); s.Pinned != 0 || r.Status().Activity != prefetch.Waiting {
		t.Errorf("%d bytes are held for nobody", s.Pinned)
	}
}

// failing is a disk of which some blocks cannot be read.
type failing struct {
	*sim.Pages
	from, to int64
	tried    map[int64]int
}

func (f *failing) read(r pages.Range, lever func(pages.Range) error) error {
	if r.End() > f.from && r.Offset < f.to {
		f.tried[r.Offset]++
		return fmt.Errorf("read: %w", pages.ErrUnreadable)
	}
	return lever(r)
}

func (f *failing) Lock(r pages.Range) error { return f.read(r, f.Pages.Lock) }
func (f *failing) Keep(r pages.Range) error { return f.read(r, f.Pages.Keep) }

// Blocks that cannot be read are left out, tried once and told once; all others are held.
func TestUnreadable(t *testing.T) {
	for _, lock := range []bool{false, true} {
		r := newRig(t, 0.85, prefetch.Options{}, nil)
		var said strings.Builder
		disk := &failing{r.pages, 40 * mib, 60 * mib, map[int64]int{}}
		opts := prefetch.Options{Lock: lock, Memory: r.Memory(), Now: r.Now, Log: slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))}
		r.Controller = prefetch.New(disk, opts)
		r.Attach(r.Controller)
		if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0)}}); err != nil {
			t.Fatal(err)
		}
		if err := r.Sleep(time.Second); err != nil {
			t.Fatal(err)
		}
		r.run(5)
		for at, n := range disk.tried {
			if n != 1 {
				t.Errorf("locked %v: the block at %d was tried %d times", lock, at, n)
			}
		}
		if s := r.Summary(); s.Pinned < r.cycle.Bytes()/2 || len(disk.tried) == 0 || strings.Count(said.String(), "\n") != 1 {
			t.Errorf("locked %v: %d bytes are held, %d blocks were tried; said %s", lock, s.Pinned, len(disk.tried), said.String())
		}
	}
}

// A target that cannot be helped is left alone, until it can. If that begins later, it is noticed: paging out has no effect.
func TestJudged(t *testing.T) {
	why := errors.New("two processes map it")
	asked := 0
	var verdict error
	r := newRig(t, 0.7, prefetch.Options{Target: prefetch.Target{Judge: func() error { asked++; return verdict }}}, nil)
	r.run(16)
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	verdict = why
	r.Map(0, true)
	var stood *prefetch.StandBack
	if _, err := r.Run(1, r.cycle, 30); !errors.As(err, &stood) || stood.Reason != prefetch.Judged || !errors.Is(err, why) || r.Summary().Pinned != 0 {
		t.Fatalf("%v; %d bytes are held", err, r.Summary().Pinned)
	}
	if again, err := r.Look(); again || err != nil {
		t.Errorf("it looks again though nothing has changed (%v)", err)
	}
	verdict = nil
	r.Rest(time.Minute)
	if again, err := r.Look(); !again || err != nil {
		t.Errorf("it does not look again (%v)", err)
	}
}

// Weights that were copied at load are none of prefetchd's business, until the target loads another model.
func TestOutside(t *testing.T) {
	mapped := int64(280 * mib)
	r := newRig(t, 0.85, prefetch.Options{Target: prefetch.Target{Models: func() (models.Model, error) {
		return models.Model{Files: []pattern.CycleFile{{Size: mapped}}, Mapped: []models.Mapped{{ID: sim.FileID(0)}}}, nil
	}}}, nil)
	var err error
	copied := &event.Op{TID: 1, Decode: 1, Name: "MUL_MAT", Sources: []event.Source{{Name: "w", NE: [4]int64{1 << 20, 1, 1, 1}, NB: [4]int64{4, 4 << 20, 4 << 20, 4 << 20}}}}
	for _, e := range []event.Event{event.DecodeBegin{TID: 1, Context: 1, Decode: 1, Tokens: 1}, copied, event.DecodeEnd{TID: 1, Decode: 1}} {
		err = r.Handle(e)
	}
	var stood *prefetch.StandBack
	if !errors.As(err, &stood) || stood.Reason != prefetch.Outside || !errors.Is(err, event.ErrOutside) {
		t.Fatalf("%v", err)
	}
	if again, err := r.Look(); again || err != nil {
		t.Errorf("it looks again though nothing has changed (%v)", err)
	}
	mapped = 300 * mib
	if again, err := r.Look(); !again || err != nil {
		t.Errorf("it does not look again (%v)", err)
	}
}

// Where a part of a token does not show that help wins, two are spent on the first comparison if it does clearly: one that is not counted, and one that is.
func TestFirstComparisonIsShort(t *testing.T) {
	r := newRig(t, 0.3, prefetch.Options{}, nil)
	if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0)}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Sleep(time.Second); err != nil {
		t.Fatal(err)
	}
	r.run(40)
	if with := r.Summary().Tokens; with != 37 { // of the first one nothing is known before it is over
		t.Errorf("%d of 40 tokens had help", with)
	}
}

// Where help wins clearly, that is seen in a part of two tokens: no whole one is spent on a comparison, and only what is streamed of that part is read by the target's faults.
func TestGlance(t *testing.T) {
	small := func(c *sim.Config) { c.Readahead = 128 << 10 }
	for _, share := range []float64{0.5, 0.7, 0.85} {
		r := newRig(t, share, prefetch.Options{}, small)
		if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0)}}); err != nil {
			t.Fatal(err)
		}
		if err := r.Sleep(time.Second); err != nil {
			t.Fatal(err)
		}
		r.run(12)
		var target int64
		glanced := 0
		for range 40 {
			token := r.run(1)
			if s := r.Status(); s.Activity != prefetch.Helping {
				t.Fatalf("at %v: %s", share, s.Activity)
			}
			if target += token.TargetBytes; token.TargetBytes > 0 {
				glanced++
			}
		}
		streamed := r.cycle.Bytes() - r.Summary().Pinned
		if glanced != 2 || target > 2*streamed/5 {
			t.Errorf("at %v: in %d tokens the target has read %d bytes by itself, of %d that are streamed", share, glanced, target, streamed)
		}
		plain := alone(t, share, small)
		if s := r.Status(); s.Before < 0.9/plain.Time.Seconds() || s.Before > 2/plain.Time.Seconds() {
			t.Errorf("at %v: %v without help, it is taken to be %v tokens per second at most", share, plain.Time, s.Before)
		}
	}
}
