// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Programs on kernel tracepoints that observe the targets: which pages of files are read from disk
 * and why, how long threads wait for them, and which processes fork and exec. */
#include "common.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* bpf2go generates Go constants from these enums, so that user space has the same numbers. */
enum event_kind {
	KIND_PAGES = SYSTEM_KINDS,
	KIND_FORK,
	KIND_EXEC,
};
enum cause {
	CAUSE_FAULT,
	CAUSE_READAHEAD,
	CAUSE_READ,
	CAUSE_OTHER,
};

struct pages_event {
	u32 kind;
	u32 tgid;
	u32 tid;
	u32 decode;
	u64 seq;
	u64 time;
	u64 ino;
	u64 index; /* first page */
	u64 count;
	u32 dev;
	u32 cause;
};

struct process_event {
	u32 kind;
	u32 tgid;
	u32 parent;
	u32 pad;
};

#define TASK_UNINTERRUPTIBLE 2
#define FAULT_PRESENT 1 /* x86: the page is present, the access is not permitted */

/* Set before loading. 1: the tracepoint has the folio's order (since Linux 6.9); before, there is
 * one event per page. */
const volatile u32 has_order;

/* What is known of a thread's reading. */
struct io {
	u64 waiting_since; /* when the thread began to wait; 0: it does not wait */
	/* The file page that the thread's last page fault was for. faulted is 0 if it was for memory
	 * that is in no file. */
	u64 fault_ino;
	u64 fault_index;
	u32 fault_dev;
	u32 faulted;
	struct pages_event run; /* consecutive pages that are not sent yet; none if count is 0 */
};

struct file_key {
	u64 ino;
	u32 dev;
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u32); /* tid */
	__type(value, struct io);
} io_threads SEC(".maps");

/* Model files, for which page-ins caused by other processes are reported, too. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct file_key);
	__type(value, u8);
} model_files SEC(".maps");

static const struct io new_io;

const struct pages_event *unused_pages_event __attribute__((unused));
const struct process_event *unused_process_event __attribute__((unused));
const struct io *unused_io __attribute__((unused));
const struct file_key *unused_file_key __attribute__((unused));
const enum cause *unused_cause __attribute__((unused));
const enum event_kind *unused_event_kind __attribute__((unused));

static __always_inline struct io *this_io(u32 tid) {
	struct io *io = bpf_map_lookup_elem(&io_threads, &tid);
	if (io)
		return io;
	bpf_map_update_elem(&io_threads, &tid, &new_io, BPF_NOEXIST);
	return bpf_map_lookup_elem(&io_threads, &tid);
}

static __always_inline void send_pages(struct pages_event *e) {
	count(bpf_ringbuf_output(&events, e, sizeof(*e), wakeup()) ? COUNT_PAGES_LOST : COUNT_PAGES_SENT);
}

/* Sends the pages that were collected. */
static __always_inline void flush_run(struct io *io) {
	if (!io->run.count)
		return;
	send_pages(&io->run);
	io->run.count = 0;
}

/* The tracepoint's fields, as user space has checked them (checkPageAdded). */
struct page_added {
	u64 common;
	u64 pfn;
	u64 ino;
	u64 index;
	u32 dev;
	u8 order;
};

