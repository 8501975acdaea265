//go:build ignore

// (The first line keeps the go command, which would require cgo for a C file, from compiling this one.)
//
// This is a target that lies to tracers. Its libraries have ggml's and llama.cpp's function names,
// to which tracers attach probes, and hand out made-up tensors, graphs and batches. It computes
// nothing. A scenario first runs some decodes that are true to the model, so that the tensors that
// a tracer checks at the beginning are good. From then on it lies. With the word "early" it lies at
// once.
//
//     faketarget MODEL TABLE SCENARIO SECONDS [early] [remap] [wait]
//
// With the word "remap" the lies are about another mapping of the model, so that a helper must
// learn again what a token reads. TABLE lists the model's tensors: name, ggml's type number, four
// extents, offset, bytes. With the word "wait" it prints "ready" and reads a line before it begins.
// At the end it prints how many decodes it ran.
//
// It is compiled four times: with LIBBASE, LIBCPU or LIBLLAMA defined to a library, else to the program.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	TYPE_F32 = 0,
	TYPE_I32 = 26,
};
enum {
	OP_NONE,
	OP_ADD,
	OP_MUL,
	OP_RMS_NORM,
	OP_MUL_MAT,
	OP_MUL_MAT_ID,
	OP_GET_ROWS,
	OP_UNARY,
	OPS,
};

typedef struct ggml_tensor {
	int32_t type;
	void *buffer;
	int64_t ne[4];
	size_t nb[4];
	int32_t op, op_params[16], flags;
	struct ggml_tensor *src[10], *view_src;
	size_t view_offs;
	void *data;
	char name[64];
	void *extra; // here: the node that is fused to this one
	char padding[8];
} tensor;

typedef struct {
	int size, n_nodes, n_leafs; // as reported to the tracer
	tensor **nodes, **grads, **grad_accs, **leafs;
	int real; // how many nodes of run are really computed
	tensor **run;
} graph;

typedef struct {
	int32_t n_tokens;
	int32_t *token;
	float *embd;
	int32_t *pos, *n_seq_id, **seq_id;
	int8_t *logits;
} batch;
typedef struct {
	int ith, nth;
} params;
typedef struct {
	void (*compute)(void *);
	void *of;
} context;

#define API __attribute__((visibility("default"), noinline))

// BODY saves a register for the caller, so that the function begins with a push, as ggml's do. It
// also uses the function's arguments.
#if defined(__x86_64__)
#define BODY(...) __asm__ volatile("" ::__VA_ARGS__ \
	                               : "rbx", "memory")
#elif defined(__aarch64__)
#define BODY(...) __asm__ volatile("" ::__VA_ARGS__ \
	                               : "x19", "memory")
#endif

API const char *ggml_get_name(const tensor *t);
API int ggml_graph_compute(graph *g, void *plan);
API int ggml_backend_graph_compute(graph *g);
API void ggml_backend_buffer_free(void *buffer);
API bool ggml_cpu_extra_compute_forward(const params *p, tensor *node);
API void ggml_compute_forward_rms_norm_mul_fused(const params *p, tensor *first, tensor *second);
API int32_t llama_decode(context *ctx, batch b);

#if defined(LIBBASE) // ---- libggml-base: the accessors, of which tracers learn the structs

