//go:build ignore

/* Finds ggml's functions in this process, checks its version, and answers questions about tensors. */
#define _GNU_SOURCE
#include "tfmbs_ggml.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

/* Versions whose structs are those of tfmbs_ggml.h. Their layout has changed before without a change of API_VERSION. */
static const char *const known_versions[] = {"0.25.1", "0.18.1"};

struct ggml_api api;

struct library_search {
	const char *name, *path;
};

static int match_library(struct dl_phdr_info *info, size_t size, void *search) {
	struct library_search *s = search;
	(void)size;
	const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
	if (strncmp(name, s->name, strlen(s->name))) return 0;
	s->path = info->dlpi_name;
	return 1;
}

void *loaded_library(const char *name, const char *function) {
	struct library_search s = {name, NULL};
	if (dlsym(RTLD_DEFAULT, function) || !dl_iterate_phdr(match_library, &s)) return RTLD_DEFAULT;
	return dlopen(s.path, RTLD_NOW | RTLD_NOLOAD);
}

const char *resolve_ggml(void) {
	void *base = loaded_library("libggml-base", "ggml_version");
#define FIND(ret, name, args) \
	if (!(api.name = (ret(*) args)dlsym(base, #name))) return #name;
	FUNCTIONS(FIND)
	return NULL;
}

bool is_known_ggml(void) {
	const char *missing = resolve_ggml();
	if (missing) {
		fprintf(stderr, "tfmbs: not used: this ggml has no function %s\n", missing);
		return false;
	}
	const char *version = api.ggml_version();
	const size_t count = sizeof known_versions / sizeof *known_versions;
	size_t i = 0;
	while (i < count && strcmp(known_versions[i], version)) i++;
	if (i == count) {
		fprintf(stderr, "tfmbs: not used: version %s of ggml is not known here (%s and %s are)\n", version,
		    known_versions[0], known_versions[1]);
		return false;
	}
	struct tensor t = {.name = "name"};
	t.data = t.name;
	if (strcmp(api.ggml_get_name(&t), "name") || api.ggml_get_data(&t) != t.data) {
		fprintf(stderr, "tfmbs: not used: this ggml lays out tensors in another way than version %s\n", version);
		return false;
	}
	return true;
}

bool is_op(const struct tensor *t, const char *name) { return !strcmp(api.ggml_op_name(t->op), name); }

bool is_view(const struct tensor *t) {
	return is_op(t, "NONE") || is_op(t, "RESHAPE") || is_op(t, "VIEW") || is_op(t, "PERMUTE") || is_op(t, "TRANSPOSE");
}

bool is_computed(const struct tensor *t) { return t->flags & FLAG_COMPUTE && !is_view(t); }

bool has_plain_rows(const struct tensor *t, const char *type) {
	return !strcmp(api.ggml_type_name(t->type), type) && t->nb[0] == 4 && t->nb[1] % 4 == 0 &&
	    t->nb[1] >= 4 * (size_t)t->ne[0] && t->nb[2] % 4 == 0 && t->ne[3] == 1;
}

const char *end_of_rows(const struct tensor *t) {
	return t->data + (size_t)(t->ne[2] - 1) * t->nb[2] + (size_t)(t->ne[1] - 1) * t->nb[1] + 4 * (size_t)t->ne[0];
}

bool overlaps(const struct tensor *a, const struct tensor *b) {
	return a->data < b->data + api.ggml_nbytes(b) && b->data < a->data + api.ggml_nbytes(a);
}

/* Like SMALL, of products (also with the cache of keys and values), for all vectors together. */
enum { SMALL_PRODUCT = 8 << 20 };

static void *buffer_of(const struct tensor *t) { return t->view_src ? t->view_src->buffer : t->buffer; }

bool is_small(const struct tensor *t) {
	size_t limit = SMALL, sum = api.ggml_nbytes(t);
	/* Only a few rows are read of this: the table of embeddings, or the cache of keys and values. */
	const struct tensor *table = is_op(t, "GET_ROWS") ? t->src[0] : NULL;
	if (is_op(t, "SET_ROWS")) sum = 0;
	if (is_op(t, "MUL_MAT") && t->src[1]) limit = SMALL_PRODUCT / (size_t)t->src[1]->ne[1];
	if (is_op(t, "FLASH_ATTN_EXT") && t->src[0]) limit = SMALL_PRODUCT / (size_t)t->src[0]->ne[1];
	for (int i = 0; i < 10; i++) {
		const struct tensor *x = t->src[i];
		if (x && buffer_of(x) && !api.ggml_backend_buffer_is_host(buffer_of(x))) return false;
		if (x && x != table && !(is_op(t, "SET_ROWS") && x->data == t->data)) sum += api.ggml_nbytes(x);
	}
	return sum <= limit;
}
