//go:build ignore

/* libtfmbs_device.so: the client of the emulated device. fabric/device/doc.go has the format of the socket, the memory file and the rings.
 *
 * One connection for the process, behind one mutex. What a function waits for, it waits for without the mutex only in await; completions are reaped by
 * whoever holds the mutex. */
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

#ifndef API /* libtfmbs_intercept.so keeps these names to itself */
#define API __attribute__((visibility("default")))
#endif

enum {
	ENTRIES = 64,
	JOBS = 1024,
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
enum {
	SUBMITTED = 64,
	TAKEN = 128,
	COMPLETED = 192,
	REAPED = 256,
	DOORBELL = 320,
	ASLEEP = 384,
	BELL = 448,
	WAITING = 512,
	WANTED = 576,
	HELD = 640,
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

/* A range that is divided into pieces: a list by offset, of free and of used ones. */
struct piece {
	struct piece *next;
	uint64_t off, n;
	int used;
};

/* Device memory of fabric_alloc (name != 0), or registered weights in host memory. */
struct block {
	struct block *next;
	uintptr_t name; /* address that stands for it */
	const uint8_t *registered;
	size_t n;
	struct piece *at; /* in the pool, or NULL */
	struct piece *range;
	uint8_t *host; /* where it was evicted to, or NULL */
	int busy;
	uint64_t last;
	tfmbs_weight weight; /* its conversion, of this shape */
	uint32_t rows, cols;
};

struct job {
	uint32_t generation;
	int taken, over, product;
	uint32_t slot, n, place; /* place: how many were submitted with it */
	int brief;               /* it is likely to be over before a thread that sleeps would be awake */
	struct completion done;
	struct piece *stage;
	struct block *uses[2]; /* of x and y */
	tfmbs_weight temporary;
	const uint8_t *from; /* results in the stage, to be copied */
	uint8_t *to;
	size_t row, stride, results;
};

/* A thread that sleeps, on its stack. */
struct dozer {
	struct dozer *next;
	uint32_t wanted; /* how many completions it waits for */
};

static struct {
	pthread_mutex_t lock;
	pid_t pid; /* 0: not connected */
	int sock, gone;
	uint8_t *memory, *arena;
	size_t size;
	struct descriptor *subs;
	struct completion *comps;
	uint32_t tail, reaped;
	struct dozer *dozers;
	struct piece *pool, *stage, *names;
	uintptr_t base; /* of the names */
	size_t pool_total, pool_used;
	struct block *blocks;
	uint64_t clock;
	struct job jobs[JOBS];
	fabric_metrics_t m;
	uint64_t nanos;
} d = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Addresses only, no memory. More would not fit beside a thread sanitizer's. */
static const uint64_t name_space = 1ull << 36;

static uint32_t *word(int at) { return (uint32_t *)(void *)(d.memory + at); }
static uint32_t get(int at) { return __atomic_load_n(word(at), __ATOMIC_SEQ_CST); }
static void set(int at, uint32_t v) { __atomic_store_n(word(at), v, __ATOMIC_SEQ_CST); }
static void ring(void) {
	__atomic_fetch_add(word(DOORBELL), 1, __ATOMIC_SEQ_CST);
	if (get(ASLEEP)) syscall(SYS_futex, word(DOORBELL), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ---- Pieces ---- */

static struct piece *range_new(uint64_t n) {
	struct piece *p = calloc(1, sizeof *p);
	if (p) p->n = n;
	return p;
}

static void range_free(struct piece *p) {
	while (p) {
		struct piece *next = p->next;
		free(p);
		p = next;
	}
}

static uint64_t pages(uint64_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

/* The smallest free piece that n bytes fit in. */
static struct piece *take(struct piece *p, uint64_t n) {
	struct piece *best = NULL;
	if (n > UINT64_MAX / 2) return NULL;
	n = pages(n ? n : 1);
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

/* Neighbours that are free are joined; the head of a range is never freed. */
static void give(struct piece *head, struct piece *which) {
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

/* Only a device of this user may be given this program's data. */
static int dial(const char *path) {
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

/* The device is nobody's child: its starter ends at once. */
static int start_device(const char *path) {
	const char *program = getenv("TFMBS_DEVICE");
	char *argv[] = {(char *)(program && *program ? program : "prefetchd"), "fabric", "--idle", "60s", "--socket", (char *)path, NULL};
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

static uint64_t from_env(const char *name, uint64_t otherwise) {
	const char *s = getenv(name);
	char *end;
	errno = 0;
	unsigned long long v = s ? strtoull(s, &end, 10) : 0;
	return s && *s && !*end && errno == 0 && v >= PAGE && v <= 1ull << 40 ? v : otherwise;
}

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
	d.subs = (void *)(d.memory + at[0]);
	d.comps = (void *)(d.memory + at[1]);
	d.arena = d.memory + at[2];
	return 0;
}

static void drop(void) {
	while (d.blocks) {
		struct block *b = d.blocks;
		d.blocks = b->next;
		free(b->host);
		free(b);
	}
	range_free(d.pool);
	range_free(d.stage);
	range_free(d.names);
	if (d.memory) munmap(d.memory, d.size);
	if (d.base) munmap((void *)d.base, name_space);
	if (d.sock >= 0) close(d.sock);
	d.pool = d.stage = d.names = NULL;
	d.memory = NULL;
	d.base = 0;
	d.sock = -1;
	d.pid = 0;
}

static int connect_device(void) {
	char path[sizeof((struct sockaddr_un *)0)->sun_path];
	int e = socket_path(path, sizeof path), s;
	if (e) return e;
	s = dial(path);
	const char *handed = getenv("TFMBS_HANDOVER"); /* the device is somebody else's */
	if ((s == -ENOENT || s == -ECONNREFUSED) && !(handed && *handed)) {
		if ((e = start_device(path))) return e;
		for (int i = 0; i < 500 && (s == -ENOENT || s == -ECONNREFUSED); i++) {
			nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
			s = dial(path);
		}
	}
	if (s < 0) return s;
	uint64_t pool = pages(from_env("TFMBS_POOL_BYTES", 128ull << 20)), stage = pages(from_env("TFMBS_STAGING_BYTES", 256ull << 20));
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
		d.pool = range_new(pool);
		d.stage = range_new(stage);
		d.names = range_new(name_space);
		d.pool_total = pool;
		d.pool_used = 0;
		if (!d.base || !d.pool || !d.stage || !d.names) e = -ENOMEM;
	}
	if (e) {
		drop();
		return e;
	}
	d.stage->off = pool; /* the stage follows the pool in the arena */
	d.pid = getpid();
	return 0;
}

/* Takes the mutex; a return of 0 means it is held, and the device was there. */
static int enter(void) {
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

static int leave(int e) {
	pthread_mutex_unlock(&d.lock);
	return e;
}

/* ---- Jobs ---- */

static struct job *find_job(tfmbs_job id) {
	struct job *j = &d.jobs[id % JOBS];
	return j->taken && id / JOBS == j->generation ? j : NULL;
}

static tfmbs_job id_of(struct job *j) { return (tfmbs_job)j->generation * JOBS + (tfmbs_job)(j - d.jobs); }

static void count(struct job *j) {
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

/* The mutex is held. */
static void finish(struct job *j) {
	j->over = 1;
	for (int i = 0; i < 2; i++)
		if (j->uses[i]) j->uses[i]->busy--;
	if (j->product) count(j);
}

static void lost(void) {
	d.gone = 1;
	for (int i = 0; i < JOBS; i++)
		if (d.jobs[i].taken && !d.jobs[i].over) {
			d.jobs[i].done = (struct completion){.status = -EPIPE};
			finish(&d.jobs[i]);
		}
}

static void reap(void) {
	uint32_t end = get(COMPLETED);
	if (d.gone) return;
	if (end == d.reaped) return;
	for (; d.reaped != end; d.reaped++) {
		struct completion c = d.comps[d.reaped % ENTRIES];
		struct job *j = find_job(c.tag);
		if (j && !j->over) {
			j->done = c;
			finish(j);
		}
	}
	set(REAPED, d.reaped);
	if (get(ASLEEP) == 2) ring();
}

/* Tells the device what the first of the sleeping threads waits for. It wakes nobody before. */
static void set_wanted(void) {
	if (!d.dozers) return;
	uint32_t first = d.dozers->wanted;
	for (const struct dozer *z = d.dozers->next; z; z = z->next)
		if ((int32_t)(z->wanted - first) < 0) first = z->wanted;
	set(WANTED, first);
}

/* Sleeps, without the mutex, until so many jobs have been completed, or others that another thread waits for, after b was read from the bell. */
static void doze(uint32_t b, uint32_t wanted) {
	struct timespec limit = {0, 200 * 1000 * 1000};
	struct pollfd p = {d.sock, POLLIN, 0};
	struct dozer self = {d.dozers, wanted}, **at = &d.dozers;
	d.dozers = &self;
	set_wanted();
	pthread_mutex_unlock(&d.lock);
	__atomic_fetch_add(word(WAITING), 1, __ATOMIC_SEQ_CST);
	long r = syscall(SYS_futex, word(BELL), FUTEX_WAIT, b, &limit, NULL, 0);
	int slow = r < 0 && errno == ETIMEDOUT;
	__atomic_fetch_sub(word(WAITING), 1, __ATOMIC_SEQ_CST);
	int dead = slow && poll(&p, 1, 0) > 0; /* the device says nothing more: it hung up */
	pthread_mutex_lock(&d.lock);
	while (*at != &self) at = &(*at)->next;
	*at = self.next;
	set_wanted();
	if (dead) {
		reap();
		lost();
	}
}

/* Sleeps until anything has been completed. */
static void doze_for_any(uint32_t b) { doze(b, d.reaped + 1); }

/* Waits SPIN nanoseconds, without the mutex, for a bell other than b: a short job is over by then, and going to sleep and waking up would take longer than it does. */
enum { SPIN = 20 * 1000 };
static int spin(uint32_t b) {
	struct timespec from, now;
	int rung = 0;
	pthread_mutex_unlock(&d.lock);
	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		for (int i = 0; i < 32 && !rung; i++) {
			rung = get(BELL) != b;
#if defined(__x86_64__)
			__builtin_ia32_pause();
#endif
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (!rung && (now.tv_sec - from.tv_sec) * 1000000000L + now.tv_nsec - from.tv_nsec < SPIN);
	pthread_mutex_lock(&d.lock);
	return rung;
}

static void await(struct job *j) {
	for (int spun = !j->brief;;) {
		/* The bell before the completions: what is completed in between changes it. WAITING is set before the futex looks at the bell. */
		uint32_t b = get(BELL);
		reap();
		if (j->over) return;
		if (!spun && !(spun = !spin(b))) continue;
		doze(b, j->place);
	}
}

static struct job *new_job(int *e) {
	reap();
	for (int i = 0; i < JOBS; i++)
		if (!d.jobs[i].taken) {
			d.jobs[i] = (struct job){.generation = d.jobs[i].generation + 1, .taken = 1};
			if (!d.jobs[i].generation) d.jobs[i].generation = 1;
			return &d.jobs[i];
		}
	*e = -EAGAIN; /* the caller has to wait for some of its own */
	return NULL;
}

static void end_job(struct job *j) {
	give(d.stage, j->stage);
	j->stage = NULL;
	j->taken = 0;
}

/* Weights times vectors of a product that takes longer than SPIN, at 40 of them in a nanosecond. Who looks at the bell meanwhile takes a processor from a device that is not alone on the machine. */
enum { BRIEF = 1 << 19 };

static int submit(struct job *j, struct descriptor *q) {
	for (;;) {
		uint32_t b = get(BELL);
		reap();
		if (d.gone) return -EPIPE;
		if (d.tail - d.reaped < ENTRIES) break;
		doze_for_any(b);
	}
	q->tag = id_of(j);
	j->brief = q->op != OP_PRODUCT || (uint64_t)q->rows * q->cols * q->n < BRIEF;
	j->slot = d.tail % ENTRIES;
	j->place = d.tail + 1;
	d.subs[j->slot] = *q;
	set(SUBMITTED, ++d.tail);
	ring();
	return 0;
}

/* Submits and waits. The mutex is held before and after, and given up in between. */
static int run(struct job *j, struct descriptor *q, uint64_t *value) {
	int e = submit(j, q);
	if (!e) {
		await(j);
		e = j->done.status;
		if (value) *value = j->done.value;
	}
	end_job(j);
	return e;
}

static int simple(uint32_t op, tfmbs_weight w) {
	int e = 0;
	struct descriptor q = {.op = op, .handle = w};
	struct job *j = new_job(&e);
	return j ? run(j, &q, NULL) : e;
}

static int upload(struct descriptor *q, const void *data, size_t n, const void *scales, size_t scale_bytes, tfmbs_weight *w) {
	int e = 0;
	struct job *j = new_job(&e);
	if (!j) return e;
	if (n > SIZE_MAX / 4 || scale_bytes > SIZE_MAX / 4 || !(j->stage = take(d.stage, n + scale_bytes + 8))) {
		end_job(j);
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
	return run(j, q, w);
}

/* ---- Blocks ---- */

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

/* Only device memory, not registered weights. */
static struct block *find_own(const void *ptr, size_t *at) {
	struct block *b = find_block(ptr, at);
	return b && !b->registered ? b : NULL;
}

static int evict(void) {
	struct block *v = NULL;
	for (struct block *b = d.blocks; b; b = b->next)
		if (b->at && !b->busy && (!v || b->last < v->last)) v = b;
	if (!v || !(v->host = malloc(v->n))) return -ENOMEM;
	memcpy(v->host, d.arena + v->at->off, v->n);
	d.pool_used -= v->at->n;
	give(d.pool, v->at);
	v->at = NULL;
	d.m.eviction_count++;
	return 0;
}

static int resident(struct block *b) {
	b->last = ++d.clock;
	if (b->at) return 0;
	if (pages(b->n) > d.pool_total) return -ENOMEM;
	reap();
	while (!(b->at = take(d.pool, b->n)))
		if (evict()) return -ENOMEM;
	d.pool_used += b->at->n;
	if (b->host) memcpy(d.arena + b->at->off, b->host, b->n);
	else memset(d.arena + b->at->off, 0, b->n);
	free(b->host);
	b->host = NULL;
	return 0;
}

static void forget_weight(struct block *b) {
	tfmbs_weight w = b->weight;
	b->weight = 0;
	if (w && !d.gone) simple(OP_RELEASE, w);
}

static void remove_block(struct block *b) {
	b->busy++; /* the mutex is given up in between */
	forget_weight(b);
	b->busy--;
	for (;;) {
		uint32_t bell = get(BELL);
		reap();
		if (!b->busy) break;
		doze_for_any(bell);
	}
	struct block **p = &d.blocks;
	while (*p != b) p = &(*p)->next;
	*p = b->next;
	if (b->at) {
		d.pool_used -= b->at->n;
		give(d.pool, b->at);
	}
	give(d.names, b->range);
	free(b->host);
	free(b);
}

API void *fabric_alloc(size_t n) {
	struct block *b = NULL;
	if (!n || enter()) return NULL;
	if (pages(n) <= d.pool_total && (b = calloc(1, sizeof *b))) {
		b->n = n;
		/* a page more: blocks do not touch, so that a pointer beyond one is not in the next */
		if (!(b->range = take(d.names, n + PAGE)) || resident(b)) {
			give(d.names, b->range);
			free(b);
			b = NULL;
		} else {
			b->name = d.base + b->range->off;
			b->next = d.blocks;
			d.blocks = b;
		}
	}
	void *name = b ? (void *)b->name : NULL;
	leave(0);
	return name;
}

API void fabric_free(void *ptr) {
	size_t at;
	pthread_mutex_lock(&d.lock);
	struct block *b = d.pid == getpid() ? find_own(ptr, &at) : NULL;
	if (b && !at) remove_block(b);
	leave(0);
}

API int is_fabric_ptr(const void *ptr) {
	size_t at;
	pthread_mutex_lock(&d.lock);
	return leave(d.pid == getpid() && find_own(ptr, &at) != NULL);
}

static int settle(struct block *b) { /* waits for jobs that use b: they were asked for before */
	for (;;) {
		uint32_t bell = get(BELL);
		reap();
		if (d.gone) return -EPIPE;
		if (!b->busy) return 0;
		doze_for_any(bell);
	}
}

API int fabric_memcpy_to(void *dst, const void *src, size_t n, int pack) {
	const int8_t *t = src;
	size_t at, bytes = pack ? n / 5 + (n % 5 != 0) : n;
	for (size_t i = 0; pack && i < n; i++)
		if (t[i] < -1 || t[i] > 1) return -EINVAL;
	int e = enter();
	if (e) return e;
	struct block *b = find_own(dst, &at);
	if (!b || bytes > b->n - at) return leave(-EFAULT);
	if ((e = settle(b)) || (e = resident(b))) return leave(e);
	uint8_t *to = d.arena + b->at->off + at;
	if (!pack) memcpy(to, src, n);
	for (size_t i = 0; pack && i < bytes; i++) {
		int code = 0;
		for (size_t k = 5; k-- > 0;) code = 3 * code + 1 + (5 * i + k < n ? t[5 * i + k] : 0);
		to[i] = (uint8_t)code;
	}
	b->busy++;
	forget_weight(b);
	b->busy--;
	return leave(0);
}

API int fabric_memcpy_from(void *dst, const void *src, size_t n, int unpack) {
	int8_t *t = dst;
	size_t at, bytes = unpack ? n / 5 + (n % 5 != 0) : n;
	int e = enter();
	if (e) return e;
	struct block *b = find_own(src, &at);
	if (!b || bytes > b->n - at) return leave(-EFAULT);
	if ((e = settle(b)) || (e = resident(b))) return leave(e);
	const uint8_t *from = d.arena + b->at->off + at;
	if (!unpack) memcpy(dst, from, n);
	for (size_t i = 0; unpack && i < bytes; i++)
		if (from[i] > 242) return leave(-EINVAL);
	for (size_t i = 0; unpack && i < bytes; i++) {
		int code = from[i];
		for (size_t k = 0; k < 5 && 5 * i + k < n; k++, code /= 3) t[5 * i + k] = (int8_t)(code % 3 - 1);
	}
	return leave(0);
}

API int fabric_register_weight(const void *ptr, size_t size) {
	size_t at;
	int e = enter();
	if (e) return e;
	struct block *b = find_block(ptr, &at);
	if (b && !b->registered) return leave(0); /* device memory is known already */
	if (b && !at) remove_block(b);
	else if (b) return leave(-EEXIST);
	if (!size) return leave(0);
	if (!ptr) return leave(-EINVAL);
	if (!(b = calloc(1, sizeof *b))) return leave(-ENOMEM);
	b->registered = ptr;
	b->n = size;
	b->next = d.blocks;
	d.blocks = b;
	return leave(0);
}

/* ---- Products ---- */

static int in_arena(const void *p, size_t n) {
	const uint8_t *b = p;
	size_t all = d.size - (size_t)(d.arena - d.memory);
	return b >= d.arena && (size_t)(b - d.arena) <= all && n <= all - (size_t)(b - d.arena);
}

static size_t x_bytes(uint32_t type, size_t cols) { return type == TFMBS_FLOAT32 ? 4 * cols : type == TFMBS_INT8 ? cols
	                                                                                                             : cols / 5 + (cols % 5 != 0); }

/* Bytes of a product: of a vector and a result, from one to the next, and of all. */
struct shape {
	size_t row, out, x_stride, y_stride, x, y, scales;
};

static int shape_of(const tfmbs_gemv *g, struct shape *s) {
	size_t row = x_bytes(g->x_type, g->cols), n = g->n, out = 4 * (size_t)g->rows;
	size_t xs = g->x_stride ? g->x_stride : row, ys = g->y_stride ? g->y_stride : out;
	if (!n || n > 1 << 20 || !g->rows || !g->cols || !g->y || !g->x || (n > 1 && (xs < row || ys < out)) || xs > SIZE_MAX / 4 / n || ys > SIZE_MAX / 4 / n || g->reserved)
		return -EINVAL;
	if (g->scale && g->block != 32 && g->block != 256) return -EINVAL;
	*s = (struct shape){row, out, xs, ys, (n - 1) * xs + row, (n - 1) * ys + out, g->scale ? (g->cols + g->block - 1) / g->block * n * 4 : 0};
	return 0;
}

/* All but the places of x, y and scale. */
static struct descriptor describe(const tfmbs_gemv *g, const struct shape *s) {
	return (struct descriptor){.op = OP_PRODUCT, .flags = (g->flags & TFMBS_DEGRADE) | (g->scale ? FLAG_SCALES : 0), .handle = g->weight, .rows = g->rows, .cols = g->cols, .n = g->n, .x_type = g->x_type, .y_type = g->y_type, .block = g->block, .x_stride = s->x_stride, .y_stride = s->y_stride};
}

/* x and y of the job are in shared memory, or in host memory and then staged; xb and yb are blocks that they are in, resident. */
static int submit_gemv(const tfmbs_gemv *g, struct block *xb, uint64_t x_at, struct block *yb, uint64_t y_at, struct job *j) {
	struct shape s;
	int e = shape_of(g, &s);
	if (e) return e;
	size_t row = s.row, n = g->n, out = s.out, xs = s.x_stride, ys = s.y_stride, sn = s.scales;
	int stage_x = !xb && !in_arena(g->x, s.x), stage_y = !yb && !in_arena(g->y, s.y), stage_s = g->scale && !in_arena(g->scale, sn);
	struct descriptor q = describe(g, &s);
	size_t x_off = 0, s_off = stage_x ? (row * n + 63) / 64 * 64 : 0, y_off = s_off + (stage_s ? (sn + 63) / 64 * 64 : 0), all = y_off + (stage_y ? out * n : 0);
	if (all && !(j->stage = take(d.stage, all))) return -ENOMEM;
	uint64_t base = all ? j->stage->off : 0;
	if (stage_x) {
		for (size_t i = 0; i < n; i++) memcpy(d.arena + base + x_off + i * row, (const uint8_t *)g->x + i * xs, row);
		q.x = base + x_off;
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
		if (j->uses[i]) j->uses[i]->busy++;
	e = submit(j, &q);
	if (e && !j->over) {
		j->done.status = e;
		finish(j);
	}
	return e;
}

static int finish_wait(struct job *j) {
	await(j);
	int e = j->done.status;
	if (!e)
		for (size_t i = 0; i < j->results; i++) memcpy(j->to + i * j->stride, j->from + i * j->row, j->row);
	tfmbs_weight temporary = j->temporary;
	end_job(j);
	if (temporary && !d.gone) simple(OP_RELEASE, temporary);
	return e;
}

/* The weight that w is, converted if it has to be. temporary is set if nobody keeps it. */
static int weight_of(const void *w, uint32_t rows, uint32_t cols, tfmbs_weight *to, int *temporary) {
	size_t at, trits = (size_t)rows * cols, bytes = trits / 5 + (trits % 5 != 0);
	struct block *b = find_block(w, &at);
	struct descriptor q = {.op = OP_PLANES, .rows = rows, .cols = cols, .planes = 1};
	int e;
	*temporary = !b || at != 0; /* only the shape of a whole block is remembered */
	if (b && bytes > b->n - at) return -EFAULT;
	if (!*temporary && b->weight && b->rows == rows && b->cols == cols) {
		*to = b->weight;
		d.m.residency_hits++;
		return 0;
	}
	if (b && !b->registered) {
		if ((e = settle(b)) || (e = resident(b))) return e;
	}
	d.m.residency_misses++;
	if (b) b->busy++;
	if (b && !*temporary) forget_weight(b);
	e = upload(&q, b && !b->registered ? d.arena + b->at->off + at : w, bytes, NULL, 0, to);
	if (b) b->busy--;
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

static int gemv(const void *w, const void *in, void *out, int rows, int cols, struct job **job) {
	size_t x_at = 0, y_at = 0;
	int e = 0, temporary = 0;
	tfmbs_weight weight = 0;
	if (rows <= 0 || cols <= 0 || !w || !in || !out) return -EINVAL;
	if ((e = weight_of(w, (uint32_t)rows, (uint32_t)cols, &weight, &temporary))) return e;
	struct block *xb = find_own(in, &x_at), *yb = find_own(out, &y_at);
	tfmbs_gemv g = {.weight = weight, .rows = (uint32_t)rows, .cols = (uint32_t)cols, .n = 1, .x_type = TFMBS_PT5, .y_type = TFMBS_INT32, .x = in, .y = out};
	struct job *j = NULL;
	if (xb && x_bytes(TFMBS_PT5, g.cols) > xb->n - x_at) e = -EFAULT;
	if (yb && 4 * (size_t)g.rows > yb->n - y_at) e = -EFAULT;
	if (!e && xb && !(e = resident(xb))) xb->busy++; /* bringing y must not evict x */
	else xb = e ? NULL : xb;
	if (!e && yb) e = resident(yb);
	if (!e) j = new_job(&e);
	if (!e) {
		e = submit_gemv(&g, xb, xb ? xb->at->off + x_at : 0, yb, yb ? yb->at->off + y_at : 0, j);
		if (!e && yb) {
			yb->busy++;
			forget_weight(yb); /* it was written */
			yb->busy--;
		}
	}
	if (xb) xb->busy--;
	if (e) {
		if (j) end_job(j);
		if (temporary) simple(OP_RELEASE, weight);
		return e;
	}
	if (temporary) j->temporary = weight;
	*job = j;
	return 0;
}

API int fabric_exec_gemv(const void *w, const void *in, void *out, int rows, int cols) {
	struct job *j;
	int e = enter();
	if (e) return e;
	if (!(e = gemv(w, in, out, rows, cols, &j))) e = finish_wait(j);
	return leave(e);
}

API fabric_handle_t fabric_exec_gemv_async(const void *w, const void *in, void *out, int rows, int cols) {
	struct job *j;
	if (enter()) return NULL;
	fabric_handle_t h = gemv(w, in, out, rows, cols, &j) ? NULL : (fabric_handle_t)(uintptr_t)id_of(j);
	leave(0);
	return h;
}

API int fabric_wait(fabric_handle_t h) { return tfmbs_wait((uintptr_t)h); }

API int tfmbs_submit(const tfmbs_gemv *g, tfmbs_job *job) {
	int e = enter();
	if (e) return e;
	struct job *j = new_job(&e);
	if (j && (e = submit_gemv(g, NULL, 0, NULL, 0, j))) end_job(j);
	if (!e) *job = id_of(j);
	return leave(e);
}

API int tfmbs_submit_empty(tfmbs_job *job) {
	struct descriptor q = {.op = OP_EMPTY};
	int e = enter();
	if (e) return e;
	struct job *j = new_job(&e);
	if (j && (e = submit(j, &q))) end_job(j);
	if (!e) *job = id_of(j);
	return leave(e);
}

/* The job can be found even if the device has gone: it is over then. */
static struct job *enter_job(tfmbs_job id) {
	pthread_mutex_lock(&d.lock);
	struct job *j = d.pid && d.pid == getpid() ? find_job(id) : NULL;
	if (!j) pthread_mutex_unlock(&d.lock);
	return j;
}

API int tfmbs_poll(tfmbs_job id) {
	struct job *j = enter_job(id);
	if (!j) return -EINVAL;
	reap();
	struct pollfd p = {d.sock, POLLIN, 0};
	if (!j->over && poll(&p, 1, 0) > 0) {
		reap();
		lost();
	}
	return leave(j->over);
}

API int tfmbs_wait(tfmbs_job id) {
	struct job *j = enter_job(id);
	return j ? leave(finish_wait(j)) : -EINVAL;
}

API int tfmbs_cancel(tfmbs_job id) {
	struct job *j = enter_job(id);
	if (!j) return -EINVAL;
	reap();
	if (!j->over) __atomic_store_n(&d.subs[j->slot].cancel, 1, __ATOMIC_SEQ_CST); /* the slot is ours until it is over */
	return leave(0);
}

API int tfmbs_run_gemv(tfmbs_weight w, uint32_t rows, uint32_t cols, const float *x, float *y) {
	tfmbs_gemv g = {.weight = w, .rows = rows, .cols = cols, .n = 1, .x_type = TFMBS_FLOAT32, .y_type = TFMBS_FLOAT32, .block = 32, .x = x, .y = y};
	tfmbs_job job;
	int e = tfmbs_submit(&g, &job);
	return e ? e : tfmbs_wait(job);
}

/* ---- Plans ---- */

struct tfmbs_plan {
	int n, running;
	struct step {
		struct descriptor q;
		size_t row;
		struct job *job; /* while it runs */
	} steps[];
};

API int tfmbs_plan_new(const tfmbs_gemv *products, int n, tfmbs_plan **plan) {
	if (!products || n <= 0 || n > 1 << 20 || !plan) return -EINVAL;
	int e = enter();
	if (e) return e;
	tfmbs_plan *p = calloc(1, sizeof *p + (size_t)n * sizeof *p->steps);
	if (!p) return leave(-ENOMEM);
	for (int i = 0; i < n && !e; i++) {
		const tfmbs_gemv *g = &products[i];
		struct step *t = &p->steps[i];
		struct shape s;
		if ((e = shape_of(g, &s))) break;
		if (!in_arena(g->x, s.x) || !in_arena(g->y, s.y) || (g->scale && !in_arena(g->scale, s.scales))) e = -EFAULT;
		t->q = describe(g, &s);
		t->q.x = (uint64_t)((const uint8_t *)g->x - d.arena);
		t->q.y = (uint64_t)((uint8_t *)g->y - d.arena);
		if (g->scale) t->q.scale = (uint64_t)((const uint8_t *)g->scale - d.arena);
		t->row = s.out;
	}
	p->n = n;
	if (e) free(p);
	else *plan = p;
	return leave(e);
}

/* Waits for a step that was submitted. */
static int end_step(struct step *t) {
	await(t->job);
	int e = t->job->done.status;
	end_job(t->job);
	return e;
}

API int tfmbs_plan_run(tfmbs_plan *p) {
	if (!p) return -EINVAL;
	int e = enter(), first = 0, last = 0;
	if (e) return e;
	if (p->running) return leave(-EBUSY);
	p->running = 1; /* the mutex is given up while this waits */
	while (!e && last < p->n) {
		struct step *t = &p->steps[last];
		if (!(t->job = new_job(&e))) {
			if (first < last) e = end_step(&p->steps[first++]);
			continue;
		}
		t->job->row = t->row;
		t->job->n = t->q.n;
		t->job->product = 1;
		struct descriptor q = t->q;
		if ((e = submit(t->job, &q))) end_job(t->job);
		else last++;
	}
	int failed = 0;
	while (last > first) { /* the last one first: then the others are over, too, and this thread was woken once */
		int f = end_step(&p->steps[--last]);
		if (f) failed = f;
	}
	if (!e) e = failed;
	p->running = 0;
	return leave(e);
}

API void tfmbs_plan_free(tfmbs_plan *p) { free(p); }

/* ---- Weights and buffers ---- */

API int tfmbs_init(void) {
	int e = enter();
	return e ? e : leave(0);
}

API void tfmbs_shutdown(void) {
	pthread_mutex_lock(&d.lock);
	if (d.pid) drop();
	leave(0);
}

API int tfmbs_upload_frame(const void *frame, size_t bytes, uint32_t flags, tfmbs_weight *w) {
	struct descriptor q = {.op = OP_FRAME, .flags = flags & TFMBS_TWO_BIT, .w_bytes = bytes};
	int e = enter();
	if (e) return e;
	return leave(frame && bytes && w ? upload(&q, frame, bytes, NULL, 0, w) : -EINVAL);
}

API int tfmbs_upload_planes(int layer, const uint8_t *pt5, uint32_t planes, uint32_t rows, uint32_t cols, const uint16_t *scales, uint32_t block, uint32_t flags,
    tfmbs_weight *w) {
	struct descriptor q = {.op = OP_PLANES, .flags = flags & TFMBS_TWO_BIT, .rows = rows, .cols = cols, .planes = planes, .block = scales ? block : 0, .layer = (uint32_t)layer};
	uint64_t trits = (uint64_t)rows * cols;
	if (!pt5 || !w || !planes || planes > 6 || !trits || trits > 1ull << 34 || (scales && !block)) return -EINVAL;
	int e = enter();
	if (e) return e;
	return leave(upload(&q, pt5, (trits + 4) / 5 * planes, scales, scales ? 2 * (((uint64_t)cols + block - 1) / block) * rows : 0, w));
}

API int tfmbs_upload_blocks(int layer, uint32_t type, const void *blocks, size_t bytes, uint32_t rows, uint32_t cols, uint32_t flags, tfmbs_weight *w) {
	struct descriptor q = {.op = OP_BLOCKS, .flags = flags & (TFMBS_TWO_BIT | TFMBS_FAST | TFMBS_BALANCED), .w_bytes = bytes, .rows = rows, .cols = cols, .x_type = type, .layer = (uint32_t)layer};
	if (!blocks || !bytes || !w) return -EINVAL;
	int e = enter();
	if (e) return e;
	return leave(upload(&q, blocks, bytes, NULL, 0, w));
}

/* As fabric/device/hold.go has it. */
static uint64_t sample(const uint8_t *b, size_t n) {
	uint64_t h = 0xcbf29ce484222325u;
	for (size_t i = 0, k; i < 4; i++)
		for (k = n / 4 * i; k < n && k < n / 4 * i + 32; k++) h = (h ^ b[k]) * 0x100000001b3u;
	return h;
}

API int tfmbs_find_blocks(uint64_t dev, uint64_t ino, uint64_t offset, uint32_t type, const void *data, size_t bytes, uint32_t rows, uint32_t cols, tfmbs_weight *w) {
	if (!data || !bytes || !w) return -EINVAL;
	struct descriptor q = {.op = OP_FIND, .w = offset, .w_bytes = bytes, .x = dev, .x_stride = ino, .scale = sample(data, bytes), .rows = rows, .cols = cols, .x_type = type};
	int e = enter();
	if (e) return e;
	struct job *j = new_job(&e);
	return leave(j ? run(j, &q, w) : e);
}

API uint32_t tfmbs_held(void) {
	if (enter()) return 0;
	uint32_t v = get(HELD);
	leave(0);
	return v;
}

static int on_weight(uint32_t op, tfmbs_weight w) {
	int e = enter();
	return e ? e : leave(simple(op, w));
}

API int tfmbs_release(tfmbs_weight w) { return on_weight(OP_RELEASE, w); }
API int tfmbs_pin(tfmbs_weight w) { return on_weight(OP_PIN, w); }
API int tfmbs_unpin(tfmbs_weight w) { return on_weight(OP_UNPIN, w); }

API void *tfmbs_buffer(size_t n) {
	if (!n || enter()) return NULL;
	struct piece *p = take(d.stage, n);
	void *b = p ? d.arena + p->off : NULL;
	leave(0);
	return b;
}

API void tfmbs_buffer_free(void *ptr) {
	pthread_mutex_lock(&d.lock);
	if (d.pid == getpid() && in_arena(ptr, 1))
		for (struct piece *p = d.stage; p; p = p->next)
			if (p->used && d.arena + p->off == (uint8_t *)ptr) {
				give(d.stage, p);
				break;
			}
	leave(0);
}

/* ---- Metrics ---- */

API void fabric_get_metrics(fabric_metrics_t *m) {
	pthread_mutex_lock(&d.lock);
	if (d.pid == getpid()) reap();
	*m = d.m;
	m->pool_used = d.pool_used;
	m->pool_total = d.pool_total;
	if (m->total_ops) {
		m->sim_cycle_reduction = 100.0 * (double)m->zero_skips / (double)m->total_ops;
		m->semantic_efficiency = (double)m->active_ops / (double)m->total_ops;
	}
	if (m->active_ops) m->fabric_cost = (double)(m->mem_reads + m->mem_writes) / (double)m->active_ops;
	if (d.nanos) m->economic_efficiency = (double)m->active_ops / (double)d.nanos;
	leave(0);
}

API int fabric_dump_metrics_csv(const char *path) {
	fabric_metrics_t m;
	fabric_get_metrics(&m);
	FILE *f = fopen(path, "we");
	if (!f) return -errno;
	fprintf(f, "zero_skips,total_ops,lanes_used,sim_cycle_reduction,pool_used,pool_total,eviction_count,active_ops,mem_reads,mem_writes,broadcasts,residency_hits,"
	           "residency_misses,tile_local_reuse,cycles,fabric_cost,semantic_efficiency,economic_efficiency,fallback_count,offload_count\n");
	fprintf(f, "%ld,%ld,%d,%g,%zu,%zu,%d,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%ld,%g,%g,%g,%llu,%llu\n", m.zero_skips, m.total_ops, m.lanes_used, m.sim_cycle_reduction,
	    m.pool_used, m.pool_total, m.eviction_count, (unsigned long long)m.active_ops, (unsigned long long)m.mem_reads, (unsigned long long)m.mem_writes,
	    (unsigned long long)m.broadcasts, (unsigned long long)m.residency_hits, (unsigned long long)m.residency_misses, (unsigned long long)m.tile_local_reuse, m.cycles,
	    m.fabric_cost, m.semantic_efficiency, m.economic_efficiency, (unsigned long long)m.fallback_count, (unsigned long long)m.offload_count);
	int bad = ferror(f);
	return fclose(f) || bad ? -EIO : 0;
}
