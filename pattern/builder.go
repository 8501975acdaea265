package pattern

// This file learns the cycle of a running target, from the events of one llama_context.

import (
	"slices"

	"tensorcast/event"
)

// Builder learns the cycle of one llama_context from its decodes: for each, call Begin, Op for each
// of its ops, and End. To learn what a token reads, give it decodes of one token; those of a few
// teach the same sequence, but more slices gathered.
//
// It keeps the last sequence that a whole decode had, and of the decodes in a row that had it the
// least times. Its memory is bounded by two sequences. It is not safe for concurrent use.
type Builder struct {
	files func(event.FileID) (index int, ok bool)

	open    bool
	step    []CycleRead // of the decode under way
	outside Outside     // of the decode under way

	cycle       []CycleRead // of the last whole decode
	steps       int         // in a row, that had this sequence
	lastOutside Outside     // of the last whole decode
}

// Outside is what a decode read of weights that lie outside mapped files, copied there when the
// model was loaded.
type Outside struct {
	Reads int
	Bytes int64
}

// maxReads bounds a sequence. Models of 100 layers have a few thousand reads; a large batch, which
// is cut in several graphs, goes through them several times.
const maxReads = 1 << 15

// maxOutside bounds Outside.Bytes, so that the sum over a decode that never ends does not wrap.
const maxOutside = 1 << 62

// NewBuilder makes a Builder. files tells the index of a file in Cycle.Files; reads of a file for
// which ok is false are left out.
func NewBuilder(files func(event.FileID) (index int, ok bool)) *Builder {
	return &Builder{files: files}
}

// Begin begins a decode. One that is under way, whose end was lost, is dropped.
func (b *Builder) Begin() { b.open, b.step, b.outside = true, b.step[:0], Outside{} }

// Op takes an op of the decode under way; between decodes it does nothing. It keeps the strings in
// o, and nothing else of it.
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

// End ends the decode under way. What it read becomes the cycle, unless it read nothing, or more
// than a sequence may have.
func (b *Builder) End() {
	if !b.open {
		return
	}
	b.open = false
	b.lastOutside = b.outside
	if len(b.step) == 0 {
		return
	}
	if !slices.EqualFunc(b.step, b.cycle, func(x, y CycleRead) bool { return x.same(&y) }) {
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

// Cycle is what the last whole decode read, with the least times of the decodes in a row that had
// this sequence; nil before the first. It is the caller's, who knows the files and fills in Files.
func (b *Builder) Cycle() *Cycle {
	if b.steps == 0 {
		return nil
	}
	return &Cycle{Reads: slices.Clone(b.cycle)}
}

// Steps is how many decodes in a row had the sequence of Cycle, the last one among them; 0 before
// the first.
func (b *Builder) Steps() int { return b.steps }

// Outside is what the last whole decode read outside files: a weight counts as often as it was read.
func (b *Builder) Outside() Outside { return b.lastOutside }