API const char *ggml_get_name(const tensor *t) { return t->name; }
API void *ggml_get_data(const tensor *t) { return t->data; }
API bool ggml_is_view(const tensor *t) { return t->view_src != NULL; }
API int64_t ggml_nelements(const tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }
API bool ggml_is_transposed(const tensor *t) { return t->nb[0] > t->nb[1]; }
API void ggml_set_input(tensor *t) { t->flags |= 1; }
API int ggml_graph_n_nodes(graph *g) { return g->n_nodes; }
API tensor **ggml_graph_nodes(graph *g) { return g->nodes; }
API tensor *ggml_graph_node(graph *g, int i) { return g->nodes[i]; }
API size_t ggml_type_size(int type) {
	return type == 0 || type == 26 ? 4 : type == 8 ? 34
	    : type == 2                                ? 18
	                                               : 0;
}
API int ggml_get_unary_op(const tensor *t) {
	if (t->op != OP_UNARY) abort();
	return t->op_params[0];
}
API tensor *ggml_new_tensor(int64_t n) {
	tensor *t = calloc(1, sizeof *t);
	t->ne[0] = n;
	return t;
}
API tensor *ggml_mul_mat(void *ctx, tensor *a, tensor *b) {
	if (!ctx || ggml_is_transposed(a)) abort();
	tensor *t = ggml_new_tensor(a->ne[1]);
	t->op = OP_MUL_MAT;
	t->src[0] = a;
	t->src[1] = b;
	return t;
}
static const char *names[OPS] = {"NONE", "ADD", "MUL", "RMS_NORM", "MUL_MAT", "MUL_MAT_ID", "GET_ROWS", "UNARY"};
API const char *ggml_op_name(unsigned op) { return names[op]; }
API const char *ggml_version(void) { return "0.0.0"; }
API const char *ggml_commit(void) { return "fake"; }
API void ggml_backend_buffer_free(void *buffer) { BODY("r"(buffer)); }
API int ggml_backend_graph_compute(graph *g) { return ggml_graph_compute(g, g); }

#elif defined(LIBCPU) // ---- libggml-cpu

static __thread params mine = {0, 1};
API bool ggml_cpu_extra_compute_forward(const params *p, tensor *node) {
	BODY("r"(p), "r"(node));
	return false;
}
API void ggml_compute_forward_rms_norm_mul_fused(const params *p, tensor *first, tensor *second) {
	BODY("r"(p), "r"(first), "r"(second));
}
API int ggml_graph_compute(graph *g, void *plan) {
	BODY("r"(g), "r"(plan));
	graph *real = plan; // g may be any address, so it is not read
	for (int i = 0; i < real->real; i++) {
		tensor *node = real->run[i];
		if (i + 1 < real->real && node > (tensor *)4096 && (uintptr_t)node >> 47 == 0 &&
		    node->extra == real->run[i + 1])
			ggml_compute_forward_rms_norm_mul_fused(&mine, node, real->run[++i]);
		else
			ggml_cpu_extra_compute_forward(&mine, node);
	}
	return 0;
}

#elif defined(LIBLLAMA) // ---- libllama

API int32_t llama_decode(context *ctx, batch b) {
	BODY("r"(ctx));
	ctx->compute(ctx->of);
	return b.n_tokens < 0;
}

#else // ---- the program

__attribute__((noreturn)) static void die(const char *what) {
	fprintf(stderr, "faketarget: %s: %s\n", what, strerror(errno));
	exit(1);
}

// ---- the model

static struct {
	char name[64];
	int type;
	long ne[4], offset, bytes;
} table[512];
static int rows;
static const char *path;
static char *mapping;
static long file_size;

static char *map_model(long size) {
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) die(path);
	char *at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) die("map the model");
	close(fd);
	return at;
}

static void open_model(const char *list) {
	struct stat st;
	if (stat(path, &st)) die(path);
	file_size = st.st_size;
	mapping = map_model(file_size);
	FILE *f = fopen(list, "r");
	if (!f) die(list);
	for (; rows < 512; rows++) {
		__typeof__(&table[0]) row = &table[rows];
		int n = fscanf(f, "%63s %d %ld %ld %ld %ld %ld %ld", row->name, &row->type, &row->ne[0], &row->ne[1],
		    &row->ne[2], &row->ne[3], &row->offset, &row->bytes);
		if (n != 8) break;
	}
	fclose(f);
	if (!rows) die("no tensors");
}

// ---- tensors and graphs that are true

enum { ARENA = 1 << 20 };
static tensor *arena; // a ring: after a million tensors the oldest are reused
static unsigned long used;
static long decodes, serial;

static tensor *fresh(void) {
	if (!arena) {
		int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
		arena = mmap(NULL, ARENA * sizeof *arena, PROT_READ | PROT_WRITE, flags, -1, 0);
		if (arena == MAP_FAILED) die("out of memory");
	}
	tensor *t = &arena[__sync_fetch_and_add(&used, 1) % ARENA];
	memset(t, 0, sizeof *t);
	return t;
}

