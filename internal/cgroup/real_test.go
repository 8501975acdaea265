package cgroup

// The tests of this file need the real kernel and root. They create control groups below the
// highest visible one and remove them.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tensorcast/internal/testenv"

	"golang.org/x/sys/unix"
)

func TestSelf(t *testing.T) {
	g, err := Find(0)
	if errors.Is(err, ErrNoController) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Levels(); err != nil {
		t.Error(err)
	}
	host, err := Host()
	if err != nil || host.Total <= 0 || host.Available <= 0 || host.Available > host.Total {
		t.Errorf("Host() = %+v, %v; want amounts above 0, and Available at most Total", host, err)
	}
	t.Logf("version %d, %s, hidden %v", g.Version(), g.Name(), g.Hidden())
}

// newGroup creates a group for a test.
func newGroup(t *testing.T) *Group {
	t.Helper()
	testenv.NeedRoot(t)
	root, err := Root()
	if errors.Is(err, ErrNoController) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	g, err := Create(root, fmt.Sprintf("tensorcast-test-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-")))
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EBUSY) {
		t.Skipf("control groups cannot be created here: %v", err) // in a container
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		for _, file := range g.ProcsFiles() {
			if _, err := os.Stat(filepath.Dir(file)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s still exists: %v", file, err)
			}
		}
	})
	return g
}

// inGroup runs a shell script whose process joins the group first.
func inGroup(t *testing.T, g *Group, script string, args ...string) *exec.Cmd {
	t.Helper()
	join := ""
	for _, file := range g.ProcsFiles() {
		join += "echo 0 > '" + file + "' || exit; "
	}
	return exec.CommandContext(t.Context(), "sh", append([]string{"-c", join + script, "sh"}, args...)...)
}

func TestFindAndLimit(t *testing.T) {
	g := newGroup(t)
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	defer end()
	if err := g.Join(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	found, err := Find(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if *found != *g {
		t.Errorf("found %+v, want %+v", found, g)
	}
	if limit, ok, err := g.Limit(); ok || err != nil {
		t.Errorf("limit of a new group: %d, %v, %v; want none", limit, ok, err)
	}
	for _, want := range []int64{64 << 20, 32 << 20, 128 << 20} { // down and up
		if err := g.SetLimit(want); err != nil {
			t.Fatal(err)
		}
		if limit, ok, err := g.Limit(); limit != want || !ok || err != nil {
			t.Errorf("limit %d, %v, %v; want %d", limit, ok, err, want)
		}
	}
	end() // on version 2 a group with processes can have no subgroups
	sub, err := Create(g, "sub")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sub.Remove(); err != nil {
			t.Error(err)
		}
	}()
	levels, err := sub.Levels()
	if err != nil || len(levels) == 0 || !strings.HasPrefix(levels[0].Name, g.Name()+" ") ||
		levels[0].Limit != 128<<20 {
		t.Errorf("levels of a group without a limit: %v, %v; want its parent's limit of %d first", levels, err, 128<<20)
	}
	if err := g.Remove(); err == nil {
		t.Error("a group with a subgroup was removed, want an error")
	}
}

// Page cache and memory of a process are charged to its group. The limit bounds the page cache, and
// kills a process that takes more memory.
func TestCharge(t *testing.T) {
	g := newGroup(t)
	file := filepath.Join(t.TempDir(), "file")
	const size = 48 << 20
	if err := os.WriteFile(file, make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	drop := func() {
		t.Helper()
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	dev := info.Sys().(*syscall.Stat_t).Dev
	major, minor := unix.Major(dev), unix.Minor(dev)
	_, noDisk := os.Stat(fmt.Sprintf("/sys/dev/block/%d:%d/queue", major, minor)) // a partition, or no disk at all

	if err := g.AccountReads(major, minor); noDisk == nil && err != nil {
		t.Fatal(err)
	}
	drop()
	if out, err := inGroup(t, g, `cat "$1" >/dev/null`, file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	usage, err := g.Usage()
	if err != nil {
		t.Fatal(err)
	}
	stat, err := g.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if noDisk == nil {
		if usage < size || stat.File < size {
			t.Errorf("after reading %d bytes: usage %d, page cache %d; want at least as much", size, usage, stat.File)
		}
		if n, err := g.ReadBytes(major, minor); err != nil {
			t.Error(err)
		} else if n < size || n > size+8<<20 {
			t.Errorf("ReadBytes = %d, want about %d", n, size)
		}
	}

	if err := g.SetLimit(24 << 20); err != nil {
		t.Fatal(err)
	}
	if usage, err := g.Usage(); err != nil || usage > 24<<20 {
		t.Errorf("usage %d (%v), want at most the limit of %d", usage, err, 24<<20)
	}
	if n, err := g.OOMKills(); n != 0 || err != nil {
		t.Errorf("%d processes killed (%v), want 0", n, err)
	}
	err = inGroup(t, g, `exec dd if=/dev/zero of=/dev/null bs=100M count=1`).Run() // its buffer
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("a process that takes more than the limit: %v, want killed", err)
	}
	if n, err := g.OOMKills(); n != 1 || err != nil {
		t.Errorf("%d processes killed (%v), want 1", n, err)
	}
	// The kernel updates the pressure every two seconds.
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		p, err := g.Pressure()
		if err != nil {
			t.Fatal(err)
		}
		if p.Some > 0 {
			break
		}
		if time.Now().After(end) {
			t.Errorf("pressure %+v, want Some above 0", p)
			break
		}
	}
}

// Remove kills the processes in the group.
func TestRemoveKills(t *testing.T) {
	g := newGroup(t)
	cmd := inGroup(t, g, `sleep 1000 & exec sleep 1000`)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < 2; {
		pids, err := g.Procs()
		if err != nil {
			t.Fatal(err)
		}
		n = len(pids)
		time.Sleep(time.Millisecond)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	<-done
}
