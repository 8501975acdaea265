//go:build ignore

// (The first line keeps the go command, which would require cgo for a C file, from compiling this
// one.)
//
// llamarun is a small llama-cli. It decodes a prompt and generates n tokens greedily, with the
// libllama that it finds at run time, and prints the text and the time of each token as JSON. It
// links only libc (no Go runtime), because it is a target of experiments, and it is placed next to
// the libraries like the programs of a llama.cpp installation.
//
// --ops FILE writes, through ggml's eval callback, what each op really reads of the weights: the
// ground truth for a tracer. --logits FILE writes what the model predicts for the tokens of a text,
// so that two models can be compared. With several contexts, several sequences per batch and a
// second model it looks to a tracer like a server.
//
// It needs no header of llama.cpp. Functions are looked up by name. Parameter structs are passed by
// value: on x86-64, a struct of more than 16 bytes is copied to the stack, so an oversized struct
// that *_default_params has filled in can be passed without knowing its layout. The few fields that
// llamarun sets are only set if their neighbours hold the defaults of a layout known here (2026).
//
// Build: gcc -O2 -o llamarun llamarun.c -ldl -pthread

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gathers.h" // ggml's gathering ops: package ggml puts its table here

// ---- errors: one line on stderr, exit code 1 for a failure and 2 for wrong usage

// A file that appears under its name once it is complete. A pipe or a device is written directly.
typedef struct {
	const char *path;
	char *tmp; // the unfinished file, removed on failure; NULL if there is none
	FILE *f;
} output;

static output ops_file, logits_file;

