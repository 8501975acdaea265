package main

// The tests of this file run the built command as a user would, with the real llama.cpp and the
// real kernel.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

var tracerBinary string

func TestMain(m *testing.M) {
	testenv.RunFiltered()
	path, remove, err := testenv.BuildCommand("tracer")
	if err != nil {
		fmt.Fprintln(os.Stderr, "build tracer:", err)
		os.Exit(1)
	}
	tracerBinary = path
	status := m.Run()
	remove()
	os.Exit(status)
}

var (
	denseModel = synth.Config{Layers: 3, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1}
	moeModel   = synth.Config{
		Layers: 3, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Experts: 8, Used: 3, Type: gguf.Q8_0, Seed: 2,
	}
)

// with returns a changed copy of a configuration.
func with(c synth.Config, change func(*synth.Config)) synth.Config {
	change(&c)
	return c
}

// result is the result of one run of the command.
type result struct {
	stdout, stderr string
	status         int
}

func runTracer(t *testing.T, args ...string) result {
	t.Helper()
	return finish(t, exec.Command(tracerBinary, args...))
}

func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// traced runs the driver under tracer and returns the capture's rows. Disk and memory are not measured, which would
// take a third of tracer's time (the tests of surroundings have that).
func traced(t *testing.T, in *llama.Installation, o llama.Options, flags ...string) (*trace.Capture, []tables.Access) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "capture")
	args := append(append([]string{"-o", dir, "--strict", "--no-probe"}, flags...), "--")
	r := runTracer(t, append(args, in.Command(t.Context(), o).Args...)...)
	if r.status != 0 {
		if c, err := trace.Open(dir); err == nil {
			t.Logf("counters %+v", c.Meta.Counters)
		}
		t.Fatalf("tracer ended with %d:\n%s", r.status, r.stderr)
	}
	return readCapture(t, dir)
}

func readCapture(t *testing.T, dir string) (*trace.Capture, []tables.Access) {
	t.Helper()
	c, err := trace.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var rows []tables.Access
	for a, err := range c.Accesses() {
		if err != nil {
			t.Fatal(err)
		}
		row := *a
		row.Experts = slices.Clone(a.Experts)
		rows = append(rows, row)
	}
	return c, rows
}

// countRows counts the access rows of a capture that is still being written; 0 if there is none yet.
func countRows(dir string) int {
	c, err := trace.Open(dir)
	if err != nil {
		return 0
	}
	n := 0
	for _, err := range c.Accesses() {
		if err != nil {
			return 0
		}
		n++
	}
	return n
}

// read is an op's read of a weight, as far as both the tracer and the ground truth record it.
type read struct {
	Step    int
	Op      string
	Tensor  string
	Data    uint64
	Bytes   int64
	Experts []int32
	Warmup  bool
}

func (r read) String() string { return fmt.Sprintf("%+v", struct{ read }{r}.read) }

// lastOp returns the last of the ops of a fused op, which is the one that reads the weight. The
// ground truth comes from the scheduler's callback, which sees the ops one by one.
func lastOp(op string) string { return op[strings.LastIndex(op, "+")+1:] }

