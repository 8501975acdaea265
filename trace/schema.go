// Package trace owns the tables of a capture: their Arrow schemas, a writer that survives being killed, a reader,
// and the join of captured events with the models' structure. It does not know how events are captured.
//
// A capture is a directory. Each table is an Arrow IPC stream (a stream that was cut short still yields its whole
// batches); capture.json holds counters and descriptions and is replaced atomically.
//
// A capturer hands its events to a [Session], or to a [Recorder] where there is one process. [Open] reads what they wrote:
//
//	c, err := trace.Open("capture")
//	...
//	for a, err := range c.Accesses() {
//		if err != nil {
//			return err
//		}
//		fmt.Println(a.Timestamp, c.Structure[a.Tensor].Name, a.Bytes)
//	}
package trace

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"tensorcast/event"

	"github.com/apache/arrow/go/v17/arrow"
)

// Names of the files of a capture directory. Where a capture is rotated, a table goes on in numbered segments:
// access.arrows, access.0001.arrows, ...
const (
	AccessFile    = "access.arrows"
	RouteFile     = "route.arrows"
	StepFile      = "steps.arrows"
	PageInFile    = "pagein.arrows"  // only if page-ins were observed
	BufferFile    = "buffers.arrows" // only if buffers were
	StructureFile = "structure.arrows"
	MetaFile      = "capture.json"
)

// streamFiles are the tables that are continued in segments.
var streamFiles = []string{AccessFile, RouteFile, StepFile, PageInFile, BufferFile}

var segmentName = regexp.MustCompile(`^([a-z]+)\.([0-9]{4,9})\.arrows$`)

// segmentFile is the name of a table's segment.
func segmentFile(table string, segment int) string {
	if segment == 0 {
		return table
	}
	return fmt.Sprintf("%s.%04d.arrows", strings.TrimSuffix(table, filepath.Ext(table)), segment)
}

// segmentOf is the inverse of segmentFile; ok is false if name is no segment of a table.
func segmentOf(name string) (table string, segment int, ok bool) {
	if slices.Contains(streamFiles, name) {
		return name, 0, true
	}
	m := segmentName.FindStringSubmatch(name)
	if m == nil || !slices.Contains(streamFiles, m[1]+".arrows") {
		return "", 0, false
	}
	segment, err := strconv.Atoi(m[2])
	return m[1] + ".arrows", segment, err == nil && segment > 0
}

// SchemaVersion is stored in the metadata of each table's schema and in capture.json. Readers refuse others.
const SchemaVersion = 2

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

