//go:build ignore

/* libtfmbs_intercept.so: has the emulated device multiply in programs that can load no backend of
 * ggml. LD_PRELOAD puts it before ggml's own libraries (TFMBS_LLAMA_INTEGRATION.md).
 *
 * It stands for two functions of ggml. ggml_graph_compute gets each graph: products with weights that
 * the device takes go to the device, and ggml's own function computes the rest, piece by piece.
 * ggml_backend_buffer_free says when weights go: another model may come to lie at their address.
 * Weights are uploaded when a product first uses them.
 *
 * With TFMBS_DETECT it finds products by what is read of a model (tfmbs_detect.h). For that it stands
 * for mmap, munmap, read, pread, fread and sigaction as well.
 *
 * It leaves to ggml what it does not know: another version, weights in another order (repacked), a
 * process that was forked. A program whose own file or library contains all of ggml never calls it. */
#define _GNU_SOURCE
#include "tfmbs_products.h"
#include "tfmbs_detect.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The beginning of ggml_cplan: how many threads are to compute. */
struct plan {
	size_t work_size;
	uint8_t *work_data;
	int n_threads;
};

typedef int graph_function(void *graph, struct plan *plan);
typedef void free_function(void *buffer);

static struct {
	pthread_once_t once; /* of configure_once */
	bool usable;
	bool forked;   /* this process is a child: the device's connection is the parent's */
	bool repacked; /* it was said that weights are repacked */
} own = {.once = PTHREAD_ONCE_INIT};

static void mark_forked(void) {
	own.forked = true;
	abandon_detection();
}

static void configure_once(void) {
	own.usable = configure();
	const char *traits = "ggml_get_type_traits_cpu";
	if (own.usable)
		api.traits = (const struct traits *(*)(int32_t))dlsym(loaded_library("libggml-cpu", traits), traits);
	if (own.usable && !api.traits) {
		fprintf(stderr, "tfmbs: not used: this ggml has no function ggml_get_type_traits_cpu\n");
		own.usable = false;
	}
}

/* Libraries that were loaded after this one, in their order. */
struct behind {
	const void *here; /* something of this library; NULL once it was passed */
	const char *paths[1024];
	int n;
};

static int list_behind(struct dl_phdr_info *info, size_t size, void *arg) {
	struct behind *b = arg;
	(void)size;
	for (int i = 0; b->here && i < info->dlpi_phnum; i++) {
		uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
		if (info->dlpi_phdr[i].p_type == PT_LOAD && (uintptr_t)b->here - from < info->dlpi_phdr[i].p_memsz) {
			b->here = NULL;
			return 0;
		}
	}
	if (!b->here && b->n < (int)(sizeof b->paths / sizeof *b->paths)) b->paths[b->n++] = info->dlpi_name;
	return 0;
}

/* The function of that name that the library itself has, not one that it was linked with; NULL if there is none. */
static void *function_of_library(const char *path, const char *name) {
	void *lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD), *f = lib ? dlsym(lib, name) : NULL;
	Dl_info info;
	if (f && (!dladdr(f, &info) || strcmp(info.dli_fname, path))) f = NULL;
	if (lib) dlclose(lib); /* it stays: somebody in it has called */
	return f;
}

/* The function of that name that would be called without this library: the next one. If its library
 * was loaded so that nobody else sees it, it is that of the caller's library, or of the first library
 * that has one. */
static void *real_function(const char *name, void *caller) {
	void *f = dlsym(RTLD_NEXT, name);
	Dl_info info;
	if (f) return f;
	struct behind b = {.here = &own};
	dl_iterate_phdr(list_behind, &b);
	bool known = dladdr(caller, &info);
	for (int i = 0; known && !f && i < b.n; i++)
		if (!strcmp(b.paths[i], info.dli_fname)) f = function_of_library(b.paths[i], name);
	for (int i = 0; !f && i < b.n; i++) f = function_of_library(b.paths[i], name);
	return f;
}

