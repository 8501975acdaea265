/* What libggml-tfmbs.so and libtfmbs_intercept.so have in common: what they know of ggml, which weights the device has, and how a graph's products come to it. Each includes it once.
 *
 * No header of ggml is needed: functions are found by name, ops and types are compared by name, and the few structs that are needed are declared below, as the versions of `known` have them.
 * Another version is refused.
 *
 * A product that the device fails to compute is computed here, slowly. */
#ifndef TFMBS_PRODUCTS_H
#define TFMBS_PRODUCTS_H
#define _GNU_SOURCE
#include "tfmbs_host.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

#ifdef TFMBS_NO_MEMORY /* for tests */
#define malloc(n) ((void)(n), NULL)
#endif

/* ---- What a backend has to know of ggml ---- */

/* Versions whose structs are these. Their layout changed without a change of API_VERSION before. */
static const char *const known[] = {"0.25.1", "0.18.1"};
enum {
	API_VERSION = 2,
	DEVICE_ACCEL = 3,
	USAGE_WEIGHTS = 1,
	FLAG_COMPUTE = 16,
	STATUS_ALLOC_FAILED = -2,
	STATUS_FAILED = -1,
	STATUS_SUCCESS = 0,
};

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
	X(int64_t, ggml_blck_size, (int32_t)) \
	X(size_t, ggml_type_size, (int32_t)) \
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

/* How the CPU multiplies a type. */
struct traits {
	void (*from_float)(const float *x, void *y, int64_t n);
	void (*vec_dot)(int n, float *s, size_t bs, const void *x, size_t bx, const void *y, size_t by, int nrc);
	int32_t vec_dot_type;
	int64_t nrows;
};

static struct {
#define DECLARE(ret, name, args) ret(*name) args;
	FUNCTIONS(DECLARE)
	const struct traits *(*traits)(int32_t type); /* the CPU's; NULL until a backend was made */
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

/* ---- Weights ---- */

/* Types that the device takes, with their numbers in a file, and the block in which ggml quantises what they are multiplied with. Without a profile it takes those
 * that it computes faster than ggml's CPU code does (docs/performance.md), all of them exactly. */
static const struct kind {
	const char *name;
	uint32_t number;
	uint32_t block;
	bool faster;
} kinds[] = {
    {"q2_0", TFMBS_Q2_0, 32, true},
    {"tq1_0", 34, 256, true},
    {"tq2_0", 35, 256, false},
    {"q1_0", 41, 32, false},
    {"q4_0", 2, 32, false},
    {"q8_0", 8, 32, false},
    {"q4_K", 12, 256, false},
    {"q6_K", 14, 256, false},
};

/* TFMBS_PROFILE */
static const struct profile {
	const char *name;
	uint32_t flags;
	bool all;     /* types, not only those that are faster */
	double error; /* of products, as a part of their norm: the decibels of the profile; of exact planes, which differ in the order of sums only, ample */
} profiles[] = {{"accurate", TFMBS_TWO_BIT, true, 1e-3}, {"balanced", TFMBS_TWO_BIT | TFMBS_BALANCED, true, 0.07}, {"fast", TFMBS_TWO_BIT | TFMBS_FAST, true, 0.18}},
  no_profile = {"", TFMBS_TWO_BIT, false, 1e-3};
static const struct profile *profile = &no_profile;

struct weight;
enum {
	BUCKETS = 1024,
	LAYERS = 1024,
	NOT_OURS = 1 << 16,
};
static struct {
	pthread_mutex_t lock;
	int users;  /* backends */
	int broken; /* the device is not there, or not any more */
	struct weight *buckets[BUCKETS];
	long first, last;   /* layers that are taken */
	bool handed;        /* TFMBS_HANDOVER: nothing is uploaded, the device's owner hands weights over */
	bool waited;        /* for the device to have read what it is to hold */
	long whole[LAYERS]; /* of layers: matrices that the device has, less many for each that it has not */
	struct device *cpu; /* computes what is small, or NULL */
	int ours, theirs;   /* tensors of weights that the device has, and that it has not */
	unsigned epoch;     /* backends that were made: a new context may be of another model, at an address of the former */
	int fresh;          /* backends that have not computed yet */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .last = -1};

/* The kind of a tensor of weights, or NULL: the device does not take it. */
static const struct kind *kind_of(const struct tensor *w) {
	const char *name = g.ggml_type_name(w->type);
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(kinds[i].name, name)) return kinds[i].faster || profile->all || state.handed ? &kinds[i] : NULL;
	return NULL;
}

/* A tensor of weights: one matrix, or one for each expert, which follow each other. */
struct weight {
	struct weight *next;
	const void *data, *buffer;
	uint32_t rows, cols, count;
	long layer;
	uint64_t sample;
	bool has;              /* the device has the matrix, or all of them; of what it holds for this process: it may have some, and others come and go */
	bool told;             /* that a result with it was wrong */
	struct timespec asked; /* when it was last looked for among what the device holds, */
	unsigned epoch;        /* and which backend was the newest then */
	struct in_file {
		uint64_t dev, ino, offset;
	} at; /* where it lies, of what is held */
	struct matrix {
		tfmbs_weight id; /* 0: the device does not have it, */
		uint32_t asked;  /* when tfmbs_held was this */
	} all[];
};

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
	while (w && (w->data != t->data || w->buffer != t->buffer || w->rows != t->ne[1] || w->cols != t->ne[0] || w->count != t->ne[2])) w = w->next;
	return w;
}