func TestSequenceEqualsGroundTruth(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	cases := map[string]struct {
		model   synth.Config
		real    bool // instead of model
		flags   []string
		warmup  string
		threads int
	}{
		"real":              {real: true},
		"real perf events":  {real: true, flags: []string{"--perf-events"}},
		"dense":             {model: denseModel},
		"dense perf events": {model: denseModel, flags: []string{"--perf-events"}},
		"dense tied F16": {
			model: with(denseModel, func(c *synth.Config) { c.Tied, c.Type = true, gguf.F16 }),
		},
		"dense Q4_K":                  {model: with(denseModel, func(c *synth.Config) { c.Type = gguf.Q4_K })},
		"moe":                         {model: moeModel},
		"moe Q4_0":                    {model: with(moeModel, func(c *synth.Config) { c.Type = gguf.Q4_0 })},
		"moe, every expert warmed up": {model: moeModel, warmup: "all"},
		"two threads":                 {model: moeModel, threads: 2},
		// 40 experts of 64 used, over a prompt: more ids than one event carries
		"moe, many ids": {model: with(moeModel, func(c *synth.Config) { c.Layers, c.Experts, c.Used = 2, 64, 40 })},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the kernel takes long to remove probes of perf events, and tracer waits for it
			var path string
			if tc.real {
				path = llamatest.Gemma(t).File
			} else {
				path = llamatest.Model(t, tc.model)
			}
			o := llama.Options{
				Model: path, Prompt: "the quick brown fox", Tokens: 6,
				Threads: max(tc.threads, 1), NoRepack: true, Warmup: tc.warmup,
				Ops: filepath.Join(t.TempDir(), "ops.jsonl"),
			}
			c, rows := traced(t, in, o, tc.flags...)
			ops, err := llama.ReadOps(o.Ops)
			if err != nil {
				t.Fatal(err)
			}
			var got, want []read
			for _, a := range rows {
				s := c.Structure[a.Tensor]
				isWarmup := a.Phase == tables.PhaseWarmup
				got = append(got, read{int(a.Step), lastOp(a.Op), s.Name, a.DataPtr, a.Bytes, a.Experts, isWarmup})
				if a.Offset < s.Offset || a.Offset+a.Bytes > s.Offset+s.Size {
					t.Errorf("row reads [%d, +%d), outside %s at [%d, +%d)",
						a.Offset, a.Bytes, s.Name, s.Offset, s.Size)
				}
			}
			for _, op := range ops {
				want = append(want, read{op.Decode, op.Op, op.Tensor, op.Data, op.Bytes, op.Experts, op.Warmup})
			}
			compare(t, got, want)
			if c.Meta.Tokens != o.Tokens || !c.Meta.Complete {
				t.Errorf("capture has %d tokens, complete %v; want %d, true",
					c.Meta.Tokens, c.Meta.Complete, o.Tokens)
			}
			k := c.Meta.Counters
			sum := k.OtherThreads + k.NoWeight + k.OpsSent + k.OpsLost + k.Unfinished + k.Faults
			if sum != k.Hits || k.Faults+k.Unresolved+k.Clipped != 0 {
				t.Errorf("%d hits are accounted for, want %d and no faults: %+v", sum, k.Hits, k)
			}
			if k.Received != uint64(len(rows)) {
				t.Errorf("received %d events, wrote %d rows", k.Received, len(rows))
			}

			// Once more without the callback of the ground truth, which changes how graphs are
			// computed.
			o.Ops = ""
			c2, plain := traced(t, in, o, tc.flags...)
			compare(t, sequence(c2, plain), sequence(c, rows))
			checkRoutes(t, c2, ops, tc.model.Experts > 0)
		})
	}
}

// sequence returns the reads without values that differ from process to process. It also leaves out
// how ops were fused, because the callback of the ground truth prevents that.
func sequence(c *trace.Capture, rows []tables.Access) []read {
	var out []read
	for _, a := range rows {
		out = append(out, read{
			Step: int(a.Step), Op: lastOp(a.Op), Tensor: c.Structure[a.Tensor].Name, Bytes: a.Bytes, Experts: a.Experts,
		})
	}
	return out
}

