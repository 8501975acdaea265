// Package pagecache asks which bytes of files are in memory, and drops them.
package pagecache

// This file asks.

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincoreBytes bounds what is mapped at once, and so the answer, which has a byte per page.
const mincoreBytes = 1 << 30

// Resident is how many bytes of a file's range are in the page cache. It counts whole pages, those that the range begins
// and ends in too, so the answer may exceed length. It reads nothing and brings nothing into the cache: it asks cachestat
// (Linux 6.5) or, without that, mincore, which answers only those who own the file or may write it (since Linux 5.2).
func Resident(f *os.File, offset, length int64) (int64, error) {
	if length <= 0 {
		return 0, nil
	}
	if offset < 0 {
		return 0, fmt.Errorf("ask for the resident pages of %s: offset %d", f.Name(), offset)
	}
	var stat unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Off: uint64(offset), Len: uint64(length)}, &stat, 0)
	if err == nil {
		return int64(stat.Cache) * int64(os.Getpagesize()), nil
	}
	// A sandbox may refuse a call that it does not know.
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return 0, fmt.Errorf("ask for the resident pages of %s: %w", f.Name(), err)
	}
	n, err := mincore(f, offset, length)
	if err != nil {
		return 0, fmt.Errorf("ask for the resident pages of %s: %w", f.Name(), err)
	}
	return n, nil
}

// mincore counts what a mapping that is never touched would find.
func mincore(f *os.File, offset, length int64) (int64, error) {
	// To others, the kernel says that all pages are resident.
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return 0, err
	}
	self := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if uid := os.Geteuid(); uid != 0 && uint32(uid) != stat.Uid && unix.Access(self, unix.W_OK) != nil {
		return 0, fmt.Errorf("%w: before Linux 6.5 that is told only to its owner and to who may write it", unix.EPERM)
	}
	page := int64(os.Getpagesize())
	var resident int64
	for end, at := min(offset+length, stat.Size), offset/page*page; at < end; at += mincoreBytes {
		part := min(mincoreBytes, end-at)
		mapping, err := unix.Mmap(int(f.Fd()), at, int(part), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return 0, fmt.Errorf("map: %w", err)
		}
		pages := make([]byte, (part+page-1)/page)
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapping[0])), uintptr(part), uintptr(unsafe.Pointer(&pages[0])))
		if err := unix.Munmap(mapping); err != nil {
			return 0, fmt.Errorf("unmap: %w", err)
		}
		if errno != 0 {
			return 0, fmt.Errorf("mincore: %w", errno)
		}
		for _, p := range pages {
			resident += int64(p & 1)
		}
	}
	return resident * page, nil
}
