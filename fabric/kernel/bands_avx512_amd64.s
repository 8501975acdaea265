//go:build !noasm

// This file multiplies bands in AVX-512, by one, two or four vectors. A band is five rows whose
// planes share bytes.

#include "go_asm.h"
#include "textflag.h"

// AHEAD is how many bytes ahead of their use bytes are prefetched. The processor's own prefetching
// ends at each page.
#define AHEAD 320

// Three planes: r of a byte has digits of other weights. These tables give the highest digit of one
// of them times its power, plus the 5 that q is increased by, too.
DATA bandHighs<>+0(SB)/8, $0x0e05170e05170e05
DATA bandHighs<>+8(SB)/8, $0x17
DATA bandHighs<>+16(SB)/8, $0
DATA bandHighs<>+24(SB)/8, $0
DATA bandHighs<>+32(SB)/8, $0
DATA bandHighs<>+40(SB)/8, $0
DATA bandHighs<>+48(SB)/8, $0
DATA bandHighs<>+56(SB)/8, $0
// The table of the second weight.
DATA bandHighs<>+64(SB)/8, $0x17170e0e0e050505
DATA bandHighs<>+72(SB)/8, $0x17
DATA bandHighs<>+80(SB)/8, $0
DATA bandHighs<>+88(SB)/8, $0
DATA bandHighs<>+96(SB)/8, $0
DATA bandHighs<>+104(SB)/8, $0
DATA bandHighs<>+112(SB)/8, $0
DATA bandHighs<>+120(SB)/8, $0
GLOBL bandHighs<>(SB), RODATA, $128

// Two planes: tables by q + 5. They give q%9, q/9 and 3(q/9).
DATA bandPairs<>+0(SB)/8, $0x0201000000000000
DATA bandPairs<>+8(SB)/8, $0x0100080706050403
DATA bandPairs<>+16(SB)/8, $0x0008070605040302
DATA bandPairs<>+24(SB)/8, $0x0807060504030201
DATA bandPairs<>+32(SB)/8, $0
DATA bandPairs<>+40(SB)/8, $0
DATA bandPairs<>+48(SB)/8, $0
DATA bandPairs<>+56(SB)/8, $0
DATA bandPairs<>+64(SB)/8, $0x0000000000000000
DATA bandPairs<>+72(SB)/8, $0x0101000000000000
DATA bandPairs<>+80(SB)/8, $0x0201010101010101
DATA bandPairs<>+88(SB)/8, $0x0202020202020202
DATA bandPairs<>+96(SB)/8, $0
DATA bandPairs<>+104(SB)/8, $0
DATA bandPairs<>+112(SB)/8, $0
DATA bandPairs<>+120(SB)/8, $0
DATA bandPairs<>+128(SB)/8, $0x0000000000000000
DATA bandPairs<>+136(SB)/8, $0x0303000000000000
DATA bandPairs<>+144(SB)/8, $0x0603030303030303
DATA bandPairs<>+152(SB)/8, $0x0606060606060606
DATA bandPairs<>+160(SB)/8, $0
DATA bandPairs<>+168(SB)/8, $0
DATA bandPairs<>+176(SB)/8, $0
DATA bandPairs<>+184(SB)/8, $0
GLOBL bandPairs<>(SB), RODATA, $192

