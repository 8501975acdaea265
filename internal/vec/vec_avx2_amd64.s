//go:build !noasm

// This file has the kernels in AVX2 and FMA.
//
// Functions that process slices element by element share EACH, which runs the macro BODY for every
// 8 elements. AX is the index of the first of these. BODY loads with LOAD and stores with STORE.
// Y15 has all bits set in the active lanes: all lanes, except for the last 1 to 7 elements. For
// inactive lanes LOAD gives 0, and neither LOAD nor STORE touches memory. CX has the length at the
// start. AX, BX, CX and Y15 are overwritten. BODY may use other registers. It is expanded twice, so
// it must not contain labels.

#include "textflag.h"
#include "exp_amd64.h"

// Eight dwords of ones, then eight of zeros. A mask of n lanes begins 8 - n dwords after the start.
DATA lanes<>+0(SB)/8, $-1
DATA lanes<>+8(SB)/8, $-1
DATA lanes<>+16(SB)/8, $-1
DATA lanes<>+24(SB)/8, $-1
DATA lanes<>+32(SB)/8, $0
DATA lanes<>+40(SB)/8, $0
DATA lanes<>+48(SB)/8, $0
DATA lanes<>+56(SB)/8, $0
GLOBL lanes<>(SB), RODATA|NOPTR, $64

#define WHOLE_LOAD(from, to) VMOVUPS from, to
#define WHOLE_STORE(from, to) VMOVUPS from, to
#define PART_LOAD(from, to) VMASKMOVPS from, Y15, to
#define PART_STORE(from, to) VMASKMOVPS from, Y15, to

#define EACH \
	XORL AX, AX; \
	VPCMPEQD Y15, Y15, Y15; \
	SUBQ $8, CX; \
	JLT  tail; \
loop: \
	BODY(WHOLE_LOAD, WHOLE_STORE); \
	ADDQ $8, AX; \
	SUBQ $8, CX; \
	JGE  loop; \
tail: \
	ADDQ $8, CX; \
	JEQ  done; \
	NEGQ CX; \
	LEAQ lanes<>+32(SB), BX; \
	VMOVUPS (BX)(CX*4), Y15; \
	BODY(PART_LOAD, PART_STORE); \
done:

// CONST sets all lanes of y, whose lower half is x, to the constant bits. It uses AX.
#define CONST(bits, x, y) \
	MOVL $bits, AX; \
	VMOVD AX, x; \
	VPBROADCASTD x, y

// SUM_PS adds up the float32 lanes of Y0, SUM_PD the float64 lanes, to X0. They use Y1.
#define SUM_PS \
	VEXTRACTF128 $1, Y0, X1; \
	VADDPS X1, X0, X0; \
	VHADDPS X0, X0, X0; \
	VHADDPS X0, X0, X0
#define SUM_PD \
	VEXTRACTF128 $1, Y0, X1; \
	VADDPD X1, X0, X0; \
	VHADDPD X0, X0, X0

// ADD_AS_PD adds the 8 float32 of Y2 to Y0 and Y1 as float64. It uses Y3 and Y4.
#define ADD_AS_PD \
	VCVTPS2PD X2, Y3; \
	VEXTRACTF128 $1, Y2, X4; \
	VCVTPS2PD X4, Y4; \
	VADDPD Y3, Y0, Y0; \
	VADDPD Y4, Y1, Y1

// func dotAVX2(a, b []float32) float32
TEXT ·dotAVX2(SB), NOSPLIT, $0-52
	MOVQ a_base+0(FP), SI
	MOVQ a_len+8(FP), CX
	MOVQ b_base+24(FP), DI
	VXORPS Y0, Y0, Y0
	CMPQ CX, $32
	JLT  rest
	// There are four sums, because an addition takes four cycles.
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
four:
	VMOVUPS (SI), Y4
	VMOVUPS 32(SI), Y5
	VMOVUPS 64(SI), Y6
	VMOVUPS 96(SI), Y7
	VFMADD231PS (DI), Y4, Y0
	VFMADD231PS 32(DI), Y5, Y1
	VFMADD231PS 64(DI), Y6, Y2
	VFMADD231PS 96(DI), Y7, Y3
	ADDQ $128, SI
	ADDQ $128, DI
	SUBQ $32, CX
	CMPQ CX, $32
	JGE  four
	VADDPS Y1, Y0, Y0
	VADDPS Y3, Y2, Y2
	VADDPS Y2, Y0, Y0
rest:
#define BODY(LOAD, STORE) \
	LOAD((SI)(AX*4), Y4); \
	LOAD((DI)(AX*4), Y5); \
	VFMADD231PS Y4, Y5, Y0
	EACH
