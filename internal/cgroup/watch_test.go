package cgroup

// This file tests Watch and Place, on fixtures and on the real kernel.

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/testenv"
)

// quiet discards the log of sources that a kernel lacks.
var quiet = slog.New(slog.DiscardHandler)

// watch watches a group for a test.
func watch(t *testing.T, g *Group, s system) *Watch {
	t.Helper()
	w, err := newWatch(g, s, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// On version 2, with plain files: the test writes into them what the kernel would.
func TestWatchV2(t *testing.T) {
	for _, local := range []bool{true, false} {
		s := copyFixture(t, "v2")
		g, err := s.find(100)
		if err != nil {
			t.Fatal(err)
		}
		own, above := g.Dir(), filepath.Dir(g.Dir())
		events := "memory.events"
		if local { // then the other file also counts the events of descendants
			events = "memory.events.local"
			for _, dir := range []string{own, above} {
				writeFile(t, filepath.Join(dir, events), "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n")
			}
		}
		w := watch(t, g, s)
		if n := w.Notices(); n != (Notice{}) || w.Moved(1) {
			t.Errorf("before anything happened: %+v, want nothing", n)
		}
		// Without the local file, counters that rose before the test do not count, so oom_kill is
		// no news.
		ownKill, aboveKill := "", "memory.events: max of /user.slice"
		if local {
			ownKill, aboveKill = "memory.events: oom_kill", "memory.events: oom_kill of /user.slice"
		}
		for _, step := range []struct {
			file, text string
			want       Notice
		}{
			{filepath.Join(own, "memory.max"), "900000000\n", Notice{Limit: true}},
			{filepath.Join(own, "memory.high"), "max\n", Notice{Limit: true}},
			{filepath.Join(above, "memory.max"), "900000000\n", Notice{Limit: true}},
			{filepath.Join(own, events), "low 5\nhigh 17\nmax 2211\noom 1\noom_kill 1\n", Notice{Short: ownKill}},
			{filepath.Join(own, events), "low 6\nhigh 17\nmax 2211\noom 1\noom_kill 1\n", Notice{}},
			{filepath.Join(own, events), "low 6\nhigh 18\nmax 2211\noom 1\noom_kill 1\n",
				Notice{Short: "memory.events: high"}},
			{filepath.Join(own, events), "low 6\nhigh 19\nmax 2212\noom 1\noom_kill 1\n",
				Notice{Short: "memory.events: max"}},
			{filepath.Join(own, events), "low 6\nhigh 19\nmax 2212\noom 2\noom_kill 1\n",
				Notice{Short: "memory.events: oom"}},
			{filepath.Join(above, events), "low 0\nhigh 0\nmax 1\noom 0\noom_kill 4\n", Notice{Short: aboveKill}},
		} {
			writeFile(t, step.file, step.text)
			if n := w.Notices(); n != step.want {
				t.Errorf("local %v: %s: %+v, want %+v", local, step.text, n, step.want)
			}
			if n := w.Notices(); n != (Notice{}) {
				t.Errorf("a second time: %+v, want nothing", n)
			}
		}
		for _, dir := range []string{own, above} {
			writeFile(t, filepath.Join(dir, "memory.current"), "700000000\n")
			if w.Moved(2 << 30) {
				t.Error("a change of less than a step is reported")
			}
			if !w.Moved(1<<20) || w.Moved(1<<20) {
				t.Errorf("change of the usage of %s: not reported, or twice; want once", dir)
			}
		}
	}
}

// Usage that goes up and down is reported only when it leaves the range of its latest values.
func TestMovedUpAndDown(t *testing.T) {
	s := copyFixture(t, "v2")
	g, err := s.find(100)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(g.Dir(), "memory.current")
	writeFile(t, file, "700000000\n")
	w := watch(t, g, s)
	countReports := func(usage ...string) (n int) {
		for _, one := range usage {
			writeFile(t, file, one+"\n")
			if w.Moved(1 << 20) {
				n++
			}
		}
		return n
	}
	if n := countReports("720000000", "690000000"); n != 2 {
		t.Errorf("%d reports of new values, want 2", n)
	}
	for range bandCalls / 2 {
		if n := countReports("720500000", "689500000"); n != 0 {
			t.Fatalf("%d reports of known values, want 0", n)
		}
	}
	if n := countReports("730000000", "680000000"); n != 2 {
		t.Errorf("%d reports of values outside the range, want 2", n)
	}
	for range 2 * bandCalls {
		countReports("700000000")
	}
	if n := countReports("720000000", "690000000"); n != 2 {
		t.Errorf("%d reports after a while, want 2", n)
	}
}

// Writing a limit of the group or of its ancestor is noticed. Reading it is not.
func TestWatchLimits(t *testing.T) {
	parent := newGroup(t)
	g, err := Create(parent, "sub")
	if err != nil {
		t.Skipf("no subgroups here: %v", err)
	}
	defer func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	}()
	w := watch(t, g, system{"/"})
	for _, changed := range []*Group{g, parent} {
		for _, limit := range []int64{64 << 20, 32 << 20} {
			if _, err := g.Levels(); err != nil {
				t.Fatal(err)
			}
			if w.Notices().Limit {
				t.Error("reading a limit is reported as a change")
			}
			if err := changed.SetLimit(limit); err != nil {
				t.Fatal(err)
			}
			if !w.Notices().Limit {
				t.Errorf("limit %d of %s was not noticed", limit, changed.Name())
			}
			if w.Notices().Limit {
				t.Error("one change was reported twice")
			}
		}
	}
}

// Memory that a process takes is noticed in its group and in the ancestor. When it takes more than
// the limit, the kernel's report of a shortage is noticed.
func TestWatchHog(t *testing.T) {
	parent := newGroup(t)
	g, err := Create(parent, "sub")
	if err != nil {
		t.Skipf("no subgroups here: %v", err)
	}
	defer func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	}()
	if err := parent.SetLimit(48 << 20); err != nil {
		t.Fatal(err)
	}
	w := watch(t, g, system{"/"})
	above := watch(t, parent, system{"/"})
	// The shell keeps 8 MiB; then dd takes a buffer of its block size.
	hog := inGroup(t, g, `x=$(head -c 8388608 /dev/zero | tr '\0' a); read -r line
		exec dd if=/dev/zero of=/dev/null bs=96M count=1`)
	in, err := hog.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hog.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "the usage to move", func() bool { return w.Moved(6 << 20) })
	testenv.WaitFor(t, "the ancestor's usage to move", func() bool { return above.Moved(6 << 20) })
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	var why string
	testenv.WaitFor(t, "a report that memory is short", func() bool { why = w.Notices().Short; return why != "" })
	if !strings.HasPrefix(why, "memory.") {
		t.Errorf("reason %q, want one that names a file memory.*", why)
	}
	if err := hog.Wait(); err == nil {
		t.Error("the process was not killed")
	}
}

