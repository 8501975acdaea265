/* Finds the products of a matrix with a vector in a program that tells nothing of itself: by the order in which it reads the pages of a model, without names, symbols or the file's contents. A part of
 * libtfmbs_intercept.so, which TFMBS_DETECT turns on. The model is a mapped file, or memory of the program's own that was filled from one with read, pread or fread.
 *
 * A pass takes the right to read a mapping away, page by page of it is given back when a thread asks for it (SIGSEGV), and who asked is noted: each page once. What is read from beginning to end, by one thread
 * or by several side by side, is a scan. A product reads its matrix in one scan, and does so again for each token. So several passes are compared: a bound that most of them have is one of a matrix, another
 * is a thread's that was interrupted.
 *
 * Pages tell where a matrix lies and how large it is, not how many rows it has: half as many of twice the length are read in the same way. Rows and columns are said only where the program hands an op to
 * ggml_graph_compute, by the lengths of the vectors that go in and come out, and only if the matrix between them is the region that was found.
 *
 * While a pass lasts, the program is slow, and the kernel may not use the memory for it (EFAULT): this is an instrument, not for every day. */
#ifndef TFMBS_DETECT_H
#define TFMBS_DETECT_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- From touches to scans ---- */

/* The first use of a unit (one or more pages) of a mapping in a pass, in order of time. */
struct touch {
	uint32_t unit;
	uint32_t thread;
	int64_t ns;
};

/* Units first to end-1, which were read in one go, as touches from to to. */
struct scan {
	uint32_t first, end;
	size_t from, to;
	uint32_t thread;
	bool shared; /* by several threads */
};

enum {
	HOLE = 2,        /* units that something else has read before, a norm or the end of another matrix */
	LATE = 3,        /* touches between what one thread and another one read */
	THREADS = 64,    /* that are told apart */
	LEAST_UNITS = 8, /* of a matrix: less is a norm, or a row of the table of embeddings */
};

static int by_value(const void *a, const void *b) {
	const int64_t *x = a, *y = b;
	return *x < *y ? -1 : *x > *y;
}

/* Notes the units whose touch came later than usual after that of the unit before. With several threads nothing is noted: they wait for each other and for processors everywhere. */
static void note_pauses(const struct touch *t, size_t n, uint8_t *pauses) {
	int64_t *sorted = malloc(n * sizeof *sorted);
	size_t counted = 0;
	bool alone = sorted != NULL;
	for (size_t i = 1; alone && i < n; i++) {
		alone = t[i].thread == t[0].thread;
		if (t[i].unit > t[i - 1].unit && t[i].unit <= t[i - 1].unit + HOLE + 1) sorted[counted++] = t[i].ns - t[i - 1].ns;
	}
	if (alone && counted > 0) {
		qsort(sorted, counted, sizeof *sorted, by_value);
		int64_t usual = sorted[counted / 2];
		for (size_t i = 1; i < n; i++)
			if (t[i].unit > t[i - 1].unit && t[i].unit <= t[i - 1].unit + HOLE + 1 && t[i].ns - t[i - 1].ns > usual + usual * 3 / 10) pauses[t[i].unit] = 1;
	}
	free(sorted);
}

/* Divides the touches of a pass into scans, at most most of them, in the order of their first touch: each of one thread, which goes on where it was. pauses, if not NULL, is set for each unit whose touch
 * came after a pause within a scan. */
static size_t find_scans(const struct touch *t, size_t n, struct scan *scans, size_t most, uint8_t *pauses) {
	struct {
		uint32_t thread;
		size_t scan;
	} at[THREADS];
	size_t found = 0;
	int threads = 0, next = 0;
	for (size_t i = 0; i < n; i++) {
		int k = 0;
		while (k < threads && at[k].thread != t[i].thread) k++;
		struct scan *s = k < threads ? &scans[at[k].scan] : NULL;
		if (s && t[i].unit >= s->first && t[i].unit <= s->end + HOLE) {
			if (t[i].unit >= s->end) s->end = t[i].unit + 1;
			s->to = i;
			continue;
		}
		if (found == most) break;
		if (k == threads) {
			if (threads < THREADS) threads++;
			else k = next++ % THREADS; /* more than can be told apart: the oldest is forgotten */
		}
		at[k].thread = t[i].thread;
		at[k].scan = found;
		scans[found++] = (struct scan){t[i].unit, t[i].unit + 1, i, i, t[i].thread, false};
	}
	if (pauses) note_pauses(t, n, pauses);
	return found;
}

