//go:build ignore

/* libggml-tfmbs.so: a backend of ggml that has the emulated device multiply. An unmodified llama.cpp loads it (TFMBS_LLAMA_INTEGRATION.md).
 *
 * It takes products with weights of Q2_0 that lie in host memory, as the CPU backend's do. What is small between them it takes, too, and has ggml's own CPU code
 * compute it on the calling thread: else ggml would start its threads for each piece between two products, and they would spin where the device computes. All
 * else stays with the CPU. No header of ggml is needed: functions are
 * found by name, ops and types are compared by name, and the few structs that a backend fills in are declared below, as the versions of `known` have them.
 * Another version is refused.
 *
 * Weights are uploaded when ggml first asks whether a product with them is taken: what cannot be uploaded is not taken. A product that fails later is computed
 * here, slowly. */
#define _GNU_SOURCE
#include "tfmbs_host.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

#ifdef TFMBS_NO_MEMORY /* for tests */
#define malloc(n) ((void)(n), NULL)
#endif

/* ---- What a backend has to know of ggml ---- */

/* Versions whose structs are these. Their layout changed without a change of API_VERSION before. */
static const char *const known[] = {"0.25.1"};
enum { API_VERSION = 2, DEVICE_ACCEL = 3, USAGE_WEIGHTS = 1, FLAG_COMPUTE = 16, STATUS_ALLOC_FAILED = -2, STATUS_FAILED = -1, STATUS_SUCCESS = 0 };

struct tensor {
	int32_t type;
	void *buffer;
	int64_t ne[4];
	size_t nb[4];
	int32_t op, op_params[16], flags;
	struct tensor *src[10], *view_src;
	size_t view_offs;
	char *data;
	char name[64];
};
_Static_assert(offsetof(struct tensor, src) == 152 && offsetof(struct tensor, data) == 248 && offsetof(struct tensor, name) == 256, "ggml_tensor");

struct props {
	const char *name, *description;
	size_t memory_free, memory_total;
	int type;
	const char *id;
	bool caps[8];
};

struct reg;
struct device;
struct backend;

/* What may be NULL and is, has no type here. */
struct backend {
	const uint8_t *guid;
	const char *(*get_name)(struct backend *);
	void (*free)(struct backend *);
	void *set_async, *get_async, *set_2d_async, *get_2d_async, *cpy_async, *synchronize;
	void *plan_create, *plan_free, *plan_update, *plan_compute;
	int (*graph_compute)(struct backend *, void *graph);
	void *event_record, *event_wait, *graph_optimize;
	struct device *device;
	void *context;
};
_Static_assert(sizeof(struct backend) == 0x98 && offsetof(struct backend, graph_compute) == 0x68, "ggml_backend");

struct device {
	const char *(*get_name)(struct device *);
	const char *(*get_description)(struct device *);
	void (*get_memory)(struct device *, size_t *free, size_t *total);
	int (*get_type)(struct device *);
	void (*get_props)(struct device *, struct props *);
	struct backend *(*init_backend)(struct device *, const char *params);
	void *(*get_buffer_type)(struct device *);
	void *host_buffer_type, *buffer_from_host_ptr;
	bool (*supports_op)(struct device *, const struct tensor *);
	bool (*supports_buft)(struct device *, void *buffer_type);
	void *offload_op, *event_new, *event_free, *event_synchronize;
	struct reg *reg;
	void *context;
};
_Static_assert(offsetof(struct device, context) == 0x80, "ggml_backend_device");

struct reg {
	int api_version;
	const char *(*get_name)(struct reg *);
	size_t (*get_device_count)(struct reg *);
	struct device *(*get_device)(struct reg *, size_t);
	void *(*get_proc_address)(struct reg *, const char *);
	void *context;
};

/* More than ggml_cgraph, which ggml_graph_view returns in memory of its caller. */
struct graph {
	void *room[64];
};

