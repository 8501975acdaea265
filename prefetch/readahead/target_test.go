package readahead

// This file tests what a target's faults read, with the real kernel and a disk of the test's own.

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
)

// The tests' model, and their disk's readahead. A target's faults read twice that.
const (
	modelBytes = 24 << 20
	diskKiB    = 2048
	readBytes  = 2 * diskKiB << 10
)

// ownDisk mounts a file system on a disk of its own, with a readahead of 2 MiB, and puts a model on it.
func ownDisk(t *testing.T) (model string) {
	t.Helper()
	testenv.NeedRoot(t)
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "mounted")
	run := func(args ...string) string {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Skipf("no disk of its own: %s: %v: %s", args[0], err, out) // in a container
		}
		return strings.TrimSpace(string(out))
	}
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	run("truncate", "-s", fmt.Sprint(modelBytes*3/2), image)
	run("mkfs.ext4", "-q", image)
	loop := run("losetup", "-f", "--show", image)
	t.Cleanup(func() { _ = exec.Command("losetup", "-d", loop).Run() })
	run("mount", loop, at)
	t.Cleanup(func() { _ = exec.Command("umount", at).Run() })
	content := append([]byte("GGUF"), bytes.Repeat([]byte{1}, modelBytes-4)...)
	model = filepath.Join(at, "model.gguf")
	f, err := os.Create(model)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	id, err := proc.FileOf(model)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(settingPath(id.Dev), fmt.Appendln(nil, diskKiB), 0); err != nil {
		t.Skipf("no readahead of its own: %v", err)
	}
	return model
}

// runningTarget is a target.
type runningTarget struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.Writer
	out     *bufio.Scanner
	process *proc.Process
	model   *os.File
}

func startTarget(t *testing.T, model string) *runningTarget {
	t.Helper()
	return startAs(t, "target", model)
}

// startAs starts a target in one of the roles that have a model.
func startAs(t *testing.T, name, model string) *runningTarget {
	t.Helper()
	r := &runningTarget{t: t, cmd: roleProcess(t, name+" "+model)}
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.out = bufio.NewScanner(out)
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.end)
	r.wait()
	if r.process, err = proc.Open(r.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.process.Close() })
	if r.model, err = os.Open(model); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.model.Close() })
	return r
}

func (r *runningTarget) end() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

func (r *runningTarget) wait() {
	r.t.Helper()
	if !r.out.Scan() {
		r.t.Fatal("the target ended")
	}
}

func (r *runningTarget) do(format string, args ...any) {
	r.t.Helper()
	if _, err := fmt.Fprintf(r.in, format+"\n", args...); err != nil {
		r.t.Fatal(err)
	}
	r.wait()
}

// base is the address at which it maps its model.
func (r *runningTarget) base() uint64 {
	r.t.Helper()
	mappings, err := proc.Mappings(r.cmd.Process.Pid)
	if err != nil {
		r.t.Fatal(err)
	}
	i := slices.IndexFunc(mappings, func(m proc.Mapping) bool { return strings.HasSuffix(m.Path, "/model.gguf") })
	if i < 0 {
		r.t.Fatal("the target does not map its model")
	}
	return mappings[i].Start
}

// state is what the kernel says of its mapping.
func (r *runningTarget) state() state {
	r.t.Helper()
	areas, err := findAreas(r.cmd.Process.Pid, []uint64{r.base()})
	if err != nil {
		r.t.Fatal(err)
	}
	v, err := newView()
	if err != nil {
		r.t.Fatal(err)
	}
	defer v.close()
	states, err := v.readStates(areas)
	if err != nil {
		r.t.Fatal(err)
	}
	if len(states) != 1 {
		r.t.Fatalf("%d mappings, want 1", len(states))
	}
	return states[0]
}

// missBytes makes the target touch a page that is not in memory, in the middle of its model. It returns how
// many bytes that has read.
func (r *runningTarget) missBytes() int64 {
	r.t.Helper()
	// The target maps what it has touched before.
	if left, err := pagecache.Drop(r.t.Context(), r.model); err != nil || left > 1<<20 {
		r.t.Fatalf("%d bytes are left, %v", left, err)
	}
	before, err := pagecache.Resident(r.model, 0, modelBytes)
	if err != nil {
		r.t.Fatal(err)
	}
	r.do("touch %d", modelBytes/2)
	after, err := pagecache.Resident(r.model, 0, modelBytes)
	if err != nil {
		r.t.Fatal(err)
	}
	return after - before
}

