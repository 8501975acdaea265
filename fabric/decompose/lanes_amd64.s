//go:build !noasm

#include "textflag.h"

// This file has the loops of lanes.go in AVX-512F, and two of them in AVX2. A vector register has a
// number of each of sixteen blocks. Products are never fused with sums. There is at least one row.

DATA constants<>+0(SB)/4, $0x7fffffff // all but a float's sign
DATA constants<>+4(SB)/4, $0x3f000000 // 0.5
DATA constants<>+8(SB)/4, $0x3f800000 // 1.0
DATA constants<>+12(SB)/4, $1
DATA constants<>+16(SB)/4, $0x3a800000 // 2^-10
GLOBL constants<>(SB), RODATA|NOPTR, $20

// ROUND computes q, as integer and as float, from the magnitudes Z0 and the numbers Z1 that they
// are multiplied by. Z2 has 0.5, Z3 the largest integer.
#define ROUND(int, float) \
	VMULPS     Z1, Z0, float; \
	VADDPS     Z2, float, float; \
	VMINPS     Z3, float, float; \
	VCVTTPS2DQ float, int; \
	VCVTDQ2PS  int, float

// func sumOnGridAVX512(products, squares *vec, mags *vec, n int, s *vec, top float32)
TEXT ·sumOnGridAVX512(SB), NOSPLIT, $0-44
	MOVQ         products+0(FP), DI
	MOVQ         squares+8(FP), DX
	MOVQ         mags+16(FP), SI
	MOVQ         n+24(FP), CX
	MOVQ         s+32(FP), AX
	VMOVUPS      (AX), Z1
	VBROADCASTSS constants<>+4(SB), Z2
	VBROADCASTSS top+40(FP), Z3
	VPXORD       Z4, Z4, Z4
	VPXORD       Z5, Z5, Z5

sums:
	VMOVUPS (SI), Z0
	ROUND(Z6, Z7)
	VMULPS  Z0, Z7, Z8
	VADDPS  Z8, Z4, Z4
	VMULPS  Z7, Z7, Z8
	VADDPS  Z8, Z5, Z5
	ADDQ    $64, SI
	DECQ    CX
	JNZ     sums
	VMOVUPS Z4, (DI)
	VMOVUPS Z5, (DX)
	VZEROUPPER
	RET

// func roundToGridAVX512(digits *[lanes]int32, e *sums, mags *vec, n int, a, s *vec, top float32)
TEXT ·roundToGridAVX512(SB), NOSPLIT, $0-52
	MOVQ         digits+0(FP), DI
	MOVQ         e+8(FP), DX
	MOVQ         mags+16(FP), SI
	MOVQ         n+24(FP), CX
	MOVQ         a+32(FP), BX
	MOVQ         s+40(FP), AX
	VMOVUPS      (AX), Z1
	VMOVUPS      (BX), Z9
	VBROADCASTSS constants<>+4(SB), Z2
	VBROADCASTSS top+48(FP), Z3
	VPXORD       Z4, Z4, Z4
	VPXORD       Z5, Z5, Z5

round:
	VMOVUPS (SI), Z0
	ROUND(Z6, Z7)
	VMOVDQU32 Z6, (DI)
	VMULPS  Z9, Z7, Z8
	VSUBPS  Z8, Z0, Z8
	VMULPS  Z8, Z8, Z8
	VADDPS  Z8, Z5, Z5
	VMULPS  Z0, Z0, Z8
	VADDPS  Z8, Z4, Z4
	ADDQ    $64, SI
	ADDQ    $64, DI
	DECQ    CX
	JNZ     round
	VMOVUPS Z4, (DX)
	VMOVUPS Z5, 64(DX)
	VZEROUPPER
	RET

// LEVELS computes the levels of the combinations of upper digits, at R10, from the factors at DI.
// R11 gets their number for the planes in R8.
#define LEVELS(none, loop) \
	VMOVUPS 64(DI), Z1; \
	VMOVUPS 128(DI), Z2; \
	VMOVUPS 192(DI), Z3; \
	MOVQ    $2, R11; \
	CMPQ    R8, $3; \
	JB      none; \
	MOVQ    $5, R11; \
	JE      none; \
	MOVQ    $14, R11; \
none: ; \
	LEAQ ·upperDigits(SB), R13; \
	MOVQ R10, R12; \
	MOVQ R11, R14; \
