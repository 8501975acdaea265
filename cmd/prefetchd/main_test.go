package main

// The tests of this package run the built command on the real llama.cpp in a real memory cgroup:
// whatever happens to prefetchd, the target generates the same text, and is not killed for memory.
// This file has what they share, and tests of one running target.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/capture"
	"tensorcast/event"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/monitor"
)

// prefetchd is the path of the built command.
var prefetchd string

func TestMain(m *testing.M) {
	testenv.RunFiltered()
	path, remove, err := testenv.BuildCommand("prefetchd")
	if err != nil {
		fmt.Fprintln(os.Stderr, "build prefetchd:", err)
		os.Exit(1)
	}
	prefetchd = path
	status := m.Run()
	remove()
	os.Exit(status)
}

// model is about 104 MB, in 56 tensors of at most 4.6 MB. Tests are about its size. Because its weights have four bytes
// each, it is cheap to compute with for that.
var model = synth.Config{Layers: 6, Embd: 512, FF: 2240, Heads: 8, KVHeads: 4, Type: gguf.F32, Seed: 7}

// quantised is as large, in eight bits for each weight.
var quantised = synth.Config{Layers: 6, Embd: 1024, FF: 4096, Heads: 16, KVHeads: 8, Type: gguf.Q8_0, Seed: 7}

// rig is a target in its own cgroup.
type rig struct {
	t       *testing.T
	in      *llama.Installation
	options llama.Options
	group   *cgroup.Group
	target  *exec.Cmd
	stdout  bytes.Buffer
	size    int64    // of the model
	own     int64    // see ownMemory
	name    string   // of the model; each model has its own
	more    []string // further arguments of the target
	stopped bool     // see stopTarget
}

// ownMemory is enough for prefetchd's memory, and for the target's memory besides the weights: 54 MB for the quantised
// model. With model it has 28 MB.
const (
	ownMemory      = 60 << 20
	ownMemoryDense = 36 << 20
)

// newRig writes the dense model, and makes a cgroup whose limit has room for share of the model.
func newRig(t *testing.T, share float64, tokens int) *rig {
	t.Helper()
	testenv.NeedRoot(t)
	return newDenseRig(t, "dense", llamatest.Model(t, model), share, tokens)
}

// newDenseRig is newRigOf for the dense model, or one with other weights or fewer layers.
func newDenseRig(t *testing.T, name, path string, share float64, tokens int) *rig {
	t.Helper()
	r := newRigOf(t, name, path, share, tokens)
	r.own = ownMemoryDense
	r.setLimit(share)
	return r
}

// groups counts the control groups of this process's tests.
var groups atomic.Int64

// nameGroup returns a name that no other control group of a test has, as tests may run in parallel.
func nameGroup() string { return fmt.Sprintf("tensorcast-test-%d-%d", os.Getpid(), groups.Add(1)) }

// newRigOf is newRig with the model at path. No other model may have the same name.
func newRigOf(t *testing.T, name, path string, share float64, tokens int) *rig {
	t.Helper()
	testenv.NeedRoot(t)
	r := &rig{t: t, in: llamatest.ForTest(t), name: name, own: ownMemory}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	r.size = info.Size()
	r.options = llama.Options{Model: path, Prompt: "memory", Tokens: tokens, Threads: 1, NoRepack: true}
	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	if r.group, err = cgroup.Create(root, nameGroup()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.group.Remove(); err != nil {
			t.Error(err)
		}
	})
	r.setLimit(share)
	dropFromCache(t, path)
	return r
}

// setLimit limits the group to what the target needs besides the weights, and to a share of these.
func (r *rig) setLimit(share float64) {
	r.t.Helper()
	if err := r.group.SetLimit(int64(share*float64(r.size)) + r.own); err != nil {
		r.t.Fatal(err)
	}
}

// dropFromCache drops a file from the page cache, so that the target's cgroup pays for its pages when
// they are read again.
func dropFromCache(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path) // to open it for writing would copy it up from the layers of an overlay
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type == unix.TMPFS_MAGIC {
		return // it is the file
	}
	if left, err := pagecache.Drop(t.Context(), f); left > 0 || err != nil {
		t.Fatalf("%d bytes stay in memory, %v", left, err)
	}
}

