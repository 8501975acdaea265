package follow

// This file tells a target's contexts apart. A server may hold several (slots, a draft model, embeddings),
// each with a cycle of its own. One of them is helped.

import (
	"slices"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

const (
	// lessonTokens is the largest batch to learn from. A larger one may go through the model in several
	// passes, of which only the last goes all the way.
	lessonTokens = 8
	// patience is how many decodes of others in a row show that the context which is followed is gone. A
	// draft model makes fewer between two decodes of the model that it drafts for.
	patience = 64
	// maxContexts bounds how many are remembered: a server may make one per request.
	maxContexts = 64
	// maxOpen bounds how many decodes may be open at a time, in as many threads.
	maxOpen = 1024
)

// Contexts are those of a target.
type Contexts struct {
	Main   *Context       // the one that is followed; nil while none is, and while a stored cycle is nobody's yet
	Stored *pattern.Cycle // a cycle from a file that is followed, and was not yet compared with the target; else nil

	known  map[contextKey]*Context
	open   map[int32]*Decode // by thread
	file   FileNumber
	silent int // decodes of contexts with other cycles since the last one of Main
	clock  uint64
}

// FileNumber tells by which number the levers know a file.
type FileNumber func(event.FileID) (number int, known bool)

// contextKey identifies a context. Where no llama_decode is seen, contexts have no address: then each thread
// is taken for one.
type contextKey struct {
	address uint64
	thread  int32
}

// Context is one llama_context of the target.
type Context struct {
	Cycle     *pattern.Cycle // nil until it is learned
	Bases     map[int]uint64 // where the files were mapped then
	Foreign   bool           // it reads nothing of what is followed,
	Elsewhere bool           // or reads it through another mapping
	used      uint64         // the clock when it decoded last
}

// Forget drops what was learned. The next short decode teaches it again.
func (x *Context) Forget() { x.Cycle, x.Bases = nil, nil }

// Decode is one that is under way.
type Decode struct {
	Context *Context
	Number  uint32
	// Begun is when it began, in ns, if it generates one token. It is 0 for others, and for the warm-up,
	// which reads all experts of a mixture.
	Begun  int64
	Lesson *Lesson // nil if there is nothing to learn
}

// Lesson is one decode that is learned from.
type Lesson struct {
	*pattern.Builder
	Bases map[int]uint64 // by file: where the target maps its first byte
}

// NewContexts begins with none.
func NewContexts(file FileNumber) Contexts {
	return Contexts{known: map[contextKey]*Context{}, open: map[int32]*Decode{}, file: file}
}

// Reset forgets all contexts.
func (cs *Contexts) Reset() { *cs = NewContexts(cs.file) }

// OpenDecode is the decode that is under way in a thread; nil if there is none.
func (cs *Contexts) OpenDecode(tid int32) *Decode { return cs.open[tid] }

// Decoding says whether any decode is under way.
func (cs *Contexts) Decoding() bool { return len(cs.open) > 0 }

// BeginDecode opens a decode. It is a lesson if its context's cycle is not known, and it has few tokens.
func (cs *Contexts) BeginDecode(e event.DecodeBegin) *Decode {
	key := contextKey{address: e.Context}
	if e.Context == 0 {
		key.thread = e.TID
	}
	x := cs.known[key]
	if x == nil {
		if len(cs.known) >= maxContexts {
			cs.dropOldest()
		}
		x = &Context{}
		cs.known[key] = x
	}
	cs.clock++
	x.used = cs.clock
	d := &Decode{Context: x, Number: e.Decode}
	if e.Tokens == 1 && !e.Warmup {
		d.Begun = e.Time
	}
	if x.Cycle == nil && e.Tokens > 0 && e.Tokens <= lessonTokens {
		d.Lesson = &Lesson{pattern.NewBuilder(cs.file), map[int]uint64{}}
		d.Lesson.Begin()
	}
	if len(cs.open) >= maxOpen { // most of these threads have ended in a decode
		clear(cs.open)
	}
	cs.open[e.TID] = d
	return d
}

// EndDecode closes a thread's decode. It returns nil if its beginning was not seen.
func (cs *Contexts) EndDecode(e event.DecodeEnd) *Decode {
	d := cs.open[e.TID]
	if d == nil || d.Number != e.Decode {
		return nil
	}
	delete(cs.open, e.TID)
	return d
}

// CountDecode counts a decode that is over. If the context that is followed has been silent for long, it
// returns the context to follow instead; else nil.
func (cs *Contexts) CountDecode(x *Context) *Context {
	switch {
	case !x.Foreign:
		cs.silent = 0
	case x.Cycle != nil:
		cs.silent++
	}
	if cs.silent < patience || x.Cycle == nil {
		return nil
	}
	return x
}

// Follow makes a context the one that is followed. Whether the others read the same is to be seen again.
func (cs *Contexts) Follow(x *Context) {
	for _, other := range cs.known {
		other.Foreign, other.Elsewhere = false, false
	}
	cs.Main, cs.silent = x, 0
}

// ForgetCycles drops what was learned of all contexts.
func (cs *Contexts) ForgetCycles() {
	for _, x := range cs.known {
		x.Forget()
	}
}

// dropOldest forgets the context that has not decoded for longest, and is not followed.
func (cs *Contexts) dropOldest() {
	var oldest contextKey
	var least *Context
	for key, x := range cs.known {
		if x != cs.Main && (least == nil || x.used < least.used) {
			oldest, least = key, x
		}
	}
	delete(cs.known, oldest)
}

// SameReads compares what two cycles read, and in which order. Times do not count, nor does what is gathered,
// because that depends on the token.
func SameReads(a, b *pattern.Cycle) bool { return slices.Equal(wholeReads(a), wholeReads(b)) }

func wholeReads(c *pattern.Cycle) (reads []pages.Range) {
	for i := range c.Reads {
		if r := &c.Reads[i]; !r.Gathers() {
			reads = append(reads, pages.Range{File: r.File, Offset: r.Offset, Length: r.Length})
		}
	}
	return reads
}

// ShareFile says whether two cycles read a file in common.
func ShareFile(a, b *pattern.Cycle) bool {
	return slices.ContainsFunc(a.Reads, func(r pattern.CycleRead) bool {
		return slices.ContainsFunc(b.Reads, func(s pattern.CycleRead) bool { return s.File == r.File })
	})
}
