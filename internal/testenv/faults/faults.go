// Package faults makes real programs fail at a chosen system call that writes: the call returns an error, or the program is killed or
// interrupted there. The kernel asks a supervisor in the test about each such call (seccomp_unotify(2)).
//
// A test's TestMain calls [Launched] first: the test program starts the command for [Run].
package faults

// This file starts a program under the filter, and answers the kernel.

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// envLauncher makes the test program a launcher.
const envLauncher = "TENSORCAST_TEST_FAULTS"

// socketFD is the launcher's end of the socket, through which it hands over the descriptor to which the kernel reports.
const socketFD = 3

// Launched runs the command instead of the tests if this process was started for that, and then does not return.
func Launched() {
	if os.Getenv(envLauncher) == "" {
		return
	}
	fmt.Fprintln(os.Stderr, "faults:", launch(os.Args[1:]))
	os.Exit(125)
}

func launch(args []string) error {
	runtime.LockOSThread() // only this thread has the filter, until it becomes the command
	if os.Geteuid() != 0 {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	filter := program()
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// Once the kernel has reported a call, only a deadly signal may interrupt it (Linux 5.19): else it would be reported again, and be counted twice.
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("set the filter: %w", errno)
	}
	if err := unix.Sendmsg(socketFD, []byte{0}, unix.UnixRights(int(fd)), nil, 0); err != nil {
		return fmt.Errorf("hand over the listener: %w", err)
	}
	unix.CloseOnExec(socketFD)
	if err := os.Unsetenv(envLauncher); err != nil {
		return err
	}
	return syscall.Exec(args[0], args, os.Environ())
}

// call says how a system call names what it changes.
type call struct {
	name string
	dir  int // argument that is a directory's descriptor; -1 if the first one is the file's
	path int // argument that is the path
}

var calls = map[uint32]call{
	unix.SYS_WRITE: {"write", -1, 0}, unix.SYS_PWRITE64: {"pwrite", -1, 0}, unix.SYS_WRITEV: {"writev", -1, 0}, unix.SYS_FTRUNCATE: {"ftruncate", -1, 0},
	unix.SYS_FCHMOD: {"fchmod", -1, 0}, unix.SYS_OPENAT: {"open", 0, 1}, unix.SYS_MKDIRAT: {"mkdir", 0, 1}, unix.SYS_UNLINKAT: {"unlink", 0, 1},
	unix.SYS_RENAMEAT: {"rename", 2, 3}, unix.SYS_RENAMEAT2: {"rename", 2, 3}, unix.SYS_LINKAT: {"link", 2, 3}, unix.SYS_SYMLINKAT: {"symlink", 1, 2},
}

// program reports the calls, of openat only what writes or creates.
func program() []unix.SockFilter {
	const number, flags = 0, 16 + 2*8 // offsets in struct seccomp_data
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	ret := func(v uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: v} }
	equal := unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1}
	p := []unix.SockFilter{load(number)}
	for nr := range calls {
		if nr != unix.SYS_OPENAT {
			equal.K = nr
			p = append(p, equal, ret(unix.SECCOMP_RET_USER_NOTIF))
		}
	}
	equal.K, equal.Jf = unix.SYS_OPENAT, 4
	return append(p, equal, load(flags),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT, Jf: 1},
		ret(unix.SECCOMP_RET_USER_NOTIF), ret(unix.SECCOMP_RET_ALLOW), ret(unix.SECCOMP_RET_ALLOW))
}

// Fault says what goes wrong. The zero Fault is none.
type Fault struct {
	At     int            // number of the call, from 1, of those that Run counts; 0: none
	Errno  syscall.Errno  // what it returns; 0: see Signal
	Signal syscall.Signal // what the process gets before the call; after SIGKILL it does not happen
	Named  bool           // the file system has no files without names (O_TMPFILE)
}

func (f Fault) String() string {
	what := "nothing"
	switch {
	case f.Errno != 0:
		what = unix.ErrnoName(f.Errno)
	case f.Signal != 0:
		what = unix.SignalName(f.Signal)
	}
	if f.Named {
		what += " without O_TMPFILE"
	}
	return fmt.Sprintf("%s at call %d", what, f.At)
}

// Outcome is how a command ended.
type Outcome struct {
	Calls  []string // that write below the directory, in order, such as "write out.csv"; up to the fault if it killed
	Status int      // exit status; -1 if a signal ended it
}

