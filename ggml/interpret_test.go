package ggml

// These tests execute short pieces of machine code symbolically.

import (
	"encoding/binary"
	"slices"
	"testing"
)

// The code is given as instruction words. That from "name" to "nodes", and that of the functions
// below the table, is from libggml-base.so in the npm package @node-llama-cpp/linux-arm64 3.22.1
// (clang -O3), at its addresses there. The other cases were written by hand, following the manual.
// They have the form that compilers give code without optimisation, or with branch protection.
func TestARM64(t *testing.T) {
	const ret = 0xd65f03c0
	today := Candidates()[0]
	for name, tc := range map[string]struct {
		function string
		code     []uint32
		want     Layout // with the one field that the function shows
	}{
		"name": {"ggml_get_name", []uint32{0x91040000, ret}, Layout{Name: today.Name}},
		"data": {"ggml_get_data", []uint32{0xf9407c00, ret}, Layout{Data: today.Data}},
		"view": {
			"ggml_is_view", []uint32{0xf9407408, 0xf100011f, 0x1a9f07e0, ret}, Layout{ViewSrc: today.ViewSrc},
		},
		"op": {
			"ggml_get_unary_op", []uint32{0xb9405008, 0x71016d1f, 0x54000061, 0xb9405400, ret}, Layout{Op: today.Op},
		},
		"flags": {"ggml_set_input", []uint32{0xb9409408, 0x32000108, 0xb9009408, ret}, Layout{Flags: today.Flags}},
		"ne": {
			"ggml_nelements", []uint32{0xa9412408, 0x9b087d28, 0xa9422809, 0x9b097d08, 0x9b0a7d00, ret},
			Layout{NE: today.NE},
		},
		"nb":      {"ggml_is_transposed", []uint32{0xa9432408, 0xeb09011f, 0x1a9f97e0, ret}, Layout{NB: today.NB}},
		"n_nodes": {"ggml_graph_n_nodes", []uint32{0xb9400400, ret}, Layout{NNodes: today.NNodes}},
		"nodes":   {"ggml_graph_nodes", []uint32{0xf9400800, ret}, Layout{Nodes: today.Nodes}},
		"bti":     {"ggml_get_data", []uint32{0xd503245f, 0xf9407c00, ret}, Layout{Data: today.Data}},
		"pac":     {"ggml_get_data", []uint32{0xd503233f, 0xf9407c00, 0xd50323bf, ret}, Layout{Data: today.Data}},
		"retaa":   {"ggml_get_data", []uint32{0xd503233f, 0xf9407c00, 0xd65f0bff}, Layout{Data: today.Data}},
		"frame": {
			"ggml_get_data", []uint32{0xd10043ff, 0xf90007e0, 0xf94007e8, 0xf9407d00, 0x910043ff, ret},
			Layout{Data: today.Data},
		},
		"frame name": {
			"ggml_get_name", []uint32{0xd10043ff, 0xf90007e0, 0xf94007e8, 0x91040100, 0x910043ff, ret},
			Layout{Name: today.Name},
		},
		// stp, ldp x29, x30
		"pushed": {
			"ggml_get_data", []uint32{0xa9bf7bfd, 0x910003fd, 0xf9407c00, 0xa8c17bfd, ret}, Layout{Data: today.Data},
		},
		"moved": {"ggml_get_data", []uint32{0xaa0003e8, 0xf9407d00, ret}, Layout{Data: today.Data}},
		// Code that is not that of an accessor shows nothing.
		"calls":     {"ggml_get_data", []uint32{0x94000010, 0xf9407c00, ret}, Layout{}},
		"jumps":     {"ggml_get_data", []uint32{0x14000010, 0xf9407c00, ret}, Layout{}},
		"half":      {"ggml_get_data", []uint32{0xb940f800, ret}, Layout{}}, // ldr w0
		"computed":  {"ggml_get_data", []uint32{0xf9407c00, 0x8b010000, ret}, Layout{}},
		"no return": {"ggml_get_data", []uint32{0xf9407c00}, Layout{}},
	} {
		m := &machine{stack: map[int64]value{}}
		m.runARM64(words(tc.code...), 0x1000, untilReturn)
		var got Layout
		accessors[tc.function](m, &got)
		if got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}

	// ggml_version: adrp x0; add x0, x0, #0xc93
	m := &machine{stack: map[int64]value{}}
	m.runARM64(words(0xb0000460, 0x91324c00, ret), 0x1b238, untilReturn)
	if want := (value{atAddress, 0xa8c93}); m.result != want {
		t.Errorf("ggml_version returns %+v, want %+v", m.result, want)
	}
	// ggml_op_name: adrp x8; add x8, x8, #0x878; ldr x0, [x8, w0, uxtw #3]
	m = &machine{stack: map[int64]value{}}
	m.runARM64(words(0xd0000608, 0x9121e108, 0xf8605900, ret), 0x1b5cc, untilReturn)
	if len(m.tables) != 1 || m.tables[0] != 0xdd878 { // in .data.rel.ro, as readelf says
		t.Errorf("ggml_op_name's tables: %#x, want only %#x", m.tables, 0xdd878)
	}
	// ggml_mul_mat, from its call of ggml_new_tensor on: op 29 at 80, two operands from 152 on.
	m = &machine{stack: map[int64]value{}}
	m.runARM64(words(0x97ffebca, 0x528003a8, 0xb9005008, 0xa909cc14, 0xa9434ff4, 0xa9427bfd, 0x910103ff, ret),
		0x21318, wholeFunction)
	if len(m.stores) != 3 || m.stores[0] != (access{80, 4}) || m.stores[1] != (access{152, 8}) ||
		m.stores[2] != (access{160, 8}) {
		t.Errorf("ggml_mul_mat's stores: %+v, want 4 bytes at 80, 8 at 152, 8 at 160", m.stores)
	}
}

