//go:build !noasm

// This file multiplies bands in AVX2. A band is five rows whose planes share bytes. The loops
// process eight blocks at a time, which are half a super.

#include "go_asm.h"
#include "textflag.h"

// AHEAD is how many bytes ahead of their use bytes are prefetched: a super of three planes. The
// lines of a super are read twice, one half at a time.
#define AHEAD 1536

// EACH defines a constant of 32 equal bytes.
#define EACH(NAME, EIGHT) \
DATA NAME<>+0(SB)/8, $EIGHT    \
DATA NAME<>+8(SB)/8, $EIGHT    \
DATA NAME<>+16(SB)/8, $EIGHT   \
DATA NAME<>+24(SB)/8, $EIGHT   \
GLOBL NAME<>(SB), RODATA, $32

EACH(bandFive, 0x1f1f1f1f1f1f1f1f)
EACH(bandThree, 0x0707070707070707)
EACH(bandFour, 0x0404040404040404)
EACH(bandEight, 0x0808080808080808)
EACH(bandNibble, 0x0f0f0f0f0f0f0f0f)
EACH(bandNine, 0x0d0d0d0d0d0d0d0d)
EACH(bandTwice, 0x1616161616161616)
EACH(bandOnes, 0x0001000100010001)

// TABLE defines a constant of 16 bytes, which are stored twice.
#define TABLE(NAME, LOW, HIGH) \
DATA NAME<>+0(SB)/8, $LOW      \
DATA NAME<>+8(SB)/8, $HIGH     \
DATA NAME<>+16(SB)/8, $LOW     \
DATA NAME<>+24(SB)/8, $HIGH    \
GLOBL NAME<>(SB), RODATA, $32

// Three planes: r of a byte has digits of other weights. These tables give the highest digit of one
// of them times its power, plus the 5 that q is increased by, too.
TABLE(bandFirst, 0x0e05170e05170e05, 0x17)
TABLE(bandSecond, 0x17170e0e0e050505, 0x17)

// Two planes: tables by -(q/9) & 15. They give what turns q + 5 into q%9, then q/9, and 3(q/9).
TABLE(bandRest, 0xfb, 0xf2e9000000000000)
TABLE(bandDigit, 0, 0x0102000000000000)
TABLE(bandHigh, 0, 0x0306000000000000)

// Registers of these products:
//
//	AX       float sums: five rows of each vector
//	SI, R10  bytes of the half super, and those of the stripe
//	R9       distance from one byte of a column to its next: 64, or 32 if a super has only one half
//	BX       factors
//	R8       x
//	R12      bias
//	R13      scale
//	R11      halves left of the super
//	CX       blocks left of the row
//	DX       stripes left
//	DI       dst
//	R15      what is prefetched
//	Y3-Y7    integers of the rows in 32 bits
//	Y8-Y12   integers of the rows in 16 bits
//	Y15      8 in each byte
//
// Most of the following macros overwrite Y0-Y2, Y13 and Y14.
#define BEGIN(SUMS) \
	LEAQ 63(SP), AX                \
	ANDQ $-64, AX                  \
	MOVQ b+0(FP), BX               \
	MOVQ Bands_Dst(BX), DI         \
	MOVQ Bands_Count(BX), CX       \
	MOVQ CX, (SUMS+72)(SP)         \
	MOVQ Bands_Bytes(BX), SI       \
	MOVQ SI, (SUMS+64)(SP)         \
	VMOVDQU bandEight<>(SB), Y15

// BAND begins a band.
#define BAND(PLANES, SUMS) \
	MOVQ b+0(FP), DX               \
	MOVQ (SUMS+64)(SP), SI         \
	MOVQ Bands_Blocks(DX), CX      \
	IMUL3Q $(32*PLANES), CX, BX    \
	ADDQ SI, BX                    \
	MOVQ Bands_X(DX), R8           \
	MOVQ Bands_Bias(DX), R12       \
	MOVQ Bands_Scale(DX), R13      \
	LEAQ AHEAD(SI), R15            \
	VPXOR Y0, Y0, Y0

