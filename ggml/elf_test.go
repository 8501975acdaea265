package ggml

// These tests read ELF files that were made to take much memory or time.

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// makeELF makes an ELF file of these sections, after the empty one. data has their contents; the
// first holds the names of sections.
func makeELF(sections []elf.Section64, data [][]byte) []byte {
	var file bytes.Buffer
	head := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1, Ehsize: 64, Shentsize: 64,
		Shnum: uint16(len(sections) + 1), Shstrndx: 1,
	}
	copy(head.Ident[:], "\x7fELF\x02\x01\x01")
	body := []byte{}
	for i := range sections {
		sections[i].Off = 64 + uint64(len(body))
		body = append(body, data[i]...)
		if sections[i].Size == 0 {
			sections[i].Size = uint64(len(data[i]))
		}
	}
	head.Shoff = 64 + uint64(len(body))
	_ = binary.Write(&file, binary.LittleEndian, head) // a Buffer takes everything
	file.Write(body)
	_ = binary.Write(&file, binary.LittleEndian, append([]elf.Section64{{}}, sections...))
	return file.Bytes()
}

// bytesAllocated is how many bytes a function allocates.
func bytesAllocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// The symbols of a file may all have the same name, as long as the table of names. Reading them
// does not take much memory.
func TestLongSymbolNames(t *testing.T) {
	const n = 100_000
	names := append([]byte("\x00ggml_op_name\x00.s\x00.t\x00"), append(bytes.Repeat([]byte("x"), 1<<20), 0)...)
	var table bytes.Buffer
	for i := range uint64(n) {
		sym := elf.Sym64{Name: 20, Info: byte(elf.STT_FUNC), Shndx: 1, Value: 1 + i}
		if i == n/2 {
			sym.Name = 1
		}
		_ = binary.Write(&table, binary.LittleEndian, sym) // a Buffer takes everything
	}
	file := makeELF([]elf.Section64{
		{Name: 17, Type: uint32(elf.SHT_STRTAB)},
		{Name: 14, Type: uint32(elf.SHT_SYMTAB), Link: 1, Entsize: 24},
	},
		[][]byte{names, table.Bytes()})
	f, err := OpenELF(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	all := symbols{byName: map[string]symbol{}}
	if bytes := bytesAllocated(func() { err = all.addTables(f) }); err != nil || bytes > 32<<20 {
		t.Errorf("%v, %d bytes allocated, want at most %d", err, bytes, 32<<20)
	}
	if s := all.byName["ggml_op_name"]; len(all.list) != 1 || s.address != 1+n/2 {
		t.Errorf("symbols %+v, want ggml_op_name at %d only", all.list, 1+n/2)
	}
}

// Sections that claim to be huge, as they are or decompressed, are refused.
func TestHugeSections(t *testing.T) {
	names := []byte("\x00.debug_info\x00.debug_str\x00.dynamic\x00")
	for what, section := range map[string]elf.Section64{
		"names":   {Name: 1, Type: uint32(elf.SHT_STRTAB), Size: 1 << 40},
		"dynamic": {Name: 24, Type: uint32(elf.SHT_DYNAMIC), Size: 1 << 40},
		"symbols": {Name: 1, Type: uint32(elf.SHT_SYMTAB), Flags: uint64(elf.SHF_COMPRESSED)},
	} {
		chdr := make([]byte, 64)
		chdr[0] = byte(elf.COMPRESS_ZLIB)
		if _, err := OpenELF(bytes.NewReader(makeELF([]elf.Section64{{Type: uint32(elf.SHT_STRTAB)}, section},
			[][]byte{names, chdr}))); !errors.Is(err, errTooLarge) {
			t.Errorf("%s: %v, want %v", what, err, errTooLarge)
		}
	}
	var chdr bytes.Buffer
	// a Buffer takes everything
	_ = binary.Write(&chdr, binary.LittleEndian, elf.Chdr64{Type: uint32(elf.COMPRESS_ZLIB), Size: 1 << 30})
	file := makeELF([]elf.Section64{
		{Type: uint32(elf.SHT_STRTAB)},
		{Name: 1, Type: uint32(elf.SHT_PROGBITS)},
		{Name: 13, Type: uint32(elf.SHT_PROGBITS), Flags: uint64(elf.SHF_COMPRESSED)},
	},
		[][]byte{names, []byte("ggml_"), chdr.Bytes()})
	im, err := scan(bytes.NewReader(file), "/nowhere/bomb", "/nowhere", 0)
	if err != nil || !errors.Is(im.LayoutErr, errTooLarge) {
		t.Errorf("%v; LayoutErr %v, want %v", err, im.LayoutErr, errTooLarge)
	}
	file = makeELF([]elf.Section64{
		{Type: uint32(elf.SHT_STRTAB)},
		{Name: 1, Type: uint32(elf.SHT_PROGBITS)},
		{Name: 13, Type: uint32(elf.SHT_PROGBITS)},
	},
		[][]byte{names, []byte("ggml_"), bytes.Repeat([]byte("x"), 2*maxDebugString)})
	if im, err = scan(bytes.NewReader(file), "/nowhere/long", "/nowhere", 0); err != nil ||
		!errors.Is(im.LayoutErr, errTooLarge) {
		t.Errorf("a long string: %v; LayoutErr %v, want %v", err, im.LayoutErr, errTooLarge)
	}
}

// cyclic is debug information in which a member of ggml_tensor has a type that is a typedef of itself.
const cyclic = `
.section .debug_abbrev,"",@progbits
.byte 1, 0x11, 1, 0, 0
.byte 2, 0x13, 1, 0x03, 0x08, 0x0b, 0x0b, 0, 0
.byte 3, 0x0d, 0, 0x03, 0x08, 0x49, 0x13, 0x38, 0x0b, 0, 0
.byte 4, 0x16, 0, 0x03, 0x08, 0x49, 0x13, 0, 0
.byte 0
.section .debug_info,"",@progbits
begin: .long end - from
from: .short 4
.long 0
.byte 8
.byte 1
.byte 2
.string "ggml_tensor"
.byte 16
.byte 3
.string "type"
.long loop - begin
.byte 0
.byte 0
loop: .byte 4
.string "loop"
.long loop - begin
.byte 0
end:
`

// assemble makes a library from assembly code.
func assemble(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "made.so")
	cmd := exec.Command("gcc", "-shared", "-nostdlib", "-o", path, "-x", "assembler", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("no assembler: %v\n%s", err, out)
	}
	return path
}