/* -1: of none */
static long layer_of(const struct tensor *t) {
	return strncmp(t->name, "blk.", 4) ? -1 : strtol(t->name + 4, NULL, 10);
}

enum { MOST_EXPERTS = 1 << 14 };

/* Counts w as the device's or not, by = 1, or no more, by = -1. The lock is held. */
static void count(const struct weight *w, int by) {
	*(w->has ? &state.ours : &state.theirs) += by;
	if (w->layer >= 0 && w->layer < LAYERS) state.whole[w->layer] += by * (w->has ? 1 : -NOT_OURS);
}

/* Notes a tensor that products use, which is not in the table yet. The lock is held. */
static struct weight *note(const struct tensor *t) {
	struct weight *w = t->ne[2] > 0 && t->ne[2] <= MOST_EXPERTS ? calloc(1, sizeof *w + (size_t)t->ne[2] * sizeof *w->all) : NULL;
	if (!w) return NULL;
	w->next = *bucket(t->data);
	w->data = t->data;
	w->buffer = t->buffer;
	w->rows = (uint32_t)t->ne[1];
	w->cols = (uint32_t)t->ne[0];
	w->count = (uint32_t)t->ne[2];
	w->layer = layer_of(t);
	*bucket(t->data) = w;
	count(w, 1);
	return w;
}

static void release(struct weight *w) {
	for (uint32_t i = 0; i < w->count; i++) {
		if (w->all[i].id) tfmbs_release(w->all[i].id);
		w->all[i] = (struct matrix){0};
	}
	w->has = false;
}

/* Gives t to the device: all matrices or none. */
static int send(const struct tensor *t, struct weight *w, size_t n) {
	int e = tfmbs_init();
	state.broken = e != 0; /* without a device, nothing is tried again */
	for (uint32_t i = 0; i < w->count && !e; i++)
		e = tfmbs_upload_blocks((int)layer_of(t), kind_of(t)->number, t->data + i * t->nb[2], n / w->count, w->rows, w->cols, profile->flags, &w->all[i].id);
	if (e) say(state.broken ? "there is no device, so the CPU computes everything" : t->name, e);
	return e;
}

/* Finds out in which file p is mapped. False: in none, or its path leads to another by now. */
static bool locate(const void *p, struct in_file *at) {
	static struct {
		uintptr_t from, to;
		unsigned epoch;
		struct in_file at;
	} last; /* the lock is held */
	uintptr_t a = (uintptr_t)p;
	if (a < last.from || a >= last.to || last.epoch != state.epoch) {
		FILE *maps = fopen("/proc/self/maps", "re");
		char line[4500];
		bool found = false;
		while (maps && !found && fgets(line, sizeof line, maps)) {
			uintptr_t from, to;
			unsigned long long offset, ino;
			int path = 0;
			struct stat st;
			if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*4s %llx %*x:%*x %llu %n", &from, &to, &offset, &ino, &path) < 4 || !path || a < from || a >= to) continue;
			line[strcspn(line, "\n")] = 0;
			if (line[path] != '/' || stat(line + path, &st) || st.st_ino != ino) break;
			last.from = from;
			last.to = to;
			last.epoch = state.epoch;
			last.at = (struct in_file){st.st_dev, ino, offset};
			found = true;
		}
		if (maps) fclose(maps);
		if (!found) return false;
	}
	*at = last.at;
	at->offset += a - last.from;
	return true;
}

static double since(const struct timespec *t) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - t->tv_sec) + 1e-9 * (double)(now.tv_nsec - t->tv_nsec);
}

enum {
	LONGEST_WAIT = 120, /* s, for a device that reads what it is to hold; the first graph comes after it */
	ASK_AGAIN = 2,      /* s, for what it does not hold: it may have got more room */
};

/* Asks the device for a matrix of t. */
static int ask(const struct tensor *t, struct weight *w, uint32_t i) {
	size_t n = (size_t)t->ne[1] * t->nb[1];
	w->all[i].asked = tfmbs_held();
	return tfmbs_find_blocks(w->at.dev, w->at.ino, w->at.offset + i * n, kind_of(t)->number, t->data + i * n, n, w->rows, w->cols, &w->all[i].id);
}

/* Looks for t among what the device holds. Experts come and go: they are asked for when they are chosen. Here two are: if neither is held, the CPU has them all, as it
   computes them faster within a graph than as one of their own. */
static int look(const struct tensor *t, struct weight *w) {
	struct timespec begun;
	clock_gettime(CLOCK_MONOTONIC, &begun);
	w->asked = begun;
	w->epoch = state.epoch;
	if (!locate(t->data, &w->at)) return -ENOENT;
	int e = tfmbs_init();
	state.broken = e != 0;
	while (!e) {
		e = ask(t, w, 0);
		if (!e || e != -EAGAIN || state.waited) break;
		if (since(&begun) > LONGEST_WAIT) state.waited = true;
		nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
		e = 0;
	}
	if (e == -ENOENT) state.waited = true; /* all was tried */
	if (e == -ENOENT && w->count > 1) e = ask(t, w, 1);
	if (state.broken || e == -EPIPE) {
		state.broken = true;
		say("there is no device, so the CPU computes everything", e);
	}
	return e;
}

