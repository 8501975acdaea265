package ebpf

// This file adds up what the programs count: hits, ops that were sent, and every kind of loss.

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"tensorcast/event"
)

// countMissed adds up the hits for which the kernel did not run the programs.
func (t *Tracer) countMissed() {
	sum := uint64(0)
	for _, p := range []*ebpf.Program{
		t.objs.Op, t.objs.FusedOp, t.objs.GraphBegin, t.objs.GraphEnd, t.objs.DecodeBegin, t.objs.DecodeEnd,
	} {
		if stats, err := p.Stats(); err == nil {
			sum += stats.RecursionMisses
		}
	}
	t.missed.Store(sum)
}

// Counters reads the programs' counters. The sums are exact once the target has stopped. It may be
// called concurrently with Run.
func (t *Tracer) Counters() (event.Counters, error) {
	t.countMissed()
	sum := traceCounts{}.Of
	// Read the per-thread counts first: a thread that concurrently flushes its counts into the
	// counters may be counted twice, but never omitted.
	if err := t.addThreadCounts(&sum); err != nil {
		return event.Counters{}, err
	}
	var perCPU []traceCounts
	if err := t.objs.Counters.Lookup(uint32(0), &perCPU); err != nil {
		return event.Counters{}, fmt.Errorf("read the counters: %w", err)
	}
	for _, counts := range perCPU {
		for i := range sum {
			sum[i] += counts.Of[i]
		}
	}
	return event.Counters{
		Hits:         sum[traceCounterCOUNT_HITS],
		OtherThreads: sum[traceCounterCOUNT_OTHER_THREADS],
		NoWeight:     sum[traceCounterCOUNT_NO_WEIGHT],
		OpsSent:      sum[traceCounterCOUNT_SENT],
		OpsLost:      sum[traceCounterCOUNT_LOST],
		Unfinished:   sum[traceCounterCOUNT_BEGUN] - sum[traceCounterCOUNT_SENT] - sum[traceCounterCOUNT_LOST],
		Received:     t.received.Load(),
		OthersLost:   sum[traceCounterCOUNT_OTHERS_LOST],
		Faults:       sum[traceCounterCOUNT_FAULTS],
		Unresolved:   t.unresolved.Load(),
		Clipped:      sum[traceCounterCOUNT_CLIPPED] + t.incomplete.Load(),
		Misses:       t.missed.Load(),
		PagesSent:    sum[traceCounterCOUNT_PAGES_SENT],
		PagesLost:    sum[traceCounterCOUNT_PAGES_LOST],
		InputsSent:   sum[traceCounterCOUNT_INPUTS_SENT],
		InputsLost:   sum[traceCounterCOUNT_INPUTS_LOST],
	}, nil
}

// addThreadCounts adds what threads have counted and not yet added to the programs' counters.
func (t *Tracer) addThreadCounts(sum *[traceCounterCOUNTERS]uint64) error {
	var th traceThread
	add := func() {
		sum[traceCounterCOUNT_HITS] += uint64(th.Hits)
		sum[traceCounterCOUNT_NO_WEIGHT] += uint64(th.NoWeight)
		sum[traceCounterCOUNT_BEGUN] += uint64(th.Begun)
	}
	for i := range t.objs.Slots.MaxEntries() {
		if err := t.objs.Slots.Lookup(i, &th); err != nil {
			return fmt.Errorf("read the counters of a thread: %w", err)
		}
		add()
	}
	var id uint64
	threads := t.objs.Threads.Iterate()
	for threads.Next(&id, &th) {
		add()
	}
	if err := threads.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read the counters of a thread: %w", err)
	}
	return nil
}
