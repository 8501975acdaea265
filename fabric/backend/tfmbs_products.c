//go:build ignore

/* Brings the products of a graph to the device: parts of products are jobs, several of which are under
 * way at a time. */
#define _GNU_SOURCE
#include "tfmbs_products.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#ifdef TFMBS_NO_MEMORY /* for tests */
#define malloc(n) ((void)(n), NULL)
#endif

bool is_device_product(const struct tensor *t) {
	const struct tensor *w = t->src[0], *x = t->src[1], *ids = t->src[2];
	if (!w || !x || !kind_of(w) || w->view_src || !w->buffer || !w->data) return false;
	if (w->ne[0] <= 0 || w->ne[1] <= 0 || w->ne[0] > 1 << 24 || w->ne[1] > 1 << 24 || w->ne[3] != 1) return false;
	int64_t block = api.ggml_blck_size(w->type);
	if (w->ne[0] % block || w->nb[0] != api.ggml_type_size(w->type) ||
	    w->nb[1] != (size_t)(w->ne[0] / block) * w->nb[0])
		return false;
	if (!has_plain_rows(x, "f32") || !has_plain_rows(t, "f32") || x->ne[0] != w->ne[0] || x->ne[1] <= 0 ||
	    t->ne[0] != w->ne[1])
		return false;
	if (is_op(t, "MUL_MAT")) return w->ne[2] == 1 && x->ne[2] == 1 && t->ne[2] == 1 && t->ne[1] == x->ne[1];
	/* ids has the experts of each token; x has for each token one vector for all of them, or one for
	 * each; t has a result of each. */
	return is_op(t, "MUL_MAT_ID") && ids && has_plain_rows(ids, "i32") && ids->ne[2] == 1 && w->ne[2] > 0 &&
	    w->ne[2] <= MAX_EXPERTS && w->nb[2] == (size_t)w->ne[1] * w->nb[1] && t->ne[1] == ids->ne[0] &&
	    t->ne[2] == ids->ne[1] && x->ne[2] == ids->ne[1] && ids->ne[0] % x->ne[1] == 0;
}

/* ---- Jobs ---- */

enum {
	MAX_JOBS = 32, /* under way at a time */
	AHEAD = 16,    /* nodes behind those that the CPU computes: products among them are started meanwhile */
};

/* The state of a graph that is being computed, and its jobs. */
struct flight {
	void *graph;
	rest_function *rest;
	void *arg;   /* of rest */
	int node;    /* whose product is being started */
	int started; /* all products before this node are under way or over */
	int error;   /* why the device did not take a job */
	int status;  /* of the graph: a product that neither the device nor this process could compute fails it */
	int held;    /* jobs whose results must not be delivered yet, because nodes before them use that memory first */
	int n;       /* jobs */
	struct {
		tfmbs_job id;
		int node;
		bool held;
		struct part part;
	} jobs[MAX_JOBS]; /* in the order of their nodes */
};

/* Computes a part that the device has failed with e, a negated errno, and notes what that says of the weights. */
static void handle_failure(struct flight *f, const struct part *p, int e) {
	pthread_mutex_lock(&tfmbs_state.lock);
	struct weight *w = e == -ESTALE ? find_weight(p->t->src[0]) : NULL;
	if (w && w->count > 1) {
		struct matrix *m = &w->matrices[(size_t)(p->w - p->t->src[0]->data) / p->t->src[0]->nb[2]];
		if (m->id) tfmbs_release(m->id);
		m->id = 0;
	} else if (w && w->on_device) { /* the device has let go of it; the CPU computes with it from now on */
		count_weight(w, -1);
		w->on_device = false;
		count_weight(w, 1);
	}
	if (e != -ESTALE && !tfmbs_state.broken)
		report_error("the device failed, what it was to do is done here, slowly", e);
	tfmbs_state.broken |= e != -ESTALE;
	pthread_mutex_unlock(&tfmbs_state.lock);
	e = compute_here(p);
	if (e) f->status = e;
}