static void shape(tensor *t, int type, long bytes, const long ne[4]) {
	long elements = ne[0] * ne[1] * ne[2] * ne[3];
	t->type = type;
	for (int d = 0; d < 4; d++) t->ne[d] = ne[d];
	long size = type == 8 ? 34 : type == 2 ? 18
	                                       : 4;
	t->nb[0] = size;
	t->nb[1] = bytes / (elements / ne[0]);
	t->nb[2] = t->nb[1] * ne[1];
	t->nb[3] = t->nb[2] * ne[2];
}

static tensor *weight(const char *name) {
	for (int i = 0; i < rows; i++) {
		if (strcmp(table[i].name, name)) continue;
		tensor *t = fresh();
		shape(t, table[i].type, table[i].bytes, table[i].ne);
		t->data = mapping + table[i].offset;
		strcpy(t->name, name);
		return t;
	}
	die(name);
}

static char scratch[1 << 20];
static int32_t rows_of_batch[65536], experts_of_batch[65536];

static tensor *plain(int type, long n, long m, void *data, const char *name) {
	tensor *t = fresh();
	shape(t, type, 4 * n * m, (long[4]){n, m, 1, 1});
	t->data = data;
	snprintf(t->name, sizeof t->name, "%s", name);
	return t;
}

static tensor *node(int op, tensor *a, tensor *b, tensor *c) {
	tensor *t = plain(TYPE_F32, 256, 1, scratch, "node");
	t->op = op;
	t->src[0] = a, t->src[1] = b, t->src[2] = c;
	snprintf(t->name, sizeof t->name, "node_%ld", __sync_fetch_and_add(&serial, 1) % 1000);
	return t;
}

enum { MAX_NODES = 4096 };
typedef struct {
	graph g;
	tensor *list[MAX_NODES];
	tensor *rows, *experts;
} model_graph;

static void add(model_graph *m, tensor *t) { m->g.run[m->g.real++] = t; }

static void build(model_graph *m, int layers) {
	memset(m, 0, sizeof *m);
	for (long i = 0; i < 256; i++) ((float *)scratch)[i] = i; // probes cannot read pages that were never written
	m->g.run = m->g.nodes = m->list;
	m->rows = plain(TYPE_I32, 1, 1, rows_of_batch, "inp_tokens");
	m->rows->flags = 1;
	tensor *x = plain(TYPE_F32, 256, 1, scratch, "x");
	add(m, node(OP_GET_ROWS, weight("token_embd.weight"), m->rows, NULL));
	m->experts = plain(TYPE_I32, 2, 1, experts_of_batch, "ffn_moe_topk");
	for (int l = 0; l < layers; l++) {
		char name[64];
#define W(component) (snprintf(name, sizeof name, "blk.%d." component ".weight", l), weight(name))
		tensor *norm = node(OP_RMS_NORM, x, NULL, NULL);
		norm->extra = node(OP_MUL, norm, W("attn_norm"), NULL);
		add(m, norm);
		add(m, norm->extra);
		add(m, node(OP_MUL_MAT, W("attn_q"), x, NULL));
		add(m, node(OP_ADD, x, x, NULL));
		add(m, node(OP_MUL_MAT, W("ffn_gate_inp"), x, NULL));
		add(m, node(OP_MUL_MAT_ID, W("ffn_up_exps"), x, m->experts));
		add(m, node(OP_MUL_MAT_ID, W("ffn_down_exps"), x, m->experts));
	}
	add(m, node(OP_MUL_MAT, weight("output.weight"), x, NULL));
	m->g.n_nodes = m->g.size = m->g.real;
}

// A job is what a decode computes: the graph that is handed out (told), and the one that is
// computed (real).
typedef struct {
	graph *told, *real;
} job;

static void compute(void *of) {
	job *j = of;
	if (j->told == j->real) ggml_backend_graph_compute(j->told);
	else ggml_graph_compute(j->told, j->real);
}

static context ctx0;
static double deadline;

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static bool time_left(void) { return now() < deadline; }
// about as long as a token of a small model takes
static void rest(void) { nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); }

static void decode_batch(context *c, graph *told, graph *real, batch b) {
	job j = {told, real};
	c->compute = compute;
	c->of = &j;
	llama_decode(c, b);
	__sync_fetch_and_add(&decodes, 1);
}