// start starts the target, and waits until it has mapped the model.
func (r *rig) start() {
	r.t.Helper()
	// The target joins before it runs, so that all of its memory counts.
	script := `for f in $GROUPS_FILES; do echo $$ > $f; done; exec "$0" "$@"`
	cmd := exec.Command("sh", append([]string{"-c", script}, r.command()...)...)
	cmd.Env = append(os.Environ(), "GROUPS_FILES="+strings.Join(r.group.ProcsFiles(), " "))
	cmd.Stdout, cmd.Stderr = &r.stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.target = cmd
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	testenv.WaitFor(r.t, "the target to map the model", func() bool {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
		return err == nil && bytes.Contains(maps, []byte(r.options.Model))
	})
}

// command is the target's command line.
func (r *rig) command() []string {
	return append(r.in.Command(r.t.Context(), r.options).Args, r.more...)
}

// helper is a running prefetchd.
type helper struct {
	*exec.Cmd
	stdout bytes.Buffer
	stderr proc.Tail
}

// help starts prefetchd for the target. It does not measure whether help makes tokens faster
// (--always), because that depends on what else runs on the machine. It knows nothing of other tests'
// targets (--no-hot), unless the flags say so. See also startHelper.
func (r *rig) help(flags ...string) *helper {
	r.t.Helper()
	return r.helpBy(exec.Command(prefetchd), "", flags...)
}

// helpBy is help by a command that ends with prefetchd, with one more environment variable. The target is stopped until
// prefetchd has set up everything, which takes as long as a hundred tokens beside other tests. A target that is stopped
// already stays so.
func (r *rig) helpBy(cmd *exec.Cmd, variable string, flags ...string) (h *helper) {
	r.t.Helper()
	if !r.stopped {
		r.stopTarget()
		defer func() {
			r.t.Helper()
			h.waitSettled(r.t)
			r.resumeTarget()
		}()
	}
	cmd.Args = append(cmd.Args, "--pid", fmt.Sprint(r.target.Process.Pid), "--json", "--always", "--no-hot")
	cmd.Args = append(cmd.Args, flags...)
	if variable != "" {
		cmd.Env = append(os.Environ(), variable)
	}
	h = &helper{Cmd: cmd}
	h.Stdout, h.Stderr = &h.stdout, &h.stderr
	if err := h.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = h.Process.Kill(); _ = h.Wait() })
	return h
}

// locked returns how many bytes the cgroup has locked in memory.
func (r *rig) locked() int64 {
	r.t.Helper()
	s, err := r.group.Stat()
	if err != nil {
		r.t.Fatal(err)
	}
	return s.Unevictable
}

// keeps matches the line that says what is kept.
var keeps = regexp.MustCompile(`(?m)^prefetchd: .*keeping `)

// waitHelping waits until prefetchd reports that it keeps a part of the model.
func (r *rig) waitHelping(h *helper) {
	r.t.Helper()
	testenv.WaitFor(r.t, "help", func() bool {
		if err := h.Process.Signal(syscall.Signal(0)); err != nil {
			r.t.Fatalf("prefetchd ended: %s", h.stderr.String())
		}
		return keeps.MatchString(h.stderr.String())
	})
}

// waitLocked waits until a quarter of the model is locked.
func (r *rig) waitLocked(h *helper) {
	r.t.Helper()
	testenv.WaitFor(r.t, "locks", func() bool {
		if err := h.Process.Signal(syscall.Signal(0)); err != nil {
			r.t.Fatalf("prefetchd ended: %s", h.stderr.String())
		}
		return r.locked() > r.size/4
	})
}

// finish waits for the target, and checks that it generated the same text as it does without a limit
// and without prefetchd.
func (r *rig) finish() {
	r.t.Helper()
	if err := r.target.Wait(); err != nil {
		r.t.Fatalf("the target: %v", err)
	}
	kills, err := r.group.OOMKills()
	if err != nil {
		r.t.Fatal(err)
	}
	if kills != 0 {
		r.t.Errorf("%d processes were killed for memory, want none", kills)
	}
	got, err := llama.ParseResult(r.stdout.Bytes())
	if err != nil {
		r.t.Fatal(err)
	}
	plain := plainRun(r)
	if got.Text != plain.Text || len(plain.Tokens) != r.options.Tokens {
		r.t.Errorf("the text is %q, want %q", got.Text, plain.Text)
	}
}

