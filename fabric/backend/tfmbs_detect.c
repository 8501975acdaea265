//go:build ignore

/* Watches what a program reads of a model, and finds the matrices in that (tfmbs_detect.h has how).
 * The thread that watches makes passes and says what it has found. */
#define _GNU_SOURCE
#include "tfmbs_detect.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- From touches to scans ---- */

/* The first use of a unit (one or more pages) of a mapping in a pass. */
struct touch {
	uint32_t unit;
	uint32_t thread;
	int64_t ns;
};

/* Units first to end-1, which were read in one go. from and to are the numbers of the first and the last touch. */
struct scan {
	uint32_t first, end;
	size_t from, to;
	uint32_t thread;
	bool shared; /* by several threads */
};

enum {
	HOLE = 2,      /* units missing in a scan: something else has read them before, a norm or the end of a matrix */
	LATE = 3,      /* touches between the part of one thread and the part of another one that comes late */
	THREADS = 64,  /* threads that are told apart */
	MIN_UNITS = 8, /* units of a matrix: less is a norm, or a row of the table of embeddings */
};

static int compare_values(const void *a, const void *b) {
	const int64_t *x = a, *y = b;
	return *x < *y ? -1 : *x > *y;
}

/* Sets pauses for the units whose touch came later than usual after that of the unit before. With
 * several threads nothing is set: they wait for each other and for processors everywhere. */
static void note_pauses(const struct touch *t, size_t n, uint8_t *pauses) {
	int64_t *sorted = malloc(n * sizeof *sorted);
	size_t counted = 0;
	bool alone = sorted != NULL;
	for (size_t i = 1; alone && i < n; i++) {
		alone = t[i].thread == t[0].thread;
		if (t[i].unit > t[i - 1].unit && t[i].unit <= t[i - 1].unit + HOLE + 1)
			sorted[counted++] = t[i].ns - t[i - 1].ns;
	}
	if (alone && counted > 0) {
		qsort(sorted, counted, sizeof *sorted, compare_values);
		int64_t usual = sorted[counted / 2];
		for (size_t i = 1; i < n; i++)
			if (t[i].unit > t[i - 1].unit && t[i].unit <= t[i - 1].unit + HOLE + 1 &&
			    t[i].ns - t[i - 1].ns > usual + usual * 3 / 10)
				pauses[t[i].unit] = 1;
	}
	free(sorted);
}

/* Divides the touches of a pass, which are in the order of time, into at most limit scans, in the
 * order of their first touch. A scan is of one thread, which goes on where it was. pauses, if not
 * NULL, is set for each unit whose touch came after a pause within a scan. */
static size_t find_scans(const struct touch *t, size_t n, struct scan *scans, size_t limit, uint8_t *pauses) {
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
		if (found == limit) break;
		if (k == threads) {
			if (threads < THREADS) threads++;
			else k = next++ % THREADS; /* more than can be told apart: one of them is forgotten */
		}
		at[k].thread = t[i].thread;
		at[k].scan = found;
		scans[found++] = (struct scan){t[i].unit, t[i].unit + 1, i, i, t[i].thread, false};
	}
	if (pauses) note_pauses(t, n, pauses);
	return found;
}

static int compare_first(const void *a, const void *b) {
	const struct scan *x = a, *y = b;
	return x->first < y->first ? -1 : x->first > y->first;
}

/* Joins scans that threads have made side by side, so that one ends where the other began. Either they
 * were under way at the same time, or a thread that waited for a processor made its part after the
 * others: nobody reads anything else before the product is done. Sorts the scans by their first unit,
 * and returns how many are left. */
