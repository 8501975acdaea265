package gather

// This file collects how long ops ran, and which of them waited.

import (
	"slices"

	"tensorcast/trace/tables"
)

// op is what the runs of an op on the same weights have in common. Runs count only in steps
// of the collector's phase that compute as many tokens as most do.
type op struct {
	name  string
	runs  int
	bytes int64 // of all runs
	// A run of unstalled did not wait. The time of a run of stalled is without what it waited at least. A run of
	// which that was not observed is in neither, but in unknown.
	unstalled, stalled, unknown runSample
}

// run is how long an op took for so many bytes, and the column of its step in matrices.
type run struct {
	nanos, bytes int64
	column       int32
}

// runSample is every n-th of the runs that were added, so many that they take little memory.
type runSample struct {
	kept        []run
	every, seen int
}

// add adds a run.
func (s *runSample) add(r run) {
	const most = 32
	s.every = max(s.every, 1)
	if s.seen++; (s.seen-1)%s.every != 0 {
		return
	}
	if s.kept = append(s.kept, r); len(s.kept) == 2*most {
		for i := range most {
			s.kept[i] = s.kept[2*i]
		}
		s.kept, s.every = s.kept[:most], 2*s.every
	}
}

// opRun is the run of an op that is under way. It has a row of the access table for each weight that it
// reads, and more of these may come.
type opRun struct {
	step        int // an index of Collector.steps; -1: no op is under way
	tensor      int32
	name        string
	thread      int32
	begin, took int64
	bytes       int64
	stall       int64 // of all threads together, as far as it was observed
	stalls      bool  // it was observed
	counts      bool  // its step is of the collector's phase, and computes as many tokens as most do
	untimed     bool  // its time was not observed
}

// addToOp adds a row to the op that is under way, or ends that op and begins another.
func (c *Collector) addToOp(a *tables.Access, step int) {
	r := &c.current
	if r.step == step && r.begin == a.Timestamp && r.thread == a.Thread && r.name == a.Op {
		r.bytes += a.Bytes
		r.stall += max(a.Stall, 0)
		r.stalls = r.stalls || a.Stall >= 0
		return
	}
	c.endOp()
	s := &c.steps[step].row
	*r = opRun{
		step: step, tensor: a.Tensor, name: a.Op, thread: a.Thread, begin: a.Timestamp, took: a.Duration,
		bytes: a.Bytes, stall: max(a.Stall, 0), stalls: a.Stall >= 0,
		counts: s.Phase == c.phase && s.Tokens == c.usualBatch, untimed: a.Duration < 0,
	}
}

func (c *Collector) endOp() {
	r := &c.current
	if r.step < 0 || !r.counts {
		r.step = -1
		return
	}
	step := &c.steps[r.step]
	defer func() { r.step = -1 }()
	if r.untimed {
		step.lacksTimes = true
		return
	}
	if step.opNanos += r.took; step.opNanos < 0 { // a damaged capture
		step.opNanos, step.lacksTimes = 0, true
		return
	}
	ops := c.ops[r.tensor]
	i := slices.IndexFunc(ops, func(o op) bool { return o.name == r.name })
	if i < 0 {
		i = len(ops)
		ops = append(ops, op{name: r.name})
		c.ops[r.tensor] = ops
	}
	o := &ops[i]
	o.runs++
	o.bytes += r.bytes
	// An op ends when its last thread does. So it is delayed by the whole sum, if one thread waited all of it.
	const little = 0.02
	switch one := (run{r.took, r.bytes, int32(r.step / c.stepsPerColumn)}); {
	case !r.stalls:
		o.unknown.add(one)
	case float64(r.stall) <= little*float64(r.took):
		o.unstalled.add(one)
	default:
		if c.CPUs > 0 {
			one.nanos = max(one.nanos-r.stall/int64(c.CPUs), 0)
		}
		o.stalled.add(one)
	}
}

// shape is what ops have in common that take as long as each other.
type shape struct {
	name, weight string // the op, and the type of its first weight
	bytes        int64  // that it reads; 0 for all ops that read much, which take time in proportion to bytes
}

// fewBytes are so few that an op that reads fewer does not take time in proportion to them.
const fewBytes = 64 << 10

// paces are how long ops of each shape took for a byte.
type paces map[shape][]float64

// add adds a run to those of its shape, and, if it reads much, to those of its kind.
func (p paces) add(s shape, r run) {
	if r.bytes <= 0 {
		return
	}
	pace := float64(r.nanos) / float64(r.bytes)
	s.bytes = r.bytes
	p[s] = append(p[s], pace)
	if r.bytes >= fewBytes {
		s.bytes = 0
		p[s] = append(p[s], pace)
	}
}

// of is the paces of a shape. If no op of the shape was observed, they are those of its kind.
func (p paces) of(s shape) []float64 {
	if len(p[s]) == 0 && s.bytes >= fewBytes {
		s.bytes = 0
	}
	return p[s]
}

// sort sorts all paces.
func (p paces) sort() {
	for _, all := range p {
		slices.Sort(all)
	}
}

// quantile is the pace of which so many percent are faster; 0 of none.
func quantile(sorted []float64, percent int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)*percent/100]
}

// eachOp calls f for each op, with the shape of its runs, whose bytes are their mean, and its first tensor.
func (c *Collector) eachOp(f func(s shape, tensor int32, o *op)) {
	for tensor, all := range c.ops {
		for i := range all {
			o := &all[i]
			bytes := max(o.bytes/int64(o.runs), 1)
			f(shape{name: o.name, weight: c.structure[tensor].Type, bytes: bytes}, int32(tensor), o)
		}
	}
}
