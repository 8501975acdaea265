package prefetch

// This file holds the three levers on pages: pin (mlock), page out (process_madvise), and the question what is resident.

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
)

var pageSize = int64(os.Getpagesize())

// modelFile is a file of the model, open for reading ahead, and mapped for pinning. Of the mapping only pinned pages are
// ever touched: MADV_PAGEOUT skips pages that two processes map, so what is streamed must not be mapped here.
type modelFile struct {
	path    string
	file    *os.File
	size    int64
	piece   int64 // bytes of one read ahead
	mapping []byte
}

// FADV_WILLNEED reads no more of a range than the device's readahead or its largest request, without an error.
const (
	minPiece = 128 << 10 // Linux's usual readahead
	maxPiece = minBlock
)

// readAheadBytes is the readahead of the device that holds a file, as the kernel knows it by the file's device number.
func readAheadBytes(f *os.File) int64 {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return minPiece
	}
	data, err := os.ReadFile(fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(stat.Dev), unix.Minor(stat.Dev)))
	if err != nil {
		return minPiece
	}
	kib, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return minPiece
	}
	return kib << 10
}

func openModelFile(path string) (*modelFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the model: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("stat the model: %w", err)
	}
	m := &modelFile{path: path, file: f, size: info.Size(), piece: min(max(readAheadBytes(f), minPiece), maxPiece) / pageSize * pageSize}
	if m.mapping, err = unix.Mmap(int(f.Fd()), 0, int(m.size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		f.Close()
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	// A fault of mlock must not read around itself, and reads through the descriptor must not leave readahead marks,
	// which would make the target read ahead in file order.
	if err := unix.Madvise(m.mapping, unix.MADV_RANDOM); err != nil {
		return nil, errors.Join(fmt.Errorf("advise the mapping of %s: %w", path, err), m.close())
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		return nil, errors.Join(fmt.Errorf("advise %s: %w", path, err), m.close())
	}
	return m, nil
}

// close unmaps the file, which unpins all of it.
func (m *modelFile) close() error {
	return errors.Join(unix.Munmap(m.mapping), m.file.Close())
}

// pin locks a range in memory, reading what is not there. The file may have been truncated: then mlock fails, nothing
// is touched from user space.
func (m *modelFile) pin(offset, length int64) error {
	if err := unix.Mlock(m.mapping[offset : offset+min(length, m.size-offset)]); err != nil {
		return fmt.Errorf("lock %d bytes of %s in memory: %w", length, m.path, err)
	}
	return nil
}

func (m *modelFile) unpin(offset, length int64) error {
	part := m.mapping[offset : offset+min(length, m.size-offset)]
	if err := unix.Munlock(part); err != nil {
		return fmt.Errorf("unlock %d bytes of %s: %w", length, m.path, err)
	}
	// Leave no page table entries of ours: the target's pages could not be paged out.
	if err := unix.Madvise(part, unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("unmap %d bytes of %s: %w", length, m.path, err)
	}
	return nil
}

// drop frees the pages of a range that no process maps.
func (m *modelFile) drop(offset, length int64) error {
	if err := unix.Fadvise(int(m.file.Fd()), offset, length, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop pages of %s: %w", m.path, err)
	}
	return nil
}

// resident is how many bytes of the file are in the page cache.
func (m *modelFile) resident() (int64, error) { return pagecache.Resident(m.file, 0, m.size) }