#undef BODY
	SUM_PS
	VMOVSS X0, ret+48(FP)
	VZEROUPPER
	RET

// func addAVX2(dst, a, b []float32)
TEXT ·addAVX2(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ a_base+24(FP), SI
	MOVQ b_base+48(FP), DX
#define BODY(LOAD, STORE) \
	LOAD((SI)(AX*4), Y0); \
	LOAD((DX)(AX*4), Y1); \
	VADDPS Y1, Y0, Y0; \
	STORE(Y0, (DI)(AX*4))
	EACH
#undef BODY
	VZEROUPPER
	RET

// func axpyAVX2(dst, a []float32, s float32)
TEXT ·axpyAVX2(SB), NOSPLIT, $0-52
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ a_base+24(FP), SI
	VBROADCASTSS s+48(FP), Y2
#define BODY(LOAD, STORE) \
	LOAD((SI)(AX*4), Y0); \
	LOAD((DI)(AX*4), Y1); \
	VFMADD231PS Y2, Y0, Y1; \
	STORE(Y1, (DI)(AX*4))
	EACH
#undef BODY
	VZEROUPPER
	RET

// func scaleAVX2(x []float32, s float32)
TEXT ·scaleAVX2(SB), NOSPLIT, $0-28
	MOVQ x_base+0(FP), DI
	MOVQ x_len+8(FP), CX
	VBROADCASTSS s+24(FP), Y1
#define BODY(LOAD, STORE) \
	LOAD((DI)(AX*4), Y0); \
	VMULPS Y1, Y0, Y0; \
	STORE(Y0, (DI)(AX*4))
	EACH
#undef BODY
	VZEROUPPER
	RET

// func maxAVX2(x []float32) float32
//
// If either source is NaN, VMAXPS gives its second source, which is the first in Go's order: the
// largest element so far. Lanes beyond the end become -Inf.
TEXT ·maxAVX2(SB), NOSPLIT, $0-28
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	CONST(0xff800000, X8, Y8)
	VMOVAPS Y8, Y0
	CMPQ CX, $32
	JLT  rest
	VMOVAPS Y0, Y1
	VMOVAPS Y0, Y2
	VMOVAPS Y0, Y3
four:
	VMOVUPS (SI), Y4
	VMOVUPS 32(SI), Y5
	VMOVUPS 64(SI), Y6
	VMOVUPS 96(SI), Y7
	VMAXPS Y0, Y4, Y0
	VMAXPS Y1, Y5, Y1
	VMAXPS Y2, Y6, Y2
	VMAXPS Y3, Y7, Y3
	ADDQ $128, SI
	SUBQ $32, CX
	CMPQ CX, $32
	JGE  four
	VMAXPS Y1, Y0, Y0
	VMAXPS Y3, Y2, Y2
	VMAXPS Y2, Y0, Y0
rest:
#define BODY(LOAD, STORE) \
	LOAD((SI)(AX*4), Y1); \
	VBLENDVPS Y15, Y1, Y8, Y1; \
	VMAXPS Y0, Y1, Y0
	EACH
#undef BODY
	VEXTRACTF128 $1, Y0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0x4e, X0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0xb1, X0, X1
	VMAXPS X1, X0, X0
	VMOVSS X0, ret+24(FP)
	VZEROUPPER
	RET

// func sumSquaresAVX2(x []float32) float64
TEXT ·sumSquaresAVX2(SB), NOSPLIT, $0-32
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
#define BODY(LOAD, STORE) \
	LOAD((SI)(AX*4), Y2); \
	VMULPS Y2, Y2, Y2; \
	ADD_AS_PD
	EACH
#undef BODY
	VADDPD Y1, Y0, Y0
	SUM_PD
	VMOVSD X0, ret+24(FP)
	VZEROUPPER
	RET

// func mulScaledAVX2(dst, x, w []float32, s float32)
TEXT ·mulScaledAVX2(SB), NOSPLIT, $0-76
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ x_base+24(FP), SI
	MOVQ w_base+48(FP), DX
	VBROADCASTSS s+72(FP), Y2
#define BODY(LOAD, STORE) \
	LOAD((SI)(AX*4), Y0); \
	LOAD((DX)(AX*4), Y1); \
	VMULPS Y2, Y0, Y0; \
	VMULPS Y1, Y0, Y0; \
	STORE(Y0, (DI)(AX*4))
	EACH
#undef BODY
	VZEROUPPER
	RET

// func addInt32AVX2(dst, w []float32, n []int32, s float32)
TEXT ·addInt32AVX2(SB), NOSPLIT, $0-76
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ w_base+24(FP), SI
	MOVQ n_base+48(FP), DX
	VBROADCASTSS s+72(FP), Y3
#define BODY(LOAD, STORE) \
	LOAD((SI)(AX*4), Y0); \
	LOAD((DX)(AX*4), Y1); \
	LOAD((DI)(AX*4), Y2); \
	VMULPS Y3, Y0, Y0; \
	VCVTDQ2PS Y1, Y1; \
	VFMADD231PS Y0, Y1, Y2; \
	STORE(Y2, (DI)(AX*4))
	EACH
#undef BODY
	VZEROUPPER
	RET

// func expSumAVX2(dst, x []float32, shift float32) float64
//
//	Y5 x, then the remainder r
//	Y6 n
//	Y2 the polynomial, then the result
//	Y3 the lanes whose result counts: x is not too low, or it is NaN
//
// If other results were left to underflow, each would cost a hundred cycles. NaN is also the source
// that VMAXPS and VMINPS let through. 2^n is two factors, as in func exp. There are few registers,
// so what is needed once in an iteration is loaded there.
TEXT ·expSumAVX2(SB), NOSPLIT, $0-64
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ x_base+24(FP), SI
	LEAQ expConst<>(SB), R8
	CONST(EXP_LN2, X8, Y8)
	CONST(EXP_LN2LO, X9, Y9)
	CONST(EXP_ONE, X10, Y10)
	CONST(127, X11, Y11)
	VBROADCASTSS shift+48(FP), Y12
	VBROADCASTSS (R8), Y13 // lowest
	VBROADCASTSS 4(R8), Y14 // highest
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
#define BODY(LOAD, STORE) \
	LOAD((SI)(AX*4), Y5); \
	VBROADCASTSS 8(R8), Y7; \
	VSUBPS Y12, Y5, Y5; \
	VCMPPS $0x15, Y13, Y5, Y3; \
	VMAXPS Y5, Y13, Y5; \
	VMINPS Y5, Y14, Y5; \
	VMULPS Y7, Y5, Y6; \
	VROUNDPS $8, Y6, Y6; \
	VFNMADD231PS Y8, Y6, Y5; \
	VFNMADD231PS Y9, Y6, Y5; \
	VBROADCASTSS 28(R8), Y2; \
	VBROADCASTSS 24(R8), Y7; \
	VFMADD213PS Y7, Y5, Y2; \
	VBROADCASTSS 20(R8), Y7; \
	VFMADD213PS Y7, Y5, Y2; \
	VBROADCASTSS 16(R8), Y7; \
	VFMADD213PS Y7, Y5, Y2; \
	VBROADCASTSS 12(R8), Y7; \
	VFMADD213PS Y7, Y5, Y2; \
	VFMADD213PS Y10, Y5, Y2; \
	VFMADD213PS Y10, Y5, Y2; \
	VCVTPS2DQ Y6, Y6; \
	VPSRAD $1, Y6, Y7; \
	VPSUBD Y7, Y6, Y6; \
	VPADDD Y11, Y7, Y7; \
	VPADDD Y11, Y6, Y6; \
	VPSLLD $23, Y7, Y7; \
	VPSLLD $23, Y6, Y6; \
	VMULPS Y7, Y2, Y2; \
	VMULPS Y6, Y2, Y2; \
	VANDPS Y15, Y2, Y2; \
	VANDPS Y3, Y2, Y2; \
	STORE(Y2, (DI)(AX*4)); \
	ADD_AS_PD
	EACH
#undef BODY
	VADDPD Y1, Y0, Y0
	SUM_PD
	VMOVSD X0, ret+56(FP)
	VZEROUPPER
	RET

DATA expConst<>+0(SB)/4, $EXP_LOW
DATA expConst<>+4(SB)/4, $EXP_HIGH
DATA expConst<>+8(SB)/4, $EXP_LOG2E
DATA expConst<>+12(SB)/4, $EXP_C2
DATA expConst<>+16(SB)/4, $EXP_C3
DATA expConst<>+20(SB)/4, $EXP_C4
DATA expConst<>+24(SB)/4, $EXP_C5
DATA expConst<>+28(SB)/4, $EXP_C6
GLOBL expConst<>(SB), RODATA|NOPTR, $32

// func countAtLeastAVX2(x []float32, t float32) int
TEXT ·countAtLeastAVX2(SB), NOSPLIT, $0-40
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	VBROADCASTSS t+24(FP), Y0
	XORL R8, R8
#define BODY(LOAD, STORE) \
	LOAD((SI)(AX*4), Y1); \
	VCMPPS $0x1d, Y0, Y1, Y1; \
	VANDPS Y15, Y1, Y1; \
	VMOVMSKPS Y1, DX; \
	POPCNTL DX, DX; \
	ADDQ DX, R8
	EACH
#undef BODY
	MOVQ R8, ret+32(FP)
	VZEROUPPER
	RET

// func sumBelowAVX2(x []float32, t float32) float64
//
// Elements beyond the end are zeros, which do not change the sum if they count as less.
TEXT ·sumBelowAVX2(SB), NOSPLIT, $0-40
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	VBROADCASTSS t+24(FP), Y5
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
#define BODY(LOAD, STORE) \
	LOAD((SI)(AX*4), Y2); \
	VCMPPS $0x11, Y5, Y2, Y3; \
	VANDPS Y3, Y2, Y2; \
	ADD_AS_PD
	EACH
#undef BODY
	VADDPD Y1, Y0, Y0
	SUM_PD
	VMOVSD X0, ret+32(FP)
	VZEROUPPER
	RET

// func indexAtLeastAVX2(dst []int32, x []float32, t float32) int
//
// There is no compressing store, so the bits of each mask are taken one by one. R10 is the number
// of elements before those of the mask.
TEXT ·indexAtLeastAVX2(SB), NOSPLIT, $0-64
	MOVQ dst_base+0(FP), DI
	MOVQ x_base+24(FP), SI
	MOVQ x_len+32(FP), CX
	VBROADCASTSS t+48(FP), Y0
	VPCMPEQD Y15, Y15, Y15
	MOVQ DI, R8
	XORL R10, R10
loop:
	SUBQ $8, CX
	JLT  tail
	VMOVUPS (SI)(R10*4), Y1
test:
	VCMPPS $0x1d, Y0, Y1, Y1
	VANDPS Y15, Y1, Y1
	VMOVMSKPS Y1, DX
	TESTL DX, DX
	JEQ  none
bit:
	BSFL DX, BX
	ADDL R10, BX
	MOVL BX, (DI)
	ADDQ $4, DI
	LEAL -1(DX), BX
	ANDL BX, DX
	JNE  bit
none:
	ADDQ $8, R10
	JMP  loop
tail:
	ADDQ $8, CX
	JLE  done
	NEGQ CX
	LEAQ lanes<>+32(SB), BX
	VMOVUPS (BX)(CX*4), Y15
	XORL CX, CX
	VMASKMOVPS (SI)(R10*4), Y15, Y1
	JMP  test
done:
	SUBQ R8, DI
	SHRQ $2, DI
	MOVQ DI, ret+56(FP)
	VZEROUPPER
	RET

// ROW converts an index to the address of its row. DX is the first row, R8 the number of bytes of a
// row.
#define ROW(index, reg) \
	MOVLQSX index, reg; \
	IMULQ R8, reg; \
	ADDQ DX, reg

// func dotRowsAVX2(dst, q, rows []float32, at []int32)
//
// Four rows are processed at a time, R9 to R12, with two sums each. So q is loaded once for four
// rows, and eight additions are under way. Then the lanes are added in a tree that leaves the four
// sums side by side.
TEXT ·dotRowsAVX2(SB), NOSPLIT, $0-96
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ q_base+24(FP), SI
	MOVQ q_len+32(FP), R8
	MOVQ rows_base+48(FP), DX
	MOVQ at_base+72(FP), BX
	SHLQ $2, R8
	MOVQ R8, R13
	ANDQ $-64, R13
	SUBQ $4, CX
	JLT  done
rows:
	ROW((BX), R9)
	ROW(4(BX), R10)
	ROW(8(BX), R11)
	ROW(12(BX), R12)
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	XORL AX, AX
	CMPQ AX, R13
	JGE  half
whole:
	VMOVUPS (SI)(AX*1), Y8
	VMOVUPS 32(SI)(AX*1), Y9
	VFMADD231PS (R9)(AX*1), Y8, Y0
	VFMADD231PS (R10)(AX*1), Y8, Y1
	VFMADD231PS (R11)(AX*1), Y8, Y2
	VFMADD231PS (R12)(AX*1), Y8, Y3
	VFMADD231PS 32(R9)(AX*1), Y9, Y4
	VFMADD231PS 32(R10)(AX*1), Y9, Y5
	VFMADD231PS 32(R11)(AX*1), Y9, Y6
	VFMADD231PS 32(R12)(AX*1), Y9, Y7
	ADDQ $64, AX
	CMPQ AX, R13
	JLT  whole
half:
	CMPQ AX, R8
	JGE  sum
	VMOVUPS (SI)(AX*1), Y8
	VFMADD231PS (R9)(AX*1), Y8, Y0
	VFMADD231PS (R10)(AX*1), Y8, Y1
	VFMADD231PS (R11)(AX*1), Y8, Y2
	VFMADD231PS (R12)(AX*1), Y8, Y3
sum:
	VADDPS Y4, Y0, Y0
	VADDPS Y5, Y1, Y1
	VADDPS Y6, Y2, Y2
	VADDPS Y7, Y3, Y3
	VHADDPS Y1, Y0, Y0
	VHADDPS Y3, Y2, Y2
	VHADDPS Y2, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPS X1, X0, X0
	VMOVUPS X0, (DI)
	ADDQ $16, DI
	ADDQ $16, BX
	SUBQ $4, CX
	JGE  rows
done:
	VZEROUPPER
	RET

// func addRowsAVX2(dst, w, rows []float32, at []int32)
//
// Columns are processed in panels of 32, then of 8. Their sums stay in registers while all rows are
// processed, two at a time: odd rows have sums of their own. DX is the first row's part in the
// panel, R9 the bytes of columns left, R10 the number of rows.
TEXT ·addRowsAVX2(SB), NOSPLIT, $0-96
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), R8
	MOVQ w_base+24(FP), SI
	MOVQ rows_base+48(FP), DX
	MOVQ at_base+72(FP), BX
	MOVQ at_len+80(FP), R10
	SHLQ $2, R8
	MOVQ R8, R9
