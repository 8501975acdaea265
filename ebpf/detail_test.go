package ebpf

// These tests observe the real llama.cpp at each detail, and compare the events with what is known
// from other sources.

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
)

var (
	dense = synth.Config{
		Layers: 3, Embd: 128, FF: 256, Heads: 4, KVHeads: 2, Vocab: 300, Ctx: 256, Type: gguf.Q8_0, Seed: 3,
	}
	moe = synth.Config{
		Layers: 3, Embd: 128, FF: 64, Heads: 4, KVHeads: 2, Vocab: 300, Ctx: 256, Type: gguf.Q8_0, Seed: 4,
		Experts: 8, Used: 2,
	}
)

// watch runs a command under a Tracer and returns what was seen, and the command's process.
func watch(t *testing.T, opts Options, cmd *exec.Cmd, before func()) ([]event.Event, int) {
	t.Helper()
	return watchEach(t, opts, cmd, func(*proc.Child) {
		if before != nil {
			before()
		}
	}, func(event.Event) {})
}

// watchEach is watch, but calls before with the stopped command, and each with every event when it
// comes.
func watchEach(t *testing.T, opts Options, cmd *exec.Cmd, before func(*proc.Child),
	each func(event.Event)) ([]event.Event, int) {
	t.Helper()
	events, pid, c := watchLossy(t, opts, cmd, before, each)
	if c.Lost() != 0 || c.Incomplete() != 0 {
		t.Errorf("counters %+v", c)
	}
	return events, pid
}

// watchLossy is watchEach, but allows losses and returns the counters.
func watchLossy(t *testing.T, opts Options, cmd *exec.Cmd, before func(*proc.Child),
	each func(event.Event)) ([]event.Event, int, event.Counters) {
	t.Helper()
	cmd.Stdout, cmd.Stderr = io.Discard, os.Stderr
	child, err := proc.Launch(cmd)
	if err != nil {
		t.Fatal(err)
	}
	opts.PID, opts.Hints = child.PID(), cmd.Args
	tr, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := tr.AttachLikely(cmd.Path, os.Environ()); err != nil {
		t.Fatal(err)
	}
	release := child.Release
	if opts.Follow || tr.Ready() != nil {
		release = func() error { return child.ReleaseHeld(opts.Follow, tr.AttachExeced) }
	}
	var events []event.Event
	runToEnd(t, tr, child, func() error { before(child); return release() }, func(e event.Event) error {
		events = append(events, copyEvent(e))
		each(e)
		return nil
	})
	c, err := tr.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if c.Hits != c.OtherThreads+c.NoWeight+c.OpsSent+c.OpsLost+c.Unfinished+c.Faults || c.Received != c.OpsSent {
		t.Errorf("counters %+v", c)
	}
	return events, child.PID(), c
}

