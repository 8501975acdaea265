/* ggmlvec computes with a real ggml, for the tests of package vec.
 *
 *   ggmlvec BASE CPU...
 *
 * BASE is libggml-base.so. CPU... are the CPU libraries. The one with the highest ggml_backend_score is used, as
 * llama.cpp does.
 *
 * Requests come on stdin: a struct request, then n float32 x and n float32 w. The answers on stdout are:
 *
 *   n float32   rms_norm(x, eps) * w
 *   n float32   soft_max(x * scale)
 *   float32     the dot product of x and w
 *   2 doubles   the nanoseconds of ggml_vec_dot_f32 and of ggml_vec_soft_max_f32: means over as many calls as the
 *               request says
 *
 * All numbers have the machine's byte order. The declarations are ggml's. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct request {
	int32_t n, repeats;
	float scale, eps;
};

struct ggml_init_params {
	size_t mem_size;
	void *mem_buffer;
	bool no_alloc;
};

static void *base, *cpu;

static void die(const char *what) {
	fprintf(stderr, "%s\n", what);
	exit(1);
}

static void *find_symbol(void *lib, const char *name) {
	void *p = dlsym(lib, name);
	if (!p)
		die(dlerror());
	return p;
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv) {
	if (argc < 3 || !(base = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL)))
		die(argc < 3 ? "usage: ggmlvec BASE CPU..." : dlerror());
	int best = 0;
	for (int i = 2; i < argc; i++) {
		void *lib = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
		int (*score)(void) = lib ? dlsym(lib, "ggml_backend_score") : NULL;
		int s = !lib ? 0 : score ? score()
		                         : 1;
		if (s > best)
			best = s, cpu = lib;
	}
	if (!cpu)
		die("no libggml-cpu for this processor");

	void *(*init)(struct ggml_init_params) = find_symbol(base, "ggml_init");
	void (*ggml_free)(void *) = find_symbol(base, "ggml_free");
	void *(*tensor)(void *, int, int64_t) = find_symbol(base, "ggml_new_tensor_1d");
	void *(*data)(void *) = find_symbol(base, "ggml_get_data");
	void *(*rms_norm)(void *, void *, float) = find_symbol(base, "ggml_rms_norm");
	void *(*mul)(void *, void *, void *) = find_symbol(base, "ggml_mul");
	void *(*soft_max)(void *, void *, void *, float, float) = find_symbol(base, "ggml_soft_max_ext");
	void *(*graph)(void *) = find_symbol(base, "ggml_new_graph");
	void (*expand)(void *, void *) = find_symbol(base, "ggml_build_forward_expand");
	int (*compute)(void *, void *, int) = find_symbol(cpu, "ggml_graph_compute_with_ctx");
	void (*dot)(int, float *, size_t, const float *, size_t, const float *, size_t, int);
	dot = find_symbol(cpu, "ggml_vec_dot_f32");
	double (*exp_sum)(int, float *, const float *, float) = find_symbol(cpu, "ggml_vec_soft_max_f32");

	struct request q;
	while (fread(&q, sizeof q, 1, stdin) == 1) {
		size_t bytes = sizeof(float) * q.n;
		void *ctx = init((struct ggml_init_params){.mem_size = 8 * bytes + (16 << 20)});
		void *x = tensor(ctx, 0, q.n), *w = tensor(ctx, 0, q.n), *g = graph(ctx); /* type 0 is F32 */
		if (fread(data(x), 1, bytes, stdin) != bytes || fread(data(w), 1, bytes, stdin) != bytes)
			die("a request is cut short");
		void *norm = mul(ctx, rms_norm(ctx, x, q.eps), w), *soft = soft_max(ctx, x, NULL, q.scale, 0);
		expand(g, norm);
		expand(g, soft);
		if (compute(ctx, g, 1) != 0)
			die("ggml_graph_compute failed");
		float product, *y = malloc(bytes);
		double ns[2], start = now();
		dot(q.n, &product, 0, data(x), 0, data(w), 0, 1);
		for (int i = 1; i < q.repeats; i++)
			dot(q.n, &product, 0, data(x), 0, data(w), 0, 1);
		ns[0] = (now() - start) / q.repeats;
		start = now();
		for (int i = 0; i < q.repeats; i++)
			exp_sum(q.n, y, data(x), 3);
		ns[1] = (now() - start) / q.repeats;
		fwrite(data(norm), 1, bytes, stdout);
		fwrite(data(soft), 1, bytes, stdout);
		fwrite(&product, sizeof product, 1, stdout);
		fwrite(ns, sizeof ns, 1, stdout);
		fflush(stdout);
		free(y);
		ggml_free(ctx);
	}
	return 0;
}
