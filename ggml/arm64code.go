package ggml

// This file executes arm64 instructions symbolically. (Its name does not end in _arm64.go, because
// it is built for every processor.)

import (
	"encoding/binary"
)

// Numbers of arm64's registers.
const (
	x0  = 0
	x18 = 18
	x30 = 30
	sp  = 31 // or, as a source of data, zero
)

// runARM64 executes the code of a function that begins at an address. It decodes the instruction
// words itself, because the decoder of x/arch does not export offsets.
func (m *machine) runARM64(code []byte, address uint64, e scope) {
	m.regs[x0] = value{ofArgument, 0}
	m.regs[sp] = value{ofStack, 0}
	for ; len(code) >= 4; code, address = code[4:], address+4 {
		w := binary.LittleEndian.Uint32(code)
		rd, rn := int(w&31), int(w>>5&31)
		switch {
		case w&0xfffffc1f == 0xd65f0000, w == 0xd65f0bff, w == 0xd65f0fff: // ret, retaa, retab
			m.result = m.regs[x0]
			if e == untilReturn {
				return
			}
		case w>>26 == 5, w&0xfffffc1f == 0xd61f0000: // b, br
			if e == untilReturn {
				return
			}
		case w>>26 == 0x25, w&0xfffffc1f == 0xd63f0000: // bl, blr
			if e == untilReturn {
				return
			}
			for r := range x18 + 1 {
				m.regs[r] = value{}
			}
			m.regs[x0], m.regs[x30] = value{ofResult, 0}, value{}
		case w>>24 == 0x54, w>>25&0x3f == 0x1a, w>>25&0x3f == 0x1b:
			// b.cond, cbz, tbz: not taken, because the other way leads to an error
		case w&0xfffff01f == 0xd503201f: // hints: nop, bti, paciasp
		case w&0x9f000000 == 0x90000000: // adrp
			m.regs[rd] = value{atAddress, int64(address&^0xfff) + pageOffset(w)<<12}
		case w&0x9f000000 == 0x10000000: // adr
			m.regs[rd] = value{atAddress, int64(address) + pageOffset(w)}
		case w>>23&0x3f == 0x22: // add, sub, cmp with an immediate
			n := int64(w >> 10 & 0xfff)
			if w>>22&1 == 1 {
				n <<= 12
			}
			if w>>30&1 == 1 {
				n = -n
			}
			switch {
			case w>>29&1 == 1 && rd == sp: // cmp
			case w>>31 == 0:
				m.setRegister(rd, value{})
			default:
				m.regs[rd] = m.regs[rn].plus(n)
			}
		case w&0x7fe0ffe0 == 0x2a0003e0: // mov register
			v := m.regs[w>>16&31]
			if w>>31 == 0 || w>>16&31 == sp {
				v = value{}
			}
			m.setRegister(rd, v)
		case w&0x3b000000 == 0x39000000, w&0x3b200000 == 0x38000000: // ldr, str with an offset
			m.runARM64Single(w, rd, rn)
		case w&0x3b200c00 == 0x38200800: // ldr, str with an index
			if w>>22&3 != 0 {
				if m.regs[rn].kind == atAddress {
					m.tables = append(m.tables, uint64(m.regs[rn].n))
				}
				m.setRegister(rd, value{})
			}
		case w&0x3a000000 == 0x28000000: // ldp, stp
			m.runARM64Pair(w, rd, rn)
		default:
			m.setRegister(rd, value{})
		}
	}
}

// pageOffset is the signed number in an adr or adrp instruction.
func pageOffset(w uint32) int64 { return signExtend(uint64(w>>5&0x7ffff)<<2|uint64(w>>29&3), 21) }

// setRegister writes a register other than the stack pointer: as a destination, number 31 is the
// zero register.
func (m *machine) setRegister(r int, v value) {
	if r != sp {
		m.regs[r] = v
	}
}

// runARM64Single executes a load or store of one register.
func (m *machine) runARM64Single(w uint32, rt, rn int) {
	vector, opc := w>>26&1 == 1, w>>22&3
	scale := w >> 30
	isLoad := opc != 0
	if vector {
		scale |= opc & 2 << 1
		isLoad = opc&1 == 1
	} else if scale == 3 && opc == 2 {
		return // prefetch
	}
	at, after := m.regs[rn], m.regs[rn]
	if w&0x3b000000 == 0x39000000 {
		at = at.plus(int64(w>>10&0xfff) << scale)
	} else {
		n := signExtend(uint64(w>>12&0x1ff), 9)
		switch w >> 10 & 3 {
		case 1: // after the access
			after = at.plus(n)
		case 3: // before
			at = at.plus(n)
			after = at
		default:
			at = at.plus(n)
		}
	}
	m.transfer(at, 1<<scale, rt, isLoad, vector)
	m.regs[rn] = m.baseAfter(rn, rt, isLoad && !vector, after)
}

// runARM64Pair executes a load or store of two registers.
func (m *machine) runARM64Pair(w uint32, rt, rn int) {
	vector, isLoad, opc := w>>26&1 == 1, w>>22&1 == 1, w>>30
	scale := 2 + opc>>1
	if vector {
		scale = 2 + opc
	}
	n := signExtend(uint64(w>>15&0x7f), 7) << scale
	at, after := m.regs[rn], m.regs[rn]
	switch w >> 23 & 3 {
	case 1:
		after = at.plus(n)
	case 3:
		at = at.plus(n)
		after = at
	default:
		at = at.plus(n)
	}
	second := int(w >> 10 & 31)
	m.transfer(at, 1<<scale, rt, isLoad, vector)
	m.transfer(at.plus(1<<scale), 1<<scale, second, isLoad, vector)
	if after = m.baseAfter(rn, rt, isLoad && !vector, after); second == rn && isLoad && !vector {
		after = m.regs[rn]
	}
	m.regs[rn] = after
}

// baseAfter is the base register's value after an access. A load into the base register itself
// overwrites it.
func (m *machine) baseAfter(rn, rt int, isLoad bool, after value) value {
	if isLoad && rn == rt && rn != sp {
		return m.regs[rn]
	}
	return after
}

// transfer moves size bytes between memory and a register.
func (m *machine) transfer(at value, size, rt int, isLoad, vector bool) {
	if isLoad {
		v := m.load(at, size)
		if !vector && size == 8 {
			m.setRegister(rt, v)
		} else if !vector {
			m.setRegister(rt, value{})
		}
		return
	}
	v := value{}
	if !vector && size == 8 && rt != sp {
		v = m.regs[rt]
	}
	m.store(at, size, v)
}

// signExtend interprets the lowest bits of a number as a signed number.
func signExtend(v uint64, bits uint) int64 { return int64(v<<(64-bits)) >> (64 - bits) }
