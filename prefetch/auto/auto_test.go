package auto

// This file tests that each process that is found has a helper, and a share of the memory.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"tensorcast/internal/testenv"
	"tensorcast/processes"
	"tensorcast/processes/processestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startTargets starts n programs of one name, which have ggml. With model they map one, too.
func startTargets(t *testing.T, name string, model bool, n int) (targets []*processestest.Process) {
	t.Helper()
	command := []string{processestest.Program(t, name, true)}
	if model {
		command = append(command, "model", processestest.Model(t))
	}
	for range n {
		p := processestest.Start(t, command...)
		p.Next()
		targets = append(targets, p)
	}
	return targets
}

func newFinder(t *testing.T, names ...string) *processes.Finder {
	t.Helper()
	f, err := processes.NewFinder(processes.Selection{Names: names})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// shares notes which share each helper was told.
type shares struct {
	mu  sync.Mutex
	now map[int]int64
}

func (s *shares) of(pid int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now[pid]
}

// run is a Run in a test, with helpers that write when they begin and end.
type run struct {
	out, said syncBuffer
	told      shares
	using     map[int]bool // by target; guarded by told.mu
	updates   chan Update
	end       context.CancelFunc
	ended     chan error
	helped    int // valid when ended has been read
}

func startRun(t *testing.T, f *processes.Finder, most, beside int) *run {
	t.Helper()
	r := &run{
		told: shares{now: map[int]int64{}}, using: map[int]bool{},
		updates: make(chan Update), ended: make(chan error, 1),
	}
	var ctx context.Context
	ctx, r.end = context.WithCancel(t.Context())
	t.Cleanup(r.end)
	log := slog.New(slog.NewTextHandler(&r.said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	go func() {
		var err error
		r.helped, err = Run(ctx, f, Options{
			MaxHelpers: most, Budget: 1000, Beside: beside, Out: &r.out, Err: &r.said, Log: log,
			Helper: r.helper, Updates: r.updates,
			Using: func(context.Context) (map[int]bool, error) {
				r.told.mu.Lock()
				defer r.told.mu.Unlock()
				return maps.Clone(r.using), nil
			},
			SetShare: func(_ context.Context, target int, bytes int64) error {
				r.told.mu.Lock()
				defer r.told.mu.Unlock()
				r.told.now[target] = bytes
				return nil
			},
		})
		r.ended <- err
	}()
	return r
}

// helper is a helper's command.
func (r *run) helper(c processes.Candidate, budget int64) []string {
	r.told.mu.Lock()
	r.told.now[c.PID] = budget
	r.told.mu.Unlock()
	const script = `trap 'echo summary %d; exit 0' TERM; echo begun >&2; ` +
		`while kill -0 %d 2>/dev/null; do sleep 0.05; done; echo "sh: no end" >&2; exit 3`
	return []string{"sh", "-c", fmt.Sprintf(script, c.PID, c.PID)}
}

// use says that a target's helper uses memory now.
func (r *run) use(pid int) {
	r.told.mu.Lock()
	defer r.told.mu.Unlock()
	r.using[pid] = true
}

func (r *run) hasBegun(name string, pid int) bool {
	return strings.Contains(r.said.String(), fmt.Sprintf("%d %s: begun\n", pid, name))
}

// Helpers come and go with their targets, no more than MaxHelpers at once. The budget is divided among them. Lines
// that they write begin with their target. When Run ends, it ends them.
func TestRun(t *testing.T) {
	const name = "run-target"
	targets := startTargets(t, name, true, 3)
	first, second, third := targets[0].PID(), targets[1].PID(), targets[2].PID()
	r := startRun(t, newFinder(t, name), 2, 0)
	for _, p := range targets {
		r.use(p.PID())
	}
	testenv.WaitFor(t, "two helpers to begin, with a half each", func() bool {
		return r.hasBegun(name, first) && r.hasBegun(name, second) &&
			r.told.of(first) == 500 && r.told.of(second) == 500
	})
	if r.told.of(third) != 0 {
		t.Error("a third target was helped at once")
	}
	targets[0].End()
	testenv.WaitFor(t, "the third to be helped", func() bool {
		return r.hasBegun(name, third) && r.told.of(third) == 500
	})
	lastLine := fmt.Sprintf("%d run-target: no end\n", first)
	if said := r.said.String(); !strings.Contains(said, lastLine) || !strings.Contains(said, `"exit status 3"`) {
		t.Errorf("it wrote\n%s\nwant %q, and that the helper failed with exit status 3", said, lastLine)
	}
	r.end()
	if err := <-r.ended; err != nil || r.helped != 3 {
		t.Errorf("%v, %d were helped; want 3", err, r.helped)
	}
	for _, pid := range []int{second, third} {
		if !strings.Contains(r.out.String(), fmt.Sprintf("summary %d\n", pid)) {
			t.Errorf("no summary of %d: %q", pid, r.out.String())
		}
		if syscall.Kill(pid, 0) != nil {
			t.Errorf("target %d has ended, want that it goes on", pid)
		}
	}
}

// A helper that uses no memory takes nothing of the others' budget, and is told what it would get.
func TestBudgetOfIdleHelpers(t *testing.T) {
	const name = "idle-target"
	targets := startTargets(t, name, true, 3)
	r := startRun(t, newFinder(t, name), 3, 0)
	want := func(what string, shares ...int64) {
		t.Helper()
		testenv.WaitFor(t, what, func() bool {
			for i, p := range targets {
				if r.told.of(p.PID()) != shares[i] {
					return false
				}
			}
			return true
		})
	}
	want("each to have all, as long as nobody uses it", 1000, 1000, 1000)
	r.use(targets[0].PID())
	want("the one that uses memory to have all, and others to have what they would get", 1000, 500, 500)
	r.use(targets[2].PID())
	want("a half each", 500, 333, 500)
	r.end()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

// A target that somebody else helps gets no helper. It shares the budget while it uses it.
func TestBeside(t *testing.T) {
	const name = "beside-target"
	targets := startTargets(t, name, true, 2)
	beside, other := targets[0].PID(), targets[1].PID()
	r := startRun(t, newFinder(t, name), 3, beside)
	r.use(other)
	testenv.WaitFor(t, "all for the one that uses it", func() bool {
		return r.told.of(other) == 1000 && r.told.of(beside) == 500
	})
	r.use(beside)
	testenv.WaitFor(t, "a half each", func() bool { return r.told.of(other) == 500 && r.told.of(beside) == 500 })
	r.end()
	if err := <-r.ended; err != nil || r.helped != 1 {
		t.Errorf("%v, %d were helped; want one", err, r.helped)
	}
}

// A target that maps no model gives way to one that does, and is helped again when there is room.
func TestGivesWay(t *testing.T) {
	const parent, child = "way-parent", "way-child"
	idle := startTargets(t, parent, false, 1)[0].PID()
	r := startRun(t, newFinder(t, parent, child), 1, 0)
	testenv.WaitFor(t, "the parent to be helped", func() bool { return r.hasBegun(parent, idle) })
	target := startTargets(t, child, true, 1)[0]
	testenv.WaitFor(t, "the child to be helped", func() bool { return r.hasBegun(child, target.PID()) })
	if !strings.Contains(r.out.String(), fmt.Sprintf("summary %d\n", idle)) {
		t.Errorf("the parent's helper wrote %q, want that it has ended", r.out.String())
	}
	target.End()
	testenv.WaitFor(t, "the parent to be helped again", func() bool {
		return strings.Count(r.said.String(), fmt.Sprintf("%d %s: begun\n", idle, parent)) == 2
	})
	r.end()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

// What Run was told can be changed while it runs: how many are helped, the budget, the caps, and whom it helps. Helpers
// of targets that are not selected any more are ended, and begin again when these are. Others go on.
func TestUpdate(t *testing.T) {
	const name, other = "update-target", "update-other"
	targets := append(startTargets(t, name, true, 2), startTargets(t, other, true, 1)...)
	first, second, third := targets[0].PID(), targets[1].PID(), targets[2].PID()
	r := startRun(t, newFinder(t, name, other), 2, 0)
	for _, p := range targets {
		r.use(p.PID())
	}
	begun := func(pid int) int {
		return strings.Count(r.said.String(), fmt.Sprintf("%d %s: begun\n", pid, name)) +
			strings.Count(r.said.String(), fmt.Sprintf("%d %s: begun\n", pid, other))
	}
	testenv.WaitFor(t, "two helpers", func() bool { return begun(first)+begun(second)+begun(third) == 2 })
	all := Update{Helper: r.helper, MaxHelpers: 3, Budget: 3000}
	r.updates <- all
	testenv.WaitFor(t, "three helpers, with a third of a new budget each", func() bool {
		return begun(first)+begun(second)+begun(third) == 3 &&
			r.told.of(first) == 1000 && r.told.of(second) == 1000 && r.told.of(third) == 1000
	})
	all.Cap = func(c processes.Candidate) int64 {
		if c.PID == third {
			return 7
		}
		return 5000 // more than its share
	}
	r.updates <- all
	testenv.WaitFor(t, "a cap for one", func() bool { return r.told.of(third) == 7 && r.told.of(first) == 1000 })
	all.Budget = 0
	r.updates <- all
	testenv.WaitFor(t, "only caps", func() bool { return r.told.of(third) == 7 && r.told.of(first) == 5000 })
	all.Cap = nil
	r.updates <- all
	testenv.WaitFor(t, "no bound", func() bool { return r.told.of(third) == 0 && r.told.of(first) == 0 })
	all.Finder = newFinder(t, name)
	r.updates <- all
	testenv.WaitFor(t, "the end of one helper", func() bool {
		return strings.Contains(r.out.String(), fmt.Sprintf("summary %d\n", third))
	})
	all.Finder = newFinder(t, name, other)
	r.updates <- all
	testenv.WaitFor(t, "its helper again", func() bool { return begun(third) == 2 })
	if begun(first) != 1 || begun(second) != 1 {
		t.Errorf("helpers of %d and %d were started anew:\n%s", first, second, r.said.String())
	}
	r.end()
	if err := <-r.ended; err != nil || r.helped != 4 {
		t.Errorf("%v, %d helpers were started; want 4", err, r.helped)
	}
}

// A target that is selected again while its helper is still ending gets another one when that has ended.
func TestSelectedAgainWhileEnding(t *testing.T) {
	const name = "ending-target"
	target := startTargets(t, name, true, 1)[0].PID()
	r := startRun(t, newFinder(t, name), 1, 0)
	testenv.WaitFor(t, "a helper", func() bool { return r.hasBegun(name, target) })
	gate := filepath.Join(t.TempDir(), "gate")
	slow := Update{MaxHelpers: 1, Finder: newFinder(t, "nobody-has-this-name"),
		Helper: func(c processes.Candidate, _ int64) []string {
			return []string{"sh", "-c", `trap 'while [ ! -e "$0" ]; do sleep 0.01; done; exit 0' TERM; echo slow >&2; ` +
				`while :; do sleep 0.01; done`, gate}
		}}
	r.updates <- slow
	testenv.WaitFor(t, "the end of the first helper", func() bool {
		return strings.Contains(r.out.String(), fmt.Sprintf("summary %d\n", target))
	})
	choose := func(names ...string) {
		slow.Finder = newFinder(t, names...)
		r.updates <- slow
	}
	begun := func() int { return strings.Count(r.said.String(), "slow\n") }
	choose(name)
	testenv.WaitFor(t, "the slow helper", func() bool { return begun() == 1 })
	choose("nobody-has-this-name") // it is told to end, and does not
	choose(name)
	slow.Finder = nil
	r.updates <- slow // which is taken when the target was found again
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "another helper", func() bool { return begun() == 2 })
	r.end()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Lines are whole, whatever the writes. A last line without an end is written by flush, and a long line in parts.
func TestLines(t *testing.T) {
	var b bytes.Buffer
	l := &lineWriter{to: &b, mu: &sync.Mutex{}, prefix: "7: "}
	for _, s := range []string{"a", "b\nc\n\nd", "e"} {
		if n, err := l.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	l.flush()
	l.flush()
	if got := b.String(); got != "7: ab\n7: c\n7: \n7: de\n" {
		t.Errorf("wrote %q, want four lines with a prefix each", got)
	}
	b.Reset()
	if _, err := l.Write(bytes.Repeat([]byte("x"), 3*maxLine)); err != nil || len(l.rest) >= maxLine || b.Len() == 0 {
		t.Errorf("a long line: %d bytes are kept, %d written, %v; want less than %d kept",
			len(l.rest), b.Len(), err, maxLine)
	}
}

// The last line of a helper, which may say why it failed, is passed on even if it has no end.
func TestLastLine(t *testing.T) {
	var said bytes.Buffer
	k := &keeper{helpers: map[int]*helper{}, ended: make(chan *helper), o: Options{
		Out: io.Discard, Err: &said, Log: slog.New(slog.DiscardHandler),
		Helper: func(processes.Candidate, int64) []string {
			return []string{"sh", "-c", `echo begun >&2; printf "sh: no end" >&2; exit 3`}
		},
	}}
	k.startHelper(processes.Candidate{PID: 7, Name: "target"})
	if len(k.helpers) == 0 {
		t.Fatal("the helper was not started")
	}
	k.noteEnd(<-k.ended)
	k.waits.Wait()
	if got, want := said.String(), "7 target: begun\n7 target: no end\n"; got != want {
		t.Errorf("it wrote %q, want %q", got, want)
	}
}
