// Macros of the AVX-512 code.

// QUOTIENT computes Z1 = b/9 and Z2 = b%9 of the bytes b in Z0; it overwrites Z3. Z31 has the low bytes of words, Z30 7282 in each word,
// Z29 9q by q.
#define QUOTIENT \
	VPANDD      Z31, Z0, Z1        \
	VPMULHUW    Z30, Z1, Z1        \
	VPMULHUW    Z30, Z0, Z2        \
	VPTERNLOGD  $0xE4, Z31, Z2, Z1 \ // Z31 ? Z1 : Z2
	VPERMB      Z29, Z1, Z3        \
	VPSUBB      Z3, Z0, Z2

// SUM adds the lanes of Z20 to the float32 at DI.
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
