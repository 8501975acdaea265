//go:build ignore

// (The first line keeps the go command, which would require cgo for a C file, from compiling this one.)
//
// This is the library ("shim") that LD_PRELOAD loads into a llama.cpp program. It intercepts the
// exported ggml_graph_compute, llama_decode and llama_set_warmup, writes to shared memory what a
// graph reads, and calls the real function. Package preload reads the shared memory.
//
// How the target is protected: The shim never waits for the reader. If the ring buffer is full,
// events are lost and counted. The shim does not allocate with malloc, and does not write to the
// target's memory. It accesses graphs directly only after every tensor of the first graph was read
// through the kernel, which survives bad addresses, and agreed with ggml's own getters. It accesses
// a page directly only after that page was read through the kernel. In a forked child the shim does
// nothing. errno is preserved. Shared memory is mapped only if it is sealed, so that nobody can cut
// it off (SIGBUS). Values that others could change in it are copied and checked before they are
// used. No call of the shim's is a point where a thread can be cancelled. Under a seccomp filter the
// shim avoids system calls that such filters often forbid, because some kill the process for them.
//
// The shim costs some ten microseconds per graph. The ops of a graph are written once, as a
// "template". Later graphs with the same ops are one short record.
//
// Build: cc -shared -fPIC -fvisibility=hidden; x86-64 and arm64.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "wire.h"    // the shared memory
#include "gathers.h" // ggml's gathering ops: package ggml puts its table here

#define EXPORT __attribute__((visibility("default")))
#define load_acquire(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define store_release(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define add_relaxed(p, v) __atomic_fetch_add(p, v, __ATOMIC_RELAXED)
#define swap_acquire(p, expected, v) \
	__atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)

static struct header *shared; // NULL: this process is not observed
static uint32_t slots;        // these three are copied from the header when it is checked
static uint64_t slot_bytes, ring_bytes;
static struct slot *slot; // of this process
static pid_t slot_pid;
static uint64_t head;       // bytes ever written: our own copy of slot->head
static uint64_t head_after; // the value of head once the current record is complete
static bool disabled;       // something is wrong, so nothing more is reported

static __thread struct { uint32_t tid, decode; } self __attribute__((tls_model("initial-exec")));

static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

// These system calls bypass the C library's wrappers, in which pthread_cancel would end a thread
// that holds our lock.
static int raw_open(const char *path, int flags) { return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC); }
static void raw_close(int fd) { syscall(SYS_close, fd); }
static ssize_t raw_read(int fd, void *into, size_t size) { return syscall(SYS_read, fd, into, size); }

// ---- mmap and munmap: intercepted only to notice that the known memory map is out of date

static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static int (*real_munmap)(void *, size_t);
static uintptr_t weights_lo = UINTPTR_MAX, weights_hi; // the range of all mappings that weights are read from
static bool maps_stale = true;
static bool pages_unmapped; // pages that were readable may be gone

static void note_unmapped(void *address, size_t size) {
	uintptr_t lo = (uintptr_t)address;
	store_release(&pages_unmapped, true);
	if (lo < load_acquire(&weights_hi) && lo + size > load_acquire(&weights_lo)) store_release(&maps_stale, true);
}

// Libraries may map memory before our constructor has run, so real_mmap may not be set yet.
static void *map_and_note(void *address, size_t size, int prot, int flags, int fd, off_t offset) {
	if (flags & MAP_FIXED) note_unmapped(address, size);
	if (fd >= 0) store_release(&maps_stale, true); // a model, perhaps
	if (real_mmap) return real_mmap(address, size, prot, flags, fd, offset);
	return (void *)syscall(SYS_mmap, address, size, prot, flags, fd, offset);
}

EXPORT void *mmap(void *address, size_t size, int prot, int flags, int fd, off_t offset) {
	return map_and_note(address, size, prot, flags, fd, offset);
}
#ifndef mmap64 // some C libraries define it as mmap
EXPORT void *mmap64(void *address, size_t size, int prot, int flags, int fd, off_t offset) {
	return map_and_note(address, size, prot, flags, fd, offset);
}
#endif

EXPORT int munmap(void *address, size_t size) {
	note_unmapped(address, size);
	return real_munmap ? real_munmap(address, size) : (int)syscall(SYS_munmap, address, size);
}

#ifndef F_GET_SEALS // some C libraries' headers have it only in linux/fcntl.h
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 2
#endif

// open_memory opens the shared memory, "/proc/PID/fd/N". If its owner is gone, that path may lead
// anywhere by now, or nowhere.
static int open_memory(const char *path) {
	static const char expected[] = "/memfd:tensorcast-preload ";
	char link[sizeof expected];
	ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, path, link, sizeof link);
	if (n != sizeof link || memcmp(link, expected, sizeof expected - 1)) return -1;
	return raw_open(path, O_RDWR | O_NOCTTY | O_NONBLOCK);
}

// map_memory maps the shared memory if its header is valid and it cannot be cut off.
static struct header *map_memory(int fd) {
	struct stat st;
	int seals = (int)syscall(SYS_fcntl, fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || st.st_size < SLOT_HEADER) return NULL;
	struct header *h = map_and_note(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (h == MAP_FAILED) return NULL;
	slots = h->slots, slot_bytes = h->slot_bytes, ring_bytes = h->ring_bytes;
	uint64_t room = (uint64_t)st.st_size - SLOT_HEADER;
	if (h->magic == MAGIC && ring_bytes >= 64 && ring_bytes <= room && !(ring_bytes & (ring_bytes - 1)) &&
	    slot_bytes == SLOT_HEADER + ring_bytes && slots > 0 && slots <= room / slot_bytes)
		return h;
	if (real_munmap) real_munmap(h, (size_t)st.st_size);
	return NULL;
}

__attribute__((constructor)) static void start_shim(void) {
	int saved = errno;
	real_mmap = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
	real_munmap = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "munmap");
	const char *path = getenv("TENSORCAST_PRELOAD");
	int fd = path ? open_memory(path) : -1;
	if (fd >= 0) {
		shared = map_memory(fd);
		raw_close(fd);
	}
	if (shared) add_relaxed(&shared->loaded, 1);
	errno = saved;
}

