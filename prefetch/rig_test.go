package prefetch_test

// This file is the rig of the tests in virtual time: a simulated machine with a Controller that helps its target.
// These tests need no root, no real clock and no disk.

import (
	"testing"
	"time"

	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/sim"
)

const mib = 1 << 20

// model is a cycle of layers of 28 MiB in which, as in many files, the order in the file is not that of use.
func model(file, layers int) *pattern.Cycle {
	c := &pattern.Cycle{}
	offset := int64(4096)
	for range layers {
		sizes := []int64{8 * mib, 16 << 10, 2 * mib, 2 * mib, 16 << 10, 8 * mib, 8 * mib} // ffn_down, attn_norm, attn_q, attn_output, ffn_norm, ffn_gate, ffn_up
		at := make([]int64, len(sizes))
		for i, n := range sizes {
			at[i] = offset
			offset += n
		}
		for _, i := range []int{1, 2, 3, 4, 5, 6, 0} {
			c.Reads = append(c.Reads, pattern.CycleRead{
				File: file, Tensor: "w", Op: "MUL_MAT", Offset: at[i], Length: sizes[i], Nanos: sizes[i] / 20, // 20 bytes in a nanosecond
			})
		}
	}
	return c
}

const (
	reserve = 12 * mib // is what a Controller leaves free
	window  = 16 * mib // what it reads ahead
)

// rig is a machine whose limit is a share of the model, with a helper.
type rig struct {
	*sim.Machine
	*prefetch.Controller
	t       *testing.T
	cycle   *pattern.Cycle // of context 1
	another *pattern.Cycle // a smaller one, of another file, of context 2
	pages   *sim.Pages
}

func newRig(t *testing.T, share float64, opts prefetch.Options, change func(*sim.Config)) *rig {
	t.Helper()
	return rigOf(t, model(0, 10), share, opts, change)
}

func rigOf(t *testing.T, cycle *pattern.Cycle, share float64, opts prefetch.Options, change func(*sim.Config)) *rig {
	t.Helper()
	r := &rig{t: t, cycle: cycle, another: model(1, 1)}
	cfg := sim.Config{
		Cycles: []*pattern.Cycle{r.cycle, r.another}, Limit: int64(share * float64(r.cycle.Bytes())), Readahead: 8 * mib, Bandwidth: 1.5e9, Latency: 80 * time.Microsecond,
		Costs: sim.Costs{PageOut: 200 * time.Microsecond, ReadAhead: 80 * time.Microsecond},
	}
	if change != nil {
		change(&cfg)
	}
	r.Machine = sim.New(cfg)
	r.pages = r.Pages()
	opts.Memory, opts.Now = r.Memory(), r.Now
	r.Controller = prefetch.New(r.pages, opts)
	r.Attach(r.Controller)
	t.Cleanup(func() {
		if err := r.pages.Close(); err != nil {
			t.Error(err)
		}
		if r.Locked() != 0 {
			t.Errorf("%d bytes are locked in the end", r.Locked())
		}
	})
	return r
}

// run computes tokens in the first context, and returns their means.
func (r *rig) run(tokens int) sim.Token { return r.runOther(1, r.cycle, tokens) }

func (r *rig) runOther(context uint64, c *pattern.Cycle, tokens int) (mean sim.Token) {
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

// alone is the same machine without a helper.
func alone(t *testing.T, share float64, change func(*sim.Config)) sim.Token {
	t.Helper()
	r := newRig(t, share, prefetch.Options{}, change)
	r.Attach(nil)
	r.run(5)
	return r.run(10)
}

// settled is a rig whose helper has held what it can.
func settled(t *testing.T, share float64, opts prefetch.Options, change func(*sim.Config)) *rig {
	t.Helper()
	r := newRig(t, share, opts, change)
	r.run(16)
	if r.Summary().Learned != 1 {
		t.Fatalf("learned %d times", r.Summary().Learned)
	}
	return r
}
