package prefetch_test

// This file tests in virtual time how a Controller learns what a token reads, follows contexts, and uses a stored
// cycle.

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

// When the target maps its model anew, its reads are learned anew, and it is helped as before.
func TestRelearning(t *testing.T) {
	r := newSettledRig(t, 0.8, prefetch.Options{}, nil)
	before := r.run(5)
	r.Remap()
	r.run(12)
	s, token := r.Summary(), r.run(5)
	if s.Learned != 2 || token.Misses > 0 || token.Time > before.Time*11/10 {
		t.Errorf("learned %d times, want 2; a token takes %v, want about %v; %d pages missing, want 0",
			s.Learned, token.Time, before.Time, token.Misses)
	}
}

// A decode of which not all ops were seen teaches nothing. It does not contradict what is known, either.
func TestPartialDecode(t *testing.T) {
	r := newRig(t, 0.8, prefetch.Options{}, nil)
	part := *r.cycle
	decodePart := func(reads []pattern.CycleRead) {
		t.Helper()
		part.Reads = reads
		r.Partial = true
		if _, err := r.Run(1, &part, 1); err != nil {
			t.Fatal(err)
		}
		r.Partial = false
	}
	decodePart(r.cycle.Reads[len(r.cycle.Reads)/2:])
	if s := r.Summary(); s.Learned != 0 {
		t.Errorf("learned %d times from a part of a decode, want 0", s.Learned)
	}
	r.run(3)
	decodePart(nil)
	r.run(3)
	if s := r.Summary(); s.Learned != 1 || s.PerToken < r.cycle.Bytes() {
		t.Errorf("learned %d times, want 1; a token is said to read %d bytes, want %d", s.Learned, s.PerToken,
			r.cycle.Bytes())
	}
}

// A target may come to read other weights, because some are computed elsewhere from now on, or no longer are. Its
// reads are learned anew then, and it is helped with those.
func TestElsewhere(t *testing.T) {
	version := uint64(0)
	var opts prefetch.Options
	opts.Target.Elsewhere = func() uint64 { return version }
	r := newSettledRig(t, 0.4, opts, nil)
	whole := r.cycle.Reads
	// In the end everything that is read has room. It has to be kept nevertheless, because the rest lies between it.
	for n, reads := range [][]pattern.CycleRead{whole[:len(whole)*8/10], whole, whole[:len(whole)/10]} {
		r.cycle.Reads = reads
		version++
		r.run(16)
		token, s := r.run(5), r.Summary()
		if s.Learned != 2+n || token.Misses > 0 || s.PerToken < r.cycle.Bytes() || s.PerToken > r.cycle.Bytes()*21/20 {
			t.Errorf("a token is said to read %d bytes, want %d; learned %d times, want %d; %d pages missing, want 0",
				s.PerToken, r.cycle.Bytes(), s.Learned, 2+n, token.Misses)
		}
	}
	// After a stand back, such a change is a reason to try again.
	f := newFittingRig(t, opts)
	if again, err := f.Look(); again || err != nil {
		t.Errorf("Look without a change = %t, %v, want false", again, err)
	}
	version++
	if again, err := f.Look(); !again || err != nil {
		t.Errorf("Look after a change of what is computed elsewhere = %t, %v, want true", again, err)
	}
}

// When a server loads the same model again, in a new context, it is followed there.
func TestReloadInAnotherContext(t *testing.T) {
	r := newSettledRig(t, 0.8, prefetch.Options{}, nil)
	before := r.run(5)
	r.Remap()
	r.runContext(5, r.cycle, 12)
	token, s := r.runContext(5, r.cycle, 5), r.Summary()
	if s.Learned != 2 || token.Misses > 0 || token.Time > before.Time*11/10 {
		t.Errorf("learned %d times, want 2; a token takes %v, want about %v; %d pages missing, want 0",
			s.Learned, token.Time, before.Time, token.Misses)
	}
}