// Registers of these products:
//
//	AX       float sums: five rows of each vector
//	SI       bytes of the super
//	R9       distance from one byte of a column to its next: 64, or 32 in half a super
//	BX       factors
//	R8       x of the first vector
//	R10, R11 bytes of one vector, and of three
//	R12, R13 bias and scale of the first vector
//	R14, R15 bytes of the bias of one vector, and of three
//	CX       blocks left of the row
//	DX       stripes left of the super
//	DI       dst
//	Z31      40 in each byte
//	Z30      8 in each byte
//	Z29, Z28 the maps of a byte's upper five bits, and of its lower three
//	K2       the lanes of the super
//	Z8-Z27   integers: Z(8+4r+v) has those of row r and vector v
#define BEGIN \
	LEAQ 63(SP), AX                \
	ANDQ $-64, AX                  \
	MOVQ b+0(FP), BX               \
	MOVQ Bands_Dst(BX), DI         \
	MOVQ Bands_Count(BX), CX       \
	MOVQ CX, 1352(SP)              \
	MOVQ Bands_Bytes(BX), SI       \
	MOVQ SI, 1344(SP)              \
	MOVQ Bands_Blocks(BX), R14     \
	ADDQ $15, R14                  \
	SHRQ $4, R14                   \
	SHLQ $6, R14                   \
	LEAQ (R14)(R14*2), R15         \
	LEAQ (R14*8), R10              \
	LEAQ (R10)(R10*2), R11         \
	MOVL $0x28282828, CX           \
	VPBROADCASTD CX, Z31           \
	MOVL $0x08080808, CX           \
	VPBROADCASTD CX, Z30           \
	MOVQ $0x0810204080000000, CX   \ // the highest byte determines bit 0
	VPBROADCASTQ CX, Z29           \
	MOVQ $0x0102040000000000, CX   \
	VPBROADCASTQ CX, Z28

// BAND begins a band. R9 has the bytes of its columns meanwhile.
#define BAND(PLANES) \
	MOVQ b+0(FP), DX               \
	MOVQ 1344(SP), SI              \
	MOVQ Bands_Blocks(DX), CX      \
	IMUL3Q $(32*PLANES), CX, BX    \
	ADDQ SI, BX                    \
	MOVQ Bands_X(DX), R8           \
	MOVQ Bands_Bias(DX), R12       \
	MOVQ Bands_Scale(DX), R13      \
	VPXORD Z0, Z0, Z0

#define ZERO(N) \
	VMOVUPS Z0, (320*N+0)(AX)      \
	VMOVUPS Z0, (320*N+64)(AX)     \
	VMOVUPS Z0, (320*N+128)(AX)    \
	VMOVUPS Z0, (320*N+192)(AX)    \
	VMOVUPS Z0, (320*N+256)(AX)

// SUPER begins a super of 16 blocks, or the 8 blocks at the end of a row.
#define SUPER(WHOLE) \
	MOVL $64, R9                   \
	MOVL $0xffff, DX               \
	CMPQ CX, $16                   \
	JGE  WHOLE                     \
	MOVL $32, R9                   \
	MOVL $0xff, DX

#define BIAS(FROM, A, B, C, D, E) \
	VMOVDQU32 FROM, A              \
	VMOVDQA64 A, B                 \
	VMOVDQA64 A, C                 \
	VMOVDQA64 A, D                 \
	VMOVDQA64 A, E

#define VECTORS1 \
	VMOVDQU64 (R8), Z4
#define VECTORS2 \
	VECTORS1                       \
	VMOVDQU64 (R8)(R10*1), Z5
#define VECTORS4 \
	VECTORS2                       \
	VMOVDQU64 (R8)(R10*2), Z6      \
	VMOVDQU64 (R8)(R11*1), Z7

#define DOT1(W, A, B, C, D) \
	VPDPBUSD Z4, W, A
#define DOT2(W, A, B, C, D) \
	VPDPBUSD Z4, W, A              \
	VPDPBUSD Z5, W, B
#define DOT4(W, A, B, C, D) \
	VPDPBUSD Z4, W, A              \
	VPDPBUSD Z5, W, B              \
	VPDPBUSD Z6, W, C              \
	VPDPBUSD Z7, W, D

// SPLIT splits bytes: Q gets q + 5, R gets r. Z0 and K1 are overwritten.
#define SPLIT(FROM, Q, R) \
	VMOVDQU64 FROM, Z0             \
	VPCMPUB   $5, Z31, Z0, K1      \
	VMOVDQA64 Z0, Q                \
	VMOVDQA64 Z30, R               \
	VGF2P8AFFINEQB $0, Z29, Z0, K1, Q \
	VGF2P8AFFINEQB $0, Z28, Z0, K1, R

