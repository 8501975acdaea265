// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Probes on an unmodified llama.cpp. One hit per op and compute thread, of which thread 0 decides what an op reads; or one
 * hit per graph.
 *
 * What an op reads is looked up when its node is met first, and sent as a template; from then on an op is a short event that
 * names the template. A node is met again if its op and its first sources are the same and no buffer of the target's ggml was freed since.
 *
 * Between two ops megabytes of weights have gone through the caches: what counts is how many lines of memory and code a hit touches.
 *
 * Scratch memory lives in a map value per thread, not per CPU: uprobe programs may be preempted by another thread
 * that hits a probe on the same CPU, but a thread does not interrupt itself.
 *
 * An op is sent when the next one begins, because only then is its duration known. */
#include "common.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL"; /* bpf_find_vma and bpf_probe_read_user are GPL-only helpers */

#define MAX_NODE_SRC 16 /* at least GGML_MAX_SRC, which is 10, and 16 in a fork */
#define SIGNED_SRC 4
#define MAX_WEIGHTS 4   /* weights per op that an event carries */
#define IDS_PER_EVENT 128
#define MAX_IDS 65536
#define MAX_NODES (1 << 20)
#define MAX_BATCH 65536
#define MAX_SAMPLES 64
#define SHAPE_GATHERS 4
#define MAX_BATCHED 16

enum op_flag { OP_FUSED = 1, OP_CLIPPED = 2, OP_GATHERS = 4, OP_BUFFERS = 8, OP_UNRESOLVED = 16 };
#define EBUSY 16
enum source_flag { SOURCE_IN_FILE = 1, SOURCE_UNRESOLVED = 2 };

/* Set before loading. */
const volatile u32 want_graph;   /* a hit per graph, not per op */
const volatile u32 want_buffers; /* tensors besides weights, too */
const volatile u32 batch;        /* ops that are sent together, 1 to MAX_BATCHED */

struct source {
	u64 data;
	u64 offset; /* in the file */
	u64 ino;
	u32 dev;
	u32 type;
	s64 ne[4];
	u64 nb[4];
	u32 flags;
	u32 pad;
	char name[64];
};

/* What the op of a node reads. */
struct template_event {
	u32 kind;
	u32 tgid;
	u32 id;
	u32 shape; /* of which this is the next op; 0 for none */
	u64 node;
	u32 op;
	u32 fused_op;
	u32 flags;
	u32 nsrc;
	u64 ids;   /* tensor that it gathers by; 0 if it does not */
	u32 slots; /* ids per token */
	u32 pad;
	struct source src[MAX_WEIGHTS];
};

struct op_record {
	u64 time;
	u64 duration;
	u64 stalled;
	u64 seq;
	u64 ids_seq; /* the op whose ids this one shares */
	u32 id;      /* of the template */
	u32 flags;
};

/* Ops of one graph and thread. */
struct ops_event {
	u32 kind;
	u32 tgid;
	u32 tid;
	u32 decode;
	u32 graph;
	u32 n;
	struct op_record ops[MAX_BATCHED];
};

struct ids_event {
	u32 kind;
	u32 tgid;
	u32 tid;
	u32 first;
	u64 seq;
	u64 tensor; /* address of the ids */
	u32 n;
	u32 slots;
	u32 rows;
	u32 pad;
	s32 ids[IDS_PER_EVENT];
};

struct decode_event {
	u32 kind;
	u32 tgid;
	u32 tid;
	u32 decode;
	u64 time;
	u64 context;
	s32 tokens;
	u32 warmup;
	u64 sequences[4]; /* bit set */
	u32 sequences_known;
	u32 pad;
};

/* A sequence of ops that graphs have; its templates follow. */
struct shape_event {
	u32 kind;
	u32 tgid;
	u32 id;
	u32 pad;
};

struct graph_event {
	u32 kind;
	u32 tgid;
	u32 tid;
	u32 shape;
	u64 time;
	u64 duration;
	u64 seq; /* of its first op; also names its ids */
	u32 decode;
	u32 graph;
};

struct buffer {
	u64 data;
	s64 ne[4];
	u64 nb[4];
	u32 type;
	u32 write;
	char name[64];
	char root[64];
};

struct buffers_event {
	u32 kind;
	u32 tgid;
	u32 tid;
	u32 n;
	u64 seq;
	struct buffer buffers[MAX_NODE_SRC + 1];
};

