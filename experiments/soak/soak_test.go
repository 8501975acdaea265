package soak

// This file plants each kind of leak and checks that it, and nothing else, is found. It also makes
// a real soak.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tensorcast/experiments/confine"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startMarked starts a process with a marker, which ends with the test.
func startMarked(t *testing.T, marker string, files ...*os.File) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), marker), files
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the test may have killed it
		_ = cmd.Wait()
	})
	return cmd
}

func testMarker(t *testing.T) string {
	return fmt.Sprintf("%s=%s-%d", markVariable, t.Name(), os.Getpid())
}

func TestLeftProcesses(t *testing.T) {
	marker := testMarker(t)
	left := func(alive ...int) []string {
		t.Helper()
		left, err := leftProcesses(marker, alive...)
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	if got := left(); got != nil {
		t.Errorf("at first: %q, want nothing", got)
	}
	cmd := startMarked(t, marker)
	startMarked(t, marker+"-other")
	want := []string{fmt.Sprintf("process %d sleep 1000", cmd.Process.Pid)}
	// The environment can be read once the process runs.
	testenv.WaitFor(t, "the process", func() bool { return reflect.DeepEqual(left(), want) })
	if got := left(cmd.Process.Pid); got != nil {
		t.Errorf("with a process that is to live: %q, want nothing", got)
	}
}

func TestLeftGroups(t *testing.T) {
	testenv.NeedRoot(t)
	root, err := cgroup.Root()
	if err != nil {
		t.Skip(err)
	}
	prefix := fmt.Sprintf("tensorcast-soak-test-%d", os.Getpid())
	count := func() int {
		t.Helper()
		left, err := leftGroups(root, prefix)
		if err != nil {
			t.Fatal(err)
		}
		return len(left)
	}
	if n := count(); n != 0 {
		t.Errorf("at first: %d groups, want 0", n)
	}
	g, err := cgroup.Create(root, prefix+"-1")
	if err != nil {
		t.Fatal(err)
	}
	n := count()
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	if n != len(root.ProcsFiles()) || count() != 0 {
		t.Errorf("%d groups of one in %d hierarchies, then %d; want one in each, then none", n,
			len(root.ProcsFiles()), count())
	}
}

func TestLeftFiles(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	if left, err := leftFiles(a, b); err != nil || left != nil {
		t.Errorf("at first: %q, %v; want nothing", left, err)
	}
	path := filepath.Join(b, ".hidden")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if left, err := leftFiles(a, b); err != nil || !reflect.DeepEqual(left, []string{"file " + path}) {
		t.Errorf("%q, %v; want the file", left, err)
	}
}

func TestLeftPages(t *testing.T) {
	testenv.NeedMachine(t)
	path := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := confine.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.OnDisk(); err != nil {
		t.Skip(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapping, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	left, err := leftPages(t.Context(), m, "it")
	if err != nil || len(left) != 1 || !strings.Contains(left[0], "bytes of it stay") {
		t.Errorf("mapped: %q, %v; want pages that stay", left, err)
	}
	if err := unix.Munmap(mapping); err != nil {
		t.Fatal(err)
	}
	if left, err := leftPages(t.Context(), m, "it"); err != nil || left != nil {
		t.Errorf("no longer mapped: %q, %v; want nothing", left, err)
	}
}

// plantMap makes a map that can be mapped. The caller closes it.
func plantMap(t *testing.T) (*ebpf.Map, object) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "soak_test", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1,
		Flags: unix.BPF_F_MMAPABLE})
	if err != nil {
		t.Fatal(err)
	}
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, ok := info.ID()
	if !ok {
		t.Skip("this kernel does not tell the id of a map")
	}
	return m, object{"map", uint32(id)}
}

// A map that only a marked process holds is found. A map that another process holds is that
// process's.
func TestLeftObjects(t *testing.T) {
	testenv.NeedRoot(t)
	before, _, err := objects()
	if err != nil {
		t.Skip(err) // no BPF here
	}
	marker := testMarker(t)
	m, planted := plantMap(t)
	find := func() bool {
		t.Helper()
		left, err := leftObjects(time.Second, before, marker)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(left, planted.String()) // other programs that use BPF now may add more
	}
	if find() {
		t.Error("this process's own is found")
	}
	dup, err := unix.Dup(m.FD())
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(dup), "map")
	cmd := startMarked(t, marker, file)
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if !find() {
		t.Error("that of a marked process is not found")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	testenv.WaitFor(t, "the map's end", func() bool { return !find() })
}

