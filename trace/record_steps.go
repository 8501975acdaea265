package trace

// This file numbers contexts, steps and generated tokens, and decides the phase of each step. It also
// follows which part of a step's batch the target computes.

import (
	"cmp"
	"maps"
	"slices"

	"tensorcast/event"
	"tensorcast/trace/tables"
)

const (
	// maxWarmupTokens: a warm-up decodes BOS and EOS, or the one of them that the model has.
	maxWarmupTokens = 2

	maxContexts = 4096    // contexts remembered at a time; a server may create one per request
	maxEarly    = 1024    // steps remembered until a weight is read
	maxSteps    = 4096    // open at a time, in as many threads
	maxTokenIDs = 1 << 21 // kept of the steps that are open
	maxTokens   = 1 << 24 // in a batch
)

// contextState is the state of a llama_context.
type contextState struct {
	index     int32
	prompted  bool   // it has had a prompt
	generated int32  // steps of the generation phase so far
	used      uint64 // value of contexts.clock at its last decode
}

// contexts numbers the llama_contexts of a process in order of appearance.
type contexts struct {
	known map[uint64]*contextState // by address in the target; at most maxContexts
	count int                      // that have appeared so far
	clock uint64                   // counts look-ups
}

// get returns the context at an address of the target. If it is new, it gets the next number.
func (cs *contexts) get(address uint64) *contextState {
	c := cs.known[address]
	if c == nil {
		if len(cs.known) >= maxContexts {
			cs.forgetOldest()
		}
		c = &contextState{index: int32(cs.count)}
		cs.count++
		cs.known[address] = c
	}
	cs.clock++
	c.used = cs.clock
	return c
}

// forgetOldest drops the context whose last decode is longest ago.
func (cs *contexts) forgetOldest() {
	var oldest uint64
	for address, c := range cs.known {
		if o := cs.known[oldest]; o == nil || c.used < o.used {
			oldest = address
		}
	}
	delete(cs.known, oldest)
}

// step is the open decode of a thread.
type step struct {
	tables.StepRow
	decode uint32
	// tokenIDsLost means that the token ids of a graph are missing, so that the row gets none.
	tokenIDsLost bool
	// mayBeWarmup is the step's context during the context's first decode, as long as that may still be
	// a warm-up. The token ids decide.
	mayBeWarmup *contextState

	// llama.cpp splits a large batch into parts, and computes them one after the other.

	partBase    int32                // batch position of the current part's first token
	partTokens  int32                // tokens of the current part
	lookupGraph uint32               // the graph that looked up its tokens' embeddings; 0 if none did
	reported    map[reportKey]uint32 // the graph that reported it last, in the current part
}

// reportKey is what a layer reports once about a part of a batch: the experts that its tokens chose, or
// their values at a point.
type reportKey struct {
	layer   int32
	point   event.Point
	experts bool
}

// openSteps are the steps that have not ended, at most one per thread.
type openSteps struct {
	byThread map[int32]*step
	latest   *step // the one that was found last; nil if it has ended
	tokenIDs int   // ids in TokenIDs of all of them
}

// find returns the thread's open step if it is that of the decode, else nil.
func (o *openSteps) find(thread int32, decode uint32) *step {
	if o.latest == nil || o.latest.Thread != thread {
		o.latest = o.byThread[thread]
	}
	if o.latest == nil || o.latest.decode != decode {
		return nil
	}
	return o.latest
}

// isOpen reports whether a decode is open.
func (o *openSteps) isOpen(decode uint32) bool {
	for _, s := range o.byThread {
		if s.decode == decode {
			return true
		}
	}
	return false
}

func (o *openSteps) remove(s *step) {
	delete(o.byThread, s.Thread)
	o.latest = nil
	o.tokenIDs -= len(s.TokenIDs)
}

// sorted returns the steps in the order in which they began.
func (o *openSteps) sorted() []*step {
	return slices.SortedFunc(maps.Values(o.byThread), func(a, b *step) int { return cmp.Compare(a.Step, b.Step) })
}

func (o *openSteps) count() int { return len(o.byThread) }

// stepNumbers maps recent decodes of a process to their steps.
type stepNumbers [1 << 10]struct {
	decode uint32
	step   int32
}

func (n *stepNumbers) put(decode uint32, step int32) {
	entry := &n[int(decode)%len(n)]
	entry.decode, entry.step = decode, step
}

// get returns the step of a decode; -1 if there is none or it was too long ago.
func (n *stepNumbers) get(decode uint32) int32 {
	if entry := n[int(decode)%len(n)]; decode != 0 && entry.decode == decode {
		return entry.step
	}
	return -1
}

// beginStep opens a step for a decode.
func (r *Recorder) beginStep(e event.DecodeBegin) error {
	if err := r.makeRoomForStep(e.TID); err != nil {
		return err
	}
	if e.Tokens < 0 || e.Tokens > maxTokens {
		e.Tokens = -1
	}
	c := r.contexts.get(e.Context)
	r.meta.Contexts = r.contexts.count
	s := &step{
		StepRow: tables.StepRow{
			Step: int32(r.meta.Steps), PID: e.PID, Thread: e.TID, Context: c.index, Tokens: e.Tokens, Token: -1,
			Sequences: e.Sequences, Begin: e.Time - r.begun, End: tables.NotObserved, Derived: e.Derived,
		},
		decode: e.Decode,
	}
	r.meta.Steps++
	r.setPhase(s, c, e.Warmup)
	r.steps.byThread[e.TID] = s
	r.numbers.put(e.Decode, s.Step)
	return nil
}