wide:
	SUBQ $128, R9
	JLT  narrow
	VMOVUPS (DI), Y0
	VMOVUPS 32(DI), Y1
	VMOVUPS 64(DI), Y2
	VMOVUPS 96(DI), Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	XORL AX, AX
	MOVQ R10, CX
	SUBQ $2, CX
	JLT  wideLast
wideTwo:
	ROW((BX)(AX*4), R11)
	ROW(4(BX)(AX*4), R12)
	VBROADCASTSS (SI)(AX*4), Y8
	VBROADCASTSS 4(SI)(AX*4), Y9
	VFMADD231PS (R11), Y8, Y0
	VFMADD231PS 32(R11), Y8, Y1
	VFMADD231PS 64(R11), Y8, Y2
	VFMADD231PS 96(R11), Y8, Y3
	VFMADD231PS (R12), Y9, Y4
	VFMADD231PS 32(R12), Y9, Y5
	VFMADD231PS 64(R12), Y9, Y6
	VFMADD231PS 96(R12), Y9, Y7
	ADDQ $2, AX
	SUBQ $2, CX
	JGE  wideTwo
wideLast:
	CMPQ AX, R10
	JGE  wideStore
	ROW((BX)(AX*4), R11)
	VBROADCASTSS (SI)(AX*4), Y8
	VFMADD231PS (R11), Y8, Y0
	VFMADD231PS 32(R11), Y8, Y1
	VFMADD231PS 64(R11), Y8, Y2
	VFMADD231PS 96(R11), Y8, Y3
