//go:build !noasm

// This file has the kernels in AVX-512 (only its F part).
//
// Functions that process slices element by element share EACH, which runs the macro BODY for every
// 16 elements. AX is the index of the first of these. K1 has a bit for each element (fewer than 16
// at the end of the slice). Masked loads do not touch memory outside their mask. CX has the length
// at the start. AX, BX, CX and K1 are overwritten. BODY may use other registers.

#include "textflag.h"
#include "exp_amd64.h"

#define EACH \
	XORL AX, AX; \
	KXNORW K1, K1, K1; \
	SUBQ $16, CX; \
	JLT  tail; \
loop: \
	BODY; \
	ADDQ $16, AX; \
	SUBQ $16, CX; \
	JGE  loop; \
tail: \
	ADDQ $16, CX; \
	JEQ  done; \
	MOVL $1, BX; \
	SHLL CX, BX; \
	DECL BX; \
	KMOVW BX, K1; \
	XORL CX, CX; \
	JMP  loop; \
done:

// SUM_PS adds up the float32 lanes of Z0, SUM_PD the float64 lanes, to X0. They use Z1.
#define SUM_PS \
	VEXTRACTF64X4 $1, Z0, Y1; \
	VADDPS Y1, Y0, Y0; \
	VEXTRACTF128 $1, Y0, X1; \
	VADDPS X1, X0, X0; \
	VHADDPS X0, X0, X0; \
	VHADDPS X0, X0, X0
#define SUM_PD \
	VEXTRACTF64X4 $1, Z0, Y1; \
	VADDPD Y1, Y0, Y0; \
	VEXTRACTF128 $1, Y0, X1; \
	VADDPD X1, X0, X0; \
	VHADDPD X0, X0, X0

// ADD_AS_PD adds the 16 float32 of Z2 to Z0 and Z1 as float64. It uses Z3 and Z4.
#define ADD_AS_PD \
	VCVTPS2PD Y2, Z3; \
	VEXTRACTF64X4 $1, Z2, Y4; \
	VCVTPS2PD Y4, Z4; \
	VADDPD Z3, Z0, Z0; \
	VADDPD Z4, Z1, Z1

// func dotAVX512(a, b []float32) float32
TEXT ·dotAVX512(SB), NOSPLIT, $0-52
	MOVQ a_base+0(FP), SI
	MOVQ a_len+8(FP), CX
	MOVQ b_base+24(FP), DI
	VPXORD Z0, Z0, Z0
	CMPQ CX, $64
	JLT  rest
	// There are four sums, because an addition takes four cycles.
	VPXORD Z1, Z1, Z1
	VPXORD Z2, Z2, Z2
	VPXORD Z3, Z3, Z3
four:
	VMOVUPS (SI), Z4
	VMOVUPS 64(SI), Z5
	VMOVUPS 128(SI), Z6
	VMOVUPS 192(SI), Z7
	VFMADD231PS (DI), Z4, Z0
	VFMADD231PS 64(DI), Z5, Z1
	VFMADD231PS 128(DI), Z6, Z2
	VFMADD231PS 192(DI), Z7, Z3
	ADDQ $256, SI
	ADDQ $256, DI
	SUBQ $64, CX
	CMPQ CX, $64
	JGE  four
	VADDPS Z1, Z0, Z0
	VADDPS Z3, Z2, Z2
	VADDPS Z2, Z0, Z0
rest:
#define BODY \
	VMOVUPS.Z (SI)(AX*4), K1, Z4; \
	VMOVUPS.Z (DI)(AX*4), K1, Z5; \
	VFMADD231PS Z4, Z5, Z0
	EACH
#undef BODY
	SUM_PS
	VMOVSS X0, ret+48(FP)
	VZEROUPPER
	RET