// A map that another process only maps is that process's.
func TestMappedObjects(t *testing.T) {
	testenv.NeedRoot(t)
	before, _, err := objects()
	if err != nil {
		t.Skip(err) // no BPF here
	}
	m, planted := plantMap(t)
	mapping, err := unix.Mmap(m.FD(), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if all, _, err := objects(); err != nil || !all[planted] {
		t.Fatalf("the map is not there any more, %v", err)
	}
	if left, err := unheldObjects(before, ""); err != nil || left[planted] {
		t.Errorf("found %v, %v, among it this process's own %v", left, err, planted)
	}
	if err := unix.Munmap(mapping); err != nil {
		t.Fatal(err)
	}
}

func TestGrowth(t *testing.T) {
	at := func(seconds float64, pid int, anon int64, descriptors int) Sample {
		return Sample{seconds, pid, anon, descriptors}
	}
	for name, tc := range map[string]struct {
		samples []Sample
		want    []string // the beginnings
	}{
		"none":  {nil, nil},
		"still": {[]Sample{at(1, 1, 10e6, 10), at(60, 1, 10e6, 10), at(100, 1, 11e6, 12)}, nil},
		"large": {[]Sample{at(1, 1, 21e6, 10), at(60, 2, 10e6, 10), at(100, 2, 10e6, 10)},
			[]string{"the automatic prefetchd holds 21000000"}},
		"memory": {[]Sample{at(1, 1, 1e6, 10), at(60, 1, 10e6, 10), at(100, 1, 15e6, 10)},
			[]string{"the automatic prefetchd's anonymous memory grew by 5000000"}},
		"descriptors": {[]Sample{at(60, 1, 10e6, 10), at(100, 1, 10e6, 15)},
			[]string{"the automatic prefetchd's descriptors grew by 5"}},
		"at first":  {[]Sample{at(1, 1, 1e6, 5), at(60, 1, 10e6, 50), at(100, 1, 10e6, 50)}, nil},
		"restarted": {[]Sample{at(60, 1, 1e6, 5), at(90, 2, 10e6, 50), at(100, 2, 10e6, 50)}, nil},
	} {
		got := findGrowth(tc.samples)
		if !slices.EqualFunc(got, tc.want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestDiffers(t *testing.T) {
	want := []int32{1, 2, 3}
	for name, tc := range map[string]struct {
		ids   []int32
		text  string
		whole bool
		found string
	}{
		"same":           {want, "abc", true, ""},
		"killed":         {want[:2], "ab", false, ""},
		"before a token": {nil, "", false, ""},
		"another token":  {[]int32{1, 4}, "ax", false, "from token 1 on"},
		"another text":   {[]int32{1, 2}, "ax", false, "the text differs"},
		"too short":      {want[:2], "ab", true, "after 2 of 3"},
		"too long":       {[]int32{1, 2, 3, 4}, "abcd", false, "from token 3 on"},
	} {
		if got := findDifference(tc.ids, tc.text, want, "abc", tc.whole); (tc.found == "") != (got == "") ||
			!strings.Contains(got, tc.found) {
			t.Errorf("%s: %q, want %q", name, got, tc.found)
		}
	}
}

func TestBroken(t *testing.T) {
	exit := func(code int) syscall.WaitStatus { return syscall.WaitStatus(code << 8) }
	for name, tc := range map[string]struct {
		status syscall.WaitStatus
		sent   syscall.Signal
		output string
		want   string
	}{
		"done":         {exit(0), 0, "", ""},
		"failed":       {exit(1), 0, "prefetchd: the process has ended\n", ""},
		"killed by us": {syscall.WaitStatus(syscall.SIGKILL), syscall.SIGKILL, "", ""},
		"killed":       {syscall.WaitStatus(syscall.SIGSEGV), syscall.SIGKILL, "", "ended by SIGSEGV"},
		"usage":        {exit(2), 0, "one\nunknown flag\n", "ended with 2: unknown flag"},
		"panic":        {exit(2), 0, "panic: oh\n", "panics"},
		"not started":  {exit(127), 0, "", "ended with 127"},
	} {
		got := strings.Join(findBreakage("it", tc.status, tc.sent, tc.output), "\n")
		if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// Plans are the same with the same seed, and everything occurs in them.
func TestPlan(t *testing.T) {
	seen := map[string]int{}
	for n := range 200 {
		for _, lane := range []string{"a", "b"} {
			p := drawPlan(7, lane, n)
			if p != drawPlan(7, lane, n) || p.moment < 0 || p.moment > 1.1 || lane == "b" &&
				(p.tool != "auto" || p.signal == 0) {
				t.Fatalf("%s %d: %+v", lane, n, p)
			}
			seen[fmt.Sprint(p.tool, p.kill, int(p.signal))]++
		}
	}
	if len(seen) != 2*5+2*3 {
		t.Errorf("%d kinds of lives, want 16: %v", len(seen), seen)
	}
	if drawPlan(7, "a", 1) == drawPlan(8, "a", 1) {
		t.Error("the seed changes nothing")
	}
}

// A real soak of the present tools finds nothing and leaves nothing.
func TestSoak(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	dir := t.TempDir()
	cfg := Config{Duration: 15 * time.Second, Seed: 3, Dir: dir, Tokens: 12,
		Model: filepath.Join(t.TempDir(), "model.gguf")}
	for name, path := range map[string]*string{"prefetchd": &cfg.Prefetchd, "tracer": &cfg.Tracer} {
		program, remove, err := testenv.BuildPackage(name, "tensorcast/cmd/"+name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(remove)
		*path = program
	}
	size, err := synth.Sized(60<<20, synth.Config{Type: gguf.Q8_0, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	model, err := synth.NewPlan(size)
	if err != nil {
		t.Fatal(err)
	}
	if err := model.WriteFile(t.Context(), cfg.Model, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	command := func(model string) []string {
		return in.Command(t.Context(), llama.Options{Model: model, Prompt: "The page cache", Tokens: cfg.Tokens,
			Threads: 1, NoRepack: true, Stream: true}).Args
	}
	cfg.Program = command("")[0]
	cfg.Target = func(program, model string) []string { return append([]string{program}, command(model)[1:]...) }
	m, err := confine.Open(cfg.Model)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.OnDisk(); err != nil {
		t.Skipf("%v: set TMPDIR to a directory on a disk", err)
	}
	r, err := Measure(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Findings) > 0 || r.Interrupted || r.Targets < 2 || r.Checks != r.Targets ||
		r.Comparisons != r.Targets || r.Tokens == 0 || len(r.Samples) == 0 ||
		r.Targets >= 4 && r.Tools["prefetchd --auto"] != 2 { // it is restarted at lane B's second target, or before
		t.Errorf("%+v", r)
	}
	left, err := leftFiles(dir)
	if err != nil || left != nil {
		t.Errorf("files: %q, %v", left, err)
	}
}
