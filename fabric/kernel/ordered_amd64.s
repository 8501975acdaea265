//go:build !noasm

// This file multiplies in ggml's order, in AVX2 and with VNNI, which sums the products of four
// bytes at once.

#include "go_asm.h"
#include "textflag.h"

//	BX  the product
//	DI  dst
//	SI  a row
//	R15 rows left
//	DX  weights of the row
//	R8  x
//	R12 bias
//	R11 factors
//	CX  blocks left
//	Y8  eight sums

#define BEGIN \
	MOVQ o+0(FP), BX             \
	MOVQ Ordered_Dst(BX), DI     \
	MOVQ Ordered_Weights(BX), SI \
	MOVQ Ordered_Factors(BX), R11 \
	MOVQ Ordered_Count(BX), R15

#define ROW \
	VXORPS Y8, Y8, Y8         \
	MOVQ   SI, DX             \
	MOVQ   Ordered_X(BX), R8  \
	MOVQ   Ordered_Bias(BX), R12 \
	MOVQ   Ordered_Blocks(BX), CX

// PAIRS adds the sums in Y8 in pairs, and writes the result to X0.
#define PAIRS \
	VEXTRACTF128 $1, Y8, X0   \
	VADDPS       X8, X0, X0   \
	VMOVHLPS     X0, X0, X1   \
	VADDPS       X1, X0, X0   \
	VMOVSHDUP    X0, X1       \
	VADDSS       X1, X0, X0

// NEXT stores X0 and goes to the next row.
#define NEXT \
	VMOVSS X0, (DI)              \
	ADDQ   $4, DI                \
	ADDQ   Ordered_Pitch(BX), SI \
	DECQ   R15

// LANES512 and LANES256 compute the integers of 32 columns, in Y0.
#define LANES512(AT) \
	VMOVDQU  AT(R12), Y0 \
	VMOVDQU  AT(DX), Y1  \
	VPDPBUSD AT(R8), Y1, Y0

// Weights are up to 127, so that the sum of two products is at most 2 * 127 * 128 in magnitude. Y15
// has 1 in each word.
#define LANES256(AT) \
	VMOVDQU    AT(DX), Y0      \
	VPMADDUBSW AT(R8), Y0, Y0  \
	VPMADDWD   Y15, Y0, Y0     \
	VPADDD     AT(R12), Y0, Y0

// ADDBLOCK adds the integers in Y0, times the factor of the block, and goes to the next 32 columns.
#define ADDBLOCK \
	VCVTDQ2PS    Y0, Y0     \
	VBROADCASTSS (R11), Y2  \
	VFMADD231PS  Y0, Y2, Y8 \
	ADDQ $32, R12           \
	ADDQ $32, DX            \
	ADDQ $32, R8            \
	ADDQ $4, R11            \
	DECQ CX

// func ordered512(o *Ordered)
TEXT ·ordered512(SB), NOSPLIT, $0-8
	BEGIN

row:
	ROW

block:
	LANES512(0)
	ADDBLOCK
	JNZ  block
	PAIRS
	NEXT
	JNZ  row
	VZEROUPPER
	RET

// func ordered256(o *Ordered)
//
// Weights may be above 127: their lowest bits are multiplied separately. Y15 has 1 and Y14 has 2 in
// each word, Y13 has 127 and Y12 has 1 in each byte.
TEXT ·ordered256(SB), NOSPLIT, $0-8
	BEGIN
	VPCMPEQB Y0, Y0, Y0
	VPSRLW   $15, Y0, Y15
	VPSLLW   $1, Y15, Y14
	VPABSB   Y0, Y12
	VPSLLW   $7, Y12, Y13
	VPXOR    Y0, Y13, Y13

row:
	ROW

block:
	VMOVDQU      (DX), Y0
	VPAND        Y12, Y0, Y1
	VPSRLW       $1, Y0, Y0
	VPAND        Y13, Y0, Y0
	VMOVDQU      (R8), Y2
	VPMADDUBSW   Y2, Y0, Y0
	VPMADDUBSW   Y2, Y1, Y1
	VPMADDWD     Y14, Y0, Y0
	VPMADDWD     Y15, Y1, Y1
	VPADDD       (R12), Y0, Y0
	VPADDD       Y1, Y0, Y0
	ADDBLOCK
	JNZ  block
	PAIRS
	NEXT
	JNZ  row
	VZEROUPPER
	RET

// Further registers for blocks of 256:
//
//	R13 scales
//	AX  the sums of x
//	R14 minima, if there are any
//	R10 factors of the minima
//	X9  four sums of the minima
//	R9  the lanes of scales
//	X6  scales
//	Y7  the integer of the block

#define SCALE(PART) \
	VPSHUFB   16*PART(R9), X6, X2 \
	VPMOVSXBD X2, Y2              \
	VPMULLD   Y2, Y0, Y0          \
	VPADDD    Y0, Y7, Y7

