//go:build ignore

/* rival is a C program around the CPU backend of a real ggml: it quantises activations, and multiplies a matrix by
 * them, row by row.
 *
 *   rival BASE CPU...
 *
 * BASE is libggml-base.so. Of the CPU libraries it uses the one with the highest ggml_backend_score, as llama.cpp does.
 *
 * It first writes the path of the library in use, and a newline. Then it reads requests from stdin and writes answers
 * to stdout, in the machine's byte order. A request is a struct request followed by its data; see the cases in main.
 * The declarations are copied from ggml.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

typedef void vec_dot(int n, float *s, size_t bs, const void *x, size_t bx, const void *y, size_t by, int nrc);
typedef void quantize_row(const float *x, void *y, int64_t n);

struct request {
	uint32_t op, type; /* type is ggml's number */
	uint64_t rows, cols, count;
};

enum {
	QUANTIZE = 1,
	LOAD = 2,
	MULTIPLY = 3,
	READ = 4,
};

static const struct type {
	uint32_t number;
	size_t elems, bytes;
	const char *dot, *quantize;
	uint32_t with; /* the type of the other operand */
} types[] = {
    {2, 32, 18, "ggml_vec_dot_q4_0_q8_0", NULL, 8},
    {8, 32, 34, "ggml_vec_dot_q8_0_q8_0", "quantize_row_q8_0", 8},
    {12, 256, 144, "ggml_vec_dot_q4_K_q8_K", NULL, 15},
    {13, 256, 176, "ggml_vec_dot_q5_K_q8_K", NULL, 15},
    {14, 256, 210, "ggml_vec_dot_q6_K_q8_K", NULL, 15},
    {15, 256, 292, NULL, "quantize_row_q8_K", 15},
    {34, 256, 54, "ggml_vec_dot_tq1_0_q8_K", NULL, 15},
    {35, 256, 66, "ggml_vec_dot_tq2_0_q8_K", NULL, 15},
    {42, 64, 18, "ggml_vec_dot_q2_0_q8_0", NULL, 8},
};

static void *lib;

static void die(const char *what) {
	fprintf(stderr, "%s\n", what);
	exit(1);
}

static void *sym(const char *name) {
	void *p = name ? dlsym(lib, name) : NULL;
	if (!p)
		die(name ? dlerror() : "no such function for this type");
	return p;
}

static const struct type *type_of(uint32_t number) {
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (types[i].number == number)
			return &types[i];
	die("unknown type");
	return NULL;
}

static void get(void *p, size_t n) {
	if (n && fread(p, 1, n, stdin) != n)
		exit(0); /* the caller has ended */
}

static void put(const void *p, size_t n) {
	if (n && fwrite(p, 1, n, stdout) != n)
		exit(0);
}

/* Returns zeroed pages, which may be huge ones, as the caller's are. */
static void *map_pages(size_t n) {
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		die("out of memory");
	madvise(p, n, MADV_HUGEPAGE);
	return p;
}

static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#ifdef __x86_64__
/* Reads n bytes with the widest loads that the processor has, prefetching so many bytes ahead. */
__attribute__((target("avx512f"))) static uint64_t read512(const uint8_t *p, size_t n, size_t ahead) {
	__m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
	for (size_t i = 0; i + 256 <= n; i += 256) {
		a = _mm512_or_si512(a, _mm512_loadu_si512(p + i));
		b = _mm512_or_si512(b, _mm512_loadu_si512(p + i + 64));
		c = _mm512_or_si512(c, _mm512_loadu_si512(p + i + 128));
		d = _mm512_or_si512(d, _mm512_loadu_si512(p + i + 192));
		if (ahead)
			for (int j = 0; j < 256; j += 64)
				_mm_prefetch((const char *)p + i + j + ahead, _MM_HINT_T0);
	}
	return (uint64_t)_mm512_reduce_or_epi64(_mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d)));
}

__attribute__((target("avx2"))) static uint64_t read256(const uint8_t *p, size_t n, size_t ahead) {
	__m256i a = _mm256_setzero_si256(), b = a;
	for (size_t i = 0; i + 64 <= n; i += 64) {
		a = _mm256_or_si256(a, _mm256_loadu_si256((const __m256i *)(p + i)));
		b = _mm256_or_si256(b, _mm256_loadu_si256((const __m256i *)(p + i + 32)));
		if (ahead)
			_mm_prefetch((const char *)p + i + ahead, _MM_HINT_T0);
	}
	a = _mm256_or_si256(a, b);
	return (uint64_t)(_mm256_extract_epi64(a, 0) | _mm256_extract_epi64(a, 1) | _mm256_extract_epi64(a, 2) |
	    _mm256_extract_epi64(a, 3));
}

