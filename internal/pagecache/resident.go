package pagecache

// This file measures how much of a file is resident in the page cache.

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// mincoreBytes bounds how many bytes are mapped at once. That also bounds the size of mincore's
// result, which has a byte per page.
const mincoreBytes = 1 << 30

// ErrUnknown says that the kernel does not tell which pages of a file are in memory. It may be a
// file without pages in the page cache (a FUSE file system with direct I/O, persistent memory).
var ErrUnknown = errors.New("the kernel does not tell which pages of this file are in memory")

// Residency tells how much of one file is in the page cache. It is safe for concurrent use as long
// as the file is open.
//
// A file has its pages where the kernel maps it from, and that need not be the file that is open.
// On overlayfs a descriptor has an inode without pages of its own: reads and mappings go to the file
// of the layer below (fs/overlayfs/file.c), as they do on FUSE with passthrough (Linux 6.9). cachestat
// (Linux 6.5) asks the descriptor's inode, and finds nothing there. mincore asks what is mapped. So
// cachestat is believed about a file once it has seen a page of it, and else mincore is asked, which
// looks at each page and is slower.
type Residency struct {
	file    *os.File
	mapping []byte   // of all of the file; nil: a part of it is mapped for each question
	below   *os.File // see LookBelow; nil: not found
	way     atomic.Int32
}

// The ways to ask.
const (
	wayNotKnown = iota
	wayCachestat
	wayMincore
	wayBelow // cachestat of the file of an overlay's layer
)

// ResidencyOf returns what tells how much of a file is in the page cache. The file must be open for
// reading, and stay open.
//
// mapping is what this process maps of the file already, all of it, or nil. Without it a question to
// mincore maps what it is about, and waits for all faults of this process that wait for the disk.
func ResidencyOf(f *os.File, mapping []byte) *Residency { return &Residency{file: f, mapping: mapping} }

// Check asks for the first page of the file. If it seems not to be in memory, Check reads it, asks
// again, and drops it. The error wraps ErrUnknown if the kernel does not show a page that was read.
// Without Check such a file seems to have no pages in memory.
func (r *Residency) Check() (err error) {
	info, err := r.file.Stat()
	if err != nil {
		return fmt.Errorf("ask for the resident pages: %w", err)
	}
	if n, err := r.Bytes(0, 1); n > 0 || err != nil || info.Size() == 0 {
		return err
	}
	page := int64(os.Getpagesize())
	defer func() { err = errors.Join(err, unix.Fadvise(int(r.file.Fd()), 0, page, unix.FADV_DONTNEED)) }()
	const tries = 3 // a page that was read may be taken before it is asked for
	for range tries {
		if _, err := r.file.ReadAt(make([]byte, 1), 0); err != nil {
			return fmt.Errorf("read a page to ask whether it is in memory: %w", err)
		}
		if n, err := r.Bytes(0, 1); n > 0 || err != nil {
			return err
		}
	}
	return fmt.Errorf("ask for the resident pages of %s: %w", r.file.Name(), ErrUnknown)
}

// Bytes returns how many bytes of a range of the file are in the page cache. It counts whole pages,
// including the first and the last one, so the result may exceed length. It reads nothing into the
// cache. Pages that are being read count only where cachestat is asked.
//
// The kernel tells which pages are resident only to users who own the file or may write to it
// (mincore since Linux 5.2, later also cachestat). For others the error wraps fs.ErrPermission.
func (r *Residency) Bytes(offset, length int64) (int64, error) {
	if length <= 0 {
		return 0, nil
	}
	n, err := r.ask(offset, length)
	if err != nil {
		return 0, fmt.Errorf("ask for the resident pages of %s: %w", r.file.Name(), err)
	}
	return n, nil
}

func (r *Residency) ask(offset, length int64) (int64, error) {
	if offset < 0 {
		return 0, fmt.Errorf("offset %d", offset)
	}
	way := r.way.Load()
	if way == wayBelow {
		return askCachestat(r.below, offset, length)
	}
	if way != wayMincore {
		n, err := askCachestat(r.file, offset, length)
		if err == nil && n > 0 {
			r.way.Store(wayCachestat)
		}
		if err == nil && (n > 0 || way == wayCachestat) {
			return n, nil
		}
		// A sandbox may refuse a system call that it does not know, with any error.
		if err != nil {
			r.way.Store(wayMincore)
		}
	}
	n, err := r.askMincore(offset, length)
	if n == 0 || err != nil || r.way.Load() == wayMincore {
		return n, err
	}
	// The pages may have come in between.
	if again, err := askCachestat(r.file, offset, length); err == nil && again > 0 {
		r.way.Store(wayCachestat)
		return again, nil
	}
	r.way.Store(wayMincore)
	return n, nil
}

// Resident is [Residency.Bytes] for a file that is asked about only once.
func Resident(f *os.File, offset, length int64) (int64, error) {
	return ResidencyOf(f, nil).Bytes(offset, length)
}

// askCachestat counts the resident bytes of a descriptor's inode.
func askCachestat(f *os.File, offset, length int64) (int64, error) {
	var stat unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Off: uint64(offset), Len: uint64(length)}, &stat, 0)
	if err != nil {
		return 0, fmt.Errorf("cachestat: %w", err)
	}
	return int64(stat.Cache) * int64(os.Getpagesize()), nil
}

// askMincore counts the resident bytes of what the kernel maps of a file. A mapping is not touched.
func (r *Residency) askMincore(offset, length int64) (int64, error) {
	f := r.file
	// To other users, the kernel reports all pages as resident.
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return 0, err
	}
	self := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if uid := os.Geteuid(); uid != 0 && uint32(uid) != stat.Uid && unix.Access(self, unix.W_OK) != nil {
		return 0, fmt.Errorf("%w: the kernel tells them only to the file's owner and to who may write it", unix.EPERM)
	}
	page := int64(os.Getpagesize())
	if end := int64(len(r.mapping)); end > 0 {
		from := min(offset/page*page, end)
		return Usable(r.mapping[from:max(from, min(offset+length, end))])
	}
	var resident int64
	for end, at := min(offset+length, stat.Size), offset/page*page; at < end; at += mincoreBytes {
		part := min(mincoreBytes, end-at)
		mapping, err := unix.Mmap(int(f.Fd()), at, int(part), unix.PROT_READ, unix.MAP_SHARED)
		if errors.Is(err, unix.ENODEV) { // FUSE with direct I/O
			return 0, ErrUnknown
		}
		if err != nil {
			return 0, fmt.Errorf("map: %w", err)
		}
		n, err := Usable(mapping)
		if err := errors.Join(err, unix.Munmap(mapping)); err != nil {
			return 0, err
		}
		resident += n
	}
	return resident, nil
}
