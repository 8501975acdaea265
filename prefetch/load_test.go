package prefetch_test

// This file tests in virtual time what is done while a target loads its model. The target goes through the file in
// order, and then computes. The order of a token's reads is guessed from the file.

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
	"tensorcast/sim"
)

// loader is a rig whose target maps a model file, goes through it, and then computes its tokens.
type loader struct {
	*rig
	file    *gguf.File
	inOrder *pattern.Cycle // what it does while it loads: reads of 256 KiB
	mapped  bool
	from    int64 // the load touched the bytes from here; those before were taken away since
	to      int64 // to here
	seen    event.FileSeen
	report  func()        // reports the file with the first op, as the probes do; nil when that is done
	watcher *phaseWatcher // watches the Controller, if not nil
}

// Tick ticks the Controller.
func (l *loader) Tick() error {
	if l.watcher != nil {
		return l.watcher.Tick()
	}
	return l.Controller.Tick()
}

// loadedTensors are 10 layers of 27 MiB, in another order than that of use, and 24 MiB of embeddings, of which a
// token reads one row.
func loadedTensors() (all []gguftest.Tensor) {
	matrix := func(name string, mib int64) {
		all = append(all, gguftest.Tensor{Name: name, Type: gguf.F32, Shape: []int64{1 << 10, mib << 8}})
	}
	matrix("output.weight", 8)
	for l := range 10 {
		for name, mib := range map[string]int64{
			"attn_q": 2, "attn_output": 1, "ffn_down": 8, "ffn_gate": 8, "ffn_up": 8,
		} {
			matrix(fmt.Sprintf("blk.%d.%s.weight", l, name), mib)
		}
	}
	// ffn_up before ffn_gate before ffn_down before attn_q
	slices.SortFunc(all[1:], func(a, b gguftest.Tensor) int { return strings.Compare(b.Name, a.Name) })
	matrix("token_embd.weight", 24)
	all = append(all, gguftest.Tensor{Name: "output_norm.weight", Type: gguf.F32, Shape: []int64{1 << 10}})
	return all
}

// newLoader makes a rig whose limit is a share of what a token reads. change may change what the target really reads,
// and machine the machine.
func newLoader(
	t *testing.T, share float64, opts prefetch.Options, change func(*pattern.Cycle), machine func(*sim.Config),
) *loader {
	t.Helper()
	return newLoaderOf(t, &gguftest.Model{Tensors: loadedTensors()}, share, opts, change, machine)
}

// newLoaderOf makes such a rig for a model.
func newLoaderOf(
	t *testing.T, model *gguftest.Model, share float64, opts prefetch.Options, change func(*pattern.Cycle),
	machine func(*sim.Config),
) *loader {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	model.Write(t, path)
	part, err := gguf.OpenPart(path)
	if err != nil {
		t.Fatal(err)
	}
	truth, err := pattern.GuessMixture(part.Files)
	if err != nil {
		t.Fatal(err)
	}
	truth.Reads = slices.DeleteFunc(truth.Reads, func(r pattern.CycleRead) bool { return r.Gathers() && !r.Experts })
	for i := range truth.Reads {
		r := &truth.Reads[i]
		r.Nanos = r.Length / 20 // 20 bytes in a nanosecond
		if r.Experts {
			r.Nanos = r.Slice * int64(r.Slices) / 20
		}
	}
	if change != nil {
		change(truth)
	}
	if opts.Stored != nil {
		stored := *truth
		if stored.Files, err = pattern.FilesOf(part); err != nil {
			t.Fatal(err)
		}
		opts.Stored = &stored
	}
	l := &loader{file: part.Files[0], inOrder: &pattern.Cycle{}}
	const step = 256 << 10
	for at := int64(0); at < l.file.Size; at += step {
		l.inOrder.Reads = append(l.inOrder.Reads, pattern.CycleRead{
			Tensor: "w", Op: "LOAD", Offset: at, Length: min(step, l.file.Size-at), Nanos: step / 10,
		})
	}
	opts.Target.Models = func() (m models.Model, err error) {
		if l.mapped {
			m.Files, err = pattern.FilesOf(part)
			m.Mapped = []models.Mapped{{Path: "model-0.gguf", ID: sim.FileID(0), Base: l.Base(0)}}
			m.Parts = part.Files
		}
		return m, err
	}
	opts.Target.Touched = func(at []uint64) (are []bool, err error) {
		for _, a := range at {
			page := int64(a-l.Base(0)) >> 12 << 12
			are = append(are, page >= l.from && page < l.to)
		}
		return are, nil
	}
	l.rig = newRig(t, share, opts, func(cfg *sim.Config) {
		cfg.Cycles = []*pattern.Cycle{l.inOrder, truth}
		cfg.Limit = int64(share * float64(truth.Bytes()))
		if machine != nil {
			machine(cfg)
		}
	})
	l.cycle = truth
	return l
}

