package prefetch_test

// This file compares predictions with what the simulated machine then does.

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

// machine is one whose helper costs nothing and looks often, as in predictions.
func machine(t *testing.T, c *pattern.Cycle, share, bandwidth float64, opts prefetch.Options) *rig {
	t.Helper()
	m := sim.New(sim.Config{Cycles: []*pattern.Cycle{c}, Limit: int64(share * float64(c.Bytes())), Readahead: 256 << 10, Bandwidth: bandwidth, Tick: 100 * time.Microsecond})
	r := &rig{Machine: m, t: t, cycle: c, pages: m.Pages()}
	opts.Memory, opts.Now = m.Memory(), m.Now
	if opts.Log == nil {
		opts.Log = newFailingLog(t)
	}
	r.Controller = prefetch.New(r.pages, opts)
	m.Attach(r.Controller)
	return r
}

// What is expected comes, whatever the ops are like.
func TestExpected(t *testing.T) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		c := &pattern.Cycle{}
		offset := int64(4096)
		for i := range int64(30) {
			length := (1+rnd.Int64N(24))<<19 + i<<12 // each its own, as what is as long is taken to compute as long
			c.Reads = append(c.Reads, pattern.CycleRead{Tensor: "w", Op: "MUL_MAT", Offset: offset, Length: length, Nanos: int64(float64(length) / (1 + 9*rnd.Float64()))})
			offset += length
		}
		share, bandwidth := 0.4+0.5*rnd.Float64(), (0.5+3*rnd.Float64())*1e9
		r := machine(t, c, share, bandwidth, prefetch.Options{Always: true})
		if err := r.Use(c, []models.Mapped{{Path: r.Path(0)}}); err != nil { // with the true times
			t.Fatal(err)
		}
		r.run(40)
		foreseen, token, s := r.ExpectToken(bandwidth), r.run(20), r.Summary()
		expected := time.Duration(float64(time.Second) / s.Expected)
		t.Logf("x %.2f, disk %4.0f MB/s (seen %4.0f): foreseen %v, expected %v, came to %v; window %d MiB", share, bandwidth/1e6, s.Disk/1e6, foreseen, expected, token.Time, s.Window>>20)
		if foreseen < token.Time*99/100 || foreseen > token.Time*101/100 {
			t.Errorf("seed %d: by what is true %v a token, came to %v", seed, foreseen, token.Time)
		}
		if expected < token.Time*95/100 || expected > token.Time*105/100 {
			t.Errorf("seed %d: by what was seen %v a token, came to %v", seed, expected, token.Time)
		}
	}
}

// sampling is a helper of a target that computes for long after its last op, as one does that samples from a large vocabulary.
type sampling struct{ *prefetch.Controller }

const samplingTime = 200 * time.Millisecond

func (s sampling) Handle(e event.Event) error {
	if end, is := e.(event.DecodeEnd); is {
		end.Time += int64(samplingTime)
		e = end
	}
	return s.Controller.Handle(e)
}

// What is computed after the last op counts.
func TestExpectedSampling(t *testing.T) {
	c := model(0, 10)
	r := machine(t, c, 0.7, 2e9, prefetch.Options{Always: true})
	r.Attach(sampling{r.Controller})
	token := r.run(20)
	if s := r.Status(); s.Bound < s.Now || s.Bound > 1.6*s.Now || s.Bound < r.Summary().Expected {
		t.Errorf("at most %.2f tok/s are possible, %.2f expected, %.2f reached", s.Bound, r.Summary().Expected, s.Now)
	}
	if got, want := time.Duration(float64(time.Second)/r.Summary().Expected), samplingTime+token.Time; got < samplingTime || got > want {
		t.Errorf("%v a token are expected, %v of which after the last op; the others take %v", got, samplingTime, token.Time)
	}
}

// A dry run touches nothing, and foresees what then comes.
func TestDry(t *testing.T) {
	c := model(0, 10)
	const disk = 1.5e9
	measured := 0
	opts := prefetch.Options{Always: true, Dry: func(at proc.Place, blocks []pages.Range) (float64, error) {
		if measured++; at.Path == "" || len(blocks) == 0 {
			t.Errorf("asked for %d blocks of %q", len(blocks), at.Path)
		}
		return disk, nil
	}}
	began := false
	opts.Host.Begin = func() { began = true }
	for _, stored := range []bool{true, false} {
		dry := machine(t, c, 0.7, disk, opts)
		var err error
		if stored {
			err = dry.Use(c, []models.Mapped{{Path: dry.Path(0)}})
		} else {
			_, err = dry.Run(1, c, 5)
		}
		if !errors.Is(err, prefetch.ErrPlanned) || dry.pages.Calls != (sim.Calls{}) || began {
			t.Errorf("%v; %+v", err, dry.pages.Calls)
		}
		var kept int64
		for _, p := range dry.Parts() {
			if p.Kept {
				kept += p.Bytes
			}
		}
		helped := machine(t, c, 0.7, disk, prefetch.Options{Always: true})
		helped.run(20)
		token, s := helped.run(20), dry.Summary()
		if kept == 0 || s.Pinned < kept || s.Pinned < helped.Summary().Pinned-2*mib || s.Pinned > helped.Summary().Pinned+2*mib {
			t.Errorf("%d bytes would be kept, %d in all parts, %d are", s.Pinned, kept, helped.Summary().Pinned)
		}
		if got := s.Expected * token.Time.Seconds(); got < 0.97 || got > 1.05 {
			t.Errorf("stored %v: %.2f tok/s expected, %v a token", stored, s.Expected, token.Time)
		}
	}
	if measured != 2 {
		t.Errorf("the disk was measured %d times", measured)
	}
	fits := machine(t, c, 2, disk, opts)
	var stood *prefetch.StandBack
	if _, err := fits.Run(1, c, 5); !errors.As(err, &stood) || stood.Reason != prefetch.Fits || len(fits.Parts()) != 0 {
		t.Errorf("where all fits: %v", err)
	}
}