#define ZERO(N) \
	VMOVUPS Y0, (160*N+0)(AX)      \
	VMOVUPS Y0, (160*N+32)(AX)     \
	VMOVUPS Y0, (160*N+64)(AX)     \
	VMOVUPS Y0, (160*N+96)(AX)     \
	VMOVUPS Y0, (160*N+128)(AX)

// SUPER begins a super of 16 blocks, or the 8 blocks at the end of a row.
#define SUPER(WHOLE) \
	MOVL $64, R9                   \
	MOVL $2, R11                   \
	CMPQ CX, $16                   \
	JGE  WHOLE                     \
	MOVL $32, R9                   \
	MOVL $1, R11

// NEXTHALF goes to the next half of a super, and sets the flags by the number of halves left.
#define NEXTHALF \
	ADDQ $32, SI                   \
	ADDQ $32, R8                   \
	ADDQ $32, R12                  \
	ADDQ $32, R13                  \
	ADDQ $16, BX                   \
	DECQ R11

// NEXTSUPER goes to the next super, and sets the flags by the number of blocks left. It assumes
// that the super was whole: behind half a super nothing is read.
#define NEXTSUPER(PLANES) \
	ADDQ $(512*PLANES-64), SI      \
	ADDQ $448, R8                  \
	ADDQ $128, BX                  \
	SUBQ $16, CX

#define NARROW \
	VPXOR Y8, Y8, Y8               \
	VPXOR Y9, Y9, Y9               \
	VPXOR Y10, Y10, Y10            \
	VPXOR Y11, Y11, Y11            \
	VPXOR Y12, Y12, Y12

// FIRST turns integers of 16 bits into integers of 32 bits, with the bias. MORE adds further ones.
#define FIRST(BIAS) \
	VMOVDQU BIAS, Y0               \
	VMOVDQU bandOnes<>(SB), Y1     \
	VPMADDWD Y1, Y8, Y3            \
	VPMADDWD Y1, Y9, Y4            \
	VPMADDWD Y1, Y10, Y5           \
	VPMADDWD Y1, Y11, Y6           \
	VPMADDWD Y1, Y12, Y7           \
	VPADDD Y0, Y3, Y3              \
	VPADDD Y0, Y4, Y4              \
	VPADDD Y0, Y5, Y5              \
	VPADDD Y0, Y6, Y6              \
	VPADDD Y0, Y7, Y7
#define MORE \
	VMOVDQU bandOnes<>(SB), Y1     \
	VPMADDWD Y1, Y8, Y8            \
	VPMADDWD Y1, Y9, Y9            \
	VPMADDWD Y1, Y10, Y10          \
	VPMADDWD Y1, Y11, Y11          \
	VPMADDWD Y1, Y12, Y12          \
	VPADDD Y8, Y3, Y3              \
	VPADDD Y9, Y4, Y4              \
	VPADDD Y10, Y5, Y5             \
	VPADDD Y11, Y6, Y6             \
	VPADDD Y12, Y7, Y7

// SCALED adds the integer of a row, times its factors, to the float sums of the row.
#define SCALED(FACTORS, SUMS, OFFSET) \
	VCVTPH2PS FACTORS, Y1          \
	VMULPS    Y0, Y1, Y1           \
	VCVTDQ2PS SUMS, SUMS           \
	VMOVUPS   OFFSET(AX), Y2       \
	VFMADD231PS Y1, SUMS, Y2       \
	VMOVUPS   Y2, OFFSET(AX)

// ROWS does so for all rows. DX is the number of bytes of a row's factors, R14 that of three rows.
#define ROWS(SCALE, N) \
	VMOVUPS SCALE, Y0              \
	SCALED((BX), Y3, (160*N+0))    \
	SCALED((BX)(DX*1), Y4, (160*N+32)) \
	SCALED((BX)(DX*2), Y5, (160*N+64)) \
	SCALED((BX)(R14*1), Y6, (160*N+96)) \
	SCALED((BX)(DX*4), Y7, (160*N+128))

