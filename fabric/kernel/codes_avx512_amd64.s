// AVX-512: products of Q2_0 blocks.

#include "go_asm.h"
#include "textflag.h"
#include "avx512_amd64.h"

// Memory is prefetched in the order of addresses, not of rows: AHEAD bytes beyond the first row.
#define AHEAD 8192

// codeBytes are the places of the codes in 64 bytes from a quad's beginning, except for the last eight; codeHalfs those of its halfs.
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

// CODECONSTANTS: Z31 3 in each byte, Z28-Z30 the maps of the other fields (see twoBitFour256x512), Z27 codeBytes, Z26 codeHalfs, K1 the last
// eight bytes of 64; spoils BX.
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

// CODETAIL sets K2 to the bytes of CX blocks, fewer than four; spoils BX and DX.
#define CODETAIL \
	LEAQ  (CX)(CX*8), DX           \
	ADDQ  DX, DX                   \
	MOVQ  $-1, BX                  \
	BZHIQ DX, BX, BX               \
	KMOVQ BX, K2

// QUADOF loads four blocks: W has their codes' bytes, F their halfs by lanes, still 16 bits; FEWOF those of K2.
#define QUADOF(FROM, LAST, W, F, FY) \
	VMOVDQU64    FROM, F              \
	VPERMB       F, Z27, W            \
	VPBROADCASTQ LAST, K1, W          \
	VPERMW       F, Z26, F            \
	VCVTPH2PS    FY, F

#define FEWOF(FROM, W, F, FY) \
	VMOVDQU8.Z   FROM, K2, F          \
	VPERMB       F, Z27, W            \
	VPERMW       F, Z26, F            \
	VCVTPH2PS    FY, F

// MAPPED adds to the sums Z8-Z11 of four rows those of a field of their bytes Z0-Z3.
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

// FOURROWS multiplies a quad of four rows: bytes in Z0-Z3, halfs in Z4-Z7.
#define FOURROWS \
	VMOVDQU32 (R12), Z8                    \
	VMOVUPS   (R10), Z17                   \
	VMOVDQA64 Z8, Z9                       \
	VMOVDQA64 Z8, Z10                      \
	VMOVDQA64 Z8, Z11                      \
	VMULPS    Z17, Z4, Z4                  \
	VMULPS    Z17, Z5, Z5                  \
	VMULPS    Z17, Z6, Z6                  \
	VMULPS    Z17, Z7, Z7                  \
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
	VCVTDQ2PS Z8, Z8                       \
	VCVTDQ2PS Z9, Z9                       \
	VCVTDQ2PS Z10, Z10                     \
	VCVTDQ2PS Z11, Z11                     \
	VFMADD231PS Z4, Z8, Z20                \
	VFMADD231PS Z5, Z9, Z21                \
	VFMADD231PS Z6, Z10, Z22               \
	VFMADD231PS Z7, Z11, Z23

// TOTALTO writes the sum of the lanes of ACC to TO.
#define TOTALTO(ACC, YACC, TO) \
	VEXTRACTF64X4 $1, ACC, Y1    \
	VADDPS        YACC, Y1, Y1   \
	VEXTRACTF128  $1, Y1, X2     \
	VADDPS        X2, X1, X1     \
	VMOVHLPS      X1, X1, X2     \
	VADDPS        X2, X1, X1     \
	VMOVSHDUP     X1, X2         \
	VADDSS        X2, X1, X1     \
	VMOVSS        X1, TO

// func codesFour512(c *Codes, dst *float32, blocks *byte, pitch, count int)
//
// Four rows at a time, pitch bytes apart; count is a multiple of 4.
//
// AX the Codes; DI dst; SI blocks of the first row; R9 pitch, R13 three; R8 x; R12 bias; R10 scale; CX blocks left; R14 what is prefetched;
// R15 rows left; R11 the next rows; BX, DX temporary.
TEXT ·codesFour512(SB), NOSPLIT, $0-40
	CODECONSTANTS
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
	VPXORD Z21, Z21, Z21
	VPXORD Z22, Z22, Z22
	VPXORD Z23, Z23, Z23
	MOVQ   R11, SI
	MOVQ   Codes_X(AX), R8
	MOVQ   Codes_Bias(AX), R12
	MOVQ   Codes_Scale(AX), R10
	MOVQ   Codes_Width(AX), CX
	LEAQ   AHEAD(SI), R14
	SUBQ   $4, CX
	JLT    rest

quad:
	QUADOF((SI), 64(SI), Z0, Z4, Y4)
	QUADOF((SI)(R9*1), 64(SI)(R9*1), Z1, Z5, Y5)
	QUADOF((SI)(R9*2), 64(SI)(R9*2), Z2, Z6, Y6)
	QUADOF((SI)(R13*1), 64(SI)(R13*1), Z3, Z7, Y7)
	PREFETCHT0 (R14)
	PREFETCHT0 64(R14)
	PREFETCHT0 128(R14)
	PREFETCHT0 192(R14)
	PREFETCHT0 256(R14)
	ADDQ      $288, R14
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
	FEWOF((SI), Z0, Z4, Y4)
	FEWOF((SI)(R9*1), Z1, Z5, Y5)
	FEWOF((SI)(R9*2), Z2, Z6, Y6)
	FEWOF((SI)(R13*1), Z3, Z7, Y7)
	FOURROWS

end:
	TOTALTO(Z20, Y20, 0(DI))
	TOTALTO(Z21, Y21, 4(DI))
	TOTALTO(Z22, Y22, 8(DI))
	TOTALTO(Z23, Y23, 12(DI))
	ADDQ $16, DI
	LEAQ (R11)(R9*4), R11
	SUBQ $4, R15
	JNZ  rows
	VZEROUPPER
	RET

// SPREAD stores what QUADOF or FEWOF has loaded, by fields.
#define SPREAD \
	VPANDD         Z31, Z0, Z1            \
	VGF2P8AFFINEQB $0, Z30, Z0, Z2        \
	VGF2P8AFFINEQB $0, Z29, Z0, Z3        \
	VGF2P8AFFINEQB $0, Z28, Z0, Z5        \
	VMOVDQU64 Z1, (DI)                    \
	VMOVDQU64 Z2, 64(DI)                  \
	VMOVDQU64 Z3, 128(DI)                 \
	VMOVDQU64 Z5, 192(DI)                 \
	VMOVUPS   Z4, (R8)

// func decodeCodes512(weights *byte, factors *float32, blocks *byte, count int)
//
// DI weights; R8 factors; SI blocks; CX blocks left.
TEXT ·decodeCodes512(SB), NOSPLIT, $0-32
	CODECONSTANTS
	MOVQ weights+0(FP), DI
	MOVQ factors+8(FP), R8
	MOVQ blocks+16(FP), SI
	MOVQ count+24(FP), CX
	SUBQ $4, CX
	JLT  rest

quad:
	QUADOF((SI), 64(SI), Z0, Z4, Y4)
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
	FEWOF((SI), Z0, Z4, Y4)
	SPREAD

end:
	VZEROUPPER
	RET