/* Whether t is a product of which the device has the weights, or takes them now. */
static bool device_takes(const struct tensor *t) {
	const struct tensor *w = is_op(t, "MUL_MAT") || is_op(t, "MUL_MAT_ID") ? t->src[0] : NULL;
	if (!w || !w->buffer || api.ggml_backend_buffer_get_usage(w->buffer) != USAGE_WEIGHTS ||
	    !is_device_product(t))
		return false;
	if (!is_layer_taken(layer_of_weight(w))) return false;
	if (!api.ggml_backend_buffer_is_host(w->buffer)) {
		if (!own.repacked)
			fprintf(stderr,
			    "tfmbs: %s and others are left to the CPU, which has them in an order of its own: "
			    "start with --no-repack\n",
			    w->name);
		own.repacked = true;
		return false;
	}
	pthread_mutex_lock(&tfmbs_state.lock);
	struct weight *known = find_weight(w);
	bool has = known && known->on_device && !tfmbs_state.broken;
	pthread_mutex_unlock(&tfmbs_state.lock);
	/* What was tried once is not tried again, but for held weights: which ones are held may change. */
	return has || ((!known || tfmbs_state.handed_over) && ensure_on_device(w));
}

/* A call of ggml_graph_compute. */
struct pass {
	graph_function *compute;
	struct plan *plan;
};

/* A rest_function: has ggml compute nodes. Small ones are computed on this thread, as ggml's threads
 * would take longer to begin. */
static int compute_others(void *arg, void *nodes, bool lost) {
	struct pass *p = arg;
	const int threads = p->plan->n_threads, n = api.ggml_graph_n_nodes(nodes);
	bool small = !lost;
	for (int i = 0; small && i < n; i++) {
		const struct tensor *t = api.ggml_graph_node(nodes, i);
		small = !is_computed(t) || is_small(t);
	}
	if (small) p->plan->n_threads = 1;
	int status = p->compute(nodes, p->plan);
	p->plan->n_threads = threads;
	return status;
}

/* Tells the detection how long the vectors of a product are. */
static void note_vectors(const struct tensor *t) {
	const struct tensor *w = t->src[0], *x = t->src[1];
	if (!(is_op(t, "MUL_MAT") || is_op(t, "MUL_MAT_ID")) || !w || !x || w->ne[2] < 1 || w->ne[2] > MAX_EXPERTS ||
	    w->ne[3] != 1)
		return;
	uint64_t size = (uint64_t)t->ne[0] * w->nb[1];
	if (t->ne[0] > UINT32_MAX || x->ne[0] > UINT32_MAX || (w->ne[2] > 1 && w->nb[2] != size)) return;
	note_op((struct op){(uintptr_t)w->data, size, (uint32_t)w->ne[2], (uint32_t)t->ne[0], (uint32_t)x->ne[0]});
}

EXPORT int ggml_graph_compute(void *graph, struct plan *plan);
EXPORT int ggml_graph_compute(void *graph, struct plan *plan) {
	struct pass p = {(graph_function *)real_function("ggml_graph_compute", __builtin_return_address(0)), plan};
	if (!p.compute) {
		fprintf(stderr, "tfmbs: this ggml's own ggml_graph_compute is not to be found: run without LD_PRELOAD\n");
		return STATUS_FAILED;
	}
	pthread_once(&own.once, configure_once);
	bool any = false;
	for (int i = 0, n = own.usable && !own.forked ? api.ggml_graph_n_nodes(graph) : 0; i < n; i++) {
		const struct tensor *t = api.ggml_graph_node(graph, i);
		if (is_detecting()) note_vectors(t);
		if (is_computed(t) && device_takes(t)) any = true;
	}
	return any ? compute_graph(graph, compute_others, &p) : p.compute(graph, plan);
}

EXPORT void ggml_backend_buffer_free(void *buffer);
EXPORT void ggml_backend_buffer_free(void *buffer) {
	free_function *f = (free_function *)real_function("ggml_backend_buffer_free", __builtin_return_address(0));
	if (own.usable && !own.forked && buffer) {
		pthread_mutex_lock(&tfmbs_state.lock);
		remove_weights(buffer);
		pthread_mutex_unlock(&tfmbs_state.lock);
	}
	if (f) f(buffer);
}

