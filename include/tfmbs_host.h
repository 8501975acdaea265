/* tfmbs_host.h: the emulated ternary device for C programs (libtfmbs_device.so).
 *
 * Two interfaces share one device: fabric_*, the public ternary-fabric ABI, and tfmbs_*, which has all
 * that the device can do. Any function may be called from any thread. Functions that return int return
 * 0, or a negated errno: -EPIPE if the device has gone (tfmbs_shutdown and tfmbs_init begin anew),
 * -EPERM in a child after fork. The first call starts a device if none runs: $TFMBS_DEVICE, or
 * prefetchd in PATH, with the arguments `fabric --idle 60s --socket PATH`.
 *
 * Environment: TFMBS_SOCKET (else $XDG_RUNTIME_DIR/tensorcast/fabric.sock, else
 * /tmp/tensorcast-UID/fabric.sock), TFMBS_DEVICE, TFMBS_POOL_BYTES (memory of fabric_alloc, 128 MiB), and
 * TFMBS_STAGING_BYTES (memory for uploads and for operands of jobs under way, 256 MiB, taken as it is
 * used). */
#ifndef TFMBS_HOST_H
#define TFMBS_HOST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The public ABI ---- */

/* What was done since tfmbs_init. All of it is counted; cycles are those of a device that handles
 * lanes_used columns in a cycle and needs none for a trit of 0. */
typedef struct {
	long zero_skips;            /* operations whose trit is 0 */
	long total_ops;             /* a trit times a value */
	int lanes_used;             /* columns handled at a time, of the last product */
	double sim_cycle_reduction; /* percent of operations that are zero_skips */
	size_t pool_used, pool_total;
	int eviction_count;
	uint64_t active_ops;        /* total_ops - zero_skips */
	uint64_t mem_reads;         /* bytes of weights that products read */
	uint64_t mem_writes;        /* bytes of results */
	uint64_t broadcasts;        /* vectors that were multiplied */
	uint64_t residency_hits;    /* products whose weights were on the device */
	uint64_t residency_misses;  /* uploads of weights for a product */
	uint64_t tile_local_reuse;  /* bytes of weights that vectors after the first of a tile did not read again */
	long cycles;                /* active_ops / lanes, rounded up for each product */
	double fabric_cost;         /* bytes moved (mem_reads + mem_writes) for each active operation */
	double semantic_efficiency; /* active_ops / total_ops */
	double economic_efficiency; /* active_ops for each nanosecond that products took */
	uint64_t fallback_count;    /* products that failed */
	uint64_t offload_count;     /* products that succeeded */
} fabric_metrics_t;

typedef void *fabric_handle_t;

/* Takes n bytes of device memory; NULL if there is no room. The pointer only is a name: reading or
 * writing through it faults. The functions below take it, and pointers into the block. If the pool is
 * full, the blocks that were used least recently are moved to the host, and come back when they are
 * used. Blocks of unfinished jobs never move. */
void *fabric_alloc(size_t n);

/* Gives a block back. It waits for jobs that use it. */
void fabric_free(void *ptr);

int is_fabric_ptr(const void *ptr);

/* Copy between host and device. Without pack_pt5, n counts bytes. With it, n counts trits: each is an
 * int8 of -1, 0 or +1 on the host, and five are a byte on the device (byte = sum of (t[i] + 1) * 3^i).
 * Trits that the last byte lacks are 0. Other values are -EINVAL, and nothing is written. */
int fabric_memcpy_to(void *dst, const void *src, size_t n, int pack_pt5);
int fabric_memcpy_from(void *dst, const void *src, size_t n, int unpack_pt5);

/* out[r] = sum over c of w[r*cols + c] * in[c]. w (rows*cols trits, one stream) and in (cols trits) are
 * packed, out is int32. Each may be in device or in host memory. Weights in device memory, or
 * registered, are converted once, until they are written again or used with another shape. */
int fabric_exec_gemv(const void *w, const void *in, void *out, int rows, int cols);

/* The same, without waiting. NULL: it failed. in has been read when it returns. */
fabric_handle_t fabric_exec_gemv_async(const void *w, const void *in, void *out, int rows, int cols);

/* Waits for a product; to be called once for each handle. out has been written when it returns. */
int fabric_wait(fabric_handle_t handle);

/* Promises that the packed weights at ptr, in host memory, do not change until they are registered
 * again. A size of 0 ends that. */
int fabric_register_weight(const void *ptr, size_t size);

void fabric_get_metrics(fabric_metrics_t *m);

/* Writes a line of names and a line of values. */
int fabric_dump_metrics_csv(const char *path);

/* ---- The whole device ---- */

typedef uint64_t tfmbs_weight; /* 0 is none */
typedef uint64_t tfmbs_job;    /* 0 is none */

/* Types of vectors. */
enum {
	TFMBS_PT5 = 1,
	TFMBS_INT8 = 2,
	TFMBS_FLOAT32 = 3,
	TFMBS_INT32 = 4,
};

/* Flags of products and of uploads. */
enum {
	TFMBS_DEGRADE = 1,
	TFMBS_TWO_BIT = 2,
};

/* Connects to the device. The first call of another function does so as well. More calls do nothing. */
int tfmbs_init(void);

/* Ends unfinished jobs with -ECANCELED, and hangs up. All weights, jobs, blocks and buffers are invalid
 * then. No thread may be in another function. */
void tfmbs_shutdown(void);

/* Uploads a frame (TFMBS_DEVICE_SPEC.md). Equal weights of several programs are kept once. TFMBS_TWO_BIT
 * keeps planes larger, for more speed. */
