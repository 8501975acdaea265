package ggml

// This file collects the symbols that this package needs, from .dynsym, .symtab and debug
// information, and finds separate debug information files.

import (
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"tensorcast/internal/regular"
)

// symbol is a function or an object of the file.
type symbol struct {
	name          string
	address, size uint64
}

// symbols are the symbols that isWanted selects. A pair of name and address occurs once.
type symbols struct {
	list   []symbol
	byName map[string]symbol // the first of each name
}

// add adds a symbol, unless it is not wanted, is there already, or the symbols are too many.
func (s *symbols) add(name string, address, size uint64) {
	if name, _, _ = strings.Cut(name, "@"); address == 0 || !isWanted(name) {
		return
	}
	for _, have := range s.list {
		if have.name == name && have.address == address {
			return
		}
	}
	if len(s.list) == maxSymbols {
		return
	}
	s.list = append(s.list, symbol{name, address, size})
	if _, ok := s.byName[name]; !ok {
		s.byName[name] = s.list[len(s.list)-1]
	}
}

// maxSymbols bounds how many symbols of a hostile file are kept. A real ggml has a dozen.
const maxSymbols = 1000

// isWanted reports whether this package needs a symbol.
func isWanted(name string) bool {
	switch name {
	case "ggml_mul_mat", "ggml_op_name", "ggml_version", "ggml_commit", buildNumber, buildCommit:
		return true
	}
	_, ok := roleOf(name)
	return ok || accessors[name] != nil
}

// addDWARF adds functions that are named only in debug information.
func (s *symbols) addDWARF(d *dwarf.Data) error {
	r := &boundedEntries{Reader: d.Reader()}
	for {
		e, err := r.Next()
		if err != nil || e == nil {
			return err
		}
		switch e.Tag {
		case dwarf.TagCompileUnit:
			continue
		case dwarf.TagSubprogram:
			name, _ := e.Val(dwarf.AttrName).(string)
			if !isWanted(name) {
				break
			}
			// The range with the entry point comes first; cold parts of the function are in other
			// ranges.
			ranges, err := d.Ranges(e)
			if err != nil {
				return err
			}
			if len(ranges) > 0 {
				s.add(name, ranges[0][0], ranges[0][1]-ranges[0][0])
			}
		}
		r.SkipChildren()
	}
}

// hasDebug reports whether the file itself holds debug information.
func hasDebug(f *elf.File) bool {
	s := f.Section(".debug_info")
	if s == nil {
		s = f.Section(".zdebug_info")
	}
	return s != nil && s.Type != elf.SHT_NOBITS
}

// debugData opens the debug information of a file; nil if it does not describe ggml. foreign says
// that the file's symbols name nothing of ggml. Then only the strings are looked at.
func debugData(f *elf.File, foreign bool) (*dwarf.Data, error) {
	if !hasDebug(f) {
		return nil, nil
	}
	if err := checkDebug(f); err != nil {
		return nil, err
	}
	mentioned := false
	for _, name := range []string{".debug_str", ".zdebug_str", ".debug_line_str"} {
		if s := f.Section(name); s != nil && s.Type != elf.SHT_NOBITS {
			found, err := mentions(s, "ggml_")
			if err != nil {
				return nil, err
			}
			mentioned = mentioned || found
		}
	}
	for _, name := range []string{".debug_info", ".zdebug_info"} { // short strings may be here
		if s := f.Section(name); s != nil && !mentioned && !foreign {
			data, err := s.Data()
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", name, err)
			}
			mentioned = bytes.Contains(data, []byte("ggml_"))
		}
	}
	if !mentioned {
		return nil, nil
	}
	d, err := f.DWARF()
	if err != nil {
		return nil, fmt.Errorf("read debug information: %w", err)
	}
	return d, nil
}

// insideContainer matches the path of a file in another mount namespace, as package ebpf writes it.
var insideContainer = regexp.MustCompile(`^/proc/[0-9]+/root`)

// debugELF is a file with debug information.
type debugELF struct {
	*elf.File
	file *os.File
}

// findDebugFile finds the separate file with the stripped debug information: by build id, then by
// .gnu_debuglink. dir is where distributions keep such files, owner the user who owns the stripped
// file. It returns nil if there is none. Otherwise the caller closes its file.
func findDebugFile(f *elf.File, path, dir string, owner uint32) *debugELF {
	root := insideContainer.FindString(path)
	id := buildID(f)
	if len(id) > 2 {
		name := filepath.Join(root+dir, ".build-id", hex.EncodeToString(id[:1]), hex.EncodeToString(id[1:])+".debug")
		if d := openDebugFile(name, owner); d != nil {
			if bytes.Equal(buildID(d.File), id) {
				return d
			}
			d.file.Close()
		}
	}
	link, sum := debugLink(f)
	if link == "" {
		return nil
	}
	own := filepath.Dir(path)
	for _, name := range []string{
		filepath.Join(own, link), filepath.Join(own, ".debug", link),
		filepath.Join(root+dir, strings.TrimPrefix(own, root), link),
	} {
		if name == path {
			continue
		}
		if d := openDebugFile(name, owner); d != nil {
			if hasChecksum(d.file, sum) {
				return d
			}
			d.file.Close()
		}
	}
	return nil
}

