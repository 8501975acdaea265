package preload

// These tests run programs under the shim that close its descriptors, forbid its system calls or
// write into the shared memory. The programs must survive, and so must the session.

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tensorcast/capture/capturetest"
	"tensorcast/event"
	"tensorcast/internal/testenv"
)

// odd is a program that computes a graph several times, misbehaves as its first argument says,
// computes again, and exits with 0 if it is unharmed.
const odd = `
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

int ggml_backend_graph_compute(struct ggml_cgraph *g);
static struct ggml_cgraph graph;
static void compute(void) { if (ggml_backend_graph_compute(&graph)) _exit(2); }

static void forbid(int nr, int action)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {4, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog)) _exit(3);
}

// memory returns where the shared memory is mapped.
static char *memory(size_t *size)
{
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long lo, hi;
        if (!strstr(line, "tensorcast-preload") || strstr(line, ".so")) continue;
        if (sscanf(line, "%lx-%lx", &lo, &hi) == 2) return *size = hi - lo, (char *)lo;
    }
    _exit(4);
}

static int outlived;
static void *cancelled(void *arg)
{
    (void)arg;
    pthread_cancel(pthread_self()); // it takes effect at the next cancellation point, and compute has none
    compute();
    outlived = 1;
    pthread_testcancel();
    return NULL;
}

int main(int argc, char **argv)
{
    (void)argc;
    const char *what = argv[1];
    int fd = open(argv[2], O_RDONLY), early = !strncmp(what, "early ", 6);
    what += early ? 6 : 0;
    char *file = mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED) return 1;
    float out[8];
    struct ggml_tensor w = {.type = 0, .ne = {8, 8, 1, 1}, .nb = {4, 32, 256, 256}, .data = file + 64,
        .name = "blk.0.ffn_up.weight"};
    struct ggml_tensor n = {.type = 0, .ne = {8, 1, 1, 1}, .nb = {4, 32, 32, 32}, .op = 1, .src = {&w, &w},
        .data = out, .name = "node_0"};
    struct ggml_tensor *nodes[] = {&n};
    graph = (struct ggml_cgraph){1, 1, 0, nodes, 0, 0};
    for (int i = 0; i < 3 && !early; i++) compute();

    size_t size;
    if (!strcmp(what, "closes descriptors")) syscall(SYS_close_range, 0, ~0u, 0);
    else if (!strcmp(what, "changes its root") && (chroot(argv[3]) || chdir("/"))) return 5;
    else if (!strcmp(what, "becomes another user") && (setgid(65534) || setuid(65534))) return 5;
    else if (!strcmp(what, "is refused")) forbid(SYS_process_vm_readv, SECCOMP_RET_ERRNO | EPERM);
    else if (!strcmp(what, "is killed for it")) forbid(SYS_process_vm_readv, SECCOMP_RET_KILL_PROCESS);
    else if (!strcmp(what, "is cancelled")) {
        pthread_t t;
        if (pthread_create(&t, NULL, cancelled, NULL) || pthread_join(t, NULL) || !outlived) return 6;
    } else if (!strcmp(what, "cuts the memory off")) {
        memory(&size);
        int own = open(getenv("TENSORCAST_PRELOAD"), O_RDWR);
        if (own < 0 || ftruncate(own, 0) == 0 || ftruncate(own, 4096) == 0 || ftruncate(own, 1 << 30) == 0) return 7;
    } else if (!strcmp(what, "overwrites everything")) {
        char *m = memory(&size);
        memset(m, 0xff, size);
    } else if (!strcmp(what, "overwrites sizes")) memset(memory(&size) + 4, 0x41, 20);
    else if (!strcmp(what, "overwrites layouts")) memset(memory(&size) + 40, 0x41, 1000);
    else if (!strcmp(what, "overwrites the header")) memset(memory(&size) + 4, 0x41, 2000);
    else if (!strcmp(what, "overwrites cursors")) {
        char *m = memory(&size);
        for (char *p = m + 4096; p < m + 2 * 4096; p += 8) *(uint64_t *)p = 0x4141414141414148;
    } else if (!strcmp(what, "forks")) {
        int status;
        pid_t child = fork();
        if (!child) { compute(); _exit(0); }
        if (waitpid(child, &status, 0) != child || status) return 8;
    } else if (!strcmp(what, "executes itself")) {
        execl("/proc/self/exe", argv[0], "nothing", argv[2], NULL);
        return 9;
    }
    for (int i = 0; i < 1000; i++) compute();
    return 0;
}
`