static struct slot *slot_at(uint32_t i) { return (struct slot *)((char *)shared + SLOT_HEADER + i * slot_bytes); }

// ---- the ring buffer

// reserve returns space for the body of a record, or NULL if the ring buffer is full. commit then
// completes the record. Records do not wrap around.
static void *reserve(enum kind kind, size_t size) {
	uint64_t ring = ring_bytes, at = head & (ring - 1), left = ring - at, unread = head - load_acquire(&slot->tail);
	char *base = (char *)slot + SLOT_HEADER;
	if (size > MAX_RECORD - sizeof(struct record)) return NULL;
	size = sizeof(struct record) + ((size + 7) & ~(size_t)7);
	uint64_t need = size <= left ? size : left + size;
	if (size > ring || unread > ring || need > ring - unread) return NULL;
	if (size > left) {
		*(struct record *)(base + at) = (struct record){PAD, (uint32_t)left};
		at = 0;
	}
	head_after = head + need;
	struct record *r = (struct record *)(base + at);
	*r = (struct record){kind, (uint32_t)size};
	return r + 1;
}

static void commit(void) {
	head = head_after;
	store_release(&slot->head, head);
}

// ---- the writer lock. Its value is the pid of the owner: if a child was forked while another
// thread held the lock, the child takes it over.

static pid_t owner;

static bool lock(pid_t pid) {
	for (int i = 0; i < 400; i++) {
		pid_t is = 0;
		if (swap_acquire(&owner, &is, pid)) return true;
		if (is != pid && swap_acquire(&owner, &is, pid)) return true;
		if (i < 200) sched_yield();
		else syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = 50000}, NULL); // the owner may have a lower priority
	}
	// The target must never be blocked, so a thread that was cancelled is not waited for again and
	// again.
	static int failures;
	if (add_relaxed(&failures, 1) >= 8) store_release(&disabled, true);
	return false;
}

static void unlock(void) { store_release(&owner, 0); }

static bool claim_slot(pid_t pid) {
	for (uint32_t i = 0; i < slots; i++)
		if (load_acquire(&slot_at(i)->pid) == (uint32_t)pid) { // this process had the slot before it called execve
			slot = slot_at(i);
			head = load_acquire(&slot->head);
			return head % 8 == 0;
		}
	for (uint32_t i = 0; i < slots; i++) {
		uint32_t is = 0;
		if (__atomic_compare_exchange_n(&slot_at(i)->pid, &is, (uint32_t)pid, false, __ATOMIC_ACQ_REL,
		        __ATOMIC_RELAXED)) {
			slot = slot_at(i);
			return true;
		}
	}
	add_relaxed(&shared->no_slot, 1);
	return false;
}

static bool process_written;

// write_process writes the record that describes this process. It precedes any other record.
static bool write_process(void) {
	char command[2048];
	ssize_t n = -1;
	int fd = raw_open("/proc/self/cmdline", O_RDONLY);
	if (fd >= 0) {
		n = raw_read(fd, command, sizeof command);
		raw_close(fd);
	}
	if (n < 0) n = 0;
	struct process_record *r = reserve(PROCESS, sizeof *r + (size_t)n);
	if (!r) return false;
	r->parent = (uint32_t)getppid();
	r->bytes = (uint32_t)n;
	memcpy(r->command, command, (size_t)n);
	commit();
	return true;
}

// lock_if_traced takes the lock and returns true if this process is to be traced. The caller must
// call unlock.
static bool lock_if_traced(void) {
	if (!shared || load_acquire(&disabled) || load_acquire(&shared->closed)) return false;
	pid_t pid = getpid();
	if (slot_pid && slot_pid != pid) return false; // this is a forked child, and the ring is its parent's
	if (!lock(pid)) {
		if (slot) add_relaxed(&slot->others_lost, 1);
		return false;
	}
	if (!slot_pid) {
		if (!claim_slot(pid)) store_release(&disabled, true);
		slot_pid = pid;
	}
	if (load_acquire(&disabled)) {
		unlock();
		return false;
	}
	if (!self.tid) self.tid = (uint32_t)syscall(SYS_gettid);
	if (!process_written) process_written = write_process();
	return true;
}

// ---- finding the real functions

// find_for_caller returns the function with this name that the object around the address caller
// would have called without us. ours is our own function, which must not be returned. ggml loads
// its CPU code with RTLD_LOCAL, so only that object's own handle finds the function. The handle is
// kept open so that the library is not unloaded.
static void *find_for_caller(const char *name, const void *caller, const void *ours) {
	Dl_info info;
	void *fn = NULL;
	if (dladdr(caller, &info) && info.dli_fname && info.dli_fname[0]) {
		void *h = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
		if (h && ((fn = dlsym(h, name)) == NULL || fn == ours)) {
			dlclose(h);
			fn = NULL;
		}
	}
	if (!fn) fn = dlsym(RTLD_NEXT, name);
	return fn == ours ? NULL : fn;
}

struct objects {
	const char *name[512];
	int n;
};

static int collect_object(struct dl_phdr_info *info, size_t size, void *arg) {
	(void)size;
	struct objects *o = arg;
	if (info->dlpi_name && info->dlpi_name[0] && o->n < 512) o->name[o->n++] = info->dlpi_name;
	return 0;
}

// find_anywhere searches every loaded object. It is needed if the program got our function from
// dlsym(RTLD_DEFAULT), because then the caller's object says nothing about the library.
static __attribute__((noinline)) void *find_anywhere(const char *name, const void *ours) {
	struct objects o = {.n = 0};
	dl_iterate_phdr(collect_object, &o);
	for (int i = 0; i < o.n; i++) {
		void *h = dlopen(o.name[i], RTLD_NOLOAD | RTLD_LAZY);
		void *fn = h ? dlsym(h, name) : NULL;
		if (fn && fn != ours) return fn;
		if (h) dlclose(h);
	}
	return NULL;
}

// callers has the real functions by call site. A process may have several ggml libraries, and the
// caller tells which one is meant.
struct callers {
	int n;
	struct {
		const void *caller;
		void *fn;
	} at[32];
};

