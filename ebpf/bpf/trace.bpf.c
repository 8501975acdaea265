// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Programs on uprobes in an unmodified llama.cpp. There is one hit per op and compute thread, of
 * which only the hits of thread 0 are evaluated, or one hit per graph.
 *
 * When a node of a graph is met for the first time, the program looks up what its op reads and
 * sends that as a template. From then on an op is a short record with the template's id. A node
 * counts as the same if its op and its first sources are unchanged and no ggml buffer of the target
 * was freed since.
 *
 * Cost: between two ops, megabytes of weights have gone through the CPU caches. So the cost of a
 * hit is the number of cache lines of data and code that it touches. Therefore a thread finds its
 * state by its thread id in an array, and the next template is predicted to be the one that
 * followed the last time. Maps are searched only if this fails.
 *
 * Scratch memory is a map value per thread, not per CPU: a uprobe program may be preempted by
 * another thread that hits a probe on the same CPU, but a thread does not interrupt itself.
 *
 * An op is sent when the next one begins, because only then its duration is known. */
#include "common.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL"; /* bpf_find_vma and bpf_probe_read_user are GPL-only helpers */

#define MAX_WEIGHTS 4 /* weights per op that a template carries */
/* "number of weights" of a template without weights, whose op only has something sent when it begins */
#define ONLY_TAPPED 64
#define IDS_PER_EVENT 128
#define MAX_IDS 65536
#define MAX_NODES (1 << 18) /* of a graph; the largest have some 10^5 */
#define MAX_BATCH 65536
#define INPUT_PIECE 512 /* values of a router's input that are sent together */
#define MAX_DIM 65536
#define MAX_SAMPLES 64
#define SHAPE_GATHERS 4
#define SHAPE_READS 2048 /* a power of two */
#define MAX_BATCHED 16
#define THREAD_SLOTS 64

enum op_flag {
	OP_FUSED = 1,
	OP_CLIPPED = 2,
	OP_GATHERS = 4,
	OP_BUFFERS = 8,
	OP_UNRESOLVED = 16,
	OP_TAPPED = 32,
};
#define EBUSY 16
#define NO_FILE (~0ULL) /* no file's inode number */
/* What is sent when an op begins. */
enum tap {
	TAP_NONE,
	TAP_SELECTED,
	TAP_ROUTER,
	TAP_ATTENTION,
	TAP_LOOKUP,
};
enum source_flag {
	SOURCE_IN_FILE = 1,
	SOURCE_UNRESOLVED = 2,
};

/* Set before loading. */
const volatile u32 want_graph;    /* 1: a hit per graph, 0: per op */
const volatile u32 want_buffers;  /* also report tensors that are no weights */
const volatile u32 want_io;       /* record which op is running, for page-ins */
const volatile u32 wide;          /* processes that are no targets hit the probes, too */
const volatile u32 batch;         /* ops that are sent together, 1 to MAX_BATCHED */
const volatile u32 want_selected; /* send the chosen experts before they run */
const volatile u32 at_once;       /* wake the reader for that, however little the ring buffer holds */
const volatile u32 want_inputs;   /* send the routers' inputs for one in so many tokens; 0: of none */
const volatile u32 input_rows;    /* the most rows of a batch for which they are sent, at least 1 */
const volatile u64 want_lookups;  /* send rows that are looked up in tables of so many bytes or more; 0: in none */
const volatile u32 template_mask; /* number of templates, a power of two, minus one */

/* A weight that an op reads. */
struct source {
	u64 data;
	u64 offset; /* offset in the file */
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
	u32 shape; /* the shape whose next op this is; 0 for none */
	u32 op;
	u32 fused_op;
	u32 flags;
	u32 nsrc;
	u64 ids;   /* address of the tensor with the ids that it gathers by; 0 if it does not gather */
	u32 slots; /* ids per token */
	u32 pad;
	struct source src[MAX_WEIGHTS];
};

struct op_record {
	u64 time;
	u64 duration;
	u32 id;       /* id of the template */
	u32 seq;      /* low 32 bits of its number */
	u32 ids_back; /* how many ops earlier the shared ids were sent; 0: with this op */
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
	u64 seq; /* number of the last op, or of a later one without weights */
	/* ns that the target waited for the disk during the op. With want_io, ops are sent one by one. */
	u64 stalled;
	struct op_record ops[MAX_BATCHED];
};

/* A piece of the ids that an op gathers by, from index first on. */
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

/* Announces a sequence of ops that graphs have; the templates of the ops follow. */
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
	u64 seq; /* number of its first op, under which its ids are sent */
	u32 decode;
	u32 graph;
};

/* A tensor that is no weight. */
struct buffer {
	u64 data;
	s64 ne[4];
	u64 nb[4];
	u32 type;
	u32 write;
	char name[64];
	char root[64];
};

/* What an op touches besides weights. */
struct buffers_event {
	u32 kind;
	u32 tgid;
	u32 tid;
	u32 n;
	u64 seq;
	struct buffer buffers[MAX_NODE_SRC + 1];
};

/* The experts that a layer has chosen; its ids were sent before. */
struct selected_event {
	u32 kind;
	u32 tgid;
	u32 tid;
	u32 decode;
	u64 time;
	u64 seq;    /* number of the op that reads the choice first */
	u64 tensor; /* address of the ids */
	u32 graph;
	s32 layer; /* -1: not known */
};

/* Rows that an op is about to look up in a table of a file; their numbers were sent before. */
struct lookup_event {
	u32 kind;
	u32 tgid;
	u32 tid;
	u32 decode;
	u64 time;
	u64 seq;     /* number of the op */
	u64 ids_seq; /* number of the op that the ids were sent with */
	u64 tensor;  /* address of the ids */
	u32 graph;
	u32 id;    /* id of the op's template */
	u32 shape; /* the shape that has the template; 0: none */
	u32 pad;
};

/* A piece of a row of a router's input, or of what attention reads. The pieces of a row are sent
 * one after the other. */
struct input_event {
	u32 kind;
	u32 tgid;
	u32 tid;
	u32 decode;
	u64 time;
	u64 seq;
	u32 graph;
	s32 layer;
	u32 tap;
	u32 rows;
	u32 row;
	u32 dim;
	u32 first;
	u32 n;
	u32 values[INPUT_PIECE]; /* float32 */
};

/* The first bytes of a tensor, with which user space checks the layout. */
struct sample_event {
	u32 kind;
	u32 tgid;
	u64 tensor;
	u8 raw[512];
};

/* Identifies a node by its address and contents: the graph of a prompt and that of a token use the
 * same memory in turn. */
struct node_key {
	u64 node;
	u64 signature;
	u32 tgid;
	u32 epoch;
};

/* One cache line. A template is stored at its id modulo the size of the map: a new one replaces the
 * oldest. */
struct template {
	struct node_key key;
	u64 ids; /* address of the tensor with the ids that the op gathers by */
	u32 id;
	u32 next; /* index of the template that followed this one the last time */
	u32 nsrc; /* weights, or ONLY_TAPPED */
	u32 flags;
	u64 tapped; /* with OP_TAPPED: address of the tensor that is sent when the op begins */
	s32 layer;  /* whose tensor it is; -1: not known */
	u32 tap;    /* what is sent, an enum tap */
};

/* Identifies a sequence of ops. */
struct shape_key {
	u64 signature;
	u32 tgid;
	u32 epoch;
};

/* What is known of a sequence of ops. */
struct shape {
	u32 id;
	u32 ngathers;
	u64 gathers[SHAPE_GATHERS]; /* tensors that hold row numbers when the graph begins */
	u32 tables[SHAPE_GATHERS];  /* where these are of a large table: the id of the op's template; else 0 */
	u32 nreads;                 /* above SHAPE_READS: they did not fit */
	u16 reads[SHAPE_READS];     /* indices of the nodes that read weights */
};