// makeRoomForStep ends the thread's open step, whose end event was lost. It ends all steps if too many
// are open: no program decodes in so many threads, so most of them have ended in a decode.
func (r *Recorder) makeRoomForStep(thread int32) error {
	if s := r.steps.byThread[thread]; s != nil {
		if err := r.endStep(s, tables.NotObserved); err != nil {
			return err
		}
	}
	if r.steps.count() >= maxSteps {
		for _, s := range r.steps.byThread {
			if err := r.endStep(s, tables.NotObserved); err != nil {
				return err
			}
		}
	}
	return nil
}

// setPhase decides the phase of a new step, and numbers it if it generates tokens.
func (r *Recorder) setPhase(s *step, c *contextState, warmup bool) {
	isParallel := s.Tokens > 1 && int(s.Tokens) == len(s.Sequences) // a token for each of several sequences
	switch {
	case warmup:
		s.Phase = tables.PhaseWarmup
	case c.prompted && (s.Tokens == 1 || isParallel):
		s.Phase = tables.PhaseGeneration
		s.Token = c.generated
		c.generated++
		r.meta.Tokens += int(s.Tokens)
	default:
		s.Phase = tables.PhasePrompt
		if !c.prompted && s.Tokens <= maxWarmupTokens {
			s.mayBeWarmup = c
		}
		c.prompted = true
	}
	r.phase = s.Phase
}

// removalProbe are the token ids that llama.cpp's server decodes once in each context before the first prompt,
// to learn whether the end of a sequence can be removed from its memory. It discards their output.
var removalProbe = []int32{0, 0}

// decideWarmup decides whether a context's first decode was a warm-up. ids are the rows that its first
// gathering op reads, of the token embeddings.
func (r *Recorder) decideWarmup(s *step, m *model, ids []int32) {
	if slices.Equal(ids, m.warmupIDs) || slices.Equal(ids, removalProbe) {
		s.Phase, s.mayBeWarmup.prompted = tables.PhaseWarmup, false
		r.phase = s.Phase
	}
	s.mayBeWarmup = nil
}

// recordDecodeEnd closes a step. If not all of its ops were seen, it has no end: its time is not that of what is known
// of it.
func (r *Recorder) recordDecodeEnd(e event.DecodeEnd) error {
	if s := r.steps.byThread[e.TID]; s != nil && s.decode == e.Decode {
		end := e.Time - r.begun
		if e.Partial {
			end = tables.NotObserved
		}
		if err := r.endStep(s, end); err != nil {
			return err
		}
		r.stepOver = true
	}
	if r.csv != nil {
		if err := r.csv.flush(); err != nil {
			return err
		}
	}
	return r.flushTables()
}

// endStep closes a step and writes its row, and the page-ins that waited for one of its ops.
func (r *Recorder) endStep(s *step, end int64) error {
	r.steps.remove(s)
	s.End = end
	if s.tokenIDsLost {
		s.TokenIDs = nil
	}
	err := r.releasePageIns(func(h *heldPageIn) (string, bool) { return "", h.Decode == s.decode })
	if err != nil {
		return err
	}
	switch {
	case r.w != nil:
		return r.w.Step(&s.StepRow)
	case r.opts.Dir != "" && len(r.early) < maxEarly:
		r.early = append(r.early, s.StepRow)
	}
	return nil
}

// collectTokenIDs notes that an op looks up token embeddings by ids. The row of the step gets the ids,
// unless they are not known (idsKnown) or too many.
func (r *Recorder) collectTokenIDs(s *step, o *event.Op, idsKnown bool) {
	if len(o.IDs) > 0 && len(o.IDs) <= maxTokens {
		s.noteLookup(o.Graph, len(o.IDs))
	}
	if r.opts.NoTokenIDs {
		return
	}
	s.tokenIDsLost = s.tokenIDsLost || !idsKnown || r.steps.tokenIDs+len(o.IDs) > maxTokenIDs
	if s.tokenIDsLost {
		return
	}
	before := len(s.TokenIDs)
	for _, id := range o.IDs {
		if id >= 0 {
			s.TokenIDs = append(s.TokenIDs, id)
		}
	}
	r.steps.tokenIDs += len(s.TokenIDs) - before
}

// noteLookup notes that a graph looks up the embeddings of so many tokens: a part of the batch begins.
func (s *step) noteLookup(graph uint32, tokens int) {
	if s.lookupGraph != graph {
		s.lookupGraph = graph
		s.beginPart(tokens)
	}
}

// noteReport notes that a graph reports something about so many tokens. It returns whether the same was
// reported before in this part of the batch.
//
// A part may be several graphs, with a GPU for instance. Where the embeddings are not looked up, because
// the target passes them, a part begins with the first report. The next part begins when a report is
// repeated by another graph.
func (s *step) noteReport(key reportKey, graph uint32, tokens int) (again bool) {
	last, known := s.reported[key]
	if known && (last == graph || s.lookupGraph != 0) {
		return true
	}
	if known || s.partTokens == 0 {
		s.beginPart(tokens)
	}
	if s.reported == nil {
		s.reported = map[reportKey]uint32{}
	}
	s.reported[key] = graph
	return false
}

func (s *step) beginPart(tokens int) {
	s.partBase = min(s.partBase+s.partTokens, maxTokens) // no real batch comes near
	s.partTokens = int32(tokens)
	clear(s.reported)
}

// batchPosition returns the index within the batch of one of the rows that a layer computes of the
// current part, or tables.NoPosition. The last layers of many models compute only the tokens whose
// output is wanted. If that is one token of one sequence, it is the last of the part.
func (s *step) batchPosition(row, rows int) int32 {
	switch {
	case rows == int(s.partTokens):
		return s.partBase + int32(row)
	case rows == 1 && len(s.Sequences) <= 1:
		return s.partBase + s.partTokens - 1
	}
	return tables.NoPosition
}
