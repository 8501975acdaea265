package forecast

// This file tests forecasts against what was measured, and that more memory or a faster disk never makes them worse.

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"tensorcast/gguf"
	"tensorcast/loadflags"
	"tensorcast/moe/geometry"
	"tensorcast/prefetch/costs"
	"tensorcast/prefetch/pace"
)

// densePass is a model of so many MiB in Q8_0.
func densePass(size float64) *Pass {
	bytes := size * mib
	return &Pass{Files: int64(bytes), Trunk: int64(bytes), Layers: 12,
		Types: []Weights{{Type: gguf.Q8_0, Name: "Q8_0", Bytes: bytes, Elements: bytes / 34 * 32}}}
}

// mixturePass is a mixture in Q8_0 whose experts have slices of so many MiB in three tensors.
func mixturePass(trunk, slice float64, layers, experts, chosen int) *Pass {
	e := &Experts{
		Geometry: geometry.Geometry{Layers: layers, Experts: experts, Chosen: chosen, Rest: int64(trunk * mib)},
		Slice:    int64(slice * mib), Slices: 3,
	}
	e.Bytes = 3 * e.Slice * int64(layers*experts)
	p := &Pass{Files: e.Rest + e.Bytes, Trunk: e.Rest, Layers: layers, Experts: e}
	bytes := float64(p.Trunk) + e.Token()
	p.Types = []Weights{{
		Type: gguf.Q8_0, Name: "Q8_0", Bytes: bytes, Elements: bytes / 34 * 32, Routed: e.Token() / bytes,
	}}
	return p
}

// measured is the machine of docs/measurements/prefetch.md, "The first machine".
func measured() Machine {
	return Machine{
		Pace: pace.Pace{Threads: 2, Memory: 44e9, Products: 23.7e9}, Processors: 2,
		Disk: 2789 * mib, DiskBeside: 2400 * mib, Slowdown: 1.2, Touched: 0.8e9, Readahead: 128 << 10,
		Cost: &costs.Cost{Read: 90, Touch: 25, PageOut: 15, Bandwidth: 2700 * mib},
	}
}

// within checks that a forecast is within a quarter of what was measured, and that its range has it.
func within(t *testing.T, name string, r Range, measured float64) {
	t.Helper()
	t.Logf("%s: %.3g expected, %.3g measured", name, r.Likely, measured)
	if off := r.Likely/measured - 1; math.Abs(off) > 0.25 {
		t.Errorf("%s: %.3g tok/s are expected, and %.3g were measured: %+.0f %%", name, r.Likely, measured, 100*off)
	}
	if measured < r.Low || measured > r.High {
		t.Errorf("%s: %.3g was measured, outside of %v", name, measured, r)
	}
}

// A dense model's forecasts are what `lab pressure` measured of it.
func TestDenseAsMeasured(t *testing.T) {
	p, m := densePass(764), measured()
	own := int64(ownBytes)
	for _, tc := range []struct{ x, alone, helped float64 }{
		{0.85, 0.90, 12.3}, {0.7, 1.09, 7.57}, {0.6, 0.85, 5.71}, {0.5, 0.95, 4.81}, {0.4, 0.88, 4.02},
		{0.3, 0.94, 3.62},
	} {
		limit := own + int64(tc.x*764*mib)
		row := Expect(p, m, Memory{Bytes: limit, Limit: limit}, nil, Changes[0])
		name := fmt.Sprintf("x = %g", tc.x)
		within(t, name+", alone", row.Alone, tc.alone)
		within(t, name+", helped", row.Helped, tc.helped)
		if row.Most.Likely < row.Helped.Likely || row.Fits {
			t.Errorf("%s: %+v", name, row)
		}
	}
	limit := own + 800*mib
	row := Expect(p, m, Memory{Bytes: limit, Limit: limit}, nil, Changes[0])
	if !row.Fits || row.Alone != row.Helped {
		t.Errorf("with room for all: %+v", row)
	}
	within(t, "with room for all", row.Alone, 1/23e-3)
}

