//go:build ignore

/* Keeps the table of weights and brings them to the device. */
#define _GNU_SOURCE
#include "tfmbs_weights.h"
#include "tfmbs_reference.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum {
	NOT_ON_DEVICE = 1 << 16, /* what a matrix that the device does not have counts in layer_balance */
	MAX_WAIT_S = 120,        /* seconds that the first graph waits for a device that reads what it is to hold */
	PAGE = 4096,
};

static const struct kind kinds[] = {
    {"q2_0", TFMBS_Q2_0, 32, true},
    {"tq1_0", 34, 256, true},
    {"tq2_0", 35, 256, false},
    {"q1_0", 41, 32, false},
    {"q4_0", 2, 32, false},
    {"q8_0", 8, 32, false},
    {"q4_K", 12, 256, false},
    {"q6_K", 14, 256, false},
};

static const struct profile profiles[] = {
    {"accurate", TFMBS_TWO_BIT, true, 1e-3},
    {"balanced", TFMBS_TWO_BIT | TFMBS_BALANCED, true, 0.07},
    {"fast", TFMBS_TWO_BIT | TFMBS_FAST, true, 0.18},
};
static const struct profile no_profile = {"", TFMBS_TWO_BIT, false, 1e-3};
const struct profile *profile = &no_profile;

struct tfmbs_state tfmbs_state = {.lock = PTHREAD_MUTEX_INITIALIZER, .last_layer = -1};

bool configure_weights(void) {
	const char *layers = getenv("TFMBS_LAYERS"), *name = getenv("TFMBS_PROFILE"), *handover = getenv("TFMBS_HANDOVER");
	tfmbs_state.handed_over = handover && *handover;
	if (layers && *layers) {
		long *first = &tfmbs_state.first_layer, *last = &tfmbs_state.last_layer;
		int end = -1;
		if (sscanf(layers, "%ld-%ld%n", first, last, &end) != 2 || layers[end] || *first < 0 || *last < *first) {
			fprintf(stderr, "tfmbs: not used: TFMBS_LAYERS=%s: want FIRST-LAST, for instance 0-11\n", layers);
			return false;
		}
	}
	if (name && *name) {
		profile = NULL;
		for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++)
			if (!strcmp(profiles[i].name, name)) profile = &profiles[i];
		if (!profile) {
			fprintf(stderr, "tfmbs: not used: TFMBS_PROFILE=%s: want accurate, balanced or fast\n", name);
			return false;
		}
	}
	return true;
}

void report_error(const char *what, int e) { fprintf(stderr, "tfmbs: %s: %s\n", what, strerror(-e)); }

const struct kind *kind_of(const struct tensor *w) {
	const char *name = api.ggml_type_name(w->type);
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(kinds[i].name, name))
			return kinds[i].faster || profile->all || tfmbs_state.handed_over ? &kinds[i] : NULL;
	return NULL;
}

long layer_of_weight(const struct tensor *t) {
	return strncmp(t->name, "blk.", 4) ? -1 : strtol(t->name + 4, NULL, 10);
}

bool is_layer_taken(long layer) {
	return layer < 0 || tfmbs_state.last_layer < 0 ||
	    (layer >= tfmbs_state.first_layer && layer <= tfmbs_state.last_layer);
}

/* ---- The table ---- */

static struct weight **bucket_of(const void *data) {
	return &tfmbs_state.buckets[((uintptr_t)data >> 5) * 0x9e3779b97f4a7c15u >> 54];
}

struct weight *find_weight(const struct tensor *t) {
	struct weight *w = *bucket_of(t->data);
	while (w &&
	    (w->data != t->data || w->buffer != t->buffer || w->rows != t->ne[1] || w->cols != t->ne[0] ||
	        w->count != t->ne[2]))
		w = w->next;
	return w;
}

