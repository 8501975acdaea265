// Package pagecache counts how many bytes of files are resident in the page cache ([Resident]) and
// ready for use ([Usable]), and drops files from it ([Drop]). It also counts memory that is mapped
// by large folios ([Huge]), and allocates memory for reads that bypass the page cache
// ([DirectBuffer]).
package pagecache

// This file measures how much of a file is resident in the page cache.

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincoreBytes bounds how many bytes are mapped at once. That also bounds the size of mincore's
// result, which has a byte per page.
const mincoreBytes = 1 << 30

// Resident returns how many bytes of a file's range are in the page cache. It counts whole pages,
// including the first and the last one, so the result may exceed length. It reads nothing into the
// cache: it uses cachestat (Linux 6.5) or, without that, mincore.
//
// The kernel tells which pages are resident only to users who own the file or may write to it
// (mincore since Linux 5.2, later also cachestat). For others the error wraps fs.ErrPermission.
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
	// A sandbox may refuse a system call that it does not know.
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return 0, fmt.Errorf("ask for the resident pages of %s: %w", f.Name(), err)
	}
	n, err := residentByMincore(f, offset, length)
	if err != nil {
		return 0, fmt.Errorf("ask for the resident pages of %s: %w", f.Name(), err)
	}
	return n, nil
}

// residentByMincore counts the resident bytes with mincore. It maps the file but never touches the
// mapping.
func residentByMincore(f *os.File, offset, length int64) (int64, error) {
	// To other users, the kernel reports all pages as resident.
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return 0, err
	}
	self := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if uid := os.Geteuid(); uid != 0 && uint32(uid) != stat.Uid && unix.Access(self, unix.W_OK) != nil {
		return 0, fmt.Errorf("%w: the kernel tells them only to the file's owner and to who may write it", unix.EPERM)
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
		_, _, errno := unix.Syscall(unix.SYS_MINCORE,
			uintptr(unsafe.Pointer(&mapping[0])), uintptr(part), uintptr(unsafe.Pointer(&pages[0])))
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
