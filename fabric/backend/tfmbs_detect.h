/* Finds the products of a matrix with a vector in a program that tells nothing of itself: by the order in which it reads the pages of a mapped model, without names, symbols or the file's contents. A part of
 * libtfmbs_intercept.so, which TFMBS_DETECT turns on.
 *
 * A pass takes the right to read a mapping away, page by page of it is given back when a thread asks for it (SIGSEGV), and who asked is noted: each page once. What is read from beginning to end, by one thread
 * or by several side by side, is a scan. A product reads its matrix in one scan, and does so again for each token. So several passes are compared: a bound that most of them have is one of a matrix, another
 * is a thread's that was interrupted.
 *
 * While a pass lasts, the program is slow, and the kernel may not read the mapping for it (EFAULT): this is an instrument, not for every day. */
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

/* ---- Watching ---- */

enum {
	MAPS = 16,
	TOUCHES = 1 << 19, /* noted in a pass */
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
		char path[256];
	} maps[MAPS];
	_Atomic int count;
	pthread_mutex_t lock; /* of maps and armed */
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

/* Async-signal-safe: it makes system calls and writes to memory that is there. */
static void touched(int sig, siginfo_t *info, void *context) {
	int e = errno;
	uintptr_t a = (uintptr_t)info->si_addr;
	if (watch.touches && info->si_code == SEGV_ACCERR && a >= watch.now.from && a < watch.now.to) {
		size_t unit = (a - watch.now.from) / watch.unit, bytes = watch.unit, left = watch.now.to - watch.now.from - unit * watch.unit;
		size_t at = watch.armed ? atomic_fetch_add(&watch.n, 1) : TOUCHES;
		if (at < TOUCHES) watch.touches[at] = (struct touch){(uint32_t)unit, (uint32_t)syscall(SYS_gettid), now_ns()};
		if (!syscall(SYS_mprotect, watch.now.from + unit * watch.unit, bytes < left ? bytes : left, PROT_READ)) {
			errno = e;
			return;
		}
		/* Too many mappings: all of it at once. */
		watch.failed = true;
		if (!syscall(SYS_mprotect, watch.now.from, watch.now.to - watch.now.from, PROT_READ)) {
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
	syscall(SYS_mprotect, watch.now.from, watch.now.to - watch.now.from, PROT_READ);
}

static void nap(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

/* Makes a pass over a map, and copies that. Returns how many touches there were; 0: none, or the map is gone. */
static size_t pass(int which, struct map *m) {
	pthread_mutex_lock(&watch.lock);
	struct sigaction now;
	*m = watch.maps[which];
	bool there = m->to > m->from && !install(NULL, &now) && now.sa_flags & SA_SIGINFO && now.sa_sigaction == touched; /* the program may have a handler of its own by now */
	watch.n = 0;
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
	for (size_t i = 0; i < k; i++) {
		uint64_t begin = m->offset + (uint64_t)g[i].first * watch.unit, size = (uint64_t)(g[i].end - g[i].first) * watch.unit;
		if (out) fprintf(out, "%s,%llu,%llu,%.2f,%d\n", m->path, (unsigned long long)begin, (unsigned long long)size, g[i].confidence, g[i].passes);
		else fprintf(stderr, "tfmbs: GEMV detected: %s: %llu bytes at %llu, confidence %.2f, in %d of %d passes\n", m->path, (unsigned long long)size, (unsigned long long)begin, g[i].confidence, g[i].passes, made - 1);
	}
	fprintf(stderr, "tfmbs: %zu matrices were detected in %s, in %d passes\n", k, m->path, made);
	free(v.bound);
	free(v.inner);
	free(v.cover);
	free(v.pause);
	free(pauses);
	free(scans);
	free(g);
}

static void *watcher(void *unused) {
	(void)unused;
	FILE *out = strcmp(watch.to, "-") ? fopen(watch.to, "we") : NULL;
	if (strcmp(watch.to, "-") && !out) {
		fprintf(stderr, "tfmbs: nothing is detected: %s: %s\n", watch.to, strerror(errno));
		return NULL;
	}
	if (out) fprintf(out, "file,offset_bytes,size_bytes,confidence,passes\n");
	for (int done = 0; done < MAPS && !watch.ending; nap(10)) {
		if (done == watch.count) continue;
		detect(done++, out);
		if (out) fflush(out);
	}
	if (out) fclose(out);
	return NULL;
}

/* Notes that a file was mapped; of a GGUF the watcher is told. */
static void mapped(void *at, size_t length, int prot, int fd, int64_t offset) {
	char magic[4], link[64];
	if (!watch.to || at == MAP_FAILED || fd < 0 || prot != PROT_READ || pread(fd, magic, 4, 0) != 4 || memcmp(magic, "GGUF", 4)) return;
	pthread_mutex_lock(&watch.lock);
	if (!watch.started) {
		struct sigaction a = {.sa_sigaction = touched, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
		watch.touches = mmap(NULL, TOUCHES * sizeof *watch.touches, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		watch.started = watch.touches != MAP_FAILED && !install(&a, &watch.before) && !pthread_create(&watch.watcher, NULL, watcher, NULL);
		if (!watch.started) watch.to = NULL;
	}
	if (watch.to && watch.count < MAPS) {
		struct map *m = &watch.maps[watch.count];
		*m = (struct map){(uintptr_t)at, (uintptr_t)at + length, (uint64_t)offset, ""};
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(link, m->path, sizeof m->path - 1);
		if (n > 0) m->path[n] = 0;
		watch.count++;
	}
	pthread_mutex_unlock(&watch.lock);
}

/* Notes that memory goes, or is to be used in another way, before it does. */
static void unmapped(const void *at, size_t length) {
	uintptr_t from = (uintptr_t)at, to = from + length;
	if (!watch.to || !watch.started) return;
	pthread_mutex_lock(&watch.lock);
	if (watch.armed && from < watch.now.to && to > watch.now.from) disarm();
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