void count_weight(const struct weight *w, int by) {
	*(w->on_device ? &tfmbs_state.on_device : &tfmbs_state.elsewhere) += by;
	if (w->layer >= 0 && w->layer < LAYERS)
		tfmbs_state.layer_balance[w->layer] += by * (w->on_device ? 1 : -NOT_ON_DEVICE);
}

struct weight *add_weight(const struct tensor *t) {
	if (t->ne[2] <= 0 || t->ne[2] > MAX_EXPERTS) return NULL;
	struct weight *w = calloc(1, sizeof *w + (size_t)t->ne[2] * sizeof *w->matrices);
	if (!w) return NULL;
	w->next = *bucket_of(t->data);
	w->data = t->data;
	w->buffer = t->buffer;
	w->rows = (uint32_t)t->ne[1];
	w->cols = (uint32_t)t->ne[0];
	w->count = (uint32_t)t->ne[2];
	w->layer = layer_of_weight(t);
	*bucket_of(t->data) = w;
	count_weight(w, 1);
	return w;
}

void release_weight(struct weight *w) {
	for (uint32_t i = 0; i < w->count; i++) {
		if (w->matrices[i].id) tfmbs_release(w->matrices[i].id);
		w->matrices[i] = (struct matrix){0};
	}
	w->on_device = false;
}

void remove_weights(const void *buffer) {
	for (int i = 0; i < BUCKETS; i++)
		for (struct weight **at = &tfmbs_state.buckets[i], *w; (w = *at);) {
			if (buffer && w->buffer != buffer) {
				at = &w->next;
				continue;
			}
			*at = w->next;
			count_weight(w, -1);
			release_weight(w);
			free(w);
		}
}

/* ---- Uploads ---- */

/* A hash of some of the bytes: another model may come to lie at the same address. The device itself
 * compares all bytes of what is uploaded. */
static uint64_t sample_hash(const uint8_t *b, size_t n) {
	uint64_t h = 0xcbf29ce484222325u;
	for (int i = 0; i < 16; i++) {
		size_t at = n / 16 * (size_t)i;
		for (size_t k = at; k < n && k < at + 32; k++) h = (h ^ b[k]) * 0x100000001b3u;
	}
	return h;
}

/* Uploads all matrices of t, which has n bytes; on an error, the caller releases those that were. */
static int upload_weight(const struct tensor *t, struct weight *w, size_t n) {
	int e = tfmbs_init();
	tfmbs_state.broken = e != 0; /* without a device, nothing is tried again */
	for (uint32_t i = 0; i < w->count && !e; i++)
		e = tfmbs_upload_blocks((int)layer_of_weight(t), kind_of(t)->number, t->data + i * t->nb[2], n / w->count,
		    w->rows, w->cols, profile->flags, &w->matrices[i].id);
	if (e) report_error(tfmbs_state.broken ? "there is no device, so the CPU computes everything" : t->name, e);
	return e;
}

/* ---- Weights that the device holds of a file ---- */

/* Finds out where p lies in which file. False: p is in no mapped file, or the file's path leads to
 * another file by now. The lock is held. */
static bool locate_in_file(const void *p, struct file_location *location) {
	static struct {
		uintptr_t from, to;
		unsigned epoch;
		struct file_location location; /* of from */
	} last;                            /* the mapping that was found last; guarded by the lock */
	uintptr_t a = (uintptr_t)p;
	if (a < last.from || a >= last.to || last.epoch != tfmbs_state.epoch) {
		FILE *maps = fopen("/proc/self/maps", "re");
		char line[4500];
		bool found = false;
		while (maps && !found && fgets(line, sizeof line, maps)) {
			uintptr_t from, to;
			unsigned long long offset, ino;
			int path = 0;
			struct stat st;
			const char *format = "%" SCNxPTR "-%" SCNxPTR " %*4s %llx %*x:%*x %llu %n";
			if (sscanf(line, format, &from, &to, &offset, &ino, &path) < 4 || !path || a < from || a >= to) continue;
			line[strcspn(line, "\n")] = 0;
			if (line[path] != '/' || stat(line + path, &st) || st.st_ino != ino) break;
			last.from = from;
			last.to = to;
			last.epoch = tfmbs_state.epoch;
			last.location = (struct file_location){st.st_dev, ino, offset};
			found = true;
		}
		if (maps) fclose(maps);
		if (!found) return false;
	}
	*location = last.location;
	location->offset += a - last.from;
	return true;
}

