package pagecache

// This file tells which pages have been read.

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Usable returns how many bytes of mem, a part of a mapping of a file that begins at a page, can be used without waiting for the disk: their pages are in the page cache, and their
// read is over. Resident counts pages that are being read, too, where the kernel has cachestat; mincore, which this asks, counts folios that are up to date only (mincore_page,
// mm/mincore.c). It counts whole pages, so the result may exceed the length. To users who neither own the file nor may write to it the kernel says that all is there.
func Usable(mem []byte) (int64, error) {
	if len(mem) == 0 {
		return 0, nil
	}
	page := os.Getpagesize()
	pages := make([]byte, (len(mem)+page-1)/page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)), uintptr(unsafe.Pointer(unsafe.SliceData(pages)))); errno != 0 {
		return 0, fmt.Errorf("mincore: %w", errno)
	}
	var bytes int64
	for _, p := range pages {
		bytes += int64(p&1) * int64(page)
	}
	return bytes, nil
}
