/* What the programs on the target's functions (trace.bpf.c) and those on the kernel's tracepoints
 * (system.bpf.c) share: maps, numbers, the ids of tasks, and the way from an address to a file.
 * Both objects declare the maps of this file. User space loads trace.bpf.c first and passes its
 * maps to the other object. */
#ifndef TENSORCAST_COMMON_H
#define TENSORCAST_COMMON_H
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/* Set before loading. */
const volatile u32 page_shift;
const volatile u64 wake_at; /* the reader is woken when the ring buffer holds more bytes than this */
/* Inode number of user space's PID namespace; 0: the first one, whose ids are the kernel's own. */
const volatile u32 pid_namespace;

/* bpf2go generates Go constants from the following enums, so that user space has the same numbers. */
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
	KIND_SELECTED,
	KIND_INPUT,
	KIND_LOOKUP,
	SYSTEM_KINDS = 64, /* the kinds of system.bpf.c begin here */
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
	COUNT_INPUTS_SENT,
	COUNT_INPUTS_LOST,
	COUNTERS,
};

enum limit {
	MAX_NODE_SRC = 16,  /* at least GGML_MAX_SRC, which is 10 in ggml, 16 in a fork */
	SIGNED_SRC = 4,     /* the first sources, which identify a node together with its op; ids are among them */
	MAX_GATHERS = 8,    /* gathering ops */
	NO_OP = 0xffffffff, /* no op has this number */
};

/* An op that reads only those slices of one source whose numbers another source holds. User space
 * fills in the table of package ggml. */
struct gather {
	u32 op; /* its number in the target's ggml; NO_OP: the entry is unused */
	u8 source;
	u8 ids;     /* index of the source that holds the slices' numbers */
	u8 experts; /* 1: the numbers are experts, 0: rows */
	u8 pad;
};

/* How a ggml numbers its ops and lays out its structs. The numbers are byte offsets in ggml_tensor,
 * unless something else is said. The fields that each hit needs come first. */
struct layout {
	u32 ne; /* s64 ne[4], followed by u64 nb[4]; 0: the layout is not known yet */
	u32 op;
	u32 src;
	/* no offset. 1: freed buffers are not observed, so what a node reads must be looked up each time */
	u32 always_learn;
	u32 flags; /* 0: no such member */
	u32 max_src;
	u32 view_src;
	u32 data;
	u32 name;
	u32 n_nodes; /* in ggml_cgraph */
	u32 nodes;   /* in ggml_cgraph */
	struct gather gathers[MAX_GATHERS];
};

/* Configuration and state of a traced process; user space creates the entry. */
struct target_config {
	struct layout layout;
	u32 follow;
	u32 samples; /* tensors sent raw so far, with which user space checks the offsets */
	/* inode of the last file for which the reader was woken to find its path; NO_FILE where it was woken for a weight
	 * whose file the programs could not find */
	u64 named;
	/* For page-ins: the op begun last in any thread, because the other compute threads work on the
	 * same op. */
	u32 decode;
	u32 pad;
	u64 seq;
	u64 stalled; /* ns that threads waited for the disk, summed over threads */
};

/* Counters of one CPU. They lie together in memory, because at every hit the target's own data has
 * evicted them from the CPU caches. */
struct counts {
	u64 of[COUNTERS];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20); /* default; user space may set another size, for the other maps, too */
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

static __always_inline void count_many(u32 which, u64 n) {
	u32 zero = 0;
	struct counts *c = bpf_map_lookup_elem(&counters, &zero);
	if (c)
		__sync_fetch_and_add(&c->of[which], n);
}

static __always_inline void count(u32 which) { count_many(which, 1); }

#define PID_LEVELS 33 /* the kernel's MAX_PID_NS_LEVEL and the first */

/* The number of a task in user space's PID namespace, given the address of its struct pid. 0: the
 * task is neither in that namespace nor in one below it. (The helper bpf_get_ns_current_pid_tgid
 * knows only tasks in that very namespace.) The function is not static, so that it is verified
 * once. */
__attribute__((noinline)) int pid_in_namespace(u64 address) {
	struct pid *pid = (struct pid *)address;
	u32 level = BPF_CORE_READ(pid, level);
	/* Most often the first one is found, because the tool runs in the same namespace as its target. */
	for (u32 i = 0; i < PID_LEVELS && i <= level; i++) {
		struct upid id;
		if (bpf_probe_read_kernel(&id, sizeof(id), (void *)(pid->numbers + (level - i))))
			return 0;
		if (BPF_CORE_READ(id.ns, ns.inum) == pid_namespace)
			return id.nr;
	}
	return 0;
}

/* The ids of a task as user space sees them. Where user space is in the first PID namespace, they
 * cost no more than the kernel's own. */
static __always_inline u32 tid_of(struct task_struct *task) {
	return pid_namespace ? pid_in_namespace((u64)BPF_CORE_READ(task, thread_pid)) : task->pid;
}

static __always_inline u32 tgid_of(struct task_struct *task) {
	return pid_namespace ? pid_in_namespace((u64)BPF_CORE_READ(task, group_leader, thread_pid)) : task->tgid;
}

static __always_inline u32 this_tgid(void) {
	return pid_namespace ? tgid_of(bpf_get_current_task_btf()) : bpf_get_current_pid_tgid() >> 32;
}

static __always_inline u32 this_tid(void) {
	return pid_namespace ? tid_of(bpf_get_current_task_btf()) : (u32)bpf_get_current_pid_tgid();
}

/* Flags for sending an event: they wake the reader only if the ring buffer has filled up. Otherwise
 * the reader polls, because waking it takes a core from the target, whose threads spin on all
 * cores. */
static __always_inline u64 wakeup(void) {
	return bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) > wake_at ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

struct vma_query {
	u64 address;
	u64 offset;
	u64 ino;
	u32 dev;
	u32 in_file;
};

/* Fills in the query for the memory area that holds its address. */
static long describe_vma(struct task_struct *task, struct vm_area_struct *vma, void *arg) {
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

static __always_inline long find_vma(struct vma_query *q) {
	return bpf_find_vma(bpf_get_current_task_btf(), q->address, describe_vma, q, 0);
}

#endif
