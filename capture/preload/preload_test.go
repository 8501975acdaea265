package preload

// These tests run real programs as an ordinary user. This machine's compiler compiles the shim.

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"tensorcast/event"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
)

var (
	denseModel = synth.Config{Layers: 3, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1}
	moeModel   = synth.Config{
		Layers: 3, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Experts: 8, Used: 3, Type: gguf.Q8_0,
		Seed: 2,
	}
)

// ordinary is the user that programs run as: "nobody" if the tests run as root, else nil, which
// means the user of the tests.
func ordinary() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: 65534, Gid: 65534}
}

// openDir creates a directory that the ordinary user can write to.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	c := ordinary()
	if c == nil {
		return dir
	}
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, int(c.Uid), int(c.Gid))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// install returns a llama.cpp that the ordinary user can run.
func install(t *testing.T) *llama.Installation {
	t.Helper()
	return llamatest.Public(t, llamatest.ForTest(t))
}

func model(t *testing.T, c synth.Config) string {
	t.Helper()
	path := filepath.Join(openDir(t), "model.gguf")
	if err := os.Rename(llamatest.Model(t, c), path); err != nil {
		t.Fatal(err)
	}
	return path
}

// run is the record of a program's run under the shim.
type run struct {
	stdout, stderr string
	state          *os.ProcessState
	pid            int
	events         []event.Event
	counters       event.Counters
	libraries      []string
	target         event.TargetInfo
	seen, err      error // of Explain and of Run
}

// scene describes what happens during a run.
type scene struct {
	Options
	event func(*exec.Cmd, event.Event) // gets each event as it comes
	fails bool                         // Run is to return an error
	// mayFail allows Run to return an error. The program goes on.
	mayFail bool
	asRoot  bool // the program's user is root
}

// observe runs a program to its end.
func observe(t *testing.T, cmd *exec.Cmd, sc scene) run {
	t.Helper()
	if !sc.asRoot {
		sc.Credential = ordinary()
	}
	s, err := Start(t.Context(), sc.Options)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = s.Environ(cmd.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: sc.Credential}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_ = cmd.Wait() // the tests check the state
		cancel()
	}()
	r := run{pid: cmd.Process.Pid}
	r.err = s.Run(ctx, r.pid, func(e event.Event) error {
		r.events = append(r.events, e)
		if sc.event != nil {
			sc.event(cmd, e)
		}
		return nil
	})
	if r.err != nil && !sc.mayFail {
		_ = cmd.Process.Kill()
	}
	<-ctx.Done()
	if (r.err != nil) != sc.fails && !sc.mayFail {
		t.Fatalf("Run returned %v; standard error: %s", r.err, stderr.String())
	}
	if r.counters, err = s.Counters(); err != nil {
		t.Fatal(err)
	}
	r.stdout, r.stderr, r.state = stdout.String(), stderr.String(), cmd.ProcessState
	r.seen, r.libraries, r.target = s.Explain(), s.Libraries(), s.Target(r.pid)
	return r
}

// checkAccounted checks that each computed op was received, lost, filtered, or under way when its
// process was killed.
func checkAccounted(t *testing.T, r run) {
	t.Helper()
	c := r.counters
	if c.Hits != c.NoWeight+c.OpsSent+c.OpsLost+c.Unfinished || c.Received != c.OpsSent {
		t.Errorf("ops are not all accounted for: %+v", c)
	}
	var ops uint64
	for _, e := range r.events {
		if _, ok := e.(*event.Op); ok {
			ops++
		}
	}
	if ops != c.Received {
		t.Errorf("got %d ops, want %d as counted", ops, c.Received)
	}
}

// read is an op's read of a weight, as far as both the shim and the ground truth report it.
type read struct {
	Step   int
	Op     string
	Tensor string
	Data   uint64
	File   string
	Offset int64
	Bytes  int64
}

// reads converts the events to reads. It numbers steps from 0, as the driver does.
func (r run) reads(t *testing.T) []read {
	t.Helper()
	files := map[event.FileID]string{}
	step, open := -1, false
	var last uint64
	var out []read
	for _, e := range r.events {
		switch e := e.(type) {
		case event.FileSeen:
			files[e.File] = e.Path
		case event.DecodeBegin:
			if open {
				t.Fatal("a decode begins in another")
			}
			step, open = step+1, true
		case event.DecodeEnd:
			open = false
		case *event.Op:
			if !open || int(e.Decode) != step+1 {
				t.Fatalf("op of decode %d, want %d, and the decode open (it is: %v)", e.Decode, step+1, open)
			}
			if e.Seq <= last || e.Duration != -1 || e.Stall != -1 || int(e.PID) != r.pid {
				t.Fatalf("op %+v, want a number above %d, of process %d, without times", e, last, r.pid)
			}
			last = e.Seq
			for _, s := range e.Sources {
				bytes := s.Bytes()
				switch {
				case e.ByExpert && e.Selects > 0:
					bytes = int64(e.Selects) * s.NB[e.GatherDim]
				case e.ByExpert:
					bytes = -1
				case e.GatherDim > 0:
					ids := slices.Clone(e.IDs)
					slices.Sort(ids)
					bytes = int64(len(slices.Compact(ids))) * s.NB[e.GatherDim]
				}
				out = append(out, read{step, e.Name, s.Name, s.Data, files[s.File], s.Offset, bytes})
			}
		}
	}
	if open {
		t.Error("the last decode does not end")
	}
	return out
}

