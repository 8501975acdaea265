package proc

// This file has the types and errors of Process.Inject, which makes another process execute system
// calls.

import "errors"

// SystemCall is the number of a system call and its arguments, as the kernel takes them.
type SystemCall struct {
	Number uint64
	Args   [3]uint64
}

// The reasons why Inject refuses a process.
var (
	ErrTraced     = errors.New("somebody traces it (a debugger, strace)")
	ErrFiltered   = errors.New("its system calls are filtered (seccomp): one that is not expected may kill it")
	ErrNotStopped = errors.New("no thread of it could be stopped in time without that being noticed")
	ErrForeign    = errors.New("this is for 64-bit programs on x86-64 only")
)
