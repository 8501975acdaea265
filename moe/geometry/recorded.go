package geometry

// This file has what sessions of real models found in memory, and says what a model of like geometry may find.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
)

// session is a recorded session of a model: what prefetchd's policy would have found in memory.
type session struct {
	model   string
	experts int
	// hits are the shares of the chosen experts that are found with 10, 20, ... 90 % of all experts in memory, which
	// is full at the beginning. A test replays the traces, where they are at hand.
	hits [9]float64
}

// sessions are those of thesis-notes/rq4-experts.md. Each is one session on one subject.
var sessions = []session{
	{"Qwen3-30B-A3B", 128, [9]float64{0.532, 0.745, 0.876, 0.943, 0.967, 0.976, 0.983, 0.989, 0.994}},
	{"gpt-oss-120b", 128, [9]float64{0.555, 0.727, 0.836, 0.878, 0.902, 0.921, 0.936, 0.961, 0.978}},
}

// hitsAt interpolates what was found with a share of the experts in memory.
func (s *session) hitsAt(share float64) float64 {
	if share >= 1 {
		return 1
	}
	at := func(tenth int) float64 {
		switch {
		case tenth <= 0:
			return 0
		case tenth > len(s.hits):
			return 1
		}
		return s.hits[tenth-1]
	}
	tenth := max(int(10*share), 0)
	part := 10*share - float64(tenth)
	return at(tenth)*(1-part) + at(tenth+1)*part
}

// Range says between what the share of the choices lies that is found in memory.
type Range struct {
	Memory int64   `json:"memory_bytes"` // for experts
	Share  float64 `json:"share"`        // of all experts; at most 1
	// Uniform is what is found if routers choose at random: the share.
	Uniform  float64    `json:"uniform_hit_rate"`
	Recorded []Recorded `json:"recorded"` // what sessions of real models found, ascending
	// Alike says that these models have about as many experts in a layer.
	Alike bool `json:"alike"`
}

// Recorded is what a session of a real model found.
type Recorded struct {
	Model   string  `json:"model"`
	HitRate float64 `json:"hit_rate"`
}

// With says what is found with so many bytes of memory for experts. Sessions of models with half to twice as many
// experts count as alike; where there are none, all are named.
func (g *Geometry) With(memory int64) Range {
	memory = max(memory, 0)
	share := min(float64(memory)/float64(g.Bytes), 1)
	r := Range{Memory: memory, Share: share, Uniform: share}
	isAlike := func(s session) bool { return 2*s.experts >= g.Experts && s.experts <= 2*g.Experts }
	r.Alike = slices.ContainsFunc(sessions, isAlike)
	for _, s := range sessions {
		if isAlike(s) || !r.Alike {
			r.Recorded = append(r.Recorded, Recorded{s.model, s.hitsAt(share)})
		}
	}
	slices.SortFunc(r.Recorded, func(a, b Recorded) int { return cmp.Compare(a.HitRate, b.HitRate) })
	return r
}

// Sentence says it in words.
func (g *Geometry) Sentence(r Range) string {
	size := func(bytes int64) string { return humanize.IBytes(uint64(max(bytes, 0))) }
	percent := func(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }
	what := fmt.Sprintf("a token chooses %d of %d experts in each of %d layers", g.Chosen, g.Experts, g.Layers)
	if g.Chosen == 0 {
		what = fmt.Sprintf("%d experts in each of %d layers", g.Experts, g.Layers)
	}
	if r.Share >= 1 {
		return fmt.Sprintf("%s; all %s of them fit in %s", what, size(g.Bytes), size(r.Memory))
	}
	low, high := r.Recorded[0], r.Recorded[len(r.Recorded)-1]
	var names []string
	for _, s := range r.Recorded {
		names = append(names, s.Model)
	}
	found := percent(low.HitRate)
	if found != percent(high.HitRate) {
		found = fmt.Sprintf("%s to %s", found, percent(high.HitRate))
	}
	text := fmt.Sprintf("%s; with %s of them in memory (%s of %s) %s of the choices are found there if routing is "+
		"random, and %s as in recorded sessions of %s", what, percent(r.Share), size(r.Memory), size(g.Bytes),
		percent(r.Uniform), found, strings.Join(names, " and "))
	if !r.Alike {
		text += " (which have other numbers of experts)"
	}
	if g.Chosen > 0 {
		missed := func(hits float64) string { return size(int64((1 - hits) * float64(g.TokenBytes()))) }
		text += fmt.Sprintf(": a token reads %s or %s", missed(r.Uniform), missed(high.HitRate))
	}
	return text + "; `analyze moe` says of a capture which is so"
}
