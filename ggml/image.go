// Package ggml reads from an ELF file what a tracer of llama.cpp needs to know: which functions to
// probe ([Site]), where in them a probe is cheap ([Cost]), the names of ggml's ops, the layout of
// its structs ([Layout]), and its version. [Scan] returns all of it as an [Image]. The package also
// has the one table of ggml's gathering ops ([Gather]). Package ebpf uses the package to place
// probes; capture/preload and pattern use the table.
//
// It executes no code of the file, trusts nothing in it, and knows nothing of processes or of the
// kernel.
//
// A ggml older than December 2024 has no ggml_cpu_extra_compute_forward (RoleOp), but it has
// ggml_graph_compute (RoleGraph): there, whole graphs can be traced, single ops cannot.
package ggml

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"tensorcast/internal/regular"
)

// Role says what a hit on a function tells the tracer.
type Role int

const (
	RoleOp         Role = iota // ggml_cpu_extra_compute_forward(params, node): each op, in each compute thread
	RoleFused                  // ggml_compute_forward_*_fused(params, first, second): two ops in one
	RoleGraph                  // ggml_graph_compute(graph, plan): each graph, in the calling thread
	RoleDecode                 // llama_decode(context, batch)
	RoleEncode                 // llama_encode(context, batch)
	RoleWarmup                 // llama_set_warmup(context, bool)
	RoleBufferFree             // ggml_backend_buffer_free(buffer): a model or context is freed
)

var roleNames = [...]string{"op", "fused op", "graph", "decode", "encode", "warm-up", "buffer free"}

// String names the role.
func (r Role) String() string {
	if r < 0 || int(r) >= len(roleNames) {
		return fmt.Sprintf("Role(%d)", int(r))
	}
	return roleNames[r]
}

// MarshalText makes roles readable in JSON.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func roleOf(symbol string) (Role, bool) {
	switch symbol {
	case "ggml_cpu_extra_compute_forward":
		return RoleOp, true
	case "ggml_graph_compute":
		return RoleGraph, true
	case "llama_decode":
		return RoleDecode, true
	case "llama_encode":
		return RoleEncode, true
	case "llama_set_warmup":
		return RoleWarmup, true
	case "ggml_backend_buffer_free":
		return RoleBufferFree, true
	}
	if strings.HasPrefix(symbol, "ggml_compute_forward_") && strings.HasSuffix(symbol, "_fused") {
		return RoleFused, true
	}
	return 0, false
}

// Site is a function that can carry a probe.
type Site struct {
	Symbol string
	Role   Role
	Entry  uint64 // file offset of the function's start; a return probe goes here
	// Probe is the file offset of the instruction that the entry probe replaces. The arguments are
	// still in their registers there.
	Probe  uint64
	Pushed uint64 // bytes that the prologue has pushed on the stack before Probe
	Cost   Cost   // of a hit on Probe
}

// Image is what Scan found in an ELF file.
type Image struct {
	Path  string
	Sites []Site // sorted by symbol
	// Ops are the names of ggml's ops, indexed by number. If nil, the file does not hold the table,
	// or OpsErr says why it could not be read.
	Ops    []string
	OpsErr error
	// Layout is the best description of ggml's structs that the file gives. If nil, it gives none,
	// or LayoutErr says why it could not be used.
	Layout    *Layout
	LayoutErr error

	GGMLVersion string // as ggml_version() returns it; "" if unknown, like the next two
	GGMLCommit  string
	LlamaBuild  string

	Machine  elf.Machine
	Stripped bool // has neither .symtab nor debug information; .dynsym may remain
	Dynamic  bool // a shared library, or a program that loads some

	dwarf, code *Layout
}

// Has reports whether a function with this role was found.
func (im *Image) Has(r Role) bool {
	return slices.ContainsFunc(im.Sites, func(s Site) bool { return s.Role == r })
}

// Scan reads an ELF file. It also reads its debug information if that is in a separate file. A file
// that is not ELF has no sites; that is no error. An error means that the file could not be read or
// that its ELF structures contradict each other. Scan may be called concurrently.
func Scan(path string) (*Image, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read symbols: %w", err)
	}
	defer f.Close()
	return ScanFile(f)
}

// ScanFile is Scan for a file that is open already. Separate debug information is looked for beside
// the file's name. ScanFile neither closes the file nor moves its offset.
func ScanFile(f *os.File) (*Image, error) {
	owner, err := fileOwner(f)
	if err != nil {
		return nil, fmt.Errorf("read symbols of %s: %w", f.Name(), err)
	}
	return scan(f, f.Name(), "/usr/lib/debug", owner)
}

