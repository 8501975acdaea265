// This file defines what the shim (shim.c) and its reader (Go) share: the layout of the shared
// memory, the records in it, and their limits. All numbers are in host byte order. wire_defs.go,
// the Go side, is generated from this file and defs.go: go generate ./capture/preload.
#ifndef TENSORCAST_WIRE_H
#define TENSORCAST_WIRE_H
#include <stdalign.h>
#include <stdint.h>

enum {
	MAGIC = 0x74637031,
	NO_LAYOUT = 0xffffffff,
	MAX_LAYOUTS = 16,
	SLOT_HEADER = 4096,    // bytes before a slot's ring, and before the first slot
	NAME = 64,             // bytes of a name
	SAMPLES = 4,           // tensors
	SAMPLE = 512,          // bytes of one
	MAX_RECORD = 16 << 20, // bytes
	MAX_SRC = 10,          // sources of an op
	MAX_OPS = 1024,        // numbers of ops
	MAX_NODES = 1 << 20,   // of a graph
	MAX_TEMPLATES = 1024,
	MAX_IDS = 65536, // that an op gathers by
	MAX_SEQ_ID = 1024,
};

struct layout {
	// offsets in ggml_tensor; flags 0: it has no flags
	uint32_t type, ne, nb, op, flags, src, max_src, view_src, data, name;
	uint32_t n_nodes, nodes; // in ggml_cgraph
	uint32_t pad[4];
};

struct header {
	uint32_t magic, slots;
	uint64_t slot_bytes; // from one slot to the next
	uint64_t ring_bytes; // a power of two
	uint32_t closed;     // nobody reads any more
	uint32_t layouts;    // may grow
	uint32_t loaded;     // programs that loaded the shim
	uint32_t no_slot;    // processes that found no free slot
	struct layout layout[MAX_LAYOUTS];
};
_Static_assert(sizeof(struct header) <= SLOT_HEADER, "header");

// A process that computes graphs has a slot: its counters, and a ring of records.
struct slot {
	uint32_t pid; // 0: free
	uint32_t pad;
	uint64_t nodes, no_weight, ops_sent, ops_lost, others_lost; // nodes = no_weight + ops_sent + ops_lost
	// unread counts graphs that could not be read: the layout or the memory map is unknown, or
	// addresses are bad.
	uint64_t unread;
	uint64_t graphs, decodes;
	alignas(64) uint64_t head; // bytes ever written
	alignas(64) uint64_t tail; // bytes ever read
};
_Static_assert(sizeof(struct slot) <= SLOT_HEADER, "slot");

enum kind {
	PAD,
	PROCESS,
	IMAGE,
	OP_NAME,
	FILE_SEEN,
	TEMPLATE,
	GRAPH,
	GRAPH_END,
	DECODE_BEGIN,
	DECODE_END,
};

// A record begins with this head. The struct of its kind follows.
struct record {
	uint32_t kind, size;
}; // size is that of the whole record in bytes, a multiple of 8

struct process_record {
	uint32_t parent, bytes;
	char command[];
}; // bytes is the length of command, which is /proc/self/cmdline
struct image_record {
	uint32_t layout, samples; // NO_LAYOUT: none of the known ones fits
	uint8_t version[NAME], commit[NAME];
	uint32_t bytes[SAMPLES];         // of each sample
	uint8_t sample[SAMPLES][SAMPLE]; // tensors of the first graph
	char path[];                     // of the library
};
struct op_name_record {
	uint32_t op, pad;
	uint8_t name[NAME];
};
struct file_record {
	uint64_t dev, ino;
	char path[];
};
struct source {
	uint64_t data, offset, ino, dev;
	uint32_t type, mapped; // mapped: data lies in a mapping of a file
	int64_t ne[4];
	uint64_t nb[4];
	uint8_t name[NAME];
};
// An op that reads weights. gather is 0 or 1 + its index in the table of gathering ops. selects is
// how many experts it reads, if it computes one token. The op's sources follow.
struct op {
	uint32_t op, node, sources, gather, selects, pad;
};
struct template_record {
	uint64_t hash;
	uint32_t id, ops;
}; // the ops follow
struct ids {
	uint32_t op, slots, rows, pad;
}; // op is the index in the template; slots * rows int32 follow, padded to 8 bytes
struct graph_record {
	uint64_t time, hash, seq; // seq: nodes before this graph
	uint32_t tid, decode, graph, template, ops, lists;
};
struct graph_end_record {
	uint64_t time;
	uint32_t tid, decode, graph, pad;
};
struct decode_record {
	uint64_t time, context;
	uint32_t tid, decode;
	int32_t tokens;
	uint32_t warmup;
	int32_t sequences; // -1: unknown
	uint32_t pad;
	int32_t sequence[];
};
#endif
