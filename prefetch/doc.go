// Package prefetch keeps the right bytes of a model file in memory for a llama.cpp that does not know of it.
//
// Decoding is a cyclic scan: every token reads the same weights in the same order. A cache that is smaller
// than the cycle, and evicts what was used least recently, holds nothing that is needed next. So a share of
// the weights is held in memory, spread evenly over the file, and the rest is streamed: it is read into the
// page cache just before its use, and paged out just behind it. That reaches M - R bytes per token, Belady's
// minimum, less the window that is under way.
//
// The [Controller] is the control loop. It is fed with the target's events and with ticks. At any time it is
// in one [Phase], and each phase is one file (phase_learn.go, phase_load.go, ...). The phases work on what
// they share: the [session] of a target, and in it the cycle that is [followed].
//
// What the loop builds on has packages of its own: pages has the levers on the page cache, plan says what to
// hold, room says how much memory there is, follow knows where the target is in its cycle, models finds the
// model's files, and mixture does what has to be done for experts. The clock and the levers are injected, so
// that package sim can run the loop in virtual time.
//
// Words that are used throughout:
//
//   - cycle: the extents of the model's files that one token reads, in order.
//   - block: a part of a file that is held or streamed as a whole, of 1 or 2 MiB.
//   - visit: an uninterrupted use of a block, from its first read to its last. A token may visit a block several times.
//   - wanted: the plan says that the block is to be held.
//   - held: the block is in memory, as far as is known, and is not paged out behind the target. It is either kept, so
//     that the kernel may take it, or locked.
//   - staged: the block was read ahead and waits for its visit to be over.
//   - borrowed: a part of the model that is in memory, and for which another control group pays. It costs the target's
//     group nothing, and is left as it is.
//   - hot: an expert that was chosen so often before, in the last run of the model, that it has room.
//   - window: the bytes that may be staged.
//   - plain token: one that the target computes without help.
//   - glance: a part of a token that is left to the target.
//
// Events are those of package event. How they are captured is not known here.
//
// Everything runs in the one goroutine that calls Controller's methods. None of the types is safe for
// concurrent use.
package prefetch