// A target that has loaded one model twice, and decodes with both by turns, reads the same bytes each time. It is not
// learned anew at each turn.
func TestModelMappedTwice(t *testing.T) {
	var first, second uint64
	target := prefetch.Target{Models: func() (models.Model, error) {
		return models.Model{
			Files:  []pattern.CycleFile{{Size: 280 * mib}},
			Mapped: []models.Mapped{{ID: sim.FileID(0), Base: first, More: []uint64{second}}},
		}, nil
	}}
	r := newRig(t, 0.8, prefetch.Options{Target: target}, nil)
	first = r.Base(0)
	r.run(16)
	r.Remap()
	second = r.Base(0)
	r.runContext(5, r.cycle, 12)
	held := r.Summary().Pinned
	for range 3 {
		r.RemapTo(first)
		r.run(1)
		r.RemapTo(second)
		r.runContext(5, r.cycle, 1)
	}
	if s := r.Summary(); s.Learned != 1 || s.Pinned < held-slackOfTwice {
		t.Errorf("learned %d times, want once; %d bytes are held, want about %d", s.Learned, s.Pinned, held)
	}
}

// slackOfTwice is how many bytes less may be held for a moment.
const slackOfTwice = 16 * mib

// The same holds for a context that is already known because it decoded before.
func TestReloadInKnownContext(t *testing.T) {
	r := newSettledRig(t, 0.8, prefetch.Options{}, nil)
	r.runContext(5, r.cycle, 2)
	r.Remap()
	r.runContext(5, r.cycle, 12)
	if token, s := r.runContext(5, r.cycle, 5), r.Summary(); s.Learned != 2 || token.Misses > 0 {
		t.Errorf("learned %d times, want 2; %d pages missing, want 0", s.Learned, token.Misses)
	}
}

// A second context on the same mapping is followed as the first one is, without learning anew.
func TestSecondContextOfTheModel(t *testing.T) {
	r := newSettledRig(t, 0.8, prefetch.Options{}, nil)
	if token, s := r.runContext(5, r.cycle, 5), r.Summary(); s.Learned != 1 || token.Misses > 0 {
		t.Errorf("learned %d times, want once; %d pages missing, want 0", s.Learned, token.Misses)
	}
}

// A draft model decodes between the tokens of the model that it drafts for, and an embedding context decodes now and
// then. They read nothing of what is held. That is no reason to give it up.
func TestContextsAreFollowedApart(t *testing.T) {
	r := newSettledRig(t, 0.9, prefetch.Options{}, nil)
	held := r.Summary().Pinned
	for range 10 {
		r.runContext(2, r.another, 5)
		r.run(1)
		if now := r.Summary().Pinned; now < held-40*mib { // the draft's own pages take some room
			t.Fatalf("%d bytes are held, want at least %d", now, held-40*mib)
		}
	}
	for decode := range uint32(5) { // decodes that read no weight of a file at all
		for _, e := range []event.Event{
			event.DecodeBegin{TID: 1, Context: 3, Decode: 1000 + decode, Tokens: 1},
			event.DecodeEnd{TID: 1, Decode: 1000 + decode},
		} {
			if err := r.Handle(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s := r.Summary(); s.Learned != 1 || s.Pinned < held-40*mib {
		t.Errorf("learned %d times, want once; %d bytes are held, want at least %d", s.Learned, s.Pinned, held-40*mib)
	}
	if token := r.run(5); token.Misses > 0 {
		t.Errorf("%d pages missing, want 0", token.Misses)
	}
}

// The model of which a token reads most is helped, whichever decodes first.
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
		t.Fatalf("follows a cycle of %d bytes, want that of the first context, of %d",
			small.PerToken, r.another.Bytes())
	}
	r.run(12)
	if s := r.Summary(); s.PerToken < r.cycle.Bytes() || s.Learned != 2 {
		t.Errorf("follows a cycle of %d bytes, want the larger one, of %d; learned %d times, want 2",
			s.PerToken, r.cycle.Bytes(), s.Learned)
	}
	// That model is unloaded. The small one goes on alone.
	r.runContext(2, r.another, 80)
	if s := r.Summary(); s.PerToken > r.another.Bytes()+2*mib || s.Pinned > s.PerToken {
		t.Errorf("follows a cycle of %d bytes and holds %d after 80 tokens that read nothing of the large model, "+
			"want the small one's %d", s.PerToken, s.Pinned, r.another.Bytes())
	}
}

// What a stored cycle reads is held before the first token.
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
		t.Fatalf("%d bytes are held before the first token, want at least %d", held, r.cycle.Bytes()/2)
	}
	first := r.run(1)
	if first.TargetBytes > r.cycle.Bytes()/20 {
		t.Errorf("in the first token the target read %d bytes itself, want at most %d",
			first.TargetBytes, r.cycle.Bytes()/20)
	}
	if token, s := r.run(5), r.Summary(); token.Misses > 0 || s.Learned != 1 {
		t.Errorf("%d pages missing, want 0; learned %d times, want once", token.Misses, s.Learned)
	}
}