/* Where a graph was found in the target's memory ... */
struct graph_memory {
	u64 nodes;
	u32 n;
	u32 tgid;
	u32 epoch;
	u32 pad;
};

/* ... and which graph it was. */
struct recent_graph {
	u64 signature;
	u64 reads; /* signature over the nodes that read weights */
};

/* State of a thread that acts as ggml's thread 0. */
struct thread {
	/* These fill one cache line, the only one that a hit touches here besides its record. */
	u64 id; /* bpf_get_current_pid_tgid of the thread that owns this slot; 0: free */
	u64 seq;
	u64 began;    /* start time of the running op */
	u32 expected; /* predicted index of the next op's template */
	u32 last;     /* index of the last op's template */
	u32 epoch;    /* value of epoch when the graph began */
	u32 op;       /* op and src: copies of the layout's offsets */
	u32 src;
	u32 hits, no_weight, begun; /* not yet added to counters */
	u16 n;                      /* finished ops in ops_event */
	u16 batch;                  /* copy of the constant, which is in another cache line */
	u8 buffers;                 /* copy of want_buffers */
	u8 io;                      /* copy of want_io */
	u8 ready;                   /* inside a graph: epoch and layout are valid until it ends */
	u8 pending;                 /* an op is running: the last one in ops_event, or the graph in graph_event */
	/* ops_event.tgid and ops_event.tid are user space's ids of this thread. They are valid once a
	 * graph or decode has begun. */
	struct ops_event ops_event;
	/* What follows is rarely used. */
	struct layout layout;
	u32 configuration; /* value of configurations when layout was copied */
	u32 pad;
	u64 context;
	/* The ids that were sent last: address of their tensor, the op that they were sent with, and
	 * its graph. */
	u64 ids_tensor;
	u64 ids_seq;
	u32 ids_graph;
	u32 decode;
	u32 graph;
	u32 clipped; /* 1: the current op could not be read completely */
	/* What attention reads that was sent last: address of the tensor, and its graph. */
	u64 attention;
	u32 attention_graph;
	u32 single_decodes; /* decodes of one token so far */
	u32 skip_inputs;    /* 1: no inputs of this decode are wanted */
	u32 pad2;
	u64 stalled; /* the target's value when the op began */
	u64 sources[MAX_NODE_SRC];
	u64 weight[MAX_WEIGHTS];
	u64 label[8]; /* the name of a tensor */
	struct graph_event graph_event;
	struct template_event template_event;
	struct ids_event ids_event;
	struct template learned;
	struct shape shape;
	struct sample_event sample_event;
	struct buffers_event buffers_event;
} __attribute__((aligned(64)));

/* State of threads that act as ggml's thread 0, at their thread id modulo THREAD_SLOTS. The size is
 * a constant, because each hit needs it. A variable would be in another cache line. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* mmapable maps begin at a page, and so at a cache line */
	__uint(max_entries, THREAD_SLOTS);
	__type(key, u32);
	__type(value, struct thread);
} slots SEC(".maps");

/* State of threads whose slot is taken by another thread. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH); /* threads come and go */
	__uint(max_entries, 512);
	__type(key, u64);
	__type(value, struct thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, u64);
	__type(value, u32);
} warm_contexts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 32768);
	__type(key, u32);
	__type(value, struct template);
} templates SEC(".maps");

/* Index of each known node's template. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, struct node_key);
	__type(value, u32);
} nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 512);
	__type(key, struct shape_key);
	__type(value, struct shape);
} shapes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct graph_memory);
	__type(value, struct recent_graph);
} recent_graphs SEC(".maps");

static const struct thread new_thread; /* zeroes: a thread is too large for the BPF stack */
u32 decodes;
u32 graphs;
u32 last_id;        /* of the templates and shapes */
u32 epoch;          /* incremented when a buffer is freed: known nodes may have become others */
u32 configurations; /* incremented when user space changes targets */
u32 inputs_off;     /* 1: nobody wants routers' inputs now */

/* Make bpf2go generate Go types for these. */
const struct ops_event *unused_ops_event __attribute__((unused));
const struct ids_event *unused_ids_event __attribute__((unused));
const struct decode_event *unused_decode_event __attribute__((unused));
const struct template_event *unused_template_event __attribute__((unused));
const struct shape_event *unused_shape_event __attribute__((unused));
const struct graph_event *unused_graph_event __attribute__((unused));
const struct buffers_event *unused_buffers_event __attribute__((unused));
const struct sample_event *unused_sample_event __attribute__((unused));
const struct input_event *unused_input_event __attribute__((unused));
const enum tap *unused_tap __attribute__((unused));
const struct lookup_event *unused_lookup_event __attribute__((unused));
const struct selected_event *unused_selected_event __attribute__((unused));
const enum kind *unused_kind __attribute__((unused));
const enum counter *unused_counter __attribute__((unused));
const enum limit *unused_limit __attribute__((unused));
const enum op_flag *unused_op_flag __attribute__((unused));
const enum source_flag *unused_source_flag __attribute__((unused));

/* The configuration of this process; NULL unless it is a target whose ggml is known. */
static __always_inline struct target_config *this_target(void) {
	u32 tgid = this_tgid();
	struct target_config *cfg = bpf_map_lookup_elem(&targets, &tgid);
	return cfg && cfg->layout.ne ? cfg : NULL;
}

/* Functions that rarely run are kept apart, so that the code of a hit stays in few cache lines. */
#define COLD static __attribute__((noinline))

/* The state of a thread that does not own slot; NULL unless it belongs to a target whose ggml is
 * known. */
COLD struct thread *find_thread(struct thread *slot, u64 id) {
	struct thread *th = bpf_map_lookup_elem(&threads, &id);
	if (th || !this_target())
		return th;
	if (slot && !__sync_val_compare_and_swap(&slot->id, 0, id))
		return slot;
	bpf_map_update_elem(&threads, &id, &new_thread, BPF_NOEXIST);
	th = bpf_map_lookup_elem(&threads, &id);
	if (th)
		th->id = id;
	return th;
}

/* The state of this thread; NULL unless it belongs to a target whose ggml is known. */
COLD struct thread *this_thread(void) {
	u64 id = bpf_get_current_pid_tgid();
	u32 at = id & (THREAD_SLOTS - 1);
	struct thread *th = bpf_map_lookup_elem(&slots, &at);
	if (!th || th->id != id)
		th = find_thread(th, id);
	if (!th)
		return NULL;
	th->epoch = epoch;
	th->ops_event.tgid = this_tgid();
	th->ops_event.tid = this_tid();
	if (th->configuration != configurations || !th->layout.ne) {
		u32 configuration = configurations;
		struct target_config *cfg = this_target();
		if (!cfg)
			return NULL;
		th->layout = cfg->layout;
		th->op = cfg->layout.op;
		th->src = cfg->layout.src;
		th->batch = batch;
		th->buffers = !!want_buffers;
		th->io = !!want_io;
		th->configuration = configuration;
	}
	return th;
}

/* Sends an event that stands for ops, and counts these as sent or lost. */
static __always_inline void send_counted(void *event, u64 size, u32 ops) {
	count_many(bpf_ringbuf_output(&events, event, size, wakeup()) ? COUNT_LOST : COUNT_SENT, ops);
}

/* Sends another event; false if it was lost. */
static __always_inline bool send(void *event, u64 size) {
	if (!bpf_ringbuf_output(&events, event, size, wakeup()))
		return true;
	count(COUNT_OTHERS_LOST);
	return false;
}

