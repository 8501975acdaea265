//go:build !noasm

// This file packs stripes with AVX-512 VBMI: see digits_amd64.go for the tables.

#include "textflag.h"

// PLANE computes 64 bytes of a plane, in Z16, from its tables at R13 and the codes of the positions
// in each byte.
#define PLANE(code0, code1, code2, code3, code4) \
	VPERMB (R13), code0, Z16; \
	VPERMB 64(R13), code1, Z17; \
	VPERMB 128(R13), code2, Z18; \
	VPERMB 192(R13), code3, Z19; \
	VPERMB 256(R13), code4, Z20; \
	VPADDB Z17, Z16, Z16; \
	VPADDB Z19, Z18, Z18; \
	VPADDB Z20, Z16, Z16; \
	VPADDB Z18, Z16, Z16

// HALVES splits codes of 256 values. high gets the codes of the high digits, and codes becomes the
// codes of the three low digits. Z24 to Z27 are the table of the high digits. Z28 has what they
// represent.
#define HALVES(codes, high) \
	VPMOVB2M  codes, K1; \
	VMOVDQA64 codes, high; \
	VMOVDQA64 codes, Z16; \
	VPERMI2B  Z25, Z24, high; \
	VPERMI2B  Z27, Z26, Z16; \
	VMOVDQU8  Z16, K1, high; \
	VPERMB    Z28, high, Z17; \
	VPSUBB    Z17, codes, codes

// func packStripesVBMI(planes *[8]*byte, low, high int, codes *byte, groups, perByte int, t *vbmiTables)
//
// The first planes, low in number, are made of the codes, or if high is not 0 of the low digits of
// the codes. The planes that follow, high in number, are made of the high digits.
TEXT ·packStripesVBMI(SB), NOSPLIT, $0-56
	MOVQ planes+0(FP), DI
	MOVQ low+8(FP), R8
	MOVQ high+16(FP), R9
	MOVQ codes+24(FP), SI
	MOVQ groups+32(FP), CX
	MOVQ perByte+40(FP), R10
	MOVQ t+48(FP), DX
	XORQ BX, BX
	VMOVDQU64 (DX), Z24
	VMOVDQU64 64(DX), Z25
	VMOVDQU64 128(DX), Z26
	VMOVDQU64 192(DX), Z27
	VMOVDQU64 256(DX), Z28
	ADDQ $320, DX
	TESTQ CX, CX
	JZ   done

group:
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3

	// If a byte has four positions, the fifth has tables of zeros.
	VMOVDQA64 Z0, Z4
	ADDQ      $256, SI
	CMPQ      R10, $5
	JNE       loaded
	VMOVDQU64 (SI), Z4
	ADDQ      $64, SI

loaded:
	TESTQ R9, R9
	JZ    whole
	HALVES(Z0, Z8)
	HALVES(Z1, Z9)
	HALVES(Z2, Z10)
	HALVES(Z3, Z11)
	HALVES(Z4, Z12)

whole:
	MOVQ DX, R13
	MOVQ DI, R12
	MOVQ R8, R14

lowPlane:
	PLANE(Z0, Z1, Z2, Z3, Z4)
	MOVQ      (R12), AX
	VMOVDQU64 Z16, (AX)(BX*1)
	ADDQ      $8, R12
	ADDQ      $320, R13
	DECQ      R14
	JNZ       lowPlane
	MOVQ      R9, R14
	TESTQ     R14, R14
	JZ        next

highPlane:
	PLANE(Z8, Z9, Z10, Z11, Z12)
	MOVQ      (R12), AX
	VMOVDQU64 Z16, (AX)(BX*1)
	ADDQ      $8, R12
	ADDQ      $320, R13
	DECQ      R14
	JNZ       highPlane

next:
	ADDQ $64, BX
	DECQ CX
	JNZ  group

done:
	VZEROUPPER
	RET