// runToEnd runs a tracer until its target, which release lets go on, has ended.
func runToEnd(t *testing.T, tr *Tracer, child *proc.Child, release func() error, handle func(event.Event) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- tr.Run(ctx, handle) }()
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if status, err := child.Wait(); status != 0 || err != nil {
		t.Errorf("the target ended with %d, %v", status, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// copyEvent returns an event that the next one does not overwrite.
func copyEvent(e event.Event) event.Event {
	if o, ok := e.(*event.Op); ok {
		copied := *o
		return &copied
	}
	if r, ok := e.(event.RouterInput); ok {
		r.Values = slices.Clone(r.Values)
		return r
	}
	return e
}

// eventsOf returns the events of one type.
func eventsOf[E event.Event](events []event.Event) (of []E) {
	for _, e := range events {
		if e, ok := e.(E); ok {
			of = append(of, e)
		}
	}
	return of
}

// llamaOptions returns an installation of llama.cpp and a run of a synthetic model.
func llamaOptions(t *testing.T, cfg synth.Config) (*llama.Installation, llama.Options) {
	t.Helper()
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	return in, llama.Options{Model: llamatest.Model(t, cfg), Prompt: "once upon", Tokens: 5, Threads: 1, NoRepack: true}
}

// describeOp returns what both details say of an op. A fused op reads its weight in the last of its
// ops.
func describeOp(o *event.Op) string {
	var names []string
	for i := range o.Sources {
		names = append(names, fmt.Sprintf("%s@%d+%d", o.Sources[i].Name, o.Sources[i].Offset, o.Sources[i].Bytes()))
	}
	return fmt.Sprint(o.Decode, o.Name[strings.LastIndex(o.Name, "+")+1:], names)
}

// Graph detail sees the ops that op detail sees, in the same order. It knows the rows, and how many
// experts a token uses.
func TestGraphDetail(t *testing.T) {
	for name, cfg := range map[string]synth.Config{"dense": dense, "moe": moe} {
		for _, perf := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " perf events ", perf), func(t *testing.T) {
				in, o := llamaOptions(t, cfg)
				o.Warmup = "all"
				events, _ := watch(t, Options{}, in.Command(t.Context(), o), nil)
				byOp := eventsOf[*event.Op](events)
				tokens := map[uint32]int32{}
				for _, d := range eventsOf[event.DecodeBegin](events) {
					tokens[d.Decode] = d.Tokens
				}
				events, _ = watch(t, Options{Detail: DetailGraph, PerfEvents: perf}, in.Command(t.Context(), o), nil)
				byGraph := eventsOf[*event.Op](events)
				if len(byOp) == 0 || len(byOp) != len(byGraph) {
					t.Fatalf("%d ops, by graph %d", len(byOp), len(byGraph))
				}
				generated := 0
				for i := range byOp {
					a, b := byOp[i], byGraph[i]
					if describeOp(a) != describeOp(b) {
						t.Fatalf("op %d: %s, by graph %s", i, describeOp(a), describeOp(b))
					}
					if b.Duration != -1 || b.Stall != -1 || a.Duration < 0 || a.Stall != -1 {
						t.Fatalf("durations %d %d, by graph %d %d", a.Duration, a.Stall, b.Duration, b.Stall)
					}
					switch {
					case a.GatherDim != b.GatherDim || a.ByExpert != b.ByExpert:
						t.Fatalf("%+v, by graph %+v", a, b)
					case a.Name == "GET_ROWS" && (!slices.Equal(a.IDs, b.IDs) || a.IDRows != b.IDRows):
						t.Fatalf("rows %v, by graph %v", a.IDs, b.IDs)
					case a.ByExpert && tokens[a.Decode] == 1 && len(a.IDs) != b.Selects:
						t.Fatalf("experts %v, by graph %d of them", a.IDs, b.Selects)
					case a.ByExpert && tokens[a.Decode] == 1:
						generated++
					}
				}
				if cfg.Experts > 0 && generated == 0 {
					t.Error("no token chose experts")
				}
			})
		}
	}
}

// dropCache drops a file from the page cache.
func dropCache(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if left, err := pagecache.Drop(t.Context(), f); err != nil || left > 0 {
		t.Fatalf("%d bytes stay in memory: %v", left, err)
	}
}

