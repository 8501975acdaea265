package capture

// These tests capture real commands with the real kernel, and check what becomes of the commands.

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tensorcast/capture/preload"
	"tensorcast/ebpf"
	"tensorcast/event"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var small = synth.Config{
	Layers: 2, Embd: 128, FF: 256, Heads: 4, KVHeads: 2, Vocab: 300, Ctx: 256, Type: gguf.Q8_0,
	Seed: 5,
}

// generation returns the command of a real llama.cpp that generates 4 tokens. With the warm-up and
// the prompt that is 6 decodes.
func generation(t *testing.T) (*llama.Installation, llama.Options) {
	t.Helper()
	testenv.NeedRoot(t)
	return llamatest.ForTest(t), llama.Options{
		Model: llamatest.Model(t, small), Prompt: "x", Tokens: 4, Threads: 1, NoRepack: true,
	}
}

const decodes = 6

// endless returns a command that generates until it is killed.
func endless(t *testing.T) *exec.Cmd {
	t.Helper()
	in, o := generation(t)
	o.Tokens, o.Repeat = 100, 1<<20
	return in.Command(t.Context(), o)
}

// start starts a capture of a command. The capture ends with the test.
func start(t *testing.T, cmd *exec.Cmd, opts Options) *Capture {
	t.Helper()
	c, err := Start(t.Context(), cmd, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// stat returns what the kernel reports about a process, and false if there is none, not even a
// zombie.
func stat(t *testing.T, pid int) (procfs.ProcStat, bool) {
	t.Helper()
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, false
	}
	s, err := p.Stat()
	if err != nil {
		return procfs.ProcStat{}, false
	}
	return s, true
}

// goesOn waits until a process has used the processor more than before.
func goesOn(t *testing.T, pid int) {
	t.Helper()
	before, ok := stat(t, pid)
	if !ok {
		t.Fatalf("process %d is gone", pid)
	}
	testenv.WaitFor(t, "the target to go on", func() bool {
		now, ok := stat(t, pid)
		if !ok {
			t.Fatalf("process %d is gone", pid)
		}
		return now.UTime > before.UTime
	})
}

// seen counts the events that Run hands over.
type seen struct {
	decodes, ops int
	pids         map[int32]bool
}

func (s *seen) handle(e event.Event) error {
	switch e := e.(type) {
	case event.DecodeBegin:
		s.decodes++
	case *event.Op:
		s.ops++
		if s.pids == nil {
			s.pids = map[int32]bool{}
		}
		s.pids[e.PID] = true
	}
	return nil
}

// Each capturer sees a command from its first decode to its last, even if a wrapper executes the
// command.
func TestStart(t *testing.T) {
	in, o := generation(t)
	for name, opts := range map[string]Options{
		"op": {}, "op, and what routers read and choose": {Selected: true, Inputs: 1, AtOnce: true},
		"graph": {Detail: ebpf.DetailGraph}, "perf events": {PerfEvents: true}, "follow": {Follow: true},
		"preload": {Preload: true},
	} {
		for _, wrapped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, wrapped %v", name, wrapped), func(t *testing.T) {
				cmd := in.Command(t.Context(), o)
				if wrapped {
					cmd = exec.Command("sh", append([]string{"-c", `exec "$@"`, "sh"}, cmd.Args...)...)
				}
				var stdout bytes.Buffer
				cmd.Stdout = &stdout
				c := start(t, cmd, opts)
				if s, _ := stat(t, c.PID()); !opts.Preload && (s.State != "t" || s.UTime != 0) {
					t.Errorf("before Run the command is in state %q after %d ticks, want t after 0", s.State, s.UTime)
				}
				var got seen
				if err := c.Run(t.Context(), got.handle); err != nil {
					t.Fatal(err)
				}
				if status, err := c.Wait(t.Context()); status != 0 || err != nil {
					t.Errorf("the command ended with %d, %v; want 0", status, err)
				}
				if _, err := llama.ParseResult(stdout.Bytes()); err != nil {
					t.Errorf("the command's output: %v", err)
				}
				if got.decodes != decodes || got.ops == 0 || len(got.pids) != 1 || !got.pids[int32(c.PID())] {
					t.Errorf("seen %+v, want %d decodes of process %d", got, decodes, c.PID())
				}
				counters, err := c.Counters()
				handedOver := uint64(got.ops)
				if opts.Detail == ebpf.DetailGraph { // one event reports many ops
					handedOver = counters.OpsSent
				}
				if err != nil || counters.Lost() != 0 || counters.Received != handedOver {
					t.Errorf("counters %+v, %v; %d ops were handed over; want counters.Lost() = 0, "+
						"counters.Received = %v", counters, err, got.ops, handedOver)
				}
				if err := c.Explain(); err != nil {
					t.Errorf("Explain = %v, want nil", err)
				}
				if len(c.Libraries()) == 0 || c.Describe(c.PID()).LayoutOrigin == "" {
					t.Errorf("libraries %q, target %+v; want some library, and where the layout is from",
						c.Libraries(), c.Describe(c.PID()))
				}
			})
		}
	}
}