/* Copies the results of a part that was gathered to where they belong. */
static void deliver_results(struct part *p) {
	size_t size = 4 * (size_t)p->t->ne[0];
	for (int64_t i = 0; p->to && i < p->n; i++) memcpy(p->to[i], p->y + (size_t)i * p->y_stride, size);
	free(p->to);
}

/* Waits for the products of the nodes before this one, and delivers their results. */
static void collect_results(struct flight *f, int before) {
	int end = 0, left = 0;
	while (end < f->n && f->jobs[end].node < before) end++;
	/* The last one first: then the others are over as well, and this thread was woken once. */
	for (int i = end; i-- > 0;) {
		int e = tfmbs_wait(f->jobs[i].id);
		if (e) handle_failure(f, &f->jobs[i].part, e);
	}
	for (int i = 0; i < end; i++) {
#ifdef TFMBS_PLANT /* for tests: an error of the device */
		struct part *planted = &f->jobs[i].part;
		if (!strcmp(planted->t->src[0]->name, TFMBS_PLANT))
			*(float *)(void *)(planted->y + 4 * (planted->t->ne[0] / 3)) = TFMBS_PLANTED;
#endif
		validate_part(&f->jobs[i].part);
		deliver_results(&f->jobs[i].part);
		f->held -= f->jobs[i].held;
	}
	for (int i = end; i < f->n; i++) f->jobs[left++] = f->jobs[i];
	f->n = left;
}

static void collect_all(struct flight *f) { collect_results(f, INT_MAX); }

static bool is_in_flight(const struct flight *f, int node) {
	for (int i = 0; i < f->n; i++)
		if (f->jobs[i].node == node) return true;
	return false;
}

/* Whether x shares memory with a result under way: results are written when they are waited for. */
static bool reads_result(const struct flight *f, const struct tensor *x) {
	for (int i = 0; i < f->n; i++) {
		const struct tensor *y = f->jobs[i].part.t;
		if (x->data < end_of_rows(y) && y->data < end_of_rows(x)) return true;
	}
	return false;
}

/* Whether the product p must wait for those under way: it reads what is not written yet, or would
 * write over what another one reads again if the device fails. */
static bool must_wait(const struct flight *f, const struct tensor *p) {
	for (int i = 0; i < f->n; i++)
		if (overlaps(p, f->jobs[i].part.t->src[1])) return true;
	return reads_result(f, p->src[1]) || (p->src[2] && reads_result(f, p->src[2]));
}

/* The weights of the product t; NULL if it is no product that the device computes. They stay until the
 * last backend is freed, or until ensure_on_device finds another model at their address: then there is
 * no graph with the former model any more, so none of its products can be under way. */
static struct weight *device_weight_of(const struct tensor *t) {
	if (!is_device_product(t)) return NULL;
	pthread_mutex_lock(&tfmbs_state.lock);
	struct weight *w = find_weight(t->src[0]);
	if (w && (!w->on_device || (tfmbs_state.handed_over && tfmbs_state.broken))) w = NULL;
	pthread_mutex_unlock(&tfmbs_state.lock);
	return w;
}

/* Gives the device a part, if it takes it. held: its results are not delivered before the nodes before
 * it are computed. */
static bool submit_part(struct flight *f, const struct part *p, tfmbs_weight id, bool held) {
	const struct tensor *w = p->t->src[0];
	tfmbs_gemv q = {
	    .weight = id,
	    .rows = (uint32_t)w->ne[1],
	    .cols = (uint32_t)w->ne[0],
	    .n = (uint32_t)p->n,
	    .x_type = TFMBS_FLOAT32,
	    .y_type = TFMBS_FLOAT32,
	    .block = kind_of(w)->block,
	    .x = p->x,
	    .x_stride = p->x_stride,
	    .y = p->y,
	    .y_stride = p->y_stride,
	};
	tfmbs_job job;
	if (f->n == MAX_JOBS || (f->error = tfmbs_submit(&q, &job))) return false;
	f->jobs[f->n].id = job;
	f->jobs[f->n].node = f->node;
	f->jobs[f->n].held = held;
	f->jobs[f->n++].part = *p;
	f->held += held;
	return true;
}

