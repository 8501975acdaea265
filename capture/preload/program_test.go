package preload

// These tests run programs that behave unusually: they fork, exec, die, or hide their ggml.

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/experiments/llama"
	"tensorcast/ggml"
)

// compileC compiles a test program so that the ordinary user can run it.
func compileC(t *testing.T, path, source string, flags ...string) {
	t.Helper()
	cmd := exec.Command("gcc", append([]string{"-O1", "-o", path, "-x", "c", "-"}, flags...)...)
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// variant compiles a changed driver: each old text, which occurs once in the driver's source, is
// replaced.
func variant(t *testing.T, in *llama.Installation, name string, oldnew ...string) *llama.Installation {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "experiments", "llama", "llamarun.c"))
	if err != nil {
		t.Fatal(err)
	}
	source := ggml.IncludeGathers(string(raw))
	for i := 0; i < len(oldnew); i += 2 {
		if strings.Count(source, oldnew[i]) != 1 {
			t.Fatalf("llamarun.c has not once %q: the fixture is out of date", oldnew[i])
		}
		source = strings.Replace(source, oldnew[i], oldnew[i+1], 1)
	}
	out := &llama.Installation{Dir: in.Dir, Driver: filepath.Join(in.Dir, name)}
	compileC(t, out.Driver, source, "-ldl", "-pthread")
	return out
}

// A ring that is too small loses events, counts every one of them, and does not disturb the program.
func TestLossIsCounted(t *testing.T) {
	in := install(t)
	o := llama.Options{Model: model(t, denseModel), Prompt: "lossy", Tokens: 100, Threads: 1, NoRepack: true}
	full := observe(t, in.Command(t.Context(), o), scene{})
	checkAccounted(t, full)
	if full.counters.OpsLost != 0 {
		t.Fatalf("the default ring lost %+v; want 0", full.counters)
	}
	for _, size := range []int{4 << 10, 16 << 10} {
		// Nothing is read until the program has ended.
		r := observe(t, in.Command(t.Context(), o), scene{Options: Options{RingBytes: size, Interval: time.Hour}})
		checkAccounted(t, r)
		c := r.counters
		if c.OpsLost == 0 || c.Hits != full.counters.Hits || c.NoWeight != full.counters.NoWeight ||
			c.Received+c.OpsLost != full.counters.Received {
			t.Errorf("ring of %d: counters %+v, want losses and the sums of a large ring, %+v", size, c, full.counters)
		}
		// all ops of a graph are one record, which does not fit into 4 KiB
		if received := c.Received > 0; received != (size > 4<<10) {
			t.Errorf("ring of %d: %d ops were received, want some: %v", size, c.Received, size > 4<<10)
		}
		if c.OthersLost == 0 {
			t.Errorf("ring of %d: no other event was lost", size)
		}
		if !r.state.Success() || r.stderr != "" {
			t.Errorf("ring of %d: the program ended with %v and printed %q, want success and nothing", size, r.state,
				r.stderr)
		}
	}
}

// The driver counts the ops itself.
func TestOpsAreCounted(t *testing.T) {
	in := install(t)
	o := llama.Options{
		Model: model(t, moeModel), Prompt: "count", Tokens: 20, Threads: 1, NoRepack: true,
		CountOps: true,
	}
	r := observe(t, in.Command(t.Context(), o), scene{})
	result, err := llama.ParseResult([]byte(r.stdout))
	if err != nil {
		t.Fatal(err)
	}
	if result.Nodes == 0 || r.counters.Hits != uint64(result.Nodes) {
		t.Errorf("counted %d ops, want %d as the driver computed", r.counters.Hits, result.Nodes)
	}
}