// openDebugFile opens a file with debug information; nil if it cannot be used. It must belong to
// root, or to the owner of the file that it describes. Neither the build id nor the CRC tells who
// wrote it. Without this check, somebody could link to a system library from a directory of theirs,
// and put a file beside the link that says where in the library probes are set, for all who use the
// library.
func openDebugFile(name string, owner uint32) *debugELF {
	file, err := regular.Open(name)
	if err != nil {
		return nil
	}
	if by, err := fileOwner(file); err == nil && (by == owner || by == 0) {
		if f, err := OpenELF(file); err == nil {
			return &debugELF{f, file}
		}
	}
	file.Close()
	return nil
}

func fileOwner(f *os.File) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return st.Uid, nil
}

// buildID returns the linker's build id note; nil if there is none.
func buildID(f *elf.File) []byte {
	s := f.Section(".note.gnu.build-id")
	if s == nil || s.Size > 4096 || s.Flags&elf.SHF_COMPRESSED != 0 {
		return nil
	}
	data, err := s.Data()
	if err != nil || len(data) < 16 {
		return nil
	}
	name, size := f.ByteOrder.Uint32(data), f.ByteOrder.Uint32(data[4:])
	if name != 4 || uint64(size) > uint64(len(data)-16) {
		return nil
	}
	return data[16 : 16+size]
}

// debugLink returns the contents of .gnu_debuglink: a file name and that file's CRC-32.
func debugLink(f *elf.File) (string, uint32) {
	s := f.Section(".gnu_debuglink")
	if s == nil || s.Size > 4096 || s.Flags&elf.SHF_COMPRESSED != 0 {
		return "", 0
	}
	data, err := s.Data()
	if err != nil {
		return "", 0
	}
	name, rest, ok := bytes.Cut(data, []byte{0})
	if !ok || len(rest) < 4 || len(name) == 0 {
		return "", 0
	}
	return filepath.Base(string(name)), f.ByteOrder.Uint32(data[len(data)-4:])
}

// hasChecksum reports whether a file has this CRC-32.
func hasChecksum(f *os.File, want uint32) bool {
	if info, err := f.Stat(); err != nil || info.Size() > maxDebugFile {
		return false
	}
	sum := crc32.NewIEEE()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, math.MaxInt64)); err != nil {
		return false
	}
	return sum.Sum32() == want
}

// readVirtual reads file contents by virtual address; it returns fewer bytes where a segment ends.
func readVirtual(f *elf.File, address uint64, into []byte) (int, error) {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && address >= p.Vaddr && address-p.Vaddr < p.Filesz {
			n := min(uint64(len(into)), p.Filesz-(address-p.Vaddr))
			return p.ReadAt(into[:n], int64(address-p.Vaddr))
		}
	}
	return 0, fmt.Errorf("address %#x is in no segment of the file", address)
}

// readText reads a string of printable characters that ends within limit bytes.
func readText(f *elf.File, address uint64, limit int) (string, bool) {
	raw := make([]byte, limit)
	n, _ := readVirtual(f, address, raw) // a short read is fine
	for i, c := range raw[:n] {
		if c == 0 {
			return string(raw[:i]), i > 0
		}
		if c < ' ' || c > '~' {
			return "", false
		}
	}
	return "", false
}

// relocatedPointers returns the values that the loader stores at the addresses in [from, to), by
// address, where relocations fill these. Relocations in .relr.dyn are not included: for these, the
// value is already in the file.
func relocatedPointers(f *elf.File, from, to uint64) (map[uint64]uint64, error) {
	var relative uint64
	switch f.Machine {
	case elf.EM_X86_64:
		relative = uint64(elf.R_X86_64_RELATIVE)
	case elf.EM_AARCH64:
		relative = uint64(elf.R_AARCH64_RELATIVE)
	default:
		return nil, nil
	}
	pointers := map[uint64]uint64{}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_RELA || s.Flags&elf.SHF_ALLOC == 0 {
			continue
		}
		if s.Size > maxSection || s.Flags&elf.SHF_COMPRESSED != 0 {
			return nil, fmt.Errorf("section %q: %w", s.Name, errTooLarge)
		}
		data, err := s.Data()
		if err != nil {
			return nil, fmt.Errorf("read relocations: %w", err)
		}
		for ; len(data) >= 24; data = data[24:] {
			offset := f.ByteOrder.Uint64(data)
			if offset >= from && offset < to && f.ByteOrder.Uint64(data[8:])&0xffffffff == relative {
				pointers[offset] = f.ByteOrder.Uint64(data[16:])
			}
		}
	}
	return pointers, nil
}