/* Whether the device has t, or takes it now. */
static bool upload(const struct tensor *t) {
	size_t n = g.ggml_nbytes(t);
	pthread_mutex_lock(&state.lock);
	/* What the device holds is not to be looked at in the file: that would read it from disk. */
	uint64_t s = state.broken || state.handed ? 0 : sample((const uint8_t *)t->data, n);
	struct weight *w = find(t);
	bool again = w && state.handed && (w->epoch != state.epoch || (!w->has && since(&w->asked) > ASK_AGAIN));
	if (!state.broken && (!w || w->sample != s || again)) {
		if (!w) w = note(t);
		if (w) {
			count(w, -1);
			release(w);
			w->sample = s;
			int e = state.handed ? look(t, w) : send(t, w, n);
			if (e) release(w);
			w->has = !e;
			count(w, 1);
			uintptr_t from = ((uintptr_t)t->data + 4095) & ~(uintptr_t)4095, to = ((uintptr_t)t->data + n) & ~(uintptr_t)4095;
			if (w->has && !(state.handed && w->count > 1) && to > from) madvise((void *)from, to - from, MADV_COLD); /* the device has it: these pages may go first */
		}
	}
	bool has = !state.broken && w && w->has;
	pthread_mutex_unlock(&state.lock);
	return has;
}

/* ---- Products ---- */

static bool is_op(const struct tensor *t, const char *name) { return !strcmp(g.ggml_op_name(t->op), name); }
static bool is_type(const struct tensor *t, const char *name) { return !strcmp(g.ggml_type_name(t->type), name); }
static bool is_view(const struct tensor *t) { return is_op(t, "NONE") || is_op(t, "RESHAPE") || is_op(t, "VIEW") || is_op(t, "PERMUTE") || is_op(t, "TRANSPOSE"); }

/* Whether the elements of t are 4 bytes each, of this type, in rows without gaps that lie as they please. */
static bool in_rows(const struct tensor *t, const char *type) {
	return is_type(t, type) && t->nb[0] == 4 && t->nb[1] % 4 == 0 && t->nb[1] >= 4 * (size_t)t->ne[0] && t->nb[2] % 4 == 0 && t->ne[3] == 1;
}

/* Whether t is a product that the device can compute if it has the weights. */
static bool fits(const struct tensor *t) {
	const struct tensor *w = t->src[0], *x = t->src[1], *ids = t->src[2];
	if (!w || !x || !kind_of(w) || w->view_src || !w->buffer || !w->data || w->ne[0] <= 0 || w->ne[1] <= 0 || w->ne[0] > 1 << 24 || w->ne[1] > 1 << 24 || w->ne[3] != 1) return false;
	int64_t block = g.ggml_blck_size(w->type);
	if (w->ne[0] % block || w->nb[0] != g.ggml_type_size(w->type) || w->nb[1] != (size_t)(w->ne[0] / block) * w->nb[0]) return false;
	if (!in_rows(x, "f32") || !in_rows(t, "f32") || x->ne[0] != w->ne[0] || x->ne[1] <= 0 || t->ne[0] != w->ne[1]) return false;
	if (is_op(t, "MUL_MAT")) return w->ne[2] == 1 && x->ne[2] == 1 && t->ne[2] == 1 && t->ne[1] == x->ne[1];
	/* ids: for each token, which experts; x: for each token, a vector for all of them or for each; t: for each token, a result of each */
	return is_op(t, "MUL_MAT_ID") && ids && in_rows(ids, "i32") && ids->ne[2] == 1 && w->ne[2] > 0 && w->ne[2] <= MOST_EXPERTS &&
	    w->nb[2] == (size_t)w->ne[1] * w->nb[1] && t->ne[1] == ids->ne[0] && t->ne[2] == ids->ne[1] && x->ne[2] == ids->ne[1] && ids->ne[0] % x->ne[1] == 0;
}

/* Operands of more bytes are worth several threads; those of products (with the cache of keys and values), times the number of vectors. */
enum {
	SMALL = 2 << 20,
	SMALL_PRODUCT = 8 << 20,
};

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

/* A part of a product: n vectors with one matrix. */
struct part {
	const struct tensor *t;
	const char *w; /* rows of blocks */
	int64_t n;
	const char *x;
	size_t x_stride;
	char *y;
	size_t y_stride;
	/* NULL, or memory with x and y (which are vectors of several tokens) and before them where each y belongs */
	char **to;
};

/* The results of a part as the CPU has them. Without memory for that, it returns STATUS_ALLOC_FAILED. */
static int compute_here(const struct part *p) {
	const struct tensor *w = p->t->src[0];
	const struct traits *own = g.traits(w->type), *other = g.traits(own->vec_dot_type);
	int64_t n = w->ne[0];
	void *q = malloc((size_t)(n / g.ggml_blck_size(own->vec_dot_type)) * g.ggml_type_size(own->vec_dot_type));
	if (!q) return STATUS_ALLOC_FAILED;
	for (int64_t i = 0; i < p->n; i++) {
		float *y = (float *)(void *)(p->y + (size_t)i * p->y_stride);
		other->from_float((const float *)(const void *)(p->x + (size_t)i * p->x_stride), q, n);
		for (int64_t r = 0; r < w->ne[1]; r++) own->vec_dot((int)n, y + r, 0, p->w + (size_t)r * w->nb[1], 0, q, 0, 1);
	}
	free(q);
	return STATUS_SUCCESS;
}