// STRIPE3 multiplies four columns of each block, for the five rows of three planes.
#define STRIPE3(DOT, VECTORS, FIRST, SECOND) \
	VECTORS                        \
	PREFETCHT0 AHEAD(SI)           \
	PREFETCHT0 AHEAD(SI)(R9*1)     \
	PREFETCHT0 AHEAD(SI)(R9*2)     \
	SPLIT((SI)(R9*2), Z1, Z3)      \
	DOT(Z1, Z24, Z25, Z26, Z27)    \
	SPLIT((SI), Z1, Z2)            \
	DOT(Z1, Z8, Z9, Z10, Z11)      \
	VPERMB FIRST, Z3, Z0           \
	VPADDB Z0, Z2, Z2              \
	DOT(Z2, Z12, Z13, Z14, Z15)    \
	SPLIT((SI)(R9*1), Z1, Z2)      \
	DOT(Z1, Z16, Z17, Z18, Z19)    \
	VPERMB SECOND, Z3, Z0          \
	VPADDB Z0, Z2, Z2              \
	DOT(Z2, Z20, Z21, Z22, Z23)    \
	ADDQ   R9, SI                  \
	LEAQ   (SI)(R9*2), SI

// STRIPE2 does so for two planes.
#define STRIPE2(DOT, VECTORS) \
	VECTORS                        \
	PREFETCHT0 AHEAD(SI)           \
	PREFETCHT0 AHEAD(SI)(R9*1)     \
	SPLIT((SI), Z1, Z2)            \
	DOT(Z2, Z8, Z9, Z10, Z11)      \
	VPERMB bandPairs<>+0(SB), Z1, Z2 \
	VPERMB bandPairs<>+64(SB), Z1, Z3 \
	DOT(Z2, Z12, Z13, Z14, Z15)    \
	SPLIT((SI)(R9*1), Z1, Z2)      \
	DOT(Z2, Z16, Z17, Z18, Z19)    \
	VPERMB bandPairs<>+0(SB), Z1, Z2 \
	VPERMB bandPairs<>+128(SB), Z1, Z0 \
	DOT(Z2, Z20, Z21, Z22, Z23)    \
	VPADDB Z0, Z3, Z3              \
	DOT(Z3, Z24, Z25, Z26, Z27)    \
	LEAQ   (SI)(R9*2), SI

// FACTORS reads the factors of a row.
#define FACTORS \
	VCVTPH2PS.Z (BX), K2, Z0       \
	ADDQ DX, BX

// SCALED adds the integer of a row, times its factors, to the float sums of the row.
#define SCALED(SCALE, SUMS, OFFSET) \
	VMULPS    SCALE, Z0, Z1        \
	VCVTDQ2PS SUMS, SUMS           \
	VMOVUPS   OFFSET(AX), Z2       \
	VFMADD231PS Z1, SUMS, Z2       \
	VMOVUPS   Z2, OFFSET(AX)

// TOTAL adds up sixteen floats and writes the sum to TO.
#define TOTAL(OFFSET, TO) \
	VMOVUPS       OFFSET(AX), Z0   \
	VEXTRACTF64X4 $1, Z0, Y1       \
	VADDPS        Y1, Y0, Y1       \
	VEXTRACTF128  $1, Y1, X2       \
	VADDPS        X2, X1, X1       \
	VMOVHLPS      X1, X1, X2       \
	VADDPS        X2, X1, X1       \
	VMOVSHDUP     X1, X2           \
	VADDSS        X2, X1, X1       \
	VMOVSS        X1, TO

#define TOTALS(N) \
	TOTAL((320*N+0), (32*N+0)(DI)) \
	TOTAL((320*N+64), (32*N+4)(DI)) \
	TOTAL((320*N+128), (32*N+8)(DI)) \
	TOTAL((320*N+192), (32*N+12)(DI)) \
	TOTAL((320*N+256), (32*N+16)(DI))

// NEXTBAND goes to the next band, and sets the flags by the number of bands left.
#define NEXTBAND(VECTORS) \
	ADDQ $(32*VECTORS), DI         \
	MOVQ b+0(FP), DX               \
	MOVQ Bands_Pitch(DX), DX       \
	ADDQ DX, 1344(SP)              \
	DECQ 1352(SP)