/* Starts a part, or computes it here if the device does not take it. No job is held then, or all nodes
 * before it have been computed. */
static void start_part(struct flight *f, struct part *p, tfmbs_weight id) {
	if (submit_part(f, p, id, false)) return;
	collect_all(f); /* perhaps the memory that is shared with the device is full of what is under way */
	if (submit_part(f, p, id, false)) return;
	handle_failure(f, p, f->error);
	deliver_results(p);
}

/* ---- Products ---- */

/* How many vectors may be one job: as many as fit the memory that is shared with the device, in whole
 * tiles of 64 if there are more. */
static int64_t max_vectors(const struct tensor *w) {
	int64_t n = (64 << 20) / (4 * (w->ne[0] + w->ne[1]));
	if (n >= 512) return 512;
	if (n >= 64) return n / 64 * 64;
	return n < 1 ? 1 : n;
}

/* Copies the vectors of a part, which lie at x[i], together, so that they are one job; their results
 * belong to[i]. False: there is no memory for that. */
static bool gather_vectors(struct part *p, const char *const *x, char *const *to) {
	size_t n = (size_t)p->n, in = 4 * (size_t)p->t->src[0]->ne[0], out = 4 * (size_t)p->t->ne[0];
	if (!(p->to = malloc(n * (sizeof *to + in + out)))) return false;
	char *copy = (char *)(p->to + n);
	memcpy(p->to, to, n * sizeof *to);
	for (size_t i = 0; i < n; i++) memcpy(copy + i * in, x[i], in);
	p->x = copy;
	p->x_stride = in;
	p->y = copy + n * in;
	p->y_stride = out;
	return true;
}

/* The number of the k-th expert of a token. */
static int32_t chosen_expert(const struct tensor *t, int64_t token, int64_t k) {
	return *(const int32_t *)(const void *)(t->src[2]->data + (size_t)token * t->src[2]->nb[1] + 4 * (size_t)k);
}

/* The vector that the k-th expert of a token multiplies. */
static const char *vector_of(const struct tensor *t, int64_t token, int64_t k) {
	const struct tensor *x = t->src[1];
	return x->data + (size_t)token * x->nb[2] + (size_t)(k % x->ne[1]) * x->nb[1];
}

/* Where the result of the k-th expert of a token belongs. */
static char *result_of(const struct tensor *t, int64_t token, int64_t k) {
	return t->data + (size_t)token * t->nb[2] + (size_t)k * t->nb[1];
}

/* The part of n vectors with the matrix of expert e; the first (or only) vector and result are at x and y. */
static struct part expert_part(const struct tensor *t, size_t e, size_t n, const char *x, char *y) {
	return (struct part){
	    .t = t,
	    .w = t->src[0]->data + e * t->src[0]->nb[2],
	    .n = (int64_t)n,
	    .x = x,
	    .x_stride = 4 * (size_t)t->src[0]->ne[0],
	    .y = y,
	    .y_stride = 4 * (size_t)t->ne[0],
	};
}

/* How many results a product with experts has: those of each token's experts, one token after the other. */
static size_t expert_uses(const struct tensor *t) { return (size_t)(t->ne[1] * t->ne[2]); }

/* Finds the device's matrices of the experts that were chosen, in their order: ids[i] is 0 if it does
 * not have that matrix. Returns how many it does not have, or -1 if an expert does not exist. Of
 * weights that are handed over, the device is asked again for a matrix if what it holds has changed
 * since, which its jobs tell, or after ASK_AGAIN_S without jobs. */
