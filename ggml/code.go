package ggml

// This file learns the layout of ggml's structs from the machine code of ggml's own accessors: ggml_get_data(tensor), for example, shows at
// which offset a tensor keeps its data pointer. A few instructions are executed symbolically. What the interpreter does not understand has
// an unknown value; it never guesses.

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/arch/x86/x86asm"
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

type value struct {
	kind kind
	n    int64
}

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

// machine is the state of the symbolic execution. Registers are numbered as in the encoding of instructions.
type machine struct {
	regs   [32]value
	slots  map[int64]value // values on the stack, by offset from the stack pointer at entry
	fields []access        // reads and updates of the struct that the first argument points to
	stores []access        // writes to the struct that a call returned
	tables []uint64        // base addresses of indexed reads
	result value           // the value returned
}

// extent says how much of a function is executed.
type extent int

const (
	untilReturn extent = iota // to the first return, jump or call: accessors
	whole                     // to its end, past calls, in the order of addresses
)

// run executes a function symbolically.
func run(f *elf.File, s symbol, e extent) (*machine, error) {
	code := make([]byte, 128)
	if e == whole {
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
	m := &machine{slots: map[int64]value{}}
	switch f.Machine {
	case elf.EM_X86_64:
		m.x86(code[:n], s.address, e)
	case elf.EM_AARCH64:
		m.arm64(code[:n], s.address, e)
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
		return m.slots[at.n]
	}
	return value{}
}

func (m *machine) store(at value, size int, v value) {
	switch at.kind {
	case ofArgument:
		m.fields = append(m.fields, access{at.n, size})
	case ofResult:
		m.stores = append(m.stores, access{at.n, size})
	case ofStack:
		m.slots[at.n] = v
	}
}

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

func (m *machine) x86(code []byte, address uint64, e extent) {
	m.regs[rdi] = value{ofArgument, 0}
	m.regs[rsp] = value{ofStack, 0}
	for at := 0; at < len(code); {
		if len(code)-at >= 4 && binary.LittleEndian.Uint32(code[at:]) == 0xfa1e0ff3 { // endbr64
			at += 4
			continue
		}
		if n := m.avx(code[at:]); n > 0 {
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
		m.x86Data(inst, next)
	}
}

// avx decodes an instruction in the VEX encoding, which x/arch does not know, and returns its length; 0 if it is none. A store of vectors
// is recorded, other instructions are skipped. Base registers that are indexed or relative to RIP are ignored.
func (m *machine) avx(code []byte) int {
	var opcodes, prefix, length byte // which map of opcodes, which mandatory prefix; the vector's length
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

// x86Data executes an instruction that moves or computes data.
func (m *machine) x86Data(inst x86asm.Inst, next uint64) {
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
		at := m.x86Address(to, next)
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
			at := m.x86Address(from, next)
			if inst.Op == x86asm.LEA {
				set(at)
				return
			}
			m.x86Index(from, next)
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

// x86Address evaluates a memory operand that is not indexed.
func (m *machine) x86Address(a x86asm.Mem, next uint64) value {
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

// x86Index records the base address of an indexed read: (%rax,%rdi,8), (%rdx,%rax) with a scaled index in either, or table(,%rdi,8).
func (m *machine) x86Index(a x86asm.Mem, next uint64) {
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

// Numbers of arm64's registers.
const (
	x0  = 0
	x18 = 18
	x30 = 30
	sp  = 31 // or, as a source of data, zero
)

// arm64 decodes the instruction words by hand, because the decoder of x/arch does not export offsets.
func (m *machine) arm64(code []byte, address uint64, e extent) {
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
		case w>>24 == 0x54, w>>25&0x3f == 0x1a, w>>25&0x3f == 0x1b: // b.cond, cbz, tbz: the other way leads to an error
		case w&0xfffff01f == 0xd503201f: // hints: nop, bti, paciasp
		case w&0x9f000000 == 0x90000000: // adrp
			m.regs[rd] = value{atAddress, int64(address&^0xfff) + signed(uint64(w>>5&0x7ffff)<<2|uint64(w>>29&3), 21)<<12}
		case w&0x9f000000 == 0x10000000: // adr
			m.regs[rd] = value{atAddress, int64(address) + signed(uint64(w>>5&0x7ffff)<<2|uint64(w>>29&3), 21)}
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
				m.set(rd, value{})
			default:
				m.regs[rd] = m.regs[rn].plus(n)
			}
		case w&0x7fe0ffe0 == 0x2a0003e0: // mov register
			v := m.regs[w>>16&31]
			if w>>31 == 0 || w>>16&31 == sp {
				v = value{}
			}
			m.set(rd, v)
		case w&0x3b000000 == 0x39000000, w&0x3b200000 == 0x38000000: // ldr, str with an offset
			m.arm64One(w, rd, rn)
		case w&0x3b200c00 == 0x38200800: // ldr, str with an index
			if w>>22&3 != 0 {
				if m.regs[rn].kind == atAddress {
					m.tables = append(m.tables, uint64(m.regs[rn].n))
				}
				m.set(rd, value{})
			}
		case w&0x3a000000 == 0x28000000: // ldp, stp
			m.arm64Two(w, rd, rn)
		default:
			m.set(rd, value{})
		}
	}
}

// set writes a register other than the stack pointer; as a destination, number 31 is the zero register.
func (m *machine) set(r int, v value) {
	if r != sp {
		m.regs[r] = v
	}
}

// arm64One executes a load or store of one register.
func (m *machine) arm64One(w uint32, rt, rn int) {
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
		n := signed(uint64(w>>12&0x1ff), 9)
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
	m.regs[rn] = m.based(rn, rt, isLoad && !vector, after)
}

// arm64Two executes a load or store of two registers.
func (m *machine) arm64Two(w uint32, rt, rn int) {
	vector, isLoad, opc := w>>26&1 == 1, w>>22&1 == 1, w>>30
	scale := 2 + opc>>1
	if vector {
		scale = 2 + opc
	}
	n := signed(uint64(w>>15&0x7f), 7) << scale
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
	if after = m.based(rn, rt, isLoad && !vector, after); second == rn && isLoad && !vector {
		after = m.regs[rn]
	}
	m.regs[rn] = after
}

// based is the base register's value after an access; a load into the base register itself overwrites it.
func (m *machine) based(rn, rt int, isLoad bool, after value) value {
	if isLoad && rn == rt && rn != sp {
		return m.regs[rn]
	}
	return after
}

func (m *machine) transfer(at value, size, rt int, isLoad, vector bool) {
	if isLoad {
		v := m.load(at, size)
		if !vector && size == 8 {
			m.set(rt, v)
		} else if !vector {
			m.set(rt, value{})
		}
		return
	}
	v := value{}
	if !vector && size == 8 && rt != sp {
		v = m.regs[rt]
	}
	m.store(at, size, v)
}

func signed(v uint64, bits uint) int64 { return int64(v<<(64-bits)) >> (64 - bits) }

// accessors maps a function of ggml to what its execution tells about the layout. Each returns false if the code was not as expected.
var accessors = map[string]func(*machine, *Layout) bool{
	"ggml_get_name": func(m *machine, l *Layout) bool {
		return m.result.kind == ofArgument && offset(&l.Name, m.result.n)
	},
	"ggml_get_data":      func(m *machine, l *Layout) bool { return m.result.kind == fromField && offset(&l.Data, m.result.n) },
	"ggml_is_view":       func(m *machine, l *Layout) bool { return m.first(8, &l.ViewSrc) },
	"ggml_get_unary_op":  func(m *machine, l *Layout) bool { return m.first(4, &l.Op) },
	"ggml_set_input":     func(m *machine, l *Layout) bool { return len(m.fields) > 0 && offset(&l.Flags, m.fields[0].offset) },
	"ggml_nelements":     func(m *machine, l *Layout) bool { return m.array(4, &l.NE) },
	"ggml_is_transposed": func(m *machine, l *Layout) bool { return m.array(2, &l.NB) },
	"ggml_graph_n_nodes": func(m *machine, l *Layout) bool { return m.first(4, &l.NNodes) },
	"ggml_graph_nodes":   func(m *machine, l *Layout) bool { return m.result.kind == fromField && offset(&l.Nodes, m.result.n) },
}

func offset(to *uint32, n int64) bool {
	if n < 0 || n >= TensorBytes {
		return false
	}
	*to = uint32(n)
	return true
}

// first stores the offset of the first field that was read, if it has the right size.
func (m *machine) first(size int, to *uint32) bool {
	return len(m.fields) > 0 && m.fields[0].size == size && offset(to, m.fields[0].offset)
}

// array stores the offset of n consecutive fields of 8 bytes, if these and no others were read, in any order and width.
func (m *machine) array(n int, to *uint32) bool {
	if len(m.fields) == 0 {
		return false
	}
	low, read := m.fields[0].offset, map[int64]bool{}
	for _, a := range m.fields {
		if a.size < 8 {
			return false
		}
		low = min(low, a.offset)
		for i := range int64(a.size / 8) {
			read[a.offset+8*i] = true
		}
	}
	for i := range int64(n) {
		if !read[low+8*i] {
			return false
		}
	}
	return len(read) == n && offset(to, low)
}

var errContradiction = errors.New("ggml's accessors contradict each other")

// codeLayout reads the accessors. It returns nil if the file does not hold them.
func codeLayout(f *elf.File, path string, all *symbols) (*Layout, error) {
	var l Layout
	known := map[string]bool{}
	for name, learn := range accessors {
		s, ok := all.byName[name]
		if !ok {
			continue
		}
		m, err := run(f, s, untilReturn)
		if err != nil {
			return nil, err
		}
		known[name] = learn(m, &l)
	}
	data, name, view := known["ggml_get_data"], known["ggml_get_name"], known["ggml_is_view"]
	switch {
	case !data && !name:
		return nil, nil
	case data && name && l.Name != l.Data+8:
		return nil, fmt.Errorf("%w: data at %d, name at %d", errContradiction, l.Data, l.Name)
	case data:
		l.Name = l.Data + 8
	case l.Name < 8:
		return nil, fmt.Errorf("%w: name at %d", errContradiction, l.Name)
	default:
		l.Data = l.Name - 8
	}
	if view && l.ViewSrc+16 != l.Data { // view_offs lies between them
		return nil, fmt.Errorf("%w: view_src at %d, data at %d", errContradiction, l.ViewSrc, l.Data)
	}
	if l.Data < 16 {
		return nil, fmt.Errorf("%w: data at %d", errContradiction, l.Data)
	}
	l.ViewSrc = l.Data - 16
	if !known["ggml_nelements"] || !known["ggml_get_unary_op"] {
		return nil, fmt.Errorf("found where data lies (%d), but not ne and op: the code of ggml_nelements or ggml_get_unary_op is not as known compilers make it", l.Data)
	}
	if known["ggml_is_transposed"] && l.NB != l.NE+32 {
		return nil, fmt.Errorf("%w: ne at %d, nb at %d", errContradiction, l.NE, l.NB)
	}
	l.NB = l.NE + 32

	src, haveSrc := sourcesOf(f, all, &l)
	l.Origin = "code of " + path
	for _, c := range Candidates() {
		if c.Data == l.Data && c.NE == l.NE && c.Op == l.Op && (!known["ggml_set_input"] || c.Flags == l.Flags) && (!haveSrc || c.Src == src) && c.ViewSrc == l.ViewSrc {
			l.Flags, l.Src, l.MaxSrc = c.Flags, c.Src, c.MaxSrc
			haveSrc = true
			break
		}
	}
	switch { // without a matching known layout, the code must tell
	case l.MaxSrc != 0:
	case haveSrc:
		l.Src = src
		l.MaxSrc = min((l.ViewSrc-src)/8, maxSrc)
	default: // an assumed number that is off by a few would go unnoticed
		return nil, fmt.Errorf("unknown layout of ggml_tensor: data is at offset %d, but the code of ggml_mul_mat does not show the offset of src", l.Data)
	}
	today := Candidates()[0]
	if !known["ggml_graph_n_nodes"] {
		l.NNodes = today.NNodes
	}
	if !known["ggml_graph_nodes"] {
		l.Nodes = today.Nodes
	}
	if err := l.valid(); err != nil {
		return nil, fmt.Errorf("%s: %w", l.Origin, err)
	}
	return &l, nil
}

// sourcesOf finds where ggml_mul_mat stores its two operands in the tensor that it creates.
func sourcesOf(f *elf.File, all *symbols, l *Layout) (uint32, bool) {
	s, ok := all.byName["ggml_mul_mat"]
	if !ok {
		return 0, false
	}
	m, err := run(f, s, whole)
	if err != nil {
		return 0, false
	}
	named := false // true once the op field is written, which shows that this is the new tensor
	written := map[int64]bool{}
	first := int64(l.ViewSrc)
	for _, a := range m.stores {
		named = named || a.offset == int64(l.Op) && a.size == 4
		if a.size < 8 || a.offset < int64(max(l.Op, l.Flags))+4 || a.offset+int64(a.size) > int64(l.ViewSrc) {
			continue
		}
		for i := range int64(a.size / 8) {
			written[a.offset+8*i] = true
		}
		first = min(first, a.offset)
	}
	if !named || !written[first] || !written[first+8] || len(written) != 2 {
		return 0, false
	}
	return uint32(first), true
}
