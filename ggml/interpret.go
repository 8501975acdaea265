package ggml

// This file executes a few instructions of a function symbolically: it finds out what the function
// reads, writes and returns, in terms of its first argument. It never guesses: what the interpreter
// does not understand has an unknown value. The instruction sets are in x86code.go and
// arm64code.go.

import (
	"debug/elf"
	"fmt"
)

// kind says what is known of a register's value.
type kind uint8

const (
	unknown    kind = iota
	ofArgument      // the function's first argument, plus n
	ofResult        // what the last call returned, plus n
	ofStack         // the stack pointer at entry, plus n
	atAddress       // the address or number n
	fromField       // loaded from the first argument plus n
)

// value is what is known of the contents of a register or of memory.
type value struct {
	kind kind
	n    int64
}

// plus adds a number to a value. The sum is unknown for a value that was loaded from memory.
func (v value) plus(n int64) value {
	if v.kind == unknown || v.kind == fromField {
		return value{}
	}
	return value{v.kind, v.n + n}
}

// access is a read or write of memory: size bytes at an offset from an argument or a result.
type access struct {
	offset int64
	size   int
}

// machine is the state of the symbolic execution.
type machine struct {
	regs   [32]value       // numbered as in the encoding of instructions
	stack  map[int64]value // values on the stack, by offset from the stack pointer at entry
	fields []access        // reads and updates of the struct that the first argument points to
	stores []access        // writes to the struct that a call returned
	tables []uint64        // base addresses of indexed reads
	result value           // the value returned
}

// scope says how much of a function is executed.
type scope int

const (
	untilReturn   scope = iota // to the first return, jump or call: enough for accessors
	wholeFunction              // to its end, past calls, in the order of addresses
)

// interpret executes a function symbolically.
func interpret(f *elf.File, s symbol, e scope) (*machine, error) {
	code := make([]byte, 128)
	if e == wholeFunction {
		code = make([]byte, 512)
		if s.size > 0 {
			code = make([]byte, min(s.size, 4096))
		}
	} else if s.size > 0 && s.size < 128 {
		code = code[:s.size]
	}
	n, err := readVirtual(f, s.address, code)
	if n == 0 && err != nil {
		return nil, fmt.Errorf("read the code of %s: %w", s.name, err)
	}
	m := &machine{stack: map[int64]value{}}
	switch f.Machine {
	case elf.EM_X86_64:
		m.runX86(code[:n], s.address, e)
	case elf.EM_AARCH64:
		m.runARM64(code[:n], s.address, e)
	default:
		return nil, fmt.Errorf("the code is for %v; only x86-64 and arm64 can be read", f.Machine)
	}
	return m, nil
}

// load reads memory at an address.
func (m *machine) load(at value, size int) value {
	switch at.kind {
	case ofArgument:
		m.fields = append(m.fields, access{at.n, size})
		return value{fromField, at.n}
	case ofStack:
		return m.stack[at.n]
	}
	return value{}
}

// store writes memory at an address.
func (m *machine) store(at value, size int, v value) {
	switch at.kind {
	case ofArgument:
		m.fields = append(m.fields, access{at.n, size})
	case ofResult:
		m.stores = append(m.stores, access{at.n, size})
	case ofStack:
		m.stack[at.n] = v
	}
}
