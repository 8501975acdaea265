package readahead

// This file tests that a disk's setting is restored, whichever process is killed.

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/testenv"
)

// If the guardian's starter is killed, the setting is what it was when the guardian has ended.
func TestKilled(t *testing.T) {
	path := fakeDisk(t)
	random := rand.New(rand.NewPCG(1, 2))
	during := 0
	const kills = 10
	for range kills {
		parent := roleProcess(t, "parent "+path)
		if err := parent.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.WaitFor(t, "a change", func() bool { kib, err := readSetting(path); return err == nil && kib != 8192 })
		time.Sleep(time.Duration(random.Int64N(int64(20 * time.Millisecond))))
		if err := parent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if kib, err := readSetting(path); err == nil && kib != 8192 {
			during++
		}
		_ = parent.Wait() // killed
		testenv.WaitFor(t, "the guardian to end", func() bool { return !hasProcesses(t) })
		checkDisk(t, path, 8192)
	}
	t.Logf("%d of %d starters were killed while the setting was changed", during, kills)
}

// If the guardian is killed in the moment in which the setting is changed, its starter restores the setting,
// but not one that somebody else has made.
func TestGuardianKilled(t *testing.T) {
	for _, tc := range []struct {
		others string
		way    Way
	}{{"", ByFile}, {"512", ByFile}, {"", byOwn}, {"512", byOwn}} {
		others := tc.others
		path := fakeDisk(t)
		c, err := changeFor(path)
		if err != nil {
			t.Fatal(err)
		}
		c.Way = tc.way
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		t.Setenv(markVariable, t.Name())
		killed := make(chan error)
		go func() {
			for {
				if kib, err := readSetting(path); err == nil && kib == SmallKiB {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if others != "" {
				if err := os.WriteFile(path, []byte(others+"\n"), 0); err != nil {
					killed <- err
					return
				}
			}
			killed <- killMarked(t.Name())
		}()
		_, err = startGuardian(helperCommand("hanging-guardian"), c, []*os.File{f})
		if e := <-killed; e != nil {
			t.Fatal(e)
		}
		if err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("startGuardian: %v, want an error that it was killed", err)
		}
		want := int64(8192)
		if others != "" {
			want = 512
		}
		checkDisk(t, path, want)
	}
}

// The caller's own files are not advised again in the end. Neither the changed setting nor the guardian
// stays.
func TestShrinkOwn(t *testing.T) {
	testenv.NeedReadahead(t)
	testenv.NeedMachine(t)
	var files []*os.File
	for range 2 {
		f, err := os.Open(os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(files[0].Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	path := settingPath(uint64(unix.Major(stat.Dev))<<20 | uint64(unix.Minor(stat.Dev)))
	before, err := readSetting(path)
	if err != nil {
		t.Skip(err)
	}
	t.Setenv(markVariable, t.Name())
	if err := ShrinkOwn(helperCommand("guardian"), files...); err != nil {
		t.Error(err)
	}
	checkDisk(t, path, before)
	if hasProcesses(t) {
		t.Error("the guardian is still there")
	}
	if err := ShrinkOwn([]string{"/nonexistent"}, files...); err == nil || !strings.Contains(err.Error(), "guardian") {
		t.Errorf("without a guardian: %v, want an error that names it", err)
	}
	checkDisk(t, path, before)
}

// killMarked kills the processes with a mark, except this one.
func killMarked(mark string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err == nil && strings.Contains(string(env), markVariable+"="+mark+"\x00") {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				return err
			}
		}
	}
	return nil
}

// A guardian that a terminal or a service manager asks to end goes on until its starter has ended, and undoes
// its change first.
func TestGuardianSignals(t *testing.T) {
	path := fakeDisk(t)
	c, err := changeFor(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	g, err := startGuardian(helperCommand("guardian"), c, []*os.File{f})
	if err != nil {
		t.Fatal(err)
	}
	checkDisk(t, path, 8192)
	for _, s := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT} {
		if err := g.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.end(); err != nil || !g.cmd.ProcessState.Success() {
		t.Errorf("end: %v, the guardian: %v, want success", err, g.cmd.ProcessState)
	}
	checkDisk(t, path, 8192)
}

// Input that is no change is refused, and nothing is changed.
func TestGuardRefuses(t *testing.T) {
	for _, text := range []string{"", "{", "{}", "[]\n", "null\n", `{"way":"exec"}` + "\n"} {
		var out strings.Builder
		advise := func(*os.File, int) error { t.Errorf("%q: it advised", text); return nil }
		if err := runGuardian(strings.NewReader(text), &out, advise); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}