struct sample_event {
	u32 kind;
	u32 tgid;
	u64 tensor;
	u8 raw[512];
};

/* A node that was met, by its address. */
struct node_key {
	u64 node;
	u32 tgid;
	u32 pad;
};

struct template {
	u64 signature;
	u64 ids; /* tensor that the op gathers by */
	u32 id;
	u32 epoch;
	u32 nsrc;
	u32 flags;
};

struct shape_key {
	u64 signature;
	u32 tgid;
	u32 epoch;
};

struct shape {
	u32 id;
	u32 ngathers;
	u64 gathers[SHAPE_GATHERS]; /* tensors that hold row numbers when the graph begins */
};

struct thread {
	u64 context;
	u64 seq;
	u64 ids_tensor; /* the ids that were sent last, */
	u64 ids_seq;    /* with which op, */
	u32 ids_graph;  /* in which graph */
	u32 decode;
	u32 graph;
	u32 pending; /* an op in evs, or the graph in gr, is under way */
	u64 stalled; /* the target's, when the op began */
	struct ops_event evs; /* of which the last is under way if an op is pending */
	/* what follows is seldom touched */
	u64 sources[MAX_NODE_SRC];
	struct op_record ev; /* the op that is being looked at */
	u64 weight[MAX_WEIGHTS];
	struct graph_event gr;
	struct template_event tm;
	struct ids_event ids;
	struct template known;
	struct shape shape;
	struct sample_event sample;
	struct buffers_event bufs;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH); /* threads come and go */
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, u64);
	__type(value, u32);
} warm_contexts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, struct node_key);
	__type(value, struct template);
} templates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct shape_key);
	__type(value, struct shape);
} shapes SEC(".maps");

static const struct thread new_thread; /* zeroes: a thread is too large for the BPF stack */
u32 decodes;
u32 graphs;
u32 names; /* of templates and shapes */
u32 epoch; /* counts what may make a known node another one: buffers that were freed */

/* bpf2go makes Go types of these */
const struct ops_event *unused_ops_event __attribute__((unused));
const struct ids_event *unused_ids_event __attribute__((unused));
const struct decode_event *unused_decode_event __attribute__((unused));
const struct template_event *unused_template_event __attribute__((unused));
const struct shape_event *unused_shape_event __attribute__((unused));
const struct graph_event *unused_graph_event __attribute__((unused));
const struct buffers_event *unused_buffers_event __attribute__((unused));
const struct sample_event *unused_sample_event __attribute__((unused));

static __always_inline u32 this_tgid(void) { return bpf_get_current_pid_tgid() >> 32; }

/* The config of this process, if it is a target whose ggml is known. */
static __always_inline struct target_config *target(void)
{
	u32 tgid = this_tgid();
	struct target_config *cfg = bpf_map_lookup_elem(&targets, &tgid);
	return cfg && cfg->ne ? cfg : NULL;
}

static __always_inline struct thread *this_thread(void)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct thread *th = bpf_map_lookup_elem(&threads, &tid);
	if (th)
		return th;
	bpf_map_update_elem(&threads, &tid, &new_thread, BPF_NOEXIST);
	return bpf_map_lookup_elem(&threads, &tid);
}

static __always_inline void send_counted(void *event, u64 size, u32 ops)
{
	count_many(bpf_ringbuf_output(&events, event, size, wakeup()) ? COUNT_LOST : COUNT_SENT, ops);
}

static __always_inline bool send(void *event, u64 size)
{
	if (!bpf_ringbuf_output(&events, event, size, wakeup()))
		return true;
	count(COUNT_OTHERS_LOST);
	return false;
}

static __always_inline void send_ops(struct thread *th)
{
	u32 n = th->evs.n;
	if (!n)
		return;
	if (n > MAX_BATCHED)
		n = MAX_BATCHED;
	th->evs.kind = KIND_OPS;
	th->evs.tgid = bpf_get_current_pid_tgid() >> 32;
	th->evs.tid = (u32)bpf_get_current_pid_tgid();
	th->evs.decode = th->decode;
	th->evs.graph = th->graph;
	send_counted(&th->evs, __builtin_offsetof(struct ops_event, ops) + n * sizeof(struct op_record), n);
	th->evs.n = 0;
}

