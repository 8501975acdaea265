/* What the two libraries know of ggml: its structs, its functions, and questions about tensors.
 *
 * No header of ggml is needed. Functions are found by name, ops and types are compared by name. The
 * few structs that are needed are declared here, as the versions in known_versions (tfmbs_ggml.c) have
 * them. Another version is refused. */
#ifndef TFMBS_GGML_H
#define TFMBS_GGML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum {
	API_VERSION = 2,
	DEVICE_ACCEL = 3,
	USAGE_WEIGHTS = 1,
	FLAG_COMPUTE = 16,
	STATUS_ALLOC_FAILED = -2,
	STATUS_FAILED = -1,
	STATUS_SUCCESS = 0,
};

struct tensor {
	int32_t type;
	void *buffer;
	int64_t ne[4];
	size_t nb[4];
	int32_t op, op_params[16], flags;
	struct tensor *src[10], *view_src;
	size_t view_offs;
	char *data;
	char name[64];
};
_Static_assert(offsetof(struct tensor, src) == 152 && offsetof(struct tensor, data) == 248 &&
        offsetof(struct tensor, name) == 256,
    "ggml_tensor");

struct props {
	const char *name, *description;
	size_t memory_free, memory_total;
	int type;
	const char *id;
	bool caps[8];
};

struct reg;
struct device;
struct backend;

/* Functions that may be NULL, and are here, have no type. */
struct backend {
	const uint8_t *guid;
	const char *(*get_name)(struct backend *);
	void (*free)(struct backend *);
	void *set_async, *get_async, *set_2d_async, *get_2d_async, *cpy_async, *synchronize;
	void *plan_create, *plan_free, *plan_update, *plan_compute;
	int (*graph_compute)(struct backend *, void *graph);
	void *event_record, *event_wait, *graph_optimize;
	struct device *device;
	void *context;
};
_Static_assert(sizeof(struct backend) == 0x98 && offsetof(struct backend, graph_compute) == 0x68, "ggml_backend");

struct device {
	const char *(*get_name)(struct device *);
	const char *(*get_description)(struct device *);
	void (*get_memory)(struct device *, size_t *free, size_t *total);
	int (*get_type)(struct device *);
	void (*get_props)(struct device *, struct props *);
	struct backend *(*init_backend)(struct device *, const char *params);
	void *(*get_buffer_type)(struct device *);
	void *host_buffer_type, *buffer_from_host_ptr;
	bool (*supports_op)(struct device *, const struct tensor *);
	bool (*supports_buft)(struct device *, void *buffer_type);
	void *offload_op, *event_new, *event_free, *event_synchronize;
	struct reg *reg;
	void *context;
};
_Static_assert(offsetof(struct device, context) == 0x80, "ggml_backend_device");

struct reg {
	int api_version;
	const char *(*get_name)(struct reg *);
	size_t (*get_device_count)(struct reg *);
	struct device *(*get_device)(struct reg *, size_t);
	void *(*get_proc_address)(struct reg *, const char *);
	void *context;
};

/* At least as large as ggml_cgraph, which ggml_graph_view returns in memory of its caller. */
struct graph {
	void *room[64];
};

/* How the CPU multiplies a type. */
struct traits {
	void (*from_float)(const float *x, void *y, int64_t n);
	void (*vec_dot)(int n, float *s, size_t bs, const void *x, size_t bx, const void *y, size_t by, int nrc);
	int32_t vec_dot_type;
	int64_t nrows;
};

#define FUNCTIONS(X) \
	X(const char *, ggml_version, (void)) \
	X(const char *, ggml_op_name, (int32_t)) \
	X(const char *, ggml_type_name, (int32_t)) \
	X(const char *, ggml_get_name, (const struct tensor *)) \
	X(void *, ggml_get_data, (const struct tensor *)) \
	X(size_t, ggml_nbytes, (const struct tensor *)) \
	X(int64_t, ggml_blck_size, (int32_t)) \
	X(size_t, ggml_type_size, (int32_t)) \
	X(int, ggml_graph_n_nodes, (void *)) \
	X(struct tensor *, ggml_graph_node, (void *, int)) \
	X(struct graph, ggml_graph_view, (void *, int from, int end)) \
	X(int, ggml_backend_graph_compute, (struct backend *, void *)) \
	X(void, ggml_backend_free, (struct backend *)) \
	X(struct device *, ggml_backend_get_device, (struct backend *)) \
	X(bool, ggml_backend_dev_supports_op, (struct device *, const struct tensor *)) \
	X(void *, ggml_backend_cpu_buffer_type, (void)) \
	X(bool, ggml_backend_buft_is_host, (void *)) \
	X(bool, ggml_backend_buffer_is_host, (void *)) \
	X(int, ggml_backend_buffer_get_usage, (void *))

/* The functions of this process's ggml. resolve_ggml fills them in. */
extern struct ggml_api {
#define DECLARE(ret, name, args) ret(*name) args;
	FUNCTIONS(DECLARE)
#undef DECLARE
	const struct traits *(*traits)(int32_t type); /* the CPU backend's; NULL until somebody has looked for it */
} api;

/* A handle of the library of this process whose file name begins with name, or RTLD_DEFAULT if that
 * has the function. The library may have been loaded so that nobody else sees it. */
void *loaded_library(const char *name, const char *function);

/* Fills in api. Returns the name of the first function that this ggml lacks, or NULL. */
const char *resolve_ggml(void);

/* Whether this process's ggml has all functions, and structs as they are declared here. If not, it
 * says why on standard error. */
bool is_known_ggml(void);

bool is_op(const struct tensor *t, const char *name);
bool is_view(const struct tensor *t);

/* Whether t is a node that computes something. */
bool is_computed(const struct tensor *t);

/* Whether the elements of t have 4 bytes each, are of this type, and lie in rows without gaps. The
 * rows may lie anywhere. */
bool has_plain_rows(const struct tensor *t, const char *type);

/* The end of the last row of a tensor that has plain rows. */
const char *end_of_rows(const struct tensor *t);

/* Whether two tensors share memory. */
bool overlaps(const struct tensor *a, const struct tensor *b);

/* Operands of more bytes are worth several threads. */
enum { SMALL = 2 << 20 };

/* Whether t is so little work that one thread does it in less time than several threads take to begin. */
bool is_small(const struct tensor *t);

#endif