func compare(t *testing.T, got, want []read) {
	t.Helper()
	if len(want) == 0 {
		t.Fatal("the ground truth is empty")
	}
	for i := range min(len(got), len(want)) {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("read %d of %d is\n%v, want\n%v", i, len(want), got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d reads, want %d", len(got), len(want))
	}
}

// checkRoutes compares the routes of the last token of each step with the driver's dump. For a
// model without experts there are none.
func checkRoutes(t *testing.T, c *trace.Capture, ops []llama.Op, experts bool) {
	t.Helper()
	type key struct{ step, layer int32 }
	got, last := map[key][]int32{}, map[key]int32{}
	for r, err := range c.Routes() {
		if err != nil {
			t.Fatal(err)
		}
		k := key{r.Step, r.Layer}
		if r.Slot == 0 {
			got[k], last[k] = nil, r.Position
		}
		if r.Position != last[k] || int(r.Slot) != len(got[k]) {
			t.Fatalf("route %+v is out of order", r)
		}
		got[k] = append(got[k], r.Expert)
	}
	want := map[key][]int32{}
	layers := map[string]int32{}
	for _, s := range c.Structure {
		layers[s.Name] = s.Layer
	}
	for _, op := range ops {
		if op.LastExperts != nil && !op.Warmup {
			k := key{int32(op.Decode), layers[op.Tensor]}
			want[k] = op.LastExperts
			// This also holds in the last layer, which computes only the token whose output is needed.
			if end := int32(op.NTokens - 1); last[k] != end {
				t.Errorf("step %d, layer %d: last routed position %d, want %d", k.step, k.layer, last[k], end)
			}
		}
	}
	if (len(want) > 0) != experts {
		t.Errorf("the ground truth has %d routes, want some: %v", len(want), experts)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("routes of the last tokens:\n%v, want\n%v", got, want)
	}
}

// With a wrapper that executes llama.cpp, libraries are found only while they are loaded. Then the
// first events may be missed, so this target repeats often.
func TestLateLibraries(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: "late", Tokens: 4, NoRepack: true, Threads: 1, Repeat: 1000,
	}
	dir := filepath.Join(t.TempDir(), "capture")
	args := []string{"--no-probe", "-o", dir, "--", "sh", "-c", `exec "$0" "$@"`}
	r := runTracer(t, append(args, in.Command(t.Context(), o).Args...)...)
	if r.status != 0 {
		t.Fatalf("tracer ended with %d:\n%s", r.status, r.stderr)
	}
	c, rows := readCapture(t, dir)
	if c.Meta.Tokens == 0 || len(rows) == 0 {
		t.Errorf("traced %d tokens, %d rows; want some", c.Meta.Tokens, len(rows))
	}
}

// A run of a fraction of a second is captured even if no argument of the command names the model.
// The model is found in the target's memory map while the target runs.
func TestShortRun(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: "short", Tokens: 200, NoRepack: true, Threads: 1,
	}
	dir := filepath.Join(t.TempDir(), "capture")
	script := filepath.Join(t.TempDir(), "run.sh")
	text := fmt.Appendf(nil, "exec '%s'\n", strings.Join(in.Command(t.Context(), o).Args, "' '"))
	if err := os.WriteFile(script, text, 0o600); err != nil {
		t.Fatal(err)
	}
	r := runTracer(t, "--no-probe", "-o", dir, "--", "sh", script)
	if r.status != 0 {
		t.Fatalf("tracer ended with %d:\n%s", r.status, r.stderr)
	}
	if c, rows := readCapture(t, dir); c.Meta.Tokens == 0 || len(rows) == 0 {
		t.Errorf("traced %d tokens, %d rows; want some:\n%s", c.Meta.Tokens, len(rows), r.stderr)
	}
}