func parsePhase(s string) (Phase, error) {
	for i, n := range phaseNames {
		if n == s {
			return Phase(i), nil
		}
	}
	return 0, fmt.Errorf("phase %q is not one of %s", s, strings.Join(phaseNames, ", "))
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

func (k BufferKind) String() string {
	if int(k) < len(bufferKindNames) {
		return bufferKindNames[k]
	}
	return "buffer(" + strconv.Itoa(int(k)) + ")"
}

// kindOf follows the names that llama.cpp and ggml give. Views of a tensor keep its name, with something behind it.
func kindOf(b *event.Buffer) BufferKind {
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

func tableMetadata(fingerprint string) *arrow.Metadata {
	m := arrow.NewMetadata(
		[]string{"tensorcast.schema", "tensorcast.model", "tensorcast.clock"},
		[]string{strconv.Itoa(SchemaVersion), fingerprint, "ns since capture start, CLOCK_MONOTONIC"})
	return &m
}

var (
	nameDict  = &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String}
	shortDict = &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	int32List = arrow.ListOf(arrow.PrimitiveTypes.Int32)
)

// columnsOf are the columns of the tables that are streams.
var columnsOf = map[string][]arrow.Field{
	AccessFile: {
		{Name: "timestamp", Type: arrow.PrimitiveTypes.Int64},
		{Name: "step", Type: arrow.PrimitiveTypes.Int32},
		{Name: "token", Type: arrow.PrimitiveTypes.Int32},
		{Name: "phase", Type: shortDict},
		{Name: "thread", Type: arrow.PrimitiveTypes.Int32},
		{Name: "op", Type: nameDict},
		{Name: "tensor_name", Type: nameDict},
		{Name: "data_ptr", Type: arrow.PrimitiveTypes.Uint64},
		{Name: "offset_bytes", Type: arrow.PrimitiveTypes.Int64},
		{Name: "bytes_accessed", Type: arrow.PrimitiveTypes.Int64},
		{Name: "layer", Type: arrow.PrimitiveTypes.Int32},
		{Name: "duration_ns", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "experts", Type: int32List, Nullable: true},
		{Name: "context", Type: arrow.PrimitiveTypes.Int32},
		{Name: "stall_ns", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "model", Type: arrow.PrimitiveTypes.Int32}, // a tensor's name is unique within its model
	},
	RouteFile: {
		{Name: "step", Type: arrow.PrimitiveTypes.Int32},
		{Name: "token", Type: arrow.PrimitiveTypes.Int32},
		{Name: "layer", Type: arrow.PrimitiveTypes.Int32},
		{Name: "slot", Type: arrow.PrimitiveTypes.Int32},
		{Name: "expert", Type: arrow.PrimitiveTypes.Int32},
		{Name: "position", Type: arrow.PrimitiveTypes.Int32},
	},
	StepFile: {
		{Name: "step", Type: arrow.PrimitiveTypes.Int32},
		{Name: "pid", Type: arrow.PrimitiveTypes.Int32},
		{Name: "thread", Type: arrow.PrimitiveTypes.Int32},
		{Name: "context", Type: arrow.PrimitiveTypes.Int32},
		{Name: "phase", Type: shortDict},
		{Name: "tokens", Type: arrow.PrimitiveTypes.Int32},
		{Name: "token", Type: arrow.PrimitiveTypes.Int32},
		{Name: "token_ids", Type: int32List, Nullable: true},
		{Name: "sequences", Type: int32List, Nullable: true},
		{Name: "begin", Type: arrow.PrimitiveTypes.Int64},
		{Name: "end", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "derived", Type: arrow.FixedWidthTypes.Boolean},
	},
	PageInFile: {
		{Name: "timestamp", Type: arrow.PrimitiveTypes.Int64},
		{Name: "step", Type: arrow.PrimitiveTypes.Int32},
		{Name: "offset_bytes", Type: arrow.PrimitiveTypes.Int64},
		{Name: "bytes", Type: arrow.PrimitiveTypes.Int64},
		{Name: "tensor_name", Type: nameDict, Nullable: true},
		{Name: "expert", Type: arrow.PrimitiveTypes.Int32},
		{Name: "pid", Type: arrow.PrimitiveTypes.Int32},
		{Name: "thread", Type: arrow.PrimitiveTypes.Int32},
		{Name: "cause", Type: shortDict},
		{Name: "rereads", Type: arrow.PrimitiveTypes.Int32},
		{Name: "op", Type: nameDict, Nullable: true},
		{Name: "file", Type: nameDict},
		{Name: "model", Type: arrow.PrimitiveTypes.Int32},
	},
	BufferFile: {
		{Name: "timestamp", Type: arrow.PrimitiveTypes.Int64},
		{Name: "step", Type: arrow.PrimitiveTypes.Int32},
		{Name: "op", Type: nameDict},
		{Name: "seq", Type: arrow.PrimitiveTypes.Int64},
		{Name: "buffer", Type: nameDict},
		{Name: "root", Type: nameDict, Nullable: true},
		{Name: "kind", Type: shortDict},
		{Name: "write", Type: arrow.FixedWidthTypes.Boolean},
		{Name: "data_ptr", Type: arrow.PrimitiveTypes.Uint64},
		{Name: "bytes", Type: arrow.PrimitiveTypes.Int64},
	},
}

func structureSchema(fingerprint string) *arrow.Schema {
	return arrow.NewSchema([]arrow.Field{
		{Name: "tensor_name", Type: arrow.BinaryTypes.String},
		{Name: "offset_bytes", Type: arrow.PrimitiveTypes.Int64},
		{Name: "size_bytes", Type: arrow.PrimitiveTypes.Int64},
		{Name: "type", Type: arrow.BinaryTypes.String},
		{Name: "layer", Type: arrow.PrimitiveTypes.Int32},
		{Name: "component", Type: arrow.BinaryTypes.String},
		{Name: "file", Type: arrow.BinaryTypes.String},
		{Name: "shape", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64)},
		{Name: "expert_count", Type: arrow.PrimitiveTypes.Int32},
		{Name: "expert_stride_bytes", Type: arrow.PrimitiveTypes.Int64},
		{Name: "model", Type: arrow.PrimitiveTypes.Int32},
	}, tableMetadata(fingerprint))
}
