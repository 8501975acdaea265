//go:build !noasm

// This file multiplies planes with few trits that are not 0, in AVX-512.

#include "go_asm.h"
#include "textflag.h"
#include "avx512_amd64.h"

// func dotSparse512(r *SparseRows)
//
//	AX       the SparseRows
//	DI       dst
//	SI       entries
//	DX       begin
//	R8       x
//	R10, R11 factors of the row, and their pitch in bytes
//	R12      rows left
//	CX       entries left in the row
//	BX, R13  temporary
//	Z31      the shift
//	Z30      the weight
#define SIXTEEN(MASK) \
	VPMOVZXWD   Y0, Z0              \
	VPSRLD      $1, Z0, Z1          \
	KMOVW       MASK, K2            \
	VPXORD      Z2, Z2, Z2          \
	VPGATHERDD  (R8)(Z1*1), K2, Z2  \
	VPSRLVD     Z31, Z1, Z3         \
	KMOVW       MASK, K3            \
	VXORPS      Z4, Z4, Z4          \
	VGATHERDPS  (R10)(Z3*4), K3, Z4 \
	VPSLLD      $24, Z2, Z2         \
	VPSRAD      $24, Z2, Z2         \
	VCVTDQ2PS   Z2, Z2              \
	VPSLLD      $31, Z0, Z5         \
	VPXORD      Z5, Z4, Z4          \
	VFMADD231PS Z4, Z2, Z20

TEXT ·dotSparse512(SB), NOSPLIT, $0-8
	MOVQ r+0(FP), AX
	MOVQ SparseRows_Dst(AX), DI
	MOVQ SparseRows_Begin(AX), DX
	MOVQ SparseRows_X(AX), R8
	MOVQ SparseRows_Factors(AX), R10
	MOVQ SparseRows_FactorPitch(AX), R11
	SHLQ $2, R11
	MOVQ SparseRows_Count(AX), R12
	VPBROADCASTD SparseRows_Shift(AX), Z31
	VBROADCASTSS SparseRows_Weight(AX), Z30
	MOVQ SparseRows_Entries(AX), SI
	MOVL (DX), BX
	LEAQ (SI)(BX*2), SI
	KXNORW K0, K0, K4

row:
	VPXORD Z20, Z20, Z20
	MOVL 4(DX), CX
	SUBL (DX), CX
	ADDQ $4, DX
	SUBL $16, CX
	JLT  last

sixteen:
	VMOVDQU (SI), Y0
	SIXTEEN(K4)
	ADDQ $32, SI
	SUBL $16, CX
	JGE  sixteen

last:
	ADDL $16, CX
	JLE  end
	MOVL  $0xffff, R13
	BZHIL CX, R13, R13
	KMOVW R13, K1
	VMOVDQU16.Z (SI), K1, Y0
	SIXTEEN(K1)
	LEAQ (SI)(CX*2), SI

end:
	VMULPS Z30, Z20, Z20
	SUM
	ADDQ $4, DI
	ADDQ R11, R10
	DECQ R12
	JNZ  row
	VZEROUPPER
	RET
