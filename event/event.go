// Package event is the vocabulary of capture: what a capturer reports about a running llama.cpp,
// one value per observation. It is the same for all capturers (the probes of package ebpf, the
// preloaded library of package capture/preload).
//
// An [Event] is one of a few types. The most frequent by far is [Op], one node of a ggml graph.
// [Counters] account for what was lost. The Err variables are the errors on which callers decide.
// Package trace writes events to tables, package pattern learns from them, and package prefetch
// acts on them.
//
// This package opens no files and knows no table format. It takes one thing from package gguf:
// ggml's tensor types ([gguf.Type]), whose block sizes tell how many bytes a tensor spans.
package event

// This file defines the events.

import (
	"fmt"
	"slices"

	"tensorcast/gguf"
	"tensorcast/internal/proc"
)

// Event is one observation: a FileSeen, DecodeBegin, DecodeEnd, *Op, Selected, Lookup, RouterInput,
// PageIn, ProcessBegin or ProcessEnd. Events of one thread arrive in the order in which they happened.
// Those of different threads may not.
type Event interface{ event() }

// FileSeen reports that a process maps a file that weights are read from. It precedes the first Op
// that reads from the file.
type FileSeen struct {
	PID  int32
	File FileID
	// Path is where the capturing process can open the file. In a container this is not the path
	// that the target knows.
	Path string
	// ID is the file's device and inode number as the capturing process's stat reports them (File
	// has those of the memory map). Whoever opens Path compares them, because by then the name may
	// lead elsewhere. It is zero if the file is not known to be at Path.
	ID FileID
}

// DecodeBegin is the start of a step: the entry of llama_decode, or what stands for it (see Derived).
type DecodeBegin struct {
	Time    int64  // ns, CLOCK_MONOTONIC
	PID     int32  // process
	TID     int32  // the thread that decodes, ggml's thread 0
	Context uint64 // the llama_context, as an address in the target
	Decode  uint32 // counts the process's calls from 1
	Tokens  int32  // tokens in the batch
	Warmup  bool   // between llama_set_warmup(true) and (false)
	// Sequences are the distinct sequences (in a server: slots) that the batch's tokens belong to,
	// in ascending order. It is nil if the capturer cannot tell, for example where the target has
	// no llama_decode.
	Sequences []int32
	// Derived means that llama_decode was not observed, because it has no symbol or the target does
	// not call it. The step then begins with a lookup of token embeddings and ends with the step's
	// last op.
	Derived bool
}

// DecodeEnd is the end of a step: the return of llama_decode, or the end of a derived step's last op.
type DecodeEnd struct {
	Time   int64 // ns, CLOCK_MONOTONIC
	PID    int32
	TID    int32
	Decode uint32
	// Partial means that ops of the step were missed, or may have been: it began before all probes were set.
	Partial bool
}

// Op is one node of a ggml graph that reads at least one weight. If the capturer was asked for
// buffers, nodes without weights are reported, too. Ops are observed on ggml's thread 0. Ops are
// many, so the event is a pointer to memory that the capturer may overwrite once the event has been
// handled. The slices in it are not overwritten.
type Op struct {
	// Time is when thread 0 entered the op (ns, CLOCK_MONOTONIC). Where graphs are observed and not
	// ops, it is when thread 0 entered the graph.
	Time int64
	// Duration is how many ns passed until thread 0 entered the next op or left the graph. It
	// includes waiting for the other threads. It is -1 if not observed.
	Duration int64
	Stall    int64 // ns that the target's threads together waited for the disk meanwhile; -1 if not observed
	PID      int32
	TID      int32
	Decode   uint32 // the DecodeBegin it belongs to; 0 if none was seen
	Graph    uint32 // ggml_graph_compute calls of the process, from 1
	Seq      uint64 // op number within the capture, ops without weights included
	Name     string // ggml's name of the op ("MUL_MAT"), joined by "+" for fused ones ("RMS_NORM+MUL")
	// GatherDim is the dimension of the weight that IDs index: the op reads NB[GatherDim] bytes for
	// each distinct id. 1 for GET_ROWS and ADD_ID, 2 for MUL_MAT_ID, 0 if the whole weight is read.
	GatherDim int
	ByExpert  bool    // the ids are experts, else rows
	IDs       []int32 // IDRows rows (tokens) of len(IDs)/IDRows slots; nil if they were lost
	IDRows    int
	// Selects is how many different ids the op gathers by, where their number is known but not yet
	// their values: the experts of one token, when a graph is reported before its router has run. 0
	// otherwise.
	Selects int
	Sources []Source
	Buffers []Buffer // what it touches besides weights, if the capturer was asked for that
	Clipped bool     // the op had more weights or ids than the capturer could carry: a defect to report, never to hide
	// Memo, if not nil, is shared by all ops of one process that have the same Name, GatherDim,
	// ByExpert and Sources. A consumer can keep in it what it has computed from these fields.
	Memo *Memo
}

// Selected reports which experts a layer of a mixture is about to read. It is sent only if the
// capturer was asked for it. It comes when the router has chosen the experts, before the first op
// that reads one begins. That op's [Op] repeats the choice when the op is over. The warm-up chooses
// all experts.
type Selected struct {
	Time   int64 // ns, CLOCK_MONOTONIC
	PID    int32
	TID    int32
	Decode uint32 // as in Op, like the following two
	Graph  uint32
	Seq    uint64 // of the op that began: it uses the choice, and reads no expert unless it is the first that does
	Layer  int32  // -1 if the target's tensors do not tell
	// IDs are the experts: IDRows rows (tokens) of len(IDs)/IDRows slots. The first slot has the
	// highest score. Consumers may keep the slice, but not change it.
	IDs    []int32
	IDRows int
}