// With too little memory the target reads its model again and again. The bytes that are seen to
// come from disk agree with the kernel's account of the process, all causes occur, and at least as
// many bytes as the model has are read again.
func TestPageIns(t *testing.T) {
	in, o := llamaOptions(t, synth.Config{
		Layers: 12, Embd: 768, FF: 2304, Heads: 8, KVHeads: 8, Vocab: 300, Ctx: 256, Type: gguf.Q8_0, Seed: 5,
	})
	info, err := os.Stat(o.Model)
	if err != nil {
		t.Fatal(err)
	}
	root, err := cgroup.Root()
	if err != nil {
		t.Skip(err)
	}
	group, err := cgroup.Create(root, fmt.Sprintf("tensorcast-ebpf-test-%d", os.Getpid()))
	if err != nil {
		t.Skipf("control groups cannot be made here: %v", err)
	}
	defer func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	}()
	if err := group.SetLimit(info.Size()/2 + 40<<20); err != nil {
		t.Fatal(err)
	}
	dropCache(t, o.Model)
	key, err := proc.FileOf(o.Model)
	if err != nil {
		t.Fatal(err)
	}
	causes := map[event.Cause]int64{}
	first := map[int64]bool{}
	inOp, again := 0, int64(0)
	page := int64(os.Getpagesize())
	cmd := in.Command(t.Context(), o)
	events, pid := watchEach(t, Options{Detail: DetailIO, Interval: minPoll}, cmd, func(child *proc.Child) {
		if err := group.Join(child.PID()); err != nil {
			t.Fatal(err)
		}
	}, func(event.Event) {})
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		t.Fatal("the kernel does not say which resources the target has used")
	}
	// Of all files: by the kernel's account, in which getrusage(2) counts in units of 512 bytes,
	// and by events.
	read, seen := usage.Inblock*512, int64(0)
	for _, e := range eventsOf[event.PageIn](events) {
		if e.PID == int32(pid) {
			seen += e.Bytes
		}
		if e.File != event.FileID(key) {
			continue
		}
		if e.PID != int32(pid) {
			t.Fatalf("%+v is of another process than %d", e, pid)
		}
		if e.Decode != 0 && e.Seq != 0 {
			inOp++
		}
		causes[e.Cause] += e.Bytes
		for at := e.Offset; at < e.Offset+e.Bytes; at += page {
			if first[at] {
				again += page
			}
			first[at] = true
		}
	}
	t.Logf("%d bytes of the model came %v, %d again; of all files %d, by the kernel's account %d", info.Size(),
		causes, again, seen, read)
	if int64(len(first))*page < info.Size()/page*page {
		t.Errorf("only %d of %d bytes of the model came from disk", int64(len(first))*page, info.Size())
	}
	if read < info.Size() || seen < read*99/100 || seen > read*101/100 {
		t.Errorf("%d bytes were seen to come from disk, by the kernel's account %d did", seen, read)
	}
	if causes[event.CauseFault] == 0 || causes[event.CauseReadahead] == 0 || inOp == 0 || again < info.Size() {
		t.Errorf("causes %v, %d runs within ops, %d bytes again", causes, inOp, again)
	}
	stalled := int64(0)
	for _, o := range eventsOf[*event.Op](events) {
		if o.Stall < 0 {
			t.Fatalf("op %s has no stall", o.Name)
		}
		stalled += o.Stall
	}
	if stalled == 0 {
		t.Error("nothing ever waited for the disk")
	}
}

// What another process reads of the model is told apart from what the target reads.
func TestPageInsOfOthers(t *testing.T) {
	in, o := llamaOptions(t, dense)
	dropCache(t, o.Model)
	cat := exec.Command("cat", o.Model)
	events, pid := watch(t, Options{Detail: DetailIO}, in.Command(t.Context(), o), func() {
		if err := cat.Run(); err != nil {
			t.Error(err)
		}
	})
	other := int64(0)
	for _, e := range eventsOf[event.PageIn](events) {
		switch {
		case e.Cause == event.CauseOther && e.PID == int32(cat.Process.Pid):
			other += e.Bytes
		case e.Cause == event.CauseOther || e.PID != int32(pid):
			t.Errorf("%+v, want pages that the target or cat brought in", e)
		}
	}
	info, err := os.Stat(o.Model)
	if err != nil {
		t.Fatal(err)
	}
	if other < info.Size() {
		t.Errorf("cat brought in %d of %d bytes", other, info.Size())
	}
}

// A process that the target starts is followed, from its first op on.
func TestFollow(t *testing.T) {
	in, o := llamaOptions(t, dense)
	plain, _ := watch(t, Options{}, in.Command(t.Context(), o), nil)
	llamarun := in.Command(t.Context(), o)
	script := exec.Command("sh", append([]string{"-c", `"$0" "$@"; exit $?`}, llamarun.Args...)...)
	script.Env = llamarun.Env
	events, shell := watch(t, Options{Follow: true}, script, nil)
	ops := eventsOf[*event.Op](events)
	if len(ops) == 0 || len(ops) != len(eventsOf[*event.Op](plain)) {
		t.Fatalf("%d ops, %d without a shell", len(ops), len(eventsOf[*event.Op](plain)))
	}
	pid := ops[0].PID
	begins := eventsOf[event.ProcessBegin](events)
	if len(begins) != 1 || begins[0].PID != pid || int(begins[0].Parent) != shell ||
		!slices.Contains(begins[0].Command, o.Model) {
		t.Errorf("processes %+v, ops of %d, the shell is %d", begins, pid, shell)
	}
	for _, o := range ops {
		if o.PID != pid {
			t.Fatalf("ops of %d and %d", pid, o.PID)
		}
	}
}

