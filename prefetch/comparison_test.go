package prefetch_test

// This file tests in virtual time how tokens with help are compared with tokens without.

import (
	"errors"
	"testing"
	"time"

	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/sim"
)

// A helper without a core of its own comes too late, and wins nothing. It finds that out, and leaves the target alone.
func TestLateReads(t *testing.T) {
	slow := func(c *sim.Config) { c.Tick = 40 * time.Millisecond }
	r := newRig(t, 0.6, prefetch.Options{}, slow)
	tokens, err := r.Run(1, r.cycle, 100)
	var stood *prefetch.StandBack
	if !errors.As(err, &stood) || stood.Reason != prefetch.NoWin || stood.With < stood.Without*97/100 {
		t.Fatalf("a helper that is late: %v, want a stand back (%v)", err, prefetch.NoWin)
	}
	var sum time.Duration
	for _, token := range tokens[3:] {
		sum += token.Time
	}
	if r.Summary().Late == 0 {
		t.Error("no visit was late: the test does not meet its case")
	}
	if plain := runAlone(t, 0.6, slow); sum/time.Duration(len(tokens)-3) > plain.Time*102/100 {
		t.Errorf("a token takes %v, want about the %v without help", sum/time.Duration(len(tokens)-3), plain.Time)
	}
	if s := r.Summary(); s.Pinned != 0 || r.Overcommitted() > 0 {
		t.Errorf("%d bytes are held, %d exceed the limit, want 0 of both", s.Pinned, r.Overcommitted())
	}
	full := r.Limit()
	for _, limit := range []int64{full, full + 2*mib, full - 8*mib} { // memory is never quite the same
		r.SetLimit(limit)
		if again, err := r.Look(); again || err != nil {
			t.Errorf("Look at once with a limit of %d bytes instead of %d = %v, %v, want false",
				limit, full, again, err)
		}
	}
	r.Rest(10 * time.Minute)
	if again, err := r.Look(); !again || err != nil {
		t.Errorf("Look after ten minutes = %v, %v, want true", again, err)
	}
}

// If help begins before a token was seen without it, it is compared early, and given up if it does not win. If a part
// of a token already shows that it wins, no whole token goes without help.
func TestFirstComparisonOfAStoredCycle(t *testing.T) {
	for name, test := range map[string]struct {
		tick      time.Duration
		readahead int64
		lost      bool
	}{"no core": {40 * time.Millisecond, 8 * mib, true}, "a core": {time.Millisecond, 128 << 10, false}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 0.6, prefetch.Options{}, func(c *sim.Config) {
				c.Tick, c.Readahead = test.tick, test.readahead
			})
			if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0)}}); err != nil {
				t.Fatal(err)
			}
			if err := r.Sleep(time.Second); err != nil {
				t.Fatal(err)
			}
			_, err := r.Run(1, r.cycle, 40)
			with := r.Summary().Tokens
			if !test.lost {
				if err != nil || with < 39 { // nothing is known of the first one before it is over
					t.Errorf("%d of 40 tokens had help, %v; want at least 39", with, err)
				}
				return
			}
			if !standsBack(err, prefetch.NoWin) || with > 20 {
				t.Errorf("%d tokens had help, %v; want at most 20, then a stand back (%v)", with, err, prefetch.NoWin)
			}
		})
	}
}

// A model that fits as long as nobody helps is soon left alone: without help its tokens do not wait for the disk.
func TestFitsAlone(t *testing.T) {
	r := newRig(t, 1, prefetch.Options{}, func(c *sim.Config) {
		c.Limit += 20 * mib
		c.Tick = time.Millisecond
	})
	if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0)}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Sleep(time.Second); err != nil {
		t.Fatal(err)
	}
	_, err := r.Run(1, r.cycle, 60)
	if s := r.Summary(); !standsBack(err, prefetch.NoWin) || s.Streamed == 0 || s.Tokens > 30 {
		t.Errorf("%d tokens had help, in which %d bytes were streamed, %v; "+
			"want at most 30, some bytes, then a stand back (%v)",
			s.Tokens, s.Streamed, err, prefetch.NoWin)
	}
}

