package event

// This file numbers the steps of a target whose llama_decode is not seen, as where llama.cpp was linked into a stripped program and only
// ggml's libraries have symbols, or where a program builds graphs by itself: a step begins when token embeddings are looked up.

// TokenEmbeddings is the weight whose rows are the tokens' embeddings, in every architecture that llama.cpp knows.
const TokenEmbeddings = "token_embd.weight"

// DerivedSteps are the steps of one process. The zero value has none; set PID. Not for concurrent use.
type DerivedSteps struct {
	PID   int32
	begun uint32
	open  map[int32]*derivedStep // by thread
}

type derivedStep struct {
	decode uint32
	end    int64
}

// Begin ends the thread's step, if it is in one, and begins another.
func (d *DerivedSteps) Begin(tid int32, time int64, tokens int, handle func(Event) error) error {
	if err := d.EndThread(tid, handle); err != nil {
		return err
	}
	if d.open == nil {
		d.open = map[int32]*derivedStep{}
	}
	d.begun++
	d.open[tid] = &derivedStep{decode: d.begun, end: time}
	return handle(DecodeBegin{Time: time, PID: d.PID, TID: tid, Decode: d.begun, Tokens: int32(tokens), Derived: true})
}

// Decode is the step that the thread is in; 0 for none.
func (d *DerivedSteps) Decode(tid int32) uint32 {
	if step := d.open[tid]; step != nil {
		return step.decode
	}
	return 0
}

// Extend says that the thread's step, if it is in one, lasted until a time at least.
func (d *DerivedSteps) Extend(tid int32, end int64) {
	if step := d.open[tid]; step != nil {
		step.end = end
	}
}

// End ends the steps of all threads.
func (d *DerivedSteps) End(handle func(Event) error) error {
	for tid := range d.open {
		if err := d.EndThread(tid, handle); err != nil {
			return err
		}
	}
	return nil
}

// EndThread ends the thread's step, if it is in one.
func (d *DerivedSteps) EndThread(tid int32, handle func(Event) error) error {
	step := d.open[tid]
	if step == nil {
		return nil
	}
	delete(d.open, tid)
	return handle(DecodeEnd{Time: step.end, PID: d.PID, TID: tid, Decode: step.decode})
}
