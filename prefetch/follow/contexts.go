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
	// LessonTokens is the largest batch that is sure to read what a token reads. A larger one may go through the model
	// in several passes. Of a prompt that comes in several batches only the last one goes all the way.
	LessonTokens = 32
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

	File FileNumber // tells files apart

	known  map[contextKey]*Context
	open   map[int32]*Decode // by thread
	silent int               // decodes of contexts with other cycles since the last one of Main
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
	Cycle *pattern.Cycle // nil until it is learned
	Bases map[int]uint64 // where the files were mapped then
	// Rough says that Cycle may lack something, because it was learned from a larger batch than LessonTokens, or
	// because more was read since. The next decode of few tokens is a lesson again.
	Rough     bool
	Foreign   bool   // it reads nothing of what is followed,
	Elsewhere bool   // or reads it through another mapping
	used      uint64 // the clock when it decoded last
}

// Forget drops what was learned. The next short decode teaches it again.
func (x *Context) Forget() { x.Cycle, x.Bases, x.Rough = nil, nil, false }

// Decode is one that is under way.
type Decode struct {
	Context *Context
	Number  uint32
	Tokens  int32   // that it computes; not positive if that is not known
	Began   int64   // when it began, in ns
	Warmup  bool    // it belongs to the warm-up, which reads all experts of a mixture
	Lesson  *Lesson // nil if there is nothing to learn
}

// Lesson is one decode that is learned from.
type Lesson struct {
	*pattern.Builder
	Bases map[int]uint64 // by file: where the target maps its first byte
	Rough bool           // of more than LessonTokens
	// Copied has the names of weights that the decode has read outside of files: they were copied from there.
	Copied map[string]bool

	first start // the weight that the decode has read first, if begun
	begun bool
}

// NoteOp takes the next op of the decode. A large batch goes through the model in several passes. The last of them
// counts: it begins when the weight is read again that was read first.
func (l *Lesson) NoteOp(o *event.Op, number FileNumber) {
	if l.Rough {
		pattern.ReadsOf(o, func(source int, r pattern.CycleRead) bool {
			file, known := number(o.Sources[source].File)
			if !known || r.Gathers() {
				return true
			}
			switch at := (start{file, r.Offset}); {
			case !l.begun:
				l.first, l.begun = at, true
			case at == l.first:
				l.Begin()
			}
			return false
		})
	}
	for i := range o.Sources {
		if from := &o.Sources[i]; !from.InFile && from.Name != "" && len(l.Copied) < maxCopied {
			l.Copied[from.Name] = true
		}
	}
	l.Op(o)
}

// maxCopied bounds Lesson.Copied, whatever a target says.
const maxCopied = 1 << 16

// NewContexts begins with none.
func NewContexts(file FileNumber) Contexts {
	return Contexts{known: map[contextKey]*Context{}, open: map[int32]*Decode{}, File: file}
}

// Reset forgets all contexts.
func (cs *Contexts) Reset() { *cs = NewContexts(cs.File) }

// OpenDecode is the decode that is under way in a thread; nil if there is none.
func (cs *Contexts) OpenDecode(tid int32) *Decode { return cs.open[tid] }

// Decoding says whether any decode is under way.
func (cs *Contexts) Decoding() bool { return len(cs.open) > 0 }

// BeginDecode opens a decode. It is a lesson if its context's cycle is not known, or is known roughly.
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
	d := &Decode{Context: x, Number: e.Decode, Tokens: e.Tokens, Began: e.Time, Warmup: e.Warmup}
	rough := e.Tokens > LessonTokens
	if e.Tokens > 0 && (x.Cycle == nil || x.Rough && !rough) {
		d.Lesson = &Lesson{Builder: pattern.NewBuilder(cs.File), Bases: map[int]uint64{}, Rough: rough,
			Copied: map[string]bool{}}
		d.Lesson.Begin()
	}
	if len(cs.open) >= maxOpen { // most of these threads have ended in a decode
		clear(cs.open)
	}
	cs.open[e.TID] = d
	return d
}

// EndDecode closes a thread's decode. It returns nil if its beginning was not seen. It is no lesson if not all of its
// ops were seen.
func (cs *Contexts) EndDecode(e event.DecodeEnd) *Decode {
	d := cs.open[e.TID]
	if d == nil || d.Number != e.Decode {
		return nil
	}
	delete(cs.open, e.TID)
	if e.Partial {
		d.Lesson = nil
	}
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

// OtherBytes is how many bytes the contexts that are not followed read for each token, of files of which Main reads
// nothing. Contexts that have not decoded lately do not count.
func (cs *Contexts) OtherBytes() (sum int64) {
	if cs.Main == nil || cs.Main.Cycle == nil {
		return 0
	}
	counted := map[pages.Range]bool{}
	for _, x := range cs.known {
		if x == cs.Main || x.Cycle == nil || cs.clock-x.used > patience || ShareFile(x.Cycle, cs.Main.Cycle) {
			continue
		}
		for _, r := range wholeReads(x.Cycle) {
			if !counted[r] { // several contexts may have the same model
				counted[r] = true
				sum += r.Length
			}
		}
	}
	return sum
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