// quit prints the error and ends the program. It uses _exit, because ggml's threads may be running when the callback
// fails, and destructors must not run then.
__attribute__((noreturn, format(printf, 2, 3))) static void quit(int code, const char *fmt, ...) {
	va_list ap;
	va_start(ap, fmt);
	fputs("llamarun: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	if (ops_file.tmp) unlink(ops_file.tmp);
	if (logits_file.tmp) unlink(logits_file.tmp);
	_exit(code);
}
#define die(...) quit(1, __VA_ARGS__)
#define usage_error(...) quit(2, __VA_ARGS__)

static void *xalloc(size_t n, size_t size) {
	void *p = calloc(n ? n : 1, size);
	if (!p) die("out of memory");
	return p;
}

static void create_output(output *o, const char *path) {
	struct stat st;
	char *tmp = NULL;
	o->path = path;
	if ((stat(path, &st) || S_ISREG(st.st_mode)) && asprintf(&tmp, "%s.tmp", path) < 0) die("out of memory");
	if (!(o->f = fopen(tmp ? tmp : path, "w"))) die("create %s: %s", tmp ? tmp : path, strerror(errno));
	o->tmp = tmp;
}

static void finish_output(output *o) {
	if (ferror(o->f) | fclose(o->f) || (o->tmp && rename(o->tmp, o->path)))
		die("write %s: %s", o->path, strerror(errno));
	o->tmp = NULL;
}

static int64_t now_ns(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static double now_ms(void) { return now_ns() / 1e6; }

// ---- the part of llama.h and ggml.h that is used

typedef int32_t llama_token;
typedef struct {
	_Alignas(8) unsigned char b[1024];
} any_params; // llama_model_params, llama_context_params and later ones

typedef struct {
	int32_t n_tokens;
	llama_token *token;
	float *embd;
	int32_t *pos, *n_seq_id, **seq_id;
	int8_t *logits;
} llama_batch;

typedef struct tensor { // ggml_tensor; checked against ggml's own getters before use
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
_Static_assert(offsetof(tensor, src) == 152 && offsetof(tensor, data) == 248 && offsetof(tensor, name) == 256,
    "ggml_tensor");

enum {
	FLAG_COMPUTE = 16,
	USAGE_WEIGHTS = 1,
	LOG_ERROR = 4,
	TYPE_F16 = 1,
};

#define NEEDED(X) \
	X(void, llama_log_set, (void (*)(int, const char *, void *), void *)) \
	X(void, llama_backend_init, (void)) \
	X(any_params, llama_model_default_params, (void)) \
	X(any_params, llama_context_default_params, (void)) \
	X(void *, llama_model_load_from_file, (const char *, any_params)) \
	X(void *, llama_init_from_model, (void *, any_params)) \
	X(void, llama_model_free, (void *)) \
	X(void, llama_free, (void *)) \
	X(bool, llama_model_has_encoder, (const void *)) \
	X(void, llama_set_n_threads, (void *, int32_t, int32_t)) \
	X(const void *, llama_model_get_vocab, (const void *)) \
	X(int32_t, llama_vocab_n_tokens, (const void *)) \
	X(llama_token, llama_vocab_bos, (const void *)) \
	X(llama_token, llama_vocab_eos, (const void *)) \
	X(bool, llama_vocab_get_add_bos, (const void *)) \
	X(int32_t, llama_tokenize, (const void *, const char *, int32_t, llama_token *, int32_t, bool, bool)) \
	X(int32_t, llama_token_to_piece, (const void *, llama_token, char *, int32_t, int32_t, bool)) \
	X(int32_t, llama_decode, (void *, llama_batch)) \
	X(float *, llama_get_logits_ith, (void *, int32_t)) \
	X(void *, llama_get_memory, (const void *)) \
	X(void, llama_memory_clear, (void *, bool)) \
	X(bool, llama_memory_seq_rm, (void *, int32_t seq, int32_t from, int32_t end)) \
	X(void, llama_synchronize, (void *)) \
	X(void, ggml_log_set, (void (*)(int, const char *, void *), void *)) \
	X(const char *, ggml_op_name, (int32_t)) \
	X(const char *, ggml_get_name, (const tensor *)) \
	X(void *, ggml_get_data, (const tensor *)) \
	X(int64_t, ggml_nelements, (const tensor *)) \
	X(size_t, ggml_nbytes, (const tensor *)) \
	X(int32_t, ggml_backend_buffer_get_usage, (void *))
#define OPTIONAL(X) \
	X(void, ggml_backend_load_all_from_path, (const char *)) \
	X(void, llama_set_warmup, (void *, bool)) \
	X(const char *, llama_load_mode_name, (int)) \
	X(const char *, ggml_version, (void)) \
	X(const char *, ggml_commit, (void))

#define DECLARE(ret, name, args) static ret(*name) args;
NEEDED(DECLARE)
OPTIONAL(DECLARE)

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

static void load_libs(const char *dir) {
	// In this order, each library's dependencies are already loaded, whatever its RUNPATH is. A
	// build with the CPU code as a plug-in has no plain ggml-cpu.
	if (!open_lib(dir, "ggml-base")) die("no libggml-base.so in %s (name llama.cpp's directory with --lib DIR)", dir);
	open_lib(dir, "ggml-cpu");
	if (!open_lib(dir, "ggml")) die("no libggml.so in %s", dir);
	if (!open_lib(dir, "llama")) die("no libllama.so in %s", dir);
#define LOOKUP(ret, name, args) name = (ret(*) args)dlsym(RTLD_DEFAULT, #name);
#define REQUIRE(ret, name, args) LOOKUP(ret, name, args) if (!name) die("this llama.cpp has no function %s", #name);
	NEEDED(REQUIRE)
	OPTIONAL(LOOKUP)
}

// ---- llama.cpp's log: it is shown with -v; otherwise only its first error is kept, because it names the cause

static bool verbose;
static char first_error[400];

static void on_log(int level, const char *text, void *user) {
	(void)user;
	if (verbose) fputs(text, stderr);
	if (level == LOG_ERROR && !first_error[0]) {
		snprintf(first_error, sizeof first_error, ": %s", text);
		first_error[strcspn(first_error, "\n")] = 0;
	}
}

// ---- JSON

// json_string writes bytes as a JSON string. Bytes that are not valid UTF-8 become U+FFFD.
static void json_string(FILE *f, const char *s, size_t len) {
	const unsigned char *p = (const unsigned char *)s, *end = p + len;
	fputc('"', f);
	while (p < end) {
		int n = *p < 0x80 ? 1 : *p >= 0xc2 && *p < 0xe0 ? 2
		    : *p >= 0xe0 && *p < 0xf0                   ? 3
		    : *p >= 0xf0 && *p < 0xf5                   ? 4
		                                                : 0;
		bool ok = n > 0 && p + n <= end;
		for (int i = 1; ok && i < n; i++) ok = (p[i] & 0xc0) == 0x80;
		// Overlong encodings, surrogates, and what is beyond U+10FFFF are not valid.
		if (ok && n == 3) ok = !(p[0] == 0xe0 && p[1] < 0xa0) && !(p[0] == 0xed && p[1] > 0x9f);
		if (ok && n == 4) ok = !(p[0] == 0xf0 && p[1] < 0x90) && !(p[0] == 0xf4 && p[1] > 0x8f);
		if (!ok) {
			fputs("\\ufffd", f);
			p++;
		} else if (n == 1 && (*p < 0x20 || *p == '"' || *p == '\\' || *p == 0x7f)) {
			fprintf(f, "\\u%04x", *p++);
		} else {
			fwrite(p, 1, n, f);
			p += n;
		}
	}
	fputc('"', f);
}

// ---- contexts: what they decode, and how far each has come

typedef struct {
	llama_token *prompt, *out; // out: the generated tokens
	int n_prompt;
} sequence;

typedef struct {
	int index;
	void *ctx;
	const void *vocab;
	sequence *seq;         // opt.parallel of them, decoded in one batch
	double prompt_ms, *ms; // ms: by token, of the whole batch
	llama_batch batch;     // room for the largest decode
	int decode, node;      // number of the decode under way, and how many nodes of it were computed
	bool warmup;
	int last;  // --guess: the index in the last decode's batch that has the logits of the next token
	int steps; // --guess: decodes since the prompt
} context;

enum { MAX_GUESSES = 63 };

static struct {
	const char *model, *model2, *load_mode, *warmup, *lib, *ops, *logits, *text_file, **prompts;
	int n, threads, repeat, n_ctx, mark, contexts, parallel, n_prompts, chunks, guess, idle, pause;
	bool no_repack, stream, count, concurrent;
} opt = {.n = 32, .repeat = 1, .warmup = "cli", .mark = -1, .contexts = 1, .parallel = 1};

static context *contexts;
static int n_contexts, decodes, generation; // decodes: calls of llama_decode so far

// ---- what each op really reads (--ops), and the number of ops (--count-ops)

enum { OPS = 1000 }; // more than ggml has
static struct {
	long records, nodes, by_op[OPS];
} ops;

static struct map {
	uintptr_t lo, hi;
	uint64_t offset;
	char *path;
} * maps;
static size_t n_maps;

// read_maps lists the file mappings of this process. After the model is loaded, a tensor whose data
// is in one of them is read from the file.
static void read_maps(void) {
	FILE *f = fopen("/proc/self/maps", "r");
	char *line = NULL;
	size_t cap = 0;
	if (!f) die("open /proc/self/maps: %s", strerror(errno));
	while (getline(&line, &cap, f) > 0) {
		struct map m;
		unsigned long inode;
		int path = 0;
		line[strcspn(line, "\n")] = 0;
		int n = sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %" SCNx64 " %*s %lu %n",
		    &m.lo, &m.hi, &m.offset, &inode, &path);
		if (n < 4 || !inode || !path) continue;
		m.path = strdup(line + path);
		maps = realloc(maps, (n_maps + 1) * sizeof *maps);
		if (!maps || !m.path) die("out of memory");
		maps[n_maps++] = m;
	}
	free(line);
	fclose(f);
}

static const struct map *find_map(const void *data) {
	for (size_t i = 0; i < n_maps; i++)
		if ((uintptr_t)data >= maps[i].lo && (uintptr_t)data < maps[i].hi) return &maps[i];
	return NULL;
}

// weight_of returns the weight tensor that s is or is a view of; NULL if s is an activation, an input or the KV cache.
static const tensor *weight_of(const tensor *s) {
	if (!s) return NULL;
	while (s->view_src) s = s->view_src;
	if (s->op != 0 || !s->data) return NULL;
	return (s->buffer && ggml_backend_buffer_get_usage(s->buffer) == USAGE_WEIGHTS) || find_map(s->data) ? s : NULL;
}

// gather_of returns how op t gathers parts of its source i; NULL if t reads the whole source.
static const struct gather *gather_of(const tensor *t, int i) {
	for (int k = 0; k < GATHERS; k++)
		if (i == gathers[k].source && !strcmp(ggml_op_name(t->op), gathers[k].op))
			return t->src[gathers[k].ids] ? &gathers[k] : NULL;
	return NULL;
}

static int32_t id_at(const tensor *ids, int64_t i0, int64_t i1, int64_t i2) {
	return *(const int32_t *)(ids->data + i0 * ids->nb[0] + i1 * ids->nb[1] + i2 * ids->nb[2]);
}

// list_distinct stores the distinct ids in order of first appearance and returns their number. The
// caller frees the list. For rows (GET_ROWS), dimensions 1 and 2 of ids select dimensions 2 and 3
// of the source. Ids of experts are [slot, token], and all index the same dimension.
static int64_t list_distinct(const tensor *w, const tensor *ids, int dim, bool rows, int64_t **list) {
	int64_t n = 0, ne = w->ne[dim], span = rows ? ne * w->ne[2] * w->ne[3] : ne;
	char *seen = xalloc(span, 1);
	*list = xalloc(ggml_nelements(ids), sizeof **list);
	for (int64_t i2 = 0; i2 < ids->ne[2]; i2++)
		for (int64_t i1 = 0; i1 < ids->ne[1]; i1++)
			for (int64_t i0 = 0; i0 < ids->ne[0]; i0++) {
				int64_t id = id_at(ids, i0, i1, i2);
				if (id < 0 || id >= ne)
					die("id %" PRId64 " outside 0..%" PRId64 " in %s: the ids were misread", id, ne - 1, ids->name);
				if (rows) id += ne * (i1 + w->ne[2] * i2);
				if (id >= span) die("the ids %s do not fit %s", ids->name, w->name);
				if (!seen[id]) seen[id] = 1, (*list)[n++] = id;
			}
	free(seen);
	return n;
}

// record_op writes a line for each weight that an op reads.
static void record_op(const tensor *t, const context *c) {
	const char *op = ggml_op_name(t->op);
	flockfile(ops_file.f); // contexts may be decoded concurrently
	for (int i = 0; i < 10; i++) {
		const tensor *s = t->src[i], *w = weight_of(s);
		if (!w) continue;
		const struct map *m = find_map(s->data);
		const struct gather *g = gather_of(t, i);
		const tensor *ids = g ? t->src[g->ids] : NULL;
		int64_t *list = NULL, n = g ? list_distinct(s, ids, g->dim, !g->experts, &list) : 0;
		size_t bytes = g ? n * s->nb[g->dim] : ggml_nbytes(s);
		fprintf(ops_file.f, "{\"decode\":%d,\"repeat\":%d,\"context\":%d,\"sequences\":%d,\"n_tokens\":%d,",
		    c->decode, generation, c->index, c->warmup ? 1 : opt.parallel, c->batch.n_tokens);
		fprintf(ops_file.f, "\"warmup\":%s,\"node\":%d,\"op\":\"%s\",\"name\":",
		    c->warmup ? "true" : "false", c->node, op);
		json_string(ops_file.f, t->name, strnlen(t->name, sizeof t->name));
		fprintf(ops_file.f, ",\"src\":%d,\"tensor\":", i);
		json_string(ops_file.f, w->name, strnlen(w->name, sizeof w->name));
		fprintf(ops_file.f, ",\"data\":%" PRIuPTR ",\"file\":", (uintptr_t)s->data);
		json_string(ops_file.f, m ? m->path : "", m ? strlen(m->path) : 0);
		int64_t offset = m ? (int64_t)(m->offset + ((uintptr_t)s->data - m->lo)) : -1;
		fprintf(ops_file.f, ",\"offset\":%" PRId64 ",\"bytes\":%zu", offset, bytes);
		if (g && g->experts) {
			fputs(",\"experts\":[", ops_file.f);
			for (int64_t k = 0; k < n; k++) fprintf(ops_file.f, "%s%" PRId64, k ? "," : "", list[k]);
			fputs("],\"last_experts\":[", ops_file.f);
			for (int64_t k = 0; k < ids->ne[0]; k++)
				fprintf(ops_file.f, "%s%" PRId32, k ? "," : "", id_at(ids, k, ids->ne[1] - 1, 0));
			fputs("],\"ids\":[", ops_file.f);
			for (int64_t k = 0; k < ids->ne[0] * ids->ne[1]; k++)
				fprintf(ops_file.f, "%s%" PRId32, k ? "," : "", id_at(ids, k % ids->ne[0], k / ids->ne[0], 0));
			fputs("]", ops_file.f);
		}
		fputs("}\n", ops_file.f);
		free(list);
		ops.records++;
	}
	funlockfile(ops_file.f);
}

// on_eval is called before each node runs (ask is true) and, if it then returned true, again right after the node ran.
// Returning true splits the graph after this node, so it is done only where ids must be read. Ids are valid only right
// after the node ran: they may be an earlier op's result, and a later op may reuse their memory.
static bool on_eval(tensor *t, bool ask, void *user) {
	context *c = user;
	if (ggml_get_name(t) != t->name || ggml_get_data(t) != t->data ||
	    ggml_nelements(t) != t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3] || t->op < 0 || t->op >= OPS)
		die("this llama.cpp lays out ggml_tensor otherwise than llamarun knows: "
		    "--ops and --count-ops are not possible with it");

	// The CPU backend skips these: ops without work, nodes that no output needs, empty results.
	const char *op = ggml_op_name(t->op);
	static const char *const idle[] = {"NONE", "RESHAPE", "TRANSPOSE", "VIEW", "PERMUTE"};
	for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
		if (!strcmp(op, idle[i])) return false;
	if (!(t->flags & FLAG_COMPUTE) || ggml_nelements(t) == 0) return false;

	if (ops_file.f) {
		for (int i = 0; ask && i < 10; i++)
			if (gather_of(t, i) && weight_of(t->src[i])) return true;
		record_op(t, c);
	}
	c->node++;
	__atomic_fetch_add(&ops.nodes, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&ops.by_op[t->op], 1, __ATOMIC_RELAXED);
	return !ask;
}

// ---- generation

// add_token appends a token of sequence seq to the next batch. last says that its logits are needed.
static void add_token(context *c, llama_token token, int seq, bool last) {
	int i = c->batch.n_tokens++;
	c->batch.token[i] = token;
	c->batch.n_seq_id[i] = 1;
	*c->batch.seq_id[i] = seq;
	c->batch.logits[i] = last;
}

static void decode(context *c, bool warmup) {
	c->decode = __atomic_fetch_add(&decodes, 1, __ATOMIC_RELAXED);
	c->node = 0;
	c->warmup = warmup;
	int rc = llama_decode(c->ctx, c->batch);
	if (rc) die("llama_decode of %d tokens failed with %d%s", c->batch.n_tokens, rc, first_error);
	llama_synchronize(c->ctx);
}

// warm_up does what llama-cli does before the prompt: it decodes BOS and EOS once. With "all" it
// also enables all experts, as llama.cpp did until 2026.
static void warm_up(context *c) {
	llama_token t[2], bos = llama_vocab_bos(c->vocab), eos = llama_vocab_eos(c->vocab);
	bool all = !strcmp(opt.warmup, "all");
	int n = 0;
	if (bos >= 0) t[n++] = bos;
	if (eos >= 0) t[n++] = eos;
	if (n == 0) t[n++] = 0;
	if (all && !llama_set_warmup) die("this llama.cpp has no llama_set_warmup: use --warmup cli");
	if (all) llama_set_warmup(c->ctx, true);
	c->batch.n_tokens = 0;
	for (int i = 0; i < n; i++) add_token(c, t[i], 0, i == n - 1);
	decode(c, true);
	llama_memory_clear(llama_get_memory(c->ctx), true);
	if (all) llama_set_warmup(c->ctx, false);
}

// choose_greedily chooses the next token from the logits at this index of the batch.
static llama_token choose_greedily(const context *c, int at) {
	const float *logits = llama_get_logits_ith(c->ctx, at);
	int n = llama_vocab_n_tokens(c->vocab), best = -1;
	if (!logits) die("llama.cpp returned no logits");
	for (int i = 0; i < n; i++)
		if (isfinite(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
	if (best < 0) die("the model computes no finite logit");
	return best;
}

// write_mark reports progress to the descriptor of --mark.
static void write_mark(char what) {
	if (opt.mark >= 0 && write(opt.mark, &what, 1) != 1)
		die("write to descriptor %d (--mark): %s", opt.mark, strerror(errno));
}

// With --stream, SIGTERM ends the run after the current generation.
static volatile sig_atomic_t ending;

static void on_sigterm(int signal) {
	(void)signal;
	ending = 1;
}

static void print_piece(const context *c, llama_token token, FILE *f) {
	char piece[512];
	int n = llama_token_to_piece(c->vocab, token, piece, sizeof piece, 0, false);
	if (n > 0) fwrite(piece, 1, n, f);
}

// stream_token prints a line for the token of each sequence (--stream).
static void stream_token(const context *c, int i, int64_t begin, int64_t end) {
	flockfile(stdout);
	for (int s = 0; s < opt.parallel; s++) {
		char piece[512];
		int n = llama_token_to_piece(c->vocab, c->seq[s].out[i], piece, sizeof piece, 0, false);
		printf("{\"generation\":%d,\"context\":%d,\"sequence\":%d,\"token\":%d,\"id\":%d,",
		    generation, c->index, s, i, c->seq[s].out[i]);
		printf("\"begin_ns\":%" PRId64 ",\"end_ns\":%" PRId64 ",\"text\":", begin, end);
		json_string(stdout, piece, n > 0 ? n : 0);
		printf("}\n");
	}
	if (fflush(stdout)) die("write a token: %s", strerror(errno));
	funlockfile(stdout);
}

// decode_prompts decodes the prompts of a context's sequences, from an empty memory.
static void decode_prompts(context *c) {
	llama_memory_clear(llama_get_memory(c->ctx), true);
	double start = now_ms();
	c->batch.n_tokens = 0;
	for (int s = 0; s < opt.parallel; s++)
		for (int i = 0; i < c->seq[s].n_prompt; i++) add_token(c, c->seq[s].prompt[i], s, i == c->seq[s].n_prompt - 1);
	decode(c, false);
	c->prompt_ms = now_ms() - start;
	write_mark('b');
}

// rest waits as long as a reader needs for a token (--pause).
static void rest(void) {
	struct timespec left = {opt.pause / 1000, opt.pause % 1000 * 1000000L};
	if (opt.pause) nanosleep(&left, NULL);
}

// generate_token generates token i in each sequence of a context.
static void generate_token(context *c, int i) {
	int64_t start = now_ns();
	for (int s = 0, at = -1; s < opt.parallel; s++) {
		at += i == 0 ? c->seq[s].n_prompt : 1;
		c->seq[s].out[i] = choose_greedily(c, at);
	}
	c->batch.n_tokens = 0;
	for (int s = 0; s < opt.parallel; s++) add_token(c, c->seq[s].out[i], s, true);
	decode(c, false);
	int64_t end = now_ns();
	c->ms[i] = (end - start) / 1e6;
	write_mark('t');
	if (opt.stream) stream_token(c, i, start, end);
	rest();
}

// guess_tokens writes up to max tokens that may follow the first n generated ones, and returns
// their number. They are the tokens that followed the same two tokens before.
static int guess_tokens(const sequence *q, int n, llama_token *to, int max) {
	const int end = q->n_prompt + n;
#define TOKEN(i) ((i) < q->n_prompt ? q->prompt[i] : q->out[(i)-q->n_prompt])
	for (int at = end - 3; at >= 0; at--) {
		if (TOKEN(at) != TOKEN(end - 2) || TOKEN(at + 1) != TOKEN(end - 1)) continue;
		int k = 0;
		for (; k < max && at + 2 + k < end; k++) to[k] = TOKEN(at + 2 + k);
		return k;
	}
#undef TOKEN
	return 0;
}

// guessing_step generates token i, and those of the guessed tokens behind it that the model
// chooses, too. It returns how many tokens these are. All of them are in one decode.
static int guessing_step(context *c, int i) {
	int64_t start = now_ns();
	sequence *q = &c->seq[0];
	llama_token guesses[MAX_GUESSES];
	q->out[i] = choose_greedily(c, i == 0 ? q->n_prompt - 1 : c->last);
	int left = opt.n - i - 1, right = 0;
	int n = guess_tokens(q, i + 1, guesses, opt.guess < left ? opt.guess : left);
	c->batch.n_tokens = 0;
	add_token(c, q->out[i], 0, true);
	for (int k = 0; k < n; k++) add_token(c, guesses[k], 0, true);
	decode(c, false);
	while (right < n && choose_greedily(c, right) == guesses[right]) {
		q->out[i + 1 + right] = guesses[right];
		right++;
	}
	if (right < n && !llama_memory_seq_rm(llama_get_memory(c->ctx), 0, q->n_prompt + i + 1 + right, -1))
		die("this model's memory cannot take tokens back: --guess is not possible with it");
	c->last = right;
	c->steps++;
	int64_t end = now_ns();
	for (int k = 0; k <= right; k++) {
		c->ms[i + k] = (end - start) / 1e6 / (right + 1);
		write_mark('t');
		if (opt.stream) stream_token(c, i + k, start, end);
		rest();
	}
	return 1 + right;
}

// generate_alone decodes the prompts and generates all tokens of one context, in a thread of its own.
static void *generate_alone(void *c) {
	decode_prompts(c);
	for (int i = 0; i < opt.n; i++) generate_token(c, i);
	return NULL;
}

// generate decodes the prompt and generates n tokens in every context: in turn, token by token, or
// each in a thread of its own.
static void generate(void) {
	if (opt.guess) {
		contexts[0].steps = 0;
		decode_prompts(&contexts[0]);
		for (int i = 0; i < opt.n;) i += guessing_step(&contexts[0], i);
		return;
	}
	if (!opt.concurrent) {
		for (int k = 0; k < n_contexts; k++) decode_prompts(&contexts[k]);
		for (int i = 0; i < opt.n; i++)
			for (int k = 0; k < n_contexts; k++) generate_token(&contexts[k], i);
		return;
	}
	pthread_t *threads = xalloc(n_contexts, sizeof *threads);
	for (int k = 0; k < n_contexts; k++) {
		int e = pthread_create(&threads[k], NULL, generate_alone, &contexts[k]);
		if (e) die("start a thread: %s", strerror(e));
	}
	for (int k = 0; k < n_contexts; k++) pthread_join(threads[k], NULL);
	free(threads);
}

// ---- scoring a text (--logits)

// Values are written in the machine's byte order, which is little-endian on x86-64 and arm64.
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the logits are written as they lie in memory");

// score_text writes the logits with which a context predicts the tokens of its text (the prompt).
// It does what llama-perplexity does, so that the perplexities are the same. The text is split into
// chunks of n_ctx tokens, without the rest. Each chunk is decoded separately, with BOS in place of
// its first token if the model begins texts with BOS. The tokens of the chunk's second half are
// scored, except for the first.
static void score_text(context *c, int n_ctx) {
	const sequence *q = &c->seq[0];
	const uint32_t n_vocab = llama_vocab_n_tokens(c->vocab);
	const int first = n_ctx / 2, scored = n_ctx - 1 - first;
	int chunks = q->n_prompt / n_ctx;
	if (chunks == 0) die("%s has %d tokens: too few for one chunk of %d (see -c)", opt.text_file, q->n_prompt, n_ctx);
	if (opt.chunks && chunks > opt.chunks) chunks = opt.chunks;
	bool bos = llama_vocab_get_add_bos(c->vocab);
	FILE *f = logits_file.f;
	const uint32_t header[] = {n_vocab, n_ctx, chunks, scored};
	fwrite("TCLOGIT1", 8, 1, f);
	fwrite(header, sizeof header, 1, f);
	for (int k = 0; k < chunks && !ferror(f); k++) {
		const llama_token *chunk = q->prompt + (size_t)k * n_ctx;
		llama_memory_clear(llama_get_memory(c->ctx), true);
		c->batch.n_tokens = 0;
		for (int i = 0; i < n_ctx; i++) {
			llama_token token = i == 0 && bos ? llama_vocab_bos(c->vocab) : chunk[i];
			add_token(c, token, 0, i >= first && i < n_ctx - 1);
		}
		decode(c, false);
		for (int i = first; i < n_ctx - 1; i++) {
			const float *logits = llama_get_logits_ith(c->ctx, i);
			if (!logits) die("llama.cpp returned no logits");
			fwrite(&chunk[i + 1], sizeof *chunk, 1, f);
			fwrite(logits, sizeof *logits, n_vocab, f);
		}
	}
}

// print_generation prints the members of a generation's JSON object, without braces.
static void print_generation(const context *c, int s) {
	const llama_token *out = c->seq[s].out;
	char *text = NULL;
	size_t len = 0;
	double sum = 0;
	FILE *f = open_memstream(&text, &len);
	if (!f) die("out of memory");
	for (int i = 0; i < opt.n; i++) print_piece(c, out[i], f);
	fclose(f);

	printf("\"context\":%d,\"sequence\":%d,\"text\":", c->index, s);
	json_string(stdout, text, len);
	printf(",\"tokens\":[");
	for (int i = 0; i < opt.n; i++) printf("%s%d", i ? "," : "", out[i]);
	printf("],\"prompt_ms\":%.3f,\"token_ms\":[", c->prompt_ms);
	for (int i = 0; i < opt.n; i++) printf("%s%.3f", i ? "," : "", c->ms[i]), sum += c->ms[i];
	printf("],\"tok_s\":%.3f", sum > 0 ? opt.n / sum * 1e3 : 0);
	if (opt.guess) printf(",\"decodes\":%d", c->steps);
	free(text);
}

// print_ops prints the number of computed nodes (--count-ops), preceded by a separator.
static void print_ops(const char *before) {
	printf("%s\"nodes\":%ld,\"ops\":{", before, ops.nodes);
	for (int i = 0, n = 0; i < OPS; i++)
		if (ops.by_op[i]) printf("%s\"%s\":%ld", n++ ? "," : "", ggml_op_name(i), ops.by_op[i]);
	printf("}");
}

// print_run prints what is the same for all generations.
static void print_run(const char *dir, double load_ms, double warmup_ms) {
	printf("\"pid\":%d,\"prompt_tokens\":%d,\"threads\":%d,\"load_ms\":%.3f,\"warmup_ms\":%.3f,",
	    getpid(), contexts[0].seq[0].n_prompt, opt.threads, load_ms, warmup_ms);
	printf("\"llama\":\"ggml %s, commit %s\",\"lib\":",
	    ggml_version ? ggml_version() : "unknown", ggml_commit ? ggml_commit() : "unknown");
	json_string(stdout, dir, strlen(dir));
}

// ---- parameters whose layout must be known

static uint32_t u32(const any_params *p, int at) {
	uint32_t v;
	memcpy(&v, p->b + at, 4);
	return v;
}
static uint64_t u64(const any_params *p, int at) {
	uint64_t v;
	memcpy(&v, p->b + at, 8);
	return v;
}

static void set_model_params(any_params *p) {
	static const char *const modes[] = {"none", "mmap", "mlock", "mmap+mlock", "dio"}; // enum llama_load_mode
	enum {
		LOAD_MODE = 24,
		USE_EXTRA_BUFTS = 2,
		PADDING = INT32_MIN,
	};
	// The defaults in the known layouts are the words before the booleans. The third boolean is use_extra_bufts
	// (repacking).
	static const struct {
		int n;
		int32_t words[18];
	} known[] = {
	    {16, {0, 0, 0, 0, -1, 1, 1, 0}},              // n_gpu_layers -1, split_mode layer, load_mode mmap, main_gpu 0
	    {18, {0, 0, 0, 0, -1, 1, -1, 1, 0, PADDING}}, // load_mode auto (-1), one enum more
	};
	static const bool bools[] = {false, false, true, false, false, false};

	if (!opt.no_repack && !opt.load_mode) return;
	unsigned char *flags = NULL;
	for (size_t k = 0; k < sizeof known / sizeof *known && !flags; k++) {
		int i = 0;
		while (i < known[k].n && (known[k].words[i] == PADDING || u32(p, 4 * i) == (uint32_t)known[k].words[i])) i++;
		if (i == known[k].n && memcmp(p->b + 4 * i, bools, sizeof bools) == 0) flags = p->b + 4 * i;
	}
	if (!flags)
		die("this llama.cpp lays out llama_model_params otherwise than llamarun knows: "
		    "--no-repack and --load-mode are not possible with it");

	if (opt.no_repack) flags[USE_EXTRA_BUFTS] = false;
	if (opt.load_mode) {
		int mode = -1;
		for (int i = 0; i < 5; i++)
			if (!strcmp(opt.load_mode, modes[i])) mode = i;
		if (mode < 0) usage_error("--load-mode %s: want none, mmap, mlock, mmap+mlock or dio", opt.load_mode);
		if (!llama_load_mode_name || strcmp(llama_load_mode_name(mode), modes[mode]) != 0)
			die("this llama.cpp has no load mode %s", opt.load_mode);
		memcpy(p->b + LOAD_MODE, &mode, 4);
	}
}

static void set_context_params(any_params *p, uint32_t n_ctx, uint32_t n_batch, context *c) {
	enum {
		N_CTX = 0,
		N_BATCH = 4,
		N_UBATCH = 8,
		N_SEQ_MAX = 12,
		CB_EVAL = 0x58,
		CB_EVAL_DATA = 0x60,
		TYPE_K = 0x68,
		TYPE_V = 0x6c,
	};

	if (u32(p, N_CTX) != 512 || u32(p, N_BATCH) != 2048 || u32(p, N_UBATCH) != 512)
		die("this llama.cpp's llama_context_params does not begin with n_ctx, n_batch, n_ubatch "
		    "and their known defaults");
	memcpy(p->b + N_CTX, &n_ctx, 4);
	if (n_batch > 2048) memcpy(p->b + N_BATCH, &n_batch, 4); // the prompts are one llama_decode
	if (opt.parallel > 1) {
		if (u32(p, N_SEQ_MAX) != 1)
			die("this llama.cpp's llama_context_params does not have n_seq_max after n_ubatch: "
			    "--parallel is not possible with it");
		memcpy(p->b + N_SEQ_MAX, &opt.parallel, 4);
	}
	if (!opt.ops && !opt.count) return;
	if (u64(p, CB_EVAL) || u64(p, CB_EVAL_DATA) || u32(p, TYPE_K) != TYPE_F16 || u32(p, TYPE_V) != TYPE_F16)
		die("this llama.cpp lays out llama_context_params otherwise than llamarun knows: "
		    "--ops and --count-ops are not possible with it");
	bool (*cb)(tensor *, bool, void *) = on_eval;
	memcpy(p->b + CB_EVAL, &cb, 8);
	memcpy(p->b + CB_EVAL_DATA, &c, 8);
}

// ---- setting up

static void *load_model(const char *path) {
	any_params p = llama_model_default_params();
	set_model_params(&p);
	void *model = llama_model_load_from_file(path, p);
	if (!model) die("load %s: llama.cpp refuses this model%s", path, first_error);
	if (llama_model_has_encoder(model)) die("load %s: encoder models are not supported", path);
	return model;
}

// tokenize makes the sequence's prompt from a text. If special is set, names of control tokens in the text become these
// tokens.
static void tokenize(const void *vocab, const char *text, int len, bool special, sequence *q) {
	int cap = len + 8;
	q->prompt = xalloc(cap, sizeof *q->prompt);
	q->n_prompt = llama_tokenize(vocab, text, len, q->prompt, cap, true, special);
	if (q->n_prompt < 0 && q->n_prompt > -INT_MAX) { // more tokens than bytes
		free(q->prompt);
		q->prompt = xalloc(cap = -q->n_prompt, sizeof *q->prompt);
		q->n_prompt = llama_tokenize(vocab, text, len, q->prompt, cap, true, special);
	}
	if (q->n_prompt < 0) die("the %s cannot be tokenized", opt.logits ? "text" : "prompt");
	if (q->n_prompt == 0 && !opt.logits) die("the prompt is empty and the model has no BOS token: give -p TEXT");
}

// read_text makes the sequence's prompt from the text file, without its last line feed, as llama.cpp's -f does.
static void read_text(const void *vocab, sequence *q) {
	enum { MAX_TEXT = 1 << 30 };
	FILE *f = fopen(opt.text_file, "r");
	char *text = NULL;
	size_t len = 0, cap = 0;
	if (!f) die("open %s: %s", opt.text_file, strerror(errno));
	for (size_t n = 1; n > 0; len += n) {
		if (len == cap && !(text = realloc(text, cap = cap ? 2 * cap : 1 << 16))) die("out of memory");
		n = fread(text + len, 1, cap - len, f);
		if (len + n > MAX_TEXT) die("%s is larger than %d bytes", opt.text_file, MAX_TEXT);
	}
	if (ferror(f)) die("read %s: %s", opt.text_file, strerror(errno));
	fclose(f);
	if (len > 0 && text[len - 1] == '\n') len--;
	tokenize(vocab, text, (int)len, false, q);
	free(text);
}

// new_context creates context number index. The prompts are dealt to the contexts' sequences in turn.
static void new_context(int index, void *model) {
	context *c = &contexts[index];
	int n_batch = 2, longest = 0; // 2 tokens are those of the warm-up
	c->index = index;
	c->vocab = llama_model_get_vocab(model);
	c->ms = xalloc(opt.n, sizeof *c->ms);
	c->seq = xalloc(opt.parallel, sizeof *c->seq);
	for (int s = 0, total = 0; s < opt.parallel; s++) {
		sequence *q = &c->seq[s];
		if (opt.logits) {
			read_text(c->vocab, q);
			total = longest = n_batch = opt.n_ctx; // a chunk at a time
			continue;
		}
		const char *prompt = opt.n_prompts ? opt.prompts[(index * opt.parallel + s) % opt.n_prompts] : "";
		tokenize(c->vocab, prompt, (int)strlen(prompt), true, q);
		q->out = xalloc(opt.n, sizeof *q->out);
		if (q->n_prompt > longest) longest = q->n_prompt;
		if ((total += q->n_prompt) > n_batch) n_batch = total;
	}
	if (n_batch < opt.parallel) n_batch = opt.parallel;
	if (n_batch < 1 + opt.guess) n_batch = 1 + opt.guess;
	c->batch.token = xalloc(n_batch, sizeof *c->batch.token);
	c->batch.n_seq_id = xalloc(n_batch, sizeof *c->batch.n_seq_id);
	c->batch.seq_id = xalloc(n_batch, sizeof *c->batch.seq_id);
	c->batch.logits = xalloc(n_batch, sizeof *c->batch.logits);
	for (int i = 0; i < n_batch; i++) c->batch.seq_id[i] = xalloc(1, sizeof **c->batch.seq_id);

	int need = (longest + opt.n) * opt.parallel, n_ctx = opt.n_ctx;
	if (!n_ctx) n_ctx = need < 512 ? 512 : need;
	if (n_ctx < need)
		die("-c %d is too small for %d sequences of up to %d prompt and %d generated tokens",
		    n_ctx, opt.parallel, longest, opt.n);
	any_params p = llama_context_default_params();
	set_context_params(&p, n_ctx, n_batch, c);
	c->ctx = llama_init_from_model(model, p);
	if (!c->ctx) die("create the context%s", first_error);
	llama_set_n_threads(c->ctx, opt.threads, opt.threads);
}

// ---- command line

static const char help[] =
    "llamarun decodes a prompt and n tokens greedily with llama.cpp's libraries and prints the result as JSON.\n"
    "\n"
    "    llamarun -m model.gguf -p \"Once upon a time\" -n 32 -t 2\n"
    "\n"
    "  -m FILE          the model (GGUF)\n"
    "  -p TEXT          the prompt; given several times, they are dealt to the contexts and their sequences in turn\n"
    "  -n N             tokens to generate, exactly: EOS does not stop it (default 32)\n"
    "  -t N             threads (default: LLAMA_ARG_THREADS of the environment, as for llama.cpp's own programs;\n"
    "                   without that, the CPUs that it may run on)\n"
    "  -c N             context size in tokens (default: what prompt and n need, at least 512)\n"
    "  --repeat R       generate R times in this one process, from an empty memory each time (default 1)\n"
    "  --no-repack      do not copy weights to another layout at load: they stay in the mapped file\n"
    "  --load-mode M    none, mmap, mlock, mmap+mlock or dio (default: the library's own, mmap)\n"
    "  --warmup W       cli: one decode of BOS and EOS, as llama-cli does (default); all: the same through every\n"
    "                   expert; none\n"
    "  --no-warmup      the same as --warmup none\n"
    "  --ignore-eos     accepted because llama-cli has it; EOS is always ignored\n"
    "  --model2 FILE    another model, in contexts of its own, numbered after those of the first\n"
    "  --contexts N     contexts of each model, decoded in turn, token by token (default 1)\n"
    "  --concurrent     decode each context from a thread of its own\n"
    "  --idle S         wait S seconds when the model is loaded and warmed up, as a server does (default 0)\n"
    "  --pause MS       wait MS milliseconds after each token, as for a slow reader (default 0)\n"
    "  --parallel N     sequences in each context, decoded in one batch (default 1)\n"
    "  --guess K        guess up to K tokens (those that followed the last two tokens before) and decode them\n"
    "                   together with the next one; the model chooses the same tokens as without, up to how a batch\n"
    "                   is rounded (one context, one sequence)\n"
    "  --stream         print one line of JSON for each token as it comes, after a first line about the run, and no\n"
    "                   result; SIGTERM ends it after the current generation\n"
    "  --count-ops      count the ops that are computed, by kind\n"
    "  --logits FILE    generate nothing, but write the logits with which each token of a text is predicted, as\n"
    "                   llama-perplexity does it: in chunks of -c tokens (default 256), each by itself, of which the\n"
    "                   second half is scored\n"
    "  --text-file FILE the text\n"
    "  --chunks N       use at most this many of its chunks\n"
    "  --ops FILE       write what each op reads of the weights, one JSON object per line\n"
    "  --mark FD        write to this open descriptor: b when the prompt is decoded, t after each token\n"
    "  --lib DIR        where libllama and libggml are (default: beside this program)\n"
    "  -v               show llama.cpp's log\n"
    "\n"
    "Bytes of the text that are not valid UTF-8 are printed as U+FFFD. Exit code: 0 done, 1 failure, 2 wrong usage.\n";

static int parse_number(const char *option, const char *s, int min) {
	char *end;
	errno = 0;
	long v = strtol(s, &end, 10);
	if (errno || *end || end == s || v < min || v > INT_MAX / 2)
		usage_error("%s %s: want a number of at least %d", option, s, min);
	return (int)v;
}

static void parse_options(int argc, char **argv) {
	enum {
		REPEAT = 256,
		NO_REPACK,
		LOAD_MODE,
		WARMUP,
		NO_WARMUP,
		IGNORE_EOS,
		OPS_FILE,
		MARK,
		LIB,
		MODEL2,
		CONTEXTS,
		CONCURRENT,
		IDLE,
		PAUSE,
		PARALLEL,
		STREAM,
		COUNT_OPS,
		LOGITS,
		TEXT_FILE,
		CHUNKS,
		GUESS,
	};
	static const struct option longs[] = {
	    {"repeat", 1, 0, REPEAT}, {"no-repack", 0, 0, NO_REPACK}, {"load-mode", 1, 0, LOAD_MODE},
	    {"warmup", 1, 0, WARMUP}, {"no-warmup", 0, 0, NO_WARMUP}, {"ignore-eos", 0, 0, IGNORE_EOS},
	    {"ops", 1, 0, OPS_FILE}, {"mark", 1, 0, MARK}, {"lib", 1, 0, LIB}, {"model2", 1, 0, MODEL2},
	    {"contexts", 1, 0, CONTEXTS}, {"concurrent", 0, 0, CONCURRENT}, {"parallel", 1, 0, PARALLEL},
	    {"idle", 1, 0, IDLE}, {"pause", 1, 0, PAUSE}, {"stream", 0, 0, STREAM}, {"count-ops", 0, 0, COUNT_OPS},
	    {"logits", 1, 0, LOGITS},
	    {"text-file", 1, 0, TEXT_FILE}, {"chunks", 1, 0, CHUNKS}, {"guess", 1, 0, GUESS}, {"help", 0, 0, 'h'}, {0}};
	int c;
	opt.prompts = xalloc(argc, sizeof *opt.prompts);
	argv[0] = "llamarun"; // getopt's messages begin with it
	while ((c = getopt_long(argc, argv, "m:p:n:t:c:vh", longs, NULL)) != -1) switch (c) {
		case 'm': opt.model = optarg; break;
		case 'p': opt.prompts[opt.n_prompts++] = optarg; break;
		case 'n': opt.n = parse_number("-n", optarg, 0); break;
		case 't': opt.threads = parse_number("-t", optarg, 1); break;
		case 'c': opt.n_ctx = parse_number("-c", optarg, 1); break;
		case 'v': verbose = true; break;
		case 'h': fputs(help, stdout); exit(0);
		case REPEAT: opt.repeat = parse_number("--repeat", optarg, 1); break;
		case NO_REPACK: opt.no_repack = true; break;
		case LOAD_MODE: opt.load_mode = optarg; break;
		case WARMUP: opt.warmup = optarg; break;
		case NO_WARMUP: opt.warmup = "none"; break;
		case IGNORE_EOS: break;
		case OPS_FILE: opt.ops = optarg; break;
		case MARK: opt.mark = parse_number("--mark", optarg, 0); break;
		case LIB: opt.lib = optarg; break;
		case MODEL2: opt.model2 = optarg; break;
		case CONTEXTS: opt.contexts = parse_number("--contexts", optarg, 1); break;
		case CONCURRENT: opt.concurrent = true; break;
		case IDLE: opt.idle = parse_number("--idle", optarg, 0); break;
		case PAUSE: opt.pause = parse_number("--pause", optarg, 0); break;
		case PARALLEL: opt.parallel = parse_number("--parallel", optarg, 1); break;
		case STREAM: opt.stream = true; break;
		case COUNT_OPS: opt.count = true; break;
		case LOGITS: opt.logits = optarg; break;
		case TEXT_FILE: opt.text_file = optarg; break;
		case CHUNKS: opt.chunks = parse_number("--chunks", optarg, 1); break;
		case GUESS: opt.guess = parse_number("--guess", optarg, 1); break;
		default: _exit(2); // getopt has said why
		}
	if (optind < argc) usage_error("unexpected argument %s (see --help)", argv[optind]);
	if (!opt.model) usage_error("no model: give -m FILE (see --help)");
	if (strcmp(opt.warmup, "cli") && strcmp(opt.warmup, "all") && strcmp(opt.warmup, "none"))
		usage_error("--warmup %s: want cli, all or none", opt.warmup);
	if (!opt.logits != !opt.text_file || (opt.chunks && !opt.logits))
		usage_error("--logits FILE and --text-file FILE go together, and --chunks with them");
	bool several = opt.model2 || opt.contexts > 1 || opt.parallel > 1;
	if (opt.guess && (several || opt.concurrent || opt.guess > MAX_GUESSES))
		usage_error("--guess takes one context and sequence, and at most %d tokens", MAX_GUESSES);
	if (opt.logits) {
		if (opt.n_prompts || several || opt.guess || opt.repeat > 1 || opt.stream || opt.mark >= 0)
			usage_error("--logits takes no prompt, and one model, context and sequence, once");
		if (!opt.n_ctx) opt.n_ctx = 256;
		if (opt.n_ctx < 4) usage_error("-c %d: want chunks of at least 4 tokens", opt.n_ctx);
		opt.n = 0;
	}
	const char *threads = getenv("LLAMA_ARG_THREADS");
	if (!opt.threads && threads) opt.threads = parse_number("LLAMA_ARG_THREADS", threads, 1);
	if (!opt.threads) {
		cpu_set_t cpus;
		opt.threads = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
	}
}

int main(int argc, char **argv) {
	char dir[PATH_MAX];
	parse_options(argc, argv);
	if (access(opt.model, R_OK)) die("open %s: %s", opt.model, strerror(errno));
	const char *lib = opt.lib ? opt.lib : "/proc/self/exe";
	if (!realpath(lib, dir)) die("%s: %s", lib, strerror(errno));
	if (!opt.lib) *strrchr(dir, '/') = 0;

	load_libs(dir);
	ggml_log_set(on_log, NULL);
	llama_log_set(on_log, NULL);
	// The CPU code may be a plug-in, and one for another machine may complain.
	if (ggml_backend_load_all_from_path) ggml_backend_load_all_from_path(dir);
	first_error[0] = 0;
	llama_backend_init();

	if (opt.ops) create_output(&ops_file, opt.ops);
	if (opt.logits) create_output(&logits_file, opt.logits);
	double start = now_ms();
	void *models[2] = {load_model(opt.model), opt.model2 ? load_model(opt.model2) : NULL};
	if (opt.ops) read_maps();
	n_contexts = opt.contexts * (opt.model2 ? 2 : 1);
	contexts = xalloc(n_contexts, sizeof *contexts);
	for (int k = 0; k < n_contexts; k++) new_context(k, models[k / opt.contexts]);
	double load_ms = now_ms() - start;

	start = now_ms();
	for (int k = 0; k < n_contexts && strcmp(opt.warmup, "none"); k++) warm_up(&contexts[k]);
	double warmup_ms = now_ms() - start;
	for (unsigned left = opt.idle; left > 0;) left = sleep(left);

	if (opt.stream) {
		struct sigaction end = {.sa_handler = on_sigterm, .sa_flags = SA_RESTART};
		sigaction(SIGTERM, &end, NULL);
		printf("{");
		print_run(dir, load_ms, warmup_ms);
		printf("}\n");
	}
	if (opt.logits) score_text(&contexts[0], opt.n_ctx);
	int printed = 0;
	for (generation = 0; generation < opt.repeat && !ending && !opt.logits; generation++) {
		generate();
		for (int k = 0; k < n_contexts && !opt.stream; k++)
			for (int s = 0; s < opt.parallel; s++, printed++) { // the first is the result, the others are members of it
				printf(printed > 1 ? ",{" : "{");
				print_generation(&contexts[k], s);
				printf(printed ? "}" : ",\"repeat\":[");
			}
	}
	if (!opt.stream) {
		printf(opt.logits ? "{" : "],");
		print_run(dir, load_ms, warmup_ms);
		if (opt.count) print_ops(",");
		printf("}\n");
	} else if (opt.count) {
		print_ops("{");
		printf("}\n");
	}

	if (ops_file.f) {
		if (!ops.records) die("no op read a weight: this llama.cpp lays out ggml_tensor otherwise than llamarun knows");
		finish_output(&ops_file);
	}
	if (logits_file.f) finish_output(&logits_file);
	if (fflush(stdout) || ferror(stdout)) die("write the result: %s", strerror(errno));
	for (int k = 0; k < n_contexts; k++) llama_free(contexts[k].ctx);
	for (int i = 0; i < 2; i++)
		if (models[i]) llama_model_free(models[i]);
	return 0;
}
