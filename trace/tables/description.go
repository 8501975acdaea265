package tables

// This file defines the content of capture.json: what was captured, of which model, on which
// machine, and what was lost.

import (
	"fmt"
	"path/filepath"
	"time"

	"tensorcast/event"
)

// DefaultDir is where tracer writes a capture, and where analyze looks for one, if no directory is named. It is the
// name of a tool with a kind of file, as perf.data is, so that it is hardly taken by something else.
const DefaultDir = "tracer.capture"

// Meta is the content of capture.json.
type Meta struct {
	Schema  int              `json:"schema"`
	Started time.Time        `json:"started"`
	Seconds float64          `json:"seconds"`
	Command []string         `json:"command,omitempty"` // command line of the traced process
	PID     int              `json:"pid"`
	Parent  int              `json:"parent,omitempty"` // pid of the process that started it, if that is traced too
	Detail  string           `json:"detail"`           // one of the constants Detail...
	Target  event.TargetInfo `json:"target"`
	Host    Host             `json:"host"`
	// Models are in the order in which they were first read. StructureRow.Model is an index into them.
	Models    []ModelInfo `json:"models"`
	Libraries []string    `json:"libraries"` // files in which the capturer has probes
	Contexts  int         `json:"contexts"`  // number of llama_contexts that decoded
	Steps     int         `json:"steps"`
	Tokens    int         `json:"tokens"` // generated, over all contexts and sequences
	Rows      int64       `json:"rows"`   // rows of the access table, including deleted segments
	Segments  Segments    `json:"segments"`
	// Rereads sums up what was read from disk, for the first time and again. It is null unless page-ins
	// were observed.
	Rereads *Rereads `json:"rereads"`
	// Memory and Disk are what the process could use. They are null if that is not known.
	Memory *Memory `json:"memory,omitempty"`
	Disk   *Disk   `json:"disk,omitempty"`
	// Hidden describes the hidden table. It is null unless routers' inputs were observed.
	Hidden   *Hidden        `json:"hidden,omitempty"`
	Counters event.Counters `json:"counters"`
	Outside  Outside        `json:"outside_mapping"`
	// NoTokenIDs means that whatever reveals the tokens was left out. StepRow.TokenIDs is nil. Reads of
	// gathered rows and page-ins of token embeddings begin at the tensor's first byte. Command has no
	// arguments.
	NoTokenIDs bool `json:"no_token_ids,omitempty"`
	Complete   bool `json:"complete"` // false while the capture runs; stays false if the tracer was killed

	Dir string `json:"-"` // directory of the capture; empty if none was written
}

// Memory is what limits a process's memory besides the host's size: the lowest limit of its control group
// and the group's ancestors, as they were at the end.
type Memory struct {
	LimitBytes int64  `json:"limit_bytes,omitempty"` // 0: none
	Of         string `json:"limit_of,omitempty"`    // the group and the kind of limit: "/a/b memory.max"
	OtherBytes int64  `json:"other_bytes,omitempty"` // what counts against it besides page cache of files
}

// Disk is the disk that holds a process's first model.
type Disk struct {
	Device string `json:"device"` // major:minor, the kernel's number (of the layer below an overlay)
	// Identity says which disk that is, whatever its number: see package internal/disk. "" if not known.
	Identity     string `json:"identity,omitempty"`
	ReadaheadKiB int    `json:"readahead_kib,omitempty"` // read_ahead_kb; 0 if the kernel does not tell
	// BytesPerSecond is what it reads with many requests at a time. It is 0 if that was not measured.
	BytesPerSecond float64 `json:"bytes_per_second,omitempty"`
	// Least and Most are the range of the moments of which BytesPerSecond is the median. They are 0 in captures of
	// earlier versions.
	Least float64 `json:"least_bytes_per_second,omitempty"`
	Most  float64 `json:"most_bytes_per_second,omitempty"`
	// Measured is when that was, which may have been before the capture. It is zero in captures of earlier versions.
	Measured time.Time `json:"measured,omitzero"`
}

