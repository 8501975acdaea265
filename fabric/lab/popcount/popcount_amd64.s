//go:build !noasm

// This file computes the dot products of a query and many rows, with AVX-512 and with AVX2.
// dotRowsGo computes the same.

#include "textflag.h"

// Registers of both functions:
//
//	DI  dst
//	SI  rows left
//	R8  words of a row
//	R13 bytes of a row
//	R9  qp
//	R10 qm
//	R11 rp
//	R12 rm
#define ARGS \
	MOVQ dst+0(FP), DI    \
	MOVQ rows+8(FP), SI   \
	MOVQ words+16(FP), R8 \
	MOVQ qp+24(FP), R9    \
	MOVQ qm+32(FP), R10   \
	MOVQ rp+40(FP), R11   \
	MOVQ rm+48(FP), R12   \
	LEAQ (R8*8), R13

// COUNT converts plus (in P) and minus (in M) of a row to counts of bits per word: P gets those of
// differ, M those of both. The query is in Z8 (plus) and Z9 (plus | minus). The tables of VPTERNLOG
// are b & (a|c) = 0xC8 and b & (a^c) = 0x48.
#define COUNT(P, M) \
	VPTERNLOGQ $0xC8, P, Z9, M \
	VPTERNLOGQ $0x48, Z8, M, P \
	VPOPCNTQ   M, M            \
	VPOPCNTQ   P, P

// STEP adds the counts of a row's next 8 words, or of those that K1 selects, to the row's sums of
// both and differ.
#define STEP(PLUS, MINUS, BOTH, DIFFER) \
	VMOVDQU64.Z PLUS, K1, Z10   \
	VMOVDQU64.Z MINUS, K1, Z11  \
	COUNT(Z10, Z11)             \
	VPADDQ Z11, BOTH, BOTH      \
	VPADDQ Z10, DIFFER, DIFFER

// QUERY loads the next 8 words of the query. In the last step it sets K1 to K2, the words that are
// left.
#define QUERY \
	CMPQ  CX, $8                    \
	JGE   2(PC)                     \
	KMOVB K2, K1                    \
	VMOVDQU64.Z (R9)(DX*1), K1, Z8  \
	VMOVDQU64.Z (R10)(DX*1), K1, Z9 \
	VPORQ Z8, Z9, Z9

// DOT turns BOTH into the dot products per word: both - 2 differ.
#define DOT(BOTH, DIFFER) \
	VPSUBQ DIFFER, BOTH, BOTH \
	VPSUBQ DIFFER, BOTH, BOTH

// PACKED processes 8 words of rows that are shorter than 8 words, so that a register has several of
// them. M gets their dot products per word.
#define PACKED(OFFSET, P, M) \
	VMOVDQU64 OFFSET(R11), P \
	VMOVDQU64 OFFSET(R12), M \
	COUNT(P, M)              \
	DOT(M, P)

// PAIRS adds neighbours: A becomes a0+a1, a2+a3, .. b0+b1, .. Z14 and Z15 have the indices of even
// and of odd words.
#define PAIRS(A, B, T) \
	VMOVDQA64 A, T      \
	VPERMT2Q  B, Z15, T \
	VPERMT2Q  B, Z14, A \
	VPADDQ    T, A, A

DATA even<>+0x00(SB)/8, $0
DATA even<>+0x08(SB)/8, $2
DATA even<>+0x10(SB)/8, $4
DATA even<>+0x18(SB)/8, $6
DATA even<>+0x20(SB)/8, $8
DATA even<>+0x28(SB)/8, $10
DATA even<>+0x30(SB)/8, $12
DATA even<>+0x38(SB)/8, $14
GLOBL even<>(SB), RODATA|NOPTR, $64

DATA odd<>+0x00(SB)/8, $1
DATA odd<>+0x08(SB)/8, $3
DATA odd<>+0x10(SB)/8, $5
DATA odd<>+0x18(SB)/8, $7
DATA odd<>+0x20(SB)/8, $9
DATA odd<>+0x28(SB)/8, $11
DATA odd<>+0x30(SB)/8, $13
DATA odd<>+0x38(SB)/8, $15
GLOBL odd<>(SB), RODATA|NOPTR, $64

// func dotRowsAVX512(dst *int32, rows, words int, qp, qm, rp, rm *uint64)
TEXT ·dotRowsAVX512(SB), NOSPLIT, $0-56
	ARGS

	// Rows of 1, 2 and 4 words (attention heads of 64, 128 and 256) are processed 8 at a time,
	// without horizontal sums.
	CMPQ R8, $1
	JEQ  one
	VMOVDQU64 even<>(SB), Z14
	VMOVDQU64 odd<>(SB), Z15
	CMPQ R8, $2
	JEQ  two
	CMPQ R8, $4
	JEQ  four

long:
	// K2 is the mask of the words after the last whole 8. If there are none, it has all 8.
	LEAQ  (R13)(R13*2), BX
	LEAQ  -1(R8), CX
	NOTQ  CX
	ANDQ  $7, CX
	MOVL  $0xFF, AX
	SHRXL CX, AX, AX
	KMOVB AX, K2
	CMPQ  SI, $4
	JLT   single