/* Sends the finished ops and adds up the counts. */
COLD int send_ops(struct thread *th) {
	count_many(COUNT_HITS, th->hits);
	count_many(COUNT_NO_WEIGHT, th->no_weight);
	count_many(COUNT_BEGUN, th->begun);
	th->hits = th->no_weight = th->begun = 0;
	u32 n = th->n;
	if (!n)
		return 0;
	if (n > MAX_BATCHED)
		n = MAX_BATCHED;
	th->ops_event.kind = KIND_OPS;
	th->ops_event.decode = th->decode;
	th->ops_event.graph = th->graph;
	th->ops_event.n = n;
	th->ops_event.seq = th->seq;
	if (want_io) {
		struct target_config *cfg = this_target();
		th->ops_event.stalled = cfg ? cfg->stalled - th->stalled : 0;
	}
	send_counted(&th->ops_event, __builtin_offsetof(struct ops_event, ops) + n * sizeof(struct op_record), n);
	th->n = 0;
	return 0;
}

/* Ends the running op, whose duration is known now. */
static __always_inline void finish_op(struct thread *th, u64 now) {
	u32 n = th->n;
	th->pending = 0;
	if (n < MAX_BATCHED)
		th->ops_event.ops[n].duration = now - th->began;
	th->n = ++n;
	if (n >= th->batch)
		send_ops(th);
}

/* Ends the running op or graph and sends everything. */
COLD int finish(struct thread *th, u64 now) {
	if (th->pending && want_graph) {
		th->pending = 0;
		th->graph_event.duration = now - th->graph_event.time;
		send_counted(&th->graph_event, sizeof(th->graph_event), 1);
	} else if (th->pending) {
		finish_op(th, now);
	}
	return send_ops(th);
}

/* Whether a tensor's name, of len bytes, marks a weight: it ends in ".weight" or ".bias". This is
 * only used for leaf tensors outside any file, to notice weights that llama.cpp copied when it
 * loaded the model. */
