package replay

// This file tests replays: against trying everything, by times that are computed by hand, and on public traces.

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"tensorcast/internal/testenv"
	"tensorcast/moe"
	"tensorcast/trace/tables"
)

const mib = 1 << 20

// planted makes a trace of generated tokens, each with its experts by layer.
func planted(t testing.TB, experts int, bytes int64, tokens [][][]int32) *moe.Trace {
	t.Helper()
	empty := &moe.Trace{Experts: experts}
	for l := range tokens[0] {
		empty.Layers = append(empty.Layers, moe.Layer{Number: int32(l), Bytes: bytes})
	}
	steps := map[int32]moe.Step{}
	rows := func(yield func(tables.Route, error) bool) {
		for step, layers := range tokens {
			for l, chosen := range layers {
				for slot, e := range chosen {
					if !yield(tables.Route{Step: int32(step), Layer: int32(l), Slot: int32(slot), Expert: e}, nil) {
						return
					}
				}
			}
		}
	}
	for step := range tokens {
		steps[int32(step)] = moe.Step{Phase: moe.Decode}
	}
	tr, err := moe.FromRoutes(empty, rows, steps)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// random makes a trace in which some experts are chosen more often than others.
func random(t testing.TB, r *rand.Rand, layers, experts, k, tokens int) *moe.Trace {
	t.Helper()
	all := make([][][]int32, tokens)
	for i := range all {
		for range layers {
			var chosen []int32
			for len(chosen) < k {
				e := int32(min(r.IntN(experts), r.IntN(experts)))
				if !contains(chosen, e) {
					chosen = append(chosen, e)
				}
			}
			all[i] = append(all[i], chosen)
		}
	}
	return planted(t, experts, mib, all)
}

func contains(all []int32, e int32) bool {
	for _, x := range all {
		if x == e {
			return true
		}
	}
	return false
}

func run(t testing.TB, tr *moe.Trace, cfg Config) *Result {
	t.Helper()
	return forecast(t, tr, Forecast{}, cfg)[0]
}

func forecast(t testing.TB, tr *moe.Trace, f Forecast, configs ...Config) []*Result {
	t.Helper()
	r, err := Run(t.Context(), tr, f, configs...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// policies has every policy by name.
func policies(tr *moe.Trace) map[string]moe.Policy {
	s := tr.Shape()
	return map[string]moe.Policy{
		"lru": moe.NewLRU(s), "lfu": moe.NewLFU(s, 0.93), "use": moe.NewExpectedUse(s, 0.93),
		"scored": moe.NewScored(s), "hit density": moe.NewHitDensity(s, 0.93),
		"pinned": NewPinned(tr), "belady": NewBelady(tr),
	}
}

// leastMisses tries every way to make room.
func leastMisses(accesses []int, capacity int, in uint64) int {
	if len(accesses) == 0 {
		return 0
	}
	a, rest := accesses[0], accesses[1:]
	if in&(1<<a) != 0 {
		return leastMisses(rest, capacity, in)
	}
	n := 0
	for e := range 64 {
		n += int(in >> e & 1)
	}
	if n < capacity {
		return 1 + leastMisses(rest, capacity, in|1<<a)
	}
	best := len(accesses)
	for e := range 64 {
		if in&(1<<e) != 0 {
			best = min(best, 1+leastMisses(rest, capacity, in&^(1<<e)|1<<a))
		}
	}
	return best
}

func TestBeladyAgainstAllWays(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 60 {
		layers, experts, capacity := 1+r.IntN(2), 3+r.IntN(3), 2+r.IntN(2)
		tr := random(t, r, layers, experts, 1, 12/layers)
		var accesses []int
		for token := range tr.Tokens {
			for layer := range layers {
				accesses = append(accesses, layer*experts+int(tr.Chosen(token, layer)[0]))
			}
		}
		// A layer in which nothing was ever chosen is no layer of the trace. With so few tokens this does
		// not happen.
		got := run(t, tr, Config{Capacity: int64(capacity) * mib, Policy: NewBelady(tr), Threshold: 1})
		if want := leastMisses(accesses, capacity, 0); got.Used-got.Hits != want || got.Used != len(accesses) {
			t.Fatalf("%v with room for %d: %d misses of %d, and %d are possible", accesses, capacity,
				got.Used-got.Hits, got.Used, want)
		}
	}
}

// No policy beats Belady where several experts are chosen together, and none misses more than everything.
func TestNobodyBeatsBelady(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for range 20 {
		tr := random(t, r, 3, 12, 2, 60)
		for _, capacity := range []int64{2, 6, 12, 24, 36} {
			best := run(t, tr, Config{Capacity: capacity * mib, Policy: NewBelady(tr), Threshold: 1}).Hits
			for name, p := range policies(tr) {
				got := run(t, tr, Config{Capacity: capacity * mib, Policy: p, Threshold: 1})
				if got.Hits > best || got.Late != 0 || got.SpeculativeBytes != 0 ||
					got.DemandBytes != int64(got.Used-got.Hits)*mib {
					t.Errorf("%s with room for %d: %+v, and Belady hits %d", name, capacity, got, best)
				}
			}
		}
	}
}

// A cycle of N experts in a cache of C: LRU hits nothing, and Belady (C-1)/(N-1) in the long run. If all
// fit, each is read once.
func TestCyclicScan(t *testing.T) {
	const n, tokens = 10, 2000
	all := make([][][]int32, tokens)
	for i := range all {
		all[i] = [][]int32{{int32(i % n)}}
	}
	tr := planted(t, n, mib, all)
	for _, tc := range []struct {
		policy    moe.Policy
		capacity  int64
		low, high float64
	}{
		{moe.NewLRU(tr.Shape()), 7, 0, 0},
		{NewBelady(tr), 7, 6./9 - 0.01, 6./9 + 0.01},
		{moe.NewLRU(tr.Shape()), n, 1 - float64(n)/tokens, 1 - float64(n)/tokens},
		{NewPinned(tr), 7, 6./10 - 0.01, 7. / 10}, {moe.NewLRU(tr.Shape()), 0, 0, 0},
	} {
		if got := run(t, tr,
			Config{Capacity: tc.capacity * mib, Policy: tc.policy, Threshold: 1}).HitRate(); got < tc.low ||
			got > tc.high {
			t.Errorf("%T with room for %d hits %.3f, want %.3f to %.3f", tc.policy, tc.capacity, got, tc.low, tc.high)
		}
	}
}

// foretold is a predictor that knows the trace, or that is wrong by one expert.
type foretold struct {
	trace  *moe.Trace
	token  int
	layer  int
	wrong  int32
	second bool // names another wrong expert as well
}

func (f *foretold) Begin(int32) { f.token++; f.layer = -1 }
func (f *foretold) Scores(layer int, scores []float32) {
	for e := range scores {
		scores[e] = -10
	}
	token := f.token
	if layer <= f.layer {
		token++
	}
	if token < len(f.trace.Tokens) {
		for _, e := range f.trace.Chosen(token, layer) {
			scores[(int(e)+int(f.wrong))%len(scores)] = 10
			if f.second {
				scores[(int(e)+int(f.wrong)+1)%len(scores)] = 5
			}
		}
	}
}
func (f *foretold) Observe(layer int, _ []int32) { f.layer = layer }

// Times that can be computed by hand. No expert is used twice, a layer computes for 1 ms before the
// router and 1 ms after it, and an expert takes some ms to read and is there 100 us later.
func TestTime(t *testing.T) {
	const tokens, layers = 4, 3
	all := make([][][]int32, tokens)
	for i := range all {
		for range layers {
			all[i] = append(all[i], []int32{int32(i * 3)})
		}
	}
	tr := planted(t, tokens*3, mib, all)
	ms := func(x float64) time.Duration { return time.Duration(x * 1e6) }
	const n = tokens * layers
	for name, tc := range map[string]struct {
		read      float64 // ms of an expert
		predictor *foretold
		time      time.Duration
		want      Result
	}{
		// Each layer waits for its expert.
		"on demand": {4, nil, ms(n * (2 + 4.1)), Result{Stall: ms(n * 4.1), DemandBytes: n}},
		// The next layer's expert is read while this one computes: from the second layer on they are
		// there in time.
		"in time": {1, &foretold{}, ms(n*2 + 1.1),
			Result{Stall: ms(1.1), Hits: n - 1, DemandBytes: 1, SpeculativeBytes: n - 1}},
		// The first expert is read on demand: 4.1. The second is asked for at the first router. The disk
		// is busy for 4 ms, then reads until 8, so the expert is there at 8.1. The first layer computes
		// until 4.1+1, and the second router is at 6.1: 2 ms late. From then on the disk, which is asked
		// at each router, is late by the same time: an expert is asked for at 6.1, but the disk is free
		// at 8, so it is there at 12.1 and needed at 10.1.
		"late": {4, &foretold{}, ms(n*2 + 4.1 + (n-1)*2),
			Result{Stall: ms(4.1 + (n-1)*2), Late: n - 1, DemandBytes: 1, SpeculativeBytes: n - 1, LateBytes: n - 1}},
		// A wrong guess delays demand, as a read that has begun is not taken back. It is asked for at 1;
		// demand is read until 1.5, and the wrong expert until 2, before the next router at 3.6.
		"wrong, idle disk": {0.5, &foretold{wrong: 1}, ms(n * (2 + 0.6)),
			Result{Stall: ms(n * 0.6), DemandBytes: n, SpeculativeBytes: n - 1, WastedBytes: n - 1}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{
				Capacity: n * 10 * mib, Policy: moe.NewLRU(tr.Shape()), Threshold: 0.5,
				Disk:    Disk{Bandwidth: mib / (tc.read / 1000), Latency: 100 * time.Microsecond},
				Compute: Compute{ms(1), ms(1)},
			}
			f := Forecast{Leads: []int{1}}
			if tc.predictor != nil {
				tc.predictor.trace, tc.predictor.token = tr, -1
				f.Predictor = tc.predictor
			}
			got := *forecast(t, tr, f, cfg)[0]
			// What they add up to is tested in TestLeastBoundsPolicies.
			got.TokenBytes, got.TokenUsed, got.TokenHits = nil, nil, nil
			tc.want.Tokens, tc.want.Used, tc.want.UsedBytes, tc.want.Time = tokens, n, n*mib, tc.time
			for _, b := range []*int64{
				&tc.want.DemandBytes, &tc.want.SpeculativeBytes, &tc.want.LateBytes, &tc.want.WastedBytes,
			} {
				*b *= mib
			}
			for _, d := range []*time.Duration{&got.Time, &got.Stall} {
				*d = d.Round(time.Microsecond) // of a bandwidth that is no whole number
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("\n%+v, want\n%+v", got, tc.want)
			}
		})
	}
}

// A wish for a layer that has chosen is not read any more, and demand waits for one wish at most.
func TestRefuted(t *testing.T) {
	all := [][][]int32{{{0}, {0}, {0}, {0}}}
	tr := planted(t, 8, mib, all)
	cfg := Config{
		Capacity: 100 * mib, Policy: moe.NewLRU(tr.Shape()), Threshold: 0.5,
		Disk: Disk{Bandwidth: mib / 0.010}, Compute: Compute{time.Millisecond, time.Millisecond},
	}
	got := forecast(t, tr, Forecast{&foretold{trace: tr, token: -1, wrong: 1, second: true}, []int{1}}, cfg)[0]
	// Layer 0 asks at 1, has its expert at 11, and computes until 12. One wish is read from 11 to 21. The
	// router of layer 1 is at 13, so the other wish is refuted. Demand is read from 21 to 31, and so on:
	// three wishes in all, which delay three layers by 8 ms each. What layer 3 wishes for the next token
	// is read as the first was, until the trace ends.
	if got.SpeculativeBytes != 3*mib || got.WastedBytes != 3*mib || got.Stall != (10+3*18)*time.Millisecond ||
		got.DemandBytes != 4*mib {
		t.Errorf("result %+v, want three experts read ahead in vain", got)
	}
	// What is dropped before the end was read in vain, too.
	cfg.Capacity, cfg.Policy = 2*mib, moe.NewLRU(tr.Shape())
	got = forecast(t, tr, Forecast{&foretold{trace: tr, token: -1, wrong: 1, second: true}, []int{1}}, cfg)[0]
	if got.SpeculativeBytes == 0 || got.WastedBytes != got.SpeculativeBytes {
		t.Errorf("result %+v, want those of dropped experts, too", got)
	}
}

// Whatever is asked for, the cache is never larger than allowed, and the sums add up.
func TestAccounts(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for i := range 15 {
		tr := random(t, r, 4, 10, 2, 30)
		s := tr.Shape()
		for name, p := range policies(tr) {
			cfg := Config{
				Capacity: int64(r.IntN(24)) * mib, Policy: p, Threshold: float32(r.IntN(10)) / 10,
				Disk:    Disk{Bandwidth: float64(r.IntN(3)) * 1e9, Latency: time.Millisecond},
				Compute: Compute{time.Duration(r.IntN(1e6)), time.Millisecond},
			}
			m := newMachine(tr, &cfg)
			f := Forecast{moe.NewIDMixture(s, []int{1, s.Layers}, 1<<20), []int{1, 2, s.Layers}}
			for token := range tr.Tokens {
				f.runToken(tr, token, make([]float32, s.Experts), []*machine{m})
				used := int64(0)
				for at, id := range m.cached {
					used += m.bytesOf(id)
					if m.items[id].index != at+1 {
						t.Fatalf("%d: %s: expert %d is not where its index says", i, name, id)
					}
				}
				if used != m.cachedBytes || used > cfg.Capacity {
					t.Fatalf("%d: %s: %d bytes, of which %d are counted, in a cache of %d", i, name, used,
						m.cachedBytes,
						cfg.Capacity)
				}
			}
			g := &m.result
			if missed := int64(g.Used-g.Hits-g.Late) * mib; g.DemandBytes != missed ||
				g.LateBytes != int64(g.Late)*mib || g.WastedBytes > g.SpeculativeBytes ||
				m.now < int64(cfg.Compute.After)*30*4 {
				t.Fatalf("%d: %s: result %+v does not add up", i, name, g)
			}
		}
	}
}

// Where nothing can be predicted, nothing is read ahead.
func TestUniformIsLeftAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	all := make([][][]int32, 300)
	for i := range all {
		for range 4 {
			perm := r.Perm(32)
			all[i] = append(all[i], []int32{int32(perm[0]), int32(perm[1])})
		}
	}
	tr := planted(t, 32, mib, all)
	s := tr.Shape()
	got := forecast(t, tr, ForecastByIDs(s), ConfigByIDs(s, 64*mib, ProbableThreshold))[0]
	if got.SpeculativeBytes > got.DemandBytes/50 || got.HitRate() < 0.4 || got.HitRate() > 0.6 {
		t.Errorf("half of the experts fit: %+v, want nothing read ahead", got)
	}
}

func TestRefuses(t *testing.T) {
	tr := random(t, rand.New(rand.NewPCG(5, 5)), 2, 4, 1, 3)
	lru := moe.NewLRU(tr.Shape())
	if _, err := Run(t.Context(), planted(t, 4, 0, [][][]int32{{{1}}}), Forecast{},
		Config{Policy: lru}); !errors.Is(err, ErrNoSizes) {
		t.Errorf("error %v, want %v", err, ErrNoDecode)
	}
	if _, err := Run(t.Context(), tr, Forecast{}, Config{Policy: lru, Capacity: -1}); err == nil {
		t.Error("Run took a cache of -1 bytes, want an error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, tr, Forecast{}, Config{Policy: lru}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

// public reads a public trace that lies beside the repository. If there is none, it skips the test.
func public(t testing.TB, name string) *moe.Trace {
	t.Helper()
	tr, err := moe.ReadCSV(testenv.OpenShared(t, "data", "moe-routes", name+".route.csv.gz"))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// The bars on a real model's routes: the best policy that does not know the future, and what it gains by
// reading ahead no more bytes than LRU reads.
func TestPublicReplay(t *testing.T) {
	tr := public(t, "qwen")
	s := tr.Shape()
	bars := []struct {
		room          int64 // MiB
		hits          float64
		total, demand int64 // MiB per token
	}{{1000, 0.46, 492, 400}, {2000, 0.64, 344, 230}, {4000, 0.83, 156, 108}}
	var configs []Config
	for _, bar := range bars {
		configs = append(configs, ConfigByIDs(s, bar.room*mib, 1), ConfigByIDs(s, bar.room*mib, ProbableThreshold))
	}
	results := forecast(t, tr, ForecastByIDs(s), configs...)
	for i, bar := range bars {
		without, with := results[2*i], results[2*i+1]
		belady := run(t, tr, Config{Capacity: bar.room * mib, Policy: NewBelady(tr), Threshold: 1})
		perToken := func(b int64) float64 { return float64(b) / float64(with.Tokens) / mib }
		t.Logf("%d MiB: hits %.3f, Belady's %.3f; with reading ahead %.1f missed, %.1f read, "+
			"%.1f of them for nothing", bar.room, without.HitRate(), belady.HitRate(),
			perToken(with.DemandBytes), perToken(with.DemandBytes+with.SpeculativeBytes), perToken(with.WastedBytes))
		if without.HitRate() < bar.hits || without.HitRate() > belady.HitRate() {
			t.Errorf("%d MiB: hits %.3f, want %.2f at least, and Belady's %.3f at most", bar.room, without.HitRate(),
				bar.hits, belady.HitRate())
		}
		if total, demand := perToken(with.DemandBytes+with.SpeculativeBytes),
			perToken(with.DemandBytes); total > float64(bar.total) || demand > float64(bar.demand) {
			t.Errorf("%d MiB: %.1f MiB per token, %.1f of them missed, want at most %d, %d", bar.room, total, demand,
				bar.total, bar.demand)
		}
	}
}