quad:
	// 4 rows: both is in Z0 to Z3, differ in Z4 to Z7.
	VPXORQ Z0, Z0, Z0
	VPXORQ Z1, Z1, Z1
	VPXORQ Z2, Z2, Z2
	VPXORQ Z3, Z3, Z3
	VPXORQ Z4, Z4, Z4
	VPXORQ Z5, Z5, Z5
	VPXORQ Z6, Z6, Z6
	VPXORQ Z7, Z7, Z7
	KXNORB K1, K1, K1
	MOVQ   R8, CX
	XORL   DX, DX

quadWords:
	QUERY
	STEP((R11), (R12), Z0, Z4)
	STEP((R11)(R13*1), (R12)(R13*1), Z1, Z5)
	STEP((R11)(R13*2), (R12)(R13*2), Z2, Z6)
	STEP((R11)(BX*1), (R12)(BX*1), Z3, Z7)
	ADDQ $64, R11
	ADDQ $64, R12
	ADDQ $64, DX
	SUBQ $8, CX
	JGT  quadWords

	DOT(Z0, Z4)
	DOT(Z1, Z5)
	DOT(Z2, Z6)
	DOT(Z3, Z7)

	// The sums of 4 registers: first of pairs of words, then of halves, then of quarters.
	VPUNPCKLQDQ   Z1, Z0, Z4
	VPUNPCKHQDQ   Z1, Z0, Z5
	VPADDQ        Z5, Z4, Z4
	VPUNPCKLQDQ   Z3, Z2, Z6
	VPUNPCKHQDQ   Z3, Z2, Z7
	VPADDQ        Z7, Z6, Z6
	VEXTRACTI64X4 $1, Z4, Y5
	VPADDQ        Y5, Y4, Y4
	VEXTRACTI64X4 $1, Z6, Y7
	VPADDQ        Y7, Y6, Y6
	VPERM2I128    $0x20, Y6, Y4, Y0
	VPERM2I128    $0x31, Y6, Y4, Y1
	VPADDQ        Y1, Y0, Y0
	VPMOVQD       Y0, X0
	VMOVDQU       X0, (DI)

	SUBQ DX, R11
	SUBQ DX, R12
	LEAQ (R11)(R13*4), R11
	LEAQ (R12)(R13*4), R12
	ADDQ $16, DI
	SUBQ $4, SI
	CMPQ SI, $4
	JGE  quad

single:
	TESTQ  SI, SI
	JEQ    done
	VPXORQ Z0, Z0, Z0
	VPXORQ Z4, Z4, Z4
	KXNORB K1, K1, K1
	MOVQ   R8, CX
	XORL   DX, DX

singleWords:
	QUERY
	STEP((R11)(DX*1), (R12)(DX*1), Z0, Z4)
	ADDQ $64, DX
	SUBQ $8, CX
	JGT  singleWords

	DOT(Z0, Z4)
	VEXTRACTI64X4 $1, Z0, Y1
	VPADDQ        Y1, Y0, Y0
	VEXTRACTI128  $1, Y0, X1
	VPADDQ        X1, X0, X0
	VPSRLDQ       $8, X0, X1
	VPADDQ        X1, X0, X0
	VMOVD         X0, (DI)
	ADDQ          R13, R11
	ADDQ          R13, R12
	ADDQ          $4, DI
	DECQ          SI
	JMP           single

done:
	VZEROUPPER
	RET

one:
	VPBROADCASTQ (R9), Z8
	VPBROADCASTQ (R10), Z9
	VPORQ        Z8, Z9, Z9

oneRows:
	CMPQ SI, $8
	JLT  long
	PACKED(0, Z0, Z1)
	VPMOVQD Z1, Y1
	VMOVDQU Y1, (DI)
	ADDQ    $64, R11
	ADDQ    $64, R12
	ADDQ    $32, DI
	SUBQ    $8, SI
	JMP     oneRows

two:
	VBROADCASTI64X2 (R9), Z8
	VBROADCASTI64X2 (R10), Z9
	VPORQ           Z8, Z9, Z9

twoRows:
	CMPQ SI, $8
	JLT  long
	PACKED(0, Z0, Z1)
	PACKED(64, Z2, Z3)
	PAIRS(Z1, Z3, Z0)
	VPMOVQD Z1, Y1
	VMOVDQU Y1, (DI)
	ADDQ    $128, R11
	ADDQ    $128, R12
	ADDQ    $32, DI
	SUBQ    $8, SI
	JMP     twoRows

four:
	VBROADCASTI64X4 (R9), Z8
	VBROADCASTI64X4 (R10), Z9
	VPORQ           Z8, Z9, Z9

fourRows:
	CMPQ SI, $8
	JLT  long
	PACKED(0, Z0, Z1)
	PACKED(64, Z2, Z3)
	PACKED(128, Z4, Z5)
	PACKED(192, Z6, Z7)
	PAIRS(Z1, Z3, Z0)
	PAIRS(Z5, Z7, Z2)
	PAIRS(Z1, Z5, Z0)
	VPMOVQD Z1, Y1
	VMOVDQU Y1, (DI)
	ADDQ    $256, R11
	ADDQ    $256, R12
	ADDQ    $32, DI
	SUBQ    $8, SI
	JMP     fourRows