// The program has several contexts at once, several sequences in a batch, and two models.
func TestServer(t *testing.T) {
	in := install(t)
	o := llama.Options{
		Model: model(t, denseModel), Model2: model(t, moeModel), Prompt: "one", Prompts: []string{"two", "three"},
		Tokens: 10, Threads: 1, NoRepack: true,
		Contexts: 2, Concurrent: true, Parallel: 3,
	}
	plain, err := in.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	r := observe(t, in.Command(t.Context(), o), scene{})
	result, err := llama.ParseResult([]byte(r.stdout))
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range result.Generations() {
		if !slices.Equal(g.Tokens, plain.Generations()[i].Tokens) {
			t.Errorf("generation %d says something else than without the shim; want %v", i,
				plain.Generations()[i].Tokens)
		}
	}
	checkAccounted(t, r)
	if r.counters.Lost() != 0 {
		t.Errorf("lost: %+v; want 0", r.counters)
	}
	type state struct {
		decode event.DecodeBegin
		files  map[event.FileID]bool
		ops    int
	}
	threads, files := map[int32]*state{}, map[event.FileID]bool{}
	contexts := map[uint64]int{} // ops of a step of 3 tokens
	for _, e := range r.events {
		switch e := e.(type) {
		case event.DecodeBegin:
			if want := []int32{0, 1, 2}; e.Tokens == 3 && !slices.Equal(e.Sequences, want) {
				t.Fatalf("sequences %v, want %v", e.Sequences, want)
			}
			threads[e.TID] = &state{decode: e, files: map[event.FileID]bool{}}
		case *event.Op:
			s := threads[e.TID]
			if s == nil || s.decode.Decode != e.Decode {
				t.Fatalf("op of decode %d on thread %d", e.Decode, e.TID)
			}
			s.ops++
			for _, src := range e.Sources {
				s.files[src.File], files[src.File] = true, true
			}
		case event.DecodeEnd:
			s := threads[e.TID]
			if len(s.files) != 1 {
				t.Fatalf("a decode reads %d models; want 1", len(s.files))
			}
			if s.decode.Tokens == 3 {
				if n := contexts[s.decode.Context]; n != 0 && n != s.ops {
					t.Fatalf("a step has %d ops, want %d as an earlier one", s.ops, n)
				}
				contexts[s.decode.Context] = s.ops
			}
		}
	}
	if len(contexts) != 4 || len(files) != 2 {
		t.Errorf("%d contexts, %d models; want len(contexts) = 4, len(files) = 2", len(contexts), len(files))
	}
}

// A program that gets llama_decode from libllama's own handle bypasses the shim. Its steps are
// derived.
func TestDerivedSteps(t *testing.T) {
	in := install(t)
	hidden := variant(t, in, "hidden",
		"static bool open_lib(", "static void *lib;\nstatic bool open_lib(",
		"if (!dlopen(g.gl_pathv[0], RTLD_NOW | RTLD_GLOBAL))",
		"if (!(lib = dlopen(g.gl_pathv[0], RTLD_NOW | RTLD_LOCAL)))",
		"dlsym(RTLD_DEFAULT, #name)", "dlsym(lib, #name)")
	o := llama.Options{Model: model(t, moeModel), Prompt: "derived", Tokens: 6, Threads: 1, NoRepack: true}
	want := observe(t, in.Command(t.Context(), o), scene{})
	got := observe(t, hidden.Command(t.Context(), o), scene{})
	compare(t, sequence(got.reads(t)), sequence(want.reads(t)))
	checkAccounted(t, got)
	tokens := func(r run, derived bool) (out []int32) {
		var open *event.DecodeBegin
		for _, e := range r.events {
			switch e := e.(type) {
			case event.DecodeBegin:
				if e.Derived != derived {
					t.Errorf("derived: %v, want %v", e.Derived, derived)
				}
				open = &e
				out = append(out, e.Tokens)
			case event.DecodeEnd:
				if open == nil || e.Decode != open.Decode || e.Time <= open.Time {
					t.Errorf("the end of decode %d at %d, after %+v; want an error, e.Decode = %v, e.Time more "+
						"than %v", e.Decode, e.Time, open, open.Decode, open.Time)
				}
			}
		}
		return out
	}
	if g, w := tokens(got, true), tokens(want, false); !slices.Equal(g, w) {
		t.Errorf("steps of %v tokens, want %v", g, w)
	}
}