static int64_t find_chosen_matrices(const struct tensor *t, struct weight *w, tfmbs_weight *ids) {
	int64_t missing = 0;
	pthread_mutex_lock(&tfmbs_state.lock);
	bool again = tfmbs_state.handed_over && seconds_since(&w->asked) > ASK_AGAIN_S;
	for (int64_t i = 0; i < (int64_t)expert_uses(t) && missing >= 0; i++) {
		int32_t e = chosen_expert(t, i / t->ne[1], i % t->ne[1]);
		if (e < 0 || (uint32_t)e >= w->count) {
			missing = -1;
			break;
		}
		struct matrix *m = &w->matrices[e];
		if (!m->id && tfmbs_state.handed_over && (again || m->asked != tfmbs_held())) {
			if (again) clock_gettime(CLOCK_MONOTONIC, &w->asked);
			again = false;
			find_held_matrix(t->src[0], w, (uint32_t)e);
		}
		ids[i] = m->id;
		missing += !m->id;
	}
	pthread_mutex_unlock(&tfmbs_state.lock);
	return missing;
}

/* Has the rest function compute the experts that the device does not have: the same node, changed for
 * that time to have these only. Their vectors and results are copied together. */
static void compute_missing(struct flight *f, struct tensor *t, int node, const tfmbs_weight *ids, int64_t missing) {
	struct tensor *x = t->src[1], *which = t->src[2];
	const struct tensor was = *t, choice = *which;
	const bool one = t->ne[2] == 1, shared = one && x->ne[1] == 1; /* one token; one vector for all its experts */
	const size_t in = 4 * (size_t)x->ne[0], out = 4 * (size_t)t->ne[0], n = (size_t)missing;
	char *room = malloc(n * (4 + out + (shared ? 0 : in)));
	if (!room) {
		f->status = STATUS_ALLOC_FAILED;
		return;
	}
	char *y = room, *from = y + n * out;
	int32_t *list = (int32_t *)(void *)(from + (shared ? 0 : n * in));
	int64_t k = 0;
	for (int64_t i = 0; i < (int64_t)expert_uses(&was); i++) {
		if (ids[i]) continue;
		list[k] = chosen_expert(&was, i / was.ne[1], i % was.ne[1]);
		if (!shared) memcpy(from + (size_t)k * in, vector_of(&was, i / was.ne[1], i % was.ne[1]), in);
		k++;
	}
	struct tensor vectors = *x;
	if (!shared) {
		vectors.data = from;
		vectors.ne[1] = one ? missing : 1;
		vectors.ne[2] = one ? 1 : missing;
		vectors.nb[1] = in;
		vectors.nb[2] = in * (size_t)vectors.ne[1];
		vectors.nb[3] = in * n;
	}
	/* The tensor of the choice stays the same one: observers of ops would take another tensor for another choice. */
	which->data = (char *)list;
	which->ne[0] = t->ne[1] = one ? missing : 1;
	which->ne[1] = t->ne[2] = one ? 1 : missing;
	which->nb[0] = 4;
	which->nb[1] = 4 * (size_t)which->ne[0];
	which->nb[2] = which->nb[3] = 4 * n;
	t->src[1] = &vectors;
	t->data = y;
	t->nb[1] = out;
	t->nb[2] = out * (size_t)t->ne[1];
	t->nb[3] = out * n;
	struct graph part = api.ggml_graph_view(f->graph, node, node + 1);
	int e = f->rest(f->arg, &part, n * t->src[0]->nb[2] > SMALL);
	*t = was;
	*which = choice;
	k = 0;
	for (int64_t i = 0; i < (int64_t)expert_uses(t); i++)
		if (!ids[i]) memcpy(result_of(t, i / t->ne[1], i % t->ne[1]), y + (size_t)k++ * out, out);
	free(room);
	if (e) f->status = e;
}

/* Starts the products of each token with those of its experts that the device has; the weights have
 * count experts. Of a batch, the vectors of several tokens with the same expert are one job. */