loop: ; \
	VBROADCASTSS (R13), Z0; \
	VMULPS       Z0, Z1, Z0; \
	VBROADCASTSS 64(R13), Z4; \
	VMULPS       Z4, Z2, Z4; \
	VADDPS       Z4, Z0, Z0; \
	VBROADCASTSS 128(R13), Z4; \
	VMULPS       Z4, Z3, Z4; \
	VADDPS       Z4, Z0, Z0; \
	VMOVAPS      Z0, (R12); \
	ADDQ         $4, R13; \
	ADDQ         $64, R12; \
	DECQ         R14; \
	JNZ          loop

// SEARCH finds the levels nearest to the magnitudes Z0. Results are the combination of upper digits
// in Z3, what remains for the lowest digit in Z1, and the magnitude of what then remains in Z2. The
// lowest digit is not 0 in the lanes of K1, where |Z1| > Z5. Inputs are the lowest factor in Z4,
// the mask of magnitudes in Z6 and integers of 1 in Z11. R10 and R11 are as LEVELS leaves them.
#define SEARCH(loop) \
	VMOVAPS Z0, Z1; \
	VSUBPS  Z4, Z0, Z2; \
	VPANDD  Z6, Z2, Z2; \
	VMINPS  Z2, Z0, Z2; \
	VPXORD  Z3, Z3, Z3; \
	VPXORD  Z10, Z10, Z10; \
	LEAQ    64(R10), R12; \
	LEAQ    -1(R11), R14; \
loop: ; \
	VSUBPS    (R12), Z0, Z7; \
	VPANDD    Z6, Z7, Z8; \
	VSUBPS    Z4, Z8, Z9; \
	VPANDD    Z6, Z9, Z9; \
	VMINPS    Z9, Z8, Z8; \
	VPADDD    Z11, Z10, Z10; \
	VCMPPS    $1, Z2, Z8, K1; \
	VMOVAPS   Z8, K1, Z2; \
	VMOVAPS   Z7, K1, Z1; \
	VMOVDQA32 Z10, K1, Z3; \
	ADDQ      $64, R12; \
	DECQ      R14; \
	JNZ       loop; \
	VPANDD    Z6, Z1, Z8; \
	VCMPPS    $14, Z5, Z8, K1

// func assignLevelsAVX512(digits *[lanes]int32, e *sums, mags *vec, n int, a *[maxFree]vec, planes int)
TEXT ·assignLevelsAVX512(SB), 0, $960-48
	MOVQ         e+8(FP), DX
	MOVQ         mags+16(FP), SI
	MOVQ         n+24(FP), CX
	MOVQ         a+32(FP), DI
	MOVQ         planes+40(FP), R8
	LEAQ         63(SP), R10
	ANDQ         $~63, R10
	LEVELS(assignLevels, assignLevel)
	VMOVUPS      (DI), Z4
	VBROADCASTSS constants<>+4(SB), Z5
	VMULPS       Z4, Z5, Z5
	VPBROADCASTD constants<>+0(SB), Z6
	VPBROADCASTD constants<>+12(SB), Z11
	VMOVDQU32    ·upperInts(SB), Z12
	VPXORD       Z13, Z13, Z13
	VPXORD       Z14, Z14, Z14
	MOVQ         digits+0(FP), DI

assignRow:
	VMOVUPS    (SI), Z0
	SEARCH(assignSearch)
	VPERMD     Z12, Z3, Z8
	VPSRAD     $31, Z1, Z9
	VPORD      Z11, Z9, Z9
	VPADDD     Z9, Z8, K1, Z8
	VMOVDQU32  Z8, (DI)
	VMULPS     Z2, Z2, Z8
	VADDPS     Z8, Z14, Z14
	VMULPS     Z0, Z0, Z8
	VADDPS     Z8, Z13, Z13
	ADDQ       $64, SI
	ADDQ       $64, DI
	DECQ       CX
	JNZ        assignRow
	VMOVUPS Z13, (DX)
	VMOVUPS Z14, 64(DX)
	VZEROUPPER
	RET

#define ADDMUL(x, y, sum) \
	VMULPS x, y, Z8; \
	VADDPS Z8, sum, sum

#define SUBMUL(x, y, sum) \
	VMULPS x, y, Z8; \
	VSUBPS Z8, sum, sum

// INVERSE computes 1 divided by a pivot if it is above the least one, otherwise 0. It adds the
// pivot's share to the gain, Z5.
#define INVERSE(pivot, least, r, inverse) \
	VCMPPS   $14, least, pivot, K1; \
	VDIVPS.Z pivot, Z27, K1, inverse; \
	VMULPS   r, r, Z8; \
	VMULPS   inverse, Z8, Z8; \
	VADDPS   Z8, Z5, Z5

#define ORDER(x, y) \
	VMINPS  y, x, Z8; \
	VMAXPS  y, x, y; \
	VMOVAPS Z8, x

