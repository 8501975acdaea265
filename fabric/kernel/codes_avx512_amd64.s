//go:build !noasm

// This file multiplies Q2_0 blocks in AVX-512.

#include "go_asm.h"
#include "textflag.h"
#include "avx512_amd64.h"

// AHEAD is how many bytes beyond the first row memory is prefetched. It is prefetched in the order
// of addresses, not row by row.
#define AHEAD 8192

// codeBytes has the offsets of the codes of a quad in the 64 bytes from its beginning. The last
// eight codes are further behind. codeHalfs has the offsets of its halfs.
DATA codeBytes<>+0(SB)/8, $0x0908070605040302
DATA codeBytes<>+8(SB)/8, $0x11100f0e0d0c0b0a
DATA codeBytes<>+16(SB)/8, $0x1b1a191817161514
DATA codeBytes<>+24(SB)/8, $0x232221201f1e1d1c
DATA codeBytes<>+32(SB)/8, $0x2d2c2b2a29282726
DATA codeBytes<>+40(SB)/8, $0x3534333231302f2e
DATA codeBytes<>+48(SB)/8, $0x3f3e3d3c3b3a3938
DATA codeBytes<>+56(SB)/8, $0
GLOBL codeBytes<>(SB), RODATA, $64
DATA codeHalfs<>+0(SB)/8, $0
DATA codeHalfs<>+8(SB)/8, $0x0009000900090009
DATA codeHalfs<>+16(SB)/8, $0x0012001200120012
DATA codeHalfs<>+24(SB)/8, $0x001b001b001b001b
GLOBL codeHalfs<>(SB), RODATA, $32

// CODECONSTANTS sets the constants. BX is overwritten.
//
//	Z31     3 in each byte
//	Z28-Z30 the maps of the other fields (see twoBitFour256x512)
//	Z27     codeBytes
//	Z26     codeHalfs
//	K1      the last eight bytes of 64
#define CODECONSTANTS \
	MOVQ $0x0408000000000000, BX   \
	VPBROADCASTQ BX, Z30           \
	MOVQ $0x1020000000000000, BX   \
	VPBROADCASTQ BX, Z29           \
	MOVQ $0x4080000000000000, BX   \
	VPBROADCASTQ BX, Z28           \
	MOVL $0x03030303, BX           \
	VPBROADCASTD BX, Z31           \
	VMOVDQU64 codeBytes<>(SB), Z27 \
	VMOVDQU32 codeHalfs<>(SB), Y26 \
	MOVL $0x80, BX                 \
	KMOVW BX, K1

// CODETAIL sets K2 to the bytes of CX blocks, fewer than four. BX and DX are overwritten.
#define CODETAIL \
	LEAQ  (CX)(CX*8), DX           \
	ADDQ  DX, DX                   \
	MOVQ  $-1, BX                  \
	BZHIQ DX, BX, BX               \
	KMOVQ BX, K2

// ROWMASKS sets K3-K6 to the lanes of each of four rows, if a lane is 4 * block + row. BX is
// overwritten.
#define ROWMASKS \
	MOVL  $0x1111, BX              \
	KMOVW BX, K3                   \
	KSHIFTLW $1, K3, K4            \
	KSHIFTLW $2, K3, K5            \
	KSHIFTLW $3, K3, K6

// QUADOF loads four blocks: W gets the bytes of their codes, F gets all bytes. FEWOF loads the
// bytes of K2.
#define QUADOF(FROM, LAST, W, F) \
	VMOVDQU64    FROM, F              \
	VPERMB       F, Z27, W            \
	VPBROADCASTQ LAST, K1, W

#define FEWOF(FROM, W, F) \
	VMOVDQU8.Z   FROM, K2, F          \
	VPERMB       F, Z27, W

// HALFS converts the halfs of the blocks of four rows, in Z4-Z7, to floats in Z18: lane 4b + r has
// that of row r's block b.
#define HALFS \
	VPERMW.Z     Z4, Z26, K3, Z18     \
	VPERMW       Z5, Z26, K4, Z18     \
	VPERMW       Z6, Z26, K5, Z18     \
	VPERMW       Z7, Z26, K6, Z18     \
	VCVTPH2PS    Y18, Z18