static void *real_function(struct callers *known, const char *name, const void *caller, const void *ours) {
	int n = load_acquire(&known->n);
	for (int i = 0; i < n && i < 32; i++)
		if (load_acquire(&known->at[i].caller) == caller) return known->at[i].fn;
	int saved = errno;
	void *fn = find_for_caller(name, caller, ours);
	if (!fn) fn = find_anywhere(name, ours);
	dlerror(); // clears the error of our own calls, which the target must not see
	errno = saved;
	if (fn && n < 32 && (n = add_relaxed(&known->n, 1)) < 32) {
		known->at[n].fn = fn;
		store_release(&known->at[n].caller, caller);
	}
	return fn;
}

// ---- the memory map

struct mapping {
	uintptr_t lo, hi;
	uint64_t offset, ino, dev;
	const char *path;
	uint32_t path_len;
};

enum {
	MAPS_TEXT = 16 << 20,
	MAX_MAPPINGS = 1 << 16,
	MAX_FILES = 64,
};
static char *maps_text; // reserved address space; only the pages that /proc/self/maps fills take memory
static struct mapping *mappings;
static int n_mappings = -1;                                 // -1: never read
static struct { uint64_t dev, ino; } sent_files[MAX_FILES]; // files whose record the reader has
static int n_sent_files;

static bool parse_hex(const char **p, const char *end, uint64_t *v) {
	const char *s = *p;
	for (*v = 0; *p < end; (*p)++) {
		int c = **p, d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
		                                                                       : -1;
		if (d < 0) break;
		*v = *v << 4 | (uint64_t)d;
	}
	return *p > s;
}

static bool has_prefix(const char *p, const char *end, const char *prefix) {
	size_t n = strlen(prefix);
	return (size_t)(end - p) >= n && memcmp(p, prefix, n) == 0;
}

// read_mapping parses a line of /proc/self/maps, "lo-hi r--s offset major:minor ino /path", and
// returns whether the file could hold a model.
static bool read_mapping(const char *p, const char *end, struct mapping *m) {
	uint64_t lo, hi, major, minor;
	if (!parse_hex(&p, end, &lo) || p >= end || *p++ != '-' || !parse_hex(&p, end, &hi) || end - p < 6 ||
	    p[1] != 'r') return false;
	p += 6;
	if (!parse_hex(&p, end, &m->offset) || p >= end || *p++ != ' ' || !parse_hex(&p, end, &major) || p >= end ||
	    *p++ != ':' || !parse_hex(&p, end, &minor) || p >= end || *p++ != ' ') return false;
	for (m->ino = 0; p < end && *p >= '0' && *p <= '9'; p++) m->ino = m->ino * 10 + (uint64_t)(*p - '0');
	while (p < end && *p == ' ') p++;
	if (m->ino == 0 || p >= end || *p != '/') return false;
	if (has_prefix(p, end, "/memfd:") || has_prefix(p, end, "/dev/") || has_prefix(p, end, "/SYSV") ||
	    has_prefix(p, end, "/anon_hugepage")) return false;
	m->lo = lo, m->hi = hi, m->dev = major << 20 | minor, m->path = p, m->path_len = (uint32_t)(end - p);
	return true;
}

// read_maps reads the memory map. If /proc cannot be read, for example after chroot, the old map
// stays.
static void read_maps(void) {
	if (!mappings) {
		int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
		char *m = map_and_note(NULL, MAPS_TEXT + MAX_MAPPINGS * sizeof *mappings, PROT_READ | PROT_WRITE, flags, -1, 0);
		if (m == MAP_FAILED) return;
		maps_text = m;
		mappings = (struct mapping *)(m + MAPS_TEXT);
	}
	int fd = raw_open("/proc/self/maps", O_RDONLY);
	if (fd < 0) return;
	store_release(&maps_stale, false);
	n_mappings = 0;
	size_t len = 0;
	while (len < MAPS_TEXT) {
		ssize_t n = raw_read(fd, maps_text + len, MAPS_TEXT - len);
		if (n == 0 || (n < 0 && errno != EINTR)) break;
		len += n > 0 ? (size_t)n : 0;
	}
	raw_close(fd);
	for (const char *p = maps_text, *end = maps_text + len, *eol; p < end && n_mappings < MAX_MAPPINGS; p = eol + 1) {
		eol = memchr(p, '\n', (size_t)(end - p));
		if (!eol) break;
		if (read_mapping(p, eol, &mappings[n_mappings])) n_mappings++;
	}
}

static const struct mapping *mapping_of(uint64_t address) {
	int lo = 0, hi = n_mappings; // sorted by address
	while (lo < hi) {
		int mid = (lo + hi) / 2;
		if (mappings[mid].hi <= address) lo = mid + 1;
		else hi = mid;
	}
	return lo < n_mappings && mappings[lo].lo <= address ? &mappings[lo] : NULL;
}

// send_file writes a file's record for the reader. It must precede the first template with that
// file.
static bool send_file(const struct mapping *m) {
	for (int i = 0; i < n_sent_files; i++)
		if (sent_files[i].dev == m->dev && sent_files[i].ino == m->ino) return true;
	struct file_record *r = reserve(FILE_SEEN, sizeof *r + m->path_len + 1);
	if (!r) return false; // it is tried again with the next graph
	r->dev = m->dev, r->ino = m->ino;
	if (m->path_len) memcpy(r->path, m->path, m->path_len); // without a path the pointer is NULL
	r->path[m->path_len] = 0;
	commit();
	if (n_sent_files < MAX_FILES) sent_files[n_sent_files].dev = m->dev, sent_files[n_sent_files++].ino = m->ino;
	return true;
}

// ---- the layout of ggml's structs

typedef const char *tensor; // a ggml_tensor; the layout tells where its fields are
#define FIELD(t, at, type) (*(__typeof__(type) const *)((t) + (at)))

static struct layout fields;
static size_t tensor_bytes; // of a tensor, up to the last field in the layout
static bool layout_known;   // fields is the layout of the library with the function layout_fn
static void *layout_fn;
static uint32_t layouts_tried; // how many layouts of the header did not fit
static bool flags_computed;    // this ggml marks the nodes that are computed
static uint8_t class_of_op[MAX_OPS];
static const char *(*op_name)(uint32_t);