// A ggml without a function that each op calls, such as that of some forks, can be traced only by
// graphs. tracer says so. The test changes the name of that function in a real ggml, and preloads a
// library that has a function of the new name.
func TestOldGGML(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.Public(t, llamatest.ForTest(t))
	libs, err := filepath.Glob(filepath.Join(in.Dir, "libggml-cpu*.so"))
	if err != nil || len(libs) == 0 {
		t.Skipf("no libggml-cpu*.so in %s: %v", in.Dir, err)
	}
	for _, lib := range libs {
		data, err := os.ReadFile(lib)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(data, []byte("\x00ggml_cpu_extra_compute_forward\x00")); n == 0 {
			t.Skipf("%s has no name to change", lib)
		}
		data = bytes.ReplaceAll(data,
			[]byte("\x00ggml_cpu_extra_compute_forward\x00"), []byte("\x00fork_cpu_extra_compute_forward\x00"))
		if err := errors.Join(os.Remove(lib), os.WriteFile(lib, data, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	source, preload := filepath.Join(in.Dir, "fork.c"), filepath.Join(in.Dir, "fork.so")
	text := []byte("int fork_cpu_extra_compute_forward(void *p, void *op) { return 0; }\n")
	if err := os.WriteFile(source, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", preload, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv("LD_PRELOAD", preload)
	o := llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: "an old one", Tokens: 50, Threads: 1, NoRepack: true,
	}
	command := in.Command(t.Context(), o).Args
	for _, wrapped := range [][]string{nil, {"sh", "-c", `exec "$@"`, "sh"}} {
		dir := filepath.Join(t.TempDir(), "capture")
		r := runTracer(t, slices.Concat([]string{"--no-probe", "-o", dir, "--"}, wrapped, command)...)
		line := oneError(t, r)
		if !strings.Contains(line, "no ggml_cpu_extra_compute_forward") || !strings.Contains(line, "--detail graph") ||
			r.status != 1 || !strings.Contains(r.stdout, `"text"`) {
			t.Errorf("%q: status %d, %q, the command printed %q; want 1, advice to trace graphs, the command's output",
				wrapped, r.status, r.stderr, r.stdout)
		}
	}
	_, rows := traced(t, in, o, "--detail", "graph")
	if len(rows) == 0 {
		t.Error("--detail graph: no rows, want some")
	}
}

// A model in as many parts as it has tensors has the rows that it has in one file.
func TestManyParts(t *testing.T) {
	testenv.NeedQuiet(t)
	in := llamatest.ForTest(t)
	model := synth.Config{Layers: 112, Embd: 64, FF: 64, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1}
	o := llama.Options{
		Model: llamatest.Model(t, model), Prompt: "parts", Tokens: 30, Threads: 1, NoRepack: true,
	}
	_, whole := traced(t, in, o)
	m, err := gguf.OpenModel(o.Model)
	if err != nil {
		t.Fatal(err)
	}
	o.Model = llamatest.SplitInto(t, o.Model, m.Tensors())[0]
	c, parts := traced(t, in, o)
	_, preloaded := traced(t, in, o, "--preload")
	if m.Tensors() < 1000 || len(c.Meta.Models) != 1 || len(c.Meta.Models[0].Files) != m.Tensors() ||
		c.Meta.Models[0].LayersElsewhere != "" {
		t.Errorf("%d parts: %+v", m.Tensors(), c.Meta.Models)
	}
	bytes := func(rows []tables.Access) (sum int64) {
		for _, r := range rows {
			sum += r.Bytes
		}
		return sum
	}
	if len(whole) < 3*m.Tensors() || len(parts) != len(whole) || bytes(parts) != bytes(whole) ||
		len(preloaded) != len(whole) || bytes(preloaded) != bytes(whole) {
		t.Errorf("%d rows with %d bytes, preloaded %d with %d, want %d with %d", len(parts), bytes(parts), len(preloaded),
			bytes(preloaded), len(whole), bytes(whole))
	}
}

func TestAttachToRunning(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{
		Model: llamatest.Model(t, moeModel), Prompt: "attach", Tokens: 50, Threads: 1, NoRepack: true, Repeat: 2,
	}
	plain, err := in.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	// The target goes on until it is told to stop, so that there is time to attach on a slow machine.
	o.Repeat, o.Pause = 1<<20, 2
	target := in.Command(t.Context(), o)
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
	testenv.WaitMapped(t, target.Process.Pid, o.Model)
	dir := traceSome(t, target.Process.Pid, 4096)
	if err := target.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatalf("the target did not survive the tracer: %v", err)
	}
	c, rows := readCapture(t, dir)
	if !c.Meta.Complete || c.Meta.Tokens < 2 || c.Meta.PID != target.Process.Pid {
		t.Errorf("the capture is %+v, want a complete one of process %d", c.Meta, target.Process.Pid)
	}
	if c.Meta.Command[0] != in.Driver {
		t.Errorf("command %q, want %q", c.Meta.Command, in.Driver)
	}
	// All complete generation steps read the same tensors.
	steps := map[int32][]int32{}
	for _, a := range rows {
		if a.Phase == tables.PhaseGeneration {
			steps[a.Step] = append(steps[a.Step], a.Tensor)
		}
	}
	var last int32
	for s := range steps {
		last = max(last, s)
	}
	delete(steps, last) // it may be incomplete
	if len(steps) < 2 {
		t.Errorf("%d complete generation steps, want at least 2 to compare", len(steps))
	}
	var first []int32
	for s, tensors := range steps {
		if first == nil {
			first = tensors
		}
		if !slices.Equal(tensors, first) {
			t.Errorf("step %d reads %d tensors in another order than the first (%d)", s, len(tensors), len(first))
		}
	}
	if plain.Text != plain.Repeat[0].Text {
		t.Error("the driver itself is not deterministic")
	}
}

// A model of a type that nobody knows is traced as its original is: a llama.cpp that has loaded it is
// traced before and after its file gets another number for the type.
func TestUnknownType(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	for name, model := range map[string]synth.Config{"dense": denseModel, "experts": moeModel} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := llama.Options{
				Model: llamatest.Copy(t, llamatest.Model(t, model)), Prompt: "unknown", Tokens: 200, Threads: 1,
				NoRepack: true, Repeat: 1 << 20,
			}
			target := in.Command(t.Context(), o)
			if err := target.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
			testenv.WaitMapped(t, target.Process.Pid, o.Model)
			known := readsOfToken(t, target.Process.Pid, o.Model)
			llamatest.RenameType(t, o.Model, gguf.Q8_0, 999)
			unknown := readsOfToken(t, target.Process.Pid, o.Model)
			if len(known) < 10 || !slices.Equal(known, unknown) {
				t.Errorf("%d reads, %d of the type that is not known:\n%s\n%s", len(known), len(unknown), known,
					unknown)
			}
		})
	}
}