/* Ends what is under way. Its duration is known now. */
static __always_inline void finish_op(struct target_config *cfg, struct thread *th, u64 now, bool flush)
{
	if (want_graph) {
		if (th->pending) {
			th->gr.duration = now - th->gr.time;
			send_counted(&th->gr, sizeof(th->gr), 1);
		}
		th->pending = 0;
		return;
	}
	if (th->pending) {
		u32 i = th->evs.n;
		th->pending = 0;
		if (i < MAX_BATCHED) {
			struct op_record *o = &th->evs.ops[i];
			o->duration = now - o->time;
			o->stalled = cfg->stalled - th->stalled;
			th->evs.n = i + 1;
		}
		flush |= th->evs.n >= batch;
	}
	if (flush)
		send_ops(th);
}

/* Whether the tensor's name says that it is a weight: ".weight" or ".bias" at its end. Only asked of leaf tensors
 * outside any file, to notice weights that llama.cpp copied at load. */
static __always_inline bool named_weight(const char *name)
{
	u32 len = 0;
	for (u32 i = 0; i < 64; i++) {
		if (!name[i])
			break;
		len = i + 1;
	}
	if (len >= 8 && len < 64) {
		u32 at = (len - 7) & 63;
		const char *end = name + at;
		if (at <= 56 && end[0] == '.' && end[1] == 'w' && end[2] == 'e' && end[3] == 'i' && end[4] == 'g' && end[5] == 'h' && end[6] == 't')
			return true;
	}
	if (len >= 6 && len < 64) {
		u32 at = (len - 5) & 63;
		const char *end = name + at;
		if (at <= 58 && end[0] == '.' && end[1] == 'b' && end[2] == 'i' && end[3] == 'a' && end[4] == 's')
			return true;
	}
	return false;
}

static __always_inline long read_u64(u64 *to, u64 address) { return bpf_probe_read_user(to, sizeof(*to), (void *)address); }
static __always_inline long read_u32(u32 *to, u64 address) { return bpf_probe_read_user(to, sizeof(*to), (void *)address); }

/* Sends a tensor as it is, that user space may judge whether the offsets hold. */
static __always_inline void send_sample(struct target_config *cfg, struct thread *th, u64 tensor)
{
	if (cfg->samples >= MAX_SAMPLES)
		return;
	cfg->samples++;
	struct sample_event *s = &th->sample;
	s->kind = KIND_SAMPLE;
	s->tgid = this_tgid();
	s->tensor = tensor;
	/* Tensors lie side by side in their context: what follows one can be read as well, save at the end of it. */
	if (bpf_probe_read_user(s->raw, sizeof(s->raw), (void *)tensor)) {
		__builtin_memset(s->raw, 0, sizeof(s->raw));
		if (bpf_probe_read_user(s->raw, 336, (void *)tensor))
			return;
	}
	send(s, sizeof(*s));
}

/* Functions that are not static are verified by themselves, once, and not anew at each call: loading takes a fraction of the time. */

/* Adds the tensor to th->tm if it is a weight. */
__attribute__((noinline)) int add_weight(struct target_config *cfg, struct thread *th, u64 tensor)
{
	if (!cfg || !th)
		return 0;
	u64 data = 0, view = 0;
	u32 op = 0;
	if (read_u64(&data, tensor + cfg->data) || read_u64(&view, tensor + cfg->view_src) || read_u32(&op, tensor + cfg->op)) {
		th->tm.flags |= OP_CLIPPED;
		return 0;
	}
	if (!data || (op && !view))
		return 0; /* the result of an op, not a weight */
	u32 n = th->tm.nsrc;
	struct vma_query q = {.address = data};
	long err = find_vma(&q);
	u32 flags = 0;
	char name[64] = {};
	if (err == -EBUSY)
		th->tm.flags |= OP_UNRESOLVED; /* a writer holds mmap_lock: the node is looked at again the next time */
	if (q.in_file) {
		flags = SOURCE_IN_FILE;
	} else {
		u32 tensor_flags = 0;
		if (op || view || (cfg->flags && (read_u32(&tensor_flags, tensor + cfg->flags) || tensor_flags)))
			return 0; /* an input, an activation, the KV cache */
		if (bpf_probe_read_user(name, sizeof(name), (void *)(tensor + cfg->name)) || !named_weight(name))
			return 0;
		if (err)
			flags = SOURCE_UNRESOLVED; /* user space looks it up */
	}
	if (n >= MAX_WEIGHTS) {
		th->tm.flags |= OP_CLIPPED;
		return 0;
	}
	send_sample(cfg, th, tensor);
	struct source *to = &th->tm.src[n];
	to->data = data;
	to->offset = q.offset;
	to->ino = q.ino;
	to->dev = q.dev;
	to->flags = flags;
	/* type is the first member in every ggml; nb follows ne */
	if (read_u32(&to->type, tensor) || bpf_probe_read_user(to->ne, sizeof(to->ne) + sizeof(to->nb), (void *)(tensor + cfg->ne)) ||
	    bpf_probe_read_user(to->name, sizeof(to->name), (void *)(tensor + cfg->name))) {
		th->tm.flags |= OP_CLIPPED;
		return 0;
	}
	th->weight[n] = tensor;
	th->tm.nsrc = n + 1;
	return 0;
}

