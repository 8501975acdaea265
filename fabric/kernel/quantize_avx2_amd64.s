//go:build !noasm

// This file quantises vectors in AVX2.

#include "textflag.h"
#include "avx2_amd64.h"

// MOST writes the largest lane of Y2 to the lowest lane of X2. X3 is overwritten.
#define MOST \
	VEXTRACTF128 $1, Y2, X3    \
	VMAXPS       X3, X2, X2    \
	VMOVHLPS     X2, X2, X3    \
	VMAXPS       X3, X2, X2    \
	VMOVSHDUP    X2, X3        \
	VMAXSS       X3, X2, X2

// inOrder puts the lanes of four vectors of eight integers in order after they were packed to bytes
// half by half.
DATA inOrder<>+0(SB)/8, $0x0000000400000000
DATA inOrder<>+8(SB)/8, $0x0000000500000001
DATA inOrder<>+16(SB)/8, $0x0000000600000002
DATA inOrder<>+24(SB)/8, $0x0000000700000003
GLOBL inOrder<>(SB), RODATA, $32

// func quantize32x256(q *int8, scale *float32, x *float32, blocks int)
//
//	Y15 the bits of magnitudes
//	X14 127
//	X13 0
//	Y12 inOrder
TEXT ·quantize32x256(SB), NOSPLIT, $0-32
	MOVQ q+0(FP), DI
	MOVQ scale+8(FP), R8
	MOVQ x+16(FP), SI
	MOVQ blocks+24(FP), CX
	CONSTANT($0x7fffffff, X15, Y15)
	CONSTANT($0x42fe0000, X14, Y14)
	VPXOR   X13, X13, X13
	VMOVDQU inOrder<>(SB), Y12

block:
	VMOVUPS   (SI), Y4
	VMOVUPS   32(SI), Y5
	VMOVUPS   64(SI), Y6
	VMOVUPS   96(SI), Y7
	VANDPS    Y15, Y4, Y0
	VANDPS    Y15, Y5, Y1
	VANDPS    Y15, Y6, Y2
	VANDPS    Y15, Y7, Y3
	VMAXPS    Y1, Y0, Y0
	VMAXPS    Y3, Y2, Y2
	VMAXPS    Y2, Y0, Y2
	MOST
	VDIVSS    X14, X2, X0
	VDIVSS    X2, X14, X1
	VCMPSS    $4, X13, X2, X3 // 0 if all values of the block are 0
	VANDPS    X3, X1, X1
	VCVTPS2PH $0, X0, X0
	VCVTPH2PS X0, X0
	VMOVSS    X0, (R8)
	VBROADCASTSS X1, Y1
	VMULPS    Y1, Y4, Y4
	VMULPS    Y1, Y5, Y5
	VMULPS    Y1, Y6, Y6
	VMULPS    Y1, Y7, Y7
	VCVTPS2DQ Y4, Y4
	VCVTPS2DQ Y5, Y5
	VCVTPS2DQ Y6, Y6
	VCVTPS2DQ Y7, Y7
	VPACKSSDW Y5, Y4, Y4
	VPACKSSDW Y7, Y6, Y6
	VPACKSSWB Y6, Y4, Y4
	VPERMD    Y4, Y12, Y4
	VMOVDQU   Y4, (DI)
	ADDQ      $128, SI
	ADDQ      $32, DI
	ADDQ      $4, R8
	DECQ      CX
	JNZ       block
	VZEROUPPER
	RET

// ROUND8 multiplies eight values by Y5 and rounds them to integers in the range of a byte, in OUT.
#define ROUND8(OFFSET, OUT) \
	VMULPS  (OFFSET)(SI)(DX*4), Y5, OUT  \
	VADDPS  Y14, OUT, OUT                \
	VPAND   Y13, OUT, OUT                \
	VPSUBD  Y11, OUT, OUT                \
	VPMINSD Y10, OUT, OUT                \
	VPAND   Y9, OUT, OUT

// func quantize256x256(q *int8, scale *float32, x *float32, blocks int)
//
//	DX  offset in the block's x in bytes, then in its q
//	Y15 the bits of magnitudes
//	Y14 1.5 * 2^23
//	Y13 the low bits of Y14
//	Y11 2^22
//	Y10 127
//	Y9  255
//	Y12 inOrder
//	X8  0
TEXT ·quantize256x256(SB), NOSPLIT, $0-32
	MOVQ q+0(FP), DI
	MOVQ scale+8(FP), R8
	MOVQ x+16(FP), SI
	MOVQ blocks+24(FP), CX
	CONSTANT($0x7fffffff, X15, Y15)
	CONSTANT($0x4b400000, X14, Y14)
	CONSTANT($0x7fffff, X13, Y13)
	CONSTANT($0x400000, X11, Y11)
	CONSTANT($127, X10, Y10)
	CONSTANT($255, X9, Y9)
	VPXOR   X8, X8, X8
	VMOVDQU inOrder<>(SB), Y12

block:
	VPXOR Y2, Y2, Y2
	XORL  DX, DX

most:
	VANDPS (SI)(DX*1), Y15, Y3
	VMAXPS Y3, Y2, Y2
	ADDQ   $32, DX
	CMPQ   DX, $1024
	JLT    most
	MOST
	VUCOMISS X8, X2
	JE       zeros
	VBROADCASTSS X2, Y2
	MOVQ     $-32, DX

first:
	ADDQ      $32, DX
	CMPQ      DX, $1024
	JGE       zeros // some value is not a number
	VANDPS    (SI)(DX*1), Y15, Y3
	VPCMPEQD  Y3, Y2, Y3
	VMOVMSKPS Y3, AX
	TESTL     AX, AX
	JZ        first
	BSFL      AX, AX
	LEAQ      (DX)(AX*4), DX
	MOVL      $0xc2fe0000, AX // -127
	VMOVD     AX, X5
	VDIVSS    (SI)(DX*1), X5, X5
	MOVL      $0x3f800000, AX // 1
	VMOVD     AX, X6
	VDIVSS    X5, X6, X6
	VMOVSS    X6, (R8)
	VBROADCASTSS X5, Y5
	XORL      DX, DX

round:
	ROUND8(0, Y0)
	ROUND8(32, Y1)
	ROUND8(64, Y2)
	ROUND8(96, Y3)
	VPACKUSDW Y1, Y0, Y0
	VPACKUSDW Y3, Y2, Y2
	VPACKUSWB Y2, Y0, Y0
	VPERMD    Y0, Y12, Y0
	VMOVDQU   Y0, (DI)(DX*1)
	ADDQ      $32, DX
	CMPQ      DX, $256
	JLT       round

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
	VPXOR Y0, Y0, Y0
	VMOVDQU Y0, (DI)
	VMOVDQU Y0, 32(DI)
	VMOVDQU Y0, 64(DI)
	VMOVDQU Y0, 96(DI)
	VMOVDQU Y0, 128(DI)
	VMOVDQU Y0, 160(DI)
	VMOVDQU Y0, 192(DI)
	VMOVDQU Y0, 224(DI)
	JMP  next
