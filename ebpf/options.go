package ebpf

// This file holds what a Tracer can be asked for, and what follows from it: the sizes of the
// programs' maps, how many ops are sent together, and when the reader is woken.

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"
)

// Options of a Tracer.
type Options struct {
	// The target.

	// PID is the process that is traced.
	PID int
	// Follow also traces processes that the target starts.
	Follow bool
	// Program is a program that AttachLikely will be called for. What it is likely to load is
	// scanned while New loads the programs into the kernel.
	Program Program
	// Hints are files that the target may map (arguments of its command). They serve to find the
	// model file's path if the target ends before its memory map could be read.
	Hints []string

	// What is reported.

	// Detail is how closely the target is observed.
	Detail Detail
	// Buffers also reports tensors that are no weights (Op.Buffers), and ops that read no weight.
	Buffers bool
	// Selected asks for event.Selected: which experts a layer is about to read. DetailGraph does
	// not see them. Ops are then sent one by one, so that events arrive in the order in which they
	// happened.
	Selected bool
	// Lookups asks for event.Lookup of tables of at least so many bytes; 0 means none. Ops are then sent
	// one by one. With DetailGraph, which costs the target less, it comes when the graph begins.
	Lookups int64
	// Inputs asks for event.RouterInput of one in so many tokens; 0 means none. Two things are
	// counted: decodes of one token, starting with the first, and the rows of a batch, starting
	// with the last. A row that has more than 65536 values, or values other than float32, counts as
	// lost. Like Selected, this needs another detail than DetailGraph and has ops sent one by one.
	Inputs int
	// InputRows is the largest number of tokens of a batch whose inputs are reported, at equal
	// distances; 0 means 64.
	InputRows int

	// When events are delivered.

	// Interval bounds how long an event waits in the ring buffer. The reader is woken earlier only
	// when an eighth of the buffer is full. 0 means one second. Run calls Tick at this interval,
	// after the pending events.
	Interval time.Duration
	// Tick is called by Run; its error ends Run.
	Tick func() error
	// Pause, if not nil, is asked for the time until the next Tick, instead of Interval. A caller
	// that has nothing to do without events may let Run sleep. Events then wait as long. Two things
	// end the wait early: the first op that reads a file, and a ring buffer that is an eighth full.
	Pause func() time.Duration
	// AtOnce wakes the reader for each event.Selected, for each event.Lookup of more than one row, and
	// once for a layer's event.RouterInput, before Interval or Pause is over. Tick is not called more
	// often for it, but Pause is asked again, because an event may make Tick due earlier.
	AtOnce bool

	// What it costs.

	// RingBytes is the size of the ring buffer, a power of two; 0 means 8 MiB, or 512 KiB with Small.
	RingBytes uint32
	// Small sizes the maps for a helper that has little memory and reads the ring buffer every few
	// milliseconds: about 3 MiB of kernel memory instead of 20. Losses are still counted. What does
	// not fit is looked up again. This takes time if a target's graphs have more than 8192 nodes in
	// total, or if more than 96 threads decode.
	Small bool
	// PerfEvents attaches through perf events even if the kernel has uprobe_multi (Linux 6.6).
	PerfEvents bool
	// Log receives debugging messages and warnings; nil discards them.
	Log *slog.Logger

	// For tests.

	// templates is the number of nodes that are remembered, a power of two; 0 means the default for
	// Small.
	templates uint32
	// pollFrom is the wait from which on Run uses epoll; 0 means minPoll.
	pollFrom time.Duration
}

// Program is a program that is about to run.
type Program struct {
	Path string // empty: there is none
	Env  []string
}

// Detail is how closely a target is observed. More detail costs the target more time.
type Detail int

const (
	// DetailOp reports each op with its duration.
	DetailOp Detail = iota
	// DetailGraph has one hit per graph. It reports the sequence of ops, without their durations
	// and without the selected experts.
	DetailGraph
	// DetailIO reports what DetailOp does, how long each op waited for the disk, and each page of a
	// model file that was read from disk.
	DetailIO
)

const (
	defaultInterval  = time.Second
	defaultInputRows = 64 // enough of a prompt to learn from, and it fits the ring buffer many times
)

// check refuses options that contradict each other.
func (o *Options) check() error {
	if (o.Selected || o.Inputs != 0) && o.Detail == DetailGraph {
		return errors.New("what routers read and choose is not seen in whole graphs: observe ops")
	}
	if o.Lookups < 0 {
		return fmt.Errorf("lookups in tables of %d bytes: want 0 or more", o.Lookups)
	}
	if o.Inputs < 0 || o.InputRows < 0 || o.Inputs > math.MaxInt32 || o.InputRows > math.MaxInt32 {
		return fmt.Errorf("routers' inputs for one in %d tokens, and for %d of a batch: want 0 or more", o.Inputs,
			o.InputRows)
	}
	return nil
}

// mapSizes returns the numbers of entries of the maps whose size differs from the compiled one.
// Small has fewer entries. Maps that this detail does not use get one entry. For the ring buffer
// the number is its size in bytes.
func (o *Options) mapSizes() map[string]uint32 {
	n := map[string]uint32{}
	if o.Small {
		n = map[string]uint32{
			traceMapEvents: 512 << 10, traceMapThreads: 32, traceMapTemplates: 8192, traceMapNodes: 8192,
			traceMapShapes: 32, traceMapRecentGraphs: 64,
		}
	}
	if o.RingBytes != 0 {
		n[traceMapEvents] = o.RingBytes
	}
	if o.templates != 0 {
		n[traceMapTemplates], n[traceMapNodes] = o.templates, o.templates
	}
	if o.Detail == DetailGraph {
		n[traceMapTemplates], n[traceMapNodes] = 1, 1
	} else {
		n[traceMapShapes], n[traceMapRecentGraphs] = 1, 1
	}
	return n
}

// opsPerEvent is how many ops are sent together. It is one if somebody waits for them, or if their
// order with other events matters.
func (o *Options) opsPerEvent() uint32 {
	if o.Interval < 100*time.Millisecond || o.Detail == DetailIO || o.Buffers || o.reportsEarly() {
		return 1
	}
	return uint32(len(traceOpsEvent{}.Ops))
}

// reportsEarly reports whether anything is to be reported before the op that reads it runs.
func (o *Options) reportsEarly() bool { return o.Selected || o.Inputs != 0 || o.Lookups != 0 }

// wakeAt is the fill level in bytes at which the programs wake the reader.
func wakeAt(ringBytes uint32) uint64 { return uint64(ringBytes) / 8 }
