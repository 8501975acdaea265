package pagecache

// This file allocates memory for reads that bypass the page cache.

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bufferAlignment is the size of huge pages on all usual processors, in bytes.
const bufferAlignment = 2 << 20

// DirectBuffer returns memory for reads with O_DIRECT, and a function that frees it. The memory is
// aligned to 2 MiB, and in huge pages where the kernel has them. Into single pages a disk may
// deliver less than half as much, because each page is a segment of its own in the request, and a
// virtual disk pays for each segment.
//
// The memory is mapped, because Go's heap would keep it afterwards. It is touched, so that reads
// need not wait for its pages.
func DirectBuffer(bytes int) (buffer []byte, free func() error, err error) {
	memory, err := unix.Mmap(-1, 0, bytes+bufferAlignment,
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes of buffers: %w", bytes, err)
	}
	free = func() error { return unix.Munmap(memory) }
	// EINVAL: the kernel has no huge pages.
	if err := unix.Madvise(memory, unix.MADV_HUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
		return nil, nil, errors.Join(fmt.Errorf("ask for huge pages: %w", err), free())
	}
	address := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	buffer = memory[-address&(bufferAlignment-1):][:bytes:bytes]
	for at := 0; at < len(buffer); at += os.Getpagesize() {
		buffer[at] = 1
	}
	return buffer, free, nil
}
