package replay

// This file tests what is said of memory, on traces of which the truth is known, against a replay that is written for
// being read.

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/moe"
)

// chooser says what a layer chooses for a token; before is what it chose for the token before.
type chooser func(r *rand.Rand, token, layer int, before []int32) []int32

// routed makes a trace.
func routed(t testing.TB, layers, experts, tokens int, bytes int64, choose chooser) *moe.Trace {
	t.Helper()
	r := rand.New(rand.NewPCG(21, uint64(experts)))
	all := make([][][]int32, tokens)
	for i := range all {
		for l := range layers {
			var before []int32
			if i > 0 {
				before = all[i-1][l]
			}
			all[i] = append(all[i], choose(r, i, l, before))
		}
	}
	return planted(t, experts, bytes, all)
}

// uniform chooses k of n experts at random.
func uniform(n, k int) chooser {
	return func(r *rand.Rand, _, _ int, _ []int32) []int32 {
		var ids []int32
		for _, e := range r.Perm(n)[:k] {
			ids = append(ids, int32(e))
		}
		return ids
	}
}

// zipf chooses an expert the less often the higher its number is: the second half as often as the first, and so on.
func zipf(n, k int) chooser {
	var upTo []float64
	sum := 0.0
	for e := range n {
		sum += 1 / float64(e+1)
		upTo = append(upTo, sum)
	}
	return func(r *rand.Rand, _, layer int, _ []int32) []int32 {
		var ids []int32
		for len(ids) < k {
			at, _ := slices.BinarySearch(upTo, r.Float64()*sum)
			if e := int32((min(at, n-1) + 7*layer) % n); !slices.Contains(ids, e) {
				ids = append(ids, e)
			}
		}
		return ids
	}
}

// local keeps each expert of the token before with a probability, and chooses the others at random. In the long run
// all experts are chosen equally often.
func local(n, k int, kept float64) chooser {
	return func(r *rand.Rand, _, _ int, before []int32) []int32 {
		var ids []int32
		for _, e := range before {
			if r.Float64() < kept {
				ids = append(ids, e)
			}
		}
		for len(ids) < k {
			if e := int32(r.IntN(n)); !slices.Contains(ids, e) {
				ids = append(ids, e)
			}
		}
		return ids
	}
}

// bruteHits counts which of the chosen experts were in memory, which has room for so many and holds the first of them
// at the beginning. When all of a layer's choice has been noted, its missing experts are brought in one by one. For
// each, the one that is worth least of those that are not chosen now gives way, of equals the first. Belady's rule
// needs to know what comes.
func bruteHits(tr *moe.Trace, room int, rule string) (hits, used int) {
	s := tr.Shape()
	in := map[int]bool{}
	for id := range room {
		in[id] = true
	}
	var now int // counts choices of layers
	last, score := map[int]int{}, map[int]float64{}
	worth := func(id int) float64 {
		layer := id / s.Experts
		switch rule {
		case nameLRU:
			return float64(last[id]) // 0: never
		case nameBelady:
			for next := now + 1; next < len(tr.Tokens)*s.Layers; next++ {
				if next%s.Layers == layer &&
					slices.Contains(tr.Chosen(next/s.Layers, layer), int32(id%s.Experts)) {
					return -float64(next)
				}
			}
			return math.Inf(-1)
		}
		// A choice of n tokens ago counts (1 + 1/64)^-n. The score is kept as of the layer's last choice.
		chance := min(score[id]/64+1e-4, 1)
		ahead := (layer - now%s.Layers + s.Layers - 1) % s.Layers
		return -(1/chance + float64(ahead)/float64(s.Layers))
	}
	for token := range tr.Tokens {
		for layer := range s.Layers {
			chosen := tr.Chosen(token, layer)
			for e := range s.Experts {
				score[layer*s.Experts+e] /= 1 + 1./64
			}
			for _, e := range chosen {
				id := layer*s.Experts + int(e)
				last[id] = now + 1
				score[id]++
			}
			for _, e := range chosen {
				id := layer*s.Experts + int(e)
				used++
				if in[id] {
					hits++
					continue
				}
				for len(in) >= room {
					victim, least := -1, math.Inf(1)
					for have := range s.Layers * s.Experts {
						if !in[have] || have/s.Experts == layer && slices.Contains(chosen, int32(have%s.Experts)) {
							continue
						}
						if w := worth(have); w < least || victim < 0 {
							victim, least = have, w
						}
					}
					delete(in, victim)
				}
				in[id] = true
			}
			now++
		}
	}
	return hits, used
}