// MAPPED multiplies a field of the bytes Z0-Z3 of four rows, and adds to their sums Z8-Z11.
#define MAPPED(MAP, OFFSET) \
	VMOVDQU64 (OFFSET)(R8), Z12            \
	VGF2P8AFFINEQB $0, MAP, Z0, Z13        \
	VGF2P8AFFINEQB $0, MAP, Z1, Z14        \
	VGF2P8AFFINEQB $0, MAP, Z2, Z15        \
	VGF2P8AFFINEQB $0, MAP, Z3, Z16        \
	VPDPBUSD  Z12, Z13, Z8                 \
	VPDPBUSD  Z12, Z14, Z9                 \
	VPDPBUSD  Z12, Z15, Z10                \
	VPDPBUSD  Z12, Z16, Z11

// BYBLOCK multiplies the integers of four rows, a lane of 16 columns each, by SCALE, and adds up
// those of a block: lane 4b + r of S0 gets the sum of row r's block b. The other registers are
// overwritten.
#define BYBLOCK(SCALE, S0, S1, S2, S3, T0, T1) \
	VCVTDQ2PS S0, S0                       \
	VCVTDQ2PS S1, S1                       \
	VCVTDQ2PS S2, S2                       \
	VCVTDQ2PS S3, S3                       \
	VMULPS    SCALE, S0, S0                \
	VMULPS    SCALE, S1, S1                \
	VMULPS    SCALE, S2, S2                \
	VMULPS    SCALE, S3, S3                \
	VSHUFPS   $0x88, S1, S0, T0            \
	VSHUFPS   $0xdd, S1, S0, T1            \
	VADDPS    T1, T0, S0                   \
	VSHUFPS   $0x88, S3, S2, T0            \
	VSHUFPS   $0xdd, S3, S2, T1            \
	VADDPS    T1, T0, S2                   \
	VSHUFPS   $0x88, S2, S0, T0            \
	VSHUFPS   $0xdd, S2, S0, T1            \
	VADDPS    T1, T0, S0

// FOURROWS multiplies a quad of four rows, whose codes are in Z0-Z3 and whose halfs are in Z18. It
// adds the result to the four sums in X20, one block after the other.
#define FOURROWS \
	VMOVDQU32 (R12), Z8                    \
	VMOVUPS   (R10), Z17                   \
	VMOVDQA64 Z8, Z9                       \
	VMOVDQA64 Z8, Z10                      \
	VMOVDQA64 Z8, Z11                      \
	MAPPED(Z30, 64)                        \
	MAPPED(Z29, 128)                       \
	MAPPED(Z28, 192)                       \
	VMOVDQU64 (R8), Z12                    \
	VPANDD    Z31, Z0, Z13                 \
	VPANDD    Z31, Z1, Z14                 \
	VPANDD    Z31, Z2, Z15                 \
	VPANDD    Z31, Z3, Z16                 \
	VPDPBUSD  Z12, Z13, Z8                 \
	VPDPBUSD  Z12, Z14, Z9                 \
	VPDPBUSD  Z12, Z15, Z10                \
	VPDPBUSD  Z12, Z16, Z11                \
	BYBLOCK(Z17, Z8, Z9, Z10, Z11, Z12, Z13) \
	VFMADD231PS   X18, X8, X20             \
	VEXTRACTF32X4 $1, Z8, X12              \
	VEXTRACTF32X4 $1, Z18, X13             \
	VEXTRACTF32X4 $2, Z8, X14              \
	VEXTRACTF32X4 $2, Z18, X15             \
	VEXTRACTF32X4 $3, Z8, X16              \
	VEXTRACTF32X4 $3, Z18, X17             \
	VFMADD231PS   X13, X12, X20            \
	VFMADD231PS   X15, X14, X20            \
	VFMADD231PS   X17, X16, X20

