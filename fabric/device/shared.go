package device

// This file has what is shared with other processes: words, futexes, sealed memory files.

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// address is where b is in memory.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// wordAt is the 32-bit number at offset off of b, which must be aligned and within b.
func wordAt(b []byte, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&b[off : off+4][0]))
}

// bytesOf is the memory of numbers.
func bytesOf(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

const (
	futexWait = 0
	futexWake = 1
)

// futexSleep waits while w is v, until somebody wakes it, in any process that maps the word. It may return early.
func futexSleep(w *atomic.Uint32, v uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWait, uintptr(v), 0, 0, 0)
}

// futexNap is futexSleep for at most d that does not give up the goroutine's P: waking up need not get one
// back, which takes longer than a short job. Other goroutines have one P less meanwhile, so d must be short. A
// signal ends the wait, since it has a time limit (futex(2)): so Go's collector, which stops threads by
// signals, does not wait for it.
func futexNap(w *atomic.Uint32, v uint32, d time.Duration) {
	limit := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWait, uintptr(v),
		uintptr(unsafe.Pointer(&limit)), 0, 0)
}

// wakeAll wakes all who sleep on w.
func wakeAll(w *atomic.Uint32) {
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWake, uintptr(1<<30), 0, 0, 0)
}

// memoryFile makes and maps a memory file of n bytes that nobody can resize.
func memoryFile(n int) (fd int, b []byte, err error) {
	fd, err = unix.MemfdCreate("tfmbs", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, fmt.Errorf("make a memory file: %w", err)
	}
	if err = unix.Ftruncate(fd, int64(n)); err == nil {
		// A file that shrinks kills who reads beyond its end.
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		b, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("make a memory file of %d bytes: %w", n, err)
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // not all kernels allow that
	return fd, b, nil
}