// someMachine reads 1 GB in a second, and computes 2 ms in each layer.
var someMachine = Options{
	Disk: Disk{Bandwidth: 1e9}, Compute: Compute{time.Millisecond, time.Millisecond}, Workers: 2,
}

func locality(t testing.TB, tr *moe.Trace, o Options) *Locality {
	t.Helper()
	l, err := NewLocality(t.Context(), tr, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The verdict is what was planted. Random routing buys the share, whatever the numbers of experts, layers and choices
// are.
func TestLocality(t *testing.T) {
	for name, tc := range map[string]struct {
		trace *moe.Trace
		local bool
		says  string
	}{
		"uniform, 128 experts": {routed(t, 6, 128, 300, mib/2, uniform(128, 8)), false,
			"no exploitable locality: memory buys only its share: with 40 % of the experts in memory"},
		"uniform, 512 experts": {routed(t, 4, 512, 200, mib/2, uniform(512, 10)), false,
			"each further GiB saves the same, "},
		"uniform, 32 experts": {routed(t, 4, 32, 400, mib, uniform(32, 4)), false, "no exploitable locality"},
		"zipf, 128 experts": {routed(t, 6, 128, 300, mib/2, zipf(128, 8)), true,
			"without locality it would be 40 %"},
		"zipf, 512 experts": {routed(t, 4, 512, 200, mib/2, zipf(512, 10)), true,
			"of the choices are found there (± "},
		"local, 128 experts": {routed(t, 6, 128, 300, mib/2, local(128, 8, 0.5)), true, "that saves "},
	} {
		t.Run(name, func(t *testing.T) {
			l := locality(t, tc.trace, someMachine)
			said := strings.Join(l.Sentences(), "\n")
			if !l.Told || l.Local != tc.local || !strings.Contains(said, tc.says) ||
				strings.Contains(said, "no exploitable") == tc.local {
				t.Errorf("local: %v, want %v, and %q in\n%s", l.Local, tc.local, tc.says, said)
			}
			for i, r := range l.Rows {
				if r.Uniform.HitRate != r.Share || r.Belady.HitRate < r.Prefetchd.HitRate ||
					r.Belady.HitRate < r.LRU.HitRate || r.GainError <= 0 || r.GainError > 0.1 {
					t.Errorf("row %d: %+v", i, r)
				}
				// At random it is a little less than the share where there is room for a few layers' choices
				// only: what computes is held.
				if tc.local && r.Share < 0.85 && r.Gain < r.GainError ||
					!tc.local && (r.Gain > 0.02 || r.Gain < -0.05) {
					t.Errorf("with %.0f %% in memory the gain is %.3f ± %.3f", 100*r.Share, r.Gain, r.GainError)
				}
			}
		})
	}
}

// The numbers are those of the replay above: hits, bytes and times.
func TestLocalityAgainstBruteForce(t *testing.T) {
	for name, tr := range map[string]*moe.Trace{
		"uniform":     routed(t, 3, 16, 60, mib, uniform(16, 2)),
		"zipf":        routed(t, 3, 16, 60, mib, zipf(16, 3)),
		"local":       routed(t, 2, 24, 60, mib, local(24, 3, 0.6)),
		"512 experts": routed(t, 2, 512, 34, mib, zipf(512, 10)),
	} {
		l := locality(t, tr, someMachine)
		s := tr.Shape()
		for _, at := range []int{1, 3, 6} {
			r := &l.Rows[at]
			room := int(r.Bytes / mib)
			for rule, got := range map[string]MemoryUse{nameScored: r.Prefetchd, nameLRU: r.LRU, nameBelady: r.Belady} {
				hits, used := bruteHits(tr, room, rule)
				missed := int64(used-hits) * mib / int64(len(tr.Tokens))
				seconds := float64(s.Layers)*2e-3 + float64(used-hits)*mib/1e9/float64(len(tr.Tokens))
				if got.HitRate != float64(hits)/float64(used) || got.Missed != missed ||
					math.Abs(got.TokS*seconds-1) > 1e-3 {
					t.Errorf("%s, %s with room for %d: %+v, want %d of %d, %d bytes a token and %.3f tok/s", name, rule,
						room, got, hits, used, missed, 1/seconds)
				}
			}
		}
	}
}

// From the knee on reading takes no longer than computing.
func TestKnee(t *testing.T) {
	tr := routed(t, 6, 128, 300, mib/2, zipf(128, 8))
	for _, compute := range []time.Duration{time.Millisecond / 2, time.Millisecond, 2 * time.Millisecond} {
		o := someMachine
		o.Compute = Compute{After: compute}
		l := locality(t, tr, o)
		if l.Knee <= 0 || l.Knee >= l.all || math.Abs(l.KneeShare-float64(l.Knee)/float64(l.all)) > 1e-9 {
			t.Fatalf("%v: the knee is at %d of %d bytes", compute, l.Knee, l.all)
		}
		got := run(t, tr, Config{Capacity: l.Knee, Policy: moe.NewScored(tr.Shape()), Threshold: 1, Full: true})
		reading, computing := float64(got.PerToken(got.DemandBytes))/1e9, 6*compute.Seconds()
		if math.Abs(reading/computing-1) > 0.1 {
			t.Errorf("at the knee of %d bytes reading takes %.2f ms, computing %.2f", l.Knee, 1e3*reading, 1e3*computing)
		}
		if says := l.Sentences()[1]; !strings.Contains(says, bytesText(l.Knee)+" of experts in memory on") {
			t.Error(says)
		}
	}
	for says, o := range map[string]Options{
		"with any memory": {Disk: Disk{Bandwidth: 1e12}, Compute: someMachine.Compute},
		"bound by the disk until all experts are in memory": {Disk: someMachine.Disk},
		"the disk takes no time":                            {Compute: someMachine.Compute},
	} {
		if l := locality(t, tr, o); !strings.Contains(l.Sentences()[1], says) {
			t.Errorf("%q, want %q", l.Sentences()[1], says)
		}
	}
}

// Of a few tokens nothing is claimed, nor of a trace without generated tokens or without sizes. Rooms that are asked
// for have rows, too.
func TestLocalityOfLess(t *testing.T) {
	tr := routed(t, 2, 16, leastTokens-1, mib, zipf(16, 2))
	o := someMachine
	o.Rooms = []int64{5 * mib, 1000 * mib}
	l := locality(t, tr, o)
	if l.Told || l.Local || !strings.Contains(l.Sentences()[0], "it takes 32 to tell whether use is local") ||
		len(l.Rows) != len(memoryShares)+2 || l.Rows[1].Bytes != 5*mib ||
		l.Rows[len(l.Rows)-1].Prefetchd.HitRate != 1 || l.Rows[len(l.Rows)-1].Uniform.Missed != 0 {
		t.Errorf("%+v\n%s", l, l.Sentences()[0])
	}
	if _, err := NewLocality(t.Context(), CountAsPrompt(tr, 1000), someMachine); !errors.Is(err, ErrNoDecode) {
		t.Error(err)
	}
	sizeless := routed(t, 2, 16, 40, 0, zipf(16, 2))
	if _, err := NewLocality(t.Context(), sizeless, someMachine); !errors.Is(err, ErrNoSizes) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := NewLocality(ctx, tr, someMachine); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Real models use their experts locally.
func TestLocalityOfRealModels(t *testing.T) {
	for _, name := range []string{"qwen", "gptoss"} {
		l := locality(t, public(t, name), someMachine)
		if !l.Local || l.Rows[3].Prefetchd.HitRate < 0.75 {
			t.Errorf("%s: %s", name, l.Sentences()[0])
		}
		t.Log(name, l.Sentences())
		for _, r := range l.Rows {
			t.Logf("%.0f %%: prefetchd %.4f LRU %.4f Belady %.4f, ± %.4f", 100*r.Share, r.Prefetchd.HitRate,
				r.LRU.HitRate, r.Belady.HitRate, r.GainError)
		}
	}
}