/* Jobs under way, in order. */
enum {
	MOST_JOBS = 32,
	AHEAD = 16,
};
/* Computes nodes of a graph that are no products of the device: lost, if they are products of weights that it has not, or has no more. */
typedef int rest(void *arg, void *nodes, bool lost);

struct flight {
	void *graph;
	rest *others;
	void *arg; /* of others */
	int n;
	int node;   /* of the graph, whose product is being put under way */
	int ahead;  /* nodes before it: all products among them are under way or over */
	int held;   /* jobs whose results must not be brought home yet: nodes before them are to use that memory first */
	int error;  /* why the device did not take a job */
	int status; /* of the graph: a product that neither the device nor this process could compute fails it */
	struct {
		tfmbs_job id;
		int node;
		bool held;
		struct part part;
	} jobs[MOST_JOBS];
};

static void failed(struct flight *f, const struct part *p, int e) {
	pthread_mutex_lock(&state.lock);
	struct weight *w = e == -ESTALE ? find(p->t->src[0]) : NULL;
	if (w && w->count > 1) {
		struct matrix *m = &w->all[(size_t)(p->w - p->t->src[0]->data) / p->t->src[0]->nb[2]];
		if (m->id) tfmbs_release(m->id);
		m->id = 0;
	} else if (w && w->has) { /* its memory was needed; the CPU has it from now on */
		count(w, -1);
		w->has = false;
		count(w, 1);
	}
	if (e != -ESTALE && !state.broken) say("the device failed, what it was to do is done here, slowly", e);
	state.broken |= e != -ESTALE;
	pthread_mutex_unlock(&state.lock);
	e = compute_here(p);
	if (e) f->status = e;
}

/* Brings the results of a part, which the device or compute_here has made, to where they belong. */
static void settle(struct part *p) {
	size_t size = 4 * (size_t)p->t->ne[0];
	for (int64_t i = 0; p->to && i < p->n; i++) memcpy(p->to[i], p->y + (size_t)i * p->y_stride, size);
	free(p->to);
}

/* TFMBS_VALIDATE: every result of the device is compared with what ggml's CPU code has. The lock is held. */
static struct {
	bool on;
	long products, wrong;
	double worst; /* error of a product's results, as a part of their norm */
	char name[64];
} validation;

/* What an error may be, as a part of the norm of a product's results, beyond which they are taken for wrong: twice what the profile has. Of a single result: ELEMENT times as much of the results' root
 * mean square, or of itself, as rows of weights differ in size. */
enum { ELEMENT = 64 };

/* Compares the device's results of a part with compute_here's, and puts the latter in their place if they are wrong. */
static void validate(const struct part *p) {
	size_t n = (size_t)p->t->ne[0], all = (size_t)p->n * n, bad = all;
	float *theirs = malloc(all * sizeof *theirs), *ours = NULL;
	double off = 0, norm = 0;
	for (int64_t i = 0; theirs && i < p->n; i++) memcpy(theirs + (size_t)i * n, p->y + (size_t)i * p->y_stride, n * sizeof *theirs);
	if (!theirs || compute_here(p) || !(ours = malloc(all * sizeof *ours))) {
		free(theirs);
		say("a result is not compared", -ENOMEM);
		return;
	}
	for (int64_t i = 0; i < p->n; i++) memcpy(ours + (size_t)i * n, p->y + (size_t)i * p->y_stride, n * sizeof *ours);
	for (size_t k = 0; k < all; k++) {
		double d = (double)theirs[k] - ours[k];
		off += d * d;
		norm += (double)ours[k] * ours[k];
	}
	double most = 2 * profile->error, rms = sqrt(norm / (double)all);
	for (size_t k = 0; k < all && bad == all; k++)
		if (!(fabs((double)theirs[k] - ours[k]) <= ELEMENT * most * fmax(rms, fabs((double)ours[k])))) bad = k;
	bool wrong = bad < all || !(off <= most * most * norm);
	double error = norm > 0 ? sqrt(off / norm) : off > 0;
	for (int64_t i = 0; i < p->n && !wrong; i++) memcpy(p->y + (size_t)i * p->y_stride, theirs + (size_t)i * n, n * sizeof *theirs);
	pthread_mutex_lock(&state.lock);
	struct weight *w = find(p->t->src[0]);
	if (wrong && w && !w->told) {
		w->told = true;
		size_t at = bad < all ? bad : 0;
		fprintf(stderr, "tfmbs: WRONG: %s: the error is %.3g %% of the norm; row %zu: %g, and the CPU has %g, which is used\n", p->t->src[0]->name, 100 * error, at % n, (double)theirs[at], (double)ours[at]);
	}
	validation.products++;
	validation.wrong += wrong;
	if (!wrong && error > validation.worst) {
		validation.worst = error;
		snprintf(validation.name, sizeof validation.name, "%s", p->t->src[0]->name);
	}
	pthread_mutex_unlock(&state.lock);
#ifdef TFMBS_CHECK /* for tests */
	fprintf(stderr, "check %s %ld %g %g\n", p->t->src[0]->name, (long)p->n, off, norm);
#endif
	free(theirs);
	free(ours);
}

