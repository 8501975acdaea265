package trace

// This file owns capture.json: what was captured, of which model, on which machine, and what was lost.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Meta is the content of capture.json.
type Meta struct {
	Schema    int         `json:"schema"`
	Started   time.Time   `json:"started"`
	Seconds   float64     `json:"seconds"`
	Command   []string    `json:"command,omitempty"` // of the process
	PID       int         `json:"pid"`
	Parent    int         `json:"parent,omitempty"` // the process that started it, if that is traced too
	Detail    string      `json:"detail"`           // one of the constants Detail...
	Target    TargetInfo  `json:"target"`
	Host      Host        `json:"host"`
	Models    []ModelInfo `json:"models"`    // in the order in which they were first read; StructureRow.Model is an index
	Libraries []string    `json:"libraries"` // files that carry probes
	Contexts  int         `json:"contexts"`  // llama_contexts that decoded
	Steps     int         `json:"steps"`
	Tokens    int         `json:"tokens"` // generated, over all contexts and sequences
	Rows      int64       `json:"rows"`   // of the access table, deleted ones too
	Segments  Segments    `json:"segments"`
	// Rereads is what was read from disk, and again; null unless page-ins were observed.
	Rereads  *Rereads `json:"rereads"`
	Counters Counters `json:"counters"`
	Outside  Outside  `json:"outside_mapping"`
	Complete bool     `json:"complete"` // false while the capture runs, and for ever if the tracer was killed

	Dir string `json:"-"` // of the capture; empty if none was written
}

// What was observed, in Meta.Detail.
const (
	DetailOp      = "op"      // each op with its time
	DetailGraph   = "graph"   // the sequence of ops; no times of ops, no experts
	DetailOpIO    = "op+io"   // each op with its time and its stall, and each read of a model file from disk
	DetailPreload = "preload" // what a library in the target sees: graphs and their ops
)

// TargetInfo is what a target says about itself. What is not known is empty.
type TargetInfo struct {
	GGMLVersion  string `json:"ggml_version,omitempty"`
	GGMLCommit   string `json:"ggml_commit,omitempty"`
	LayoutOrigin string `json:"layout_origin,omitempty"` // where the layout of ggml's structs was taken from ("DWARF")
}