// words makes code of instruction words.
func words(w ...uint32) []byte {
	var code []byte
	for _, v := range w {
		code = binary.LittleEndian.AppendUint32(code, v)
	}
	return code
}

// The code is given as the GNU assembler encodes it.
func TestAVX(t *testing.T) {
	for name, tc := range map[string]struct {
		code string
		want []access // stores to what a call returned
	}{
		"vmovups %xmm0,0x98(%rax)":          {"\xc5\xf8\x11\x80\x98\x00\x00\x00", []access{{0x98, 16}}},
		"vmovdqu %ymm4,0x98(%rax)":          {"\xc5\xfe\x7f\xa0\x98\x00\x00\x00", []access{{0x98, 32}}},
		"vmovq %xmm1,0xa0(%rax)":            {"\xc5\xf9\xd6\x88\xa0\x00\x00\x00", []access{{0xa0, 8}}},
		"vmovhps %xmm1,0xa8(%rax)":          {"\xc5\xf8\x17\x88\xa8\x00\x00\x00", []access{{0xa8, 8}}},
		"vmovdqu %xmm0,(%rax)":              {"\xc5\xfa\x7f\x00", []access{{0, 16}}},
		"vmovsd %xmm0,8(%rax)":              {"\xc5\xfb\x11\x40\x08", []access{{8, 8}}},
		"vmovss %xmm0,8(%rax)":              {"\xc5\xfa\x11\x40\x08", []access{{8, 4}}},
		"vmovaps 0x10(%rsp),%xmm4":          {"\xc5\xf8\x28\x64\x24\x10", nil},
		"vmovq 0x18(%r12),%xmm0":            {"\xc4\xc1\x7a\x7e\x44\x24\x18", nil},
		"vmovdqu %xmm0,0x20(%rsp)":          {"\xc5\xfa\x7f\x44\x24\x20", nil},
		"vmovdqu %xmm0,0x20(%rax,%rcx,8)":   {"\xc5\xfa\x7f\x44\xc8\x20", nil},
		"vmovdqu %xmm0,0x2000(%rip)":        {"\xc5\xfa\x7f\x05\x00\x20\x00\x00", nil},
		"vpinsrq $1,0x28(%rbx),%xmm3,%xmm1": {"\xc4\xe3\xe1\x22\x4b\x28\x01", nil},
		"vpshufd $0x4e,%xmm0,%xmm1":         {"\xc5\xf9\x70\xc8\x4e", nil},
		"vzeroupper":                        {"\xc5\xf8\x77", nil},
		"vmovq %rax,%xmm3":                  {"\xc4\xe1\xf9\x6e\xd8", nil},
	} {
		m := &machine{stack: map[int64]value{}}
		// call; the instruction; movl $29,0x50(%rax)
		m.runX86([]byte("\xe8\x00\x00\x00\x00"+tc.code+"\xc7\x40\x50\x1d\x00\x00\x00"), 0x1000, wholeFunction)
		if want := append(slices.Clone(tc.want), access{0x50, 4}); !slices.Equal(m.stores, want) {
			t.Errorf("%s: stores %v, want %v", name, m.stores, want)
		}
		for n := range len(tc.code) { // code that is cut short does not panic
			m := &machine{stack: map[int64]value{}}
			m.runX86([]byte(tc.code[:n]), 0x1000, wholeFunction)
		}
	}
}
