//go:build !noasm

// This file computes factors from scales, and subtracts sums, in AVX-512.

#include "go_asm.h"
#include "textflag.h"
#include "avx512_amd64.h"

// TAIL sets K1 to the lowest CX of 16 bits. BX and R13 are overwritten.
#define TAIL \
	MOVL    $16, BX     \
	CMPQ    CX, BX      \
	CMOVQLT CX, BX      \
	MOVL    $0xffff, R13 \
	BZHIL   BX, R13, R13 \
	KMOVW   R13, K1

// func expandHalf512(dst *float32, pitch int, s *Scales)
//
//	DI, DX dst, and dst of the row
//	R8     pitch in bytes
//	AX     s
//	SI     halfs
//	R9     with
//	R10    rows left
//	CX     blocks left
TEXT ·expandHalf512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DX
	MOVQ pitch+8(FP), R8
	MOVQ s+16(FP), AX
	SHLQ $2, R8
	MOVQ Scales_Half(AX), SI
	MOVQ Scales_Rows(AX), R10

row:
	MOVQ DX, DI
	MOVQ Scales_With(AX), R9
	MOVQ Scales_Blocks(AX), CX
	SUBQ $16, CX
	JLT  last

sixteen:
	VCVTPH2PS (SI), Z0
	VMULPS    (R9), Z0, Z0
	VMOVUPS   Z0, (DI)
	ADDQ      $32, SI
	ADDQ      $64, R9
	ADDQ      $64, DI
	SUBQ      $16, CX
	JGE       sixteen

last:
	ADDQ        $16, CX
	JLE         next
	TAIL
	VMOVDQU16.Z (SI), K1, Y0
	VCVTPH2PS   Y0, Z0
	VMOVUPS.Z   (R9), K1, Z1
	VMULPS      Z1, Z0, Z0
	VMOVUPS     Z0, K1, (DI)
	LEAQ        (SI)(CX*2), SI

next:
	ADDQ R8, DX
	DECQ R10
	JNZ  row
	VZEROUPPER
	RET

// func expandSub512(dst *float32, pitch int, s *Scales, lanes *[2][16]int32)
//
// Lane i of 16 blocks takes super i/Per of those that belong to them. lanes has i/Per, and 16/Per,
// which is how many supers further the next 16 blocks begin.
//
// Registers as in expandHalf512, but:
//
//	SI       sub
//	R11, R12 supers of the row, and those to come
//	R15      supers left
//	BX       how often the 16 supers in Z0 are used
//	R14      blocks left before that
//	Z0       16 supers
//	Z31      lanes
//	Z30      the step
//	Z29      the current lanes
TEXT ·expandSub512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DX
	MOVQ pitch+8(FP), R8
	MOVQ s+16(FP), AX
	MOVQ lanes+24(FP), BX
	VMOVDQU32 (BX), Z31
	VMOVDQU32 64(BX), Z30
	SHLQ $2, R8
	MOVQ Scales_Sub(AX), SI
	MOVQ Scales_Super(AX), R11
	MOVQ Scales_Rows(AX), R10

row:
	MOVQ DX, DI
	MOVQ R11, R12
	MOVQ Scales_With(AX), R9
	MOVQ Scales_Blocks(AX), R14
	MOVQ Scales_Supers(AX), R15

supers:
	MOVQ        R15, CX
	TAIL
	VMOVDQU16.Z (R12), K1, Y0
	VCVTPH2PS   Y0, Z0
	ADDQ        $32, R12
	SUBQ        $16, R15
	VMOVDQA32   Z31, Z29
	MOVQ        R14, CX
	MOVQ        Scales_Per(AX), BX

sixteen:
	CMPQ        CX, $16
	JLT         last
	VPMOVSXBD   (SI), Z1
	VCVTDQ2PS   Z1, Z1
	VPERMPS     Z0, Z29, Z2
	VMULPS      Z2, Z1, Z1
	VMULPS      (R9), Z1, Z1
	VMOVUPS     Z1, (DI)
	VPADDD      Z30, Z29, Z29
	ADDQ        $16, SI
	ADDQ        $64, R9
	ADDQ        $64, DI
	SUBQ        $16, CX
	JZ          next
	DECQ        BX
	JNZ         sixteen
	MOVQ        CX, R14
	JMP         supers

last:
	TAIL
	VMOVDQU8.Z  (SI), K1, X1
	VPMOVSXBD   X1, Z1
	VCVTDQ2PS   Z1, Z1
	VPERMPS     Z0, Z29, Z2
	VMOVUPS.Z   (R9), K1, Z3
	VMULPS      Z2, Z1, Z1
	VMULPS      Z3, Z1, Z1
	VMOVUPS     Z1, K1, (DI)
	ADDQ        CX, SI

next:
	MOVQ Scales_Supers(AX), CX
	LEAQ (R11)(CX*2), R11
	ADDQ R8, DX
	DECQ R10
	JNZ  row
	VZEROUPPER
	RET

// func subtract512(dst *float32, count int, v *float32, pitch, n int)
//
//	DI     dst
//	R10    elements of dst left
//	SI, DX v of the row, and v
//	R8     pitch in bytes
//	CX     values left
TEXT ·subtract512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ count+8(FP), R10
	MOVQ v+16(FP), SI
	MOVQ pitch+24(FP), R8
	SHLQ $2, R8

row:
	MOVQ   n+32(FP), CX
	MOVQ   SI, DX
	VPXORD Z20, Z20, Z20
	VPXORD Z21, Z21, Z21
	SUBQ   $32, CX
	JLT    less

more:
	VSUBPS (DX), Z20, Z20
	VSUBPS 64(DX), Z21, Z21
	ADDQ   $128, DX
	SUBQ   $32, CX
	JGE    more

less:
	ADDQ      $32, CX
	JLE       end
	TAIL
	VMOVUPS.Z (DX), K1, Z1
	VSUBPS    Z1, Z20, Z20
	SUBQ      $16, CX
	JLE       end
	TAIL
	VMOVUPS.Z 64(DX), K1, Z1
	VSUBPS    Z1, Z21, Z21

end:
	VADDPS Z21, Z20, Z20
	SUM
	ADDQ   $4, DI
	ADDQ   R8, SI
	DECQ   R10
	JNZ    row
	VZEROUPPER
	RET