// The first token of a model that fits without help may be slow because it reads the model for the first time. Help
// that is faster than that, and slower than all later tokens would be, is given up.
func TestSlowFirstToken(t *testing.T) {
	r := newRig(t, 1, prefetch.Options{}, func(c *sim.Config) { c.Limit += 20 * mib })
	r.Warmup = false
	_, err := r.Run(1, r.cycle, 100)
	if s := r.Summary(); !standsBack(err, prefetch.NoWin) || s.Streamed == 0 || s.Tokens > 50 {
		t.Errorf("%d tokens had help, in which %d bytes were streamed, %v; "+
			"want at most 50, some bytes, then a stand back (%v)", s.Tokens, s.Streamed, err, prefetch.NoWin)
	}
}

// Tokens without help are measured before anything is held. They are measured again when tokens with help take as
// long as those did, here because the target's computing has become slower.
func TestCompared(t *testing.T) {
	r := newRig(t, 0.85, prefetch.Options{}, nil)
	r.run(2)
	if s := r.Status(); s.Activity != prefetch.Comparing || s.Held != 0 || r.Locked() != 0 {
		t.Errorf("after two tokens: %+v, %d bytes locked; want %s with nothing held", s, r.Locked(), prefetch.Comparing)
	}
	r.run(20)
	s := r.Status()
	if s.Activity != prefetch.Helping || s.Before <= 0 || s.Now < s.Before*5/4 ||
		s.Streamed <= 0 || s.Streamed > s.PerToken/2 {
		t.Errorf("after 22 tokens: %+v; want %s, at least a quarter faster than before, less than half streamed",
			s, prefetch.Helping)
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
	if s := r.Status(); !compared || s.Activity != prefetch.Helping || s.Held < held-8*mib ||
		s.Now < s.Before*101/100 || s.Before > 10 {
		t.Errorf("slower computing: compared %v, %+v; want a comparison, then %s again with at least %d bytes held, "+
			"faster than before, which was at most 10 tokens per second", compared, s, prefetch.Helping, held-8*mib)
	}
	if s := r.Summary(); s.Taken > mib || s.Learned != 1 {
		t.Errorf("%d bytes were taken, want at most %d; learned %d times, want once", s.Taken, mib, s.Learned)
	}
}

// If a part of a token does not show that help wins, but whole ones show it clearly, the first comparison takes two
// tokens: one that is not counted, and one that is.
func TestFirstComparisonIsShort(t *testing.T) {
	r := newRig(t, 0.3, prefetch.Options{}, nil)
	if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0)}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Sleep(time.Second); err != nil {
		t.Fatal(err)
	}
	r.run(40)
	if with := r.Summary().Tokens; with != 37 { // nothing is known of the first one before it is over
		t.Errorf("%d of 40 tokens had help, want 37", with)
	}
}

// If help wins clearly, that shows in a part of two tokens. No whole token is spent on a comparison, and the target's
// faults read only what is streamed of that part.
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
				t.Fatalf("share %v: the activity is %s, want %s all the time", share, s.Activity, prefetch.Helping)
			}
			if target += token.TargetBytes; token.TargetBytes > 0 {
				glanced++
			}
		}
		streamed := r.cycle.Bytes() - r.Summary().Pinned
		if glanced != 2 || target > 2*streamed/5 {
			t.Errorf("share %v: in %d tokens the target read %d bytes itself, want 2 tokens and at most two "+
				"fifths of the %d bytes that are streamed per token", share, glanced, target, streamed)
		}
		plain := runAlone(t, share, small)
		if s := r.Status(); s.Before < 0.9/plain.Time.Seconds() || s.Before > 2/plain.Time.Seconds() {
			t.Errorf("share %v: %v tokens per second without help are assumed, want 0.9 to 2 times the true %v",
				share, s.Before, 1/plain.Time.Seconds())
		}
	}
}