// oddProgram compiles odd for every user.
func oddProgram(t *testing.T) func(what ...string) *exec.Cmd {
	t.Helper()
	testenv.NeedMachine(t)
	dir := openDir(t)
	ggml := strings.Replace(structs, "void *front;", "", 1)
	compileC(t, filepath.Join(dir, "libodd.so"), ggml+otherLibrary, "-shared", "-fPIC")
	compileC(t, filepath.Join(dir, "odd"), "#define _GNU_SOURCE\n"+ggml+odd, "-L"+dir, "-lodd", "-pthread",
		"-Wl,-rpath,$ORIGIN")
	weights := filepath.Join(dir, "weights")
	if err := os.WriteFile(weights, make([]byte, 4096), 0o644); err != nil {
		t.Fatal(err)
	}
	return func(what ...string) *exec.Cmd {
		return exec.CommandContext(t.Context(), filepath.Join(dir, "odd"),
			append([]string{what[0], weights}, what[1:]...)...)
	}
}

// Whatever a program does, it runs to its end and computes the same as without the shim. If it
// broke the shared memory, one error says so.
func TestOddTargetIsUnharmed(t *testing.T) {
	program := oddProgram(t)
	for _, tc := range []struct {
		what   string
		root   bool
		broken bool // nothing may be seen, or Run may fail
		want   int  // ops
	}{
		{what: "nothing", want: 1003},
		{what: "closes descriptors", want: 1003},
		{what: "early closes descriptors", want: 1000},
		{what: "changes its root", root: true, want: 1003},
		{what: "early changes its root", root: true}, // without /proc the shim cannot tell what lies in files
		{what: "becomes another user", root: true, want: 1003},
		{what: "early becomes another user", root: true, want: 1000},
		{what: "is refused", want: 1003},
		{what: "early is refused", want: 1000},
		{what: "is killed for it", want: 1003},
		{what: "early is killed for it", want: 1000},
		{what: "is cancelled", want: 1004},
		{what: "early is cancelled", want: 1001},
		{what: "cuts the memory off", want: 1003},
		{what: "forks", want: 1003},
		{what: "executes itself", want: 3 + 1003},
		{what: "overwrites sizes", want: 1003},
		{what: "early overwrites sizes", want: 1000},
		{what: "overwrites layouts", want: 1003},
		{what: "early overwrites layouts", broken: true},
		{what: "overwrites the header", broken: true},
		{what: "early overwrites the header", broken: true},
		{what: "overwrites cursors", broken: true},
		{what: "overwrites everything", broken: true},
		{what: "early overwrites everything", broken: true},
	} {
		t.Run(tc.what, func(t *testing.T) {
			if tc.root {
				testenv.NeedRoot(t)
			}
			cmd := program(tc.what, t.TempDir())
			r := observe(t, cmd, scene{asRoot: tc.root, mayFail: tc.broken})
			if !r.state.Success() || r.stderr != "" {
				t.Errorf("the program ended with %v and printed %q, want success and nothing", r.state, r.stderr)
			}
			if r.err != nil && (!errors.Is(r.err, errCorrupt) && !errors.Is(r.err, event.ErrLayout) ||
				strings.Contains(r.err.Error(), "\n")) {
				t.Errorf("Run returned %v, want a corrupt memory or an unknown layout, in one line", r.err)
			}
			ops := 0
			for _, e := range r.events {
				if _, ok := e.(*event.Op); ok {
					ops++
				}
			}
			if !tc.broken && ops != tc.want {
				t.Errorf("%d ops, want %d (%v)", ops, tc.want, r.seen)
			}
		})
	}
}

