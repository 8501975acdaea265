//go:build !noasm

// This file has the general loops in AVX-512: decoding and products of decoded rows. It uses VBMI
// for lookups in 64 bytes, VNNI for sums of products of bytes, and GFNI for bit fields of bytes.

#include "go_asm.h"
#include "textflag.h"
#include "avx512_amd64.h"

// func decodePT5x512(dst *byte, planes *[]byte, count, n int, t *tables)
//
// To compute q = b/9 of 64 bytes, words of 16 bits are multiplied by 7282 = ceil(2^16/9), and the
// high half is taken. This is exact for the low byte of a word on its own. For the high byte h it
// is taken from the whole word 256h + l: the high byte of the result is h/9, because even if h%9 =
// 8 and l = 253, (2048 + l)/9 and the error of the constant, 0.22, add up to less than 256.
//
//	DI      dst
//	SI      planes
//	CX      planes left
//	DX, R8  offset in planes, and its end
//	R9, BX  tables of the first plane, and of the current one
//	R10     plane
//	Z31     the low byte of each word
//	Z30     7282 in each word
//	Z29     9q by q
//	Z24-Z28 tables of the first plane
//	Z10-Z14 weights of five stripes
TEXT ·decodePT5x512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ planes+8(FP), SI
	MOVQ n+24(FP), R8
	MOVQ t+32(FP), R9
	VMOVDQU64 tables_nine(R9), Z29
	LEAQ      tables_pt5(R9), R9
	VMOVDQU64 (R9), Z24
	VMOVDQU64 64(R9), Z25
	VMOVDQU64 128(R9), Z26
	VMOVDQU64 192(R9), Z27
	VMOVDQU64 256(R9), Z28
	MOVL      $0x00ff00ff, AX
	VPBROADCASTD AX, Z31
	MOVL      $0x1c721c72, AX
	VPBROADCASTD AX, Z30
	XORL      DX, DX
	CMPQ      DX, R8
	JGE       done

group:
	MOVQ      (SI), R10
	VMOVDQU64 (R10)(DX*1), Z0
	QUOTIENT
	VPERMB    Z24, Z2, Z10
	VPERMB    Z25, Z2, Z11
	VPERMB    Z26, Z1, Z12
	VPERMB    Z27, Z1, Z13
	VPERMB    Z28, Z1, Z14
	MOVQ      count+16(FP), CX
	DECQ      CX
	JZ        store
	MOVQ      R9, BX
	MOVQ      SI, AX

plane:
	ADDQ      $24, AX
	ADDQ      $320, BX
	MOVQ      (AX), R10
	VMOVDQU64 (R10)(DX*1), Z0
	QUOTIENT
	VPERMB    (BX), Z2, Z4
	VPERMB    64(BX), Z2, Z5
	VPERMB    128(BX), Z1, Z6
	VPERMB    192(BX), Z1, Z7
	VPERMB    256(BX), Z1, Z8
	VPADDB    Z4, Z10, Z10
	VPADDB    Z5, Z11, Z11
	VPADDB    Z6, Z12, Z12
	VPADDB    Z7, Z13, Z13
	VPADDB    Z8, Z14, Z14
	DECQ      CX
	JNZ       plane

store:
	VMOVDQU64 Z10, (DI)
	VMOVDQU64 Z11, 64(DI)
	VMOVDQU64 Z12, 128(DI)
	VMOVDQU64 Z13, 192(DI)
	VMOVDQU64 Z14, 256(DI)
	ADDQ      $320, DI
	ADDQ      $64, DX
	CMPQ      DX, R8
	JLT       group

done:
	VZEROUPPER
	RET