enum op_class {
	UNKNOWN,
	NAMELESS,
	EMPTY,
	PLAIN,
	GATHERING,
}; // GATHERING + i: the op at index i of gathers
enum {
	FLAG_COMPUTE = 16,
	TYPE_I32 = 26,
	MAX_LISTS = 8,
	TYPES = 40,
	GRAPH_BYTES = 128,
	MAX_STRIDE = 1 << 24,
};

// read_pieces reads pieces of this process's own memory, one after the other, without crashing on a
// bad address. It returns how many bytes were read. Seccomp filters often forbid process_vm_readv,
// because it is meant for debuggers, and some kill the process for it: systemd's do.
static size_t read_pieces(void *into, const struct iovec *from, size_t pieces) {
	size_t sum = 0;
	for (size_t i = 0; i < pieces; i++) sum += from[i].iov_len;
	if (prctl(PR_GET_SECCOMP) == 0) {
		struct iovec local = {into, sum};
		ssize_t n = process_vm_readv(slot_pid, &local, 1, from, (unsigned long)pieces, 0);
		if (n >= 0 || (errno != ENOSYS && errno != EPERM)) return n < 0 ? 0 : (size_t)n;
	}
	int fd = raw_open("/proc/self/mem", O_RDONLY);
	if (fd < 0) return 0;
	size_t done = 0;
	for (size_t i = 0; i < pieces; i++) {
		ssize_t n = syscall(SYS_pread64, fd, (char *)into + done, from[i].iov_len, (off_t)(uintptr_t)from[i].iov_base);
		done += n < 0 ? 0 : (size_t)n;
		if (n != (ssize_t)from[i].iov_len) break;
	}
	raw_close(fd);
	return done;
}

static size_t read_safely(void *into, const void *from, size_t size) {
	return read_pieces(into, &(struct iovec){(void *)from, size}, 1);
}

enum {
	PAGE_SHIFT = 12,
	PAGES = 8192,
};
static uintptr_t readable_pages[PAGES]; // a hash table of the pages that were read once: their numbers plus 1

// is_accessible returns whether these bytes can be accessed directly.
static bool is_accessible(const void *from, size_t size) {
	uintptr_t first = (uintptr_t)from >> PAGE_SHIFT, last = ((uintptr_t)from + size - 1) >> PAGE_SHIFT;
	if (!first || last < first) return false;
	for (uintptr_t page = first; page <= last; page++) {
		uintptr_t *seen = &readable_pages[(page ^ page >> 13) % PAGES];
		char c;
		if (*seen == page + 1) continue;
		if (read_safely(&c, (const void *)(page << PAGE_SHIFT), 1) != 1) return false;
		*seen = page + 1;
	}
	return true;
}

static bool is_pointer(uint64_t p) { return p % 8 == 0 && p >= 4096 && p < (uint64_t)1 << 56; }

// is_plausible returns whether these bytes can be a tensor with this layout.
static bool is_plausible(const struct layout *l, const char *t, size_t size) {
	if (size < l->name + NAME || FIELD(t, l->type, uint32_t) >= 1024 ||
	    FIELD(t, l->op, uint32_t) >= sizeof class_of_op) return false;
	for (int i = 0; i < 4; i++) {
		if ((uint64_t)FIELD(t, l->ne + 8 * i, int64_t) > (uint64_t)1 << 48 ||
		    FIELD(t, l->nb + 8 * i, uint64_t) > (uint64_t)1 << 48) return false;
	}
	if (l->flags && FIELD(t, l->flags, uint32_t) >= 1 << 16) return false;
	for (uint32_t i = 0; i < l->max_src; i++) {
		uint64_t p = FIELD(t, l->src + 8 * i, uint64_t);
		if (p && !is_pointer(p)) return false;
	}
	uint64_t view = FIELD(t, l->view_src, uint64_t), data = FIELD(t, l->data, uint64_t);
	if ((view && !is_pointer(view)) || (data && data < 4096)) return false;
	const unsigned char *name = (const unsigned char *)t + l->name;
	int n = 0;
	for (; n < NAME && name[n]; n++)
		if (name[n] < ' ' || name[n] == 0x7f) return false;
	return n > 0 && n < NAME;
}

// getter has the getters that ggml exports for its own structs. Those that it lacks are NULL.
static struct {
	const char *(*get_name)(const void *);
	void *(*get_data)(const void *);
	int64_t (*nelements)(const void *);
	int (*n_nodes)(const void *);
	void *(*node)(const void *, int);
	size_t (*type_size)(uint32_t);
} getter;

static bool getters_agree(const struct layout *l, tensor t) {
	int64_t n = 1;
	// The elements (or blocks) of a leaf are contiguous, so nb[0] is the size of one. type_size
	// must not be called for types that ggml does not have.
	bool leaf = FIELD(t, l->op, uint32_t) == 0 && !FIELD(t, l->view_src, void *) && FIELD(t, l->type, uint32_t) < TYPES;
	for (int i = 0; i < 4; i++) n = (int64_t)((uint64_t)n * (uint64_t)FIELD(t, l->ne + 8 * i, int64_t));
	return (!getter.get_name || getter.get_name(t) == t + l->name) &&
	    (!getter.get_data || getter.get_data(t) == FIELD(t, l->data, void *)) &&
	    (!getter.nelements || getter.nelements(t) == n) &&
	    (!getter.type_size || !leaf || getter.type_size(FIELD(t, l->type, uint32_t)) == FIELD(t, l->nb, size_t));
}

static void add_sample(struct image_record *r, const char *raw, size_t n) {
	if (!r || r->samples >= SAMPLES) return;
	r->bytes[r->samples] = (uint32_t)n;
	memcpy(r->sample[r->samples++], raw, n);
}