// A program's graphs may have bad addresses that the program itself never follows. The shim follows
// them, and must not crash it.
func TestBadAddresses(t *testing.T) {
	f, m := capturetest.New(t), capturetest.NewModel(t)
	for _, scenario := range []string{
		"control", "wild_sources", "unmapped_rows", "huge_graph", "negative_graph", "unmapped_nodes",
		"wild_nodes", "no_graph", "unmap",
	} {
		t.Run(scenario, func(t *testing.T) {
			args := f.Args(m, scenario, 100*time.Millisecond)
			r := observe(t, exec.CommandContext(t.Context(), args[0], args[1:]...), scene{mayFail: true})
			if !r.state.Success() || r.err != nil && !errors.Is(r.err, event.ErrLayout) || scenario == "control" &&
				len(r.events) == 0 {
				t.Errorf("the program: %v, %s; %d events, %v", r.state, r.stderr, len(r.events), r.err)
			}
		})
	}
}

// If a thread was killed while it held the writer's lock, other threads wait for it a few times and
// then no more.
func TestLockOfAThreadThatIsGone(t *testing.T) {
	program := oddProgram(t)
	cmd := program("nothing")
	s, err := Start(t.Context(), Options{Credential: ordinary()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	// This is the same shim, but its own process takes the lock before anything is computed.
	dir := openDir(t)
	stuck := filepath.Join(dir, "stuck.so")
	compileC(t, stuck, strings.Replace(shimSource, "static pid_t owner;",
		"static pid_t owner;\n__attribute__((constructor)) static void stick(void) { owner = getpid(); }", 1),
		compilerFlags...)
	s.shim = stuck
	cmd.Env = s.Environ(cmd.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: ordinary()}
	begun := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s; want at most 0", err, out)
	}
	// 1003 graphs at two waits of 10 ms each would take 20 s if the shim did not give up.
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %v; want at most %v", took, 10*time.Second)
	}
}

// Nobody can change the size of the shared memory. If the program may not open our descriptors,
// another process keeps the memory open.
func TestMemoryIsSealed(t *testing.T) {
	dumpable := func(yes uintptr) {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, yes, 0, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { dumpable(1) })
	for name, tc := range map[string]struct {
		credential *syscall.Credential
		dumpable   uintptr
		held       bool
	}{
		"nil":                {nil, 1, false},
		"ours":               {&syscall.Credential{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}, 1, false},
		"another's":          {ordinary(), 1, ordinary() != nil},
		"we have privileges": {nil, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			// Go starts a child with another user's credential by vfork. That makes this process
			// undumpable, too.
			dumpable(tc.dumpable)
			m, err := newMemory(minRing, tc.credential)
			if err != nil {
				t.Fatal(err)
			}
			path := m.path()
			if held := m.holder != nil; held != tc.held || !held &&
				!strings.HasPrefix(path, fmt.Sprintf("/proc/%d/", os.Getpid())) {
				t.Errorf("a process holds it: %v, want %v; it is at %s", held, tc.held, path)
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for _, size := range []int64{0, slotHeader, 1 << 30} {
				if err := f.Truncate(size); !errors.Is(err, unix.EPERM) {
					t.Errorf("truncated to %d: %v; want %v", size, err, unix.EPERM)
				}
			}
			if err := m.close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left: %v; want %v", path, err, os.ErrNotExist)
			}
		})
	}
}

