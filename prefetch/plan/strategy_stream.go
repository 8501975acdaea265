package plan

// Stream holds nothing. It shows what streaming alone is worth.
type Stream struct{}

// Name implements Strategy.
func (Stream) Name() string { return "stream" }

// Plan implements Strategy.
func (Stream) Plan(in Input) Plan { return spreadOverFile(in, 0) }

// Traits implements Strategy.
func (Stream) Traits() Traits { return Traits{Streams: true, ReadsExperts: true} }
