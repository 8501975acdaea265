package prefetch

// Stream holds nothing.
type Stream struct{}

func (Stream) Name() string       { return "stream" }
func (Stream) Plan(in Input) Plan { return planSpread(in, 0) }
func (Stream) Streams() bool      { return true }