// SUPER computes the integer of a block of 256. LANES computes the integers of 32 columns.
#define SUPER(LANES) \
	VPXOR Y7, Y7, Y7 \
	LANES(0)   \
	SCALE(0)   \
	LANES(32)  \
	SCALE(1)   \
	LANES(64)  \
	SCALE(2)   \
	LANES(96)  \
	SCALE(3)   \
	LANES(128) \
	SCALE(4)   \
	LANES(160) \
	SCALE(5)   \
	LANES(192) \
	SCALE(6)   \
	LANES(224) \
	SCALE(7)

// LESS subtracts the 32 that weights with sixteen scales are too large by.
#define LESS \
	VPMOVSXBW X6, Y2       \
	VPMADDWD  (AX), Y2, Y2 \
	VPSLLD    $5, Y2, Y2   \
	VPSUBD    Y2, Y7, Y7   \
	ADDQ      $32, AX      \
	ADDQ      $16, R13

// MINIMA adds the minima of eight scales.
#define MINIMA \
	VPMOVSXBW    (R14), X2      \
	VPMADDWD     (AX), X2, X2   \
	VCVTDQ2PS    X2, X2         \
	VBROADCASTSS (R10), X3      \
	VFMADD231PS  X2, X3, X9     \
	ADDQ         $16, AX        \
	ADDQ         $8, R13        \
	ADDQ         $8, R14        \
	ADDQ         $4, R10

#define ADDSUPER \
	VCVTDQ2PS    Y7, Y7     \
	VBROADCASTSS (R11), Y2  \
	VFMADD231PS  Y7, Y2, Y8 \
	ADDQ $256, R12          \
	ADDQ $256, DX           \
	ADDQ $256, R8           \
	ADDQ $4, R11            \
	DECQ CX

// PAIRSOFFOUR adds the sums of the minima, in X9, to X0.
#define PAIRSOFFOUR \
	VMOVHLPS  X9, X9, X1 \
	VADDPS    X1, X9, X2 \
	VMOVSHDUP X2, X1     \
	VADDSS    X1, X2, X2 \
	VADDSS    X2, X0, X0

// func orderedSixteen512(o *OrderedSuper, lanes *[8][16]byte)
TEXT ·orderedSixteen512(SB), NOSPLIT, $0-16
	BEGIN
	MOVQ OrderedSuper_Sub(BX), R13
	MOVQ lanes+8(FP), R9

row:
	ROW
	MOVQ OrderedSuper_Sums(BX), AX

block:
	VMOVDQU (R13), X6
	SUPER(LANES512)
	LESS
	ADDSUPER
	JNZ block
	PAIRS
	NEXT
	JNZ row
	VZEROUPPER
	RET

// func orderedSixteen256(o *OrderedSuper, lanes *[8][16]byte)
TEXT ·orderedSixteen256(SB), NOSPLIT, $0-16
	BEGIN
	MOVQ OrderedSuper_Sub(BX), R13
	MOVQ lanes+8(FP), R9
	VPCMPEQB Y15, Y15, Y15
	VPSRLW   $15, Y15, Y15

row:
	ROW
	MOVQ OrderedSuper_Sums(BX), AX

block:
	VMOVDQU (R13), X6
	SUPER(LANES256)
	LESS
	ADDSUPER
	JNZ block
	PAIRS
	NEXT
	JNZ row
	VZEROUPPER
	RET

// func orderedEight512(o *OrderedSuper, lanes *[8][16]byte)
TEXT ·orderedEight512(SB), NOSPLIT, $0-16
	BEGIN
	MOVQ OrderedSuper_Sub(BX), R13
	MOVQ lanes+8(FP), R9
	MOVQ OrderedSuper_Min(BX), R14
	MOVQ OrderedSuper_MinFactors(BX), R10

row:
	ROW
	VXORPS X9, X9, X9
	MOVQ   OrderedSuper_Sums(BX), AX

block:
	VMOVQ (R13), X6
	SUPER(LANES512)
	MINIMA
	ADDSUPER
	JNZ block
	PAIRS
	PAIRSOFFOUR
	NEXT
	JNZ row
	VZEROUPPER
	RET

// func orderedEight256(o *OrderedSuper, lanes *[8][16]byte)
TEXT ·orderedEight256(SB), NOSPLIT, $0-16
	BEGIN
	MOVQ OrderedSuper_Sub(BX), R13
	MOVQ lanes+8(FP), R9
	MOVQ OrderedSuper_Min(BX), R14
	MOVQ OrderedSuper_MinFactors(BX), R10
	VPCMPEQB Y15, Y15, Y15
	VPSRLW   $15, Y15, Y15

row:
	ROW
	VXORPS X9, X9, X9
	MOVQ   OrderedSuper_Sums(BX), AX

block:
	VMOVQ (R13), X6
	SUPER(LANES256)
	MINIMA
	ADDSUPER
	JNZ block
	PAIRS
	PAIRSOFFOUR
	NEXT
	JNZ row
	VZEROUPPER
	RET