static void decode(model_graph *m) { decode_batch(&ctx0, &m->g, &m->g, (batch){.n_tokens = 1}); }

static void tokens(model_graph *m) {
	while (time_left()) {
		decode(m);
		rest();
	}
}

// ---- scenarios: each changes the graph of a token to tell its lies

static model_graph token;
static int layers;
#define LAST (token.list[token.g.real - 1])
#define SOURCE (LAST->src[0]) // the last node's weight
#define EACH_NODE for (int i = 0; i < token.g.real; i++)

// Tracers check a tensor only when they see it for the first time, so each lie needs new tensors.
static void renew(void) { build(&token, layers); }

#define LIE(name, ...) \
	static void name(void) { \
		renew(); \
		__VA_ARGS__; \
		tokens(&token); \
	}

LIE(control)
LIE(huge_ne, SOURCE->ne[0] = SOURCE->ne[1] = INT64_MAX / 2)
LIE(huge_nb, SOURCE->nb[1] = (size_t)1 << 60)
LIE(large_ne, SOURCE->ne[1] *= 1000)
LIE(negative_ne, SOURCE->ne[1] = -5)
LIE(negative_nb, SOURCE->nb[1] = (size_t)-4096)
LIE(zero_ne, SOURCE->ne[0] = SOURCE->ne[1] = 0)
LIE(wrap, EACH_NODE if (token.list[i]->src[0]) token.list[i]->src[0]->nb[1] = (size_t)1 << 62)
LIE(bad_type, SOURCE->type = 9999)
LIE(other_type, SOURCE->type = TYPE_F32)
LIE(nowhere, SOURCE->data = (void *)0xdead0000)
LIE(kernel_address, SOURCE->data = (void *)0xffff888000000000)
LIE(odd_address, SOURCE->data = mapping + 12345)
LIE(metadata, SOURCE->data = mapping)
LIE(end_of_file, SOURCE->data = map_model(file_size + (64 << 20)) + file_size + (32 << 20))
LIE(other_offset, SOURCE->data = weight("blk.0.attn_q.weight")->data)
LIE(overlap, SOURCE->data = (char *)SOURCE->data + SOURCE->nb[1])
LIE(other_name, strcpy(SOURCE->name, "token_embd.weight"))
LIE(unterminated_name, memset(SOURCE->name, 'x', 64))
LIE(escape_name, strcpy(SOURCE->name, "\033[2J\033[31mowned\r\n.weight"))
LIE(invalid_name, strcpy(SOURCE->name, "\xff\xfe\x80.weight"))
LIE(empty_name, SOURCE->name[0] = 0)
LIE(cyclic_src, LAST->src[1] = LAST; LAST->src[2] = LAST->src[0]; SOURCE->src[0] = LAST)
LIE(cyclic_view, tensor *v = fresh(); *v = *SOURCE; v->view_src = SOURCE; SOURCE->view_src = v; SOURCE->op = OP_ADD)
LIE(many_sources, for (int i = 0; i < 10; i++) LAST->src[i] = weight("output.weight"))
LIE(huge_op, LAST->op = 5000)
LIE(negative_op, LAST->op = -1)
LIE(wild_sources, for (int i = 0; i < 10; i++) LAST->src[i] = (tensor *)(0x7000000000000 * i + 8))
LIE(negative_experts, experts_of_batch[0] = -7; experts_of_batch[1] = INT32_MIN)
LIE(huge_experts, experts_of_batch[0] = 1 << 30; experts_of_batch[1] = INT32_MAX)
LIE(huge_rows, rows_of_batch[0] = INT32_MAX)
LIE(negative_rows, rows_of_batch[0] = -1)
LIE(many_rows, token.rows->ne[0] = 65536; token.rows->nb[1] = 4 * 65536)
LIE(endless_rows, token.rows->ne[0] = INT64_MAX)
LIE(negative_count, token.rows->ne[0] = -3; token.experts->ne[1] = -1)
LIE(unmapped_rows, token.rows->data = (void *)0xdead0000)

static void other_file(void) {
	renew();
	int fd = open("/proc/self/exe", O_RDONLY);
	SOURCE->data = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	tokens(&token);
}

// ---- graphs

