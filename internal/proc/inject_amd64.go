package proc

// This file makes another process execute system calls, with ptrace.
//
// It stops one thread of the process, changes its registers and lets it run for one instruction.
// That instruction is a `syscall` which the process's memory contains anyway, so nothing but
// registers is written. Then the thread gets its old registers back and goes on.
//
// Only two kinds of threads are used: threads that compute, and threads that wait for a futex,
// because the kernel restarts that call by itself. Other calls would return EINTR (epoll_wait
// does), which a program that was never stopped need not expect.
//
// If the caller is killed while the thread is stopped, the kernel lets the thread run. Between the
// first and the last change of its registers, some ten microseconds per call, it would run with the
// wrong ones and crash. So nobody should kill the caller.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// stopTime is how long a thread may take to stop. A thread that waits for the disk stops only
	// after the disk has answered.
	stopTime = 200 * time.Millisecond
	// stopStep is the pause between two looks at the threads.
	stopStep = 100 * time.Microsecond
	// searchTime is how long Inject looks for a thread that can be stopped. All threads may be
	// waiting for the disk.
	searchTime = time.Second
	// codeSegment is the code segment of 64-bit programs (__USER_CS).
	codeSegment = 0x33
	// maxCode bounds how many bytes of a mapping are searched for the instruction.
	maxCode = 4 << 20
)

// restartedCalls are the numbers of the system calls that the kernel restarts by itself after a
// stop. It restarts a futex with a timeout through restart_syscall.
var restartedCalls = []string{strconv.Itoa(unix.SYS_FUTEX), strconv.Itoa(unix.SYS_RESTART_SYSCALL)}

// syscallCode is the machine code of the instruction `syscall`.
var syscallCode = []byte{0x0f, 0x05}

// Inject makes the process execute system calls, one after the other, in one of its threads. It
// needs ptrace access. It returns one of the errors of inject.go, or the first error that the
// kernel returns for one of the calls; then the remaining calls were not made. No signal gets lost,
// but the process sees this process as the sender of one that arrives meanwhile.
func (p *Process) Inject(calls []SystemCall) error {
	done := make(chan error)
	go func() {
		// Only the tracing thread may make ptrace requests. It is never unlocked: so it ends with
		// this goroutine, and the kernel lets go whatever it still traces.
		runtime.LockOSThread()
		done <- p.inject(calls)
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("have process %d make a system call: %w", p.pid, err)
	}
	return nil
}

func (p *Process) inject(calls []SystemCall) error {
	address, err := p.findSyscallCode()
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(searchTime); time.Now().Before(deadline); time.Sleep(stopStep) {
		threads, err := p.listInterruptible()
		if err != nil {
			return err
		}
		for _, tid := range threads {
			t, err := p.stopThread(tid)
			if errors.Is(err, errOtherThread) {
				continue
			}
			if err != nil {
				return err
			}
			return t.callAndRelease(address, calls)
		}
	}
	return ErrNotStopped
}

// listInterruptible lists the ids of threads that may be stopped. Threads that compute come first.
func (p *Process) listInterruptible() (threads []int, err error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.pid))
	if err != nil {
		return nil, asNoProcess(err)
	}
	var waiting []int
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", strconv.Itoa(p.pid), "task", e.Name())
		status, err := readText(filepath.Join(dir, "status"))
		if err != nil {
			continue // it has ended
		}
		fields := parseStatus(string(status))
		switch {
		case fields["TracerPid"] == "": // it has ended, too
		case fields["TracerPid"] != "0":
			return nil, ErrTraced
		case fields["Seccomp"] != "" && fields["Seccomp"] != "0":
			return nil, ErrFiltered
		case strings.HasPrefix(fields["State"], "R"):
			threads = append(threads, tid)
		case strings.HasPrefix(fields["State"], "S"):
			call, err := readText(filepath.Join(dir, "syscall"))
			if number, _, _ := strings.Cut(string(call), " "); err == nil && slices.Contains(restartedCalls, number) {
				waiting = append(waiting, tid)
			}
		}
	}
	return append(threads, waiting...), nil
}