func logTo(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// A fault reads what the kernel says that it reads. FADV_SEQUENTIAL has doubled it. A descriptor's
// FADV_RANDOM does not reach faults.
func TestReadStates(t *testing.T) {
	r := startTarget(t, ownDisk(t))
	if s := r.state(); s.bytes != readBytes || s.Random || s.Sequential {
		t.Errorf("%+v, want %d bytes and no advice", s, readBytes)
	}
	d := descriptor(t, r)
	if err := fadvise(d, unix.FADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	if n := r.missBytes(); n < readBytes/2 || n > readBytes {
		t.Errorf("a fault read %d bytes, want up to %d", n, readBytes)
	}
}

// descriptor is the target's own open model.
func descriptor(t *testing.T, r *runningTarget) *os.File {
	t.Helper()
	names, err := r.process.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	for n, name := range names {
		if strings.HasSuffix(name, "/model.gguf") {
			f, err := r.process.Descriptor(n)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			return f
		}
	}
	t.Fatal("the target does not have its model open")
	return nil
}

// Faults read little until End, although the target has closed the file meanwhile. The disk's setting is what
// it was.
func TestByFile(t *testing.T) {
	model := ownDisk(t)
	for _, choice := range []Choice{Auto, FD} {
		r := startTarget(t, model)
		target := New(r.process, choice, helperCommand("guardian"), logTo(t))
		target.awaitFiles(target.choice)
		r.do("close")
		target.Shrink([]uint64{r.base()})
		if got := r.state(); got.bytes != SmallKiB<<10 {
			t.Errorf("%s: a fault reads %d bytes, want %d", choice, got.bytes, SmallKiB<<10)
		}
		if n := r.missBytes(); n == 0 || n > SmallKiB<<10 {
			t.Errorf("%s: a fault read %d bytes, want up to %d", choice, n, SmallKiB<<10)
		}
		id, err := proc.FileOf(model)
		if err != nil {
			t.Fatal(err)
		}
		checkDisk(t, settingPath(id.Dev), diskKiB)
		want := Outcome{Way: ByFile, Before: readBytes, After: SmallKiB << 10, Undone: true}
		if got := target.End(); *got != want || target.IsSmall() {
			t.Errorf("%s: outcome %+v, want %+v; small: %v, want false", choice, *got, want, target.IsSmall())
		}
		if got := r.state(); got.bytes != readBytes {
			t.Errorf("%s: in the end a fault reads %d bytes, want %d", choice, got.bytes, readBytes)
		}
		checkDisk(t, settingPath(id.Dev), diskKiB)
		r.end()
	}
}

// A model that the target has unmapped is not one whose faults read little.
func TestUnmapped(t *testing.T) {
	r := startTarget(t, ownDisk(t))
	target := New(r.process, Auto, helperCommand("guardian"), logTo(t))
	target.Shrink([]uint64{1 << 12}) // nothing is mapped there
	if got, want := target.End(), (Outcome{Why: errUnmapped.Error()}); *got != want {
		t.Errorf("outcome %+v, want %+v", *got, want)
	}
	r.end()
}

// The file of a target is taken even if the target maps its model long after the watch began, and has it open
// for a moment only.
func TestLate(t *testing.T) {
	r := startAs(t, "late-target", ownDisk(t))
	watch, err := r.process.WatchMaps()
	if err != nil {
		t.Skipf("what a target maps is not noticed here: %v", err) // in a container
	}
	if err := watch.Close(); err != nil {
		t.Fatal(err)
	}
	target := New(r.process, FD, helperCommand("guardian"), logTo(t))
	defer target.End()
	target.AwaitWatch()
	time.Sleep(5 * time.Second) // 250 ms would pass between two looks
	r.do("map")
	target.Shrink([]uint64{r.base()})
	if got := r.state(); got.bytes != SmallKiB<<10 {
		t.Errorf("a fault reads %d bytes, want %d; outcome %+v", got.bytes, SmallKiB<<10, target.outcome)
	}
}

// After Restore and Suspend faults read as much as before, even if the guardian is killed then. After Suspend
// another guardian makes the change again.
func TestBackAndForth(t *testing.T) {
	r := startTarget(t, ownDisk(t))
	target := New(r.process, FD, helperCommand("guardian"), logTo(t))
	defer target.End()
	target.awaitFiles(target.choice)
	r.do("close")
	bases := []uint64{r.base()}
	check := func(when string, want int64) {
		t.Helper()
		if got := r.state(); got.bytes != want || target.IsSmall() != (want <= SmallKiB<<10) {
			t.Errorf("%s: a fault reads %d bytes, want %d; IsSmall: %t", when, got.bytes, want, target.IsSmall())
		}
	}
	for range 3 {
		target.Shrink(bases)
		check("less", SmallKiB<<10)
		target.Shrink(bases)
		check("less again", SmallKiB<<10)
		target.Restore()
		check("as before", readBytes)
	}
	target.Shrink(bases)
	process := target.guardian.cmd
	target.Suspend()
	check("at rest", readBytes)
	if process.ProcessState == nil || !process.ProcessState.Success() {
		t.Errorf("at rest: the guardian is %v, want that it ended with success", process.ProcessState)
	}
	target.Restore()
	target.Shrink(bases)
	check("after the rest", SmallKiB<<10)
	target.Restore()
	if err := target.guardian.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	target.Shrink(bases)
	check("without a guardian", readBytes)
	target.Shrink(bases)
	check("without another", readBytes)
	if got := target.End(); got.Why == "" || !got.Undone {
		t.Errorf("outcome %+v, want undone, with a reason why it is not done any more", got)
	}
}

// A large folio that somebody has read by itself has a mark, at which a target reads more. The mark does
// nothing where the target's faults read less than the folio holds.
func TestMarks(t *testing.T) {
	r := startTarget(t, ownDisk(t))
	target := New(r.process, FD, helperCommand("guardian"), logTo(t))
	target.awaitFiles(target.choice)
	const folio = 2 << 20
	mapping, err := unix.Mmap(int(r.model.Fd()), 0, modelBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapping)
	if left, err := pagecache.Drop(t.Context(), r.model); err != nil || left > 0 {
		t.Fatalf("%d bytes are left, %v", left, err)
	}
	touch := func(at int64) (readBytes int64) {
		t.Helper()
		part := mapping[at : at+folio]
		for _, advice := range []int{
			unix.MADV_RANDOM, unix.MADV_HUGEPAGE, unix.MADV_POPULATE_READ, unix.MADV_DONTNEED,
		} {
			if err := unix.Madvise(part, advice); err != nil {
				t.Skipf("no large folios: %v", err)
			}
		}
		before, err := pagecache.Resident(r.model, 0, modelBytes)
		if err != nil {
			t.Fatal(err)
		}
		r.do("touch %d", at)
		after, err := pagecache.Resident(r.model, 0, modelBytes)
		if err != nil {
			t.Fatal(err)
		}
		return after - before
	}
	if n := touch(4 << 20); n == 0 {
		t.Log("this kernel left no mark")
	}
	target.Shrink([]uint64{r.base()})
	if n := touch(16 << 20); n != 0 {
		t.Errorf("the target's touch has read %d bytes, want 0", n)
	}
	if got := target.End(); got.Way != ByFile || !got.Undone {
		t.Errorf("outcome %+v, want way %q, undone", got, ByFile)
	}
}

// Nothing is done where faults read little anyway, where it is not wanted, and where the file was closed
// before. The outcome says why.
func TestNothingToDo(t *testing.T) {
	model := ownDisk(t)
	id, err := proc.FileOf(model)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		choice Choice
		kib    int
		early  bool // the watch begins before the target closes its file
		why    string
		closed bool
	}{
		"little": {Auto, 128, true, "little", false},
		"leave":  {Leave, diskKiB, true, "asked", false},
		"late":   {Auto, diskKiB, false, "closed", true},
		"fd":     {FD, diskKiB, false, "closed", true},
	} {
		if err := os.WriteFile(settingPath(id.Dev), fmt.Appendln(nil, c.kib), 0); err != nil {
			t.Fatal(err)
		}
		r := startTarget(t, model)
		before := r.state()
		if !c.early {
			r.do("close")
		}
		target := New(r.process, c.choice, helperCommand("guardian"), logTo(t))
		if c.early {
			target.awaitFiles(target.choice)
			r.do("close")
		}
		target.Shrink([]uint64{r.base()})
		if got := r.state(); got != before {
			t.Errorf("%s: state %+v, want %+v as before", name, got, before)
		}
		got := target.End()
		if got.Way != "" || !strings.Contains(got.Why, c.why) || got.Closed != c.closed || got.Undone {
			t.Errorf("%s: outcome %+v, want none because of %q, closed %v", name, got, c.why, c.closed)
		}
		r.end()
	}
}

// A thread of the target that computes advises the mapping, and takes that back in the end.
func TestByInject(t *testing.T) {
	r := startTarget(t, ownDisk(t))
	r.do("close")
	r.do("compute")
	target := New(r.process, Inject, helperCommand("guardian"), logTo(t))
	target.Shrink([]uint64{r.base()})
	if !r.state().Random {
		t.Fatalf("the mapping is not advised; outcome %+v", target.End())
	}
	if n := r.missBytes(); n != int64(os.Getpagesize()) {
		t.Errorf("a fault read %d bytes, want a page", n)
	}
	want := Outcome{Way: ByInject, Before: readBytes, After: int64(os.Getpagesize()), Undone: true}
	if got := target.End(); *got != want {
		t.Errorf("outcome %+v, want %+v", *got, want)
	}
	if s := r.state(); s.Random {
		t.Errorf("in the end %+v, want no advice", s)
	}
}

// If the helper is killed, the guardian undoes its change.
func TestUndoneAfterKill(t *testing.T) {
	model := ownDisk(t)
	for way, choice := range map[Way]Choice{ByFile: FD, ByInject: Inject} {
		r := startTarget(t, model)
		r.do("compute")
		helper := roleProcess(t, fmt.Sprintf("helper %d %d %s", r.cmd.Process.Pid, r.base(), choice))
		out, err := helper.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := helper.Start(); err != nil {
			t.Fatal(err)
		}
		said := bufio.NewScanner(out)
		if !said.Scan() || said.Text() != string(way) {
			t.Errorf("%s: the helper said %q, want %q", way, said.Text(), way)
		}
		if s := r.state(); s.faultBytes() > SmallKiB<<10 {
			t.Errorf("%s: %+v, want up to %d bytes", way, s, SmallKiB<<10)
		}
		if err := helper.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = helper.Wait() // killed
		testenv.WaitFor(t, "the guardian to undo it", func() bool {
			s := r.state()
			return s.bytes == readBytes && !s.Random
		})
		r.end()
	}
}
