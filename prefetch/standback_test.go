package prefetch_test

// This file tests in virtual time when a Controller stands back, and when it begins again.

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/room"
	"tensorcast/sim"
)

// A target whose models have ample room need not be observed, until the room is short, or until it maps more than was
// named. It may map them only after a while.
func TestEarly(t *testing.T) {
	var mapped int64
	var opts prefetch.Options
	opts.Target.Models = func() (models.Model, error) {
		return models.Model{Files: []pattern.CycleFile{{Size: mapped}}}, nil
	}
	ample := room.Room{Bytes: 1 << 30, Limit: 1 << 30}
	for name, change := range map[string]func(r *rig){
		"a lower limit":       func(r *rig) { r.SetLimit(r.cycle.Bytes() / 2) },
		"more than was named": func(*rig) { mapped += mib },
	} {
		mapped = 0
		r := newRig(t, 3, opts, nil)
		bytes := r.cycle.Bytes()
		if stood := r.Early(bytes, ample); stood.Reason != prefetch.Fits || r.Status().Activity != prefetch.Idle {
			t.Errorf("%s: Early = %v, status %v; want a stand back (%v)", name, stood, r.Status(), prefetch.Fits)
		}
		for _, mapped = range []int64{0, bytes} {
			if again, err := r.Look(); again || err != nil {
				t.Errorf("%s: Look without a change, with %d bytes mapped = %v, %v, want false",
					name, mapped, again, err)
			}
		}
		change(r)
		if again, err := r.Look(); !again || err != nil {
			t.Errorf("%s: Look = %v, %v, want true", name, again, err)
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
			t.Errorf("%s: IsAmple = %t, want %t", name, got, tc.want)
		}
	}
}

// If everything fits nothing is held, until the room shrinks or another model is mapped. A target that has unmapped its
// models, as many do before they end, had nothing to win.
func TestFits(t *testing.T) {
	var mapped models.Model
	var opts prefetch.Options
	opts.Target.Models = func() (models.Model, error) { return mapped, nil }
	for name, change := range map[string]func(r *rig){
		"a lower limit": func(r *rig) { r.SetLimit(r.cycle.Bytes()) },
		"another model": func(*rig) { mapped = twoModels(300 * mib) },
		"no model":      func(*rig) { mapped = models.Model{} },
	} {
		mapped = twoModels(0)
		r := newRig(t, 1.5, opts, nil)
		var stood *prefetch.StandBack
		tokens, err := r.Run(1, r.cycle, 5)
		if !errors.As(err, &stood) || stood.Reason != prefetch.Fits || len(tokens) > 1 {
			t.Fatalf("%s: %v after %d tokens, want a stand back (%v) after 1", name, err, len(tokens), prefetch.Fits)
		}
		if s := r.Status(); s.Activity != prefetch.Idle || !strings.Contains(s.String(), "fits") || s.Held != 0 {
			t.Errorf("%s: status %q with %d bytes held, want %s because the model fits, with none",
				name, s, s.Held, prefetch.Idle)
		}
		if again, err := r.Look(); again || err != nil {
			t.Errorf("%s: Look before the change = %v, %v, want false", name, again, err)
		}
		change(r)
		if again, err := r.Look(); !again || err != nil {
			t.Errorf("%s: Look after the change = %v, %v, want true", name, again, err)
		}
		if s := r.Summary(); strings.Contains(s.Idle, "fits") != (name == "no model") {
			t.Errorf("%s: idle %q in the end", name, s.Idle)
		}
	}
}

// twoModels is the rig's model, beside another one of so many bytes.
func twoModels(more int64) models.Model {
	return models.Model{
		Files:  []pattern.CycleFile{{Size: 280 * mib}, {Size: more}},
		Mapped: []models.Mapped{{ID: sim.FileID(0)}, {ID: sim.FileID(7)}},
	}
}