#define ROWS1 \
	MOVQ R9, DX                    \
	SHRQ $1, DX                    \
	VMOVUPS (R13), Z4              \
	FACTORS                        \
	SCALED(Z4, Z8, 0)              \
	FACTORS                        \
	SCALED(Z4, Z12, 64)            \
	FACTORS                        \
	SCALED(Z4, Z16, 128)           \
	FACTORS                        \
	SCALED(Z4, Z20, 192)           \
	FACTORS                        \
	SCALED(Z4, Z24, 256)

#define ROWS2 \
	MOVQ R9, DX                    \
	SHRQ $1, DX                    \
	VMOVUPS (R13), Z4              \
	VMOVUPS (R13)(R14*1), Z5       \
	FACTORS                        \
	SCALED(Z4, Z8, 0)              \
	SCALED(Z5, Z9, 320)            \
	FACTORS                        \
	SCALED(Z4, Z12, 64)            \
	SCALED(Z5, Z13, 384)           \
	FACTORS                        \
	SCALED(Z4, Z16, 128)           \
	SCALED(Z5, Z17, 448)           \
	FACTORS                        \
	SCALED(Z4, Z20, 192)           \
	SCALED(Z5, Z21, 512)           \
	FACTORS                        \
	SCALED(Z4, Z24, 256)           \
	SCALED(Z5, Z25, 576)

#define ROW4(A, B, C, D, N) \
	FACTORS                        \
	SCALED(Z4, A, (64*N))          \
	SCALED(Z5, B, (64*N+320))      \
	SCALED(Z6, C, (64*N+640))      \
	SCALED(Z7, D, (64*N+960))

#define ROWS4 \
	MOVQ R9, DX                    \
	SHRQ $1, DX                    \
	VMOVUPS (R13), Z4              \
	VMOVUPS (R13)(R14*1), Z5       \
	VMOVUPS (R13)(R14*2), Z6       \
	VMOVUPS (R13)(R15*1), Z7       \
	ROW4(Z8, Z9, Z10, Z11, 0)      \
	ROW4(Z12, Z13, Z14, Z15, 1)    \
	ROW4(Z16, Z17, Z18, Z19, 2)    \
	ROW4(Z20, Z21, Z22, Z23, 3)    \
	ROW4(Z24, Z25, Z26, Z27, 4)

// func bandsThree1x512(b *Bands)
TEXT ·bandsThree1x512(SB), 0, $1360-8
	BEGIN
	VMOVDQU64 bandHighs<>+0(SB), Z6
	VMOVDQU64 bandHighs<>+64(SB), Z7

band:
	BAND(3)
	ZERO(0)

super:
	SUPER(whole)

whole:
	KMOVW DX, K2
	MOVL $8, DX
	BIAS((R12), Z8, Z12, Z16, Z20, Z24)

stripe:
	STRIPE3(DOT1, VECTORS1, Z6, Z7)
	ADDQ $64, R8
	DECQ DX
	JNZ  stripe
	ROWS1
	ADDQ $64, R12
	ADDQ $64, R13
	SUBQ $16, CX
	JG   super
	TOTALS(0)
	NEXTBAND(1)
	JNZ  band
	VZEROUPPER
	RET

// func bandsThree2x512(b *Bands)
TEXT ·bandsThree2x512(SB), 0, $1360-8
	BEGIN
	VMOVDQU64 bandHighs<>+0(SB), Z6
	VMOVDQU64 bandHighs<>+64(SB), Z7

band:
	BAND(3)
	ZERO(0)
	ZERO(1)

super:
	SUPER(whole)

whole:
	KMOVW DX, K2
	MOVL $8, DX
	BIAS((R12), Z8, Z12, Z16, Z20, Z24)
	BIAS((R12)(R14*1), Z9, Z13, Z17, Z21, Z25)

stripe:
	STRIPE3(DOT2, VECTORS2, Z6, Z7)
	ADDQ $64, R8
	DECQ DX
	JNZ  stripe
	ROWS2
	ADDQ $64, R12
	ADDQ $64, R13
	SUBQ $16, CX
	JG   super
	TOTALS(0)
	TOTALS(1)
	NEXTBAND(2)
	JNZ  band
	VZEROUPPER
	RET

