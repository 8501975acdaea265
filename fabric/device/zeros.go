package device

// This file has planes of zeros, which stand for planes that a product leaves out.

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"tensorcast/fabric/trit"
)

// zeroPlaneSource has planes of zeros of any size in 2 MiB of memory: one memory file, mapped again and again in a row.
type zeroPlaneSource struct {
	zeroByte byte
	fd       int // -1: not made yet
	view     []byte
	oldViews [][]byte // shorter views, which operands may still read
}

const zeroStep = 2 << 20 // size of the memory file

// zeroCode is a byte of zeros in a layout.
func zeroCode(l trit.Layout) byte {
	var b [64]byte
	l.Pack(b[:l.RowBytes(1)], []int8{0})
	return b[0]
}

// plane returns n bytes that are all zeroByte. They must not be written to.
func (z *zeroPlaneSource) plane(n int) ([]byte, error) {
	if n <= len(z.view) {
		return z.view[:n:n], nil
	}
	if z.fd < 0 {
		fd, b, err := memoryFile(zeroStep)
		if err != nil {
			return nil, err
		}
		for i := range b {
			b[i] = z.zeroByte
		}
		if err := unix.Munmap(b); err != nil {
			return nil, fmt.Errorf("unmap a plane of zeros: %w", err)
		}
		z.fd = fd
	}
	size := roundUp(n, zeroStep)
	view, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve a plane of zeros: %w", err)
	}
	for off := 0; off < size; off += zeroStep {
		_, _, e := unix.Syscall6(unix.SYS_MMAP, address(view)+uintptr(off), zeroStep,
			unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED, uintptr(z.fd), 0)
		if e != 0 {
			_ = unix.Munmap(view)
			return nil, fmt.Errorf("map a plane of zeros: %w", e)
		}
	}
	if z.view != nil {
		z.oldViews = append(z.oldViews, z.view)
	}
	z.view = view
	return view[:n:n], nil
}

func (z *zeroPlaneSource) close() error {
	var errs []error
	for _, v := range append(z.oldViews, z.view) {
		if v != nil {
			errs = append(errs, unix.Munmap(v))
		}
	}
	if z.fd >= 0 {
		errs = append(errs, unix.Close(z.fd))
	}
	return errors.Join(errs...)
}