// Host.Begin is not called if there is nothing to win. Otherwise it is called before anything is read, each time anew.
func TestBegin(t *testing.T) {
	begun := 0
	var r *rig
	var opts prefetch.Options
	opts.Target.Models = func() (models.Model, error) { return twoModels(0), nil }
	opts.Host.Begin = func() {
		if begun++; r.pages.Calls != (sim.Calls{}) && begun == 1 || r.Summary().Pinned > 0 {
			t.Errorf("before the call of Begin: %+v, %d bytes held; want nothing", r.pages.Calls, r.Summary().Pinned)
		}
	}
	r = newRig(t, 1.5, opts, nil)
	if _, err := r.Run(1, r.cycle, 5); err == nil || begun != 0 {
		t.Errorf("everything fits: begun %d times, %v; want 0 times, and a stand back", begun, err)
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
			t.Errorf("begun %d times, %d bytes held; want %d times, and some", begun, r.Summary().Pinned, i+1)
		}
		r.SetLimit(full)
		if _, err := r.Run(1, r.cycle, 30); err == nil || begun != i+1 {
			t.Errorf("everything fits again: begun %d times, %v; want %d times, and a stand back", begun, err, i+1)
		}
	}
}

// When everything comes to fit, what is held is released.
func TestReleaseWhenEverythingFits(t *testing.T) {
	r := newSettledRig(t, 0.8, prefetch.Options{}, nil)
	r.SetLimit(2 * r.cycle.Bytes())
	var stood *prefetch.StandBack
	_, err := r.Run(1, r.cycle, 30)
	if !errors.As(err, &stood) || stood.Reason != prefetch.Fits || r.Summary().Pinned != 0 {
		t.Errorf("%v, %d bytes held; want a stand back (%v), and none", err, r.Summary().Pinned, prefetch.Fits)
	}
}

// A caller's budget is not the target's limit. If the model fits in memory, but not in the budget, there is no stand
// back.
func TestBudget(t *testing.T) {
	r := newSettledRig(t, 1.5, prefetch.Options{Budget: 200 * mib}, nil)
	if s := r.Summary(); s.Pinned == 0 || s.Level != room.LevelBudget {
		t.Errorf("with a budget: %+v, want something held, and the level %v", s, room.LevelBudget)
	}
}

// The budget may change while the model is held. What is too much is given back, and later taken again.
func TestShareChanges(t *testing.T) {
	var share atomic.Int64
	share.Store(150 * mib)
	r := newSettledRig(t, 0.8, prefetch.Options{Share: share.Load}, nil)
	var held []int64
	for _, bytes := range []int64{150 * mib, 80 * mib, 120 * mib} {
		share.Store(bytes)
		if _, err := r.Run(1, r.cycle, 12); err != nil {
			t.Fatal(err)
		}
		s := r.Summary()
		if s.Pinned > bytes || s.Level != room.LevelBudget {
			t.Errorf("%d MiB are held (%s), want at most the budget of %d (%s)",
				s.Pinned/mib, s.Level, bytes/mib, room.LevelBudget)
		}
		held = append(held, s.Pinned)
	}
	if held[1] >= held[0] || held[2] <= held[1] {
		t.Errorf("held %v bytes, want the second to be the least", held)
	}
}

// A target that cannot be helped is left alone until it can be. If that begins later, it is noticed because paging
// out has no effect.
func TestJudged(t *testing.T) {
	why := errors.New("two processes map it")
	asked := 0
	var verdict error
	judge := func() error {
		asked++
		return verdict
	}
	r := newRig(t, 0.7, prefetch.Options{Target: prefetch.Target{Judge: judge}}, nil)
	r.run(16)
	if asked != 1 {
		t.Errorf("Judge was called %d times, want once", asked)
	}
	verdict = why
	r.Map(0, true)
	var stood *prefetch.StandBack
	_, err := r.Run(1, r.cycle, 30)
	if !errors.As(err, &stood) || stood.Reason != prefetch.Judged || !errors.Is(err, why) || r.Summary().Pinned != 0 {
		t.Fatalf("%v, %d bytes held; want a stand back because %v, and none", err, r.Summary().Pinned, why)
	}
	if again, err := r.Look(); again || err != nil {
		t.Errorf("Look without a change = %v, %v, want false", again, err)
	}
	verdict = nil
	r.Rest(time.Minute)
	if again, err := r.Look(); !again || err != nil {
		t.Errorf("Look once the target can be helped = %v, %v, want true", again, err)
	}
}