// handle and Tick are called by the goroutine that called Run, so they run in the thread that it is
// locked to.
func TestRunKeepsToItsGoroutine(t *testing.T) {
	in, o := generation(t)
	o.Tokens, o.Repeat = 100, 20
	for name, opts := range map[string]Options{
		"probes":  {Interval: time.Millisecond},
		"preload": {Preload: true, Interval: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			ran := make(chan struct{})
			go func() {
				defer close(ran)
				runtime.LockOSThread()
				thread, handled, ticks := unix.Gettid(), 0, 0
				check := func() {
					if got := unix.Gettid(); got != thread {
						t.Errorf("thread %d, want %d", got, thread)
					}
				}
				opts.Tick = func() error { check(); ticks++; return nil }
				c, err := Start(t.Context(), in.Command(t.Context(), o), opts)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() {
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				}()
				if err := c.Run(t.Context(), func(event.Event) error { check(); handled++; return nil }); err != nil {
					t.Error(err)
				}
				if handled == 0 || ticks < 2 {
					t.Errorf("%d events and %d ticks, want some and at least 2", handled, ticks)
				}
			}()
			<-ran
		})
	}
}

// The status is the command's own. A command that is not llama.cpp runs all the same, and Explain
// says what is missing.
func TestStatus(t *testing.T) {
	testenv.NeedRoot(t)
	for _, preloaded := range []bool{false, true} {
		for script, want := range map[string]int{
			"exit 0": 0, "exit 42": 42, "kill -KILL $$": 128 + int(syscall.SIGKILL),
		} {
			c := start(t, exec.Command("sh", "-c", script), Options{Preload: preloaded})
			if err := c.Run(t.Context(), func(event.Event) error { return nil }); err != nil {
				t.Error(err)
			}
			if status, err := c.Wait(t.Context()); status != want || err != nil {
				t.Errorf("%s: status %d, %v; want %v", script, status, err, want)
			}
			why := event.ErrNoGGML
			if preloaded {
				why = preload.ErrNoGraph
			}
			if err := c.Explain(); !errors.Is(err, why) {
				t.Errorf("%s: %v, want %v", script, err, why)
			}
		}
	}
}

// An error of handle or Tick ends Run at once. The command goes on to its own end, without probes.
func TestFailureLetsTheCommandGoOn(t *testing.T) {
	testenv.NeedRoot(t)
	broken := errors.New("disk full")
	for name, preloaded := range map[string]bool{"probes": false, "preload": true} {
		for _, inTick := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, by Tick %v", name, inTick), func(t *testing.T) {
				events := 0
				opts := Options{Preload: preloaded, Interval: time.Millisecond, Tick: func() error {
					if inTick && events > 0 {
						return broken
					}
					return nil
				}}
				c := start(t, endless(t), opts)
				err := c.Run(t.Context(), func(e event.Event) error {
					if _, op := e.(*event.Op); op {
						events++
					}
					if !inTick && events > 0 {
						return broken
					}
					return nil
				})
				if !errors.Is(err, broken) {
					t.Fatalf("Run returned %v; want %v", err, broken)
				}
				before, err := c.Counters()
				if err != nil {
					t.Fatal(err)
				}
				goesOn(t, c.PID())
				if after, err := c.Counters(); err != nil || !preloaded && after.Hits != before.Hits {
					t.Errorf("%d hits, then %d: probes are left (%v)", before.Hits, after.Hits, err)
				}
				if err := syscall.Kill(c.PID(), syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				if status, err := c.Wait(t.Context()); status != 128+int(syscall.SIGTERM) || err != nil {
					t.Errorf("status %d, %v; want %v", status, err, 128+int(syscall.SIGTERM))
				}
			})
		}
	}
}