// is_in_bounds returns whether all offsets lie within the bytes that layout_fits reads of a tensor
// and a graph.
static bool is_in_bounds(const struct layout *l) {
	const uint32_t at[] = {l->type, l->op, l->flags, l->view_src, l->data, l->name, l->ne, l->nb, l->src, l->n_nodes,
	    l->nodes};
	for (size_t i = 0; i < sizeof at / sizeof *at; i++)
		if (at[i] > SAMPLE) return false;
	return l->max_src <= MAX_SRC && l->type + 4 <= SAMPLE && l->op + 4 <= SAMPLE && l->flags + 4 <= SAMPLE &&
	    l->view_src + 8 <= SAMPLE && l->data + 8 <= SAMPLE &&
	    l->name + NAME <= SAMPLE && l->ne + 32 <= SAMPLE && l->nb + 32 <= SAMPLE &&
	    l->src + 8 * l->max_src <= SAMPLE && l->n_nodes + 4 <= GRAPH_BYTES && l->nodes + 8 <= GRAPH_BYTES;
}

static size_t end_of_fields(const struct layout *l) {
	const size_t ends[] = {l->type + 4, l->op + 4, l->flags + 4, l->view_src + 8, l->data + 8, l->name + NAME,
	    l->ne + 32, l->nb + 32, l->src + 8 * l->max_src};
	size_t most = 0;
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
		if (ends[i] > most) most = ends[i];
	return most;
}

// layout_fits reads every tensor of a graph through the kernel, and returns whether all of them can
// have the layout.
static bool layout_fits(const struct layout *l, const char *graph, struct image_record *samples) {
	char g[GRAPH_BYTES], raw[SAMPLE], src[SAMPLE];
	if (read_safely(g, graph, sizeof g) != sizeof g) return false;
	int32_t n = FIELD(g, l->n_nodes, int32_t);
	const char *nodes = FIELD(g, l->nodes, const char *);
	if (n <= 0 || n > MAX_NODES || !is_pointer((uintptr_t)nodes)) return false;
	if (getter.n_nodes && getter.n_nodes(graph) != n) return false;
	for (int32_t i = 0; i < n; i++) {
		tensor t;
		if (read_safely(&t, nodes + 8 * i, 8) != 8 || !is_pointer((uintptr_t)t) ||
		    (i == 0 && getter.node && getter.node(graph, 0) != t)) return false;
		size_t size = read_safely(raw, t, sizeof raw);
		add_sample(samples, raw, size);
		if (!is_plausible(l, raw, size) || !getters_agree(l, t)) return false;
		for (uint32_t k = 0; k < l->max_src; k++) {
			tensor s = FIELD(raw, l->src + 8 * k, tensor);
			if (!s) continue;
			size = read_safely(src, s, sizeof src);
			if (!is_plausible(l, src, size) || !getters_agree(l, s)) return false;
		}
	}
	return true;
}

static void copy_name(uint8_t *to, const char *from) {
	size_t n = from ? strnlen(from, NAME - 1) : 0;
	if (n > 0) memcpy(to, from, n); // without a name the pointer may be NULL
	memset(to + n, 0, NAME - n);
}

// find_layout finds the layout of the first graph among those that the reader offers, and writes a
// record of the result. fn is the real ggml_graph_compute.
static void find_layout(const char *graph, void *fn) {
	uint32_t n = load_acquire(&shared->layouts);
	if (layouts_tried >= n || n > MAX_LAYOUTS) return;
	Dl_info info;
	const char *path = dladdr(fn, &info) && info.dli_fname ? info.dli_fname : "";
	void *h = path[0] ? dlopen(path, RTLD_NOLOAD | RTLD_LAZY) : NULL;
	void *from = h ? h : RTLD_DEFAULT; // the library and those that it needs
	op_name = (const char *(*)(uint32_t))dlsym(from, "ggml_op_name");
	getter.get_name = (const char *(*)(const void *))dlsym(from, "ggml_get_name");
	getter.get_data = (void *(*)(const void *))dlsym(from, "ggml_get_data");
	getter.nelements = (int64_t(*)(const void *))dlsym(from, "ggml_nelements");
	getter.n_nodes = (int (*)(const void *))dlsym(from, "ggml_graph_n_nodes");
	getter.type_size = (size_t(*)(uint32_t))dlsym(from, "ggml_type_size");
	getter.node = (void *(*)(const void *, int))dlsym(from, "ggml_graph_node");
	const char *(*version)(void) = (const char *(*)(void))dlsym(from, "ggml_version");
	const char *(*commit_of)(void) = (const char *(*)(void))dlsym(from, "ggml_commit");
	dlerror();

	struct image_record *r = reserve(IMAGE, sizeof *r + strlen(path) + 1);
	if (!r) return; // again with the next graph
	memset(r, 0, sizeof *r);
	strcpy(r->path, path);
	copy_name(r->version, version ? version() : NULL);
	copy_name(r->commit, commit_of ? commit_of() : NULL);
	r->layout = NO_LAYOUT;
	for (uint32_t i = layouts_tried; i < n && !layout_known; i++) {
		r->samples = 0;
		struct layout offered = shared->layout[i];
		if (is_in_bounds(&offered) && layout_fits(&offered, graph, r)) {
			fields = offered;
			tensor_bytes = end_of_fields(&fields);
			layout_known = true;
			layout_fn = fn;
			r->layout = i;
		}
	}
	layouts_tried = n;
	commit();
}

// ---- walking a graph

// read_op_name copies the name of an op. It returns false if the name is not valid.
static bool read_op_name(char *to, const char *from) {
	size_t got = read_safely(to, from, NAME), n = 0;
	while (n < got && ((to[n] >= 'A' && to[n] <= 'Z') || (to[n] >= '0' && to[n] <= '9') || to[n] == '_')) n++;
	if (n == 0 || n >= got || n >= NAME || to[n]) return false;
	memset(to + n, 0, NAME - n);
	return true;
}