static void hand_out(graph *g) {
	while (time_left()) {
		decode_batch(&ctx0, g, &token.g, (batch){.n_tokens = 1});
		rest();
	}
}

#define TELL(name, ...) \
	static void name(void) { \
		renew(); \
		graph g = token.g; \
		__VA_ARGS__; \
		hand_out(&g); \
	}
TELL(huge_graph, g.n_nodes = INT32_MAX)
TELL(negative_graph, g.n_nodes = -1)
TELL(unmapped_nodes, g.nodes = (tensor **)0xdead0000)
static void wild_nodes(void) {
	renew();
	graph g = token.g;
	tensor *wild[8];
	for (int i = 0; i < 8; i++) wild[i] = (tensor *)(0x123456789abcdef * i);
	g.nodes = token.g.run = wild;
	g.n_nodes = token.g.real = 8;
	hand_out(&g);
}
static void no_graph(void) {
	renew();
	hand_out(NULL);
}

static void long_graph(void) {
	enum { N = 1 << 20 };
	renew();
	tensor **all = malloc(N * sizeof *all);
	for (int i = 0; i < N; i++) all[i] = token.list[i % token.g.real];
	graph g = token.g;
	g.nodes = g.run = all;
	g.n_nodes = g.real = N;
	while (time_left()) decode_batch(&ctx0, &g, &g, (batch){.n_tokens = 1});
}

// Graphs have as many ops that read weights as a graph may have, and no two graphs are alike.
static void long_shapes(void) {
	enum { N = 1 << 16 };
	renew();
	tensor **all = malloc(N * sizeof *all);
	graph g = token.g;
	g.nodes = g.run = all;
	g.n_nodes = g.real = N;
	for (int n = 0; time_left(); n++) {
		for (int i = 0; i < N; i++) all[i] = token.list[(i * (2 * n + 1) >> 3) % token.g.real];
		decode_batch(&ctx0, &g, &g, (batch){.n_tokens = 1});
	}
}

// ---- floods

static void flood_nodes(void) {
	while (time_left()) {
		renew();
		decode(&token);
	}
}

static void flood_contexts(void) {
	static context many[1 << 16];
	renew();
	for (long i = 0; time_left(); i++) decode_batch(&many[i % (1 << 16)], &token.g, &token.g, (batch){.n_tokens = 1});
}

static void flood_shapes(void) {
	for (unsigned n = 1; time_left(); n++) {
		renew();
		for (int i = 1; i < token.g.real; i++) {
			n = n * 1664525 + 1013904223;
			int j = n % token.g.real;
			tensor *t = token.list[i];
			token.list[i] = token.list[j], token.list[j] = t;
		}
		decode(&token);
	}
}

static void flood_names(void) {
	while (time_left()) {
		renew();
		EACH_NODE {
			tensor *t = plain(TYPE_F32, 256, 1, scratch, "");
			snprintf(t->name, sizeof t->name, "blk.%ld.some.weight", serial++);
			token.list[i]->src[0] = t;
		}
		decode(&token);
	}
}

static void flood_ids(void) {
	static int32_t ids[65536];
	while (time_left()) {
		renew();
		EACH_NODE {
			tensor *node = token.list[i];
			if (node->op == OP_MUL_MAT_ID) node->src[2] = plain(TYPE_I32, 256, 256, ids, "ffn_moe_topk");
		}
		token.rows->ne[0] = 65536;
		decode(&token);
	}
}

static void flood_files(void) {
	while (time_left()) {
		renew();
		EACH_NODE {
			int fd = memfd_create("model", MFD_CLOEXEC);
			if (fd < 0 || ftruncate(fd, 4096)) continue;
			void *at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
			close(fd);
			if (at != MAP_FAILED && token.list[i]->src[0]) token.list[i]->src[0]->data = at;
		}
		decode(&token);
	}
}

static void *one_decode(void *arg) {
	static __thread model_graph mine;
	build(&mine, 1);
	context c;
	(void)arg;
	decode_batch(&c, &mine.g, &mine.g, (batch){.n_tokens = 1});
	return NULL;
}