// If the target execs another program, no op of that is missed either.
func TestTargetExecs(t *testing.T) {
	in, o := llamaOptions(t, dense)
	plain, _ := watch(t, Options{}, in.Command(t.Context(), o), nil)
	llamarun := in.Command(t.Context(), o)
	script := exec.Command("sh", append([]string{"-c", `exec env "$0" "$@"`}, llamarun.Args...)...)
	script.Env = llamarun.Env
	events, pid := watch(t, Options{}, script, nil)
	ops, want := eventsOf[*event.Op](events), eventsOf[*event.Op](plain)
	if len(ops) != len(want) || len(ops) == 0 || ops[0].PID != int32(pid) ||
		len(eventsOf[event.DecodeBegin](events)) != len(eventsOf[event.DecodeBegin](plain)) {
		t.Errorf("%d ops, %d without a shell", len(ops), len(want))
	}
}

// With buffers, each op says what it touches besides weights: activations, and the cache in which
// keys and values are kept.
func TestBuffers(t *testing.T) {
	in, o := llamaOptions(t, dense)
	plain, _ := watch(t, Options{}, in.Command(t.Context(), o), nil)
	events, _ := watch(t, Options{Buffers: true}, in.Command(t.Context(), o), nil)
	withWeights, cache := 0, map[string]bool{}
	for _, op := range eventsOf[*event.Op](events) {
		if len(op.Sources) > 0 {
			withWeights++
		}
		if len(op.Buffers) == 0 || !op.Buffers[len(op.Buffers)-1].Write {
			t.Fatalf("%s writes nothing: %+v", op.Name, op.Buffers)
		}
		for _, b := range op.Buffers {
			for i := range op.Sources {
				if b.Data == op.Sources[i].Data {
					t.Fatalf("%s: %s is a weight", op.Name, b.Name)
				}
			}
			if strings.HasPrefix(b.Root, "cache_") {
				cache[b.Root] = true
			}
		}
	}
	if n := len(eventsOf[*event.Op](plain)); withWeights != n || n == 0 {
		t.Errorf("%d ops read weights, %d without buffers", withWeights, n)
	}
	for layer := range dense.Layers {
		for _, of := range []string{"k", "v"} {
			if name := fmt.Sprintf("cache_%s_l%d", of, layer); !cache[name] {
				t.Errorf("%s was not seen: %v", name, cache)
			}
		}
	}
}

// When more threads decode at once than the programs have slots for, each decode still has all its ops.
func TestManyThreads(t *testing.T) {
	in, o := llamaOptions(t, dense)
	o.Contexts, o.Concurrent, o.Tokens = 70, true, 3
	for _, detail := range []Detail{DetailOp, DetailGraph} {
		events, _ := watch(t, Options{Detail: detail}, in.Command(t.Context(), o), nil)
		ops, threads := map[uint32]int{}, map[int32]bool{}
		for _, op := range eventsOf[*event.Op](events) {
			ops[op.Decode]++
			threads[op.TID] = true
		}
		decodes := eventsOf[event.DecodeBegin](events)
		if len(threads) < o.Contexts || len(decodes) < o.Contexts*o.Tokens {
			t.Errorf("%d decodes in %d threads", len(decodes), len(threads))
		}
		for _, d := range decodes {
			if n := ops[d.Decode]; n != ops[decodes[0].Decode] || n == 0 {
				t.Errorf("decode %d has %d ops, the first %d", d.Decode, n, ops[decodes[0].Decode])
			}
		}
	}
}

