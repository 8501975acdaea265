// This file has a macro of the AVX2 code.

// CONSTANT fills the lanes of Y with the 32 bits VALUE. X is the lower half of Y. AX is overwritten.
#define CONSTANT(VALUE, X, Y) \
	MOVL         VALUE, AX \
	VMOVD        AX, X     \
	VPBROADCASTD X, Y