// plainRuns are the results of targets without a limit and without prefetchd.
var plainRuns struct {
	sync.Mutex // a test that needs a result waits for the one that makes it
	results    map[plainKey]*llama.Result
}

// plainKey says which target a result is of.
type plainKey struct {
	model  string
	tokens int
}

// plainRun returns the result of the rig's target without a limit and without prefetchd.
func plainRun(r *rig) *llama.Result {
	r.t.Helper()
	plainRuns.Lock()
	defer plainRuns.Unlock()
	key := plainKey{r.name, r.options.Tokens}
	if plainRuns.results[key] == nil {
		plain, err := r.in.Run(r.t.Context(), r.options)
		if err != nil {
			r.t.Fatal(err)
		}
		if plainRuns.results == nil {
			plainRuns.results = map[plainKey]*llama.Result{}
		}
		plainRuns.results[key] = plain
	}
	return plainRuns.results[key]
}

// signal sends prefetchd a signal.
func (h *helper) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := h.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// summary waits for prefetchd to end, and returns its summary.
func (h *helper) summary(t *testing.T) prefetch.Summary {
	t.Helper()
	if err := h.Wait(); err != nil {
		t.Fatalf("prefetchd: %v\n%s", err, h.stderr.String())
	}
	var s prefetch.Summary
	if err := json.Unmarshal(h.stdout.Bytes(), &s); err != nil {
		t.Fatalf("summary: %v\n%s", err, h.stdout.String())
	}
	return s
}

// hasLearnedOnce reports whether a prefetchd with -v learned once what its target reads. If memory is fragmented, there
// are no large folios. Then the file is read in other blocks, and what the target reads is learned again. log is what
// prefetchd logged.
func hasLearnedOnce(s prefetch.Summary, log string) bool {
	return s.Learned == 1+strings.Count(log, "the file is read in other blocks now")
}

// TestStrategies checks that with each strategy the text is the same, that bytes are pinned and
// streamed as the strategy says, and that the limit holds.
func TestStrategies(t *testing.T) {
	for _, flags := range [][]string{{"auto"}, {"both", "--lock"}, {"pin", "--lock"}, {"stream"}} {
		strategy, locks := flags[0], len(flags) > 1
		if strategy == "both" {
			strategy = "auto" // the new name of "both"
		}
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0.6, 25)
			r.start()
			h := r.help(append([]string{"--strategy"}, flags...)...)
			adj := ""
			var most int64
			done := make(chan struct{})
			go func() {
				defer close(done)
				for r.target.Process.Signal(syscall.Signal(0)) == nil {
					if s, err := r.group.Stat(); err == nil {
						most = max(most, s.Unevictable)
					}
					if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", h.Process.Pid)); err == nil {
						adj = strings.TrimSpace(string(data))
					}
					time.Sleep(2 * time.Millisecond)
				}
			}()
			r.finish()
			<-done
			s := h.summary(t)
			limit, _, err := r.group.Limit()
			if err != nil {
				t.Fatal(err)
			}
			if (strategy == "stream") != (s.Pinned == 0) ||
				(strategy == "pin") != (s.Streamed <= r.size) || s.Strategy != strategy {
				t.Errorf("summary %+v", s)
			}
			if locks && most < r.size/4 || !locks && most > 1<<20 {
				t.Errorf("at most %d bytes were locked at a time, of %d; --lock: %t", most, r.size, locks)
			}
			// On a busy machine help may begin late.
			if s.PerToken < r.size*9/10 || s.PerToken > r.size || s.Tokens < r.options.Tokens/10 ||
				s.TokensPerSec <= 0 {
				t.Errorf("summary %+v for a model of %d bytes", s, r.size)
			}
			if most > limit || s.Room > limit {
				t.Errorf("locked %d, room for %d, limit %d", most, s.Room, limit)
			}
			if adj != "1000" {
				t.Errorf("oom_score_adj is %q, want 1000: prefetchd must be killed before its target", adj)
			}
			if left := r.locked(); left > 1<<20 {
				t.Errorf("%d bytes stay locked", left)
			}
		})
	}
}

