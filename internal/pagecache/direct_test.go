package pagecache

import (
	"testing"
	"unsafe"
)

// A buffer is as long as was asked for, aligned, and can be written to its end.
func TestDirectBuffer(t *testing.T) {
	for _, bytes := range []int{1, 4096, 3 << 20} {
		b, free, err := DirectBuffer(bytes)
		if err != nil {
			t.Fatal(err)
		}
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(b))); len(b) != bytes || cap(b) != bytes || at%bufferAlignment != 0 {
			t.Errorf("%d bytes of %d, at %#x", len(b), bytes, at)
		}
		b[bytes-1] = 1
		if err := free(); err != nil {
			t.Error(err)
		}
	}
}
