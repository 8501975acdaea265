package proc

// This file makes a C program execute system calls, on the real kernel.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/internal/cc"
	"tensorcast/internal/testenv"
)

// injectedSource is a program that computes or waits. It notices if one of its registers or its
// errno changes unexpectedly.
const injectedSource = `
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <signal.h>

static volatile sig_atomic_t signals;
static void count(int s) { (void)s; signals++; }

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	char *at = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	signal(SIGUSR1, count);
	if (!strcmp(what, "filtered")) {
		struct sock_filter allow = { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW };
		struct sock_fprog program = { 1, &allow };
		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
			return 2;
	}
	printf("%p\n", (void *)at);
	fflush(stdout);
	if (!strcmp(what, "epoll")) {
		struct epoll_event e;
		int n = epoll_wait(epoll_create1(0), &e, 1, 60000);
		printf("epoll_wait: %d, errno %d, %d signals\n", n, n < 0 ? errno : 0, (int)signals);
		return 0;
	}
	if (!strcmp(what, "futex")) {
		int word = 0;
		struct timespec t = { 60, 0 };
		long n = syscall(SYS_futex, &word, FUTEX_WAIT, 0, &t, 0, 0);
		printf("futex: %ld, errno %d, %d signals\n", n, errno, (int)signals);
		return 0;
	}
	/* Registers full of values that are checked all the time; it ends with the first signal. */
	unsigned long a = 1, b = 2, c = 3, d = 4, e = 5, f = 6, g = 7;
	while (!signals) {
		asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f), "+r"(g));
		a += 1; b += 2; c += 3; d += 4; e += 5; f += 6; g += 7;
		if (b != 2 * a || c != 3 * a || d != 4 * a || e != 5 * a || f != 6 * a || g != 7 * a) {
			printf("a register has changed\n");
			return 1;
		}
	}
	printf("computed, %d signals\n", (int)signals);
	return 0;
}
`

// injected is that program while it runs.
type injected struct {
	*exec.Cmd
	*Process
	address uint64
	out     *bufio.Reader
}

func startInjected(t *testing.T, what string) *injected {
	t.Helper()
	testenv.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "injected")
	if err := cc.Compile(t.Context(), path, injectedSource); errors.Is(err, cc.ErrNoCompiler) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	p := &injected{Cmd: exec.Command(path, what)}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Cmd.Process.Kill(); _ = p.Cmd.Wait() })
	if _, err := fmt.Fscanf(p.out, "0x%x\n", &p.address); err != nil {
		t.Fatal(err)
	}
	if p.Process, err = Open(p.Cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Process.Close() })
	return p
}

func (p *injected) advise(advice uint64) error {
	return p.Inject([]SystemCall{{unix.SYS_MADVISE, [3]uint64{p.address, 1 << 20, advice}}})
}

// isRandom reports whether its memory has the advice MADV_RANDOM.
func (p *injected) isRandom(t *testing.T) bool {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", p.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), fmt.Sprintf("\n%x-", p.address))
	_, flags, flagged := strings.Cut(after, "\nVmFlags:")
	if !found || !flagged {
		t.Fatal("its memory is not mapped")
	}
	flags, _, _ = strings.Cut(flags, "\n")
	return strings.Contains(flags, " rr ")
}

// waitFor waits until a file in its /proc/PID contains a text.
func (p *injected) waitFor(t *testing.T, file, contains string) {
	t.Helper()
	testenv.WaitFor(t, file, func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.Cmd.Process.Pid, file))
		return err == nil && strings.Contains(string(text), contains)
	})
}

// interrupt sends it a signal, which ends its waiting call, and compares what it prints then.
func (p *injected) interrupt(t *testing.T, want string) {
	t.Helper()
	p.waitFor(t, "stat", ") S ")
	if err := p.Cmd.Process.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(p.out); err != nil || string(got) != want {
		t.Errorf("output = %q, %v; want %q", got, err, want)
	}
}

