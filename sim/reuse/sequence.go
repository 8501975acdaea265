// Package reuse computes how many bytes of a sequence of reads would come from disk with memory of
// any size. It knows several policies: LRU, exactly and for all sizes at once; random replacement;
// a set that never changes; and Belady's rule, which knows the future.
//
// Memory is counted in blocks. These are parts of files of one size (a folio), or whole tensors and
// experts (extents). Other costs of reading (faults, page tables) are not included.
package reuse

// This file turns reads into a sequence of blocks.

import (
	"fmt"
	"math"
)

// Sequence is what a program reads: blocks, in order, in steps. Make it with New. One goroutine
// fills it, and then several may read it.
type Sequence struct {
	granule int64
	files   []int64
	group   int

	index      map[blockKey]int32
	sizes      []int64  // of each block
	uses       []int32  // the blocks that are read, in order
	steps      []int    // where each step begins in uses
	stepsAdded int      // calls of Step
	lastStep   []int32  // by block, 1 + the last step that used it
	seen       []uint64 // by block, the parts of it that were read since its last use; see partsOf
}

type blockKey struct {
	file  int32
	first int64
	bytes int64 // only of extents, because two may begin at the same offset
}

// maxUses bounds a sequence, because uses have 32-bit numbers.
const maxUses = math.MaxInt32

// New returns an empty sequence. granule is the size of blocks in bytes. With 0, each read is a
// block as it is (extents). files are the files' sizes, at which the last block of each ends. group
// is how many steps compute at once, and then read each block only once (speculative decoding, or a
// batch). It is at least 1.
func New(granule int64, files []int64, group int) *Sequence {
	return &Sequence{granule: max(granule, 0), files: files, group: max(group, 1), index: map[blockKey]int32{}}
}

// Step begins the next step.
func (s *Sequence) Step() {
	if s.stepsAdded%s.group == 0 {
		s.steps = append(s.steps, len(s.uses))
	}
	s.stepsAdded++
}

// Read adds a read of so many bytes at an offset of a file. Consecutive reads of the same block
// count once. So do reads of different parts of a block in one step: two tensors that share a folio are two reads of
// half of it each, and to count the folio for both would say that a step reads more than there is. It fails if the
// sequence becomes too long, or if no step has begun.
func (s *Sequence) Read(file int32, offset, bytes int64) error {
	switch {
	case len(s.steps) == 0:
		return fmt.Errorf("a read before the first step")
	case file < 0 || offset < 0 || bytes < 0 || offset > math.MaxInt64-bytes:
		return fmt.Errorf("a read of %d bytes at %d of file %d", bytes, offset, file)
	case bytes == 0:
		return nil
	case s.granule == 0:
		return s.addUse(blockKey{file, offset, bytes}, bytes, allParts)
	}
	for block := offset / s.granule; block*s.granule < offset+bytes; block++ {
		size := s.granule
		if int(file) < len(s.files) && s.files[file] > block*s.granule {
			size = min(size, s.files[file]-block*s.granule)
		}
		from := max(offset-block*s.granule, 0)
		to := min(offset+bytes-block*s.granule, s.granule)
		if err := s.addUse(blockKey{file: file, first: block}, size, s.partsOf(from, to)); err != nil {
			return err
		}
	}
	return nil
}

// allParts are all parts of a block.
const allParts = math.MaxUint64

// partsOf are those of a block's 64 parts, as bits, that lie within from and to, which are bytes from its beginning.
func (s *Sequence) partsOf(from, to int64) uint64 {
	each := (s.granule + 63) / 64
	first, end := (from+each-1)/each, to/each
	if first >= end {
		return 0
	}
	return (allParts >> (64 - (end - first))) << first
}

// addUse adds a use of a block whose parts are read.
func (s *Sequence) addUse(at blockKey, size int64, parts uint64) error {
	block, ok := s.index[at]
	if !ok {
		block = int32(len(s.sizes))
		s.index[at] = block
		s.sizes, s.lastStep, s.seen = append(s.sizes, size), append(s.lastStep, 0), append(s.seen, 0)
	}
	step := int32(len(s.steps))
	if s.lastStep[block] == step {
		isAgain := s.seen[block]&parts != 0 || s.granule == 0
		isLast := s.uses[len(s.uses)-1] == block
		if s.group > 1 || isLast || !isAgain {
			s.seen[block] |= parts
			return nil
		}
	}
	s.lastStep[block], s.seen[block] = step, parts
	if len(s.uses) == maxUses {
		return fmt.Errorf("more than %d reads", maxUses)
	}
	s.uses = append(s.uses, block)
	return nil
}

// Steps returns how many steps there are. A group counts once, even if it is not full.
func (s *Sequence) Steps() int { return len(s.steps) }

// Group returns how many of the steps that were added compute at once.
func (s *Sequence) Group() int { return s.group }

// Blocks returns how many different blocks are read.
func (s *Sequence) Blocks() int { return len(s.sizes) }

// WorkingSet returns how many bytes the different blocks have.
func (s *Sequence) WorkingSet() (bytes int64) {
	for _, size := range s.sizes {
		bytes += size
	}
	return bytes
}

// PerStep returns how many bytes a step reads, averaged over the steps from one on. Without any
// memory all of them come from disk.
func (s *Sequence) PerStep(from int) float64 {
	var bytes int64
	for _, b := range s.uses[s.firstUse(from):] {
		bytes += s.sizes[b]
	}
	return s.averagePerStep(bytes, from)
}

// firstUse returns the first use of a step, as an index of uses.
func (s *Sequence) firstUse(step int) int {
	if step >= len(s.steps) {
		return len(s.uses)
	}
	return s.steps[max(step, 0)]
}

func (s *Sequence) averagePerStep(bytes int64, from int) float64 {
	n := len(s.steps) - max(from, 0)
	if n <= 0 {
		return 0
	}
	return float64(bytes) / float64(n)
}
