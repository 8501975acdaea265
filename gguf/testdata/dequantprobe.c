/* dequantprobe decodes blocks with the functions of a libggml-base, for the tests of Dequantize.
 *
 *   dequantprobe LIB
 *
 * It answers requests on stdin until its end. A request is {uint32 type, uint32 times, uint64 bytes,
 * uint64 elements} and the bytes. The answer is {uint64 found, uint64 nanoseconds} and, if found, the
 * floats. found is 0 if the library has no decoder for the type. nanoseconds is the time that decoding
 * the bytes so many times took. All is in the machine's byte order.
 *
 * The declarations are those of ggml.h and ggml-quants.h, which a test machine need not have. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void (*decoder)(const void *x, float *y, int64_t k);

/* The decoders of F16 and BF16 have names like ggml_fp16_to_fp32_row, those of other types like dequantize_row_q4_K. */
static decoder find_decoder(void *lib, const char *type) {
	char symbol[64];
	if (strcmp(type, "f16") == 0)
		return (decoder)dlsym(lib, "ggml_fp16_to_fp32_row");
	if (strcmp(type, "bf16") == 0)
		return (decoder)dlsym(lib, "ggml_bf16_to_fp32_row");
	snprintf(symbol, sizeof symbol, "dequantize_row_%s", type);
	return (decoder)dlsym(lib, symbol);
}

static void *allocate(uint64_t n) {
	void *p = malloc(n ? n : 1);
	if (!p) {
		fprintf(stderr, "no memory for %llu bytes\n", (unsigned long long)n);
		exit(1);
	}
	return p;
}

int main(int argc, char **argv) {
	if (argc != 2) {
		fprintf(stderr, "usage: dequantprobe LIB\n");
		return 2;
	}
	void *lib = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
	const char *(*type_name)(int) = lib ? (const char *(*)(int))dlsym(lib, "ggml_type_name") : NULL;
	if (!type_name) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	struct {
		uint32_t type, times;
		uint64_t bytes, elements;
	} request;
	while (fread(&request, sizeof request, 1, stdin) == 1) {
		void *x = allocate(request.bytes);
		if (fread(x, 1, request.bytes, stdin) != request.bytes) {
			fprintf(stderr, "the request ends early\n");
			return 1;
		}
		float *y = allocate(request.elements * sizeof(float));
		memset(y, 0xa5, request.elements * sizeof(float));
		decoder decode = find_decoder(lib, type_name(request.type));
		struct timespec begin, end;
		clock_gettime(CLOCK_MONOTONIC, &begin);
		for (uint32_t i = 0; decode && i < request.times; i++)
			decode(x, y, request.elements);
		clock_gettime(CLOCK_MONOTONIC, &end);
		uint64_t reply[2] = {decode != NULL, (end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec};
		fwrite(reply, sizeof reply, 1, stdout);
		if (decode)
			fwrite(y, sizeof(float), request.elements, stdout);
		if (fflush(stdout) != 0)
			return 1;
		free(x);
		free(y);
	}
	return 0;
}