// func improveFactorsAVX512(a *[maxFree]vec, gain *vec, mags *vec, n, planes, steps int)
//
// Registers in the loop over the rows:
//
//	Z12-Z15           r[0] to r[3]
//	Z16-Z25           the lower half of g, by rows
//	Z26-Z28           the upper digits, by combination
//	Z29, Z30, Z31, Z7 the digits of a row
TEXT ·improveFactorsAVX512(SB), 0, $960-48
	MOVQ a+0(FP), DI
	MOVQ gain+8(FP), DX
	MOVQ planes+32(FP), R8
	MOVQ steps+40(FP), R9
	LEAQ 63(SP), R10
	ANDQ $~63, R10

step:
	MOVQ         mags+16(FP), SI
	MOVQ         n+24(FP), CX
	LEVELS(stepLevels, stepLevel)
	VMOVUPS      (DI), Z4
	VBROADCASTSS constants<>+4(SB), Z5
	VMULPS       Z4, Z5, Z5
	VPBROADCASTD constants<>+0(SB), Z6
	VPBROADCASTD constants<>+12(SB), Z11
	VMOVUPS      ·upperDigits(SB), Z26
	VMOVUPS      ·upperDigits+64(SB), Z27
	VMOVUPS      ·upperDigits+128(SB), Z28
	VPXORD       Z12, Z12, Z12
	VPXORD       Z13, Z13, Z13
	VPXORD       Z14, Z14, Z14
	VPXORD       Z15, Z15, Z15
	VPXORD       Z16, Z16, Z16
	VPXORD       Z17, Z17, Z17
	VPXORD       Z18, Z18, Z18
	VPXORD       Z19, Z19, Z19
	VPXORD       Z20, Z20, Z20
	VPXORD       Z21, Z21, Z21
	VPXORD       Z22, Z22, Z22
	VPXORD       Z23, Z23, Z23
	VPXORD       Z24, Z24, Z24
	VPXORD       Z25, Z25, Z25

stepRow:
	VMOVUPS    (SI), Z0
	SEARCH(stepSearch)
	VPANDND    Z1, Z6, Z8
	VPORD.BCST constants<>+8(SB), Z8, Z8
	VMOVAPS.Z  Z8, K1, Z29
	VPERMPS    Z26, Z3, Z30
	ADDMUL(Z0, Z29, Z12)
	ADDMUL(Z0, Z30, Z13)
	ADDMUL(Z29, Z29, Z16)
	ADDMUL(Z29, Z30, Z17)
	ADDMUL(Z30, Z30, Z18)
	CMPQ       R8, $3
	JB         stepNext
	VPERMPS    Z27, Z3, Z31
	ADDMUL(Z0, Z31, Z14)
	ADDMUL(Z29, Z31, Z19)
	ADDMUL(Z30, Z31, Z20)
	ADDMUL(Z31, Z31, Z21)
	JE         stepNext
	VPERMPS    Z28, Z3, Z7
	ADDMUL(Z0, Z7, Z15)
	ADDMUL(Z29, Z7, Z22)
	ADDMUL(Z30, Z7, Z23)
	ADDMUL(Z31, Z7, Z24)
	ADDMUL(Z7, Z7, Z25)

