//go:build !noasm

// This file multiplies Q2_0 blocks in AVX2.

#include "go_asm.h"
#include "textflag.h"
#include "avx2_amd64.h"

// halfsOfTwo moves the halfs of two blocks, in 32 bytes from the first block on, to the low half of
// each 16 bytes, four copies each.
DATA halfsOfTwo<>+0(SB)/8, $0x0100010001000100
DATA halfsOfTwo<>+8(SB)/8, $0x8080808080808080
DATA halfsOfTwo<>+16(SB)/8, $0x0302030203020302
DATA halfsOfTwo<>+24(SB)/8, $0x8080808080808080
GLOBL halfsOfTwo<>(SB), RODATA, $32

// everyFourth reorders 16 bytes: first those whose index has the remainder 0 when divided by four,
// then those with 1, 2 and 3.
DATA everyFourth<>+0(SB)/8, $0x0d0905010c080400
DATA everyFourth<>+8(SB)/8, $0x0f0b07030e0a0602
GLOBL everyFourth<>(SB), RODATA, $16

// TWOBLOCKS loads two blocks. Y0 gets the bytes of their codes, Y6 their halfs by lanes.
#define TWOBLOCKS \
	VMOVDQU     2(SI), X0                 \
	VMOVDQU     (SI), Y6                  \
	VINSERTI128 $1, 20(SI), Y0, Y0        \
	VPSHUFB     Y12, Y6, Y6               \
	VPERMQ      $8, Y6, Y6                \
	VCVTPH2PS   X6, Y6

// LASTBLOCK loads one block. The lanes of the other are 0.
#define LASTBLOCK \
	VMOVDQU      2(SI), X0                \
	VPBROADCASTW (SI), X6                 \
	VMOVQ        X6, X6                   \
	VCVTPH2PS    X6, Y6

// CODESUM adds the products of Y0 with the vector to X8, the first block's before the second's. To
// save shifts, codes of the second and fourth field are left four times as large. Their sums of 16
// bits, up to 4 * 3 * 128 * 4 in magnitude, are divided at the end. Constants: Y15 has 3 and Y14
// has 12 in each byte, Y13 has 1 in each word.
#define CODESUM \
	VPSRLW      $4, Y0, Y1                \
	VPAND       Y15, Y0, Y2               \
	VPAND       Y14, Y0, Y3               \
	VPAND       Y15, Y1, Y4               \
	VPAND       Y14, Y1, Y5               \
	VPMADDUBSW  (R8), Y2, Y2              \
	VPMADDUBSW  64(R8), Y3, Y3            \
	VPMADDUBSW  128(R8), Y4, Y4           \
	VPMADDUBSW  192(R8), Y5, Y5           \
	VPADDW      Y5, Y3, Y3                \
	VPADDW      Y4, Y2, Y2                \
	VPSRAW      $2, Y3, Y3                \
	VPADDW      Y3, Y2, Y2                \
	VPMADDWD    Y13, Y2, Y2               \
	VPADDD      (R12), Y2, Y2             \
	VCVTDQ2PS   Y2, Y2                    \
	VMULPS      (R10), Y2, Y2             \
	VPERMILPS   $0xb1, Y2, Y3             \
	VADDPS      Y3, Y2, Y2                \
	VPERMILPS   $0x4e, Y2, Y3             \
	VADDPS      Y3, Y2, Y2                \
	VFMADD231SS X6, X2, X8                \
	VEXTRACTF128 $1, Y6, X6               \
	VEXTRACTF128 $1, Y2, X2               \
	VFMADD231SS X6, X2, X8

// NEXTTWO goes to the next half of a quad. R11 is 32 and 224 in turn.
#define NEXTTWO \
	ADDQ R11, R8     \
	XORQ $192, R11   \
	ADDQ $32, R12    \
	ADDQ $32, R10

// func codes256(c *Codes)
//
//	BX  the Codes
//	DI  dst
//	SI  blocks
//	R8  x
//	R12 bias
//	R10 scale
//	CX  blocks left in the row
//	R15 rows left
TEXT ·codes256(SB), NOSPLIT, $0-8
	CONSTANT($0x03030303, X15, Y15)
	CONSTANT($0x0c0c0c0c, X14, Y14)
	CONSTANT($0x00010001, X13, Y13)
	VMOVDQU halfsOfTwo<>(SB), Y12
	MOVQ c+0(FP), BX
	MOVQ Codes_Dst(BX), DI
	MOVQ Codes_Blocks(BX), SI
	MOVQ Codes_Count(BX), R15

row:
	VXORPS Y8, Y8, Y8
	MOVQ   Codes_X(BX), R8
	MOVQ   Codes_Bias(BX), R12
	MOVQ   Codes_Scale(BX), R10
	MOVQ   Codes_Width(BX), CX
	MOVQ   $32, R11
	SUBQ   $2, CX
	JLT    last

two:
	TWOBLOCKS
	PREFETCHT0 8192(SI)
	CODESUM
	NEXTTWO
	ADDQ $36, SI
	SUBQ $2, CX
	JGE  two

last:
	ADDQ $2, CX
	JLE  end
	LASTBLOCK
	CODESUM
	ADDQ $18, SI

end:
	VMOVSS X8, (DI)
	ADDQ $4, DI
	DECQ R15
	JNZ  row
	VZEROUPPER
	RET

// func arrange256(dst, src *int8, quads int)
//
// Sixteen bytes are reordered to four bytes of each remainder. Four such vectors are transposed.
TEXT ·arrange256(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ quads+16(FP), CX
	VMOVDQU everyFourth<>(SB), X15

quad:
	MOVQ $4, DX

block:
	VMOVDQU     (SI), X0
	VMOVDQU     16(SI), X1
	VMOVDQU     32(SI), X2
	VMOVDQU     48(SI), X3
	VPSHUFB     X15, X0, X0
	VPSHUFB     X15, X1, X1
	VPSHUFB     X15, X2, X2
	VPSHUFB     X15, X3, X3
	VPUNPCKLDQ  X1, X0, X4
	VPUNPCKHDQ  X1, X0, X5
	VPUNPCKLDQ  X3, X2, X6
	VPUNPCKHDQ  X3, X2, X7
	VPUNPCKLQDQ X6, X4, X0
	VPUNPCKHQDQ X6, X4, X1
	VPUNPCKLQDQ X7, X5, X2
	VPUNPCKHQDQ X7, X5, X3
	VMOVDQU     X0, (DI)
	VMOVDQU     X1, 64(DI)
	VMOVDQU     X2, 128(DI)
	VMOVDQU     X3, 192(DI)
	ADDQ        $64, SI
	ADDQ        $16, DI
	DECQ        DX
	JNZ         block
	ADDQ        $192, DI
	DECQ        CX
	JNZ         quad
	VZEROUPPER
	RET
