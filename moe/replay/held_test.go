package replay

// This file asks what it would be worth if the Fabric held single experts, the hottest ones, instead of
// tensors with all their experts.

import (
	"cmp"
	"os"
	"slices"
	"testing"

	"tensorcast/moe"
	"tensorcast/trace"
)

// TestHeldExperts logs which share of the chosen experts is read from disk where there is room for 0.455
// of all experts. It compares keeping the likeliest experts in memory with holding most of them in
// planes. TENSORCAST_ROUTES may name a capture whose routes are used, too. The traces are short, and a
// token's choices are like those of the token before, so all shares are low.
func TestHeldExperts(t *testing.T) {
	traces := map[string]*moe.Trace{"qwen": public(t, "qwen"), "gptoss": public(t, "gptoss")}
	if dir := os.Getenv("TENSORCAST_ROUTES"); dir != "" {
		c, err := trace.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		steps, err := moe.Steps(c.Steps(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if traces[dir], err = moe.FromRoutes(moe.EmptyTrace(dir, c.Structure, 0), c.Routes(), steps); err != nil {
			t.Fatal(err)
		}
	}
	for name, r := range traces {
		const learned = 32 // tokens
		from := r.FirstDecode() + learned
		alone := fractionRead(r, from, hold{cache: 0.437})
		// The room less 144 of 559 MiB, times how many bytes of the file a byte of planes stands for. 36
		// MiB besides keep experts.
		for profile, share := range map[string]float64{"fast": 0.712, "balanced": 0.508} {
			const cache = 0.03
			// as much is held of each expert
			whole := (1 - share) * fractionRead(r, from, hold{cache: cache / (1 - share)})
			once := fractionRead(r, from, hold{share: share, cache: cache})
			slowly := fractionRead(r, from, hold{share: share, cache: cache, every: 32})
			best := fractionRead(r, from, hold{share: share, cache: cache, foreseen: true})
			t.Logf("%s, %s: nothing held %.3f; tensors %.3f; experts chosen after %d tokens %.3f, and one "+
				"exchanged every 32 tokens %.3f; the best ones %.3f", name, profile, alone, whole, learned, once,
				slowly, best)
			if once >= whole || best > once {
				t.Errorf("%s, %s: experts that were used most read %.3f, the best ones %.3f, tensors %.3f", name,
					profile, once, best, whole)
			}
		}
	}
}

// hold says what is held. Shares are of all experts.
type hold struct {
	share    float64 // in planes, chosen by use before the first token that counts
	foreseen bool    // chosen by the use from then on
	// Every so many tokens the hottest expert that is not held takes the place of the coldest one that
	// is; 0: never.
	every int
	cache float64 // in memory besides, the likeliest ones
}

// fractionRead is the share of the experts chosen from a token on that were neither held nor in memory.
func fractionRead(r *moe.Trace, from int, h hold) float64 {
	s := r.Shape()
	score := make([]float64, s.Layers*s.Experts)
	order := make([]int, len(score))
	held, kept := make([]bool, len(score)), map[int]bool{}
	each := func(token int, do func(layer, id int)) {
		for layer := range s.Layers {
			for _, e := range r.Chosen(token, layer) {
				do(layer, layer*s.Experts+int(e))
			}
		}
	}
	step, chosen, missed := 1.0, 0, 0
	for token := range r.Tokens {
		if h.share > 0 && (token == from || h.every > 0 && token > from && (token-from)%h.every == 0) {
			by := score
			if h.foreseen {
				by = make([]float64, len(score))
				for later := from; later < len(r.Tokens); later++ {
					each(later, func(_, id int) { by[id]++ })
				}
			}
			for i := range order {
				order[i] = i
			}
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(by[b], by[a]) })
			if token == from {
				for _, id := range order[:int(h.share*float64(len(order)))] {
					held[id] = true
					delete(kept, id)
				}
			} else {
				in := order[slices.IndexFunc(order, func(id int) bool { return !held[id] })]
				for i := len(order) - 1; i >= 0; i-- {
					if held[order[i]] {
						if by[in] > by[order[i]] {
							held[order[i]], held[in] = false, true
							delete(kept, in)
						}
						break
					}
				}
			}
		}
		each(token, func(layer, id int) {
			score[id] += step
			if token >= from {
				chosen++
			}
			if held[id] || kept[id] {
				return
			}
			if token >= from {
				missed++
			}
			kept[id] = true
			for len(kept) > max(int(h.cache*float64(len(score))), s.K) {
				out := id
				for k := range kept {
					if now := k/s.Experts == layer &&
						slices.Contains(r.Chosen(token, layer), int32(k%s.Experts)); !now &&
						(out == id || score[k] < score[out] || score[k] == score[out] && k < out) {
						out = k
					}
				}
				delete(kept, out)
			}
		})
		step *= 1 + 1.0/256 // as prefetchd forgets
	}
	return float64(missed) / float64(chosen)
}
