package replay

// This file tests the least bytes that must be read, on traces where they are known or can be found by
// trying everything.

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"tensorcast/moe"
)

// round is a trace of one layer that chooses one expert after the other, round after round.
func round(t *testing.T, experts, tokens int) *moe.Trace {
	all := make([][][]int32, tokens)
	for i := range all {
		all[i] = [][]int32{{int32(i % experts)}}
	}
	return planted(t, experts, mib, all)
}

func total(all []int64) (sum int64) {
	for _, n := range all {
		sum += n
	}
	return sum
}

// Of a round of three experts, two are kept for good, and the third is read each time. Half an expert
// more of memory saves half of that.
func TestLeast(t *testing.T) {
	tr := round(t, 3, 300)
	for _, test := range []struct {
		name              string
		trunk, room, want int64 // want: bytes per round, in the long run
	}{
		{"two fit", 0, 2 * mib, mib},
		{"half an expert more", 0, 5 * mib / 2, mib / 2},
		{"all fit", 0, 3 * mib, 0},
		{"nothing fits", 0, 0, 3 * mib},
		{"less than nothing", 0, -mib, 3 * mib},
		{"beside a trunk", 10 * mib, 12 * mib, mib},
		{"nothing but the trunk", 10 * mib, 10 * mib, 3 * mib},
		{"not all of the trunk", 10 * mib, 4 * mib, 3*6*mib + 3*mib},
	} {
		got := LeastBytes(tr, test.trunk, test.room)
		if len(got) != 300 {
			t.Fatalf("%s: %d tokens, want 300", test.name, len(got))
		}
		// In the last round nothing has to be kept for later.
		if sum := total(got[3:297]); sum > 98*test.want || sum < 97*test.want {
			t.Errorf("%s: %.3f MiB a round, want %.3f", test.name, float64(sum)/98/mib, float64(test.want)/mib)
		}
	}
	if got := LeastBytes(tr, 0, 3*mib); total(got) != 0 {
		t.Errorf("%d bytes are read where all fits from the beginning, want 0", total(got))
	}
	if got := LeastBytes(CountAsPrompt(tr, 300), 0, mib); got != nil {
		t.Errorf("without generated tokens Least = %v, want nothing", got)
	}
}

// In small machines the least is what the best of all choices reads. Experts and trunk have a unit or
// two, so that all choices can be tried.
func TestLeastIsTheLeast(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 200 {
		const experts = 3
		layers, tokens := 1+r.IntN(2), 2+r.IntN(4)
		trunk := int64(layers * r.IntN(2))
		all := make([][][]int32, tokens)
		for i := range all {
			for range layers {
				p := r.Perm(experts)
				chosen := []int32{}
				for _, e := range p[:1+r.IntN(2)] {
					chosen = append(chosen, int32(e))
				}
				all[i] = append(all[i], chosen)
			}
		}
		tr := planted(t, experts, 1, all)
		room := r.IntN(layers*experts + int(trunk) + 1)
		// An item is a bit. Those of the trunk come last.
		var uses []uint
		for _, token := range all {
			for l, chosen := range token {
				bits := uint(0)
				for _, e := range chosen {
					bits |= 1 << (l*experts + int(e))
				}
				if int64(l) < trunk {
					bits |= 1 << (layers*experts + l)
				}
				uses = append(uses, bits)
			}
		}
		if got, want := total(LeastBytes(tr, trunk, int64(room))),
			int64(tryAll(uses, layers*experts+int(trunk), room)); got != want {
			t.Fatalf("%v, trunk %d, room %d: %d, want %d", all, trunk, room, got, want)
		}
	}
}

// tryAll returns the least that is read for the uses, in order, by a memory with room for so many items,
// which may hold any at the beginning.
func tryAll(uses []uint, items, room int) int {
	const unreachable = 1 << 30
	size := 1 << items
	cost := make([]int, size) // by what is in memory
	next := make([]int, size)
	for state := range cost {
		if bits(uint(state)) > room {
			cost[state] = unreachable
		}
	}
	for _, used := range uses {
		for state := range next {
			next[state] = unreachable
		}
		for state, c := range cost {
			if c == unreachable {
				continue
			}
			c += bits(used &^ uint(state))
			both := uint(state) | used
			for keep := both; ; keep = (keep - 1) & both {
				if bits(keep) <= room && c < next[keep] {
					next[keep] = c
				}
				if keep == 0 {
					break
				}
			}
		}
		cost, next = next, cost
	}
	return slices.Min(cost)
}

