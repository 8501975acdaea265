package event

// This file derives steps where llama_decode is not observed. llama.cpp may be linked into a
// stripped program, so that only ggml's libraries have symbols. Or a program may build its graphs
// by itself. There a step begins when token embeddings are looked up.

// TokenEmbeddings is the weight whose rows are the tokens' embeddings, in every architecture that
// llama.cpp knows.
const TokenEmbeddings = "token_embd.weight"

// DerivedSteps numbers the derived steps of one process. Each thread may have one open step. Set
// PID before use; otherwise the zero value is ready. It is not safe for concurrent use. The handle
// functions that its methods take receive the DecodeBegin and DecodeEnd events.
type DerivedSteps struct {
	PID   int32
	begun uint32
	open  map[int32]*derivedStep // by thread
}

// maxDerived is how many steps may be open at a time: more threads than any program computes in.
const maxDerived = 4096

type derivedStep struct {
	decode uint32 // its number, from 1
	end    int64  // of its last op so far, in ns
}

// Begin ends the thread's step if one is open, and begins the next at time (ns, CLOCK_MONOTONIC)
// with a batch of tokens.
func (d *DerivedSteps) Begin(tid int32, time int64, tokens int, handle func(Event) error) error {
	if err := d.EndThread(tid, handle); err != nil {
		return err
	}
	if len(d.open) >= maxDerived { // most of these threads have ended in a step
		if err := d.End(handle); err != nil {
			return err
		}
	}
	if d.open == nil {
		d.open = map[int32]*derivedStep{}
	}
	d.begun++
	d.open[tid] = &derivedStep{decode: d.begun, end: time}
	return handle(DecodeBegin{Time: time, PID: d.PID, TID: tid, Decode: d.begun, Tokens: int32(tokens), Derived: true})
}

// Decode returns the number of the thread's open step; 0 if there is none.
func (d *DerivedSteps) Decode(tid int32) uint32 {
	if step := d.open[tid]; step != nil {
		return step.decode
	}
	return 0
}

// Open returns how many threads have an open step.
func (d *DerivedSteps) Open() int { return len(d.open) }

// Extend moves the end of the thread's open step, if there is one, to end (ns, CLOCK_MONOTONIC).
func (d *DerivedSteps) Extend(tid int32, end int64) {
	if step := d.open[tid]; step != nil {
		step.end = end
	}
}

// End ends the open steps of all threads.
func (d *DerivedSteps) End(handle func(Event) error) error {
	for tid := range d.open {
		if err := d.EndThread(tid, handle); err != nil {
			return err
		}
	}
	return nil
}

// EndThread ends the thread's step if one is open.
func (d *DerivedSteps) EndThread(tid int32, handle func(Event) error) error {
	step := d.open[tid]
	if step == nil {
		return nil
	}
	delete(d.open, tid)
	return handle(DecodeEnd{Time: step.end, PID: d.PID, TID: tid, Decode: step.decode})
}