#define FUNCTIONS(X) \
	X(const char *, ggml_version, (void)) \
	X(const char *, ggml_op_name, (int32_t)) \
	X(const char *, ggml_type_name, (int32_t)) \
	X(const char *, ggml_get_name, (const struct tensor *)) \
	X(void *, ggml_get_data, (const struct tensor *)) \
	X(size_t, ggml_nbytes, (const struct tensor *)) \
	X(float, ggml_fp16_to_fp32, (uint16_t)) \
	X(uint16_t, ggml_fp32_to_fp16, (float)) \
	X(int, ggml_graph_n_nodes, (void *)) \
	X(struct tensor *, ggml_graph_node, (void *, int)) \
	X(struct graph, ggml_graph_view, (void *, int from, int end)) \
	X(int, ggml_backend_graph_compute, (struct backend *, void *)) \
	X(void, ggml_backend_free, (struct backend *)) \
	X(struct device *, ggml_backend_get_device, (struct backend *)) \
	X(bool, ggml_backend_dev_supports_op, (struct device *, const struct tensor *)) \
	X(void *, ggml_backend_cpu_buffer_type, (void)) \
	X(bool, ggml_backend_buft_is_host, (void *)) \
	X(bool, ggml_backend_buffer_is_host, (void *)) \
	X(int, ggml_backend_buffer_get_usage, (void *))

static struct {
#define DECLARE(ret, name, args) ret(*name) args;
	FUNCTIONS(DECLARE)
} g;

struct found {
	const char *name, *path;
};

static int find_library(struct dl_phdr_info *info, size_t size, void *found) {
	struct found *f = found;
	(void)size;
	const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
	if (strncmp(name, f->name, strlen(f->name))) return 0;
	f->path = info->dlpi_name;
	return 1;
}

/* The library of this process whose name begins so, or RTLD_DEFAULT. It may have been loaded for nobody else to see. */
static void *library_of(const char *name, const char *function) {
	struct found f = {name, NULL};
	if (dlsym(RTLD_DEFAULT, function) || !dl_iterate_phdr(find_library, &f)) return RTLD_DEFAULT;
	return dlopen(f.path, RTLD_NOW | RTLD_NOLOAD);
}