// traceSome traces a process until so many bytes of accesses are written. It returns the capture.
func traceSome(t *testing.T, pid int, least int64) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "capture")
	tracer := exec.Command(tracerBinary, "-o", dir, "--no-probe", "--pid", fmt.Sprint(pid))
	var stderr bytes.Buffer
	tracer.Stderr = &stderr
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "rows to be written", func() bool {
		m, err := os.Stat(filepath.Join(dir, trace.AccessFile))
		return err == nil && m.Size() > least || tracer.Process.Signal(syscall.Signal(0)) != nil
	})
	if err := errors.Join(tracer.Process.Signal(os.Interrupt), tracer.Wait()); err != nil {
		t.Fatalf("tracer: %v\n%s", err, stderr.String())
	}
	return dir
}

// readsOfToken traces a process for some tokens, and returns what a token reads: in order, with how many
// experts and bytes.
func readsOfToken(t *testing.T, pid int, model string) (reads []string) {
	t.Helper()
	dir := traceSome(t, pid, 64<<10)
	c, rows := readCapture(t, dir)
	f, err := gguf.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	var steps []int32
	for _, a := range rows {
		if a.Phase == tables.PhaseGeneration && (len(steps) == 0 || a.Step != steps[len(steps)-1]) {
			steps = append(steps, a.Step)
		}
	}
	if len(steps) < 3 {
		t.Fatalf("%d steps of generation, want a whole one between two others", len(steps))
	}
	for _, a := range rows {
		if a.Step != steps[len(steps)/2] {
			continue
		}
		x, ok := f.Lookup(c.Structure[a.Tensor].Name)
		if !ok || x.Offset != c.Structure[a.Tensor].Offset || c.Structure[a.Tensor].Type != x.Type.String() {
			t.Errorf("the capture has %+v, the file %+v", c.Structure[a.Tensor], x)
		}
		reads = append(reads, fmt.Sprintf("%s %s %d %d", a.Op, x.Name, a.Bytes, len(a.Experts)))
	}
	return reads
}