// Close leaves nothing of the command, no matter how far the capture has come.
func TestCloseKillsTheCommand(t *testing.T) {
	testenv.NeedRoot(t)
	script := exec.Command("sh", "-c", "while :; do sleep 0.01; done") // it has no ggml, so it is held at each execve
	for name, cmd := range map[string]func() *exec.Cmd{
		"no ggml": func() *exec.Cmd { return exec.Command(script.Path, script.Args[1:]...) },
		"llama":   func() *exec.Cmd { return endless(t) },
	} {
		for _, preloaded := range []bool{false, true} {
			for _, run := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, preload %v, run %v", name, preloaded, run), func(t *testing.T) {
					c, err := Start(t.Context(), cmd(), Options{Preload: preloaded})
					if err != nil {
						t.Fatal(err)
					}
					pid := c.PID()
					if run {
						ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
						defer cancel()
						if err := c.Run(ctx, func(event.Event) error { return nil }); err != nil {
							t.Errorf("Run, which was told to end: %v", err)
						}
						if s, ok := stat(t, pid); !ok || s.State == "Z" {
							t.Error("the command ended with Run")
						}
					}
					if err := c.Close(); err != nil {
						t.Error(err)
					}
					if s, ok := stat(t, pid); ok {
						t.Errorf("the command is left, in state %q", s.State)
					}
				})
			}
		}
	}
}