// A modification that the kernel itself makes is reported, too, as for memory.events. The test uses
// a file that version 2 has even without the memory controller.
func TestKernelModifies(t *testing.T) {
	g := newGroup(t)
	if g.v2 == (hierarchy{}) {
		t.Skip("no hierarchy of version 2")
	}
	w := watch(t, g, system{"/"})
	if err := w.watchWrites(g.v2.file("cgroup.events"), &source{limit: true}); err != nil {
		t.Fatal(err)
	}
	if err := inGroup(t, g, "exit 0").Run(); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "the change of populated", func() bool { return w.Notices().Limit })
}

// Each source that this kernel offers is watched. A trigger is set with or without privileges.
func TestSources(t *testing.T) {
	g := newGroup(t)
	w := watch(t, g, system{"/"})
	has := map[string]int{}
	for _, src := range w.byDescriptor {
		has[src.reason]++
	}
	for _, src := range w.byInotify {
		has[filepath.Base(src.eventsFile)]++
	}
	var want []string
	if _, err := HostPressure(); err == nil {
		want = append(want, "memory pressure of the host (PSI)")
		if g.v2 != (hierarchy{}) {
			want = append(want, "memory pressure (PSI)")
		}
	}
	if g.version == 1 {
		want = append(want, "memory.pressure_level: medium", "memory.pressure_level: critical",
			"memory.oom_control: out of memory", "memory.pressure_level: critical of /")
	} else if _, err := os.Stat(g.mem.file("memory.events.local")); err == nil {
		want = append(want, "memory.events.local")
	} else {
		want = append(want, "memory.events")
	}
	for _, what := range want {
		if has[what] == 0 {
			t.Errorf("%s is not watched, only %v", what, has)
		}
	}
}

// When a watched group is removed, Moved reports it. Then there are no more notices.
func TestWatchRemoved(t *testing.T) {
	parent := newGroup(t)
	g, err := Create(parent, "sub")
	if err != nil {
		t.Skipf("no subgroups here: %v", err)
	}
	w := watch(t, g, system{"/"})
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	if !w.Moved(1 << 40) {
		t.Error("Moved did not report the removal")
	}
	silent := 0
	testenv.WaitFor(t, "the end of all notices", func() bool {
		if silent++; w.Notices() != (Notice{}) {
			silent = 0
		}
		return silent > 20
	})
}