// What changes because the target ends is nothing to win: the summary still says why there was nothing. A target that
// ends can be judged when it maps no model any more, and then seems to be one that can be helped.
func TestChangesOfEnding(t *testing.T) {
	gone := fmt.Errorf("process 7: %w", proc.ErrNoProcess)
	var mapped models.Model
	var modelsErr, verdict error
	target := prefetch.Target{
		Judge:  func() error { return verdict },
		Models: func() (models.Model, error) { return mapped, modelsErr },
	}
	for name, tc := range map[string]struct {
		verdict error
		ample   float64 // share of the model that has room
		change  func(*rig)
	}{
		"judged": {errors.New("it lies on tmpfs"), 0.7, func(r *rig) { verdict = nil; r.Rest(time.Minute) }},
		"fits":   {nil, 1.5, func(r *rig) { r.SetLimit(r.cycle.Bytes()) }},
	} {
		for end, err := range map[string]error{"has ended": gone, "has unmapped its model": nil} {
			mapped, modelsErr, verdict = twoModels(0), nil, tc.verdict
			r := newRig(t, tc.ample, prefetch.Options{Target: target}, nil)
			r.Map(0, true)
			var stood *prefetch.StandBack
			if _, err := r.Run(1, r.cycle, 5); !errors.As(err, &stood) {
				t.Fatalf("%s: %v, want a stand back", name, err)
			}
			tc.change(r)
			mapped, modelsErr = models.Model{}, err
			if again, err := r.Look(); again != (modelsErr == nil) || !errors.Is(err, modelsErr) {
				t.Errorf("%s, the target %s: Look = %v, %v; want %v, %v", name, end, again, err, modelsErr == nil,
					modelsErr)
			}
			if got := r.Summary().Idle; got != stood.Error() {
				t.Errorf("%s, the target %s: idle %q, want %q", name, end, got, stood.Error())
			}
		}
	}
}

// stayingPages are pages of which a block that was just paged out seems to stay in memory, where stays says so. That is
// asked whenever somebody looks at the block that was paged out last.
type stayingPages struct {
	*sim.Pages
	stays func() bool
	last  pages.Range
}

func (p *stayingPages) PageOut(r pages.Range) error {
	p.last = r
	return p.Pages.PageOut(r)
}

func (p *stayingPages) ResidentBytes(r pages.Range) (int64, error) {
	last := p.last
	if p.last = (pages.Range{}); r == last && p.stays() {
		return r.Length, nil
	}
	return p.Pages.ResidentBytes(r)
}

// Whether the target can be helped is judged again when four samples in a row stayed in memory after they were paged
// out. Where another one in between was freed, it is not.
func TestJudgedAfterSamplesInARow(t *testing.T) {
	for name, tc := range map[string]struct {
		stays func(sample int) bool
		want  func(samples int) int // how often it is judged in the end, the first time beside
	}{
		"all stay":      {func(int) bool { return true }, func(samples int) int { return samples / 4 }},
		"three of four": {func(sample int) bool { return sample%4 != 0 }, func(int) int { return 0 }},
	} {
		judged, samples := 0, 0
		r := newRig(t, 0.7, prefetch.Options{}, nil)
		disk := &stayingPages{Pages: r.pages, stays: func() bool { samples++; return tc.stays(samples) }}
		r.Controller = prefetch.New(disk, prefetch.Options{
			Memory: r.Memory(), Now: r.Now, Log: newFailingLog(t),
			Target: prefetch.Target{Judge: func() error { judged++; return nil }},
		})
		r.Attach(r.Controller)
		r.run(30)
		if got, want := judged-1, tc.want(samples); samples < 12 || got != want {
			t.Errorf("%s: judged %d times after %d samples, want %d times after at least 12", name, got, samples, want)
		}
	}
}

// Weights that the target copied out of the file when it loaded them cannot be helped, until it loads another model.
func TestOutside(t *testing.T) {
	mapped := int64(280 * mib)
	r := newRig(t, 0.85, prefetch.Options{Target: prefetch.Target{Models: func() (models.Model, error) {
		return models.Model{
			Files: []pattern.CycleFile{{Size: mapped}}, Mapped: []models.Mapped{{ID: sim.FileID(0)}},
		}, nil
	}}}, nil)
	var err error
	copied := &event.Op{TID: 1, Decode: 1, Name: "MUL_MAT", Sources: []event.Source{
		{Name: "w", NE: [4]int64{1 << 20, 1, 1, 1}, NB: [4]int64{4, 4 << 20, 4 << 20, 4 << 20}},
	}}
	for _, e := range []event.Event{
		event.DecodeBegin{TID: 1, Context: 1, Decode: 1, Tokens: 1}, copied, event.DecodeEnd{TID: 1, Decode: 1},
	} {
		err = r.Handle(e)
	}
	var stood *prefetch.StandBack
	if !errors.As(err, &stood) || stood.Reason != prefetch.Outside || !errors.Is(err, event.ErrOutside) {
		t.Fatalf("copied weights: %v, want a stand back (%v)", err, prefetch.Outside)
	}
	if stood.Copied != 0 {
		t.Errorf("%d bytes of copied weights were freed where the file has none, want 0", stood.Copied)
	}
	if again, err := r.Look(); again || err != nil {
		t.Errorf("Look without a change = %v, %v, want false", again, err)
	}
	mapped = 300 * mib
	if again, err := r.Look(); !again || err != nil {
		t.Errorf("Look with another model = %v, %v, want true", again, err)
	}
}