/* The first function that this ggml lacks, or NULL. */
static const char *resolve(void) {
	void *base = library_of("libggml-base", "ggml_version");
#define FIND(ret, name, args) \
	if (!(g.name = (ret(*) args)dlsym(base, #name))) return #name;
	FUNCTIONS(FIND)
	return NULL;
}

/* ggml's CPU backend with one thread, or NULL. */
static struct backend *cpu_backend(void) {
	void *lib = library_of("libggml-cpu", "ggml_backend_cpu_init");
	struct backend *(*init)(void) = (struct backend * (*)(void)) dlsym(lib, "ggml_backend_cpu_init");
	void (*set_threads)(struct backend *, int) = (void (*)(struct backend *, int))dlsym(lib, "ggml_backend_cpu_set_n_threads");
	struct backend *cpu = init && set_threads ? init() : NULL;
	if (cpu) set_threads(cpu, 1);
	return cpu;
}

/* ---- Weights ---- */

struct weight {
	struct weight *next;
	const void *data, *buffer;
	uint32_t rows, cols;
	uint64_t sample;
	tfmbs_weight id; /* 0: it was refused */
};

enum { BUCKETS = 1024 };
static struct {
	pthread_mutex_t lock;
	int users;  /* backends */
	int broken; /* the device is not there, or not any more */
	struct weight *buckets[BUCKETS];
	long first, last; /* layers that are taken */
	struct device *cpu; /* computes what is small, or NULL */
	int ours, theirs;   /* matrices of weights that the device has, and that it has not */
	int fresh;          /* backends that have not computed yet */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .last = -1};

static void say(const char *what, int e) { fprintf(stderr, "tfmbs: %s: %s\n", what, strerror(-e)); }

static struct weight **bucket(const void *data) { return &state.buckets[((uintptr_t)data >> 5) * 0x9e3779b97f4a7c15u >> 54]; }

/* Of some of the bytes: another model may come to lie at the same address. What was uploaded the device knows by all bytes. */
static uint64_t sample(const uint8_t *b, size_t n) {
	uint64_t h = 0xcbf29ce484222325u;
	for (int i = 0; i < 16; i++) {
		size_t at = n / 16 * (size_t)i;
		for (size_t k = at; k < n && k < at + 32; k++) h = (h ^ b[k]) * 0x100000001b3u;
	}
	return h;
}

static struct weight *find(const struct tensor *t) {
	struct weight *w = *bucket(t->data);
	while (w && (w->data != t->data || w->buffer != t->buffer || w->rows != t->ne[1] || w->cols != t->ne[0])) w = w->next;
	return w;
}

/* -1: of none */
static long layer_of(const struct tensor *t) {
	return strncmp(t->name, "blk.", 4) ? -1 : strtol(t->name + 4, NULL, 10);
}

/* Notes a matrix that products use, which is not in the table yet. The lock is held. */
static struct weight *note(const struct tensor *t) {
	struct weight *w = calloc(1, sizeof *w);
	if (!w) return NULL;
	*w = (struct weight){*bucket(t->data), t->data, t->buffer, (uint32_t)t->ne[1], (uint32_t)t->ne[0], 0, 0};
	*bucket(t->data) = w;
	state.theirs++;
	return w;
}

/* Whether the device has t, or takes it now. */
static bool upload(const struct tensor *t) {
	size_t n = g.ggml_nbytes(t);
	pthread_mutex_lock(&state.lock);
	uint64_t s = state.broken ? 0 : sample((const uint8_t *)t->data, n);
	struct weight *w = find(t);
	if (!state.broken && (!w || w->sample != s)) {
		if (!w) w = note(t);
		if (w) {
			if (w->id) {
				tfmbs_release(w->id);
				state.ours--;
				state.theirs++;
			}
			w->id = 0;
			w->sample = s;
			int e = tfmbs_init();
			state.broken = e != 0; /* without a device, nothing is tried again */
			if (!e) e = tfmbs_upload_blocks((int)layer_of(t), TFMBS_Q2_0, t->data, w->rows, w->cols, &w->id);
			state.ours += w->id != 0;
			state.theirs -= w->id != 0;
			if (e) say(state.broken ? "there is no device, so the CPU computes everything" : t->name, e);
			uintptr_t from = ((uintptr_t)t->data + 4095) & ~(uintptr_t)4095, to = ((uintptr_t)t->data + n) & ~(uintptr_t)4095;
			if (w->id && to > from) madvise((void *)from, to - from, MADV_COLD); /* the device has it: these pages may go first */
		}
	}
	bool has = !state.broken && w && w->id;
	pthread_mutex_unlock(&state.lock);
	return has;
}

static void release_all(void) {
	for (int i = 0; i < BUCKETS; i++)
		while (state.buckets[i]) {
			struct weight *w = state.buckets[i];
			state.buckets[i] = w->next;
			if (w->id) tfmbs_release(w->id);
			free(w);
		}
	state.ours = state.theirs = 0;
}

/* ---- Products ---- */

static bool is_op(const struct tensor *t, const char *name) { return !strcmp(g.ggml_op_name(t->op), name); }
static bool is_type(const struct tensor *t, const char *name) { return !strcmp(g.ggml_type_name(t->type), name); }
static bool is_view(const struct tensor *t) { return is_op(t, "NONE") || is_op(t, "RESHAPE") || is_op(t, "VIEW") || is_op(t, "PERMUTE") || is_op(t, "TRANSPOSE"); }

/* Whether t is a product that the device can compute if it has the weights. */
static bool fits(const struct tensor *t) {
	const struct tensor *w = t->src[0], *x = t->src[1];
	return is_op(t, "MUL_MAT") && w && x && is_type(w, "q2_0") && is_type(x, "f32") && is_type(t, "f32") && !w->view_src && w->buffer && w->data &&
	       w->ne[0] % 64 == 0 && w->ne[0] > 0 && w->ne[1] > 0 && w->ne[0] <= 1 << 24 && w->ne[1] <= 1 << 24 && w->ne[2] == 1 && w->ne[3] == 1 && w->nb[0] == 18 &&
	       w->nb[1] == (size_t)w->ne[0] / 64 * 18 && x->ne[0] == w->ne[0] && x->ne[1] > 0 && x->ne[2] == 1 && x->ne[3] == 1 && x->nb[0] == 4 && x->nb[1] % 4 == 0 &&
	       x->nb[1] >= 4 * (size_t)x->ne[0] && t->ne[0] == w->ne[1] && t->ne[1] == x->ne[1] && t->nb[0] == 4 && t->nb[1] >= 4 * (size_t)t->ne[0];
}

/* Operands of more bytes are worth several threads; those of products (with the cache of keys and values), times the number of vectors. */
enum { SMALL = 2 << 20, SMALL_PRODUCT = 8 << 20 };

static void *buffer_of(const struct tensor *t) { return t->view_src ? t->view_src->buffer : t->buffer; }

/* Whether t is so little work that one thread does it in less time than several take to begin. */
static bool is_small(const struct tensor *t) {
	size_t most = SMALL, sum = g.ggml_nbytes(t);
	/* a row of many: of the table of embeddings, or of the cache of keys and values */
	const struct tensor *table = is_op(t, "GET_ROWS") ? t->src[0] : NULL;
	if (is_op(t, "SET_ROWS")) sum = 0;
	if (is_op(t, "MUL_MAT") && t->src[1]) most = SMALL_PRODUCT / (size_t)t->src[1]->ne[1];
	if (is_op(t, "FLASH_ATTN_EXT") && t->src[0]) most = SMALL_PRODUCT / (size_t)t->src[0]->ne[1];
	for (int i = 0; i < 10; i++) {
		const struct tensor *x = t->src[i];
		if (x && buffer_of(x) && !g.ggml_backend_buffer_is_host(buffer_of(x))) return false;
		if (x && x != table && !(is_op(t, "SET_ROWS") && x->data == t->data)) sum += g.ggml_nbytes(x);
	}
	return sum <= most;
}

/* Whether ggml's CPU code is to compute t on the calling thread. Not where other matrices than the device's are many: there the CPU's threads are at work anyway. */
static bool take_small(const struct tensor *t) {
	pthread_mutex_lock(&state.lock);
	struct device *cpu = !state.broken && state.ours > 0 && state.theirs <= state.ours / 8 ? state.cpu : NULL;
	/* While llama.cpp makes a context, it does without this op at all if it is not where the cache of keys and values is. */
	if (state.fresh && is_op(t, "FLASH_ATTN_EXT")) cpu = NULL;
	pthread_mutex_unlock(&state.lock);
	return cpu && is_small(t) && g.ggml_backend_dev_supports_op(cpu, t);
}

/* x*y + z, rounded once, where x is a half: the product is exact, and a sum that is not is rounded to an odd last bit at first. */
static float fma_of_half(float x, float y, float z) {
	double p = (double)x * y, s = p + z, b = s - p, e = (p - (s - b)) + (z - b); /* s + e is the sum */
	uint64_t bits;
	memcpy(&bits, &s, sizeof bits);
	if ((e < 0 || e > 0) && !(bits & 1)) bits += (e > 0) == (s > 0) ? 1 : -1ull;
	memcpy(&s, &bits, sizeof s);
	return (float)s;
}

/* The product with vectors first to first+n-1, in the order of sums that ggml and the device have (fabric/kernel/codes.go). Without memory for that, it returns STATUS_ALLOC_FAILED. */
static int compute_here(const struct tensor *t, int64_t first, int64_t n) {
	const struct tensor *w = t->src[0], *x = t->src[1];
	int64_t blocks = w->ne[0] / 32;
	int8_t *q = malloc((size_t)w->ne[0]);
	float *scale = malloc((size_t)blocks * sizeof *scale);
	int status = q && scale ? STATUS_SUCCESS : STATUS_ALLOC_FAILED;
	for (int64_t i = first; i < first + n && !status; i++) {
		const float *v = (const float *)(const void *)((const char *)x->data + (size_t)i * x->nb[1]);
		float *y = (float *)(void *)(t->data + (size_t)i * t->nb[1]);
		for (int64_t b = 0; b < blocks; b++) {
			float most = 0;
			for (int k = 0; k < 32; k++) {
				float size = v[32 * b + k] < 0 ? -v[32 * b + k] : v[32 * b + k];
				if (size > most) most = size;
			}
			float inverse = most > 0 ? 127 / most : 0;
			scale[b] = g.ggml_fp16_to_fp32(g.ggml_fp32_to_fp16(most / 127));
			/* a number beside 3 * 2^22 is rounded to an integer, to even */
			for (int k = 0; k < 32; k++) q[32 * b + k] = (int8_t)(v[32 * b + k] * inverse + 0x1.8p23f - 0x1.8p23f);
		}
		for (int64_t r = 0; r < w->ne[1]; r++) {
			const uint8_t *row = (const uint8_t *)w->data + (size_t)r * w->nb[1];
			float sum = 0;
			for (int64_t b = 0; b < blocks; b += 2) {
				const uint8_t *block = row + b / 2 * 18, *codes = block + 2;
				uint16_t half;
				int part[2] = {0};
				memcpy(&half, block, 2);
				for (int k = 0; k < 64; k++) part[k / 32] += q[32 * b + k] * (((codes[k / 4] >> (k % 4 * 2)) & 3) - 1);
				sum = fma_of_half(g.ggml_fp16_to_fp32(half), (float)part[0] * scale[b] + (float)part[1] * scale[b + 1], sum);
			}
			y[r] = sum;
		}
	}
	free(q);
	free(scale);
	return status;
}

/* Jobs under way, in order. */
enum { MOST_JOBS = 32, AHEAD = 16 };
struct flight {
	int n;
	int ahead; /* nodes before it: all products among them are under way or over */
	int status; /* of the graph: a product that neither the device nor this process could compute fails it */
	struct {
		tfmbs_job id;
		const struct tensor *t;
		int64_t first, count;
	} jobs[MOST_JOBS];
};

static void failed(struct flight *f, const struct tensor *t, int64_t first, int64_t count, int e) {
	pthread_mutex_lock(&state.lock);
	if (!state.broken) say("the device failed, what it was to do is done here, slowly", e);
	state.broken = 1;
	pthread_mutex_unlock(&state.lock);
	e = compute_here(t, first, count);
	if (e) f->status = e;
}

#ifdef TFMBS_CHECK
/* For tests: says how far the device's results are from compute_here's. */
static void check(const struct tensor *t, int64_t first, int64_t count) {
	size_t n = (size_t)t->ne[0];
	float *theirs = malloc((size_t)count * n * sizeof *theirs);
	double off = 0, norm = 0;
	if (!theirs) abort();
	for (int64_t i = 0; i < count; i++) memcpy(theirs + (size_t)i * n, t->data + (size_t)(first + i) * t->nb[1], n * sizeof *theirs);
	if (compute_here(t, first, count)) abort();
	for (int64_t i = 0; i < count; i++) {
		float *ours = (float *)(void *)(t->data + (size_t)(first + i) * t->nb[1]);
		for (size_t k = 0; k < n; k++) {
			double d = theirs[(size_t)i * n + k] - ours[k];
			off += d * d;
			norm += (double)ours[k] * ours[k];
			ours[k] = theirs[(size_t)i * n + k];
		}
	}
	fprintf(stderr, "check %s %ld %g %g\n", t->src[0]->name, (long)count, off, norm);
	free(theirs);
}
#endif

static void land(struct flight *f) {
	for (int i = 0; i < f->n; i++) {
		int e = tfmbs_wait(f->jobs[i].id);
		if (e) failed(f, f->jobs[i].t, f->jobs[i].first, f->jobs[i].count, e);
	}
#ifdef TFMBS_CHECK
	for (int i = 0; i < f->n; i++) check(f->jobs[i].t, f->jobs[i].first, f->jobs[i].count);
#endif
	f->n = 0;
}

/* Results are written when they are waited for: who reads them has to wait. */
static bool reads_result(const struct flight *f, const struct tensor *x) {
	const char *from = x->data, *to = from + (size_t)(x->ne[1] - 1) * x->nb[1] + 4 * (size_t)x->ne[0];
	for (int i = 0; i < f->n; i++) {
		const struct tensor *y = f->jobs[i].t;
		if (from < y->data + (size_t)y->ne[1] * y->nb[1] && y->data < to) return true;
	}
	return false;
}

/* The device's weight in the product t; 0 if it is none that the device computes. */
static tfmbs_weight weight_of(const struct tensor *t) {
	if (!fits(t)) return 0;
	pthread_mutex_lock(&state.lock);
	struct weight *w = find(t->src[0]);
	tfmbs_weight id = w ? w->id : 0;
	pthread_mutex_unlock(&state.lock);
	return id;
}

/* Several products that follow each other (of Q, K and V, for instance) are one trip to the device. */
static void multiply(struct flight *f, const struct tensor *t, tfmbs_weight id) {
	const struct tensor *x = t->src[1];
	if (reads_result(f, x)) land(f);
	/* In parts that fit the memory that is shared with the device, of whole tiles of 64 if they can be. */
	int64_t most = (64 << 20) / (4 * (t->ne[0] + x->ne[0]));
	most = most >= 512 ? 512 : most >= 64 ? most / 64 * 64 : most < 1 ? 1 : most;
	for (int64_t first = 0, n; first < t->ne[1]; first += n) {
		n = t->ne[1] - first < most ? t->ne[1] - first : most;
		tfmbs_gemv q = {.weight = id, .rows = (uint32_t)t->ne[0], .cols = (uint32_t)x->ne[0], .n = (uint32_t)n, .x_type = TFMBS_FLOAT32, .y_type = TFMBS_FLOAT32, .block = 32,
		                .x = x->data + (size_t)first * x->nb[1], .x_stride = x->nb[1], .y = t->data + (size_t)first * t->nb[1], .y_stride = t->nb[1]};
		tfmbs_job job;
		if (f->n == MOST_JOBS) land(f);
		int e = tfmbs_submit(&q, &job);
		if (e && f->n) { /* perhaps the shared memory is full of what is under way */
			land(f);
			e = tfmbs_submit(&q, &job);
		}
		if (e) {
			failed(f, t, first, n, e);
			continue;
		}
		f->jobs[f->n].id = job;
		f->jobs[f->n].t = t;
		f->jobs[f->n].first = first;
		f->jobs[f->n++].count = n;
	}
}

/* ---- The backend ---- */

struct context {
	struct backend *cpu; /* or NULL */
	bool computed;
};

/* The lock is held. */
static void computed(struct context *c) {
	state.fresh -= !c->computed;
	c->computed = true;
}

static bool computes(const struct tensor *t) { return t->flags & FLAG_COMPUTE && !is_view(t); }

static bool overlap(const struct tensor *a, const struct tensor *b) {
	return a->data < b->data + g.ggml_nbytes(b) && b->data < a->data + g.ggml_nbytes(a);
}

/* Whether the product p can go before the nodes first to last-1 that are not products: it reads nothing that they write, and they touch nothing that it writes. */
static bool may_precede(void *graph, const struct tensor *p, int first, int last) {
	for (int i = first; i < last; i++) {
		const struct tensor *t = g.ggml_graph_node(graph, i);
		if (!computes(t) || weight_of(t)) continue;
		if (overlap(t, p) || overlap(t, p->src[1])) return false;
		for (int k = 0; k < 10; k++)
			if (t->src[k] && overlap(t->src[k], p)) return false;
	}
	return true;
}

static int graph_compute(struct backend *b, void *graph) {
	struct flight f = {0};
	struct context *c = b->context;
	int n = g.ggml_graph_n_nodes(graph);
	pthread_mutex_lock(&state.lock);
	computed(c);
	pthread_mutex_unlock(&state.lock);
	for (int i = 0, end; i < n && !f.status; i = end) {
		const struct tensor *t = g.ggml_graph_node(graph, i);
		tfmbs_weight id = computes(t) ? weight_of(t) : 0;
		end = i + 1;
		if (!computes(t)) continue;
		if (id) {
			if (i >= f.ahead) multiply(&f, t, id);
			continue;
		}
		if (!c->cpu) { /* nothing but products is accepted then */
			f.status = STATUS_FAILED;
			break;
		}
		while (end < n && !weight_of(g.ggml_graph_node(graph, end))) end++;
		/* Products behind it that wait for nothing of it share the trip: those of K and V, while the position is worked into Q. */
		for (int k = f.ahead > end ? f.ahead : end; f.n > 0 && k < n && k < end + AHEAD; f.ahead = ++k) {
			const struct tensor *p = g.ggml_graph_node(graph, k);
			tfmbs_weight pid = computes(p) ? weight_of(p) : 0;
			if (!pid) continue;
			if (reads_result(&f, p->src[1]) || !may_precede(graph, p, i, k)) break;
			multiply(&f, p, pid);
		}
		land(&f);
		struct graph part = g.ggml_graph_view(graph, i, end);
		int e = f.status ? f.status : g.ggml_backend_graph_compute(c->cpu, &part);
		if (e) f.status = e;
	}
	land(&f);
	return f.status;
}

static const char *backend_name(struct backend *b) { return (void)b, "TFMBS"; }

static void backend_free(struct backend *b) {
	const char *path = getenv("TFMBS_METRICS");
	struct context *c = b->context;
	pthread_mutex_lock(&state.lock);
	computed(c);
	if (--state.users == 0) {
		int e = path && *path ? fabric_dump_metrics_csv(path) : 0;
		if (e) say(path, e);
		release_all();
	}
	pthread_mutex_unlock(&state.lock);
	if (c->cpu) g.ggml_backend_free(c->cpu);
	free(c);
	free(b);
}

static const char *device_name(struct device *d) { return (void)d, "TFMBS"; }
static const char *device_description(struct device *d) { return (void)d, "emulated ternary device"; }
static int device_type(struct device *d) { return (void)d, DEVICE_ACCEL; }
static void *device_buffer_type(struct device *d) { return (void)d, g.ggml_backend_cpu_buffer_type(); }
static bool device_supports_buft(struct device *d, void *buft) { return (void)d, g.ggml_backend_buft_is_host(buft); }

static void device_memory(struct device *d, size_t *free, size_t *total) {
	(void)d;
	*free = *total = 0;
}

static void device_props(struct device *d, struct props *p) {
	*p = (struct props){.name = device_name(d), .description = device_description(d), .type = DEVICE_ACCEL};
}

static struct backend *device_init(struct device *d, const char *params) {
	static const uint8_t guid[16] = "tensorcast-tfmb";
	struct backend *b = calloc(1, sizeof *b);
	struct context *c = calloc(1, sizeof *c);
	(void)params;
	if (!b || !c) {
		free(b);
		free(c);
		return NULL;
	}
	c->cpu = cpu_backend();
	*b = (struct backend){.guid = guid, .get_name = backend_name, .free = backend_free, .graph_compute = graph_compute, .device = d, .context = c};
	pthread_mutex_lock(&state.lock);
	state.users++;
	state.fresh++;
	if (c->cpu) state.cpu = g.ggml_backend_get_device(c->cpu);
	pthread_mutex_unlock(&state.lock);
	return b;
}

static bool device_supports_op(struct device *d, const struct tensor *t) {
	(void)d;
	if (is_view(t)) return true;
	const struct tensor *w = is_op(t, "MUL_MAT") || is_op(t, "MUL_MAT_ID") ? t->src[0] : NULL;
	if (!w || !w->buffer || g.ggml_backend_buffer_get_usage(w->buffer) != USAGE_WEIGHTS) return take_small(t);
	long layer = layer_of(w);
	bool wanted = layer < 0 || state.last < 0 || (layer >= state.first && layer <= state.last);
	if (wanted && fits(t) && g.ggml_backend_buffer_is_host(w->buffer)) return upload(w);
	pthread_mutex_lock(&state.lock);
	if (!find(w)) note(w);
	pthread_mutex_unlock(&state.lock);
	return false;
}

static struct reg the_reg;
static struct device the_device = {.get_name = device_name, .get_description = device_description, .get_memory = device_memory, .get_type = device_type,
                                   .get_props = device_props, .init_backend = device_init, .get_buffer_type = device_buffer_type, .supports_op = device_supports_op,
                                   .supports_buft = device_supports_buft, .reg = &the_reg};

static const char *reg_name(struct reg *r) { return (void)r, "TFMBS"; }
static size_t reg_count(struct reg *r) { return (void)r, 1; }
static struct device *reg_device(struct reg *r, size_t i) { return (void)r, i == 0 ? &the_device : NULL; }
static void *reg_proc(struct reg *r, const char *name) { return (void)r, (void)name, NULL; }
static struct reg the_reg = {API_VERSION, reg_name, reg_count, reg_device, reg_proc, NULL};

/* Whether this is a ggml whose structs are known. Says why not. */
static bool usable(void) {
	const char *missing = resolve(), *version = missing ? NULL : g.ggml_version(), *layers = getenv("TFMBS_LAYERS");
	struct tensor t = {.name = "name"};
	t.data = t.name;
	if (missing) {
		fprintf(stderr, "tfmbs: not used: this ggml has no function %s\n", missing);
		return false;
	}
	size_t i = 0;
	while (i < sizeof known / sizeof *known && strcmp(known[i], version)) i++;
	if (i == sizeof known / sizeof *known) {
		fprintf(stderr, "tfmbs: not used: version %s of ggml is not known here (%s is)\n", version, known[0]);
		return false;
	}
	if (strcmp(g.ggml_get_name(&t), "name") || g.ggml_get_data(&t) != t.data) {
		fprintf(stderr, "tfmbs: not used: this ggml lays out tensors in another way than version %s\n", version);
		return false;
	}
	if (layers && *layers) {
		int end = -1;
		if (sscanf(layers, "%ld-%ld%n", &state.first, &state.last, &end) != 2 || layers[end] || state.first < 0 || state.last < state.first) {
			fprintf(stderr, "tfmbs: not used: TFMBS_LAYERS=%s: want FIRST-LAST, for instance 0-11\n", layers);
			return false;
		}
	}
	return true;
}

/* ggml asks for the score first, where it asks. */
EXPORT int ggml_backend_score(void) {
	static int score = -1;
	if (score < 0) score = usable() ? 100 : 0;
	return score;
}

EXPORT struct reg *ggml_backend_init(void) { return ggml_backend_score() ? &the_reg : NULL; }
