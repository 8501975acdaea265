//go:build !noasm

// This file multiplies one plane in blocks of 256, in AVX-512, for several rows at a time. The sums
// of a row depend on each other, so several rows are interleaved to hide the latency.

#include "go_asm.h"
#include "textflag.h"
#include "avx512_amd64.h"

// AHEAD is how many bytes beyond the first row memory is prefetched. It is prefetched in the order
// of addresses, not row by row.
#define AHEAD 8192

// TOTAL adds all lanes of ACC to the float32 at TO.
#define TOTAL(ACC, YACC, TO) \
	VEXTRACTF64X4 $1, ACC, Y1    \
	VADDPS        YACC, Y1, Y1   \
	VEXTRACTF128  $1, Y1, X2     \
	VADDPS        X2, X1, X1     \
	VMOVHLPS      X1, X1, X2     \
	VADDPS        X2, X1, X1     \
	VMOVSHDUP     X1, X2         \
	VADDSS        X2, X1, X1     \
	VADDSS        TO, X1, X1     \
	VMOVSS        X1, TO

// FIELD multiplies a field of the weights Z0-Z3 of four rows, and adds to their sums Z8-Z11.
#define FIELD(MAP, OFFSET) \
	VMOVDQU64 (OFFSET)(R8), Z12                  \
	VGF2P8AFFINEQB $0, MAP, Z0, Z4               \
	VGF2P8AFFINEQB $0, MAP, Z1, Z5               \
	VGF2P8AFFINEQB $0, MAP, Z2, Z6               \
	VGF2P8AFFINEQB $0, MAP, Z3, Z7               \
	VPDPBUSD  Z12, Z4, Z8                        \
	VPDPBUSD  Z12, Z5, Z9                        \
	VPDPBUSD  Z12, Z6, Z10                       \
	VPDPBUSD  Z12, Z7, Z11

