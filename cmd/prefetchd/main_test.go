package main

// These tests run the built command on the real llama.cpp in a real memory cgroup: whatever happens to prefetchd, the
// target says the same, and is not killed for memory.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
)

var prefetchd string

func TestMain(m *testing.M) {
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

// model is about 104 MB, in 56 tensors of at most 4.5 MB.
var model = synth.Config{Layers: 6, Embd: 1024, FF: 4096, Heads: 16, KVHeads: 8, Type: gguf.Q8_0, Seed: 7}

// rig is a target in a cgroup of its own.
type rig struct {
	t       *testing.T
	in      *llama.Installation
	options llama.Options
	group   *cgroup.Group
	target  *exec.Cmd
	stdout  bytes.Buffer
	size    int64
	name    string // of the model, for all tests that use it
}

// own is more than the target's memory besides the weights, and prefetchd's.
const own = 60 << 20

// newRig writes the model and makes a cgroup whose limit leaves room for share of it.
func newRig(t *testing.T, share float64, tokens int) *rig {
	t.Helper()
	testenv.NeedRoot(t)
	return newRigOf(t, "dense", llamatest.Model(t, model), share, tokens)
}

// newRigOf does that with the model at a path, of which no other has the name.
func newRigOf(t *testing.T, name, path string, share float64, tokens int) *rig {
	t.Helper()
	testenv.NeedRoot(t)
	r := &rig{t: t, in: llamatest.ForTest(t), name: name}
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
	if r.group, err = cgroup.Create(root, fmt.Sprintf("tensorcast-test-%d", os.Getpid())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.group.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := r.group.SetLimit(int64(share*float64(r.size)) + own); err != nil {
		t.Fatal(err)
	}
	forget(t, path)
	return r
}

// forget drops a file from the page cache, so that the target's cgroup pays for its pages.
func forget(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if left, err := pagecache.Drop(t.Context(), f); left > 0 || err != nil {
		t.Fatalf("%d bytes stay in memory, %v", left, err)
	}
}

func (r *rig) start() {
	r.t.Helper()
	// The target joins before it runs, so that all of its memory counts.
	script := `for f in $GROUPS_FILES; do echo $$ > $f; done; exec "$0" "$@"`
	cmd := exec.Command("sh", append([]string{"-c", script}, r.in.Command(r.t.Context(), r.options).Args...)...)
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

// helper is a running prefetchd.
type helper struct {
	*exec.Cmd
	stdout bytes.Buffer
	stderr proc.Tail
}

// help starts a prefetchd that does not ask whether it wins, which depends on what else runs on the machine.
func (r *rig) help(flags ...string) *helper {
	r.t.Helper()
	h := &helper{Cmd: exec.Command(prefetchd, append([]string{"--pid", fmt.Sprint(r.target.Process.Pid), "--json", "--always"}, flags...)...)}
	h.Stdout, h.Stderr = &h.stdout, &h.stderr
	if err := h.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = h.Process.Kill(); _ = h.Wait() })
	return h
}

// locked is how many bytes the group has locked in memory.
func (r *rig) locked() int64 {
	r.t.Helper()
	s, err := r.group.Stat()
	if err != nil {
		r.t.Fatal(err)
	}
	return s.Unevictable
}

// waitHelping waits until prefetchd keeps what it can, and says so.
func (r *rig) waitHelping(h *helper) {
	r.t.Helper()
	testenv.WaitFor(r.t, "help", func() bool {
		if err := h.Process.Signal(syscall.Signal(0)); err != nil {
			r.t.Fatalf("prefetchd ended: %s", h.stderr.String())
		}
		return strings.Contains(h.stderr.String(), "prefetchd: keeping ")
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

// finish waits for the target, and checks that it said the same as one without limit and helper.
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
		r.t.Errorf("%d processes were killed for memory", kills)
	}
	got, err := llama.ParseResult(r.stdout.Bytes())
	if err != nil {
		r.t.Fatal(err)
	}
	plain := plainRun(r)
	if got.Text != plain.Text || len(plain.Tokens) != r.options.Tokens {
		r.t.Errorf("text %q, plain %q", got.Text, plain.Text)
	}
}

// plainRuns are the results of the same target without limit and helper.
var plainRuns = map[plainKey]*llama.Result{}

type plainKey struct {
	model  string
	tokens int
}

func plainRun(r *rig) *llama.Result {
	r.t.Helper()
	key := plainKey{r.name, r.options.Tokens}
	if plainRuns[key] == nil {
		plain, err := r.in.Run(r.t.Context(), r.options)
		if err != nil {
			r.t.Fatal(err)
		}
		plainRuns[key] = plain
	}
	return plainRuns[key]
}

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

// With each strategy the text is the same, what is pinned and streamed is what the strategy says, and the limit holds.
func TestStrategies(t *testing.T) {
	for _, flags := range [][]string{{"auto"}, {"both", "--lock"}, {"pin", "--lock"}, {"stream"}} {
		strategy, locks := flags[0], len(flags) > 1
		if strategy == "both" {
			strategy = "auto" // its name today
		}
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			r := newRig(t, 0.6, 150)
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
			if (strategy == "stream") != (s.Pinned == 0) || (strategy == "pin") != (s.Streamed <= r.size) || s.Strategy != strategy {
				t.Errorf("summary %+v", s)
			}
			if locks && most < r.size/4 || !locks && most > 1<<20 {
				t.Errorf("at most %d bytes were locked at a time", most)
			}
			if s.PerToken < r.size*9/10 || s.PerToken > r.size || s.Tokens < r.options.Tokens/3 || s.TokensPerSec <= 0 {
				t.Errorf("summary %+v for a model of %d bytes", s, r.size)
			}
			if most > limit || s.Room > limit {
				t.Errorf("locked %d, room for %d, limit %d", most, s.Room, limit)
			}
			if adj != "1000" {
				t.Errorf("oom_score_adj %q: prefetchd must be killed before its target", adj)
			}
			if left := r.locked(); left > 1<<20 {
				t.Errorf("%d bytes stay locked", left)
			}
		})
	}
}

