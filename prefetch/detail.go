package prefetch

// This file tells what a picture of the help needs besides a Status.

import (
	"slices"
	"time"

	"tensorcast/prefetch/mixture"
)

// Detail is what a picture of the help needs besides a Status. It is bounded, whatever the model is: some 20 kB as
// JSON. Sizes are bytes.
type Detail struct {
	Budget int64  `json:"budget_bytes"` // the user's cap of what is kept; 0: there is none
	Usable int64  `json:"usable_bytes"` // of the room, with the budget, for this model; negative if a limit was lowered
	Bound  string `json:"bound"`        // what bounds Usable, for people: a control group, "host" or "budget"
	Window int64  `json:"window_bytes"` // that may be read ahead at once; 0 unless the target is helped
	// Strip is nil unless the target is helped.
	Strip *Strip `json:"strip,omitempty"`
	// Experts is nil unless the target is helped, and its model is a mixture.
	Experts *mixture.Heat `json:"experts,omitempty"`
	// Speeds are tokens per second of the last minutes, one number for each HistoryBin, the latest last. It is 0
	// where the target generated nothing, and NotSeen where it was not observed.
	Speeds []float32 `json:"speeds"`
	// Happenings are the last things that were done, in order.
	Happenings []Happening `json:"happenings"`
}

// Detail tells what a picture of the help needs. It takes about a millisecond for the largest models, so it is to be
// asked for only while somebody looks. As all methods it is for the goroutine that feeds the controller. Others may
// read the result.
func (c *Controller) Detail() Detail {
	s := c.s
	d := Detail{
		Budget: s.budget(), Usable: s.memory.room.Bytes, Bound: s.memory.room.Bound(),
		Speeds: s.history.speeds(s.now()), Happenings: slices.Clone(s.journal.all),
	}
	if f := s.f; f != nil {
		d.Window = f.window.bytes
		d.Strip = f.strip()
		if f.mixture != nil {
			heat := f.mixture.Heat()
			d.Experts = &heat
		}
	}
	return d
}

// noteSpeed notes how long a step took that has just ended. A prompt is no part of the speed at which tokens are
// generated, unless the target reads nothing but prompts.
func (s *session) noteSpeed(ended step, at time.Time) {
	if ended.tokens <= generatedTokens || ReadsPrompts(s.work.tokens, s.work.decodes) {
		s.history.add(at, ended)
	}
}
