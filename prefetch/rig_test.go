package prefetch_test

// This file is the rig of the tests in virtual time: a simulated machine with a Controller that helps its target. These
// tests need no root, no real clock and no disk.

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/sim"
)

const mib = 1 << 20

// model is a cycle of layers of 28 MiB. Tensors lie in the file in another order than that of use, as in many files.
func model(file, layers int) *pattern.Cycle {
	c := &pattern.Cycle{}
	offset := int64(4096)
	for range layers {
		// ffn_down, attn_norm, attn_q, attn_output, ffn_norm, ffn_gate, ffn_up
		sizes := []int64{8 * mib, 16 << 10, 2 * mib, 2 * mib, 16 << 10, 8 * mib, 8 * mib}
		at := make([]int64, len(sizes))
		for i, n := range sizes {
			at[i] = offset
			offset += n
		}
		for _, i := range []int{1, 2, 3, 4, 5, 6, 0} {
			c.Reads = append(c.Reads, pattern.CycleRead{
				File: file, Tensor: "w", Op: "MUL_MAT", Offset: at[i], Length: sizes[i],
				Nanos: sizes[i] / 20, // 20 bytes in a nanosecond
			})
		}
	}
	return c
}

const (
	reserve = 12 * mib // bytes that a Controller leaves free
	window  = 16 * mib // bytes that it reads ahead
)

// rig is a machine whose memory limit is a share of the model, with a Controller that helps its target.
type rig struct {
	*sim.Machine
	*prefetch.Controller
	t       *testing.T
	cycle   *pattern.Cycle // of context 1
	another *pattern.Cycle // of context 2: a smaller one, of another file
	pages   *sim.Pages
}

// newRig makes a rig whose model has ten layers.
func newRig(t *testing.T, share float64, opts prefetch.Options, change func(*sim.Config)) *rig {
	t.Helper()
	return newRigOf(t, model(0, 10), share, opts, change)
}

// newRigOf makes a rig for a cycle. change may change the machine. Without a logger in the options, a record of level
// Error fails the test.
func newRigOf(
	t *testing.T, cycle *pattern.Cycle, share float64, opts prefetch.Options, change func(*sim.Config),
) *rig {
	t.Helper()
	r := &rig{t: t, cycle: cycle, another: model(1, 1)}
	cfg := sim.Config{
		Cycles: []*pattern.Cycle{r.cycle, r.another}, Limit: int64(share * float64(r.cycle.Bytes())),
		Readahead: 8 * mib, Bandwidth: 1.5e9, Latency: 80 * time.Microsecond,
		Costs: sim.Costs{PageOut: 200 * time.Microsecond, ReadAhead: 80 * time.Microsecond},
	}
	if change != nil {
		change(&cfg)
	}
	r.Machine = sim.New(cfg)
	r.pages = r.Pages()
	opts.Memory, opts.Now = r.Memory(), r.Now
	if opts.Log == nil {
		opts.Log = newFailingLog(t)
	}
	r.Controller = prefetch.New(r.pages, opts)
	r.Attach(r.Controller)
	r.Warmup = true                                    // as llama.cpp does
	r.At(time.Nanosecond, func() { r.Warmup = false }) // the first decode has begun
	t.Cleanup(func() {
		if err := r.pages.Close(); err != nil {
			t.Error(err)
		}
		if r.Locked() != 0 {
			t.Errorf("%d bytes are locked in the end, want none", r.Locked())
		}
	})
	return r
}

// newFailingLog is a logger that fails the test with each record of level Error: the Controller logs one when it
// makes a change of phase that is not in the table of transitions.
func newFailingLog(t *testing.T) *slog.Logger { return slog.New(failOnError{t: t}) }

// failOnError is the handler of newFailingLog.
type failOnError struct {
	t     *testing.T
	attrs []slog.Attr
}

func (h failOnError) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelError
}

func (h failOnError) Handle(_ context.Context, record slog.Record) error {
	var text strings.Builder
	text.WriteString(record.Message)
	add := func(a slog.Attr) bool {
		text.WriteString(" " + a.String())
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	record.Attrs(add)
	h.t.Errorf("the controller logged %v: %s; want no record of this level", record.Level, text.String())
	return nil
}

func (h failOnError) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.attrs = append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...)
	return h
}

func (h failOnError) WithGroup(string) slog.Handler { return h }

// run computes tokens in the first context, and returns their means, with the sum of their misses.
func (r *rig) run(tokens int) sim.Token { return r.runContext(1, r.cycle, tokens) }

// runContext does the same in any context, with a cycle of its own.
func (r *rig) runContext(context uint64, c *pattern.Cycle, tokens int) (mean sim.Token) {
	r.t.Helper()
	all, err := r.Run(context, c, tokens)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, one := range all {
		mean.Time += one.Time / time.Duration(tokens)
		mean.Misses += one.Misses
		mean.TargetBytes += one.TargetBytes / int64(tokens)
		mean.HelperBytes += one.HelperBytes / int64(tokens)
	}
	return mean
}

// runAlone is a token of the same machine without a helper, on average.
func runAlone(t *testing.T, share float64, change func(*sim.Config)) sim.Token {
	t.Helper()
	r := newRig(t, share, prefetch.Options{}, change)
	r.Attach(nil)
	r.run(5)
	return r.run(10)
}

// newSettledRig is a rig whose Controller has learned, and holds as much as it can.
func newSettledRig(t *testing.T, share float64, opts prefetch.Options, change func(*sim.Config)) *rig {
	t.Helper()
	r := newRig(t, share, opts, change)
	r.run(16)
	if got := r.Summary().Learned; got != 1 {
		t.Fatalf("learned %d times, want once", got)
	}
	return r
}
