//go:build !noasm

// This file multiplies by one vector in AVX-512, with decoding and multiplying in one loop.

#include "go_asm.h"
#include "textflag.h"
#include "avx512_amd64.h"

// Decoding and multiplying are in one loop so that memory is read evenly. Registers of these products:
//
//	AX       the Product, or the header of a plane
//	DI       dst
//	SI       planes
//	DX       offset in planes
//	R8       x
//	R12      bias
//	R11, R10 factors of the row, and those to come
//	CX       groups left in the row
//	R15      rows left
//	BX, R13  temporary
#define BEGIN \
	MOVQ p+0(FP), AX               \
	MOVQ Product_Dst(AX), DI       \
	MOVQ Product_Planes(AX), SI    \
	MOVQ Product_Factors(AX), R11  \
	MOVQ Product_Count(AX), R15    \
	XORL DX, DX

#define ROW \
	VPXORD Z20, Z20, Z20           \
	VPXORD Z21, Z21, Z21           \
	MOVQ   p+0(FP), AX             \
	MOVQ   Product_X(AX), R8       \
	MOVQ   Product_Bias(AX), R12   \
	MOVQ   Product_Groups(AX), CX  \
	MOVQ   R11, R10

#define ENDROW \
	VADDPS Z21, Z20, Z20           \
	SUM                            \
	ADDQ   $4, DI                  \
	MOVQ   p+0(FP), AX             \
	MOVQ   Product_FactorPitch(AX), CX \
	LEAQ   (R11)(CX*4), R11        \
	DECQ   R15

// AHEAD is how many bytes ahead of its use a plane is prefetched. The processor's own prefetching
// ends at each page.
#define AHEAD 8192

#define TWOBIT256(ACC) \
	VMOVDQU64  (BX)(DX*1), Z0                 \
	PREFETCHT0 AHEAD(BX)(DX*1)                \
	VMOVDQU32  (R12), Z4                      \
	VPANDD     Z31, Z0, Z10                   \
	VGF2P8AFFINEQB $0, Z30, Z0, Z11           \
	VGF2P8AFFINEQB $0, Z29, Z0, Z12           \
	VGF2P8AFFINEQB $0, Z28, Z0, Z13           \
	VPDPBUSD   (R8), Z10, Z4                  \
	VPDPBUSD   64(R8), Z11, Z4                \
	VPDPBUSD   128(R8), Z12, Z4               \
	VPDPBUSD   192(R8), Z13, Z4               \
	VCVTDQ2PS  Z4, Z4                         \
	VFMADD231PS.BCST (R10), Z4, ACC           \
	ADDQ       $64, DX                        \
	ADDQ       $64, R12                       \
	ADDQ       $256, R8                       \
	ADDQ       $4, R10

#define DIGITS \
	VMOVDQU64  (BX)(DX*1), Z0       \
	PREFETCHT0 AHEAD(BX)(DX*1)      \
	QUOTIENT                        \
	VPERMB     Z24, Z2, Z10         \
	VPERMB     Z25, Z2, Z11         \
	VPERMB     Z26, Z1, Z12         \
	VPERMB     Z27, Z1, Z13         \
	VPERMB     Z28, Z1, Z14         \
	ADDQ       $64, DX

#define SCALE(N, SUMS, ACC) \
	VCVTDQ2PS  SUMS, SUMS           \
	VFMADD231PS.BCST (4*N)(R10), SUMS, ACC

// SKIP jumps to label if the group need not be read. AX, R13 and R14 are overwritten.
#define SKIP(ALL, LABEL) \
	MOVQ  p+0(FP), AX               \
	MOVQ  Product_Skip(AX), R14     \
	TESTQ R14, R14                  \
	JZ    ALL                       \
	MOVQ  DX, R13                   \
	SHRQ  $6, R13                   \
	CMPB  (R14)(R13*1), $0          \
	JNE   LABEL

// A stripe with the weights W, in blocks of 16 or 32: Z23 spreads its factors over the lanes.
#define STRIPE(N, W, FACTORS, SUMS, ACC) \
	VMOVDQU32   (64*N)(R12), SUMS     \
	VPERMPS     FACTORS, Z23, Z9      \
	VPDPBUSD    (64*N)(R8), W, SUMS   \
	VCVTDQ2PS   SUMS, SUMS            \
	VFMADD231PS Z9, SUMS, ACC

// func twoBit256x512(p *Product)
//
// One plane, blocks of 256. A group has ten instructions of arithmetic. Z31 has 3 in each byte,
// Z28-Z30 have the maps.
TEXT ·twoBit256x512(SB), NOSPLIT, $0-8
	BEGIN
	MOVQ (SI), BX
	MOVL $0x03030303, AX
	VPBROADCASTD AX, Z31
	MOVQ $0x0408000000000000, AX // the highest byte determines bit 0
	VPBROADCASTQ AX, Z30
	MOVQ $0x1020000000000000, AX
	VPBROADCASTQ AX, Z29
	MOVQ $0x4080000000000000, AX
	VPBROADCASTQ AX, Z28

