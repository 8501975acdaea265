package pagecache

// This file tests memory for reads that bypass the page cache.

import (
	"testing"
	"unsafe"
)

// A buffer has the requested length, is aligned, and can be written to its end.
func TestDirectBuffer(t *testing.T) {
	for _, bytes := range []int{1, 4096, 3 << 20} {
		b, free, err := DirectBuffer(bytes)
		if err != nil {
			t.Fatal(err)
		}
		address := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
		if len(b) != bytes || cap(b) != bytes || address%bufferAlignment != 0 {
			t.Errorf("%d bytes, capacity %d, at %#x; want %d, aligned to %#x",
				len(b), cap(b), address, bytes, bufferAlignment)
		}
		b[bytes-1] = 1
		if err := free(); err != nil {
			t.Error(err)
		}
	}
}