// A template is found by its id until another one takes its place.
func TestTemplatesTakeTurns(t *testing.T) {
	const maxTemplates = 64
	c := newCache(maxTemplates)
	p := &target{ops: []string{"MUL_MAT"}, cache: c}
	learn := func(id uint32) {
		if _, _, err := p.learnTemplate(&traceTemplateEvent{Id: id}); err != nil {
			t.Fatal(err)
		}
	}
	if c.template(p, 1) != nil {
		t.Error("a template is found before the first one arrived")
	}
	learn(1)
	learn(2)
	if c.template(p, 1) == nil || c.template(p, 0) != nil || c.template(p, 1+maxTemplates) != nil {
		t.Error("a template is not found by its id, or by another's")
	}
	learn(1 + maxTemplates)
	if c.template(p, 1) != nil || c.template(p, 1+maxTemplates) == nil || c.template(p, 2) == nil {
		t.Error("a new template did not take the place of the oldest")
	}
}

// A target whose llama_decode is not called has steps nevertheless: each begins with the lookup of
// its tokens. The first call of llama_decode ends that.
func TestDerivedSteps(t *testing.T) {
	p := &target{pid: 7, announced: true, derived: event.DerivedSteps{PID: 7}}
	var events []event.Event
	handle := func(e event.Event) error { events = append(events, copyEvent(e)); return nil }
	op := func(tid int32, at int64, name, weight string, ids ...int32) {
		o := event.Op{
			TID: tid, PID: 7, Time: at, Duration: 5, Name: name, Sources: []event.Source{{Name: weight}}, IDs: ids,
		}
		if ids != nil {
			o.GatherDim = 1
		}
		if err := p.deriveStep(&o, handle); err != nil {
			t.Fatal(err)
		}
		events = append(events, &o)
	}
	op(1, 10, "MUL_MAT", "blk.0.attn_q.weight") // before any lookup, so it belongs to no step
	op(1, 20, "GET_ROWS", event.TokenEmbeddings, 5, 6, 7)
	op(1, 30, "MUL_MAT", "output.weight")
	op(2, 35, "GET_ROWS", event.TokenEmbeddings, 9) // another context
	op(1, 40, "GET_ROWS", event.TokenEmbeddings, 8)
	op(2, 45, "MUL_MAT", "output.weight")
	// The end of a decode that began before the probes were there.
	end := traceDecodeEvent{Kind: uint32(traceKindKIND_DECODE_END), Tgid: 7, Tid: 1, Time: 55}
	tr := &Tracer{targets: map[uint32]*target{7: p}}
	if err := tr.dispatch(unsafe.Slice((*byte)(unsafe.Pointer(&end)), unsafe.Sizeof(end)), handle); err != nil {
		t.Fatal(err)
	}
	op(1, 60, "GET_ROWS", event.TokenEmbeddings, 8) // outside any llama_decode, so it belongs to no step
	if err := p.derived.End(handle); err != nil {
		t.Fatal(err)
	}
	var decodes []uint32
	for _, o := range eventsOf[*event.Op](events) {
		decodes = append(decodes, o.Decode)
	}
	if want := []uint32{0, 1, 1, 2, 3, 2, 0}; !slices.Equal(decodes, want) {
		t.Errorf("ops of decodes %v, want %v", decodes, want)
	}
	begins := []event.DecodeBegin{
		{Time: 20, PID: 7, TID: 1, Decode: 1, Tokens: 3, Derived: true},
		{Time: 35, PID: 7, TID: 2, Decode: 2, Tokens: 1, Derived: true},
		{Time: 40, PID: 7, TID: 1, Decode: 3, Tokens: 1, Derived: true},
	}
	if got := eventsOf[event.DecodeBegin](events); !reflect.DeepEqual(got, begins) {
		t.Errorf("steps %+v", got)
	}
	ends := eventsOf[event.DecodeEnd](events)
	slices.SortFunc(ends, func(a, b event.DecodeEnd) int { return int(a.Decode) - int(b.Decode) })
	if want := []event.DecodeEnd{
		{Time: 55, PID: 7, TID: 1, Partial: true}, {Time: 35, PID: 7, TID: 1, Decode: 1},
		{Time: 50, PID: 7, TID: 2, Decode: 2}, {Time: 45, PID: 7, TID: 1, Decode: 3},
	}; !slices.Equal(ends, want) {
		t.Errorf("ends %+v", ends)
	}
}