// Wait kills the command when its context ends.
func TestWaitKills(t *testing.T) {
	testenv.NeedRoot(t)
	c := start(t, exec.Command("sleep", "600"), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Run(ctx, func(event.Event) error { return nil }); err != nil {
		t.Error(err)
	}
	if status, err := c.Wait(ctx); status != 128+int(syscall.SIGKILL) || err != nil {
		t.Errorf("status %d, %v; want %v", status, err, 128+int(syscall.SIGKILL))
	}
}

// A command that is killed while it is stopped never ran. Its end is reported all the same.
func TestKilledBeforeRun(t *testing.T) {
	testenv.NeedRoot(t)
	for _, follow := range []bool{false, true} {
		c := start(t, exec.Command("sleep", "600"), Options{Follow: follow})
		if err := syscall.Kill(c.PID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := c.Run(t.Context(), func(event.Event) error { return nil }); err != nil {
			t.Error(err)
		}
		if status, err := c.Wait(t.Context()); status != 128+int(syscall.SIGKILL) || err != nil {
			t.Errorf("follow %v: status %d, %v; want %v", follow, status, err, 128+int(syscall.SIGKILL))
		}
	}
}

// The error of letting a command run is Wait's error, no matter how the command ended.
func TestReleaseFails(t *testing.T) {
	c, err := Launch(exec.Command("sh", "-c", "exit 3"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	target, broken := c.target.(*command), errors.New("not to be traced")
	release := target.release
	target.release = func() error { return errors.Join(release(), broken) }
	c.Resume()
	if status, err := c.Wait(t.Context()); status != 0 || !errors.Is(err, broken) {
		t.Errorf("status %d, %v; want 0, %v", status, err, broken)
	}
}

// The chosen signals that this process gets reach the command once, even those that come before it
// runs. Others do not.
func TestSignals(t *testing.T) {
	testenv.NeedRoot(t)
	log := filepath.Join(t.TempDir(), "log")
	said := func() string {
		data, err := os.ReadFile(log)
		if err != nil {
			return ""
		}
		return strings.Join(strings.Fields(string(data)), " ")
	}
	const script = `trap 'echo USR1 >> $0' USR1; trap 'echo USR2 >> $0; exit 5' USR2; echo ready >> $0; while :; do sleep 0.01; done`
	c := start(t, exec.Command("sh", "-c", script, log),
		Options{Signals: []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2}})
	ran := make(chan error, 1)
	go func() { ran <- c.Run(t.Context(), func(event.Event) error { return nil }) }()
	for _, want := range []string{"ready", "ready USR1", "ready USR1 USR1", "ready USR1 USR1 USR2"} {
		if sig := want[strings.LastIndexByte(want, ' ')+1:]; sig != "ready" {
			if err := syscall.Kill(os.Getpid(), unix.SignalNum("SIG"+sig)); err != nil {
				t.Fatal(err)
			}
		}
		testenv.WaitFor(t, want, func() bool { return said() == want })
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if status, err := c.Wait(t.Context()); status != 5 || err != nil {
		t.Errorf("status %d, %v; want 5", status, err)
	}

	early := start(t, exec.Command("sleep", "600"), Options{Signals: []syscall.Signal{syscall.SIGUSR1}})
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if err := early.Run(t.Context(), func(event.Event) error { return nil }); err != nil {
		t.Error(err)
	}
	if status, err := early.Wait(t.Context()); status != 128+int(syscall.SIGUSR1) || err != nil {
		t.Errorf("a signal before Run: status %d, %v; want %v", status, err, 128+int(syscall.SIGUSR1))
	}
}

// waitForGGML waits until a process can be attached to.
func waitForGGML(t *testing.T, pid int) {
	t.Helper()
	testenv.WaitFor(t, "the target to have ggml", func() bool {
		c, err := Attach(pid, Options{})
		// libraries are loaded one by one
		if err != nil && !errors.Is(err, event.ErrNoGGML) && !errors.Is(err, event.ErrOldGGML) {
			t.Fatal(err)
		}
		return err == nil && c.Close() == nil
	})
}

// A running process is observed until the context ends, and a second time until it ends by itself.
// Otherwise it is left alone.
func TestAttach(t *testing.T) {
	cmd := endless(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := cmd.Process.Pid
	waitForGGML(t, pid)
	for _, ends := range []bool{false, true} {
		c, err := Attach(pid, Options{Interval: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var got seen
		err = c.Run(ctx, func(e event.Event) error {
			if got.ops == 10 {
				if cancel(); ends {
					_ = cmd.Process.Kill()
				}
			}
			return got.handle(e)
		})
		cancel()
		if err != nil || got.ops < 10 || c.Explain() != nil {
			t.Errorf("ends %v: %+v, %v, %v; want at least 10", ends, got, err, c.Explain())
		}
		if status, err := c.Wait(t.Context()); status != 0 || err != nil {
			t.Errorf("status %d, %v; want 0", status, err)
		}
		if !ends {
			before, _ := c.Counters()
			goesOn(t, pid)
			if after, err := c.Counters(); err != nil || after.Hits != before.Hits {
				t.Errorf("%d hits, then %d: probes are left (%v)", before.Hits, after.Hits, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if !ends {
			goesOn(t, pid)
		}
	}
}

// Probes may be set in the middle of a decode. No op of it is counted to the next decode, which
// begins with its own first op.
func TestAttachInDecode(t *testing.T) {
	cmd := endless(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	waitForGGML(t, cmd.Process.Pid)
	inside := 0
	for range 5 {
		// it computes most of the time, so this is within a decode
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		c, err := Attach(cmd.Process.Pid, Options{Interval: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		decode, first, enough := uint32(0), "", errors.New("enough")
		if err := c.Run(t.Context(), func(e event.Event) error {
			switch e := e.(type) {
			case event.DecodeBegin:
				decode = e.Decode
			case *event.Op:
				if decode == 0 {
					inside++
				} else {
					first = e.Sources[0].Name
					return enough
				}
			}
			return nil
		}); !errors.Is(err, enough) {
			t.Fatal(err)
		}
		if first != event.TokenEmbeddings {
			t.Errorf("the first whole decode begins with %s; want %v", first, event.TokenEmbeddings)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if inside == 0 {
		t.Error("the probes were never set in the middle of a decode")
	}
}

// After Unload nothing observes the command any more. The command goes on, can be attached to
// again, and is ended by Close.
func TestUnload(t *testing.T) {
	cmd := endless(t)
	c, err := Start(t.Context(), cmd, Options{})
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	if err := c.Run(t.Context(), func(event.Event) error { return enough }); !errors.Is(err, enough) {
		t.Fatal(err)
	}
	before := descriptors(t)
	if err := c.Unload(); err != nil {
		t.Fatal(err)
	}
	if after := descriptors(t); after >= before {
		t.Errorf("%d descriptors are open after Unload, want fewer than the %d before", after, before)
	}
	goesOn(t, c.PID())
	again, err := Attach(c.PID(), Options{Late: true})
	if err != nil {
		t.Fatal(err)
	}
	ops := 0
	if err := again.Run(t.Context(), func(ev event.Event) error {
		if _, ok := ev.(*event.Op); ok {
			if ops++; ops == 10 {
				return enough
			}
		}
		return nil
	}); !errors.Is(err, enough) {
		t.Error(err)
	}
	if err := errors.Join(again.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	if _, ok := stat(t, c.PID()); ok {
		t.Error("the command still runs")
	}
}

// A process that ends while it is observed ends Run.
func TestAttachedProcessEnds(t *testing.T) {
	testenv.NeedRoot(t)
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := Attach(cmd.Process.Pid, Options{Late: true})
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = cmd.Process.Kill() })
	if err := c.Run(t.Context(), func(event.Event) error { return nil }); err != nil {
		t.Error(err)
	}
	if err := c.Explain(); !errors.Is(err, event.ErrNoGGML) {
		t.Errorf("sleep has ggml? %v; want %v", err, event.ErrNoGGML)
	}
	_ = cmd.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A target that cannot be captured gives an error of the right type, and nothing is left behind.
func TestErrors(t *testing.T) {
	testenv.NeedRoot(t)
	sleeper, damaged := exec.Command("sleep", "600"), exec.Command(damagedSleep(t), "600")
	for _, cmd := range []*exec.Cmd{sleeper, damaged} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	attach := func(pid int, opts Options) func() (*Capture, error) {
		return func() (*Capture, error) { return Attach(pid, opts) }
	}
	start := func(opts Options, args ...string) func() (*Capture, error) {
		return func() (*Capture, error) { return Start(t.Context(), exec.Command(args[0], args[1:]...), opts) }
	}
	cases := map[string]struct {
		begin func() (*Capture, error)
		want  error  // nil: any
		says  string // in its text
	}{
		"no such process":      {attach(gone.Process.Pid, Options{}), proc.ErrNoProcess, "no such process"},
		"no ggml":              {attach(sleeper.Process.Pid, Options{}), event.ErrNoGGML, ""},
		"preload into running": {attach(sleeper.Process.Pid, Options{Preload: true}), nil, "runs already"},
		"damaged program":      {attach(damaged.Process.Pid, Options{Late: true}), nil, "its names are in section"},
		"damaged program, follow": {attach(damaged.Process.Pid, Options{Follow: true}), nil,
			"its names are in section"},
		"no such program": {start(Options{}, "/no/such/program"), os.ErrNotExist, "/no/such/program"},
		"no such program, preload": {
			start(Options{Preload: true}, "/no/such/program"), os.ErrNotExist, "/no/such/program",
		},
		"odd buffer": {start(Options{RingBytes: 5000}, "sleep", "600"), nil, ""},
		"choices, preload": {start(Options{Preload: true, Selected: true}, "sleep", "600"), ErrNeedsProbes,
			"what routers read and choose"},
		"inputs, preload": {start(Options{Preload: true, Inputs: 2}, "sleep", "600"), ErrNeedsProbes,
			"what routers read and choose"},
		"lookups, preload": {start(Options{Preload: true, Lookups: 1}, "sleep", "600"), ErrNeedsProbes,
			"what routers read and choose"},
		"choices of graphs": {start(Options{Detail: ebpf.DetailGraph, Selected: true}, "sleep", "600"), nil,
			"observe ops"},
		"odd buffer, preload":  {start(Options{RingBytes: 5000, Preload: true}, "sleep", "600"), nil, "5000"},
		"negative buffer":      {start(Options{RingBytes: -1}, "sleep", "600"), nil, "-1"},
		"buffer beyond 32 bit": {start(Options{RingBytes: 1 << 40}, "sleep", "600"), nil, fmt.Sprint(1 << 40)},
	}
	once := func(t *testing.T) {
		for name, tc := range cases {
			c, err := tc.begin()
			if err == nil {
				t.Errorf("%s: the capture began, want %v", name, tc.want)
				_ = c.Close()
				continue
			}
			if tc.want != nil && !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: error %v, want %v with %q", name, err, tc.want, tc.says)
			}
		}
	}
	once(t) // opens descriptors that the runtime and libraries keep
	before := descriptors(t)
	once(t)
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open afterwards, want %d", after, before)
	}
	if left := children(t); len(left) != 2 {
		t.Errorf("children %v are left, want %d and %d alone", left, sleeper.Process.Pid, damaged.Process.Pid)
	}
	for _, cmd := range []*exec.Cmd{sleeper, damaged} {
		if s, ok := stat(t, cmd.Process.Pid); !ok || s.State != "S" {
			t.Errorf("%s, which was attached to, is in state %q, want S", cmd.Path, s.State)
		}
	}
}

// damagedSleep returns a sleep that runs, but has the names of its symbols in a section that does not exist.
func damagedSleep(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(f.Sections, func(s *elf.Section) bool { return s.Type == elf.SHT_DYNSYM })
	if i < 0 {
		t.Fatalf("%s has no dynamic symbols: the fixture is out of date", path)
	}
	header := binary.LittleEndian.Uint64(program[40:]) + uint64(i)*64 // e_shoff
	binary.LittleEndian.PutUint32(program[header+40:], 1<<20)         // sh_link
	damaged := filepath.Join(t.TempDir(), "sleep")
	if err := os.WriteFile(damaged, program, 0o755); err != nil {
		t.Fatal(err)
	}
	return damaged
}

func descriptors(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// children lists this process's children, including zombies.
func children(t *testing.T) (pids []int) {
	t.Helper()
	all, err := procfs.AllProcs()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if s, err := p.Stat(); err == nil && s.PPID == os.Getpid() {
			pids = append(pids, p.PID)
		}
	}
	return pids
}
