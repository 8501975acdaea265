package gguf

// This file holds the table of ggml's tensor types: names, block lengths and block bytes.

import (
	"fmt"
	"math/bits"
)

// Type is the number that a GGUF file stores for a tensor's element type (enum ggml_type in ggml.h).
type Type uint32

// The types that a GGUF file may hold. The missing numbers (4, 5, 31 to 33, 36 to 38) were removed
// from ggml and are rejected.
const (
	F32    Type = 0
	F16    Type = 1
	Q4_0   Type = 2
	Q4_1   Type = 3
	Q5_0   Type = 6
	Q5_1   Type = 7
	Q8_0   Type = 8
	Q8_1   Type = 9
	Q2_K   Type = 10
	Q3_K   Type = 11
	Q4_K   Type = 12
	Q5_K   Type = 13
	Q6_K   Type = 14
	Q8_K   Type = 15
	IQ2XXS Type = 16
	IQ2XS  Type = 17
	IQ3XXS Type = 18
	IQ1S   Type = 19
	IQ4NL  Type = 20
	IQ3S   Type = 21
	IQ2S   Type = 22
	IQ4XS  Type = 23
	I8     Type = 24
	I16    Type = 25
	I32    Type = 26
	I64    Type = 27
	F64    Type = 28
	IQ1M   Type = 29
	BF16   Type = 30
	TQ1_0  Type = 34
	TQ2_0  Type = 35
	MXFP4  Type = 39
	NVFP4  Type = 40
	Q1_0   Type = 41
	Q2_0   Type = 42

	typeCount = 43
)

// typeInfo describes a type.
type typeInfo struct {
	name  string
	elems int64 // elements per block
	bytes int64 // bytes per block
}

// types is ggml.c's type_traits (August 2026); the tests compare it with the real libggml-base.
var types = [typeCount]typeInfo{
	F32: {"F32", 1, 4}, F16: {"F16", 1, 2}, BF16: {"BF16", 1, 2}, F64: {"F64", 1, 8},
	I8: {"I8", 1, 1}, I16: {"I16", 1, 2}, I32: {"I32", 1, 4}, I64: {"I64", 1, 8},
	Q4_0: {"Q4_0", 32, 18}, Q4_1: {"Q4_1", 32, 20}, Q5_0: {"Q5_0", 32, 22}, Q5_1: {"Q5_1", 32, 24},
	Q8_0: {"Q8_0", 32, 34}, Q8_1: {"Q8_1", 32, 36},
	Q2_K: {"Q2_K", 256, 84}, Q3_K: {"Q3_K", 256, 110}, Q4_K: {"Q4_K", 256, 144}, Q5_K: {"Q5_K", 256, 176},
	Q6_K: {"Q6_K", 256, 210}, Q8_K: {"Q8_K", 256, 292},
	IQ2XXS: {"IQ2_XXS", 256, 66}, IQ2XS: {"IQ2_XS", 256, 74}, IQ2S: {"IQ2_S", 256, 82},
	IQ3XXS: {"IQ3_XXS", 256, 98}, IQ3S: {"IQ3_S", 256, 110}, IQ1S: {"IQ1_S", 256, 50}, IQ1M: {"IQ1_M", 256, 56},
	IQ4NL: {"IQ4_NL", 32, 18}, IQ4XS: {"IQ4_XS", 256, 136},
	TQ1_0: {"TQ1_0", 256, 54}, TQ2_0: {"TQ2_0", 256, 66},
	MXFP4: {"MXFP4", 32, 17}, NVFP4: {"NVFP4", 64, 36}, Q1_0: {"Q1_0", 128, 18}, Q2_0: {"Q2_0", 64, 18},
}

// Valid reports whether t is a type that ggml still supports.
func (t Type) Valid() bool { return t < typeCount && types[t].elems != 0 }

// String is the usual name ("Q8_0", "IQ2_XXS"), or "type(N)" for an unknown number.
func (t Type) String() string {
	if !t.Valid() {
		return fmt.Sprintf("type(%d)", uint32(t))
	}
	return types[t].name
}

// BlockElems is the number of elements in one block: 1 for plain types, 32 to 256 for quantised
// ones, 0 if t is not valid.
func (t Type) BlockElems() int64 {
	if !t.Valid() {
		return 0
	}
	return types[t].elems
}

// BlockBytes is the number of bytes in one block; 0 if t is not valid.
func (t Type) BlockBytes() int64 {
	if !t.Valid() {
		return 0
	}
	return types[t].bytes
}

// RowBytes is the number of bytes in a row of elems elements (ggml_row_size). It is an error if
// that is no whole number of blocks.
func (t Type) RowBytes(elems int64) (int64, error) {
	if !t.Valid() {
		return 0, fmt.Errorf("%v is not a type that ggml reads", t)
	}
	info := types[t]
	if elems < 0 || elems%info.elems != 0 {
		return 0, fmt.Errorf("a row of %d elements is not a whole number of %s blocks of %d", elems, info.name,
			info.elems)
	}
	hi, lo := bits.Mul64(uint64(elems/info.elems), uint64(info.bytes))
	if hi != 0 || lo > 1<<63-1 {
		return 0, fmt.Errorf("a row of %d elements of %s does not fit 63 bits", elems, info.name)
	}
	return int64(lo), nil
}
