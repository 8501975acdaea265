package readahead

// This file finds out how much a process's faults read around themselves in its mappings.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"

	"tensorcast/internal/proc"
)

// Area is a piece of a file that a process maps.
type Area struct {
	Start uint64 `json:"start"` // address
	End   uint64 `json:"end"`
	Path  string `json:"path"` // as the process's memory map has it
	Ino   uint64 `json:"ino"`  // likewise
}

// maxAreas is how many areas are looked at: as many as the program has room for.
const maxAreas = 64

// ErrManyAreas says that a process maps its model in more pieces than anybody needs.
var ErrManyAreas = fmt.Errorf("the model is mapped in more than %d pieces", maxAreas)

// Areas lists the pieces of the files whose first byte a process has at these addresses.
func Areas(pid int, bases []uint64) ([]Area, error) {
	mappings, err := proc.Mappings(pid)
	if err != nil {
		return nil, err
	}
	var areas []Area
	for _, m := range mappings {
		if m.Executable || !slices.Contains(bases, m.Start-m.Offset) {
			continue
		}
		if len(areas) == maxAreas {
			return nil, ErrManyAreas
		}
		areas = append(areas, Area{m.Start, m.End, m.Path, m.File.Ino})
	}
	return areas, nil
}

// state is how an area is read.
type state struct {
	bytes int64  // that a fault reads at most, around itself
	dev   uint64 // of the file, as the kernel has it
	advised
}

// advised is what the process has advised about an area itself.
type advised struct {
	Random     bool `json:"random"`
	Sequential bool `json:"sequential"`
}

// From include/linux/mm.h; they have not changed since Linux 2.6.
const (
	vmSeqRead  = 0x8000
	vmRandRead = 0x10000
)

// ErrUnseen says that the kernel does not tell how an area is read.
var ErrUnseen = errors.New("the kernel does not tell how much the target's faults read")

// view tells how areas are read. Loading its program takes two megabytes, as the kernel's types are read, and ten
// milliseconds of a processor: who looks for a target does so before it pays for him.
type view struct{ coll *ebpf.Collection }

// newView takes CAP_BPF and CAP_PERFMON. close has to be called.
func newView() (*view, error) {
	spec, err := loadMappings()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	if err := rlimit.RemoveMemlock(); err != nil { // before Linux 5.11
		return nil, fmt.Errorf("%w: %w", ErrUnseen, err)
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnseen, err)
	}
	return &view{coll}, nil
}

func (v *view) close() { v.coll.Close() }

// look tells of each area how it is read.
func (v *view) look(areas []Area) ([]state, error) {
	var starts [maxAreas]uint64
	for i, a := range areas {
		starts[i] = a.Start
	}
	if err := v.coll.Variables["starts"].Set(starts); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnseen, err)
	}
	iter, err := link.AttachIter(link.IterOptions{Program: v.coll.Programs["mappings"]})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnseen, err)
	}
	defer iter.Close()
	all, err := iter.Open()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnseen, err)
	}
	defer all.Close()
	return match(areas, all)
}

// match reads what the program tells. Another process may map something at the same address, too: where that differs,
// it is not known which is meant.
func match(areas []Area, told io.Reader) ([]state, error) {
	states, known := make([]state, len(areas)), make([]bool, len(areas))
	for {
		var m mappingsMapping
		if err := binary.Read(told, binary.NativeEndian, &m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnseen, err)
		}
		for i, a := range areas {
			if m.Start != a.Start || m.End != a.End {
				continue
			}
			s := state{int64(m.RaPages) * int64(os.Getpagesize()), uint64(m.Dev), advised{m.Flags&vmRandRead != 0, m.Flags&vmSeqRead != 0}}
			if known[i] && s != states[i] {
				return nil, fmt.Errorf("%w: another process maps something at the same address", ErrUnseen)
			}
			states[i], known[i] = s, true
		}
	}
	if slices.Contains(known, false) {
		return nil, fmt.Errorf("%w: it has unmapped the model", ErrUnseen)
	}
	return states, nil
}
