package forecast

// This file computes tokens per second: alone, with prefetchd, and at most.

import (
	"math"

	"tensorcast/prefetch/plan"
	"tensorcast/prefetch/room"
)

const (
	// ownBytes is what a target takes besides its weights and its context: 12 to 34 MiB, see "Many small experts".
	ownBytes = 24 << 20
	// helperBytes is what prefetchd takes for itself, see "What prefetchd takes for itself".
	helperBytes = 8 << 20
	// streamShare is which share of what the disk allows prefetchd reaches: 0.63 to 0.94 of the rate beside computing
	// in "Against what the disk delivers", as a window is not always filled at the moment when the disk is free.
	streamShare = 0.83
	// choiceTime is how many seconds pass from a router's choice to the first read ("Experts, read when the router has
	// chosen them"), and sliceTime how many of a processor's time a slice costs prefetchd beside its bytes: 80 to
	// 190 us in "Many small experts".
	choiceTime = 80e-6
	sliceTime  = 140e-6
	// spread is by how much runs on one machine, and what was measured of it, differ from each other: a forecast is
	// said as a range of so much below and above ("What analyze whatif expects").
	spread = 1.25
	// thrashShare is the share of the experts in memory below which the kernel's own replacement keeps no expert until
	// it is used again: with 20 % of moe128 in memory all of a token's experts were read again, with 40 % as many as
	// random routing lets one expect ("Many small experts").
	thrashShare = 0.3
	// kernelChance says how much of what the kernel keeps of experts is as chance has it. The share of the choices that
	// it has to read lies between what random routing would miss and what prefetchd's rule misses, so near to the
	// former on a logarithmic scale. Plain llama.cpp read 57, 141 and 83 MiB a token in "Many small experts" and
	// "Experts, read when the router has chosen them", which is a chance of 0.59, 1 and 0.84.
	kernelChance = 0.75
)

// Range is from the least to the most that is expected.
type Range struct {
	Low    float64 `json:"low"`
	Likely float64 `json:"likely"` // the geometric mean of what Low and High were before runs' differences
	High   float64 `json:"high"`
}

// between is a range with what runs differ by.
func between(a, b float64) Range {
	low, high := min(a, b), max(a, b)
	return Range{low / spread, math.Sqrt(low * high), high * spread}
}

// Change is a machine that differs from the one that was measured.
type Change struct {
	Name   string  `json:"name"`
	Memory float64 `json:"memory"` // times as much
	Disk   float64 `json:"disk"`   // times as fast
	// Tokens is how many tokens a pass through the model makes: of parallel slots, or guesses that were right.
	Tokens int `json:"tokens_per_pass"`
}

// Changes are what a verdict has a row for. The first is the machine as it is.
var Changes = []Change{
	{"here", 1, 1, 1},
	{"1.5 times the memory", 1.5, 1, 1},
	{"a disk twice as fast", 1, 2, 1},
	{"2 tokens a pass", 1, 1, 2},
	{"4 tokens a pass", 1, 1, 4},
}

// Row is what is expected after a change. Speeds are tokens per second.
type Row struct {
	Change
	Fits   bool  `json:"fits"` // all that tokens read is in memory
	Alone  Range `json:"alone"`
	Helped Range `json:"with_prefetchd"`
	Most   Range `json:"at_most"`
	// Reads is how many bytes a pass reads from disk with prefetchd.
	Reads Range `json:"reads_bytes"`
}

// Expect says what is expected of a model. r is nil of a dense one.
func Expect(p *Pass, m Machine, memory Memory, r *Routing, c Change) Row {
	memory.Bytes = int64(c.Memory * float64(memory.Bytes))
	memory.Limit = int64(c.Memory * float64(memory.Limit))
	m = m.withDisk(c.Disk)
	s := setting{pass: p, machine: &m, tokens: max(c.Tokens, 1)}
	s.compute = p.ComputeTime(&m, s.tokens)
	s.free = memory.Bytes - ownBytes - p.Context*int64(memory.Context)
	s.keep = plan.Keepable(room.Room{Bytes: s.free - helperBytes, Limit: memory.Limit})
	row := Row{Change: c, Fits: p.Weights() <= s.free}
	if row.Fits {
		all := float64(s.tokens) / s.compute
		row.Alone = between(all, all)
		row.Helped, row.Most = row.Alone, row.Alone
		return row
	}
	least, most := func(float64) float64 { return 0 }, func(float64) float64 { return 0 }
	if r != nil {
		least, most = r.Least, r.Most
	}
	row.Alone = s.speed(s.aloneTime(least), s.aloneTime(most))
	slow, reads := s.helpedTime(least)
	fast, fewer := s.helpedTime(most)
	if s.keep == 0 { // there is no room to help in
		slow, fast = math.Inf(1), math.Inf(1)
	}
	// prefetchd stands back where it does not win.
	row.Helped = s.speed(min(slow, s.aloneTime(least)), min(fast, s.aloneTime(most)))
	row.Reads = Range{fewer, math.Sqrt(max(fewer, 1) * max(reads, 1)), reads}
	row.Most = s.speed(s.leastTime(least), s.leastTime(most))
	return row
}

