//go:build !noasm

// This file quantises vectors in AVX-512.

#include "textflag.h"

// func quantize32x512(q *int8, scale *float32, x *float32, blocks int)
//
// Z31 has the bits of magnitudes, X14 127, X15 0.
TEXT ·quantize32x512(SB), NOSPLIT, $0-32
	MOVQ q+0(FP), DI
	MOVQ scale+8(FP), R8
	MOVQ x+16(FP), SI
	MOVQ blocks+24(FP), CX
	MOVL $0x7fffffff, AX
	VPBROADCASTD AX, Z31
	MOVL $0x42fe0000, AX
	VPBROADCASTD AX, X14
	VPXOR X15, X15, X15

block:
	VMOVUPS   (SI), Z0
	VMOVUPS   64(SI), Z1
	VPANDD    Z31, Z0, Z2
	VPANDD    Z31, Z1, Z3
	VMAXPS    Z3, Z2, Z2
	VEXTRACTF64X4 $1, Z2, Y3
	VMAXPS    Y3, Y2, Y2
	VEXTRACTF128 $1, Y2, X3
	VMAXPS    X3, X2, X2
	VMOVHLPS  X2, X2, X3
	VMAXPS    X3, X2, X2
	VMOVSHDUP X2, X3
	VMAXSS    X3, X2, X2
	VDIVSS    X14, X2, X4
	VDIVSS    X2, X14, X5
	VCMPSS    $4, X15, X2, X6 // 0 if all values of the block are 0
	VANDPS    X6, X5, X5
	VCVTPS2PH $0, X4, X4
	VCVTPH2PS X4, X4
	VMOVSS    X4, (R8)
	VBROADCASTSS X5, Z5
	VMULPS    Z5, Z0, Z0
	VMULPS    Z5, Z1, Z1
	VCVTPS2DQ Z0, Z0
	VCVTPS2DQ Z1, Z1
	VPMOVSDB  Z0, X0
	VPMOVSDB  Z1, X1
	VMOVDQU   X0, (DI)
	VMOVDQU   X1, 16(DI)
	ADDQ      $128, SI
	ADDQ      $32, DI
	ADDQ      $4, R8
	DECQ      CX
	JNZ       block
	VZEROUPPER
	RET

// func quantize256x512(q *int8, scale *float32, x *float32, blocks int)
//
//	DX  offset in the block's x in bytes
//	Z31 the bits of magnitudes
//	Z30 1.5 * 2^23
//	Z29 the low bits of Z30
//	Z28 2^22
//	Z27 127
//	X13 1
//	X14 -127
//	X15 0
TEXT ·quantize256x512(SB), NOSPLIT, $0-32
	MOVQ q+0(FP), DI
	MOVQ scale+8(FP), R8
	MOVQ x+16(FP), SI
	MOVQ blocks+24(FP), CX
	MOVL $0x7fffffff, AX
	VPBROADCASTD AX, Z31
	MOVL $0x4b400000, AX
	VPBROADCASTD AX, Z30
	MOVL $0x7fffff, AX
	VPBROADCASTD AX, Z29
	MOVL $0x400000, AX
	VPBROADCASTD AX, Z28
	MOVL $127, AX
	VPBROADCASTD AX, Z27
	MOVL $0xc2fe0000, AX
	VPBROADCASTD AX, X14
	MOVL $0x3f800000, AX
	VPBROADCASTD AX, X13
	VPXOR X15, X15, X15

block:
	VPXORD Z2, Z2, Z2
	XORL   DX, DX

most:
	VPANDD (SI)(DX*1), Z31, Z3
	VMAXPS Z3, Z2, Z2
	ADDQ   $64, DX
	CMPQ   DX, $1024
	JLT    most
	VEXTRACTF64X4 $1, Z2, Y3
	VMAXPS    Y3, Y2, Y2
	VEXTRACTF128 $1, Y2, X3
	VMAXPS    X3, X2, X2
	VMOVHLPS  X2, X2, X3
	VMAXPS    X3, X2, X2
	VMOVSHDUP X2, X3
	VMAXSS    X3, X2, X2
	VUCOMISS  X15, X2
	JE        zeros
	VBROADCASTSS X2, Z2
	MOVQ      $-64, DX

first:
	ADDQ   $64, DX
	CMPQ   DX, $1024
	JGE    zeros // some value is not a number
	VPANDD (SI)(DX*1), Z31, Z3
	VPCMPEQD Z3, Z2, K1
	KMOVW  K1, AX
	TESTL  AX, AX
	JZ     first
	TZCNTL AX, AX
	LEAQ   (DX)(AX*4), DX
	VDIVSS (SI)(DX*1), X14, X5
	VDIVSS X5, X13, X6
	VMOVSS X6, (R8)
	VBROADCASTSS X5, Z5
	XORL   DX, DX

round:
	VMULPS  (SI)(DX*4), Z5, Z0
	VADDPS  Z30, Z0, Z0
	VPANDD  Z29, Z0, Z0
	VPSUBD  Z28, Z0, Z0
	VPMINSD Z27, Z0, Z0
	VPMOVDB Z0, X0
	VMOVDQU X0, (DI)(DX*1)
	ADDQ    $16, DX
	CMPQ    DX, $256
	JLT     round

next:
	ADDQ $1024, SI
	ADDQ $256, DI
	ADDQ $4, R8
	DECQ CX
	JNZ  block
	VZEROUPPER
	RET

zeros:
	MOVL $0, (R8)
	VPXORD Z0, Z0, Z0
	VMOVDQU64 Z0, (DI)
	VMOVDQU64 Z0, 64(DI)
	VMOVDQU64 Z0, 128(DI)
	VMOVDQU64 Z0, 192(DI)
	JMP  next

// func sumFours512(dst *int32, q *int8, stripes int)
TEXT ·sumFours512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ stripes+16(FP), CX
	MOVL $0x01010101, AX
	VPBROADCASTD AX, Z31

stripe:
	VPXORD   Z0, Z0, Z0
	VPDPBUSD (SI), Z31, Z0
	VMOVDQU32 Z0, (DI)
	ADDQ     $64, SI
	ADDQ     $64, DI
	DECQ     CX
	JNZ      stripe
	VZEROUPPER
	RET
