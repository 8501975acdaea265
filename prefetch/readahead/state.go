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

// area is a piece of a file that a process maps.
type area struct {
	Start uint64 `json:"start"` // address
	End   uint64 `json:"end"`
	Path  string `json:"path"` // as the process's memory map has it
	Ino   uint64 `json:"ino"`  // likewise
}

// maxAreas is how many areas are looked at. The BPF program has room for as many (MAX_STARTS).
const maxAreas = 64

// errManyAreas says that a process maps its model in more pieces than a model has.
var errManyAreas = fmt.Errorf("the model is mapped in more than %d pieces", maxAreas)

// findAreas lists the pieces that a process maps of the files whose first bytes are at these addresses.
func findAreas(pid int, bases []uint64) ([]area, error) {
	mappings, err := proc.Mappings(pid)
	if err != nil {
		return nil, err
	}
	var areas []area
	for _, m := range mappings {
		if m.Executable || !slices.Contains(bases, m.Start-m.Offset) {
			continue
		}
		if len(areas) == maxAreas {
			return nil, errManyAreas
		}
		areas = append(areas, area{m.Start, m.End, m.Path, m.File.Ino})
	}
	return areas, nil
}

// state is how an area is read.
type state struct {
	bytes int64  // that a fault reads around itself at most, see faultBytes
	dev   uint64 // the kernel's number of the file's disk
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

// errUnseen says that the kernel does not tell how an area is read.
var errUnseen = errors.New("the kernel does not tell how much the target's faults read")

// view tells how areas are read. Loading its BPF program takes two megabytes, because the kernel's types are
// read, and ten milliseconds of a processor. A helper does so before it joins the target's group, which would
// pay for it.
type view struct{ coll *ebpf.Collection }

// newView needs CAP_BPF and CAP_PERFMON. The caller must call close.
func newView() (*view, error) {
	spec, err := loadMappings()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	if err := rlimit.RemoveMemlock(); err != nil { // before Linux 5.11
		return nil, fmt.Errorf("%w: %w", errUnseen, err)
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnseen, err)
	}
	return &view{coll}, nil
}

func (v *view) close() { v.coll.Close() }

// readStates tells of each area how it is read.
func (v *view) readStates(areas []area) ([]state, error) {
	var starts [maxAreas]uint64
	for i, a := range areas {
		starts[i] = a.Start
	}
	if err := v.coll.Variables["starts"].Set(starts); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnseen, err)
	}
	iter, err := link.AttachIter(link.IterOptions{Program: v.coll.Programs["mappings"]})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnseen, err)
	}
	defer iter.Close()
	all, err := iter.Open()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnseen, err)
	}
	defer all.Close()
	return matchStates(areas, all)
}

// matchStates reads what the BPF program tells, and finds the areas in it. Another process may map something
// at the same address. If that is read in another way, it is not known which of the two is the target's.
func matchStates(areas []area, told io.Reader) ([]state, error) {
	states, known := make([]state, len(areas)), make([]bool, len(areas))
	for {
		var m mappingsMapping
		if err := binary.Read(told, binary.NativeEndian, &m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%w: %w", errUnseen, err)
		}
		for i, a := range areas {
			if m.Start != a.Start || m.End != a.End {
				continue
			}
			s := state{
				bytes:   int64(m.RaPages) * int64(os.Getpagesize()),
				dev:     uint64(m.Dev),
				advised: advised{Random: m.Flags&vmRandRead != 0, Sequential: m.Flags&vmSeqRead != 0},
			}
			if known[i] && s != states[i] {
				return nil, fmt.Errorf("%w: another process maps something at the same address", errUnseen)
			}
			states[i], known[i] = s, true
		}
	}
	if slices.Contains(known, false) {
		return nil, fmt.Errorf("%w: it has unmapped the model", errUnseen)
	}
	return states, nil
}