wideStore:
	VADDPS Y4, Y0, Y0
	VADDPS Y5, Y1, Y1
	VADDPS Y6, Y2, Y2
	VADDPS Y7, Y3, Y3
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VMOVUPS Y2, 64(DI)
	VMOVUPS Y3, 96(DI)
	ADDQ $128, DI
	ADDQ $128, DX
	JMP  wide
narrow:
	ADDQ $128, R9
	JEQ  done
narrowPanel:
	VMOVUPS (DI), Y0
	VXORPS Y4, Y4, Y4
	XORL AX, AX
	MOVQ R10, CX
	SUBQ $2, CX
	JLT  narrowLast
narrowTwo:
	ROW((BX)(AX*4), R11)
	ROW(4(BX)(AX*4), R12)
	VBROADCASTSS (SI)(AX*4), Y8
	VBROADCASTSS 4(SI)(AX*4), Y9
	VFMADD231PS (R11), Y8, Y0
	VFMADD231PS (R12), Y9, Y4
	ADDQ $2, AX
	SUBQ $2, CX
	JGE  narrowTwo
narrowLast:
	CMPQ AX, R10
	JGE  narrowStore
	ROW((BX)(AX*4), R11)
	VBROADCASTSS (SI)(AX*4), Y8
	VFMADD231PS (R11), Y8, Y0
narrowStore:
	VADDPS Y4, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $32, DI
	ADDQ $32, DX
	SUBQ $32, R9
	JGT  narrowPanel
done:
	VZEROUPPER
	RET