static size_t join_scans(struct scan *s, size_t n) {
	qsort(s, n, sizeof *s, compare_first);
	for (int late = 0; late < 2; late++) {
		size_t m = 0;
		for (size_t i = 0; i < n; i++) {
			struct scan *last = m ? &s[m - 1] : NULL, *first = last && last->from < s[i].from ? last : &s[i],
			            *second = first == last ? &s[i] : last;
			bool inside = last && s[i].first < last->end && s[i].end <= last->end;
			bool beside = last && s[i].first <= last->end + 1 && s[i].first + 1 >= last->end;
			bool together = beside && first->to > second->from;
			bool behind = beside && late && !last->shared && !s[i].shared && last->thread != s[i].thread &&
			    second->from - first->to <= LATE;
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

/* What passes have in common, by unit. Counts stop at 255. */
struct votes {
	uint8_t *bound; /* passes in which a scan began or ended before this unit */
	uint8_t *inner; /* passes in which a scan went on there */
	uint8_t *cover; /* passes in which the unit was part of a scan */
	uint8_t *pause; /* passes in which a scan paused before it */
	uint32_t units;
};

/* Adds the scans of a pass. */
static void count_votes(struct votes *v, const struct scan *s, size_t n, const uint8_t *pauses) {
	for (size_t i = 0; i < n; i++) {
		if (s[i].end - s[i].first < MIN_UNITS) continue;
		for (uint32_t u = s[i].first; u < s[i].end; u++) {
			if (v->cover[u] < 255) v->cover[u]++;
			if (u > s[i].first && v->inner[u] < 255) v->inner[u]++;
			if (u > s[i].first && pauses[u] && v->pause[u] < 255) v->pause[u]++;
		}
		if (v->bound[s[i].first] < 255) v->bound[s[i].first]++;
		if (v->bound[s[i].end] < 255) v->bound[s[i].end]++;
	}
}

/* A matrix that was found: units first to end-1. */
struct found_gemv {
	uint32_t first, end;
	double confidence; /* 0 to 1 */
	int passes;        /* in which it was read */
};

/* Votes for a bound before u, or one unit beside it: matrices need not begin at pages. */
static int bounds_near(const struct votes *v, uint32_t u) {
	int sum = v->bound[u];
	if (u > 0) sum += v->bound[u - 1];
	if (u < v->units) sum += v->bound[u + 1];
	return sum;
}

/* The share of the passes that say that there is a bound before u. */
static double bound_share(const struct votes *v, uint32_t u) {
	int bounds = bounds_near(v, u), inner = v->inner[u], pauses = v->pause[u];
	if (u > 0 && v->inner[u - 1] < inner) inner = v->inner[u - 1];
	if (u < v->units && v->inner[u + 1] < inner) inner = v->inner[u + 1];
	double by_bounds = bounds + inner ? bounds / (bounds + 2. * inner) : 0,
	       by_pauses = inner ? (double)pauses / inner : 0;
	return by_pauses > 0.7 && inner >= 3 && by_pauses > by_bounds ? by_pauses : by_bounds;
}

/* Finds the matrices on which passes agree: what at least two of them scanned, between bounds that at
 * least half of them have. Returns how many there are, at most limit. */
static size_t find_agreed(const struct votes *v, struct found_gemv *out, size_t limit) {
	size_t n = 0;
	for (uint32_t u = 0; u < v->units && n < limit;) {
		if (v->cover[u] < 2) {
			u++;
			continue;
		}
		uint32_t first = u, end = u + 1;
		for (;; end++) {
			if (end >= v->units || v->cover[end] < 2) break;
			if (end - first < MIN_UNITS || bound_share(v, end) < 0.5) continue;
			/* of neighbouring bounds, the one with most votes */
			if (end + 1 < v->units && v->bound[end + 1] + v->pause[end + 1] > v->bound[end] + v->pause[end] &&
			    bound_share(v, end + 1) >= 0.5)
				continue;
			break;
		}
		if (end - first >= MIN_UNITS) {
			double a = bound_share(v, first), b = bound_share(v, end);
			out[n++] = (struct found_gemv){first, end, a < b ? a : b, v->cover[first + (end - first) / 2]};
		}
		u = end;
	}
	return n;
}

/* ---- Rows and columns ---- */

/* Rows and columns of the region [from, to), if the ops that use it agree; 0 if not known. A region is
 * an op's matrix if each of its bounds is less than two units off, and both together are off by at
 * most a sixth of the matrix. */
static void find_shape(
    const struct op *ops, size_t n, uintptr_t from, uintptr_t to, size_t unit, uint32_t *rows, uint32_t *cols) {
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
	OPS = 1 << 14,     /* ops that are remembered */
	FILLS = 1 << 15,   /* reads that are remembered; those that go on with the one before count as one */
	BETWEEN = 512,     /* most bytes between two fills of one piece of memory */
	MIN_OWN = 1 << 20, /* least bytes of a piece that is watched */
	LOADED_MS = 300,   /* milliseconds without a read: the model is loaded */
	TOUCHES = 1 << 19, /* touches that are noted in a pass */
	PASSES = 10,
	SCANS = 1 << 16,    /* of a pass */
	QUIET_MS = 30,      /* milliseconds without a new page: all that tokens read was read */
	IDLE_PASSES = 50,   /* passes without anything to see, before the next mapping is watched */
	MAX_PASS_MS = 4000, /* milliseconds of a pass, where tokens read something else each time */
};

static struct {
	const char *to; /* see start_detection; NULL: nothing is watched */
	struct map {
		uintptr_t from, to;
		uint64_t offset; /* in the file */
		bool own;        /* memory of the program's own that was filled from files; fills say from where */
		char path[256];
	} maps[MAPS];
	_Atomic int count;
	_Atomic uintptr_t low, high; /* the program's own memory that is watched is within these */
	struct file {
		dev_t dev;
		ino_t ino;
		char path[256];
	} files[MAPS]; /* files that fills came from */
	int file_count;
	struct fill {
		uintptr_t from, to;
		uint64_t offset;
		int file;
	} * fills;
	size_t fill_count;
	int64_t filled_ns;    /* when the last fill came; 0: watch_fills has seen them all */
	struct op ops[OPS];   /* by a hash of from */
	pthread_mutex_t lock; /* guards all above, and armed */

	/* The pass. */
	struct map now;      /* the map that is watched */
	_Atomic bool armed;  /* its pages are taken away */
	_Atomic size_t n;    /* touches, also those for which there is no room */
	_Atomic bool failed; /* the kernel allows no more mappings */
	size_t unit;         /* bytes */
	struct touch *touches;

	struct sigaction before; /* the program's handler of SIGSEGV */
	bool started;            /* the thread is there, and the handler is set */
	pthread_t watcher;
	_Atomic bool ending; /* the program ends */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Sets the kernel's handler of SIGSEGV, which the program does not see (set_program_handler). The
 * first call is outside of a signal's handler, where nothing may be looked up. */
static int set_segv_handler(const struct sigaction *new, struct sigaction *old) {
	static int (*next)(int, const struct sigaction *, struct sigaction *);
	if (!next) next = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
	return next ? next(SIGSEGV, new, old) : -1;
}

static int64_t now_ns(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Calls f for the parts of [from, to) that are mapped, as /proc/self/maps has them. False: it cannot
 * be read. It is async-signal-safe and allocates nothing, as it is called when mappings are short. */
static bool for_each_mapping(uintptr_t from, uintptr_t to,
    void (*f)(uintptr_t from, uintptr_t to, const char *rights, bool anonymous, void *arg), void *arg) {
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
				for (; c < end && *c != '-' && *c != ' '; c++)
					at[i] = at[i] << 4 | (uintptr_t)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
			char *field = c;
			for (int i = 0; i < 3 && field < end; field++) i += *field == ' ';
			if (at[0] < to && at[1] > from)
				f(at[0] > from ? at[0] : from, at[1] < to ? at[1] : to, c, *field == '0', arg);
			n -= (size_t)(end + 1 - b);
			memmove(b, end + 1, n);
		}
		if (n == sizeof b) n = 0; /* a path that is longer than paths are */
	}
	syscall(SYS_close, fd);
	return true;
}

/* Gives back what a pass has taken away, if it is still there. */
static void restore_one(uintptr_t from, uintptr_t to, const char *rights, bool anonymous, void *unused) {
	(void)unused;
	if (anonymous && !memcmp(rights, "---p", 4)) syscall(SYS_mprotect, from, to - from, PROT_READ | PROT_WRITE);
}

/* Gives back what a pass has taken away of a map. Nobody says when the program's own memory goes: what
 * is there now may belong to something else, and have other rights. Returns 0, or an error. */
static long restore_rights(const struct map *m) {
	if (!m->own) return syscall(SYS_mprotect, m->from, m->to - m->from, PROT_READ);
	return for_each_mapping(m->from, m->to, restore_one, NULL)
	    ? 0
	    : syscall(SYS_mprotect, m->from, m->to - m->from, PROT_READ | PROT_WRITE);
}

static void add_if_ordinary(uintptr_t from, uintptr_t to, const char *rights, bool anonymous, void *sum) {
	if (anonymous && !memcmp(rights, "rw-p", 4)) *(uintptr_t *)sum += to - from;
}

/* Whether all of [from, to) is memory as malloc gives it. */
static bool is_ordinary_memory(uintptr_t from, uintptr_t to) {
	uintptr_t sum = 0;
	return for_each_mapping(from, to, add_if_ordinary, &sum) && sum == to - from;
}

/* The handler of SIGSEGV: notes a touch and gives the unit back, or calls the program's handler.
 * Async-signal-safe: it makes system calls and writes to memory that is there. */
static void on_fault(int sig, siginfo_t *info, void *context) {
	int e = errno;
	uintptr_t a = (uintptr_t)info->si_addr;
	if (watch.touches && info->si_code == SEGV_ACCERR && a >= watch.now.from && a < watch.now.to) {
		size_t unit = (a - watch.now.from) / watch.unit, bytes = watch.unit,
		       left = watch.now.to - watch.now.from - unit * watch.unit;
		size_t at = watch.armed ? atomic_fetch_add(&watch.n, 1) : TOUCHES;
		if (at < TOUCHES) watch.touches[at] = (struct touch){(uint32_t)unit, (uint32_t)syscall(SYS_gettid), now_ns()};
		if (!syscall(SYS_mprotect, watch.now.from + unit * watch.unit, bytes < left ? bytes : left,
		        watch.now.own ? PROT_READ | PROT_WRITE : PROT_READ)) {
			errno = e;
			return;
		}
		/* There are too many mappings: give all of it back. */
		watch.failed = true;
		if (!restore_rights(&watch.now)) {
			errno = e;
			return;
		}
	}
	/* Not ours. */
	if (watch.before.sa_flags & SA_SIGINFO) watch.before.sa_sigaction(sig, info, context);
	else if (watch.before.sa_handler == SIG_DFL || watch.before.sa_handler == SIG_IGN)
		set_segv_handler(&watch.before, NULL); /* the signal comes again */
	else watch.before.sa_handler(sig);
	errno = e;
}

/* Ends a pass, if one is under way. The lock is held. */
static void end_pass(void) {
	if (!watch.armed) return;
	watch.armed = false;
	restore_rights(&watch.now);
}

static void sleep_ms(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

/* Makes a pass over a map, and copies the map to m. Returns how many touches were noted; 0 if there
 * were none, or the map is gone. */
static size_t make_pass(int which, struct map *m) {
	pthread_mutex_lock(&watch.lock);
	struct sigaction now;
	*m = watch.maps[which];
	/* The program may have set a handler of its own by now, past this library. */
	bool there = m->to > m->from && !set_segv_handler(NULL, &now) && now.sa_flags & SA_SIGINFO &&
	    now.sa_sigaction == on_fault;
	watch.n = 0;
	if (there && m->own && !is_ordinary_memory(m->from, m->to)) { /* it was freed */
		watch.maps[which].from = watch.maps[which].to = m->from = m->to = 0;
		there = false;
	}
	if (there) {
		watch.now = *m;
		watch.unit = 4096;
		while ((m->to - m->from) / watch.unit > TOUCHES / 2) watch.unit *= 2;
		watch.armed = true;
		there = !syscall(SYS_mprotect, m->from, m->to - m->from, PROT_NONE);
		if (!there) end_pass();
	}
	pthread_mutex_unlock(&watch.lock);
	if (!there) return 0;
	int64_t begun = now_ns();
	size_t before = 0;
	for (int quiet = 0; now_ns() - begun < MAX_PASS_MS * 1000000L && quiet < QUIET_MS && watch.armed &&
	     !watch.failed && !watch.ending;) {
		sleep_ms(1);
		quiet = watch.n == before && before > 0 ? quiet + 1 : 0;
		before = watch.n;
	}
	pthread_mutex_lock(&watch.lock);
	end_pass();
	pthread_mutex_unlock(&watch.lock);
	sleep_ms(2); /* handlers that were noting a touch have done so by now */
	return watch.n < TOUCHES ? watch.n : TOUCHES;
}

/* Finds the file, and the offset in it, from which most of [from, to) of the program's own memory was
 * filled. False: from none. The lock is held. */
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

/* Says that a matrix was found in a map. */
static void report_match(const struct map *m, const struct found_gemv *f, int made, FILE *out) {
	uintptr_t from = m->from + f->first * watch.unit, size = (f->end - f->first) * watch.unit;
	uint64_t offset = m->offset + f->first * watch.unit;
	const char *path = m->path;
	char shaped[96] = "";
	uint32_t rows, cols;
	pthread_mutex_lock(&watch.lock);
	bool known = !m->own || filled_from(from, from + size, &path, &offset);
	find_shape(watch.ops, OPS, from, from + size, watch.unit, &rows, &cols);
	pthread_mutex_unlock(&watch.lock);
	if (!known) return; /* something else was read into it meanwhile */
	if (rows && out) snprintf(shaped, sizeof shaped, "%u,%u,op", rows, cols);
	else if (rows) snprintf(shaped, sizeof shaped, ", %u rows and %u columns (by the op's vectors)", rows, cols);
	if (out) {
		fprintf(out, "%s,%llu,%llu,%.2f,%d,%s,%s\n", path, (unsigned long long)offset, (unsigned long long)size,
		    f->confidence, f->passes, m->own ? "read" : "mapped", rows ? shaped : ",,");
		return;
	}
	fprintf(stderr, "tfmbs: GEMV detected: %s%s: %llu bytes at %llu, confidence %.2f, in %d of %d passes%s\n",
	    path, m->own ? ", read into memory" : "", (unsigned long long)size, (unsigned long long)offset,
	    f->confidence, f->passes, made - 1, shaped);
}

/* Makes passes over a map, and says what they have found. */
static void detect_in_map(int which, FILE *out) {
	struct map map, *m = &map;
	pthread_mutex_lock(&watch.lock);
	*m = watch.maps[which];
	pthread_mutex_unlock(&watch.lock);
	const size_t units = (m->to - m->from) / 4096 + 2; /* at most */
	struct votes v = {calloc(units, 1), calloc(units, 1), calloc(units, 1), calloc(units, 1), 0};
	uint8_t *pauses = malloc(units);
	struct scan *scans = malloc(SCANS * sizeof *scans);
	struct found_gemv *found = malloc(SCANS * sizeof *found);
	const bool memory = v.bound && v.inner && v.cover && v.pause && pauses && scans && found;
	int made = 0;
	uintptr_t from = 0;
	for (int idle = 0; memory && made < PASSES && idle < IDLE_PASSES && !watch.ending;) {
		size_t n = make_pass(which, m);
		if (m->to <= m->from) break; /* it was unmapped */
		idle = n < MIN_UNITS ? idle + 1 : 0;
		/* Nothing was read, or less is mapped than before: then the passes begin anew. */
		if (n < MIN_UNITS || m->from != from) {
			from = n < MIN_UNITS ? from : m->from;
			if (n >= MIN_UNITS) made = 0;
			sleep_ms(10); /* the program may compute nothing now */
			continue;
		}
		if (watch.failed) {
			fprintf(stderr, "tfmbs: %s: what it reads is too scattered to be watched (vm.max_map_count)\n", m->path);
			break;
		}
		v.units = (uint32_t)((m->to - m->from + watch.unit - 1) / watch.unit);
		memset(pauses, 0, units);
		size_t k = find_scans(watch.touches, n, scans, SCANS, pauses);
		k = join_scans(scans, k);
		if (made++ == 0) { /* this pass does not count: the program may have been in the middle of a token */
			memset(v.bound, 0, units);
			memset(v.inner, 0, units);
			memset(v.cover, 0, units);
			memset(v.pause, 0, units);
		} else
			count_votes(&v, scans, k, pauses);
	}
	size_t k = made > 2 ? find_agreed(&v, found, SCANS) : 0;
	for (size_t i = 0; i < k; i++) report_match(m, &found[i], made, out);
	fprintf(stderr, "tfmbs: %zu matrices were detected in %s%s, in %d passes\n", k, m->path,
	    m->own ? ", read into memory" : "", made);
	free(v.bound);
	free(v.inner);
	free(v.cover);
	free(v.pause);
	free(pauses);
	free(scans);
	free(found);
}

/* Once nothing was read for a while, adds the pieces of memory that were filled from files to the maps
 * that are watched, the largest first. */
static void watch_fills(void) {
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
			for (end = i + 1;
			     end < watch.fill_count && watch.fills[end].from - watch.fills[end - 1].to <= BETWEEN; end++) {}
			uintptr_t from = (watch.fills[i].from + 4095) & ~(uintptr_t)4095,
			          to = watch.fills[end - 1].to & ~(uintptr_t)4095;
			bool known = from + MIN_OWN > to || to - from <= best.to - best.from;
			for (int k = 0; k < watch.count && !known; k++)
				known = watch.maps[k].own && from < watch.maps[k].to && to > watch.maps[k].from;
			if (known) continue;
			if (is_ordinary_memory(from, to)) {
				best = (struct map){from, to, 0, true, ""};
				strcpy(best.path, watch.files[watch.fills[i].file].path);
				continue;
			}
			fprintf(stderr,
			    "tfmbs: %zu bytes of %s were read into memory that is used for something else by now "
			    "(as repacked weights are): not watched\n",
			    (size_t)(to - from), watch.files[watch.fills[i].file].path);
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

/* The thread that watches: one map after the other. */
static void *watch_maps(void *unused) {
	(void)unused;
	FILE *out = strcmp(watch.to, "-") ? fopen(watch.to, "we") : NULL;
	if (strcmp(watch.to, "-") && !out) {
		fprintf(stderr, "tfmbs: nothing is detected: %s: %s\n", watch.to, strerror(errno));
		return NULL;
	}
	if (out) fprintf(out, "file,offset_bytes,size_bytes,confidence,passes,memory,rows,columns,shape_from\n");
	for (int done = 0; done < MAPS && !watch.ending; sleep_ms(10)) {
		watch_fills();
		if (done == watch.count) continue;
		detect_in_map(done++, out);
		if (out) fflush(out);
	}
	if (out) fclose(out);
	return NULL;
}

/* The path of an open file, or "". */
static void path_of_file(int fd, char path[static 256]) {
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, 255);
	path[n > 0 ? n : 0] = 0;
}

static bool is_gguf(int fd) {
	char magic[4];
	return syscall(SYS_pread64, fd, magic, 4, 0) == 4 && !memcmp(magic, "GGUF", 4);
}

/* Starts the thread, sets the handler and allocates the memory, if that was not done before. False:
 * nothing can be watched. The lock is held. */
static bool start_watching(void) {
	if (!watch.started) {
		struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
		size_t touches = TOUCHES * sizeof *watch.touches, fills = FILLS * sizeof *watch.fills;
		char *room = (char *)syscall(
		    SYS_mmap, NULL, touches + fills, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		watch.touches = (struct touch *)room;
		watch.fills = (struct fill *)(room + touches);
		watch.started = room != MAP_FAILED && !set_segv_handler(&a, &watch.before) &&
		    !pthread_create(&watch.watcher, NULL, watch_maps, NULL);
		if (!watch.started) watch.to = NULL;
	}
	return watch.to;
}

void note_mapping(void *at, size_t length, int prot, int fd, int64_t offset) {
	if (!watch.to || at == MAP_FAILED || fd < 0 || prot != PROT_READ || !is_gguf(fd)) return;
	pthread_mutex_lock(&watch.lock);
	if (start_watching() && watch.count < MAPS) {
		struct map *m = &watch.maps[watch.count];
		*m = (struct map){(uintptr_t)at, (uintptr_t)at + length, (uint64_t)offset, false, ""};
		path_of_file(fd, m->path);
		watch.count++;
		memset(watch.ops, 0, sizeof watch.ops); /* they may be of other memory that was there before */
	}
	pthread_mutex_unlock(&watch.lock);
}

void note_filling(uintptr_t from, size_t length) {
	uintptr_t to = from + length;
	if (!watch.to || from >= watch.high || to <= watch.low) return;
	pthread_mutex_lock(&watch.lock);
	for (int i = 0; i < watch.count; i++) {
		struct map *m = &watch.maps[i];
		if (!m->own || from >= m->to || to <= m->from) continue;
		if (watch.armed && watch.now.from < m->to && watch.now.to > m->from) end_pass();
		m->from = m->to = 0;
	}
	pthread_mutex_unlock(&watch.lock);
}

/* Forgets the fills of [from, to). The lock is held. */
static void forget_fills(uintptr_t from, uintptr_t to) {
	size_t n = 0;
	for (size_t i = 0; i < watch.fill_count; i++)
		if (from >= watch.fills[i].to || to <= watch.fills[i].from) watch.fills[n++] = watch.fills[i];
	watch.fill_count = n;
}

void note_fill(const void *at, size_t length, int fd, int64_t offset) {
	uintptr_t from = (uintptr_t)at, to = from + length;
	int e = errno;
	struct stat st;
	if (!watch.to || length < MIN_FILL || fd < 0 || !is_gguf(fd) || fstat(fd, &st) ||
	    (offset < 0 && (offset = lseek(fd, 0, SEEK_CUR) - (int64_t)length) < 0)) {
		errno = e;
		return;
	}
	pthread_mutex_lock(&watch.lock);
	if (start_watching()) {
		int k = 0;
		while (k < watch.file_count && (watch.files[k].dev != st.st_dev || watch.files[k].ino != st.st_ino)) k++;
		if (k == watch.file_count && k < MAPS) {
			watch.files[k] = (struct file){st.st_dev, st.st_ino, ""};
			path_of_file(fd, watch.files[k].path);
			watch.file_count++;
		}
		forget_fills(from, to);
		size_t i = watch.fill_count; /* they are sorted by address: mostly this one comes last */
		while (i > 0 && watch.fills[i - 1].from > from) i--;
		struct fill *last = i ? &watch.fills[i - 1] : NULL;
		if (last && last->file == k && last->to == from &&
		    last->offset + (last->to - last->from) == (uint64_t)offset)
			last->to = to;
		else if (k < MAPS && watch.fill_count < FILLS) {
			memmove(&watch.fills[i + 1], &watch.fills[i], (watch.fill_count++ - i) * sizeof *watch.fills);
			watch.fills[i] = (struct fill){from, to, (uint64_t)offset, k};
		}
		watch.filled_ns = now_ns();
	}
	pthread_mutex_unlock(&watch.lock);
	errno = e;
}

void note_op(struct op o) {
	if (!watch.to) return;
	pthread_mutex_lock(&watch.lock);
	bool ours = false;
	for (int i = 0; i < watch.count && !ours; i++)
		ours = o.from >= watch.maps[i].from - (watch.maps[i].own ? 4096 : 0) && o.from < watch.maps[i].to;
	for (size_t i = (o.from >> 5) * 0x9e3779b97f4a7c15u >> 50, tries = 0; ours && tries < 64;
	     i = (i + 1) % OPS, tries++)
		if (!watch.ops[i].size || watch.ops[i].from == o.from) {
			watch.ops[i] = o;
			break;
		}
	pthread_mutex_unlock(&watch.lock);
}

void note_unmapping(const void *at, size_t length) {
	uintptr_t from = (uintptr_t)at, to = from + length;
	if (!watch.to || !watch.started) return;
	pthread_mutex_lock(&watch.lock);
	if (watch.armed && from < watch.now.to && to > watch.now.from) end_pass();
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

/* Sets the handler that on_fault calls, if something is watched; else it does nothing and returns false. */
static bool swap_handler(const struct sigaction *new, struct sigaction *old) {
	pthread_mutex_lock(&watch.lock);
	bool ours = watch.started;
	if (ours && old) *old = watch.before;
	if (ours && new) watch.before = *new;
	pthread_mutex_unlock(&watch.lock);
	return ours;
}

int set_program_handler(const struct sigaction *new, struct sigaction *old) {
	return swap_handler(new, old) ? 0 : set_segv_handler(new, old);
}

void start_detection(const char *to) { watch.to = to; }

bool is_detecting(void) { return watch.to != NULL; }

void abandon_detection(void) {
	watch.to = NULL;
	if (watch.armed) restore_rights(&watch.now);
}

void finish_detection(void) {
	if (!watch.started) return;
	watch.ending = true;
	pthread_join(watch.watcher, NULL);
}