/* Says what was compared since it last said so. The lock is held. */
static void say_validated(void) {
	if (!validation.on) return;
	fprintf(stderr, "tfmbs: %ld results were compared with the CPU's, %ld of them wrong; the largest error of the others is %.3g %% of the norm (%s)\n", validation.products, validation.wrong, 100 * validation.worst, validation.name);
	validation.products = validation.wrong = 0;
	validation.worst = 0;
	validation.name[0] = 0;
}

/* Waits for the products of the nodes before this one, and brings their results home. */
static void land(struct flight *f, int before) {
	int end = 0, left = 0;
	while (end < f->n && f->jobs[end].node < before) end++; /* jobs are in the order of nodes */
	for (int i = end; i-- > 0;) {                           /* the last one first: then the others are over, too, and this thread was woken once */
		int e = tfmbs_wait(f->jobs[i].id);
		if (e) failed(f, &f->jobs[i].part, e);
	}
	for (int i = 0; i < end; i++) {
#ifdef TFMBS_PLANT /* for tests: an error of the device */
		struct part *p = &f->jobs[i].part;
		if (!strcmp(p->t->src[0]->name, TFMBS_PLANT)) *(float *)(void *)(p->y + 4 * (p->t->ne[0] / 3)) = TFMBS_PLANTED;
#endif
#ifdef TFMBS_CHECK
		validate(&f->jobs[i].part);
#else
		if (validation.on) validate(&f->jobs[i].part);
#endif
		settle(&f->jobs[i].part);
		f->held -= f->jobs[i].held;
	}
	for (int i = end; i < f->n; i++) f->jobs[left++] = f->jobs[i];
	f->n = left;
}

static void land_all(struct flight *f) { land(f, INT_MAX); }

static bool under_way(const struct flight *f, int node) {
	for (int i = 0; i < f->n; i++)
		if (f->jobs[i].node == node) return true;
	return false;
}

/* Behind the last byte of a tensor in rows. */
static const char *end_of(const struct tensor *t) { return t->data + (size_t)(t->ne[2] - 1) * t->nb[2] + (size_t)(t->ne[1] - 1) * t->nb[1] + 4 * (size_t)t->ne[0]; }

/* Results are written when they are waited for: who reads them has to wait. */
static bool reads_result(const struct flight *f, const struct tensor *x) {
	for (int i = 0; i < f->n; i++) {
		const struct tensor *y = f->jobs[i].part.t;
		if (x->data < end_of(y) && y->data < end_of(x)) return true;
	}
	return false;
}

static bool overlap(const struct tensor *a, const struct tensor *b) {
	return a->data < b->data + g.ggml_nbytes(b) && b->data < a->data + g.ggml_nbytes(a);
}

/* Whether the product p reads what is not written yet, or would write over what another one reads again if the device fails. */
static bool waits(const struct flight *f, const struct tensor *p) {
	for (int i = 0; i < f->n; i++)
		if (overlap(p, f->jobs[i].part.t->src[1])) return true;
	return reads_result(f, p->src[1]) || (p->src[2] && reads_result(f, p->src[2]));
}

/* The device's weights in the product t; NULL if it is none that the device computes. They stay until the last backend is freed, or until upload finds another model at
   their address: then there is no graph with the former any more, so none of its products can be under way. */
static struct weight *weight_of(const struct tensor *t) {
	if (!fits(t)) return NULL;
	pthread_mutex_lock(&state.lock);
	struct weight *w = find(t->src[0]);
	if (w && (!w->has || (state.handed && state.broken))) w = NULL;
	pthread_mutex_unlock(&state.lock);
	return w;
}

/* Has the device compute a part, if it takes it. */
static bool submit(struct flight *f, const struct part *p, tfmbs_weight id, bool held) {
	const struct tensor *w = p->t->src[0];
	tfmbs_gemv q = {.weight = id, .rows = (uint32_t)w->ne[1], .cols = (uint32_t)w->ne[0], .n = (uint32_t)p->n, .x_type = TFMBS_FLOAT32, .y_type = TFMBS_FLOAT32, .block = kind_of(w)->block, .x = p->x, .x_stride = p->x_stride, .y = p->y, .y_stride = p->y_stride};
	tfmbs_job job;
	if (f->n == MOST_JOBS || (f->error = tfmbs_submit(&q, &job))) return false;
	f->jobs[f->n].id = job;
	f->jobs[f->n].node = f->node;
	f->jobs[f->n].held = held;
	f->jobs[f->n++].part = *p;
	f->held += held;
	return true;
}

/* Puts a part under way. No job is held then, or all nodes before it have been computed. */
static void begin(struct flight *f, struct part *p, tfmbs_weight id) {
	if (submit(f, p, id, false)) return;
	land_all(f); /* perhaps the memory that is shared is full of what is under way */
	if (submit(f, p, id, false)) return;
	failed(f, p, f->error);
	settle(p);
}