// listDescriptors lists this process's descriptors and their files.
func listDescriptors(t *testing.T) []string {
	t.Helper()
	dirs, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, d := range dirs {
		if link, err := os.Readlink("/proc/self/fd/" + d.Name()); err == nil {
			all = append(all, d.Name()+" "+link)
		}
	}
	return all
}

func TestNoDescriptorsLeft(t *testing.T) {
	g := newGroup(t)
	use := func() {
		w, err := NewWatch(g, quiet)
		if err != nil {
			t.Fatal(err)
		}
		w.Notices()
		w.Moved(1)
		p, err := FollowProcess(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Moved(); err != nil {
			t.Error(err)
		}
		if err := errors.Join(w.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	}
	use() // opens whatever the runtime opens once
	before := listDescriptors(t)
	for range 10 {
		use()
	}
	if after := listDescriptors(t); !slices.Equal(before, after) {
		t.Errorf("before %q\nafter %q", before, after)
	}
}

// A process that was moved is found in its new group. A process that ends is not reported as moved
// to the topmost group.
func TestPlace(t *testing.T) {
	parent := newGroup(t)
	var groups [2]*Group
	for i, name := range []string{"a", "b"} {
		g, err := Create(parent, name)
		if err != nil {
			t.Skipf("no subgroups here: %v", err)
		}
		defer func() {
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
		}()
		groups[i] = g
	}
	a, b := groups[0], groups[1]
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	p, err := FollowProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if moved, err := p.Moved(); !moved || err != nil {
		t.Errorf("the first call: moved %v, %v; want true", moved, err)
	}
	for _, g := range []*Group{a, b, a} {
		if moved, err := p.Moved(); moved || err != nil {
			t.Errorf("before the move: moved %v, %v; want false", moved, err)
		}
		if err := g.Join(cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		if moved, err := p.Moved(); !moved || err != nil {
			t.Errorf("to %s: moved %v, %v; want true", g.Name(), moved, err)
		}
		if found, err := p.Find(); err != nil || *found != *g {
			t.Errorf("found %+v, %v; want %+v", found, err, g)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 100 { // at first it is a zombie, which version 2 shows in its group
		moved, err := p.Moved()
		if moved {
			t.Error("the end of the process is reported as a move")
		}
		if err != nil && !errors.Is(err, ErrEnded) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	_ = cmd.Wait()
	if _, err := p.Moved(); !errors.Is(err, ErrEnded) {
		t.Errorf("Moved: error %v, want %v", err, ErrEnded)
	}
	if _, err := p.Find(); !errors.Is(err, ErrEnded) {
		t.Errorf("Find: error %v, want %v", err, ErrEnded)
	}
	if _, err := FollowProcess(cmd.Process.Pid); !errors.Is(err, ErrEnded) {
		t.Errorf("FollowProcess: error %v, want %v", err, ErrEnded)
	}
}

// The flags in /proc/PID/stat are found whatever name the program has.
func TestPlaceNames(t *testing.T) {
	s := copyFixture(t, "v2")
	p, err := s.follow(100)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	stat := filepath.Join(s.root, "proc/100/stat")
	for name, flags := range map[string]int{"a": 0x400000, ") (x": 0x400000, "4 4 4) 4 4 4": 4, "b": 0x40000c} {
		writeFile(t, stat, fmt.Sprintf("100 (%s) S 1 100 100 0 -1 %d 1 2 3\n", name, flags))
		if exiting, err := p.isExiting(); err != nil || exiting != (flags&flagExiting != 0) {
			t.Errorf("%q, flags %#x: exiting %v, %v; want %v", name, flags, exiting, err, !exiting)
		}
	}
	for _, text := range []string{"", "100 (a) S 1 1\n", "100 (a) S 1 100 100 0 -1 x 1 2 3\n"} {
		writeFile(t, stat, text)
		if _, err := p.isExiting(); err == nil {
			t.Errorf("%q gave no error", text)
		}
	}
}

func BenchmarkWatch(b *testing.B) {
	g, err := Find(0)
	if err != nil {
		b.Skip(err)
	}
	w, err := NewWatch(g, quiet)
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	p, err := FollowProcess(unix.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	for name, do := range map[string]func() error{
		"Notices": func() error { w.Notices(); return nil },
		"Moved":   func() error { w.Moved(1 << 40); return nil },
		"Place":   func() error { _, err := p.Moved(); return err },
		"Find":    func() error { _, err := p.Find(); return err },
		"Levels":  func() error { _, err := g.Levels(); return err },
		"Stat":    func() error { _, err := g.Stat(); return err },
		"Host":    func() error { _, err := Host(); return err },
		"Paging":  func() error { _, err := HostPaging(); return err },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
