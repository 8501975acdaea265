//go:build !noasm

// AVX2: products of one plane in blocks of 256, for two rows at a time, which share what is loaded of the vector.

#include "go_asm.h"
#include "textflag.h"

#define CONSTANT(VALUE, X, Y) \
	MOVL         VALUE, AX \
	VMOVD        AX, X     \
	VPBROADCASTD X, Y

// TOTAL adds the lanes of X, the lower half of Y, to the float32 at TO; spoils X0 and X1.
#define TOTAL(X, Y, TO) \
	VEXTRACTF128 $1, Y, X0     \
	VADDPS       X, X0, X0     \
	VMOVHLPS     X0, X0, X1    \
	VADDPS       X1, X0, X0    \
	VMOVSHDUP    X0, X1        \
	VADDSS       X1, X0, X0    \
	VADDSS       TO, X0, X0    \
	VMOVSS       X0, TO

// SCALE2 adds the products of the 16-bit sums of two rows, A and B, which it spoils, to Y8 and Y9: with the biases of the block and its factors.
#define SCALE2(BIAS, FACTOR, A, B, TEMP) \
	VPMADDWD     Y13, A, A                 \
	VPMADDWD     Y13, B, B                 \
	VMOVDQU      (BIAS)(R12), TEMP         \
	VPADDD       (BIAS+32)(R12), TEMP, TEMP \
	VPADDD       TEMP, A, A                \
	VPADDD       TEMP, B, B                \
	VCVTDQ2PS    A, A                      \
	VCVTDQ2PS    B, B                      \
	VBROADCASTSS (FACTOR)(R10), TEMP       \
	VFMADD231PS  TEMP, A, Y8               \
	VBROADCASTSS (FACTOR)(R10)(R11*1), TEMP \
	VFMADD231PS  TEMP, B, Y9

// FIELD2 adds to A and B the sums of 16 bits of the fields MASK of the rows' weights in Y0 and Y1. With ADD a move, they are the first.
#define FIELD2(MASK, OFFSET, A, B) \
	VMOVDQU    (OFFSET)(R8), Y2      \
	VPAND      MASK, Y0, Y3          \
	VPAND      MASK, Y1, Y10         \
	VPMADDUBSW Y2, Y3, Y3            \
	VPMADDUBSW Y2, Y10, Y10          \
	VPADDW     Y3, A, A              \
	VPADDW     Y10, B, B

#define FIRST2(MASK, OFFSET, A, B) \
	VMOVDQU    (OFFSET)(R8), Y2      \
	VPAND      MASK, Y0, A           \
	VPAND      MASK, Y1, B           \
	VPMADDUBSW Y2, A, A              \
	VPMADDUBSW Y2, B, B

// func twoBitPair256x256(p *Product)
//
// Count is a multiple of 2. Of a byte's fields, the second and fourth are multiplied where they are, four times as large: their sums of 16 bits, up to 8 * 4 * 2 * 128 in magnitude,
// are divided at the end of a block, which saves shifts.
//
// BX the Product; DI dst; SI plane, of the first row; R9 bytes of a row; R8 x; R12 bias; R10 factors of the first row, R11 their pitch in bytes; CX groups left; R14 what is prefetched; R15 rows left;
// DX factors of the next rows. Y15 3, Y14 12 in each byte; Y13 1 in each word; Y8 and Y9 sums of floats, Y4 to Y7 of 16 bits.
TEXT ·twoBitPair256x256(SB), NOSPLIT, $0-8
	CONSTANT($0x03030303, X15, Y15)
	CONSTANT($0x0c0c0c0c, X14, Y14)
	CONSTANT($0x00010001, X13, Y13)
	MOVQ p+0(FP), BX
	MOVQ Product_Dst(BX), DI
	MOVQ Product_Planes(BX), SI
	MOVQ (SI), SI
	MOVQ Product_Groups(BX), R9
	SHLQ $6, R9
	MOVQ Product_Factors(BX), DX
	MOVQ Product_FactorPitch(BX), R11
	SHLQ $2, R11
	MOVQ Product_Count(BX), R15

rows:
	VXORPS Y8, Y8, Y8
	VXORPS Y9, Y9, Y9
	MOVQ   Product_X(BX), R8
	MOVQ   Product_Bias(BX), R12
	MOVQ   Product_Groups(BX), CX
	MOVQ   DX, R10
	LEAQ   8192(SI), R14

group:
	VMOVDQU    (SI), Y0
	VMOVDQU    (SI)(R9*1), Y1
	PREFETCHT0 (R14)
	PREFETCHT0 64(R14)
	ADDQ       $128, R14
	FIRST2(Y15, 0, Y4, Y5)
	FIRST2(Y14, 64, Y6, Y7)
	VPSRLW     $4, Y0, Y0
	VPSRLW     $4, Y1, Y1
	FIELD2(Y15, 128, Y4, Y5)
	FIELD2(Y14, 192, Y6, Y7)
	VMOVDQU    32(SI), Y0
	VMOVDQU    32(SI)(R9*1), Y1
	FIELD2(Y15, 32, Y4, Y5)
	FIELD2(Y14, 96, Y6, Y7)
	VPSRLW     $4, Y0, Y0
	VPSRLW     $4, Y1, Y1
	FIELD2(Y15, 160, Y4, Y5)
	FIELD2(Y14, 224, Y6, Y7)
	VPSRAW     $2, Y6, Y6
	VPSRAW     $2, Y7, Y7
	VPADDW     Y6, Y4, Y4
	VPADDW     Y7, Y5, Y5
	SCALE2(0, 0, Y4, Y5, Y2)
	ADDQ       $64, SI
	ADDQ       $64, R12
	ADDQ       $256, R8
	ADDQ       $4, R10
	DECQ       CX
	JNZ        group
	TOTAL(X8, Y8, 0(DI))
	TOTAL(X9, Y9, 4(DI))
	ADDQ $8, DI
	ADDQ R9, SI
	LEAQ (DX)(R11*2), DX
	SUBQ $2, R15
	JNZ  rows
	VZEROUPPER
	RET