func TestBudget(t *testing.T) {
	r := newRig(t, 2, 150)
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
		t.Errorf("%d bytes pinned at the end, %d at most; the budget was %d", s.Pinned, most, budget)
	}
}

// Without any limit but the host's, a budget is used, and kept.
func TestBudgetAlone(t *testing.T) {
	r := newRig(t, 2, 150)
	if root, err := cgroup.Root(); err != nil {
		t.Fatal(err)
	} else if err := r.group.Remove(); err != nil {
		t.Fatal(err)
	} else if r.group, err = cgroup.Create(root, fmt.Sprintf("tensorcast-test-%d", os.Getpid())); err != nil {
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

// A model in several files is helped with all of them.
func TestSplitModel(t *testing.T) {
	r := newRig(t, 0.6, 150)
	parts := llamatest.Split(t, r.options.Model)
	whole := r.options.Model
	r.options.Model = parts[0]
	for _, part := range parts {
		forget(t, part)
	}
	r.start()
	h := r.help()
	r.options.Model = whole
	r.finish()
	if s := h.summary(t); s.PerToken < r.size*9/10 || s.PerToken > r.size+4<<20 || s.Pinned < r.size/4 || s.Streamed == 0 || s.Learned != 1 {
		t.Errorf("summary %+v for a model of %d bytes", s, r.size)
	}
}

// A prompt that goes through the model in several passes, of which only the last goes all the way, does not confuse.
func TestLongPrompt(t *testing.T) {
	r := newRig(t, 0.7, 100)
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

// Weights that were copied at load are not in the page cache: prefetchd says so, with the remedy.
func TestRepacked(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	q4 := model
	q4.Type, q4.Layers = gguf.Q4_0, 2
	target := in.Command(t.Context(), llama.Options{Model: llamatest.Model(t, q4), Prompt: "x", Tokens: 1000, Threads: 1, Repeat: 1000}) // until it is killed
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
	h := waiting(t, target.Process.Pid)
	testenv.WaitFor(t, "the reason to be told", func() bool { return strings.Contains(h.stderr.String(), "--no-repack") })
	if err := target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = target.Wait()
	if s, lines := h.summary(t), strings.Count(h.stderr.String(), "\n"); s.Pinned != 0 || s.Streamed != 0 || lines != 1 {
		t.Errorf("summary %+v; said %s", s, h.stderr.String())
	}
}

// Where everything fits nothing is done, and prefetchd sleeps, without probes. If that changes it helps.
func TestEverythingFits(t *testing.T) {
	r := newRig(t, 2, 1500)
	r.start()
	h := r.help()
	testenv.WaitFor(t, "prefetchd to say so", func() bool { return strings.Contains(h.stderr.String(), "prefetchd: idle: everything fits") })
	if n := mapMemory(h.Process.Pid); n > 0 {
		t.Errorf("%d bytes of BPF maps are left", n)
	}
	begun, before := time.Now(), processorTime(t, h.Process.Pid)
	time.Sleep(3 * time.Second)
	share := 100 * (processorTime(t, h.Process.Pid) - before).Seconds() / time.Since(begun).Seconds()
	t.Logf("%.2f %% of a core", share)
	if share >= 1 { // the bar is 0.5; on a machine where others run, each awakening costs more
		t.Errorf("it takes %.2f %% of a core", share)
	}
	if err := r.group.SetLimit(r.size*7/10 + own); err != nil {
		t.Fatal(err)
	}
	r.waitHelping(h)
	if err := r.target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.target.Wait()
	if s := h.summary(t); s.Learned != 2 || s.Streamed == 0 {
		t.Errorf("summary %+v", s)
	}
}

func TestPrefetchdKilled(t *testing.T) {
	r := newRig(t, 0.7, 150)
	r.start()
	h := r.help("--lock")
	r.waitLocked(h)
	if err := h.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = h.Wait()
	testenv.WaitFor(t, "pins to be released", func() bool { return r.locked() < 1<<20 })
	r.finish()
}

func TestInterrupted(t *testing.T) {
	r := newRig(t, 0.7, 150)
	r.start()
	h := r.help("--lock")
	r.waitLocked(h)
	if err := h.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	h.summary(t)
	if left := r.locked(); left > 1<<20 {
		t.Errorf("%d bytes stay locked", left)
	}
	r.finish()
}

func TestTargetKilled(t *testing.T) {
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

// A limit that is lowered under what is kept takes effect at once: the kernel takes it, prefetchd gives way, nobody is killed.
func TestLimitLowered(t *testing.T) {
	r := newRig(t, 0.6, 150)
	r.start()
	h := r.help()
	r.waitHelping(h)
	for share := 0.5; share > 0.15; share -= 0.1 {
		if err := r.group.SetLimit(int64(share*float64(r.size)) + own); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	r.finish()
	if s := h.summary(t); s.Shrunk == 0 || s.Pinned > r.size/2 {
		t.Errorf("summary %+v", s)
	}
}

// Where io_uring is refused, posix_fadvise streams.
func TestWithoutIOURing(t *testing.T) {
	const file = "/proc/sys/kernel/io_uring_disabled"
	was, err := os.ReadFile(file)
	if err != nil {
		t.Skipf("this kernel cannot refuse io_uring: %v", err)
	}
	r := newRig(t, 0.6, 150)
	if err := os.WriteFile(file, []byte("2"), 0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.WriteFile(file, was, 0); err != nil {
			t.Error(err)
		}
	}()
	r.start()
	h := r.help()
	r.finish()
	if s := h.summary(t); s.Queue != "system calls" || s.Streamed == 0 {
		t.Errorf("summary %+v", s)
	}
}

func TestTargetUnharmedByDetach(t *testing.T) {
	r := newRig(t, 0.6, 300)
	r.start()
	for range 3 {
		h := r.help("--lock")
		r.waitLocked(h)
		if err := h.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		h.summary(t)
	}
	r.finish()
}

// What prefetchd takes for itself while it follows is missing to its target: anonymous memory and BPF maps.
func TestOwnMemory(t *testing.T) {
	const bar = 14e6
	r := newRig(t, 0.6, 150)
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
			if err != nil || !r.joined(h) { // it has ended, or is still setting up
				continue
			}
			anon, kernel := field(status, "RssAnon:")<<10, mapMemory(h.Process.Pid)
			if anon == 0 || kernel == 0 { // it is about to end
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
		t.Errorf("it says that it takes %d bytes, of %d that were seen", own, anonymous)
	}
	t.Logf("at most %.1f MB: anonymous memory %.1f MB, BPF maps %.1f MB (%d samples)", float64(most)/1e6, float64(anonymous)/1e6, float64(maps)/1e6, samples)
	if most >= bar {
		t.Errorf("prefetchd takes %d bytes, of which %d are BPF maps; %.0f is the bar", most, maps, bar)
	}
}

// joined says whether prefetchd has joined the target's group, which is the last that it does before it follows.
func (r *rig) joined(h *helper) bool {
	for _, file := range r.group.ProcsFiles() {
		data, err := os.ReadFile(file)
		if err == nil && slices.Contains(strings.Fields(string(data)), strconv.Itoa(h.Process.Pid)) {
			return true
		}
	}
	return false
}

// mapMemory is what the BPF maps that a process has open take of kernel memory, each counted once, as the kernel accounts them.
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

// field is the number that stands behind a name in a file of /proc; 0 if it is not there.
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

// storedPattern learns what a token of the rig's target reads, and writes it to a file.
func (r *rig) storedPattern() string {
	r.t.Helper()
	target, err := capture.Start(r.t.Context(), r.in.Command(r.t.Context(), llama.Options{Model: r.options.Model, Prompt: "x", Tokens: 2, Threads: 1, NoRepack: true}), capture.Options{})
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
	forget(r.t, r.options.Model)
	return path
}

// With a stored pattern the model is held before the target has decoded anything. What is held in the end is written where --plan says.
func TestStoredPattern(t *testing.T) {
	r := newRig(t, 0.6, 60)
	stored := r.storedPattern()
	r.start()
	if err := r.target.Process.Signal(syscall.SIGSTOP); err != nil { // it has mapped the model, and may be reading its metadata
		t.Fatal(err)
	}
	plan := filepath.Join(t.TempDir(), "plan.csv")
	h := r.help("--lock", "--pattern", stored, "--plan", plan)
	r.waitLocked(h)
	if err := r.target.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.finish()
	s := h.summary(t)
	if !s.Stored || s.Learned != 1 || s.Tokens < r.options.Tokens/2 || s.Streamed == 0 || s.Expected <= 0 {
		t.Errorf("summary %+v", s)
	}
	kept, streamed := planned(t, plan) // without the bytes of the first and last block that are no weights
	if kept == 0 || kept > s.Pinned || kept < s.Pinned-2<<20 || kept+streamed > s.PerToken || kept+streamed < s.PerToken-4<<20 {
		t.Errorf("by the plan %d bytes are kept and %d streamed, by the summary %d of %d are kept", kept, streamed, s.Pinned, s.PerToken)
	}
}

// The pattern of another model is refused in one line, and the target goes on as if nothing had been.
func TestStoredPatternOfAnotherModel(t *testing.T) {
	r := newRig(t, 0.6, 60)
	stored := r.storedPattern()
	other := model
	other.Seed++
	r.options.Model = llamatest.Model(t, other)
	r.start()
	if err := r.target.Process.Signal(syscall.SIGSTOP); err != nil { // so that it does not end before probes are set
		t.Fatal(err)
	}
	h := r.help("--pattern", stored)
	err := h.Wait()
	if lines := strings.Split(strings.TrimSpace(h.stderr.String()), "\n"); err == nil || h.ProcessState.ExitCode() != 1 || len(lines) != 1 || !strings.Contains(lines[0], "another model") {
		t.Errorf("%v: %s", err, h.stderr.String())
	}
	if err := r.target.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := r.target.Wait(); err != nil {
		t.Errorf("the target: %v", err)
	}
}

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
		says   string
		root   bool
	}{
		"no pid":          {nil, 2, "--pid", false},
		"a word":          {[]string{"--pid", "1", "x"}, 2, "x", false},
		"strategy":        {[]string{"--pid", "1", "--strategy", "hope"}, 2, "hope", false},
		"budget":          {[]string{"--pid", "1", "--budget", "much"}, 2, "much", false},
		"no pattern":      {[]string{"--pid", "1", "--pattern", "/no/such/pattern.json"}, 1, "/no/such/pattern.json", false},
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
			if cmd.ProcessState.ExitCode() != tc.status || len(lines) != 1 || !strings.HasPrefix(lines[0], "prefetchd: ") || !strings.Contains(lines[0], tc.says) {
				t.Errorf("status %d, want %d; %q", cmd.ProcessState.ExitCode(), tc.status, stderr.String())
			}
		})
	}
	if os.Geteuid() == 0 {
		cmd := exec.Command(prefetchd, "--pid", fmt.Sprint(os.Getpid()))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "root") {
			t.Errorf("without root: status %d, %s", cmd.ProcessState.ExitCode(), out)
		}
	}
}