#define PITCHES \
	MOVQ R9, DX                    \
	SHRQ $1, DX                    \
	LEAQ (DX)(DX*2), R14

// TOTAL adds up eight floats and writes the sum to TO.
#define TOTAL(OFFSET, TO) \
	VMOVUPS       OFFSET(AX), Y0   \
	VEXTRACTF128  $1, Y0, X1       \
	VADDPS        X1, X0, X1       \
	VMOVHLPS      X1, X1, X2       \
	VADDPS        X2, X1, X1       \
	VMOVSHDUP     X1, X2           \
	VADDSS        X2, X1, X1       \
	VMOVSS        X1, TO

#define TOTALS(N) \
	TOTAL((160*N+0), (32*N+0)(DI)) \
	TOTAL((160*N+32), (32*N+4)(DI)) \
	TOTAL((160*N+64), (32*N+8)(DI)) \
	TOTAL((160*N+96), (32*N+12)(DI)) \
	TOTAL((160*N+128), (32*N+16)(DI))

// NEXTBAND goes to the next band, and sets the flags by the number of bands left.
#define NEXTBAND(SUMS) \
	MOVQ b+0(FP), DX               \
	MOVQ Bands_Pitch(DX), DX       \
	ADDQ DX, (SUMS+64)(SP)         \
	DECQ (SUMS+72)(SP)

// SPLIT splits bytes: Q gets q + 5, R gets r. Y1 and Y2 are overwritten.
#define SPLIT(FROM, Q, R) \
	VMOVDQU   FROM, Q              \
	VPSRLW    $3, Q, Y1            \
	VPAND     bandFive<>(SB), Y1, Y1 \
	VPCMPGTB  bandFour<>(SB), Y1, Y2 \
	VPAND     bandThree<>(SB), Q, R \
	VPBLENDVB Y2, Y1, Q, Q         \
	VPBLENDVB Y2, R, Y15, R

// PAIR turns Q, the q + 5 of bytes of two planes, into q%9. INDEX gets the index of q/9 in the
// tables. Y1 is overwritten.
#define PAIR(Q, INDEX) \
	VPCMPGTB bandNine<>(SB), Q, INDEX \
	VPCMPGTB bandTwice<>(SB), Q, Y1 \
	VPADDB   Y1, INDEX, INDEX      \
	VPAND    bandNibble<>(SB), INDEX, INDEX \
	VMOVDQU  bandRest<>(SB), Y1    \
	VPSHUFB  INDEX, Y1, Y1         \
	VPADDB   Y1, Q, Q

// DOT adds products of weights and values of the vector to integers. PUT stores the weights. Y1 is
// overwritten.
#define DOT(W, SUMS, OFFSET) \
	VPMADDUBSW (R8)(DX*1), W, Y1   \
	VPADDW     Y1, SUMS, SUMS
#define PUT(W, SUMS, OFFSET) \
	VMOVDQU W, (OFFSET+640)(AX)(R14*1)

// STRIPE3 splits the bytes of four columns of eight blocks into the weights of five rows, for three
// planes.
#define STRIPE3(DO) \
	PREFETCHT0 (R15)               \
	PREFETCHT0 64(R15)             \
	ADDQ $96, R15                  \
	SPLIT((R10)(R9*2), Y0, Y14)    \
	DO(Y0, Y12, 128)               \
	SPLIT((R10), Y0, Y13)          \
	DO(Y0, Y8, 0)                  \
	VMOVDQU bandFirst<>(SB), Y2    \
	VPSHUFB Y14, Y2, Y2            \
	VPADDB Y2, Y13, Y13            \
	DO(Y13, Y9, 32)                \
	SPLIT((R10)(R9*1), Y0, Y13)    \
	DO(Y0, Y10, 64)                \
	VMOVDQU bandSecond<>(SB), Y2   \
	VPSHUFB Y14, Y2, Y2            \
	VPADDB Y2, Y13, Y13            \
	DO(Y13, Y11, 96)               \
	ADDQ   R9, R10                 \
	LEAQ   (R10)(R9*2), R10