// The shim maps and writes only sealed memory of ours. The process id in the name may have been
// reused.
func TestShimTakesNoOtherFile(t *testing.T) {
	testenv.NeedMachine(t)
	dir := t.TempDir()
	named := func(name string, seals int) *os.File {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), name)
		t.Cleanup(func() { f.Close() })
		m := session(t).mem
		if _, err := f.Write(m.b); err != nil { // its contents are valid
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return f
	}
	s, err := Start(t.Context(), Options{RingBytes: minRing})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	regular, err := os.Create(filepath.Join(dir, "memfd:tensorcast-preload "))
	if err != nil {
		t.Fatal(err)
	}
	defer regular.Close()
	if _, err := regular.Write(session(t).mem.b); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	own := func(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }
	for name, tc := range map[string]struct {
		path string
		want bool
	}{
		"ours":           {s.mem.path(), true},
		"sealed":         {own(named(memoryName, unix.F_SEAL_SHRINK)), true},
		"not sealed":     {own(named(memoryName, unix.F_SEAL_GROW)), false},
		"another memory": {own(named("other-than-tensorcast-preload", unix.F_SEAL_SHRINK)), false},
		"a file":         {own(regular), false},
		"a path":         {regular.Name(), false},
		"a FIFO":         {fifo, false},
		"a terminal":     {"/dev/tty", false},
		"nothing":        {"/proc/1/fd/9999", false},
	} {
		t.Run(name, func(t *testing.T) {
			read := exec.CommandContext(t.Context(), "cat", "/proc/self/maps")
			read.Env = append(s.Environ(nil)[:1], envPath+"="+tc.path)
			out, err := read.Output()
			if err != nil {
				t.Fatal(err)
			}
			mapped := false
			for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
				mapped = mapped || strings.Contains(lines.Text(), " rw-s") ||
					strings.Contains(lines.Text(), memoryName+" ")
			}
			if mapped != tc.want {
				t.Errorf("mapped: %v, want %v\n%s", mapped, tc.want, out)
			}
		})
	}
}

