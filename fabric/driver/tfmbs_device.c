//go:build ignore

/* libtfmbs_device.so: the client of the emulated device. fabric/device/doc.go has the format of the
 * socket, the memory file and the rings.
 *
 * The process has one connection, behind one mutex. Functions wait without the mutex, in sleep_until
 * and spin_for_bell: whatever it guards may have changed when they return. Completions are reaped by
 * whoever holds the mutex. Functions named API are the interface (include/tfmbs_host.h); the others
 * expect the mutex to be held unless they say otherwise. */
#define _GNU_SOURCE
#include "tfmbs_host.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef API /* libtfmbs_intercept.so keeps these names to itself: it is built with an empty API */
#define API __attribute__((visibility("default")))
#endif

enum {
	ENTRIES = 64, /* of each ring */
	JOBS = 1024,  /* that are not waited for yet, at most */
	PAGE = 4096,
};
static const uint64_t magic = 0x56454453424d4654;

enum {
	OP_EMPTY,
	OP_FRAME,
	OP_PLANES,
	OP_PRODUCT,
	OP_RELEASE,
	OP_PIN,
	OP_UNPIN,
	OP_BLOCKS,
	OP_FIND,
};
enum { FLAG_SCALES = 4 };

/* Offsets of the words in the memory file's header. */
enum {
	WORD_SUBMITTED = 64,
	WORD_TAKEN = 128,
	WORD_COMPLETED = 192,
	WORD_REAPED = 256,
	WORD_DOORBELL = 320,
	WORD_ASLEEP = 384,
	WORD_BELL = 448,
	WORD_WAITING = 512,
	WORD_WANTED = 576,
	WORD_HELD = 640,
};

struct descriptor {
	uint32_t op, flags;
	uint64_t tag, handle, w, w_bytes, x, x_stride, y, y_stride, scale;
	uint32_t rows, cols, n, planes, x_type, y_type, block, layer;
	uint64_t zero;
	uint32_t cancel, zero2;
};
struct completion {
	uint64_t tag;
	int32_t status;
	uint32_t planes;
	uint64_t value, nanos, ops, zeros;
	uint32_t lanes, zero;
	uint64_t bytes;
};
_Static_assert(sizeof(struct descriptor) == 128 && sizeof(struct completion) == 64, "the rings' entries");

/* A piece of a range. A range is a list of all its pieces by offset; no two free ones follow each other. */
struct piece {
	struct piece *next;
	uint64_t off, n;
	int used;
};

/* Device memory of fabric_alloc (name != 0), or registered weights in host memory. */
struct block {
	struct block *next;
	const uint8_t *registered; /* NULL: device memory */
	size_t n;                  /* bytes */

	/* Of device memory. */
	uintptr_t name;      /* the address that stands for it: nothing is mapped there */
	struct piece *range; /* of d.names */
	struct piece *piece; /* of d.pool, or NULL */
	uint8_t *host;       /* where it was evicted to, or NULL */
	int users;           /* jobs that use it, and functions that need it where it is */
	uint64_t last_use;   /* value of d.clock */

	tfmbs_weight weight; /* the block converted to weights of this shape, or 0 */
	uint32_t rows, cols;
};

/* A job, from its submission until it was waited for. */
struct job {
	uint32_t generation; /* counts the uses of this entry of d.jobs; a part of the job's number */
	int taken;           /* the entry is in use */
	int finished;        /* done has come, or never will */
	int product;
	int brief;         /* it is likely to be finished before a thread that sleeps would be awake */
	uint32_t slot;     /* in the submission ring */
	uint32_t sequence; /* of submissions: value of d.tail behind it */
	uint32_t n;        /* vectors */
	struct completion done;
	struct piece *stage;    /* its operands' memory, or NULL */
	struct block *uses[2];  /* blocks of x and y, or NULL */
	tfmbs_weight temporary; /* to be released when it was waited for, or 0 */

	/* Results in the stage, to be copied to the caller's memory: rows of row bytes. */
	const uint8_t *from;
	uint8_t *to;
	size_t row, stride, results;
};

/* A thread that sleeps; it is on that thread's stack. */
struct sleeper {
	struct sleeper *next;
	uint32_t wanted; /* how many completions it waits for */
};

/* The connection, and all that belongs to it. */
static struct {
	pthread_mutex_t lock;
	pid_t pid; /* of the process that is connected; 0: none */
	int sock;
	int gone;                /* the device has hung up */
	uint8_t *memory, *arena; /* the memory file, and the arena in it */
	size_t size;             /* of the memory file */
	struct descriptor *submissions;
	struct completion *completions;
	uint32_t tail, reaped; /* entries written to the submission ring, and read from the completion ring; modulo 2^32 */
	struct sleeper *sleepers;
	struct piece *pool,
	    *stage;          /* ranges of the arena: device memory of fabric_alloc, and operands of jobs and buffers */
	struct piece *names; /* range of addresses that stand for device memory, from base on */
	uintptr_t base;
	size_t pool_total, pool_used;
	struct block *blocks;
	uint64_t clock; /* counts uses of blocks */
	struct job jobs[JOBS];
	fabric_metrics_t m;
	uint64_t nanos; /* that products took */
} d = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Size of the range of names: addresses only, no memory. More would not fit beside those of a thread sanitizer. */
static const uint64_t name_space = 1ull << 36;

static uint32_t *word_at(int at) { return (uint32_t *)(void *)(d.memory + at); }
static uint32_t load_word(int at) { return __atomic_load_n(word_at(at), __ATOMIC_SEQ_CST); }
static void store_word(int at, uint32_t v) { __atomic_store_n(word_at(at), v, __ATOMIC_SEQ_CST); }

