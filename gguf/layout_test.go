package gguf

// This file tests which types and sizes tensors get whose type ggml's main line does not read.

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// odd is a model with tensors of given types, each of 512 x 64 elements and so many
// bytes, before one of F32.
func odd(types []Type, size int64) *model {
	m := &model{version: 3, alignment: 32}
	for i, t := range types {
		m.tensors = append(m.tensors, tensorSpec{
			name: fmt.Sprintf("blk.%d.ffn_down.weight", i), dims: []uint64{512, 64}, typ: t, bytes: size,
		})
	}
	m.tensors = append(m.tensors, tensorSpec{name: "output_norm.weight", dims: []uint64{1 << 16}, typ: F32})
	return m
}

// The offsets of a file decide which of the types with a number its tensors have.
func TestTypesOfForks(t *testing.T) {
	for _, tt := range []struct {
		number Type
		size   int64 // that the file has room for, in whole units of the alignment
		want   string
		bytes  int64
	}{
		{144, 64 * (4 + 2*136), "IQ4_KS", 64 * (4 + 2*136)},
		{145, 64 * (2 + 2*70), "IQ2_KS", 64 * (2 + 2*70)},
		{134, 64 * (2 + 8*13), "IQ1_BN", 64 * (2 + 8*13)},
		{219, 64 * (2 + 16*6), "IQ1_S_R4", 64 * (2 + 16*6)},
		{398, 64 * (4 + 512), "Q8_KV_R8", 64 * (4 + 512)},
		{31, 64 * 16 * 18, "Q4_0_4_4", 64 * 16 * 18},
		{36, 64*512/4 + 32, "I2_S", 64*512/4 + 32},
		{36, 64 * 16 * 18, "IQ4_NL_4_4", 64 * 16 * 18},
		{37, 64 * 512, "I8_S", 64 * 512},
		{38, 64*512/4 + 32, "TL1", 64*512/4 + 32},
		{MXFP4, 64 * 16 * 17, "MXFP4", 64 * 16 * 17},
		// 256 x 64 elements in 5/8 byte each three, as many in half a byte each two, 32 bytes, and padding.
		{MXFP4, 7552, "TL2", 7552},
		{Q2_0, 64 * 8 * 18, "Q2_0", 64 * 8 * 18},
		{Q2_0, 64 * 4 * 34, "Q2_0_G128", 64 * 4 * 34},
		{142, 64 * 4 * 34, "PQ2_0", 64 * 4 * 34},
		{142, 64 * (4 + 2*64), "IQ2_TN", 64 * (4 + 2*64)},
		{143, 64 * 4 * 28, "PTQ1_0", 64 * 4 * 28},
		{143, 64 * (2 + 2*52), "IQ1_TN", 64 * (2 + 2*52)},
		// No type with the number explains the offsets: up to the next tensor.
		{144, 16000, "type(144)", 16000},
		{144, 64*(4+2*136) + 32, "type(144)", 64*(4+2*136) + 32}, // one unit of the alignment too many
		{142, 100, "type(142)", 128},
		// Nothing is known of the number.
		{4, 1000, "type(4)", 1024},
		{43, 1000, "type(43)", 1024},
		{399 + 1, 31, "type(400)", 32},
		{MaxNumber, 1 << 20, "type(65535)", 1 << 20},
	} {
		t.Run(fmt.Sprintf("%d in %d bytes", tt.number, tt.size), func(t *testing.T) {
			f := mustParse(t, odd([]Type{tt.number, tt.number}, tt.size).encode())
			checkInvariants(t, f)
			for _, x := range f.Tensors[:2] {
				if x.Type.String() != tt.want || x.Size != tt.bytes || x.Type.Number() != uint32(tt.number) ||
					x.Opaque() != strings.HasPrefix(tt.want, "type(") {
					t.Errorf("%v (number %d) with %d bytes, opaque %v; want %s with %d", x.Type, x.Type.Number(),
						x.Size, x.Opaque(), tt.want, tt.bytes)
				}
			}
			mainLine := slices.Contains([]string{"MXFP4", "Q2_0"}, tt.want)
			if err := (&Model{Files: []*File{f}}).CheckTypes(); (err == nil) != mainLine {
				t.Errorf("CheckTypes: %v", err)
			}
		})
	}
}

