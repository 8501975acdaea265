package testenv

// This file has a test run a command whose system calls are refused, as in a container.

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refusedCall is an environment variable. If it is set, a test program becomes the command that its arguments are,
// under a seccomp filter. Its value is the number of the system call that the filter refuses with EPERM.
const refusedCall = "TENSORCAST_TEST_REFUSED_CALL"

// RefuseCall returns an environment variable, NAME=VALUE. With it, the test program runs the command that its arguments
// are, and the kernel refuses the system call with that number to the command. The test program's TestMain must call
// [RunFiltered] first.
func RefuseCall(number int) string { return fmt.Sprintf("%s=%d", refusedCall, number) }

// RunFiltered runs the command and does not return, if the variable of [RefuseCall] is set. Otherwise it does nothing.
// The process stays the same.
func RunFiltered() {
	text, ok := os.LookupEnv(refusedCall)
	if !ok {
		return
	}
	err := execFiltered(text, os.Args[1:])
	fmt.Fprintf(os.Stderr, "run %s without a system call: %v\n", strings.Join(os.Args[1:], " "), err)
	os.Exit(1)
}

func execFiltered(number string, args []string) error {
	nr, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return errors.New("there is no command")
	}
	if err := os.Unsetenv(refusedCall); err != nil { // the command may be a test program, too
		return err
	}
	runtime.LockOSThread() // the filter applies to this thread, and to the program that it becomes
	refused := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: uint32(nr)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(refused)), Filter: &refused[0]}
	err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	if err != nil {
		return fmt.Errorf("set a seccomp filter: %w", err)
	}
	return unix.Exec(args[0], args, os.Environ())
}
