package proc

// This file tests which pages are found in a process's page tables, on the real kernel.

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Touched pages are in the page tables. Pages that were given back, and addresses where nothing is
// mapped, are not.
func TestTouched(t *testing.T) {
	page := os.Getpagesize()
	memory, err := unix.Mmap(-1, 0, 1024*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	if err := unix.Madvise(memory, unix.MADV_NOHUGEPAGE); err != nil {
		t.Fatal(err)
	}
	p, err := Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	base := uint64(uintptr(unsafe.Pointer(&memory[0])))
	check := func(from, length int, want bool) {
		t.Helper()
		if got, err := p.Touched(base+uint64(from), int64(length)); got != want || err != nil {
			t.Errorf("%d bytes at %d: %v, %v; want %v", length, from, got, err, want)
		}
	}
	check(0, len(memory), false)
	memory[700*page+5] = 1
	check(0, len(memory), true)
	check(0, 700*page, false)
	check(0, 700*page+1, true)
	check(700*page+100, 10, true)
	check(701*page, 323*page, false)
	if err := unix.Madvise(memory[700*page:701*page], unix.MADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	check(0, len(memory), false)
	nowhere := []uint64{0, 1 << 46, 1<<63 - 1, 1<<64 - 1}
	for _, address := range nowhere {
		if touched, err := p.Touched(address, 2<<12); touched || err != nil {
			t.Errorf("at %#x: %v, %v; want false", address, touched, err)
		}
	}
	memory[3*page], memory[5*page+7] = 1, 1
	at := func(i int) uint64 { return base + uint64(i*page) }
	got, err := p.TouchedAt(append([]uint64{at(2), at(3) + 9, at(4), at(5), at(700)}, nowhere...))
	want := []bool{false, true, false, true, false, false, false, false, false}
	if !slices.Equal(got, want) || err != nil {
		t.Errorf("TouchedAt = %v, %v; want %v", got, err, want)
	}
}

func TestTouchedOfAnEnded(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if touched, err := p.Touched(1<<20, 1); touched || !errors.Is(err, ErrNoProcess) {
		t.Errorf("Touched = %v, %v; want false, %v", touched, err, ErrNoProcess)
	}
	if touched, err := p.TouchedAt([]uint64{1 << 20}); touched != nil || !errors.Is(err, ErrNoProcess) {
		t.Errorf("TouchedAt = %v, %v; want nil, %v", touched, err, ErrNoProcess)
	}
}
