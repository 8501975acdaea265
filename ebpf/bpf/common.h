/* What the programs on the target (trace.bpf.c) and those on the kernel (system.bpf.c) share: maps, events, and the way from an
 * address to a file. Each object declares the maps; user space loads trace.bpf.c first and hands its maps to the other. */
#ifndef TENSORCAST_COMMON_H
#define TENSORCAST_COMMON_H
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/* Set before loading. */
const volatile u32 page_shift;
const volatile u64 wake_at; /* bytes that wake the reader */

/* User space has these numbers from here: bpf2go makes Go constants of them. */
enum kind {
	KIND_OPS = 1,
	KIND_TEMPLATE,
	KIND_IDS,
	KIND_DECODE_BEGIN,
	KIND_DECODE_END,
	KIND_SHAPE,
	KIND_GRAPH,
	KIND_BUFFERS,
	KIND_SAMPLE,
	SYSTEM_KINDS = 64, /* those of system.bpf.c begin here */
};

enum counter {
	COUNT_HITS,
	COUNT_OTHER_THREADS,
	COUNT_NO_WEIGHT,
	COUNT_BEGUN,
	COUNT_SENT,
	COUNT_LOST,
	COUNT_OTHERS_LOST,
	COUNT_FAULTS,
	COUNT_CLIPPED,
	COUNT_PAGES_SENT,
	COUNT_PAGES_LOST,
	COUNTERS,
};

enum limit {
	MAX_NODE_SRC = 16, /* at least GGML_MAX_SRC, which is 10, and 16 in a fork */
	SIGNED_SRC = 4,    /* sources by which a node is known again, and that may hold ids */
	MAX_GATHERS = 8,   /* gathering ops */
	NO_OP = 0xffffffff, /* no op has this number */
};

/* How an op reads only those slices of a source that another one names. User space fills in what its table of ggml's ops says. */
struct gather {
	u32 op; /* its number in the target's ggml; NO_OP: it has none, or there are fewer such ops */
	u8 source;
	u8 ids;     /* the source that holds the slices' numbers */
	u8 experts; /* they are experts, else rows */
	u8 pad;
};

/* How a ggml numbers its ops and lays out its structs. First what each hit needs. */
struct layout {
	/* byte offsets in ggml_tensor, in ggml_cgraph the last two */
	u32 ne; /* s64 ne[4], then u64 nb[4]; 0: not known yet */
	u32 op;
	u32 src;
	u32 forget; /* nothing tells that a buffer is freed: what a node reads is looked up each time */
	u32 flags;  /* 0: no such member */
	u32 max_src;
	u32 view_src;
	u32 data;
	u32 name;
	u32 n_nodes;
	u32 nodes;
	struct gather gathers[MAX_GATHERS];
};

/* What user space tells the programs about a process. */
struct target_config {
	struct layout layout;
	u32 follow;
	u32 samples; /* tensors that were sent raw, for user space to check the offsets */
	u64 named;   /* inode of the file that the reader was woken for last */
	/* Where disk reads are observed: the op begun last, whichever the thread, as that is what the other compute threads work on. */
	u32 decode;
	u32 pad;
	u64 seq;
	u64 stalled; /* ns that threads waited for the disk, all together */
};

/* Side by side: the target's own data has pushed them out of the caches at every hit. */
struct counts {
	u64 of[COUNTERS];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20); /* or what user space wants, as in the other maps */
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, u32); /* tgid */
	__type(value, struct target_config);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct counts);
} counters SEC(".maps");

static __always_inline void count_many(u32 which, u64 n)
{
	u32 zero = 0;
	struct counts *c = bpf_map_lookup_elem(&counters, &zero);
	if (c)
		__sync_fetch_and_add(&c->of[which], n);
}

static __always_inline void count(u32 which) { count_many(which, 1); }

/* Events are collected until the reader looks by itself: to wake it takes a core from the target, whose threads spin on all of them. */
static __always_inline u64 wakeup(void)
{
	return bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) > wake_at ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

struct vma_query {
	u64 address;
	u64 offset;
	u64 ino;
	u32 dev;
	u32 in_file;
};

static long describe_vma(struct task_struct *task, struct vm_area_struct *vma, void *arg)
{
	struct vma_query *q = arg;
	struct file *file = vma->vm_file;
	if (!file)
		return 0;
	struct inode *inode = file->f_inode;
	q->in_file = 1;
	q->ino = BPF_CORE_READ(inode, i_ino);
	q->dev = BPF_CORE_READ(inode, i_sb, s_dev);
	q->offset = q->address - vma->vm_start + (vma->vm_pgoff << page_shift);
	return 0;
}

static __always_inline long find_vma(struct vma_query *q)
{
	return bpf_find_vma(bpf_get_current_task_btf(), q->address, describe_vma, q, 0);
}

#endif
