package readahead

// This file lets the test's program play the other processes of a test: a target, a guardian, and a process
// that starts a guardian and is killed.

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tensorcast/internal/proc"
)

const (
	roleVariable = "READAHEAD_TEST_ROLE"
	markVariable = "READAHEAD_TEST_MARK" // of all processes that a test has started
)

func TestMain(m *testing.M) {
	var err error
	switch role, argument, _ := strings.Cut(os.Getenv(roleVariable), " "); role {
	case "":
		goleak.VerifyTestMain(m)
		return
	case "target":
		err = beTarget(argument)
	case "helper":
		err = beHelper(argument)
	case "late-target":
		err = beLate(argument)
	case "guardian":
		err = Guard(os.Stdin, os.Stdout)
	case "hanging-guardian": // hangs in the moment in which the disk's setting is changed
		err = runGuardian(os.Stdin, os.Stdout, func(*os.File, int) error { select {} })
	case "restless-guardian":
		slowly := func(*os.File, int) error { time.Sleep(5 * time.Millisecond); return nil }
		err = runGuardian(os.Stdin, os.Stdout, slowly)
	case "parent":
		err = beParent(argument)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// helperCommand is a command that plays a role.
func helperCommand(role string) []string {
	return []string{"env", roleVariable + "=" + role, noSleep, os.Args[0]}
}

// noSleep keeps the race detector from waiting for a second when a program ends.
const noSleep = "GORACE=atexit_sleep_ms=0"

// computed is what a target computes.
var computed atomic.Uint64

// openTime is how long beLate has its file open. Much more time passes between two looks at a target that has
// been waited for.
const openTime = 50 * time.Millisecond

// beLate maps a file when it is told to, with a thread that did not exist before, and soon closes it.
func beLate(path string) error {
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("waits")
	in.Scan()
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	mapped := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread is its own
		_, err := unix.Mmap(int(f.Fd()), 0, modelBytes, unix.PROT_READ, unix.MAP_SHARED)
		mapped <- err
	}()
	err = <-mapped
	time.Sleep(openTime)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	fmt.Println("closed")
	in.Scan()
	return nil
}

// beTarget maps a file as llama.cpp does, and obeys.
func beTarget(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_SEQUENTIAL); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	mapping, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	var sum byte
	for in := bufio.NewScanner(os.Stdin); ; {
		fmt.Println("done", sum)
		if !in.Scan() {
			return nil
		}
		var at int64
		switch text := in.Text(); {
		case text == "close":
			err = f.Close()
		case text == "compute":
			go func() {
				for n := uint64(0); ; n++ {
					computed.Store(n)
				}
			}()
		default:
			if _, err = fmt.Sscanf(text, "touch %d", &at); err == nil {
				sum += mapping[at]
			}
		}
		if err != nil {
			return err
		}
	}
}

// beHelper makes a target's faults read little, says how, and waits to be killed.
func beHelper(argument string) error {
	var pid int
	var base uint64
	var choice Choice
	if _, err := fmt.Sscan(argument, &pid, &base, &choice); err != nil {
		return err
	}
	process, err := proc.Open(pid)
	if err != nil {
		return err
	}
	t := New(process, choice, helperCommand("guardian"), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	t.awaitFiles(choice)
	t.Shrink([]uint64{base})
	fmt.Println(t.outcome.Way)
	time.Sleep(time.Hour)
	return nil
}

// awaitFiles waits until the model's file was taken, if it is to be.
func (t *Target) awaitFiles(choice Choice) {
	for taken := false; !taken && (choice == Auto || choice == FD); time.Sleep(time.Millisecond) {
		t.mu.Lock()
		taken = len(t.files) > 0
		t.mu.Unlock()
	}
}

// beParent starts a guardian over and over, until it is killed.
func beParent(setting string) error {
	f, err := os.Open(setting)
	if err != nil {
		return err
	}
	for {
		c, err := changeFor(setting)
		if err != nil {
			return err
		}
		g, err := startGuardian(helperCommand("restless-guardian"), c, []*os.File{f})
		if err != nil {
			return err
		}
		if err := g.end(); err != nil {
			return err
		}
	}
}

// changeFor is a change of a file on a disk with this setting. Faults in the file read five times as much as
// the disk's setting, so that undoing the change takes a change of the disk's.
func changeFor(path string) (change, error) {
	kib, err := readSetting(path)
	return change{Way: ByFile, PID: os.Getpid(), Files: []setting{{Disk: path, Now: kib, Was: 5 * kib}}}, err
}

// roleProcess prepares a process in a role.
func roleProcess(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+name, markVariable+"="+t.Name(), noSleep)
	cmd.Stderr = os.Stderr
	return cmd
}

// hasProcesses says whether processes are left that the test has started.
func hasProcesses(t *testing.T) bool {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err == nil && strings.Contains(string(env), markVariable+"="+t.Name()+"\x00") {
			return true
		}
	}
	return false
}
