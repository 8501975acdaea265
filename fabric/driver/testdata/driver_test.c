/* Tests of libtfmbs_device.so, which need a device. The arguments are the name of a test, and what that needs.
 * A test that passes prints nothing on standard error. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tfmbs_host.h"

static void check(int ok, const char *what, int line) {
	if (ok) return;
	fprintf(stderr, "line %d: %s\n", line, what);
	exit(1);
}
#define CHECK(c) check(!!(c), #c, __LINE__)

static unsigned next(unsigned *seed) { return *seed = *seed * 1664525u + 1013904223u, *seed >> 16; }

static int8_t *trits(size_t n, unsigned *seed) {
	int8_t *t = malloc(n);
	for (size_t i = 0; i < n; i++) t[i] = (int8_t)(next(seed) % 3) - 1;
	return t;
}

/* Multiplies trits, with operands in device and in host memory in all combinations. */
static void product(int rows, int cols, unsigned *seed) {
	size_t n = (size_t)rows * (size_t)cols;
	int8_t *w = trits(n, seed), *x = trits((size_t)cols, seed);
	int32_t *want = calloc((size_t)rows, 4), *got = malloc(4 * (size_t)rows);
	for (int r = 0; r < rows; r++)
		for (int c = 0; c < cols; c++) want[r] += w[(size_t)r * (size_t)cols + (size_t)c] * x[c];
	void *dw = fabric_alloc((n + 4) / 5), *dx = fabric_alloc(((size_t)cols + 4) / 5),
	     *dy = fabric_alloc(4 * (size_t)rows);
	CHECK(dw && dx && dy && is_fabric_ptr(dw) && is_fabric_ptr((char *)dw + (n + 4) / 5 - 1) && !is_fabric_ptr(w));
	CHECK(fabric_memcpy_to(dw, w, n, 1) == 0 && fabric_memcpy_to(dx, x, (size_t)cols, 1) == 0);
	int8_t *back = malloc(n);
	CHECK(fabric_memcpy_from(back, dw, n, 1) == 0 && memcmp(back, w, n) == 0); /* also the trits of the last byte */
	uint8_t *pw = malloc((n + 4) / 5), *px = malloc(((size_t)cols + 4) / 5);
	CHECK(fabric_memcpy_from(pw, dw, (n + 4) / 5, 0) == 0 &&
	    fabric_memcpy_from(px, dx, ((size_t)cols + 4) / 5, 0) == 0);
	for (int way = 0; way < 8; way++) {
		const void *a = way & 1 ? (void *)pw : dw, *b = way & 2 ? (void *)px : dx;
		memset(got, 0x55, 4 * (size_t)rows);
		CHECK(fabric_memcpy_to(dy, got, 4 * (size_t)rows, 0) == 0);
		fabric_handle_t h = NULL;
		void *to = way & 4 ? (void *)got : dy;
		if (way == 3) {
			CHECK((h = fabric_exec_gemv_async(a, b, to, rows, cols)) != NULL);
			CHECK(fabric_wait(h) == 0 && fabric_wait(h) == -EINVAL);
		} else
			CHECK(fabric_exec_gemv(a, b, to, rows, cols) == 0);
		if (to == dy) CHECK(fabric_memcpy_from(got, dy, 4 * (size_t)rows, 0) == 0);
		CHECK(memcmp(got, want, 4 * (size_t)rows) == 0);
	}
	fabric_free(dw), fabric_free(dx), fabric_free(dy);
	free(w), free(x), free(want), free(got), free(back), free(pw), free(px);
}

