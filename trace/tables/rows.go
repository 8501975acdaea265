// Package tables defines what a capture holds: a row of each table ([Access], [Route], [StepRow],
// [PageInRow], [BufferRow], [HiddenRow], [StructureRow]) and the description in capture.json ([Meta]).
// Package trace reads and writes them. This package knows no file format, so programs that only use the
// rows do not link Arrow.
package tables

// This file defines the rows of the tables.

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tensorcast/event"
)

// Phase is what a step was for.
type Phase uint8

const (
	PhaseWarmup     Phase = iota // its output is discarded: llama.cpp's warm-up (with all experts), or a server's probe
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

// PhaseNames returns the names of the phases, indexed by Phase.
func PhaseNames() []string { return slices.Clone(phaseNames) }

// ParsePhase returns the phase that has this name.
func ParsePhase(s string) (Phase, error) {
	i := slices.Index(phaseNames, s)
	if i < 0 {
		return 0, fmt.Errorf("phase %q is not one of %s", s, strings.Join(phaseNames, ", "))
	}
	return Phase(i), nil
}

// NotObserved marks a time that was not observed; in the tables it is null.
const NotObserved = -1

// Access is a row of the access table: an op read a weight.
type Access struct {
	Timestamp int64 // ns since the capture began, when thread 0 entered the op
	Step      int32 // number of the llama_decode call, from 0, including the warm-up
	Token     int32 // number of the generation step within its context, from 0; -1 in warm-up and prompt
	Phase     Phase
	Thread    int32 // kernel thread id
	Op        string
	Tensor    int32  // row of the structure table
	DataPtr   uint64 // address in the target
	// Offset is the absolute offset in the model file where the read begins. It is the tensor's first
	// byte if several rows or experts were gathered, or if Meta.NoTokenIDs.
	Offset int64
	// Bytes is the number of distinct bytes of the tensor that the op reads. If it gathers rows or
	// experts whose ids were not observed (detail "graph"), this is the most that the batch's tokens can
	// gather. For one token it is exact.
	Bytes    int64
	Layer    int32
	Duration int64 // ns, of the whole op, the same in each of its rows; or NotObserved
	// Experts are the distinct experts in order of first use. They are nil unless the op selects experts
	// and their ids were observed.
	Experts []int32
	Context int32 // llama_context of the process, from 0 in order of appearance
	// Stall is how long, in ns, the target's threads together waited for the disk during the op, or
	// NotObserved. If an op reads several weights, the row that reads most has the stall and the others
	// have 0, so that sums over rows are right.
	Stall int64
}

// Route is a row of the route table: the router assigned an expert to a token's slot.
type Route struct {
	Step     int32
	Token    int32 // as in Access
	Layer    int32
	Slot     int32 // rank of the expert; 0 has the highest score
	Expert   int32
	Position int32 // index of the token within the step's batch, 0 if one sequence is generated; or NoPosition
}

// NoPosition means that it is not known which of the batch's tokens a row belongs to. The last layers of
// many models compute only the tokens whose output is wanted. If that is one token, of a batch of one
// sequence, it is known to be the last.
const NoPosition = -1

// StepRow is a row of the steps table: a llama_decode call. Rows are in the order in which the steps
// ended.
//
// A server with parallel slots decodes batches with several tokens, each of another sequence. In a
// context that has had its prompt, such a batch generates several tokens. It is one step of the
// generation phase, with one Token number, and Tokens is how many were generated. A batch with several
// tokens of one sequence is a prompt or a part of one. The verification of draft tokens looks the same.
type StepRow struct {
	Step    int32
	PID     int32
	Thread  int32 // kernel thread id
	Context int32 // as in Access
	Phase   Phase
	Tokens  int32 // tokens in the batch; -1 if the target reported an impossible number
	Token   int32 // as in Access
	// TokenIDs are the ids that were looked up in the token embeddings, in batch order. They are nil if
	// not observed, or left out (Meta.NoTokenIDs).
	TokenIDs  []int32
	Sequences []int32 // ascending; nil if unknown
	Begin     int64   // ns since the capture began
	End       int64   // ns since the capture began; or NotObserved
	Derived   bool    // llama_decode was not observed: begin and end are those of the step's ops
}

// PageInRow is a row of the pagein table: consecutive bytes of a model file that were read from disk.
// They belong to one tensor or one expert's slice, and were all read equally often before.
type PageInRow struct {
	Timestamp int64  // ns since the capture began
	Step      int32  // -1 between steps
	File      string // base name, as in the structure table
	// Offset is the absolute offset in the file. If Meta.NoTokenIDs, that of token embeddings is the
	// tensor's first byte.
	Offset int64
	Bytes  int64
	Tensor int32 // row of the structure table; -1 for metadata and padding
	Expert int32 // the expert whose slice it is; -1 if none
	PID    int32 // process that caused it
	Thread int32
	Cause  event.Cause
	// Rereads is how often these bytes had been read from disk before during the capture; 65535
	// means that or more.
	Rereads int32
	Op      string // the op that the step's thread 0 was in; empty if there was none, or one that reads no weights
	Model   int32  // as in StructureRow
}

// BufferKind is the purpose of a buffer.
type BufferKind uint8

const (
	BufferActivation BufferKind = iota
	BufferInput                 // token ids, positions, masks
	BufferKV                    // KV cache or recurrent state
)

var bufferKindNames = []string{"activation", "input", "kv"}

// BufferKindNames returns the names of the kinds, indexed by BufferKind.
func BufferKindNames() []string { return slices.Clone(bufferKindNames) }

// ParseBufferKind returns the kind that has this name.
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

// KindOf returns a buffer's kind, going by the names that llama.cpp and ggml give. The name of a view
// begins with that of its tensor.
func KindOf(b *event.Buffer) BufferKind {
	hasPrefix := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool {
			return strings.HasPrefix(b.Root, p) ||
				strings.HasPrefix(b.Name, p)
		})
	}
	switch {
	case hasPrefix("cache_"):
		return BufferKV
	case hasPrefix("inp_", "attn_inp_", "leaf_"):
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
	Root      string // name of the tensor that it is a view of; empty if it is no view
	Kind      BufferKind
	Write     bool   // true: the op writes it; false: the op reads it
	DataPtr   uint64 // address in the target
	Bytes     int64  // extent in bytes
}

// HiddenRow is a row of the hidden table: one token's vector that a router, or attention, was about to
// read.
type HiddenRow struct {
	Step  int32
	Token int32 // as in Access
	Layer int32
	Point event.Point
	// as in Route; together with Step and Layer it tells which rows of the route table are the
	// router's choice
	Position int32
	Values   []float32 // rounded to half precision in the table; all rows of a capture have as many
}

// MaxHidden is how many values a row of the hidden table may have.
const MaxHidden = 1 << 16

// StructureRow is a row of the structure table: a tensor of a model.
type StructureRow struct {
	Name         string // unique within the model
	Offset       int64  // absolute offset in File
	Size         int64  // bytes, without padding
	Type         string
	Layer        int32 // -1 if none
	Component    string
	File         string  // base name
	Shape        []int64 // fastest dimension first
	Experts      int32   // 0 unless the tensor has one slice per expert
	ExpertStride int64   // bytes from one slice to the next
	Model        int32   // index of Meta.Models
}
