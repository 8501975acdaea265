package plan

// This file says how large the window is: the bytes that may be read ahead of the target, or wait behind it
// to be paged out. A larger window would be taken from what is held. With a smaller one the disk would wait
// for the target.

import (
	"math"
	"time"

	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/room"
)

const (
	// DefaultWindow is the window where single pages are read. It holds several times what the disk delivers
	// while the slowest part of the loop runs.
	DefaultWindow = 16 << 20
	// FirstPace is taken for the time between two looks of the loop until that was measured.
	FirstPace = time.Millisecond

	// opBlocks, or an opShare of what a token reads, bounds the part of the window that is for the ops under
	// way. What a large weight such as output.weight has behind it is paged out while it is still being read.
	// That comes in steps, and late where the target runs ahead: a model of 4 GB, of whose ops 16 blocks
	// stream, was 1.27 times as fast with 24 blocks as with 14.
	opBlocks = 8
	opShare  = 96
)

// Keepable is how many bytes of a model can be kept in a room while the rest is streamed.
func Keepable(r room.Room) int64 {
	bytes := r.Bytes - r.Margin()
	return max(bytes-BoundWindow(bytes, DefaultWindow), 0)
}

// BoundWindow bounds a window in a room. It is at most a quarter of the room, or what is left beside 32 MiB
// if that is more, but never more than half. If it is smaller than what the ops under way need, the target
// overtakes it.
func BoundWindow(room, window int64) int64 {
	return max(min(window, max(room/4, min(room/2, room-32<<20))), 0)
}

// Window is the window for a schedule in blocks of large folios: what is streamed of the op under way and of
// the next one, and busy blocks that keep the disk at work (see BusyBlocks). room and block are bytes.
func (s *Schedule) Window(room, block, busy int64) int64 {
	var largest int64
	for _, r := range s.Reads {
		largest = max(largest, r.Length)
	}
	share := 1 - float64(max(room-DefaultWindow, 0))/float64(s.Bytes)
	blocks := int64(math.Ceil(max(share, 0) * float64(largest) / float64(block)))
	return BoundWindow(room, (min(2*blocks, max(opBlocks, s.Bytes/opShare/block))+busy)*block)
}

// BusyBlocks is how many blocks are being read, or wait for that, besides those of the ops that the window is
// for: as many as are read at once, what a disk of perSecond bytes per second delivers between two looks of
// the loop, and one. The loop gets a processor only now and then beside the target's threads.
func BusyBlocks(atOnce int, perSecond float64, pace time.Duration, block int64) int64 {
	return int64(atOnce) + int64(math.Ceil(perSecond*pace.Seconds()/float64(block))) + 1
}

// LeadBlocks is how many blocks lie at least between a block that the target is through with and one that it
// has touched, within the op that reads both. ggml's threads take the rows of a weight in chunks, in order
// (ggml_compute_forward_mul_mat), so all of them are close together.
const LeadBlocks = 2

// Lead is how many bytes the target has to be ahead of a block, within one op, until the block leaves the
// window. It is without bound where blocks are smaller than the unit in which pages are read: then the op has
// to be over.
func Lead(block, unit int64) int64 {
	if block < unit {
		return math.MaxInt64
	}
	return LeadBlocks * block
}

// minTimed is the least length of a read, in bytes, whose time goes by its bytes.
const minTimed = pages.MinBlock
