package proc

// This file says what it means to have another process make system calls, see Inject.

import "errors"

// SystemCall is a system call and its arguments, as the kernel takes them.
type SystemCall struct {
	Number uint64
	Args   [3]uint64
}

// Why a process cannot be made to make system calls.
var (
	ErrTraced     = errors.New("somebody traces it (a debugger, strace)")
	ErrFiltered   = errors.New("its system calls are filtered (seccomp): one that is not expected may kill it")
	ErrNotStopped = errors.New("no thread of it could be stopped in time without that being noticed")
	ErrForeign    = errors.New("this is for 64-bit programs on x86-64 only")
)