static void basic(void) {
	unsigned seed = 1;
	static const int shapes[][2] = {{1, 1}, {1, 4}, {3, 7}, {5, 5}, {17, 123}, {100, 321}, {64, 2048}};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) product(shapes[i][0], shapes[i][1], &seed);
	char *p = fabric_alloc(10);
	int8_t two = 2;
	CHECK(fabric_memcpy_to(p, "0123456789a", 11, 0) == -EFAULT && fabric_memcpy_to(p + 3, "01234567", 8, 0) == -EFAULT);
	CHECK(fabric_memcpy_to(p, &two, 1, 1) == -EINVAL && fabric_exec_gemv(p, p, p, 0, 5) == -EINVAL &&
	    fabric_exec_gemv(p, p, p, 100, 100) == -EFAULT);
	CHECK(fabric_wait(NULL) == -EINVAL && fabric_wait((void *)77) == -EINVAL && tfmbs_cancel(99) == -EINVAL);
	CHECK(is_fabric_ptr(p + 9) && !is_fabric_ptr(p + 10));
	fabric_free(p);
	CHECK(!is_fabric_ptr(p));
	fabric_free(NULL);
	tfmbs_shutdown();
	tfmbs_shutdown();
	product(9, 11, &seed); /* connects again */
	tfmbs_shutdown();
}

/* Blocks are evicted and come back. TFMBS_POOL_BYTES is 64 KiB: 16 blocks of 4096. */
static void evictions(void) {
	enum { BLOCKS = 40 };
	char *b[BLOCKS], text[4096];
	fabric_metrics_t m;
	for (int i = 0; i < BLOCKS; i++) {
		CHECK((b[i] = fabric_alloc(4096)) != NULL);
		memset(text, i, sizeof text);
		CHECK(fabric_memcpy_to(b[i], text, sizeof text, 0) == 0);
	}
	fabric_get_metrics(&m);
	CHECK(m.pool_total == 65536 && m.pool_used == 65536 && m.eviction_count == BLOCKS - 16);
	for (int i = 0; i < BLOCKS; i++) {
		CHECK(fabric_memcpy_from(text, b[i], sizeof text, 0) == 0);
		for (size_t k = 0; k < sizeof text; k++) CHECK(text[k] == i);
	}
	CHECK(fabric_alloc(65537) == NULL && fabric_alloc(SIZE_MAX) == NULL && fabric_alloc(0) == NULL);
	for (int i = 0; i < BLOCKS; i++) fabric_free(b[i]);
	fabric_get_metrics(&m);
	CHECK(m.pool_used == 0);
	/* Blocks of unfinished jobs stay: while jobs are under way, other blocks ask for room. */
	unsigned seed = 3;
	enum {
		JOBS = 8,
		N = 64,
	};
	int8_t *w = trits(N * N, &seed), *x = trits(N, &seed);
	void *dw = fabric_alloc(4096), *dx = fabric_alloc(4096), *dy[JOBS];
	CHECK(fabric_memcpy_to(dw, w, N * N, 1) == 0 && fabric_memcpy_to(dx, x, N, 1) == 0);
	fabric_handle_t h[JOBS];
	for (int i = 0; i < JOBS; i++) {
		CHECK((dy[i] = fabric_alloc(4 * N)) != NULL && (h[i] = fabric_exec_gemv_async(dw, dx, dy[i], N, N)) != NULL);
		for (int k = 0; k < 8; k++) CHECK((b[k] = fabric_alloc(4096)) != NULL);
		for (int k = 0; k < 8; k++) fabric_free(b[k]);
	}
	for (int i = 0; i < JOBS; i++) {
		int32_t got[N];
		CHECK(fabric_wait(h[i]) == 0 && fabric_memcpy_from(got, dy[i], sizeof got, 0) == 0);
		for (int r = 0; r < N; r++) {
			int want = 0;
			for (int c = 0; c < N; c++) want += w[r * N + c] * x[c];
			CHECK(got[r] == want);
		}
	}
	fabric_get_metrics(&m);
	long zeros = 0;
	for (int i = 0; i < N * N; i++) zeros += w[i] == 0;
	CHECK(m.offload_count == JOBS && m.fallback_count == 0 && m.total_ops == JOBS * N * N &&
	    m.zero_skips == JOBS * zeros);
	CHECK(m.residency_misses == 1 && m.residency_hits == JOBS - 1 && m.broadcasts == JOBS && m.lanes_used > 0 &&
	    m.active_ops + (uint64_t)m.zero_skips == (uint64_t)m.total_ops);
	free(w), free(x);
	tfmbs_shutdown();
}

