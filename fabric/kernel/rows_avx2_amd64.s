//go:build !noasm

// This file multiplies one plane in blocks of 256, in AVX2. Two rows of two-bit trits share what is
// loaded of the vector.

#include "go_asm.h"
#include "textflag.h"
#include "avx2_amd64.h"

// TOTAL adds all lanes of X and Y to the float32 at TO. X is the lower half of Y. X0 and X1 are
// overwritten.
#define TOTAL(X, Y, TO) \
	VEXTRACTF128 $1, Y, X0     \
	VADDPS       X, X0, X0     \
	VMOVHLPS     X0, X0, X1    \
	VADDPS       X1, X0, X0    \
	VMOVSHDUP    X0, X1        \
	VADDSS       X1, X0, X0    \
	VADDSS       TO, X0, X0    \
	VMOVSS       X0, TO

// SCALE2 ends a block of two rows: it adds their 16-bit sums A and B, with the biases of the block
// and times its factors, to Y8 and Y9. A and B are overwritten.
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

// FIELD2 multiplies by x what MASK leaves of the weights of two rows in Y0 and Y1, and adds the
// products to the 16-bit sums A and B. FIRST2 sets A and B instead of adding.
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
// Count is a multiple of 2. To save shifts, the second and fourth field of a byte are multiplied
// where they are, four times as large. Their sums of 16 bits, up to 8 * 4 * 2 * 128 in magnitude,
// are divided at the end of a block.
//
//	BX       the Product
//	DI       dst
//	SI       plane, first row
//	R9       bytes of a row
//	R8       x
//	R12      bias
//	R10, R11 factors of the first row, and their pitch in bytes
//	CX       groups left
//	R14      what is prefetched
//	R15      rows left
//	DX       factors of the next rows
//	Y15      3 in each byte
//	Y14      12 in each byte
//	Y13      1 in each word
//	Y8, Y9   sums of floats
//	Y4-Y7    sums of 16 bits
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

// BYTES defines a constant of 32 bytes: four times the eight bytes VALUE.
#define BYTES(NAME, VALUE) \
	DATA NAME<>+0(SB)/8, VALUE    \
	DATA NAME<>+8(SB)/8, VALUE    \
	DATA NAME<>+16(SB)/8, VALUE   \
	DATA NAME<>+24(SB)/8, VALUE   \
	GLOBL NAME<>(SB), RODATA, $32

BYTES(lowBytes, $0x00ff00ff00ff00ff)
BYTES(upperBytes, $0xff00ff00ff00ff00)
BYTES(ninth, $0x1c721c721c721c72)
BYTES(belowSixteen, $0x7070707070707070)
BYTES(sixteens, $0x1010101010101010)
BYTES(oneWords, $0x0001000100010001)

// TIMES multiplies the trits Y0 by x and adds the products to ACC, sums of 16 bits.
#define TIMES(OFFSET, ACC) \
	VPMADDUBSW (OFFSET)(R8), Y0, Y0   \
	VPADDW     Y0, ACC, ACC

// TRITS32 multiplies the five trits of each of 32 bytes as TIMES does. Quotient and remainder are
// computed as in decodePT5x512. A table by quotient has 32 bytes, and is looked up in two halves:
// the index into one half is negative, which gives 0, when that into the other is not. Y14 and Y15
// are tables by remainder. Y8 and Y9, Y10 and Y11, Y12 and Y13 are the halves of tables by
// quotient.
#define TRITS32(BYTE, OFFSET, ACC0, ACC1, ACC2, ACC3, ACC4) \
	VMOVDQU    (BYTE)(SI), Y0                   \
	VPAND      lowBytes<>(SB), Y0, Y1           \
	VPMULHUW   ninth<>(SB), Y1, Y1              \
	VPMULHUW   ninth<>(SB), Y0, Y2              \
	VPAND      upperBytes<>(SB), Y2, Y2         \
	VPOR       Y2, Y1, Y1                       \
	VPSLLW     $3, Y1, Y2                       \ // the quotient is below 32
	VPSUBB     Y2, Y0, Y2                       \
	VPSUBB     Y1, Y2, Y2                       \
	VPADDUSB   belowSixteen<>(SB), Y1, Y3       \
	VPSUBB     sixteens<>(SB), Y1, Y4           \
	VPSHUFB    Y2, Y14, Y0                      \
	TIMES(OFFSET, ACC0)                         \
	VPSHUFB    Y2, Y15, Y0                      \
	TIMES(OFFSET+64, ACC1)                      \
	VPSHUFB    Y3, Y8, Y0                       \
	VPSHUFB    Y4, Y9, Y1                       \
	VPOR       Y1, Y0, Y0                       \
	TIMES(OFFSET+128, ACC2)                     \
	VPSHUFB    Y3, Y10, Y0                      \
	VPSHUFB    Y4, Y11, Y1                      \
	VPOR       Y1, Y0, Y0                       \
	TIMES(OFFSET+192, ACC3)                     \
	VPSHUFB    Y3, Y12, Y0                      \
	VPSHUFB    Y4, Y13, Y1                      \
	VPOR       Y1, Y0, Y0                       \
	TIMES(OFFSET+256, ACC4)