/* As many vectors at a time as fit the memory that is shared with the device, whole tiles of 64 if they can be. */
static int64_t most_vectors(const struct tensor *w) {
	int64_t most = (64 << 20) / (4 * (w->ne[0] + w->ne[1]));
	return most >= 512 ? 512 : most >= 64 ? most / 64 * 64
	    : most < 1                        ? 1
	                                      : most;
}

/* Copies the vectors of a part together, so that they are one job. Without memory for it, it leaves them where they are: each is a job of its own. */
static bool gather(struct part *p, const char *const *x, char *const *to) {
	size_t n = (size_t)p->n, in = 4 * (size_t)p->t->src[0]->ne[0], out = 4 * (size_t)p->t->ne[0];
	if (!(p->to = malloc(n * (sizeof *to + in + out)))) return false;
	char *copy = (char *)(p->to + n);
	memcpy(p->to, to, n * sizeof *to);
	for (size_t i = 0; i < n; i++) memcpy(copy + i * in, x[i], in);
	p->x = copy;
	p->x_stride = in;
	p->y = copy + n * in;
	p->y_stride = out;
	return true;
}

/* Which expert the k-th of a token's is. */
static int32_t chosen(const struct tensor *t, int64_t token, int64_t k) {
	return *(const int32_t *)(const void *)(t->src[2]->data + (size_t)token * t->src[2]->nb[1] + 4 * (size_t)k);
}

/* Its vector, and where its result belongs. */
static const char *vector_of(const struct tensor *t, int64_t token, int64_t k) { return t->src[1]->data + (size_t)token * t->src[1]->nb[2] + (size_t)(k % t->src[1]->ne[1]) * t->src[1]->nb[1]; }
static char *result_of(const struct tensor *t, int64_t token, int64_t k) { return t->data + (size_t)token * t->nb[2] + (size_t)k * t->nb[1]; }

/* The part of n vectors with the matrix of an expert; the first (or only) vector and result are at x and y. */
static struct part of_expert(const struct tensor *t, size_t e, size_t n, const char *x, char *y) {
	return (struct part){.t = t, .w = t->src[0]->data + e * t->src[0]->nb[2], .n = (int64_t)n, .x = x, .x_stride = 4 * (size_t)t->src[0]->ne[0], .y = y, .y_stride = 4 * (size_t)t->ne[0]};
}

/* The experts that a product has: each token's, one after the other. */
static size_t uses(const struct tensor *t) { return (size_t)(t->ne[1] * t->ne[2]); }

/* The device's matrices of the experts that were chosen, in their order, 0 for those that it has not, and how many these are; -1 if an expert does not exist. What it has not it is asked for when what it holds has changed since that was
 * asked last, which is told with its jobs; if there are none, in ASK_AGAIN. */
static int64_t matrices(const struct tensor *t, struct weight *w, tfmbs_weight *ids) {
	int64_t missing = 0;
	pthread_mutex_lock(&state.lock);
	bool again = state.handed && since(&w->asked) > ASK_AGAIN;
	for (int64_t i = 0; i < (int64_t)uses(t) && missing >= 0; i++) {
		int32_t e = chosen(t, i / t->ne[1], i % t->ne[1]);
		if (e < 0 || (uint32_t)e >= w->count) {
			missing = -1;
			break;
		}
		struct matrix *m = &w->all[e];
		if (!m->id && state.handed && (again || m->asked != tfmbs_held())) {
			if (again) clock_gettime(CLOCK_MONOTONIC, &w->asked);
			again = false;
			ask(t->src[0], w, (uint32_t)e);
		}
		ids[i] = m->id;
		missing += !m->id;
	}
	pthread_mutex_unlock(&state.lock);
	return missing;
}

/* Has the CPU compute the experts that the device has not: the same node, with these only. Vectors and results are copied together. */
static void compute_missing(struct flight *f, struct tensor *t, int node, const tfmbs_weight *ids, int64_t missing) {
	struct tensor *x = t->src[1], *which = t->src[2];
	const struct tensor was = *t, choice = *which;
	const bool one = t->ne[2] == 1, shared = one && x->ne[1] == 1; /* token; vector of all its experts */
	const size_t in = 4 * (size_t)x->ne[0], out = 4 * (size_t)t->ne[0], n = (size_t)missing;
	char *room = malloc(n * (4 + out + (shared ? 0 : in)));
	if (!room) {
		f->status = STATUS_ALLOC_FAILED;
		return;
	}
	char *y = room, *from = y + n * out;
	int32_t *list = (int32_t *)(void *)(from + (shared ? 0 : n * in));
	int64_t k = 0;
	for (int64_t i = 0; i < (int64_t)uses(&was); i++) {
		if (ids[i]) continue;
		list[k] = chosen(&was, i / was.ne[1], i % was.ne[1]);
		if (!shared) memcpy(from + (size_t)k * in, vector_of(&was, i / was.ne[1], i % was.ne[1]), in);
		k++;
	}
	struct tensor vectors = *x;
	if (!shared) {
		vectors.data = from;
		vectors.ne[1] = one ? missing : 1;
		vectors.ne[2] = one ? 1 : missing;
		vectors.nb[1] = in;
		vectors.nb[2] = in * (size_t)vectors.ne[1];
		vectors.nb[3] = in * n;
	}
	/* The tensor of the choice stays the same one: who observes ops takes another for another choice. */
	which->data = (char *)list;
	which->ne[0] = t->ne[1] = one ? missing : 1;
	which->ne[1] = t->ne[2] = one ? 1 : missing;
	which->nb[0] = 4;
	which->nb[1] = 4 * (size_t)which->ne[0];
	which->nb[2] = which->nb[3] = 4 * n;
	t->src[1] = &vectors;
	t->data = y;
	t->nb[1] = out;
	t->nb[2] = out * (size_t)t->ne[1];
	t->nb[3] = out * n;
	struct graph part = g.ggml_graph_view(f->graph, node, node + 1);
	int e = f->others(f->arg, &part, n * t->src[0]->nb[2] > SMALL);
	*t = was;
	*which = choice;
	k = 0;
	for (int64_t i = 0; i < (int64_t)uses(t); i++)
		if (!ids[i]) memcpy(result_of(t, i / t->ne[1], i % t->ne[1]), y + (size_t)k++ * out, out);
	free(room);
	if (e) f->status = e;
}