// STRIPE2 does so for two planes.
#define STRIPE2(DO) \
	PREFETCHT0 (R15)               \
	ADDQ $64, R15                  \
	SPLIT((R10), Y0, Y13)          \
	DO(Y13, Y8, 0)                 \
	PAIR(Y0, Y14)                  \
	DO(Y0, Y9, 32)                 \
	SPLIT((R10)(R9*1), Y0, Y13)    \
	DO(Y13, Y10, 64)               \
	PAIR(Y0, Y13)                  \
	DO(Y0, Y11, 96)                \
	VMOVDQU bandDigit<>(SB), Y1    \
	VMOVDQU bandHigh<>(SB), Y2     \
	VPSHUFB Y14, Y1, Y1            \
	VPSHUFB Y13, Y2, Y2            \
	VPADDB  Y1, Y2, Y2             \
	DO(Y2, Y12, 128)               \
	LEAQ   (R10)(R9*2), R10

// For several vectors, the weights of eight stripes are computed once and stored behind the sums,
// at 640(AX): for each stripe five rows of 32 bytes.

// TIMES multiplies the weights of a row by the values in Y0.
#define TIMES(N, SUMS, ROW) \
	VMOVDQU    (640+160*N+32*ROW)(AX), Y1 \
	VPMADDUBSW Y0, Y1, Y1          \
	VPADDW     Y1, SUMS, SUMS

#define STRIPES(X, N) \
	VMOVDQU (64*N)(X), Y0          \
	TIMES(N, Y8, 0)                \
	TIMES(N, Y9, 1)                \
	TIMES(N, Y10, 2)               \
	TIMES(N, Y11, 3)               \
	TIMES(N, Y12, 4)

#define LOW(X) \
	STRIPES(X, 0)                  \
	STRIPES(X, 1)                  \
	STRIPES(X, 2)                  \
	STRIPES(X, 3)
#define HIGH(X) \
	STRIPES(X, 4)                  \
	STRIPES(X, 5)                  \
	STRIPES(X, 6)                  \
	STRIPES(X, 7)

// VECTOR3 multiplies a vector by the stored weights of three planes. Their integers need 32 bits
// after four stripes.
#define VECTOR3(N) \
	NARROW                         \
	LOW(R10)                       \
	FIRST((R15))                   \
	NARROW                         \
	HIGH(R10)                      \
	MORE                           \
	ROWS((CX), N)
#define VECTOR2(N) \
	NARROW                         \
	LOW(R10)                       \
	HIGH(R10)                      \
	FIRST((R15))                   \
	ROWS((CX), N)

// VECTORS begins the vectors of half a super: R10 gets their x, R15 their bias and CX their scale.
// NEXTVECTOR goes on to the next one. The number of bytes of a vector's x is at 2072(SP), that of
// its bias and of its scale at 2080(SP).
#define VECTORS \
	PITCHES                        \
	MOVQ CX, 2064(SP)              \
	MOVQ R15, 2088(SP)             \
	MOVQ R8, R10                   \
	MOVQ R12, R15                  \
	MOVQ R13, CX
#define NEXTVECTOR \
	ADDQ 2072(SP), R10             \
	ADDQ 2080(SP), R15             \
	ADDQ 2080(SP), CX
#define VECTORSEND \
	MOVQ 2064(SP), CX              \
	MOVQ 2088(SP), R15

#define BEGINSOME \
	BEGIN(1984)                    \
	MOVQ Bands_Blocks(BX), R14     \
	ADDQ $15, R14                  \
	SHRQ $4, R14                   \
	SHLQ $6, R14                   \
	MOVQ R14, 2080(SP)             \
	SHLQ $3, R14                   \
	MOVQ R14, 2072(SP)

// func bandsThree1x256(b *Bands)
TEXT ·bandsThree1x256(SB), 0, $304-8
	BEGIN(224)

band:
	BAND(3, 224)
	ZERO(0)

super:
	SUPER(half)

half:
	MOVQ SI, R10
	XORL DX, DX
	NARROW

