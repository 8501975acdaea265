package ebpf

// This file says whether a target could be traced here, and if not, what to do: Examine fills in a
// Report. It tries the kernel's features (doctor_machine.go, try.go), reads the target's files as
// the Tracer does (doctor_target.go), decides which modes of tracing would work (doctor_modes.go),
// and changes nothing.

import (
	"fmt"
	"slices"
	"strings"

	"tensorcast/ggml"
	"tensorcast/internal/proc"
)

// Report says whether a target could be traced, and if not, why.
type Report struct {
	Kernel       string    `json:"kernel"` // release and machine
	Features     []Finding `json:"features"`
	Capabilities []Finding `json:"capabilities"`
	Settings     []Setting `json:"settings"`
	Target       *Target   `json:"target,omitempty"` // nil if no target was given
	Modes        []Mode    `json:"modes"`
	Advice       []string  `json:"advice"` // what to do about problems, one line each
	OK           bool      `json:"ok"`     // tracer would work with its default, --detail op

	// Why the kernel refuses what root may do, and what to do about it. Both are empty if it is not
	// known to refuse anything.
	refused, remedy string
	confined        bool // this process is in a user namespace
}

// State is the result of a test.
type State string

const (
	Yes     State = "yes"
	No      State = "no"
	Unknown State = "unknown" // cannot be found out without more privileges
)

// Finding is a feature of the kernel, or a capability of this process.
type Finding struct {
	Name   string `json:"name"`
	State  State  `json:"state"`
	Use    string `json:"use"`              // what it is for
	Detail string `json:"detail,omitempty"` // why not
}

// Setting is a kernel setting that may affect tracing.
type Setting struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Matters bool   `json:"matters"` // whether it affects this process
	Meaning string `json:"meaning"`
}

// Target is what was found out about the process or the command.
type Target struct {
	PID     int          `json:"pid,omitempty"`
	Command []string     `json:"command"`
	Files   []File       `json:"files"`  // those that hold ggml or llama.cpp
	Models  []string     `json:"models"` // GGUF files that the process maps
	Ops     int          `json:"ops"`    // number of ops that its ggml has
	Layout  *ggml.Layout `json:"layout,omitempty"`
}

// File is an ELF file of the target.
type File struct {
	Path        string  `json:"path"`
	Probes      []Probe `json:"probes"`
	Ops         int     `json:"ops,omitempty"`
	GGMLVersion string  `json:"ggml_version,omitempty"`
	GGMLCommit  string  `json:"ggml_commit,omitempty"`
	LlamaBuild  string  `json:"llama_build,omitempty"`
	Layout      string  `json:"layout,omitempty"` // where the layout was learned from
	Stripped    bool    `json:"stripped"`
	Problem     string  `json:"problem,omitempty"`
}

// Probe is a function that would be probedFunction.
type Probe struct {
	Symbol string    `json:"symbol"`
	Role   ggml.Role `json:"role"`
	Offset uint64    `json:"offset"` // file offset of the function
	Skip   uint64    `json:"skip"`   // bytes from there to the probe
	Cost   ggml.Cost `json:"cost"`   // per hit
}

// Mode is a way of tracing.
type Mode struct {
	Name   string `json:"name"` // op, graph, op+io, preload
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"` // why not
}

// ExamineOptions select a process or a command; if neither is set, only the machine is examinedTarget.
type ExamineOptions struct {
	PID     int
	Command []string
	Env     []string // the command's environment, as in os.Environ
}

// Examine examines the kernel, this process's privileges and the target. It returns an error if the
// target does not exist (ErrNoProcess, exec.ErrNotFound, fs.ErrNotExist) or cannot be looked at
// (proc.ErrForeignProc); all other obstacles are in the report.
func Examine(opts ExamineOptions) (*Report, error) {
	if err := proc.CheckMount(); err != nil {
		return nil, err // /proc shows other processes than the ones that the caller means
	}
	r := &Report{}
	t, err := r.examineTarget(opts)
	if err != nil {
		return nil, err
	}
	if err := r.examineMachine(); err != nil {
		return nil, err
	}
	r.judgeModes(t)
	return r, nil
}

// advise adds a line of advice, unless it was given before.
func (r *Report) advise(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !slices.Contains(r.Advice, line) {
		r.Advice = append(r.Advice, line)
	}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