/* Tells the device that there is something to do. */
static void ring_doorbell(void) {
	__atomic_fetch_add(word_at(WORD_DOORBELL), 1, __ATOMIC_SEQ_CST);
	if (load_word(WORD_ASLEEP)) syscall(SYS_futex, word_at(WORD_DOORBELL), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ---- Ranges ---- */

/* A range of n bytes from offset 0 on, all of it free. */
static struct piece *new_range(uint64_t n) {
	struct piece *p = calloc(1, sizeof *p);
	if (p) p->n = n;
	return p;
}

static void free_range(struct piece *p) {
	while (p) {
		struct piece *next = p->next;
		free(p);
		p = next;
	}
}

static uint64_t round_to_pages(uint64_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

/* Takes n bytes, in whole pages, of the smallest free piece that they fit in. NULL if there is none. */
static struct piece *take_piece(struct piece *p, uint64_t n) {
	struct piece *best = NULL;
	if (n > UINT64_MAX / 2) return NULL;
	n = round_to_pages(n ? n : 1);
	for (; p; p = p->next)
		if (!p->used && p->n >= n && (!best || p->n < best->n)) best = p;
	if (!best) return NULL;
	if (best->n > n) {
		struct piece *rest = malloc(sizeof *rest);
		if (!rest) return NULL;
		*rest = (struct piece){best->next, best->off + n, best->n - n, 0};
		best->next = rest;
		best->n = n;
	}
	best->used = 1;
	return best;
}

/* Frees a piece, which may be NULL, and joins it with free neighbours. The head of a range stays. */
static void give_piece(struct piece *head, struct piece *which) {
	if (!which) return;
	which->used = 0;
	for (struct piece *p = head; p; p = p->next)
		while (!p->used && p->next && !p->next->used) {
			struct piece *next = p->next;
			p->n += next->n;
			p->next = next->next;
			free(next);
		}
}

/* ---- The connection ---- */

/* The device's socket, as device.SocketPath (fabric/device) has it. */
static int socket_path(char *path, size_t n) {
	const char *p = getenv("TFMBS_SOCKET"), *run = getenv("XDG_RUNTIME_DIR");
	int len;
	if (p && *p)
		len = snprintf(path, n, "%s", p);
	else if (run && *run)
		len = snprintf(path, n, "%s/tensorcast/fabric.sock", run);
	else
		len = snprintf(path, n, "/tmp/tensorcast-%u/fabric.sock", (unsigned)getuid());
	return len < 0 || (size_t)len >= n ? -ENAMETOOLONG : 0;
}

/* Connects to a device. It must belong to this user, as it gets this program's data. Returns a
 * descriptor, or a negated errno. */
static int open_socket(const char *path) {
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	struct ucred peer;
	socklen_t n = sizeof peer;
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s < 0) return -errno;
	strcpy(to.sun_path, path);
	if (connect(s, (void *)&to, sizeof to) < 0 || getsockopt(s, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0) {
		int e = -errno;
		close(s);
		return e;
	}
	if (peer.uid != geteuid()) {
		close(s);
		return -EACCES;
	}
	return s;
}

/* Starts a device. It is not a child of this process: the child that starts it ends at once. */
static int start_device(const char *path) {
	const char *program = getenv("TFMBS_DEVICE");
	char *argv[] = {(char *)(program && *program ? program : "prefetchd"), "fabric", "--idle", "60s", "--socket",
	    (char *)path, NULL};
	int status;
	pid_t pid = fork();
	if (pid < 0) return -errno;
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);
		setsid();
		if (fork() != 0) _exit(0);
		for (int i = 0; null >= 0 && i < 3; i++) dup2(null, i);
		close_range(3, ~0u, 0);
		execvp(argv[0], argv);
		_exit(127);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR) return -errno;
	return 0;
}

/* A number of bytes in the environment, at least a page; otherwise if there is none. */
static uint64_t size_from_env(const char *name, uint64_t otherwise) {
	const char *s = getenv(name);
	char *end;
	errno = 0;
	unsigned long long v = s ? strtoull(s, &end, 10) : 0;
	return s && *s && !*end && errno == 0 && v >= PAGE && v <= 1ull << 40 ? v : otherwise;
}

/* Asks the device for a memory file with an arena of so many bytes, and maps it. */
static int handshake(int s, uint64_t arena) {
	struct {
		uint64_t magic;
		uint32_t version, kind;
		uint64_t arena;
		uint32_t entries, zero;
	} hello = {magic, 1, 1, arena, ENTRIES, 0};
	struct {
		uint64_t magic;
		uint32_t version;
		int32_t status;
		uint64_t size, zero;
	} answer;
	union {
		char b[CMSG_SPACE(sizeof(int))];
		struct cmsghdr h;
	} control;
	struct iovec iov = {&answer, sizeof answer};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	struct timeval limit = {10, 0};
	ssize_t n;
	int fd;
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	if (send(s, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) return -EPIPE;
	while ((n = recvmsg(s, &msg, MSG_CMSG_CLOEXEC)) < 0)
		if (errno != EINTR) return -EPIPE;
	if (n != sizeof answer || answer.magic != magic || answer.version != 1) return -EPROTO;
	if (answer.status) return answer.status;
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof fd)) return -EPROTO;
	memcpy(&fd, CMSG_DATA(c), sizeof fd);
	d.size = answer.size;
	d.memory = mmap(NULL, d.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (d.memory == MAP_FAILED) {
		d.memory = NULL;
		return -ENOMEM;
	}
	uint64_t at[3]; /* of the rings and the arena */
	memcpy(at, d.memory + 16, sizeof at);
	d.submissions = (void *)(d.memory + at[0]);
	d.completions = (void *)(d.memory + at[1]);
	d.arena = d.memory + at[2];
	return 0;
}

/* Frees all that belongs to the connection. */
static void drop_connection(void) {
	while (d.blocks) {
		struct block *b = d.blocks;
		d.blocks = b->next;
		free(b->host);
		free(b);
	}
	free_range(d.pool);
	free_range(d.stage);
	free_range(d.names);
	if (d.memory) munmap(d.memory, d.size);
	if (d.base) munmap((void *)d.base, name_space);
	if (d.sock >= 0) close(d.sock);
	d.pool = d.stage = d.names = NULL;
	d.memory = NULL;
	d.base = 0;
	d.sock = -1;
	d.pid = 0;
}

/* Connects this process, and starts a device if none runs. */
static int connect_device(void) {
	char path[sizeof((struct sockaddr_un *)0)->sun_path];
	int e = socket_path(path, sizeof path), s;
	if (e) return e;
	s = open_socket(path);
	const char *handed = getenv("TFMBS_HANDOVER"); /* the device is another's to start */
	if ((s == -ENOENT || s == -ECONNREFUSED) && !(handed && *handed)) {
		if ((e = start_device(path))) return e;
		for (int i = 0; i < 500 && (s == -ENOENT || s == -ECONNREFUSED); i++) {
			nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
			s = open_socket(path);
		}
	}
	if (s < 0) return s;
	uint64_t pool = round_to_pages(size_from_env("TFMBS_POOL_BYTES", 128ull << 20)),
	         stage = round_to_pages(size_from_env("TFMBS_STAGING_BYTES", 256ull << 20));
	d.sock = s;
	d.gone = 0;
	d.tail = d.reaped = 0;
	memset(&d.m, 0, sizeof d.m);
	d.nanos = 0;
	for (int i = 0; i < JOBS; i++) d.jobs[i] = (struct job){.generation = d.jobs[i].generation + 1};
	e = handshake(s, pool + stage);
	if (!e) {
		void *names = mmap(NULL, name_space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		d.base = names == MAP_FAILED ? 0 : (uintptr_t)names;
		d.pool = new_range(pool);
		d.stage = new_range(stage);
		d.names = new_range(name_space);
		d.pool_total = pool;
		d.pool_used = 0;
		if (!d.base || !d.pool || !d.stage || !d.names) e = -ENOMEM;
	}
	if (e) {
		drop_connection();
		return e;
	}
	d.stage->off = pool; /* the stage follows the pool in the arena */
	d.pid = getpid();
	return 0;
}

/* Takes the mutex and connects if this was not done before. 0: the mutex is held, and the device is
 * there; else a negated errno, and the mutex is free. */
static int lock_device(void) {
	int e = 0;
	pthread_mutex_lock(&d.lock);
	if (!d.pid)
		e = connect_device();
	else if (d.pid != getpid())
		e = -EPERM;
	else if (d.gone)
		e = -EPIPE;
	if (e) pthread_mutex_unlock(&d.lock);
	return e;
}

/* Gives the mutex back, and returns e. */
static int unlock_device(int e) {
	pthread_mutex_unlock(&d.lock);
	return e;
}

/* ---- Jobs ---- */

/* The job of that number; NULL if there is none any more. */
static struct job *find_job(tfmbs_job id) {
	struct job *j = &d.jobs[id % JOBS];
	return j->taken && id / JOBS == j->generation ? j : NULL;
}

static tfmbs_job id_of_job(struct job *j) { return (tfmbs_job)j->generation * JOBS + (tfmbs_job)(j - d.jobs); }

/* Counts a product. */
static void count_job(struct job *j) {
	const struct completion *c = &j->done;
	fabric_metrics_t *m = &d.m;
	if (c->status) {
		m->fallback_count++;
		return;
	}
	m->offload_count++;
	m->total_ops += (long)c->ops;
	m->zero_skips += (long)c->zeros;
	m->active_ops += c->ops - c->zeros;
	m->lanes_used = (int)c->lanes;
	m->mem_reads += c->bytes;
	m->mem_writes += j->row * j->n;
	m->broadcasts += j->n;
	uint64_t tiles = (j->n + 63) / 64;
	m->tile_local_reuse += tiles ? c->bytes / tiles * (j->n - tiles) : 0;
	if (c->lanes) m->cycles += (long)((c->ops - c->zeros + c->lanes - 1) / c->lanes);
	d.nanos += c->nanos;
}

/* Marks a job as finished. Its completion is in done. */
static void finish_job(struct job *j) {
	j->finished = 1;
	for (int i = 0; i < 2; i++)
		if (j->uses[i]) j->uses[i]->users--;
	if (j->product) count_job(j);
}

/* Finishes all jobs, because the device has gone. */
static void mark_lost(void) {
	d.gone = 1;
	for (int i = 0; i < JOBS; i++)
		if (d.jobs[i].taken && !d.jobs[i].finished) {
			d.jobs[i].done = (struct completion){.status = -EPIPE};
			finish_job(&d.jobs[i]);
		}
}

/* Reads the completion ring. */
static void reap_completions(void) {
	uint32_t end = load_word(WORD_COMPLETED);
	if (d.gone) return;
	if (end == d.reaped) return;
	for (; d.reaped != end; d.reaped++) {
		struct completion c = d.completions[d.reaped % ENTRIES];
		struct job *j = find_job(c.tag);
		if (j && !j->finished) {
			j->done = c;
			finish_job(j);
		}
	}
	store_word(WORD_REAPED, d.reaped);
	if (load_word(WORD_ASLEEP) == 2) ring_doorbell();
}

/* Tells the device which completion the first of the sleeping threads waits for. The device wakes
 * nobody before that. */
static void set_wanted(void) {
	if (!d.sleepers) return;
	uint32_t first = d.sleepers->wanted;
	for (const struct sleeper *z = d.sleepers->next; z; z = z->next)
		if ((int32_t)(z->wanted - first) < 0) first = z->wanted;
	store_word(WORD_WANTED, first);
}

/* Sleeps, without the mutex, until as many jobs as wanted (modulo 2^32) have been completed, or as
 * many as another thread waits for. b is what was read from the bell before the completions were
 * looked at. It may return early. */
static void sleep_until(uint32_t b, uint32_t wanted) {
	struct timespec limit = {0, 200 * 1000 * 1000};
	struct pollfd p = {d.sock, POLLIN, 0};
	struct sleeper self = {d.sleepers, wanted}, **at = &d.sleepers;
	d.sleepers = &self;
	set_wanted();
	pthread_mutex_unlock(&d.lock);
	__atomic_fetch_add(word_at(WORD_WAITING), 1, __ATOMIC_SEQ_CST);
	long r = syscall(SYS_futex, word_at(WORD_BELL), FUTEX_WAIT, b, &limit, NULL, 0);
	int slow = r < 0 && errno == ETIMEDOUT;
	__atomic_fetch_sub(word_at(WORD_WAITING), 1, __ATOMIC_SEQ_CST);
	int dead = slow && poll(&p, 1, 0) > 0; /* the device never sends anything: it has hung up */
	pthread_mutex_lock(&d.lock);
	while (*at != &self) at = &(*at)->next;
	*at = self.next;
	set_wanted();
	if (dead) {
		reap_completions();
		mark_lost();
	}
}

/* Sleeps until anything has been completed. */
static void sleep_for_any(uint32_t b) { sleep_until(b, d.reaped + 1); }

/* Nanoseconds of spin_for_bell. */
enum { SPIN = 20 * 1000 };

/* Waits a short time, without the mutex, for a bell other than b, and says whether it came. A short
 * job is finished by then; going to sleep and waking up would take longer. */
static int spin_for_bell(uint32_t b) {
	struct timespec from, now;
	int rung = 0;
	pthread_mutex_unlock(&d.lock);
	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		for (int i = 0; i < 32 && !rung; i++) {
			rung = load_word(WORD_BELL) != b;
#if defined(__x86_64__)
			__builtin_ia32_pause();
#endif
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (!rung && (now.tv_sec - from.tv_sec) * 1000000000L + now.tv_nsec - from.tv_nsec < SPIN);
	pthread_mutex_lock(&d.lock);
	return rung;
}

/* Waits until a job is finished. */
static void await_job(struct job *j) {
	for (int spun = !j->brief;;) {
		/* The bell is read before the completions: what is completed in between changes it. So no wake
		 * is lost, as sleep_until says that this thread waits before the futex looks at the bell. */
		uint32_t b = load_word(WORD_BELL);
		reap_completions();
		if (j->finished) return;
		if (!spun && !(spun = !spin_for_bell(b))) continue;
		sleep_until(b, j->sequence);
	}
}

/* An entry for a job. NULL with *e = -EAGAIN: there is none free. */
static struct job *new_job(int *e) {
	reap_completions();
	for (int i = 0; i < JOBS; i++)
		if (!d.jobs[i].taken) {
			d.jobs[i] = (struct job){.generation = d.jobs[i].generation + 1, .taken = 1};
			if (!d.jobs[i].generation) d.jobs[i].generation = 1;
			return &d.jobs[i];
		}
	*e = -EAGAIN; /* the caller has to wait for some of its own */
	return NULL;
}

static void free_job(struct job *j) {
	give_piece(d.stage, j->stage);
	j->stage = NULL;
	j->taken = 0;
}

/* Operations of a product from which on it takes longer than SPIN, at some 40 of them in a nanosecond.
 * Spinning for such a product would only take a processor from the device. */
enum { BRIEF = 1 << 19 };

/* Submits a job. It waits for room in the ring. */
static int submit_job(struct job *j, struct descriptor *q) {
	for (;;) {
		uint32_t b = load_word(WORD_BELL);
		reap_completions();
		if (d.gone) return -EPIPE;
		if (d.tail - d.reaped < ENTRIES) break;
		sleep_for_any(b);
	}
	q->tag = id_of_job(j);
	j->brief = q->op != OP_PRODUCT || (uint64_t)q->rows * q->cols * q->n < BRIEF;
	j->slot = d.tail % ENTRIES;
	j->sequence = d.tail + 1;
	d.submissions[j->slot] = *q;
	store_word(WORD_SUBMITTED, ++d.tail);
	ring_doorbell();
	return 0;
}

/* Submits a job, waits for it and frees it. value, if not NULL, gets the value of the completion. */
static int run_job(struct job *j, struct descriptor *q, uint64_t *value) {
	int e = submit_job(j, q);
	if (!e) {
		await_job(j);
		e = j->done.status;
		if (value) *value = j->done.value;
	}
	free_job(j);
	return e;
}

/* Runs an operation that needs a weight only. */
static int run_simple(uint32_t op, tfmbs_weight w) {
	int e = 0;
	struct descriptor q = {.op = op, .handle = w};
	struct job *j = new_job(&e);
	return j ? run_job(j, &q, NULL) : e;
}

/* Copies data and scales (NULL: none) to the stage, and runs the upload q. */
static int upload_weights(
    struct descriptor *q, const void *data, size_t n, const void *scales, size_t scale_bytes, tfmbs_weight *w) {
	int e = 0;
	struct job *j = new_job(&e);
	if (!j) return e;
	if (n > SIZE_MAX / 4 || scale_bytes > SIZE_MAX / 4 || !(j->stage = take_piece(d.stage, n + scale_bytes + 8))) {
		free_job(j);
		return -ENOMEM;
	}
	uint8_t *to = d.arena + j->stage->off;
	memcpy(to, data, n);
	q->w = j->stage->off;
	if (scales) {
		size_t at = (n + 7) / 8 * 8;
		memcpy(to + at, scales, scale_bytes);
		q->scale = q->w + at;
		q->flags |= FLAG_SCALES;
	}
	return run_job(j, q, w);
}

/* ---- Blocks ---- */

/* The block that ptr is in, and at which byte of it; NULL if it is in none. */
static struct block *find_block(const void *ptr, size_t *at) {
	uintptr_t p = (uintptr_t)ptr;
	for (struct block *b = d.blocks; b; b = b->next) {
		uintptr_t first = b->registered ? (uintptr_t)b->registered : b->name;
		if (p >= first && p - first < b->n) {
			*at = p - first;
			return b;
		}
	}
	return NULL;
}

/* The same, but of device memory only, not of registered weights. */
static struct block *find_device_block(const void *ptr, size_t *at) {
	struct block *b = find_block(ptr, at);
	return b && !b->registered ? b : NULL;
}

/* Moves the block that was used least recently, of those that nobody uses, to the host. */
static int evict_block(void) {
	struct block *v = NULL;
	for (struct block *b = d.blocks; b; b = b->next)
		if (b->piece && !b->users && (!v || b->last_use < v->last_use)) v = b;
	if (!v || !(v->host = malloc(v->n))) return -ENOMEM;
	memcpy(v->host, d.arena + v->piece->off, v->n);
	d.pool_used -= v->piece->n;
	give_piece(d.pool, v->piece);
	v->piece = NULL;
	d.m.eviction_count++;
	return 0;
}

/* Brings a block into the pool. */
static int make_resident(struct block *b) {
	b->last_use = ++d.clock;
	if (b->piece) return 0;
	if (round_to_pages(b->n) > d.pool_total) return -ENOMEM;
	reap_completions();
	while (!(b->piece = take_piece(d.pool, b->n)))
		if (evict_block()) return -ENOMEM;
	d.pool_used += b->piece->n;
	if (b->host) memcpy(d.arena + b->piece->off, b->host, b->n);
	else memset(d.arena + b->piece->off, 0, b->n);
	free(b->host);
	b->host = NULL;
	return 0;
}

/* Releases the weight that a block was converted to. This gives up the mutex: the block must have a user. */
static void release_block_weight(struct block *b) {
	tfmbs_weight w = b->weight;
	b->weight = 0;
	if (w && !d.gone) run_simple(OP_RELEASE, w);
}

/* Removes a block when no job uses it any more. */
static void remove_block(struct block *b) {
	b->users++; /* nobody else may remove it meanwhile */
	release_block_weight(b);
	b->users--;
	for (;;) {
		uint32_t bell = load_word(WORD_BELL);
		reap_completions();
		if (!b->users) break;
		sleep_for_any(bell);
	}
	struct block **p = &d.blocks;
	while (*p != b) p = &(*p)->next;
	*p = b->next;
	if (b->piece) {
		d.pool_used -= b->piece->n;
		give_piece(d.pool, b->piece);
	}
	give_piece(d.names, b->range);
	free(b->host);
	free(b);
}

API void *fabric_alloc(size_t n) {
	struct block *b = NULL;
	if (!n || lock_device()) return NULL;
	if (round_to_pages(n) <= d.pool_total && (b = calloc(1, sizeof *b))) {
		b->n = n;
		/* One page more, so that names of blocks do not touch: a pointer behind one is not in the next. */
		if (!(b->range = take_piece(d.names, n + PAGE)) || make_resident(b)) {
			give_piece(d.names, b->range);
			free(b);
			b = NULL;
		} else {
			b->name = d.base + b->range->off;
			b->next = d.blocks;
			d.blocks = b;
		}
	}
	void *name = b ? (void *)b->name : NULL;
	unlock_device(0);
	return name;
}

API void fabric_free(void *ptr) {
	size_t at;
	pthread_mutex_lock(&d.lock);
	struct block *b = d.pid == getpid() ? find_device_block(ptr, &at) : NULL;
	if (b && !at) remove_block(b);
	unlock_device(0);
}

API int is_fabric_ptr(const void *ptr) {
	size_t at;
	pthread_mutex_lock(&d.lock);
	return unlock_device(d.pid == getpid() && find_device_block(ptr, &at) != NULL);
}

/* Waits for the jobs that use b, which were submitted before. */
static int await_block(struct block *b) {
	for (;;) {
		uint32_t bell = load_word(WORD_BELL);
		reap_completions();
		if (d.gone) return -EPIPE;
		if (!b->users) return 0;
		sleep_for_any(bell);
	}
}

API int fabric_memcpy_to(void *dst, const void *src, size_t n, int pack) {
	const int8_t *t = src;
	size_t at, bytes = pack ? n / 5 + (n % 5 != 0) : n;
	for (size_t i = 0; pack && i < n; i++)
		if (t[i] < -1 || t[i] > 1) return -EINVAL;
	int e = lock_device();
	if (e) return e;
	struct block *b = find_device_block(dst, &at);
	if (!b || bytes > b->n - at) return unlock_device(-EFAULT);
	if ((e = await_block(b)) || (e = make_resident(b))) return unlock_device(e);
	uint8_t *to = d.arena + b->piece->off + at;
	if (!pack) memcpy(to, src, n);
	for (size_t i = 0; pack && i < bytes; i++) {
		int code = 0;
		for (size_t k = 5; k-- > 0;) code = 3 * code + 1 + (5 * i + k < n ? t[5 * i + k] : 0);
		to[i] = (uint8_t)code;
	}
	b->users++;
	release_block_weight(b);
	b->users--;
	return unlock_device(0);
}

API int fabric_memcpy_from(void *dst, const void *src, size_t n, int unpack) {
	int8_t *t = dst;
	size_t at, bytes = unpack ? n / 5 + (n % 5 != 0) : n;
	int e = lock_device();
	if (e) return e;
	struct block *b = find_device_block(src, &at);
	if (!b || bytes > b->n - at) return unlock_device(-EFAULT);
	if ((e = await_block(b)) || (e = make_resident(b))) return unlock_device(e);
	const uint8_t *from = d.arena + b->piece->off + at;
	if (!unpack) memcpy(dst, from, n);
	for (size_t i = 0; unpack && i < bytes; i++)
		if (from[i] > 242) return unlock_device(-EINVAL);
	for (size_t i = 0; unpack && i < bytes; i++) {
		int code = from[i];
		for (size_t k = 0; k < 5 && 5 * i + k < n; k++, code /= 3) t[5 * i + k] = (int8_t)(code % 3 - 1);
	}
	return unlock_device(0);
}

API int fabric_register_weight(const void *ptr, size_t size) {
	size_t at;
	int e = lock_device();
	if (e) return e;
	struct block *b = find_block(ptr, &at);
	if (b && !b->registered) return unlock_device(0); /* device memory needs no registration */
	if (b && !at) remove_block(b);
	else if (b) return unlock_device(-EEXIST);
	if (!size) return unlock_device(0);
	if (!ptr) return unlock_device(-EINVAL);
	if (!(b = calloc(1, sizeof *b))) return unlock_device(-ENOMEM);
	b->registered = ptr;
	b->n = size;
	b->next = d.blocks;
	d.blocks = b;
	return unlock_device(0);
}

/* ---- Products ---- */

/* Whether n bytes at p are in the arena, that is, in memory that is shared with the device. */
static int is_in_arena(const void *p, size_t n) {
	const uint8_t *b = p;
	size_t all = d.size - (size_t)(d.arena - d.memory);
	return b >= d.arena && (size_t)(b - d.arena) <= all && n <= all - (size_t)(b - d.arena);
}

/* Bytes of a vector of cols elements. */
static size_t vector_bytes(uint32_t type, size_t cols) {
	switch (type) {
	case TFMBS_FLOAT32: return 4 * cols;
	case TFMBS_INT8: return cols;
	}
	return cols / 5 + (cols % 5 != 0);
}

/* Sizes of a product, in bytes. */
struct shape {
	size_t row, out;           /* of a vector, and of its result */
	size_t x_stride, y_stride; /* from one to the next */
	size_t x, y, scales;       /* from the first to the last, and of all scales */
};

/* Checks a product, and fills in its sizes. */
static int check_shape(const tfmbs_gemv *g, struct shape *s) {
	size_t row = vector_bytes(g->x_type, g->cols), n = g->n, out = 4 * (size_t)g->rows;
	size_t xs = g->x_stride ? g->x_stride : row, ys = g->y_stride ? g->y_stride : out;
	if (!n || n > 1 << 20 || !g->rows || !g->cols || !g->y || !g->x || (n > 1 && (xs < row || ys < out)) ||
	    xs > SIZE_MAX / 4 / n || ys > SIZE_MAX / 4 / n || g->reserved)
		return -EINVAL;
	if (g->scale && g->block != 32 && g->block != 256) return -EINVAL;
	*s = (struct shape){row, out, xs, ys, (n - 1) * xs + row, (n - 1) * ys + out,
	    g->scale ? (g->cols + g->block - 1) / g->block * n * 4 : 0};
	return 0;
}

/* The descriptor of a product, without the offsets of x, y and scale. */
static struct descriptor describe_product(const tfmbs_gemv *g, const struct shape *s) {
	return (struct descriptor){
	    .op = OP_PRODUCT,
	    .flags = (g->flags & TFMBS_DEGRADE) | (g->scale ? FLAG_SCALES : 0),
	    .handle = g->weight,
	    .rows = g->rows,
	    .cols = g->cols,
	    .n = g->n,
	    .x_type = g->x_type,
	    .y_type = g->y_type,
	    .block = g->block,
	    .x_stride = s->x_stride,
	    .y_stride = s->y_stride,
	};
}

/* Submits a product. xb and yb, if not NULL, are the blocks that x and y are in, in the pool, at
 * offsets x_at and y_at of the arena. Otherwise x, scale and y are in shared memory, or in other
 * memory: then they are copied to the stage, or from it when the job is waited for. */
static int submit_product(
    const tfmbs_gemv *g, struct block *xb, uint64_t x_at, struct block *yb, uint64_t y_at, struct job *j) {
	struct shape s;
	int e = check_shape(g, &s);
	if (e) return e;
	size_t row = s.row, n = g->n, out = s.out, xs = s.x_stride, ys = s.y_stride, sn = s.scales;
	int stage_x = !xb && !is_in_arena(g->x, s.x), stage_y = !yb && !is_in_arena(g->y, s.y);
	int stage_s = g->scale && !is_in_arena(g->scale, sn);
	struct descriptor q = describe_product(g, &s);
	/* The stage has x, then scale, then y. */
	size_t s_off = stage_x ? (row * n + 63) / 64 * 64 : 0, y_off = s_off + (stage_s ? (sn + 63) / 64 * 64 : 0);
	size_t all = y_off + (stage_y ? out * n : 0);
	if (all && !(j->stage = take_piece(d.stage, all))) return -ENOMEM;
	uint64_t base = all ? j->stage->off : 0;
	if (stage_x) {
		for (size_t i = 0; i < n; i++) memcpy(d.arena + base + i * row, (const uint8_t *)g->x + i * xs, row);
		q.x = base;
		q.x_stride = row;
	} else
		q.x = xb ? x_at : (uint64_t)((const uint8_t *)g->x - d.arena);
	if (stage_s) memcpy(d.arena + base + s_off, g->scale, sn);
	if (g->scale) q.scale = stage_s ? base + s_off : (uint64_t)((const uint8_t *)g->scale - d.arena);
	if (stage_y) {
		q.y = base + y_off;
		q.y_stride = out;
		j->from = d.arena + q.y;
		j->to = g->y;
		j->stride = ys;
		j->results = n;
	} else
		q.y = yb ? y_at : (uint64_t)((uint8_t *)g->y - d.arena);
	j->row = out;
	j->n = g->n;
	j->product = 1;
	j->uses[0] = xb;
	j->uses[1] = yb;
	for (int i = 0; i < 2; i++)
		if (j->uses[i]) j->uses[i]->users++;
	e = submit_job(j, &q);
	if (e && !j->finished) {
		j->done.status = e;
		finish_job(j);
	}
	return e;
}

/* Waits for a job, copies its results, and frees it. Returns its status. */
static int finish_product(struct job *j) {
	await_job(j);
	int e = j->done.status;
	if (!e)
		for (size_t i = 0; i < j->results; i++) memcpy(j->to + i * j->stride, j->from + i * j->row, j->row);
	tfmbs_weight temporary = j->temporary;
	free_job(j);
	if (temporary && !d.gone) run_simple(OP_RELEASE, temporary);
	return e;
}

/* Converts the packed trits at w to a weight, unless that was done before. *temporary is set if no
 * block keeps the weight. */
static int convert_weight(const void *w, uint32_t rows, uint32_t cols, tfmbs_weight *to, int *temporary) {
	size_t at, trits = (size_t)rows * cols, bytes = trits / 5 + (trits % 5 != 0);
	struct block *b = find_block(w, &at);
	struct descriptor q = {.op = OP_PLANES, .rows = rows, .cols = cols, .planes = 1};
	int e;
	*temporary = !b || at != 0; /* only a whole block keeps its weight */
	if (b && bytes > b->n - at) return -EFAULT;
	if (!*temporary && b->weight && b->rows == rows && b->cols == cols) {
		*to = b->weight;
		d.m.residency_hits++;
		return 0;
	}
	if (b && !b->registered) {
		if ((e = await_block(b)) || (e = make_resident(b))) return e;
	}
	d.m.residency_misses++;
	if (b) b->users++;
	if (b && !*temporary) release_block_weight(b);
	e = upload_weights(&q, b && !b->registered ? d.arena + b->piece->off + at : w, bytes, NULL, 0, to);
	if (b) b->users--;
	if (!e && !*temporary) {
		if (b->weight) { /* another thread was faster */
			*temporary = 1;
		} else {
			b->weight = *to;
			b->rows = rows;
			b->cols = cols;
		}
	}
	return e;
}

/* Submits the product of fabric_exec_gemv. */
static int start_gemv(const void *w, const void *in, void *out, int rows, int cols, struct job **job) {
	size_t x_at = 0, y_at = 0;
	int e = 0, temporary = 0;
	tfmbs_weight weight = 0;
	if (rows <= 0 || cols <= 0 || !w || !in || !out) return -EINVAL;
	if ((e = convert_weight(w, (uint32_t)rows, (uint32_t)cols, &weight, &temporary))) return e;
	struct block *xb = find_device_block(in, &x_at), *yb = find_device_block(out, &y_at);
	tfmbs_gemv g = {.weight = weight,
	    .rows = (uint32_t)rows,
	    .cols = (uint32_t)cols,
	    .n = 1,
	    .x_type = TFMBS_PT5,
	    .y_type = TFMBS_INT32,
	    .x = in,
	    .y = out};
	struct job *j = NULL;
	if (xb && vector_bytes(TFMBS_PT5, g.cols) > xb->n - x_at) e = -EFAULT;
	if (yb && 4 * (size_t)g.rows > yb->n - y_at) e = -EFAULT;
	if (!e && xb && !(e = make_resident(xb))) xb->users++; /* bringing y into the pool must not evict x */
	else xb = e ? NULL : xb;
	if (!e && yb) e = make_resident(yb);
	if (!e) j = new_job(&e);
	if (!e) {
		e = submit_product(&g, xb, xb ? xb->piece->off + x_at : 0, yb, yb ? yb->piece->off + y_at : 0, j);
		if (!e && yb) {
			yb->users++;
			release_block_weight(yb); /* the block is being written */
			yb->users--;
		}
	}
	if (xb) xb->users--;
	if (e) {
		if (j) free_job(j);
		if (temporary) run_simple(OP_RELEASE, weight);
		return e;
	}
	if (temporary) j->temporary = weight;
	*job = j;
	return 0;
}

API int fabric_exec_gemv(const void *w, const void *in, void *out, int rows, int cols) {
	struct job *j;
	int e = lock_device();
	if (e) return e;
	if (!(e = start_gemv(w, in, out, rows, cols, &j))) e = finish_product(j);
	return unlock_device(e);
}

API fabric_handle_t fabric_exec_gemv_async(const void *w, const void *in, void *out, int rows, int cols) {
	struct job *j;
	if (lock_device()) return NULL;
	fabric_handle_t h = start_gemv(w, in, out, rows, cols, &j) ? NULL : (fabric_handle_t)(uintptr_t)id_of_job(j);
	unlock_device(0);
	return h;
}

API int fabric_wait(fabric_handle_t h) { return tfmbs_wait((uintptr_t)h); }

API int tfmbs_submit(const tfmbs_gemv *g, tfmbs_job *job) {
	int e = lock_device();
	if (e) return e;
	struct job *j = new_job(&e);
	if (j && (e = submit_product(g, NULL, 0, NULL, 0, j))) free_job(j);
	if (!e) *job = id_of_job(j);
	return unlock_device(e);
}

API int tfmbs_submit_empty(tfmbs_job *job) {
	struct descriptor q = {.op = OP_EMPTY};
	int e = lock_device();
	if (e) return e;
	struct job *j = new_job(&e);
	if (j && (e = submit_job(j, &q))) free_job(j);
	if (!e) *job = id_of_job(j);
	return unlock_device(e);
}

/* Takes the mutex and finds a job. NULL: there is no such job, and the mutex is free. The job is found
 * even if the device has gone: it is finished then. */
static struct job *lock_job(tfmbs_job id) {
	pthread_mutex_lock(&d.lock);
	struct job *j = d.pid && d.pid == getpid() ? find_job(id) : NULL;
	if (!j) pthread_mutex_unlock(&d.lock);
	return j;
}

API int tfmbs_poll(tfmbs_job id) {
	struct job *j = lock_job(id);
	if (!j) return -EINVAL;
	reap_completions();
	struct pollfd p = {d.sock, POLLIN, 0};
	if (!j->finished && poll(&p, 1, 0) > 0) {
		reap_completions();
		mark_lost();
	}
	return unlock_device(j->finished);
}

API int tfmbs_wait(tfmbs_job id) {
	struct job *j = lock_job(id);
	return j ? unlock_device(finish_product(j)) : -EINVAL;
}

API int tfmbs_cancel(tfmbs_job id) {
	struct job *j = lock_job(id);
	if (!j) return -EINVAL;
	reap_completions();
	if (!j->finished)
		__atomic_store_n(
		    &d.submissions[j->slot].cancel, 1, __ATOMIC_SEQ_CST); /* the slot is the job's until it is finished */
	return unlock_device(0);
}

API int tfmbs_run_gemv(tfmbs_weight w, uint32_t rows, uint32_t cols, const float *x, float *y) {
	tfmbs_gemv g = {.weight = w,
	    .rows = rows,
	    .cols = cols,
	    .n = 1,
	    .x_type = TFMBS_FLOAT32,
	    .y_type = TFMBS_FLOAT32,
	    .block = 32,
	    .x = x,
	    .y = y};
	tfmbs_job job;
	int e = tfmbs_submit(&g, &job);
	return e ? e : tfmbs_wait(job);
}

/* ---- Plans ---- */

struct tfmbs_plan {
	int n, running;
	struct step {
		struct descriptor q;
		size_t row;      /* bytes of a result */
		struct job *job; /* while it runs */
	} steps[];
};

API int tfmbs_plan_new(const tfmbs_gemv *products, int n, tfmbs_plan **plan) {
	if (!products || n <= 0 || n > 1 << 20 || !plan) return -EINVAL;
	int e = lock_device();
	if (e) return e;
	tfmbs_plan *p = calloc(1, sizeof *p + (size_t)n * sizeof *p->steps);
	if (!p) return unlock_device(-ENOMEM);
	for (int i = 0; i < n && !e; i++) {
		const tfmbs_gemv *g = &products[i];
		struct step *t = &p->steps[i];
		struct shape s;
		if ((e = check_shape(g, &s))) break;
		if (!is_in_arena(g->x, s.x) || !is_in_arena(g->y, s.y) || (g->scale && !is_in_arena(g->scale, s.scales)))
			e = -EFAULT;
		t->q = describe_product(g, &s);
		t->q.x = (uint64_t)((const uint8_t *)g->x - d.arena);
		t->q.y = (uint64_t)((uint8_t *)g->y - d.arena);
		if (g->scale) t->q.scale = (uint64_t)((const uint8_t *)g->scale - d.arena);
		t->row = s.out;
	}
	p->n = n;
	if (e) free(p);
	else *plan = p;
	return unlock_device(e);
}

/* Waits for a step that was submitted, and returns its status. */
static int finish_step(struct step *t) {
	await_job(t->job);
	int e = t->job->done.status;
	free_job(t->job);
	return e;
}

API int tfmbs_plan_run(tfmbs_plan *p) {
	if (!p) return -EINVAL;
	int e = lock_device(), first = 0, last = 0;
	if (e) return e;
	if (p->running) return unlock_device(-EBUSY);
	p->running = 1; /* the mutex is given up while this waits */
	while (!e && last < p->n) {
		struct step *t = &p->steps[last];
		if (!(t->job = new_job(&e))) {
			if (first < last) e = finish_step(&p->steps[first++]);
			continue;
		}
		t->job->row = t->row;
		t->job->n = t->q.n;
		t->job->product = 1;
		struct descriptor q = t->q;
		if ((e = submit_job(t->job, &q))) free_job(t->job);
		else last++;
	}
	int failed = 0;
	/* The last one first: then the others are finished as well, and this thread was woken once. */
	while (last > first) {
		int f = finish_step(&p->steps[--last]);
		if (f) failed = f;
	}
	if (!e) e = failed;
	p->running = 0;
	return unlock_device(e);
}

API void tfmbs_plan_free(tfmbs_plan *p) { free(p); }

/* ---- Weights and buffers ---- */

API int tfmbs_init(void) {
	int e = lock_device();
	return e ? e : unlock_device(0);
}

API void tfmbs_shutdown(void) {
	pthread_mutex_lock(&d.lock);
	if (d.pid) drop_connection();
	unlock_device(0);
}

API int tfmbs_upload_frame(const void *frame, size_t bytes, uint32_t flags, tfmbs_weight *w) {
	struct descriptor q = {.op = OP_FRAME, .flags = flags & TFMBS_TWO_BIT, .w_bytes = bytes};
	int e = lock_device();
	if (e) return e;
	return unlock_device(frame && bytes && w ? upload_weights(&q, frame, bytes, NULL, 0, w) : -EINVAL);
}

API int tfmbs_upload_planes(int layer, const uint8_t *pt5, uint32_t planes, uint32_t rows, uint32_t cols,
    const uint16_t *scales, uint32_t block, uint32_t flags, tfmbs_weight *w) {
	struct descriptor q = {.op = OP_PLANES,
	    .flags = flags & TFMBS_TWO_BIT,
	    .rows = rows,
	    .cols = cols,
	    .planes = planes,
	    .block = scales ? block : 0,
	    .layer = (uint32_t)layer};
	uint64_t trits = (uint64_t)rows * cols;
	if (!pt5 || !w || !planes || planes > 6 || !trits || trits > 1ull << 34 || (scales && !block)) return -EINVAL;
	int e = lock_device();
	if (e) return e;
	return unlock_device(upload_weights(&q, pt5, (trits + 4) / 5 * planes, scales,
	    scales ? 2 * (((uint64_t)cols + block - 1) / block) * rows : 0, w));
}

API int tfmbs_upload_blocks(int layer, uint32_t type, const void *blocks, size_t bytes, uint32_t rows,
    uint32_t cols, uint32_t flags, tfmbs_weight *w) {
	struct descriptor q = {.op = OP_BLOCKS,
	    .flags = flags & (TFMBS_TWO_BIT | TFMBS_FAST | TFMBS_BALANCED),
	    .w_bytes = bytes,
	    .rows = rows,
	    .cols = cols,
	    .x_type = type,
	    .layer = (uint32_t)layer};
	if (!blocks || !bytes || !w) return -EINVAL;
	int e = lock_device();
	if (e) return e;
	return unlock_device(upload_weights(&q, blocks, bytes, NULL, 0, w));
}

/* The hash of some bytes by which held weights are found, as sampleHash in fabric/device/held.go has it. */
static uint64_t sample_hash(const uint8_t *b, size_t n) {
	uint64_t h = 0xcbf29ce484222325u;
	for (size_t i = 0, k; i < 4; i++)
		for (k = n / 4 * i; k < n && k < n / 4 * i + 32; k++) h = (h ^ b[k]) * 0x100000001b3u;
	return h;
}

API int tfmbs_find_blocks(uint64_t dev, uint64_t ino, uint64_t offset, uint32_t type, const void *data,
    size_t bytes, uint32_t rows, uint32_t cols, tfmbs_weight *w) {
	if (!data || !bytes || !w) return -EINVAL;
	struct descriptor q = {.op = OP_FIND,
	    .w = offset,
	    .w_bytes = bytes,
	    .x = dev,
	    .x_stride = ino,
	    .scale = sample_hash(data, bytes),
	    .rows = rows,
	    .cols = cols,
	    .x_type = type};
	int e = lock_device();
	if (e) return e;
	struct job *j = new_job(&e);
	return unlock_device(j ? run_job(j, &q, w) : e);
}

API uint32_t tfmbs_held(void) {
	if (lock_device()) return 0;
	uint32_t v = load_word(WORD_HELD);
	unlock_device(0);
	return v;
}

static int run_on_weight(uint32_t op, tfmbs_weight w) {
	int e = lock_device();
	return e ? e : unlock_device(run_simple(op, w));
}

API int tfmbs_release(tfmbs_weight w) { return run_on_weight(OP_RELEASE, w); }
API int tfmbs_pin(tfmbs_weight w) { return run_on_weight(OP_PIN, w); }
API int tfmbs_unpin(tfmbs_weight w) { return run_on_weight(OP_UNPIN, w); }

API void *tfmbs_buffer(size_t n) {
	if (!n || lock_device()) return NULL;
	struct piece *p = take_piece(d.stage, n);
	void *b = p ? d.arena + p->off : NULL;
	unlock_device(0);
	return b;
}

API void tfmbs_buffer_free(void *ptr) {
	pthread_mutex_lock(&d.lock);
	if (d.pid == getpid() && is_in_arena(ptr, 1))
		for (struct piece *p = d.stage; p; p = p->next)
			if (p->used && d.arena + p->off == (uint8_t *)ptr) {
				give_piece(d.stage, p);
				break;
			}
	unlock_device(0);
}

/* ---- Metrics ---- */

API void fabric_get_metrics(fabric_metrics_t *m) {
	pthread_mutex_lock(&d.lock);
	if (d.pid == getpid()) reap_completions();
	*m = d.m;
	m->pool_used = d.pool_used;
	m->pool_total = d.pool_total;
	if (m->total_ops) {
		m->sim_cycle_reduction = 100.0 * (double)m->zero_skips / (double)m->total_ops;
		m->semantic_efficiency = (double)m->active_ops / (double)m->total_ops;
	}
	if (m->active_ops) m->fabric_cost = (double)(m->mem_reads + m->mem_writes) / (double)m->active_ops;
	if (d.nanos) m->economic_efficiency = (double)m->active_ops / (double)d.nanos;
	unlock_device(0);
}

API int fabric_dump_metrics_csv(const char *path) {
	fabric_metrics_t m;
	fabric_get_metrics(&m);
	FILE *f = fopen(path, "we");
	if (!f) return -errno;
	fprintf(f,
	    "zero_skips,total_ops,lanes_used,sim_cycle_reduction,pool_used,pool_total,eviction_count,active_ops,"
	    "mem_reads,mem_writes,broadcasts,residency_hits,residency_misses,tile_local_reuse,cycles,fabric_cost,"
	    "semantic_efficiency,economic_efficiency,fallback_count,offload_count\n");
	fprintf(f, "%ld,%ld,%d,%g,%zu,%zu,%d,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%ld,%g,%g,%g,%llu,%llu\n",
	    m.zero_skips, m.total_ops, m.lanes_used, m.sim_cycle_reduction, m.pool_used, m.pool_total,
	    m.eviction_count, (unsigned long long)m.active_ops, (unsigned long long)m.mem_reads,
	    (unsigned long long)m.mem_writes, (unsigned long long)m.broadcasts, (unsigned long long)m.residency_hits,
	    (unsigned long long)m.residency_misses, (unsigned long long)m.tile_local_reuse, m.cycles, m.fabric_cost,
	    m.semantic_efficiency, m.economic_efficiency, (unsigned long long)m.fallback_count,
	    (unsigned long long)m.offload_count);
	int bad = ferror(f);
	return fclose(f) || bad ? -EIO : 0;
}