/* ---- What the detection sees (tfmbs_detect.h) ---- */

/* The functions that the program would call without this library. A read may be waited for and
 * cancelled, so a system call would not do. */
struct next {
	ssize_t (*read)(int, void *, size_t);
	ssize_t (*pread)(int, void *, size_t, off_t);
	size_t (*fread)(void *, size_t, size_t, FILE *);
};

static const struct next *next_functions(void) {
	static struct next n;
	if (!n.fread) {
		n.read = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
		n.pread = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
		n.fread = (size_t(*)(void *, size_t, size_t, FILE *))dlsym(RTLD_NEXT, "fread");
	}
	return &n;
}

__attribute__((constructor)) static void begin_watch(void) {
	const char *to = getenv("TFMBS_DETECT");
	next_functions(); /* nothing may be looked up in a signal's handler */
	if (to && *to) start_detection(to);
	if (pthread_atfork(NULL, NULL, mark_forked)) mark_forked(); /* without that, this library does nothing */
}

EXPORT void *mmap(void *at, size_t length, int prot, int flags, int fd, off_t offset) {
	void *p = (void *)syscall(SYS_mmap, at, length, prot, flags, fd, offset);
	note_mapping(p, length, prot, fd, offset);
	return p;
}

EXPORT void *mmap64(void *at, size_t length, int prot, int flags, int fd, off64_t offset) {
	return mmap(at, length, prot, flags, fd, offset);
}

EXPORT int munmap(void *at, size_t length) {
	note_unmapping(at, length);
	return (int)syscall(SYS_munmap, at, length);
}

EXPORT ssize_t read(int fd, void *to, size_t length) {
	note_filling((uintptr_t)to, length);
	ssize_t n = next_functions()->read(fd, to, length);
	if (n > 0) note_fill(to, (size_t)n, fd, -1);
	return n;
}

EXPORT ssize_t pread(int fd, void *to, size_t length, off_t offset) {
	note_filling((uintptr_t)to, length);
	ssize_t n = next_functions()->pread(fd, to, length, offset);
	if (n > 0) note_fill(to, (size_t)n, fd, offset);
	return n;
}

EXPORT ssize_t pread64(int fd, void *to, size_t length, off64_t offset) { return pread(fd, to, length, offset); }

EXPORT size_t fread(void *to, size_t size, size_t count, FILE *file) {
	note_filling((uintptr_t)to, size * count);
	size_t n = next_functions()->fread(to, size, count, file);
	if (is_detecting() && n * size >= MIN_FILL) {
		int e = errno;
		off_t at = ftello(file);
		if (at >= (off_t)(n * size)) note_fill(to, n * size, fileno(file), at - (off_t)(n * size));
		errno = e;
	}
	return n;
}

EXPORT int sigaction(int number, const struct sigaction *new, struct sigaction *old) {
	typedef int function(int, const struct sigaction *, struct sigaction *);
	if (number == SIGSEGV) return set_program_handler(new, old);
	function *next = (function *)dlsym(RTLD_NEXT, "sigaction");
	return next ? next(number, new, old) : -1;
}

EXPORT sighandler_t signal(int number, sighandler_t handler) {
	struct sigaction new = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
	return sigaction(number, &new, &old) ? SIG_ERR : old.sa_handler;
}

__attribute__((destructor)) static void end_library(void) {
	const char *path = getenv("TFMBS_METRICS");
	if (!own.forked) finish_detection();
	if (!own.usable || own.forked) return;
	pthread_mutex_lock(&tfmbs_state.lock);
	if (path && *path && tfmbs_state.on_device > 0) {
		int e = fabric_dump_metrics_csv(path);
		if (e) report_error(path, e);
	}
	report_validation();
	pthread_mutex_unlock(&tfmbs_state.lock);
}
