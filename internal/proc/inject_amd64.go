package proc

// This file has another process make system calls (ptrace).
//
// A thread of it is stopped, given other registers, and let run for one instruction: a `syscall` that is in its memory already, so nothing of it is written but registers. Then it gets back
// those that it had, and goes on. A thread that computes is taken, or one that waits for a futex: that call the kernel repeats by itself. Others would return EINTR (epoll_wait does), which
// a program that was never stopped need not expect.
//
// If the caller is killed while the thread is stopped, the kernel lets the thread run. Between the first change of its registers and the last, some ten microseconds a call, it would run with
// the wrong ones, and crash. So the caller should be a process that nobody kills.

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
	// stopTime is how long a thread may take to stop: one that waits for the disk is stopped when that has answered.
	stopTime = 200 * time.Millisecond
	stopStep = 100 * time.Microsecond
	// searchTime is how long a thread that can be stopped is looked for: all may wait for the disk.
	searchTime = time.Second
	// codeSegment is that of 64-bit programs (__USER_CS).
	codeSegment = 0x33
	// maxCode bounds how much of a mapping is searched for the instruction.
	maxCode = 4 << 20
)

// resumed are the system calls that the kernel repeats by itself: a futex with a timeout by restart_syscall, as whatever else it repeats in this way.
var resumed = []string{strconv.Itoa(unix.SYS_FUTEX), strconv.Itoa(unix.SYS_RESTART_SYSCALL)}

// instruction is `syscall`.
var instruction = []byte{0x0f, 0x05}

// Inject has the process make system calls, one after the other, in one of its threads. It needs ptrace access, and returns the first error that the kernel gives to one of them, or one of those
// above; then the others were not made. No signal gets lost; one that arrives meanwhile comes from this process.
func (p *Process) Inject(calls []SystemCall) error {
	done := make(chan error)
	go func() {
		// ptrace is a thread's. Not unlocked: the thread ends with its goroutine, and the kernel lets go whatever it still traces.
		runtime.LockOSThread()
		done <- p.inject(calls)
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("have process %d make a system call: %w", p.pid, err)
	}
	return nil
}

func (p *Process) inject(calls []SystemCall) error {
	at, err := p.instruction()
	if err != nil {
		return err
	}
	for until := time.Now().Add(searchTime); time.Now().Before(until); time.Sleep(stopStep) {
		threads, err := p.interruptible()
		if err != nil {
			return err
		}
		for _, tid := range threads {
			t, err := p.stop(tid)
			if errors.Is(err, errOtherThread) {
				continue
			}
			if err != nil {
				return err
			}
			return t.make(at, calls)
		}
	}
	return ErrNotStopped
}

// interruptible lists threads to stop, those that compute first.
func (p *Process) interruptible() (threads []int, err error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.pid))
	if err != nil {
		return nil, gone(err)
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
		fields := statusFields(string(status))
		switch {
		case fields["TracerPid"] == "": // likewise
		case fields["TracerPid"] != "0":
			return nil, ErrTraced
		case fields["Seccomp"] != "" && fields["Seccomp"] != "0":
			return nil, ErrFiltered
		case strings.HasPrefix(fields["State"], "R"):
			threads = append(threads, tid)
		case strings.HasPrefix(fields["State"], "S"):
			call, err := readText(filepath.Join(dir, "syscall"))
			if number, _, _ := strings.Cut(string(call), " "); err == nil && slices.Contains(resumed, number) {
				waiting = append(waiting, tid)
			}
		}
	}
	return append(threads, waiting...), nil
}

func gone(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return ErrNoProcess
	}
	return err
}

// statusFields are the lines of /proc/PID/status.
func statusFields(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	return fields
}

// instruction finds one in the process's memory: the kernel's own code in it (vdso), or a library's.
func (p *Process) instruction() (address uint64, err error) {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", p.pid))
	if err != nil {
		return 0, gone(err)
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
		return 0, gone(err)
	}
	slices.SortStableFunc(areas, func(a, b Area) int { return rank(a) - rank(b) })
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", p.pid))
	if err != nil {
		return 0, gone(err)
	}
	defer memory.Close()
	if ended, err := p.Ended(); ended || err != nil { // what is open is this process's, if that has not ended
		return 0, errors.Join(err, ErrNoProcess)
	}
	for _, a := range areas {
		code := make([]byte, min(a.End-a.Start, maxCode))
		n, err := memory.ReadAt(code, int64(a.Start))
		if err != nil && !errors.Is(err, io.EOF) && n == 0 { // [vsyscall] cannot be read
			continue
		}
		if i := bytes.Index(code[:n], instruction); i >= 0 {
			return a.Start + uint64(i), nil
		}
	}
	// One that is ending loses its memory before its pidfd says so.
	if left, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid)); err != nil || len(left) == 0 {
		return 0, ErrNoProcess
	}
	return 0, ErrForeign
}