// The target's output is the same with and without tracer.
func TestTargetIsUnharmed(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{
		Model: llamatest.Model(t, moeModel), Prompt: "unharmed", Tokens: 24, Threads: 1, NoRepack: true,
	}
	plain, err := in.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{"--no-probe", "-o", filepath.Join(t.TempDir(), "c"), "--"}
	r := runTracer(t, append(flags, in.Command(t.Context(), o).Args...)...)
	if r.status != 0 {
		t.Fatalf("tracer ended with %d:\n%s", r.status, r.stderr)
	}
	got, err := llama.ParseResult([]byte(r.stdout))
	if err != nil {
		t.Fatalf("the target's standard output is not its own: %v\n%s", err, r.stdout)
	}
	if got.Text != plain.Text || plain.Text == "" {
		t.Errorf("text with tracer %q, without %q; want the same", got.Text, plain.Text)
	}
	for _, want := range []string{"received", "lost", "filtered"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("the summary has no number of events %s: %s", want, r.stderr)
		}
	}
}

// A buffer that is too small loses events. All of them are counted.
func TestLossIsCounted(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: strings.Repeat("x", 40), Tokens: 200, Threads: 1, NoRepack: true,
	}
	dir := filepath.Join(t.TempDir(), "capture")
	args := []string{"--no-probe", "-o", dir, "--buffer", "4", "--strict", "--"}
	args = append(args, in.Command(t.Context(), o).Args...)
	r := runTracer(t, args...)
	c, rows := readCapture(t, dir)
	k := c.Meta.Counters
	if k.OpsLost == 0 {
		t.Fatalf("a buffer of 4 KiB lost nothing, want losses: %+v", k)
	}
	if r.status != 1 || !strings.Contains(r.stderr, "--buffer") {
		t.Errorf("--strict: status %d, %q; want 1 and advice on --buffer", r.status, r.stderr)
	}
	sum := k.OtherThreads + k.NoWeight + k.OpsSent + k.OpsLost + k.Unfinished + k.Faults
	if k.Hits != sum || k.Received != k.OpsSent {
		t.Errorf("%d hits are accounted for, want %d: %+v", sum, k.Hits, k)
	}
	if int64(len(rows)) != c.Meta.Rows {
		t.Errorf("%d rows, want %d as in capture.json", len(rows), c.Meta.Rows)
	}
}

