//go:build ignore

/* Computes products as ggml's CPU code does, and compares the device's results with them. */
#define _GNU_SOURCE
#include "tfmbs_reference.h"
#include "tfmbs_weights.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TFMBS_NO_MEMORY /* for tests */
#define malloc(n) ((void)(n), NULL)
#endif

int compute_here(const struct part *p) {
	const struct tensor *w = p->t->src[0];
	const struct traits *own = api.traits(w->type), *other = api.traits(own->vec_dot_type);
	int64_t n = w->ne[0];
	void *q = malloc((size_t)(n / api.ggml_blck_size(own->vec_dot_type)) * api.ggml_type_size(own->vec_dot_type));
	if (!q) return STATUS_ALLOC_FAILED;
	for (int64_t i = 0; i < p->n; i++) {
		float *y = (float *)(void *)(p->y + (size_t)i * p->y_stride);
		other->from_float((const float *)(const void *)(p->x + (size_t)i * p->x_stride), q, n);
		for (int64_t r = 0; r < w->ne[1]; r++) own->vec_dot((int)n, y + r, 0, p->w + (size_t)r * w->nb[1], 0, q, 0, 1);
	}
	free(q);
	return STATUS_SUCCESS;
}

/* Blocks of ggml's Q2_0 and Q8_0: the scale is a half. */
struct q2_block {
	uint16_t scale;
	uint8_t codes[16]; /* four weights a byte, each its code less 1 */
};
struct q8_block {
	uint16_t scale;
	int8_t values[32];
};

/* ggml multiplies a row of Q2_0 by a loop in C, and adds the product of each block to the row's sum. Where the compiler
 * could use fused multiply-adds (processors with FMA) the product is not rounded before it is added, and the device
 * computes so, too. Elsewhere it is, and also where a compiler computes the products of several blocks at once, as GCC
 * 12 does with -march=native. Here the product of the second block, (1 + 2^-10)^2 * 4063, needs more bits than a
 * float has. The first block takes 4064 away from it, so that the bits that were rounded off can be seen. */
static bool rounds_products(const struct traits *t) {
	const uint16_t one = 0x3c00, more = 0x3c01; /* halves: 1, 1 + 2^-10 */
	struct q2_block rows[2] = {{one, {0}}, {more, {0}}};
	struct q8_block vector[4] = {{one, {0}}, {one, {0}}, {more, {0}}, {one, {0}}};
	memset(rows[1].codes, 0xaa, 8); /* weights of 1; those of the first block are -1 */
	memset(vector[0].values, 127, 32);
	memset(vector[2].values, 127, 32);
	vector[2].values[0] = 126;
	float sum = 0;
	t->vec_dot(128, &sum, 0, rows, 0, vector, 0, 1);
	const double scale = 1 + 1.0 / 1024;
	return sum != (float)(scale * scale * 4063 - 4064); /* a double holds all bits of that */
}

void tell_rounding(int32_t type) {
	static bool told;
	if (told || strcmp(api.ggml_type_name(type), "q2_0")) return;
	told = true;
	const struct traits *t = api.traits ? api.traits(type) : NULL;
	if (t && rounds_products(t))
		fprintf(stderr,
		    "tfmbs: this build of ggml rounds each product of Q2_0 before it adds it; the device does not, so the text "
		    "may differ from that of the CPU\n");
}

/* What was compared since it was last said. The weights' lock guards it. */
static struct {
	bool on;
	long products, wrong;
	double worst;  /* error of a product's results that are not wrong, as a part of their norm */
	char name[64]; /* of the weights of that product */
} validation;

void configure_validation(void) {
	const char *on = getenv("TFMBS_VALIDATE");
	validation.on = on && *on;
}

bool was_validated(void) { return validation.products > 0; }

/* Results are wrong if their error is more than twice what the profile allows, as a part of their
 * norm. A single result is wrong if its error is ELEMENT times as much, as a part of the results' root
 * mean square or of itself: rows of weights differ in size. */