row:
	ROW
	SUBQ $2, CX
	JLT  last

two:
	TWOBIT256(Z20)
	TWOBIT256(Z21)
	SUBQ $2, CX
	JGE  two

last:
	ADDQ $2, CX
	JLE  end
	TWOBIT256(Z20)

end:
	ENDROW
	JNZ row
	VZEROUPPER
	RET

// func pt5x256x512(p *Product, t *tables)
//
// One plane, blocks of 256. Four groups are five blocks, whose sums are Z15-Z19. Constants as in
// decodePT5x512.
TEXT ·pt5x256x512(SB), NOSPLIT, $0-16
	BEGIN
	MOVQ (SI), BX
	MOVQ t+8(FP), R9
	VMOVDQU64 tables_nine(R9), Z29
	VMOVDQU64 (tables_pt5+0)(R9), Z24
	VMOVDQU64 (tables_pt5+64)(R9), Z25
	VMOVDQU64 (tables_pt5+128)(R9), Z26
	VMOVDQU64 (tables_pt5+192)(R9), Z27
	VMOVDQU64 (tables_pt5+256)(R9), Z28
	MOVL      $0x00ff00ff, AX
	VPBROADCASTD AX, Z31
	MOVL      $0x1c721c72, AX
	VPBROADCASTD AX, Z30

row:
	ROW

group:
	DIGITS
	VMOVDQU32 (R12), Z15
	VMOVDQU32 64(R12), Z16
	VPDPBUSD  (R8), Z10, Z15
	VPDPBUSD  64(R8), Z11, Z15
	VPDPBUSD  128(R8), Z12, Z15
	VPDPBUSD  192(R8), Z13, Z15
	VPDPBUSD  256(R8), Z14, Z16
	SCALE(0, Z15, Z20)
	DECQ      CX
	JZ        one
	DIGITS
	VMOVDQU32 128(R12), Z17
	VPDPBUSD  320(R8), Z10, Z16
	VPDPBUSD  384(R8), Z11, Z16
	VPDPBUSD  448(R8), Z12, Z16
	VPDPBUSD  512(R8), Z13, Z17
	VPDPBUSD  576(R8), Z14, Z17
	SCALE(1, Z16, Z21)
	DECQ      CX
	JZ        two
	DIGITS
	VMOVDQU32 192(R12), Z18
	VPDPBUSD  640(R8), Z10, Z17
	VPDPBUSD  704(R8), Z11, Z17
	VPDPBUSD  768(R8), Z12, Z18
	VPDPBUSD  832(R8), Z13, Z18
	VPDPBUSD  896(R8), Z14, Z18
	SCALE(2, Z17, Z20)
	DECQ      CX
	JZ        three
	DIGITS
	VMOVDQU32 256(R12), Z19
	VPDPBUSD  960(R8), Z10, Z18
	VPDPBUSD  1024(R8), Z11, Z19
	VPDPBUSD  1088(R8), Z12, Z19
	VPDPBUSD  1152(R8), Z13, Z19
	VPDPBUSD  1216(R8), Z14, Z19
	SCALE(3, Z18, Z21)
	SCALE(4, Z19, Z20)
	ADDQ      $1280, R8
	ADDQ      $320, R12
	ADDQ      $20, R10
	DECQ      CX
	JNZ       group
	JMP       end

one:
	SCALE(1, Z16, Z21)
	JMP end

two:
	SCALE(2, Z17, Z20)
	JMP end

three:
	SCALE(3, Z18, Z21)

end:
	ENDROW
	JNZ row
	VZEROUPPER
	RET

// func pt5Partx512(p *Product, t *tables, spread *[16]int32)
//
// Any number of planes, blocks of 16 or 32. Constants as in decodePT5x512. R9 has the bytes of a
// stripe's factors.
TEXT ·pt5Partx512(SB), NOSPLIT, $0-24
	BEGIN
	MOVQ t+8(FP), R9
	MOVQ spread+16(FP), BX
	VMOVDQU32 (BX), Z23
	VMOVDQU64 tables_nine(R9), Z29
	VMOVDQU64 (tables_pt5+0)(R9), Z24
	VMOVDQU64 (tables_pt5+64)(R9), Z25
	VMOVDQU64 (tables_pt5+128)(R9), Z26
	VMOVDQU64 (tables_pt5+192)(R9), Z27
	VMOVDQU64 (tables_pt5+256)(R9), Z28
	MOVL      $0x00ff00ff, BX
	VPBROADCASTD BX, Z31
	MOVL      $0x1c721c72, BX
	VPBROADCASTD BX, Z30
	MOVQ      $16, R9
	CMPQ      Product_Block(AX), $16
	JEQ       row
	MOVQ      $8, R9