/* Says which node this is: its op and its first sources, each by its place; 0 if they cannot be read. Ops with more sources than that (attention)
 * do not differ in those alone. */
static __always_inline u64 sign(struct target_config *cfg, u64 node, u64 src[SIGNED_SRC], u32 *op)
{
	const u64 k = 0x9e3779b97f4a7c15;
	if (bpf_probe_read_user(op, sizeof(*op), (void *)(node + cfg->op)) ||
	    bpf_probe_read_user(src, SIGNED_SRC * sizeof(u64), (void *)(node + cfg->src)))
		return 0;
	return ((*op + src[0]) * k + src[1] * (k << 1 | 1) + src[2] * (k << 2 | 1) + src[3] * (k << 3 | 1)) | 1;
}

/* The op and all sources of a node, into th->sources. */
static __always_inline bool read_node(struct target_config *cfg, struct thread *th, u64 node, u32 *op)
{
	if (bpf_probe_read_user(op, sizeof(*op), (void *)(node + cfg->op)) ||
	    bpf_probe_read_user(th->sources, sizeof(th->sources), (void *)(node + cfg->src)))
		return false;
	for (u32 i = 0; i < MAX_NODE_SRC; i++)
		if (i >= cfg->max_src)
			th->sources[i] = 0; /* what was read there is another member */
	return true;
}

/* Learns what a node reads (with the one fused to it, or 0) and sends that as a template. */
__attribute__((noinline)) int learn(struct target_config *cfg, struct thread *th, u64 node, u64 second)
{
	if (!cfg || !th)
		return 0;
	struct template_event *tm = &th->tm;
	tm->nsrc = 0;
	tm->flags = 0;
	tm->fused_op = 0;
	if (!read_node(cfg, th, node, &tm->op))
		return 0;
	send_sample(cfg, th, node);
	for (u32 i = 0; i < MAX_NODE_SRC; i++)
		if (th->sources[i])
			add_weight(cfg, th, th->sources[i]);
	u64 ids = 0;
	if (tm->op == cfg->op_get_rows)
		ids = th->sources[1];
	else if (tm->op == cfg->op_mul_mat_id || tm->op == cfg->op_add_id)
		ids = th->sources[2];
	if (second) {
		tm->flags |= OP_FUSED;
		if (!read_node(cfg, th, second, &tm->fused_op))
			tm->flags |= OP_CLIPPED;
		else
			for (u32 i = 0; i < MAX_NODE_SRC; i++)
				if (th->sources[i])
					add_weight(cfg, th, th->sources[i]);
	}
	u64 slots = 0;
	if (ids) {
		tm->flags |= OP_GATHERS;
		read_u64(&slots, ids + cfg->ne);
	}
	tm->ids = ids;
	tm->slots = slots;
	th->known.ids = ids;
	th->known.nsrc = tm->nsrc;
	th->known.flags = tm->flags;
	if (!tm->nsrc && !want_buffers)
		return 1;
	tm->kind = KIND_TEMPLATE;
	tm->tgid = this_tgid();
	tm->id = __sync_fetch_and_add(&names, 1) + 1;
	tm->node = node;
	u32 n = tm->nsrc;
	if (n > MAX_WEIGHTS)
		n = MAX_WEIGHTS;
	if (!send(tm, __builtin_offsetof(struct template_event, src) + n * sizeof(struct source))) {
		th->known.id = 0;
		return 0;
	}
	th->known.id = tm->id;
	return 1;
}

