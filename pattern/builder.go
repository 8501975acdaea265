package pattern

// This file learns the cycle of a running target, from the events of one llama_context.

import (
	"slices"

	"tensorcast/event"
)

// Builder learns the cycle of one llama_context from its decodes. For each decode, call Begin, then
// Op for each of its ops, then End. To learn what a token reads, give it decodes of one token.
// Decodes of a few tokens have the same sequence, but gather more slices.
//
// It keeps the sequence of the last whole decode, and the shortest times of the consecutive decodes
// that had it. Its memory is bounded by two sequences. It is not safe for concurrent use.
type Builder struct {
	files func(event.FileID) (index int, ok bool)

	open    bool
	step    []CycleRead // of the current decode
	outside Outside     // of the decode under way

	cycle       []CycleRead // of the last whole decode
	steps       int         // consecutive decodes that had this sequence
	lastOutside Outside     // of the last whole decode
}

// Outside is what a decode read of weights that lie outside mapped files, copied there when the
// model was loaded.
type Outside struct {
	Reads int
	Bytes int64
}

// maxReads bounds a sequence. Models of 100 layers have a few thousand reads. A large batch, which
// is cut in several graphs, goes through them several times.
const maxReads = 1 << 15

// maxOutside bounds Outside.Bytes, so that the sum over a decode that never ends does not overflow.
const maxOutside = 1 << 62

// NewBuilder returns a Builder. files returns the index of a file in Cycle.Files. Reads of a file
// for which ok is false are left out.
func NewBuilder(files func(event.FileID) (index int, ok bool)) *Builder {
	return &Builder{files: files}
}

// Begin begins a decode. If one is open, its end was lost, and it is dropped.
func (b *Builder) Begin() { b.open, b.step, b.outside = true, b.step[:0], Outside{} }

// Op adds an op of the current decode. Between decodes it does nothing. It keeps only the strings
// of o.
func (b *Builder) Op(o *event.Op) {
	if !b.open {
		return
	}
	for i := range o.Sources {
		if s := &o.Sources[i]; !s.InFile {
			b.outside.Reads++
			b.outside.Bytes = min(b.outside.Bytes+s.Bytes(), maxOutside)
		}
	}
	ReadsOf(o, func(source int, r CycleRead) bool {
		index, ok := b.files(o.Sources[source].File)
		if !ok {
			return true
		}
		if len(b.step) == maxReads {
			b.open = false
			return false
		}
		r.File = index
		b.step = append(b.step, r)
		return true
	})
}

// End ends the current decode. What it read becomes the cycle, unless it read nothing, or more than
// a sequence may have.
func (b *Builder) End() {
	if !b.open {
		return
	}
	b.open = false
	b.lastOutside = b.outside
	if len(b.step) == 0 {
		return
	}
	if !slices.EqualFunc(b.step, b.cycle, func(x, y CycleRead) bool { return x.matches(&y) }) {
		b.step, b.cycle, b.steps = b.cycle[:0], b.step, 1
		return
	}
	b.steps++
	for i := range b.step {
		now, kept := &b.step[i], &b.cycle[i]
		kept.Slices = now.Slices
		if now.Nanos >= 0 && (kept.Nanos < 0 || now.Nanos < kept.Nanos) {
			kept.Nanos = now.Nanos
		}
	}
}

// Cycle returns what the last whole decode read, with the shortest times of the consecutive decodes
// that had this sequence. It returns nil before the first decode. The caller owns the result, and
// fills in Files.
func (b *Builder) Cycle() *Cycle {
	if b.steps == 0 {
		return nil
	}
	return &Cycle{Reads: slices.Clone(b.cycle)}
}

// Steps returns how many consecutive decodes up to the last had the sequence of Cycle, 0 before the
// first decode.
func (b *Builder) Steps() int { return b.steps }

// Outside returns what the last whole decode read outside files. A weight counts as often as it was
// read.
func (b *Builder) Outside() Outside { return b.lastOutside }