// Debug information in a separate file is not read if the symbols in that file name none of ggml's
// functions: that of libc is large.
func TestForeignDebugFile(t *testing.T) {
	for _, foreign := range []bool{true, false} {
		text := cyclic
		if !foreign {
			text += ".text\n.globl ggml_mul_mat\n.type ggml_mul_mat, @function\nggml_mul_mat: ret\n.size " +
				"ggml_mul_mat, 1\n"
		}
		path := assemble(t, text)
		for _, args := range [][]string{
			{"--only-keep-debug", path, path + ".debug"}, {"--strip-debug", path},
			{"--add-gnu-debuglink=" + path + ".debug", path},
		} {
			if out, err := exec.Command("objcopy", args...).CombinedOutput(); err != nil {
				t.Skipf("no objcopy: %v\n%s", err, out)
			}
		}
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		im, err := scan(bytes.NewReader(file), path, "/nowhere", uint32(os.Getuid()))
		if err != nil || errors.Is(im.LayoutErr, errNoLayout) == foreign {
			t.Errorf("foreign %v: %v; LayoutErr %v, want %v only if it is not foreign", foreign, err, im.LayoutErr,
				errNoLayout)
		}
	}
}

func TestTypedefOfItself(t *testing.T) {
	path := assemble(t, cyclic)
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	im, err := scan(bytes.NewReader(file), path, "/nowhere", 0)
	if err != nil || !errors.Is(im.LayoutErr, errNoLayout) {
		t.Errorf("%v; LayoutErr %v, want %v", err, im.LayoutErr, errNoLayout)
	}
}