static void start_chosen(struct flight *f, const struct tensor *t, size_t count, const tfmbs_weight *ids) {
	const int64_t tokens = t->ne[2], each = t->ne[1];
	const size_t n = expert_uses(t);
	struct expert {
		size_t end; /* of its vectors in the order of experts */
		tfmbs_weight id;
	} *all = tokens > 1 ? calloc(count + 1, sizeof *all) : NULL;
	const char **from = all ? malloc(n * sizeof *from) : NULL;
	char **to = from ? malloc(n * sizeof *to) : NULL;
	for (int64_t i = 0; !to && i < tokens * each; i++) { /* one token, or no memory */
		if (!ids[i]) continue;
		struct part p = expert_part(t, (size_t)chosen_expert(t, i / each, i % each), 1,
		    vector_of(t, i / each, i % each), result_of(t, i / each, i % each));
		start_part(f, &p, ids[i]);
	}
	if (to) {
		for (int64_t i = 0; i < tokens * each; i++) {
			if (!ids[i]) continue;
			int32_t e = chosen_expert(t, i / each, i % each);
			all[e].id = ids[i];
			all[e + 1].end++;
		}
		for (size_t e = 0; e < count; e++) all[e + 1].end += all[e].end;
		/* Now an expert's end is where its vectors begin. It moves to their end as they are entered. */
		for (int64_t i = 0; i < tokens * each; i++) {
			if (!ids[i]) continue;
			size_t at = all[chosen_expert(t, i / each, i % each)].end++;
			from[at] = vector_of(t, i / each, i % each);
			to[at] = result_of(t, i / each, i % each);
		}
		size_t limit = (size_t)max_vectors(t->src[0]);
		for (size_t e = 0, at = 0; e < count; e++)
			while (at < all[e].end) {
				struct part p = expert_part(t, e, all[e].end - at < limit ? all[e].end - at : limit, from[at], to[at]);
				if (p.n > 1 && !gather_vectors(&p, from + at, to + at)) p.n = 1;
				at += (size_t)p.n;
				start_part(f, &p, all[e].id);
			}
	}
	free(all);
	free(from);
	free(to);
}

/* Starts a product with experts, the node of that number, and has the CPU compute those that the
 * device does not have. Without cpu it does nothing and returns false if the device does not have all
 * of them. */
static bool start_expert_product(struct flight *f, struct tensor *t, struct weight *w, int node, bool cpu) {
	tfmbs_weight few[64], *ids = expert_uses(t) <= sizeof few / sizeof *few ? few : calloc(expert_uses(t), sizeof *ids);
	if (!ids) {
		f->status = STATUS_ALLOC_FAILED;
		return true;
	}
	int64_t missing = find_chosen_matrices(t, w, ids);
	bool does = cpu || missing == 0;
	if (missing < 0) f->status = STATUS_FAILED; /* ggml's own code ends the process */
	else if (does) start_chosen(f, t, w->count, ids);
	/* While the device computes, the CPU computes the others, or waits for the disk. */
	if (missing > 0 && does) compute_missing(f, t, node, ids, missing);
	if (ids != few) free(ids);
	return does;
}

/* The part of a product from the vector first on: as many vectors as are one job. */
static struct part vectors_part(const struct tensor *t, int64_t first) {
	const struct tensor *x = t->src[1];
	int64_t limit = max_vectors(t->src[0]), left = t->ne[1] - first;
	return (struct part){
	    .t = t,
	    .w = t->src[0]->data,
	    .n = left < limit ? left : limit,
	    .x = x->data + (size_t)first * x->nb[1],
	    .x_stride = x->nb[1],
	    .y = t->data + (size_t)first * t->nb[1],
	    .y_stride = t->nb[1],
	};
}

/* Starts a product. It waits for others only if it must: several that follow each other (gate and up,
 * for instance) are one trip to the device. */
static void start_product(struct flight *f, int node, struct tensor *t, struct weight *w) {
	if (must_wait(f, t)) collect_all(f);
	f->node = node;
	if (is_op(t, "MUL_MAT_ID")) {
		start_expert_product(f, t, w, node, true);
		return;
	}
	for (int64_t first = 0; first < t->ne[1];) {
		struct part p = vectors_part(t, first);
		first += p.n;
		start_part(f, &p, w->matrices[0].id);
	}
}

