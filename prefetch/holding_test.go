package prefetch_test

// This file tests in virtual time what a Controller holds, streams and pages out, and how it follows a limit that
// changes.

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

// In the steady state the target finds everything in memory, no held byte is read again, and the disk is always busy.
func TestStaging(t *testing.T) {
	for _, share := range []float64{0.95, 0.85, 0.7, 0.5, 0.3} {
		for _, lock := range []bool{false, true} {
			r := newSettledRig(t, share, prefetch.Options{Lock: lock}, nil)
			where := fmt.Sprintf("locked %v, share %v", lock, share)
			late := r.Summary().Late // in the first token
			token := r.run(20)
			s := r.Summary()
			if token.Misses != 0 || token.TargetBytes != 0 || s.Late != late {
				t.Errorf("%s: %d pages missing, %d bytes read by the target, %d visits late, want none of these",
					where, token.Misses, token.TargetBytes, s.Late-late)
			}
			if least := int64(share*float64(r.cycle.Bytes())) - reserve - window - 2*mib; s.Pinned < least {
				t.Errorf("%s: %d bytes held, want at least %d", where, s.Pinned, least)
			}
			missing := r.cycle.Bytes() - s.Pinned
			if token.HelperBytes < missing-mib || token.HelperBytes > missing+missing/10+4*mib {
				t.Errorf("%s: %d bytes read for a token, want about the %d that are not held",
					where, token.HelperBytes, missing)
			}
			if disk := time.Duration(float64(token.HelperBytes) / 1.5); token.Time > disk+disk/5 {
				t.Errorf("%s: a token takes %v, want at most a fifth more than the disk's %v", where, token.Time, disk)
			}
			plain := runAlone(t, share, nil)
			if plain.Time < token.Time*5/4 || plain.TargetBytes < r.cycle.Bytes()*95/100 {
				t.Errorf("%s: a token takes %v; without help %v and reads %d bytes, want a quarter more and "+
					"all %d bytes",
					where, token.Time, plain.Time, plain.TargetBytes, r.cycle.Bytes())
			}
			reached := float64(time.Second) / float64(token.Time)
			if s.Expected < reached*0.8 || s.Expected > reached*1.25 {
				t.Errorf("%s: %.2f tokens per second expected, want about the %.2f that were reached",
					where, s.Expected, reached)
			}
		}
	}
}

// What the target has passed is paged out. Besides what is held, memory never has more than the window and what is on
// its way out.
func TestEviction(t *testing.T) {
	for _, opts := range []prefetch.Options{{}, {Lock: true}, {Strategy: plan.Stream{}}} {
		r := newSettledRig(t, 0.6, opts, nil)
		over := 0
		for i := range 200 {
			r.At(time.Duration(i)*time.Millisecond+r.Now().Sub(r.Began()), func() {
				// A tensor is evicted when its op is over.
				if r.Used() > r.Summary().Pinned+window+12*mib {
					over++
				}
			})
		}
		r.run(4)
		if over > 0 || r.Overcommitted() > 0 {
			t.Errorf("%s: too much was in memory at %d of 200 moments, and %d bytes exceeded the limit, want neither",
				r.Summary().Strategy, over, r.Overcommitted())
		}
	}
}

// A strategy that streams nothing leaves the rest to the target, and pages it out behind the target. So it never
// displaces what is held.
func TestPinOnly(t *testing.T) {
	for _, lock := range []bool{false, true} {
		r := newSettledRig(t, 0.85, prefetch.Options{Strategy: plan.Pin{}, Lock: lock}, nil)
		out := r.pages.Calls.PageOut
		token, s := r.run(10), r.Summary()
		if token.HelperBytes != 0 || r.pages.Calls.PageOut == out || token.TargetBytes == 0 || s.Taken > 0 {
			t.Errorf("locked %v: %d bytes read by the helper, want 0; %d by the target, want some; "+
				"%d calls paged something out, want some; %d bytes were taken, want 0",
				lock, token.HelperBytes, token.TargetBytes, r.pages.Calls.PageOut-out, s.Taken)
		}
		if rest := s.PerToken - s.Pinned; token.TargetBytes < rest || token.TargetBytes > rest+rest/4 {
			t.Errorf("locked %v: the target reads %d bytes a token, want the %d that are not held, or a quarter more",
				lock, token.TargetBytes, rest)
		}
		if plain := runAlone(t, 0.85, nil); token.TargetBytes > plain.TargetBytes/2 {
			t.Errorf("locked %v: the target reads %d bytes a token, want at most half of the %d without help",
				lock, token.TargetBytes, plain.TargetBytes)
		}
	}
}