// A mixture's forecasts are what was measured where it is known how many of the chosen experts were in memory.
func TestMixtureAsMeasured(t *testing.T) {
	gather := func(slices int, d time.Duration) *Gather { return &Gather{slices, d} }
	for name, tc := range map[string]struct {
		pass             *Pass
		one, all         *Gather
		limit            float64 // MiB
		missed           float64 // of a token's experts, with prefetchd
		helped, computes float64
		alone            float64
	}{
		"32 experts, 42 %": {
			mixturePass(47.8, 1.16, 11, 32, 4), gather(3, 1400e3), gather(12, 5400e3),
			572, 59. / 153, 18.4, 9.04e-3, 7.45,
		},
		"128 experts, 40 %": {
			mixturePass(76.2, 0.398, 24, 128, 8), gather(3, 600e3), gather(24, 4e6),
			1563, 62.2 / 230, 11.7, 13.9e-3, 5.36,
		},
		"128 experts, 20 %": {
			mixturePass(76.2, 0.398, 24, 128, 8), gather(3, 600e3), gather(24, 4e6),
			829, 128. / 230, 7.68, 13.9e-3, 2.77,
		},
		"recorded routes": {
			mixturePass(152, 0.266, 48, 128, 6), gather(3, 800e3), gather(18, 2100e3),
			2145, 16.3 / 230, 17.5, 20e-3, 7.59,
		},
	} {
		m := measured()
		m.One, m.All = tc.one, tc.all
		hits := func(float64) float64 { return 1 - tc.missed }
		limit := int64(tc.limit * mib)
		row := Expect(tc.pass, m, Memory{Bytes: limit, Limit: limit}, &Routing{Least: hits, Most: hits}, Changes[0])
		within(t, name+", helped", row.Helped, tc.helped)
		within(t, name+", alone", row.Alone, tc.alone)
		speed := 1 / tc.pass.ComputeTime(&m, 1)
		within(t, name+", computing", between(speed, speed), 1/tc.computes)
	}
}

// More memory, a faster disk and more tokens a pass never make a forecast worse, and nothing in it is no number.
func TestMonotonous(t *testing.T) {
	mixture := mixturePass(76, 0.4, 24, 128, 8)
	for name, p := range map[string]*Pass{"dense": densePass(764), "mixture": mixture} {
		var r *Routing
		if p.Experts != nil {
			r = RoutingOf(p.Experts)
		}
		for _, readahead := range []int64{-1, 128 << 10, 8 << 20} {
			m := measured()
			m.Readahead = readahead
			m.One, m.All = &Gather{3, time.Millisecond}, &Gather{24, 5 * time.Millisecond}
			var before Row
			for limit := int64(0); limit < p.Weights()+300*mib; limit += p.Weights() / 16 {
				v := Judge("m", p, m, Memory{Bytes: limit, Limit: limit}, r)
				v.Start = v.StartWith(loadflags.Copies{}, 2)
				if _, err := json.Marshal(v); err != nil {
					t.Fatalf("%s with %d bytes: %v", name, limit, err)
				}
				here := v.Rows[0]
				for _, row := range v.Rows {
					if row.Helped.Likely < 0.999*here.Helped.Likely || row.Helped.Likely < 0.999*row.Alone.Likely ||
						row.Helped.Low > row.Helped.High || row.Helped.Low <= 0 ||
						row.Helped.High > 1.001*row.Most.High || row.Helped.Low > 1.001*row.Most.Low {
						t.Errorf("%s with %d bytes, %s: %+v; here %+v", name, limit, row.Name, row, here)
					}
				}
				if here.Helped.Likely < 0.999*before.Helped.Likely || here.Most.Likely < 0.999*before.Most.Likely {
					t.Errorf("%s with %d bytes: %+v; with less memory %+v", name, limit, here, before)
				}
				before = here
			}
			if !before.Fits {
				t.Errorf("%s: %+v, want that it fits", name, before)
			}
		}
	}
}

// With more memory all is as on a machine that has as much: a larger limit leaves more free, too.
func TestMoreMemoryAsThere(t *testing.T) {
	p, m := densePass(8000), measured()
	row := Expect(p, m, Memory{Bytes: 3000 * mib, Limit: 4000 * mib}, nil, Change{Memory: 1.5, Disk: 1, Tokens: 1})
	there := Expect(p, m, Memory{Bytes: 4500 * mib, Limit: 6000 * mib}, nil, Change{Memory: 1, Disk: 1, Tokens: 1})
	if there.Change = row.Change; row != there || row.Fits {
		t.Errorf("%+v; with as much memory %+v", row, there)
	}
}

// Of what the last run has chosen those experts lie in memory that it used most, or some that are chance.
func TestRoutingBy(t *testing.T) {
	r := RoutingBy(map[int32][]float32{0: {0.6, 0.1, 0.1, 0}, 3: {0, 0.2, 0, 0}})
	for share, want := range map[float64]float64{-1: 0, 0: 0, 0.0625: 0.3, 0.125: 0.6, 0.25: 0.8, 0.5: 1, 1: 1, 7: 1} {
		least := 1 - math.Sqrt((1-want)*(1-min(max(share, 0), 1)))
		if got := r.Most(share); math.Abs(got-want) > 1e-6 || math.Abs(r.Least(share)-least) > 1e-6 || !r.Known {
			t.Errorf("with %g of the experts %g of the choices are found, want %g", share, got, want)
		}
	}
	for name, nothing := range map[string]map[int32][]float32{
		"none": nil, "zeros": {0: {0, 0}}, "no numbers": {0: {float32(math.NaN())}},
	} {
		if r := RoutingBy(nothing); r != nil {
			t.Errorf("%s: %+v, want nothing", name, r)
		}
	}
}