static int by_first(const void *a, const void *b) {
	const struct scan *x = a, *y = b;
	return x->first < y->first ? -1 : x->first > y->first;
}

/* Joins scans that threads have made side by side: one ends where the other began. Either they were under way at the same time, or a thread that waited for a processor made its part when the others had made
 * theirs: nobody reads anything else before that is done. Sorts them by their place. */
static size_t join_scans(struct scan *s, size_t n) {
	qsort(s, n, sizeof *s, by_first);
	for (int late = 0; late < 2; late++) {
		size_t m = 0;
		for (size_t i = 0; i < n; i++) {
			struct scan *last = m ? &s[m - 1] : NULL, *first = last && last->from < s[i].from ? last : &s[i], *second = first == last ? &s[i] : last;
			bool inside = last && s[i].first < last->end && s[i].end <= last->end;
			bool beside = last && s[i].first <= last->end + 1 && s[i].first + 1 >= last->end;
			bool together = beside && first->to > second->from;
			bool behind = beside && late && !last->shared && !s[i].shared && last->thread != s[i].thread && second->from - first->to <= LATE;
			if (!inside && !together && !behind) {
				s[m++] = s[i];
				continue;
			}
			if (!inside) last->shared = true;
			if (s[i].end > last->end) last->end = s[i].end;
			if (s[i].from < last->from) last->from = s[i].from;
			if (s[i].to > last->to) last->to = s[i].to;
		}
		n = m;
	}
	return n;
}

/* What passes have in common, by unit. */
struct votes {
	uint8_t *bound; /* passes in which a scan began or ended before this unit, */
	uint8_t *inner; /* and in which one went on there */
	uint8_t *cover; /* passes in which it was part of a scan */
	uint8_t *pause; /* and in which a scan paused before it */
	uint32_t units;
};

static void vote(struct votes *v, const struct scan *s, size_t n, const uint8_t *pauses) {
	for (size_t i = 0; i < n; i++) {
		if (s[i].end - s[i].first < LEAST_UNITS) continue;
		for (uint32_t u = s[i].first; u < s[i].end; u++) {
			if (v->cover[u] < 255) v->cover[u]++;
			if (u > s[i].first && v->inner[u] < 255) v->inner[u]++;
			if (u > s[i].first && pauses[u] && v->pause[u] < 255) v->pause[u]++;
		}
		if (v->bound[s[i].first] < 255) v->bound[s[i].first]++;
		if (v->bound[s[i].end] < 255) v->bound[s[i].end]++;
	}
}

struct found_gemv {
	uint32_t first, end;
	double confidence;
	int passes;
};

/* Votes for a bound before u, or one unit beside it: matrices do not begin with pages. */
static int bounds_near(const struct votes *v, uint32_t u) {
	int sum = v->bound[u];
	if (u > 0) sum += v->bound[u - 1];
	if (u < v->units) sum += v->bound[u + 1];
	return sum;
}

/* How many of the passes say that there is a bound before u, 0 to 1. */
static double bound_share(const struct votes *v, uint32_t u) {
	int bounds = bounds_near(v, u), inner = v->inner[u], pauses = v->pause[u];
	if (u > 0 && v->inner[u - 1] < inner) inner = v->inner[u - 1];
	if (u < v->units && v->inner[u + 1] < inner) inner = v->inner[u + 1];
	double by_bounds = bounds + inner ? bounds / (bounds + 2. * inner) : 0, by_pauses = inner ? (double)pauses / inner : 0;
	return by_pauses > 0.7 && inner >= 3 && by_pauses > by_bounds ? by_pauses : by_bounds;
}