// Hidden describes the hidden table. Rows and LeftOut together are Counters.InputsSent.
type Hidden struct {
	// Every is the sampling rate: one in Every decodes of one token, and one in Every rows of a larger
	// batch, was observed.
	Every  int   `json:"every"`
	Values int   `json:"values"` // of a row; 0 if there is none
	Rows   int64 `json:"rows"`   // including deleted segments
	// LeftOut counts rows that came before the first whole decode, in a warm-up, or with another number
	// of values (a second model's).
	LeftOut int64 `json:"left_out"`
}

// What was observed, for Meta.Detail.
const (
	DetailOp      = "op"      // each op with its time
	DetailGraph   = "graph"   // the sequence of ops; no times of ops, no experts
	DetailOpIO    = "op+io"   // each op with its time and its stall, and each read of a model file from disk
	DetailPreload = "preload" // what the library in the target sees: graphs and their ops
)

// Host describes the machine on which a capture was made.
type Host struct {
	Kernel      string `json:"kernel"`
	Arch        string `json:"arch"`
	CPU         string `json:"cpu,omitempty"` // model name
	CPUs        int    `json:"cpus"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
	PageSize    int    `json:"page_size"`
	// MemoryBytesPerSecond is how many bytes per second all processors read from memory together. It is 0 if that
	// was not measured: tracer does so when its command has ended.
	MemoryBytesPerSecond float64 `json:"memory_bytes_per_second,omitempty"`
}

// ModelInfo identifies a traced model.
type ModelInfo struct {
	Path        string `json:"path"`
	Fingerprint string `json:"fingerprint"` // of the first file
	Bytes       int64  `json:"bytes"`       // of all files
	Tensors     int    `json:"tensors"`
	Layers      int    `json:"layers"` // number of layers that have tensors
	// Files are the model's parts in order, or, if parts are not found by name, in the order in
	// which they were first read. Captures of earlier versions lack them.
	Files []ModelFile `json:"files,omitempty"`
	// LayersSeen are the layers of which an op on the CPU read a weight ("0-11,20").
	// LayersElsewhere are the others, set once a step is over: another device computes them.
	LayersSeen      string `json:"layers_seen"`
	LayersElsewhere string `json:"layers_elsewhere,omitempty"`
}

// ModelFile is one file of a model.
type ModelFile struct {
	Name        string `json:"name"` // base name, as in StructureRow.File
	Bytes       int64  `json:"bytes"`
	Fingerprint string `json:"fingerprint"` // see gguf.File.Fingerprint
}

// Segments describes the segments of a rotated capture: segment 0 is access.arrows (and so on for
// the other tables), segment 1 is access.0001.arrows.
type Segments struct {
	First       int   `json:"first"`        // oldest that still exists
	Last        int   `json:"last"`         // newest, being written to
	Deleted     int   `json:"deleted"`      // number of deleted ones, the oldest
	DeletedRows int64 `json:"deleted_rows"` // rows of the access table in deleted segments
}

// Outside describes weights that the target reads from memory outside the mappings of the model file.
type Outside struct {
	Tensors int   `json:"tensors"`
	Bytes   int64 `json:"bytes"`
	// Example is the name of one such weight.
	Example string `json:"example,omitempty"`
}

// LayersText returns one line for people for each model of which some layers were not computed on the
// CPU. It returns nil if there is no such model.
func (m *Meta) LayersText() []string {
	var lines []string
	for _, mod := range m.Models {
		if mod.LayersElsewhere == "" {
			continue
		}
		line := fmt.Sprintf("layers %s of %d were computed on the CPU; %s elsewhere", mod.LayersSeen, mod.Layers,
			mod.LayersElsewhere)
		if mod.LayersSeen == "" {
			line = fmt.Sprintf("none of the %d layers was computed on the CPU", mod.Layers)
		}
		if len(m.Models) > 1 {
			line = filepath.Base(mod.Path) + ": " + line
		}
		lines = append(lines, line)
	}
	return lines
}
