// Package holding finds out how a process holds its model: which GGUF files it maps, whether it computes with the bytes of these files, with copies of them or on a
// GPU, on what kind of file system they lie, and which other processes map them, too. From that it tells whether keeping pages of the files in memory could make
// the process faster ([Holding.Judge]), and if not, why.
//
// It looks from outside, and sets no probe. llama.cpp does not say how it holds its weights, and the memory map tells only a part: of a file whose weights were
// repacked, the whole span between the first and the last weight that is still used stays mapped, and a large anonymous area may be copies or a context's keys and
// values. So the process's own table of tensors is looked for in its memory: ggml's struct ggml_tensor has the name of each weight, and the address of its data.
//
// Nothing that the process says is believed further than its own verdict: what is read is bounded, whatever it maps.
package holding

// This file defines what is found out, and the order of finding out.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tensorcast/internal/proc"
)

// Holding is how a process holds its model. Amounts are bytes.
type Holding struct {
	PID     int     `json:"pid"`
	Files   []File  `json:"files"`   // GGUF files that it maps, by address
	Weights Weights `json:"weights"` // of these files; if there are none, those that were found in the process's memory
	Mode    Mode    `json:"mode"`
	Exact   bool    `json:"exact"` // the process's own table of tensors was found: Weights is not presumed

	Own    int64 `json:"own"`    // the process's memory that is no file's, what is swapped out included
	Locked int64 `json:"locked"` // what it has locked in memory

	Devices  []string `json:"devices"`   // files of GPUs that it has open or maps
	Backends []string `json:"backends"`  // ggml's libraries for GPUs that it maps; it may use them or not
	Routed   int64    `json:"routed"`    // of Weights.Mapped: weights of experts, of which a token reads those that routers choose
	PerToken int64    `json:"per_token"` // of Weights.Mapped: what each token reads besides, at most; of a table of embeddings it reads a row

	Others    []Other `json:"others"`     // processes that have pages of the same files in their page tables
	OthersCut bool    `json:"others_cut"` // there may be more: a process may not be looked at, or all that is to be read is too much
}

// Weights says where weights are that a process computes with.
type Weights struct {
	Mapped  int64 `json:"mapped"`  // in the mapped file
	Copied  int64 `json:"copied"`  // elsewhere in the process's memory
	Device  int64 `json:"device"`  // in a GPU's memory
	Unknown int64 `json:"unknown"` // weights of a mapped file of which nothing is known: they may not be loaded yet
}

// Total is how many there are.
func (w Weights) Total() int64 { return w.Mapped + w.Copied + w.Device + w.Unknown }

// Mode sums Weights up in a word.
type Mode string

// The modes. What is below 1/50 of the weights does not count: a token cannot become faster than by that share.
const (
	ModeNone    Mode = "none"          // no weights were found
	ModeMapped  Mode = "mapped"        // it reads the mapped file
	ModePartly  Mode = "partly mapped" // it reads some weights from the mapped file
	ModeCopied  Mode = "copied"
	ModeDevice  Mode = "on a GPU"
	ModeUnknown Mode = "unknown"
)

const negligible = 50 // see Mode

// Other is another process that maps the model.
type Other struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}

// Options of Examine.
type Options struct {
	// Others says to look for other processes. That took 5 ms of a processor on a machine with 100 processes; all the rest took 9 ms the first time, with a vocabulary of
	// 128,000 words, and 2 ms when it was asked again (BenchmarkExamine).
	Others bool
}

// Examiner examines one process, again and again. It keeps what it has read of files that do not change. Not for concurrent use.
type Examiner struct {
	sys   system
	pid   int
	other map[proc.FileID]bool // files that are no models
	parts map[proc.FileID]part
	hits  []uint64 // where in the process's memory weights were found: they are looked for there first
}

// New returns an examiner of the process pid.
func New(pid int) *Examiner { return newExaminer(system{"/"}, pid) }

func newExaminer(sys system, pid int) *Examiner {
	return &Examiner{sys: sys, pid: pid, other: map[proc.FileID]bool{}, parts: map[proc.FileID]part{}}
}

// Examine says how the process holds its model now. What may not be seen is left out: without ptrace access to the process Exact is false. The error is
// proc.ErrNoProcess if it has ended, one that wraps fs.ErrPermission if not even its memory map can be read, and ctx's.
func (e *Examiner) Examine(ctx context.Context, opts Options) (*Holding, error) {
	h, err := e.examine(ctx, opts)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("process %d: %w", e.pid, proc.ErrNoProcess)
	case err != nil:
		return nil, fmt.Errorf("find out how process %d holds its model: %w", e.pid, err)
	}
	return h, nil
}

func (e *Examiner) examine(ctx context.Context, opts Options) (*Holding, error) {
	h := &Holding{PID: e.pid}
	space, err := e.sys.space(e.pid)
	if err != nil {
		return nil, err
	}
	if h.Own, h.Locked, err = e.sys.memory(e.pid); err != nil {
		return nil, err
	}
	h.Devices, h.Backends = space.devices, space.backends
	if err := e.sys.openDevices(e.pid, h); err != nil {
		return nil, err
	}
	models := e.models(space, h)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e.locate(ctx, space, models, h)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h.Mode = h.mode()
	if opts.Others && len(models) > 0 {
		if err := e.sys.others(ctx, e.pid, models, h); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// read is what tokens read from mapped files, sooner or later.
func (h *Holding) read() int64 { return h.PerToken + h.Routed }

func (h *Holding) mode() Mode {
	all := h.Weights.Total()
	much := func(n int64) bool { return n > all/negligible }
	switch {
	case all == 0:
		return ModeNone
	case much(h.Weights.Unknown):
		return ModeUnknown
	case !much(h.Weights.Copied) && !much(h.Weights.Device):
		return ModeMapped
	case much(h.read()):
		return ModePartly
	case h.Weights.Device > h.Weights.Copied:
		return ModeDevice
	default:
		return ModeCopied
	}
}

// system is the root of the file system with the kernel's files; tests use a tree of fixtures.
type system struct{ root string }

func (s system) path(pid int, name string) string {
	return filepath.Join(s.root, "proc", strconv.Itoa(pid), name)
}

// memory returns how much memory of its own a process has, and how much it has locked.
func (s system) memory(pid int) (own, locked int64, err error) {
	root, err := procfs.NewFS(filepath.Join(s.root, "proc"))
	if err != nil {
		return 0, 0, err
	}
	p, err := root.Proc(pid)
	if err != nil {
		return 0, 0, err
	}
	status, err := p.NewStatus() // RssAnon: since Linux 4.5
	if err != nil {
		return 0, 0, err
	}
	return bounded(status.RssAnon) + bounded(status.VmSwap) + bounded(status.HugetlbPages), bounded(status.VmLck), nil
}

// maxBytes bounds what is believed of an amount, so that sums of some do not wrap.
const maxBytes = 1 << 56

func bounded(n uint64) int64 { return int64(min(n, maxBytes)) }

// maxOpenFiles bounds how many of a process's descriptors are looked at.
const maxOpenFiles = 4096

// openDevices adds the GPUs that a process has open. Who may not look sees those that it maps.
func (s system) openDevices(pid int, h *Holding) error {
	dir, err := os.Open(s.path(pid, "fd"))
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxOpenFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	}
	for _, name := range names {
		if to, err := os.Readlink(s.path(pid, "fd/"+name)); err == nil { // else it has been closed
			h.Devices = addDevice(h.Devices, to)
		}
	}
	return nil
}