// asNoProcess returns ErrNoProcess for errors of /proc that say that the process has ended, and
// other errors as they are.
func asNoProcess(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return ErrNoProcess
	}
	return err
}

// parseStatus splits the text of /proc/PID/status into names and values.
func parseStatus(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	return fields
}

// findSyscallCode finds the instruction `syscall` in the process's memory: in the code that the
// kernel maps there (vdso), or in a library.
func (p *Process) findSyscallCode() (address uint64, err error) {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", p.pid))
	if err != nil {
		return 0, asNoProcess(err)
	}
	defer maps.Close()
	var areas []Area
	if err := EachArea(maps, func(a *Area) {
		if a.Executable && a.Readable {
			own := *a
			own.Path = strings.Clone(a.Path)
			areas = append(areas, own)
		}
	}); err != nil {
		return 0, asNoProcess(err)
	}
	slices.SortStableFunc(areas, func(a, b Area) int { return searchRank(a) - searchRank(b) })
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", p.pid))
	if err != nil {
		return 0, asNoProcess(err)
	}
	defer memory.Close()
	// As long as the process has not ended, nobody else can have its id, so the open files belong
	// to it.
	if ended, err := p.Ended(); ended || err != nil {
		return 0, errors.Join(err, ErrNoProcess)
	}
	for _, a := range areas {
		code := make([]byte, min(a.End-a.Start, maxCode))
		n, err := memory.ReadAt(code, int64(a.Start))
		if err != nil && !errors.Is(err, io.EOF) && n == 0 { // [vsyscall] cannot be read
			continue
		}
		if i := bytes.Index(code[:n], syscallCode); i >= 0 {
			return a.Start + uint64(i), nil
		}
	}
	// A process that is ending loses its memory before its pidfd says so.
	if !HasMemory(p.pid) {
		return 0, ErrNoProcess
	}
	return 0, ErrForeign
}

// searchRank is lower for mappings that are more likely to contain the instruction.
func searchRank(a Area) int {
	switch {
	case a.Path == "[vdso]":
		return 0
	case strings.Contains(a.Path, "/libc."):
		return 1
	}
	return 2
}

// errOtherThread says that a thread cannot be used, but another one of the process may be.
var errOtherThread = errors.New("this thread does not stop")

// stoppedThread is a thread that the calling thread has stopped.
type stoppedThread struct {
	tid, pid int
	signals  []unix.Signal // arrived while it was stopped
}

// hasThreadEnded says whether a thread has ended. Until its parent waits for it, the kernel refuses to trace it as if
// that were not permitted (ptrace_attach, kernel/ptrace.c).
func (p *Process) hasThreadEnded(tid int) bool {
	status, err := readText(fmt.Sprintf("/proc/%d/task/%d/status", p.pid, tid))
	state := parseStatus(string(status))["State"]
	return err != nil || strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// stopThread stops a thread without the process noticing it.
func (p *Process) stopThread(tid int) (*stoppedThread, error) {
	switch err := unix.PtraceSeize(tid); {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EPERM) && p.hasThreadEnded(tid):
		return nil, errOtherThread
	case err != nil:
		return nil, fmt.Errorf("trace thread %d: %w", tid, err)
	}
	t := &stoppedThread{tid: tid, pid: p.pid}
	if err := unix.PtraceInterrupt(tid); err != nil {
		return nil, errOtherThread
	}
	for deadline := time.Now().Add(stopTime); ; time.Sleep(stopStep) {
		var status unix.WaitStatus
		switch stopped, err := hasStopped(tid); {
		case err != nil:
			return nil, errOtherThread
		case !stopped:
			if time.Now().Before(deadline) {
				continue
			}
			// A thread that runs cannot be detached. The kernel detaches it when the calling thread
			// ends.
			return nil, ErrNotStopped
		}
		switch _, err := unix.Wait4(tid, &status, unix.WALL, nil); {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || !status.Stopped():
			return nil, errOtherThread
		case int(uint32(status)>>16) != unix.PTRACE_EVENT_STOP: // a signal: pass it on
			if err := ignoreGone(unix.PtraceCont(tid, int(status.StopSignal()))); err != nil {
				return nil, err
			}
			if err := unix.PtraceInterrupt(tid); err != nil {
				return nil, errOtherThread
			}
			continue
		case status.StopSignal() != unix.SIGTRAP: // somebody has stopped the whole process
			return nil, errors.Join(ErrNotStopped, t.release())
		}
		if ended, err := p.Ended(); ended || err != nil { // else the thread may be one of another process
			return nil, errors.Join(err, ErrNoProcess)
		}
		return t, nil
	}
}

