// Package faults makes real programs fail at a chosen system call that writes: the call returns an
// error, or the program is killed or interrupted there. The kernel asks a supervisor in the test
// about each such call (seccomp_unotify(2)).
//
// A test's TestMain must call [Launched] first, because [Run] starts the command through the test
// program.
package faults

// This file starts a program under a seccomp filter, and answers the kernel's questions about its
// system calls.

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

// envLauncher is an environment variable. If it is set, the test program sets the filter and
// becomes the command.
const envLauncher = "TENSORCAST_TEST_FAULTS"

// socketFD is the launcher's end of a socket. Through it, the launcher hands over the descriptor to
// which the kernel reports.
const socketFD = 3

// Launched runs the command instead of the tests if this process was started for that. Then it does
// not return.
func Launched() {
	if os.Getenv(envLauncher) == "" {
		return
	}
	fmt.Fprintln(os.Stderr, "faults:", launch(os.Args[1:]))
	os.Exit(125)
}

// launch sets the filter, hands over the listener and executes the command.
func launch(args []string) error {
	runtime.LockOSThread() // only this thread has the filter, until it becomes the command
	if os.Geteuid() != 0 {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	filter := filterProgram()
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// With WAIT_KILLABLE_RECV (Linux 5.19) only a deadly signal may interrupt a call that the
	// kernel has reported. Otherwise the call would be reported again and counted twice.
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP,
		unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
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

// call says which arguments of a system call name the file that it changes.
type call struct {
	name string
	// index of the argument that is a directory's descriptor; -1 if the first argument is the
	// file's descriptor
	dir  int
	path int // index of the argument that is the path
}

// calls are the system calls that write, by number.
var calls = map[uint32]call{
	unix.SYS_WRITE:     {"write", -1, 0},
	unix.SYS_PWRITE64:  {"pwrite", -1, 0},
	unix.SYS_WRITEV:    {"writev", -1, 0},
	unix.SYS_FTRUNCATE: {"ftruncate", -1, 0},
	unix.SYS_FCHMOD:    {"fchmod", -1, 0},
	unix.SYS_OPENAT:    {"open", 0, 1},
	unix.SYS_MKDIRAT:   {"mkdir", 0, 1},
	unix.SYS_UNLINKAT:  {"unlink", 0, 1},
	unix.SYS_RENAMEAT:  {"rename", 2, 3},
	unix.SYS_RENAMEAT2: {"rename", 2, 3},
	unix.SYS_LINKAT:    {"link", 2, 3},
	unix.SYS_SYMLINKAT: {"symlink", 1, 2},
}

// filterProgram is the filter. It reports the calls above; of openat only those that write or create.
func filterProgram() []unix.SockFilter {
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
		unix.SockFilter{
			Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K,
			K:    unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT, Jf: 1,
		},
		ret(unix.SECCOMP_RET_USER_NOTIF), ret(unix.SECCOMP_RET_ALLOW), ret(unix.SECCOMP_RET_ALLOW))
}

// Fault is a failure at a system call. The zero Fault is none.
type Fault struct {
	At     int            // number of the call, from 1, among those that Run counts; 0: none fails
	Errno  syscall.Errno  // the error that the call returns; 0: see Signal
	Signal syscall.Signal // a signal that the process gets before the call; after SIGKILL the call does not happen
	// NoTmpfile pretends that the file system has no files without names (O_TMPFILE).
	NoTmpfile bool
}

func (f Fault) String() string {
	what := "nothing"
	switch {
	case f.Errno != 0:
		what = unix.ErrnoName(f.Errno)
	case f.Signal != 0:
		what = unix.SignalName(f.Signal)
	}
	if f.NoTmpfile {
		what += " without O_TMPFILE"
	}
	return fmt.Sprintf("%s at call %d", what, f.At)
}

// Outcome is how a command ended.
type Outcome struct {
	// Calls are the calls that wrote below the directory, in order, such as "write out.csv". They
	// end with a fault that killed.
	Calls  []string
	Status int // exit status; -1 if a signal ended it
}

// Run runs a command to its end, with a fault. It counts the calls of all its processes that write
// to something below dir. It skips the test where the kernel cannot report calls.
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
	listener, err := receiveDescriptor(int(ours.Fd()))
	if err != nil {
		t.Skip("the kernel does not report system calls here (seccomp): ", err)
	}
	defer unix.Close(listener)
	s := supervisor{fd: listener, dir: dir, fault: fault}
	if err := s.run(); err != nil {
		t.Fatal("supervise the command: ", err)
	}
	_ = cmd.Wait() // its result is in ProcessState
	return Outcome{s.calls, cmd.ProcessState.ExitCode()}
}

// receiveDescriptor receives a descriptor from the launcher.
func receiveDescriptor(socket int) (int, error) {
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

// notification is the kernel's struct seccomp_notif with struct seccomp_data in it (linux/seccomp.h).
type notification struct {
	id      uint64
	tid     uint32
	flags   uint32
	number  uint32
	machine uint32
	ip      uint64
	args    [6]uint64
}

// response is the kernel's struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// supervisor answers the kernel's reports.
type supervisor struct {
	fd    int // the descriptor to which the kernel reports
	dir   string
	fault Fault
	calls []string // calls below dir until now
}

// run answers until all processes under the filter have ended.
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
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR): // the process was killed meanwhile
			continue
		case err != nil:
			return err
		}
		r, ok := s.answer(&n)
		if !ok {
			continue
		}
		err := s.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
		if err != nil && !errors.Is(err, unix.ENOENT) {
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

// answer decides about one call. ok is false if the process has ended and no answer is needed.
func (s *supervisor) answer(n *notification) (r response, ok bool) {
	goOn := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	name, below := s.describeTarget(n)
	if !below {
		return goOn, true
	}
	if s.fault.NoTmpfile && n.number == unix.SYS_OPENAT && n.args[2]&unix.O_TMPFILE == unix.O_TMPFILE {
		return response{id: n.id, err: -int32(unix.EOPNOTSUPP)}, true
	}
	s.calls = append(s.calls, name)
	switch {
	case len(s.calls) != s.fault.At:
		return goOn, true
	case s.fault.Errno != 0:
		return response{id: n.id, err: -int32(s.fault.Errno)}, true
	}
	// A thread's id can be used in place of its process's here. An error would mean that it has ended.
	err := unix.Kill(int(n.tid), s.fault.Signal)
	return goOn, err == nil && s.fault.Signal != unix.SIGKILL
}

// describeTarget names a call and the file that it changes, relative to the directory. ok is false
// if the file is not below the directory.
func (s *supervisor) describeTarget(n *notification) (name string, ok bool) {
	c := calls[n.number]
	var path string
	var err error
	if c.dir < 0 {
		path, err = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.tid, int32(n.args[0])))
	} else if path, err = readString(int(n.tid), n.args[c.path]); err == nil && !filepath.IsAbs(path) {
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

// readString reads a string from a process's memory.
func readString(tid int, address uint64) (string, error) {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", tid))
	if err != nil {
		return "", err
	}
	defer memory.Close()
	buf := make([]byte, unix.PathMax)
	n, err := memory.ReadAt(buf, int64(address)) // fewer bytes if the mapping ends
	end := strings.IndexByte(string(buf[:n]), 0)
	if end < 0 {
		return "", fmt.Errorf("no string at %#x: %w", address, err)
	}
	return string(buf[:end]), nil
}

// These declarations check that the sizes of the structures are those of the kernel's.
var (
	_ [80]byte = [unsafe.Sizeof(notification{})]byte{}
	_ [24]byte = [unsafe.Sizeof(response{})]byte{}
)
