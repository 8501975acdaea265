package prefetch

// This file tells a target's contexts apart: a server may hold several (slots, a draft model, embeddings), each with a cycle of its own. One of them is helped.

import (
	"slices"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

const (
	// lessonTokens is the largest batch to learn from. A larger one may go through the model in several passes, of which only the last
	// goes all the way.
	lessonTokens = 8
	// patience is how many decodes of others in a row make the context that is followed one that is gone: more than a draft model makes between two decodes of
	// the model that it drafts for.
	patience = 64
	// maxContexts bounds how many are remembered: a server may make one per request.
	maxContexts = 64
	// maxOpen bounds how many decodes may be open at a time, in as many threads.
	maxOpen = 1024
)

// contexts are those of a target.
type contexts struct {
	known  map[contextKey]*context
	open   map[int32]*decode // by thread
	main   *context          // the one that is followed; nil while none is, and while a stored cycle is nobody's yet
	stored *pattern.Cycle    // came from a file, and is followed without having been compared with what the target reads; else nil
	file   func(event.FileID) (index int, known bool)
	silent int // decodes of contexts with other cycles since the last of main
	clock  uint64
}

// contextKey is a context. Where no llama_decode is seen, contexts have no address: then each thread is taken for one.
type contextKey struct {
	address uint64
	thread  int32
}

// context is one llama_context of the target.
type context struct {
	cycle     *pattern.Cycle // nil until it is learned
	bases     map[int]uint64 // where the files were mapped then
	foreign   bool           // it reads nothing of what is followed,
	elsewhere bool           // or reads it by another mapping
	used      uint64
}

// forget has the context's next decode of a few tokens learned from.
func (x *context) forget() { x.cycle, x.bases = nil, nil }

// decode is one that is under way.
type decode struct {
	context *context
	decode  uint32
	begun   int64   // ns, if it generates one token; 0 else: the warm-up, too, as it reads all experts of a mixture
	lesson  *lesson // nil if there is nothing to learn
}

// newContexts begins with none. file tells the index of a file.
func newContexts(file func(event.FileID) (index int, known bool)) contexts {
	return contexts{known: map[contextKey]*context{}, open: map[int32]*decode{}, file: file}
}

func (cs *contexts) begin(e event.DecodeBegin) *decode {
	key := contextKey{address: e.Context}
	if e.Context == 0 {
		key.thread = e.TID
	}
	x := cs.known[key]
	if x == nil {
		if len(cs.known) >= maxContexts {
			cs.drop()
		}
		x = &context{}
		cs.known[key] = x
	}
	cs.clock++
	x.used = cs.clock
	d := &decode{context: x, decode: e.Decode}
	if e.Tokens == 1 && !e.Warmup {
		d.begun = e.Time
	}
	if x.cycle == nil && e.Tokens > 0 && e.Tokens <= lessonTokens {
		d.lesson = &lesson{pattern.NewBuilder(cs.file), map[int]uint64{}}
		d.lesson.Begin()
	}
	if len(cs.open) >= maxOpen { // most of these threads have ended in a decode
		clear(cs.open)
	}
	cs.open[e.TID] = d
	return d
}

// drop forgets the context that has not decoded for longest, and is not followed.
func (cs *contexts) drop() {
	var oldest contextKey
	var least *context
	for key, x := range cs.known {
		if x != cs.main && (least == nil || x.used < least.used) {
			oldest, least = key, x
		}
	}
	delete(cs.known, oldest)
}

// end closes a thread's decode; nil if its beginning was not seen.
func (cs *contexts) end(e event.DecodeEnd) *decode {
	d := cs.open[e.TID]
	if d == nil || d.decode != e.Decode {
		return nil
	}
	delete(cs.open, e.TID)
	return d
}

// decoded counts a decode that is over. It returns the context to follow instead, if the one that is followed has been silent for long.
func (cs *contexts) decoded(x *context) *context {
	switch {
	case !x.foreign:
		cs.silent = 0
	case x.cycle != nil:
		cs.silent++
	}
	if cs.silent < patience || x.cycle == nil {
		return nil
	}
	return x
}

// follow makes a context the one that is followed. Whether the others read the same is to be seen again.
func (cs *contexts) follow(x *context) {
	for _, other := range cs.known {
		other.foreign, other.elsewhere = false, false
	}
	cs.main, cs.silent = x, 0
}

// lesson is one decode that is learned from.
type lesson struct {
	*pattern.Builder
	bases map[int]uint64 // by file: where the target maps its first byte
}

// sameReads compares what is read of two cycles, and in which order; times aside, and what is gathered, which depends on the token.
func sameReads(a, b *pattern.Cycle) bool {
	whole := func(c *pattern.Cycle) (reads []pages.Range) {
		for i := range c.Reads {
			if r := &c.Reads[i]; !r.Gathers() {
				reads = append(reads, pages.Range{File: r.File, Offset: r.Offset, Length: r.Length})
			}
		}
		return reads
	}
	return slices.Equal(whole(a), whole(b))
}

// sameFiles says that two cycles have a file in common.
func sameFiles(a, b *pattern.Cycle) bool {
	return slices.ContainsFunc(a.Reads, func(r pattern.CycleRead) bool {
		return slices.ContainsFunc(b.Reads, func(s pattern.CycleRead) bool { return s.File == r.File })
	})
}

// bytesOf is what a token reads of a cycle that does not depend on the token.
func bytesOf(c *pattern.Cycle) (sum int64) {
	for i := range c.Reads {
		if r := &c.Reads[i]; !r.Gathers() {
			sum += r.Length
		}
	}
	return sum
}