// When the target reads other weights than the stored cycle says, what it reads is learned instead.
func TestStoredCycleContradicted(t *testing.T) {
	r := newRig(t, 0.85, prefetch.Options{}, nil)
	half := &pattern.Cycle{Reads: r.cycle.Reads[:len(r.cycle.Reads)*9/10]}
	if err := r.Use(half, []models.Mapped{{Path: r.Path(0)}}); err != nil {
		t.Fatal(err)
	}
	r.run(12)
	if s := r.Summary(); s.Learned != 2 || s.PerToken < r.cycle.Bytes() {
		t.Errorf("learned %d times, want 2; follows %d bytes, want at least %d", s.Learned, s.PerToken, r.cycle.Bytes())
	}
	if token := r.run(5); token.Misses > 0 {
		t.Errorf("%d pages missing, want 0", token.Misses)
	}
}

// A strategy that uses only the stored pattern never learns one.
func TestPatternOnly(t *testing.T) {
	opts := prefetch.Options{Strategy: plan.Pattern{}}
	r := newRig(t, 0.85, opts, nil)
	half := &pattern.Cycle{Reads: r.cycle.Reads[:len(r.cycle.Reads)*9/10]}
	if err := r.Use(half, []models.Mapped{{Path: r.Path(0)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Run(1, r.cycle, 5); !standsBack(err, prefetch.Differs) || r.Summary().Pinned != 0 {
		t.Errorf("with other reads than stored: %v, want a stand back (%v); %d bytes are held, want 0",
			err, prefetch.Differs, r.Summary().Pinned)
	}
	if again, err := r.Look(); again || err != nil {
		t.Errorf("Look with the same model = %v, %v, want false", again, err)
	}
	r = newRig(t, 0.85, opts, nil)
	r.run(10)
	if s := r.Summary(); s.Learned != 0 || s.Pinned != 0 {
		t.Errorf("without a stored pattern: learned %d times, holds %d bytes, want neither", s.Learned, s.Pinned)
	}
	if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0), Base: r.Base(0)}}); err != nil {
		t.Fatal(err)
	}
	r.run(20)
	if s := r.Summary(); s.Learned != 1 || s.Pinned == 0 || s.Idle != "" {
		t.Errorf("with the true pattern: %+v, want that it was followed once and is held", s)
	}
}

func TestStoredCycleBeyondTheFile(t *testing.T) {
	r := newRig(t, 0.85, prefetch.Options{}, nil)
	wrong := &pattern.Cycle{Reads: []pattern.CycleRead{{Offset: 1 << 40, Length: 4096}}}
	if err := r.Use(wrong, []models.Mapped{{Path: r.Path(0)}}); err == nil {
		t.Error("Use of a cycle that reads beyond the file = nil, want an error")
	}
}