// func codesFour512(c *Codes, dst *float32, blocks *byte, pitch, count int)
//
// Four rows at a time, pitch bytes apart. count is a multiple of 4.
//
//	AX      the Codes
//	DI      dst
//	SI      blocks of the first row
//	R9, R13 pitch, and three times the pitch
//	R8      x
//	R12     bias
//	R10     scale
//	CX      blocks left
//	R14     what is prefetched
//	R15     rows left
//	R11     the next rows
//	BX, DX  temporary
TEXT ·codesFour512(SB), NOSPLIT, $0-40
	CODECONSTANTS
	ROWMASKS
	MOVQ c+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ blocks+16(FP), R11
	MOVQ pitch+24(FP), R9
	MOVQ count+32(FP), R15
	LEAQ (R9)(R9*2), R13
	MOVQ Codes_Width(AX), CX
	ANDQ $3, CX
	CODETAIL

rows:
	VPXORD Z20, Z20, Z20
	MOVQ   R11, SI
	MOVQ   Codes_X(AX), R8
	MOVQ   Codes_Bias(AX), R12
	MOVQ   Codes_Scale(AX), R10
	MOVQ   Codes_Width(AX), CX
	LEAQ   AHEAD(SI), R14
	SUBQ   $4, CX
	JLT    rest

quad:
	QUADOF((SI), 64(SI), Z0, Z4)
	QUADOF((SI)(R9*1), 64(SI)(R9*1), Z1, Z5)
	QUADOF((SI)(R9*2), 64(SI)(R9*2), Z2, Z6)
	QUADOF((SI)(R13*1), 64(SI)(R13*1), Z3, Z7)
	PREFETCHT0 (R14)
	PREFETCHT0 64(R14)
	PREFETCHT0 128(R14)
	PREFETCHT0 192(R14)
	PREFETCHT0 256(R14)
	ADDQ      $288, R14
	HALFS
	FOURROWS
	ADDQ      $72, SI
	ADDQ      $64, R12
	ADDQ      $64, R10
	ADDQ      $256, R8
	SUBQ      $4, CX
	JGE       quad

rest:
	ADDQ $4, CX
	JLE  end
	FEWOF((SI), Z0, Z4)
	FEWOF((SI)(R9*1), Z1, Z5)
	FEWOF((SI)(R9*2), Z2, Z6)
	FEWOF((SI)(R13*1), Z3, Z7)
	HALFS
	FOURROWS

end:
	VMOVUPS X20, (DI)
	ADDQ $16, DI
	LEAQ (R11)(R9*4), R11
	SUBQ $4, R15
	JNZ  rows
	VZEROUPPER
	RET

// SPREAD stores codes by fields, and the halfs of the blocks Z4 where K3 is set.
#define SPREAD \
	VPERMW         Z4, Z26, Z4            \
	VCVTPH2PS      Y4, Z4                 \
	VPANDD         Z31, Z0, Z1            \
	VGF2P8AFFINEQB $0, Z30, Z0, Z2        \
	VGF2P8AFFINEQB $0, Z29, Z0, Z3        \
	VGF2P8AFFINEQB $0, Z28, Z0, Z5        \
	VMOVDQU64 Z1, (DI)                    \
	VMOVDQU64 Z2, 64(DI)                  \
	VMOVDQU64 Z3, 128(DI)                 \
	VMOVDQU64 Z5, 192(DI)                 \
	VMOVUPS   Z4, K3, (R8)

// func decodeCodes512(weights *byte, factors *float32, blocks *byte, count int, lanes uint32)
//
//	DI weights
//	R8 factors
//	SI blocks
//	CX blocks left
//	K3 lanes
TEXT ·decodeCodes512(SB), NOSPLIT, $0-36
	CODECONSTANTS
	MOVL lanes+32(FP), BX
	KMOVW BX, K3
	MOVQ weights+0(FP), DI
	MOVQ factors+8(FP), R8
	MOVQ blocks+16(FP), SI
	MOVQ count+24(FP), CX
	SUBQ $4, CX
	JLT  rest

quad:
	QUADOF((SI), 64(SI), Z0, Z4)
	SPREAD
	ADDQ $72, SI
	ADDQ $256, DI
	ADDQ $64, R8
	SUBQ $4, CX
	JGE  quad

rest:
	ADDQ $4, CX
	JLE  end
	CODETAIL
	FEWOF((SI), Z0, Z4)
	SPREAD

