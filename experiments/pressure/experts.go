package pressure

// This file has the bound of a mixture of experts: how much a token reads depends on which experts its routers choose.

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"tensorcast/moe"
	"tensorcast/moe/replay"
	"tensorcast/trace/tables"
)

// Routes are the experts that the target's routers chose in a traced run without a limit. Under a
// limit they choose the same ones as long as the text is the same.
type Routes struct {
	Trunk   int64       `json:"trunk_bytes"`   // what every token reads: all but experts
	Experts int         `json:"experts"`       // of a layer
	Bytes   []int64     `json:"expert_bytes"`  // of an expert, by layer that has some
	Prompt  int         `json:"prompt_tokens"` // these come first
	IDs     []int32     `json:"ids"`           // of the tokens
	Chosen  [][][]int32 `json:"chosen"`        // by token and layer
}

func newRoutes(t *moe.Trace, trunk int64) *Routes {
	r := &Routes{Trunk: trunk, Experts: t.Experts, Prompt: t.FirstDecode()}
	for _, l := range t.Layers {
		r.Bytes = append(r.Bytes, l.Bytes)
	}
	for token := range t.Tokens {
		layers := make([][]int32, len(t.Layers))
		for l := range layers {
			layers[l] = slices.Clone(t.Chosen(token, l))
		}
		r.IDs, r.Chosen = append(r.IDs, t.Tokens[token].ID), append(r.Chosen, layers)
	}
	return r
}

// maxTrunk bounds a saved trunk, so that sums do not overflow.
const maxTrunk = 1 << 50

// trace makes a trace of saved routes, and checks them.
func (r *Routes) trace() (*moe.Trace, error) {
	switch {
	case r.Trunk < 0 || r.Trunk > maxTrunk:
		return nil, fmt.Errorf("a token reads %d bytes besides experts", r.Trunk)
	case r.Prompt < 0 || r.Prompt >= len(r.Chosen) || len(r.IDs) != len(r.Chosen):
		return nil, fmt.Errorf("%d tokens of a prompt, %d in all, %d ids", r.Prompt, len(r.Chosen), len(r.IDs))
	}
	empty := &moe.Trace{Experts: r.Experts}
	for l, bytes := range r.Bytes {
		if bytes == 0 {
			return nil, errors.New("experts of 0 bytes")
		}
		empty.Layers = append(empty.Layers, moe.Layer{Number: int32(l), Bytes: bytes})
	}
	steps := map[int32]moe.Step{}
	for token, id := range r.IDs {
		s := moe.Step{Phase: moe.Decode, IDs: []int32{id}}
		if token < r.Prompt {
			s.Phase = moe.Prompt
		}
		steps[int32(token)] = s
	}
	return moe.FromRoutes(empty, func(yield func(tables.Route, error) bool) {
		for token, layers := range r.Chosen {
			for l, chosen := range layers {
				for slot, e := range chosen {
					if !yield(tables.Route{Step: int32(token), Layer: int32(l), Slot: int32(slot), Expert: e}, nil) {
						return
					}
				}
			}
		}
	}, steps)
}

// totalBytes is how many bytes all experts have.
func (r *Routes) totalBytes() int64 {
	sum := int64(0)
	for _, bytes := range r.Bytes {
		sum += bytes * int64(r.Experts)
	}
	return sum
}

// Experts is what a setting means for a mixture of experts.
type Experts struct {
	Share  float64 `json:"share"`  // the part of all experts' bytes that fits in memory beside the trunk
	Whole  Reads   `json:"whole"`  // over all generated tokens
	Steady Reads   `json:"steady"` // over those after the start-up; zero if there are none
}

// Reads is what has to be read for a token, in the mean, and how many tokens per second the disk gives for that.
type Reads struct {
	Least      float64 `json:"least_bytes_per_token"`  // with the future known: Belady's rule
	Causal     float64 `json:"causal_bytes_per_token"` // with the best policy known here that does not know the future
	Policy     string  `json:"causal_policy"`          // the name of that policy
	Bound      float64 `json:"bound_tok_s"`
	CausalTokS float64 `json:"causal_tok_s"`
}

// replay finds what has to be read at each setting, if the routes are known. It may be called again.
func (r *Report) replay(ctx context.Context) (err error) {
	for i := range r.Results {
		r.Results[i].Experts = nil // a file may claim anything
	}
	if r.Routes == nil {
		return nil
	}
	if r.routed, err = r.Routes.trace(); err != nil {
		return fmt.Errorf("the routes of the experts: %w", err)
	}
	known := map[int64]*Experts{} // by room
	for i := range r.Results {
		at := &r.Results[i]
		room := at.Limit - r.Own
		if known[room] == nil {
			e := &Experts{Share: max(float64(room-r.Routes.Trunk)/float64(r.Routes.totalBytes()), 0)}
			if e.Whole, err = r.replayReads(ctx, room, 0); err == nil {
				e.Steady, err = r.replayReads(ctx, room, r.Skip)
			}
			if err != nil {
				return fmt.Errorf("replay the experts that were chosen: %w", err)
			}
			known[room] = e
		}
		e := *known[room]
		at.Experts = &e
	}
	return nil
}

// replayReads replays the generated tokens after the first skip.
func (r *Report) replayReads(ctx context.Context, room int64, skip int) (Reads, error) {
	t := replay.CountAsPrompt(r.routed, skip)
	least := replay.LeastBytes(t, r.Routes.Trunk, room)
	if len(least) == 0 {
		return Reads{}, nil
	}
	best, err := replay.BestCausal(ctx, t, room-r.Routes.Trunk)
	if err != nil {
		return Reads{}, err
	}
	// What does not fit of the trunk is read for each token.
	missing := float64(max(r.Routes.Trunk-max(room, 0), 0))
	return Reads{Least: float64(sum(least)) / float64(len(least)),
		Causal: missing + float64(best.DemandBytes)/float64(best.Tokens), Policy: best.Name}, nil
}
