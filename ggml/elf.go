package ggml

// This file opens ELF files and reads their symbol tables. It bounds the memory that this takes.
// Package debug/elf trusts the sizes in a file, which may have holes or be compressed. It also
// copies the name of each symbol, and that may be as long as the file and the same for all symbols.

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Limits on what is read from an untrusted file, in bytes. The largest files are those of builds
// for many GPUs.
const (
	maxSection     = 128 << 20 // a section of symbols, strings or relocations
	maxDebug       = 256 << 20 // all sections of debug information together
	maxAbbrev      = 4 << 20   // tables of abbreviations in it
	maxDebugString = 16 << 10  // a string of debug information
	maxDebugText   = 1 << 30   // all strings that its entries name
	maxDebugFile   = 1 << 30   // a separate file with debug information
	maxName        = 128       // a symbol's name
)

var errTooLarge = errors.New("larger than any llama.cpp needs")

// OpenELF is elf.NewFile for an untrusted file. It refuses a file whose tables of symbols, strings,
// relocations or of the dynamic linker are larger than any program's, because package debug/elf
// would read them as a whole. It refuses nothing else. Do not read symbols by File.Symbols, which
// copies their names.
func OpenELF(r io.ReaderAt) (*elf.File, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return nil, err
	}
	for _, s := range f.Sections {
		switch s.Type {
		case elf.SHT_SYMTAB, elf.SHT_DYNSYM, elf.SHT_STRTAB, elf.SHT_DYNAMIC, elf.SHT_RELA, elf.SHT_REL,
			elf.SHT_GNU_VERSYM, elf.SHT_GNU_VERDEF, elf.SHT_GNU_VERNEED:
			if s.Size > maxSection || s.Flags&elf.SHF_COMPRESSED != 0 {
				return nil, fmt.Errorf("section %.64q: %w", s.Name, errTooLarge)
			}
		}
	}
	return f, nil
}

// addTables adds the symbols of .dynsym and .symtab.
func (s *symbols) addTables(f *elf.File) error {
	for _, kind := range []elf.SectionType{elf.SHT_DYNSYM, elf.SHT_SYMTAB} {
		table := f.SectionByType(kind)
		if table == nil {
			continue
		}
		if err := s.addTable(f, table); err != nil {
			return err
		}
	}
	return nil
}

// addTable adds the symbols of one table.
func (s *symbols) addTable(f *elf.File, table *elf.Section) error {
	if table.Link == 0 || int64(table.Link) >= int64(len(f.Sections)) {
		return fmt.Errorf("section %.64q: its names are in section %d of %d", table.Name, table.Link, len(f.Sections))
	}
	names, err := f.Sections[table.Link].Data()
	if err != nil {
		return fmt.Errorf("read the names of symbols: %w", err)
	}
	entries := bufio.NewReaderSize(table.Open(), 1<<16)
	var raw [elf.Sym64Size]byte
	for {
		if _, err := io.ReadFull(entries, raw[:]); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read symbols: %w", err)
		}
		sym := elf.Sym64{
			Name: f.ByteOrder.Uint32(raw[:]), Info: raw[4], Shndx: f.ByteOrder.Uint16(raw[6:]),
			Value: f.ByteOrder.Uint64(raw[8:]), Size: f.ByteOrder.Uint64(raw[16:]),
		}
		if elf.SectionIndex(sym.Shndx) == elf.SHN_UNDEF || int64(sym.Name) >= int64(len(names)) {
			continue
		}
		text := names[sym.Name:min(int(sym.Name)+maxName, len(names))]
		end := bytes.IndexByte(text, 0)
		if end < 0 {
			continue
		}
		// A program that loads llama.cpp at run time may have pointer variables with the functions'
		// names.
		kind := elf.STT_FUNC
		if bytes.HasPrefix(text, []byte("LLAMA_")) {
			kind = elf.STT_OBJECT
		}
		if elf.ST_TYPE(sym.Info) == kind {
			s.add(string(text[:end]), sym.Value, sym.Size)
		}
	}
}

// checkDebug refuses debug information that takes too much to read: package debug/dwarf copies each
// string that an entry names.
func checkDebug(f *elf.File) error {
	var total uint64
	for _, s := range f.Sections {
		if !strings.HasPrefix(s.Name, ".debug_") && !strings.HasPrefix(s.Name, ".zdebug_") {
			continue
		}
		total += s.Size
		if s.Size > maxDebug || total > maxDebug || strings.HasSuffix(s.Name, "_abbrev") && s.Size > maxAbbrev {
			return fmt.Errorf("debug information: %w", errTooLarge)
		}
		if s.FileSize >= 12 && strings.HasPrefix(s.Name, ".zdebug_") { // the uncompressed size is in the section
			var head [12]byte
			if _, err := s.ReadAt(head[:], 0); err != nil {
				return fmt.Errorf("read %.64q: %w", s.Name, err)
			}
			if size := binary.BigEndian.Uint64(head[4:]); string(head[:4]) == "ZLIB" {
				if total += size; size > maxDebug || total > maxDebug {
					return fmt.Errorf("debug information: %w", errTooLarge)
				}
			}
		}
	}
	return nil
}

// mentions reports whether a section of strings has a text, and refuses strings that are too long.
func mentions(s *elf.Section, text string) (found bool, err error) {
	in := bufio.NewReaderSize(s.Open(), maxDebugString)
	for {
		line, err := in.ReadSlice(0)
		found = found || bytes.Contains(line, []byte(text))
		switch {
		case errors.Is(err, io.EOF):
			return found, nil
		case errors.Is(err, bufio.ErrBufferFull):
			return found, fmt.Errorf("a string in %.64q: %w", s.Name, errTooLarge)
		case err != nil:
			return found, fmt.Errorf("read %.64q: %w", s.Name, err)
		}
	}
}
