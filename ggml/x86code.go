package ggml

// This file executes x86-64 instructions symbolically.

import (
	"encoding/binary"

	"golang.org/x/arch/x86/x86asm"
)

// Numbers of x86-64's registers.
const (
	rax = 0
	rcx = 1
	rdx = 2
	rsp = 4
	rbp = 5
	rsi = 6
	rdi = 7
	r8  = 8
	r11 = 11
)

// x86Number is the number of a general register, whatever its width; -1 for others.
func x86Number(r x86asm.Reg) int {
	switch {
	case r >= x86asm.RAX && r <= x86asm.R15:
		return int(r - x86asm.RAX)
	case r >= x86asm.EAX && r <= x86asm.R15L:
		return int(r - x86asm.EAX)
	case r >= x86asm.AX && r <= x86asm.R15W:
		return int(r - x86asm.AX)
	case r >= x86asm.AL && r <= x86asm.BL:
		return int(r - x86asm.AL)
	case r >= x86asm.AH && r <= x86asm.BH:
		return int(r - x86asm.AH)
	case r >= x86asm.SPB && r <= x86asm.R15B:
		return int(r-x86asm.SPB) + 4
	}
	return -1
}

// runX86 executes the code of a function that begins at an address. It stops at an instruction that
// it cannot decode.
func (m *machine) runX86(code []byte, address uint64, e scope) {
	m.regs[rdi] = value{ofArgument, 0}
	m.regs[rsp] = value{ofStack, 0}
	for at := 0; at < len(code); {
		if len(code)-at >= 4 && binary.LittleEndian.Uint32(code[at:]) == 0xfa1e0ff3 { // endbr64
			at += 4
			continue
		}
		if n := m.runAVX(code[at:]); n > 0 {
			at += n
			continue
		}
		inst, err := x86asm.Decode(code[at:], 64)
		if err != nil {
			return
		}
		at += inst.Len
		next := address + uint64(at)
		switch inst.Op {
		case x86asm.RET:
			m.result = m.regs[rax]
			if e == untilReturn {
				return
			}
			continue
		case x86asm.JMP, x86asm.UD2, x86asm.HLT:
			if e == untilReturn {
				return
			}
			continue
		case x86asm.CALL:
			if e == untilReturn {
				return
			}
			for _, r := range []int{rcx, rdx, rsi, rdi, r8, r8 + 1, r8 + 2, r11} {
				m.regs[r] = value{}
			}
			m.regs[rax] = value{ofResult, 0}
			continue
		case x86asm.PUSH:
			m.regs[rsp] = m.regs[rsp].plus(-8)
			if r, ok := inst.Args[0].(x86asm.Reg); ok && x86Number(r) >= 0 {
				m.store(m.regs[rsp], 8, m.regs[x86Number(r)])
			}
			continue
		case x86asm.POP:
			v := m.load(m.regs[rsp], 8)
			if r, ok := inst.Args[0].(x86asm.Reg); ok && x86Number(r) >= 0 {
				m.regs[x86Number(r)] = v
			}
			m.regs[rsp] = m.regs[rsp].plus(8)
			continue
		case x86asm.LEAVE:
			m.regs[rsp] = m.regs[rbp]
			m.regs[rbp] = m.load(m.regs[rsp], 8)
			m.regs[rsp] = m.regs[rsp].plus(8)
			continue
		}
		m.runX86Data(inst, next)
	}
}

// runAVX executes an instruction in the VEX encoding, which x/arch does not know, and returns its
// length; 0 if it is none. Only a store of vectors has an effect. Stores whose address is indexed
// or relative to RIP are ignored.
func (m *machine) runAVX(code []byte) int {
	var opcodes, prefix, length byte // which map of opcodes, which mandatory prefix, whether the vector is long
	var rex byte                     // extends the base register
	var wide bool
	var at int
	switch {
	case len(code) >= 4 && code[0] == 0xc5:
		opcodes, prefix, length, at = 1, code[1]&3, code[1]>>2&1, 2
	case len(code) >= 5 && code[0] == 0xc4:
		opcodes, prefix, length, at = code[1]&0x1f, code[2]&3, code[2]>>2&1, 3
		rex, wide = ^code[1]>>5&1, code[2]>>7 == 1
	default:
		return 0
	}
	op := code[at]
	at++
	if opcodes == 1 && op == 0x77 { // vzeroupper
		return at
	}
	if opcodes < 1 || opcodes > 3 || at >= len(code) {
		return 0
	}
	mode, base := code[at]>>6, code[at]&7
	at++
	indexed, relative := mode != 3 && base == 4, mode == 0 && base == 5
	if indexed {
		if at >= len(code) {
			return 0
		}
		base, indexed = code[at]&7, code[at]>>3&7 != 4
		relative = mode == 0 && base == 5
		at++
	}
	width := map[byte]int{1: 1, 2: 4}[mode]
	if relative {
		width = 4
	}
	if len(code)-at < width {
		return 0
	}
	var offset int64
	switch width {
	case 1:
		offset = int64(int8(code[at]))
	case 4:
		offset = int64(int32(binary.LittleEndian.Uint32(code[at:])))
	}
	at += width
	if opcodes == 3 || opcodes == 1 && (op >= 0x70 && op <= 0x73 || op == 0xc2 || op >= 0xc4 && op <= 0xc6) {
		at++ // an immediate byte
	}
	size := 0
	if opcodes == 1 {
		switch op {
		case 0x11, 0x29, 0x7f: // vmovups, vmovaps, vmovdqu
			if size = 16 << length; op == 0x11 && prefix >= 2 {
				size = map[byte]int{2: 4, 3: 8}[prefix] // vmovss, vmovsd
			}
		case 0x13, 0x17, 0xd6: // vmovlps, vmovhps, vmovq
			size = 8
		case 0x7e: // vmovd, vmovq
			if size = 4; wide {
				size = 8
			}
			if prefix == 2 {
				size = 0 // a load
			}
		}
	}
	if size > 0 && mode != 3 && !indexed && !relative {
		m.store(m.regs[base|rex<<3].plus(offset), size, value{})
	}
	return min(at, len(code))
}

