/* The few kernel types that the programs read. They are relocated by CO-RE: only the members named
 * here are looked up in the running kernel's BTF. They are written by hand so that building needs
 * no vmlinux.h of a particular machine. */
#ifndef TENSORCAST_KERNEL_H
#define TENSORCAST_KERNEL_H
#define __VMLINUX_H__ /* makes bpf_tracing.h use the kernel's register names */

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
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)
#define unlikely(x) __builtin_expect(!!(x), 0)

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
	BPF_RB_AVAIL_DATA = 0,
};

#define CORE __attribute__((preserve_access_index))

struct super_block {
	__u32 s_dev;
} CORE;

struct inode {
	struct super_block *i_sb;
	unsigned long i_ino;
} CORE;

struct file {
	struct inode *f_inode;
} CORE;

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_pgoff;
	struct file *vm_file;
} CORE;

struct ns_common {
	unsigned int inum;
} CORE;

struct pid_namespace {
	struct ns_common ns;
} CORE;

/* The number of a task in one PID namespace. */
struct upid {
	int nr;
	struct pid_namespace *ns;
} CORE;

/* A task's numbers, from that in the first PID namespace (level 0) to that in its own. */
struct pid {
	unsigned int level;
	struct upid numbers[1];
} CORE;

struct task_struct {
	int pid;  /* in the first PID namespace; user space calls this tid */
	int tgid; /* likewise; user space calls this pid */
	struct task_struct *group_leader;
	struct pid *thread_pid; /* since Linux 4.19 */
} CORE;

struct linux_binprm;

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8;
	unsigned long ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp, pc, pstate;
};
struct pt_regs {
	struct user_pt_regs user_regs;
};
#endif

#endif
