// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/*
 * This program times what lies between a router's choice in the target and the helper's first read for it: until the
 * helper hands the read to the block layer, and until the driver gets it.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL"; /* bpf_probe_read_user is for GPL-compatible programs only */

#define SAMPLES 65536

/* Set before loading. */
const volatile u32 target; /* process ids in the first PID namespace */
const volatile u32 helper;
const volatile u32 device; /* that the model is on, as tracepoints number it: major<<20 | minor */
const volatile u32 src_at; /* offsets in struct ggml_tensor */
const volatile u32 name_at;

/* What happened, in the order of struct counts. */
struct counts {
	u64 choices;
	u64 target_first; /* choices after which the target itself read before the helper did */
	u64 samples;
};

struct counts seen;

struct sample {
	u32 queued; /* ns from the choice */
	u32 issued; /* ns from the choice; 0: it was not seen */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SAMPLES);
	__type(key, u32);
	__type(value, struct sample);
} samples SEC(".maps");

/* The last choice. One thread of the target sets it. The programs at the helper's reads and their requests use it. */
static volatile u64 chosen;    /* time of the choice in ns; 0: its first read was issued */
static volatile u64 queued;    /* time of the first read in ns; 0: there was none yet */
static volatile u64 sector;    /* that the first read begins at */
static volatile u64 ids;       /* address of the tensor with the last choice */
static volatile u32 overtaken; /* the target has read first */

static u32 clamped(u64 ns) {
	return ns < 0xffffffff ? ns : 0xffffffff;
}

/* Stores the times of the last choice's first read, if there was one. issued is 0 if its request was not seen. */
static void store_sample(u64 issued) {
	u64 from = chosen, at = queued;
	chosen = 0;
	if (!from || !at)
		return;
	u32 i = __sync_fetch_and_add(&seen.samples, 1);
	struct sample *s = bpf_map_lookup_elem(&samples, &i);
	if (!s)
		return;
	s->queued = clamped(at - from);
	s->issued = issued ? clamped(issued - from) : 0;
}

/* Tells whether a tensor is named like a router's choice (ffn_moe_topk-L). */
static bool is_choice(u64 tensor) {
	u32 name[3];
	return tensor && !bpf_probe_read_user(name, sizeof(name), (void *)(tensor + name_at)) &&
	    name[0] == 0x5f6e6666 /* ffn_ */ && name[1] == 0x5f656f6d /* moe_ */ && name[2] == 0x6b706f74 /* topk */;
}

/*
 * The choice is known when get_rows looks up the chosen experts' weights by it. In models without that op it is known
 * at the experts' first op.
 */
SEC("uprobe.multi")
int BPF_KPROBE(op, u64 params, u64 tensor) {
	s32 ith;
	u64 src[3];
	if (bpf_get_current_pid_tgid() >> 32 != target)
		return 0;
	if (bpf_probe_read_user(&ith, sizeof(ith), (void *)params) || ith != 0 ||
	    bpf_probe_read_user(src, sizeof(src), (void *)(tensor + src_at)))
		return 0;
	u64 choice = 0;
	if (is_choice(src[1]))
		choice = src[1];
	else if (src[2] != ids && is_choice(src[2]))
		choice = src[2];
	if (!choice)
		return 0;
	store_sample(0); /* no request was seen for the choice before */
	ids = choice;
	queued = 0;
	overtaken = 0;
	seen.choices++;
	chosen = bpf_ktime_get_ns();
	return 0;
}

/* The beginnings of these tracepoints' fields have been the same since Linux 2.6.37. */
struct block_event {
	u64 common;
	u32 dev;
	u32 pad;
	u64 sector;
	u32 nr_sector;
	char rest[8]; /* of block_bio_queue: what it does, R for reading */
};

SEC("tracepoint/block/block_bio_queue")
int bio_queued(struct block_event *e) {
	if (!chosen || queued || e->dev != device || e->rest[0] != 'R')
		return 0;
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	if (tgid == target && !overtaken) {
		overtaken = 1;
		__sync_fetch_and_add(&seen.target_first, 1);
	}
	if (tgid != helper)
		return 0;
	sector = e->sector;
	queued = bpf_ktime_get_ns();
	return 0;
}

/* The number of a disk differs from that of its partition. The thread here need not be the one that queued the read. */
SEC("tracepoint/block/block_rq_issue")
int request_issued(struct block_event *e) {
	if (chosen && queued && e->dev >> 20 == device >> 20 && e->sector <= sector && sector < e->sector + e->nr_sector)
		store_sample(bpf_ktime_get_ns());
	return 0;
}
