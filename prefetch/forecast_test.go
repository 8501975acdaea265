package prefetch_test

// This file compares what a Controller expects of a token's time with what the simulated machine then does.

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
	"tensorcast/sim"
)

// newIdealRig is a rig whose Controller costs no time and ticks often, as predictions assume.
func newIdealRig(t *testing.T, c *pattern.Cycle, share, bandwidth float64, opts prefetch.Options) *rig {
	t.Helper()
	m := sim.New(sim.Config{
		Cycles: []*pattern.Cycle{c}, Limit: int64(share * float64(c.Bytes())),
		Readahead: 256 << 10, Bandwidth: bandwidth, Tick: 100 * time.Microsecond,
	})
	r := &rig{Machine: m, t: t, cycle: c, pages: m.Pages()}
	opts.Memory, opts.Now = m.Memory(), m.Now
	if opts.Log == nil {
		opts.Log = newFailingLog(t)
	}
	r.Controller = prefetch.New(r.pages, opts)
	m.Attach(r.Controller)
	return r
}

// Tokens take the time that was expected, whatever the ops are like.
func TestExpected(t *testing.T) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		c := &pattern.Cycle{}
		offset := int64(4096)
		for i := range int64(30) {
			// No two are equal: reads of the same length are taken to compute for the same time.
			length := (1+rnd.Int64N(24))<<19 + i<<12
			c.Reads = append(c.Reads, pattern.CycleRead{
				Tensor: "w", Op: "MUL_MAT", Offset: offset, Length: length,
				Nanos: int64(float64(length) / (1 + 9*rnd.Float64())),
			})
			offset += length
		}
		share, bandwidth := 0.4+0.5*rnd.Float64(), (0.5+3*rnd.Float64())*1e9
		r := newIdealRig(t, c, share, bandwidth, prefetch.Options{Always: true})
		if err := r.Use(c, []models.Mapped{{Path: r.Path(0)}}); err != nil { // with the true times
			t.Fatal(err)
		}
		r.run(40)
		foreseen, token, s := r.ExpectToken(bandwidth), r.run(20), r.Summary()
		expected := time.Duration(float64(time.Second) / s.Expected)
		t.Logf("share %.2f, disk %4.0f MB/s (measured %4.0f): foreseen %v, expected %v, took %v; window %d MiB",
			share, bandwidth/1e6, s.Disk/1e6, foreseen, expected, token.Time, s.Window>>20)
		if foreseen < token.Time*99/100 || foreseen > token.Time*101/100 {
			t.Errorf("seed %d: from the true times %v a token are expected, want about %v", seed, foreseen, token.Time)
		}
		if expected < token.Time*95/100 || expected > token.Time*105/100 {
			t.Errorf("seed %d: from what was observed %v a token are expected, want about %v",
				seed, expected, token.Time)
		}
	}
}

// samplingController is a Controller whose target computes for long after its last op, as if it sampled from a large
// vocabulary.
type samplingController struct{ *prefetch.Controller }

const samplingTime = 200 * time.Millisecond

func (s samplingController) Handle(e event.Event) error {
	if end, is := e.(event.DecodeEnd); is {
		end.Time += int64(samplingTime)
		e = end
	}
	return s.Controller.Handle(e)
}

// The time after the last op is a part of what is expected.
func TestExpectedSampling(t *testing.T) {
	c := model(0, 10)
	r := newIdealRig(t, c, 0.7, 2e9, prefetch.Options{Always: true})
	r.Attach(samplingController{r.Controller})
	token := r.run(20)
	if s := r.Status(); s.Bound < s.Now || s.Bound > 1.6*s.Now || s.Bound < r.Summary().Expected {
		t.Errorf("a bound of %.2f tokens per second, want at least the %.2f that are expected and the %.2f of now, "+
			"and at most 1.6 times the latter", s.Bound, r.Summary().Expected, s.Now)
	}
	got, most := time.Duration(float64(time.Second)/r.Summary().Expected), samplingTime+token.Time
	if got < samplingTime || got > most {
		t.Errorf("%v a token are expected, want %v to %v: what lies after the last op, and at most the rest",
			got, samplingTime, most)
	}
}

// A dry run touches nothing, and foresees what a run with help then does.
func TestDry(t *testing.T) {
	c := model(0, 10)
	const disk = 1.5e9
	measured := 0
	opts := prefetch.Options{Always: true, Dry: func(at proc.Place, blocks []pages.Range) (float64, error) {
		if measured++; at.Path == "" || len(blocks) == 0 {
			t.Errorf("the disk is measured with %d blocks of %q, want some, of a file", len(blocks), at.Path)
		}
		return disk, nil
	}}
	began := false
	opts.Host.Begin = func() { began = true }
	for _, stored := range []bool{true, false} {
		dry := newIdealRig(t, c, 0.7, disk, opts)
		var err error
		if stored {
			err = dry.Use(c, []models.Mapped{{Path: dry.Path(0)}})
		} else {
			_, err = dry.Run(1, c, 5)
		}
		if !errors.Is(err, prefetch.ErrPlanned) || dry.pages.Calls != (sim.Calls{}) || began {
			t.Errorf("stored %v: %v, %+v, begun %v; want %v, and nothing done",
				stored, err, dry.pages.Calls, began, prefetch.ErrPlanned)
		}
		var kept int64
		for _, p := range dry.Parts() {
			if p.Kept {
				kept += p.Bytes
			}
		}
		helped := newIdealRig(t, c, 0.7, disk, prefetch.Options{Always: true})
		helped.run(20)
		token, s := helped.run(20), dry.Summary()
		held := helped.Summary().Pinned
		if kept == 0 || s.Pinned < kept || s.Pinned < held-2*mib || s.Pinned > held+2*mib {
			t.Errorf("stored %v: %d bytes are planned to be held, %d in all parts; "+
				"want some, and about %d as with help",
				stored, s.Pinned, kept, held)
		}
		if got := s.Expected * token.Time.Seconds(); got < 0.97 || got > 1.05 {
			t.Errorf("stored %v: %.2f tokens per second are expected, want about %.2f",
				stored, s.Expected, 1/token.Time.Seconds())
		}
	}
	if measured != 2 {
		t.Errorf("the disk was measured %d times, want 2", measured)
	}
	fits := newIdealRig(t, c, 2, disk, opts)
	var stood *prefetch.StandBack
	_, err := fits.Run(1, c, 5)
	if !errors.As(err, &stood) || stood.Reason != prefetch.Fits || len(fits.Parts()) != 0 {
		t.Errorf("everything fits: %v with %d parts, want a stand back (%v) with none",
			err, len(fits.Parts()), prefetch.Fits)
	}
}
