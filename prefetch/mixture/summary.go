package mixture

// This file says what was done for experts.

// Summary says what was done for the experts of a mixture. Sizes are bytes.
type Summary struct {
	All    int64 `json:"bytes"`      // of all experts
	Kept   int64 `json:"kept_bytes"` // of those in memory at the end
	Room   int64 `json:"room_bytes"` // that other weights leave for them
	Chosen int64 `json:"chosen"`     // experts, once for each layer and decode
	Missed int64 `json:"missed"`     // of these, not in memory when they were chosen
	Read   int64 `json:"read_bytes"` // for these
	Strays int64 `json:"strays"`     // bytes that the target's faults read around themselves, and that were paged out

	Hot         *Hot         `json:"hot,omitempty"`         // nil if nothing was known of the experts before
	Speculation *Speculation `json:"speculation,omitempty"` // nil if nothing was to be read before it was chosen
}

// Speculation says what was read of experts before a router had chosen them. Sizes are bytes.
type Speculation struct {
	State string `json:"state"`      // "on"
	Read  int64  `json:"read_bytes"` // beside Summary.Read
	Used  int64  `json:"used_bytes"` // of these, of experts that their layer then chose
}

// Summary adds what was done to what had been done before. before is nil, or the summary of an earlier
// mixture: of the time when the target was helped last, or of another model.
func (m *Mixture) Summary(before *Summary) *Summary {
	s := &Summary{All: m.size, Kept: m.resident, Room: m.room, Chosen: m.total.chosen, Missed: m.total.missed,
		Read: m.total.read, Strays: m.total.strays, Hot: m.Hot(),
		Speculation: m.speculation()}
	if before == nil {
		return s
	}
	s.Chosen += before.Chosen
	s.Missed += before.Missed
	s.Read += before.Read
	s.Strays += before.Strays
	if s.Hot == nil {
		s.Hot = before.Hot
	} else if before.Hot != nil {
		s.Hot.Experts += before.Hot.Experts
		s.Hot.Read += before.Hot.Read
	}
	switch {
	case s.Speculation == nil:
		s.Speculation = before.Speculation
	case before.Speculation != nil:
		s.Speculation.Read += before.Speculation.Read
		s.Speculation.Used += before.Speculation.Used
	}
	return s
}

func (m *Mixture) speculation() *Speculation {
	a := &m.ahead
	if a.predictor == nil {
		return nil
	}
	return &Speculation{State: "on", Read: a.read, Used: a.used}
}