// scan is Scan for r, which is the file path and belongs to the user owner. debugDir is where
// distributions keep separate debug information.
func scan(r io.ReaderAt, path, debugDir string, owner uint32) (*Image, error) {
	im := &Image{Path: path}
	f, err := OpenELF(r)
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.EOF) { // EOF: shorter than a header
		return im, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read symbols of %s: %w", path, err)
	}
	defer f.Close()
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return im, nil // a target that ebpf does not trace
	}
	im.Machine = f.Machine
	im.Dynamic = isDynamic(f)
	im.Stripped = f.Section(".symtab") == nil && !hasDebug(f)

	all := &symbols{byName: map[string]symbol{}}
	if err := all.addTables(f); err != nil {
		return nil, fmt.Errorf("read symbols of %s: %w", path, err)
	}
	im.addDebugInfo(f, all, debugDir, owner)
	if err := im.addSites(f, all); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	im.addNames(f, all)
	im.addCodeLayout(f, all)
	return im, nil
}

// addSites adds the functions that can carry a probe.
func (im *Image) addSites(f *elf.File, all *symbols) error {
	for _, s := range all.list {
		r, ok := roleOf(s.name)
		if !ok {
			continue
		}
		site, err := findSite(f, s.name, r, s.address)
		if err != nil {
			return err
		}
		im.Sites = append(im.Sites, site)
	}
	slices.SortFunc(im.Sites, func(a, b Site) int {
		return cmp.Or(strings.Compare(a.Symbol, b.Symbol), cmp.Compare(a.Entry, b.Entry))
	})
	return nil
}

// addNames adds the names of ggml's ops and the versions of ggml and llama.cpp.
func (im *Image) addNames(f *elf.File, all *symbols) {
	if s, ok := all.byName["ggml_op_name"]; ok {
		if im.Ops, im.OpsErr = readOpNames(f, s); im.OpsErr != nil {
			im.OpsErr = fmt.Errorf("read ggml's op names from %s: %w", im.Path, im.OpsErr)
		}
	}
	if s, ok := all.byName["ggml_version"]; ok {
		im.GGMLVersion = returnedText(f, s)
	}
	if s, ok := all.byName["ggml_commit"]; ok {
		if im.GGMLCommit = returnedText(f, s); im.GGMLCommit == "unknown" { // built outside git
			im.GGMLCommit = ""
		}
	}
	im.LlamaBuild = readLlamaBuild(f, all)
}

// addCodeLayout adds the layout that the code shows, and chooses the image's layout: that of the
// debug information goes first.
func (im *Image) addCodeLayout(f *elf.File, all *symbols) {
	var err error
	im.code, err = codeLayout(f, im.Path, all)
	if err != nil {
		im.LayoutErr = errors.Join(im.LayoutErr,
			fmt.Errorf("read the layout of ggml's structs from the code of %s: %w", im.Path, err))
	}
	if im.Layout = im.dwarf; im.Layout == nil {
		im.Layout = im.code
	}
	if im.Layout != nil {
		im.LayoutErr = nil
	}
}

// addDebugInfo adds what debug information has: stripped symbols, and the layout. Debug information
// is optional, so errors are only recorded in LayoutErr.
func (im *Image) addDebugInfo(f *elf.File, all *symbols, debugDir string, owner uint32) {
	path, foreign := im.Path, false
	if !hasDebug(f) {
		apart := findDebugFile(f, path, debugDir, owner)
		if apart == nil {
			return
		}
		defer apart.file.Close()
		f, path = apart.File, apart.file.Name()
		if err := all.addTables(f); err != nil {
			im.LayoutErr = fmt.Errorf("read symbols of %s: %w", path, err)
		}
		foreign = f.Section(".symtab") != nil && len(all.list) == 0
	}
	d, err := debugData(f, foreign)
	if err == nil && d != nil {
		if f.Section(".symtab") == nil {
			err = all.addDWARF(d)
		}
		if err == nil {
			im.dwarf, err = dwarfLayout(d, path)
		}
	}
	if err != nil {
		im.LayoutErr = errors.Join(im.LayoutErr, fmt.Errorf("debug information of %s: %w", path, err))
	}
}

// isDynamic reports whether a file is a shared library or loads any.
func isDynamic(f *elf.File) bool {
	flags, err := f.DynValue(elf.DT_FLAGS_1)
	if f.Type == elf.ET_DYN && err == nil && (len(flags) == 0 || elf.DynFlag1(flags[0])&elf.DF_1_PIE == 0) {
		return true
	}
	needed, err := f.ImportedLibraries()
	return err == nil && len(needed) > 0
}