end:
	VZEROUPPER
	RET

// CODESTRIPES adds the products of a stripe of four rows and two vectors to Z8-Z15.
#define CODESTRIPES(OFFSET) \
	VMOVDQU64 (OFFSET)(R8), Z16            \
	VMOVDQU64 (OFFSET)(R8)(R10*1), Z17     \
	VMOVDQU64 (OFFSET)(SI), Z0             \
	VMOVDQU64 (OFFSET)(SI)(R10*1), Z1      \
	VMOVDQU64 (OFFSET)(SI)(R10*2), Z2      \
	VMOVDQU64 (OFFSET)(SI)(R11*1), Z3      \
	VPDPBUSD  Z16, Z0, Z8                  \
	VPDPBUSD  Z16, Z1, Z9                  \
	VPDPBUSD  Z16, Z2, Z10                 \
	VPDPBUSD  Z16, Z3, Z11                 \
	VPDPBUSD  Z17, Z0, Z12                 \
	VPDPBUSD  Z17, Z1, Z13                 \
	VPDPBUSD  Z17, Z2, Z14                 \
	VPDPBUSD  Z17, Z3, Z15

// INORDER adds the four blocks BY of four rows to the sums TO of the rows, each times its factor.
#define INORDER(ZBY, XBY, TO) \
	VEXTRACTF32X4 $1, ZBY, X0              \
	VEXTRACTF32X4 $2, ZBY, X1              \
	VEXTRACTF32X4 $3, ZBY, X2              \
	VFMADD231PS   (R12), XBY, TO           \
	VFMADD231PS   16(R12), X0, TO          \
	VFMADD231PS   32(R12), X1, TO          \
	VFMADD231PS   48(R12), X2, TO

// func codesTile512(t *Tile, dst *float32, weights *byte, factors *float32)
//
// Four rows, and pairs of vectors. Registers as in tile512, but there is only one row of factors.
// X20 has the results of the first vector, X24 those of the second.
TEXT ·codesTile512(SB), NOSPLIT, $0-32
	MOVQ t+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ weights+16(FP), SI
	MOVQ factors+24(FP), R12
	MOVQ Tile_Quads(AX), R13
	SHLQ $6, R13
	LEAQ (R13*4), R10
	LEAQ (R10)(R10*2), R11
	MOVQ Tile_X(AX), R8
	MOVQ Tile_Bias(AX), DX
	MOVQ Tile_Scale(AX), BX
	MOVQ Tile_Vectors(AX), R15

pair:
	VPXORD Z20, Z20, Z20
	VPXORD Z24, Z24, Z24
	MOVQ   Tile_Quads(AX), CX

quad:
	VMOVDQU32 (DX), Z8
	VMOVDQU32 (DX)(R13*1), Z12
	VMOVDQA64 Z8, Z9
	VMOVDQA64 Z8, Z10
	VMOVDQA64 Z8, Z11
	VMOVDQA64 Z12, Z13
	VMOVDQA64 Z12, Z14
	VMOVDQA64 Z12, Z15
	CODESTRIPES(0)
	CODESTRIPES(64)
	CODESTRIPES(128)
	CODESTRIPES(192)
	VMOVUPS (BX), Z18
	VMOVUPS (BX)(R13*1), Z19
	BYBLOCK(Z18, Z8, Z9, Z10, Z11, Z0, Z1)
	BYBLOCK(Z19, Z12, Z13, Z14, Z15, Z2, Z3)
	INORDER(Z8, X8, X20)
	INORDER(Z12, X12, X24)
	ADDQ $256, SI
	ADDQ $256, R8
	ADDQ $64, R12
	ADDQ $64, DX
	ADDQ $64, BX
	DECQ CX
	JNZ  quad
	VMOVUPS X20, (DI)
	VMOVUPS X24, 16(DI)
	ADDQ $32, DI
	SUBQ R10, SI
	SUBQ R13, R12
	ADDQ R10, R8
	ADDQ R13, DX
	ADDQ R13, BX
	SUBQ $2, R15
	JNZ  pair
	VZEROUPPER
	RET
