package pagecache

// This file asks the kernel about the frames of memory that hold a mapping's pages (Documentation/admin-guide/mm/
// pagemap.rst).

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"
)

// Frames tells about frames of memory what one file of the kernel says of each: /proc/kpageflags, or /proc/kpagecgroup
// (Linux 4.3). The numbers of frames are told only to who has CAP_SYS_ADMIN in the first user namespace. It is safe for
// concurrent use. Close it.
type Frames struct{ pagemap, about *os.File }

// ErrHidden says that the kernel does not tell the numbers of frames.
var ErrHidden = errors.New("the kernel hides page numbers here (CAP_SYS_ADMIN)")

// An entry of any of these files has entryBytes. In that of a page, presentBit says that it is in memory, and
// frameNumber has the number of its frame.
const (
	entryBytes  = 8
	presentBit  = 1 << 63
	frameNumber = 1<<55 - 1
)

// OpenFrames opens what the kernel says of frames in a file. The error wraps fs.ErrNotExist if it has no such file.
func OpenFrames(about string) (*Frames, error) {
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, err
	}
	f, err := os.Open(about)
	if err != nil {
		return nil, errors.Join(err, pagemap.Close())
	}
	return &Frames{pagemap, f}, nil
}

// Of returns the number of the frame with the first page of a part of a mapping; 0 if no frame is mapped there. The
// error is ErrHidden if the number is not told.
func (f *Frames) Of(part []byte) (frame uint64, err error) {
	address := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(part))))
	entry, err := readEntry(f.pagemap, address/uint64(os.Getpagesize()))
	if err != nil || entry&presentBit == 0 {
		return 0, err
	}
	if entry&frameNumber == 0 {
		return 0, ErrHidden
	}
	return entry & frameNumber, nil
}

// About returns what the kernel says of a frame.
func (f *Frames) About(frame uint64) (uint64, error) { return readEntry(f.about, frame) }

// Close closes the files.
func (f *Frames) Close() error { return errors.Join(f.pagemap.Close(), f.about.Close()) }

func readEntry(f *os.File, number uint64) (uint64, error) {
	var entry [entryBytes]byte
	if _, err := f.ReadAt(entry[:], int64(number*entryBytes)); err != nil {
		return 0, fmt.Errorf("ask the kernel about a page: %w", err)
	}
	return binary.NativeEndian.Uint64(entry[:]), nil
}