/* The matrices on which passes agree: what at least two of them scanned, between bounds that at least half of them have. Returns how many, at most most. */
static size_t agree(const struct votes *v, struct found_gemv *out, size_t most) {
	size_t n = 0;
	for (uint32_t u = 0; u < v->units && n < most;) {
		if (v->cover[u] < 2) {
			u++;
			continue;
		}
		uint32_t first = u, end = u + 1;
		for (;; end++) {
			if (end >= v->units || v->cover[end] < 2) break;
			if (end - first < LEAST_UNITS || bound_share(v, end) < 0.5) continue;
			/* of neighbours the one with most votes */
			if (end + 1 < v->units && v->bound[end + 1] + v->pause[end + 1] > v->bound[end] + v->pause[end] && bound_share(v, end + 1) >= 0.5) continue;
			break;
		}
		if (end - first >= LEAST_UNITS) {
			double a = bound_share(v, first), b = bound_share(v, end);
			out[n++] = (struct found_gemv){first, end, a < b ? a : b, v->cover[first + (end - first) / 2]};
		}
		u = end;
	}
	return n;
}

/* ---- Rows and columns ---- */

/* What an op of the program's says: how long the vectors are that a matrix multiplies (cols) and makes (rows), where it lies and how large it is. Of experts there are count, which follow each other. */
struct op {
	uintptr_t from;
	uint64_t size;
	uint32_t count, rows, cols;
};

/* Rows and columns of the region from to to, if the ops that use it agree: bounds that are less than two units off, in all a sixth of it at most. 0: not known. */
static void shape(const struct op *ops, size_t n, uintptr_t from, uintptr_t to, size_t unit, uint32_t *rows, uint32_t *cols) {
	bool differ = false;
	*rows = *cols = 0;
	for (size_t i = 0; i < n; i++) {
		const struct op *o = &ops[i];
		if (!o->size || to <= o->from) continue;
		uint64_t which = from > o->from ? (from - o->from + o->size / 2) / o->size : 0;
		if (which >= o->count) continue;
		uintptr_t begin = o->from + which * o->size, end = begin + o->size;
		uint64_t a = begin > from ? begin - from : from - begin, b = end > to ? end - to : to - end;
		if (a >= 2 * unit || b >= 2 * unit || 6 * (a + b) > o->size) continue;
		differ |= *rows && (*rows != o->rows || *cols != o->cols);
		*rows = o->rows;
		*cols = o->cols;
	}
	if (differ) *rows = *cols = 0;
}

/* ---- Watching ---- */

enum {
	MAPS = 16,
	OPS = 1 << 14,       /* that are remembered */
	FILLS = 1 << 15,     /* reads, of which those that go on with the one before are one */
	LEAST_FILL = 256,    /* bytes of a read that is noted */
	BETWEEN = 512,       /* bytes between two fills of one piece of memory */
	LEAST_OWN = 1 << 20, /* bytes of a piece that is watched */
	LOADED_MS = 300,     /* without a read: the model is loaded */
	TOUCHES = 1 << 19,   /* noted in a pass */
	PASSES = 10,
	QUIET_MS = 30,     /* without a new page: all that tokens read was read */
	IDLE_PASSES = 50,  /* without anything to see, before the next mapping is watched */
	LONGEST_MS = 4000, /* a pass, where tokens read something else each time */
};