/* Several threads share the connection. */
static void *worker(void *arg) {
	unsigned seed = (unsigned)(size_t)arg;
	for (int i = 0; i < 6; i++) {
		tfmbs_job jobs[5];
		product(1 + (int)(next(&seed) % 40), 1 + (int)(next(&seed) % 200), &seed);
		for (int k = 0; k < 5; k++) CHECK(tfmbs_submit_empty(&jobs[k]) == 0);
		/* Jobs are finished in order. */
		for (int k = 5; k-- > 0;) CHECK(tfmbs_wait(jobs[k]) == 0 && (k == 0 || tfmbs_poll(jobs[k - 1]) == 1));
	}
	return NULL;
}

static void threads(void) {
	pthread_t t[4];
	for (size_t i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, worker, (void *)(i + 1)) == 0);
	for (size_t i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
	tfmbs_shutdown();
}

/* The contents of a file, and their size. */
static void *file(const char *path, size_t *n) {
	FILE *f = fopen(path, "r");
	CHECK(f != NULL && fseek(f, 0, SEEK_END) == 0);
	*n = (size_t)ftell(f);
	rewind(f);
	void *b = malloc(*n);
	CHECK(fread(b, 1, *n, f) == *n);
	fclose(f);
	return b;
}

/* A frame in a file, and x and the expected y as float32 in files: the result is exact. Also batches, staged and
 * in shared memory, and planes with scales. */
