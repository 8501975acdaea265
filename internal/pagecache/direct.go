package pagecache

// This file has memory for reads past the page cache.

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bufferAlignment is that of huge pages, on all usual processors.
const bufferAlignment = 2 << 20

// DirectBuffer returns memory for reads with O_DIRECT, aligned to 2 MiB, in huge pages where the kernel has them, and what frees it. Into single pages a disk may deliver less than half as much: each is a
// segment of its own of a request, and a virtual disk pays for each. It is mapped instead of allocated on Go's heap, which would keep the memory afterwards, and touched: reads are not to wait for it.
func DirectBuffer(bytes int) (buffer []byte, free func() error, err error) {
	memory, err := unix.Mmap(-1, 0, bytes+bufferAlignment, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes of buffers: %w", bytes, err)
	}
	free = func() error { return unix.Munmap(memory) }
	if err := unix.Madvise(memory, unix.MADV_HUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: a kernel without them
		return nil, nil, errors.Join(fmt.Errorf("ask for huge pages: %w", err), free())
	}
	address := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	buffer = memory[-address&(bufferAlignment-1):][:bytes:bytes]
	for at := 0; at < len(buffer); at += os.Getpagesize() {
		buffer[at] = 1
	}
	return buffer, free, nil
}