// setting is one machine and what there is room for. Times are seconds of a pass, amounts bytes.
type setting struct {
	pass    *Pass
	machine *Machine
	tokens  int
	compute float64
	free    int64 // for weights, without a helper
	keep    int64 // of weights, with prefetchd
}

func (s *setting) speed(slow, fast float64) Range {
	return between(float64(s.tokens)/slow, float64(s.tokens)/fast)
}

// split is how much of the trunk has no room in so many bytes, and which share of the experts has.
func (s *setting) split(bytes int64) (trunk, experts float64) {
	trunk = float64(max(s.pass.Trunk-max(bytes, 0), 0))
	if e := s.pass.Experts; e != nil {
		experts = min(float64(max(bytes-s.pass.Trunk, 0))/float64(e.Bytes), 1)
	}
	return trunk, experts
}

// chosen is how many bytes of experts a pass chooses.
func (s *setting) chosen() float64 {
	if s.pass.Experts == nil {
		return 0
	}
	return s.pass.Experts.Token() * s.pass.union(s.tokens)
}

// aloneTime is how long a pass takes without help. What the kernel keeps of a trunk that does not fit is gone when the
// next token comes to it, as it was used longest ago. Of experts it keeps what was used last, which finds less than
// hits says. Where a fault reads more around itself than a slice has, most of what is in memory was not asked for.
func (s *setting) aloneTime(hits func(float64) float64) float64 {
	trunk, share := s.split(s.free)
	bytes := 0.0
	if trunk > 0 {
		bytes = float64(s.pass.Trunk)
	}
	if e := s.pass.Experts; e != nil {
		missed := math.Pow(1-share, kernelChance) * math.Pow(1-hits(share), 1-kernelChance)
		found, around := 1-missed, 1.0
		if share < thrashShare {
			found = 0
		}
		if s.machine.Readahead > e.Slice {
			found, around = 0, float64(s.machine.Readahead)/float64(e.Slice)
			bytes = float64(s.pass.Trunk)
		}
		bytes += (1 - found) * s.chosen() * around
	}
	return s.compute + bytes/s.machine.touched()
}

// helpedTime is how long a pass takes with prefetchd, and how many bytes it reads. What is missing of the trunk is read
// ahead while the target computes. Experts are read when their router has chosen them, and the target waits.
func (s *setting) helpedTime(hits func(float64) float64) (seconds, bytes float64) {
	m := s.machine
	trunk, share := s.split(s.keep)
	// The disk and memory are shared (see boundBeside in experiments/pressure), and so are processors if none is left.
	perByte := m.touchTime() / float64(m.Threads)
	if m.DiskBeside > 0 {
		perByte += (1 - 1/max(m.Slowdown, 1)) / m.DiskBeside
	}
	if m.Threads >= m.Processors {
		perByte += m.helperTime()
	}
	seconds = max(trunk/(streamShare*m.streamed()), s.compute+trunk*perByte)
	e := s.pass.Experts
	if e == nil {
		return seconds, trunk
	}
	missed := 1 - hits(share)
	experts := missed * s.chosen()
	slices := experts / float64(e.Slice)
	waits := float64(e.Layers) * (1 - math.Pow(1-missed, float64(e.Chosen)*s.pass.union(s.tokens)))
	fixed, each := m.gatherTimes()
	work := m.helperTime() + m.touchTime()/float64(m.Threads) // for a byte
	seconds += (waits*(fixed+choiceTime) + slices*(each+sliceTime) + experts*work) / streamShare
	return seconds, trunk + experts
}

// gatherTimes are the two parts of the time of a gather: what it takes anyway, and for each slice.
func (m *Machine) gatherTimes() (fixed, each float64) {
	one, all := m.One, m.All
	if one == nil || one.Slices <= 0 {
		return 0, 0
	}
	if all == nil || all.Slices <= one.Slices || all.Time <= one.Time {
		return 0, one.Time.Seconds() / float64(one.Slices)
	}
	each = (all.Time - one.Time).Seconds() / float64(all.Slices-one.Slices)
	return max(one.Time.Seconds()-each*float64(one.Slices), 0), each
}

// leastTime is what nobody can do better who keeps what is found as hits says: the disk reads all the time at its best
// rate, and computing does not wait for it but at the end.
func (s *setting) leastTime(hits func(float64) float64) float64 {
	trunk, share := s.split(s.free)
	return max(s.compute, (trunk+(1-hits(share))*s.chosen())/s.machine.Disk)
}
