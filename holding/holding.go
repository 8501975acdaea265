// Package holding finds out how a process holds its model: which GGUF files it maps, whether it
// computes with the bytes of these files, with copies of them or on a GPU, on what kind of file
// system they lie, and which other processes map them, too. From that it decides whether keeping
// pages of the files in memory could make the process faster ([Holding.Judge]), and if not, why.
//
// It looks from outside, and sets no probe. llama.cpp does not say how it holds its weights, and
// the memory map shows only a part. Of a file whose weights were repacked, the whole span between
// the first and the last weight that is still used stays mapped. A large anonymous area may hold
// copies, or a context's keys and values. So the package looks for the process's own table of
// tensors in its memory: ggml's struct ggml_tensor has the name of each weight, and the address of
// its data.
//
// A process that lies can only spoil the verdict about itself: what is read is bounded, whatever it
// maps.
package holding

// This file defines what is found out, and the steps in which it is found out.

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
	"tensorcast/loadflags"
)

// Holding is how a process holds its model. Amounts are bytes.
type Holding struct {
	PID   int    `json:"pid"`
	Files []File `json:"files"` // GGUF files that it maps, by address
	// Inside says, if there are no Files, that a GGUF file lies inside of a file that it maps.
	Inside  string  `json:"inside,omitempty"`
	Weights Weights `json:"weights"` // of these files; if there are none, those that were found in the process's memory
	Mode    Mode    `json:"mode"`
	Exact   bool    `json:"exact"` // the process's own table of tensors was found, so Weights is not presumed

	Own     int64 `json:"own"`     // the process's memory that belongs to no file, including what is swapped out
	Swapped int64 `json:"swapped"` // the part of Own that is swapped out
	Locked  int64 `json:"locked"`  // what it has locked in memory

	Devices  []string `json:"devices"`  // files of GPUs that it has open or maps
	Backends []string `json:"backends"` // ggml's libraries for GPUs that it maps; it may use them or not

	// Routed is the part of Weights.Mapped that belongs to experts. A token reads those that
	// routers choose.
	Routed int64 `json:"routed"`
	// PerToken is the part of Weights.Mapped that each token reads besides, at most.
	PerToken int64 `json:"per_token"`
	// Tables is the part of Weights.Mapped of which a token reads only the rows that it looks up, as of token
	// embeddings. A table may be larger than all the rest, and says nothing about what a helper can do.
	Tables int64 `json:"tables"`

	Others []Other `json:"others"` // processes that have pages of the same files in their page tables
	// OthersCut says that there may be more: a process may not be looked at, or there is too much
	// to read.
	OthersCut bool `json:"others_cut"`

	// program words advice on its flags. It is looked up where weights are not read from a file, or are locked.
	program loadflags.Program
}

// Unread is how much of the files nobody reads any more: of these weights the process has copies, or they are on a GPU.
// resident is the part of it that is in memory; -1 if this process may not know.
func (h *Holding) Unread() (all, resident int64) {
	for i := range h.Files {
		f := &h.Files[i]
		all += f.Unread
		if f.UnreadResident < 0 || resident < 0 {
			resident = -1
		} else {
			resident += f.UnreadResident
		}
	}
	return all, resident
}

// Weights says where the weights are that a process computes with.
type Weights struct {
	Mapped  int64 `json:"mapped"`  // in the mapped file
	Copied  int64 `json:"copied"`  // elsewhere in the process's memory
	Device  int64 `json:"device"`  // in a GPU's memory
	Unknown int64 `json:"unknown"` // weights of a mapped file of which nothing is known: they may not be loaded yet
}

// Total is the size of all weights.
func (w Weights) Total() int64 { return w.Mapped + w.Copied + w.Device + w.Unknown }

// Mode sums up Weights in a word.
type Mode string

// The modes. Less than 1/50 of the weights does not count: a token cannot become faster by more
// than that share.
const (
	ModeNone    Mode = "none"          // no weights were found
	ModeMapped  Mode = "mapped"        // it reads the mapped file
	ModePartly  Mode = "partly mapped" // it reads some weights from the mapped file
	ModeCopied  Mode = "copied"
	ModeDevice  Mode = "on a GPU"
	ModeUnknown Mode = "unknown"
)

// negligible is the divisor of this: less than 1/negligible of the weights does not count.
const negligible = 50

// Other is another process that maps the model.
type Other struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}

// Options of Examine.
type Options struct {
	// Others says to look for other processes. That took 5 ms of CPU time on a machine with 100
	// processes. All the rest took 9 ms the first time, with a vocabulary of 128,000 words, and 2
	// ms the second time (BenchmarkExamine).
	Others bool
}

