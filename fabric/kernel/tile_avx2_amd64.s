//go:build !noasm

// This file multiplies tiles of two rows and two vectors in AVX2.

#include "go_asm.h"
#include "textflag.h"

// FIRST sets the 16-bit sums Y0-Y3 to the products of half a stripe of two rows and two vectors.
// MORE adds to them.
#define FIRST \
	VMOVDQU    (R8), Y4                    \
	VMOVDQU    (R8)(R10*1), Y5             \
	VMOVDQU    (SI), Y6                    \
	VMOVDQU    (SI)(R10*1), Y7             \
	VPMADDUBSW Y4, Y6, Y0                  \
	VPMADDUBSW Y5, Y6, Y1                  \
	VPMADDUBSW Y4, Y7, Y2                  \
	VPMADDUBSW Y5, Y7, Y3

#define MORE(OFFSET) \
	VMOVDQU    (OFFSET)(R8), Y4            \
	VMOVDQU    (OFFSET)(R8)(R10*1), Y5     \
	VMOVDQU    (OFFSET)(SI), Y6            \
	VMOVDQU    (OFFSET)(SI)(R10*1), Y7     \
	VPMADDUBSW Y4, Y6, Y12                 \
	VPMADDUBSW Y5, Y6, Y13                 \
	VPMADDUBSW Y4, Y7, Y14                 \
	VPADDW     Y12, Y0, Y0                 \
	VPMADDUBSW Y5, Y7, Y12                 \
	VPADDW     Y13, Y1, Y1                 \
	VPADDW     Y14, Y2, Y2                 \
	VPADDW     Y12, Y3, Y3

// SCALED adds the integers SUMS, with BIAS and times the factors of the row and the vector, to ACC.
// Y15 has 1 in each word.
#define SCALED(BIAS, FACTORS, SCALES, SUMS, ACC) \
	VPMADDWD    Y15, SUMS, SUMS            \
	VMULPS      SCALES, FACTORS, Y12       \
	VPADDD      BIAS, SUMS, SUMS           \
	VCVTDQ2PS   SUMS, SUMS                 \
	VFMADD231PS Y12, SUMS, ACC

// TOTALTO adds up the lanes of ACC and writes the sum to TO.
#define TOTALTO(ACC, XACC, TO) \
	VEXTRACTF128 $1, ACC, X2     \
	VADDPS       X2, XACC, X1    \
	VMOVHLPS     X1, X1, X2      \
	VADDPS       X2, X1, X1      \
	VMOVSHDUP    X1, X2          \
	VADDSS       X2, X1, X1      \
	VMOVSS       X1, TO

// func tile256(t *Tile, dst *float32, weights *byte, factors *float32)
//
// Two rows, and pairs of vectors. Results of two vectors are TileRows apart. Registers as in
// tile512, but R9 has what is added to SI and R8, 32 and 224 in turn, and CX has the half quads
// left.
TEXT ·tile256(SB), NOSPLIT, $0-32
	MOVL $0x00010001, AX
	VMOVD AX, X15
	VPBROADCASTD X15, Y15
	MOVQ t+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ weights+16(FP), SI
	MOVQ factors+24(FP), R12
	MOVQ Tile_Quads(AX), R13
	SHLQ $6, R13
	LEAQ (R13*4), R10
	MOVQ Tile_X(AX), R8
	MOVQ Tile_Bias(AX), DX
	MOVQ Tile_Scale(AX), BX
	MOVQ Tile_Vectors(AX), R15

pair:
	VXORPS Y8, Y8, Y8
	VXORPS Y9, Y9, Y9
	VXORPS Y10, Y10, Y10
	VXORPS Y11, Y11, Y11
	MOVQ   Tile_Quads(AX), CX
	ADDQ   CX, CX
	MOVQ   $32, R9

half:
	FIRST
	MORE(64)
	MORE(128)
	MORE(192)
	VMOVUPS (BX), Y4
	VMOVUPS (BX)(R13*1), Y5
	VMOVUPS (R12), Y6
	VMOVUPS (R12)(R13*1), Y7
	SCALED((DX), Y6, Y4, Y0, Y8)
	SCALED((DX)(R13*1), Y6, Y5, Y1, Y9)
	SCALED((DX), Y7, Y4, Y2, Y10)
	SCALED((DX)(R13*1), Y7, Y5, Y3, Y11)
	ADDQ R9, SI
	ADDQ R9, R8
	XORQ $192, R9
	ADDQ $32, R12
	ADDQ $32, DX
	ADDQ $32, BX
	DECQ CX
	JNZ  half
	TOTALTO(Y8, X8, 0(DI))
	TOTALTO(Y9, X9, 16(DI))
	TOTALTO(Y10, X10, 4(DI))
	TOTALTO(Y11, X11, 20(DI))
	ADDQ $32, DI
	SUBQ R10, SI
	SUBQ R13, R12
	ADDQ R10, R8
	ADDQ R13, DX
	ADDQ R13, BX
	SUBQ $2, R15
	JNZ  pair
	VZEROUPPER
	RET
