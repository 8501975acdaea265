package ggml

// This file chooses where in a function a probe sits, and estimates what a hit costs there.

import (
	"debug/elf"
	"fmt"

	"golang.org/x/arch/x86/x86asm"
)

// Cost is the class of the instruction that a uprobe replaces. It determines what a hit costs.
type Cost int

const (
	CostUnknown Cost = iota // not measured (other architectures than x86-64)
	CostPush                // push of a register, which the kernel emulates
	CostNop                 // a nop, which the kernel emulates
	CostStep                // any other instruction; nearly all of these are single-stepped
)

// String names the class and what a hit costs, without the BPF program. The times were measured on one x86-64
// machine. Expect the same order of magnitude elsewhere.
func (c Cost) String() string {
	switch c {
	case CostPush:
		return "push, 0.55 µs"
	case CostNop:
		return "nop, 0.55 µs"
	case CostStep:
		return "single step, 19 µs"
	}
	return "unknown"
}

// MarshalText makes costs readable in JSON.
func (c Cost) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// findSite turns a function's address into file offsets and chooses the instruction that the probe
// replaces.
func findSite(f *elf.File, symbol string, r Role, address uint64) (Site, error) {
	s := Site{Symbol: symbol, Role: r}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && address >= p.Vaddr && address-p.Vaddr < p.Filesz {
			s.Entry = address - p.Vaddr + p.Off
			s.Probe = s.Entry
			code := make([]byte, min(64, p.Filesz-(address-p.Vaddr)))
			if _, err := p.ReadAt(code, int64(address-p.Vaddr)); err != nil {
				return s, fmt.Errorf("read the code of %s: %w", symbol, err)
			}
			if f.Machine == elf.EM_X86_64 {
				skip, pushed := findFirstPush(code)
				onStack := r == RoleDecode || r == RoleEncode // the batch is passed on the stack
				if !onStack || pushed != stackUnknown {
					s.Probe += uint64(skip)
					s.Pushed = uint64(max(pushed, 0))
					code = code[skip:]
				}
				s.Cost = classify(code)
			}
			return s, nil
		}
	}
	return s, fmt.Errorf("%s lies at %#x, in no executable segment", symbol, address)
}

// classify returns the class of the instruction that the code begins with.
func classify(code []byte) Cost {
	switch {
	case len(code) >= 1 && code[0]&^0x07 == 0x50, len(code) >= 2 && code[0] == 0x41 && code[1]&^0x07 == 0x50:
		return CostPush
	case len(code) >= 1 && code[0] == 0x90, len(code) >= 3 && code[0] == 0x0f && code[1] == 0x1f:
		return CostNop
	}
	return CostStep
}

// findFirstPush finds the first `push register` in a function's prologue. The kernel emulates that
// instruction, so that a hit costs about 0.6 us. Most others are single-stepped (19 us). It returns
// the push's offset and how many bytes were pushed before it, or stackUnknown if the prologue
// aligns the stack. It returns 0, 0 if there is no push before an argument register is overwritten.
func findFirstPush(code []byte) (skip, pushed int) {
	arguments := map[x86asm.Reg]bool{}
	for _, r := range []x86asm.Reg{
		x86asm.RDI, x86asm.RSI, x86asm.RDX, x86asm.EDI, x86asm.ESI, x86asm.EDX,
		x86asm.DI, x86asm.SI, x86asm.DX, x86asm.DIB, x86asm.SIB, x86asm.DL,
	} {
		arguments[r] = true
	}
	endbr64 := [4]byte{0xf3, 0x0f, 0x1e, 0xfa}
	for at := 0; at < len(code); {
		if len(code)-at >= 4 && [4]byte(code[at:at+4]) == endbr64 {
			at += 4
			continue
		}
		inst, err := x86asm.Decode(code[at:], 64)
		if err != nil {
			return 0, 0
		}
		reg, isReg := inst.Args[0].(x86asm.Reg)
		switch inst.Op {
		case x86asm.PUSH:
			if isReg {
				return at, pushed
			}
			if pushed != stackUnknown {
				pushed += 8
			}
		case x86asm.LEA, x86asm.MOV:
			if isReg && (arguments[reg] || reg == x86asm.RSP) {
				return 0, 0
			}
			if !isReg {
				return 0, 0 // a store; no prologue needs one before its first push
			}
		case x86asm.AND: // and $-64, %rsp: how far it moves the stack pointer is unknown
			if !isReg || reg != x86asm.RSP {
				return 0, 0
			}
			pushed = stackUnknown
		default:
			return 0, 0
		}
		at += inst.Len
	}
	return 0, 0
}

// stackUnknown says that the distance from the stack pointer to the arguments is unknown.
const stackUnknown = -1