/* The products of each token with its experts that the device has. Of a batch, vectors of several tokens with the same expert are one job. */
static void multiply_chosen(struct flight *f, const struct tensor *t, size_t count, const tfmbs_weight *ids) {
	const int64_t tokens = t->ne[2], each = t->ne[1];
	const size_t n = uses(t);
	struct expert {
		size_t end; /* of its vectors, in the order of experts */
		tfmbs_weight id;
	} *all = tokens > 1 ? calloc(count + 1, sizeof *all) : NULL;
	const char **from = all ? malloc(n * sizeof *from) : NULL;
	char **to = from ? malloc(n * sizeof *to) : NULL;
	for (int64_t i = 0; !to && i < tokens * each; i++) { /* one token, or no memory */
		if (!ids[i]) continue;
		struct part p = of_expert(t, (size_t)chosen(t, i / each, i % each), 1, vector_of(t, i / each, i % each), result_of(t, i / each, i % each));
		begin(f, &p, ids[i]);
	}
	if (to) {
		for (int64_t i = 0; i < tokens * each; i++) {
			if (!ids[i]) continue;
			int32_t e = chosen(t, i / each, i % each);
			all[e].id = ids[i];
			all[e + 1].end++;
		}
		for (size_t e = 0; e < count; e++) all[e + 1].end += all[e].end;
		/* Now an expert's end is where it begins; it moves to its end as its vectors are entered. */
		for (int64_t i = 0; i < tokens * each; i++) {
			if (!ids[i]) continue;
			size_t at = all[chosen(t, i / each, i % each)].end++;
			from[at] = vector_of(t, i / each, i % each);
			to[at] = result_of(t, i / each, i % each);
		}
		size_t most = (size_t)most_vectors(t->src[0]);
		for (size_t e = 0, at = 0; e < count; e++)
			while (at < all[e].end) {
				struct part p = of_expert(t, e, all[e].end - at < most ? all[e].end - at : most, from[at], to[at]);
				if (p.n > 1 && !gather(&p, from + at, to + at)) p.n = 1;
				at += (size_t)p.n;
				begin(f, &p, all[e].id);
			}
	}
	free(all);
	free(from);
	free(to);
}

/* The product of each token with its experts, the node of that number. Without cpu it does nothing, and is false, if the device has not all of them. */
static bool multiply_experts(struct flight *f, struct tensor *t, struct weight *w, int node, bool cpu) {
	tfmbs_weight few[64], *ids = uses(t) <= sizeof few / sizeof *few ? few : calloc(uses(t), sizeof *ids);
	if (!ids) {
		f->status = STATUS_ALLOC_FAILED;
		return true;
	}
	int64_t missing = matrices(t, w, ids);
	bool does = cpu || missing == 0;
	if (missing < 0) f->status = STATUS_FAILED; /* ggml's own code ends the process */
	else if (does) multiply_chosen(f, t, w->count, ids);
	/* Meanwhile the CPU computes the others, or waits for the disk. */
	if (missing > 0 && does) compute_missing(f, t, node, ids, missing);
	if (ids != few) free(ids);
	return does;
}

/* The first vectors of a product, as many as are one job, from this one on. */
static struct part vectors_from(const struct tensor *t, int64_t first) {
	const struct tensor *x = t->src[1];
	int64_t most = most_vectors(t->src[0]);
	return (struct part){.t = t, .w = t->src[0]->data, .n = t->ne[1] - first < most ? t->ne[1] - first : most, .x = x->data + (size_t)first * x->nb[1], .x_stride = x->nb[1], .y = t->data + (size_t)first * t->nb[1], .y_stride = t->nb[1]};
}

/* Several products that follow each other (gate and up, for instance) are one trip to the device. */
static void multiply(struct flight *f, int node, struct tensor *t, struct weight *w) {
	if (waits(f, t)) land_all(f);
	f->node = node;
	if (is_op(t, "MUL_MAT_ID")) {
		multiply_experts(f, t, w, node, true);
		return;
	}
	for (int64_t first = 0; first < t->ne[1];) {
		struct part p = vectors_from(t, first);
		first += p.n;
		begin(f, &p, w->all[0].id);
	}
}

