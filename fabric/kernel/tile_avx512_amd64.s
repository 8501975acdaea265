//go:build !noasm

// This file multiplies tiles of four rows and two vectors in AVX-512.

#include "go_asm.h"
#include "textflag.h"

// STRIPES adds the products of a stripe of four rows and two vectors to Z8-Z15.
#define STRIPES(OFFSET) \
	VMOVDQU64 (OFFSET)(R8), Z16            \
	VMOVDQU64 (OFFSET)(R8)(R10*1), Z17     \
	VMOVDQU64 (OFFSET)(SI), Z0             \
	VMOVDQU64 (OFFSET)(SI)(R10*1), Z1      \
	VMOVDQU64 (OFFSET)(SI)(R10*2), Z2      \
	VMOVDQU64 (OFFSET)(SI)(R11*1), Z3      \
	VPDPBUSD  Z16, Z0, Z8                  \
	VPDPBUSD  Z16, Z1, Z9                  \
	VPDPBUSD  Z16, Z2, Z10                 \
	VPDPBUSD  Z16, Z3, Z11                 \
	VPDPBUSD  Z17, Z0, Z12                 \
	VPDPBUSD  Z17, Z1, Z13                 \
	VPDPBUSD  Z17, Z2, Z14                 \
	VPDPBUSD  Z17, Z3, Z15

// SCALED adds the integers SUMS, times the factors of the row and the vector, to ACC.
#define SCALED(FACTORS, SCALES, SUMS, ACC) \
	VCVTDQ2PS   SUMS, SUMS                 \
	VMULPS      SCALES, FACTORS, Z0        \
	VFMADD231PS Z0, SUMS, ACC

// TOTALTO adds up the lanes of ACC and writes the sum to TO.
#define TOTALTO(ACC, YACC, TO) \
	VEXTRACTF64X4 $1, ACC, Y1    \
	VADDPS        YACC, Y1, Y1   \
	VEXTRACTF128  $1, Y1, X2     \
	VADDPS        X2, X1, X1     \
	VMOVHLPS      X1, X1, X2     \
	VADDPS        X2, X1, X1     \
	VMOVSHDUP     X1, X2         \
	VADDSS        X2, X1, X1     \
	VMOVSS        X1, TO

// func tile512(t *Tile, dst *float32, weights *byte, factors *float32)
//
// Four rows, and pairs of vectors.
//
//	DI         dst
//	SI         weights
//	R12        factors
//	R8, DX, BX x, bias and scale of the first vector
//	R10, R11   bytes of a row or vector, and of three
//	R13, R14   bytes of factors, bias or scale, and of three
//	CX         quads left
//	R15        vectors left
//	AX         the Tile
//	Z20-Z23    results of the first vector
//	Z24-Z27    results of the second vector
TEXT ·tile512(SB), NOSPLIT, $0-32
	MOVQ t+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ weights+16(FP), SI
	MOVQ factors+24(FP), R12
	MOVQ Tile_Quads(AX), R13
	SHLQ $6, R13
	LEAQ (R13*4), R10
	LEAQ (R10)(R10*2), R11
	LEAQ (R13)(R13*2), R14
	MOVQ Tile_X(AX), R8
	MOVQ Tile_Bias(AX), DX
	MOVQ Tile_Scale(AX), BX
	MOVQ Tile_Vectors(AX), R15

pair:
	VPXORD Z20, Z20, Z20
	VPXORD Z21, Z21, Z21
	VPXORD Z22, Z22, Z22
	VPXORD Z23, Z23, Z23
	VPXORD Z24, Z24, Z24
	VPXORD Z25, Z25, Z25
	VPXORD Z26, Z26, Z26
	VPXORD Z27, Z27, Z27
	MOVQ   Tile_Quads(AX), CX

quad:
	VMOVDQU32 (DX), Z8
	VMOVDQU32 (DX)(R13*1), Z12
	VMOVDQA64 Z8, Z9
	VMOVDQA64 Z8, Z10
	VMOVDQA64 Z8, Z11
	VMOVDQA64 Z12, Z13
	VMOVDQA64 Z12, Z14
	VMOVDQA64 Z12, Z15
	STRIPES(0)
	STRIPES(64)
	STRIPES(128)
	STRIPES(192)
	VMOVUPS (BX), Z18
	VMOVUPS (BX)(R13*1), Z19
	VMOVUPS (R12), Z4
	VMOVUPS (R12)(R13*1), Z5
	VMOVUPS (R12)(R13*2), Z6
	VMOVUPS (R12)(R14*1), Z7
	SCALED(Z4, Z18, Z8, Z20)
	SCALED(Z5, Z18, Z9, Z21)
	SCALED(Z6, Z18, Z10, Z22)
	SCALED(Z7, Z18, Z11, Z23)
	SCALED(Z4, Z19, Z12, Z24)
	SCALED(Z5, Z19, Z13, Z25)
	SCALED(Z6, Z19, Z14, Z26)
	SCALED(Z7, Z19, Z15, Z27)
	ADDQ $256, SI
	ADDQ $256, R8
	ADDQ $64, R12
	ADDQ $64, DX
	ADDQ $64, BX
	DECQ CX
	JNZ  quad
	TOTALTO(Z20, Y20, 0(DI))
	TOTALTO(Z21, Y21, 4(DI))
	TOTALTO(Z22, Y22, 8(DI))
	TOTALTO(Z23, Y23, 12(DI))
	TOTALTO(Z24, Y24, 16(DI))
	TOTALTO(Z25, Y25, 20(DI))
	TOTALTO(Z26, Y26, 24(DI))
	TOTALTO(Z27, Y27, 28(DI))
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