// truth returns the reads in the driver's dump. Which experts several tokens select is not known
// before the graph has run. Such reads have no bytes in both results.
func truth(t *testing.T, path string, got []read) []read {
	t.Helper()
	ops, err := llama.ReadOps(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []read
	for i, op := range ops {
		r := read{op.Decode, op.Op, op.Tensor, op.Data, op.File, op.Offset, op.Bytes}
		if op.Experts != nil && op.NTokens > 1 && i < len(got) && got[i].Bytes == -1 {
			r.Bytes = -1
		}
		out = append(out, r)
	}
	return out
}

func compare(t *testing.T, got, want []read) {
	t.Helper()
	if len(want) == 0 {
		t.Fatal("nothing to compare with")
	}
	for i := range min(len(got), len(want)) {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("read %d of %d is\n%+v, want\n%+v", i, len(want), got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d reads, want %d", len(got), len(want))
	}
}

// sequence returns the events without what differs from process to process.
func sequence(reads []read) []read {
	out := slices.Clone(reads)
	for i := range out {
		out[i].Data = 0
	}
	return out
}

func TestSequenceEqualsGroundTruth(t *testing.T) {
	in := install(t)
	for name, tc := range map[string]struct {
		model   synth.Config
		warmup  string
		threads int
	}{
		"dense":                       {model: denseModel},
		"dense, two threads":          {model: denseModel, threads: 2},
		"moe":                         {model: moeModel},
		"moe, every expert warmed up": {model: moeModel, warmup: "all"},
	} {
		t.Run(name, func(t *testing.T) {
			o := llama.Options{
				Model: model(t, tc.model), Prompt: "the quick brown fox", Tokens: 6, Threads: max(tc.threads, 1),
				NoRepack: true, Warmup: tc.warmup,
				Ops: filepath.Join(openDir(t), "ops.jsonl"),
			}
			r := observe(t, in.Command(t.Context(), o), scene{})
			if !r.state.Success() {
				t.Fatalf("the program ended with %v, want success: %s", r.state, r.stderr)
			}
			got := r.reads(t)
			compare(t, got, truth(t, o.Ops, got))
			checkAccounted(t, r)
			if lost := r.counters.Lost(); lost != 0 || r.seen != nil {
				t.Errorf("lost %d; %v; want 0", lost, r.seen)
			}
			checkDecodes(t, r, tc.warmup == "all")

			// The ground truth needs a callback. The two must agree without it as well.
			o.Ops = ""
			compare(t, sequence(observe(t, in.Command(t.Context(), o), scene{}).reads(t)), sequence(got))
		})
	}
}

// checkDecodes compares the decodes with those of the driver: a warm-up of 2 tokens, a prompt, 6
// tokens.
func checkDecodes(t *testing.T, r run, announced bool) {
	t.Helper()
	var tokens []int32
	contexts := map[uint64]bool{}
	for _, e := range r.events {
		d, ok := e.(event.DecodeBegin)
		if !ok {
			continue
		}
		if d.Derived || !slices.Equal(d.Sequences, []int32{0}) || d.Warmup != (announced && len(tokens) == 0) {
			t.Errorf("decode %+v, want one that is not derived, of sequence 0", d)
		}
		contexts[d.Context] = true
		tokens = append(tokens, d.Tokens)
	}
	if len(tokens) != 8 || tokens[0] != 2 || tokens[1] < 2 || !slices.Equal(tokens[2:], []int32{1, 1, 1, 1, 1, 1}) ||
		len(contexts) != 1 {
		t.Errorf("decodes of %v tokens in %d contexts, want 2, a prompt, then six of 1, in one context", tokens,
			len(contexts))
	}
}

// The program prints the same whether it is observed or not.
func TestTargetIsUnharmed(t *testing.T) {
	in := install(t)
	for name, config := range map[string]synth.Config{"dense": denseModel, "moe": moeModel} {
		t.Run(name, func(t *testing.T) {
			o := llama.Options{Model: model(t, config), Prompt: "unharmed", Tokens: 24, Threads: 2, NoRepack: true}
			plain, err := in.Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			r := observe(t, in.Command(t.Context(), o), scene{})
			got, err := llama.ParseResult([]byte(r.stdout))
			if err != nil || r.stderr != "" {
				t.Fatalf("%v, stderr %q; want \"\"", err, r.stderr)
			}
			if got.Text != plain.Text || plain.Text == "" {
				t.Errorf("text %q, want %q as without the shim", got.Text, plain.Text)
			}
			checkAccounted(t, r)
		})
	}
}