/* What a node reads, from memory or anew. */
static __always_inline struct template *recall(struct target_config *cfg, struct thread *th, u64 node, u64 second, u64 signature)
{
	struct node_key key = {.node = node, .tgid = this_tgid()};
	struct template *t = bpf_map_lookup_elem(&templates, &key);
	if (t && t->signature == (signature ^ second) && t->epoch == epoch && !want_buffers && !cfg->forget)
		return t;
	th->tm.shape = 0;
	th->known.signature = signature ^ second;
	th->known.epoch = epoch;
	/* What could not be sent, or read whole, is learned again the next time. */
	if (learn(cfg, th, node, second) && !(th->known.flags & (OP_CLIPPED | OP_UNRESOLVED)))
		bpf_map_update_elem(&templates, &key, &th->known, BPF_ANY);
	else
		bpf_map_delete_elem(&templates, &key);
	return &th->known;
}

struct ids_loop {
	struct thread *th;
	u64 data;
	u64 nb0, nb1;
	u32 slots;
	u32 n;
	u32 lost;
};

static long send_id(u32 i, void *arg)
{
	struct ids_loop *l = arg;
	struct thread *th = l->th;
	if (!l->slots)
		return 1;
	u32 row = i / l->slots, slot = i % l->slots;
	s32 id = -1;
	if (bpf_probe_read_user(&id, sizeof(id), (void *)(l->data + row * l->nb1 + slot * l->nb0))) {
		l->lost = 1;
		return 1;
	}
	u32 at = i & (IDS_PER_EVENT - 1);
	th->ids.ids[at] = id;
	if (at == IDS_PER_EVENT - 1 || i + 1 == l->n) {
		th->ids.first = i - at;
		th->ids.n = at + 1;
		u64 size = __builtin_offsetof(struct ids_event, ids) + (at + 1) * sizeof(s32);
		if (!send(&th->ids, size)) {
			l->lost = 1;
			return 1;
		}
	}
	return 0;
}

/* Sends the row numbers or experts that a tensor holds now. false if they cannot be read or sent whole. */
__attribute__((noinline)) int send_ids(struct target_config *cfg, struct thread *th, u64 tensor, u64 seq)
{
	if (!cfg || !th)
		return 0;
	struct {
		s64 ne[4];
		u64 nb[4];
	} s;
	u64 data;
	if (bpf_probe_read_user(&s, sizeof(s), (void *)(tensor + cfg->ne)) || read_u64(&data, tensor + cfg->data))
		return 0;
	u64 n = s.ne[0] * s.ne[1];
	if (s.ne[0] <= 0 || s.ne[1] <= 0 || s.ne[0] > MAX_IDS || s.ne[1] > MAX_IDS || n > MAX_IDS || s.ne[2] > 1 || s.ne[3] > 1)
		return 0;
	th->ids.kind = KIND_IDS;
	th->ids.tgid = this_tgid();
	th->ids.tid = (u32)bpf_get_current_pid_tgid();
	th->ids.seq = seq;
	th->ids.tensor = tensor;
	th->ids.slots = s.ne[0];
	th->ids.rows = s.ne[1];
	struct ids_loop l = {.th = th, .data = data, .nb0 = s.nb[0], .nb1 = s.nb[1], .slots = s.ne[0], .n = n};
	bpf_loop(n, send_id, &l, 0);
	return !l.lost;
}

/* The ids that the op of th->ev gathers by. gate, up and down of a layer share one ids tensor: it is sent once. */
static __always_inline void add_ids(struct target_config *cfg, struct thread *th, u64 tensor)
{
	if (th->ids_tensor == tensor && th->ids_graph == th->graph) {
		th->ev.ids_seq = th->ids_seq;
		return;
	}
	th->ev.ids_seq = th->ev.seq;
	if (!send_ids(cfg, th, tensor, th->ev.seq)) {
		th->ev.flags |= OP_CLIPPED;
		return;
	}
	th->ids_tensor = tensor;
	th->ids_graph = th->graph;
	th->ids_seq = th->ev.seq;
}