// Run runs a command to its end. Counted are the calls that write to something below dir, by whichever of its processes. It skips the test
// where the kernel cannot report calls.
func Run(t testing.TB, cmd *exec.Cmd, dir string, fault Fault) Outcome {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
	defer ours.Close()
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, envLauncher+"=1")
	cmd.Path, cmd.Args, cmd.ExtraFiles = self, append([]string{self, cmd.Path}, cmd.Args[1:]...), []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	defer func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}()
	listener, err := receive(int(ours.Fd()))
	if err != nil {
		t.Skip("the kernel does not report system calls here (seccomp): ", err)
	}
	defer unix.Close(listener)
	s := supervisor{fd: listener, dir: dir, fault: fault}
	if err := s.run(); err != nil {
		t.Fatal("supervise the command: ", err)
	}
	_ = cmd.Wait() // its status says it
	return Outcome{s.calls, cmd.ProcessState.ExitCode()}
}

func receive(socket int) (int, error) {
	data, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := unix.Recvmsg(socket, data, rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, errors.New("the launcher failed")
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil || len(messages) != 1 {
		return 0, fmt.Errorf("%d messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, fmt.Errorf("%d descriptors: %w", len(fds), err)
	}
	return fds[0], nil
}

// notification is struct seccomp_notif with struct seccomp_data in it, response struct seccomp_notif_resp (linux/seccomp.h).
type notification struct {
	id      uint64
	tid     uint32
	flags   uint32
	number  uint32
	machine uint32
	ip      uint64
	args    [6]uint64
}

type response struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

type supervisor struct {
	fd    int
	dir   string
	fault Fault
	calls []string
}

// run answers until all processes that have the filter have ended.
func (s *supervisor) run() error {
	for {
		fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return err
		}
		if fds[0].Revents&unix.POLLIN == 0 {
			return nil
		}
		var n notification
		switch err := s.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR): // it was killed meanwhile
			continue
		case err != nil:
			return err
		}
		r, ok := s.answer(&n)
		if !ok {
			continue
		}
		if err := s.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
}

func (s *supervisor) ioctl(request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// answer decides about one call; ok is false if there is nobody left to answer.
func (s *supervisor) answer(n *notification) (r response, ok bool) {
	goOn := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	name, ours := s.target(n)
	if !ours {
		return goOn, true
	}
	if s.fault.Named && n.number == unix.SYS_OPENAT && n.args[2]&unix.O_TMPFILE == unix.O_TMPFILE {
		return response{id: n.id, err: -int32(unix.EOPNOTSUPP)}, true
	}
	s.calls = append(s.calls, name)
	switch {
	case len(s.calls) != s.fault.At:
		return goOn, true
	case s.fault.Errno != 0:
		return response{id: n.id, err: -int32(s.fault.Errno)}, true
	}
	// A thread's number stands for its process here. An error would mean that it has ended.
	err := unix.Kill(int(n.tid), s.fault.Signal)
	return goOn, err == nil && s.fault.Signal != unix.SIGKILL
}

// target says what a call is about; ok is false if that is not below the directory.
func (s *supervisor) target(n *notification) (name string, ok bool) {
	c := calls[n.number]
	var path string
	var err error
	if c.dir < 0 {
		path, err = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.tid, int32(n.args[0])))
	} else if path, err = text(int(n.tid), n.args[c.path]); err == nil && !filepath.IsAbs(path) {
		at := "cwd"
		if fd := int32(n.args[c.dir]); fd != unix.AT_FDCWD {
			at = "fd/" + strconv.Itoa(int(fd))
		}
		var dir string
		dir, err = os.Readlink(fmt.Sprintf("/proc/%d/%s", n.tid, at))
		path = filepath.Join(dir, path)
	}
	path = filepath.Clean(path)
	rest, below := strings.CutPrefix(path, s.dir+"/")
	if err != nil || !below && path != s.dir {
		return "", false
	}
	if path == s.dir {
		rest = "."
	}
	return c.name + " " + rest, true
}

// text reads a string from a process.
func text(tid int, address uint64) (string, error) {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", tid))
	if err != nil {
		return "", err
	}
	defer memory.Close()
	buf := make([]byte, unix.PathMax)
	n, err := memory.ReadAt(buf, int64(address)) // it may end with the mapping
	end := strings.IndexByte(string(buf[:n]), 0)
	if end < 0 {
		return "", fmt.Errorf("no string at %#x: %w", address, err)
	}
	return string(buf[:end]), nil
}

// The kernel's structures have no padding that Go's lack.
var (
	_ [80]byte = [unsafe.Sizeof(notification{})]byte{}
	_ [24]byte = [unsafe.Sizeof(response{})]byte{}
)