// TestBudget checks that a budget is kept if the cgroup has more room.
func TestBudget(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, 24)
	r.options.Pause = 50 // so that it can be helped, however busy the machine is
	r.start()
	const budget = 60 << 20
	h := r.help("--lock", "--budget", fmt.Sprint(budget))
	var most int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r.target.Process.Signal(syscall.Signal(0)) == nil {
			if s, err := r.group.Stat(); err == nil {
				most = max(most, s.Unevictable)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	r.finish()
	<-done
	if s := h.summary(t); s.Pinned > budget || most > budget || most == 0 {
		t.Errorf("%d bytes pinned at the end, %d at most; the budget was %d\n%s", s.Pinned, most, budget,
			h.stderr.String())
	}
}

// TestBudgetAlone checks that a budget is used, and kept, if there is no limit except the host's.
func TestBudgetAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, 24)
	r.options.Pause = 50 // so that it can be helped, however busy the machine is
	if root, err := cgroup.Root(); err != nil {
		t.Fatal(err)
	} else if err := r.group.Remove(); err != nil {
		t.Fatal(err)
	} else if r.group, err = cgroup.Create(root, nameGroup()); err != nil {
		t.Fatal(err)
	}
	r.start()
	const budget = 60 << 20
	h := r.help("--budget", fmt.Sprint(budget))
	r.finish()
	if s := h.summary(t); s.Pinned > budget || s.Pinned < budget/2 || s.Level != "--budget" {
		t.Errorf("summary %+v for a budget of %d", s, budget)
	}
}

// TestSplitModel checks that prefetchd helps with all files of a model in several files.
func TestSplitModel(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0.6, 24)
	parts := llamatest.Split(t, r.options.Model)
	whole := r.options.Model
	r.options.Model = parts[0]
	for _, part := range parts {
		dropFromCache(t, part)
	}
	r.start()
	h := r.help("-v")
	r.options.Model = whole
	r.finish()
	if s := h.summary(t); s.PerToken < r.size*9/10 || s.PerToken > r.size+4<<20 ||
		s.Pinned < r.size/4 || s.Streamed == 0 || !hasLearnedOnce(s, h.stderr.String()) {
		t.Errorf("summary %+v for a model of %d bytes\n%s", s, r.size, h.stderr.String())
	}
}

// TestUnknownType checks that a model of a type that nobody knows is helped as its original is.
func TestUnknownType(t *testing.T) {
	for _, number := range []uint32{gguf.Q8_0.Number(), 999} {
		t.Run(gguf.Type(number).String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0.6, 24)
			whole := r.options.Model
			r.options.Model = llamatest.Copy(t, whole)
			dropFromCache(t, r.options.Model)
			r.start()
			llamatest.RenameType(t, r.options.Model, gguf.Q8_0, number)
			h := r.help("-v")
			r.options.Model = whole
			r.finish()
			if s := h.summary(t); s.PerToken < r.size*9/10 || s.PerToken > r.size || s.Pinned < r.size/4 ||
				s.Streamed == 0 || !hasLearnedOnce(s, h.stderr.String()) || s.Strategy != "auto" {
				t.Errorf("summary %+v for a model of %d bytes\n%s", s, r.size, h.stderr.String())
			} else {
				t.Logf("%d MiB a token, %d pinned, %d streamed", s.PerToken>>20, s.Pinned>>20, s.Streamed>>20)
			}
		})
	}
}

// TestLongPrompt checks the help with a prompt that is computed in several passes, of which only the
// last goes through the whole model.
func TestLongPrompt(t *testing.T) {
	r := newRig(t, 0.7, 24)
	r.options.Prompt = strings.Repeat("a long prompt. ", 60)
	r.start()
	h := r.help()
	if err := r.target.Wait(); err != nil {
		t.Fatal(err)
	}
	if s := h.summary(t); s.PerToken < r.size*9/10 || s.PerToken > r.size || s.Pinned < r.size/4 || s.Streamed == 0 {
		t.Errorf("summary %+v for a model of %d bytes", s, r.size)
	}
}

// TestRepacked checks that prefetchd reports it if weights were copied at load, so that they are not
// read from the page cache. Copies that fit are not advised against.
func TestRepacked(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	q4 := quantised
	q4.Type, q4.Layers = gguf.Q4_0, 2
	o := llama.Options{Model: llamatest.Model(t, q4), Prompt: "x", Tokens: 1000, Threads: 1, Pause: 10, Repeat: 1000}
	target := in.Command(t.Context(), o) // it runs until it is killed
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
	h := startHelper(t, target.Process.Pid)
	testenv.WaitFor(t, "prefetchd to report the reason", func() bool {
		log := h.stderr.String() // the process's own table of tensors says so, or what its ops read
		return strings.Contains(log, "are copies in the process's own memory") ||
			strings.Contains(log, "were copied when the model was loaded")
	})
	if err := target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = target.Wait()
	if s, lines := h.summary(t), strings.Count(h.stderr.String(), "\n"); s.Pinned != 0 ||
		s.Streamed != 0 || lines != 1 {
		t.Errorf("summary %+v; standard error %s", s, h.stderr.String())
	}
}

