package pagecache

// This file counts the pages of a mapping whose read is complete.

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Usable returns how many bytes of mem can be used without waiting for the disk. mem is a part of a
// mapping of a file and begins at a page. A page counts if it is in the page cache and its read is
// complete: mincore counts only folios that are up to date (mincore_page in mm/mincore.c). Resident
// uses cachestat where the kernel has it, which also counts pages that are being read.
//
// Usable counts whole pages, so the result may exceed the length. If the user neither owns the file
// nor may write to it, the kernel reports all pages as present.
func Usable(mem []byte) (int64, error) {
	if len(mem) == 0 {
		return 0, nil
	}
	page := os.Getpagesize()
	pages := make([]byte, (len(mem)+page-1)/page)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE,
		uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)),
		uintptr(unsafe.Pointer(unsafe.SliceData(pages))))
	if errno != 0 {
		return 0, fmt.Errorf("mincore: %w", errno)
	}
	var bytes int64
	for _, p := range pages {
		bytes += int64(p&1) * int64(page)
	}
	return bytes, nil
}
