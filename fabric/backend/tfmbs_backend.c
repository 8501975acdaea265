//go:build ignore

/* libggml-tfmbs.so: a backend of ggml that has the emulated device multiply. An unmodified llama.cpp
 * loads it (TFMBS_LLAMA_INTEGRATION.md).
 *
 * It takes products with weights that lie in host memory, as those of the CPU backend do: of Q2_0 and
 * TQ1_0, or, with a profile, of all types in `kinds` (tfmbs_weights.c). Such a product has one matrix
 * (MUL_MAT), or those of the chosen experts (MUL_MAT_ID), each of which is a matrix of its own on the
 * device.
 *
 * It also takes small ops between these products, and has ggml's own CPU code compute them on the
 * calling thread. Otherwise ggml would start its threads for each piece between two products, and they
 * would spin where the device computes. All else stays with the CPU.
 *
 * Weights are uploaded when ggml first asks whether a product with them is taken. What cannot be
 * uploaded is not taken. */
#define _GNU_SOURCE
#include "tfmbs_products.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* ---- Small ops between products ---- */

/* Makes ggml's CPU backend with so many threads; NULL if that fails. */
static struct backend *cpu_backend(int threads) {
	void *lib = loaded_library("libggml-cpu", "ggml_backend_cpu_init");
	struct backend *(*init)(void) = (struct backend * (*)(void)) dlsym(lib, "ggml_backend_cpu_init");
	void (*set_threads)(struct backend *, int) =
	    (void (*)(struct backend *, int))dlsym(lib, "ggml_backend_cpu_set_n_threads");
	struct backend *cpu = init && set_threads ? init() : NULL;
	if (cpu) {
		set_threads(cpu, threads);
		api.traits = (const struct traits *(*)(int32_t))dlsym(lib, "ggml_get_type_traits_cpu");
	}
	return cpu;
}

/* The layer that a name of llama.cpp tells ("norm-5", "Qcur-5 (reshaped)", "blk.5.attn_norm.weight"), or -1. */
static long layer_in_name(const char *name) {
	const char *dash = strrchr(name, '-');
	long layer = strncmp(name, "blk.", 4) ? -1 : strtol(name + 4, NULL, 10);
	if (layer < 0 && dash && dash[1] >= '0' && dash[1] <= '9') layer = strtol(dash + 1, NULL, 10);
	return layer < LAYERS ? layer : -1;
}

/* The layer of an op by its name, or by those of what it reads; -1 if none of them tells. */
static long layer_of_op(const struct tensor *t) {
	long layer = layer_in_name(t->name);
	for (int i = 0; layer < 0 && i < 10; i++)
		if (t->src[i]) layer = layer_in_name(t->src[i]->name);
	return layer;
}

/* Whether ggml's CPU code is to compute t on the calling thread. With weights that are handed over, it
 * is in layers of which the device has all matrices. Otherwise it is unless many matrices are not the
 * device's: then the CPU's threads are at work anyway. */
static bool takes_small(const struct tensor *t) {
	long layer = tfmbs_state.handed_over ? layer_of_op(t) : -1;
	pthread_mutex_lock(&tfmbs_state.lock);
	bool few = tfmbs_state.handed_over ? layer >= 0 && tfmbs_state.layer_balance[layer] > 0
	                                   : tfmbs_state.elsewhere <= tfmbs_state.on_device / 8;
	struct device *cpu = !tfmbs_state.broken && tfmbs_state.on_device > 0 && few ? tfmbs_state.cpu_device : NULL;
	/* While llama.cpp makes a context, it gives up this op altogether if it is not computed where the
	 * cache of keys and values is. */
	if (tfmbs_state.idle_backends && is_op(t, "FLASH_ATTN_EXT")) cpu = NULL;
	pthread_mutex_unlock(&tfmbs_state.lock);
	return cpu && is_small(t) && api.ggml_backend_dev_supports_op(cpu, t);
}

/* ---- The backend ---- */

/* The context of one of our backends. */
struct context {
	struct backend *cpu;         /* ggml's, with one thread, or NULL */
	struct backend *cpu_threads; /* the same with all threads, made when it is first needed, or NULL */
	bool computed;               /* it has computed a graph */
};

/* Notes that a backend has computed, or never will. The lock is held. */
static void mark_computed(struct context *c) {
	tfmbs_state.idle_backends -= !c->computed;
	c->computed = true;
}

/* The backend for nodes that the device does not compute, see rest_function. */
static struct backend *cpu_backend_for(struct context *c, bool lost) {
	if (lost && !c->cpu_threads) {
		cpu_set_t set;
		c->cpu_threads = cpu_backend(sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set));
	}
	return lost && c->cpu_threads ? c->cpu_threads : c->cpu;
}