// classify_op returns the class of an op number, and writes the op's name for the reader. If the ring
// buffer is full, *complete becomes false, and the name is written another time.
static enum op_class classify_op(uint32_t op, bool *complete) {
	if (op >= sizeof class_of_op) return NAMELESS;
	if (class_of_op[op]) return class_of_op[op];
	char name[NAME];
	if (!op_name || !read_op_name(name, op_name(op))) name[0] = 0;
	struct op_name_record *r = reserve(OP_NAME, sizeof *r);
	if (r) {
		r->op = op, r->pad = 0;
		memcpy(r->name, name, NAME);
		commit();
	}
	static const char *const empty[] = {"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"};
	enum op_class c = name[0] ? PLAIN : NAMELESS;
	for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
		if (!strcmp(name, empty[i])) c = EMPTY;
	for (int i = 0; i < GATHERS; i++)
		if (!strcmp(name, gathers[i].op)) c = GATHERING + i;
	if (r) class_of_op[op] = (uint8_t)c;
	else *complete = false;
	return c;
}

static bool has_suffix(const char *s, size_t n, const char *suffix) {
	size_t k = strlen(suffix);
	return n >= k && memcmp(s + n - k, suffix, k) == 0;
}

static bool has_weight_name(tensor t) {
	size_t n = strnlen(t + fields.name, NAME);
	return has_suffix(t + fields.name, n, ".weight") || has_suffix(t + fields.name, n, ".bias");
}

static uint64_t mix(uint64_t h, uint64_t v) {
	h = (h ^ v) * 0x9e3779b97f4a7c15;
	return h ^ h >> 32;
}

static uint64_t mix_bytes(uint64_t h, const void *p, size_t n) {
	uint64_t v;
	for (size_t i = 0; i + 8 <= n; i += 8) {
		memcpy(&v, (const char *)p + i, 8);
		h = mix(h, v);
	}
	return h;
}

// read_weight fills in *s and returns true if t is a weight. That is a leaf or a view in a file, or
// a leaf with a weight's name that was copied elsewhere.
static bool read_weight(tensor t, struct source *s) {
	uint64_t data = FIELD(t, fields.data, uint64_t);
	uint32_t op = FIELD(t, fields.op, uint32_t);
	const void *view = FIELD(t, fields.view_src, const void *);
	if (!data || (op && !view)) return false; // the result of an op
	const struct mapping *m = mapping_of(data);
	bool marked = fields.flags && FIELD(t, fields.flags, uint32_t) & ~FLAG_COMPUTE;
	if (!m && (op || view || marked || !has_weight_name(t))) return false; // an input, the KV cache
	s->data = data;
	s->mapped = m != NULL;
	s->offset = m ? data - m->lo + m->offset : 0;
	s->ino = m ? m->ino : 0;
	s->dev = m ? m->dev : 0;
	s->type = FIELD(t, fields.type, uint32_t);
	memcpy(s->ne, t + fields.ne, sizeof s->ne);
	memcpy(s->nb, t + fields.nb, sizeof s->nb);
	copy_name(s->name, t + fields.name);
	return true;
}

struct walk {
	uint64_t hash;
	uint32_t nodes, ops, sources, lists;
	bool complete; // the reader has the names of all ops, and all files if that was asked for
	bool bad;      // the graph cannot be read
	struct {
		tensor t;
		uint32_t op;
	} list[MAX_LISTS];
	size_t ids_bytes;
};

// is_tensor returns whether a tensor can be accessed at this address.
static bool is_tensor(tensor t) { return is_pointer((uintptr_t)t) && is_accessible(t, tensor_bytes); }

// can_read_ids returns whether ids can be read before the graph runs, because they are an input and
// not another op's result.
static bool can_read_ids(tensor ids) {
	uint32_t op = FIELD(ids, fields.op, uint32_t);
	tensor view = FIELD(ids, fields.view_src, tensor);
	const int64_t *ne = (const int64_t *)(ids + fields.ne);
	const uint64_t *nb = (const uint64_t *)(ids + fields.nb);
	if (op && !(view && is_tensor(view) && FIELD(view, fields.op, uint32_t) == 0)) return false;
	if (!FIELD(ids, fields.data, const void *) || FIELD(ids, fields.type, uint32_t) != TYPE_I32 || ne[0] <= 0 ||
	    ne[1] <= 0 || ne[0] > MAX_IDS || ne[1] > MAX_IDS ||
	    ne[0] * ne[1] > MAX_IDS || ne[2] != 1 || ne[3] != 1 || nb[0] > MAX_STRIDE || nb[1] > MAX_STRIDE)
		return false;
	size_t size = (uint64_t)(ne[0] - 1) * nb[0] + (uint64_t)(ne[1] - 1) * nb[1] + 4;
	return size <= MAX_STRIDE && is_accessible(FIELD(ids, fields.data, const void *), size);
}