// Examiner examines one process, again and again. It keeps what it has read of files that do not
// change. It is not for concurrent use.
type Examiner struct {
	sys     system
	pid     int
	noModel map[proc.FileID]bool // files that are no models
	// noInside are files in which no model was found.
	noInside map[proc.FileID]bool
	parts    map[proc.FileID]part // what was read of the models
	// hits are addresses where weights were found in the process's memory. They are looked for
	// there first.
	hits []uint64
	// program is what is known of the process's program. It is asked for once, when advice is needed.
	program *loadflags.Program
}

// askProgram finds out about the process's program. Of one in a tree of fixtures nothing is known.
func (e *Examiner) askProgram() loadflags.Program {
	if e.program == nil {
		e.program = &loadflags.Program{}
		if e.sys == (system{"/"}) {
			*e.program = loadflags.OfProcess(e.pid)
		}
	}
	return *e.program
}

// New returns an examiner of the process pid.
func New(pid int) *Examiner { return newExaminer(system{"/"}, pid) }

func newExaminer(sys system, pid int) *Examiner {
	return &Examiner{
		sys: sys, pid: pid, parts: map[proc.FileID]part{},
		noModel: map[proc.FileID]bool{}, noInside: map[proc.FileID]bool{},
	}
}

// Examine finds out how the process holds its model now. What may not be seen is left out: without
// ptrace access to the process, Exact is false. The error is proc.ErrNoProcess if the process has
// ended, one that wraps fs.ErrPermission if not even its memory map can be read, or ctx's.
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
	space, err := e.sys.readSpace(e.pid)
	if err != nil {
		return nil, err
	}
	if err = e.sys.addMemory(e.pid, h); err != nil {
		return nil, err
	}
	h.Devices, h.Backends = space.devices, space.backends
	if err := e.sys.addOpenFiles(e.pid, space, h); err != nil {
		return nil, err
	}
	models := e.findModels(space, h)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e.locateWeights(ctx, space, models, h)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h.Mode = h.decideMode()
	if h.Weights.Copied > 0 || h.Locked > 0 {
		h.program = e.askProgram()
	}
	if opts.Others && len(models) > 0 {
		if err := e.sys.addOthers(ctx, e.pid, models, h); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// bytesRead is what tokens read from mapped files, sooner or later.
func (h *Holding) bytesRead() int64 { return h.PerToken + h.Routed }

// isMuch reports whether so many bytes of weights count, beside all that are computed with as a whole.
func (h *Holding) isMuch(bytes int64) bool { return bytes > (h.Weights.Total()-h.Tables)/negligible }

// decideMode derives the mode from where the weights are.
func (h *Holding) decideMode() Mode {
	much := h.isMuch
	switch {
	case h.Weights.Total() == 0:
		return ModeNone
	case much(h.Weights.Unknown):
		return ModeUnknown
	case !much(h.Weights.Copied) && !much(h.Weights.Device):
		return ModeMapped
	case much(h.bytesRead()):
		return ModePartly
	case h.Weights.Device > h.Weights.Copied:
		return ModeDevice
	default:
		return ModeCopied
	}
}

// system is the root of the file system with the kernel's files. Tests use a tree of fixtures.
type system struct{ root string }

// path is the path of a file about a process in /proc.
func (s system) path(pid int, name string) string {
	return filepath.Join(s.root, "proc", strconv.Itoa(pid), name)
}

// addMemory adds how much memory of its own a process has, and how much it has locked.
func (s system) addMemory(pid int, h *Holding) error {
	root, err := procfs.NewFS(filepath.Join(s.root, "proc"))
	if err != nil {
		return err
	}
	p, err := root.Proc(pid)
	if err != nil {
		return err
	}
	status, err := p.NewStatus() // RssAnon: since Linux 4.5
	if err != nil {
		return err
	}
	h.Swapped, h.Locked = clampBytes(status.VmSwap), clampBytes(status.VmLck)
	h.Own = clampBytes(status.RssAnon) + h.Swapped + clampBytes(status.HugetlbPages)
	return nil
}

// maxBytes bounds each amount, so that sums of a few do not wrap around.
const maxBytes = 1 << 56

func clampBytes(n uint64) int64 { return int64(min(n, maxBytes)) }

// maxOpenFiles bounds how many of a process's descriptors are looked at.
const maxOpenFiles = 4096

// addOpenFiles notes which files a process has open, and adds the GPUs among them. If its descriptors may not be looked
// at, only those that it maps are known.
func (s system) addOpenFiles(pid int, sp *space, h *Holding) error {
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
	sp.open = map[string]bool{}
	for _, name := range names {
		if to, err := os.Readlink(s.path(pid, "fd/"+name)); err == nil { // else it has been closed
			h.Devices = addDevice(h.Devices, to)
			sp.open[to] = true
		}
	}
	return nil
}