__attribute__((noinline)) int add_buffer(struct target_config *cfg, struct thread *th, u64 tensor, u32 write)
{
	if (!cfg || !th)
		return 0;
	u32 n = th->bufs.n;
	if (n > MAX_NODE_SRC)
		return 0;
	struct buffer *b = &th->bufs.buffers[n];
	u64 view = 0;
	b->root[0] = 0;
	b->write = write;
	if (read_u64(&b->data, tensor + cfg->data) || read_u32(&b->type, tensor) ||
	    bpf_probe_read_user(b->ne, sizeof(b->ne) + sizeof(b->nb), (void *)(tensor + cfg->ne)) ||
	    bpf_probe_read_user(b->name, sizeof(b->name), (void *)(tensor + cfg->name)) || read_u64(&view, tensor + cfg->view_src) ||
	    (view && bpf_probe_read_user(b->root, sizeof(b->root), (void *)(view + cfg->name)))) {
		th->ev.flags |= OP_CLIPPED;
		return 0;
	}
	th->bufs.n = n + 1;
	return 0;
}

/* What the node touches besides weights. th->sources are of the node. */
__attribute__((noinline)) int send_buffers(struct target_config *cfg, struct thread *th, u64 node, u64 result)
{
	if (!cfg || !th)
		return 0;
	u32 op;
	if (!read_node(cfg, th, node, &op)) {
		th->ev.flags |= OP_CLIPPED;
		return 0;
	}
	th->bufs.n = 0;
	for (u32 i = 0; i < MAX_NODE_SRC; i++) {
		u64 s = th->sources[i];
		if (!s)
			continue;
		bool weight = false;
		for (u32 k = 0; k < MAX_WEIGHTS; k++)
			if (k < th->known.nsrc && th->weight[k] == s)
				weight = true;
		if (!weight)
			add_buffer(cfg, th, s, 0);
	}
	add_buffer(cfg, th, result, 1);
	th->bufs.kind = KIND_BUFFERS;
	th->bufs.tgid = this_tgid();
	th->bufs.tid = (u32)bpf_get_current_pid_tgid();
	th->bufs.seq = th->ev.seq;
	u32 n = th->bufs.n;
	if (n > MAX_NODE_SRC + 1)
		n = MAX_NODE_SRC + 1;
	if (send(&th->bufs, __builtin_offsetof(struct buffers_event, buffers) + n * sizeof(struct buffer)))
		th->ev.flags |= OP_BUFFERS;
	else
		th->ev.flags |= OP_CLIPPED;
	return 0;
}

static __always_inline int op_hit(u64 params, u64 node, u64 second)
{
	struct target_config *cfg = target();
	if (!cfg)
		return 0;
	count(COUNT_HITS);
	s32 ith; /* the first member of ggml_compute_params */
	if (bpf_probe_read_user(&ith, sizeof(ith), (void *)params)) {
		count(COUNT_FAULTS);
		return 0;
	}
	if (ith) {
		count(COUNT_OTHER_THREADS);
		return 0;
	}
	struct thread *th = this_thread();
	if (!th) {
		count(COUNT_FAULTS);
		return 0;
	}
	u64 now = bpf_ktime_get_ns();
	finish_op(cfg, th, now, false);
	th->seq++;
	u64 src[SIGNED_SRC];
	u32 op;
	u64 signature = sign(cfg, node, src, &op);
	if (!signature) {
		count(COUNT_FAULTS);
		return 0;
	}
	cfg->decode = th->decode;
	cfg->seq = th->seq;
	struct template *known = recall(cfg, th, node, second, signature);
	if (!known->nsrc && !want_buffers) {
		count(COUNT_NO_WEIGHT);
		return 0;
	}
	th->ev.id = known->id;
	th->ev.time = now;
	th->ev.seq = th->seq;
	th->ev.ids_seq = 0;
	th->ev.flags = known->flags;
	th->stalled = cfg->stalled;
	if (known->nsrc && known->ids)
		add_ids(cfg, th, known->ids);
	if (want_buffers) {
		send_buffers(cfg, th, node, second ? second : node);
	}
	if (th->ev.flags & OP_CLIPPED)
		count(COUNT_CLIPPED);
	u32 n = th->evs.n;
	if (n < MAX_BATCHED)
		th->evs.ops[n] = th->ev;
	th->pending = 1;
	count(COUNT_BEGUN);
	return 0;
}

/* bool ggml_cpu_extra_compute_forward(params, tensor): the CPU backend asks it first for each op that it runs. */
SEC("uprobe.multi")
int BPF_KPROBE(op, u64 params, u64 tensor)
{
	return op_hit(params, tensor, 0);
}

/* ggml_compute_forward_*_fused(params, first, second) */
SEC("uprobe.multi")
int BPF_KPROBE(fused_op, u64 params, u64 first, u64 second)
{
	return op_hit(params, first, second);
}

