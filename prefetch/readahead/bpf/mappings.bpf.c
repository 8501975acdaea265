// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Tells how much a fault in a mapping reads around itself, which no file of /proc does. It is an iterator over all
 * mappings of all processes (Linux 5.12). It tells of those that begin at given addresses. */
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
enum bpf_map_type { BPF_MAP_TYPE_UNSPEC };
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL"; /* iterators are for GPL-compatible programs only */

/* The parts of the kernel's types that are read. CO-RE relocates them. */
#define CORE __attribute__((preserve_access_index))

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} CORE;

struct super_block {
	__u32 s_dev;
} CORE;

struct inode {
	struct super_block *i_sb;
} CORE;

struct file_ra_state {
	unsigned int ra_pages;
} CORE;

struct file {
	struct inode *f_inode;
	unsigned int f_mode;
	struct file_ra_state f_ra;
} CORE;

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
	struct file *vm_file;
} CORE;

struct task_struct {
	int pid;
	int tgid;
} CORE;

struct bpf_iter__task_vma {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	struct vm_area_struct *vma;
} CORE;

#define MAX_STARTS 64

/* The addresses at which mappings begin that are to be told of; the rest is 0. */
volatile __u64 starts[MAX_STARTS];

struct mapping {
	__u64 start;
	__u64 end;
	__u64 flags;
	__u32 ra_pages;
	__u32 mode;
	__u32 dev; /* of the inode that the mapping reads: on overlayfs that of the file below */
	__u32 pad;
};

const struct mapping *unused_mapping __attribute__((unused));

SEC("iter/task_vma")
int mappings(struct bpf_iter__task_vma *ctx) {
	struct task_struct *task = ctx->task;
	struct vm_area_struct *vma = ctx->vma;
	if (!task || !vma || task->pid != task->tgid)
		return 0;
	struct file *file = vma->vm_file;
	if (!file)
		return 0;
	__u64 start = vma->vm_start;
	for (int i = 0; i < MAX_STARTS && starts[i]; i++) {
		if (starts[i] != start)
			continue;
		struct mapping m = {
		    .start = start,
		    .end = vma->vm_end,
		    .flags = vma->vm_flags,
		    .ra_pages = file->f_ra.ra_pages,
		    .mode = file->f_mode,
		    .dev = file->f_inode->i_sb->s_dev,
		};
		bpf_seq_write(ctx->meta->seq, &m, sizeof(m));
		return 0;
	}
	return 0;
}