// func twoBitFour256x512(p *Product)
//
// Four rows at a time; Count is a multiple of 4.
//
//	AX       the Product
//	DI       dst
//	SI       plane, first row
//	R9, R13  bytes of a row, and of three
//	R8       x
//	R12      bias
//	R10      factors of the first row
//	R11, BX  their pitch in bytes, and three times it
//	CX       groups left
//	R14      what is prefetched
//	R15      rows left
//	DX       factors of the next rows
//	Z28-Z30  maps
//	Z31      3 in each byte
TEXT ·twoBitFour256x512(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	MOVQ $0x0408000000000000, BX // the highest byte determines bit 0
	VPBROADCASTQ BX, Z30
	MOVQ $0x1020000000000000, BX
	VPBROADCASTQ BX, Z29
	MOVQ $0x4080000000000000, BX
	VPBROADCASTQ BX, Z28
	MOVL $0x03030303, BX
	VPBROADCASTD BX, Z31
	MOVQ Product_Dst(AX), DI
	MOVQ Product_Planes(AX), SI
	MOVQ (SI), SI
	MOVQ Product_Groups(AX), R9
	SHLQ $6, R9
	LEAQ (R9)(R9*2), R13
	MOVQ Product_Factors(AX), DX
	MOVQ Product_FactorPitch(AX), R11
	SHLQ $2, R11
	LEAQ (R11)(R11*2), BX
	MOVQ Product_Count(AX), R15

rows:
	VPXORD Z20, Z20, Z20
	VPXORD Z21, Z21, Z21
	VPXORD Z22, Z22, Z22
	VPXORD Z23, Z23, Z23
	MOVQ   Product_X(AX), R8
	MOVQ   Product_Bias(AX), R12
	MOVQ   Product_Groups(AX), CX
	MOVQ   DX, R10
	LEAQ   AHEAD(SI), R14

group:
	VMOVDQU64 (SI), Z0
	VMOVDQU64 (SI)(R9*1), Z1
	VMOVDQU64 (SI)(R9*2), Z2
	VMOVDQU64 (SI)(R13*1), Z3
	PREFETCHT0 (R14)
	PREFETCHT0 64(R14)
	PREFETCHT0 128(R14)
	PREFETCHT0 192(R14)
	ADDQ      $256, R14
	VMOVDQU32 (R12), Z8
	VMOVDQA64 Z8, Z9
	VMOVDQA64 Z8, Z10
	VMOVDQA64 Z8, Z11
	FIELD(Z30, 64)
	FIELD(Z29, 128)
	FIELD(Z28, 192)
	VMOVDQU64 (R8), Z12
	VPANDD    Z31, Z0, Z4
	VPANDD    Z31, Z1, Z5
	VPANDD    Z31, Z2, Z6
	VPANDD    Z31, Z3, Z7
	VPDPBUSD  Z12, Z4, Z8
	VPDPBUSD  Z12, Z5, Z9
	VPDPBUSD  Z12, Z6, Z10
	VPDPBUSD  Z12, Z7, Z11
	VCVTDQ2PS Z8, Z8
	VCVTDQ2PS Z9, Z9
	VCVTDQ2PS Z10, Z10
	VCVTDQ2PS Z11, Z11
	VFMADD231PS.BCST (R10), Z8, Z20
	VFMADD231PS.BCST (R10)(R11*1), Z9, Z21
	VFMADD231PS.BCST (R10)(R11*2), Z10, Z22
	VFMADD231PS.BCST (R10)(BX*1), Z11, Z23
	ADDQ      $64, SI
	ADDQ      $64, R12
	ADDQ      $256, R8
	ADDQ      $4, R10
	DECQ      CX
	JNZ       group
	TOTAL(Z20, Y20, 0(DI))
	TOTAL(Z21, Y21, 4(DI))
	TOTAL(Z22, Y22, 8(DI))
	TOTAL(Z23, Y23, 12(DI))
	ADDQ $16, DI
	ADDQ R13, SI
	LEAQ (DX)(R11*4), DX
	SUBQ $4, R15
	JNZ  rows
	VZEROUPPER
	RET

// PAIR decodes a group of two rows. The trits are in Z8-Z12 and in Z13-Z15, Z22, Z23.
#define PAIR \
	VMOVDQU64  (SI), Z0               \
	VMOVDQU64  (SI)(R9*1), Z4         \
	PREFETCHT0 (R14)                  \
	PREFETCHT0 64(R14)                \
	ADDQ       $128, R14              \
	VPANDD     Z31, Z0, Z1            \
	VPANDD     Z31, Z4, Z5            \
	VPMULHUW   Z30, Z0, Z2            \
	VPMULHUW   Z30, Z4, Z6            \
	VPMULHUW   Z30, Z1, Z1            \
	VPMULHUW   Z30, Z5, Z5            \
	VPTERNLOGD $0xE4, Z31, Z2, Z1     \
	VPTERNLOGD $0xE4, Z31, Z6, Z5     \
	VPERMB     Z29, Z1, Z3            \
	VPERMB     Z29, Z5, Z7            \
	VPSUBB     Z3, Z0, Z2             \
	VPSUBB     Z7, Z4, Z6             \
	VPERMB     Z26, Z1, Z10           \
	VPERMB     Z26, Z5, Z15           \
	VPERMB     Z27, Z1, Z11           \
	VPERMB     Z27, Z5, Z22           \
	VPERMB     Z28, Z1, Z12           \
	VPERMB     Z28, Z5, Z23           \
	VPERMB     Z24, Z2, Z8            \
	VPERMB     Z24, Z6, Z13           \
	VPERMB     Z25, Z2, Z9            \
	VPERMB     Z25, Z6, Z14           \
	ADDQ       $64, SI

#define BEGINSUMS(OFFSET, A, B) \
	VMOVDQU32 (OFFSET)(R12), A        \
	VMOVDQA64 A, B

#define DOT2(OFFSET, TRITSA, TRITSB, A, B) \
	VMOVDQU64 (OFFSET)(R8), Z3        \
	VPDPBUSD  Z3, TRITSA, A           \
	VPDPBUSD  Z3, TRITSB, B

#define SCALE2(OFFSET, A, B) \
	VCVTDQ2PS A, A                                \
	VCVTDQ2PS B, B                                \
	VFMADD231PS.BCST (OFFSET)(R10), A, Z20        \
	VFMADD231PS.BCST (OFFSET)(R10)(R11*1), B, Z21

// func pt5Pair256x512(p *Product, t *tables)
//
// Two rows at a time; Count is a multiple of 2. Four groups are five blocks, whose sums are Z16 and
// Z17, then Z18 and Z19 in turn. Registers as in twoBitFour256x512, constants as in decodePT5x512.
TEXT ·pt5Pair256x512(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ t+8(FP), BX
	VMOVDQU64 tables_nine(BX), Z29
	VMOVDQU64 (tables_pt5+0)(BX), Z24
	VMOVDQU64 (tables_pt5+64)(BX), Z25
	VMOVDQU64 (tables_pt5+128)(BX), Z26
	VMOVDQU64 (tables_pt5+192)(BX), Z27
	VMOVDQU64 (tables_pt5+256)(BX), Z28
	MOVL $0x00ff00ff, BX
	VPBROADCASTD BX, Z31
	MOVL $0x1c721c72, BX
	VPBROADCASTD BX, Z30
	MOVQ Product_Dst(AX), DI
	MOVQ Product_Planes(AX), SI
	MOVQ (SI), SI
	MOVQ Product_Groups(AX), R9
	SHLQ $6, R9
	MOVQ Product_Factors(AX), DX
	MOVQ Product_FactorPitch(AX), R11
	SHLQ $2, R11
	MOVQ Product_Count(AX), R15

rows:
	VPXORD Z20, Z20, Z20
	VPXORD Z21, Z21, Z21
	MOVQ   Product_X(AX), R8
	MOVQ   Product_Bias(AX), R12
	MOVQ   Product_Groups(AX), CX
	MOVQ   DX, R10
	LEAQ   AHEAD(SI), R14

group:
	PAIR
	BEGINSUMS(0, Z16, Z17)
	BEGINSUMS(64, Z18, Z19)
	DOT2(128, Z10, Z15, Z16, Z17)
	DOT2(192, Z11, Z22, Z16, Z17)
	DOT2(256, Z12, Z23, Z18, Z19)
	DOT2(0, Z8, Z13, Z16, Z17)
	DOT2(64, Z9, Z14, Z16, Z17)
	SCALE2(0, Z16, Z17)
	DECQ CX
	JZ   second
	PAIR
	BEGINSUMS(128, Z16, Z17)
	DOT2(448, Z10, Z15, Z18, Z19)
	DOT2(512, Z11, Z22, Z16, Z17)
	DOT2(576, Z12, Z23, Z16, Z17)
	DOT2(320, Z8, Z13, Z18, Z19)
	DOT2(384, Z9, Z14, Z18, Z19)
	SCALE2(4, Z18, Z19)
	DECQ CX
	JZ   third
	PAIR
	BEGINSUMS(192, Z18, Z19)
	DOT2(768, Z10, Z15, Z18, Z19)
	DOT2(832, Z11, Z22, Z18, Z19)
	DOT2(896, Z12, Z23, Z18, Z19)
	DOT2(640, Z8, Z13, Z16, Z17)
	DOT2(704, Z9, Z14, Z16, Z17)
	SCALE2(8, Z16, Z17)
	DECQ CX
	JZ   fourth
	PAIR
	BEGINSUMS(256, Z16, Z17)
	DOT2(1088, Z10, Z15, Z16, Z17)
	DOT2(1152, Z11, Z22, Z16, Z17)
	DOT2(1216, Z12, Z23, Z16, Z17)
	DOT2(960, Z8, Z13, Z18, Z19)
	DOT2(1024, Z9, Z14, Z16, Z17)
	SCALE2(12, Z18, Z19)
	SCALE2(16, Z16, Z17)
	ADDQ $1280, R8
	ADDQ $320, R12
	ADDQ $20, R10
	DECQ CX
	JNZ  group
	JMP  end

second:
	SCALE2(4, Z18, Z19)
	JMP end

third:
	SCALE2(8, Z16, Z17)
	JMP end

fourth:
	SCALE2(12, Z18, Z19)

end:
	TOTAL(Z20, Y20, 0(DI))
	TOTAL(Z21, Y21, 4(DI))
	ADDQ $8, DI
	ADDQ R9, SI
	LEAQ (DX)(R11*2), DX
	SUBQ $2, R15
	JNZ  rows
	VZEROUPPER
	RET