// SCALE ends a block: it adds the sums SUMS, scaled, to Y7, and clears them.
#define SCALE(BIAS, FACTOR, SUMS) \
	VPMADDWD     oneWords<>(SB), SUMS, Y0   \
	VPXOR        SUMS, SUMS, SUMS           \
	VPADDD       (BIAS)(R12), Y0, Y0        \
	VPADDD       (BIAS+32)(R12), Y0, Y0     \
	VBROADCASTSS (FACTOR)(R10), Y1          \
	VCVTDQ2PS    Y0, Y0                     \
	VFMADD231PS  Y1, Y0, Y7

// func pt5x256x256(p *Product, t *tables)
//
// Four groups are five blocks, whose sums are Y5 and Y6 in turn.
//
//	BX       the Product
//	DI       dst
//	SI       plane
//	R8       x
//	R12      bias
//	R11, R10 factors of the row, and those to come
//	CX       groups left
//	R15      rows left
TEXT ·pt5x256x256(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), BX
	MOVQ t+8(FP), AX
	LEAQ tables_pt5(AX), AX
	VBROADCASTI128 (AX), Y14
	VBROADCASTI128 64(AX), Y15
	VBROADCASTI128 128(AX), Y8
	VBROADCASTI128 144(AX), Y9
	VBROADCASTI128 192(AX), Y10
	VBROADCASTI128 208(AX), Y11
	VBROADCASTI128 256(AX), Y12
	VBROADCASTI128 272(AX), Y13
	MOVQ Product_Dst(BX), DI
	MOVQ Product_Planes(BX), SI
	MOVQ (SI), SI
	MOVQ Product_Factors(BX), R11
	MOVQ Product_Count(BX), R15

row:
	VXORPS Y7, Y7, Y7
	VPXOR  Y5, Y5, Y5
	VPXOR  Y6, Y6, Y6
	MOVQ   Product_X(BX), R8
	MOVQ   Product_Bias(BX), R12
	MOVQ   Product_Groups(BX), CX
	MOVQ   R11, R10

group:
	TRITS32(0, 0, Y5, Y5, Y5, Y5, Y6)
	TRITS32(32, 32, Y5, Y5, Y5, Y5, Y6)
	SCALE(0, 0, Y5)
	PREFETCHT0 8192(SI)
	ADDQ $64, SI
	DECQ CX
	JZ   one
	TRITS32(0, 320, Y6, Y6, Y6, Y5, Y5)
	TRITS32(32, 352, Y6, Y6, Y6, Y5, Y5)
	SCALE(64, 4, Y6)
	PREFETCHT0 8192(SI)
	ADDQ $64, SI
	DECQ CX
	JZ   two
	TRITS32(0, 640, Y5, Y5, Y6, Y6, Y6)
	TRITS32(32, 672, Y5, Y5, Y6, Y6, Y6)
	SCALE(128, 8, Y5)
	PREFETCHT0 8192(SI)
	ADDQ $64, SI
	DECQ CX
	JZ   three
	TRITS32(0, 960, Y6, Y5, Y5, Y5, Y5)
	TRITS32(32, 992, Y6, Y5, Y5, Y5, Y5)
	SCALE(192, 12, Y6)
	SCALE(256, 16, Y5)
	PREFETCHT0 8192(SI)
	ADDQ $64, SI
	ADDQ $1280, R8
	ADDQ $320, R12
	ADDQ $20, R10
	DECQ CX
	JNZ  group
	JMP  end

one:
	SCALE(64, 4, Y6)
	JMP end

two:
	SCALE(128, 8, Y5)
	JMP end

three:
	SCALE(192, 12, Y6)

end:
	TOTAL(X7, Y7, 0(DI))
	ADDQ $4, DI
	MOVQ Product_FactorPitch(BX), CX
	LEAQ (R11)(CX*4), R11
	DECQ R15
	JNZ  row
	VZEROUPPER
	RET