/* ---- Graphs ---- */

static bool computes(const struct tensor *t) { return t->flags & FLAG_COMPUTE && !is_view(t); }

/* What the nodes first to last-1 that are not products do with the memory of the product p. */
enum order {
	FREE,   /* nothing: it can go before them */
	HELD,   /* they use the memory of its results for something else: these must not be brought home before */
	BEHIND, /* they write what it reads */
};
static enum order order_of(void *graph, const struct tensor *p, int first, int last) {
	enum order order = FREE;
	for (int i = first; i < last; i++) {
		const struct tensor *t = g.ggml_graph_node(graph, i);
		if (!computes(t) || weight_of(t)) continue;
		if (overlap(t, p->src[1]) || (p->src[2] && overlap(t, p->src[2]))) return BEHIND;
		if (overlap(t, p)) order = HELD;
		for (int k = 0; k < 10; k++)
			if (t->src[k] && overlap(t->src[k], p)) order = HELD;
	}
	return order;
}

/* Puts the product p of node k under way before the nodes from i on, which are no products. False: it has to wait for some of them, or there is no room. */
static bool precede(struct flight *f, void *graph, int i, int k, struct tensor *p, struct weight *w) {
	enum order order = order_of(graph, p, i, k);
	if (order == BEHIND || waits(f, p)) return false;
	if (order == FREE && !f->held) {
		f->node = k;
		if (is_op(p, "MUL_MAT_ID")) return multiply_experts(f, p, w, k, false);
		multiply(f, k, p, w);
		return true;
	}
	struct part all = vectors_from(p, 0);
	f->node = k;
	return is_op(p, "MUL_MAT") && all.n == p->ne[1] && submit(f, &all, w->all[0].id, order == HELD);
}

/* Whether t is a product with weights that the device had when the graph was divided, and has no more: it is worth all threads. */
static bool is_lost(const struct tensor *t) {
	return computes(t) && (is_op(t, "MUL_MAT") || is_op(t, "MUL_MAT_ID")) && g.ggml_nbytes(t->src[0]) > SMALL && fits(t);
}

/* Computes a graph: the device its products, in as few trips as they can be, and others the rest. */
static int compute(void *graph, rest *others, void *arg) {
	struct flight f = {.graph = graph, .others = others, .arg = arg};
	int n = g.ggml_graph_n_nodes(graph);
	for (int i = 0, end; i < n && !f.status; i = end) {
		struct tensor *t = g.ggml_graph_node(graph, i);
		struct weight *w = computes(t) ? weight_of(t) : NULL;
		end = i + 1;
		if (!computes(t) || under_way(&f, i)) continue;
		if (w) {
			if (i >= f.ahead) multiply(&f, i, t, w);
			continue;
		}
		bool lost = is_lost(t);
		while (end < n && !under_way(&f, end) && !weight_of(g.ggml_graph_node(graph, end)) && is_lost(g.ggml_graph_node(graph, end)) == lost) end++;
		/* Products behind it that wait for nothing of it are computed meanwhile: those of K and V, while the position is worked into Q. */
		for (int k = f.ahead > end ? f.ahead : end; f.n > 0 && k < n && k < end + AHEAD; f.ahead = ++k) {
			struct tensor *p = g.ggml_graph_node(graph, k);
			struct weight *pw = computes(p) ? weight_of(p) : NULL;
			if (pw && !precede(&f, graph, i, k, p, pw)) break;
		}
		land(&f, i);
		struct graph part = g.ggml_graph_view(graph, i, end);
		int e = f.status ? f.status : others(arg, &part, lost);
		if (e) f.status = e;
	}
	land_all(&f);
	return f.status;
}

/* Whether this is a ggml whose structs are known. Says why not. */
static bool usable(void) {
	const char *missing = resolve(), *version = missing ? NULL : g.ggml_version(), *layers = getenv("TFMBS_LAYERS"), *name = getenv("TFMBS_PROFILE"), *handed = getenv("TFMBS_HANDOVER"), *compare = getenv("TFMBS_VALIDATE");
	state.handed = handed && *handed;
	validation.on = compare && *compare;
	struct tensor t = {.name = "name"};
	t.data = t.name;
	if (missing) {
		fprintf(stderr, "tfmbs: not used: this ggml has no function %s\n", missing);
		return false;
	}
	size_t i = 0;
	while (i < sizeof known / sizeof *known && strcmp(known[i], version)) i++;
	if (i == sizeof known / sizeof *known) {
		fprintf(stderr, "tfmbs: not used: version %s of ggml is not known here (%s and %s are)\n", version, known[0], known[1]);
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
	if (name && *name) {
		profile = NULL;
		for (size_t k = 0; k < sizeof profiles / sizeof *profiles; k++)
			if (!strcmp(profiles[k].name, name)) profile = &profiles[k];
		if (!profile) {
			fprintf(stderr, "tfmbs: not used: TFMBS_PROFILE=%s: want accurate, balanced or fast\n", name);
			return false;
		}
	}
	return true;
}

#endif
