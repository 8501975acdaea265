package gather

// This file estimates how long a step's ops take when they wait for nothing.

import (
	"slices"
	"time"

	"tensorcast/trace/tables"
)

// op is what the runs of an op on the same weights have in common. Runs count only in steps
// of the collector's phase that compute as many tokens as most do.
type op struct {
	name     string
	bytes    int64 // of all weights that the op reads: the most of any run
	runs     int
	shortest int64 // the shortest run, ns, without what it waited at least
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
	counts      bool  // its step is of the collector's phase, and computes as many tokens as most do
	untimed     bool  // its time was not observed
}

// addToOp adds a row to the op that is under way, or ends that op and begins another.
func (c *Collector) addToOp(a *tables.Access, step int) {
	r := &c.current
	if r.step == step && r.begin == a.Timestamp && r.thread == a.Thread && r.name == a.Op {
		r.bytes += a.Bytes
		r.stall += max(a.Stall, 0)
		return
	}
	c.endOp()
	s := &c.steps[step].row
	*r = opRun{
		step: step, tensor: a.Tensor, name: a.Op, thread: a.Thread, begin: a.Timestamp, took: a.Duration,
		bytes: a.Bytes, stall: max(a.Stall, 0),
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
	r.step = -1
	if r.untimed {
		step.lacksTimes = true
		return
	}
	if step.opNanos += r.took; step.opNanos < 0 { // a damaged capture
		step.opNanos, step.lacksTimes = 0, true
		return
	}
	took := r.took
	if c.CPUs > 0 {
		took = max(took-r.stall/int64(c.CPUs), 0)
	}
	ops := c.ops[r.tensor]
	i := slices.IndexFunc(ops, func(o op) bool { return o.name == r.name })
	if i < 0 {
		i = len(ops)
		ops = append(ops, op{name: r.name, shortest: took})
		c.ops[r.tensor] = ops
	}
	o := &ops[i]
	o.runs++
	o.bytes, o.shortest = max(o.bytes, r.bytes), min(o.shortest, took)
}

// Compute estimates how long a step of the collector's phase takes if it waits for nothing. It is the sum over the
// step's ops, and the least time that any step spent outside of ops. It is 0 if times were not observed.
//
// An op takes as long as its fastest run, or as the fastest fiftieth of the ops of its kind, if that is
// less. So an op whose weights are never in memory when it needs them is judged by others. Ops of a kind
// have the same name and type of weight. They are compared by time per byte, or, if they read few bytes,
// with ops that read as many.
//
// How long threads waited is known as a sum over the threads. An op waited for at least that sum divided
// by the number of processors. This is taken from its time if Collector.CPUs is known.
func (c *Collector) Compute() time.Duration {
	c.endOp()
	const (
		few     = 64 << 10 // ops that read fewer bytes do not take time in proportion to them
		fastest = 50       // the fastest one in fifty
	)
	type kind struct {
		name, weight string
		bytes        int64 // 0 if time is in proportion to bytes
	}
	kindOf := func(tensor int32, o *op) kind {
		k := kind{name: o.name, weight: c.structure[tensor].Type}
		if o.bytes < few {
			k.bytes = max(o.bytes, 1)
		}
		return k
	}
	// per is what the times of a kind are divided by to compare them.
	per := func(k kind, o *op) float64 {
		if k.bytes > 0 {
			return 1
		}
		return float64(o.bytes)
	}
	paces := map[kind][]float64{}
	steps, rest := 0, int64(-1)
	for i := range c.steps {
		s := &c.steps[i]
		if s.opNanos == 0 {
			continue
		}
		steps++
		if !s.lacksTimes && s.row.End != tables.NotObserved && s.row.End > s.row.Begin {
			if r := max(s.row.End-s.row.Begin-s.opNanos, 0); rest < 0 || r < rest {
				rest = r
			}
		}
	}
	if steps == 0 {
		return 0
	}
	for tensor, all := range c.ops {
		for i := range all {
			k := kindOf(int32(tensor), &all[i])
			paces[k] = append(paces[k], float64(all[i].shortest)/per(k, &all[i]))
		}
	}
	for _, all := range paces {
		slices.Sort(all)
	}
	sum := float64(max(rest, 0))
	for tensor, all := range c.ops {
		for i := range all {
			o := &all[i]
			k := kindOf(int32(tensor), o)
			took := min(float64(o.shortest), paces[k][len(paces[k])/fastest]*per(k, o))
			sum += took * float64(o.runs) / float64(steps)
		}
	}
	const longest = 1 << 62
	return time.Duration(min(sum, longest))
}