low:
	STRIPE3(DOT)
	ADDQ $64, DX
	CMPQ DX, $256
	JLT  low
	FIRST((R12))
	NARROW

high:
	STRIPE3(DOT)
	ADDQ $64, DX
	CMPQ DX, $512
	JLT  high
	MORE
	PITCHES
	ROWS((R13), 0)
	NEXTHALF
	JNZ  half
	NEXTSUPER(3)
	JG   super
	TOTALS(0)
	ADDQ $32, DI
	NEXTBAND(224)
	JNZ  band
	VZEROUPPER
	RET

// func bandsTwo1x256(b *Bands)
TEXT ·bandsTwo1x256(SB), 0, $304-8
	BEGIN(224)

band:
	BAND(2, 224)
	ZERO(0)

super:
	SUPER(half)

half:
	MOVQ SI, R10
	XORL DX, DX
	NARROW

stripe:
	STRIPE2(DOT)
	ADDQ $64, DX
	CMPQ DX, $512
	JLT  stripe
	FIRST((R12))
	PITCHES
	ROWS((R13), 0)
	NEXTHALF
	JNZ  half
	NEXTSUPER(2)
	JG   super
	TOTALS(0)
	ADDQ $32, DI
	NEXTBAND(224)
	JNZ  band
	VZEROUPPER
	RET

// func bandsThreeSome256(b *Bands)
TEXT ·bandsThreeSome256(SB), 0, $2096-8
	BEGINSOME

band:
	BAND(3, 1984)
	ZERO(0)
	ZERO(1)
	ZERO(2)
	ZERO(3)

super:
	SUPER(half)

half:
	MOVQ SI, R10
	XORL R14, R14

stripe:
	STRIPE3(PUT)
	ADDQ $160, R14
	CMPQ R14, $1280
	JLT  stripe
	VECTORS
	VECTOR3(0)
	NEXTVECTOR
	VECTOR3(1)
	MOVQ b+0(FP), R14
	CMPQ Bands_Vectors(R14), $4
	JNE  done
	LEAQ (DX)(DX*2), R14
	NEXTVECTOR
	VECTOR3(2)
	NEXTVECTOR
	VECTOR3(3)

done:
	VECTORSEND
	NEXTHALF
	JNZ  half
	NEXTSUPER(3)
	JG   super
	TOTALS(0)
	TOTALS(1)
	MOVQ b+0(FP), R14
	MOVQ Bands_Vectors(R14), R14
	CMPQ R14, $4
	JNE  next
	TOTALS(2)
	TOTALS(3)

next:
	SHLQ $5, R14
	ADDQ R14, DI
	NEXTBAND(1984)
	JNZ  band
	VZEROUPPER
	RET

// func bandsTwoSome256(b *Bands)
TEXT ·bandsTwoSome256(SB), 0, $2096-8
	BEGINSOME

band:
	BAND(2, 1984)
	ZERO(0)
	ZERO(1)
	ZERO(2)
	ZERO(3)

super:
	SUPER(half)

half:
	MOVQ SI, R10
	XORL R14, R14

stripe:
	STRIPE2(PUT)
	ADDQ $160, R14
	CMPQ R14, $1280
	JLT  stripe
	VECTORS
	VECTOR2(0)
	NEXTVECTOR
	VECTOR2(1)
	MOVQ b+0(FP), R14
	CMPQ Bands_Vectors(R14), $4
	JNE  done
	LEAQ (DX)(DX*2), R14
	NEXTVECTOR
	VECTOR2(2)
	NEXTVECTOR
	VECTOR2(3)

done:
	VECTORSEND
	NEXTHALF
	JNZ  half
	NEXTSUPER(2)
	JG   super
	TOTALS(0)
	TOTALS(1)
	MOVQ b+0(FP), R14
	MOVQ Bands_Vectors(R14), R14
	CMPQ R14, $4
	JNE  next
	TOTALS(2)
	TOTALS(3)

next:
	SHLQ $5, R14
	ADDQ R14, DI
	NEXTBAND(1984)
	JNZ  band
	VZEROUPPER
	RET
