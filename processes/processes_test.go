package processes

// This file tests which processes are found, with programs that have the shapes of real ones.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
	"tensorcast/processes/processestest"
)

// newFinder returns a Finder. Its contents know nothing.
func newFinder(t *testing.T, s Selection) *Finder {
	t.Helper()
	f, err := NewFinder(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// findNow calls FindNew.
func findNow(t *testing.T, f *Finder, now time.Time) []Candidate {
	t.Helper()
	found, err := f.FindNew(now)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var (
	onlyGGML  = Evidence{GGML: true}
	onlyModel = Evidence{Model: true}
	both      = Evidence{GGML: true, Model: true}
)

// What a process maps counts, not what files are called: neither a library nor a model need have a certain name, and a
// file does not count for its name.
func TestEvidence(t *testing.T) {
	plain := processestest.Program(t, "evidence-target", false)
	static := processestest.Program(t, "evidence-target", true)
	library, model := processestest.Library(t), processestest.Model(t)
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(model, link); err != nil {
		t.Fatal(err)
	}
	pretender := filepath.Join(dir, "libggml-base.gguf")
	if err := os.WriteFile(pretender, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := processestest.Model(t)
	cases := []struct {
		name    string
		command []string
		want    Evidence
	}{
		{"nothing", []string{plain}, Evidence{}},
		{"names only", []string{plain, "model", pretender, "code", pretender}, Evidence{}},
		{"library as data", []string{plain, "model", library}, Evidence{}},
		{"library", []string{plain, "code", library}, onlyGGML},
		{"static", []string{static}, onlyGGML},
		{"model", []string{plain, "model", model}, onlyModel},
		{"model behind a link", []string{static, "model", link}, both},
		{"model that was deleted", []string{static, "model", gone}, both},
		{"model as code", []string{plain, "code", model}, Evidence{}},
	}
	f := newFinder(t, Selection{Names: []string{"evidence-target"}})
	want := map[int]Evidence{}
	for _, tc := range cases {
		p := processestest.Start(t, tc.command...)
		p.Next()
		if tc.want.any() {
			want[p.PID()] = tc.want
		}
		t.Log(tc.name, p.PID())
	}
	if os.Getuid() == 0 { // others may not open what a deleted file's mapping leads to
		if err := os.Remove(gone); err != nil {
			t.Fatal(err)
		}
	}
	got := map[int]Evidence{}
	for _, c := range findNow(t, f, time.Now()) {
		got[c.PID] = c.Evidence
		if c.Root != c.PID || c.Name != "evidence-target" {
			t.Errorf("%+v: want its own root and name", c)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

// The project's own programs name ggml's functions, as text, and compute nothing, whichever build they are of.
func TestOwnTools(t *testing.T) {
	for path, want := range map[string]bool{
		"/proc/self/exe": true, processestest.Program(t, "own-target", true): false, processestest.Library(t): false,
	} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got := proc.IsOwnTool(f); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

// A process is found again when more is known of it, and else not. One that has ended is forgotten.
func TestFindNew(t *testing.T) {
	program := processestest.Program(t, "growing-target", true)
	p := processestest.Start(t, program, "wait", "model", processestest.Model(t))
	p.Next()
	f, everybody := newFinder(t, Selection{Names: []string{"growing-target"}}), newFinder(t, Selection{})
	now := time.Now()
	want := Candidate{PID: p.PID(), Name: "growing-target", Root: p.PID(), Evidence: onlyGGML}
	if got := findNow(t, f, now); !slices.Equal(got, []Candidate{want}) {
		t.Fatalf("found %+v, want %+v", got, want)
	}
	isOwn := func(c Candidate) bool { return c.PID == os.Getpid() }
	if got := findNow(t, everybody, now); !slices.Contains(got, want) || slices.ContainsFunc(got, isOwn) {
		t.Errorf("of any name: found %+v, want %+v among them, and not this process", got, want)
	}
	if got := findNow(t, f, now.Add(time.Hour)); len(got) > 0 {
		t.Errorf("found again: %+v, want none", got)
	}
	if err := p.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	p.Next()
	want.Evidence = both
	if got := findNow(t, f, now.Add(2*time.Hour)); !slices.Equal(got, []Candidate{want}) {
		t.Errorf("with a model: found %+v, want %+v", got, want)
	}
	p.End()
	if got := findNow(t, f, now.Add(3*time.Hour)); len(got) > 0 || f.known[want.PID] != nil {
		t.Errorf("found %+v, and remember %+v; want nothing of a process that has ended", got, f.known[want.PID])
	}
}

// A name stands for the process and all below it, whoever of them has it: a router and its child with the same name, a
// server that has nothing of ggml itself, children that come later, and grandchildren. The root is the topmost.
func TestTree(t *testing.T) {
	router := processestest.Program(t, "tree-server", true)
	parent := processestest.Program(t, "tree-parent", false)
	model := processestest.Model(t)
	for _, tc := range []struct {
		name    string
		command []string
		asked   string
		before  int // how many are found while the parent waits
		others  []Evidence
	}{
		{"router", []string{router, "wait", "child", router, "model", model, ";"}, "tree-server", 1, []Evidence{both}},
		{"parent", []string{parent, "wait", "child", router, "model", model, ";"}, "tree-parent", 0, []Evidence{both}},
		{"grandchild", []string{
			parent, "wait", "child", "/bin/sh", "-c", `"$0" "$@"; true`, router, "model", model, ";",
		}, "tree-parent", 0, []Evidence{both}},
		{"only the child is asked for", []string{
			parent, "wait", "child", router, "model", model, ";",
		}, "tree-server", 0, []Evidence{both}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := processestest.Start(t, tc.command...)
			p.Next()
			finders := []*Finder{newFinder(t, Selection{Names: []string{tc.asked}})}
			if tc.asked != "tree-server" || tc.before > 0 {
				finders = append(finders, newFinder(t, Selection{Root: p.PID()}))
			}
			now := time.Now()
			for _, f := range finders {
				if got := findNow(t, f, now); len(got) != tc.before {
					t.Errorf("while the parent waits: found %+v, want %d", got, tc.before)
				}
			}
			if err := p.Process.Signal(syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			child := p.Next()
			if second := p.Next(); child == p.PID() {
				child = second
			}
			want := Candidate{PID: child, Name: "tree-server", Root: p.PID(), Evidence: both}
			if tc.before == 0 && tc.asked == "tree-server" {
				want.Root = child
			}
			for _, f := range finders {
				if got := findNow(t, f, now.Add(time.Second)); !slices.Equal(got, []Candidate{want}) {
					t.Errorf("found %+v, want %+v", got, want)
				}
			}
			if got, err := Computing(p.PID()); err != nil || len(got) != 1 || got[0].PID != child {
				t.Errorf("Computing = %+v, %v; want %d", got, err, child)
			}
			pids := []int{child, p.PID()}
			if top, ok, err := Topmost(pids); top != p.PID() || !ok || err != nil {
				t.Errorf("Topmost(%v) = %d, %v, %v; want %d", pids, top, ok, err, p.PID())
			}
		})
	}
}

// A process that is never to be selected is not, nor are those that it has started, whoever is asked for.
func TestNever(t *testing.T) {
	server, bench := processestest.Program(t, "never-server", true), processestest.Program(t, "never-bench", false)
	apart := processestest.Start(t, server)
	apart.Next()
	parent := processestest.Start(t, bench, "child", server, ";")
	child := parent.Next()
	if second := parent.Next(); child == parent.PID() {
		child = second
	}
	servers := []string{"never-server"}
	for name, tc := range map[string]struct {
		s    Selection
		want []int
	}{
		"a name":               {Selection{Names: servers}, []int{apart.PID(), child}},
		"never its parent":     {Selection{Names: servers, Never: []string{"never-bench"}}, []int{apart.PID()}},
		"never itself":         {Selection{Names: servers, Never: servers}, nil},
		"all, never a parent":  {Selection{Never: []string{"never-bench"}}, []int{apart.PID()}},
		"below, but never one": {Selection{Root: parent.PID(), Never: servers}, nil},
	} {
		f := newFinder(t, tc.s)
		var got []int
		for _, c := range findNow(t, f, time.Now()) {
			if c.PID == apart.PID() || c.PID == child {
				got = append(got, c.PID)
			}
		}
		slices.Sort(got)
		slices.Sort(tc.want)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: found %v, want %v of %d and its parent's child %d", name, got, tc.want, apart.PID(), child)
		}
		for _, pid := range []int{apart.PID(), child} {
			if f.Selects(pid) != slices.Contains(tc.want, pid) {
				t.Errorf("%s: Selects(%d) = %v", name, pid, f.Selects(pid))
			}
		}
		if f.Selects(1 << 22) {
			t.Errorf("%s: selects a process that does not exist", name)
		}
	}
}

// Computing returns a process that maps a model itself, and not its children. Without a model it is who has ggml.
func TestComputing(t *testing.T) {
	with := processestest.Program(t, "with", true)
	plain := processestest.Program(t, "without", false)
	model := processestest.Model(t)
	for _, tc := range []struct {
		name    string
		command []string
		root    bool
		n       int
	}{
		{"both map a model", []string{with, "model", model, "child", with, "model", model, ";"}, true, 1},
		{"nobody maps one", []string{with, "child", with, ";"}, true, 1},
		{"only children compute", []string{plain, "child", with, ";", "child", with, ";"}, false, 2},
		{"nobody computes", []string{plain, "child", plain, ";"}, false, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := processestest.Start(t, tc.command...)
			p.Next()
			for _, word := range tc.command {
				if word == "child" {
					p.Next()
				}
			}
			got, err := Computing(p.PID())
			if err != nil || len(got) != tc.n || tc.n == 1 && (got[0].PID == p.PID()) != tc.root {
				t.Errorf("Computing = %+v, %v; want %d, the root among them: %v", got, err, tc.n, tc.root)
			}
		})
	}
}

// Topmost finds no process that is above one of another tree, and says if one does not exist.
func TestTopmost(t *testing.T) {
	plain := processestest.Program(t, "apart", false)
	a, b := processestest.Start(t, plain), processestest.Start(t, plain)
	if top, ok, err := Topmost([]int{a.PID(), b.PID()}); ok || err != nil {
		t.Errorf("of two that run apart: %d, %v, %v; want none", top, ok, err)
	}
	if top, ok, err := Topmost([]int{a.PID()}); top != a.PID() || !ok || err != nil {
		t.Errorf("of one: %d, %v, %v; want %d", top, ok, err, a.PID())
	}
	if _, ok, err := Topmost([]int{a.PID(), 1 << 22}); ok || !errors.Is(err, proc.ErrNoProcess) {
		t.Errorf("with one that does not exist: %v, %v; want %v", ok, err, proc.ErrNoProcess)
	}
}

// A process has the name of its program, the one that it was started with, and that of its unit.
func TestIsNamed(t *testing.T) {
	testenv.NeedRoot(t)
	program := processestest.Program(t, "named-program", false)
	link := filepath.Join(t.TempDir(), "started-as")
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	p := processestest.Start(t, link)
	p.Next()
	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	unit := fmt.Sprintf("tensorcast-test-%d", os.Getpid())
	group, err := cgroup.Create(root, unit+".service")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	if IsNamed(p.PID(), unit) {
		t.Errorf("it has the name %s before it is in that unit", unit)
	}
	if err := group.Join(p.PID()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"named-program": true, "started-as": true, unit: true, unit + ".service": true,
		"named": false, "": false, "service": false, ".service": false, program: false,
	} {
		if got := IsNamed(p.PID(), name); got != want {
			t.Errorf("IsNamed(%q) = %v, want %v", name, got, want)
		}
	}
	p.End()
}

// A process that is no candidate is looked at again, less and less often.
func TestLater(t *testing.T) {
	p := processestest.Start(t, processestest.Program(t, "later-target", false))
	p.Next()
	f := newFinder(t, Selection{Names: []string{"later-target"}})
	now := time.Now()
	for _, tc := range []struct{ after, next time.Duration }{
		{0, 1}, {1, 3}, {2, 3}, {3, 7}, {100, 108}, {108, 124}, {200, 230}, {300, 330},
	} {
		if found := findNow(t, f, now.Add(tc.after*time.Second)); len(found) > 0 {
			t.Fatalf("found %v, want none", found)
		}
		if got := f.known[p.PID()].next.Sub(now); got != tc.next*time.Second {
			t.Errorf("after %d s the next look is at %v, want %d s", tc.after, got, tc.next)
		}
	}
}

// Wait returns a candidate, one with a model before others, or an error when its context ends.
func TestWait(t *testing.T) {
	f := newFinder(t, Selection{Names: []string{"wait-target"}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := f.Wait(ctx); !errors.Is(err, ErrNone) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody came: %v, want %v and %v", err, ErrNone, context.DeadlineExceeded)
	}
	program := processestest.Program(t, "wait-target", true)
	processestest.Start(t, program).Next()
	p := processestest.Start(t, program, "model", processestest.Model(t))
	p.Next()
	if c, err := newFinder(t, f.selection).Wait(t.Context()); err != nil || c.PID != p.PID() {
		t.Errorf("Wait = %+v, %v; want process %d", c, err, p.PID())
	}
}

// A file that was looked into is not opened again for another process, until its content may have changed. A FIFO or a
// device is never opened.
func TestContents(t *testing.T) {
	program := processestest.Program(t, "contents-target", false)
	model := processestest.Model(t)
	p := processestest.Start(t, program, "model", model, "model", "/dev/zero")
	p.Next()
	c := contents{map[fileKey]content{}}
	now := time.Now()
	examine := func(after time.Duration) Evidence {
		t.Helper()
		e, complete, err := c.examine(p.PID(), now.Add(after))
		if err != nil || !complete {
			t.Fatalf("examine: complete %v, %v", complete, err)
		}
		return e
	}
	if e := examine(0); e != onlyModel {
		t.Errorf("found %+v, want %+v", e, onlyModel)
	}
	if err := os.WriteFile(model, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if e := examine(contentsLife); e != onlyModel {
		t.Errorf("the file was opened again: found %+v", e)
	}
	if e := examine(contentsLife + 1); e.any() {
		t.Errorf("the file was not opened again: found %+v", e)
	}
}

// A process that maps more files than are looked at in one call is looked at again.
func TestManyFiles(t *testing.T) {
	dir := t.TempDir()
	for i := range maxNewFiles + 10 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(1); err != nil {
			t.Fatal(err)
		}
		m, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(m)
	}
	c := contents{map[fileKey]content{}}
	for _, want := range []bool{false, true} {
		if _, complete, err := c.examine(os.Getpid(), time.Now()); err != nil || complete != want {
			t.Errorf("examine: complete %v, %v; want %v", complete, err, want)
		}
	}
}