// The model of a target that has ended is found among the hints. That also works where stat returns
// another device than the kernel (overlayfs, btrfs).
func TestFindFileOfTheEnded(t *testing.T) {
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	model, other := filepath.Join(dir, "model.gguf"), filepath.Join(dir, "other.gguf")
	for _, path := range []string{model, other} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	key, err := proc.FileOf(model)
	if err != nil {
		t.Fatal(err)
	}
	p := &target{pid: gone.Process.Pid, cache: newCache(1)}
	if at, err := p.findFile(event.FileID{Dev: 1 << 40, Ino: key.Ino}, 0x1000,
		[]string{"-m", other, model}); at != (proc.Place{Path: model, ID: key}) || err != nil {
		t.Errorf("found %+v, %v", at, err)
	}
	if at, err := p.findFile(event.FileID(key), 0x1000, []string{"-m", other}); err == nil {
		t.Errorf("found %+v among files that it is not", at)
	}
}

// A file is found that the target has unmapped since its memory map was read: it is about to end, and what it sent
// before is still being read.
func TestFindFileOfTheUnmapped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(path, make([]byte, os.Getpagesize()), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := proc.FileOf(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapped, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	p := &target{pid: os.Getpid(), ops: []string{"MUL_MAT"}, cache: newCache(8), files: map[string]event.FileID{}}
	if _, _, err := p.learnTemplate(&traceTemplateEvent{Id: 1}); err != nil {
		t.Fatal(err)
	}
	address := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mapped))))
	if err := unix.Munmap(mapped); err != nil {
		t.Fatal(err)
	}
	p.mappingsAt = p.mappingsAt.Add(-2 * mapInterval)
	at, err := p.findFile(event.FileID{Ino: key.Ino}, address, nil)
	if want := (proc.Place{Path: path, ID: key}); at != want || err != nil {
		t.Errorf("found %+v, %v, want %+v", at, err, want)
	}
}

// A source is resolved in a file that the target has unmapped just before, unless it has mapped another one there.
func TestResolvedAfterUnmapping(t *testing.T) {
	size := os.Getpagesize()
	p := &target{pid: os.Getpid(), ops: []string{"MUL_MAT"}, cache: newCache(8), files: map[string]event.FileID{}}
	// mapFile makes a file and maps it, at an address if that is not nil.
	mapFile := func(name string, at unsafe.Pointer) (proc.FileID, unsafe.Pointer) {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		flags := unix.MAP_SHARED
		if at != nil {
			flags |= unix.MAP_FIXED
		}
		mapped, err := unix.MmapPtr(int(f.Fd()), 0, at, uintptr(size), unix.PROT_READ, flags)
		if err != nil {
			t.Fatal(err)
		}
		id, err := proc.FileOf(path)
		if err != nil {
			t.Fatal(err)
		}
		return id, mapped
	}
	// resolve learns of an op that reads a weight at an address.
	resolve := func(at unsafe.Pointer) event.Source {
		p.mappingsAt = time.Time{}
		s := event.Source{Data: uint64(uintptr(at))}
		if !p.resolveSource(&s) {
			t.Fatalf("%p was not resolved", at)
		}
		return s
	}
	first, a := mapFile("a", nil)
	other, b := mapFile("b", nil)
	last, c := mapFile("c", nil)
	defer unix.MunmapPtr(c, uintptr(size))
	if s := resolve(a); !s.InFile || s.File.Ino != first.Ino {
		t.Fatalf("while it is mapped: %+v, want inode %d", s, first.Ino)
	}
	replacing, _ := mapFile("d", b)
	defer unix.MunmapPtr(b, uintptr(size))
	if err := unix.MunmapPtr(a, uintptr(size)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		at  unsafe.Pointer
		ino uint64
	}{{c, last.Ino}, {a, first.Ino}, {b, replacing.Ino}, {a, first.Ino}} {
		if s := resolve(want.at); !s.InFile || s.File.Ino != want.ino {
			t.Errorf("after unmapping: %+v, want inode %d", s, want.ino)
		}
	}
	if _, ok := p.findMapping(uint64(uintptr(b)), other.Ino); ok {
		t.Error("a file is found where another one has taken its place")
	}
	for i := range p.unmapped {
		p.unmapped[i].at = time.Now().Add(-2 * lateReader)
	}
	if s := resolve(a); s.InFile {
		t.Errorf("long after unmapping: %+v, want no file", s)
	}
}

