package gguf

// This file maps one file, and reads from the mapping without crashing if the file is truncated
// while it is read.

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is a read-only mapping of a whole file. Pages are read only when they are touched.
type mapping struct {
	file  *os.File
	bytes []byte
}

// mapFile maps the file that f was read from.
func mapFile(f *File) (*mapping, error) {
	file, err := f.Reopen()
	if err != nil {
		return nil, err
	}
	m := &mapping{file: file}
	if int64(int(f.Size)) != f.Size {
		err = unix.ENOMEM
	} else {
		m.bytes, err = unix.Mmap(int(file.Fd()), 0, int(f.Size), unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("map %s: %w", f.Path, err)
	}
	// A page fault must not read around itself: the neighbouring pages belong to other tensors and
	// experts.
	if err := unix.Madvise(m.bytes, unix.MADV_RANDOM); err != nil {
		return nil, errors.Join(fmt.Errorf("advise the mapping of %s: %w", f.Path, err), m.close())
	}
	return m, nil
}

func (m *mapping) close() error {
	return errors.Join(unix.Munmap(m.bytes), m.file.Close())
}

// checkSize returns an error that wraps ErrTruncated if the file has become shorter than end.
func (m *mapping) checkSize(end int64) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(m.file.Fd()), &stat); err != nil {
		return fmt.Errorf("stat %s: %w", m.file.Name(), err)
	}
	if stat.Size < end {
		return fmt.Errorf("%w: %s has %d bytes now, and had %d when it was opened", ErrTruncated, m.file.Name(),
			stat.Size, len(m.bytes))
	}
	return nil
}

// guard calls do. If do touches a part of the mapping that the file no longer has, or that its
// device cannot read, guard ends it and returns an error. Without guard the SIGBUS would end the
// process.
func (m *mapping) guard(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(interface{ Addr() uintptr })
		first := uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes)))
		if !ok || fault.Addr() < first || fault.Addr()-first >= uintptr(len(m.bytes)) {
			panic(r)
		}
		off := int64(fault.Addr() - first)
		if err = m.checkSize(off + 1); err == nil {
			err = fmt.Errorf("byte %d of %s: %w", off, m.file.Name(), unix.EIO)
		}
	}()
	return do()
}

// wholePages returns the part of the mapping that holds bytes [off, off+size), rounded out to whole
// pages.
func (m *mapping) wholePages(off, size int64) []byte {
	page := int64(os.Getpagesize())
	return m.bytes[off/page*page : off+size]
}

// prefetch starts reading bytes [off, off+size) from disk. The kernel reads as much of it as its
// readahead allows.
func (m *mapping) prefetch(off, size int64) {
	// This is advice: if it fails, the bytes are read when they are touched.
	_ = unix.Madvise(m.wholePages(off, size), unix.MADV_WILLNEED)
}

// unmapPages unmaps the pages of bytes [off, off+size) from this process; they stay in the page
// cache. The kernel does not page out pages for one process while a second process maps them.
func (m *mapping) unmapPages(off, size int64) {
	_ = unix.Madvise(m.wholePages(off, size), unix.MADV_DONTNEED)
}