struct graph_loop {
	struct target_config *cfg;
	struct thread *th;
	u64 nodes;
	u64 signature;
	u32 failed;
	u32 shape;
};

/* The order of ops and sources of a graph, whatever the addresses of its nodes are. */
static long sign_node(u32 i, void *arg)
{
	struct graph_loop *l = arg;
	u64 node = 0, src[SIGNED_SRC];
	u32 op;
	u64 signature = 0;
	if (!read_u64(&node, l->nodes + 8 * i))
		signature = sign(l->cfg, node, src, &op);
	/* The warm-up uses all experts. */
	u64 slots = 0;
	if (!signature || (op == l->cfg->op_mul_mat_id && read_u64(&slots, src[2] + l->cfg->ne))) {
		l->failed = 1;
		return 1;
	}
	signature ^= slots;
	l->signature = (l->signature ^ signature) * 0x9e3779b97f4a7c15;
	return 0;
}

static long learn_node(u32 i, void *arg)
{
	struct graph_loop *l = arg;
	struct thread *th = l->th;
	u64 node = 0;
	th->tm.shape = l->shape;
	if (read_u64(&node, l->nodes + 8 * i) || !learn(l->cfg, th, node, 0)) {
		l->failed = 1;
		return 1;
	}
	if (th->known.flags & OP_UNRESOLVED)
		l->failed = 1; /* go on, but do not keep the shape */
	if (th->known.flags & OP_CLIPPED)
		count(COUNT_CLIPPED);
	u32 n = th->shape.ngathers;
	if (th->known.nsrc && th->tm.op == l->cfg->op_get_rows && n < SHAPE_GATHERS) {
		th->shape.gathers[n] = th->known.ids;
		th->shape.ngathers = n + 1;
	}
	return 0;
}

/* A graph begins: sends what its ops read, if that is not known, and the rows that it looks up. */
static __always_inline void whole_graph(struct target_config *cfg, struct thread *th, u64 graph, u64 now)
{
	struct graph_loop l = {.cfg = cfg, .th = th, .signature = 1};
	u32 n = 0;
	count(COUNT_HITS);
	if (read_u32(&n, graph + cfg->n_nodes) || read_u64(&l.nodes, graph + cfg->nodes) || n > MAX_NODES) {
		count(COUNT_FAULTS);
		return;
	}
	bpf_loop(n, sign_node, &l, 0);
	if (l.failed) {
		count(COUNT_FAULTS);
		return;
	}
	struct shape_key key = {.signature = l.signature, .tgid = this_tgid(), .epoch = epoch};
	struct shape *known = bpf_map_lookup_elem(&shapes, &key);
	if (known && !cfg->forget) {
		th->shape = *known;
	} else {
		struct shape_event e = {.kind = KIND_SHAPE, .tgid = key.tgid, .id = __sync_fetch_and_add(&names, 1) + 1};
		th->shape.id = l.shape = e.id;
		th->shape.ngathers = 0;
		if (send(&e, sizeof(e)))
			bpf_loop(n, learn_node, &l, 0);
		else
			l.failed = 1;
		/* What could not be sent whole is sent again with the next graph; this one then says what it can. */
		if (!l.failed)
			bpf_map_update_elem(&shapes, &key, &th->shape, BPF_ANY);
	}
	th->seq++;
	for (u32 i = 0; i < SHAPE_GATHERS; i++)
		if (i < th->shape.ngathers)
			send_ids(cfg, th, th->shape.gathers[i], th->seq);
	th->gr.kind = KIND_GRAPH;
	th->gr.tgid = key.tgid;
	th->gr.tid = (u32)bpf_get_current_pid_tgid();
	th->gr.shape = th->shape.id;
	th->gr.time = now;
	th->gr.seq = th->seq;
	th->gr.decode = th->decode;
	th->gr.graph = th->graph;
	th->pending = 1;
	count(COUNT_BEGUN);
}

/* ggml_graph_compute(cgraph, cplan) */
SEC("uprobe.multi")
int BPF_KPROBE(graph_begin, u64 graph)
{
	struct target_config *cfg = target();
	if (!cfg)
		return 0;
	struct thread *th = this_thread();
	if (!th)
		return 0;
	u64 now = bpf_ktime_get_ns();
	finish_op(cfg, th, now, true);
	th->graph = __sync_fetch_and_add(&graphs, 1) + 1;
	if (want_graph)
		whole_graph(cfg, th, graph, now);
	return 0;
}