// func addAVX512(dst, a, b []float32)
TEXT ·addAVX512(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ a_base+24(FP), SI
	MOVQ b_base+48(FP), DX
#define BODY \
	VMOVUPS.Z (SI)(AX*4), K1, Z0; \
	VMOVUPS.Z (DX)(AX*4), K1, Z1; \
	VADDPS Z1, Z0, Z0; \
	VMOVUPS Z0, K1, (DI)(AX*4)
	EACH
#undef BODY
	VZEROUPPER
	RET

// func axpyAVX512(dst, a []float32, s float32)
TEXT ·axpyAVX512(SB), NOSPLIT, $0-52
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ a_base+24(FP), SI
	VBROADCASTSS s+48(FP), Z2
#define BODY \
	VMOVUPS.Z (SI)(AX*4), K1, Z0; \
	VMOVUPS.Z (DI)(AX*4), K1, Z1; \
	VFMADD231PS Z2, Z0, Z1; \
	VMOVUPS Z1, K1, (DI)(AX*4)
	EACH
#undef BODY
	VZEROUPPER
	RET

// func scaleAVX512(x []float32, s float32)
TEXT ·scaleAVX512(SB), NOSPLIT, $0-28
	MOVQ x_base+0(FP), DI
	MOVQ x_len+8(FP), CX
	VBROADCASTSS s+24(FP), Z1
#define BODY \
	VMOVUPS.Z (DI)(AX*4), K1, Z0; \
	VMULPS Z1, Z0, Z0; \
	VMOVUPS Z0, K1, (DI)(AX*4)
	EACH
#undef BODY
	VZEROUPPER
	RET

// func maxAVX512(x []float32) float32
//
// If either source is NaN, VMAXPS gives its second source, which is the first in Go's order: the
// largest element so far.
TEXT ·maxAVX512(SB), NOSPLIT, $0-28
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	MOVL $0xff800000, AX // -Inf
	VPBROADCASTD AX, Z0
	CMPQ CX, $64
	JLT  rest
	VMOVAPS Z0, Z1
	VMOVAPS Z0, Z2
	VMOVAPS Z0, Z3
four:
	VMOVUPS (SI), Z4
	VMOVUPS 64(SI), Z5
	VMOVUPS 128(SI), Z6
	VMOVUPS 192(SI), Z7
	VMAXPS Z0, Z4, Z0
	VMAXPS Z1, Z5, Z1
	VMAXPS Z2, Z6, Z2
	VMAXPS Z3, Z7, Z3
	ADDQ $256, SI
	SUBQ $64, CX
	CMPQ CX, $64
	JGE  four
	VMAXPS Z1, Z0, Z0
	VMAXPS Z3, Z2, Z2
	VMAXPS Z2, Z0, Z0
rest:
#define BODY \
	VMOVUPS.Z (SI)(AX*4), K1, Z1; \
	VMAXPS Z0, Z1, K1, Z0
	EACH
#undef BODY
	VEXTRACTF64X4 $1, Z0, Y1
	VMAXPS Y1, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0x4e, X0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0xb1, X0, X1
	VMAXPS X1, X0, X0
	VMOVSS X0, ret+24(FP)
	VZEROUPPER
	RET

// func sumSquaresAVX512(x []float32) float64
TEXT ·sumSquaresAVX512(SB), NOSPLIT, $0-32
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	VPXORD Z0, Z0, Z0
	VPXORD Z1, Z1, Z1
#define BODY \
	VMOVUPS.Z (SI)(AX*4), K1, Z2; \
	VMULPS Z2, Z2, Z2; \
	ADD_AS_PD
	EACH
#undef BODY
	VADDPD Z1, Z0, Z0
	SUM_PD
	VMOVSD X0, ret+24(FP)
	VZEROUPPER
	RET

// func mulScaledAVX512(dst, x, w []float32, s float32)
TEXT ·mulScaledAVX512(SB), NOSPLIT, $0-76
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ x_base+24(FP), SI
	MOVQ w_base+48(FP), DX
	VBROADCASTSS s+72(FP), Z2
#define BODY \
	VMOVUPS.Z (SI)(AX*4), K1, Z0; \
	VMOVUPS.Z (DX)(AX*4), K1, Z1; \
	VMULPS Z2, Z0, Z0; \
	VMULPS Z1, Z0, Z0; \
	VMOVUPS Z0, K1, (DI)(AX*4)
	EACH
#undef BODY
	VZEROUPPER
	RET

// func addInt32AVX512(dst, w []float32, n []int32, s float32)
TEXT ·addInt32AVX512(SB), NOSPLIT, $0-76
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ w_base+24(FP), SI
	MOVQ n_base+48(FP), DX
	VBROADCASTSS s+72(FP), Z3
#define BODY \
	VMOVUPS.Z (SI)(AX*4), K1, Z0; \
	VMOVDQU32.Z (DX)(AX*4), K1, Z1; \
	VMOVUPS.Z (DI)(AX*4), K1, Z2; \
	VMULPS Z3, Z0, Z0; \
	VCVTDQ2PS Z1, Z1; \
	VFMADD231PS Z0, Z1, Z2; \
	VMOVUPS Z2, K1, (DI)(AX*4)
	EACH
#undef BODY
	VZEROUPPER
	RET

// CONST sets all lanes of a register to the constant bits. It uses AX.
#define CONST(bits, reg) \
	MOVL $bits, AX; \
	VPBROADCASTD AX, reg

// func expSumAVX512(dst, x []float32, shift float32) float64
//
//	Z5 x, then the remainder r
//	Z6 n
//	Z2 the polynomial, then the result, which is 0 beyond the end and where x is too low
//	K2 the lanes with other results, NaN among them
//
// If the results for low x were left to underflow, each would cost a hundred cycles. NaN is also
// the source that VMAXPS and VMINPS let through.
TEXT ·expSumAVX512(SB), NOSPLIT, $0-64
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ x_base+24(FP), SI
	VBROADCASTSS shift+48(FP), Z16
	CONST(EXP_LOW, Z17)
	CONST(EXP_HIGH, Z18)
	CONST(EXP_LOG2E, Z19)
	CONST(EXP_LN2, Z20)
	CONST(EXP_LN2LO, Z21)
	CONST(EXP_C2, Z22)
	CONST(EXP_C3, Z23)
	CONST(EXP_C4, Z24)
	CONST(EXP_C5, Z25)
	CONST(EXP_C6, Z26)
	CONST(EXP_ONE, Z27)
	VPXORD Z0, Z0, Z0
	VPXORD Z1, Z1, Z1
#define BODY \
	VMOVUPS.Z (SI)(AX*4), K1, Z5; \
	VSUBPS Z16, Z5, Z5; \
	VCMPPS $0x15, Z17, Z5, K1, K2; \
	VMAXPS Z5, Z17, Z5; \
	VMINPS Z5, Z18, Z5; \
	VMULPS Z19, Z5, Z6; \
	VRNDSCALEPS $8, Z6, Z6; \
	VFNMADD231PS Z20, Z6, Z5; \
	VFNMADD231PS Z21, Z6, Z5; \
	VMOVAPS Z26, Z2; \
	VFMADD213PS Z25, Z5, Z2; \
	VFMADD213PS Z24, Z5, Z2; \
	VFMADD213PS Z23, Z5, Z2; \
	VFMADD213PS Z22, Z5, Z2; \
	VFMADD213PS Z27, Z5, Z2; \
	VFMADD213PS Z27, Z5, Z2; \
	VSCALEFPS.Z Z6, Z2, K2, Z2; \
	VMOVUPS Z2, K1, (DI)(AX*4); \
	ADD_AS_PD
	EACH
#undef BODY
	VADDPD Z1, Z0, Z0
	SUM_PD
	VMOVSD X0, ret+56(FP)
	VZEROUPPER
	RET

// func countAtLeastAVX512(x []float32, t float32) int
TEXT ·countAtLeastAVX512(SB), NOSPLIT, $0-40
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	VBROADCASTSS t+24(FP), Z0
	XORL R8, R8
#define BODY \
	VMOVUPS.Z (SI)(AX*4), K1, Z1; \
	VCMPPS $0x1d, Z0, Z1, K1, K2; \
	KMOVW K2, DX; \
	POPCNTL DX, DX; \
	ADDQ DX, R8
	EACH
#undef BODY
	MOVQ R8, ret+32(FP)
	VZEROUPPER
	RET

// func sumBelowAVX512(x []float32, t float32) float64
TEXT ·sumBelowAVX512(SB), NOSPLIT, $0-40
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	VBROADCASTSS t+24(FP), Z5
	VPXORD Z0, Z0, Z0
	VPXORD Z1, Z1, Z1
#define BODY \
	VMOVUPS.Z (SI)(AX*4), K1, Z2; \
	VCMPPS $0x11, Z5, Z2, K1, K2; \
	VMOVAPS.Z Z2, K2, Z2; \
	ADD_AS_PD
	EACH
#undef BODY
	VADDPD Z1, Z0, Z0
	SUM_PD
	VMOVSD X0, ret+32(FP)
	VZEROUPPER
	RET

DATA upTo15<>+0(SB)/8, $0x0000000100000000
DATA upTo15<>+8(SB)/8, $0x0000000300000002
DATA upTo15<>+16(SB)/8, $0x0000000500000004
DATA upTo15<>+24(SB)/8, $0x0000000700000006
DATA upTo15<>+32(SB)/8, $0x0000000900000008
DATA upTo15<>+40(SB)/8, $0x0000000b0000000a
DATA upTo15<>+48(SB)/8, $0x0000000d0000000c
DATA upTo15<>+56(SB)/8, $0x0000000f0000000e
GLOBL upTo15<>(SB), RODATA|NOPTR, $64

// func indexAtLeastAVX512(dst []int32, x []float32, t float32) int
//
// If few elements are picked, most masks are empty. A branch is then cheaper than a compressing store.
TEXT ·indexAtLeastAVX512(SB), NOSPLIT, $0-64
	MOVQ dst_base+0(FP), DI
	MOVQ x_base+24(FP), SI
	MOVQ x_len+32(FP), CX
	VBROADCASTSS t+48(FP), Z0
	VMOVDQU32 upTo15<>(SB), Z2
	CONST(16, Z3)
	MOVQ DI, R8
#define BODY \
	VMOVUPS.Z (SI)(AX*4), K1, Z1; \
	VCMPPS $0x1d, Z0, Z1, K1, K2; \
	KMOVW K2, DX; \
	TESTL DX, DX; \
	JEQ none; \
	VPCOMPRESSD Z2, K2, (DI); \
	POPCNTL DX, DX; \
	LEAQ (DI)(DX*4), DI; \
none: \
	VPADDD Z3, Z2, Z2
	EACH
#undef BODY
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

// func dotRowsAVX512(dst, q, rows []float32, at []int32)
//
// Four rows are processed at a time, R9 to R12, with two sums each. So q is loaded once for four
// rows, and eight additions are under way. Then the lanes are added in a tree that leaves the four
// sums side by side.
TEXT ·dotRowsAVX512(SB), NOSPLIT, $0-96
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ q_base+24(FP), SI
	MOVQ q_len+32(FP), R8
	MOVQ rows_base+48(FP), DX
	MOVQ at_base+72(FP), BX
	SHLQ $2, R8
	MOVQ R8, R13
	ANDQ $-128, R13
	SUBQ $4, CX
	JLT  done
rows:
	ROW((BX), R9)
	ROW(4(BX), R10)
	ROW(8(BX), R11)
	ROW(12(BX), R12)
	VPXORD Z0, Z0, Z0
	VPXORD Z1, Z1, Z1
	VPXORD Z2, Z2, Z2
	VPXORD Z3, Z3, Z3
	VPXORD Z4, Z4, Z4
	VPXORD Z5, Z5, Z5
	VPXORD Z6, Z6, Z6
	VPXORD Z7, Z7, Z7
	XORL AX, AX
	CMPQ AX, R13
	JGE  half
whole:
	VMOVUPS (SI)(AX*1), Z8
	VMOVUPS 64(SI)(AX*1), Z9
	VFMADD231PS (R9)(AX*1), Z8, Z0
	VFMADD231PS (R10)(AX*1), Z8, Z1
	VFMADD231PS (R11)(AX*1), Z8, Z2
	VFMADD231PS (R12)(AX*1), Z8, Z3
	VFMADD231PS 64(R9)(AX*1), Z9, Z4
	VFMADD231PS 64(R10)(AX*1), Z9, Z5
	VFMADD231PS 64(R11)(AX*1), Z9, Z6
	VFMADD231PS 64(R12)(AX*1), Z9, Z7
	ADDQ $128, AX
	CMPQ AX, R13
	JLT  whole
half:
	CMPQ AX, R8
	JGE  sum
	VMOVUPS (SI)(AX*1), Z8
	VFMADD231PS (R9)(AX*1), Z8, Z0
	VFMADD231PS (R10)(AX*1), Z8, Z1
	VFMADD231PS (R11)(AX*1), Z8, Z2
	VFMADD231PS (R12)(AX*1), Z8, Z3
sum:
	VADDPS Z4, Z0, Z0
	VADDPS Z5, Z1, Z1
	VADDPS Z6, Z2, Z2
	VADDPS Z7, Z3, Z3
	VEXTRACTF64X4 $1, Z0, Y4
	VEXTRACTF64X4 $1, Z1, Y5
	VEXTRACTF64X4 $1, Z2, Y6
	VEXTRACTF64X4 $1, Z3, Y7
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

// func addRowsAVX512(dst, w, rows []float32, at []int32)
//
// Columns are processed in panels of 64, then of 16. Their sums stay in registers while all rows
// are processed, two at a time: odd rows have sums of their own. DX is the first row's part in the
// panel, R9 the bytes of columns left, R10 the number of rows.
TEXT ·addRowsAVX512(SB), NOSPLIT, $0-96
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), R8
	MOVQ w_base+24(FP), SI
	MOVQ rows_base+48(FP), DX
	MOVQ at_base+72(FP), BX
	MOVQ at_len+80(FP), R10
	SHLQ $2, R8
	MOVQ R8, R9