// A forked child that computes is not reported, because the ring belongs to its parent.
func TestFork(t *testing.T) {
	in := install(t)
	forks := variant(t, in, "forks",
		"#include <getopt.h>\n", "#include <getopt.h>\n#include <sys/wait.h>\n",
		"\tint printed = 0;\n", `	int printed = 0, status;
	pid_t child = fork();
	if (child == 0) {
		generate();
		_exit(42);
	}
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 42)
		die("the child ended with %x", status);
`)
	o := llama.Options{Model: model(t, denseModel), Prompt: "fork", Tokens: 6, Threads: 1, NoRepack: true}
	want := observe(t, in.Command(t.Context(), o), scene{})
	got := observe(t, forks.Command(t.Context(), o), scene{Options: Options{Follow: true}})
	if !got.state.Success() {
		t.Fatalf("the program ended with %v, want success: %s", got.state, got.stderr)
	}
	compare(t, sequence(got.reads(t)), sequence(want.reads(t)))
	checkAccounted(t, got)
}

// A shell that executes llama.cpp becomes the target. A shell that starts it as a child does not.
func TestProcesses(t *testing.T) {
	in := install(t)
	o := llama.Options{Model: model(t, denseModel), Prompt: "shell", Tokens: 3, Threads: 1, NoRepack: true}
	want := sequence(observe(t, in.Command(t.Context(), o), scene{}).reads(t))
	shell := func(script string) *exec.Cmd {
		return exec.CommandContext(t.Context(), "/bin/sh",
			append([]string{"-c", script}, in.Command(t.Context(), o).Args...)...)
	}

	r := observe(t, shell(`exec "$0" "$@"`), scene{})
	compare(t, sequence(r.reads(t)), want)
	checkAccounted(t, r)

	r = observe(t, shell(`"$0" "$@"; exit 7`), scene{})
	if !errors.Is(r.seen, ErrOtherProcess) || len(r.events) != 0 || r.counters != (event.Counters{}) ||
		r.state.ExitCode() != 7 {
		t.Errorf("Explain = %v, %d events, %+v, %v; want ErrOtherProcess, nothing seen, and status 7", r.seen,
			len(r.events), r.counters, r.state)
	}

	r = observe(t, shell(`"$0" "$@" & "$0" "$@" & wait`), scene{Options: Options{Follow: true}})
	if r.seen != nil {
		t.Error(r.seen)
	}
	checkAccounted(t, r)
	byPID, ended := map[int32]*run{}, map[int32]bool{}
	for _, e := range r.events {
		var pid int32
		switch e := e.(type) {
		case event.ProcessBegin:
			pid = e.PID
			if e.Parent != int32(r.pid) || len(e.Command) == 0 || e.Command[0] != in.Driver {
				t.Errorf("begin of process %+v, want parent %d and command %s", e, r.pid, in.Driver)
			}
			byPID[pid] = &run{pid: int(pid)}
		case event.ProcessEnd:
			pid = e.PID
			ended[pid] = true
		case event.FileSeen:
			pid = e.PID
		case event.DecodeBegin:
			pid = e.PID
		case event.DecodeEnd:
			pid = e.PID
		case *event.Op:
			pid = e.PID
		}
		byPID[pid].events = append(byPID[pid].events, e)
	}
	if len(byPID) != 2 || len(ended) != 2 {
		t.Fatalf("%d processes, %d ended; want len(byPID) = 2, len(ended) = 2", len(byPID), len(ended))
	}
	for _, p := range byPID {
		compare(t, sequence(p.reads(t)), want)
	}
}

// A program that is killed in the middle leaves whole events, and all of them are accounted for.
func TestKilled(t *testing.T) {
	in := install(t)
	o := llama.Options{
		Model: model(t, denseModel), Prompt: "killed", Tokens: 100, Threads: 1, NoRepack: true,
		Repeat: 1 << 20,
	}
	decodes := 0
	r := observe(t, in.Command(t.Context(), o), scene{event: func(cmd *exec.Cmd, e event.Event) {
		if _, ok := e.(event.DecodeEnd); ok {
			if decodes++; decodes == 50 {
				if err := cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
			}
		}
	}})
	checkAccounted(t, r)
	if status, ok := r.state.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL || decodes < 50 {
		t.Errorf("ended with %v after %d decodes, want SIGKILL after at least 50", r.state, decodes)
	}
	if _, ok := r.events[len(r.events)-1].(event.ProcessEnd); !ok {
		t.Errorf("the last event is %+v", r.events[len(r.events)-1])
	}
}

