// This file has the constants of e^x, as float32: see func exp in vec_go.go. In the assembly,
// products and sums are fused. So ln 2 is split into its nearest float32 and the remainder: the
// product of n (at most 2^8) with the first part is not rounded before the difference, which is
// exact.

#define EXP_LOG2E 0x3fb8aa3b
#define EXP_LN2   0x3f317218
#define EXP_LN2LO 0xb102e308
#define EXP_C2    0x3efffffe
#define EXP_C3    0x3e2aaa49
#define EXP_C4    0x3d2aac79
#define EXP_C5    0x3c091cf1
#define EXP_C6    0x3ab51219
#define EXP_ONE   0x3f800000
#define EXP_LOW   0xc2ae0000
#define EXP_HIGH  0x42b20000