// func decodeTwoBit512(dst *byte, planes *[]byte, count, n int, t *tables)
//
// If there is one plane, an affine map over the bits of a byte moves a field of two bits down and
// drops the others, in one instruction. If there are several, half a byte looks up two digits times
// their power.
//
// Registers as in decodePT5x512, but Z31 has 3 and Z27 15 in each byte, and Z28-Z30 have the maps.
TEXT ·decodeTwoBit512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ planes+8(FP), SI
	MOVQ n+24(FP), R8
	MOVQ t+32(FP), R9
	LEAQ tables_twoBit(R9), R9
	MOVL $0x03030303, AX
	VPBROADCASTD AX, Z31
	MOVL $0x0f0f0f0f, AX
	VPBROADCASTD AX, Z27
	MOVQ $0x0408000000000000, AX // the highest byte determines bit 0
	VPBROADCASTQ AX, Z30
	MOVQ $0x1020000000000000, AX
	VPBROADCASTQ AX, Z29
	MOVQ $0x4080000000000000, AX
	VPBROADCASTQ AX, Z28
	XORL DX, DX
	CMPQ DX, R8
	JGE  done

group:
	MOVQ      (SI), R10
	VMOVDQU64 (R10)(DX*1), Z0
	VPANDD    Z31, Z0, Z10
	VGF2P8AFFINEQB $0, Z30, Z0, Z11
	VGF2P8AFFINEQB $0, Z29, Z0, Z12
	VGF2P8AFFINEQB $0, Z28, Z0, Z13
	MOVQ      count+16(FP), CX
	DECQ      CX
	JZ        store
	MOVQ      R9, BX
	MOVQ      SI, AX

plane:
	ADDQ      $24, AX
	ADDQ      $128, BX
	MOVQ      (AX), R10
	VMOVDQU64 (R10)(DX*1), Z0
	VPSRLW    $4, Z0, Z1
	VPANDD    Z27, Z0, Z0
	VPANDD    Z27, Z1, Z1
	VPERMB    (BX), Z0, Z4
	VPERMB    64(BX), Z0, Z5
	VPERMB    (BX), Z1, Z6
	VPERMB    64(BX), Z1, Z7
	VPADDB    Z4, Z10, Z10
	VPADDB    Z5, Z11, Z11
	VPADDB    Z6, Z12, Z12
	VPADDB    Z7, Z13, Z13
	DECQ      CX
	JNZ       plane

store:
	VMOVDQU64 Z10, (DI)
	VMOVDQU64 Z11, 64(DI)
	VMOVDQU64 Z12, 128(DI)
	VMOVDQU64 Z13, 192(DI)
	ADDQ      $256, DI
	ADDQ      $64, DX
	CMPQ      DX, R8
	JLT       group

done:
	VZEROUPPER
	RET

// func dot512(r *Rows)
//
// Blocks are whole stripes. A block of four stripes has six instructions of arithmetic, and loads
// and stores run beside them.
//
//	AX       the Rows
//	DI       dst
//	SI, R8   weights, and those of the row
//	DX       x
//	BX       bias
//	R10, R11 factors, and those of the row
//	R12      rows left
//	R9       stripes of a block
//	CX       stripes left
//	R13      stripes left in the block
TEXT ·dot512(SB), NOSPLIT, $0-8
	MOVQ r+0(FP), AX
	MOVQ Rows_Dst(AX), DI
	MOVQ Rows_Weights(AX), R8
	MOVQ Rows_Factors(AX), R11
	MOVQ Rows_Count(AX), R12
	MOVQ Rows_Block(AX), R9
	SHRQ $6, R9
	TESTQ R12, R12
	JLE  done

row:
	VPXORD X20, X20, X20
	MOVQ R8, SI
	MOVQ R11, R10
	MOVQ Rows_X(AX), DX
	MOVQ Rows_Bias(AX), BX
	MOVQ Rows_Stripes(AX), CX
	CMPQ R9, $4
	JNE  short
	SUBQ $4, CX
	JLT  rest

four:
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVDQU32 (BX), Z4
	VPDPBUSD  (DX), Z0, Z4
	VPDPBUSD  64(DX), Z1, Z4
	VPDPBUSD  128(DX), Z2, Z4
	VPDPBUSD  192(DX), Z3, Z4
	VCVTDQ2PS Z4, Z4
	VFMADD231PS.BCST (R10), Z4, Z20
	ADDQ      $256, SI
	ADDQ      $256, DX
	ADDQ      $64, BX
	ADDQ      $4, R10
	SUBQ      $4, CX
	JGE       four