double seconds_since(const struct timespec *t) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - t->tv_sec) + 1e-9 * (double)(now.tv_nsec - t->tv_nsec);
}

int find_held_matrix(const struct tensor *t, struct weight *w, uint32_t i) {
	size_t n = (size_t)t->ne[1] * t->nb[1];
	struct matrix *m = &w->matrices[i];
	m->asked = tfmbs_held();
	return tfmbs_find_blocks(w->location.dev, w->location.ino, w->location.offset + i * n, kind_of(t)->number,
	    t->data + i * n, n, w->rows, w->cols, &m->id);
}

/* Looks for t among what the device holds, and waits as long as the device loads. Of experts only the
 * first two are looked for here, as experts come and go: the others are asked for when they are
 * chosen. If neither is held, the CPU has them all: it computes them faster within a graph than each
 * by itself. */
static int find_held_weight(const struct tensor *t, struct weight *w) {
	struct timespec begun;
	clock_gettime(CLOCK_MONOTONIC, &begun);
	w->asked = begun;
	w->epoch = tfmbs_state.epoch;
	if (!locate_in_file(t->data, &w->location)) return -ENOENT;
	int e = tfmbs_init();
	tfmbs_state.broken = e != 0;
	while (!e) {
		e = find_held_matrix(t, w, 0);
		if (!e || e != -EAGAIN || tfmbs_state.loading_over) break;
		if (seconds_since(&begun) > MAX_WAIT_S) tfmbs_state.loading_over = true;
		nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
		e = 0;
	}
	if (e == -ENOENT) tfmbs_state.loading_over = true; /* the device has tried all weights */
	if (e == -ENOENT && w->count > 1) e = find_held_matrix(t, w, 1);
	if (tfmbs_state.broken || e == -EPIPE) {
		tfmbs_state.broken = true;
		report_error("there is no device, so the CPU computes everything", e);
	}
	return e;
}

/* Tells the kernel that the pages of t, of n bytes, may go first. */
static void mark_cold(const struct tensor *t, size_t n) {
	uintptr_t from = ((uintptr_t)t->data + PAGE - 1) & ~(uintptr_t)(PAGE - 1),
	          to = ((uintptr_t)t->data + n) & ~(uintptr_t)(PAGE - 1);
	if (to > from) madvise((void *)from, to - from, MADV_COLD);
}

bool ensure_on_device(const struct tensor *t) {
	size_t n = api.ggml_nbytes(t);
	pthread_mutex_lock(&tfmbs_state.lock);
	const bool held = tfmbs_state.handed_over;
	/* Held weights are not sampled: that would read them from disk. */
	uint64_t sample = tfmbs_state.broken || held ? 0 : sample_hash((const uint8_t *)t->data, n);
	struct weight *w = find_weight(t);
	bool again =
	    w && held && (w->epoch != tfmbs_state.epoch || (!w->on_device && seconds_since(&w->asked) > ASK_AGAIN_S));
	if (!tfmbs_state.broken && (!w || w->sample != sample || again)) {
		if (!w) w = add_weight(t);
		if (w) {
			count_weight(w, -1);
			release_weight(w);
			w->sample = sample;
			int e = held ? find_held_weight(t, w) : upload_weight(t, w, n);
			if (e) release_weight(w);
			w->on_device = !e;
			count_weight(w, 1);
			if (w->on_device) tell_rounding(t->type);
			if (w->on_device && !(held && w->count > 1)) mark_cold(t, n);
		}
	}
	bool has = !tfmbs_state.broken && w && w->on_device;
	pthread_mutex_unlock(&tfmbs_state.lock);
	return has;
}