// TestEverythingFits checks that prefetchd sleeps without probes while the model fits, and helps when
// it no longer fits.
func TestEverythingFits(t *testing.T) {
	testenv.NeedQuiet(t)
	r := newRig(t, 2, 1000)
	r.options.Repeat = 1 << 20 // until it is ended
	r.start()
	dir := filepath.Join(t.TempDir(), "run")
	h := r.help("--run-dir", dir)
	testenv.WaitFor(t, "prefetchd to be idle", func() bool {
		return strings.Contains(h.stderr.String(), "prefetchd: idle: everything fits")
	})
	testenv.WaitFor(t, "BPF maps to be freed", func() bool { return mapMemory(h.Process.Pid) == 0 })
	checkAsleep(t, map[string]*helper{"everything fits": h})
	r.setLimit(0.7)
	r.waitHelping(h)
	testenv.WaitFor(t, "prefetchd to stream", func() bool {
		all, err := monitor.List(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(all, func(r monitor.Report) bool { return r.Status.Streamed > 0 })
	})
	if err := r.target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.target.Wait()
	if s := h.summary(t); s.Learned != 2 || s.Streamed == 0 {
		t.Errorf("summary %+v", s)
	}
}

// TestPrefetchdKilled checks that locks are released if prefetchd is killed.
func TestPrefetchdKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0.7, 24)
	r.start()
	h := r.help("--lock")
	r.waitLocked(h)
	if err := h.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = h.Wait()
	testenv.WaitFor(t, "locks to be released", func() bool { return r.locked() < 1<<20 })
	r.finish()
}

// TestInterrupted checks that locks are released if prefetchd gets SIGTERM.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0.7, 24)
	r.start()
	h := r.help("--lock")
	r.waitLocked(h)
	h.signal(t, syscall.SIGTERM)
	h.summary(t)
	if left := r.locked(); left > 1<<20 {
		t.Errorf("%d bytes stay locked", left)
	}
	r.finish()
}

// TestTargetKilled checks that prefetchd ends and releases its locks if the target is killed.
func TestTargetKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0.7, 1000)
	r.start()
	h := r.help("--lock")
	r.waitLocked(h)
	if err := r.target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.target.Wait()
	h.summary(t)
	if left := r.locked(); left > 1<<20 {
		t.Errorf("%d bytes stay locked", left)
	}
}

// TestLimitLowered checks that a limit that is lowered below what is kept takes effect at once: the
// kernel takes the memory, prefetchd keeps less, and no process is killed.
func TestLimitLowered(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0.6, 24)
	r.start()
	h := r.help()
	r.waitHelping(h)
	for share := 0.5; share > 0.15; share -= 0.1 {
		r.setLimit(share)
		time.Sleep(100 * time.Millisecond)
	}
	r.finish()
	if s := h.summary(t); s.Shrunk == 0 || s.Pinned > r.size/2 {
		t.Errorf("summary %+v", s)
	}
}

// TestWithoutIOURing checks that prefetchd streams with posix_fadvise if io_uring is refused.
func TestWithoutIOURing(t *testing.T) {
	r := newRig(t, 0.6, 24)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r.start()
	h := r.helpBy(exec.Command(self, prefetchd), testenv.RefuseCall(unix.SYS_IO_URING_SETUP))
	r.finish()
	if s := h.summary(t); s.Queue != "system calls" || s.Streamed == 0 {
		t.Errorf("summary %+v", s)
	}
}

// TestTargetUnharmedByDetach starts and ends prefetchd several times for one target.
func TestTargetUnharmedByDetach(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0.6, 36)
	r.start()
	for range 3 {
		h := r.help("--lock")
		r.waitLocked(h)
		h.signal(t, os.Interrupt)
		h.summary(t)
	}
	r.finish()
}