static struct {
	const char *to; /* TFMBS_DETECT; NULL: nothing is watched */
	struct map {
		uintptr_t from, to;
		uint64_t offset; /* in the file */
		bool own;        /* memory of the program's own, that was filled from files: where from, fills say */
		char path[256];
	} maps[MAPS];
	_Atomic int count;
	_Atomic uintptr_t low, high; /* the program's own memory is within these */
	struct file {
		dev_t dev;
		ino_t ino;
		char path[256];
	} files[MAPS]; /* that fills came from */
	int file_count;
	struct fill {
		uintptr_t from, to;
		uint64_t offset;
		int file;
	} * fills;
	size_t fill_count;
	int64_t filled_ns;    /* when the last one came; 0: all of them were looked at */
	struct op ops[OPS];   /* by a hash of from */
	pthread_mutex_t lock; /* of all above, and armed */
	struct map now;       /* the map of the pass */
	_Atomic bool armed;
	_Atomic size_t n;
	_Atomic bool failed; /* the kernel allows no more mappings */
	size_t unit;         /* bytes */
	struct touch *touches;
	struct sigaction before;
	bool started;
	pthread_t watcher;
	_Atomic bool ending; /* the program ends */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The kernel's handler of SIGSEGV, whatever the program asks for (changed). The first call is not that of a signal's handler, so that later ones find nothing to look up. */
static int install(const struct sigaction *new, struct sigaction *old) {
	static int (*next)(int, const struct sigaction *, struct sigaction *);
	if (!next) next = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
	return next ? next(SIGSEGV, new, old) : -1;
}

static int64_t now_ns(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Calls f for the mappings of this process that are within from and to, as /proc/self/maps has them; false: it cannot be read. Async-signal-safe, and without memory of its own: it is called when mappings are
 * short. */
static bool each_mapping(uintptr_t from, uintptr_t to, void (*f)(uintptr_t from, uintptr_t to, const char *rights, bool anonymous, void *arg), void *arg) {
	char b[4096];
	size_t n = 0;
	int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
	if (fd < 0) return false;
	for (;;) {
		ssize_t got = syscall(SYS_read, fd, b + n, sizeof b - n);
		if (got <= 0) break;
		n += (size_t)got;
		for (char *end; (end = memchr(b, '\n', n));) { /* "from-to rwxp offset device inode path" */
			uintptr_t at[2] = {0, 0};
			char *c = b;
			for (int i = 0; i < 2; i++, c++)
				for (; c < end && *c != '-' && *c != ' '; c++) at[i] = at[i] << 4 | (uintptr_t)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
			char *field = c;
			for (int i = 0; i < 3 && field < end; field++) i += *field == ' ';
			if (at[0] < to && at[1] > from) f(at[0] > from ? at[0] : from, at[1] < to ? at[1] : to, c, *field == '0', arg);
			n -= (size_t)(end + 1 - b);
			memmove(b, end + 1, n);
		}
		if (n == sizeof b) n = 0; /* a path that is longer than paths are */
	}
	syscall(SYS_close, fd);
	return true;
}

static void give_back_one(uintptr_t from, uintptr_t to, const char *rights, bool anonymous, void *unused) {
	(void)unused;
	if (anonymous && !memcmp(rights, "---p", 4)) syscall(SYS_mprotect, from, to - from, PROT_READ | PROT_WRITE);
}

/* Gives back what of a map was taken away. Of the program's own memory nobody says when it goes: what is there now may be another's, with other rights. */
static long give_back(const struct map *m) {
	if (!m->own) return syscall(SYS_mprotect, m->from, m->to - m->from, PROT_READ);
	return each_mapping(m->from, m->to, give_back_one, NULL) ? 0 : syscall(SYS_mprotect, m->from, m->to - m->from, PROT_READ | PROT_WRITE);
}

static void add_ordinary(uintptr_t from, uintptr_t to, const char *rights, bool anonymous, void *sum) {
	if (anonymous && !memcmp(rights, "rw-p", 4)) *(uintptr_t *)sum += to - from;
}

/* Whether all from from to to is memory as malloc gives it. */
static bool ordinary(uintptr_t from, uintptr_t to) {
	uintptr_t sum = 0;
	return each_mapping(from, to, add_ordinary, &sum) && sum == to - from;
}

/* Async-signal-safe: it makes system calls and writes to memory that is there. */
static void touched(int sig, siginfo_t *info, void *context) {
	int e = errno;
	uintptr_t a = (uintptr_t)info->si_addr;
	if (watch.touches && info->si_code == SEGV_ACCERR && a >= watch.now.from && a < watch.now.to) {
		size_t unit = (a - watch.now.from) / watch.unit, bytes = watch.unit, left = watch.now.to - watch.now.from - unit * watch.unit;
		size_t at = watch.armed ? atomic_fetch_add(&watch.n, 1) : TOUCHES;
		if (at < TOUCHES) watch.touches[at] = (struct touch){(uint32_t)unit, (uint32_t)syscall(SYS_gettid), now_ns()};
		if (!syscall(SYS_mprotect, watch.now.from + unit * watch.unit, bytes < left ? bytes : left, watch.now.own ? PROT_READ | PROT_WRITE : PROT_READ)) {
			errno = e;
			return;
		}
		/* Too many mappings: all of it at once. */
		watch.failed = true;
		if (!give_back(&watch.now)) {
			errno = e;
			return;
		}
	}
	/* Not ours. */
	if (watch.before.sa_flags & SA_SIGINFO) watch.before.sa_sigaction(sig, info, context);
	else if (watch.before.sa_handler == SIG_DFL || watch.before.sa_handler == SIG_IGN) install(&watch.before, NULL); /* it comes again */
	else watch.before.sa_handler(sig);
	errno = e;
}

/* The lock is held. */
static void disarm(void) {
	if (!watch.armed) return;
	watch.armed = false;
	give_back(&watch.now);
}

static void nap(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

/* Makes a pass over a map, and copies that. Returns how many touches there were; 0: none, or the map is gone. */
static size_t pass(int which, struct map *m) {
	pthread_mutex_lock(&watch.lock);
	struct sigaction now;
	*m = watch.maps[which];
	bool there = m->to > m->from && !install(NULL, &now) && now.sa_flags & SA_SIGINFO && now.sa_sigaction == touched; /* the program may have a handler of its own by now */
	watch.n = 0;
	if (there && m->own && !ordinary(m->from, m->to)) { /* it was freed */
		watch.maps[which].from = watch.maps[which].to = m->from = m->to = 0;
		there = false;
	}
	if (there) {
		watch.now = *m;
		watch.unit = 4096;
		while ((m->to - m->from) / watch.unit > TOUCHES / 2) watch.unit *= 2;
		watch.armed = true;
		there = !syscall(SYS_mprotect, m->from, m->to - m->from, PROT_NONE);
		if (!there) disarm();
	}
	pthread_mutex_unlock(&watch.lock);
	if (!there) return 0;
	int64_t begun = now_ns();
	size_t before = 0;
	for (int quiet = 0; now_ns() - begun < LONGEST_MS * 1000000L && quiet < QUIET_MS && watch.armed && !watch.failed && !watch.ending;) {
		nap(1);
		quiet = watch.n == before && before > 0 ? quiet + 1 : 0;
		before = watch.n;
	}
	pthread_mutex_lock(&watch.lock);
	disarm();
	pthread_mutex_unlock(&watch.lock);
	nap(2); /* who was being noted is by now */
	return watch.n < TOUCHES ? watch.n : TOUCHES;
}

/* The file and the place in it that most of the program's own memory from from to to was filled from; false: none. The lock is held. */
static bool filled_from(uintptr_t from, uintptr_t to, const char **path, uint64_t *offset) {
	uintptr_t most = 0;
	for (size_t i = 0; i < watch.fill_count; i++) {
		const struct fill *f = &watch.fills[i];
		uintptr_t a = f->from > from ? f->from : from, b = f->to < to ? f->to : to;
		if (a >= b || b - a <= most || f->offset + from < f->from) continue;
		most = b - a;
		*path = watch.files[f->file].path;
		*offset = f->offset + from - f->from;
	}
	return most > 0;
}

/* Says what was found in a map. */
static void tell(const struct map *m, const struct found_gemv *f, int made, FILE *out) {
	uintptr_t from = m->from + f->first * watch.unit, size = (f->end - f->first) * watch.unit;
	uint64_t offset = m->offset + f->first * watch.unit;
	const char *path = m->path;
	char shaped[96] = "";
	uint32_t rows, cols;
	pthread_mutex_lock(&watch.lock);
	bool known = !m->own || filled_from(from, from + size, &path, &offset);
	shape(watch.ops, OPS, from, from + size, watch.unit, &rows, &cols);
	pthread_mutex_unlock(&watch.lock);
	if (!known) return; /* something else was read into it meanwhile */
	if (rows && out) snprintf(shaped, sizeof shaped, "%u,%u,op", rows, cols);
	else if (rows) snprintf(shaped, sizeof shaped, ", %u rows and %u columns (by the op's vectors)", rows, cols);
	if (out) fprintf(out, "%s,%llu,%llu,%.2f,%d,%s,%s\n", path, (unsigned long long)offset, (unsigned long long)size, f->confidence, f->passes, m->own ? "read" : "mapped", rows ? shaped : ",,");
	else
		fprintf(stderr, "tfmbs: GEMV detected: %s%s: %llu bytes at %llu, confidence %.2f, in %d of %d passes%s\n", path, m->own ? ", read into memory" : "", (unsigned long long)size, (unsigned long long)offset, f->confidence, f->passes, made - 1,
		    shaped);
}

/* Says what several passes over a map have found. */
static void detect(int which, FILE *out) {
	struct map map, *m = &map;
	pthread_mutex_lock(&watch.lock);
	*m = watch.maps[which];
	pthread_mutex_unlock(&watch.lock);
	uint32_t most = (uint32_t)((m->to - m->from) / 4096 + 2);
	struct votes v = {calloc(most, 1), calloc(most, 1), calloc(most, 1), calloc(most, 1), 0};
	uint8_t *pauses = malloc(most);
	struct scan *scans = malloc(65536 * sizeof *scans);
	struct found_gemv *g = malloc(65536 * sizeof *g);
	int made = 0;
	uintptr_t from = 0;
	for (int idle = 0; v.bound && v.inner && v.cover && v.pause && pauses && scans && g && made < PASSES && idle < IDLE_PASSES && !watch.ending;) {
		size_t n = pass(which, m);
		if (m->to <= m->from) break; /* it was unmapped */
		idle = n < LEAST_UNITS ? idle + 1 : 0;
		if (n < LEAST_UNITS || m->from != from) { /* less of it is mapped than before: the passes begin anew */
			from = n < LEAST_UNITS ? from : m->from;
			if (n >= LEAST_UNITS) made = 0;
			nap(10); /* it computes nothing now */
			continue;
		}
		if (watch.failed) {
			fprintf(stderr, "tfmbs: %s: what it reads is too scattered to be watched (vm.max_map_count)\n", m->path);
			break;
		}
		v.units = (uint32_t)((m->to - m->from + watch.unit - 1) / watch.unit);
		memset(pauses, 0, most);
		size_t k = find_scans(watch.touches, n, scans, 65536, pauses);
		k = join_scans(scans, k);
		if (made++ == 0) { /* the program may only begin */
			memset(v.bound, 0, most);
			memset(v.inner, 0, most);
			memset(v.cover, 0, most);
			memset(v.pause, 0, most);
		} else
			vote(&v, scans, k, pauses);
	}
	size_t k = made > 2 ? agree(&v, g, 65536) : 0;
	for (size_t i = 0; i < k; i++) tell(m, &g[i], made, out);
	fprintf(stderr, "tfmbs: %zu matrices were detected in %s%s, in %d passes\n", k, m->path, m->own ? ", read into memory" : "", made);
	free(v.bound);
	free(v.inner);
	free(v.cover);
	free(v.pause);
	free(pauses);
	free(scans);
	free(g);
}

/* When nothing was read for a while: pieces of memory that were filled from files are watched from now on, the largest first, as one map each. */
static void look_at_fills(void) {
	pthread_mutex_lock(&watch.lock);
	if (!watch.filled_ns || now_ns() - watch.filled_ns < LOADED_MS * 1000000LL) {
		pthread_mutex_unlock(&watch.lock);
		return;
	}
	watch.filled_ns = 0;
	for (int before = -1; before != watch.count && watch.count < MAPS;) {
		struct map best = {0};
		before = watch.count;
		for (size_t i = 0, end; i < watch.fill_count; i = end) {
			for (end = i + 1; end < watch.fill_count && watch.fills[end].from - watch.fills[end - 1].to <= BETWEEN; end++) {}
			uintptr_t from = (watch.fills[i].from + 4095) & ~(uintptr_t)4095, to = watch.fills[end - 1].to & ~(uintptr_t)4095;
			bool known = from + LEAST_OWN > to || to - from <= best.to - best.from;
			for (int k = 0; k < watch.count && !known; k++) known = watch.maps[k].own && from < watch.maps[k].to && to > watch.maps[k].from;
			if (known) continue;
			if (ordinary(from, to)) {
				best = (struct map){from, to, 0, true, ""};
				strcpy(best.path, watch.files[watch.fills[i].file].path);
				continue;
			}
			fprintf(stderr, "tfmbs: %zu bytes of %s were read into memory that is used for something else by now (as repacked weights are): not watched\n", (size_t)(to - from), watch.files[watch.fills[i].file].path);
			memmove(&watch.fills[i], &watch.fills[end], (watch.fill_count - end) * sizeof *watch.fills);
			watch.fill_count -= end - i;
			end = i;
		}
		if (!best.to) break;
		if (!watch.low || best.from < watch.low) watch.low = best.from;
		if (best.to > watch.high) watch.high = best.to;
		watch.maps[watch.count] = best;
		watch.count++;
		memset(watch.ops, 0, sizeof watch.ops);
	}
	pthread_mutex_unlock(&watch.lock);
}

static void *watcher(void *unused) {
	(void)unused;
	FILE *out = strcmp(watch.to, "-") ? fopen(watch.to, "we") : NULL;
	if (strcmp(watch.to, "-") && !out) {
		fprintf(stderr, "tfmbs: nothing is detected: %s: %s\n", watch.to, strerror(errno));
		return NULL;
	}
	if (out) fprintf(out, "file,offset_bytes,size_bytes,confidence,passes,memory,rows,columns,shape_from\n");
	for (int done = 0; done < MAPS && !watch.ending; nap(10)) {
		look_at_fills();
		if (done == watch.count) continue;
		detect(done++, out);
		if (out) fflush(out);
	}
	if (out) fclose(out);
	return NULL;
}

/* The path of an open file, or "". */
static void path_of(int fd, char path[static 256]) {
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, 255);
	path[n > 0 ? n : 0] = 0;
}

static bool is_gguf(int fd) {
	char magic[4];
	return syscall(SYS_pread64, fd, magic, 4, 0) == 4 && !memcmp(magic, "GGUF", 4);
}

/* Starts to watch, with the first model. The lock is held. */
static bool start_watching(void) {
	if (!watch.started) {
		struct sigaction a = {.sa_sigaction = touched, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
		size_t touches = TOUCHES * sizeof *watch.touches, fills = FILLS * sizeof *watch.fills;
		char *room = (char *)syscall(SYS_mmap, NULL, touches + fills, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		watch.touches = (struct touch *)room;
		watch.fills = (struct fill *)(room + touches);
		watch.started = room != MAP_FAILED && !install(&a, &watch.before) && !pthread_create(&watch.watcher, NULL, watcher, NULL);
		if (!watch.started) watch.to = NULL;
	}
	return watch.to;
}

/* Notes that a file was mapped; of a GGUF the watcher is told. */
static void mapped(void *at, size_t length, int prot, int fd, int64_t offset) {
	if (!watch.to || at == MAP_FAILED || fd < 0 || prot != PROT_READ || !is_gguf(fd)) return;
	pthread_mutex_lock(&watch.lock);
	if (start_watching() && watch.count < MAPS) {
		struct map *m = &watch.maps[watch.count];
		*m = (struct map){(uintptr_t)at, (uintptr_t)at + length, (uint64_t)offset, false, ""};
		path_of(fd, m->path);
		watch.count++;
		memset(watch.ops, 0, sizeof watch.ops); /* of what was there before; the others' are said again */
	}
	pthread_mutex_unlock(&watch.lock);
}

/* Notes that memory is to be read into, before it is: the kernel could not if a pass had taken it away. */
static void filling(const void *at, size_t length) {
	uintptr_t from = (uintptr_t)at, to = from + length;
	if (!watch.to || from >= watch.high || to <= watch.low) return;
	pthread_mutex_lock(&watch.lock);
	for (int i = 0; i < watch.count; i++) {
		struct map *m = &watch.maps[i];
		if (!m->own || from >= m->to || to <= m->from) continue;
		if (watch.armed && watch.now.from < m->to && watch.now.to > m->from) disarm();
		m->from = m->to = 0;
	}
	pthread_mutex_unlock(&watch.lock);
}

/* Forgets what memory was filled with. The lock is held. */
static void forget_fills(uintptr_t from, uintptr_t to) {
	size_t n = 0;
	for (size_t i = 0; i < watch.fill_count; i++)
		if (from >= watch.fills[i].to || to <= watch.fills[i].from) watch.fills[n++] = watch.fills[i];
	watch.fill_count = n;
}

/* Notes that memory was filled with what is at offset in a file; -1: where the file is now, behind that. */
static void filled(const void *at, size_t length, int fd, int64_t offset) {
	uintptr_t from = (uintptr_t)at, to = from + length;
	int e = errno;
	struct stat st;
	if (!watch.to || length < LEAST_FILL || fd < 0 || !is_gguf(fd) || fstat(fd, &st) || (offset < 0 && (offset = lseek(fd, 0, SEEK_CUR) - (int64_t)length) < 0)) {
		errno = e;
		return;
	}
	pthread_mutex_lock(&watch.lock);
	if (start_watching()) {
		int k = 0;
		while (k < watch.file_count && (watch.files[k].dev != st.st_dev || watch.files[k].ino != st.st_ino)) k++;
		if (k == watch.file_count && k < MAPS) {
			watch.files[k] = (struct file){st.st_dev, st.st_ino, ""};
			path_of(fd, watch.files[k].path);
			watch.file_count++;
		}
		forget_fills(from, to);
		size_t i = watch.fill_count; /* their order is that of memory: mostly it comes behind all others */
		while (i > 0 && watch.fills[i - 1].from > from) i--;
		struct fill *last = i ? &watch.fills[i - 1] : NULL;
		if (last && last->file == k && last->to == from && last->offset + (last->to - last->from) == (uint64_t)offset) last->to = to;
		else if (k < MAPS && watch.fill_count < FILLS) {
			memmove(&watch.fills[i + 1], &watch.fills[i], (watch.fill_count++ - i) * sizeof *watch.fills);
			watch.fills[i] = (struct fill){from, to, (uint64_t)offset, k};
		}
		watch.filled_ns = now_ns();
	}
	pthread_mutex_unlock(&watch.lock);
	errno = e;
}

/* Notes an op with a matrix that is watched. */
static void note_op(struct op o) {
	if (!watch.to) return;
	pthread_mutex_lock(&watch.lock);
	bool ours = false;
	for (int i = 0; i < watch.count && !ours; i++) ours = o.from >= watch.maps[i].from - (watch.maps[i].own ? 4096 : 0) && o.from < watch.maps[i].to;
	for (size_t i = (o.from >> 5) * 0x9e3779b97f4a7c15u >> 50, tries = 0; ours && tries < 64; i = (i + 1) % OPS, tries++)
		if (!watch.ops[i].size || watch.ops[i].from == o.from) {
			watch.ops[i] = o;
			break;
		}
	pthread_mutex_unlock(&watch.lock);
}

/* Notes that memory goes, or is to be used in another way, before it does. */
static void unmapped(const void *at, size_t length) {
	uintptr_t from = (uintptr_t)at, to = from + length;
	if (!watch.to || !watch.started) return;
	pthread_mutex_lock(&watch.lock);
	if (watch.armed && from < watch.now.to && to > watch.now.from) disarm();
	forget_fills(from, to);
	for (int i = 0; i < watch.count; i++) {
		struct map *m = &watch.maps[i];
		if (from >= m->to || to <= m->from) continue;
		if (from <= m->from && to < m->to) { /* llama.cpp unmaps what is before and behind the weights */
			m->offset += to - m->from;
			m->from = to;
		} else if (from > m->from && to >= m->to)
			m->to = from;
		else
			m->from = m->to = 0;
	}
	pthread_mutex_unlock(&watch.lock);
}

/* The program sets its own handler of SIGSEGV: it gets the signals that are not ours. Says whether that is so; else nothing was done. */
static bool changed(const struct sigaction *new, struct sigaction *old) {
	pthread_mutex_lock(&watch.lock);
	bool ours = watch.started;
	if (ours && old) *old = watch.before;
	if (ours && new) watch.before = *new;
	pthread_mutex_unlock(&watch.lock);
	return ours;
}

/* Ends the pass that is under way, and waits until what was found is said. */
static void end_watch(void) {
	if (!watch.started) return;
	watch.ending = true;
	pthread_join(watch.watcher, NULL);
}

#endif
