// Macros of the AVX2 code.

// CONSTANT fills Y with the 32 bits VALUE; spoils AX.
#define CONSTANT(VALUE, X, Y) \
	MOVL         VALUE, AX \
	VMOVD        AX, X     \
	VPBROADCASTD X, Y
