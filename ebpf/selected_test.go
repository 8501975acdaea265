package ebpf

// These tests look at event.Selected, which reports a mixture's experts before they run.

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
)

// mixtures are the models that are looked at: a synthetic one, and a trained one where there is one.
func mixtures(t *testing.T) map[string]func(*testing.T) (*llama.Installation, llama.Options) {
	return map[string]func(*testing.T) (*llama.Installation, llama.Options){
		"synthetic": func(t *testing.T) (*llama.Installation, llama.Options) { return llamaOptions(t, moe) },
		"trained": func(t *testing.T) (*llama.Installation, llama.Options) {
			testenv.NeedRoot(t)
			path := llamatest.Trained(t, "tiny-moe-q8_0.gguf")
			return llamatest.ForTest(t), llama.Options{
				Model: path, Prompt: "Once upon a time there was", Tokens: 12, Threads: 1, NoRepack: true,
			}
		},
	}
}

// layerOf is the layer whose weight an op reads first.
func layerOf(t *testing.T, o *event.Op) (layer int32) {
	t.Helper()
	if _, err := fmt.Sscanf(o.Sources[0].Name, "blk.%d.", &layer); err != nil {
		t.Fatalf("source %q: %v", o.Sources[0].Name, err)
	}
	return layer
}

// Each layer's choice is reported once in each graph, before the first op that reads an expert
// begins. It equals the ids that this op gathers by. That holds for single tokens and for a prompt,
// whose tokens' choices lie apart in memory.
func TestSelected(t *testing.T) {
	for name, model := range mixtures(t) {
		for variant, opts := range map[string]Options{
			"op": {}, "io": {Detail: DetailIO}, "buffers": {Buffers: true},
			"small": {Small: true, Interval: time.Millisecond, AtOnce: true},
			"tiny":  {Small: true, templates: 8}, // nodes are dropped all the time
		} {
			t.Run(name+" "+variant, func(t *testing.T) {
				in, o := model(t)
				opts.Selected = true
				events, _ := watch(t, opts, in.Command(t.Context(), o), nil)
				told := map[string]*event.Selected{}
				tokens := map[uint32]int32{}
				prompts, generated := 0, 0
				key := func(decode, graph uint32, layer int32) string {
					return fmt.Sprint(decode, " ", graph, " ", layer)
				}
				first := map[string]bool{}
				for _, e := range events {
					switch e := e.(type) {
					case event.DecodeBegin:
						tokens[e.Decode] = e.Tokens
					case event.Selected:
						at := key(e.Decode, e.Graph, e.Layer)
						if told[at] != nil || e.Layer < 0 || e.Decode == 0 || len(e.IDs) == 0 || e.TID == 0 ||
							e.PID == 0 {
							t.Fatalf("%+v after %+v", e, told[at])
						}
						told[at] = &e
						if e.IDRows > 1 {
							prompts++
						} else if tokens[e.Decode] == 1 {
							generated++
						}
					case *event.Op:
						if !e.ByExpert {
							continue
						}
						at := key(e.Decode, e.Graph, layerOf(t, e))
						s := told[at]
						if s == nil {
							t.Fatalf("decode, graph, layer %s: %s comes before the choice", at, e.Sources[0].Name)
						}
						if !slices.Equal(s.IDs, e.IDs) || s.IDRows != e.IDRows || s.TID != e.TID {
							t.Errorf("%s: reported %v in %d rows, read %v in %d", at, s.IDs, s.IDRows, e.IDs, e.IDRows)
						}
						// The choice is reported with the lookup of the chosen experts' weights,
						// which is an earlier op.
						if s.Seq >= e.Seq || s.Time >= e.Time {
							t.Errorf("%s: reported at %d, in op %d; %s began at %d, as op %d", at, s.Time, s.Seq,
								e.Sources[0].Name, e.Time, e.Seq)
						}
						first[at] = true
					}
				}
				if len(first) != len(told) || prompts == 0 || generated < o.Tokens-1 {
					t.Errorf("%d choices reported, %d of prompts, %d of single tokens; %d were used", len(told),
						prompts, generated, len(first))
				}
			})
		}
	}
}