func bits(set uint) (n int) {
	for ; set != 0; set &= set - 1 {
		n++
	}
	return n
}

// No policy reads less, whatever it knows.
func TestLeastBoundsPolicies(t *testing.T) {
	tr := random(t, rand.New(rand.NewPCG(3, 4)), 4, 16, 2, 120)
	for _, room := range []int64{0, 10 * mib, 25 * mib, 50 * mib, 64 * mib} {
		least := total(LeastBytes(tr, 0, room))
		results, err := Run(t.Context(), tr, Forecast{}, Config{Capacity: room, Policy: NewBelady(tr), Threshold: 1},
			Config{Capacity: room, Policy: moe.NewLRU(tr.Shape()), Threshold: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			// The policies begin with nothing in memory.
			if cold := r.DemandBytes; cold < least {
				t.Errorf("room for %d MiB: a policy reads %d MiB, the least is %d", room/mib, cold/mib, least/mib)
			}
			if sum := total(r.TokenBytes); sum != r.DemandBytes || len(r.TokenBytes) != r.Tokens {
				t.Errorf("the sum over tokens is %d, want %d", sum, r.DemandBytes)
			}
			hits, used := 0, 0
			for i := range r.TokenUsed {
				hits, used = hits+r.TokenHits[i], used+r.TokenUsed[i]
			}
			if hits != r.Hits || used != r.Used || len(r.TokenUsed) != r.Tokens || len(r.TokenHits) != r.Tokens {
				t.Errorf("the tokens have %d hits of %d, want %d of %d", hits, used, r.Hits, r.Used)
			}
		}
	}
}

// BestCausal finds the best of the policies that do not know the future, and none that does.
func TestUnforeseen(t *testing.T) {
	// Every fourth token chooses the same expert, and the others go round five more, in a cache for
	// three. LRU drops the frequent one each time, and policies that count keep it.
	var all [][][]int32
	others := 0
	for i := range 400 {
		chosen := int32(0)
		if i%4 != 0 {
			chosen = int32(1 + others%5)
			others++
		}
		all = append(all, [][]int32{{chosen}})
	}
	tr := planted(t, 6, mib, all)
	got, err := BestCausal(t.Context(), tr, 3*mib)
	if err != nil {
		t.Fatal(err)
	}
	if least := total(LeastBytes(tr, 0, 3*mib)); got.Name == nameLRU || got.Future || got.Ahead || got.Tokens != 400 ||
		got.DemandBytes > 320*mib || got.DemandBytes < least {
		t.Errorf("best policy %+v with %+v, want one that keeps the frequent expert", got, got.Result)
	}
	// Tokens before count as prompt, so the frequent expert is in memory by then.
	if later, err := BestCausal(t.Context(), CountAsPrompt(tr, 100), 3*mib); err != nil || later.Tokens != 300 ||
		later.DemandBytes > 230*mib {
		t.Errorf("after the prompt: error %v, %+v, want 300 tokens", err, later)
	}
	// Where all fit, loading left all of them in memory.
	if all, err := BestCausal(t.Context(), tr, 6*mib); err != nil || all.DemandBytes != 0 {
		t.Errorf("where all fit: error %v, %+v, want nothing read", err, all)
	}
	if none, err := BestCausal(t.Context(), tr, -mib); err != nil || none.DemandBytes != 400*mib {
		t.Errorf("without room: error %v, %+v, want everything read", err, none)
	}
	if _, err := BestCausal(t.Context(), CountAsPrompt(tr, 1000), mib); !errors.Is(err, ErrNoDecode) {
		t.Errorf("error %v, want %v", err, ErrNoDecode)
	}
	if tr.FirstDecode() != 0 {
		t.Error("Later changed the trace itself")
	}
}