// walk_graph goes through the ops that the CPU backend will run and collects those that read
// weights in w. If into is not NULL, it also writes them there. An earlier walk has told the size.
// If files is set, it writes a record for each file.
static void walk_graph(const char *graph, struct walk *w, char *into, bool files) {
	*w = (struct walk){.complete = true, .bad = true};
	if (!is_accessible(graph, GRAPH_BYTES)) return;
	int32_t n = FIELD(graph, fields.n_nodes, int32_t);
	const tensor *nodes = FIELD(graph, fields.nodes, const tensor *);
	if (n < 0 || n > MAX_NODES || (n && !is_accessible(nodes, 8 * (size_t)n))) return;
	for (int32_t i = 0; i < n; i++)
		if (!is_tensor(nodes[i])) return;
	for (int32_t i = 0; fields.flags && !flags_computed && i < n; i++) flags_computed = FIELD(nodes[i], fields.flags,
		                                                                                    uint32_t) &
		FLAG_COMPUTE;
	for (int32_t i = 0; i < n; i++) {
		tensor t = nodes[i];
		const int64_t *ne = (const int64_t *)(t + fields.ne);
		enum op_class c = classify_op(FIELD(t, fields.op, uint32_t), &w->complete);
		if (c == EMPTY || (flags_computed && !(FIELD(t, fields.flags, uint32_t) & FLAG_COMPUTE)) || !ne[0] ||
		    !ne[1] || !ne[2] || !ne[3]) continue;

		struct op op = {.op = FIELD(t, fields.op, uint32_t), .node = w->nodes++};
		struct op *at = (struct op *)into;
		uint64_t hash = w->hash;
		const struct gather *g = NULL;
		for (uint32_t k = 0; k < fields.max_src; k++) {
			tensor t_src = FIELD(t, fields.src + 8 * k, tensor);
			struct source s;
			if (!t_src) continue;
			if (!is_tensor(t_src)) return;
			if (!read_weight(t_src, &s)) continue;
			if (into) memcpy(into + sizeof op + op.sources * sizeof s, &s, sizeof s);
			if (files && s.mapped) w->complete = send_file(mapping_of(s.data)) && w->complete;
			hash = mix_bytes(hash, &s, sizeof s);
			op.sources++;
			if (c >= GATHERING && k == (uint32_t)gathers[c - GATHERING].source) g = &gathers[c - GATHERING];
		}
		if (!op.sources) continue;
		op.gather = g ? (uint32_t)(g - gathers) + 1 : 0;
		tensor by = g && (uint32_t)g->ids < fields.max_src ? FIELD(t, fields.src + 8 * (uint32_t)g->ids, tensor) : NULL;
		const int64_t *by_ne = by ? (const int64_t *)(by + fields.ne) : NULL;
		if (by && g->experts && by_ne[1] == 1) op.selects = (uint32_t)by_ne[0];
		w->hash = mix_bytes(hash, &op, sizeof op);
		if (at) {
			*at = op;
			into += sizeof op + op.sources * sizeof(struct source);
		}
		if (by && !g->experts && can_read_ids(by) && w->lists < MAX_LISTS) {
			w->list[w->lists].t = by;
			w->list[w->lists++].op = w->ops;
			w->ids_bytes += sizeof(struct ids) + (size_t)(by_ne[0] * by_ne[1] * 4 + 7) / 8 * 8;
		}
		w->ops++;
		w->sources += op.sources;
	}
	w->bad = false;
}

static uint64_t templates[MAX_TEMPLATES]; // the hash of the template that the reader has under each id; 0: none

// send_template writes the graph's template for the reader. It rereads the memory map first, and
// walks the graph again.
static bool send_template(const char *graph, struct walk *w) {
	read_maps();
	walk_graph(graph, w, NULL, true);
	if (w->bad || !w->complete) return false;
	size_t size = w->ops * sizeof(struct op) + w->sources * sizeof(struct source);
	struct template_record *r = reserve(TEMPLATE, sizeof *r + size);
	if (!r) return false;
	r->hash = w->hash;
	r->id = (uint32_t)(w->hash % MAX_TEMPLATES);
	r->ops = w->ops;
	struct walk again;
	walk_graph(graph, &again, (char *)(r + 1), false);
	if (again.bad || again.hash != w->hash) return false; // another thread has changed the graph
	commit();
	templates[r->id] = w->hash;
	for (int i = 0; i < n_mappings; i++) {
		for (int k = 0; k < n_sent_files; k++) {
			if (sent_files[k].dev != mappings[i].dev || sent_files[k].ino != mappings[i].ino) continue;
			if (mappings[i].lo < weights_lo) store_release(&weights_lo, mappings[i].lo);
			if (mappings[i].hi > weights_hi) store_release(&weights_hi, mappings[i].hi);
		}
	}
	return true;
}

static void write_ids(char *at, struct walk *w) {
	for (uint32_t k = 0; k < w->lists; k++) {
		tensor t = w->list[k].t;
		const int64_t *ne = (const int64_t *)(t + fields.ne);
		const uint64_t *nb = (const uint64_t *)(t + fields.nb);
		const char *data = FIELD(t, fields.data, const char *);
		*(struct ids *)at = (struct ids){w->list[k].op, (uint32_t)ne[0], (uint32_t)ne[1], 0};
		int32_t *to = (int32_t *)(at + sizeof(struct ids));
		for (int64_t row = 0; row < ne[1]; row++)
			for (int64_t i = 0; i < ne[0]; i++) memcpy(to++, data + row * (int64_t)nb[1] + i * (int64_t)nb[0], 4);
		if ((ne[0] * ne[1]) % 2) *to = 0;
		at += sizeof(struct ids) + (size_t)(ne[0] * ne[1] * 4 + 7) / 8 * 8;
	}
}

// graph_begin writes the record of a graph and returns the graph's number, or 0 if the graph is not
// reported.
static uint32_t graph_begin(const char *graph, void *fn) {
	uint64_t time = now();
	if (!lock_if_traced()) return 0;
	uint32_t number = (uint32_t)(++slot->graphs);
	if (!layout_known) find_layout(graph, fn);
	if (!layout_known || layout_fn != fn) { // no layout fits, or this is a second ggml
		add_relaxed(&slot->unread, 1);
		unlock();
		return 0;
	}
	struct walk w;
	if (load_acquire(&maps_stale)) read_maps();
	if (load_acquire(&pages_unmapped)) {
		store_release(&pages_unmapped, false);
		memset(readable_pages, 0, sizeof readable_pages);
	}
	if (n_mappings >= 0) walk_graph(graph, &w, NULL, false);
	if (n_mappings < 0 || w.bad) {
		add_relaxed(&slot->unread, 1);
		unlock();
		return 0;
	}
	bool sent = w.ops > 0 && (templates[w.hash % MAX_TEMPLATES] == w.hash || send_template(graph, &w));
	struct graph_record *r = sent ? reserve(GRAPH, sizeof *r + w.ids_bytes) : NULL;
	uint64_t seq = slot->nodes;
	store_release(&slot->nodes, seq + w.nodes);
	store_release(&slot->no_weight, slot->no_weight + (w.nodes - w.ops));
	if (r) {
		r->time = time, r->hash = w.hash, r->seq = seq;
		r->tid = self.tid, r->decode = self.decode, r->graph = number;
		r->template = (uint32_t)(w.hash % MAX_TEMPLATES), r->ops = w.ops, r->lists = w.lists;
		write_ids((char *)(r + 1), &w);
		store_release(&slot->ops_sent, slot->ops_sent + w.ops); // counted before the reader can count it
		commit();
	} else {
		store_release(&slot->ops_lost, slot->ops_lost + w.ops);
	}
	unlock();
	return r ? number : 0;
}