static uint64_t read_bytes(const uint8_t *p, size_t n, size_t ahead) {
	return __builtin_cpu_supports("avx512f") ? read512(p, n, ahead) : read256(p, n, ahead);
}
#else
static uint64_t read_bytes(const uint8_t *p, size_t n, size_t ahead) {
	uint64_t a = 0;
	for (size_t i = 0; i + 64 <= n; i += 64) {
		uint64_t v[8];
		memcpy(v, p + i, sizeof v);
		for (int j = 0; j < 8; j++)
			a |= v[j];
		if (ahead)
			__builtin_prefetch(p + i + ahead);
	}
	return a;
}
#endif

/* Returns the library that fits this processor best. */
static const char *best_library(int n, char **paths) {
	const char *path = NULL;
	int highest = 0;
	for (int i = 0; i < n; i++) {
		void *l = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL);
		int (*score)(void) = l ? dlsym(l, "ggml_backend_score") : NULL;
		int s = score ? score() : l != NULL; /* a build for one processor has no score */
		if (s > highest) {
			highest = s;
			path = paths[i];
		}
		if (l)
			dlclose(l);
	}
	if (!path)
		die("no CPU library of ggml is for this processor");
	return path;
}

int main(int argc, char **argv) {
	if (argc < 3)
		die("usage: rival BASE CPU...");
	if (!dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL))
		die(dlerror());
	const char *path = best_library(argc - 2, argv + 2);
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	((void (*)(void))sym("ggml_cpu_init"))();
	printf("%s\n", path);
	fflush(stdout);

	uint8_t *matrix = NULL, *y = NULL;
	float *dst = NULL;
	size_t mapped = 0, next = 0;
	struct request m = {0}; /* of the matrix */
	for (;;) {
		struct request r;
		get(&r, sizeof r);
		const struct type *t = type_of(r.type);
		switch (r.op) {
		case QUANTIZE: { /* gets cols floats, answers with them quantised, and keeps that for MULTIPLY */
			float *x = aligned_alloc(64, (r.cols * sizeof *x + 63) / 64 * 64);
			get(x, r.cols * sizeof *x);
			free(y);
			size_t n = r.cols / t->elems * t->bytes;
			y = aligned_alloc(64, (n + 63) / 64 * 64);
			((quantize_row *)sym(t->quantize))(x, y, (int64_t)r.cols);
			put(y, n);
			free(x);
			break;
		}
		case LOAD: { /* gets a matrix, of which it keeps count copies; no answer */
			size_t n = r.rows * (r.cols / t->elems * t->bytes);
			if (matrix)
				munmap(matrix, mapped);
			mapped = n * r.count;
			matrix = map_pages(mapped);
			get(matrix, n);
			for (uint64_t i = 1; i < r.count; i++)
				memcpy(matrix + i * n, matrix, n);
			free(dst);
			dst = calloc(r.rows, sizeof *dst);
			m = r;
			next = 0;
			break;
		}
		/* Makes count products, each with the next copy of the matrix; answers with nanoseconds and the last result. */
		case MULTIPLY: {
			vec_dot *dot = sym(t->dot);
			size_t row = m.cols / t->elems * t->bytes;
			uint64_t begin = now();
			for (uint64_t i = 0; i < r.count; i++) {
				const uint8_t *x = matrix + next * m.rows * row;
				for (uint64_t j = 0; j < m.rows; j++)
					dot((int)m.cols, dst + j, 0, x + j * row, 0, y, 0, 1);
				next = (next + 1) % m.count;
			}
			uint64_t ns = now() - begin;
			put(&ns, sizeof ns);
			put(dst, m.rows * sizeof *dst);
			break;
		}
		/* As MULTIPLY, but only reads the bytes, and prefetches cols bytes ahead; answers with nanoseconds only. */
		case READ: {
			size_t n = m.rows * (m.cols / type_of(m.type)->elems * type_of(m.type)->bytes);
			volatile uint64_t sink = 0;
			uint64_t begin = now();
			for (uint64_t i = 0; i < r.count; i++) {
				const uint8_t *x = matrix + next * n;
				sink |= read_bytes(x, n, r.cols);
				next = (next + 1) % m.count;
			}
			uint64_t ns = now() - begin;
			(void)sink;
			put(&ns, sizeof ns);
			break;
		}
		default:
			die("unknown request");
		}
		fflush(stdout);
	}
}
