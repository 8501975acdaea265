//go:build ignore

// (The first line keeps the go command, which would require cgo for a C file, from compiling this
// one.)
//
// opsource runs a small graph again and again on llama.cpp's real CPU backend, at a given rate of
// ops, and prints how many ops it ran. This count does not depend on a tracer, and the rate can be
// higher than any model's. A graph first looks up token embeddings, as a step of llama.cpp does.
// Then it multiplies by weights in a mapped GGUF file. Every eighth op adds results and reads no
// weight.
//
// It needs no header of ggml: functions are looked up by name, and the few fields of struct
// ggml_tensor that it uses are checked against ggml's own getters.
//
// Build: gcc -O2 -o opsource opsource.c -ldl

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

__attribute__((noreturn, format(printf, 2, 3))) static void quit(int code, const char *fmt, ...) {
	va_list ap;
	va_start(ap, fmt);
	fputs("opsource: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	_exit(code);
}
#define die(...) quit(1, __VA_ARGS__)
#define usage_error(...) quit(2, __VA_ARGS__)

// ---- the part of ggml.h, gguf.h and ggml-backend.h that is used

typedef struct tensor { // ggml_tensor
	int32_t type;
	void *buffer;
	int64_t ne[4];
	size_t nb[4];
	int32_t op, op_params[16], flags;
	struct tensor *src[10], *view_src;
	size_t view_offs;
	char *data;
	char name[64];
} tensor;
typedef struct {
	size_t mem_size;
	void *mem_buffer;
	bool no_alloc;
} init_params; // ggml_init_params
typedef struct {
	bool no_alloc;
	void **ctx;
} gguf_params; // gguf_init_params

enum {
	TYPE_I32 = 26,
	DEVICE_CPU = 0,
};

#define FUNCTIONS(X) \
	X(void, ggml_log_set, (void (*)(int, const char *, void *), void *)) \
	X(void *, ggml_init, (init_params)) \
	X(size_t, ggml_tensor_overhead, (void)) \
	X(size_t, ggml_graph_overhead_custom, (size_t, bool)) \
	X(void *, ggml_new_graph_custom, (void *, size_t, bool)) \
	X(void, ggml_build_forward_expand, (void *, tensor *)) \
	X(int, ggml_graph_n_nodes, (void *)) \
	X(tensor *, ggml_new_tensor_1d, (void *, int, int64_t)) \
	X(tensor *, ggml_get_rows, (void *, tensor *, tensor *)) \
	X(tensor *, ggml_mul_mat, (void *, tensor *, tensor *)) \
	X(tensor *, ggml_add, (void *, tensor *, tensor *)) \
	X(tensor *, ggml_set_name, (tensor *, const char *)) \
	X(tensor *, ggml_get_tensor, (void *, const char *)) \
	X(void *, ggml_get_data, (const tensor *)) \
	X(const char *, ggml_get_name, (const tensor *)) \
	X(void *, gguf_init_from_file, (const char *, gguf_params)) \
	X(size_t, gguf_get_data_offset, (const void *)) \
	X(int64_t, gguf_find_tensor, (const void *, const char *)) \
	X(size_t, gguf_get_tensor_offset, (const void *, int64_t)) \
	X(void *, ggml_backend_init_by_type, (int, const char *)) \
	X(int, ggml_backend_graph_compute, (void *, void *)) \
	X(void *, ggml_backend_get_device, (void *)) \
	X(void *, ggml_backend_dev_backend_reg, (void *)) \
	X(void *, ggml_backend_reg_get_proc_address, (void *, const char *))
#define DECLARE(ret, name, args) static ret(*name) args;
FUNCTIONS(DECLARE)
static void (*ggml_backend_load_all_from_path)(const char *);

// open_lib loads the library with this name from dir. The file name may have a version before or
// after ".so". It returns false if there is none.
static bool open_lib(const char *dir, const char *name) {
	static const char *const suffix[] = {".so", ".so.[0-9]*", ".v[0-9]*.so"};
	for (int i = 0; i < 3; i++) {
		char pattern[PATH_MAX + 64];
		glob_t g;
		snprintf(pattern, sizeof pattern, "%s/lib%s%s", dir, name, suffix[i]);
		if (glob(pattern, 0, NULL, &g) == 0) {
			if (!dlopen(g.gl_pathv[0], RTLD_NOW | RTLD_GLOBAL)) die("load library: %s", dlerror());
			globfree(&g);
			return true;
		}
	}
	return false;
}

static void on_log(int level, const char *text, void *user) { (void)level, (void)text, (void)user; }

static void load_libs(const char *dir) {
	if (!open_lib(dir, "ggml-base")) die("no libggml-base.so in %s (name llama.cpp's directory with --lib DIR)", dir);
	open_lib(dir, "ggml-cpu"); // a build with the CPU code as a plug-in has no plain one
	if (!open_lib(dir, "ggml")) die("no libggml.so in %s", dir);
#define LOOKUP(ret, name, args) \
	if (!(name = (ret(*) args)dlsym(RTLD_DEFAULT, #name))) die("this ggml has no function %s", #name);
	FUNCTIONS(LOOKUP)
	ggml_backend_load_all_from_path = (void (*)(const char *))dlsym(RTLD_DEFAULT, "ggml_backend_load_all_from_path");
	ggml_log_set(on_log, NULL);
	if (ggml_backend_load_all_from_path) ggml_backend_load_all_from_path(dir);
}

// ---- the graph

static const char *model;
static void *file, *weights; // gguf_context; the tensors that it describes
static char *mapping;

static void open_model(void) {
	struct stat st;
	int fd = open(model, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st)) die("open %s: %s", model, strerror(errno));
	file = gguf_init_from_file(model, (gguf_params){.no_alloc = true, .ctx = &weights});
	if (!file) die("open %s: not a GGUF file", model);
	mapping = mmap(NULL, st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (mapping == MAP_FAILED) die("map %s: %s", model, strerror(errno));
	close(fd);
}

// map_weight returns a tensor of the model whose data is in the mapped file.
static tensor *map_weight(const char *name) {
	int64_t id = gguf_find_tensor(file, name);
	tensor *t = id < 0 ? NULL : ggml_get_tensor(weights, name);
	if (!t) die("%s has no %s: take a dense model of the llama architecture", model, name);
	t->data = mapping + gguf_get_data_offset(file) + gguf_get_tensor_offset(file, id);
	if (ggml_get_data(t) != t->data || ggml_get_name(t) != t->name)
		die("this ggml lays out ggml_tensor otherwise than opsource knows");
	return t;
}

// build_graph makes a graph of n nodes: a lookup of token embeddings, then products with attn_q, a square matrix. Every
// eighth node is a sum. with_weight receives the number of nodes that read a weight.
static void *build_graph(int n, long *with_weight) {
	size_t mem_size = (n + 2L) * ggml_tensor_overhead() + ggml_graph_overhead_custom(n + 8, false) + 4096;
	void *ctx = ggml_init((init_params){.mem_size = mem_size, .no_alloc = true});
	if (!ctx) die("out of memory");
	tensor *q = map_weight("blk.0.attn_q.weight"), *ids = ggml_new_tensor_1d(ctx, TYPE_I32, 1);
	tensor *x = ggml_get_rows(ctx, map_weight("token_embd.weight"), ids);
	static int32_t token = 1;
	if (q->ne[0] != q->ne[1]) die("blk.0.attn_q.weight of %s is not square", model);
	size_t size = 4 * x->ne[0];
	// The results of this node and of the one before.
	char *results[2] = {aligned_alloc(64, (size + 63) / 64 * 64), aligned_alloc(64, (size + 63) / 64 * 64)};
	if (!results[0] || !results[1]) die("out of memory");
	ggml_set_name(ids, "inp_tokens");
	ids->data = (char *)&token;
	ggml_set_name(x, "embd");
	x->data = results[0];
	*with_weight = 1;
	for (int i = 1; i < n; i++) {
		bool sum = i % 8 == 0;
		x = sum ? ggml_add(ctx, x, x) : ggml_mul_mat(ctx, q, x);
		ggml_set_name(x, sum ? "sum" : "Qcur-0");
		x->data = results[i % 2];
		*with_weight += !sum;
	}
	void *graph = ggml_new_graph_custom(ctx, n + 8, false);
	ggml_build_forward_expand(graph, x);
	if (ggml_graph_n_nodes(graph) != n) die("ggml made a graph of %d nodes, not %d", ggml_graph_n_nodes(graph), n);
	return graph;
}

// ---- command line

static const char help[] =
    "opsource runs a graph on ggml's CPU backend at a steady rate and prints how many ops it ran as JSON.\n"
    "\n"
    "    opsource -m model.gguf --lib DIR --ops 1000000 --rate 200000\n"
    "\n"
    "  -m FILE     a dense GGUF model whose weights the ops read; a small one is fast\n"
    "  --ops N     ops to run, rounded up to whole graphs (default 1000000)\n"
    "  --rate N    ops per second; 0: as many as it can (default 0)\n"
    "  --nodes N   ops in a graph, 2 or more (default 1000)\n"
    "  -t N        threads (default 1)\n"
    "  --lib DIR   where libggml is (default: beside this program)\n"
    "\n"
    "Exit code: 0 done, 1 failure, 2 wrong usage.\n";

static long parse_number(const char *option, const char *s, long min) {
	char *end;
	errno = 0;
	long v = strtol(s, &end, 10);
	if (errno || *end || end == s || v < min || v > 1000000000000L)
		usage_error("%s %s: want a number of at least %ld", option, s, min);
	return v;
}

static int64_t now_ns(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int main(int argc, char **argv) {
	enum {
		OPS = 256,
		RATE,
		NODES,
		LIB,
	};
	static const struct option longs[] = {
	    {"ops", 1, 0, OPS}, {"rate", 1, 0, RATE}, {"nodes", 1, 0, NODES}, {"lib", 1, 0, LIB}, {"help", 0, 0, 'h'}, {0}};
	const char *lib = NULL;
	long ops = 1000000, rate = 0, nodes = 1000, threads = 1;
	char dir[PATH_MAX];
	int c;
	argv[0] = "opsource"; // getopt's messages begin with it
	while ((c = getopt_long(argc, argv, "m:t:h", longs, NULL)) != -1) switch (c) {
		case 'm': model = optarg; break;
		case 't': threads = parse_number("-t", optarg, 1); break;
		case 'h': fputs(help, stdout); return 0;
		case OPS: ops = parse_number("--ops", optarg, 1); break;
		case RATE: rate = parse_number("--rate", optarg, 0); break;
		case NODES: nodes = parse_number("--nodes", optarg, 2); break;
		case LIB: lib = optarg; break;
		default: return 2; // getopt has said why
		}
	if (optind < argc) usage_error("unexpected argument %s (see --help)", argv[optind]);
	if (!model) usage_error("no model: give -m FILE (see --help)");
	if (nodes > 1000000) usage_error("--nodes %ld: want at most 1000000", nodes);
	if (!realpath(lib ? lib : "/proc/self/exe", dir)) die("%s: %s", lib ? lib : "/proc/self/exe", strerror(errno));
	if (!lib) *strrchr(dir, '/') = 0;

	load_libs(dir);
	open_model();
	long with_weight;
	void *graph = build_graph(nodes, &with_weight), *backend = ggml_backend_init_by_type(DEVICE_CPU, NULL);
	if (!backend) die("no CPU backend in %s", dir);
	void (*set_threads)(void *, int) = (void (*)(void *, int))ggml_backend_reg_get_proc_address(
	    ggml_backend_dev_backend_reg(ggml_backend_get_device(backend)), "ggml_backend_set_n_threads");
	if (!set_threads) die("this ggml's CPU backend does not let its number of threads be set");
	set_threads(backend, threads);

	long graphs = (ops + nodes - 1) / nodes;
	int64_t start = now_ns();
	for (long i = 0; i < graphs; i++) {
		int status = ggml_backend_graph_compute(backend, graph);
		if (status) die("ggml_backend_graph_compute failed with %d", status);
		if (!rate) continue;
		int64_t next = start + (int64_t)((i + 1) * (double)nodes / rate * 1e9);
		struct timespec t = {.tv_sec = next / 1000000000, .tv_nsec = next % 1000000000};
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
	}
	double seconds = (now_ns() - start) / 1e9;
	printf("{\"graphs\":%ld,\"ops\":%ld,\"weight_ops\":%ld,\"threads\":%ld,\"seconds\":%.6f,\"rate\":%.1f}\n",
	    graphs, graphs * nodes, graphs * with_weight, threads, seconds, graphs * nodes / seconds);
	if (fflush(stdout) || ferror(stdout)) die("write the result: %s", strerror(errno));
	return 0;
}
