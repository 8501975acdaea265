package prefetch_test

// This file tests in virtual time a target of whose model another control group pays for a part.

import (
	"errors"
	"testing"
	"time"

	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
	"tensorcast/sim"
)

// wholeFile is all of the file that a rig's target reads.
func wholeFile(r *rig) pages.Range {
	return pages.Range{Length: r.cycle.Reads[len(r.cycle.Reads)-1].End() + mib*64}
}

// countResident is how many bytes of a range are in memory.
func countResident(t *testing.T, r *rig, of pages.Range) int64 {
	t.Helper()
	bytes, err := r.pages.ResidentBytes(of)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// If another group pays for all of a model, nothing is done, whatever room the target's own group has. When the other
// group gives it up, the target is helped.
func TestBorrowedWhole(t *testing.T) {
	r := newRig(t, 0.4, prefetch.Options{}, nil)
	file := wholeFile(r)
	r.CacheBorrowed(file)
	tokens, err := r.Run(1, r.cycle, 10)
	var stood *prefetch.StandBack
	if !errors.As(err, &stood) || stood.Reason != prefetch.Fits || stood.Borrowed < r.cycle.Bytes() {
		t.Fatalf("%v, want a stand back (%v) because of %d bytes", err, prefetch.Fits, r.cycle.Bytes())
	}
	if r.pages.Calls.PageOut > 0 || r.Used() > 0 || len(tokens) > 2 {
		t.Errorf("%d calls of PageOut, %d bytes read, after %d tokens; want none of both after two",
			r.pages.Calls.PageOut, r.Used(), len(tokens))
	}
	for range 20 { // the census looks at some pieces at a time
		if again, err := r.Look(); again || err != nil {
			t.Fatalf("Look while the other group keeps it = %v, %v, want false", again, err)
		}
	}
	r.DropBorrowed(file)
	again := false
	for n := 0; n < 100 && !again; n++ {
		if again, err = r.Look(); err != nil {
			t.Fatal(err)
		}
		r.Rest(20e6)
	}
	if !again {
		t.Fatal("Look when the other group keeps nothing any more = false, want true")
	}
	r.Attach(r.Controller)
	r.run(30)
	if s := r.Status(); s.Activity != prefetch.Helping || s.Now < s.Before*5/4 {
		t.Errorf("after that: %+v, want %s, at least a quarter faster than before", s, prefetch.Helping)
	}
}

// A target that runs already need not be observed if another group pays for its model, until that gives it up.
func TestSpare(t *testing.T) {
	var opts prefetch.Options
	opts.Target.Models = func() (models.Model, error) {
		return models.Model{
			Files:  []pattern.CycleFile{{Size: 280 * mib}},
			Mapped: []models.Mapped{{Path: "model-0.gguf", ID: sim.FileID(0)}},
		}, nil
	}
	always := opts
	always.Always = true
	for name, tc := range map[string]struct {
		opts  prefetch.Options
		share int64 // that another group pays for, of 4
		want  bool
	}{"all": {opts, 4, true}, "half": {opts, 2, false}, "nothing": {opts, 0, false}, "always": {always, 4, false}} {
		r := newRig(t, 0.4, tc.opts, nil)
		file := wholeFile(r)
		file.Length = file.Length * tc.share / 4
		if tc.share > 0 {
			r.CacheBorrowed(file)
		}
		stood, err := r.Spare()
		if err != nil || (stood != nil) != tc.want {
			t.Fatalf("%s: %v, %v; want a stand back: %t", name, stood, err, tc.want)
		}
		if !tc.want {
			continue
		}
		if stood.Reason != prefetch.Fits || stood.Borrowed < r.cycle.Bytes() || r.Status().Activity != prefetch.Idle {
			t.Errorf("%s: %v, %v", name, stood, r.Status())
		}
		if again, err := r.Look(); again || err != nil {
			t.Errorf("%s: Look while the other group keeps it = %v, %v, want false", name, again, err)
		}
		r.DropBorrowed(file)
		again := false
		for n := 0; n < 100 && !again; n++ {
			if again, err = r.Look(); err != nil {
				t.Fatal(err)
			}
			r.Rest(20e6)
		}
		if !again {
			t.Errorf("%s: Look when the other group keeps nothing any more = false, want true", name)
		}
	}
}

// If the kernel does not tell who pays, a model that is in memory as a whole is left as it is, too, if the target's own
// group could not hold it.
func TestBorrowedUnknown(t *testing.T) {
	for name, limit := range map[string]float64{"no room": 0.4, "room": 1.5} {
		r := newRig(t, limit, prefetch.Options{}, nil)
		r.HidePayers = true
		if limit < 1 {
			r.CacheBorrowed(wholeFile(r))
		}
		_, err := r.Run(1, r.cycle, 10)
		var stood *prefetch.StandBack
		if !errors.As(err, &stood) || stood.Reason != prefetch.Fits || stood.Borrowed > 0 != (limit < 1) {
			t.Errorf("%s: %v, want a stand back (%v), because of what is borrowed where there is no room",
				name, err, prefetch.Fits)
		}
	}
}

// If another group pays for a part of a model, that part stays in memory, and the rest is helped with all the room of
// the target's own group.
func TestBorrowedPart(t *testing.T) {
	r := newRig(t, 0.4, prefetch.Options{}, nil)
	half := pages.Range{Length: r.cycle.Bytes() / 2 &^ (8*mib - 1)}
	r.CacheBorrowed(half)
	r.run(60)
	s := r.Status()
	rest := r.cycle.Bytes() - half.Length
	if s.Activity != prefetch.Helping || s.PerToken < rest-mib || s.PerToken > rest+2*mib {
		t.Errorf("%+v, want %s, for the %d bytes that the other group does not keep", s, prefetch.Helping, rest)
	}
	if s.Held < r.Limit()-reserve-2*window {
		t.Errorf("%d bytes held, want nearly the %d of the limit", s.Held, r.Limit())
	}
	if left := countResident(t, r, half); left < half.Length {
		t.Errorf("%d bytes of what the other group pays for are in memory, want all %d", left, half.Length)
	}
	if r.Overcommitted() > 0 {
		t.Errorf("%d bytes exceed the limit, want 0", r.Overcommitted())
	}

	r.DropBorrowed(pages.Range{Offset: half.Length / 2, Length: half.Length / 2})
	r.run(60)
	rest += half.Length / 2
	// The piece in which the part that is left ends is not whole any more.
	if s := r.Status(); s.Activity != prefetch.Helping || s.PerToken < rest-mib || s.PerToken > rest+10*mib {
		t.Errorf("when half of that went: %+v, want %s, for %d bytes", s, prefetch.Helping, rest)
	}
	if left := countResident(t, r, pages.Range{Length: half.Length / 2}); left < half.Length/2 {
		t.Errorf("%d bytes of what the other group still pays for are in memory, want all %d", left, half.Length/2)
	}
}

// When a target is moved to another group, it is found out anew who pays for what: here another group for half of the
// model, which did not matter before.
func TestMovedToAnotherGroup(t *testing.T) {
	r := newRig(t, 0.4, prefetch.Options{}, nil)
	half := pages.Range{Length: r.cycle.Bytes() / 2 &^ (8*mib - 1)}
	r.Group = 0 // it has no limit
	r.CacheBorrowed(half)
	r.run(1)
	if err := r.Sleep(2 * time.Millisecond); err != nil { // until that was learned from
		t.Fatal(err)
	}
	r.Group = 7
	r.run(40)
	rest := r.cycle.Bytes() - half.Length
	if s := r.Status(); s.Activity != prefetch.Helping || s.PerToken > rest+2*mib {
		t.Errorf("%+v, want %s, for the %d bytes that the other group does not keep", s, prefetch.Helping, rest)
	}
	if got := r.Summary().Learned; got != 2 {
		t.Errorf("learned %d times, want twice", got)
	}
}

// Experts for which another group pays stay in memory, and take no room from the others.
func TestBorrowedExperts(t *testing.T) {
	r := newMixtureRig(t, 200*mib, skewed, prefetch.Options{}, nil)
	some := pages.Range{Length: 160 * mib}
	r.CacheBorrowed(some)
	r.run(150)
	x := r.Summary().Experts
	if left := countResident(t, r, some); left < some.Length {
		t.Errorf("%d bytes of what the other group pays for are in memory, want all %d", left, some.Length)
	}
	if x == nil || x.Kept > r.Limit() || r.Overcommitted() > 0 {
		t.Errorf("experts %+v, %d bytes exceed the limit; want at most %d kept", x, r.Overcommitted(), r.Limit())
	}
	alone, _ := runSettledMixture(t, 200*mib, skewed, prefetch.Options{}, nil)
	if without := alone.Summary().Experts; x.Read > without.Read*3/4 {
		t.Errorf("%d bytes read for choices, want at most three quarters of the %d where nobody else pays",
			x.Read, without.Read)
	}
}