// Host is the machine of a capture.
type Host struct {
	Kernel      string `json:"kernel"`
	Arch        string `json:"arch"`
	CPU         string `json:"cpu,omitempty"` // model name
	CPUs        int    `json:"cpus"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
	PageSize    int    `json:"page_size"`
}

// ModelInfo identifies a traced model.
type ModelInfo struct {
	Path        string `json:"path"`
	Fingerprint string `json:"fingerprint"`
	Bytes       int64  `json:"bytes"`
	Tensors     int    `json:"tensors"`
	Layers      int    `json:"layers"` // that have tensors
	// LayersSeen are the layers of which an op of the CPU read a weight ("0-11,20"), LayersElsewhere the others, once a step
	// is over: they are computed by another device.
	LayersSeen      string `json:"layers_seen"`
	LayersElsewhere string `json:"layers_elsewhere,omitempty"`
}

// Segments says how a rotated capture is cut: segment 0 is access.arrows (and so on for the other tables), segment 1
// is access.0001.arrows.
type Segments struct {
	First       int   `json:"first"`        // that is still there
	Last        int   `json:"last"`         // that is written to
	Deleted     int   `json:"deleted"`      // the oldest ones
	DeletedRows int64 `json:"deleted_rows"` // of the access table, in them
}

// Counters account for every probe hit: Hits = OtherThreads + NoWeight + OpsSent + OpsLost + Unfinished + Faults, and for hits
// that did not get so far (Misses). Where several processes are traced, they are those of all together.
type Counters struct {
	Hits           uint64 `json:"hits"`                       // op probes that fired in the target
	OtherThreads   uint64 `json:"other_threads"`              // filtered: not ggml's thread 0
	NoWeight       uint64 `json:"no_weight"`                  // filtered: thread 0, but the op reads no weight
	OpsSent        uint64 `json:"ops_sent"`                   // handed to the ring buffer
	OpsLost        uint64 `json:"ops_lost"`                   // did not fit the ring buffer
	Unfinished     uint64 `json:"unfinished"`                 // begun when the capture ended
	Received       uint64 `json:"received"`                   // op events that were read from the ring buffer
	OthersLost     uint64 `json:"others_lost"`                // other events (decode begins and ends, ids) that did not fit
	Faults         uint64 `json:"faults"`                     // the op itself could not be read from the target's memory
	Unresolved     uint64 `json:"unresolved"`                 // sources whose mapping could not be looked up
	Clipped        uint64 `json:"clipped"`                    // ops whose weights or ids could not be read whole, or are more than an event carries
	Misses         uint64 `json:"recursion_misses,omitempty"` // hits that the kernel skipped, since it was busy with another probe on that CPU
	PagesSent      uint64 `json:"pages_sent,omitempty"`       // page-ins handed to the ring buffer
	PagesLost      uint64 `json:"pages_lost,omitempty"`       // page-ins that did not fit
	PageInsDropped uint64 `json:"page_ins_dropped,omitempty"` // came before their file was known as a model's, and were more than is kept
}

// Lost is the number of events that are missing from the tables.
func (c Counters) Lost() uint64 {
	return c.OpsLost + c.OthersLost + c.Misses + c.PagesLost + c.PageInsDropped
}

// Incomplete is the number of ops whose rows are missing or say too little, for another reason than loss.
func (c Counters) Incomplete() uint64 { return c.Faults + c.Unresolved + c.Clipped }

// Filtered is the number of hits that were dropped on purpose.
func (c Counters) Filtered() uint64 { return c.OtherThreads + c.NoWeight }

// Outside describes weights that the target reads from memory that is not a mapping of the model file.
type Outside struct {
	Tensors int   `json:"tensors"`
	Bytes   int64 `json:"bytes"`
	// Example is the name of one of them.
	Example string `json:"example,omitempty"`
}

// LayersText is one line for each model of which some layers were not computed on the CPU, for people. It is nil if there are none.
func (m *Meta) LayersText() []string {
	var lines []string
	for _, mod := range m.Models {
		if mod.LayersElsewhere == "" {
			continue
		}
		line := fmt.Sprintf("layers %s of %d were computed on the CPU; %s elsewhere", mod.LayersSeen, mod.Layers, mod.LayersElsewhere)
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

func writeMeta(dir string, m *Meta) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", MetaFile, err)
	}
	path := filepath.Join(dir, MetaFile)
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", MetaFile, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("replace %s: %w", MetaFile, err)
	}
	return nil
}

// ErrNoCapture says that a directory holds no capture.
var ErrNoCapture = errors.New("no capture here")

func readMeta(dir string) (*Meta, error) {
	data, err := os.ReadFile(filepath.Join(dir, MetaFile))
	if errors.Is(err, fs.ErrNotExist) {
		if several, _ := filepath.Glob(filepath.Join(dir, "*", MetaFile)); len(several) > 0 {
			return nil, fmt.Errorf("%s: %w, but of %d processes in directories of its own: name one, such as %s", dir, ErrNoCapture, len(several), filepath.Dir(several[0]))
		}
		return nil, fmt.Errorf("%s: %w: make one with `tracer -o %s -- llama-cli -m model.gguf ...`", dir, ErrNoCapture, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", MetaFile, err)
	}
	var m Meta
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("parse %s: %w", filepath.Join(dir, MetaFile), err)
	}
	if m.Schema != SchemaVersion {
		return nil, fmt.Errorf("%s has schema version %d, this program reads %d: capture again", dir, m.Schema, SchemaVersion)
	}
	return &m, nil
}
