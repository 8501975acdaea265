package readahead

// This file tests what a target's faults read, on the real kernel, on a disk of the test's own.

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
	if err := os.WriteFile(settingOf(id.Dev), fmt.Appendln(nil, diskKiB), 0); err != nil {
		t.Skipf("no readahead of its own: %v", err)
	}
	return model
}

// running is a target.
type running struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.Writer
	out     *bufio.Scanner
	process *proc.Process
	model   *os.File
}

func startTarget(t *testing.T, model string) *running {
	t.Helper()
	return startAs(t, "target", model)
}

// startAs starts a target in one of the roles that have a model.
func startAs(t *testing.T, name, model string) *running {
	t.Helper()
	r := &running{t: t, cmd: role(t, name+" "+model)}
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

func (r *running) end() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

func (r *running) wait() {
	r.t.Helper()
	if !r.out.Scan() {
		r.t.Fatal("the target ended")
	}
}

func (r *running) do(format string, args ...any) {
	r.t.Helper()
	if _, err := fmt.Fprintf(r.in, format+"\n", args...); err != nil {
		r.t.Fatal(err)
	}
	r.wait()
}

// base is where it maps its model.
func (r *running) base() uint64 {
	r.t.Helper()
	mappings, err := proc.Mappings(r.cmd.Process.Pid)
	if err != nil {
		r.t.Fatal(err)
	}
	i := slices.IndexFunc(mappings, func(m proc.Mapping) bool { return strings.HasSuffix(m.Path, "/model.gguf") })
	if i < 0 {
		r.t.Fatal("it does not map its model")
	}
	return mappings[i].Start
}

// state is what the kernel says of its mapping.
func (r *running) state() state {
	r.t.Helper()
	areas, err := Areas(r.cmd.Process.Pid, []uint64{r.base()})
	if err != nil {
		r.t.Fatal(err)
	}
	v, err := newView()
	if err != nil {
		r.t.Fatal(err)
	}
	defer v.close()
	states, err := v.look(areas)
	if err != nil {
		r.t.Fatal(err)
	}
	if len(states) != 1 {
		r.t.Fatalf("%d mappings", len(states))
	}
	return states[0]
}

// miss has it touch a page that is not in memory, in the middle of its model, and says how much is in memory then.
func (r *running) miss() int64 {
	r.t.Helper()
	if left, err := pagecache.Drop(r.t.Context(), r.model); err != nil || left > 1<<20 { // what it has touched before, it maps
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

// What the kernel says a fault reads is what it reads; FADV_SEQUENTIAL has doubled it; a descriptor's FADV_RANDOM
// does not reach faults.
func TestLook(t *testing.T) {
	r := startTarget(t, ownDisk(t))
	if s := r.state(); s.bytes != readBytes || s.Random || s.Sequential {
		t.Errorf("%+v", s)
	}
	d := descriptor(t, r)
	if err := fadvise(d, unix.FADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	if n := r.miss(); n < readBytes/2 || n > readBytes {
		t.Errorf("a fault read %d bytes", n)
	}
}

// descriptor is the target's own open model.
func descriptor(t *testing.T, r *running) *os.File {
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
	t.Fatal("the target has its model not open")
	return nil
}

// Faults read little, by the file that the target has closed meanwhile, until End; the disk's setting is what it was.
func TestByFile(t *testing.T) {
	model := ownDisk(t)
	for _, choice := range []Choice{Auto, FD} {
		r := startTarget(t, model)
		target := New(r.process, choice, as("guardian"), logTo(t))
		target.waitTaken(target.choice)
		r.do("close")
		target.Shrink([]uint64{r.base()})
		if got := r.state(); got.bytes != SmallKiB<<10 {
			t.Errorf("%s: a fault reads %d bytes", choice, got.bytes)
		}
		if n := r.miss(); n == 0 || n > SmallKiB<<10 {
			t.Errorf("%s: a fault read %d bytes", choice, n)
		}
		id, err := proc.FileOf(model)
		if err != nil {
			t.Fatal(err)
		}
		checkDisk(t, settingOf(id.Dev), diskKiB)
		if told := target.End(); told.Way != ByFile || told.Before != readBytes || told.After != SmallKiB<<10 || !told.Undone || told.Why != "" || target.IsSmall() {
			t.Errorf("%s: told %+v", choice, told)
		}
		if got := r.state(); got.bytes != readBytes {
			t.Errorf("%s: in the end a fault reads %d bytes", choice, got.bytes)
		}
		checkDisk(t, settingOf(id.Dev), diskKiB)
		r.end()
	}
}

// A target that maps its model long after it began to be watched, and has the file open for a moment only, is seen.
func TestLate(t *testing.T) {
	r := startAs(t, "late-target", ownDisk(t))
	watch, err := r.process.WatchMaps()
	if err != nil {
		t.Skipf("what a target maps is not noticed here: %v", err) // in a container
	}
	if err := watch.Close(); err != nil {
		t.Fatal(err)
	}
	target := New(r.process, FD, as("guardian"), logTo(t))
	defer target.End()
	target.AwaitWatch()
	time.Sleep(5 * time.Second) // 250 ms would pass between two looks
	r.do("map")
	target.Shrink([]uint64{r.base()})
	if got := r.state(); got.bytes != SmallKiB<<10 {
		t.Errorf("a fault reads %d bytes, told %+v", got.bytes, target.told)
	}
}

// They read as much as before in between, also if the guardian is killed then; and what was undone for long is done
// again, by another one.
func TestBackAndForth(t *testing.T) {
	r := startTarget(t, ownDisk(t))
	target := New(r.process, FD, as("guardian"), logTo(t))
	defer target.End()
	target.waitTaken(target.choice)
	r.do("close")
	bases := []uint64{r.base()}
	check := func(when string, want int64) {
		t.Helper()
		if got := r.state(); got.bytes != want || target.IsSmall() != (want <= SmallKiB<<10) {
			t.Errorf("%s: a fault reads %d bytes, told that this is little: %t", when, got.bytes, target.IsSmall())
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
		t.Errorf("at rest: the guardian is %v", process.ProcessState)
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
	if told := target.End(); told.Why == "" || !told.Undone {
		t.Errorf("told %+v", told)
	}
}

// A large folio that somebody has read alone has a mark, at which a target reads more; not so where its faults read
// less than the folio holds.
func TestMarks(t *testing.T) {
	r := startTarget(t, ownDisk(t))
	target := New(r.process, FD, as("guardian"), logTo(t))
	target.waitTaken(target.choice)
	const folio = 2 << 20
	mapping, err := unix.Mmap(int(r.model.Fd()), 0, modelBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapping)
	if left, err := pagecache.Drop(t.Context(), r.model); err != nil || left > 0 {
		t.Fatalf("%d bytes are left, %v", left, err)
	}
	touched := func(at int64) int64 {
		t.Helper()
		part := mapping[at : at+folio]
		for _, advice := range []int{unix.MADV_RANDOM, unix.MADV_HUGEPAGE, unix.MADV_POPULATE_READ, unix.MADV_DONTNEED} {
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
	if n := touched(4 << 20); n == 0 {
		t.Log("this kernel left no mark")
	}
	target.Shrink([]uint64{r.base()})
	if n := touched(16 << 20); n != 0 {
		t.Errorf("the target's touch has read %d bytes", n)
	}
	if told := target.End(); told.Way != ByFile || !told.Undone {
		t.Errorf("told %+v", told)
	}
}

// Nothing is done where faults read little anyway, where it is not wanted, and where the file was closed before;
// which is told.
func TestNothingToDo(t *testing.T) {
	model := ownDisk(t)
	id, err := proc.FileOf(model)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		choice Choice
		kib    int
		early  bool // it is looked at before the target closes its file
		why    string
		closed bool
	}{
		"little": {Auto, 128, true, "little", false},
		"leave":  {Leave, diskKiB, true, "asked", false},
		"late":   {Auto, diskKiB, false, "closed", true},
		"fd":     {FD, diskKiB, false, "closed", true},
	} {
		if err := os.WriteFile(settingOf(id.Dev), fmt.Appendln(nil, c.kib), 0); err != nil {
			t.Fatal(err)
		}
		r := startTarget(t, model)
		before := r.state()
		if !c.early {
			r.do("close")
		}
		target := New(r.process, c.choice, as("guardian"), logTo(t))
		if c.early {
			target.waitTaken(target.choice)
			r.do("close")
		}
		target.Shrink([]uint64{r.base()})
		if got := r.state(); got != before {
			t.Errorf("%s: %+v, before %+v", name, got, before)
		}
		if told := target.End(); told.Way != "" || !strings.Contains(told.Why, c.why) || told.Closed != c.closed || told.Undone {
			t.Errorf("%s: told %+v", name, told)
		}
		r.end()
	}
}

// A thread of the target that computes advises the mapping, and takes that back in the end.
func TestByInject(t *testing.T) {
	r := startTarget(t, ownDisk(t))
	r.do("close")
	r.do("compute")
	target := New(r.process, Inject, as("guardian"), logTo(t))
	target.Shrink([]uint64{r.base()})
	if !r.state().Random {
		t.Fatalf("told %+v", target.End())
	}
	if n := r.miss(); n != int64(os.Getpagesize()) {
		t.Errorf("a fault read %d bytes", n)
	}
	if told := target.End(); told.Way != ByInject || told.Before != readBytes || told.After != int64(os.Getpagesize()) || !told.Undone {
		t.Errorf("told %+v", told)
	}
	if s := r.state(); s.Random {
		t.Errorf("in the end %+v", s)
	}
}

// If the one who began it is killed, the guardian undoes it.
func TestUndoneAfterKill(t *testing.T) {
	model := ownDisk(t)
	for way, choice := range map[Way]Choice{ByFile: FD, ByInject: Inject} {
		r := startTarget(t, model)
		r.do("compute")
		helper := role(t, fmt.Sprintf("helper %d %d %s", r.cmd.Process.Pid, r.base(), choice))
		out, err := helper.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := helper.Start(); err != nil {
			t.Fatal(err)
		}
		said := bufio.NewScanner(out)
		if !said.Scan() || said.Text() != string(way) {
			t.Errorf("%s: the helper said %q", way, said.Text())
		}
		if s := r.state(); s.reads() > SmallKiB<<10 {
			t.Errorf("%s: %+v", way, s)
		}
		if err := helper.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = helper.Wait() // killed
		testenv.WaitFor(t, "the guardian to undo it", func() bool { s := r.state(); return s.bytes == readBytes && !s.Random })
		r.end()
	}
}
