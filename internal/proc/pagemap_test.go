package proc

import (
	"errors"
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What was touched is present, what was taken away is not any more, and nothing is where nothing is mapped.
func TestPresent(t *testing.T) {
	page := os.Getpagesize()
	memory, err := unix.Mmap(-1, 0, 4*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	if err := unix.Madvise(memory, unix.MADV_NOHUGEPAGE); err != nil {
		t.Fatal(err)
	}
	at := func(i int) uint64 { return uint64(uintptr(unsafe.Pointer(&memory[0]))) + uint64(i*page) }
	memory[page], memory[3*page+5] = 1, 1
	check := func(want ...bool) {
		t.Helper()
		got, err := Present(os.Getpid(), []uint64{at(0), at(1) + 7, at(2), at(3), 0, 1 << 46, 1<<63 - 1})
		if err != nil || !slices.Equal(got, append(want, false, false, false)) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
	check(false, true, false, true)
	if err := unix.Madvise(memory[page:2*page], unix.MADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	check(false, false, false, true)
	if _, err := Present(1<<22, []uint64{0}); !errors.Is(err, ErrNoProcess) {
		t.Errorf("a process that is not there: %v", err)
	}
}
