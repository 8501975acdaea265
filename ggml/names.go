package ggml

// This file tells quickly whether an ELF file has anything to do with ggml.

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
)

// prefix begins the names of ggml's functions.
const prefix = "ggml_"

// Names reports whether the symbols of an ELF file name functions of ggml, its own ones or those of a library that it
// needs. It is much cheaper than Scan, because no symbol is parsed. A file that is not ELF names none; that is no
// error.
func Names(r io.ReaderAt) (bool, error) {
	f, err := OpenELF(r)
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.EOF) { // EOF: shorter than a header
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read symbols: %w", err)
	}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_SYMTAB && s.Type != elf.SHT_DYNSYM || uint64(s.Link) >= uint64(len(f.Sections)) {
			continue
		}
		// OpenELF has bounded the size of these.
		if strings := f.Sections[s.Link]; strings.Type == elf.SHT_STRTAB {
			found, err := contains(strings.Open(), "\x00"+prefix)
			if found || err != nil {
				return found, err
			}
		}
	}
	return false, nil
}

// contains reports whether what r reads has a text in it.
func contains(r io.Reader, text string) (bool, error) {
	buffer := make([]byte, 64<<10)
	kept := 0 // bytes of the end of what was read before: the text may begin there
	for {
		n, err := io.ReadFull(r, buffer[kept:])
		have := buffer[:kept+n]
		if bytes.Contains(have, []byte(text)) {
			return true, nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read symbols: %w", err)
		}
		kept = copy(buffer, have[len(have)-len(text)+1:])
	}
}
