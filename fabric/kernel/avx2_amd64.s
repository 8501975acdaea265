//go:build !noasm

// This file has the general loops in AVX2, with FMA and F16C: decoding, products of decoded rows,
// factors and sums.

#include "go_asm.h"
#include "textflag.h"
#include "avx2_amd64.h"

// func decodePT5x256(dst *byte, planes *[]byte, count, n int, t *tables)
//
// Works like decodePT5x512, on 32 bytes. A table by q has 32 bytes, and is looked up in two halves:
// the index into one half is negative, which gives 0, when that into the other is not.
//
//	DI      dst
//	SI      planes
//	DX, R8  offset in planes, and its end
//	R9, BX  tables of the first plane, and of the current one
//	AX, R10 header of the plane, and the plane
//	CX      planes left
//	R11     32 in the second half of a group, otherwise 0
//	Y5-Y9   weights
//	Y15     the low byte of each word
//	Y14     7282 in each word
//	Y13     16 in each byte
//	Y12     0x70 in each byte
#define BYQ(OFFSET, ACC) \
	VBROADCASTI128 (OFFSET)(BX), Y10      \
	VBROADCASTI128 (OFFSET+16)(BX), Y11   \
	VPSHUFB        Y3, Y10, Y10           \
	VPSHUFB        Y4, Y11, Y11           \
	VPADDB         Y10, ACC, ACC          \
	VPADDB         Y11, ACC, ACC

#define BYR(OFFSET, ACC) \
	VBROADCASTI128 (OFFSET)(BX), Y10      \
	VPSHUFB        Y2, Y10, Y10           \
	VPADDB         Y10, ACC, ACC