static void frames(const char *frame_path, const char *x_path, const char *y_path) {
	size_t fn, xn, yn;
	void *frame = file(frame_path, &fn);
	float *x = file(x_path, &xn), *want = file(y_path, &yn);
	uint32_t cols = (uint32_t)(xn / 4), rows = (uint32_t)(yn / 4);
	tfmbs_weight w = 0;
	CHECK(tfmbs_upload_frame(frame, fn - 1, 0, &w) == -EBADMSG && tfmbs_upload_frame(frame, fn, 0, &w) == 0 && w);
	float *y = malloc(yn * 3);
	CHECK(tfmbs_run_gemv(w, rows, cols, x, y) == 0 && memcmp(y, want, yn) == 0);
	CHECK(tfmbs_run_gemv(w, rows + 1, cols, x, y) == -EINVAL);
	uint8_t *shared = tfmbs_buffer(3 * (xn + yn) + 64);
	CHECK(shared != NULL);
	for (int i = 0; i < 3; i++) memcpy(shared + (size_t)i * xn, x, xn);
	tfmbs_gemv g = {.weight = w,
	    .rows = rows,
	    .cols = cols,
	    .n = 3,
	    .x_type = TFMBS_FLOAT32,
	    .y_type = TFMBS_FLOAT32,
	    .block = 32,
	    .x = shared,
	    .y = shared + 3 * xn};
	tfmbs_job job, other;
	CHECK(tfmbs_submit(&g, &job) == 0);
	g.x = x, g.n = 1, g.y = y;
	CHECK(tfmbs_submit(&g, &other) == 0 && tfmbs_wait(other) == 0 && tfmbs_poll(job) == 1 &&
	    tfmbs_wait(job) == 0 && memcmp(y, want, yn) == 0);
	/* A batch is summed in another order: results of equal vectors are equal, and close to a single product. */
	for (size_t i = 0; i < 3; i++) {
		const float *batch = (const float *)(void *)(shared + 3 * xn + i * yn);
		CHECK(memcmp(batch, shared + 3 * xn, yn) == 0);
		for (uint32_t r = 0; r < rows; r++) CHECK(batch[r] - want[r] < 1e-4f && want[r] - batch[r] < 1e-4f);
	}
	tfmbs_buffer_free(shared);
	CHECK(tfmbs_pin(w) == 0 && tfmbs_unpin(w) == 0 && tfmbs_unpin(w) == -EINVAL && tfmbs_release(w) == 0 &&
	    tfmbs_release(w) == -EBADF);
	/* Planes with scales: 2 rows of 3, weights -4..4 times 0.5, in float32. */
	static const uint8_t pt5[] = {1 + 3 * 2 + 9 * 0 + 27 * 1 + 81 * 1, 2 + 3 + 9 + 27 + 81,
	    2 + 3 * 0 + 9 * 1 + 27 * 1 + 81 * 2, 0 + 3 + 9 + 27 + 81};
	static const int weights[2][3] = {{0 + 3, 1 - 3, -1 + 0}, {0 + 0, 0 + 3, 1 - 3}};
	static const uint16_t half[] = {0x3800, 0x3800};
	float v[3] = {127, -64, 1}, r[2];
	CHECK(tfmbs_upload_planes(7, pt5, 2, 2, 3, half, 32, TFMBS_TWO_BIT, &w) == 0 && tfmbs_run_gemv(w, 2, 3, v, r) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(r[i] ==
		    0.5f * ((float)weights[i][0] * v[0] + (float)weights[i][1] * v[1] + (float)weights[i][2] * v[2]));
	free(frame), free(x), free(want), free(y);
	tfmbs_shutdown();
}

/* A plan of products that is run several times. Each rotates the vector of the one before by one element. */
static void plan(void) {
	enum {
		N = 32,
		STEPS = 150,
	};
	uint8_t pt5[(N * N + 4) / 5] = {0};
	for (int i = N * N - 1; i >= 0; i--) pt5[i / 5] = (uint8_t)(3 * pt5[i / 5] + 1 + (i % N == (i / N + 1) % N));
	uint16_t one[N];
	for (int i = 0; i < N; i++) one[i] = 0x3c00;
	tfmbs_weight w;
	CHECK(tfmbs_upload_planes(0, pt5, 1, N, N, one, 32, 0, &w) == 0);
	float *v = tfmbs_buffer(2 * N * sizeof *v), host[N] = {0};
	CHECK(v != NULL);
	tfmbs_gemv g[STEPS];
	for (int i = 0; i < STEPS; i++)
		g[i] = (tfmbs_gemv){.weight = w,
		    .rows = N,
		    .cols = N,
		    .n = 1,
		    .x_type = TFMBS_FLOAT32,
		    .y_type = TFMBS_FLOAT32,
		    .block = 32,
		    .x = v + N * (i % 2),
		    .y = v + N * (1 - i % 2)};
	tfmbs_plan *p = NULL;
	CHECK(tfmbs_plan_new(g, 0, &p) == -EINVAL && tfmbs_plan_run(NULL) == -EINVAL);
	g[STEPS - 1].x = host;
	CHECK(tfmbs_plan_new(g, STEPS, &p) == -EFAULT);
	g[STEPS - 1].x = v + N * (1 - STEPS % 2);
	CHECK(tfmbs_plan_new(g, STEPS, &p) == 0 && p);
	for (int i = 0; i < N; i++) v[i] = (float)(127 - 3 * i);
	for (int run = 1; run <= 4; run++) {
		size_t before = mallinfo2().uordblks;
		CHECK(tfmbs_plan_run(p) == 0 && mallinfo2().uordblks == before);
		for (int i = 0; i < N; i++) CHECK(v[i] == (float)(127 - 3 * ((i + run * STEPS) % N)));
	}
	CHECK(tfmbs_release(w) == 0 && tfmbs_plan_run(p) == -EBADF);
	tfmbs_plan_free(p);
	tfmbs_buffer_free(v);
	tfmbs_shutdown();
}

/* The device ends while it is used. */
static void gone(void) {
	tfmbs_job job;
	CHECK(tfmbs_init() == 0 && tfmbs_submit_empty(&job) == 0 && tfmbs_wait(job) == 0);
	printf("ready\n");
	fflush(stdout);
	getchar();
	int e = 0;
	if ((e = tfmbs_submit_empty(&job)) == 0) e = tfmbs_wait(job);
	CHECK(e == -EPIPE && fabric_alloc(5) == NULL && tfmbs_init() == -EPIPE);
	tfmbs_shutdown();
}

/* A child after fork is refused, and the parent is not harmed. */
static void forked(void) {
	int status;
	CHECK(tfmbs_init() == 0);
	void *p = fabric_alloc(5);
	pid_t pid = fork();
	if (pid == 0) _exit(tfmbs_init() == -EPERM && fabric_alloc(5) == NULL && !is_fabric_ptr(p) ? 0 : 1);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0 && is_fabric_ptr(p));
	tfmbs_shutdown();
}