// When the limit is cut, the next tick gives memory back. Room that has come free is used within a second.
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
			t.Errorf("locked %v: with a limit of %d bytes, down from %d, %d bytes of %d were held after 20 "+
				"ms, %d in the end; want at most %d, then at least %d; Shrunk = %d, want some",
				lock, full/2, full, after, before, s.Pinned, full/2-reserve, full/2-reserve-window-8*mib, s.Shrunk)
		}
		if locked := r.Locked(); locked > full/2-reserve {
			t.Errorf("locked %v: %d bytes are locked, want at most %d", lock, locked, full/2-reserve)
		}
		// At the moment of the cut the kernel cannot reclaim what is locked. It can reclaim what is kept.
		if over := r.Overcommitted(); (over > 0) != lock {
			t.Errorf("locked %v: %d bytes exceed the limit, want some only if locked", lock, over)
		}
		r.SetLimit(full)
		r.run(20)
		if again := r.Summary().Pinned; again < before-8*mib {
			t.Errorf("locked %v: %d bytes are held with the old limit, want about the %d of before",
				lock, again, before)
		}
		if token := r.run(5); token.Misses > 0 {
			t.Errorf("locked %v: %d pages missing with the old limit, want 0", lock, token.Misses)
		}
	}
}

// When the kernel takes pages of kept blocks, that is noticed when the target is about to need them, and they are read
// again. For a while more memory is left free.
func TestTaken(t *testing.T) {
	r := newSettledRig(t, 0.9, prefetch.Options{}, nil)
	before := r.Summary()
	r.Take(before.Pinned / 2)
	first := r.run(1)
	if s := r.Summary(); s.Taken < before.Pinned/4 {
		t.Errorf("%d bytes were noticed as taken, want at least a quarter of %d", s.Taken, before.Pinned)
	}
	// What was staged was taken, too, and the target reads 8 MiB around each page that it misses.
	if first.TargetBytes > 48*mib {
		t.Errorf("the target read %d bytes itself, want at most %d", first.TargetBytes, 48*mib)
	}
	r.run(2)
	if s := r.Summary(); s.Pinned < before.Pinned*3/4 || s.Pinned > before.Pinned-8*mib || s.Room >= before.Room {
		t.Errorf("%d bytes are held, want a little less than the %d of before; room for %d bytes, want less than %d",
			s.Pinned, before.Pinned, s.Room, before.Room)
	}
	r.run(160)
	if s := r.Summary(); s.Pinned < before.Pinned-8*mib || s.Learned != 1 {
		t.Errorf("a while later %d bytes are held, want about %d; learned %d times, want once",
			s.Pinned, before.Pinned, s.Learned)
	}
	// A few pages are just read again. No more is left free for that.
	taken := r.Summary().Taken
	r.Take(4 * mib)
	token, s := r.run(2), r.Summary()
	// Some of what was taken was in the window.
	if s.Taken < taken+2*mib || s.Pinned < before.Pinned-8*mib || token.TargetBytes > 2*mib {
		t.Errorf("%d bytes were noticed as taken, want at least %d; %d are held, want at least %d; "+
			"the target read %d a token, want at most %d",
			s.Taken-taken, 2*mib, s.Pinned, before.Pinned-8*mib, token.TargetBytes, 2*mib)
	}
}