int tfmbs_upload_frame(const void *frame, size_t bytes, uint32_t flags, tfmbs_weight *w);

/* Uploads planes of rows x cols trits, the lowest digit first: a weight is the sum of 3^p t_p. Each
 * plane is a PT-5 stream in ceil(rows*cols/5) bytes. scales is NULL, or has an IEEE half for each block
 * of block columns of each row; block is 16, 32, a multiple of 64, or at least cols. */
int tfmbs_upload_planes(int layer_id, const uint8_t *pt5, uint32_t planes, uint32_t rows, uint32_t cols,
    const uint16_t *scales, uint32_t block, uint32_t flags, tfmbs_weight *w);

enum { TFMBS_Q2_0 = 42 }; /* the number of this type in a file */

/* Flags of tfmbs_upload_blocks, with TFMBS_TWO_BIT. */
enum {
	TFMBS_FAST = 8,
	TFMBS_BALANCED = 16,
};

/* Uploads rows x cols weights as ggml has them in a file, of the type that has this number there; cols
 * is a multiple of 32. Q2_0 is multiplied as it lies. Other types become planes. Without a flag, these
 * are exact (-EOPNOTSUPP if there are none). With one, they are as few as have at most the error of that
 * profile: a ratio to the weights of 15 dB (fast) or 23.5 dB (balanced). -ERANGE: even four planes have
 * a larger error. */
int tfmbs_upload_blocks(int layer_id, uint32_t type, const void *blocks, size_t bytes, uint32_t rows,
    uint32_t cols, uint32_t flags, tfmbs_weight *w);

/* Finds weights that the device itself holds of a file (`prefetchd fabric --hold`, prefetchd --fabric):
 * the matrix whose blocks are at data in this process, and at offset in the file with this device number
 * and inode (as stat(2) has them). The device also compares some of the bytes. -EAGAIN: not yet, ask
 * again. -ENOENT: it is not held. Products fail with -ESTALE once it is let go because its memory was
 * needed. */
int tfmbs_find_blocks(uint64_t dev, uint64_t ino, uint64_t offset, uint32_t type, const void *data, size_t bytes,
    uint32_t rows, uint32_t cols, tfmbs_weight *w);

/* A number that changes when what the device holds does, as of this program's last job: what was not
 * held may be found then. */
uint32_t tfmbs_held(void);

int tfmbs_release(tfmbs_weight w);

/* The planes of a pinned weight stay in the device's pool. */
int tfmbs_pin(tfmbs_weight w);
int tfmbs_unpin(tfmbs_weight w);

/* Takes memory that is shared with the device: x, scale and y that lie in it are not copied. NULL if
 * there is no room. */
void *tfmbs_buffer(size_t n);

/* Gives it back. Jobs that use it must be over. */
void tfmbs_buffer_free(void *ptr);

/* y = weight times x, for n vectors. */
typedef struct {
	tfmbs_weight weight;
	uint32_t rows, cols;
	uint32_t n;
	uint32_t flags;  /* TFMBS_DEGRADE: fewer planes will do */
	uint32_t x_type; /* TFMBS_FLOAT32: the device quantises as ggml does, in blocks; TFMBS_INT8; TFMBS_PT5 */
	uint32_t y_type; /* TFMBS_FLOAT32, or TFMBS_INT32 for weights without scales: exact, or -ERANGE */
	uint32_t block;  /* 32 (ggml's Q8_0) or 256 (its Q8_K); 0 for integers without scale */
	uint32_t reserved;
	const void *x;
	size_t x_stride;    /* bytes from a vector to the next; 0: they follow each other */
	const float *scale; /* TFMBS_INT8: NULL, or a factor for each block of each vector */
	void *y;
	size_t y_stride; /* 0: they follow each other */
} tfmbs_gemv;

/* Submits a product. x and scale have been copied when it returns, unless they are in a buffer. -EAGAIN:
 * too many jobs have not been waited for. */
int tfmbs_submit(const tfmbs_gemv *g, tfmbs_job *job);

/* Submits a job that does nothing, for measurements. */
int tfmbs_submit_empty(tfmbs_job *job);

/* 1 if a job is over, so that tfmbs_wait does not block; 0 if not. */
int tfmbs_poll(tfmbs_job job);

/* Waits for a job, and returns its status; to be called once for each job. y has been written when it
 * returns. */
int tfmbs_wait(tfmbs_job job);

/* Asks for a job to be cancelled. tfmbs_wait is still needed, and says whether it was (-ECANCELED). */
int tfmbs_cancel(tfmbs_job job);

/* A product of one float32 vector, quantised in blocks of 32. */
int tfmbs_run_gemv(tfmbs_weight w, uint32_t rows, uint32_t cols, const float *x, float *y);

/* A plan has products in order. They are checked once and run many times: for instance all products of a
 * token, each of which reads what others wrote. x, scale and y of each lie in buffers (-EFAULT if not).
 * Running a plan allocates nothing, neither here nor in the device. One thread runs a plan at a time
 * (-EBUSY). */
typedef struct tfmbs_plan tfmbs_plan;
int tfmbs_plan_new(const tfmbs_gemv *products, int n, tfmbs_plan **plan);

/* Runs a plan. y of all products has been written when it returns. The status is that of the first
 * product that fails; later ones may have run or not. */
int tfmbs_plan_run(tfmbs_plan *plan);

/* Frees a plan. Its buffers and weights stay. */
void tfmbs_plan_free(tfmbs_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