// rank orders mappings by how likely they hold the instruction.
func rank(a Area) int {
	switch {
	case a.Path == "[vdso]":
		return 0
	case strings.Contains(a.Path, "/libc."):
		return 1
	}
	return 2
}

// errOtherThread says that a thread cannot be used, and another one may be.
var errOtherThread = errors.New("this thread does not stop")

// stopped is a thread that this one has stopped.
type stopped struct {
	tid, pid int
	signals  []unix.Signal // that arrived meanwhile
}

// stop stops a thread.
func (p *Process) stop(tid int) (*stopped, error) {
	switch err := unix.PtraceSeize(tid); {
	case errors.Is(err, unix.ESRCH):
		return nil, errOtherThread
	case err != nil:
		return nil, fmt.Errorf("trace thread %d: %w", tid, err)
	}
	t := &stopped{tid: tid, pid: p.pid}
	if err := unix.PtraceInterrupt(tid); err != nil {
		return nil, errOtherThread
	}
	for until := time.Now().Add(stopTime); ; time.Sleep(stopStep) {
		var status unix.WaitStatus
		switch seen, err := stops(tid); {
		case err != nil:
			return nil, errOtherThread
		case !seen:
			if time.Now().Before(until) {
				continue
			}
			// It cannot be let go as long as it runs. The kernel does, when the calling thread ends.
			return nil, ErrNotStopped
		}
		switch _, err := unix.Wait4(tid, &status, unix.WALL, nil); {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || !status.Stopped():
			return nil, errOtherThread
		case int(uint32(status)>>16) != unix.PTRACE_EVENT_STOP: // a signal: it gets it
			if err := ignoreGone(unix.PtraceCont(tid, int(status.StopSignal()))); err != nil {
				return nil, err
			}
			if err := unix.PtraceInterrupt(tid); err != nil {
				return nil, errOtherThread
			}
			continue
		case status.StopSignal() != unix.SIGTRAP: // somebody has stopped all of it
			return nil, errors.Join(ErrNotStopped, t.release())
		}
		if ended, err := p.Ended(); ended || err != nil { // else the thread may be one of another process
			return nil, errors.Join(err, ErrNoProcess)
		}
		return t, nil
	}
}

// What waitid says of a child, see siginfo_t(7): the values of its field si_code.
const (
	cldTrapped = 4
	cldStopped = 5
)

// stops says whether a thread has stopped by now. That it has ended is an error, and is left for its parent to wait for: that may be this process.
func stops(tid int) (bool, error) {
	var info unix.Siginfo
	const look = unix.WEXITED | unix.WSTOPPED | unix.WNOWAIT | unix.WNOHANG | unix.WALL
	for {
		err := unix.Waitid(unix.P_PID, tid, &info, look, nil)
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

// make makes the calls, and lets the thread go.
func (t *stopped) make(at uint64, calls []SystemCall) (err error) {
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
		regs.Rip, regs.Rax, regs.Rdi, regs.Rsi, regs.Rdx = at, c.Number, c.Args[0], c.Args[1], c.Args[2]
		regs.Orig_rax = ^uint64(0) // it is not in a call that the kernel would repeat
		if err := unix.PtraceSetRegs(t.tid, &regs); err != nil {
			return fmt.Errorf("set the registers of thread %d: %w", t.tid, err)
		}
		if err := t.step(); err != nil {
			return err
		}
		if err := unix.PtraceGetRegs(t.tid, &regs); err != nil {
			return fmt.Errorf("read the registers of thread %d: %w", t.tid, err)
		}
		if regs.Rip != at+uint64(len(instruction)) {
			return fmt.Errorf("thread %d did not make the call", t.tid)
		}
		if result := int64(regs.Rax); result < 0 {
			return unix.Errno(-result)
		}
	}
	return nil
}

// step lets the thread run for an instruction. Signals that arrive meanwhile wait.
func (t *stopped) step() error {
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

// release lets the thread go.
func (t *stopped) release() error {
	err := ignoreGone(unix.PtraceDetach(t.tid))
	for _, s := range t.signals {
		err = errors.Join(err, ignoreGone(unix.Tgkill(t.pid, t.tid, s)))
	}
	return err
}