// runX86Data executes an instruction that moves or computes data. next is the address of the
// instruction after it.
func (m *machine) runX86Data(inst x86asm.Inst, next uint64) {
	target := -1
	if r, ok := inst.Args[0].(x86asm.Reg); ok {
		target = x86Number(r)
	}
	set := func(v value) {
		if target >= 0 {
			m.regs[target] = v
		}
	}
	wide := inst.DataSize == 64
	switch to := inst.Args[0].(type) {
	case x86asm.Mem:
		at := m.evalX86Address(to, next)
		v := value{}
		if r, ok := inst.Args[1].(x86asm.Reg); ok && inst.Op == x86asm.MOV && wide && x86Number(r) >= 0 {
			v = m.regs[x86Number(r)]
		}
		switch inst.Op {
		case x86asm.CMP, x86asm.TEST, x86asm.NOP:
			m.load(at, inst.MemBytes)
		default:
			m.store(at, inst.MemBytes, v)
		}
		return
	case x86asm.Reg:
		switch from := inst.Args[1].(type) {
		case x86asm.Mem:
			at := m.evalX86Address(from, next)
			if inst.Op == x86asm.LEA {
				set(at)
				return
			}
			m.recordX86Table(from)
			v := m.load(at, inst.MemBytes)
			switch inst.Op {
			case x86asm.CMP, x86asm.TEST:
			case x86asm.MOV:
				set(v)
			default:
				set(value{})
			}
			return
		case x86asm.Reg:
			switch {
			case inst.Op == x86asm.CMP || inst.Op == x86asm.TEST:
			case inst.Op == x86asm.MOV && x86Number(from) >= 0:
				set(m.regs[x86Number(from)])
			case inst.Op == x86asm.ADD && wide && target >= 0 && x86Number(from) >= 0:
				a, b := m.regs[target], m.regs[x86Number(from)]
				if b.kind == atAddress {
					set(a.plus(b.n))
				} else {
					set(value{})
				}
			default:
				set(value{})
			}
			return
		case x86asm.Imm:
			switch {
			case inst.Op == x86asm.CMP || inst.Op == x86asm.TEST:
			case inst.Op == x86asm.MOV && inst.DataSize >= 32:
				set(value{atAddress, int64(from)})
			case inst.Op == x86asm.ADD && wide && target >= 0:
				set(m.regs[target].plus(int64(from)))
			case inst.Op == x86asm.SUB && wide && target >= 0:
				set(m.regs[target].plus(-int64(from)))
			default:
				set(value{})
			}
			return
		}
		if inst.Op != x86asm.NOP {
			set(value{}) // setne %al and the like
		}
	}
}

// evalX86Address evaluates a memory operand. The result is unknown for one that is indexed.
func (m *machine) evalX86Address(a x86asm.Mem, next uint64) value {
	switch {
	case a.Segment != 0 && a.Segment != x86asm.DS && a.Segment != x86asm.SS, a.Index != 0:
		return value{}
	case a.Base == x86asm.RIP:
		return value{atAddress, int64(next) + a.Disp}
	case a.Base == 0:
		return value{atAddress, a.Disp}
	}
	if n := x86Number(a.Base); n >= 0 {
		return m.regs[n].plus(a.Disp)
	}
	return value{}
}

// recordX86Table records the base address of an indexed read: (%rax,%rdi,8), (%rdx,%rax) with a
// scaled index in either, or table(,%rdi,8).
func (m *machine) recordX86Table(a x86asm.Mem) {
	if a.Index == 0 {
		return
	}
	if a.Base == 0 {
		if a.Scale == 8 {
			m.tables = append(m.tables, uint64(a.Disp))
		}
		return
	}
	regs := []x86asm.Reg{a.Base}
	if a.Scale == 1 {
		regs = append(regs, a.Index)
	}
	for _, r := range regs {
		if n := x86Number(r); n >= 0 && m.regs[n].kind == atAddress {
			m.tables = append(m.tables, uint64(m.regs[n].n+a.Disp))
		}
	}
}