// The last tensor of a file has nothing behind it. If there is room for it, it has the type that it says.
func TestLastTensorOfFork(t *testing.T) {
	const size = 64 * (4 + 2*136)
	m := odd([]Type{144}, size)
	m.tensors[0], m.tensors[1] = m.tensors[1], m.tensors[0]
	if x := mustParse(t, m.encode()).Tensors[1]; x.Type != 144 || x.Size != size {
		t.Errorf("%+v", x)
	}
	m.tensors[1].bytes = 100
	b := m.encode()
	if x := mustParse(t, b).Tensors[1]; !x.Opaque() || x.End() != int64(len(b)) || x.Size != 128 {
		t.Errorf("%+v", x)
	}
	_, err := Parse(bytes.NewReader(b[:len(b)-128]), int64(len(b)-128))
	if !errors.Is(err, ErrTruncated) {
		t.Errorf("without a byte of it: %v", err)
	}
}

// A tensor of ggml's main line keeps its type and is an error, as its size is known.
func TestKnownTypeDoesNotFit(t *testing.T) {
	for _, typ := range []Type{Q2_0, MXFP4, Q8_0} {
		b := odd([]Type{typ, typ}, 256).encode()
		if _, err := Parse(bytes.NewReader(b), int64(len(b))); !errors.Is(err, ErrDamaged) ||
			!strings.Contains(err.Error(), "overlap") {
			t.Errorf("%v in 256 bytes: %v", typ, err)
		}
	}
}

// Slices of experts are equal parts of an opaque tensor. Where a type's rows have heads, a slice has those of its rows.
func TestExpertsOfForks(t *testing.T) {
	for _, tt := range []struct {
		typ    Type
		size   int64
		stride int64
	}{
		{144, 8 * 64 * (4 + 2*136), 64 * (4 + 2*136)},
		{999, 8 * 1000, 1000},
		{36, 8*64*512/4 + 32, 0}, // one scale for all of them
	} {
		m := odd([]Type{tt.typ}, tt.size)
		m.tensors[0].name, m.tensors[0].dims = "blk.0.ffn_down_exps.weight", []uint64{512, 64, 8}
		x := &mustParse(t, m.encode()).Tensors[0]
		expert := -1
		if tt.stride > 0 {
			expert = 7
		}
		if x.Experts() != 8 || x.ExpertStride() != tt.stride || x.Kind() != KindExpert ||
			x.ExpertAt(x.End()-1) != expert {
			t.Errorf("%v: %d experts every %d bytes, the last byte is of %d; want every %d", x.Type, x.Experts(),
				x.ExpertStride(), x.ExpertAt(x.End()-1), tt.stride)
		}
	}
	m := odd([]Type{999}, 8*1000)
	m.tensors[0].name, m.tensors[0].dims = "blk.0.ffn_down_exps.weight", []uint64{512, 64, 7}
	if x := &mustParse(t, m.encode()).Tensors[0]; x.Experts() != 7 || x.ExpertStride() != 0 {
		t.Errorf("8000 bytes of 7 experts: every %d", x.ExpertStride())
	}
}

// The strides of a running ggml tell apart the types that share a number.
func TestReportedType(t *testing.T) {
	for _, tt := range []struct {
		number uint32
		block  int64
		want   Type
	}{
		{8, 34, Q8_0},
		{42, 18, Q2_0},
		{42, 34, Q2_0G128},
		{39, 17, MXFP4},
		{142, 34, pq2_0},
		{142, 64, iq2tn},
		{142, 7, pq2_0},
		{999, 34, 999},
		{1 << 30, 34, 1 << 30},
	} {
		if got := ReportedType(tt.number, tt.block); got != tt.want {
			t.Errorf("number %d with blocks of %d bytes: %v, want %v", tt.number, tt.block, got, tt.want)
		}
	}
}

// Of tensors without elements nothing is read. One without dimensions has one element.
func TestNoElements(t *testing.T) {
	m := &model{version: 3, alignment: 32, tensors: []tensorSpec{
		{name: "b", dims: []uint64{32}, typ: F32},
		{name: "a", dims: []uint64{32, 0}, typ: F32, offset: ptr[uint64](0)},
		{name: "c", dims: []uint64{0}, typ: 999, offset: ptr[uint64](0)},
		{name: "d", typ: F32, bytes: 4},
		{name: "e", dims: []uint64{0, 2}, typ: 36, offset: ptr[uint64](160)},
	}}
	f := mustParse(t, m.encode())
	checkInvariants(t, f)
	for name, want := range map[string]int64{"a": 0, "b": 128, "c": 0, "d": 4, "e": 0} {
		if x, _ := f.Lookup(name); x.Size != want {
			t.Errorf("%s has %d bytes, want %d", name, x.Size, want)
		}
	}
	if x, ok := f.At(f.DataOffset); !ok || x.Name != "b" {
		t.Errorf("the first byte is of %+v", x)
	}
	m.tensors[1].offset = ptr[uint64](64)
	b := m.encode()
	if _, err := Parse(bytes.NewReader(b), int64(len(b))); !errors.Is(err, ErrDamaged) {
		t.Errorf("within another tensor: %v", err)
	}
}