// Lookup reports which rows of a table an op is about to look up: token embeddings, or those of each
// layer. It comes when the op begins, or its graph where graphs are observed, before it has read a row,
// and only if the capturer was asked for it and the table lies in a mapped file and is large. The [Op]
// repeats it when the op is over.
type Lookup struct {
	Time   int64 // ns, CLOCK_MONOTONIC
	PID    int32
	TID    int32
	Decode uint32 // as in Op, like the following two
	Graph  uint32
	Seq    uint64 // 0 where graphs are observed
	// Table is the table: rows of NB[1] bytes, of which there are NE[1]. It is what the target says, as in Op.
	Table Source
	// IDs are the numbers of the rows, one for each token. They may repeat. Nobody has compared them with the
	// number of rows. Consumers may keep the slice, but not change it.
	IDs []int32
}

// RouterInput is one token's vector that a layer of a mixture is about to compute with: the input
// of its router, or that of its attention (the layer's norm of all that was computed before). It is
// sent when the op that reads it begins, and only if the capturer was asked for it.
type RouterInput struct {
	Time   int64 // ns, CLOCK_MONOTONIC
	PID    int32
	TID    int32
	Decode uint32 // as in Op, like the following two
	Graph  uint32
	Seq    uint64 // of the op that reads it
	Layer  int32
	Point  Point
	// Row is the token's number among the Rows rows that the graph computes here. In its last layer
	// llama.cpp leaves out tokens whose output nobody wants. Row then counts only the tokens that
	// are left.
	Row, Rows int
	// Values has a value for each dimension of the model. The capturer may overwrite them once the
	// event has been handled.
	Values []float32
}

// Point is where in a layer a RouterInput was read.
type Point uint8

const (
	PointRouter    Point = iota // the router's input: its matrix times this gives the scores of the experts
	PointAttention              // the input of the layer's attention
)

var pointNames = []string{"router", "attention"}

// PointNames returns the names of the points, indexed by Point.
func PointNames() []string { return slices.Clone(pointNames) }

// ParsePoint returns the point that has this name.
func ParsePoint(name string) (Point, error) {
	i := slices.Index(pointNames, name)
	if i < 0 {
		return 0, fmt.Errorf("point %q is not one of %v", name, pointNames)
	}
	return Point(i), nil
}

func (p Point) String() string { return pointNames[min(p, PointAttention)] }

// Memo holds what a consumer of events has computed from an op. Only one consumer of a stream may
// use it, in the goroutine that handles the events. Capturers ignore it. The zero value is empty.
type Memo struct{ Value any }

// Source is one weight that an op reads.
type Source struct {
	Name string // ggml_tensor.name, cut at 63 bytes by ggml
	Data uint64 // address in the target
	// Data lies in a mapping of a file; false: the weight was copied to other memory when the model
	// was loaded
	InFile bool
	File   FileID // which file, if InFile
	Offset int64  // byte offset in that file, if InFile
	Type   gguf.Type
	NE     [4]int64 // elements per dimension, fastest first
	NB     [4]int64 // bytes per step in each dimension
}

// Buffer is a tensor that an op touches and that is no weight: an activation, an input, a part of
// the KV cache.
type Buffer struct {
	Name  string // ggml_tensor.name
	Root  string // name of the tensor that it is a view of ("cache_k_l0"); empty if it is no view
	Data  uint64 // address in the target
	Type  gguf.Type
	NE    [4]int64
	NB    [4]int64
	Write bool // true: the op writes it (its result); false: the op reads it
}

// Cause is why a page was read from disk.
type Cause uint8

const (
	CauseFault     Cause = iota // page fault: the target touched this page
	CauseReadahead              // the kernel read it ahead because the target touched or read a page nearby
	CauseRead                   // the target read this part of the file with a system call
	CauseOther                  // another process read it
)

// PageIn reports that a run of consecutive pages of one file was added to the page cache.
type PageIn struct {
	Time   int64 // ns, CLOCK_MONOTONIC, when the first page was added
	PID    int32 // process that caused it
	TID    int32
	Decode uint32 // the decode that the target was in at that time; 0 between decodes
	Seq    uint64 // Op.Seq of the op that thread 0 of that decode was in; 0 if none
	File   FileID
	Offset int64
	Bytes  int64
	Cause  Cause
}

// ProcessBegin reports that a process is traced from now on: the target itself, or a process that
// it started.
type ProcessBegin struct {
	PID     int32
	Parent  int32 // 0 for the target itself
	Command []string
}

// ProcessEnd is the last event of a process.
type ProcessEnd struct {
	Time int64
	PID  int32
}

// FileID identifies a mapped file by the kernel's device and inode numbers.
type FileID = proc.FileID

func (FileSeen) event()     {}
func (DecodeBegin) event()  {}
func (DecodeEnd) event()    {}
func (*Op) event()          {}
func (Selected) event()     {}
func (Lookup) event()       {}
func (RouterInput) event()  {}
func (PageIn) event()       {}
func (ProcessBegin) event() {}
func (ProcessEnd) event()   {}

var causeNames = []string{"fault", "readahead", "read", "other"}

// CauseNames returns the names of the causes, indexed by Cause.
func CauseNames() []string { return slices.Clone(causeNames) }

// ParseCause returns the cause that has this name.
func ParseCause(name string) (Cause, error) {
	i := slices.Index(causeNames, name)
	if i < 0 {
		return 0, fmt.Errorf("cause %q is not one of %v", name, causeNames)
	}
	return Cause(i), nil
}

func (c Cause) String() string { return causeNames[min(c, CauseOther)] }