enum { ELEMENT = 64 };

/* How far the device's results are from the CPU's. */
struct comparison {
	double off, norm; /* sums of squares of the errors, and of the CPU's results */
	size_t bad;       /* the first single result that is wrong; the number of results if there is none */
	bool wrong;
};

static struct comparison compare(const float *device, const float *cpu, size_t n) {
	struct comparison c = {.bad = n};
	for (size_t i = 0; i < n; i++) {
		double d = (double)device[i] - cpu[i];
		c.off += d * d;
		c.norm += (double)cpu[i] * cpu[i];
	}
	double limit = 2 * profile->error, rms = sqrt(c.norm / (double)n);
	for (size_t i = 0; i < n && c.bad == n; i++)
		if (!(fabs((double)device[i] - cpu[i]) <= ELEMENT * limit * fmax(rms, fabs((double)cpu[i])))) c.bad = i;
	c.wrong = c.bad < n || !(c.off <= limit * limit * c.norm);
	return c;
}

/* Counts a comparison of a product with the weights t, and reports it if it is the first wrong one of these. */
static void count_comparison(const struct tensor *t, const struct comparison *c, const float *device,
    const float *cpu, size_t n, size_t rows) {
	double error = c->norm > 0 ? sqrt(c->off / c->norm) : c->off > 0;
	pthread_mutex_lock(&tfmbs_state.lock);
	struct weight *w = find_weight(t);
	if (c->wrong && w && !w->reported) {
		w->reported = true;
		size_t at = c->bad < n ? c->bad : 0;
		fprintf(stderr,
		    "tfmbs: WRONG: %s: the error is %.3g %% of the norm; row %zu: %g, and the CPU has %g, which is used\n",
		    t->name, 100 * error, at % rows, (double)device[at], (double)cpu[at]);
	}
	validation.products++;
	validation.wrong += c->wrong;
	if (!c->wrong && error > validation.worst) {
		validation.worst = error;
		snprintf(validation.name, sizeof validation.name, "%s", t->name);
	}
	pthread_mutex_unlock(&tfmbs_state.lock);
}

void validate_part(const struct part *p) {
#ifndef TFMBS_CHECK /* for tests: always */
	if (!validation.on) return;
#endif
	size_t rows = (size_t)p->t->ne[0], n = (size_t)p->n * rows, size = rows * sizeof(float);
	float *device = malloc(n * sizeof *device), *cpu = NULL;
	for (int64_t i = 0; device && i < p->n; i++)
		memcpy(device + (size_t)i * rows, p->y + (size_t)i * p->y_stride, size);
	if (!device || compute_here(p) || !(cpu = malloc(n * sizeof *cpu))) {
		free(device);
		report_error("a result is not compared", -ENOMEM);
		return;
	}
	for (int64_t i = 0; i < p->n; i++) memcpy(cpu + (size_t)i * rows, p->y + (size_t)i * p->y_stride, size);
	struct comparison c = compare(device, cpu, n);
	for (int64_t i = 0; i < p->n && !c.wrong; i++)
		memcpy(p->y + (size_t)i * p->y_stride, device + (size_t)i * rows, size);
	count_comparison(p->t->src[0], &c, device, cpu, n, rows);
#ifdef TFMBS_CHECK
	fprintf(stderr, "check %s %ld %g %g\n", p->t->src[0]->name, (long)p->n, c.off, c.norm);
#endif
	free(device);
	free(cpu);
}

void report_validation(void) {
	if (!validation.on) return;
	fprintf(stderr,
	    "tfmbs: %ld results were compared with the CPU's, %ld of them wrong; "
	    "the largest error of the others is %.3g %% of the norm (%s)\n",
	    validation.products, validation.wrong, 100 * validation.worst, validation.name);
	validation.products = validation.wrong = 0;
	validation.worst = 0;
	validation.name[0] = 0;
}
