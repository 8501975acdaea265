package holding

// This file reads a process's address space: what its areas are, which files it maps, and which of
// them belong to a GPU.

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"strings"

	"tensorcast/ggml"
	"tensorcast/internal/proc"
)

// kind says what an area may hold.
type kind uint8

const (
	kindOther  kind = iota // no weights: reserved addresses, the kernel's own areas
	kindFile               // a file that may be a model
	kindMemory             // memory that belongs to no file, readable and writable
	kindDevice             // a GPU's memory
)

// area is a range of addresses with one mapping.
type area struct {
	start, end    uint64
	offset        uint64 // in the file
	file          proc.FileID
	kind          kind
	mayHoldTables bool // ggml's tables of tensors may be in it
	heap          bool
}

// space is a process's address space.
type space struct {
	open     map[string]bool         // paths of files that the process has open, as the kernel has them; nil: not known
	areas    []area                  // by address
	files    map[proc.FileID]*mapped // those that may be models
	programs map[proc.FileID]*mapped // those with code
	devices  []string
	backends []string
}

// mapped is a file that is mapped, but not as a program.
type mapped struct {
	first proc.Mapping
	bytes uint64 // of all its areas
}

// readSpace reads the memory map of a process.
func (s system) readSpace(pid int) (*space, error) {
	f, err := os.Open(s.path(pid, "maps"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sp := &space{files: map[proc.FileID]*mapped{}, programs: map[proc.FileID]*mapped{}}
	err = proc.EachArea(f, func(a *proc.Area) {
		is := area{start: a.Start, end: a.End, offset: a.Offset, file: a.File}
		named := strings.HasPrefix(a.Path, "/")
		switch {
		case isDevice(a.Path):
			sp.devices = addDevice(sp.devices, a.Path)
			is.kind = kindDevice
		case a.File.Ino == 0 && !named, isMemoryPath(a.Path):
			if !a.Readable || !a.Writable || strings.HasPrefix(a.Path, "[v") {
				break
			}
			is.kind = kindMemory
			is.mayHoldTables = !a.Shared && !named && !strings.HasPrefix(a.Path, "[stack")
			is.heap = a.Path == "[heap]"
		case a.Executable:
			sp.addMapped(sp.programs, a)
			sp.backends = addBackend(sp.backends, a.Path)
		case a.Readable && named:
			is.kind = kindFile
			sp.addMapped(sp.files, a)
		}
		sp.areas = append(sp.areas, is)
	})
	for id := range sp.programs {
		delete(sp.files, id)
	}
	return sp, err
}

// addMapped adds an area to what is known of its file.
func (s *space) addMapped(to map[proc.FileID]*mapped, a *proc.Area) {
	if m := to[a.File]; m != nil {
		m.bytes += a.End - a.Start
		return
	}
	m := &mapped{first: a.Mapping, bytes: a.End - a.Start}
	m.first.Path = strings.Clone(a.Path)
	to[a.File] = m
}

// isMemoryPath reports whether a path in a memory map stands for memory that belongs to no file.
func isMemoryPath(path string) bool {
	for _, prefix := range []string{"/memfd:", "/dev/zero", "/anon_hugepage", "/SYSV"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// areaAt returns the area that holds an address; nil if none does.
func (s *space) areaAt(address uint64) *area {
	i, found := slices.BinarySearchFunc(s.areas, address,
		func(a area, at uint64) int { return cmp.Compare(a.start, at) })
	if !found {
		i--
	}
	if i < 0 || address >= s.areas[i].end {
		return nil
	}
	return &s.areas[i]
}

// maxFiles bounds how many of the files that a process maps are looked at, the largest first. Usual
// processes map some 50, and a model is not among the small ones. A split model may have some thousand
// parts.
const maxFiles = 1 << 13

// candidates lists the files that may be models, the largest first.
func (s *space) candidates() []*mapped { return largest(s.files) }

func largest(files map[proc.FileID]*mapped) []*mapped {
	all := slices.SortedFunc(maps.Values(files), func(a, b *mapped) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.first.Start, b.first.Start))
	})
	return all[:min(len(all), maxFiles)]
}

// devicePaths are how the names of GPUs' files begin: NVIDIA's, AMD's compute driver, all that have
// a driver for rendering (AMD, Intel, and others with Vulkan), accelerators.
var devicePaths = []string{"/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel/", "/dev/dxg"}

func isDevice(path string) bool {
	return slices.ContainsFunc(devicePaths, func(p string) bool { return strings.HasPrefix(path, p) })
}

// maxNames bounds lists of names.
const maxNames = 32

// addDevice adds a path to a list if it is that of a GPU.
func addDevice(to []string, path string) []string {
	if !isDevice(path) || slices.Contains(to, path) || len(to) == maxNames {
		return to
	}
	return append(to, strings.Clone(path))
}

// addBackend adds the word for a library to a list if it is one of ggml's for a GPU.
func addBackend(to []string, path string) []string {
	word := ggml.GPUOf(path)
	if word == "" || slices.Contains(to, word) {
		return to
	}
	return append(to, word)
}
