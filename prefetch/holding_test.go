package prefetch_test

// This file tests in virtual time what a Controller holds, streams and pages out, and how it follows a limit that changes.

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/plan"
	"tensorcast/sim"
)

// In the steady state the target finds everything in memory, no byte is read that is held, and the disk never rests.
func TestStaging(t *testing.T) {
	for _, share := range []float64{0.95, 0.85, 0.7, 0.5, 0.3} {
		for _, lock := range []bool{false, true} {
			r := newSettledRig(t, share, prefetch.Options{Lock: lock}, nil)
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
			if plain := runAlone(t, share, nil); plain.Time < token.Time*5/4 || plain.TargetBytes < r.cycle.Bytes()*95/100 {
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
		r := newSettledRig(t, 0.6, opts, nil)
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
		r := newSettledRig(t, 0.85, prefetch.Options{Strategy: plan.Pin{}, Lock: lock}, nil)
		out := r.pages.Calls.PageOut
		token, s := r.run(10), r.Summary()
		if token.HelperBytes != 0 || r.pages.Calls.PageOut == out || token.TargetBytes == 0 || s.Taken > 0 {
			t.Errorf("locked %v: %d bytes read by the helper, %d by the target; %d were taken", lock, token.HelperBytes, token.TargetBytes, s.Taken)
		}
		if rest := s.PerToken - s.Pinned; token.TargetBytes < rest || token.TargetBytes > rest+rest/4 {
			t.Errorf("locked %v: %d bytes a token, %d are not held", lock, token.TargetBytes, rest)
		}
		if plain := runAlone(t, 0.85, nil); token.TargetBytes > plain.TargetBytes/2 {
			t.Errorf("locked %v: %d bytes a token, %d without help", lock, token.TargetBytes, plain.TargetBytes)
		}
	}
}

// A limit that is cut is followed with the next tick; room that has come free is used within a second.
func TestShrinking(t *testing.T) {
	for _, lock := range []bool{false, true} {
		r := newSettledRig(t, 0.9, prefetch.Options{Lock: lock}, nil)
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
	r := newSettledRig(t, 0.9, prefetch.Options{}, nil)
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
	r := newSettledRig(t, 0.9, prefetch.Options{}, nil)
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

// The same run twice is the same.
func TestDeterministic(t *testing.T) {
	a, b := newSettledRig(t, 0.7, prefetch.Options{}, nil), newSettledRig(t, 0.7, prefetch.Options{}, nil)
	if x, y := a.run(10), b.run(10); x != y || a.Summary() != b.Summary() {
		t.Errorf("%+v and %+v", x, y)
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