static void graph_end(uint32_t number) {
	uint64_t time = now();
	if (!number || !lock_if_traced()) return;
	struct graph_end_record *r = reserve(GRAPH_END, sizeof *r);
	if (r) {
		r->time = time, r->tid = self.tid, r->decode = self.decode, r->graph = number, r->pad = 0;
		commit();
	} else {
		store_release(&slot->others_lost, slot->others_lost + 1);
	}
	unlock();
}

EXPORT int ggml_graph_compute(void *graph, void *plan) {
	static struct callers callers;
	int (*compute)(void *, void *) = (int (*)(void *, void *))real_function(&callers, "ggml_graph_compute",
	    __builtin_extract_return_addr(__builtin_return_address(0)), (void *)ggml_graph_compute);
	if (!compute) return -1; // GGML_STATUS_FAILED: this process has our function, but no ggml
	int saved = errno;
	uint32_t number = graph_begin(graph, (void *)compute);
	errno = saved;
	int status = compute(graph, plan);
	saved = errno;
	graph_end(number);
	errno = saved;
	return status;
}

// ---- decodes

// batch is llama_batch, with room for members that later versions may append. It is passed by
// value, and must be passed on completely.
struct batch {
	int32_t n_tokens;
	int32_t *token;
	float *embd;
	int32_t *pos, *n_seq_id, **seq_id;
	int8_t *logits;
	uint64_t later[9];
};

enum {
	CHUNK = 64,
	MAX_SEQS_OF_TOKEN = 8,
};

// collect_sequences sets a bit in marks for each sequence of the batch's tokens. It returns how
// many sequences there are, or -1 if they cannot be read. The arrays are read through the kernel,
// because a later llama_batch may have other members there.
static int collect_sequences(const struct batch *b, uint64_t *marks) {
	int count = 0;
	if (!b->n_seq_id || !b->seq_id) return marks[0] = 1, 1; // llama.cpp means sequence 0
	for (int32_t i = 0; i < b->n_tokens; i += CHUNK) {
		int32_t n = b->n_tokens - i < CHUNK ? b->n_tokens - i : CHUNK, counts[CHUNK], ids[CHUNK * MAX_SEQS_OF_TOKEN],
		        total = 0;
		int32_t *lists[CHUNK];
		struct iovec remote[CHUNK];
		if (read_safely(counts, b->n_seq_id + i, 4 * (size_t)n) != 4 * (size_t)n ||
		    read_safely(lists, b->seq_id + i, 8 * (size_t)n) != 8 * (size_t)n) return -1;
		for (int32_t k = 0; k < n; k++) {
			if (counts[k] < 1 || counts[k] > MAX_SEQS_OF_TOKEN) return -1;
			remote[k] = (struct iovec){lists[k], 4 * (size_t)counts[k]};
			total += counts[k];
		}
		if (read_pieces(ids, remote, (size_t)n) != 4 * (size_t)total) return -1;
		for (int32_t k = 0; k < total; k++) {
			if (ids[k] < 0 || ids[k] >= MAX_SEQ_ID) return -1;
			uint64_t bit = (uint64_t)1 << ids[k] % 64;
			count += !(marks[ids[k] / 64] & bit);
			marks[ids[k] / 64] |= bit;
		}
	}
	return count;
}

static const void *warming_contexts[64]; // contexts between llama_set_warmup(true) and (false)

static __attribute__((noinline)) uint32_t decode_begin(const void *context, const struct batch *b) {
	if (!lock_if_traced()) return 0;
	uint32_t number = (uint32_t)(++slot->decodes);
	uint64_t marks[MAX_SEQ_ID / 64] = {0};
	int n = collect_sequences(b, marks);
	struct decode_record *r = reserve(DECODE_BEGIN, sizeof *r + 4 * (size_t)(n > 0 ? n : 0));
	if (r) {
		r->time = now(), r->context = (uint64_t)(uintptr_t)context;
		r->tid = self.tid, r->decode = number, r->tokens = b->n_tokens, r->warmup = 0, r->sequences = n, r->pad = 0;
		for (int i = 0; i < 64; i++) r->warmup |= warming_contexts[i] == context;
		for (int i = 0, at = 0; n > 0 && i < MAX_SEQ_ID; i++)
			if (marks[i / 64] >> i % 64 & 1) r->sequence[at++] = i;
		commit();
	} else {
		store_release(&slot->others_lost, slot->others_lost + 1);
	}
	unlock();
	return number;
}

static void decode_end(uint32_t number) {
	if (!number || !lock_if_traced()) return;
	struct decode_record *r = reserve(DECODE_END, sizeof *r);
	if (r) {
		memset(r, 0, sizeof *r);
		r->time = now(), r->tid = self.tid, r->decode = number;
		commit();
	} else {
		store_release(&slot->others_lost, slot->others_lost + 1);
	}
	unlock();
}

EXPORT int32_t llama_decode(void *context, struct batch batch) {
	static struct callers callers;
	int32_t (*decode)(void *, struct batch) = (int32_t(*)(void *, struct batch))real_function(&callers,
	    "llama_decode", __builtin_extract_return_addr(__builtin_return_address(0)), (void *)llama_decode);
	if (!decode) return -1;
	int saved = errno;
	uint32_t outer = self.decode, number = decode_begin(context, &batch);
	self.decode = number;
	errno = saved;
	int32_t status = decode(context, batch);
	saved = errno;
	decode_end(number);
	self.decode = outer;
	errno = saved;
	return status;
}

EXPORT void llama_set_warmup(void *context, bool on) {
	static struct callers callers;
	void (*set)(void *, bool) = (void (*)(void *, bool))real_function(&callers, "llama_set_warmup",
	    __builtin_extract_return_addr(__builtin_return_address(0)), (void *)llama_set_warmup);
	int saved = errno;
	if (lock_if_traced()) {
		int at = -1;
		for (int i = 0; i < 64; i++) {
			if (warming_contexts[i] == context) warming_contexts[i] = NULL;
			if (!warming_contexts[i]) at = i;
		}
		if (on && at >= 0) warming_contexts[at] = context;
		unlock();
	}
	errno = saved;
	if (set) set(context, on);
}
