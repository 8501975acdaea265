package gather

// This file estimates how long a step's ops take when they wait for nothing.

import (
	"fmt"
	"slices"
	"time"

	"tensorcast/trace/tables"
)

// Compute is how long a step takes if it waits for nothing. The zero value says that this is not known.
type Compute struct {
	Expected time.Duration
	// Least and Most are its bounds, which are near to each other as far as ops ran without waiting. Least is 0 if
	// nothing bounds it.
	Least, Most time.Duration
	// Told is the share of the bytes that a step's ops read of which runs without waiting told the time.
	Told float64
	// Observed says that it was observed which ops waited.
	Observed bool
}

// mostTold is the Told from which on what is not known is a small part of a range.
const mostTold = 0.9

// Computing is a Compute that is known.
func Computing(d time.Duration) Compute {
	return Compute{Expected: d, Least: d, Most: d, Told: 1, Observed: true}
}

// Source says how Expected is known.
func (c Compute) Source() string {
	if !c.Observed {
		return "the sum over the ops, each as fast as the fastest of its kind; tracer --detail op+io tells which of them " +
			"waited for the disk"
	}
	text := "the sum over the ops, each as fast as the fastest quarter of those of its shape that did not wait"
	r := Range{c.Least.Seconds(), c.Most.Seconds()}
	if !r.isWide() {
		return text
	}
	if c.Told > mostTold {
		return fmt.Sprintf("%s; from %s to %s, as these took different times", text, millisText(r.Least),
			millisText(r.Most))
	}
	bound := "at most " + millisText(r.Most)
	if r.Least > 0 {
		bound = fmt.Sprintf("from %s, in which memory delivers the bytes, to %s", millisText(r.Least),
			millisText(r.Most))
	}
	return fmt.Sprintf("%s; %s, as the weights of ops of %.0f %% of the bytes came from disk in all steps", text, bound,
		100*(1-c.Told))
}

// What is taken of many runs, in percent. Other work on the machine makes runs slow, and pages that are mapped for the
// first time do. Nothing makes them fast but a time that was not taken right.
const (
	fastUnstalled = 25
	fastStalled   = 25
	fastUnknown   = 2 // most of these may have waited
	fastRest      = 25
	// The range of runs that did not wait. Where the machine did nothing else they take nearly the same time.
	fastestUnstalled = 10
	usualUnstalled   = 50
)

const (
	// fewRuns are too few to be believed if memory is slower.
	fewRuns = 4
	// usualShare is which share of what memory delivers a product of a matrix and a vector reads, if nothing else is
	// known of it.
	usualShare = 0.8
)

// Compute estimates how long a step of the collector's phase takes if it waits for nothing. It is the sum over the
// step's ops, and the time that steps spent outside of ops. It is zero if times were not observed. memoryRate is how
// many bytes per second all processors of the machine read from memory; 0 if that is not known.
//
// Where runs of an op did not wait, or of others of its shape (the same name, type of weight and bytes), it takes
// as long as the fastest quarter of these. Its bounds are the fastest tenth and the median. Else it is compared by time
// per byte with ops of its kind, which read other numbers of bytes. If all of these waited, it is not known how long
// the op computes. Then Least is the time in which memory delivers the bytes, Most is what the fastest quarter of the
// runs took, without what they waited at least, and Expected is between them. An op that waits for memory cannot be
// faster than Least, so neither is one of which only few runs did not wait.
//
// A run counts as waiting, too, if its weight came from disk in the same step. Readahead may have read it before a
// thread had to wait. But to ask for it, to make room for it and to map its pages is work of the kernel in the same
// threads, and takes several times as long as the op.
//
// How long threads waited is known as a sum over the threads. An op waited for at least that sum divided by the number
// of processors (Collector.CPUs). It may have waited for all of it, and the kernel's work for each page is not in it.
// So that is no estimate of how long it computes, but a bound.
func (c *Collector) Compute(memoryRate float64) Compute {
	c.endOp()
	steps := 0
	var rest []int64 // of each step, ns
	for i := range c.steps {
		s := &c.steps[i]
		if s.opNanos == 0 {
			continue
		}
		steps++
		if !s.lacksTimes && s.row.End != tables.NotObserved && s.row.End > s.row.Begin {
			rest = append(rest, max(s.row.End-s.row.Begin-s.opNanos, 0))
		}
	}
	if steps == 0 {
		return Compute{}
	}
	unstalled, stalled, unknown := paces{}, paces{}, paces{}
	c.eachOp(func(s shape, tensor int32, o *op) {
		fromDisk := c.fromDisk.rows[tensor]
		for _, r := range o.unstalled.kept {
			if fromDisk != nil && fromDisk[r.column] > 0 {
				stalled.add(s, r)
			} else {
				unstalled.add(s, r)
			}
		}
		for _, r := range o.stalled.kept {
			stalled.add(s, r)
		}
		for _, r := range o.unknown.kept {
			unknown.add(s, r)
		}
	})
	unstalled.sort()
	stalled.sort()
	unknown.sort()
	var least, expected, most, told, all float64 // ns per step, and bytes
	isBounded := true
	c.eachOp(func(s shape, _ int32, o *op) {
		perStep := float64(o.bytes) / float64(steps)
		byMemory := 0.0 // ns for a byte
		if memoryRate > 0 && s.bytes >= fewBytes {
			byMemory = 1e9 / memoryRate
		}
		all += perStep
		if runs := unstalled.of(s); len(runs) > 0 {
			bound := 0.0
			if len(runs) < fewRuns {
				bound = byMemory
			}
			least += perStep * max(quantile(runs, fastestUnstalled), bound)
			expected += perStep * max(quantile(runs, fastUnstalled), bound)
			most += perStep * max(quantile(runs, usualUnstalled), bound)
			told += perStep
			return
		}
		slow := quantile(stalled.of(s), fastStalled)
		if len(stalled.of(s)) == 0 { // all of a shape may have waited, and others of its kind not
			slow = quantile(unknown.of(s), fastUnknown)
			if s.bytes >= fewBytes {
				slow = min(slow, quantile(unknown[shape{name: s.name, weight: s.weight}], fastUnknown))
			}
		}
		slow = max(slow, byMemory)
		isBounded = isBounded && (byMemory > 0 || s.bytes < fewBytes)
		likely := slow
		if byMemory > 0 {
			likely = min(slow, byMemory/usualShare)
		}
		least, expected, most = least+byMemory*perStep, expected+likely*perStep, most+slow*perStep
	})
	if slices.Sort(rest); len(rest) > 0 {
		outside := float64(rest[len(rest)*fastRest/100])
		least, expected, most = least+outside, expected+outside, most+outside
	}
	if !isBounded {
		least = 0
	}
	const longest = 1 << 62
	return Compute{
		Expected: time.Duration(min(expected, longest)), Least: time.Duration(min(least, longest)),
		Most: time.Duration(min(most, longest)), Told: told / max(all, 1),
		Observed: c.hasStall,
	}
}
