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
	if plain := runAlone(t, 0.6, slow); sum/time.Duration(len(tokens)-3) > plain.Time*102/100 {
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
		plain := runAlone(t, share, small)
		if s := r.Status(); s.Before < 0.9/plain.Time.Seconds() || s.Before > 2/plain.Time.Seconds() {
			t.Errorf("at %v: %v without help, it is taken to be %v tokens per second at most", share, plain.Time, s.Before)
		}
	}
}