// A target may fill its ring faster than it can be read. The reader still calls Tick and still
// ends. Events that it does not read are counted as lost.
func TestFloodEnds(t *testing.T) {
	const ring, size = 1 << 20, uint64(recordHead) + uint64(unsafe.Sizeof(wireDecode{}))
	m, err := newMemory(ring, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := sessionIn(t, m)
	pos := uint64(0)
	for ; pos+size <= ring; pos += size {
		binary.NativeEndian.PutUint32(m.buffer(0)[pos:], kindDecodeEnd)
		binary.NativeEndian.PutUint32(m.buffer(0)[pos+4:], uint32(size))
	}
	binary.NativeEndian.PutUint32(m.buffer(0)[pos+4:], uint32(ring-pos)) // its kind is 0, which is padding
	slot := m.slot(0)
	atomic.StoreUint32(&slot.Pid, uint32(os.Getpid()))
	atomic.StoreUint64(&slot.Head, ring)
	atomic.StoreUint64(&slot.Ops_sent, 5)
	atomic.StoreUint64(&slot.Nodes, 5)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ticks := 0
	s.opts.Tick = func() error {
		if ticks++; ticks == 3 {
			cancel()
		}
		return nil
	}
	begun, handled := time.Now(), 0
	err = s.Run(ctx, os.Getpid(), func(event.Event) error {
		handled++
		atomic.StoreUint64(&slot.Head, atomic.LoadUint64(&slot.Tail)+ring) // full again
		time.Sleep(time.Millisecond)
		return nil
	})
	if took := time.Since(begun); err != nil || ticks < 3 || took > 10*time.Second { // the ring holds events for 20 s
		t.Errorf("%d events, %d ticks in %v: %v; want ticks at least 3, took at most %v", handled, ticks, took, err,
			10*time.Second)
	}
	if c, err := s.Counters(); err != nil || c.OpsLost != 5 || c.OpsSent != 0 {
		t.Errorf("%+v, %v; want c.OpsLost = 5, c.OpsSent = 0", c, err)
	}
}

// Cursors that run backwards and impossible process ids are errors.
func TestCorruptSlot(t *testing.T) {
	for name, write := range map[string]func(*wireSlot){
		"head before tail": func(s *wireSlot) { s.Head = ^uint64(7) },
		"head far away":    func(s *wireSlot) { s.Head = 1 << 63 },
		"process":          func(s *wireSlot) { s.Pid = 1 << 31 },
	} {
		s := session(t)
		s.mem.slot(0).Pid = uint32(os.Getpid())
		write(s.mem.slot(0))
		if err := s.Run(t.Context(), os.Getpid(), func(event.Event) error { return nil }); !errors.Is(err, errCorrupt) {
			t.Errorf("%s: %v; want %v", name, err, errCorrupt)
		}
	}
}

// The memory that a target can make the reader use is bounded.
func TestMemoryIsBounded(t *testing.T) {
	record := func(v any, tail ...byte) []byte {
		b, err := binary.Append(nil, binary.NativeEndian, v)
		if err != nil {
			t.Fatal(err)
		}
		return append(b, tail...)
	}
	op := append(record(wireOp{Sources: maxSources}), make([]byte, maxSources*unsafe.Sizeof(wireSource{}))...)
	ids := func() []byte { // rows of token embeddings, which begin a step
		b := record(wireIDs{Slots: 1, Rows: 1})
		return append(b, make([]byte, 8)...)
	}
	embeddings := func() []byte {
		src := wireSource{}
		copy(src.Name[:], event.TokenEmbeddings)
		return slices.Concat(record(wireTemplate{Ops: 1}), record(wireOp{Sources: 1, Gather: 1}), record(src))
	}
	for name, tc := range map[string]struct {
		before func(*Session, *process)
		kind   uint32
		body   func(i int) []byte
		kept   func(*Session, *process) int
		most   int
		fails  bool
		times  int // 0: more often than any limit
	}{
		"weights": {kind: kindTemplate, body: func(i int) []byte {
			return append(record(wireTemplate{Id: uint32(i % maxTemplates), Ops: 1000}), bytes.Repeat(op, 1000)...)
		}, kept: func(s *Session, _ *process) int { return s.weights }, most: maxWeights + 1000*maxSources,
			fails: true},
		"weights, in one place": {kind: kindTemplate, body: func(int) []byte {
			return append(record(wireTemplate{Ops: 1000}), bytes.Repeat(op, 1000)...)
		}, kept: func(s *Session, _ *process) int { return s.weights }, most: 1000 * maxSources,
			times: 2 * maxWeights / 1000 / maxSources},
		"files": {kind: kindFile, body: func(i int) []byte { return record(wireFile{Ino: uint64(i)}, 'x') },
			kept: func(_ *Session, p *process) int { return len(p.paths) }, most: maxFiles, fails: true},
		"path": {kind: kindFile, body: func(int) []byte { return record(wireFile{}, make([]byte, 1<<20)...) },
			kept: func(_ *Session, p *process) int { return len(p.paths) }, fails: true},
		"command": {kind: kindProcess, body: func(int) []byte {
			return record(wireProcess{Bytes: 1 << 20}, make([]byte, 1<<20)...)
		}, kept: func(*Session, *process) int { return 0 }, fails: true},
		"decodes": {kind: kindDecodeBegin, body: func(i int) []byte {
			return record(wireDecode{
				Tid: uint32(i), Decode: uint32(i),
			})
		}, kept: func(_ *Session, p *process) int { return len(p.openDecodes) }, most: maxOpen},
		"libraries": {kind: kindImage, body: func(i int) []byte {
			return record(wireImage{}, []byte(fmt.Sprint(i))...)
		},
			kept: func(s *Session, _ *process) int { return len(s.images) }, most: maxImages},
		"derived steps": {
			before: func(s *Session, p *process) {
				p.ops[0] = "GET_ROWS"
				if err := s.handleRecord(p, kindTemplate, embeddings(),
					func(event.Event) error { return nil }); err != nil {
					t.Fatal(err)
				}
			},
			kind: kindGraph, body: func(i int) []byte {
				return append(record(wireGraph{
					Tid: uint32(i), Ops: 1, Lists: 1,
				}), ids()...)
			},
			kept: func(_ *Session, p *process) int { return p.derived.Open() }, most: maxOpen,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := session(t)
			p := s.addProcess(os.Getpid(), 0)
			p.followed, p.begun = true, true
			if tc.before != nil {
				tc.before(s, p)
			}
			var err error
			for i := 0; i < cmp.Or(tc.times, 2*maxOpen) && err == nil; i++ {
				err = s.handleRecord(p, tc.kind, tc.body(i), func(event.Event) error { return nil })
				if kept := tc.kept(s, p); kept > tc.most {
					t.Fatalf("%d are kept, want at most %d", kept, tc.most)
				}
			}
			if errors.Is(err, errCorrupt) != tc.fails || err != nil && !tc.fails {
				t.Errorf("fails: %v, want %v (%v)", err != nil, tc.fails, err)
			}
		})
	}
}
