// Package tables defines what a capture holds: a row of each table, and the description in capture.json. It knows no file format, so that
// programs which only speak of rows do not carry Arrow.
package tables

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"tensorcast/event"
)

// This file defines a row of each table.

// Phase says what a step was for.
type Phase uint8

const (
	PhaseWarmup     Phase = iota // llama.cpp's warm-up decode: all experts, output thrown away
	PhasePrompt                  // prompt processing
	PhaseGeneration              // one new token, or one for each of several sequences
)

var phaseNames = []string{"warmup", "prompt", "generation"}

func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return "phase(" + strconv.Itoa(int(p)) + ")"
}

// PhaseNames are the names of the phases, each at its number.
func PhaseNames() []string { return slices.Clone(phaseNames) }

// ParsePhase is the phase of a name.
func ParsePhase(s string) (Phase, error) {
	i := slices.Index(phaseNames, s)
	if i < 0 {
		return 0, fmt.Errorf("phase %q is not one of %s", s, strings.Join(phaseNames, ", "))
	}
	return Phase(i), nil
}

// NotObserved stands for a time that was not observed: null in the tables.
const NotObserved = -1

// Access is a row of the access table: one op read one weight.
type Access struct {
	Timestamp int64 // ns since the capture began, when thread 0 entered the op
	Step      int32 // llama_decode call, from 0, warm-up included
	Token     int32 // which of its context's generation steps this is, from 0; -1 in warm-up and prompt
	Phase     Phase
	Thread    int32 // kernel thread id
	Op        string
	Tensor    int32  // row of the structure table
	DataPtr   uint64 // address in the target
	Offset    int64  // absolute byte in the model file where the read begins; the tensor's first byte if several rows or experts were gathered
	// Bytes are the distinct bytes of the tensor that the op reads. Where rows or experts are gathered whose ids were not
	// observed (detail "graph"), it is the most that the batch's tokens can gather, which is exact for one token.
	Bytes    int64
	Layer    int32
	Duration int64   // ns, of the whole op: the same in each of its rows; NotObserved
	Experts  []int32 // distinct experts in order of first use; nil unless the op selects experts and the ids were observed
	Context  int32   // llama_context of the process, from 0 in order of appearance
	// Stall is how long the target's threads together waited for the disk during the op, in ns. An op that reads several
	// weights has it in the row that reads most, and 0 in the others, so that sums are true. NotObserved.
	Stall int64
}

// Route is a row of the route table: the router gave a token's slot to an expert.
type Route struct {
	Step     int32
	Token    int32 // as in Access
	Layer    int32
	Slot     int32 // 0 is the expert with the highest score
	Expert   int32
	Position int32 // index of the token within the step's batch; 0 in generation of one sequence
}

// StepRow is a row of the steps table: one llama_decode call. Rows are in the order in which the steps ended.
//
// A batch of several tokens, each of another sequence, in a context that has had its prompt, is the generation of several
// tokens (a server with parallel slots): one step of the generation phase, with one index Token, and Tokens of them.
// A batch of several tokens of one sequence is a prompt, or part of one; the tokens of a draft that are verified look the same.
type StepRow struct {
	Step      int32
	PID       int32
	Thread    int32 // kernel thread id
	Context   int32 // as in Access
	Phase     Phase
	Tokens    int32   // in the batch
	Token     int32   // as in Access
	TokenIDs  []int32 // that were looked up in the token embeddings, in order of the batch; nil if not observed
	Sequences []int32 // ascending; nil if not known
	Begin     int64   // ns since the capture began
	End       int64   // NotObserved
	Derived   bool    // begin and end are those of its ops: no llama_decode was seen
}

// PageInRow is a row of the pagein table: bytes of a model file that came from disk. It ends where a tensor or an expert's slice
// does, and where the number of times changes that the bytes had been read before.
type PageInRow struct {
	Timestamp int64  // ns since the capture began
	Step      int32  // -1 between steps
	File      string // base name, as in the structure table
	Offset    int64  // absolute byte in the file
	Bytes     int64
	Tensor    int32 // row of the structure table; -1 for metadata and padding
	Expert    int32 // whose slice it is; -1
	PID       int32 // process that caused it
	Thread    int32
	Cause     event.Cause
	// Rereads is how many times before these bytes had come from disk since the capture began; 65535 stands for that and more.
	Rereads int32
	Op      string // that the step's thread 0 was in; empty if it was in none, or in one without weights
	Model   int32  // as in StructureRow
}

// BufferKind says what a buffer is for.
type BufferKind uint8

const (
	BufferActivation BufferKind = iota
	BufferInput                 // token ids, positions, masks
	BufferKV                    // KV cache or recurrent state
)

var bufferKindNames = []string{"activation", "input", "kv"}

// BufferKindNames are the names of the kinds, each at its number.
func BufferKindNames() []string { return slices.Clone(bufferKindNames) }

// ParseBufferKind is the kind of a name.
func ParseBufferKind(s string) (BufferKind, error) {
	i := slices.Index(bufferKindNames, s)
	if i < 0 {
		return 0, fmt.Errorf("kind %q is not one of %s", s, strings.Join(bufferKindNames, ", "))
	}
	return BufferKind(i), nil
}

func (k BufferKind) String() string {
	if int(k) < len(bufferKindNames) {
		return bufferKindNames[k]
	}
	return "buffer(" + strconv.Itoa(int(k)) + ")"
}

// KindOf follows the names that llama.cpp and ggml give. Views of a tensor keep its name, with something behind it.
func KindOf(b *event.Buffer) BufferKind {
	begins := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(b.Root, p) || strings.HasPrefix(b.Name, p) })
	}
	switch {
	case begins("cache_"):
		return BufferKV
	case begins("inp_", "attn_inp_", "leaf_"):
		return BufferInput
	}
	return BufferActivation
}

// BufferRow is a row of the buffers table: an op touched a tensor that is no weight.
type BufferRow struct {
	Timestamp int64 // ns since the capture began, when thread 0 entered the op
	Step      int32
	Op        string
	Seq       int64  // number of the op within the capture: the same in each of its rows
	Buffer    string // ggml's name of the tensor
	Root      string // of the tensor that it is a view of; empty if it is none
	Kind      BufferKind
	Write     bool   // the op's result, else a source
	DataPtr   uint64 // address in the target
	Bytes     int64  // that it spans
}

// StructureRow is a row of the structure table: one tensor of a model.
type StructureRow struct {
	Name         string // unique within the model
	Offset       int64  // absolute byte in File
	Size         int64  // bytes, without padding
	Type         string
	Layer        int32 // -1 if none
	Component    string
	File         string  // base name
	Shape        []int64 // fastest dimension first
	Experts      int32   // 0 unless the tensor holds one slice per expert
	ExpertStride int64   // bytes between slices
	Model        int32   // index of Meta.Models
}
