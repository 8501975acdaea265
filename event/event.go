package event

// This file defines what a capturer reports about a running target, whatever the means of capture.

import (
	"fmt"
	"slices"

	"tensorcast/gguf"
)

// Event is one observation: FileSeen, DecodeBegin, DecodeEnd, *Op, PageIn, ProcessBegin or ProcessEnd. Events of one thread come in the order in which they happened.
type Event interface{ event() }

// FileSeen comes before the first Op that reads from a file.
type FileSeen struct {
	PID  int32
	File FileID
	Path string // where this process can open it
}

// DecodeBegin is the entry of llama_decode (a step).
type DecodeBegin struct {
	Time    int64  // ns, CLOCK_MONOTONIC
	PID     int32  // process
	TID     int32  // the thread that decodes, ggml's thread 0
	Context uint64 // the llama_context, as an address in the target
	Decode  uint32 // counts the process's calls from 1
	Tokens  int32  // tokens in the batch
	Warmup  bool   // between llama_set_warmup(true) and (false)
	// Sequences are the distinct sequences (a server's slots) that the batch's tokens belong to, ascending; nil if the capturer
	// cannot tell, as where the target has no llama_decode.
	Sequences []int32
	// Derived says that no llama_decode was seen, for want of a symbol or because the target computes without it: the step begins with
	// a lookup of token embeddings, and its end is that of its last op.
	Derived bool
}

// DecodeEnd is the return of llama_decode.
type DecodeEnd struct {
	Time   int64
	PID    int32
	TID    int32
	Decode uint32
}

// Op is one node of a ggml graph, run by thread 0, that reads at least one weight, or touches buffers. There are many: as an event it is a
// pointer, to what the capturer may overwrite when it has been handled; the slices in it stay.
type Op struct {
	Time     int64 // ns, CLOCK_MONOTONIC: when thread 0 entered the op; where graphs are observed and not ops, when it entered the graph
	Duration int64 // ns until thread 0 entered the next op or left the graph; it includes waiting for the other threads; -1 if not observed
	Stall    int64 // ns that the target's threads together waited for the disk meanwhile; -1 if not observed
	PID      int32
	TID      int32
	Decode   uint32 // the DecodeBegin it belongs to; 0 if none was seen
	Graph    uint32 // ggml_graph_compute calls of the process, from 1
	Seq      uint64 // op number within the capture, ops without weights included
	Name     string // ggml's name of the op ("MUL_MAT"), joined by "+" for fused ones ("RMS_NORM+MUL")
	// GatherDim is the dimension of the weight that IDs index: the op reads NB[GatherDim] bytes for each distinct id.
	// 1 for GET_ROWS and ADD_ID, 2 for MUL_MAT_ID, 0 if the whole weight is read.
	GatherDim int
	ByExpert  bool    // the ids are experts, else rows
	IDs       []int32 // IDRows rows (tokens) of len(IDs)/IDRows slots; nil if they were lost
	IDRows    int
	// Selects is how many ids, all different, the op gathers by where only their number is known: the experts of one token, before the
	// graph has chosen them. 0 otherwise.
	Selects int
	Sources []Source
	Buffers []Buffer // what it touches besides weights, if that was asked for
	Clipped bool     // the op had more weights or ids than the capturer could carry: a defect to report, never to hide
	// Memo, if not nil, is shared by ops of one process that have the same Name, GatherDim, ByExpert and Sources: a consumer keeps there what it
	// has worked out of these.
	Memo *Memo
}

// Memo is a place for what the one consumer of a stream of events has worked out of an op. Capturers do not look at it. The zero value holds nothing.
// It is for the goroutine that handles the events.
type Memo struct{ Value any }

// Source is one weight that an op reads.
type Source struct {
	Name   string // ggml_tensor.name, cut at 63 bytes by ggml
	Data   uint64 // address in the target
	InFile bool   // Data lies in a mapping of a file; else the weight was copied elsewhere at load
	File   FileID // which file, if InFile
	Offset int64  // byte offset in that file, if InFile
	Type   gguf.Type
	NE     [4]int64 // elements per dimension, fastest first
	NB     [4]int64 // bytes per step in each dimension
}

// Buffer is a tensor besides weights that an op touches: an activation, an input, a part of the KV cache.
type Buffer struct {
	Name  string // ggml_tensor.name
	Root  string // of the tensor that it is a view of ("cache_k_l0"); empty if it is no view
	Data  uint64 // address in the target
	Type  gguf.Type
	NE    [4]int64
	NB    [4]int64
	Write bool // the op's result, else a source
}

// Cause says why a page came from disk.
type Cause uint8

const (
	CauseFault     Cause = iota // the target touched it
	CauseReadahead              // the target touched, or read, another page nearby
	CauseRead                   // the target read the file by a system call
	CauseOther                  // another process
)

// PageIn is a run of pages of one file that was added to the page cache.
type PageIn struct {
	Time   int64 // ns, CLOCK_MONOTONIC: of the first page
	PID    int32 // process that caused it
	TID    int32
	Decode uint32 // the target's decode at that time; 0 between decodes
	Seq    uint64 // Op.Seq of the op that thread 0 of that decode was in; 0 if none
	File   FileID
	Offset int64
	Bytes  int64
	Cause  Cause
}

// ProcessBegin says that a process is traced from now on: the target itself, or one that it has started.
type ProcessBegin struct {
	PID     int32
	Parent  int32 // 0 for the target itself
	Command []string
}

// ProcessEnd comes after the last event of a process.
type ProcessEnd struct {
	Time int64
	PID  int32
}

// FileID names a mapped file as the kernel does.
type FileID struct {
	Dev uint64 // kernel dev_t of the superblock (major<<20 | minor)
	Ino uint64
}

func (FileSeen) event()     {}
func (DecodeBegin) event()  {}
func (DecodeEnd) event()    {}
func (*Op) event()          {}
func (PageIn) event()       {}
func (ProcessBegin) event() {}
func (ProcessEnd) event()   {}

var causeNames = []string{"fault", "readahead", "read", "other"}

// CauseNames are the names of the causes, each at its number.
func CauseNames() []string { return slices.Clone(causeNames) }

// ParseCause is the cause of a name.
func ParseCause(name string) (Cause, error) {
	i := slices.Index(causeNames, name)
	if i < 0 {
		return 0, fmt.Errorf("cause %q is not one of %v", name, causeNames)
	}
	return Cause(i), nil
}

func (c Cause) String() string { return causeNames[min(c, CauseOther)] }

// Bytes is the extent that the source spans (ggml_nbytes): what an op that gathers nothing reads.
func (s *Source) Bytes() int64 { return extent(s.Type, &s.NE, &s.NB) }

// Bytes is the extent that the buffer spans (ggml_nbytes).
func (b *Buffer) Bytes() int64 { return extent(b.Type, &b.NE, &b.NB) }

// extent is ggml_nbytes; 0 for a tensor without elements, and for a type that is not known.
func extent(t gguf.Type, ne, nb *[4]int64) int64 {
	for _, n := range ne {
		if n <= 0 {
			return 0
		}
	}
	elems := t.BlockElems()
	if elems == 0 {
		return 0
	}
	var total int64
	if elems == 1 {
		total = t.BlockBytes() + (ne[0]-1)*nb[0]
	} else {
		total = ne[0] * nb[0] / elems
	}
	for d := 1; d < 4; d++ {
		total += (ne[d] - 1) * nb[d]
	}
	return total
}