// It is noticed while the target rests, too, and read again before its next token.
func TestTakenWhileResting(t *testing.T) {
	r := newSettledRig(t, 0.9, prefetch.Options{}, nil)
	before := r.Summary().Pinned
	r.Take(before / 2)
	if err := r.Sleep(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if s := r.Summary(); s.Taken == 0 || s.Pinned < before-8*mib {
		t.Errorf("%d bytes are held, want about %d; %d bytes were noticed as taken, want some",
			s.Pinned, before, s.Taken)
	}
	// The window was full. One block before it may be missing, and the target reads 8 MiB around it.
	if token := r.run(1); token.TargetBytes > 8*mib {
		t.Errorf("the target read %d bytes itself, want at most %d", token.TargetBytes, 8*mib)
	}
}

// When the limit is cut while blocks are still being read to be held, that ends.
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
					t.Errorf("%d bytes are held, want at most the limit of %d", held, full/8)
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
		t.Error("the test never saw blocks being read to be held: it does not meet its case")
	}
}

// What the target alone left in memory is taken over at once. So the first token with help misses only what was not
// there.
func TestTakeHold(t *testing.T) {
	r := newRig(t, 0.85, prefetch.Options{}, nil)
	for _, tokens := range []int{0, 1} {
		r.run(tokens)
		if err := r.Sleep(5 * time.Millisecond); err != nil { // the helper ticks each millisecond
			t.Fatal(err)
		}
	}
	held := r.Summary().Pinned
	if held < r.cycle.Bytes()*6/10 {
		t.Errorf("%d bytes are held after the token that was learned from, want at least %d",
			held, r.cycle.Bytes()*6/10)
	}
	if first := r.run(1); first.TargetBytes+first.HelperBytes > r.cycle.Bytes()/2 {
		t.Errorf("the first token with help reads %d bytes, want at most half of %d",
			first.TargetBytes+first.HelperBytes, r.cycle.Bytes())
	}
}

// Two runs with the same options give the same result.
func TestDeterministic(t *testing.T) {
	a, b := newSettledRig(t, 0.7, prefetch.Options{}, nil), newSettledRig(t, 0.7, prefetch.Options{}, nil)
	if x, y := a.run(10), b.run(10); x != y || a.Summary() != b.Summary() {
		t.Errorf("two runs of the same: %+v with %+v, and %+v with %+v; want no difference",
			x, a.Summary(), y, b.Summary())
	}
}

// For a target that has executed another program, or unloaded its model, nothing is held.
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
		t.Error("nothing is held while the target rests, want what it still maps")
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
		t.Errorf("%d bytes are held for a target that maps no model, want 0; it is %s, want %s",
			s.Pinned, r.Status().Activity, prefetch.Waiting)
	}
}

// failingDisk is a disk of which some blocks cannot be read.
type failingDisk struct {
	*sim.Pages
	from, to int64
	tried    map[int64]int
}

func (f *failingDisk) read(r pages.Range, lever func(pages.Range) error) error {
	if r.End() > f.from && r.Offset < f.to {
		f.tried[r.Offset]++
		return fmt.Errorf("read: %w", pages.ErrUnreadable)
	}
	return lever(r)
}

func (f *failingDisk) Lock(r pages.Range) error { return f.read(r, f.Pages.Lock) }
func (f *failingDisk) Keep(r pages.Range) error { return f.read(r, f.Pages.Keep) }

// Blocks that cannot be read are tried once and left out, with one warning for all of them. All others are held.
func TestUnreadable(t *testing.T) {
	for _, lock := range []bool{false, true} {
		r := newRig(t, 0.85, prefetch.Options{}, nil)
		var logged strings.Builder
		disk := &failingDisk{r.pages, 40 * mib, 60 * mib, map[int64]int{}}
		opts := prefetch.Options{
			Lock: lock, Memory: r.Memory(), Now: r.Now,
			Log: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn})),
		}
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
				t.Errorf("locked %v: the block at %d was tried %d times, want once", lock, at, n)
			}
		}
		warnings := strings.Count(logged.String(), "\n")
		if s := r.Summary(); s.Pinned < r.cycle.Bytes()/2 || len(disk.tried) == 0 || warnings != 1 {
			t.Errorf("locked %v: %d bytes are held, want at least %d; "+
				"%d blocks that cannot be read were tried, want some; "+
				"logged %q, want one line", lock, s.Pinned, r.cycle.Bytes()/2, len(disk.tried), logged.String())
		}
	}
}