// Reads that do not lie within the file are left out, even if offset plus length overflows.
func TestReadsBeyondTheFile(t *testing.T) {
	r := newSettledRig(t, 0.85, prefetch.Options{}, nil)
	before := r.Summary()
	for i, extent := range [][2]int64{{1 << 40, 4096}, {4096, 1 << 62}, {-4096, 8192}, {1<<63 - 4096, 1<<63 - 4096}} {
		decode := uint32(2000 + i)
		op := &event.Op{TID: 9, Decode: decode, Name: "MUL_MAT", Sources: []event.Source{{
			Name: "w", InFile: true, File: sim.FileID(0), Offset: extent[0],
			NE: [4]int64{extent[1] / 4, 1, 1, 1}, NB: [4]int64{4, 0, 0, 0},
		}}}
		for _, e := range []event.Event{
			event.DecodeBegin{TID: 9, Context: 9, Decode: decode, Tokens: 1},
			op,
			event.DecodeEnd{TID: 9, Decode: decode},
		} {
			if err := r.Handle(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s := r.Summary(); s.PerToken != before.PerToken || s.Learned != 1 {
		t.Errorf("follows %d bytes, want %d as before; learned %d times, want once",
			s.PerToken, before.PerToken, s.Learned)
	}
}

// The file's own table of tensors says what its weights are. A read of something else is left out of a cycle that is
// learned, and a stored cycle with such a read is refused.
func TestReadsOfNoWeight(t *testing.T) {
	learned := model(0, 10)
	table := models.Weights{}
	for _, at := range learned.Reads {
		table = append(table, models.Weight{Offset: at.Offset, End: at.End()})
	}
	slices.SortFunc(table, func(a, b models.Weight) int { return cmp.Compare(a.Offset, b.Offset) })
	left := table[3]
	table = slices.Delete(table, 3, 4)
	var opts prefetch.Options
	opts.Target.Weights = func(string, event.FileID) (models.Weights, error) { return table, nil }
	r := newSettledRig(t, 0.85, opts, nil)
	want := r.cycle.Bytes() - (left.End - left.Offset)
	if got := r.Summary().PerToken; got < want || got > want+2*mib {
		t.Errorf("follows %d bytes, want %d: without the %d that are no weight", got, want, left.End-left.Offset)
	}
	r = newRig(t, 0.85, opts, nil)
	if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0)}}); err == nil {
		t.Error("Use of a stored cycle that reads what is no weight = nil, want an error")
	}
	// A file that is no model has no weights.
	opts.Target.Weights = func(string, event.FileID) (models.Weights, error) { return nil, gguf.ErrNotGGUF }
	r = newRig(t, 0.85, opts, nil)
	r.run(12)
	if s := r.Summary(); s.Learned != 0 || s.Pinned != 0 || s.Streamed != 0 {
		t.Errorf("with a file that is no model: %+v, want that nothing is learned, held or streamed", s)
	}
	broken := errors.New("broken")
	opts.Target.Weights = func(string, event.FileID) (models.Weights, error) { return nil, broken }
	r = newRig(t, 0.85, opts, nil)
	if _, err := r.Run(1, r.cycle, 1); !errors.Is(err, broken) {
		t.Errorf("a model that cannot be read: %v, want %v", err, broken)
	}
}

// storedOptions are options to begin with a cycle once the target maps its model.
func storedOptions(c *pattern.Cycle, models func() (models.Model, error)) prefetch.Options {
	named := *c
	named.Files = []pattern.CycleFile{{Name: "model.gguf", Size: 1 << 40, Fingerprint: "a"}}
	return prefetch.Options{Stored: &named, Target: prefetch.Target{Models: models}}
}

// The model may be mapped after a while, beside another one.
func TestStoredCycleOfModelMappedLater(t *testing.T) {
	asked := 0
	opts := storedOptions(model(0, 10), func() (m models.Model, err error) {
		switch asked++; {
		case asked > 8:
			m.Files = []pattern.CycleFile{
				{Name: "draft.gguf", Size: 7, Fingerprint: "b"},
				{Name: "renamed.gguf", Size: 1 << 40, Fingerprint: "a"},
			}
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
		t.Errorf("%d bytes are held, want at least %d; asked for the models %d times, want at least 9",
			held, r.cycle.Bytes()/2, asked)
	}
	if token, s := r.run(5), r.Summary(); s.Learned != 1 || token.TargetBytes > r.cycle.Bytes()/20 {
		t.Errorf("learned %d times, want once; the target read %d bytes a token, want at most %d",
			s.Learned, token.TargetBytes, r.cycle.Bytes()/20)
	}
}

func TestStoredCycleOfAnotherModel(t *testing.T) {
	opts := storedOptions(model(0, 10), func() (m models.Model, err error) {
		m.Files = []pattern.CycleFile{{Name: "other.gguf", Size: 7, Fingerprint: "b"}}
		return m, nil
	})
	r := newRig(t, 0.85, opts, nil)
	if err := r.Sleep(10 * time.Second); !errors.Is(err, pattern.ErrOtherModel) {
		t.Errorf("while the target rests: %v, want %v", err, pattern.ErrOtherModel)
	}
	// If the target already computes, nobody waits for another model.
	r = newRig(t, 0.85, opts, nil)
	if _, err := r.Run(1, r.cycle, 3); !errors.Is(err, pattern.ErrOtherModel) {
		t.Errorf("while the target computes: %v, want %v", err, pattern.ErrOtherModel)
	}
}