stepNext:
	ADDQ $64, SI
	DECQ CX
	JNZ  stepRow

	// Z28 to Z31 are the inverses of the pivots, Z0 to Z3 the least pivots, Z7 is a multiplier.
	VPXORD       Z5, Z5, Z5
	VBROADCASTSS constants<>+16(SB), Z26
	VBROADCASTSS constants<>+8(SB), Z27
	VMULPS       Z26, Z16, Z0
	VMULPS       Z26, Z18, Z1
	VMULPS       Z26, Z21, Z2
	VMULPS       Z26, Z25, Z3
	INVERSE(Z16, Z0, Z12, Z28)
	VMULPS       Z28, Z17, Z7
	SUBMUL(Z17, Z7, Z18)
	SUBMUL(Z12, Z7, Z13)
	VMULPS       Z28, Z19, Z7
	SUBMUL(Z17, Z7, Z20)
	SUBMUL(Z19, Z7, Z21)
	SUBMUL(Z12, Z7, Z14)
	VMULPS       Z28, Z22, Z7
	SUBMUL(Z17, Z7, Z23)
	SUBMUL(Z19, Z7, Z24)
	SUBMUL(Z22, Z7, Z25)
	SUBMUL(Z12, Z7, Z15)
	INVERSE(Z18, Z1, Z13, Z29)
	VMULPS       Z29, Z20, Z7
	SUBMUL(Z20, Z7, Z21)
	SUBMUL(Z13, Z7, Z14)
	VMULPS       Z29, Z23, Z7
	SUBMUL(Z20, Z7, Z24)
	SUBMUL(Z23, Z7, Z25)
	SUBMUL(Z13, Z7, Z15)
	INVERSE(Z21, Z2, Z14, Z30)
	VMULPS       Z30, Z24, Z7
	SUBMUL(Z24, Z7, Z25)
	SUBMUL(Z14, Z7, Z15)
	INVERSE(Z25, Z3, Z15, Z31)
	VMULPS       Z31, Z15, Z15
	SUBMUL(Z24, Z15, Z14)
	VMULPS       Z30, Z14, Z14
	SUBMUL(Z20, Z14, Z13)
	SUBMUL(Z23, Z15, Z13)
	VMULPS       Z29, Z13, Z13
	SUBMUL(Z17, Z13, Z12)
	SUBMUL(Z19, Z14, Z12)
	SUBMUL(Z22, Z15, Z12)
	VMULPS       Z28, Z12, Z12
	VPANDD       Z6, Z12, Z12
	VPANDD       Z6, Z13, Z13
	VPANDD       Z6, Z14, Z14
	VPANDD       Z6, Z15, Z15
	ORDER(Z12, Z13)
	CMPQ         R8, $3
	JB           stepStore
	JE           stepThree
	ORDER(Z14, Z15)
	ORDER(Z12, Z14)
	ORDER(Z13, Z15)
	ORDER(Z13, Z14)
	JMP          stepStore

stepThree:
	ORDER(Z13, Z14)
	ORDER(Z12, Z13)

stepStore:
	VMOVUPS Z12, (DI)
	VMOVUPS Z13, 64(DI)
	VMOVUPS Z14, 128(DI)
	VMOVUPS Z15, 192(DI)
	DECQ    R9
	JNZ     step
	VMOVUPS Z5, (DX)
	VZEROUPPER
	RET

// With AVX2, the eight lanes at BX = 0 are processed first, then those at BX = 32.

// ROUND8 is ROUND for eight lanes. Y1 has the numbers that the magnitudes are multiplied by.
#define ROUND8(int, float) \
	VMULPS     Y1, Y0, float; \
	VADDPS     Y2, float, float; \
	VMINPS     Y3, float, float; \
	VCVTTPS2DQ float, int; \
	VCVTDQ2PS  int, float

// func sumOnGridAVX2(products, squares *vec, mags *vec, n int, s *vec, top float32)
TEXT ·sumOnGridAVX2(SB), NOSPLIT, $0-44
	MOVQ         products+0(FP), DI
	MOVQ         squares+8(FP), DX
	MOVQ         s+32(FP), AX
	VBROADCASTSS constants<>+4(SB), Y2
	VBROADCASTSS top+40(FP), Y3
	XORQ         BX, BX

half:
	MOVQ    mags+16(FP), SI
	MOVQ    n+24(FP), CX
	VMOVUPS (AX)(BX*1), Y1
	VXORPS  Y4, Y4, Y4
	VXORPS  Y5, Y5, Y5

row:
	VMOVUPS (SI)(BX*1), Y0
	ROUND8(Y6, Y7)
	VMULPS  Y0, Y7, Y8
	VADDPS  Y8, Y4, Y4
	VMULPS  Y7, Y7, Y8
	VADDPS  Y8, Y5, Y5
	ADDQ    $64, SI
	DECQ    CX
	JNZ     row
	VMOVUPS Y4, (DI)(BX*1)
	VMOVUPS Y5, (DX)(BX*1)
	ADDQ    $32, BX
	CMPQ    BX, $64
	JNE     half
	VZEROUPPER
	RET

// func roundToGridAVX2(digits *[lanes]int32, e *sums, mags *vec, n int, a, s *vec, top float32)
TEXT ·roundToGridAVX2(SB), NOSPLIT, $0-52
	MOVQ         e+8(FP), DX
	MOVQ         a+32(FP), R8
	MOVQ         s+40(FP), AX
	VBROADCASTSS constants<>+4(SB), Y2
	VBROADCASTSS top+48(FP), Y3
	XORQ         BX, BX

half:
	MOVQ    digits+0(FP), DI
	MOVQ    mags+16(FP), SI
	MOVQ    n+24(FP), CX
	VMOVUPS (AX)(BX*1), Y1
	VMOVUPS (R8)(BX*1), Y9
	VXORPS  Y4, Y4, Y4
	VXORPS  Y5, Y5, Y5