rest:
	ADDQ $4, CX

short:
	TESTQ CX, CX
	JLE   sum

block:
	MOVQ    R9, R13
	CMPQ    CX, R13
	CMOVQLT CX, R13
	SUBQ    R13, CX
	VMOVDQU32 (BX), Z4

stripe:
	VMOVDQU64 (SI), Z0
	VPDPBUSD  (DX), Z0, Z4
	ADDQ      $64, SI
	ADDQ      $64, DX
	DECQ      R13
	JNZ       stripe
	VCVTDQ2PS Z4, Z4
	VFMADD231PS.BCST (R10), Z4, Z20
	ADDQ      $64, BX
	ADDQ      $4, R10
	TESTQ     CX, CX
	JG        block

sum:
	SUM
	ADDQ $4, DI
	ADDQ Rows_Pitch(AX), R8
	MOVQ Rows_FactorPitch(AX), CX
	LEAQ (R11)(CX*4), R11
	DECQ R12
	JNZ  row

done:
	VZEROUPPER
	RET

// func dotPart512(r *Rows, spread *[16]int32)
//
// Blocks of 16 or 32 columns: the factors of a stripe are spread over its lanes. There are two
// sums, as an addition takes longer than everything else for a stripe. Registers as in dot512, but
// R9 has the bytes of a stripe's factors and Z31 has spread.
TEXT ·dotPart512(SB), NOSPLIT, $0-16
	MOVQ r+0(FP), AX
	MOVQ spread+8(FP), BX
	VMOVDQU32 (BX), Z31
	MOVQ Rows_Dst(AX), DI
	MOVQ Rows_Weights(AX), R8
	MOVQ Rows_Factors(AX), R11
	MOVQ Rows_Count(AX), R12
	MOVQ $16, R9
	CMPQ Rows_Block(AX), $16
	JEQ  begin
	MOVQ $8, R9

begin:
	TESTQ R12, R12
	JLE  done

row:
	VPXORD X20, X20, X20
	VPXORD X21, X21, X21
	MOVQ R8, SI
	MOVQ R11, R10
	MOVQ Rows_X(AX), DX
	MOVQ Rows_Bias(AX), BX
	MOVQ Rows_Stripes(AX), CX
	SUBQ $2, CX
	JLT  last

two:
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU32 (BX), Z4
	VMOVDQU32 64(BX), Z5
	VPERMPS   (R10), Z31, Z6
	VPERMPS   (R10)(R9*1), Z31, Z7
	VPDPBUSD  (DX), Z0, Z4
	VPDPBUSD  64(DX), Z1, Z5
	VCVTDQ2PS Z4, Z4
	VCVTDQ2PS Z5, Z5
	VFMADD231PS Z6, Z4, Z20
	VFMADD231PS Z7, Z5, Z21
	ADDQ      $128, SI
	ADDQ      $128, DX
	ADDQ      $128, BX
	LEAQ      (R10)(R9*2), R10
	SUBQ      $2, CX
	JGE       two

last:
	ADDQ      $2, CX
	JLE       sum
	VMOVDQU64 (SI), Z0
	VMOVDQU32 (BX), Z4
	VPERMPS   (R10), Z31, Z6
	VPDPBUSD  (DX), Z0, Z4
	VCVTDQ2PS Z4, Z4
	VFMADD231PS Z6, Z4, Z20

sum:
	VADDPS Z21, Z20, Z20
	SUM
	ADDQ $4, DI
	ADDQ Rows_Pitch(AX), R8
	MOVQ Rows_FactorPitch(AX), CX
	LEAQ (R11)(CX*4), R11
	DECQ R12
	JNZ  row

done:
	VZEROUPPER
	RET