// func bandsThree4x512(b *Bands)
TEXT ·bandsThree4x512(SB), 0, $1360-8
	BEGIN

band:
	BAND(3)
	ZERO(0)
	ZERO(1)
	ZERO(2)
	ZERO(3)

super:
	SUPER(whole)

whole:
	KMOVW DX, K2
	MOVL $8, DX
	BIAS((R12), Z8, Z12, Z16, Z20, Z24)
	BIAS((R12)(R14*1), Z9, Z13, Z17, Z21, Z25)
	BIAS((R12)(R14*2), Z10, Z14, Z18, Z22, Z26)
	BIAS((R12)(R15*1), Z11, Z15, Z19, Z23, Z27)

stripe:
	STRIPE3(DOT4, VECTORS4, bandHighs<>+0(SB), bandHighs<>+64(SB))
	ADDQ $64, R8
	DECQ DX
	JNZ  stripe
	ROWS4
	ADDQ $64, R12
	ADDQ $64, R13
	SUBQ $16, CX
	JG   super
	TOTALS(0)
	TOTALS(1)
	TOTALS(2)
	TOTALS(3)
	NEXTBAND(4)
	JNZ  band
	VZEROUPPER
	RET

// func bandsTwo1x512(b *Bands)
TEXT ·bandsTwo1x512(SB), 0, $1360-8
	BEGIN

band:
	BAND(2)
	ZERO(0)

super:
	SUPER(whole)

whole:
	KMOVW DX, K2
	MOVL $8, DX
	BIAS((R12), Z8, Z12, Z16, Z20, Z24)

stripe:
	STRIPE2(DOT1, VECTORS1)
	ADDQ $64, R8
	DECQ DX
	JNZ  stripe
	ROWS1
	ADDQ $64, R12
	ADDQ $64, R13
	SUBQ $16, CX
	JG   super
	TOTALS(0)
	NEXTBAND(1)
	JNZ  band
	VZEROUPPER
	RET

// func bandsTwo2x512(b *Bands)
TEXT ·bandsTwo2x512(SB), 0, $1360-8
	BEGIN

band:
	BAND(2)
	ZERO(0)
	ZERO(1)

super:
	SUPER(whole)

whole:
	KMOVW DX, K2
	MOVL $8, DX
	BIAS((R12), Z8, Z12, Z16, Z20, Z24)
	BIAS((R12)(R14*1), Z9, Z13, Z17, Z21, Z25)

stripe:
	STRIPE2(DOT2, VECTORS2)
	ADDQ $64, R8
	DECQ DX
	JNZ  stripe
	ROWS2
	ADDQ $64, R12
	ADDQ $64, R13
	SUBQ $16, CX
	JG   super
	TOTALS(0)
	TOTALS(1)
	NEXTBAND(2)
	JNZ  band
	VZEROUPPER
	RET

// func bandsTwo4x512(b *Bands)
TEXT ·bandsTwo4x512(SB), 0, $1360-8
	BEGIN

band:
	BAND(2)
	ZERO(0)
	ZERO(1)
	ZERO(2)
	ZERO(3)

super:
	SUPER(whole)

whole:
	KMOVW DX, K2
	MOVL $8, DX
	BIAS((R12), Z8, Z12, Z16, Z20, Z24)
	BIAS((R12)(R14*1), Z9, Z13, Z17, Z21, Z25)
	BIAS((R12)(R14*2), Z10, Z14, Z18, Z22, Z26)
	BIAS((R12)(R15*1), Z11, Z15, Z19, Z23, Z27)

stripe:
	STRIPE2(DOT4, VECTORS4)
	ADDQ $64, R8
	DECQ DX
	JNZ  stripe
	ROWS4
	ADDQ $64, R12
	ADDQ $64, R13
	SUBQ $16, CX
	JG   super
	TOTALS(0)
	TOTALS(1)
	TOTALS(2)
	TOTALS(3)
	NEXTBAND(4)
	JNZ  band
	VZEROUPPER
	RET