wide:
	SUBQ $256, R9
	JLT  narrow
	VMOVUPS (DI), Z0
	VMOVUPS 64(DI), Z1
	VMOVUPS 128(DI), Z2
	VMOVUPS 192(DI), Z3
	VPXORD Z4, Z4, Z4
	VPXORD Z5, Z5, Z5
	VPXORD Z6, Z6, Z6
	VPXORD Z7, Z7, Z7
	XORL AX, AX
	MOVQ R10, CX
	SUBQ $2, CX
	JLT  wideLast
wideTwo:
	ROW((BX)(AX*4), R11)
	ROW(4(BX)(AX*4), R12)
	VBROADCASTSS (SI)(AX*4), Z8
	VBROADCASTSS 4(SI)(AX*4), Z9
	VFMADD231PS (R11), Z8, Z0
	VFMADD231PS 64(R11), Z8, Z1
	VFMADD231PS 128(R11), Z8, Z2
	VFMADD231PS 192(R11), Z8, Z3
	VFMADD231PS (R12), Z9, Z4
	VFMADD231PS 64(R12), Z9, Z5
	VFMADD231PS 128(R12), Z9, Z6
	VFMADD231PS 192(R12), Z9, Z7
	ADDQ $2, AX
	SUBQ $2, CX
	JGE  wideTwo