row:
	ROW

group:
	SKIP(all, skip)

all:
	MOVQ      (SI), BX
	DIGITS
	MOVQ      (Product_Planes+8)(AX), R13
	DECQ      R13
	JZ        multiply
	MOVQ      SI, AX
	MOVQ      t+8(FP), BX
	LEAQ      tables_pt5(BX), BX

plane:
	ADDQ      $24, AX
	ADDQ      $320, BX
	MOVQ      (AX), R14
	VMOVDQU64 -64(R14)(DX*1), Z0
	PREFETCHT0 AHEAD(R14)(DX*1)
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
	DECQ      R13
	JNZ       plane

multiply:
	LEAQ      (R9)(R9*2), R13
	STRIPE(0, Z10, (R10), Z15, Z20)
	STRIPE(1, Z11, (R10)(R9*1), Z16, Z21)
	STRIPE(2, Z12, (R10)(R9*2), Z17, Z20)
	STRIPE(3, Z13, (R10)(R13*1), Z18, Z21)
	STRIPE(4, Z14, (R10)(R9*4), Z19, Z20)

next:
	ADDQ      $320, R8
	ADDQ      $320, R12
	LEAQ      (R10)(R9*4), R10
	ADDQ      R9, R10
	DECQ      CX
	JNZ       group
	ENDROW
	JNZ       row
	VZEROUPPER
	RET

skip:
	ADDQ $64, DX
	JMP  next

// func twoBitPartx512(p *Product, t *tables, spread *[16]int32)
//
// The same for two-bit planes. Constants as in decodeTwoBit512.
TEXT ·twoBitPartx512(SB), NOSPLIT, $0-24
	BEGIN
	MOVQ spread+16(FP), BX
	VMOVDQU32 (BX), Z23
	MOVL $0x03030303, BX
	VPBROADCASTD BX, Z31
	MOVL $0x0f0f0f0f, BX
	VPBROADCASTD BX, Z27
	MOVQ $0x0408000000000000, BX
	VPBROADCASTQ BX, Z30
	MOVQ $0x1020000000000000, BX
	VPBROADCASTQ BX, Z29
	MOVQ $0x4080000000000000, BX
	VPBROADCASTQ BX, Z28
	MOVQ $16, R9
	CMPQ Product_Block(AX), $16
	JEQ  row
	MOVQ $8, R9

row:
	ROW

group:
	SKIP(all, next)

all:
	MOVQ       (SI), BX
	VMOVDQU64  (BX)(DX*1), Z0
	PREFETCHT0 AHEAD(BX)(DX*1)
	VPANDD     Z31, Z0, Z10
	VGF2P8AFFINEQB $0, Z30, Z0, Z11
	VGF2P8AFFINEQB $0, Z29, Z0, Z12
	VGF2P8AFFINEQB $0, Z28, Z0, Z13
	MOVQ       (Product_Planes+8)(AX), R13
	DECQ       R13
	JZ         multiply
	MOVQ       SI, AX
	MOVQ       t+8(FP), BX
	LEAQ       tables_twoBit(BX), BX

plane:
	ADDQ       $24, AX
	ADDQ       $128, BX
	MOVQ       (AX), R14
	VMOVDQU64  (R14)(DX*1), Z0
	PREFETCHT0 AHEAD(R14)(DX*1)
	VPSRLW     $4, Z0, Z1
	VPANDD     Z27, Z0, Z0
	VPANDD     Z27, Z1, Z1
	VPERMB     (BX), Z0, Z4
	VPERMB     64(BX), Z0, Z5
	VPERMB     (BX), Z1, Z6
	VPERMB     64(BX), Z1, Z7
	VPADDB     Z4, Z10, Z10
	VPADDB     Z5, Z11, Z11
	VPADDB     Z6, Z12, Z12
	VPADDB     Z7, Z13, Z13
	DECQ       R13
	JNZ        plane

multiply:
	LEAQ       (R9)(R9*2), R13
	STRIPE(0, Z10, (R10), Z15, Z20)
	STRIPE(1, Z11, (R10)(R9*1), Z16, Z21)
	STRIPE(2, Z12, (R10)(R9*2), Z17, Z20)
	STRIPE(3, Z13, (R10)(R13*1), Z18, Z21)

next:
	ADDQ       $64, DX
	ADDQ       $256, R8
	ADDQ       $256, R12
	LEAQ       (R10)(R9*4), R10
	DECQ       CX
	JNZ        group
	ENDROW
	JNZ        row
	VZEROUPPER
	RET