TEXT ·decodePT5x256(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ planes+8(FP), SI
	MOVQ n+24(FP), R8
	MOVQ t+32(FP), R9
	LEAQ tables_pt5(R9), R9
	CONSTANT($0x00ff00ff, X15, Y15)
	CONSTANT($0x1c721c72, X14, Y14)
	CONSTANT($0x10101010, X13, Y13)
	CONSTANT($0x70707070, X12, Y12)
	XORL DX, DX
	XORL R11, R11

half:
	VPXOR Y5, Y5, Y5
	VPXOR Y6, Y6, Y6
	VPXOR Y7, Y7, Y7
	VPXOR Y8, Y8, Y8
	VPXOR Y9, Y9, Y9
	MOVQ  count+16(FP), CX
	MOVQ  R9, BX
	MOVQ  SI, AX

plane:
	MOVQ     (AX), R10
	VMOVDQU  (R10)(DX*1), Y0
	VPAND    Y15, Y0, Y1
	VPMULHUW Y14, Y1, Y1
	VPMULHUW Y14, Y0, Y2
	VPANDN   Y2, Y15, Y2
	VPOR     Y2, Y1, Y1
	VPSLLW   $3, Y1, Y2 // q is below 32
	VPSUBB   Y2, Y0, Y2
	VPSUBB   Y1, Y2, Y2
	VPADDUSB Y12, Y1, Y3
	VPSUBB   Y13, Y1, Y4
	BYR(0, Y5)
	BYR(64, Y6)
	BYQ(128, Y7)
	BYQ(192, Y8)
	BYQ(256, Y9)
	ADDQ     $24, AX
	ADDQ     $320, BX
	DECQ     CX
	JNZ      plane
	VMOVDQU  Y5, (DI)
	VMOVDQU  Y6, 64(DI)
	VMOVDQU  Y7, 128(DI)
	VMOVDQU  Y8, 192(DI)
	VMOVDQU  Y9, 256(DI)
	ADDQ     $32, DX
	ADDQ     $32, DI
	XORL     $32, R11
	JNZ      half
	ADDQ     $256, DI
	CMPQ     DX, R8
	JLT      half
	VZEROUPPER
	RET

// func decodeTwoBit256(dst *byte, planes *[]byte, count, n int, t *tables)
//
// Registers as in decodePT5x256, but Y15 has 15 in each byte.
#define BYHALF(INDEX, LOW, HIGH) \
	VPSHUFB INDEX, Y2, Y10       \
	VPSHUFB INDEX, Y3, Y11       \
	VPADDB  Y10, LOW, LOW        \
	VPADDB  Y11, HIGH, HIGH

TEXT ·decodeTwoBit256(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ planes+8(FP), SI
	MOVQ n+24(FP), R8
	MOVQ t+32(FP), R9
	LEAQ tables_twoBit(R9), R9
	CONSTANT($0x0f0f0f0f, X15, Y15)
	XORL DX, DX
	XORL R11, R11

half:
	VPXOR Y5, Y5, Y5
	VPXOR Y6, Y6, Y6
	VPXOR Y7, Y7, Y7
	VPXOR Y8, Y8, Y8
	MOVQ  count+16(FP), CX
	MOVQ  R9, BX
	MOVQ  SI, AX

plane:
	MOVQ    (AX), R10
	VMOVDQU (R10)(DX*1), Y0
	VMOVDQU (BX), Y2
	VMOVDQU 64(BX), Y3
	VPSRLW  $4, Y0, Y1
	VPAND   Y15, Y0, Y0
	VPAND   Y15, Y1, Y1
	BYHALF(Y0, Y5, Y6)
	BYHALF(Y1, Y7, Y8)
	ADDQ    $24, AX
	ADDQ    $128, BX
	DECQ    CX
	JNZ     plane
	VMOVDQU Y5, (DI)
	VMOVDQU Y6, 64(DI)
	VMOVDQU Y7, 128(DI)
	VMOVDQU Y8, 192(DI)
	ADDQ    $32, DX
	ADDQ    $32, DI
	XORL    $32, R11
	JNZ     half
	ADDQ    $192, DI
	CMPQ    DX, R8
	JLT     half
	VZEROUPPER
	RET

// DOT32 adds the products of 32 columns to the lanes of SUMS. VPMADDUBSW saturates sums of two
// products at 16 bits. Weights up to 127 do not reach that, so bit 7 of the weights is multiplied
// separately. Constants: Y15 has 127 and Y14 has 1 in each byte, Y13 has 1 and Y12 has 128 in each
// word.
#define DOT32(OFFSET, SUMS) \
	VMOVDQU    (OFFSET)(SI), Y0       \
	VMOVDQU    (OFFSET)(DX), Y1       \
	VPSRLW     $7, Y0, Y2             \
	VPAND      Y15, Y0, Y0            \
	VPAND      Y14, Y2, Y2            \
	VPMADDUBSW Y1, Y0, Y0             \
	VPMADDUBSW Y1, Y2, Y2             \
	VPMADDWD   Y13, Y0, Y0            \
	VPMADDWD   Y12, Y2, Y2            \
	VPADDD     Y0, SUMS, SUMS         \
	VPADDD     Y2, SUMS, SUMS

// SMALL32 is DOT32 for weights without bit 7.
#define SMALL32(OFFSET, SUMS) \
	VMOVDQU    (OFFSET)(SI), Y0       \
	VPMADDUBSW (OFFSET)(DX), Y0, Y0   \
	VPMADDWD   Y13, Y0, Y0            \
	VPADDD     Y0, SUMS, SUMS

#define DOTCONSTANTS \
	CONSTANT($0x7f7f7f7f, X15, Y15)   \
	CONSTANT($0x01010101, X14, Y14)   \
	CONSTANT($0x00010001, X13, Y13)   \
	CONSTANT($0x00800080, X12, Y12)

// SUM8 adds all lanes of Y8 to the float32 at DI.
#define SUM8 \
	VEXTRACTF128 $1, Y8, X2           \
	VADDPS       X2, X8, X1           \
	VMOVHLPS     X1, X1, X2           \
	VADDPS       X2, X1, X1           \
	VMOVSHDUP    X1, X2               \
	VADDSS       X2, X1, X1           \
	VADDSS       (DI), X1, X1         \
	VMOVSS       X1, (DI)

// DOT computes the product Rows with blocks of whole stripes. MULTIPLY is DOT32 or SMALL32.
// Registers as in dot512.
#define DOT(MULTIPLY) \
	MOVQ Rows_Dst(AX), DI             \
	MOVQ Rows_Weights(AX), R8         \
	MOVQ Rows_Factors(AX), R11        \
	MOVQ Rows_Count(AX), R12          \
	MOVQ Rows_Block(AX), R9           \
	SHRQ $6, R9                       \
row:                                  \
	VXORPS Y8, Y8, Y8                 \
	MOVQ R8, SI                       \
	MOVQ R11, R10                     \
	MOVQ Rows_X(AX), DX               \
	MOVQ Rows_Bias(AX), BX            \
	MOVQ Rows_Stripes(AX), CX         \
block:                                \
	MOVQ    R9, R13                   \
	CMPQ    CX, R13                   \
	CMOVQLT CX, R13                   \
	SUBQ    R13, CX                   \
	VMOVDQU (BX), Y4                  \
	VMOVDQU 32(BX), Y5                \
stripe:                               \
	MULTIPLY(0, Y4)                   \
	MULTIPLY(32, Y5)                  \
	ADDQ    $64, SI                   \
	ADDQ    $64, DX                   \
	DECQ    R13                       \
	JNZ     stripe                    \
	VBROADCASTSS (R10), Y6            \
	VPADDD  Y5, Y4, Y4                \
	VCVTDQ2PS Y4, Y4                  \
	VFMADD231PS Y6, Y4, Y8            \
	ADDQ    $64, BX                   \
	ADDQ    $4, R10                   \
	TESTQ   CX, CX                    \
	JG      block                     \
	SUM8                              \
	ADDQ $4, DI                       \
	ADDQ Rows_Pitch(AX), R8           \
	MOVQ Rows_FactorPitch(AX), CX     \
	LEAQ (R11)(CX*4), R11             \
	DECQ R12                          \
	JNZ  row                          \
	VZEROUPPER                        \
	RET

// DOTPART does the same for blocks of 16 or 32 columns: a stripe has four factors or two.
#define DOTPART(MULTIPLY) \
	MOVQ Rows_Dst(AX), DI             \
	MOVQ Rows_Weights(AX), R8         \
	MOVQ Rows_Factors(AX), R11        \
	MOVQ Rows_Count(AX), R12          \
	MOVQ Rows_Block(AX), R9           \
row:                                  \
	VXORPS Y8, Y8, Y8                 \
	MOVQ R8, SI                       \
	MOVQ R11, R10                     \
	MOVQ Rows_X(AX), DX               \
	MOVQ Rows_Bias(AX), BX            \
	MOVQ Rows_Stripes(AX), CX         \
stripe:                               \
	VMOVDQU (BX), Y4                  \
	VMOVDQU 32(BX), Y5                \
	MULTIPLY(0, Y4)                   \
	MULTIPLY(32, Y5)                  \
	CMPQ    R9, $16                   \
	JEQ     four                      \
	VBROADCASTSS (R10), Y6            \
	VBROADCASTSS 4(R10), Y7           \
	ADDQ    $8, R10                   \
	JMP     multiply                  \
four:                                 \
	VBROADCASTSS (R10), X6            \
	VBROADCASTSS 4(R10), X0           \
	VBROADCASTSS 8(R10), X7           \
	VBROADCASTSS 12(R10), X1          \
	VINSERTF128  $1, X0, Y6, Y6       \
	VINSERTF128  $1, X1, Y7, Y7       \
	ADDQ    $16, R10                  \
multiply:                             \
	VCVTDQ2PS Y4, Y4                  \
	VCVTDQ2PS Y5, Y5                  \
	VFMADD231PS Y6, Y4, Y8            \
	VFMADD231PS Y7, Y5, Y8            \
	ADDQ    $64, SI                   \
	ADDQ    $64, DX                   \
	ADDQ    $64, BX                   \
	DECQ    CX                        \
	JNZ     stripe                    \
	SUM8                              \
	ADDQ $4, DI                       \
	ADDQ Rows_Pitch(AX), R8           \
	MOVQ Rows_FactorPitch(AX), CX     \
	LEAQ (R11)(CX*4), R11             \
	DECQ R12                          \
	JNZ  row                          \
	VZEROUPPER                        \
	RET

// func dot256(r *Rows)
TEXT ·dot256(SB), NOSPLIT, $0-8
	DOTCONSTANTS
	MOVQ r+0(FP), AX
	DOT(DOT32)

// func dotSmall256(r *Rows)
TEXT ·dotSmall256(SB), NOSPLIT, $0-8
	DOTCONSTANTS
	MOVQ r+0(FP), AX
	DOT(SMALL32)

// func dotPart256(r *Rows)
TEXT ·dotPart256(SB), NOSPLIT, $0-8
	DOTCONSTANTS
	MOVQ r+0(FP), AX
	DOTPART(DOT32)

// func dotPartSmall256(r *Rows)
TEXT ·dotPartSmall256(SB), NOSPLIT, $0-8
	DOTCONSTANTS
	MOVQ r+0(FP), AX
	DOTPART(SMALL32)

// FIELDS multiplies 128 weights by x. Y0 gets the sums of two products each, in 16 bits. Y1-Y3 are
// overwritten.
#define FIELDS(OFFSET) \
	VMOVDQU    (OFFSET)(SI), Y0          \
	VPSRLW     $2, Y0, Y1                \
	VPSRLW     $4, Y0, Y2                \
	VPSRLW     $6, Y0, Y3                \
	VPAND      Y15, Y0, Y0               \
	VPAND      Y15, Y1, Y1               \
	VPAND      Y15, Y2, Y2               \
	VPAND      Y15, Y3, Y3               \
	VPMADDUBSW (OFFSET)(R8), Y0, Y0      \
	VPMADDUBSW (OFFSET+64)(R8), Y1, Y1   \
	VPMADDUBSW (OFFSET+128)(R8), Y2, Y2  \
	VPMADDUBSW (OFFSET+192)(R8), Y3, Y3  \
	VPADDW     Y1, Y0, Y0                \
	VPADDW     Y3, Y2, Y2                \
	VPADDW     Y2, Y0, Y0

// func twoBit256x256(p *Product)
//
// One plane, blocks of 256.
//
//	BX       the Product
//	DI       dst
//	SI       plane
//	R8       x
//	R12      bias
//	R11, R10 factors of the row, and those to come
//	CX       groups left in the row
//	R15      rows left
//	Y15      3 in each byte
//	Y13      1 in each word
TEXT ·twoBit256x256(SB), NOSPLIT, $0-8
	CONSTANT($0x03030303, X15, Y15)
	CONSTANT($0x00010001, X13, Y13)
	MOVQ p+0(FP), BX
	MOVQ Product_Dst(BX), DI
	MOVQ Product_Planes(BX), SI
	MOVQ (SI), SI
	MOVQ Product_Factors(BX), R11
	MOVQ Product_Count(BX), R15

row:
	VXORPS Y8, Y8, Y8
	MOVQ   Product_X(BX), R8
	MOVQ   Product_Bias(BX), R12
	MOVQ   Product_Groups(BX), CX
	MOVQ   R11, R10

group:
	FIELDS(0)
	VMOVDQA      Y0, Y4
	FIELDS(32)
	PREFETCHT0   8192(SI)
	VPADDW       Y4, Y0, Y0
	VPMADDWD     Y13, Y0, Y0
	VPADDD       (R12), Y0, Y0
	VPADDD       32(R12), Y0, Y0
	VBROADCASTSS (R10), Y6
	VCVTDQ2PS    Y0, Y0
	VFMADD231PS  Y6, Y0, Y8
	ADDQ         $64, SI
	ADDQ         $64, R12
	ADDQ         $256, R8
	ADDQ         $4, R10
	DECQ         CX
	JNZ          group
	SUM8
	ADDQ $4, DI
	MOVQ Product_FactorPitch(BX), CX
	LEAQ (R11)(CX*4), R11
	DECQ R15
	JNZ  row
	VZEROUPPER
	RET

// func expandHalf256(dst *float32, pitch int, s *Scales)
//
//	DI, DX dst, and dst of the row
//	R8     pitch in bytes
//	AX     s
//	SI     halfs
//	R9     with
//	R10    rows left
//	CX     blocks left
TEXT ·expandHalf256(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DX
	MOVQ pitch+8(FP), R8
	MOVQ s+16(FP), AX
	SHLQ $2, R8
	MOVQ Scales_Half(AX), SI
	MOVQ Scales_Rows(AX), R10

row:
	MOVQ DX, DI
	MOVQ Scales_With(AX), R9
	MOVQ Scales_Blocks(AX), CX
	SUBQ $8, CX
	JLT  last

eight:
	VCVTPH2PS (SI), Y0
	VMULPS    (R9), Y0, Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, R9
	ADDQ      $32, DI
	SUBQ      $8, CX
	JGE       eight

last:
	ADDQ $8, CX
	JLE  next

one:
	MOVWLZX   (SI), BX
	VMOVD     BX, X0
	VCVTPH2PS X0, X0
	VMULSS    (R9), X0, X0
	VMOVSS    X0, (DI)
	ADDQ      $2, SI
	ADDQ      $4, R9
	ADDQ      $4, DI
	DECQ      CX
	JNZ       one

next:
	ADDQ R8, DX
	DECQ R10
	JNZ  row
	VZEROUPPER
	RET

// func expandSub256(dst *float32, pitch int, s *Scales)
//
// Per is 8 or 16. Registers as in expandHalf256, but:
//
//	SI  sub
//	R11 supers
//	R12 blocks left of the super in Y2
//	R13 Per
//	R14 supers left in the row
TEXT ·expandSub256(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DX
	MOVQ pitch+8(FP), R8
	MOVQ s+16(FP), AX
	SHLQ $2, R8
	MOVQ Scales_Sub(AX), SI
	MOVQ Scales_Super(AX), R11
	MOVQ Scales_Per(AX), R13
	MOVQ Scales_Rows(AX), R10

row:
	MOVQ DX, DI
	MOVQ Scales_With(AX), R9
	MOVQ Scales_Blocks(AX), CX
	MOVQ Scales_Supers(AX), R14
	XORL R12, R12

some:
	TESTQ        R12, R12
	JNZ          same
	VPBROADCASTW (R11), X2
	VCVTPH2PS    X2, Y2
	ADDQ         $2, R11
	DECQ         R14
	MOVQ         R13, R12

same:
	SUBQ      $8, R12
	SUBQ      $8, CX
	JLT       last
	VPMOVSXBD (SI), Y0
	VCVTDQ2PS Y0, Y0
	VMULPS    Y2, Y0, Y0
	VMULPS    (R9), Y0, Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $8, SI
	ADDQ      $32, R9
	ADDQ      $32, DI
	TESTQ     CX, CX
	JNZ       some
	JMP       next

last:
	ADDQ $8, CX

one:
	MOVBLSX    (SI), BX
	VXORPS     X0, X0, X0
	VCVTSI2SSL BX, X0, X0
	VMULSS     X2, X0, X0
	VMULSS     (R9), X0, X0
	VMOVSS     X0, (DI)
	INCQ       SI
	ADDQ       $4, R9
	ADDQ       $4, DI
	DECQ       CX
	JNZ        one

next:
	LEAQ (R11)(R14*2), R11
	ADDQ R8, DX
	DECQ R10
	JNZ  row
	VZEROUPPER
	RET

// func subtract256(dst *float32, v *float32, eights int)
TEXT ·subtract256(SB), NOSPLIT, $0-24
	MOVQ   dst+0(FP), DI
	MOVQ   v+8(FP), SI
	MOVQ   eights+16(FP), CX
	VXORPS Y8, Y8, Y8

eight:
	VSUBPS (SI), Y8, Y8
	ADDQ   $32, SI
	DECQ   CX
	JNZ    eight
	SUM8
	VZEROUPPER
	RET

// func sumFours256(dst *int32, q *int8, eights int)
TEXT ·sumFours256(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ eights+16(FP), CX
	CONSTANT($0x01010101, X14, Y14)
	CONSTANT($0x00010001, X13, Y13)

eight:
	VPMADDUBSW (SI), Y14, Y0
	VPMADDWD   Y13, Y0, Y0
	VMOVDQU    Y0, (DI)
	ADDQ       $32, SI
	ADDQ       $32, DI
	DECQ       CX
	JNZ        eight
	VZEROUPPER
	RET
