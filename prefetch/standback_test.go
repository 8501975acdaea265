package prefetch_test

// This file tests in virtual time when a Controller stands back, and when it begins again.

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/room"
	"tensorcast/sim"
)

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
	r = newSettledRig(t, 0.8, prefetch.Options{}, nil)
	r.SetLimit(2 * r.cycle.Bytes())
	var stood *prefetch.StandBack
	if _, err := r.Run(1, r.cycle, 30); !errors.As(err, &stood) || stood.Reason != prefetch.Fits || r.Summary().Pinned != 0 {
		t.Errorf("%v; %d bytes are held", err, r.Summary().Pinned)
	}
	// A caller's budget is no limit of the target's.
	r = newSettledRig(t, 1.5, prefetch.Options{Budget: 200 * mib}, nil)
	if s := r.Summary(); s.Pinned == 0 || s.Level != room.LevelBudget {
		t.Errorf("%+v", s)
	}
	// It may change while it holds: what is too much is given back, and taken again.
	var share atomic.Int64
	share.Store(150 * mib)
	r = newSettledRig(t, 0.8, prefetch.Options{Share: share.Load}, nil)
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