/* ---- Graphs ---- */

/* How a product can be computed before nodes that come before it in the graph. */
enum order {
	FREE,   /* freely: they do not touch its memory */
	HELD,   /* its results must not be delivered before: they use that memory for something else */
	BEHIND, /* not at all: they write what it reads */
};

/* The order of the product p among the nodes first to last-1, of which products of the device do not count. */
static enum order order_of(void *graph, const struct tensor *p, int first, int last) {
	enum order order = FREE;
	for (int i = first; i < last; i++) {
		const struct tensor *t = api.ggml_graph_node(graph, i);
		if (!is_computed(t) || device_weight_of(t)) continue;
		if (overlaps(t, p->src[1]) || (p->src[2] && overlaps(t, p->src[2]))) return BEHIND;
		if (overlaps(t, p)) order = HELD;
		for (int k = 0; k < 10; k++)
			if (t->src[k] && overlaps(t->src[k], p)) order = HELD;
	}
	return order;
}

/* Starts the product p, node k, before the nodes from i on are computed. False: it has to wait for
 * some of them, or there is no room. */
static bool start_early(struct flight *f, void *graph, int i, int k, struct tensor *p, struct weight *w) {
	enum order order = order_of(graph, p, i, k);
	if (order == BEHIND || must_wait(f, p)) return false;
	if (order == FREE && !f->held) {
		f->node = k;
		if (is_op(p, "MUL_MAT_ID")) return start_expert_product(f, p, w, k, false);
		start_product(f, k, p, w);
		return true;
	}
	struct part all = vectors_part(p, 0);
	f->node = k;
	return is_op(p, "MUL_MAT") && all.n == p->ne[1] && submit_part(f, &all, w->matrices[0].id, order == HELD);
}

/* Whether t is a product with weights that the device had when the graph was divided, and does not
 * have any more: it is worth all threads. */
static bool is_lost(const struct tensor *t) {
	return is_computed(t) && (is_op(t, "MUL_MAT") || is_op(t, "MUL_MAT_ID")) &&
	    api.ggml_nbytes(t->src[0]) > SMALL && is_device_product(t);
}

int compute_graph(void *graph, rest_function *rest, void *arg) {
	struct flight f = {.graph = graph, .rest = rest, .arg = arg};
	int n = api.ggml_graph_n_nodes(graph);
	for (int i = 0, end; i < n && !f.status; i = end) {
		struct tensor *t = api.ggml_graph_node(graph, i);
		struct weight *w = is_computed(t) ? device_weight_of(t) : NULL;
		end = i + 1;
		if (!is_computed(t) || is_in_flight(&f, i)) continue;
		if (w) {
			if (i >= f.started) start_product(&f, i, t, w);
			continue;
		}
		bool lost = is_lost(t);
		while (end < n && !is_in_flight(&f, end) && !device_weight_of(api.ggml_graph_node(graph, end)) &&
		    is_lost(api.ggml_graph_node(graph, end)) == lost)
			end++;
		/* Products behind these nodes that do not wait for them are computed meanwhile: those of K and
		 * V, for instance, while the position is worked into Q. */
		for (int k = f.started > end ? f.started : end; f.n > 0 && k < n && k < end + AHEAD; f.started = ++k) {
			struct tensor *p = api.ggml_graph_node(graph, k);
			struct weight *pw = is_computed(p) ? device_weight_of(p) : NULL;
			if (pw && !start_early(&f, graph, i, k, p, pw)) break;
		}
		collect_results(&f, i);
		struct graph part = api.ggml_graph_view(graph, i, end);
		int e = f.status ? f.status : rest(arg, &part, lost);
		if (e) f.status = e;
	}
	collect_all(&f);
	return f.status;
}

bool configure(void) {
	configure_validation();
	return is_known_ggml() && configure_weights();
}
