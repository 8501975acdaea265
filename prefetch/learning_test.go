package prefetch_test

// This file tests in virtual time how a Controller learns what a token reads, follows contexts, and uses a stored cycle.

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/plan"
	"tensorcast/sim"
)

// A target that maps its model anew is learned anew, and helped as before.
func TestRelearning(t *testing.T) {
	r := newSettledRig(t, 0.8, prefetch.Options{}, nil)
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
	r := newSettledRig(t, 0.4, prefetch.Options{Target: prefetch.Target{Elsewhere: func() uint64 { return version }}}, nil)
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
	r := newSettledRig(t, 0.8, prefetch.Options{}, nil)
	before := r.run(5)
	r.Remap()
	r.runContext(5, r.cycle, 12)
	if token, s := r.runContext(5, r.cycle, 5), r.Summary(); s.Learned != 2 || token.Misses > 0 || token.Time > before.Time*11/10 {
		t.Errorf("learned %d times; a token takes %v, before %v; %d pages missing", s.Learned, token.Time, before.Time, token.Misses)
	}
}

// The same in a context that is known already, as it decoded before.
func TestReloadInKnownContext(t *testing.T) {
	r := newSettledRig(t, 0.8, prefetch.Options{}, nil)
	r.runContext(5, r.cycle, 2)
	r.Remap()
	r.runContext(5, r.cycle, 12)
	if token, s := r.runContext(5, r.cycle, 5), r.Summary(); s.Learned != 2 || token.Misses > 0 {
		t.Errorf("learned %d times; %d pages missing", s.Learned, token.Misses)
	}
}

// A second context on the same mapping is followed as the first one is, without learning anew.
func TestSecondContextOfTheModel(t *testing.T) {
	r := newSettledRig(t, 0.8, prefetch.Options{}, nil)
	if token, s := r.runContext(5, r.cycle, 5), r.Summary(); s.Learned != 1 || token.Misses > 0 {
		t.Errorf("learned %d times; %d pages missing", s.Learned, token.Misses)
	}
}

// A draft model decodes between the tokens of the model that it drafts for, an embedding context now and then: they read nothing of what is held, which
// is no reason to give it up.
func TestContextsAreFollowedApart(t *testing.T) {
	r := newSettledRig(t, 0.9, prefetch.Options{}, nil)
	held := r.Summary().Pinned
	for range 10 {
		r.runContext(2, r.another, 5)
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
	r.runContext(2, r.another, 3)
	small := r.Summary()
	if small.PerToken < r.another.Bytes() || small.PerToken > r.another.Bytes()+2*mib {
		t.Fatalf("follows a cycle of %d bytes, the first context reads %d", small.PerToken, r.another.Bytes())
	}
	r.run(12)
	if s := r.Summary(); s.PerToken < r.cycle.Bytes() || s.Learned != 2 {
		t.Errorf("follows a cycle of %d bytes, the larger one has %d", s.PerToken, r.cycle.Bytes())
	}
	// That model is unloaded; the small one goes on alone.
	r.runContext(2, r.another, 80)
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
	r := newSettledRig(t, 0.85, prefetch.Options{}, nil)
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
	r := newSettledRig(t, 0.85, opts, nil)
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
