//go:build !noasm

#include "textflag.h"

// Eight columns of a row, as float32, times those of x in a register, are added to a sum.
#define EIGHT(row, offset, x, t, sum) \
	VPMOVSXBD offset(row)(AX*1), t; \
	VCVTDQ2PS t, t; \
	VFMADD231PS t, x, sum

// func rowsAVX2(dst []float32, q []int8, x []float32)
//
// Four rows share what is loaded of x.
TEXT ·rowsAVX2(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), R8
	MOVQ q_base+24(FP), SI
	MOVQ x_base+48(FP), DX
	MOVQ x_len+56(FP), CX
	JMP  more
group:
	LEAQ (SI)(CX*1), R9
	LEAQ (R9)(CX*1), R10
	LEAQ (R10)(CX*1), R11
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	XORL AX, AX
columns:
	VMOVUPS (DX)(AX*4), Y8
	VMOVUPS 32(DX)(AX*4), Y9
	EIGHT(SI, 0, Y8, Y4, Y0)
	EIGHT(R9, 0, Y8, Y5, Y1)
	EIGHT(R10, 0, Y8, Y6, Y2)
	EIGHT(R11, 0, Y8, Y7, Y3)
	EIGHT(SI, 8, Y9, Y10, Y0)
	EIGHT(R9, 8, Y9, Y11, Y1)
	EIGHT(R10, 8, Y9, Y12, Y2)
	EIGHT(R11, 8, Y9, Y13, Y3)
	ADDQ $16, AX
	CMPQ AX, CX
	JLT  columns
	// The sums of the lanes of Y0 to Y3 become those of X0.
	VHADDPS Y1, Y0, Y0
	VHADDPS Y3, Y2, Y2
	VHADDPS Y2, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPS X1, X0, X0
	VMOVUPS X0, (DI)
	ADDQ $16, DI
	LEAQ (R11)(CX*1), SI
	SUBQ $4, R8
more:
	CMPQ R8, $4
	JGE  group
	VZEROUPPER
	RET