// TestOwnMemory checks how much memory prefetchd takes for itself while it helps, because its target
// cannot use that: anonymous memory and BPF maps.
func TestOwnMemory(t *testing.T) {
	t.Parallel()
	const allowed = 14e6
	r := newRig(t, 0.6, 24)
	r.start()
	h := r.help()
	var most, anonymous, maps int64
	samples := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r.target.Process.Signal(syscall.Signal(0)) == nil {
			time.Sleep(20 * time.Millisecond)
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Process.Pid))
			if err != nil || !r.hasJoined(h) { // prefetchd has ended, or is still setting up
				continue
			}
			anon, kernel := field(status, "RssAnon:")<<10, mapMemory(h.Process.Pid)
			if anon == 0 || kernel == 0 { // prefetchd is about to end
				continue
			}
			samples++
			most, anonymous, maps = max(most, anon+kernel), max(anonymous, anon), max(maps, kernel)
		}
	}()
	r.finish()
	<-done
	s := h.summary(t)
	if s.Tokens < r.options.Tokens/3 || samples < 10 {
		t.Fatalf("%d samples; summary %+v", samples, s)
	}
	if own := s.Beyond.Own; own < anonymous/2 || own > anonymous+8<<20 { // it grows while the summary is made
		t.Errorf("the summary says that prefetchd takes %d bytes, want about the %d that were seen", own, anonymous)
	}
	t.Logf("at most %.1f MB: anonymous memory %.1f MB, BPF maps %.1f MB (%d samples)",
		float64(most)/1e6, float64(anonymous)/1e6, float64(maps)/1e6, samples)
	if most >= allowed {
		t.Errorf("prefetchd takes %d bytes, of which %d are BPF maps; want less than %.0f", most, maps, allowed)
	}
}

// hasJoined reports whether prefetchd has joined the target's cgroup, which is the last step of
// setting up.
func (r *rig) hasJoined(h *helper) bool {
	for _, file := range r.group.ProcsFiles() {
		data, err := os.ReadFile(file)
		if err == nil && slices.Contains(strings.Fields(string(data)), strconv.Itoa(h.Process.Pid)) {
			return true
		}
	}
	return false
}

// mapMemory returns how much kernel memory the BPF maps take that a process has open, by the kernel's
// own accounting. Each map is counted once.
func mapMemory(pid int) (sum int64) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return 0
	}
	seen := map[int64]bool{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(data, []byte("map_type:")) {
			continue
		}
		if id := field(data, "map_id:"); !seen[id] {
			seen[id] = true
			sum += field(data, "memlock:")
		}
	}
	return sum
}

