/* Products as ggml's CPU code has them, one vector after the other: in place of a device that fails,
 * and to compare with its results (TFMBS_VALIDATE). */
#ifndef TFMBS_REFERENCE_H
#define TFMBS_REFERENCE_H

#include "tfmbs_ggml.h"

/* A part of a product: n vectors with one matrix. */
struct part {
	const struct tensor *t; /* the product */
	const char *w;          /* the matrix: rows of blocks */
	int64_t n;
	const char *x; /* vectors, x_stride bytes apart */
	size_t x_stride;
	char *y; /* results */
	size_t y_stride;
	/* NULL, or where each result belongs. Then x and y, which are vectors of several tokens, lie
	 * behind these pointers in the same memory. */
	char **to;
};

/* Computes the results of a part. 0, or STATUS_ALLOC_FAILED. */
int compute_here(const struct part *p);

/* Says once if this ggml rounds sums of Q2_0 in another way than the device, so that results may differ in their last
 * bits. type is that of weights which the device has. The weights' lock is held. */
void tell_rounding(int32_t type);

/* Takes TFMBS_VALIDATE from the environment. */
void configure_validation(void);

/* With TFMBS_VALIDATE, compares the device's results of a part with those of compute_here. If they are
 * wrong, it says so once for each tensor of weights, and puts the right ones in their place. */
void validate_part(const struct part *p);

/* Whether results were compared since report_validation. The weights' lock is held. */
bool was_validated(void);

/* With TFMBS_VALIDATE, says what was compared since the last call. The weights' lock is held. */
void report_validation(void);

#endif
