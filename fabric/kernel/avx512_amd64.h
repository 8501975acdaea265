// This file has macros of the AVX-512 code.

// QUOTIENT computes b/9 in Z1 and b%9 in Z2 of the bytes b in Z0, as decodePT5x512 explains. Z3 is
// overwritten. Constants: Z31 the low byte of each word, Z30 7282 in each word, Z29 9q by q.
#define QUOTIENT \
	VPANDD      Z31, Z0, Z1        \
	VPMULHUW    Z30, Z1, Z1        \
	VPMULHUW    Z30, Z0, Z2        \
	VPTERNLOGD  $0xE4, Z31, Z2, Z1 \ // Z31 ? Z1 : Z2
	VPERMB      Z29, Z1, Z3        \
	VPSUBB      Z3, Z0, Z2

// SUM adds all lanes of Z20 to the float32 at DI.
#define SUM \
	VEXTRACTF64X4 $1, Z20, Y1     \
	VADDPS        Y1, Y20, Y1     \
	VEXTRACTF128  $1, Y1, X2      \
	VADDPS        X2, X1, X1      \
	VMOVHLPS      X1, X1, X2      \
	VADDPS        X2, X1, X1      \
	VMOVSHDUP     X1, X2          \
	VADDSS        X2, X1, X1      \
	VADDSS        (DI), X1, X1    \
	VMOVSS        X1, (DI)
