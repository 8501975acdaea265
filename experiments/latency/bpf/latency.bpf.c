// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Times what lies between a router's choice in the target and the helper's first read for it: when the helper hands it to the block layer, and when the driver gets it. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL"; /* bpf_probe_read_user is for GPL-compatible programs only */

#define SAMPLES 65536

/* Set before loading. */
const volatile u32 target; /* process ids in the first PID namespace */
const volatile u32 helper;
const volatile u32 device; /* where the model lies, as tracepoints have it: major<<20 | minor */
const volatile u32 src_at; /* in struct ggml_tensor */
const volatile u32 name_at;

/* What happened, in the order of struct counts. */
struct counts {
	u64 choices;
	u64 target_first; /* the target itself read before the helper did */
	u64 samples;
};

struct counts seen;

struct sample {
	u32 queued; /* ns from the choice */
	u32 issued; /* 0: it was not seen */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SAMPLES);
	__type(key, u32);
	__type(value, struct sample);
} samples SEC(".maps");

/* The last choice. One thread of the target sets it; the helper's reads, and their requests, look at it. */
static volatile u64 chosen; /* when; 0: its first read was issued */
static volatile u64 queued; /* when; 0: nothing was */
static volatile u64 sector;
static volatile u64 ids;       /* address of the tensor with the last choice */
static volatile u32 overtaken; /* the target has read first */

static u32 clamped(u64 ns) {
	return ns < 0xffffffff ? ns : 0xffffffff;
}

/* Notes the time of the last choice's first read, if there was one. */
static void note(u64 issued) {
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

/* Says whether a tensor is named like a router's choice (ffn_moe_topk-L). */
static bool is_choice(u64 tensor) {
	u32 name[3];
	return tensor && !bpf_probe_read_user(name, sizeof(name), (void *)(tensor + name_at)) && name[0] == 0x5f6e6666 /* ffn_ */ && name[1] == 0x5f656f6d /* moe_ */ &&
	    name[2] == 0x6b706f74 /* topk */;
}

/* The choice is known when get_rows looks up the chosen experts' weights by it; where there is none, with the experts' first op. */
SEC("uprobe.multi")
int BPF_KPROBE(op, u64 params, u64 tensor) {
	s32 ith;
	u64 src[3];
	if (bpf_get_current_pid_tgid() >> 32 != target || bpf_probe_read_user(&ith, sizeof(ith), (void *)params) || ith != 0 ||
	    bpf_probe_read_user(src, sizeof(src), (void *)(tensor + src_at)))
		return 0;
	u64 choice = 0;
	if (is_choice(src[1]))
		choice = src[1];
	else if (src[2] != ids && is_choice(src[2]))
		choice = src[2];
	if (!choice)
		return 0;
	note(0); /* the one before was not issued, for all that was seen */
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

/* A disk's number differs from that of its partition, and the thread from that which has queued it. */
SEC("tracepoint/block/block_rq_issue")
int request_issued(struct block_event *e) {
	if (chosen && queued && e->dev >> 20 == device >> 20 && e->sector <= sector && sector < e->sector + e->nr_sector)
		note(bpf_ktime_get_ns());
	return 0;
}