// Handle takes what the target does while it loads. The Controller sees none of that.
func (l *loader) Handle(e event.Event) error {
	switch o := e.(type) {
	case event.FileSeen:
		l.seen = o
	case *event.Op:
		l.to = o.Sources[0].Offset + o.Sources[0].Bytes()
		l.from = max(l.from, l.to-8*mib)
	}
	return nil
}

// load loads the model, with the Controller's help or without.
func (l *loader) load(helped bool) sim.Token {
	l.t.Helper()
	l.mapped = true
	l.Attach(nil)
	if helped {
		l.Attach(l)
	}
	token := l.runContext(1, l.inOrder, 1)
	l.endLoad()
	return token
}

// endLoad has the Controller see what the target does from now on.
func (l *loader) endLoad() {
	l.t.Helper()
	l.to = 1 << 40
	l.Attach(l.Controller)
	if l.watcher != nil {
		l.Attach(l.watcher)
	}
	l.report = func() {
		if err := l.Controller.Handle(l.seen); err != nil {
			l.t.Fatal(err)
		}
	}
}

// compute computes a token.
func (l *loader) compute() sim.Token {
	l.t.Helper()
	if l.report != nil {
		l.report()
		l.report = nil
	}
	return l.run(1)
}

// From its first touch on the target finds in memory what it reads: while it loads in the order of the file, and then
// in the order of use. What stays of the load is not read again.
func TestLoading(t *testing.T) {
	plain := newLoader(t, 0.85, prefetch.Options{}, nil, nil)
	plain.Controller = prefetch.New(plain.pages, prefetch.Options{
		Memory: plain.Memory(), Now: plain.Now, Log: newFailingLog(t),
	})
	slow := plain.load(false)
	plain.Attach(nil)
	slowFirst := plain.run(1)

	l := newLoader(t, 0.85, prefetch.Options{}, nil, nil)
	if err := l.Sleep(50 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	fast := l.load(true)
	if fast.TargetBytes > l.file.Size/8 {
		t.Errorf("while it loaded, the target read %d bytes itself, want at most %d", fast.TargetBytes, l.file.Size/8)
	}
	if sum := fast.TargetBytes + fast.HelperBytes; sum > l.file.Size*21/20 {
		t.Errorf("%d bytes were read during the load, want about the file's %d", sum, l.file.Size)
	}
	if fast.Time > slow.Time*11/10 {
		t.Errorf("loading takes %v, want about the %v without help", fast.Time, slow.Time)
	}
	if err := l.Sleep(30 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if held := l.Summary().Pinned; held < l.cycle.Bytes()*7/10 {
		t.Errorf("%d bytes are held after the load, want at least %d", held, l.cycle.Bytes()*7/10)
	}
	if want := []bool{true, false}; !slices.Equal(l.pages.InOrders, want) {
		t.Errorf("reads were declared to be in order: %v, want %v", l.pages.InOrders, want)
	}
	byOffset := func(a, b pages.Range) int { return cmp.Compare(a.Offset, b.Offset) }
	if ordered := l.pages.Ordered; len(ordered) < 100 || !slices.IsSortedFunc(ordered, byOffset) {
		t.Errorf("%d reads were begun while it loaded: %v; want at least 100, in the order of the file",
			len(ordered), ordered)
	}
	// Each call of Keep maps its pages for a moment. What is already in memory needs none.
	if n := l.pages.Calls.Keep; n > 16 {
		t.Errorf("%d blocks were kept one by one, want at most 16", n)
	}
	first := l.compute()
	missing := int64(float64(l.cycle.Bytes()) * 0.15)
	if most := missing + reserve + window + 8*mib; first.TargetBytes > 0 || first.HelperBytes > most ||
		first.Time > slowFirst.Time*2/3 {
		t.Errorf("the first token: %+v, want nothing read by the target, at most %d bytes by the helper, "+
			"and two thirds of the time without help: %+v", first, most, slowFirst)
	}
	l.run(4)
	if s := l.Summary(); s.Learned != 1 || !s.Guessed || s.Stored || s.Idle != "" {
		t.Errorf("%+v, want the guessed cycle, learned once", s)
	}
}

// A load that the Controller meets when it is over leaves tables in memory. If all else may fit, they stay until it is
// known that it does. A budget is never room enough.
func TestLoadedBesidesTables(t *testing.T) {
	model := &gguftest.Model{Tensors: loadedTensors()}
	for i := range model.Tensors {
		if m := &model.Tensors[i]; m.Name == event.TokenEmbeddings {
			m.Shape[1] *= 3 // to be large enough for a table
		}
	}
	for budget, stays := range map[int64]bool{0: true, 320 * mib: false} {
		l := newLoaderOf(t, model, 1.2, prefetch.Options{Budget: budget}, nil, nil)
		if err := l.Sleep(time.Second); err != nil { // it sees that nothing is mapped
			t.Fatal(err)
		}
		l.mapped = true
		l.Attach(&untickedLoader{l})
		l.runContext(1, l.inOrder, 1)
		l.Attach(l)
		if err := l.Sleep(time.Second); err != nil {
			t.Fatal(err)
		}
		if got := l.Status().LoopPhase; got != prefetch.Stream || !l.Summary().Guessed {
			t.Fatalf("budget %d: phase %s, want %s by a guess", budget, got, prefetch.Stream)
		}
		l.endLoad()
		l.report()
		_, err := l.Run(1, l.cycle, 3)
		var stood *prefetch.StandBack
		if fits := errors.As(err, &stood) && stood.Reason == prefetch.Fits && stood.Tables > 0; fits != stays {
			t.Errorf("budget %d: %v, want that all but the tables fits: %v", budget, err, stays)
		}
		if x := l.Summary().Tables; x == nil || (x.Strays == 0) != stays {
			t.Errorf("budget %d: tables %+v", budget, x)
		}
	}
}

// A server that sleeps unmaps its model. When it wakes it is helped to load it again, as often as that happens.
func TestLoadedAgain(t *testing.T) {
	l := newLoader(t, 0.85, prefetch.Options{}, nil, nil)
	for n := range 10 {
		l.mapped, l.from, l.to = false, 0, 0
		l.Take(1 << 40)
		if err := l.Sleep(6 * time.Second); err != nil {
			t.Fatal(err)
		}
		if s := l.Status(); s.Held != 0 || s.LoopPhase != prefetch.Learn {
			t.Fatalf("asleep: %d bytes are held in phase %s, want none in %s", s.Held, s.LoopPhase, prefetch.Learn)
		}
		load := l.load(true)
		if load.TargetBytes > l.file.Size/4 {
			t.Errorf("load %d: the target read %d bytes itself, want at most %d", n, load.TargetBytes, l.file.Size/4)
		}
		if err := l.Sleep(300 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if first := l.compute(); first.TargetBytes > l.cycle.Bytes()/20 {
			t.Errorf("load %d: the first token: %+v, want at most %d bytes read by the target",
				n, first, l.cycle.Bytes()/20)
		}
		l.run(3)
	}
	l.mapped = false
	if err := l.Sleep(6 * time.Second); err != nil {
		t.Fatal(err)
	}
	if s := l.Summary(); s.PerToken < l.cycle.Bytes() || s.Tokens < 30 {
		t.Errorf("asleep in the end: %d tokens of %d bytes, want at least 30 of %d or a little more",
			s.Tokens, s.PerToken, l.cycle.Bytes())
	}
}

// The target may be far into its load when the Controller first looks, and what it touched first may be gone again.
func TestLoadingMet(t *testing.T) {
	l := newLoader(t, 0.85, prefetch.Options{}, nil, nil)
	l.mapped, l.to = true, 0
	half := &pattern.Cycle{Reads: l.inOrder.Reads[:len(l.inOrder.Reads)/2]}
	l.Attach(&untickedLoader{l})
	l.runContext(1, half, 1)
	l.Attach(l)
	rest := l.runContext(1, &pattern.Cycle{Reads: l.inOrder.Reads[len(half.Reads):]}, 1)
	if rest.HelperBytes < l.file.Size/3 {
		t.Errorf("%d bytes of the second half were read by the helper, want at least %d",
			rest.HelperBytes, l.file.Size/3)
	}
	l.endLoad()
	if err := l.Sleep(300 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if most := l.Summary().Pinned + window + 4*mib; l.Used() > most { // the rest of the first half was paged out
		t.Errorf("%d bytes are in memory, want at most %d", l.Used(), most)
	}
	if first := l.compute(); first.TargetBytes > l.cycle.Bytes()/20 {
		t.Errorf("the first token: %+v, want at most %d bytes read by the target", first, l.cycle.Bytes()/20)
	}
}

// untickedLoader is a loader whose Controller is not called.
type untickedLoader struct{ *loader }

func (*untickedLoader) Tick() error { return nil }

// A wrong guess is replaced by what the target reads, as a wrong stored cycle is.
func TestWrongGuess(t *testing.T) {
	for name, change := range map[string]func(*pattern.Cycle){
		"order": func(c *pattern.Cycle) {
			for i := range c.Reads {
				if i > 0 && c.Reads[i-1].Length == 8*mib && c.Reads[i].Length == 8*mib {
					c.Reads[i-1], c.Reads[i] = c.Reads[i], c.Reads[i-1]
				}
			}
		},
		"less": func(c *pattern.Cycle) { c.Reads = c.Reads[:len(c.Reads)*9/10] },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLoader(t, 0.85, prefetch.Options{}, change, nil)
			if err := l.Sleep(10 * time.Millisecond); err != nil {
				t.Fatal(err)
			}
			l.load(true)
			if err := l.Sleep(100 * time.Millisecond); err != nil {
				t.Fatal(err)
			}
			first := l.compute()
			if read := first.TargetBytes + first.HelperBytes; read > l.cycle.Bytes()/2 {
				t.Errorf("the first token: %+v, want at most half of %d bytes read", first, l.cycle.Bytes())
			}
			l.run(3)
			if s := l.Status(); s.Activity != prefetch.Helping {
				t.Errorf("after 4 tokens: %+v, want %s", s, prefetch.Helping)
			}
			if s := l.Summary(); s.Learned != 2 || !s.Guessed {
				t.Errorf("%+v, want a guess, then another cycle that is learned", s)
			}
			if token := l.run(5); token.Misses > 2 { // the target may reach a block a moment before its read is over
				t.Errorf("%d pages missing, want at most 2", token.Misses)
			}
		})
	}
}

// standsBack says whether an error is a StandBack for that reason.
func standsBack(err error, why prefetch.Reason) bool {
	var stood *prefetch.StandBack
	return errors.As(err, &stood) && stood.Reason == why
}

// If everything fits it is read ahead while the target loads. After that there is nothing to win: at once with a stored
// pattern, with the first decode after a guess.
func TestLoadingFits(t *testing.T) {
	for name, opts := range map[string]prefetch.Options{"guess": {}, "stored": {Stored: &pattern.Cycle{}}} {
		// So slow that the room is measured during the load.
		l := newLoader(t, 2, opts, nil, func(cfg *sim.Config) { cfg.Bandwidth = 2e8 })
		if err := l.Sleep(10 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
		l.mapped = true
		l.Attach(l)
		all, err := l.Run(1, l.inOrder, 1)
		if err != nil {
			t.Fatal(err)
		}
		if all[0].HelperBytes < l.file.Size*7/8 {
			t.Errorf("%s: %d bytes were read by the helper, want at least %d",
				name, all[0].HelperBytes, l.file.Size*7/8)
		}
		l.endLoad()
		err = l.Sleep(100 * time.Millisecond)
		if l.Used() < l.file.Size*9/10 {
			t.Errorf("%s: %d bytes are in memory, want at least %d", name, l.Used(), l.file.Size*9/10)
		}
		if err == nil && opts.Stored == nil {
			l.report()
			_, err = l.Run(1, l.cycle, 3)
		}
		if !standsBack(err, prefetch.Fits) {
			t.Errorf("%s: %v, want a stand back (%v)", name, err, prefetch.Fits)
		}
	}
}

// Nothing is guessed about a target that computes: what it reads is learned. Nor is anything guessed as long as a
// target has mapped its model and does not touch more of it.
func TestNoGuess(t *testing.T) {
	l := newLoader(t, 0.85, prefetch.Options{}, nil, nil)
	l.mapped, l.to = true, 1<<40
	l.run(3)
	if s := l.Summary(); s.Guessed || s.Learned != 1 {
		t.Errorf("a target that computes: %+v, want its reads learned once, and no guess", s)
	}
	for name, to := range map[string]int64{"untouched": 0, "half": 100 * mib, "whole": 1 << 40} {
		l = newLoader(t, 0.85, prefetch.Options{}, nil, nil)
		l.mapped, l.to = true, to
		if err := l.Sleep(5 * time.Second); err != nil {
			t.Fatal(err)
		}
		if s := l.Summary(); s.Guessed || l.Used() > 0 || l.Pause() < 100*time.Millisecond {
			t.Errorf("%s: %+v, %d bytes in memory, pause %v; want no guess, 0 bytes, at least 100ms",
				name, s, l.Used(), l.Pause())
		}
	}
}

// A guess is given up when the target does not read the weights from the file.
func TestGuessOutside(t *testing.T) {
	l := newLoader(t, 0.85, prefetch.Options{}, nil, nil)
	l.load(true)
	if err := l.Sleep(time.Second); err != nil {
		t.Fatal(err)
	}
	if l.Summary().Pinned == 0 {
		t.Fatal("nothing is held after the load, want some")
	}
	for _, e := range []event.Event{
		event.DecodeBegin{TID: 1, Decode: 7, Context: 1, Tokens: 1},
		&event.Op{TID: 1, Decode: 7, Name: "MUL_MAT", Duration: -1, Stall: -1, Sources: []event.Source{
			{Name: "blk.0.ffn_up.weight", NE: [4]int64{1, 1, 1, 1}, NB: [4]int64{4, 4, 4, 4}},
		}},
	} {
		if err := l.Controller.Handle(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Controller.Handle(event.DecodeEnd{TID: 1, Decode: 7}); !standsBack(err, prefetch.Outside) {
		t.Errorf("after a decode outside the file: %v, want a stand back (%v)", err, prefetch.Outside)
	}
	if held := l.Summary().Pinned; held != 0 {
		t.Errorf("%d bytes are held, want 0", held)
	}
}