// If the reader gives up, the program still runs to its end.
func TestReaderGivesUp(t *testing.T) {
	in := install(t)
	o := llama.Options{Model: model(t, denseModel), Prompt: "alone", Tokens: 50, Threads: 1, NoRepack: true}
	s, err := Start(t.Context(), Options{Credential: ordinary()})
	if err != nil {
		t.Fatal(err)
	}
	cmd := in.Command(t.Context(), o)
	var out strings.Builder
	cmd.Stdout = &out
	cmd.Env = s.Environ(cmd.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: ordinary()}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	err = s.Run(t.Context(), cmd.Process.Pid, func(e event.Event) error {
		if _, ok := e.(*event.Op); ok {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Errorf("Run returned %v; want %v", err, enough)
	}
	path := s.mem.path()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if result, err := llama.ParseResult([]byte(out.String())); err != nil || len(result.Tokens) != o.Tokens {
		t.Errorf("the program did not finish: %v", err)
	}
	if c, err := s.Counters(); err != nil || c.Received == 0 || s.Explain() != nil {
		t.Errorf("closed: %+v, %v; %v", c, err, s.Explain())
	}
	lefts := []string{path}
	if s.temp != nil {
		lefts = append(lefts, s.temp.path)
	}
	for _, left := range lefts {
		if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v; want %v", left, err, os.ErrNotExist)
		}
	}
}

// For programs whose graphs cannot be seen, Explain gives the reason.
func TestNothingSeen(t *testing.T) {
	dir := openDir(t)
	// ggml is part of the program, so it is not called through a table in which the shim could take
	// its place.
	const within = `int ggml_graph_compute(void *graph, void *plan) { return graph == plan; }
int main(int argc, char **argv) { (void)argv; return ggml_graph_compute(0, &argc); }`
	compileC(t, filepath.Join(dir, "within"), within)
	compileC(t, filepath.Join(dir, "static"), within, "-static")
	// The library is bound to itself, so the call is direct.
	const library = `int ggml_graph_compute(void *graph, void *plan) { return graph == plan; }
int ggml_backend_graph_compute(void *graph) { return ggml_graph_compute(graph, &graph); }`
	compileC(t, filepath.Join(dir, "libsymbolic.so"), library, "-shared", "-fPIC", "-Wl,-Bsymbolic")
	compileC(t, filepath.Join(dir, "symbolic"),
		`int ggml_backend_graph_compute(void *); int main(void) { return ggml_backend_graph_compute(0); }`,
		"-L"+dir, "-lsymbolic", "-Wl,-rpath,$ORIGIN")
	for program, want := range map[string]error{
		"/bin/true":                    ErrNoGraph,
		filepath.Join(dir, "within"):   ErrNoGraph,
		filepath.Join(dir, "symbolic"): ErrNoGraph,
		filepath.Join(dir, "static"):   ErrNotLoaded,
	} {
		t.Run(filepath.Base(program), func(t *testing.T) {
			r := observe(t, exec.CommandContext(t.Context(), program), scene{})
			if !errors.Is(r.seen, want) || len(r.events) != 0 || !r.state.Success() || r.stderr != "" {
				t.Errorf("%v, want %v; %d events; %v; %q", r.seen, want, len(r.events), r.state, r.stderr)
			}
		})
	}
}

// other is a ggml of another version: its tensors have 8 more bytes in front. It computes a graph
// again and again until its standard input ends.
const structs = `
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
struct ggml_tensor {
    void *front;
    int32_t type; void *buffer; int64_t ne[4]; size_t nb[4]; int32_t op, op_params[16], flags;
    struct ggml_tensor *src[10], *view_src; size_t view_offs; void *data; char name[64]; void *extra; char padding[8];
};
struct ggml_cgraph { int size, n_nodes, n_leafs; struct ggml_tensor **nodes, **grads, **leafs; };
`

const otherLibrary = `
enum ggml_op { NONE, MUL_MAT };
const char *ggml_op_name(enum ggml_op op) { static const char *const names[] = {"NONE", "MUL_MAT"}; return names[op]; }
size_t ggml_type_size(int type) { return type == 0 ? 4 : 0; }
int64_t ggml_nelements(const struct ggml_tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }
const char *ggml_get_name(const struct ggml_tensor *t) { return t->name; }
__attribute__((noinline)) int ggml_graph_compute(struct ggml_cgraph *g, void *plan) {
    (void)plan;
    return g->nodes[0]->op != MUL_MAT;
}
int ggml_backend_graph_compute(struct ggml_cgraph *g) { return ggml_graph_compute(g, 0); }
`

const otherMain = `
int ggml_backend_graph_compute(struct ggml_cgraph *g);
int main(int argc, char **argv) {
    int fd = open(argv[argc - 1], O_RDONLY);
    char *file = mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED) return 1;
    float out[8];
    struct ggml_tensor w = {.type = 0, .ne = {8, 8, 1, 1}, .nb = {4, 32, 256, 256}, .data = file + 64,
        .name = "blk.0.ffn_up.weight"};
    struct ggml_tensor n = {.type = 0, .ne = {8, 1, 1, 1}, .nb = {4, 32, 32, 32}, .op = 1, .src = {&w, &w},
        .data = out, .name = "node_0"};
    struct ggml_tensor *nodes[] = {&n};
    struct ggml_cgraph g = {1, 1, 0, nodes, 0, 0};
    struct pollfd end = {0, POLLIN, 0};
    do {
        if (ggml_backend_graph_compute(&g)) return 2;
    } while (poll(&end, 1, 1) == 0);
    return 0;
}
`

// A layout that is in no table is refused with the evidence. If the library has debug information,
// the layout is found while the program runs.
func TestUnknownLayout(t *testing.T) {
	dir := openDir(t)
	weights := filepath.Join(dir, "weights")
	if err := os.WriteFile(weights, make([]byte, 4096), 0o644); err != nil {
		t.Fatal(err)
	}
	build := func(name string, flags ...string) (*exec.Cmd, io.Closer) {
		lib := "lib" + name + ".so"
		compileC(t, filepath.Join(dir, lib), structs+otherLibrary, append(flags, "-shared", "-fPIC")...)
		compileC(t, filepath.Join(dir, name), structs+otherMain,
			"-L"+dir, "-l"+name, "-Wl,-rpath,$ORIGIN")
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, name), weights)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		return cmd, in
	}
	cmd, _ := build("stripped", "-s")
	r := observe(t, cmd, scene{fails: true})
	var evidence *ggml.MismatchError
	if !errors.Is(r.err, event.ErrLayout) || !errors.As(r.err, &evidence) || strings.Contains(r.err.Error(), "\n") {
		t.Errorf("want event.ErrLayout with evidence, got %v", r.err)
	}

	ops := 0
	cmd, stdin := build("debug", "-g")
	r = observe(t, cmd, scene{event: func(_ *exec.Cmd, e event.Event) {
		o, ok := e.(*event.Op)
		if !ok {
			return
		}
		if ops++; ops > 1 {
			return
		}
		if s := o.Sources[0]; o.Name != "MUL_MAT" || len(o.Sources) != 2 || s.Name != "blk.0.ffn_up.weight" ||
			s.Offset != 64 || !s.InFile || s.Bytes() != 256 {
			t.Errorf("op %+v, want a MUL_MAT of 256 bytes of blk.0.ffn_up.weight at 64, and a second source", o)
		}
		if err := stdin.Close(); err != nil {
			t.Error(err)
		}
	}})
	if ops == 0 || r.seen != nil || !strings.Contains(r.target.LayoutOrigin, "DWARF") {
		t.Errorf("%d ops, %v, layout from %q", ops, r.seen, r.target.LayoutOrigin)
	}
}