// The mappings that are remembered are bounded, and the newest remain.
func TestUnmappedAreBounded(t *testing.T) {
	p := &target{}
	var files []proc.Mapping
	for i := range uint64(2 * maxUnmapped) {
		files = append(files, proc.Mapping{Start: i << 20, End: i<<20 + 4096})
	}
	p.setMappings(files, time.Now())
	p.setMappings(nil, time.Now())
	if oldest := p.unmapped[0].Start >> 20; len(p.unmapped) != maxUnmapped || oldest != maxUnmapped {
		t.Errorf("%d mappings, the oldest is number %d; want %d of them and number %d", len(p.unmapped), oldest,
			maxUnmapped, maxUnmapped)
	}
}

// A source whose mapping cannot be found any more is counted, and its op is marked as clipped.
func TestUnresolved(t *testing.T) {
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	c := newCache(8)
	p := &target{pid: gone.Process.Pid, ops: []string{"MUL_MAT"}, cache: c}
	tr := &Tracer{targets: map[uint32]*target{7: p}, cache: c}
	e := traceTemplateEvent{Kind: uint32(traceKindKIND_TEMPLATE), Tgid: 7, Id: 3, Nsrc: 1}
	e.Src[0].Flags = uint32(traceSourceFlagSOURCE_UNRESOLVED)
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&e)), unsafe.Sizeof(e))
	if err := tr.dispatch(raw, func(event.Event) error { return nil }); err != nil {
		t.Fatal(err)
	}
	var seen event.Op
	err := tr.handleOp(p, &traceOpsEvent{}, &traceOpRecord{Id: 3},
		func(e event.Event) error { seen = *e.(*event.Op); return nil })
	if err != nil || !seen.Clipped || len(seen.Sources) != 0 || tr.unresolved.Load() != 1 {
		t.Errorf("op %+v, %d unresolved, %v", seen, tr.unresolved.Load(), err)
	}
}

// If the target has ended when a source is to be resolved, what it mapped when its first template
// came decides.
func TestResolvedAfterTheEnd(t *testing.T) {
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := sync.OnceFunc(func() { c.Process.Kill(); c.Wait() })
	defer ended()
	p := &target{pid: c.Process.Pid, ops: []string{"MUL_MAT"}, cache: newCache(8)}
	var program proc.Mapping
	for deadline := time.Now().Add(10 * time.Second); program.End == 0; { // until it runs sleep
		if time.Now().After(deadline) {
			t.Fatal("sleep was not mapped")
		}
		all, err := proc.Mappings(c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if filepath.Base(m.Path) == "sleep" || filepath.Base(m.Path) == "coreutils" {
				program = m
			}
		}
	}
	if _, _, err := p.learnTemplate(&traceTemplateEvent{Id: 1}); err != nil {
		t.Fatal(err)
	}
	ended()
	p.mappingsAt = p.mappingsAt.Add(-2 * mapInterval) // the map is read again, but the process is gone
	e := traceTemplateEvent{Id: 2, Nsrc: 1}
	e.Src[0].Flags, e.Src[0].Data = uint32(traceSourceFlagSOURCE_UNRESOLVED), program.Start
	of, unresolved, err := p.learnTemplate(&e)
	if err != nil || unresolved != 0 || len(of.op.Sources) != 1 ||
		of.op.Sources[0].File != program.File || of.op.Sources[0].Offset != int64(program.Offset) {
		t.Errorf("%+v, %d unresolved, %v; want a source in %+v", of, unresolved, err, program)
	}
}