static int by_time(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

/* Round trips of an empty job, the device asleep before each. Prints the median in microseconds. */
static void latency(void) {
	enum { N = 2000 };
	static double us[N];
	for (int i = 0; i < N; i++) {
		struct timespec a, b;
		tfmbs_job job;
		nanosleep(&(struct timespec){0, 300 * 1000}, NULL);
		clock_gettime(CLOCK_MONOTONIC, &a);
		CHECK(tfmbs_submit_empty(&job) == 0 && tfmbs_wait(job) == 0);
		clock_gettime(CLOCK_MONOTONIC, &b);
		us[i] = (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) / 1e3;
	}
	qsort(us, N, sizeof *us, by_time);
	printf("%.2f\n", us[N / 2]);
	tfmbs_shutdown();
}

/* Uploads, pins and multiplies until it is killed; it waits for some jobs and leaves others under way. */
static void endless(unsigned seed) {
	enum {
		ROWS = 300,
		COLS = 320,
	};
	static float x[64 * COLS], y[64 * ROWS];
	uint8_t *planes = malloc(2 * (ROWS * COLS + 4) / 5);
	for (int n = 0;; n++) {
		tfmbs_weight w;
		for (int i = 0; i < 2 * ROWS * COLS / 5; i++) planes[i] = (uint8_t)(next(&seed) % 243);
		CHECK(tfmbs_upload_planes(n, planes, 2, ROWS, COLS, NULL, 0, 0, &w) == 0);
		if (next(&seed) % 2) CHECK(tfmbs_pin(w) == 0);
		tfmbs_gemv g = {.weight = w,
		    .rows = ROWS,
		    .cols = COLS,
		    .n = 64,
		    .x_type = TFMBS_FLOAT32,
		    .y_type = TFMBS_FLOAT32,
		    .block = 32,
		    .x = x,
		    .y = y};
		tfmbs_job jobs[5];
		for (int i = 0; i < 5; i++) CHECK(tfmbs_submit(&g, &jobs[i]) == 0);
		if (n == 0) {
			puts("ready");
			fflush(stdout);
		}
		for (int i = 0; i < 5; i++) {
			if (i == 2) CHECK(tfmbs_cancel(jobs[3]) == 0);
			int e = tfmbs_wait(jobs[i]);
			CHECK(e == 0 || (i == 3 && e == -ECANCELED));
		}
		if (n % 4) CHECK(tfmbs_release(w) == 0);
		product(7, 33, &seed);
	}
}

/* Multiplies until standard input ends. */
static void steady(void) {
	unsigned seed = 1;
	product(40, 77, &seed);
	puts("ready");
	fflush(stdout);
	for (struct pollfd in = {0, POLLIN, 0}; poll(&in, 1, 0) == 0;) product(40, 77, &seed);
	tfmbs_shutdown();
}

int main(int argc, char **argv) {
	const char *test = argc > 1 ? argv[1] : "";
	if (!strcmp(test, "basic")) basic();
	else if (!strcmp(test, "evictions")) evictions();
	else if (!strcmp(test, "threads")) threads();
	else if (!strcmp(test, "frames") && argc == 5) frames(argv[2], argv[3], argv[4]);
	else if (!strcmp(test, "plan")) plan();
	else if (!strcmp(test, "gone")) gone();
	else if (!strcmp(test, "forked")) forked();
	else if (!strcmp(test, "latency")) latency();
	else if (!strcmp(test, "endless") && argc == 3) endless((unsigned)atoi(argv[2]));
	else if (!strcmp(test, "steady")) steady();
	else CHECK(!"there is such a test");
	return 0;
}