// Choices are not reported unless Options.Selected asks for them. In graph detail they cannot be
// asked for.
func TestSelectedUnasked(t *testing.T) {
	in, o := llamaOptions(t, moe)
	events, _ := watch(t, Options{AtOnce: true}, in.Command(t.Context(), o), nil)
	if n := len(eventsOf[event.Selected](events)); n != 0 {
		t.Errorf("%d choices were reported, want none", n)
	}
	if tr, err := New(Options{PID: unix.Getpid(), Detail: DetailGraph, Selected: true}); err == nil ||
		!strings.Contains(err.Error(), "observe ops") {
		t.Errorf("New: %v, %v, want an error", tr, err)
	}
}

// With AtOnce, choices come at once, however long the reader would sleep, and Tick is not called
// more often. Without it they wait.
func TestSelectedAtOnce(t *testing.T) {
	in, o := llamaOptions(t, moe)
	o.Tokens, o.Repeat = 100, 10
	const (
		attempts = 5  // the reader may have to wait for a processor
		soon     = 20 // "at once" is less than this part of what a reader that sleeps takes
	)
	for name, pause := range map[string]time.Duration{"epoll": time.Hour, "nap": lookAnyway} {
		// run returns the time within which a quarter of the choices were handed over, and a bound
		// for it. A reader that sleeps until the target has ended, or until it looks for libraries
		// every lookAnyway, takes a quarter of that sleep.
		run := func(atOnce bool) (lag, bound time.Duration) {
			var lags []time.Duration
			ticks := 0
			opts := Options{
				Selected: true, AtOnce: atOnce, Interval: time.Hour, Pause: func() time.Duration { return pause },
				Tick:      func() error { ticks++; return nil },
				RingBytes: 64 << 20, // an eighth, which wakes the reader, too, is more than the target sends
			}
			if name == "nap" {
				opts.pollFrom = time.Minute
			}
			begun := time.Now()
			events, _ := watchEach(t, opts, in.Command(t.Context(), o), func(*proc.Child) {}, func(e event.Event) {
				if s, is := e.(event.Selected); is {
					lags = append(lags, time.Duration(now(t)-s.Time))
				}
			})
			if most := 10 + int(time.Since(begun)/lookInterval); ticks > most {
				t.Errorf("%s, at once %v: %d ticks, want at most %d", name, atOnce, ticks, most)
			}
			told := eventsOf[event.Selected](events)
			took := time.Duration(told[len(told)-1].Time - told[0].Time)
			slices.Sort(lags)
			return lags[len(lags)/4], min(took, lookAnyway) / soon
		}
		if lag, bound := run(false); lag < bound {
			t.Errorf("%s: a quarter of the choices came within %v, though the reader was not to be woken", name, lag)
		}
		var lag, bound time.Duration
		for range attempts {
			if lag, bound = run(true); lag < bound {
				break
			}
		}
		t.Logf("%s: a quarter of the choices came within %v", name, lag)
		if lag >= bound {
			t.Errorf("%s: a quarter of the choices came within %v, want %v, in the last of %d runs", name, lag, bound,
				attempts)
		}
	}
}

// With AtOnce, an event that was handled may make Tick due earlier than it was when the rest began.
// The reader can only notice that when it has read all events. The model's vocabulary is therefore
// large: the output takes most of a token's time, sends no events, and lets a slow reader catch up.
func TestTickIsDueEarlier(t *testing.T) {
	cfg := moe
	cfg.Vocab = 1 << 16
	in, o := llamaOptions(t, cfg)
	o.Tokens, o.Repeat = 100, 1
	const attempts = 5 // the reader may have to wait for a processor
	var ticks, chosen int
	for range attempts {
		soon := false
		ticks, chosen = 0, 0
		watchEach(t, Options{
			Selected: true, AtOnce: true, Interval: time.Hour, RingBytes: 64 << 20, pollFrom: time.Minute,
			Pause: func() time.Duration {
				if soon {
					return 10 * time.Microsecond
				}
				return lookAnyway
			},
			Tick: func() error { soon, ticks = false, ticks+1; return nil },
		}, in.Command(t.Context(), o), func(*proc.Child) {}, func(e event.Event) {
			if _, is := e.(event.Selected); is {
				soon, chosen = true, chosen+1
			}
		})
		if ticks >= chosen/10 {
			return
		}
	}
	t.Errorf("%d ticks after %d choices, each of which made one due, in the last of %d runs", ticks, chosen, attempts)
}

// now is the time of the clock that events use, in ns.
func now(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}
