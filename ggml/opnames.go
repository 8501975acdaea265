package ggml

// This file reads the names of ggml's ops and the versions of ggml and llama.cpp.

import (
	"debug/elf"
	"errors"
	"fmt"
	"slices"
)

// maxOps bounds the table of op names; ggml has about a hundred.
const maxOps = 512

// readOpNames reads the table GGML_OP_NAME (pointers to strings), whose address the code of
// ggml_op_name holds. The table's length is unknown, so it ends at the first string that is no
// name. Op numbers differ between versions of ggml. Therefore the target's own table is read.
func readOpNames(f *elf.File, s symbol) ([]string, error) {
	m, err := interpret(f, s, untilReturn)
	if err != nil {
		return nil, err
	}
	if len(m.tables) == 0 {
		return nil, errors.New("ggml_op_name does not begin as known compilers make it")
	}
	table := m.tables[0]
	pointers, err := relocatedPointers(f, table, table+8*maxOps)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := uint64(0); i < maxOps; i++ {
		name, ok := "", false
		if p, filled := pointerAt(f, pointers, table+8*i); filled {
			name, ok = readText(f, p, 48)
		}
		if !ok || !isOpName(name) {
			break
		}
		names = append(names, name)
	}
	for _, want := range []string{"NONE", "GET_ROWS", "MUL_MAT"} { // MUL_MAT_ID is newer than these
		if !slices.Contains(names, want) {
			return nil, fmt.Errorf("the table at %#x has %d names, but not %s", table, len(names), want)
		}
	}
	return names, nil
}

// pointerAt returns the pointer that the loaded file will hold at an address.
func pointerAt(f *elf.File, relocated map[uint64]uint64, at uint64) (uint64, bool) {
	if p, ok := relocated[at]; ok {
		return p, true
	}
	var raw [8]byte
	if n, err := readVirtual(f, at, raw[:]); err != nil || n < len(raw) {
		return 0, false
	}
	p := f.ByteOrder.Uint64(raw[:])
	return p, p != 0
}

func isOpName(s string) bool {
	for _, c := range s {
		if c != '_' && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// returnedText returns the string constant that a function without arguments returns; "" if the
// function does anything else.
func returnedText(f *elf.File, s symbol) string {
	m, err := interpret(f, s, untilReturn)
	if err != nil || m.result.kind != atAddress {
		return ""
	}
	text, _ := readText(f, uint64(m.result.n), 128)
	return text
}

// The variables in which llama.cpp's common library keeps its build.
const (
	buildNumber = "LLAMA_BUILD_NUMBER" // int
	buildCommit = "LLAMA_COMMIT"       // const char *
)

// readLlamaBuild reads the number and the commit of a llama.cpp build, as in "b6700 (0123abc)"; ""
// if the file does not say.
func readLlamaBuild(f *elf.File, all *symbols) string {
	var number string
	if s, ok := all.byName[buildNumber]; ok {
		var raw [4]byte
		if n, err := readVirtual(f, s.address, raw[:]); err == nil && n == len(raw) && f.ByteOrder.Uint32(raw[:]) != 0 {
			number = fmt.Sprintf("b%d", f.ByteOrder.Uint32(raw[:]))
		}
	}
	var commit string
	if s, ok := all.byName[buildCommit]; ok {
		if pointers, err := relocatedPointers(f, s.address, s.address+8); err == nil {
			if p, ok := pointerAt(f, pointers, s.address); ok {
				commit, _ = readText(f, p, 128)
			}
		}
	}
	switch {
	case commit == "" || commit == "unknown":
		return number
	case number == "":
		return commit
	}
	return fmt.Sprintf("%s (%s)", number, commit)
}