wideLast:
	CMPQ AX, R10
	JGE  wideStore
	ROW((BX)(AX*4), R11)
	VBROADCASTSS (SI)(AX*4), Z8
	VFMADD231PS (R11), Z8, Z0
	VFMADD231PS 64(R11), Z8, Z1
	VFMADD231PS 128(R11), Z8, Z2
	VFMADD231PS 192(R11), Z8, Z3
wideStore:
	VADDPS Z4, Z0, Z0
	VADDPS Z5, Z1, Z1
	VADDPS Z6, Z2, Z2
	VADDPS Z7, Z3, Z3
	VMOVUPS Z0, (DI)
	VMOVUPS Z1, 64(DI)
	VMOVUPS Z2, 128(DI)
	VMOVUPS Z3, 192(DI)
	ADDQ $256, DI
	ADDQ $256, DX
	JMP  wide
narrow:
	ADDQ $256, R9
	JEQ  done
narrowPanel:
	VMOVUPS (DI), Z0
	VPXORD Z4, Z4, Z4
	XORL AX, AX
	MOVQ R10, CX
	SUBQ $2, CX
	JLT  narrowLast
narrowTwo:
	ROW((BX)(AX*4), R11)
	ROW(4(BX)(AX*4), R12)
	VBROADCASTSS (SI)(AX*4), Z8
	VBROADCASTSS 4(SI)(AX*4), Z9
	VFMADD231PS (R11), Z8, Z0
	VFMADD231PS (R12), Z9, Z4
	ADDQ $2, AX
	SUBQ $2, CX
	JGE  narrowTwo
narrowLast:
	CMPQ AX, R10
	JGE  narrowStore
	ROW((BX)(AX*4), R11)
	VBROADCASTSS (SI)(AX*4), Z8
	VFMADD231PS (R11), Z8, Z0
narrowStore:
	VADDPS Z4, Z0, Z0
	VMOVUPS Z0, (DI)
	ADDQ $64, DI
	ADDQ $64, DX
	SUBQ $64, R9
	JGT  narrowPanel
done:
	VZEROUPPER
	RET