row:
	VMOVUPS (SI)(BX*1), Y0
	ROUND8(Y6, Y7)
	VMOVDQU Y6, (DI)(BX*1)
	VMULPS  Y9, Y7, Y8
	VSUBPS  Y8, Y0, Y8
	VMULPS  Y8, Y8, Y8
	VADDPS  Y8, Y5, Y5
	VMULPS  Y0, Y0, Y8
	VADDPS  Y8, Y4, Y4
	ADDQ    $64, SI
	ADDQ    $64, DI
	DECQ    CX
	JNZ     row
	VMOVUPS Y4, (DX)(BX*1)
	VMOVUPS Y5, 64(DX)(BX*1)
	ADDQ    $32, BX
	CMPQ    BX, $64
	JNE     half
	VZEROUPPER
	RET

DATA lane<>+0(SB)/8, $0x0000000100000000
DATA lane<>+8(SB)/8, $0x0000000300000002
DATA lane<>+16(SB)/8, $0x0000000500000004
DATA lane<>+24(SB)/8, $0x0000000700000006
DATA lane<>+32(SB)/8, $0x0000000900000008
DATA lane<>+40(SB)/8, $0x0000000b0000000a
DATA lane<>+48(SB)/8, $0x0000000d0000000c
DATA lane<>+56(SB)/8, $0x0000000f0000000e
GLOBL lane<>(SB), RODATA|NOPTR, $64

// func loadMagnitudesAVX512(mags *vec, n int, largest *vec, exponent *[lanes]int32, w *float32)
TEXT ·loadMagnitudesAVX512(SB), NOSPLIT, $0-40
	MOVQ         mags+0(FP), DI
	MOVQ         n+8(FP), CX
	MOVQ         largest+16(FP), DX
	MOVQ         exponent+24(FP), R8
	MOVQ         w+32(FP), SI
	VPBROADCASTD CX, Z1
	VPMULLD      lane<>(SB), Z1, Z1
	VPBROADCASTD constants<>+0(SB), Z2
	VPXORD       Z3, Z3, Z3
	MOVQ         DI, R9
	MOVQ         CX, R10

spread:
	KXNORW     K1, K1, K1
	VPXORD     Z0, Z0, Z0
	VGATHERDPS (SI)(Z1*4), K1, Z0
	VPANDD     Z2, Z0, Z0
	VPMAXUD    Z0, Z3, Z3
	VMOVUPS    Z0, (R9)
	ADDQ       $4, SI
	ADDQ       $64, R9
	DECQ       R10
	JNZ        spread

	// The exponent of the largest magnitude is used for scaling, at most 126. The scale is 2 to the
	// negated exponent.
	MOVL         $127, AX
	VPBROADCASTD AX, Z4
	MOVL         $126, AX
	VPBROADCASTD AX, Z5
	VPSRLD       $23, Z3, Z6
	VPSUBD       Z4, Z6, Z6
	VPMINSD      Z5, Z6, Z6
	VMOVDQU32    Z6, (R8)
	VPSUBD       Z6, Z4, Z6
	VPSLLD       $23, Z6, Z6
	VMULPS       Z6, Z3, Z3
	VMOVUPS      Z3, (DX)

scale:
	VMULPS  (DI), Z6, Z0
	VMOVUPS Z0, (DI)
	ADDQ    $64, DI
	DECQ    CX
	JNZ     scale
	VZEROUPPER
	RET

// func storeCodesAVX512(codes *byte, digits *[lanes]int32, n int, w *float32, offset int)
TEXT ·storeCodesAVX512(SB), NOSPLIT, $0-40
	MOVQ         codes+0(FP), DI
	MOVQ         digits+8(FP), DX
	MOVQ         w+24(FP), SI
	MOVQ         offset+32(FP), AX
	VPBROADCASTD AX, Z2
	VMOVDQU32    lane<>(SB), Z1
	VPSLLD       $6, Z1, Z1
	MOVQ         $16, R8

column:
	MOVQ n+16(FP), CX
	MOVQ DX, R9

rows16:
	KXNORW     K1, K1, K1
	VPXORD     Z0, Z0, Z0
	VPGATHERDD (R9)(Z1*1), K1, Z0
	VMOVDQU32  (SI), Z4
	VPSRAD     $31, Z4, Z4
	VPXORD     Z4, Z0, Z0
	VPSUBD     Z4, Z0, Z0
	VPADDD     Z2, Z0, Z0
	VPMOVDB    Z0, (DI)
	ADDQ       $64, SI
	ADDQ       $16, DI
	ADDQ       $1024, R9
	SUBQ       $16, CX
	JNZ        rows16
	ADDQ       $4, DX
	DECQ       R8
	JNZ        column
	VZEROUPPER
	RET
