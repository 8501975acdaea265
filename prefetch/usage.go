package prefetch

// This file accounts for what was done, and for what is read beyond what has to be.

import (
	"time"

	"tensorcast/prefetch/lookup"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/room"
)

// work adds up what was done over all cycles that were followed, one after the other.
type work struct {
	tally           // of steps with help
	streamed  int64 // bytes read ahead, for cycles before the present one
	late      int   // visits that the target reached first, in cycles before the present one
	learned   int   // cycles
	stored    bool  // the first of them was stored
	guessed   bool  // the first of them was guessed
	shrunk    int   // times that memory was given back
	taken     int64 // bytes that were kept, and that the kernel took
	swept     int64 // bytes that were paged out unused
	copied    int64 // bytes that were paged out because the target has copied them
	warmed    int64 // bytes that were read back (Options.KeepWarm)
	perToken  int64 // bytes that a token of the last cycle reads
	experts   *mixture.Summary
	tables    *lookup.Summary
	firstHeld time.Time // when the first block was held
	staging   time.Duration
	evicting  time.Duration
}

// add takes over what was done for a cycle that is given up.
func (w *work) add(f *followed) {
	w.perToken = f.schedule.Bytes
	w.streamed += f.streamed
	w.late += f.late
	if f.mixture != nil {
		f.mixture.Forget()
		w.experts = f.mixture.Summary(w.experts)
	}
	if f.tables != nil {
		w.tables = f.tables.Summary(w.tables)
	}
}

// usage is how memory was used when a token ended. A target that is ending frees its own memory: what there
// is room for then says nothing about its tokens.
type usage struct {
	room   room.Room
	window int64
	beyond Beyond
}

func (f *followed) usage() usage { return usage{f.memory.room, f.window.bytes, f.beyond()} }

// Beyond says, in bytes, why more is read for a token than what of the model has no room. Each byte of memory
// that does not hold a part of the model costs a byte of the disk for each token, and so does each byte that
// is read twice.
type Beyond struct {
	// Memory that holds nothing for long, at the end of the help.

	Window   int64 `json:"window"`    // what is read ahead and not yet paged out
	Reserve  int64 `json:"reserve"`   // left free for the target's growth, and because counters are blurred
	LeftFree int64 `json:"left_free"` // left free besides, because the kernel took what was kept
	Own      int64 `json:"own"`       // of this process, if Host.Memory tells it; some is the target's to pay
	Unused   int64 `json:"unused"`    // room for which no block was chosen, or which was taken and not read again yet

	// Bytes per decode.

	Twice int64 `json:"twice"` // of streamed blocks that a token needs again later, by the plan
	Taken int64 `json:"taken"` // kept or read ahead, taken by the kernel before their use, and read again
	Swept int64 `json:"swept"` // read by the target around its faults, or in memory otherwise, and paged out unused
}

// beyond accounts for the cycle that is followed.
func (f *followed) beyond() (b Beyond) {
	b.Window, b.Reserve, b.LeftFree = f.window.bytes, f.memory.room.Margin(), f.memory.margin
	b.Unused = max(min(f.memory.room.Bytes, f.schedule.Bytes)-b.Window-f.heldBytes, 0)
	for block, r := range f.schedule.Blocks {
		if !f.held[block] {
			b.Twice += int64(f.schedule.Uses[block]-1) * r.Length
		}
	}
	if n := int64(f.work.decodes); n > 0 {
		b.Taken, b.Swept = f.work.taken/n, f.work.swept/n
	}
	return b
}
