//go:build ignore

/* libggml-tfmbs.so: a backend of ggml that has the emulated device multiply. An unmodified llama.cpp loads it (TFMBS_LLAMA_INTEGRATION.md).
 *
 * It takes products with weights (of Q2_0 and TQ1_0, or, with a profile, of all types in `kinds`) that lie in host memory, as the CPU backend's do: with one matrix (MUL_MAT), and with those of the chosen experts
 * (MUL_MAT_ID), each of which is a matrix of its own on the device. What is small between them it takes, too, and has ggml's own CPU code compute it on the
 * calling thread: else ggml would start its threads for each piece between two products, and they would spin where the device computes. All else stays with
 * the CPU.
 *
 * Weights are uploaded when ggml first asks whether a product with them is taken: what cannot be uploaded is not taken. */
#include "tfmbs_products.h"

/* ---- What is small between products ---- */

/* ggml's CPU backend with so many threads, or NULL. */
static struct backend *cpu_backend(int threads) {
	void *lib = library_of("libggml-cpu", "ggml_backend_cpu_init");
	struct backend *(*init)(void) = (struct backend * (*)(void)) dlsym(lib, "ggml_backend_cpu_init");
	void (*set_threads)(struct backend *, int) = (void (*)(struct backend *, int))dlsym(lib, "ggml_backend_cpu_set_n_threads");
	struct backend *cpu = init && set_threads ? init() : NULL;
	if (cpu) {
		set_threads(cpu, threads);
		g.traits = (const struct traits *(*)(int32_t))dlsym(lib, "ggml_get_type_traits_cpu");
	}
	return cpu;
}

/* The layer of a name as llama.cpp gives them ("norm-5", "Qcur-5 (reshaped)", "blk.5.attn_norm.weight"), or -1. */
static long layer_in(const char *name) {
	const char *dash = strrchr(name, '-');
	long layer = strncmp(name, "blk.", 4) ? -1 : strtol(name + 4, NULL, 10);
	if (layer < 0 && dash && dash[1] >= '0' && dash[1] <= '9') layer = strtol(dash + 1, NULL, 10);
	return layer < LAYERS ? layer : -1;
}

/* The layer that an op belongs to by its name, or by those of what it reads; -1 if none of them tells. */
static long layer_of_op(const struct tensor *t) {
	long layer = layer_in(t->name);
	for (int i = 0; layer < 0 && i < 10; i++)
		if (t->src[i]) layer = layer_in(t->src[i]->name);
	return layer;
}

/* Whether ggml's CPU code is to compute t on the calling thread. Of what is handed over: in layers of which the device has all matrices. Else not where other matrices than the device's are many: there the CPU's threads are at work anyway. */
static bool take_small(const struct tensor *t) {
	long layer = state.handed ? layer_of_op(t) : -1;
	pthread_mutex_lock(&state.lock);
	bool few = state.handed ? layer >= 0 && state.whole[layer] > 0 : state.theirs <= state.ours / 8;
	struct device *cpu = !state.broken && state.ours > 0 && few ? state.cpu : NULL;
	/* While llama.cpp makes a context, it does without this op at all if it is not where the cache of keys and values is. */
	if (state.fresh && is_op(t, "FLASH_ATTN_EXT")) cpu = NULL;
	pthread_mutex_unlock(&state.lock);
	return cpu && is_small(t) && g.ggml_backend_dev_supports_op(cpu, t);
}

/* ---- The backend ---- */

struct context {
	struct backend *cpu;  /* or NULL */
	struct backend *many; /* the same with all threads, made when it is needed, or NULL */
	bool computed;
};

/* The lock is held. */
static void computed(struct context *c) {
	state.fresh -= !c->computed;
	c->computed = true;
}

/* The backend for nodes that the device does not compute. */
static struct backend *cpu_for(struct context *c, bool lost) {
	if (lost && !c->many) {
		cpu_set_t set;
		c->many = cpu_backend(sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set));
	}
	return lost && c->many ? c->many : c->cpu;
}

static int compute_rest(void *arg, void *nodes, bool lost) {
	struct backend *cpu = cpu_for(arg, lost);
	return cpu ? g.ggml_backend_graph_compute(cpu, nodes) : STATUS_FAILED; /* nothing but products is accepted then */
}

static int graph_compute(struct backend *b, void *graph) {
	struct context *c = b->context;
	pthread_mutex_lock(&state.lock);
	computed(c);
	pthread_mutex_unlock(&state.lock);
	return compute(graph, compute_rest, c);
}

static const char *backend_name(struct backend *b) { return (void)b, "TFMBS"; }

static void release_all(void) {
	for (int i = 0; i < BUCKETS; i++)
		while (state.buckets[i]) {
			struct weight *w = state.buckets[i];
			state.buckets[i] = w->next;
			release(w);
			free(w);
		}
	state.ours = state.theirs = 0;
	memset(state.whole, 0, sizeof state.whole);
}

static void backend_free(struct backend *b) {
	const char *path = getenv("TFMBS_METRICS");
	struct context *c = b->context;
	pthread_mutex_lock(&state.lock);
	computed(c);
	if (--state.users == 0) {
		int e = path && *path ? fabric_dump_metrics_csv(path) : 0;
		if (e) say(path, e);
		if (validation.products) say_validated(); /* llama.cpp makes a context before its own to see what fits */
		release_all();
	}
	pthread_mutex_unlock(&state.lock);
	if (c->cpu) g.ggml_backend_free(c->cpu);
	if (c->many) g.ggml_backend_free(c->many);
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
	c->cpu = cpu_backend(1);
	*b = (struct backend){.guid = guid, .get_name = backend_name, .free = backend_free, .graph_compute = graph_compute, .device = d, .context = c};
	pthread_mutex_lock(&state.lock);
	state.users++;
	state.fresh++;
	state.epoch++;
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
	if (wanted && g.traits && fits(t) && g.ggml_backend_buffer_is_host(w->buffer)) return upload(w);
	pthread_mutex_lock(&state.lock);
	/* Routers, for instance, are small: they are no reason to wake the CPU's threads. */
	if (g.ggml_nbytes(w) > SMALL && !find(w)) note(w);
	pthread_mutex_unlock(&state.lock);
	return g.ggml_nbytes(w) <= SMALL && take_small(t);
}

static struct reg the_reg;
static struct device the_device = {.get_name = device_name, .get_description = device_description, .get_memory = device_memory, .get_type = device_type, .get_props = device_props, .init_backend = device_init, .get_buffer_type = device_buffer_type, .supports_op = device_supports_op, .supports_buft = device_supports_buft, .reg = &the_reg};

static const char *reg_name(struct reg *r) { return (void)r, "TFMBS"; }
static size_t reg_count(struct reg *r) { return (void)r, 1; }
static struct device *reg_device(struct reg *r, size_t i) { return (void)r, i == 0 ? &the_device : NULL; }
static void *reg_proc(struct reg *r, const char *name) { return (void)r, (void)name, NULL; }
static struct reg the_reg = {API_VERSION, reg_name, reg_count, reg_device, reg_proc, NULL};

/* ggml asks for the score first, where it asks. */
EXPORT int ggml_backend_score(void) {
	static int score = -1;
	if (score < 0) score = usable() ? 100 : 0;
	return score;
}

EXPORT struct reg *ggml_backend_init(void) { return ggml_backend_score() ? &the_reg : NULL; }