// A program that computes makes the calls. Then it goes on with its old registers, and gets the
// signals that came meanwhile.
func TestInject(t *testing.T) {
	p := startInjected(t, "")
	for i := range 100 {
		advice, want := uint64(unix.MADV_RANDOM), true
		if i%2 == 1 {
			advice, want = unix.MADV_NORMAL, false
		}
		if err := p.advise(advice); err != nil {
			t.Fatal(err)
		}
		if i < 4 && p.isRandom(t) != want {
			t.Fatalf("after %d calls MADV_RANDOM is set: %v, want %v", i+1, !want, want)
		}
	}
	if err := p.advise(4711); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a call that the kernel refuses: error %v, want EINVAL", err)
	}
	two := []SystemCall{
		{unix.SYS_MADVISE, [3]uint64{p.address, 4096, unix.MADV_RANDOM}},
		{unix.SYS_MADVISE, [3]uint64{p.address, 1 << 20, unix.MADV_NORMAL}},
	}
	if err := p.Inject(two); err != nil || p.isRandom(t) {
		t.Errorf("two calls: error %v, MADV_RANDOM is set: %v; want neither", err, p.isRandom(t))
	}
	p.waitFor(t, "status", "TracerPid:\t0\n")
	done := make(chan error, 1)
	go func() { done <- p.advise(unix.MADV_RANDOM) }()
	if err := p.Cmd.Process.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(p.out)
	if want := "computed, 1 signals\n"; err != nil || string(got) != want {
		t.Errorf("output = %q, %v; want %q", got, err, want)
	}
	// hasStopped must not have taken the exit status of the process.
	if err := p.Cmd.Wait(); err != nil {
		t.Error(err)
	}
	err = <-done
	if err != nil && !errors.Is(err, ErrNoProcess) && !errors.Is(err, ErrNotStopped) && !errors.Is(err, unix.ESRCH) {
		t.Errorf("a call at the end of the process: %v", err)
	}
	if err := p.advise(unix.MADV_RANDOM); !errors.Is(err, ErrNoProcess) {
		t.Errorf("after its end: error %v, want %v", err, ErrNoProcess)
	}
}

// A thread that has ended after it was listed is not an error, even before its parent waits for it.
func TestStopEndedThread(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	p := &Process{pid: cmd.Process.Pid}
	testenv.WaitFor(t, "the thread to end", func() bool { return p.hasThreadEnded(p.pid) })
	runtime.LockOSThread() // it is never unlocked, see Inject
	if _, err := p.stopThread(p.pid); !errors.Is(err, errOtherThread) {
		t.Errorf("the error is %v, want %v", err, errOtherThread)
	}
}

// A program that waits for a futex goes on waiting after the calls, until its own signal ends the wait.
func TestInjectWaiting(t *testing.T) {
	p := startInjected(t, "futex")
	p.waitFor(t, "syscall", fmt.Sprintf("%d ", unix.SYS_FUTEX))
	for range 3 {
		if err := p.advise(unix.MADV_RANDOM); err != nil {
			t.Fatal(err)
		}
	}
	if !p.isRandom(t) {
		t.Error("MADV_RANDOM is not set after the call")
	}
	p.interrupt(t, "futex: -1, errno 4, 1 signals\n") // EINTR
}

// Calls that the program would notice or that could do harm are refused, and leave no trace.
func TestInjectRefuses(t *testing.T) {
	refused := func(t *testing.T, p *injected, want error) {
		t.Helper()
		if err := p.advise(unix.MADV_RANDOM); !errors.Is(err, want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want %v on one line", err, want)
		}
		if p.isRandom(t) {
			t.Error("MADV_RANDOM is set after a refused call")
		}
	}
	t.Run("filtered", func(t *testing.T) { refused(t, startInjected(t, "filtered"), ErrFiltered) })
	t.Run("a call that would fail", func(t *testing.T) {
		p := startInjected(t, "epoll")
		p.waitFor(t, "stat", ") S ")
		refused(t, p, ErrNotStopped)
		p.interrupt(t, "epoll_wait: -1, errno 4, 1 signals\n")
	})
	t.Run("stopped", func(t *testing.T) {
		p := startInjected(t, "")
		if err := p.Cmd.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		p.waitFor(t, "stat", ") T ")
		refused(t, p, ErrNotStopped)
		p.waitFor(t, "stat", ") T ")
	})
	t.Run("traced", func(t *testing.T) {
		p := startInjected(t, "")
		release := make(chan struct{})
		seized := make(chan error)
		go func() {
			runtime.LockOSThread() // the trace ends with this thread
			seized <- unix.PtraceSeize(p.Cmd.Process.Pid)
			<-release
		}()
		if err := <-seized; err != nil {
			t.Fatal(err)
		}
		refused(t, p, ErrTraced)
		close(release)
		testenv.WaitFor(t, "the trace to end", func() bool {
			err := p.advise(unix.MADV_RANDOM)
			if err != nil && !errors.Is(err, ErrTraced) {
				t.Fatal(err)
			}
			return err == nil
		})
	})
}
