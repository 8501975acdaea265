//go:build ignore

// (The first line keeps the go command, which would require cgo for a C file, from compiling this one.)
//
// The library ("shim") that LD_PRELOAD loads into a llama.cpp program. It intercepts the exported ggml_graph_compute, llama_decode and
// llama_set_warmup, writes to shared memory what a graph reads, and calls the real function. Package preload reads the shared memory.
//
// What protects the target: the shim never waits for the reader (if the ring buffer is full, events are lost and counted), does not
// allocate with malloc, and does not write to the target's memory. Graphs are accessed directly only after every tensor of the first graph
// was read through the kernel, which survives bad addresses, and agreed with ggml's own getters; and each page only after it was read so. In a forked child the shim does nothing.
// errno is preserved. Shared memory is mapped only if it is sealed, so that nobody can cut it off (SIGBUS); what others could change in it
// is copied and checked before it is used. No call of the shim's is a point where a thread can be cancelled. Under a seccomp filter,
// system calls that such filters often forbid, perhaps on pain of death, are avoided.
//
// Cost: some ten microseconds per graph. The ops of a graph are written once (as a "template"); later graphs with the same ops are one
// short record.
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
#define load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define store(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define add(p, v) __atomic_fetch_add(p, v, __ATOMIC_RELAXED)

static struct header *hdr; // NULL: not wanted here
static uint32_t slots;     // these three as in the header when it was checked
static uint64_t slot_bytes, ring_bytes;
static struct slot *slot; // this process's
static pid_t slot_pid;
static uint64_t head;    // bytes ever written, as slot->head: our own copy
static uint64_t pending; // head when the record under way is complete
static bool off;         // something is wrong here: report nothing more

static __thread struct { uint32_t tid, decode; } self __attribute__((tls_model("initial-exec")));

static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

// System calls without the C library's wrappers, in which pthread_cancel would end a thread that holds our lock.
static int raw_open(const char *path, int flags) { return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC); }
static void raw_close(int fd) { syscall(SYS_close, fd); }
static ssize_t raw_read(int fd, void *into, size_t size) { return syscall(SYS_read, fd, into, size); }

// ---- mmap and munmap: intercepted only to notice that the known memory map is out of date

static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static int (*real_munmap)(void *, size_t);
static uintptr_t used_lo = UINTPTR_MAX, used_hi; // spans the mappings that weights are read from
static bool stale = true;
static bool unmapped; // pages that were readable may no longer be

static void forget(void *address, size_t size) {
	uintptr_t lo = (uintptr_t)address;
	store(&unmapped, true);
	if (lo < load(&used_hi) && lo + size > load(&used_lo)) store(&stale, true);
}

// Libraries may map memory before our constructor has run, so real_mmap may not be set yet.
static void *map(void *address, size_t size, int prot, int flags, int fd, off_t offset) {
	if (flags & MAP_FIXED) forget(address, size);
	if (fd >= 0) store(&stale, true); // a model, perhaps
	return real_mmap ? real_mmap(address, size, prot, flags, fd, offset) : (void *)syscall(SYS_mmap, address, size, prot, flags, fd, offset);
}

EXPORT void *mmap(void *address, size_t size, int prot, int flags, int fd, off_t offset) { return map(address, size, prot, flags, fd, offset); }
#ifndef mmap64 // some C libraries make it another word for mmap
EXPORT void *mmap64(void *address, size_t size, int prot, int flags, int fd, off_t offset) { return map(address, size, prot, flags, fd, offset); }
#endif

EXPORT int munmap(void *address, size_t size) {
	forget(address, size);
	return real_munmap ? real_munmap(address, size) : (int)syscall(SYS_munmap, address, size);
}

#ifndef F_GET_SEALS // some C libraries' headers have it only in linux/fcntl.h
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 2
#endif

// open_memory opens the shared memory, "/proc/PID/fd/N". If its owner is gone, that may be anything by now, or nothing.
static int open_memory(const char *path) {
	static const char is[] = "/memfd:tensorcast-preload ";
	char link[sizeof is];
	if (syscall(SYS_readlinkat, AT_FDCWD, path, link, sizeof link) != sizeof link || memcmp(link, is, sizeof is - 1)) return -1;
	return raw_open(path, O_RDWR | O_NOCTTY | O_NONBLOCK);
}

// map_memory maps the shared memory if it is what it should be, and cannot be cut off.
static struct header *map_memory(int fd) {
	struct stat st;
	int seals = (int)syscall(SYS_fcntl, fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || st.st_size < SLOT_HEADER) return NULL;
	struct header *h = map(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (h == MAP_FAILED) return NULL;
	slots = h->slots, slot_bytes = h->slot_bytes, ring_bytes = h->ring_bytes;
	uint64_t room = (uint64_t)st.st_size - SLOT_HEADER;
	if (h->magic == MAGIC && ring_bytes >= 64 && ring_bytes <= room && !(ring_bytes & (ring_bytes - 1)) && slot_bytes == SLOT_HEADER + ring_bytes && slots > 0 &&
	    slots <= room / slot_bytes)
		return h;
	if (real_munmap) real_munmap(h, (size_t)st.st_size);
	return NULL;
}

__attribute__((constructor)) static void begin(void) {
	int saved = errno;
	real_mmap = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
	real_munmap = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "munmap");
	const char *path = getenv("TENSORCAST_PRELOAD");
	int fd = path ? open_memory(path) : -1;
	if (fd >= 0) {
		hdr = map_memory(fd);
		raw_close(fd);
	}
	if (hdr) add(&hdr->loaded, 1);
	errno = saved;
}