// Values of si_code that waitid returns, see sigaction(2).
const (
	cldTrapped = 4
	cldStopped = 5
)

// hasStopped reports whether a thread has stopped. If it has ended, that is an error. Its status is
// left for its parent to wait for, which may be this process.
func hasStopped(tid int) (bool, error) {
	var info unix.Siginfo
	const options = unix.WEXITED | unix.WSTOPPED | unix.WNOWAIT | unix.WNOHANG | unix.WALL
	for {
		err := unix.Waitid(unix.P_PID, tid, &info, options, nil)
		if !errors.Is(err, unix.EINTR) {
			if err != nil || info.Signo == 0 {
				return false, err
			}
			break
		}
	}
	if info.Code != cldTrapped && info.Code != cldStopped {
		return false, errOtherThread
	}
	return true, nil
}

// callAndRelease makes the calls with the instruction at an address, and lets the thread go.
func (t *stoppedThread) callAndRelease(address uint64, calls []SystemCall) (err error) {
	defer func() { err = errors.Join(err, t.release()) }()
	var own unix.PtraceRegs
	if err := unix.PtraceGetRegs(t.tid, &own); err != nil {
		return fmt.Errorf("read the registers of thread %d: %w", t.tid, err)
	}
	if own.Cs != codeSegment {
		return ErrForeign
	}
	defer func() {
		if e := ignoreGone(unix.PtraceSetRegs(t.tid, &own)); e != nil {
			err = errors.Join(err, fmt.Errorf("restore the registers of thread %d: %w", t.tid, e))
		}
	}()
	for _, c := range calls {
		regs := own
		regs.Rip, regs.Rax, regs.Rdi, regs.Rsi, regs.Rdx = address, c.Number, c.Args[0], c.Args[1], c.Args[2]
		regs.Orig_rax = ^uint64(0) // tells the kernel that there is no call to restart
		if err := unix.PtraceSetRegs(t.tid, &regs); err != nil {
			return fmt.Errorf("set the registers of thread %d: %w", t.tid, err)
		}
		if err := t.step(); err != nil {
			return err
		}
		if err := unix.PtraceGetRegs(t.tid, &regs); err != nil {
			return fmt.Errorf("read the registers of thread %d: %w", t.tid, err)
		}
		if regs.Rip != address+uint64(len(syscallCode)) {
			return fmt.Errorf("thread %d did not make the call", t.tid)
		}
		if result := int64(regs.Rax); result < 0 {
			return unix.Errno(-result)
		}
	}
	return nil
}

// step lets the thread run for one instruction. Signals that arrive meanwhile are kept for release.
func (t *stoppedThread) step() error {
	for {
		if err := unix.PtraceSingleStep(t.tid); err != nil {
			return fmt.Errorf("step thread %d: %w", t.tid, err)
		}
		var status unix.WaitStatus
		for {
			_, err := unix.Wait4(t.tid, &status, unix.WALL, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return fmt.Errorf("step thread %d: %w", t.tid, err)
			}
			break
		}
		switch {
		case !status.Stopped():
			return ErrNoProcess
		case int(uint32(status)>>16) == 0 && status.StopSignal() == unix.SIGTRAP:
			return nil
		case int(uint32(status)>>16) == 0: // a signal, before the instruction
			t.signals = append(t.signals, status.StopSignal())
		}
	}
}

// release lets the thread go and sends it the signals that arrived meanwhile.
func (t *stoppedThread) release() error {
	err := ignoreGone(unix.PtraceDetach(t.tid))
	for _, s := range t.signals {
		err = errors.Join(err, ignoreGone(unix.Tgkill(t.pid, t.tid, s)))
	}
	return err
}
