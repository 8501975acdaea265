/* Stands for ggml in tests: it has the functions that package ggml reads, on a struct ggml_tensor
 * of the layout that LAYOUT names. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum ggml_op {
	GGML_OP_NONE,
	GGML_OP_ADD,
	GGML_OP_MUL_MAT,
	GGML_OP_MUL_MAT_ID,
	GGML_OP_GET_ROWS,
	GGML_OP_UNARY,
	GGML_OP_COUNT,
};
enum ggml_type {
	GGML_TYPE_F32,
	GGML_TYPE_COUNT,
};

#define NOW 1   /* since November 2024 */
#define GRAD 2  /* before, and in forks */
#define PERF 3  /* before June 2024 */
#define IK 4    /* ik_llama.cpp of 2026 */
#define OTHER 5 /* in no table */

struct ggml_tensor {
	enum ggml_type type;
	void *buffer;
#if LAYOUT == OTHER
	void *more;
#endif
	int64_t ne[4];
	size_t nb[4];
	enum ggml_op op;
	int32_t op_params[16];
	int32_t flags;
#if LAYOUT == GRAD || LAYOUT == PERF || LAYOUT == IK
	struct ggml_tensor *grad;
#endif
#if LAYOUT == OTHER
	struct ggml_tensor *src[6];
#elif LAYOUT == IK
	struct ggml_tensor *src[16];
#else
	struct ggml_tensor *src[10];
#endif
#if LAYOUT == PERF
	int perf_runs;
	int64_t perf_cycles, perf_time_us;
#endif
	struct ggml_tensor *view_src;
	size_t view_offs;
	void *data;
	char name[64];
	void *extra;
};

struct ggml_cgraph {
	int size, n_nodes, n_leafs;
#if LAYOUT == OTHER
	void *more;
#endif
	struct ggml_tensor **nodes;
};

#define API __attribute__((visibility("default"), noinline))

API const char *ggml_get_name(const struct ggml_tensor *t) { return t->name; }
API bool ggml_is_view(const struct ggml_tensor *t) { return t->view_src != NULL; }
API int64_t ggml_nelements(const struct ggml_tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }
API bool ggml_is_transposed(const struct ggml_tensor *t) { return t->nb[0] > t->nb[1]; }
API void ggml_set_input(struct ggml_tensor *t) { t->flags |= 1; }
API int ggml_graph_n_nodes(struct ggml_cgraph *g) { return g->n_nodes; }
API struct ggml_tensor **ggml_graph_nodes(struct ggml_cgraph *g) { return g->nodes; }

#ifdef LYING /* data is not before the name */
API void *ggml_get_data(const struct ggml_tensor *t) { return t->buffer; }
#else
API void *ggml_get_data(const struct ggml_tensor *t) { return t->data; }
#endif

API int ggml_get_unary_op(const struct ggml_tensor *t) {
	if (t->op != GGML_OP_UNARY)
		abort();
	return t->op_params[0];
}

API struct ggml_tensor *ggml_new_tensor(int64_t n) {
	struct ggml_tensor *t = calloc(1, sizeof(*t));
	t->ne[0] = n;
	return t;
}

API struct ggml_tensor *ggml_mul_mat(void *ctx, struct ggml_tensor *a, struct ggml_tensor *b) {
	struct ggml_tensor *t;
	if (!ctx || ggml_is_transposed(a))
		abort();
	t = ggml_new_tensor(a->ne[1]);
	t->op = GGML_OP_MUL_MAT;
	t->src[0] = a;
	t->src[1] = b;
	return t;
}

static const char *GGML_OP_NAME[GGML_OP_COUNT] = {"NONE", "ADD", "MUL_MAT", "MUL_MAT_ID", "GET_ROWS", "UNARY"};
API const char *ggml_op_name(enum ggml_op op) { return GGML_OP_NAME[op]; }
API const char *ggml_version(void) { return "0.9.4"; }
API const char *ggml_commit(void) { return "0123abc"; }

int LLAMA_BUILD_NUMBER = 6700;
const char *LLAMA_COMMIT = "4567def";

volatile int hits;
API bool ggml_cpu_extra_compute_forward(void *params, struct ggml_tensor *node) {
	hits++;
	return node && params == NULL;
}
API void ggml_compute_forward_rms_norm_mul_fused(void *params, struct ggml_tensor *a, struct ggml_tensor *b) {
	hits += params && a && b;
}
API int ggml_graph_compute(struct ggml_cgraph *graph, void *plan) {
	hits++;
	return plan && graph->n_nodes;
}
API void ggml_backend_buffer_free(void *buffer) {
	hits++;
	free(buffer);
}

struct llama_batch {
	int32_t n_tokens;
	void *arrays[6];
};
API int32_t llama_decode(void *ctx, struct llama_batch batch) {
	hits++;
	return ctx ? batch.n_tokens : -1;
}
API int32_t llama_encode(void *ctx, struct llama_batch batch) {
	hits += 2;
	return ctx ? batch.n_tokens : -1;
}
API void llama_set_warmup(void *ctx, bool warmup) { hits += ctx && warmup; }

#ifdef OFFSETS /* a program that prints the layout */
#include <stdio.h>
int main(void) {
#define O(field) (unsigned)offsetof(struct ggml_tensor, field)
	unsigned max_src = sizeof(((struct ggml_tensor *)0)->src) / 8;
	printf("{\"type\":%u,\"ne\":%u,\"nb\":%u,\"op\":%u,\"flags\":%u,", O(type), O(ne), O(nb), O(op), O(flags));
	printf("\"src\":%u,\"max_src\":%u,\"view_src\":%u,\"data\":%u,", O(src), max_src, O(view_src), O(data));
	printf("\"name\":%u,\"n_nodes\":%u,\"nodes\":%u}", O(name), (unsigned)offsetof(struct ggml_cgraph, n_nodes),
	    (unsigned)offsetof(struct ggml_cgraph, nodes));
}
#elif defined(PROGRAM)
/* The table keeps the linker from leaving functions out. */
void *volatile keep[] = {ggml_get_name, ggml_get_data, ggml_is_view, ggml_nelements, ggml_is_transposed,
    ggml_set_input, ggml_graph_n_nodes, ggml_graph_nodes, ggml_get_unary_op, ggml_mul_mat, (void *)ggml_op_name,
    ggml_version, ggml_commit, ggml_cpu_extra_compute_forward, ggml_compute_forward_rms_norm_mul_fused,
    ggml_graph_compute, ggml_backend_buffer_free, llama_decode, llama_encode, llama_set_warmup};
int main(void) { return keep[0] == NULL || LLAMA_BUILD_NUMBER == 0 || !LLAMA_COMMIT; }
#endif