SEC("uprobe.multi")
int BPF_KRETPROBE(graph_end)
{
	struct target_config *cfg = target();
	if (!cfg)
		return 0;
	struct thread *th = this_thread();
	if (th)
		finish_op(cfg, th, bpf_ktime_get_ns(), true);
	return 0;
}

struct batch {
	s32 n_tokens;
	u32 pad;
	u64 token, embd, pos, n_seq_id, seq_id, logits;
};

struct batch_loop {
	u64 seq_id;
	u64 set[4];
	u32 failed;
};

/* A token may be of several sequences, as a common prefix is: the first stands for it. */
static long add_sequence(u32 i, void *arg)
{
	struct batch_loop *l = arg;
	u64 ids = 0;
	u32 id = 0;
	if (read_u64(&ids, l->seq_id + 8 * i) || read_u32(&id, ids)) {
		l->failed = 1;
		return 1;
	}
	if (id < 256)
		l->set[(id >> 6) & 3] |= 1ULL << (id & 63);
	return 0;
}

/* int32_t llama_decode(ctx, struct llama_batch batch): the batch, larger than 16 bytes, is passed on the stack on
 * x86-64 and by reference on arm64. The cookie is how many bytes the prologue had pushed. */
SEC("uprobe.multi")
int BPF_KPROBE(decode_begin, u64 context, u64 batch)
{
	if (!target())
		return 0;
	struct thread *th = this_thread();
	if (!th)
		return 0;
#if defined(__TARGET_ARCH_x86)
	batch = PT_REGS_SP(ctx) + 8 + bpf_get_attach_cookie(ctx);
#endif
	struct decode_event e = {.kind = KIND_DECODE_BEGIN, .tokens = -1};
	struct batch b = {};
	if (!bpf_probe_read_user(&b, sizeof(b), (void *)batch)) {
		e.tokens = b.n_tokens;
		struct batch_loop l = {.seq_id = b.seq_id};
		if (!b.seq_id)
			l.set[0] = 1; /* llama_batch_get_one: sequence 0 */
		else if (b.n_tokens > 0 && b.n_tokens <= MAX_BATCH)
			bpf_loop(b.n_tokens, add_sequence, &l, 0);
		e.sequences_known = !l.failed;
		__builtin_memcpy(e.sequences, l.set, sizeof(e.sequences));
	}
	th->context = context;
	th->decode = __sync_fetch_and_add(&decodes, 1) + 1;
	u32 *warm = bpf_map_lookup_elem(&warm_contexts, &context);
	e.tgid = this_tgid();
	e.tid = (u32)bpf_get_current_pid_tgid();
	e.time = bpf_ktime_get_ns();
	e.context = context;
	e.decode = th->decode;
	e.warmup = warm && *warm;
	send(&e, sizeof(e));
	return 0;
}

SEC("uprobe.multi")
int BPF_KRETPROBE(decode_end)
{
	struct target_config *cfg = target();
	if (!cfg)
		return 0;
	struct thread *th = this_thread();
	if (!th)
		return 0;
	u64 now = bpf_ktime_get_ns();
	finish_op(cfg, th, now, true);
	struct decode_event e = {.kind = KIND_DECODE_END, .tgid = this_tgid(), .time = now, .context = th->context, .decode = th->decode};
	e.tid = (u32)bpf_get_current_pid_tgid();
	th->decode = 0;
	cfg->decode = 0;
	if (bpf_ringbuf_output(&events, &e, sizeof(e), wakeup()))
		count(COUNT_OTHERS_LOST);
	return 0;
}

/* void llama_set_warmup(ctx, bool) */
SEC("uprobe.multi")
int BPF_KPROBE(set_warmup, u64 context, u64 on)
{
	if (!target())
		return 0;
	u32 warm = on & 0xff;
	bpf_map_update_elem(&warm_contexts, &context, &warm, BPF_ANY);
	return 0;
}

/* void ggml_backend_buffer_free(buffer): weights and graphs live in buffers. What is known of nodes is forgotten. */
SEC("uprobe.multi")
int BPF_KPROBE(buffer_free)
{
	if (target())
		__sync_fetch_and_add(&epoch, 1);
	return 0;
}
