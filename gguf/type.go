package gguf

// This file holds the table of the tensor types of ggml's main line: names, block lengths and block
// bytes. type_fork.go has those of forks.

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Type is a tensor's element type. For most types it is the number that a GGUF file stores (enum
// ggml_type in ggml.h). Forks have given the same number to different types. Of these all but one
// have a value of this package's own, and Number is the file's.
//
// A type is one of three kinds: one that ggml's main line reads (Valid), one that only a fork reads
// (Known, but not Valid), or one of which nothing but the number is known.
type Type uint32

// The types that ggml's main line reads. The missing numbers (4, 5, 31 to 33, 36 to 38) were removed
// from it, but some forks read them.
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

// blocks describes a type of ggml's main line.
type blocks struct {
	name  string
	elems int64 // elements per block
	bytes int64 // bytes per block
}

// typeInfo describes any type.
type typeInfo struct {
	blocks
	head int64 // bytes before the blocks of each row
	// whole is the size of a tensor of a type whose rows have no size of their own; else nil.
	whole func(shape []int64) (bytes int64, err error)
	fork  string // who reads it; "" for ggml's main line
}

// types is ggml.c's type_traits (August 2026); the tests compare it with the real libggml-base.
var types = [typeCount]blocks{
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

// Valid reports whether t is a type that ggml's main line reads.
func (t Type) Valid() bool { return t < typeCount && types[t].elems != 0 }

// Known reports whether the size of a tensor of the type follows from its shape.
func (t Type) Known() bool {
	_, ok := t.info()
	return ok
}

// Fork names the fork of ggml that reads the type ("ik_llama.cpp"). It is "" if ggml's main line
// reads it, and if the type is not known.
func (t Type) Fork() string {
	info, _ := t.info()
	return info.fork
}

// Number is the number that a file stores for the type.
func (t Type) Number() uint32 { return uint32(t) & MaxNumber }

func (t Type) info() (typeInfo, bool) {
	if t.Valid() {
		return typeInfo{blocks: types[t]}, true
	}
	info, ok := forkTypes[t]
	return info, ok
}

// String is the usual name ("Q8_0", "IQ2_XXS", "IQ4_KS"), or "type(N)" if it is not known.
func (t Type) String() string {
	info, ok := t.info()
	if !ok {
		return fmt.Sprintf("type(%d)", t.Number())
	}
	return info.name
}

// BlockElems is the number of elements in one block: 1 for plain types, 16 to 256 for quantised
// ones, 0 if t is not known, or its tensors have no blocks.
func (t Type) BlockElems() int64 {
	info, _ := t.info()
	return info.elems
}

// BlockBytes is the number of bytes in one block; 0 if t is not known, or its tensors have no blocks.
func (t Type) BlockBytes() int64 {
	info, _ := t.info()
	return info.bytes
}

// HeadBytes is the number of bytes that precede the blocks of each row. Types of ggml's main line
// have none.
func (t Type) HeadBytes() int64 {
	info, _ := t.info()
	return info.head
}

// RowBytes is the number of bytes in a row of elems elements, with its head (ggml_row_size). It is an
// error if that is no whole number of blocks, if the type is not known, or if rows of it have no size
// of their own.
func (t Type) RowBytes(elems int64) (int64, error) {
	info, ok := t.info()
	if !ok {
		return 0, fmt.Errorf("%v is not a type whose size is known", t)
	}
	if info.whole != nil {
		return 0, fmt.Errorf("rows of %s have no size of their own", info.name)
	}
	if elems < 0 || elems%info.elems != 0 {
		return 0, fmt.Errorf("a row of %d elements is not a whole number of %s blocks of %d", elems, info.name,
			info.elems)
	}
	hi, lo := bits.Mul64(uint64(elems/info.elems), uint64(info.bytes))
	if hi != 0 || lo > math.MaxInt64-uint64(info.head) {
		return 0, fmt.Errorf("a row of %d elements of %s does not fit 63 bits", elems, info.name)
	}
	return int64(lo) + info.head, nil
}

// errLarge says that a tensor's size cannot be an offset in a file.
var errLarge = errors.New("its size does not fit 63 bits")

// Bytes is the number of bytes of a tensor (ggml_nbytes). The shape has one to four dimensions, the
// fastest first, none negative. If one is 0, so is the result. The errors are those of RowBytes; for
// a type whose rows have no size of their own, a shape that it cannot have.
func (t Type) Bytes(shape []int64) (int64, error) {
	info, _ := t.info()
	empty := slices.Contains(shape, 0)
	if info.whole != nil {
		if empty {
			return 0, nil
		}
		return info.whole(shape)
	}
	size, err := t.RowBytes(shape[0])
	if err != nil || empty {
		return 0, err
	}
	for _, n := range shape[1:] {
		hi, lo := bits.Mul64(uint64(size), uint64(n))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, errLarge
		}
		size = int64(lo)
	}
	return size, nil
}
