package gguf

// This file converts the stored bytes of a tensor to float32: the entry point Dequantize, and the
// types without blocks. dequant_block.go has the types with small blocks, dequant_super.go those
// with blocks of 256 elements.
//
// All decoders perform ggml's operations in ggml's order, so that the results are the same bits. A
// product that is added to something is converted to float32 explicitly. Go allows a compiler to
// fuse x*y + z into one operation, and does so on arm64, ppc64, s390x, riscv64 and, from
// GOAMD64=v3, on amd64. It may not fuse across a conversion. With finite scales fusing would change
// nothing, because the 11 bits of a half, 6 of a sub-block's scale and 5 of a code fit the 24 bits
// of a float32. With infinite scales it would produce other NaNs.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"tensorcast/gguf/half"
)

// ErrNoDecoder says that [Dequantize] does not support the type.
var ErrNoDecoder = errors.New("no decoder to float32")

// Dequantize decodes src, whole blocks of type t in little-endian byte order, to dst: len(dst) must
// be the number of elements in src, which is len(src) / t.BlockBytes() * t.BlockElems(). The
// elements keep the order in which they are stored.
//
// It decodes F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q1_0, Q2_0, Q2_K to Q6_K, Q8_K, TQ1_0,
// TQ2_0, IQ4_NL, IQ4_XS, MXFP4 and NVFP4. For other types the error is [ErrNoDecoder]. Lengths that
// do not match are an error, too. On error, dst is unchanged.
//
// The floats are, bit for bit, those of ggml's dequantize_row functions, with two exceptions. On
// processors other than x86-64, the sign and payload of NaNs may differ. On any processor, they may
// differ in Q4_1 and Q5_1 blocks whose scale is not finite and whose minimum is NaN.
//
// Dequantize does not allocate. It may be called concurrently. dst and src must not overlap.
func Dequantize(dst []float32, t Type, src []byte) error {
	decode := decoder(t)
	if decode == nil {
		return fmt.Errorf("%v: %w", t, ErrNoDecoder)
	}
	bytes, elems := int(types[t].bytes), int(types[t].elems)
	if len(src)%bytes != 0 {
		return fmt.Errorf("%d bytes are not a whole number of %v blocks of %d", len(src), t, bytes)
	}
	// len(src)/bytes*elems == len(dst) would be simpler, but can overflow a 32-bit int.
	if len(dst)%elems != 0 || len(dst)/elems != len(src)/bytes {
		return fmt.Errorf("%d elements of space for %d %v blocks of %d elements", len(dst), len(src)/bytes, t, elems)
	}
	decode(dst, src)
	return nil
}

// decoder returns the function that decodes type t, nil if there is none. The function relies on
// matching lengths.
func decoder(t Type) func(dst []float32, src []byte) {
	switch t {
	case F32:
		return decodeF32
	case F16:
		return decodeF16
	case BF16:
		return decodeBF16
	case Q4_0:
		return decodeQ4_0
	case Q4_1:
		return decodeQ4_1
	case Q5_0:
		return decodeQ5_0
	case Q5_1:
		return decodeQ5_1
	case Q8_0:
		return decodeQ8_0
	case Q1_0:
		return decodeQ1_0
	case Q2_0:
		return decodeQ2_0
	case Q2_K:
		return decodeQ2K
	case Q3_K:
		return decodeQ3K
	case Q4_K:
		return decodeQ4K
	case Q5_K:
		return decodeQ5K
	case Q6_K:
		return decodeQ6K
	case Q8_K:
		return decodeQ8K
	case TQ1_0:
		return decodeTQ1_0
	case TQ2_0:
		return decodeTQ2_0
	case IQ4NL:
		return decodeIQ4NL
	case IQ4XS:
		return decodeIQ4XS
	case MXFP4:
		return decodeMXFP4
	case NVFP4:
		return decodeNVFP4
	}
	return nil
}

func decodeF32(dst []float32, src []byte) {
	for i := 0; i < len(dst) && len(src) >= 4; i++ {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src))
		src = src[4:]
	}
}

func decodeF16(dst []float32, src []byte) {
	for i := 0; i < len(dst) && len(src) >= 2; i++ {
		// The common case is inlined here; half.Float32 is too large for that.
		if h := binary.LittleEndian.Uint16(src); isNormal(h) {
			dst[i] = normalHalf(h)
		} else {
			dst[i] = half.Float32(h)
		}
		src = src[2:]
	}
}

func decodeBF16(dst []float32, src []byte) {
	for i := 0; i < len(dst) && len(src) >= 2; i++ {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src)) << 16)
		src = src[2:]
	}
}

// halfBias is the difference of the exponents' biases in float32 and half.
const halfBias = (127 - 15) << 23

// isNormal reports whether a half is a normal number: neither zero, subnormal, infinite nor NaN.
func isNormal(h uint16) bool { return h&0x7c00-1<<10 < 30<<10 }

// normalHalf is the value of a half for which isNormal is true. The conversion to int32 extends the
// sign; the mask keeps only the top copy of it.
func normalHalf(h uint16) float32 {
	return math.Float32frombits(uint32(int32(int16(h)))<<13&0x8fffffff + halfBias)
}

// halfAt is the half whose bytes are lo, hi.
func halfAt(lo, hi byte) float32 { return half.Float32(uint16(lo) | uint16(hi)<<8) }