SEC("tracepoint/filemap/mm_filemap_add_to_page_cache")
int page_added(struct page_added *a) {
	u32 tgid = this_tgid(), tid = this_tid();
	struct pages_event e = {
	    .kind = KIND_PAGES,
	    .tgid = tgid,
	    .tid = tid,
	    .ino = a->ino,
	    .index = a->index,
	    .count = 1,
	    .dev = a->dev,
	    .cause = CAUSE_OTHER,
	};
	if (has_order)
		e.count <<= a->order & 31;
	struct target_config *cfg = bpf_map_lookup_elem(&targets, &tgid);
	if (!cfg) {
		struct file_key key = {.ino = e.ino, .dev = e.dev};
		if (bpf_map_lookup_elem(&model_files, &key)) {
			e.time = bpf_ktime_get_ns();
			send_pages(&e);
		}
		return 0;
	}
	struct io *io = this_io(tid);
	if (!io)
		return 0;
	if (io->faulted && io->fault_ino == e.ino && io->fault_dev == e.dev)
		e.cause = io->fault_index >= e.index && io->fault_index < e.index + e.count ? CAUSE_FAULT : CAUSE_READAHEAD;
	else
		e.cause = CAUSE_READ;
	struct pages_event *run = &io->run;
	if (run->count && run->ino == e.ino && run->dev == e.dev && run->cause == e.cause &&
	    run->index + run->count == e.index) {
		run->count += e.count;
		return 0;
	}
	flush_run(io);
	e.time = bpf_ktime_get_ns();
	e.decode = cfg->decode;
	e.seq = cfg->seq;
	*run = e;
	return 0;
}

struct page_fault {
	u64 common;
	u64 address;
	u64 ip;
	u64 error;
};

SEC("tracepoint/exceptions/page_fault_user")
int page_fault(struct page_fault *f) {
	u32 tgid = this_tgid();
	if (!bpf_map_lookup_elem(&targets, &tgid) || f->error & FAULT_PRESENT)
		return 0;
	struct io *io = this_io(this_tid());
	if (!io)
		return 0;
	flush_run(io);
	struct vma_query q = {.address = f->address};
	find_vma(&q);
	io->faulted = q.in_file;
	io->fault_ino = q.ino;
	io->fault_dev = q.dev;
	io->fault_index = q.offset >> page_shift;
	return 0;
}

/* Adds up how long threads wait for the disk: an uninterruptible wait is nearly always one for the
 * disk. */
SEC("tp_btf/sched_switch")
int BPF_PROG(switched, bool preempt, struct task_struct *prev, struct task_struct *next, u32 prev_state) {
	u32 tgid;
	if (prev_state & TASK_UNINTERRUPTIBLE) {
		tgid = tgid_of(prev);
		struct io *io = bpf_map_lookup_elem(&targets, &tgid) ? this_io(tid_of(prev)) : NULL;
		if (io) {
			io->waiting_since = bpf_ktime_get_ns();
			flush_run(io);
		}
	}
	tgid = tgid_of(next);
	struct target_config *cfg = bpf_map_lookup_elem(&targets, &tgid);
	if (!cfg)
		return 0;
	u32 tid = tid_of(next);
	struct io *io = bpf_map_lookup_elem(&io_threads, &tid);
	if (io && io->waiting_since) {
		__sync_fetch_and_add(&cfg->stalled, bpf_ktime_get_ns() - io->waiting_since);
		io->waiting_since = 0;
	}
	return 0;
}

static __always_inline void send_process(u32 kind, u32 tgid, u32 parent) {
	struct process_event e = {.kind = kind, .tgid = tgid, .parent = parent};
	if (bpf_ringbuf_output(&events, &e, sizeof(e), BPF_RB_FORCE_WAKEUP))
		count(COUNT_OTHERS_LOST);
}

/* A child runs the same code as its parent until it calls execve. So it becomes a target with its
 * first instruction. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(forked, struct task_struct *parent, struct task_struct *child) {
	if (parent->tgid == child->tgid)
		return 0; /* a thread */
	u32 from = tgid_of(parent), to = tgid_of(child);
	struct target_config *cfg = bpf_map_lookup_elem(&targets, &from);
	if (!cfg || !cfg->follow)
		return 0;
	struct target_config copy = *cfg;
	copy.named = 0; /* the path of a file is looked up for each process */
	copy.decode = 0;
	copy.stalled = 0;
	if (!bpf_map_update_elem(&targets, &to, &copy, BPF_NOEXIST))
		send_process(KIND_FORK, to, from);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(execed, struct task_struct *p, int old_pid, struct linux_binprm *bprm) {
	u32 tgid = tgid_of(p);
	if (bpf_map_lookup_elem(&targets, &tgid))
		send_process(KIND_EXEC, tgid, 0);
	return 0;
}
