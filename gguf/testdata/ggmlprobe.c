/* ggmlprobe asks a libggml-base what it knows, for the tests of package gguf.
 *
 *   ggmlprobe LIB types COUNT  a line "number elements bytes name" per tensor type below COUNT that is in use
 *   ggmlprobe LIB map FILE     "data alignment count", then a line "offset size type name" per tensor;
 *                              offsets count from data
 *   ggmlprobe LIB load FILE    reads all data, and prints nothing
 *
 * The declarations are those of ggml.h and gguf.h, which a test machine need not have. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gguf_init_params {
	bool no_alloc;
	void **ctx;
};

static void *lib;

static void *find_function(const char *name) {
	void *p = dlsym(lib, name);
	if (!p) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	return p;
}

/* The functions do not check the number: count must be the library's GGML_TYPE_COUNT at most. */
static int print_types(int count) {
	int64_t (*blck_size)(int) = find_function("ggml_blck_size");
	size_t (*type_size)(int) = find_function("ggml_type_size");
	const char *(*type_name)(int) = find_function("ggml_type_name");
	for (int t = 0; t < count; t++)
		if (blck_size(t) > 0 && type_size(t) > 0) /* else the number is no longer in use */
			printf("%d %lld %zu %s\n", t, (long long)blck_size(t), type_size(t), type_name(t));
	return 0;
}

static int load(const char *path) {
	void *(*init)(const char *, struct gguf_init_params) = find_function("gguf_init_from_file");
	void *ctx = NULL;
	return !init(path, (struct gguf_init_params){.no_alloc = false, .ctx = &ctx});
}

static int print_map(const char *path) {
	void *(*init)(const char *, struct gguf_init_params) = find_function("gguf_init_from_file");
	size_t (*alignment)(void *) = find_function("gguf_get_alignment");
	size_t (*data)(void *) = find_function("gguf_get_data_offset");
	int64_t (*count)(void *) = find_function("gguf_get_n_tensors");
	const char *(*name)(void *, int64_t) = find_function("gguf_get_tensor_name");
	size_t (*offset)(void *, int64_t) = find_function("gguf_get_tensor_offset");
	size_t (*size)(void *, int64_t) = find_function("gguf_get_tensor_size");
	int (*type)(void *, int64_t) = find_function("gguf_get_tensor_type");

	void *g = init(path, (struct gguf_init_params){.no_alloc = true, .ctx = NULL});
	if (!g)
		return 1;
	printf("%zu %zu %lld\n", data(g), alignment(g), (long long)count(g));
	for (int64_t i = 0; i < count(g); i++)
		printf("%zu %zu %d %s\n", offset(g, i), size(g, i), type(g, i), name(g, i));
	return 0;
}

int main(int argc, char **argv) {
	if (argc != 4) {
		fprintf(stderr, "usage: ggmlprobe LIB {types COUNT | map FILE | load FILE}\n");
		return 2;
	}
	lib = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	if (strcmp(argv[2], "load") == 0)
		return load(argv[3]);
	return strcmp(argv[2], "types") == 0 ? print_types(atoi(argv[3])) : print_map(argv[3]);
}