// What is in memory of weights that the target has copied is paged out, save for those that it reads in the file, too.
func TestCopiedWeightsAreFreed(t *testing.T) {
	part := &gguf.File{Tensors: []gguf.Tensor{
		{Name: "copied", Offset: 0, Size: 100 * mib}, {Name: "both", Offset: 100 * mib, Size: 20 * mib},
		{Name: "other", Offset: 120 * mib, Size: 20 * mib}, {Name: "shared", Offset: 140 * mib, Size: 20 * mib},
	}}
	// A draft model reads its own weight of that name in its file.
	draft := &gguf.File{Tensors: []gguf.Tensor{{Name: "shared", Offset: 0, Size: mib}}}
	var r *rig
	var opts prefetch.Options
	opts.Target.Models = func() (models.Model, error) {
		return models.Model{
			Files: []pattern.CycleFile{{Size: r.cycle.Bytes()}, {Size: r.another.Bytes()}},
			Mapped: []models.Mapped{
				{Path: r.Path(0), ID: sim.FileID(0), Base: r.Base(0)},
				{Path: r.Path(1), ID: sim.FileID(1), Base: r.Base(1)},
			},
			Parts: []*gguf.File{part, draft},
		}, nil
	}
	r = newRig(t, 2, opts, nil)
	file, size, err := r.pages.Open(r.Path(0), sim.FileID(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.pages.Keep(pages.Range{File: file, Length: size}); err != nil {
		t.Fatal(err)
	}
	if err := r.Sleep(time.Second); err != nil { // until all of that was read
		t.Fatal(err)
	}
	row := event.Source{
		Name: "both", InFile: true, File: sim.FileID(0), Offset: 100 * mib, Data: r.Base(0) + 100*mib,
		NE: [4]int64{1024, 5120, 1, 1}, NB: [4]int64{4, 4096, 20 * mib, 20 * mib},
	}
	op := &event.Op{
		TID: 1, Decode: 1, Name: "GET_ROWS", GatherDim: 1, IDs: []int32{7}, IDRows: 1, Sources: []event.Source{row},
	}
	weight := func(name string) event.Source {
		const all = 100 * mib
		return event.Source{Name: name, NE: [4]int64{all / 4, 1, 1, 1}, NB: [4]int64{4, all, all, all}}
	}
	copied := &event.Op{TID: 1, Decode: 1, Name: "MUL_MAT", Sources: []event.Source{
		weight("copied"), weight("both"), weight("shared"),
	}}
	for _, e := range []event.Event{
		event.FileSeen{PID: 1, File: sim.FileID(0), ID: sim.FileID(0), Path: r.Path(0)},
		event.DecodeBegin{TID: 1, Context: 1, Decode: 1, Tokens: 1}, op, copied, event.DecodeEnd{TID: 1, Decode: 1},
	} {
		err = r.Handle(e)
	}
	var stood *prefetch.StandBack
	if !errors.As(err, &stood) || stood.Copied != 100*mib || !strings.Contains(err.Error(), "100 MiB") {
		t.Errorf("%v, want a stand back that tells of 100 MiB", err)
	}
	if got := r.Summary().Copied; got != 100*mib {
		t.Errorf("the summary tells of %d bytes, want %d", got, 100*mib)
	}
	for at, want := range map[int64]int64{0: 0, 100 * mib: 20 * mib, 120 * mib: 20 * mib, 140 * mib: 20 * mib} {
		got, err := r.pages.ResidentBytes(pages.Range{File: file, Offset: at, Length: 20 * mib})
		if got != want || err != nil {
			t.Errorf("%d bytes at %d are in memory, %v; want %d", got, at, err, want)
		}
	}
}