static __always_inline bool is_weight_name(const char *name, u32 len) {
	if (len >= 8 && len < 64) {
		u32 at = (len - 7) & 63;
		const char *end = name + at;
		if (at <= 56 && end[0] == '.' && end[1] == 'w' && end[2] == 'e' && end[3] == 'i' && end[4] == 'g' &&
		    end[5] == 'h' && end[6] == 't')
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

static __always_inline long read_u64(u64 *to, u64 address) {
	return bpf_probe_read_user(to, sizeof(*to), (void *)address);
}

static __always_inline long read_u32(u32 *to, u64 address) {
	return bpf_probe_read_user(to, sizeof(*to), (void *)address);
}

/* Sends the raw bytes of a tensor, with which user space checks the layout's offsets. */
static __always_inline void send_sample(struct thread *th, u64 tensor) {
	struct target_config *cfg = this_target();
	if (!cfg || cfg->samples >= MAX_SAMPLES)
		return;
	cfg->samples++;
	struct sample_event *s = &th->sample_event;
	s->kind = KIND_SAMPLE;
	s->tgid = th->ops_event.tgid;
	s->tensor = tensor;
	/* Tensors lie side by side in their context. So more bytes than one tensor has can be read,
	 * except at the context's end. */
	if (bpf_probe_read_user(s->raw, sizeof(s->raw), (void *)tensor)) {
		__builtin_memset(s->raw, 0, sizeof(s->raw));
		if (bpf_probe_read_user(s->raw, 336, (void *)tensor))
			return;
	}
	send(s, sizeof(*s));
}

/* Functions that are not static are verified once instead of at each call. This makes loading
 * several times faster. */

/* Adds the tensor to th->template_event if it is a weight. */
__attribute__((noinline)) int add_weight(struct thread *th, u64 tensor) {
	if (!th)
		return 0;
	u64 data = 0, view = 0;
	u32 op = 0;
	if (read_u64(&data, tensor + th->layout.data) || read_u64(&view, tensor + th->layout.view_src) ||
	    read_u32(&op, tensor + th->layout.op)) {
		th->template_event.flags |= OP_CLIPPED;
		return 0;
	}
	if (!data || (op && !view))
		return 0; /* the result of an op, not a weight */
	struct vma_query q = {.address = data};
	long err = find_vma(&q);
	u32 flags = 0;
	char name[64] = {};
	if (err == -EBUSY)
		/* A writer holds mmap_lock. The node is looked at again the next time. */
		th->template_event.flags |= OP_UNRESOLVED;
	if (q.in_file) {
		flags = SOURCE_IN_FILE;
	} else {
		u32 tensor_flags = 0;
		if (op || view ||
		    (th->layout.flags && (read_u32(&tensor_flags, tensor + th->layout.flags) || tensor_flags)))
			return 0; /* an input, an activation, the KV cache */
		/* The kernel looks for the end of the name: a loop here has a path for each length, and the
		 * verifier follows them all. */
		long size = bpf_probe_read_user_str(name, sizeof(name), (void *)(tensor + th->layout.name));
		if (size <= 0 || !is_weight_name(name, size - 1))
			return 0;
		if (err)
			flags = SOURCE_UNRESOLVED; /* user space looks it up */
	}
	if (th->template_event.nsrc >= MAX_WEIGHTS) {
		th->template_event.flags |= OP_CLIPPED;
		return 0;
	}
	send_sample(th, tensor);
	/* The number is read again and compared here: the verifier of Linux 6.1 loses what it knew of a
	 * number on the stack, and refuses one that was compared before. */
	u32 n = *(volatile u32 *)&th->template_event.nsrc;
	if (n >= MAX_WEIGHTS)
		return 0; /* never */
	struct source *to = &th->template_event.src[n];
	to->data = data;
	to->offset = q.offset;
	to->ino = q.ino;
	to->dev = q.dev;
	to->flags = flags;
	/* type is the first member in every ggml; nb follows ne */
	if (read_u32(&to->type, tensor) ||
	    bpf_probe_read_user(to->ne, sizeof(to->ne) + sizeof(to->nb), (void *)(tensor + th->layout.ne)) ||
	    bpf_probe_read_user(to->name, sizeof(to->name), (void *)(tensor + th->layout.name))) {
		th->template_event.flags |= OP_CLIPPED;
		return 0;
	}
	th->weight[n] = tensor;
	th->template_event.nsrc = n + 1;
	return 0;
}

/* The fields that identify a node, at the distance that they have in all recent versions of ggml.
 * So one read does instead of two. */
struct signed_node {
	u32 op;
	u32 between[17];
	u64 src[SIGNED_SRC];
};

/* The signature of a node, from its op and its first sources in order; 0 if they cannot be read.
 * Ops with more sources (attention) also differ in the first ones. */
static __always_inline u64 sign_node(u32 op_at, u32 src_at, u64 node, struct signed_node *n) {
	const u64 k = 0x9e3779b97f4a7c15;
	if (src_at - op_at == __builtin_offsetof(struct signed_node, src)) {
		if (bpf_probe_read_user(n, sizeof(*n), (void *)(node + op_at)))
			return 0;
	} else if (bpf_probe_read_user(&n->op, sizeof(n->op), (void *)(node + op_at)) ||
	    bpf_probe_read_user(n->src, sizeof(n->src), (void *)(node + src_at))) {
		return 0;
	}
	return ((n->op + n->src[0]) * k + n->src[1] * (k << 1 | 1) + n->src[2] * (k << 2 | 1) +
	           n->src[3] * (k << 3 | 1)) |
	    1;
}

/* How an op gathers; NULL if it reads all of its sources completely. */
static __always_inline struct gather *gather_of(struct thread *th, u32 op) {
	for (u32 i = 0; i < MAX_GATHERS; i++)
		if (th->layout.gathers[i].op == op)
			return &th->layout.gathers[i];
	return NULL;
}

/* Reads the op of a node, and all its sources into th->sources. */
static __always_inline bool read_node(struct thread *th, u64 node, u32 *op) {
	if (bpf_probe_read_user(op, sizeof(*op), (void *)(node + th->layout.op)) ||
	    bpf_probe_read_user(th->sources, sizeof(th->sources), (void *)(node + th->layout.src)))
		return false;
	for (u32 i = 0; i < MAX_NODE_SRC; i++)
		if (i >= th->layout.max_src)
			th->sources[i] = 0; /* beyond GGML_MAX_SRC is another member */
	return true;
}

/* Sends th->template_event. The reader is woken at once if a weight lies in a file that is new, or if nobody knows yet
 * where any weight lies. It reads the target's memory map, which exists only as long as the target does. */
static __always_inline bool send_template(struct thread *th) {
	struct template_event *tm = &th->template_event;
	struct target_config *cfg = this_target();
	u64 flags = wakeup();
	u32 n = tm->nsrc;
	if (n > MAX_WEIGHTS)
		n = MAX_WEIGHTS;
	for (u32 i = 0; cfg && i < MAX_WEIGHTS; i++) {
		if (i >= n)
			break;
		if (tm->src[i].flags & SOURCE_IN_FILE && tm->src[i].ino != cfg->named) {
			cfg->named = tm->src[i].ino;
			flags = BPF_RB_FORCE_WAKEUP;
		} else if (tm->src[i].flags & SOURCE_UNRESOLVED && !cfg->named) {
			cfg->named = NO_FILE;
			flags = BPF_RB_FORCE_WAKEUP;
		}
	}
	u64 size = __builtin_offsetof(struct template_event, src) + n * sizeof(struct source);
	if (!bpf_ringbuf_output(&events, tm, size, flags))
		return true;
	count(COUNT_OTHERS_LOST);
	return false;
}

/* Whether a source is among the first n weights of the node that was learned last. */
static __always_inline bool is_weight(struct thread *th, u32 n, u64 source) {
	for (u32 i = 0; i < MAX_WEIGHTS; i++)
		if (i < n && th->weight[i] == source)
			return true;
	return false;
}

/* The first 8 bytes of a literal as a number, the first byte lowest. (A loop over a literal would
 * need a map that holds it.) */
#define AT(s, i) ((u64)(u8)(s)[i] << 8 * (i))
#define WORD(s) \
	(AT(s, 0) | AT(s, 1) | AT(s, 2) | AT(s, 3) | AT(s, 4) | AT(s, 5) | AT(s, 6) | AT(s, 7))
#define BYTES(word, n) ((word) & ((1ULL << 8 * (n)) - 1))

/* The number of up to four digits that begins at index at of a label, and the index of its end; -1
 * if there is none. */
static __always_inline s32 parse_number(const u64 *label, u32 at, u32 *end) {
	const char *text = (const char *)label;
	s32 n = -1;
	*end = at;
#pragma unroll
	for (u32 i = 0; i < 4; i++) {
		u32 digit = (u8)text[(at + i) & 63] - '0';
		if (digit > 9)
			break;
		n = (n < 0 ? 0 : n) * 10 + digit;
		*end = at + i + 1;
	}
	return n;
}

/* Reads a tensor's name into th->label. */
static __always_inline bool read_label(struct thread *th, u64 tensor) {
	return tensor && !bpf_probe_read_user(th->label, sizeof(th->label), (void *)(tensor + th->layout.name));
}

/* Whether a source is a weight that has so many bytes as want_lookups says, in a file as far as is known. User space
 * looks up what is not known, and then passes on only the rows of tables in files. */
static __always_inline bool is_wanted_table(struct thread *th, u64 source) {
	for (u32 i = 0; i < MAX_WEIGHTS; i++) {
		const struct source *s = &th->template_event.src[i];
		if (i < th->template_event.nsrc && th->weight[i] == source && s->flags & (SOURCE_IN_FILE | SOURCE_UNRESOLVED))
			return want_lookups && s->ne[1] > 0 && s->nb[1] && s->ne[2] == 1 && s->ne[3] == 1 &&
			    (u64)s->ne[1] >= want_lookups / s->nb[1];
	}
	return false;
}

/* Decides what is sent when the op of th->template_event begins:
 *
 * The chosen experts are known when the sorting op is over. llama.cpp then looks up their weights
 * (get_rows by ffn_moe_topk-L), and only after that the experts run. So the choice is sent when
 * that lookup begins. Where llama.cpp does not look them up, or names its tensors otherwise, it is
 * sent when the experts' first op begins.
 *
 * The rows of a large table are sent when the op that looks them up begins.
 *
 * A router's input is the second source of the product with blk.L.ffn_gate_inp.weight. What
 * attention reads is the second source, named attn_norm-L, of the products with its matrices. */
__attribute__((noinline)) int find_tap(struct thread *th) {
	if (!th)
		return 0;
	struct gather *gather = gather_of(th, th->template_event.op);
	u32 end = 0;
	if (!gather) {
		u64 weight = th->sources[0], input = th->sources[1];
		if (!want_inputs || !th->template_event.nsrc || !input || th->weight[0] != weight || !read_label(th, weight) ||
		    BYTES(th->label[0], 4) != WORD("blk.\0\0\0\0"))
			return 0;
		s32 layer = parse_number(th->label, 4, &end);
		if (bpf_probe_read_user(th->label, 24, (void *)(weight + th->layout.name + end)))
			return 0;
		u32 tap = TAP_ROUTER;
		if (th->label[0] != WORD(".ffn_gat") || th->label[1] != WORD("e_inp.we") ||
		    BYTES(th->label[2], 5) != WORD("ight\0\0\0\0")) {
			tap = TAP_ATTENTION;
			if (!read_label(th, input) || th->label[0] != WORD("attn_nor") ||
			    BYTES(th->label[1], 2) != WORD("m-\0\0\0\0\0\0"))
				return 0;
			layer = parse_number(th->label, 10, &end);
		}
		if (layer < 0)
			return 0;
		th->learned.tapped = input;
		th->learned.layer = layer;
		th->learned.tap = tap;
		return 0;
	}
	u64 source = th->sources[gather->source & (MAX_NODE_SRC - 1)];
	u64 ids = th->sources[gather->ids & (MAX_NODE_SRC - 1)];
	s32 layer = -1;
	if (!gather->experts && th->learned.ids) {
		if (is_wanted_table(th, source)) {
			th->learned.tapped = ids;
			th->learned.layer = layer;
			th->learned.tap = TAP_LOOKUP;
		}
		return 0;
	}
	if (!want_selected)
		return 0;
	if (gather->experts) {
		if (!th->learned.ids)
			return 0;
		if (read_label(th, source) && BYTES(th->label[0], 4) == WORD("blk.\0\0\0\0"))
			layer = parse_number(th->label, 4, &end);
	} else {
		if (!read_label(th, ids) || th->label[0] != WORD("ffn_moe_") ||
		    BYTES(th->label[1], 5) != WORD("topk-\0\0\0"))
			return 0;
		layer = parse_number(th->label, 13, &end);
		if (layer < 0 || ((char *)th->label)[end & 63])
			return 0;
	}
	th->learned.tapped = ids;
	th->learned.layer = layer;
	th->learned.tap = TAP_SELECTED;
	return 0;
}

/* Finds out what a node reads and sends that as a template. second, if not 0, is another node that
 * is fused to it. Returns 1 if the template was sent or need not be; it is then in th->learned. */
__attribute__((noinline)) int learn_node(struct thread *th, u64 node, u64 second) {
	if (!th)
		return 0;
	struct template_event *tm = &th->template_event;
	tm->nsrc = 0;
	tm->flags = 0;
	tm->fused_op = 0;
	if (!read_node(th, node, &tm->op))
		return 0;
	send_sample(th, node);
	for (u32 i = 0; i < MAX_NODE_SRC; i++)
		if (th->sources[i])
			add_weight(th, th->sources[i]);
	u64 ids = 0;
	struct gather *gather = gather_of(th, tm->op);
	if (gather && is_weight(th, tm->nsrc, th->sources[gather->source & (MAX_NODE_SRC - 1)]))
		ids = th->sources[gather->ids & (MAX_NODE_SRC - 1)];
	th->learned.ids = ids;
	th->learned.tap = TAP_NONE;
	if (want_selected || want_inputs || want_lookups)
		find_tap(th);
	if (second) {
		tm->flags |= OP_FUSED;
		if (!read_node(th, second, &tm->fused_op))
			tm->flags |= OP_CLIPPED;
		else
			for (u32 i = 0; i < MAX_NODE_SRC; i++)
				if (th->sources[i])
					add_weight(th, th->sources[i]);
	}
	u64 slots = 0;
	if (ids) {
		tm->flags |= OP_GATHERS;
		read_u64(&slots, ids + th->layout.ne);
	}
	tm->ids = ids;
	tm->slots = slots;
	tm->id = __sync_fetch_and_add(&last_id, 1) + 1;
	th->learned.id = tm->id;
	th->learned.next = 0;
	th->learned.nsrc = tm->nsrc;
	if (th->learned.tap) {
		tm->flags |= OP_TAPPED;
		if (!tm->nsrc && !want_buffers)
			th->learned.nsrc = ONLY_TAPPED;
	}
	th->learned.flags = tm->flags;
	if (!tm->nsrc && !want_buffers)
		return 1;
	tm->kind = KIND_TEMPLATE;
	tm->tgid = th->ops_event.tgid;
	if (!send_template(th)) {
		th->learned.id = 0;
		return 0;
	}
	return 1;
}

static __always_inline bool is_template_of(const struct template *t, const struct node_key *key) {
	return t->key.node == key->node && t->key.signature == key->signature && t->key.tgid == key->tgid &&
	    t->key.epoch == key->epoch;
}

/* The template of a node that was not predicted: from the maps, or by learning the node. */
COLD struct template *find_template(struct thread *th, struct node_key *key, u64 second) {
	u32 at = 0;
	struct template *t = NULL;
	u32 *known = bpf_map_lookup_elem(&nodes, key);
	if (known) {
		at = *known;
		t = bpf_map_lookup_elem(&templates, &at);
	}
	if (!t || !is_template_of(t, key)) {
		th->template_event.shape = 0;
		th->learned.key = *key;
		/* A template that could not be sent or read completely is not stored, so it is learned
		 * again the next time. */
		if (!learn_node(th, key->node, second) || th->learned.flags & (OP_CLIPPED | OP_UNRESOLVED) ||
		    want_buffers || th->layout.always_learn)
			return &th->learned;
		at = th->learned.id & template_mask;
		t = bpf_map_lookup_elem(&templates, &at);
		if (!t)
			return &th->learned;
		*t = th->learned;
		bpf_map_update_elem(&nodes, key, &at, BPF_ANY);
	}
	struct template *last = bpf_map_lookup_elem(&templates, &th->last);
	if (last)
		last->next = at;
	th->expected = at;
	return t;
}

struct ids_loop {
	struct thread *th;
	u64 data;
	u64 nb0, nb1;
	u32 slots;
	u32 n;
	u32 lost;
};

/* Reads the i-th id, and sends the ids of an event when it is full. */
static long send_id(u32 i, void *arg) {
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
	th->ids_event.ids[at] = id;
	if (at == IDS_PER_EVENT - 1 || i + 1 == l->n) {
		th->ids_event.first = i - at;
		th->ids_event.n = at + 1;
		u64 size = __builtin_offsetof(struct ids_event, ids) + (at + 1) * sizeof(s32);
		if (!send(&th->ids_event, size)) {
			l->lost = 1;
			return 1;
		}
	}
	return 0;
}

/* Sends the ids (rows or experts) that a tensor holds now; false if they could not be read or sent
 * completely. */
__attribute__((noinline)) int send_ids(struct thread *th, u64 tensor, u64 seq) {
	if (!th)
		return 0;
	struct {
		s64 ne[4];
		u64 nb[4];
	} s;
	u64 data;
	if (bpf_probe_read_user(&s, sizeof(s), (void *)(tensor + th->layout.ne)) ||
	    read_u64(&data, tensor + th->layout.data))
		return 0;
	u64 n = s.ne[0] * s.ne[1];
	if (s.ne[0] <= 0 || s.ne[1] <= 0 || s.ne[0] > MAX_IDS || s.ne[1] > MAX_IDS || n > MAX_IDS || s.ne[2] > 1 ||
	    s.ne[3] > 1)
		return 0;
	th->ids_event.kind = KIND_IDS;
	th->ids_event.tgid = th->ops_event.tgid;
	th->ids_event.tid = th->ops_event.tid;
	th->ids_event.seq = seq;
	th->ids_event.tensor = tensor;
	th->ids_event.slots = s.ne[0];
	th->ids_event.rows = s.ne[1];
	struct ids_loop l = {
	    .th = th,
	    .data = data,
	    .nb0 = s.nb[0],
	    .nb1 = s.nb[1],
	    .slots = s.ne[0],
	    .n = n,
	};
	bpf_loop(n, send_id, &l, 0);
	return !l.lost;
}

/* Sends the ids that the current op gathers by, unless they were sent before: gate, up and down of
 * a layer share one ids tensor. Returns how many ops earlier they were sent. */
static __always_inline u32 add_ids(struct thread *th, u64 tensor) {
	if (th->ids_tensor == tensor && th->ids_graph == th->graph)
		return th->seq - th->ids_seq;
	if (!send_ids(th, tensor, th->seq)) {
		th->clipped = 1;
		return 0;
	}
	th->ids_tensor = tensor;
	th->ids_graph = th->graph;
	th->ids_seq = th->seq;
	return 0;
}

/* Sends which experts a layer has chosen, unless that was done in this graph. */
COLD int send_selected(struct thread *th, u64 tensor, s32 layer) {
	if (th->ids_tensor == tensor && th->ids_graph == th->graph)
		return 0;
	if (!send_ids(th, tensor, th->seq))
		return 0; /* the experts' ops try again, and account for it */
	th->ids_tensor = tensor;
	th->ids_graph = th->graph;
	th->ids_seq = th->seq;
	struct selected_event e = {
	    .kind = KIND_SELECTED,
	    .tgid = th->ops_event.tgid,
	    .tid = th->ops_event.tid,
	    .decode = th->decode,
	    .time = bpf_ktime_get_ns(),
	    .seq = th->seq,
	    .tensor = tensor,
	    .graph = th->graph,
	    .layer = layer,
	};
	if (bpf_ringbuf_output(&events, &e, sizeof(e), at_once ? BPF_RB_FORCE_WAKEUP : wakeup()))
		count(COUNT_OTHERS_LOST);
	return 0;
}

/* Sends that the rows are about to be looked up whose numbers were sent last, by the op with this
 * template. A single row is read by the target before anybody could do it: the reader need not be
 * woken for it. */
__attribute__((noinline)) int output_lookup(struct thread *th, u64 tensor, u32 id, u32 shape) {
	if (!th)
		return 0;
	struct lookup_event e = {
	    .kind = KIND_LOOKUP,
	    .tgid = th->ops_event.tgid,
	    .tid = th->ops_event.tid,
	    .decode = th->decode,
	    .time = bpf_ktime_get_ns(),
	    .seq = th->seq,
	    .ids_seq = shape ? th->seq : th->ids_seq,
	    .tensor = tensor,
	    .graph = th->graph,
	    .id = id,
	    .shape = shape,
	};
	bool several = th->ids_event.slots > 1 || th->ids_event.rows > 1;
	if (bpf_ringbuf_output(&events, &e, sizeof(e), several && at_once ? BPF_RB_FORCE_WAKEUP : wakeup()))
		count(COUNT_OTHERS_LOST);
	return 0;
}

/* Sends which rows an op is about to look up. */
COLD int send_lookup(struct thread *th, struct template *t) {
	u64 tensor = t->tapped;
	if (th->ids_tensor != tensor || th->ids_graph != th->graph) {
		if (!send_ids(th, tensor, th->seq))
			return 0; /* the op tries again, and accounts for it */
		th->ids_tensor = tensor;
		th->ids_graph = th->graph;
		th->ids_seq = th->seq;
	}
	return output_lookup(th, tensor, t->id, 0);
}

struct input_loop {
	struct thread *th;
	u64 data;
	u64 nb1;
	u64 time;
	s32 layer;
	u32 tap;
	u32 dim, pieces;
	u32 rows, first_row, stride;
	u32 n;    /* pieces of all rows that are sent */
	u32 lost; /* the row has a piece that was lost */
};

/* Sends the i-th piece. The pieces are numbered through all rows that are sent. */
static long send_input_piece(u32 i, void *arg) {
	struct input_loop *l = arg;
	struct thread *th = l->th;
	if (!l->pieces)
		return 1;
	u32 piece = i % l->pieces, row = l->first_row + i / l->pieces * l->stride, first = piece * INPUT_PIECE;
	if (!piece)
		l->lost = 0;
	struct input_event *e = l->lost ? NULL : bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		l->lost = 1;
	} else {
		e->kind = KIND_INPUT;
		e->tgid = th->ops_event.tgid;
		e->tid = th->ops_event.tid;
		e->decode = th->decode;
		e->time = l->time;
		e->seq = th->seq;
		e->graph = th->graph;
		e->layer = l->layer;
		e->tap = l->tap;
		e->rows = l->rows;
		e->row = row;
		e->dim = l->dim;
		e->first = first;
		u32 n = l->dim - first;
		if (n > INPUT_PIECE)
			n = INPUT_PIECE;
		e->n = n;
		u64 at = l->data + row * l->nb1 + first * sizeof(u32);
		if (bpf_probe_read_user(e->values, n * sizeof(u32), (void *)at)) {
			l->lost = 1;
			bpf_ringbuf_discard(e, BPF_RB_NO_WAKEUP);
		} else {
			bpf_ringbuf_submit(e, i + 1 == l->n && at_once ? BPF_RB_FORCE_WAKEUP : wakeup());
		}
	}
	if (piece == l->pieces - 1)
		count(l->lost ? COUNT_INPUTS_LOST : COUNT_INPUTS_SENT);
	return 0;
}

/* Sends the values that a router, or attention, is about to read. Of a batch it sends the last row
 * and others at equal distances before it. */
__attribute__((noinline)) int send_inputs(struct thread *th, u64 tensor, s32 layer, u32 tap) {
	if (!th)
		return 0;
	struct {
		s64 ne[4];
		u64 nb[4];
	} s;
	u64 data;
	u32 type;
	/* Type 0 is float32. */
	if (read_u32(&type, tensor) || bpf_probe_read_user(&s, sizeof(s), (void *)(tensor + th->layout.ne)) ||
	    read_u64(&data, tensor + th->layout.data) || type || s.nb[0] != sizeof(u32) || s.ne[0] <= 0 ||
	    s.ne[0] > MAX_DIM || s.ne[1] <= 0 || s.ne[1] > MAX_BATCH || s.ne[2] != 1 || s.ne[3] != 1) {
		count(COUNT_INPUTS_LOST);
		return 0;
	}
	u32 rows = s.ne[1], max_rows = input_rows, stride = want_inputs;
	if (!max_rows || !stride)
		return 0; /* never */
	if ((rows + max_rows - 1) / max_rows > stride)
		stride = (rows + max_rows - 1) / max_rows;
	u32 sent = (rows - 1) / stride + 1, pieces = (s.ne[0] + INPUT_PIECE - 1) / INPUT_PIECE;
	struct input_loop l = {
	    .th = th,
	    .data = data,
	    .nb1 = s.nb[1],
	    .time = bpf_ktime_get_ns(),
	    .layer = layer,
	    .tap = tap,
	    .dim = s.ne[0],
	    .pieces = pieces,
	    .rows = rows,
	    .first_row = rows - 1 - (sent - 1) * stride,
	    .stride = stride,
	    .n = sent * pieces,
	};
	bpf_loop(l.n, send_input_piece, &l, 0);
	return 0;
}

/* Sends what is to be sent when an op with this template begins. */
COLD int send_tapped(struct thread *th, struct template *t) {
	u64 tensor = t->tapped;
	u32 tap = t->tap;
	if (tap == TAP_SELECTED)
		return send_selected(th, tensor, t->layer);
	if (tap == TAP_LOOKUP)
		return send_lookup(th, t);
	if (th->skip_inputs)
		return 0;
	if (tap == TAP_ATTENTION) { /* several matrices read it */
		if (th->attention == tensor && th->attention_graph == th->graph)
			return 0;
		th->attention = tensor;
		th->attention_graph = th->graph;
	}
	return send_inputs(th, tensor, t->layer, tap);
}

/* Adds a tensor that is no weight to th->buffers_event. */
__attribute__((noinline)) int add_buffer(struct thread *th, u64 tensor, u32 write) {
	if (!th)
		return 0;
	u32 n = th->buffers_event.n;
	if (n > MAX_NODE_SRC)
		return 0;
	struct buffer *b = &th->buffers_event.buffers[n];
	u64 view = 0;
	b->root[0] = 0;
	b->write = write;
	if (read_u64(&b->data, tensor + th->layout.data) || read_u32(&b->type, tensor) ||
	    bpf_probe_read_user(b->ne, sizeof(b->ne) + sizeof(b->nb), (void *)(tensor + th->layout.ne)) ||
	    bpf_probe_read_user(b->name, sizeof(b->name), (void *)(tensor + th->layout.name)) ||
	    read_u64(&view, tensor + th->layout.view_src) ||
	    (view && bpf_probe_read_user(b->root, sizeof(b->root), (void *)(view + th->layout.name)))) {
		th->clipped = 1;
		return 0;
	}
	th->buffers_event.n = n + 1;
	return 0;
}

/* Sends the tensors other than weights that a node touches; false if that failed. result is the
 * tensor that it writes. */
__attribute__((noinline)) int send_buffers(struct thread *th, u64 node, u64 result) {
	if (!th)
		return 0;
	u32 op;
	if (!read_node(th, node, &op))
		return 0;
	th->buffers_event.n = 0;
	for (u32 i = 0; i < MAX_NODE_SRC; i++) {
		u64 s = th->sources[i];
		if (!s)
			continue;
		if (!is_weight(th, th->learned.nsrc, s))
			add_buffer(th, s, 0);
	}
	add_buffer(th, result, 1);
	th->buffers_event.kind = KIND_BUFFERS;
	th->buffers_event.tgid = th->ops_event.tgid;
	th->buffers_event.tid = th->ops_event.tid;
	th->buffers_event.seq = th->seq;
	u32 n = th->buffers_event.n;
	if (n > MAX_NODE_SRC + 1)
		n = MAX_NODE_SRC + 1;
	return send(&th->buffers_event, __builtin_offsetof(struct buffers_event, buffers) + n * sizeof(struct buffer));
}

/* Counts a hit of another thread than thread 0, or one whose arguments could not be read. */
COLD int count_other_hit(bool unreadable) {
	if (wide && !this_target())
		return 0;
	count(COUNT_HITS);
	count(unreadable ? COUNT_FAULTS : COUNT_OTHER_THREADS);
	return 0;
}

/* Records the running op in the target's state, for page-ins. */
COLD int note_running_op(struct thread *th) {
	struct target_config *cfg = this_target();
	if (cfg) {
		cfg->decode = th->decode;
		cfg->seq = th->seq;
		th->stalled = cfg->stalled;
	}
	return 0;
}

/* Sends what an op needs in addition to its template. Returns the op's flags. */
COLD u32 send_op_details(struct thread *th, struct template *known, struct op_record *o, u64 result) {
	u32 flags = known->flags;
	th->clipped = 0;
	if (known->nsrc && known->ids)
		o->ids_back = add_ids(th, known->ids);
	if (want_buffers) {
		if (send_buffers(th, known->key.node, result))
			flags |= OP_BUFFERS;
		else
			th->clipped = 1;
	}
	if (th->clipped)
		flags |= OP_CLIPPED;
	if (flags & OP_CLIPPED)
		count(COUNT_CLIPPED);
	return flags;
}

/* A hit of an op. This is the code whose cache lines count. */
static __always_inline int op_hit(u64 params, u64 node, u64 second) {
	s32 ith; /* the first member of ggml_compute_params */
	bool unreadable = bpf_probe_read_user(&ith, sizeof(ith), (void *)params);
	if (unreadable || ith)
		return count_other_hit(unreadable);
	u64 id = bpf_get_current_pid_tgid();
	u32 at = id & (THREAD_SLOTS - 1);
	struct thread *th = bpf_map_lookup_elem(&slots, &at);
	if (unlikely(!th || th->id != id || !th->ready)) {
		th = this_thread();
		if (!th)
			return 0;
	}
	th->hits++;
	th->seq++;
	u64 now = 0;
	if (th->pending) {
		now = bpf_ktime_get_ns();
		finish_op(th, now);
	}
	/* Start loading the template into the cache while the node is read. */
	struct template *t = bpf_map_lookup_elem(&templates, &th->expected);
	if (t)
		(void)*(volatile u64 *)&t->key.node;
	struct signed_node signed_node;
	struct node_key key = {
	    .node = node,
	    .signature = sign_node(th->op, th->src, node, &signed_node),
	    .tgid = id >> 32,
	    .epoch = th->epoch,
	};
	if (unlikely(!key.signature)) {
		count(COUNT_FAULTS);
		return 0;
	}
	key.signature ^= second;
	if (unlikely(th->io))
		note_running_op(th);
	if (unlikely(!t || !is_template_of(t, &key)))
		t = find_template(th, &key, second);
	if (!t)
		return 0; /* never */
	th->last = th->expected;
	th->expected = t->next;
	if (!t->nsrc && !th->buffers) {
		th->no_weight++;
		return 0;
	}
	u32 n = th->n;
	if (n >= MAX_BATCHED)
		return 0; /* never */
	struct op_record *o = &th->ops_event.ops[n];
	if (!now)
		now = bpf_ktime_get_ns();
	th->began = now;
	o->time = now;
	o->id = t->id;
	o->seq = th->seq;
	o->ids_back = 0;
	if (unlikely(t->ids || t->flags & (OP_CLIPPED | OP_TAPPED) || th->buffers)) {
		if (t->flags & OP_TAPPED)
			send_tapped(th, t);
		if (t->nsrc == ONLY_TAPPED) {
			th->no_weight++;
			return 0;
		}
		o->flags = send_op_details(th, t, o, second ? second : node);
	} else {
		o->flags = t->flags;
	}
	th->pending = 1;
	th->begun++;
	return 0;
}

/* bool ggml_cpu_extra_compute_forward(params, tensor): the CPU backend calls it first for each op
 * that it runs. */
SEC("uprobe.multi")
int BPF_KPROBE(op, u64 params, u64 tensor) {
	return op_hit(params, tensor, 0);
}

/* ggml_compute_forward_*_fused(params, first, second) */
SEC("uprobe.multi")
int BPF_KPROBE(fused_op, u64 params, u64 first, u64 second) {
	return op_hit(params, first, second);
}

struct graph_loop {
	struct thread *th;
	u64 nodes;
	u64 signature;
	u32 failed;
	u32 shape;
	struct shape *of;
};

/* Adds the i-th node to the signature of a graph. That consists of the nodes' ops and sources in
 * order, and does not depend on the nodes' own addresses. */
static long add_node_signature(u32 i, void *arg) {
	struct graph_loop *l = arg;
	struct signed_node n = {};
	u64 node = 0, signature = 0, ids = 0, slots = 0;
	if (!read_u64(&node, l->nodes + 8 * i))
		signature = sign_node(l->th->op, l->th->src, node, &n);
	struct gather *gather = gather_of(l->th, n.op);
	/* The warm-up uses all experts. Their number per token must change the signature. */
	if (gather && gather->experts)
		for (u32 k = 0; k < SIGNED_SRC; k++)
			if (k == gather->ids)
				ids = n.src[k];
	if (!signature || (ids && read_u64(&slots, ids + l->th->layout.ne))) {
		l->failed = 1;
		return 1;
	}
	signature ^= slots;
	l->signature = (l->signature ^ signature) * 0x9e3779b97f4a7c15;
	return 0;
}

/* Adds the i-th of the nodes that read weights to the signature of these nodes. */
static long add_read_signature(u32 i, void *arg) {
	struct graph_loop *l = arg;
	return l->of ? add_node_signature(l->of->reads[i & (SHAPE_READS - 1)], l) : 1;
}

/* The signature of only those nodes that read weights (about a third); 0 if there are none or too
 * many to remember. It misses one kind of difference: in the same memory, with the same number of
 * nodes and the same reads, a node that read no weight now reads one. No such graphs are known. */
static __always_inline u64 sign_reads(struct thread *th, u64 nodes, struct shape *of) {
	struct graph_loop l = {.th = th, .nodes = nodes, .signature = 1, .of = of};
	if (!of->nreads || of->nreads > SHAPE_READS)
		return 0;
	bpf_loop(of->nreads, add_read_signature, &l, 0);
	return l.failed ? 0 : l.signature;
}

/* Learns the i-th node of a graph, and adds it to th->shape. */
static long learn_graph_node(u32 i, void *arg) {
	struct graph_loop *l = arg;
	struct thread *th = l->th;
	u64 node = 0;
	th->template_event.shape = l->shape;
	if (read_u64(&node, l->nodes + 8 * i) || !learn_node(th, node, 0)) {
		l->failed = 1;
		return 1;
	}
	if (th->learned.flags & OP_UNRESOLVED)
		l->failed = 1; /* go on, but do not keep the shape */
	if (th->learned.flags & OP_CLIPPED)
		count(COUNT_CLIPPED);
	u32 r = th->shape.nreads;
	if (th->learned.nsrc && r <= SHAPE_READS) {
		if (r < SHAPE_READS)
			th->shape.reads[r & (SHAPE_READS - 1)] = i;
		th->shape.nreads = i > 0xffff ? SHAPE_READS + 1 : r + 1;
	}
	u32 n = th->shape.ngathers;
	struct gather *gather = gather_of(th, th->template_event.op);
	if (th->learned.ids && gather && !gather->experts && n < SHAPE_GATHERS) {
		u64 source = th->sources[gather->source & (MAX_NODE_SRC - 1)];
		th->shape.gathers[n] = th->learned.ids;
		th->shape.tables[n] = is_wanted_table(th, source) ? th->template_event.id : 0;
		th->shape.ngathers = n + 1;
	}
	return 0;
}

/* Sets th->shape, except for its reads, to what the graph's ops read, and learns that if it is not
 * known. False if the nodes cannot be read. */
static __always_inline bool find_shape(struct thread *th, u64 nodes, u32 n) {
	struct graph_memory memory = {.nodes = nodes, .n = n, .tgid = th->ops_event.tgid, .epoch = epoch};
	struct shape_key key = {.tgid = memory.tgid, .epoch = memory.epoch};
	struct shape *known = NULL;
	/* The next token usually has the same graph, or another one in the same memory. */
	struct recent_graph *recent =
	    th->layout.always_learn ? NULL : bpf_map_lookup_elem(&recent_graphs, &memory);
	if (recent) {
		key.signature = recent->signature;
		known = bpf_map_lookup_elem(&shapes, &key);
		if (known && (!recent->reads || sign_reads(th, nodes, known) != recent->reads))
			known = NULL;
	}
	if (!known) {
		struct graph_loop l = {.th = th, .nodes = nodes, .signature = 1};
		bpf_loop(n, add_node_signature, &l, 0);
		if (l.failed)
			return false;
		key.signature = l.signature;
		known = th->layout.always_learn ? NULL : bpf_map_lookup_elem(&shapes, &key);
		if (!known) {
			struct shape_event e = {
			    .kind = KIND_SHAPE,
			    .tgid = key.tgid,
			    .id = __sync_fetch_and_add(&last_id, 1) + 1,
			};
			th->shape.id = l.shape = e.id;
			th->shape.ngathers = th->shape.nreads = 0;
			if (send(&e, sizeof(e)))
				bpf_loop(n, learn_graph_node, &l, 0);
			else
				l.failed = 1;
			/* If the templates could not all be sent, they are sent again with the next graph. This
			 * graph uses those that were sent. */
			if (l.failed)
				return true;
			bpf_map_update_elem(&shapes, &key, &th->shape, BPF_ANY);
			known = bpf_map_lookup_elem(&shapes, &key);
			if (!known)
				return true;
		}
		struct recent_graph here = {.signature = key.signature, .reads = sign_reads(th, nodes, known)};
		bpf_map_update_elem(&recent_graphs, &memory, &here, BPF_ANY);
	}
	th->shape.id = known->id;
	th->shape.ngathers = known->ngathers;
	__builtin_memcpy(th->shape.gathers, known->gathers, sizeof(known->gathers));
	__builtin_memcpy(th->shape.tables, known->tables, sizeof(known->tables));
	return true;
}

/* Begin of a graph: sends what its ops read, if that is not known, and the rows that it looks up. */
static __always_inline void begin_graph(struct thread *th, u64 graph, u64 now) {
	u32 n = 0;
	u64 nodes = 0;
	count(COUNT_HITS);
	if (read_u32(&n, graph + th->layout.n_nodes) || read_u64(&nodes, graph + th->layout.nodes) ||
	    n > MAX_NODES || !find_shape(th, nodes, n)) {
		count(COUNT_FAULTS);
		return;
	}
	th->seq++;
	for (u32 i = 0; i < SHAPE_GATHERS; i++) {
		if (i >= th->shape.ngathers)
			break;
		u64 tensor = th->shape.gathers[i];
		if (send_ids(th, tensor, th->seq) && th->shape.tables[i])
			output_lookup(th, tensor, th->shape.tables[i], th->shape.id);
	}
	th->graph_event.kind = KIND_GRAPH;
	th->graph_event.tgid = th->ops_event.tgid;
	th->graph_event.tid = th->ops_event.tid;
	th->graph_event.shape = th->shape.id;
	th->graph_event.time = now;
	th->graph_event.seq = th->seq;
	th->graph_event.decode = th->decode;
	th->graph_event.graph = th->graph;
	th->pending = 1;
	count(COUNT_BEGUN);
}

/* ggml_graph_compute(cgraph, cplan) */
SEC("uprobe.multi")
int BPF_KPROBE(graph_begin, u64 graph) {
	struct thread *th = this_thread();
	if (!th)
		return 0;
	u64 now = bpf_ktime_get_ns();
	finish(th, now);
	th->ready = 1;
	th->graph = __sync_fetch_and_add(&graphs, 1) + 1;
	if (want_graph)
		begin_graph(th, graph, now);
	return 0;
}

SEC("uprobe.multi")
int BPF_KRETPROBE(graph_end) {
	struct thread *th = this_thread();
	if (!th)
		return 0;
	th->ready = 0;
	return finish(th, bpf_ktime_get_ns());
}

/* struct llama_batch */
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

/* Adds the sequence of the i-th token. A token may belong to several sequences (a common prefix);
 * only the first counts. */
static long add_sequence(u32 i, void *arg) {
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

/* int32_t llama_decode(ctx, struct llama_batch batch): batch is larger than 16 bytes. So it is
 * passed on the stack on x86-64, and by reference on arm64. The cookie is the number of bytes that
 * the prologue has pushed before the probe. */
SEC("uprobe.multi")
int BPF_KPROBE(decode_begin, u64 context, u64 batch) {
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
	/* If the probes were set in the middle of a decode, its end was not seen. Then its last op
	 * seems to be running still. */
	u64 now = bpf_ktime_get_ns();
	finish(th, now);
	th->context = context;
	th->decode = __sync_fetch_and_add(&decodes, 1) + 1;
	u32 *warm = bpf_map_lookup_elem(&warm_contexts, &context);
	e.tgid = th->ops_event.tgid;
	e.tid = th->ops_event.tid;
	e.time = now;
	e.context = context;
	e.decode = th->decode;
	e.warmup = warm && *warm;
	if (want_inputs)
		th->skip_inputs = (e.tokens == 1 && !e.warmup && th->single_decodes++ % want_inputs) || inputs_off;
	send(&e, sizeof(e));
	return 0;
}

SEC("uprobe.multi")
int BPF_KRETPROBE(decode_end) {
	struct thread *th = this_thread();
	if (!th)
		return 0;
	u64 now = bpf_ktime_get_ns();
	finish(th, now);
	struct decode_event e = {
	    .kind = KIND_DECODE_END,
	    .tgid = th->ops_event.tgid,
	    .tid = th->ops_event.tid,
	    .time = now,
	    .context = th->context,
	    .decode = th->decode,
	};
	th->decode = 0;
	struct target_config *cfg = this_target();
	if (cfg)
		cfg->decode = 0;
	if (bpf_ringbuf_output(&events, &e, sizeof(e), wakeup()))
		count(COUNT_OTHERS_LOST);
	return 0;
}

/* void llama_set_warmup(ctx, bool) */
SEC("uprobe.multi")
int BPF_KPROBE(set_warmup, u64 context, u64 on) {
	if (!this_target())
		return 0;
	u32 warm = on & 0xff;
	bpf_map_update_elem(&warm_contexts, &context, &warm, BPF_ANY);
	return 0;
}

/* void ggml_backend_buffer_free(buffer): weights and graphs live in buffers, so known nodes become
 * invalid. */
SEC("uprobe.multi")
int BPF_KPROBE(buffer_free) {
	if (this_target())
		__sync_fetch_and_add(&epoch, 1);
	return 0;
}

/* This program is not attached. User space runs it once, to see whether the programs tell the id
 * that it knows itself by. */
SEC("raw_tp")
int whoami(void *ctx) {
	return this_tgid();
}