// tracer's status is that of the command, also if a signal ends it. A signal to tracer is passed on.
func TestStatusOfTheCommand(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: "s", Tokens: 100, Threads: 1, NoRepack: true, Repeat: 1 << 20,
		Pause: 2,
	}
	dir := filepath.Join(t.TempDir(), "capture")
	args := append([]string{"--no-probe", "-o", dir, "--"}, in.Command(t.Context(), o).Args...)
	cmd := exec.Command(tracerBinary, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "rows to be written", func() bool {
		m, err := os.Stat(filepath.Join(dir, trace.AccessFile))
		return err == nil && m.Size() > 4096
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 128+int(syscall.SIGTERM) {
		t.Errorf("status %d, want %d\n%s", got, 128+int(syscall.SIGTERM), stderr.String())
	}
	if c, rows := readCapture(t, dir); !c.Meta.Complete || len(rows) == 0 {
		t.Errorf("the capture has %d rows, want a complete one with rows: %+v", len(rows), c.Meta)
	}

	r := runTracer(t,
		"-o", filepath.Join(t.TempDir(), "c"), "--", in.Driver, "-m", "/no/such/model.gguf", "-p", "x")
	if r.status != 1 || !strings.Contains(r.stderr, "/no/such/model.gguf") {
		t.Errorf("status %d: %s; want 1 and an error that names the model", r.status, r.stderr)
	}
}

// If the tracer is killed, complete batches stay, and the target goes on.
func TestTracerKilled(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := llama.Options{
		Model: llamatest.Model(t, denseModel), Prompt: "s", Tokens: 100, Threads: 1, NoRepack: true, Repeat: 1 << 20,
		Pause: 2,
	}
	dir := filepath.Join(t.TempDir(), "capture")
	args := append([]string{"--no-probe", "-o", dir, "--"}, in.Command(t.Context(), o).Args...)
	cmd := exec.Command(tracerBinary, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Waiting for a size is not enough, because a kill in the middle of the first batch leaves no rows.
	testenv.WaitFor(t, "a whole batch to be written", func() bool { return countRows(dir) > 0 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	c, rows := readCapture(t, dir)
	if c.Meta.Complete || len(rows) == 0 {
		t.Errorf("complete %v, %d rows; want false, some", c.Meta.Complete, len(rows))
	}
	target, err := os.FindProcess(c.Meta.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Kill() }()
	before := processorTime(t, c.Meta.PID)
	testenv.WaitFor(t, "the target to go on", func() bool { return processorTime(t, c.Meta.PID) > before })
}

// processorTime is the time that a process has computed in user mode, in ticks.
func processorTime(t *testing.T, pid int) int {
	t.Helper()
	p, err := procfs.NewProc(pid)
	if err != nil {
		t.Fatalf("the target has ended: %v", err)
	}
	s, err := p.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return int(s.UTime)
}

// errorLines returns the lines of standard error that do not belong to the summary.
func errorLines(r result) (errs []string) {
	for line := range strings.Lines(r.stderr) {
		if !strings.HasPrefix(line, "  ") && !strings.Contains(line, "(detail ") {
			errs = append(errs, line)
		}
	}
	return errs
}

// oneError returns the only line of standard error that does not belong to the summary.
func oneError(t *testing.T, r result) string {
	t.Helper()
	errs := errorLines(r)
	if len(errs) != 1 {
		t.Fatalf("%d lines of error, want 1:\n%s", len(errs), r.stderr)
	}
	if !strings.HasPrefix(errs[0], "tracer: ") {
		t.Errorf("the line is %q, want tracer: at its beginning", errs[0])
	}
	return errs[0]
}

func TestBadInput(t *testing.T) {
	model := llamatest.Model(t, denseModel)
	q4 := llamatest.Model(t, with(denseModel, func(c *synth.Config) { c.Type = gguf.Q4_0 }))
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	sleeper := exec.Command("sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "thesis.tex"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	driver := func(t *testing.T, o llama.Options) []string {
		in := llamatest.ForTest(t)
		return append([]string{"--"}, in.Command(t.Context(), o).Args...)
	}
	if err := os.Chmod(model, 0o755); err != nil { // one case executes it as a program
		t.Fatal(err)
	}
	cases := map[string]struct {
		args     func(t *testing.T) []string
		status   int
		want     []string // parts of the error
		nobody   bool     // run without root
		rootless bool     // the case needs no root
	}{
		"no such command": {
			args: fixed("--", "/no/such/llama-cli"), status: 1,
			want: []string{"/no/such/llama-cli", "no such file"}, rootless: true,
		},
		"not in PATH": {
			args: fixed("--", "no-such-llama-cli"), status: 1,
			want: []string{"no-such-llama-cli", "no such command in PATH"}, rootless: true,
		},
		"not executable": {
			args: fixed("--", filepath.Join(other, "thesis.tex")), status: 1,
			want: []string{"thesis.tex", "permission denied"}, rootless: true,
		},
		"a directory": {
			args: fixed("--", other), status: 1, want: []string{other, "permission denied"}, rootless: true,
		},
		"no program": {
			args: fixed("--", model), status: 1, want: []string{model, "exec format error"}, rootless: true,
		},
		"CSV in no place": {
			args: fixed("--csv", "-o", "/no/such/place.csv", "--", "true"), status: 1,
			want: []string{"/no/such/place.csv"},
		},
		"no such process": {
			args: fixed("--pid", fmt.Sprint(gone.Process.Pid)), status: 1, want: []string{"no such process"},
		},
		"no permission":    {args: fixed("--", "true"), status: 1, want: []string{"root", "CAP_BPF"}, nobody: true},
		"no ggml, command": {args: fixed("--", "true"), status: 1, want: []string{"found no ggml"}},
		"no graph, preload": {
			args: fixed("--preload", "--", "true"), status: 1,
			want: []string{"ggml_graph_compute", "without --preload"}, rootless: true,
		},
		"no ggml, pid": {
			args: fixed("--pid", fmt.Sprint(sleeper.Process.Pid)), status: 1, want: []string{"found no ggml"},
		},
		"repacked": {args: func(t *testing.T) []string {
			return driver(t, llama.Options{Model: q4, Prompt: "r", Tokens: 2, Threads: 1})
		}, status: 1, want: []string{"outside the model file's mapping", "--no-repack"}},
		"not mapped": {args: func(t *testing.T) []string {
			return driver(t, llama.Options{
				Model: model, Prompt: "r", Tokens: 2, Threads: 1, LoadMode: "none", NoRepack: true,
			})
		}, status: 1, want: []string{"outside the model file's mapping", "--load-mode"}},
		"capture directory in use": {args: func(t *testing.T) []string {
			o := llama.Options{Model: model, Prompt: "r", Tokens: 2, Threads: 1, NoRepack: true}
			return append([]string{"-o", other}, driver(t, o)...)
		}, status: 1, want: []string{"thesis.tex", "-o"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if !tc.rootless {
				testenv.NeedRoot(t)
			}
			args := tc.args(t)
			if !slices.Contains(args, "-o") {
				args = append([]string{"-o", filepath.Join(t.TempDir(), "capture")}, args...)
			}
			cmd := exec.Command(tracerBinary, args...)
			if tc.nobody {
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			}
			r := finish(t, cmd)
			if r.status != tc.status {
				t.Errorf("status %d, want %d", r.status, tc.status)
			}
			line := oneError(t, r)
			for _, want := range tc.want {
				if !strings.Contains(line, want) {
					t.Errorf("the line is %q, want %q in it", line, want)
				}
			}
		})
	}
	if _, err := os.Stat(filepath.Join(other, "thesis.tex")); err != nil {
		t.Error("the user's file was removed")
	}
}

// fixed returns a function that returns arguments.
func fixed(args ...string) func(*testing.T) []string {
	return func(*testing.T) []string { return args }
}

// A kernel without a description of its types cannot run the probes' programs. One line says so,
// and what to do instead.
func TestNoBTF(t *testing.T) {
	testenv.NeedRoot(t)
	if _, err := os.Stat("/sys/kernel/btf"); err != nil {
		t.Skipf("nothing to hide: %v", err)
	}
	// A mount namespace hides the kernel's description.
	const script = `mount -t tmpfs none /sys/kernel/btf && exec "$0" "$@"`
	r := finish(t, exec.Command("unshare", "--mount", "sh", "-c", script,
		tracerBinary, "-o", t.TempDir(), "--", "true"))
	if r.status != cli.Failure || strings.Count(r.stderr, "\n") != 1 ||
		!strings.Contains(r.stderr, "CONFIG_DEBUG_INFO_BTF") || !strings.Contains(r.stderr, "--preload") {
		t.Errorf("status %d: %s; want %d and one line on CONFIG_DEBUG_INFO_BTF and --preload",
			r.status, r.stderr, cli.Failure)
	}
}