// Each thread begins a decode and ends within it.
static void quit_thread(void *of) {
	compute(of);
	pthread_exit(NULL);
}
static void *unended_thread(void *arg) {
	model_graph *mine = calloc(1, sizeof *mine);
	build(mine, 1);
	job j = {&mine->g, &mine->g};
	context c = {quit_thread, &j};
	(void)arg;
	llama_decode(&c, (batch){.n_tokens = 1});
	return NULL;
}

static void many_threads(void *(*run)(void *)) {
	while (time_left()) {
		pthread_t all[32];
		int n = 0;
		while (n < 32 && !pthread_create(&all[n], NULL, run, NULL)) n++;
		while (n > 0) pthread_join(all[--n], NULL);
	}
}

static void flood_threads(void) { many_threads(one_decode); }
static void unended_threads(void) { many_threads(unended_thread); }

static void *compute_always(void *arg) {
	model_graph *mine = calloc(1, sizeof *mine);
	context *c = calloc(1, sizeof *c);
	(void)arg;
	build(mine, layers);
	while (time_left()) {
		decode_batch(c, &mine->g, &mine->g, (batch){.n_tokens = 1});
		rest();
	}
	return NULL;
}

static void threads(void) {
	pthread_t all[64];
	int n = 0;
	while (n < 64 && !pthread_create(&all[n], NULL, compute_always, NULL)) n++;
	while (n > 0) pthread_join(all[--n], NULL);
}

// ---- decodes

#define BATCH(name, ...) \
	static void name(void) { \
		renew(); \
		while (time_left()) { \
			decode_batch(&ctx0, &token.g, &token.g, (batch){__VA_ARGS__}); \
			rest(); \
		} \
	}
BATCH(negative_tokens, .n_tokens = -5)
BATCH(huge_tokens, .n_tokens = INT32_MAX)
BATCH(wild_batch, .n_tokens = 60000, .n_seq_id = (int32_t *)8, .seq_id = (int32_t **)0xdead0000)

static jmp_buf back;
static void jump(void *of) {
	compute(of);
	longjmp(back, 1);
}
static void unended(void) {
	while (time_left()) {
		renew();
		job j = {&token.g, &token.g};
		context c = {jump, &j};
		if (!setjmp(back)) llama_decode(&c, (batch){.n_tokens = 1});
		rest();
	}
}

// One decode goes on for ever, and looks up the embeddings of ever more tokens.
static void go_on(void *of) {
	while (time_left()) compute(of);
}
static void endless(void) {
	renew();
	token.rows->ne[0] = 65536;
	job j = {&token.g, &token.g};
	context c = {go_on, &j};
	llama_decode(&c, (batch){.n_tokens = 1});
}

static int depth;
static void again(void *of) {
	compute(of);
	context c = {again, of};
	if (++depth < 200) llama_decode(&c, (batch){.n_tokens = 1});
}
static void recursion(void) {
	renew();
	job j = {&token.g, &token.g};
	while (time_left()) {
		context c = {again, &j};
		depth = 0;
		llama_decode(&c, (batch){.n_tokens = 1});
		rest();
	}
}

// These graphs are computed without llama_decode, so their steps are derived.
static void derived(void) {
	renew();
	while (time_left()) {
		ggml_backend_graph_compute(&token.g);
		rest();
	}
}

static void buffers(void) {
	renew();
	while (time_left()) {
		decode(&token);
		for (int i = 0; i < 1000; i++) ggml_backend_buffer_free(scratch);
	}
}

// ---- the model's file and its mappings

static void unmap(void) {
	while (time_left()) {
		munmap(mapping, file_size);
		decode(&token); // its tensors lie where the model was mapped
		mapping = map_model(file_size);
		renew();
		decode(&token);
		rest();
	}
}

static void truncated(void) {
	renew();
	decode(&token);
	if (truncate(path, 4096)) die(path);
	tokens(&token);
}

static void replaced(void) {
	char other[4096];
	renew();
	snprintf(other, sizeof other, "%s.other", path);
	FILE *f = fopen(other, "w");
	if (!f || fputs("GGUF is not what this is", f) < 0 || fclose(f) || rename(other, path)) die(other);
	tokens(&token);
}

static void many_maps(void) {
	for (int i = 0; i < 20000 && time_left(); i++) mapping = map_model(file_size);
	renew();
	tokens(&token);
}

// ---- processes

static char *again_args[8];