// field returns the number that follows a name in a file of /proc, or 0 if the name is not there.
func field(data []byte, name string) int64 {
	for line := range strings.Lines(string(data)) {
		rest, ok := strings.CutPrefix(line, name)
		if fields := strings.Fields(rest); ok && len(fields) > 0 {
			n, err := strconv.ParseInt(fields[0], 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

// storedPattern learns what a token of the rig's target reads, writes that to a file, and returns the
// file's path.
func (r *rig) storedPattern() string {
	r.t.Helper()
	o := llama.Options{Model: r.options.Model, Prompt: "x", Tokens: 2, Threads: 1, NoRepack: true}
	target, err := capture.Start(r.t.Context(), r.in.Command(r.t.Context(), o), capture.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	builder := pattern.NewBuilder(func(event.FileID) (int, bool) { return 0, true })
	err = target.Run(r.t.Context(), func(ev event.Event) error {
		switch e := ev.(type) {
		case event.DecodeBegin:
			builder.Begin()
		case *event.Op:
			builder.Op(e)
		case event.DecodeEnd:
			builder.End()
		}
		return nil
	})
	if err := errors.Join(err, target.Close()); err != nil {
		r.t.Fatal(err)
	}
	model, err := gguf.OpenModel(r.options.Model)
	if err != nil {
		r.t.Fatal(err)
	}
	cycle := builder.Cycle()
	if cycle.Files, err = pattern.FilesOf(model); err != nil {
		r.t.Fatal(err)
	}
	var file bytes.Buffer
	if err := cycle.Write(&file); err != nil {
		r.t.Fatal(err)
	}
	path := filepath.Join(r.t.TempDir(), "pattern.json")
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		r.t.Fatal(err)
	}
	dropFromCache(r.t, r.options.Model)
	return path
}

// TestStoredPattern checks that with a stored pattern the model is kept before the target has decoded
// anything, and that --plan writes what is kept at the end.
func TestStoredPattern(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0.6, 36)
	stored := r.storedPattern()
	r.start()
	r.stopTarget() // it has mapped the model, and may be reading its metadata
	plan := filepath.Join(t.TempDir(), "plan.csv")
	h := r.help("-v", "--lock", "--pattern", stored, "--plan", plan)
	r.waitLocked(h)
	r.resumeTarget()
	r.finish()
	s := h.summary(t)
	if !s.Stored || !hasLearnedOnce(s, h.stderr.String()) || s.Tokens < r.options.Tokens/2 || s.Streamed == 0 ||
		s.Expected <= 0 {
		t.Errorf("summary %+v\n%s", s, h.stderr.String())
	}
	kept, streamed := readPlan(t, plan) // only weights, not the other bytes of the first and last block
	if kept == 0 || kept > s.Pinned || kept < s.Pinned-2<<20 || kept+streamed > s.PerToken ||
		kept+streamed < s.PerToken-4<<20 {
		t.Errorf("in the plan %d bytes are kept and %d streamed, but in the summary %d of %d are kept",
			kept, streamed, s.Pinned, s.PerToken)
	}
}

// TestStoredPatternOfAnotherModel checks that the pattern of another model is refused in one line, and
// that the target goes on.
func TestStoredPatternOfAnotherModel(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0.6, 36)
	stored := r.storedPattern()
	other := model
	other.Seed++
	r.options.Model = llamatest.Model(t, other)
	r.start()
	r.stopTarget() // so that it does not end before probes are set
	h := r.help("--pattern", stored)
	err := h.Wait()
	if lines := strings.Split(strings.TrimSpace(h.stderr.String()), "\n"); err == nil ||
		h.ProcessState.ExitCode() != 1 || len(lines) != 1 || !strings.Contains(lines[0], "another model") {
		t.Errorf("%v: %s", err, h.stderr.String())
	}
	r.resumeTarget()
	if err := r.target.Wait(); err != nil {
		t.Errorf("the target: %v", err)
	}
}

// TestBadInput checks that wrong flags and unsuitable processes are reported in one line.
func TestBadInput(t *testing.T) {
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	sleeper := exec.Command("sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	for name, tc := range map[string]struct {
		args   []string
		status int
		want   string // a part of the message
		root   bool   // the case needs root
	}{
		"no pid":   {nil, 2, "--pid", false},
		"a word":   {[]string{"--pid", "1", "x"}, 2, "x", false},
		"strategy": {[]string{"--pid", "1", "--strategy", "hope"}, 2, "hope", false},
		"budget":   {[]string{"--pid", "1", "--budget", "much"}, 2, "much", false},
		"no pattern": {[]string{"--pid", "1", "--pattern", "/no/such/pattern.json"}, 1,
			"/no/such/pattern.json", false},
		"not a pattern":   {[]string{"--pid", "1", "--pattern", "main.go"}, 1, "main.go", false},
		"a FIFO":          {[]string{"--pid", "1", "--pattern", fifo}, 1, "fifo: not a regular file", false},
		"no such process": {[]string{"--pid", fmt.Sprint(gone.Process.Pid)}, 1, fmt.Sprint(gone.Process.Pid), true},
		"no ggml":         {[]string{"--pid", fmt.Sprint(sleeper.Process.Pid)}, 1, "--wait", true},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.root {
				testenv.NeedRoot(t)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, prefetchd, tc.args...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			_ = cmd.Run()
			lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
			if cmd.ProcessState.ExitCode() != tc.status || len(lines) != 1 ||
				!strings.HasPrefix(lines[0], "prefetchd: ") || !strings.Contains(lines[0], tc.want) {
				t.Errorf("status %d, %q, want status %d and one line with %q",
					cmd.ProcessState.ExitCode(), stderr.String(), tc.status, tc.want)
			}
		})
	}
	if os.Geteuid() == 0 {
		cmd := exec.Command(prefetchd, "--pid", fmt.Sprint(os.Getpid()))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "root") {
			t.Errorf("without root: status %d, %s, want status 1 and a message about root",
				cmd.ProcessState.ExitCode(), out)
		}
	}
}