static int compute_rest(void *arg, void *nodes, bool lost) {
	struct backend *cpu = cpu_backend_for(arg, lost);
	/* Without a CPU backend nothing but products is accepted. */
	return cpu ? api.ggml_backend_graph_compute(cpu, nodes) : STATUS_FAILED;
}

static int graph_compute(struct backend *b, void *graph) {
	struct context *c = b->context;
	pthread_mutex_lock(&tfmbs_state.lock);
	mark_computed(c);
	pthread_mutex_unlock(&tfmbs_state.lock);
	return compute_graph(graph, compute_rest, c);
}

static const char *backend_name(struct backend *b) { return (void)b, "TFMBS"; }

static void backend_free(struct backend *b) {
	const char *path = getenv("TFMBS_METRICS");
	struct context *c = b->context;
	pthread_mutex_lock(&tfmbs_state.lock);
	mark_computed(c);
	if (--tfmbs_state.users == 0) {
		int e = path && *path ? fabric_dump_metrics_csv(path) : 0;
		if (e) report_error(path, e);
		/* llama.cpp makes a context before its own, to see what fits: that one computes nothing. */
		if (was_validated()) report_validation();
		remove_weights(NULL);
	}
	pthread_mutex_unlock(&tfmbs_state.lock);
	if (c->cpu) api.ggml_backend_free(c->cpu);
	if (c->cpu_threads) api.ggml_backend_free(c->cpu_threads);
	free(c);
	free(b);
}

static const char *device_name(struct device *d) { return (void)d, "TFMBS"; }
static const char *device_description(struct device *d) { return (void)d, "emulated ternary device"; }
static int device_type(struct device *d) { return (void)d, DEVICE_ACCEL; }
static void *device_buffer_type(struct device *d) { return (void)d, api.ggml_backend_cpu_buffer_type(); }
static bool device_supports_buft(struct device *d, void *buft) { return (void)d, api.ggml_backend_buft_is_host(buft); }

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
	c->cpu = cpu_backend(1);
	*b = (struct backend){
	    .guid = guid,
	    .get_name = backend_name,
	    .free = backend_free,
	    .graph_compute = graph_compute,
	    .device = d,
	    .context = c,
	};
	pthread_mutex_lock(&tfmbs_state.lock);
	tfmbs_state.users++;
	tfmbs_state.idle_backends++;
	tfmbs_state.epoch++;
	if (c->cpu) tfmbs_state.cpu_device = api.ggml_backend_get_device(c->cpu);
	pthread_mutex_unlock(&tfmbs_state.lock);
	return b;
}

static bool device_supports_op(struct device *d, const struct tensor *t) {
	(void)d;
	if (is_view(t)) return true;
	const struct tensor *w = is_op(t, "MUL_MAT") || is_op(t, "MUL_MAT_ID") ? t->src[0] : NULL;
	if (!w || !w->buffer || api.ggml_backend_buffer_get_usage(w->buffer) != USAGE_WEIGHTS) return takes_small(t);
	long layer = layer_of_weight(w);
	if (is_layer_taken(layer) && api.traits && is_device_product(t) && api.ggml_backend_buffer_is_host(w->buffer))
		return ensure_on_device(w);
	pthread_mutex_lock(&tfmbs_state.lock);
	/* Small weights, of routers for instance, are not counted: they are no reason to wake the CPU's threads. */
	if (api.ggml_nbytes(w) > SMALL && !find_weight(w)) add_weight(w);
	pthread_mutex_unlock(&tfmbs_state.lock);
	return api.ggml_nbytes(w) <= SMALL && takes_small(t);
}

static struct reg the_reg;
static struct device the_device = {
    .get_name = device_name,
    .get_description = device_description,
    .get_memory = device_memory,
    .get_type = device_type,
    .get_props = device_props,
    .init_backend = device_init,
    .get_buffer_type = device_buffer_type,
    .supports_op = device_supports_op,
    .supports_buft = device_supports_buft,
    .reg = &the_reg,
};

static const char *reg_name(struct reg *r) { return (void)r, "TFMBS"; }
static size_t reg_count(struct reg *r) { return (void)r, 1; }
static struct device *reg_device(struct reg *r, size_t i) { return (void)r, i == 0 ? &the_device : NULL; }
static void *reg_proc(struct reg *r, const char *name) { return (void)r, (void)name, NULL; }
static struct reg the_reg = {API_VERSION, reg_name, reg_count, reg_device, reg_proc, NULL};

/* ggml may ask for the score before it calls ggml_backend_init. */
EXPORT int ggml_backend_score(void) {
	static int score = -1;
	if (score < 0) score = configure() ? 100 : 0;
	return score;
}

EXPORT struct reg *ggml_backend_init(void) { return ggml_backend_score() ? &the_reg : NULL; }