static struct slot *slot_at(uint32_t i) { return (struct slot *)((char *)hdr + SLOT_HEADER + i * slot_bytes); }

// ---- the ring buffer

// reserve returns space for the body of a record, which commit completes; NULL if the ring buffer is full. Records do not wrap around.
static void *reserve(enum kind kind, size_t size) {
	uint64_t ring = ring_bytes, at = head & (ring - 1), left = ring - at, unread = head - load(&slot->tail);
	char *base = (char *)slot + SLOT_HEADER;
	if (size > MAX_RECORD - sizeof(struct record)) return NULL;
	size = sizeof(struct record) + ((size + 7) & ~(size_t)7);
	uint64_t need = size <= left ? size : left + size;
	if (size > ring || unread > ring || need > ring - unread) return NULL;
	if (size > left) {
		*(struct record *)(base + at) = (struct record){PAD, (uint32_t)left};
		at = 0;
	}
	pending = head + need;
	struct record *r = (struct record *)(base + at);
	*r = (struct record){kind, (uint32_t)size};
	return r + 1;
}

static void commit(void) {
	head = pending;
	store(&slot->head, head);
}

// ---- the writer lock. Its value is the pid of the owner: if a child was forked while another thread held the lock, the child takes it
// over.

static pid_t owner;

static bool lock(pid_t pid) {
	for (int i = 0; i < 400; i++) {
		pid_t is = 0;
		if (__atomic_compare_exchange_n(&owner, &is, pid, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return true;
		if (is != pid && __atomic_compare_exchange_n(&owner, &is, pid, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return true;
		if (i < 200) sched_yield();
		else syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = 50000}, NULL); // the owner may have a lower priority
	}
	// Never block the target, and do not wait again and again for a thread that was cancelled.
	static int failures;
	if (add(&failures, 1) >= 8) store(&off, true);
	return false;
}

static void unlock(void) { store(&owner, 0); }

static bool claim(pid_t pid) {
	for (uint32_t i = 0; i < slots; i++)
		if (load(&slot_at(i)->pid) == (uint32_t)pid) { // the program that this process ran before it called execve
			slot = slot_at(i);
			head = load(&slot->head);
			return head % 8 == 0;
		}
	for (uint32_t i = 0; i < slots; i++) {
		uint32_t is = 0;
		if (__atomic_compare_exchange_n(&slot_at(i)->pid, &is, (uint32_t)pid, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
			slot = slot_at(i);
			return true;
		}
	}
	add(&hdr->no_slot, 1);
	return false;
}

static bool introduced;

// introduce writes the record that describes this process, before any other record.
static bool introduce(void) {
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

// enter takes the lock if this process is to be traced; leave releases it.
static bool enter(void) {
	if (!hdr || load(&off) || load(&hdr->closed)) return false;
	pid_t pid = getpid();
	if (slot_pid && slot_pid != pid) return false; // forked: the ring is the parent's
	if (!lock(pid)) {
		if (slot) add(&slot->others_lost, 1);
		return false;
	}
	if (!slot_pid) {
		if (!claim(pid)) store(&off, true);
		slot_pid = pid;
	}
	if (load(&off)) {
		unlock();
		return false;
	}
	if (!self.tid) self.tid = (uint32_t)syscall(SYS_gettid);
	if (!introduced) introduced = introduce();
	return true;
}

static void leave(void) { unlock(); }

// ---- finding the real functions

// find returns the function with this name that the object around the address caller would have called; ours is the one that it must not
// be. ggml loads its CPU code with RTLD_LOCAL, so only that object's own handle finds the function. The handle is kept open so that the
// library is not unloaded.
static void *find(const char *name, const void *caller, const void *ours) {
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

static int collect(struct dl_phdr_info *info, size_t size, void *arg) {
	(void)size;
	struct objects *o = arg;
	if (info->dlpi_name && info->dlpi_name[0] && o->n < 512) o->name[o->n++] = info->dlpi_name;
	return 0;
}

// find_anywhere asks every loaded object. It is needed if the program got our function from dlsym(RTLD_DEFAULT): then the caller does not
// tell the library.
static __attribute__((noinline)) void *find_anywhere(const char *name, const void *ours) {
	struct objects o = {.n = 0};
	dl_iterate_phdr(collect, &o);
	for (int i = 0; i < o.n; i++) {
		void *h = dlopen(o.name[i], RTLD_NOLOAD | RTLD_LAZY);
		void *fn = h ? dlsym(h, name) : NULL;
		if (fn && fn != ours) return fn;
		if (h) dlclose(h);
	}
	return NULL;
}

// The real functions by call site: a process may have several ggml, and the caller tells which one is meant.
struct callers {
	int n;
	struct {
		const void *caller;
		void *fn;
	} at[32];
};

static void *real(struct callers *known, const char *name, const void *caller, const void *ours) {
	int n = load(&known->n);
	for (int i = 0; i < n && i < 32; i++)
		if (load(&known->at[i].caller) == caller) return known->at[i].fn;
	int saved = errno;
	void *fn = find(name, caller, ours);
	if (!fn) fn = find_anywhere(name, ours);
	dlerror(); // what we were told is not the target's business
	errno = saved;
	if (fn && n < 32 && (n = add(&known->n, 1)) < 32) {
		known->at[n].fn = fn;
		store(&known->at[n].caller, caller);
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
static char *maps_text; // address space, of which only what /proc/self/maps needs is used
static struct mapping *mappings;
static int n_mappings = -1;                           // -1: never read
static struct { uint64_t dev, ino; } told[MAX_FILES]; // files that the reader knows
static int n_told;

static bool hex(const char **p, const char *end, uint64_t *v) {
	const char *s = *p;
	for (*v = 0; *p < end; (*p)++) {
		int c = **p, d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
		                                                                       : -1;
		if (d < 0) break;
		*v = *v << 4 | (uint64_t)d;
	}
	return *p > s;
}

static bool starts(const char *p, const char *end, const char *with) {
	size_t n = strlen(with);
	return (size_t)(end - p) >= n && memcmp(p, with, n) == 0;
}

// read_mapping parses a line of /proc/self/maps, "lo-hi r--s offset major:minor ino   /path", and returns whether the file could hold a
// model.
static bool read_mapping(const char *p, const char *end, struct mapping *m) {
	uint64_t lo, hi, major, minor;
	if (!hex(&p, end, &lo) || p >= end || *p++ != '-' || !hex(&p, end, &hi) || end - p < 6 || p[1] != 'r') return false;
	p += 6;
	if (!hex(&p, end, &m->offset) || p >= end || *p++ != ' ' || !hex(&p, end, &major) || p >= end || *p++ != ':' || !hex(&p, end, &minor) || p >= end || *p++ != ' ') return false;
	for (m->ino = 0; p < end && *p >= '0' && *p <= '9'; p++) m->ino = m->ino * 10 + (uint64_t)(*p - '0');
	while (p < end && *p == ' ') p++;
	if (m->ino == 0 || p >= end || *p != '/') return false;
	if (starts(p, end, "/memfd:") || starts(p, end, "/dev/") || starts(p, end, "/SYSV") || starts(p, end, "/anon_hugepage")) return false;
	m->lo = lo, m->hi = hi, m->dev = major << 20 | minor, m->path = p, m->path_len = (uint32_t)(end - p);
	return true;
}

// read_maps leaves what is known as it is if /proc cannot be read, for example after chroot.
static void read_maps(void) {
	if (!mappings) {
		int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
		char *m = map(NULL, MAPS_TEXT + MAX_MAPPINGS * sizeof *mappings, PROT_READ | PROT_WRITE, flags, -1, 0);
		if (m == MAP_FAILED) return;
		maps_text = m;
		mappings = (struct mapping *)(m + MAPS_TEXT);
	}
	int fd = raw_open("/proc/self/maps", O_RDONLY);
	if (fd < 0) return;
	store(&stale, false);
	n_mappings = 0;
	size_t len = 0;
	for (ssize_t n; len < MAPS_TEXT && ((n = raw_read(fd, maps_text + len, MAPS_TEXT - len)) > 0 || (n < 0 && errno == EINTR));) len += n > 0 ? (size_t)n : 0;
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

// tell writes a file's record for the reader, which must precede the first template with that file.
static bool tell(const struct mapping *m) {
	for (int i = 0; i < n_told; i++)
		if (told[i].dev == m->dev && told[i].ino == m->ino) return true;
	struct file_record *r = reserve(FILE_SEEN, sizeof *r + m->path_len + 1);
	if (!r) return false; // again with the next graph
	r->dev = m->dev, r->ino = m->ino;
	if (m->path_len) memcpy(r->path, m->path, m->path_len); // without a path there is no pointer either
	r->path[m->path_len] = 0;
	commit();
	if (n_told < MAX_FILES) told[n_told].dev = m->dev, told[n_told++].ino = m->ino;
	return true;
}

// ---- the layout of ggml's structs

typedef const char *tensor; // a ggml_tensor, whose fields are found by the layout
#define FIELD(t, at, type) (*(__typeof__(type) const *)((t) + (at)))

static struct layout lay;
static size_t tensor_bytes; // of a tensor, as far as lay has fields in it
static bool known;          // lay is the layout of the library with the function known_fn
static void *known_fn;
static uint32_t tried;      // layouts of the header that did not fit
static bool flags_computed; // this ggml marks the nodes that are computed
static uint8_t class_of_op[MAX_OPS];
static const char *(*op_name)(uint32_t);

enum class {
	UNKNOWN,
	NAMELESS,
	EMPTY,
	PLAIN,
	GATHERING,
}; // GATHERING and above: by their places in gathers
enum {
	FLAG_COMPUTE = 16,
	TYPE_I32 = 26,
	MAX_LISTS = 8,
	TYPES = 40,
	GRAPH_BYTES = 128,
	MAX_STRIDE = 1 << 24,
};

// peeks reads pieces of this process's own memory, one after the other, without crashing on a bad address; it returns how many bytes were
// read. process_vm_readv is often forbidden by seccomp filters (it is a debugger's), and some end the process for it: systemd's do.
static size_t peeks(void *into, const struct iovec *from, size_t pieces) {
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

static size_t peek(void *into, const void *from, size_t size) { return peeks(into, &(struct iovec){(void *)from, size}, 1); }

enum {
	PAGE_SHIFT = 12,
	PAGES = 8192,
};
static uintptr_t readable_pages[PAGES]; // by their numbers: those that were read once, plus 1

// touchable tells whether these bytes can be accessed directly.
static bool touchable(const void *from, size_t size) {
	uintptr_t first = (uintptr_t)from >> PAGE_SHIFT, last = ((uintptr_t)from + size - 1) >> PAGE_SHIFT;
	if (!first || last < first) return false;
	for (uintptr_t page = first; page <= last; page++) {
		uintptr_t *seen = &readable_pages[(page ^ page >> 13) % PAGES];
		char c;
		if (*seen == page + 1) continue;
		if (peek(&c, (const void *)(page << PAGE_SHIFT), 1) != 1) return false;
		*seen = page + 1;
	}
	return true;
}

static bool pointer(uint64_t p) { return p % 8 == 0 && p >= 4096 && p < (uint64_t)1 << 56; }

// plausible tells whether these bytes can be a tensor with this layout.
static bool plausible(const struct layout *l, const char *t, size_t size) {
	if (size < l->name + NAME || FIELD(t, l->type, uint32_t) >= 1024 || FIELD(t, l->op, uint32_t) >= sizeof class_of_op) return false;
	for (int i = 0; i < 4; i++) {
		if ((uint64_t)FIELD(t, l->ne + 8 * i, int64_t) > (uint64_t)1 << 48 || FIELD(t, l->nb + 8 * i, uint64_t) > (uint64_t)1 << 48) return false;
	}
	if (l->flags && FIELD(t, l->flags, uint32_t) >= 1 << 16) return false;
	for (uint32_t i = 0; i < l->max_src; i++) {
		uint64_t p = FIELD(t, l->src + 8 * i, uint64_t);
		if (p && !pointer(p)) return false;
	}
	uint64_t view = FIELD(t, l->view_src, uint64_t), data = FIELD(t, l->data, uint64_t);
	if ((view && !pointer(view)) || (data && data < 4096)) return false;
	const unsigned char *name = (const unsigned char *)t + l->name;
	int n = 0;
	for (; n < NAME && name[n]; n++)
		if (name[n] < ' ' || name[n] == 0x7f) return false;
	return n > 0 && n < NAME;
}

// Getters that ggml exports for its own structs; NULL where there is none.
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
	// The elements (or blocks) of a leaf are contiguous. The getters must not be called for types that ggml does not have.
	bool leaf = FIELD(t, l->op, uint32_t) == 0 && !FIELD(t, l->view_src, void *) && FIELD(t, l->type, uint32_t) < TYPES;
	for (int i = 0; i < 4; i++) n = (int64_t)((uint64_t)n * (uint64_t)FIELD(t, l->ne + 8 * i, int64_t));
	return (!getter.get_name || getter.get_name(t) == t + l->name) && (!getter.get_data || getter.get_data(t) == FIELD(t, l->data, void *)) &&
	    (!getter.nelements || getter.nelements(t) == n) &&
	    (!getter.type_size || !leaf || getter.type_size(FIELD(t, l->type, uint32_t)) == FIELD(t, l->nb, size_t));
}

static void sample(struct image_record *r, const char *raw, size_t n) {
	if (!r || r->samples >= SAMPLES) return;
	r->bytes[r->samples] = (uint32_t)n;
	memcpy(r->sample[r->samples++], raw, n);
}

// possible tells whether all offsets lie in what fits reads of a tensor and a graph.
static bool possible(const struct layout *l) {
	const uint32_t at[] = {l->type, l->op, l->flags, l->view_src, l->data, l->name, l->ne, l->nb, l->src, l->n_nodes, l->nodes};
	for (size_t i = 0; i < sizeof at / sizeof *at; i++)
		if (at[i] > SAMPLE) return false;
	return l->max_src <= MAX_SRC && l->type + 4 <= SAMPLE && l->op + 4 <= SAMPLE && l->flags + 4 <= SAMPLE && l->view_src + 8 <= SAMPLE && l->data + 8 <= SAMPLE &&
	    l->name + NAME <= SAMPLE && l->ne + 32 <= SAMPLE && l->nb + 32 <= SAMPLE && l->src + 8 * l->max_src <= SAMPLE && l->n_nodes + 4 <= GRAPH_BYTES && l->nodes + 8 <= GRAPH_BYTES;
}

static size_t extent(const struct layout *l) {
	const size_t ends[] = {l->type + 4, l->op + 4, l->flags + 4, l->view_src + 8, l->data + 8, l->name + NAME, l->ne + 32, l->nb + 32, l->src + 8 * l->max_src};
	size_t most = 0;
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
		if (ends[i] > most) most = ends[i];
	return most;
}

// fits reads every tensor of a graph through the kernel, and tells whether all of them can have the layout.
static bool fits(const struct layout *l, const char *graph, struct image_record *samples) {
	char g[GRAPH_BYTES], raw[SAMPLE], src[SAMPLE];
	if (peek(g, graph, sizeof g) != sizeof g) return false;
	int32_t n = FIELD(g, l->n_nodes, int32_t);
	const char *nodes = FIELD(g, l->nodes, const char *);
	if (n <= 0 || n > MAX_NODES || !pointer((uintptr_t)nodes)) return false;
	if (getter.n_nodes && getter.n_nodes(graph) != n) return false;
	for (int32_t i = 0; i < n; i++) {
		tensor t;
		if (peek(&t, nodes + 8 * i, 8) != 8 || !pointer((uintptr_t)t) || (i == 0 && getter.node && getter.node(graph, 0) != t)) return false;
		size_t size = peek(raw, t, sizeof raw);
		sample(samples, raw, size);
		if (!plausible(l, raw, size) || !getters_agree(l, t)) return false;
		for (uint32_t k = 0; k < l->max_src; k++) {
			tensor s = FIELD(raw, l->src + 8 * k, tensor);
			if (!s) continue;
			size = peek(src, s, sizeof src);
			if (!plausible(l, src, size) || !getters_agree(l, s)) return false;
		}
	}
	return true;
}

static void copy_name(uint8_t *to, const char *from) {
	size_t n = from ? strnlen(from, NAME - 1) : 0;
	if (n > 0) memcpy(to, from, n); // a tensor without a name may have no pointer to one
	memset(to + n, 0, NAME - n);
}

// learn_layout finds the layout of the first graph among those that the reader offers, and writes a record of the result. fn is the real
// ggml_graph_compute.
static void learn_layout(const char *graph, void *fn) {
	uint32_t n = load(&hdr->layouts);
	if (tried >= n || n > MAX_LAYOUTS) return;
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
	for (uint32_t i = tried; i < n && !known; i++) {
		r->samples = 0;
		struct layout offered = hdr->layout[i];
		if (possible(&offered) && fits(&offered, graph, r)) {
			lay = offered;
			tensor_bytes = extent(&lay);
			known = true;
			known_fn = fn;
			r->layout = i;
		}
	}
	tried = n;
	commit();
}

// ---- walking a graph

// peek_name copies the name of an op; false if it is not a valid one.
static bool peek_name(char *to, const char *from) {
	size_t got = peek(to, from, NAME), n = 0;
	while (n < got && ((to[n] >= 'A' && to[n] <= 'Z') || (to[n] >= '0' && to[n] <= '9') || to[n] == '_')) n++;
	if (n == 0 || n >= got || n >= NAME || to[n]) return false;
	memset(to + n, 0, NAME - n);
	return true;
}

// class returns the class of an op number, and writes the op's name for the reader. *told becomes false if the ring buffer was full; then
// it is tried again.
static enum class class(uint32_t op, bool *told) {
	if (op >= sizeof class_of_op) return NAMELESS;
	if (class_of_op[op]) return class_of_op[op];
	char name[NAME];
	if (!op_name || !peek_name(name, op_name(op))) name[0] = 0;
	struct op_name_record *r = reserve(OP_NAME, sizeof *r);
	if (r){
	    r->op = op, r->pad = 0;
	    memcpy(r->name, name, NAME);
	    commit();}
static const char *const empty[] = {"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"};
enum class c = name[0] ? PLAIN : NAMELESS;
for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
	if (!strcmp(name, empty[i])) c = EMPTY;
for (int i = 0; i < GATHERS; i++)
	if (!strcmp(name, gathers[i].op)) c = GATHERING + i;
if (r) class_of_op[op] = (uint8_t)c;
else *told = false;
return c;
}

static bool ends(const char *s, size_t n, const char *with) {
	size_t k = strlen(with);
	return n >= k && memcmp(s + n - k, with, k) == 0;
}

static bool named_weight(tensor t) {
	size_t n = strnlen(t + lay.name, NAME);
	return ends(t + lay.name, n, ".weight") || ends(t + lay.name, n, ".bias");
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

// weight fills in *s if t is a weight: a leaf or a view in a file, or a leaf with a weight's name that was copied elsewhere.
static bool weight(tensor t, struct source *s) {
	uint64_t data = FIELD(t, lay.data, uint64_t);
	uint32_t op = FIELD(t, lay.op, uint32_t);
	const void *view = FIELD(t, lay.view_src, const void *);
	if (!data || (op && !view)) return false; // the result of an op
	const struct mapping *m = mapping_of(data);
	if (!m && (op || view || (lay.flags && FIELD(t, lay.flags, uint32_t) & ~FLAG_COMPUTE) || !named_weight(t))) return false; // an input, the KV cache
	s->data = data;
	s->mapped = m != NULL;
	s->offset = m ? data - m->lo + m->offset : 0;
	s->ino = m ? m->ino : 0;
	s->dev = m ? m->dev : 0;
	s->type = FIELD(t, lay.type, uint32_t);
	memcpy(s->ne, t + lay.ne, sizeof s->ne);
	memcpy(s->nb, t + lay.nb, sizeof s->nb);
	copy_name(s->name, t + lay.name);
	return true;
}

struct walk {
	uint64_t hash;
	uint32_t nodes, ops, sources, lists;
	bool told; // the reader knows the names of all ops, and all files where that was asked for
	bool bad;  // the graph cannot be read
	struct {
		tensor t;
		uint32_t op;
	} list[MAX_LISTS];
	size_t ids_bytes;
};

// tensor_at tells whether a tensor can be accessed at this address.
static bool tensor_at(tensor t) { return pointer((uintptr_t)t) && touchable(t, tensor_bytes); }

// readable tells whether ids can be read before the graph runs: they are an input, not another op's result.
static bool readable(tensor ids) {
	uint32_t op = FIELD(ids, lay.op, uint32_t);
	tensor view = FIELD(ids, lay.view_src, tensor);
	const int64_t *ne = (const int64_t *)(ids + lay.ne);
	const uint64_t *nb = (const uint64_t *)(ids + lay.nb);
	if (op && !(view && tensor_at(view) && FIELD(view, lay.op, uint32_t) == 0)) return false;
	if (!FIELD(ids, lay.data, const void *) || FIELD(ids, lay.type, uint32_t) != TYPE_I32 || ne[0] <= 0 || ne[1] <= 0 || ne[0] > MAX_IDS || ne[1] > MAX_IDS ||
	    ne[0] * ne[1] > MAX_IDS || ne[2] != 1 || ne[3] != 1 || nb[0] > MAX_STRIDE || nb[1] > MAX_STRIDE)
		return false;
	size_t size = (uint64_t)(ne[0] - 1) * nb[0] + (uint64_t)(ne[1] - 1) * nb[1] + 4;
	return size <= MAX_STRIDE && touchable(FIELD(ids, lay.data, const void *), size);
}

// walk goes through the ops that the CPU backend will run and collects those that read weights in w. If into is not NULL, it also writes
// them there; an earlier walk has told the size. If files is set, it writes a record for each file.
static void walk(const char *graph, struct walk *w, char *into, bool files) {
	*w = (struct walk){.told = true, .bad = true};
	if (!touchable(graph, GRAPH_BYTES)) return;
	int32_t n = FIELD(graph, lay.n_nodes, int32_t);
	const tensor *nodes = FIELD(graph, lay.nodes, const tensor *);
	if (n < 0 || n > MAX_NODES || (n && !touchable(nodes, 8 * (size_t)n))) return;
	for (int32_t i = 0; i < n; i++)
		if (!tensor_at(nodes[i])) return;
	for (int32_t i = 0; lay.flags && !flags_computed && i < n; i++) flags_computed = FIELD(nodes[i], lay.flags, uint32_t) & FLAG_COMPUTE;
	for (int32_t i = 0; i < n; i++) {
		tensor t = nodes[i];
		const int64_t *ne = (const int64_t *)(t + lay.ne);
		enum class c = class(FIELD(t, lay.op, uint32_t), &w->told);
		if (c == EMPTY || (flags_computed && !(FIELD(t, lay.flags, uint32_t) & FLAG_COMPUTE)) || !ne[0] || !ne[1] || !ne[2] || !ne[3]) continue;

		struct op op = {.op = FIELD(t, lay.op, uint32_t), .node = w->nodes++};
		struct op *at = (struct op *)into;
		uint64_t hash = w->hash;
		const struct gather *g = NULL;
		for (uint32_t k = 0; k < lay.max_src; k++) {
			tensor t_src = FIELD(t, lay.src + 8 * k, tensor);
			struct source s;
			if (!t_src) continue;
			if (!tensor_at(t_src)) return;
			if (!weight(t_src, &s)) continue;
			if (into) memcpy(into + sizeof op + op.sources * sizeof s, &s, sizeof s);
			if (files && s.mapped) w->told = tell(mapping_of(s.data)) && w->told;
			hash = mix_bytes(hash, &s, sizeof s);
			op.sources++;
			if (c >= GATHERING && k == (uint32_t)gathers[c - GATHERING].source) g = &gathers[c - GATHERING];
		}
		if (!op.sources) continue;
		op.gather = g ? (uint32_t)(g - gathers) + 1 : 0;
		tensor by = g && (uint32_t)g->ids < lay.max_src ? FIELD(t, lay.src + 8 * (uint32_t)g->ids, tensor) : NULL;
		if (by && g->experts && ((const int64_t *)(by + lay.ne))[1] == 1) op.selects = (uint32_t)((const int64_t *)(by + lay.ne))[0];
		w->hash = mix_bytes(hash, &op, sizeof op);
		if (at) {
			*at = op;
			into += sizeof op + op.sources * sizeof(struct source);
		}
		if (by && !g->experts && readable(by) && w->lists < MAX_LISTS) {
			w->list[w->lists].t = by;
			w->list[w->lists++].op = w->ops;
			const int64_t *e = (const int64_t *)(by + lay.ne);
			w->ids_bytes += sizeof(struct ids) + (size_t)(e[0] * e[1] * 4 + 7) / 8 * 8;
		}
		w->ops++;
		w->sources += op.sources;
	}
	w->bad = false;
}

static uint64_t templates[MAX_TEMPLATES]; // the hash of the template that the reader has at this place; 0: none

// send_template writes the graph's template for the reader. It rereads the memory map first, and walks the graph again.
static bool send_template(const char *graph, struct walk *w) {
	read_maps();
	walk(graph, w, NULL, true);
	if (w->bad || !w->told) return false;
	size_t size = w->ops * sizeof(struct op) + w->sources * sizeof(struct source);
	struct template_record *r = reserve(TEMPLATE, sizeof *r + size);
	if (!r) return false;
	r->hash = w->hash;
	r->id = (uint32_t)(w->hash % MAX_TEMPLATES);
	r->ops = w->ops;
	struct walk again;
	walk(graph, &again, (char *)(r + 1), false);
	if (again.bad || again.hash != w->hash) return false; // another thread changes it
	commit();
	templates[r->id] = w->hash;
	for (int i = 0; i < n_mappings; i++) {
		for (int k = 0; k < n_told; k++) {
			if (told[k].dev != mappings[i].dev || told[k].ino != mappings[i].ino) continue;
			if (mappings[i].lo < used_lo) store(&used_lo, mappings[i].lo);
			if (mappings[i].hi > used_hi) store(&used_hi, mappings[i].hi);
		}
	}
	return true;
}

static void write_ids(char *at, struct walk *w) {
	for (uint32_t k = 0; k < w->lists; k++) {
		tensor t = w->list[k].t;
		const int64_t *ne = (const int64_t *)(t + lay.ne);
		const uint64_t *nb = (const uint64_t *)(t + lay.nb);
		const char *data = FIELD(t, lay.data, const char *);
		*(struct ids *)at = (struct ids){w->list[k].op, (uint32_t)ne[0], (uint32_t)ne[1], 0};
		int32_t *to = (int32_t *)(at + sizeof(struct ids));
		for (int64_t row = 0; row < ne[1]; row++)
			for (int64_t i = 0; i < ne[0]; i++) memcpy(to++, data + row * (int64_t)nb[1] + i * (int64_t)nb[0], 4);
		if ((ne[0] * ne[1]) % 2) *to = 0;
		at += sizeof(struct ids) + (size_t)(ne[0] * ne[1] * 4 + 7) / 8 * 8;
	}
}

// graph_begin writes the record of a graph and returns the graph's number; 0 if the graph is not reported.
static uint32_t graph_begin(const char *graph, void *fn) {
	uint64_t time = now();
	if (!enter()) return 0;
	uint32_t number = (uint32_t)(++slot->graphs);
	if (!known) learn_layout(graph, fn);
	if (!known || known_fn != fn) { // no layout fits, or a second ggml
		add(&slot->unread, 1);
		leave();
		return 0;
	}
	struct walk w;
	if (load(&stale)) read_maps();
	if (load(&unmapped)) {
		store(&unmapped, false);
		memset(readable_pages, 0, sizeof readable_pages);
	}
	if (n_mappings >= 0) walk(graph, &w, NULL, false);
	if (n_mappings < 0 || w.bad) {
		add(&slot->unread, 1);
		leave();
		return 0;
	}
	bool sent = w.ops > 0 && (templates[w.hash % MAX_TEMPLATES] == w.hash || send_template(graph, &w));
	struct graph_record *r = sent ? reserve(GRAPH, sizeof *r + w.ids_bytes) : NULL;
	uint64_t seq = slot->nodes;
	store(&slot->nodes, seq + w.nodes);
	store(&slot->no_weight, slot->no_weight + (w.nodes - w.ops));
	if (r) {
		r->time = time, r->hash = w.hash, r->seq = seq;
		r->tid = self.tid, r->decode = self.decode, r->graph = number;
		r->template = (uint32_t)(w.hash % MAX_TEMPLATES), r->ops = w.ops, r->lists = w.lists;
		write_ids((char *)(r + 1), &w);
		store(&slot->ops_sent, slot->ops_sent + w.ops); // before the reader can count it
		commit();
	} else {
		store(&slot->ops_lost, slot->ops_lost + w.ops);
	}
	leave();
	return r ? number : 0;
}

static void graph_end(uint32_t number) {
	uint64_t time = now();
	if (!number || !enter()) return;
	struct graph_end_record *r = reserve(GRAPH_END, sizeof *r);
	if (r) {
		r->time = time, r->tid = self.tid, r->decode = self.decode, r->graph = number, r->pad = 0;
		commit();
	} else {
		store(&slot->others_lost, slot->others_lost + 1);
	}
	leave();
}

EXPORT int ggml_graph_compute(void *graph, void *plan) {
	static struct callers callers;
	int (*compute)(void *, void *) = (int (*)(void *, void *))real(&callers, "ggml_graph_compute", __builtin_extract_return_addr(__builtin_return_address(0)), (void *)ggml_graph_compute);
	if (!compute) return -1; // GGML_STATUS_FAILED: our name was found where there is no ggml
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

// llama_batch, with room for members that later versions may append: it is passed by value, and must be passed on completely.
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

// sequences collects the sequences of the batch's tokens and returns how many there are; -1 if they cannot be read. The arrays are read
// through the kernel, because a later llama_batch may have other members there.
static int sequences(const struct batch *b, uint64_t *marks) {
	int count = 0;
	if (!b->n_seq_id || !b->seq_id) return marks[0] = 1, 1; // llama.cpp means sequence 0
	for (int32_t i = 0; i < b->n_tokens; i += CHUNK) {
		int32_t n = b->n_tokens - i < CHUNK ? b->n_tokens - i : CHUNK, counts[CHUNK], ids[CHUNK * MAX_SEQS_OF_TOKEN], total = 0;
		int32_t *lists[CHUNK];
		struct iovec remote[CHUNK];
		if (peek(counts, b->n_seq_id + i, 4 * (size_t)n) != 4 * (size_t)n || peek(lists, b->seq_id + i, 8 * (size_t)n) != 8 * (size_t)n) return -1;
		for (int32_t k = 0; k < n; k++) {
			if (counts[k] < 1 || counts[k] > MAX_SEQS_OF_TOKEN) return -1;
			remote[k] = (struct iovec){lists[k], 4 * (size_t)counts[k]};
			total += counts[k];
		}
		if (peeks(ids, remote, (size_t)n) != 4 * (size_t)total) return -1;
		for (int32_t k = 0; k < total; k++) {
			if (ids[k] < 0 || ids[k] >= MAX_SEQ_ID) return -1;
			uint64_t bit = (uint64_t)1 << ids[k] % 64;
			count += !(marks[ids[k] / 64] & bit);
			marks[ids[k] / 64] |= bit;
		}
	}
	return count;
}

static const void *warming[64]; // contexts between llama_set_warmup(true) and (false)

static __attribute__((noinline)) uint32_t decode_begin(const void *context, const struct batch *b) {
	if (!enter()) return 0;
	uint32_t number = (uint32_t)(++slot->decodes);
	uint64_t marks[MAX_SEQ_ID / 64] = {0};
	int n = sequences(b, marks);
	struct decode_record *r = reserve(DECODE_BEGIN, sizeof *r + 4 * (size_t)(n > 0 ? n : 0));
	if (r) {
		r->time = now(), r->context = (uint64_t)(uintptr_t)context;
		r->tid = self.tid, r->decode = number, r->tokens = b->n_tokens, r->warmup = 0, r->sequences = n, r->pad = 0;
		for (int i = 0; i < 64; i++) r->warmup |= warming[i] == context;
		for (int i = 0, at = 0; n > 0 && i < MAX_SEQ_ID; i++)
			if (marks[i / 64] >> i % 64 & 1) r->sequence[at++] = i;
		commit();
	} else {
		store(&slot->others_lost, slot->others_lost + 1);
	}
	leave();
	return number;
}

static void decode_end(uint32_t number) {
	if (!number || !enter()) return;
	struct decode_record *r = reserve(DECODE_END, sizeof *r);
	if (r) {
		memset(r, 0, sizeof *r);
		r->time = now(), r->tid = self.tid, r->decode = number;
		commit();
	} else {
		store(&slot->others_lost, slot->others_lost + 1);
	}
	leave();
}

EXPORT int32_t llama_decode(void *context, struct batch batch) {
	static struct callers callers;
	int32_t (*decode)(void *, struct batch) = (int32_t(*)(void *, struct batch))real(&callers, "llama_decode", __builtin_extract_return_addr(__builtin_return_address(0)), (void *)llama_decode);
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
	void (*set)(void *, bool) = (void (*)(void *, bool))real(&callers, "llama_set_warmup", __builtin_extract_return_addr(__builtin_return_address(0)), (void *)llama_set_warmup);
	int saved = errno;
	if (enter()) {
		int at = -1;
		for (int i = 0; i < 64; i++) {
			if (warming[i] == context) warming[i] = NULL;
			if (!warming[i]) at = i;
		}
		if (on && at >= 0) warming[at] = context;
		leave();
	}
	errno = saved;
	if (set) set(context, on);
}