// counts has the number of bits of a nibble. weights is 8 - 2 times that number. This is what 4
// positions add to the sum, raised so that it is not negative.
DATA counts<>+0x00(SB)/8, $0x0302020102010100
DATA counts<>+0x08(SB)/8, $0x0403030203020201
GLOBL counts<>(SB), RODATA|NOPTR, $16

DATA weights<>+0x00(SB)/8, $0x0204040604060608
DATA weights<>+0x08(SB)/8, $0x0002020402040406
GLOBL weights<>(SB), RODATA|NOPTR, $16

DATA low<>+0x00(SB)/8, $0x0F0F0F0F0F0F0F0F
GLOBL low<>(SB), RODATA|NOPTR, $8

// BYTES computes 16 + the dot product of each byte, for 4 words at OFFSET from DX, in BOTH. T and
// DIFFER are scratch.
#define BYTES(OFFSET, BOTH, DIFFER, T, U) \
	VMOVDQU OFFSET(R9)(DX*1), T              \
	VPOR    OFFSET(R10)(DX*1), T, U          \
	VMOVDQU OFFSET(R11)(DX*1), DIFFER        \
	VPOR    OFFSET(R12)(DX*1), DIFFER, BOTH  \
	VPAND   U, BOTH, BOTH                    \
	VPXOR   T, DIFFER, DIFFER                \
	VPAND   BOTH, DIFFER, DIFFER             \
	VPAND   Y15, BOTH, T                     \
	VPSRLQ  $4, BOTH, BOTH                   \
	VPAND   Y15, BOTH, BOTH                  \
	VPSHUFB T, Y13, T                        \
	VPSHUFB BOTH, Y13, BOTH                  \
	VPADDB  T, BOTH, BOTH                    \
	VPAND   Y15, DIFFER, U                   \
	VPSRLQ  $4, DIFFER, DIFFER               \
	VPAND   Y15, DIFFER, DIFFER              \
	VPSHUFB U, Y14, U                        \
	VPSHUFB DIFFER, Y14, DIFFER              \
	VPADDB  U, DIFFER, DIFFER                \
	VPADDB  DIFFER, BOTH, BOTH

// func dotRowsAVX2(dst *int32, rows, words int, qp, qm, rp, rm *uint64)
TEXT ·dotRowsAVX2(SB), NOSPLIT, $0-56
	ARGS
	VBROADCASTI128 counts<>(SB), Y13
	VBROADCASTI128 weights<>(SB), Y14
	VPBROADCASTQ   low<>(SB), Y15
	VPXOR          Y12, Y12, Y12

row:
	VPXOR Y0, Y0, Y0
	XORL  DX, DX
	XORL  AX, AX
	MOVQ  R8, CX

	// There are 8 words per iteration, as one VPSADBW serves both halves: a byte of a half is 24 at
	// most.
	SUBQ $8, CX
	JLT  half

full:
	BYTES(0, Y1, Y2, Y3, Y4)
	BYTES(32, Y5, Y6, Y7, Y8)
	VPADDB  Y5, Y1, Y1
	VPSADBW Y12, Y1, Y1
	VPADDQ  Y1, Y0, Y0
	ADDQ    $64, DX
	SUBQ    $8, CX
	JGE     full

half:
	ADDQ $4, CX
	JLT  tail
	BYTES(0, Y1, Y2, Y3, Y4)
	VPSADBW Y12, Y1, Y1
	VPADDQ  Y1, Y0, Y0
	ADDQ    $32, DX
	SUBQ    $4, CX

tail:
	// Subtract the 16 that each of the DX bytes was too large by.
	SUBQ         DX, AX
	SHLQ         $4, AX
	VEXTRACTI128 $1, Y0, X1
	VPADDQ       X1, X0, X0
	VPSRLDQ      $8, X0, X1
	VPADDQ       X1, X0, X0
	VMOVQ        X0, BX
	ADDQ         BX, AX
	ADDQ         $4, CX
	JEQ          store

word:
	MOVQ    (R11)(DX*1), R13
	ORQ     (R12)(DX*1), R13
	MOVQ    (R9)(DX*1), BX
	ORQ     (R10)(DX*1), BX
	ANDQ    R13, BX
	MOVQ    (R11)(DX*1), R13
	XORQ    (R9)(DX*1), R13
	ANDQ    BX, R13
	POPCNTQ BX, BX
	POPCNTQ R13, R13
	ADDQ    BX, AX
	SUBQ    R13, AX
	SUBQ    R13, AX
	ADDQ    $8, DX
	DECQ    CX
	JNE     word

store:
	MOVL AX, (DI)
	ADDQ $4, DI
	ADDQ DX, R11
	ADDQ DX, R12
	DECQ SI
	JNE  row
	VZEROUPPER
	RET