static void forks(void) {
	renew();
	while (time_left()) {
		for (int i = 0; i < 8; i++) {
			pid_t child = fork();
			if (child == 0) {
				decode(&token);
				_exit(0);
			}
		}
		while (waitpid(-1, NULL, 0) > 0) {}
	}
}

static void execs(void) {
	char left[32];
	decode(&token);
	if (!time_left()) return;
	snprintf(left, sizeof left, "%f", deadline - now());
	again_args[4] = left;
	execv("/proc/self/exe", again_args);
	die("exec");
}

static void killed(void) {
	renew();
	decode(&token);
	abort();
}

static const struct {
	const char *name;
	void (*run)(void);
} scenarios[] = {
#define S(name) \
	{ #name, name }
    S(control),
    S(huge_ne),
    S(huge_nb),
    S(large_ne),
    S(negative_ne),
    S(negative_nb),
    S(zero_ne),
    S(wrap),
    S(bad_type),
    S(other_type),
    S(nowhere),
    S(kernel_address),
    S(odd_address),
    S(metadata),
    S(end_of_file),
    S(other_offset),
    S(other_file),
    S(overlap),
    S(other_name),
    S(unterminated_name),
    S(escape_name),
    S(invalid_name),
    S(empty_name),
    S(cyclic_src),
    S(cyclic_view),
    S(many_sources),
    S(wild_sources),
    S(huge_op),
    S(negative_op),
    S(negative_experts),
    S(huge_experts),
    S(huge_rows),
    S(negative_rows),
    S(many_rows),
    S(endless_rows),
    S(negative_count),
    S(unmapped_rows),
    S(huge_graph),
    S(negative_graph),
    S(unmapped_nodes),
    S(wild_nodes),
    S(no_graph),
    S(long_graph),
    S(long_shapes),
    S(flood_nodes),
    S(flood_contexts),
    S(flood_shapes),
    S(flood_names),
    S(flood_ids),
    S(flood_files),
    S(flood_threads),
    S(unended_threads),
    S(threads),
    S(negative_tokens),
    S(huge_tokens),
    S(wild_batch),
    S(unended),
    S(endless),
    S(recursion),
    S(derived),
    S(buffers),
    S(unmap),
    S(truncated),
    S(replaced),
    S(many_maps),
    S(forks),
    S(execs),
    S(killed),
};

int main(int argc, char **argv) {
	if (argc == 2 && !strcmp(argv[1], "list")) {
		for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) puts(scenarios[i].name);
		return 0;
	}
	if (argc < 5) {
		fputs("faketarget MODEL TABLE SCENARIO SECONDS [early] [remap] [wait]\n", stderr);
		return 2;
	}
	void (*run)(void) = NULL;
	for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
		if (!strcmp(argv[3], scenarios[i].name)) run = scenarios[i].run;
	if (!run) {
		fprintf(stderr, "faketarget: there is no scenario %s\n", argv[3]);
		return 2;
	}
	bool early = false, remap = false, wait = false;
	for (int i = 5; i < argc; i++) {
		early |= !strcmp(argv[i], "early");
		remap |= !strcmp(argv[i], "remap");
		wait |= !strcmp(argv[i], "wait");
	}
	for (int i = 0; i < 5; i++) again_args[i] = argv[i];

	path = argv[1];
	open_model(argv[2]);
	while (true) {
		char name[64];
		bool found = false;
		snprintf(name, sizeof name, "blk.%d.attn_q.weight", layers);
		for (int i = 0; i < rows; i++) found |= !strcmp(table[i].name, name);
		if (!found) break;
		layers++;
	}
	if (wait) {
		puts("ready");
		fflush(stdout);
		char line[64];
		if (!fgets(line, sizeof line, stdin)) return 1;
	}
	deadline = now() + atof(argv[4]);
	experts_of_batch[0] = 1, experts_of_batch[1] = 3;
	rows_of_batch[0] = 2;
	renew();
	for (int i = 0; i < 8 && !early; i++) {
		decode(&token);
		renew(); // tracers check tensors that they see for the first time
		rest();
	}
	if (remap) mapping = map_model(file_size);
	run();
	printf("%ld\n", decodes);
	return 0;
}
#endif
