// Package reuse tells what memory of any size would have to read again of a sequence of reads: with
// LRU, exactly and for all sizes at once; with random replacement; with a set that never changes;
// and with Belady's rule, which knows the future.
//
// Memory is counted in blocks: parts of files of one size (a folio), or tensors and experts as they
// lie (extents). What reading costs beside bytes (faults, readahead beyond what is asked for, page
// tables) is not in it.
package reuse

// This file makes a sequence of blocks of reads.

import (
	"fmt"
	"math"
)

// Sequence is what a program reads: blocks, in order, in steps. It is made with New, then filled by
// one goroutine, and may then be read by several.
type Sequence struct {
	granule int64
	files   []int64
	group   int

	index map[place]int32
	sizes []int64 // of each block
	uses  []int32 // reads of blocks, in order
	steps []int   // of uses, where each step begins
	added int     // calls of Step
	seen  []int32 // of each block, the step that used it last, + 1; for groups
}

type place struct {
	file  int32
	first int64
	bytes int64 // of extents, of which two may begin at one place
}

// maxUses bounds a sequence: with 32-bit numbers of uses.
const maxUses = math.MaxInt32

// New returns an empty sequence. Granule is the size of blocks in bytes; 0 takes reads as they are
// (extents). Files are the files' sizes, which cut the last block of each. Group is how many steps
// compute at once, and then read each block once (speculative decoding, or a batch); at least 1.
func New(granule int64, files []int64, group int) *Sequence {
	return &Sequence{granule: max(granule, 0), files: files, group: max(group, 1), index: map[place]int32{}}
}

// Step begins the next step.
func (s *Sequence) Step() {
	if s.added%s.group == 0 {
		s.steps = append(s.steps, len(s.uses))
	}
	s.added++
}

// Read adds a read of so many bytes at an offset of a file. The same block twice in a row is one
// read. It fails if the sequence becomes too long, or no step has begun.
func (s *Sequence) Read(file int32, offset, bytes int64) error {
	switch {
	case len(s.steps) == 0:
		return fmt.Errorf("a read before the first step")
	case file < 0 || offset < 0 || bytes < 0 || offset > math.MaxInt64-bytes:
		return fmt.Errorf("a read of %d bytes at %d of file %d", bytes, offset, file)
	case bytes == 0:
		return nil
	case s.granule == 0:
		return s.use(place{file, offset, bytes}, bytes)
	}
	for block := offset / s.granule; block*s.granule < offset+bytes; block++ {
		size := s.granule
		if int(file) < len(s.files) && s.files[file] > block*s.granule {
			size = min(size, s.files[file]-block*s.granule)
		}
		if err := s.use(place{file: file, first: block}, size); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sequence) use(at place, size int64) error {
	block, ok := s.index[at]
	if !ok {
		block = int32(len(s.sizes))
		s.index[at] = block
		s.sizes, s.seen = append(s.sizes, size), append(s.seen, 0)
	}
	step := int32(len(s.steps))
	if s.group > 1 && s.seen[block] == step {
		return nil
	}
	s.seen[block] = step
	if n := len(s.uses); n > s.steps[step-1] && s.uses[n-1] == block {
		return nil
	}
	if len(s.uses) == maxUses {
		return fmt.Errorf("more than %d reads", maxUses)
	}
	s.uses = append(s.uses, block)
	return nil
}

// Steps is how many steps there are; groups of them count once, and one that is not full does, too.
func (s *Sequence) Steps() int { return len(s.steps) }

// Blocks is how many different blocks are read.
func (s *Sequence) Blocks() int { return len(s.sizes) }

// WorkingSet is how many bytes these have.
func (s *Sequence) WorkingSet() (bytes int64) {
	for _, size := range s.sizes {
		bytes += size
	}
	return bytes
}

// PerStep is how many bytes a step reads, on average from a step on: without any memory all of them
// come from disk.
func (s *Sequence) PerStep(from int) float64 {
	var bytes int64
	for _, b := range s.uses[s.begin(from):] {
		bytes += s.sizes[b]
	}
	return s.perStep(bytes, from)
}

// begin is the first use of a step.
func (s *Sequence) begin(step int) int {
	if step >= len(s.steps) {
		return len(s.uses)
	}
	return s.steps[max(step, 0)]
}

func (s *Sequence) perStep(bytes int64, from int) float64 {
	n := len(s.steps) - max(from, 0)
	if n <= 0 {
		return 0
	}
	return float64(bytes) / float64(n)
}
