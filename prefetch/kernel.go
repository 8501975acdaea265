package prefetch

// This file has the levers on the kernel's page cache: reads ahead by io_uring (FADV_WILLNEED), locks by mlock, paging out by process_madvise.

import (
	gocontext "context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/internal/uring"
)

var pageSize = int64(os.Getpagesize())

// KernelPages is the page cache of this machine.
type KernelPages struct {
	target      *proc.Process
	queue       uring.Queue
	files       []*modelFile
	completions []uring.Completion
	failed      bool // a read did, which was told
	log         *slog.Logger
}

// queueEntries is how many requests may be under way.
const queueEntries = 128

// NewKernelPages prepares to work for the process pid. Its methods are called by one goroutine, which stays on one thread if that thread's
// priority is to count: the kernel's workers for io_uring inherit it. Close it.
func NewKernelPages(pid int, log *slog.Logger) (*KernelPages, error) {
	target, err := proc.Open(pid)
	if err != nil {
		return nil, err
	}
	queue, err := uring.Open(queueEntries)
	if err != nil {
		return nil, errors.Join(err, target.Close())
	}
	return &KernelPages{target: target, queue: queue, log: log}, nil
}

// Close implements Pages.
func (k *KernelPages) Close() error {
	errs := []error{k.queue.Close()}
	for _, f := range k.files {
		errs = append(errs, f.close())
	}
	k.files = nil
	return errors.Join(append(errs, k.target.Close())...)
}

// Name implements Pages.
func (k *KernelPages) Name() string { return k.queue.Name() }

// Open implements Pages.
func (k *KernelPages) Open(path string, id event.FileID) (file int, size int64, err error) {
	f, err := openModelFile(proc.Place{Path: path, ID: proc.FileID(id)})
	if err != nil {
		return 0, 0, err
	}
	for i, known := range k.files {
		if os.SameFile(known.info, f.info) {
			return i, known.size, f.close()
		}
	}
	k.files = append(k.files, f)
	return len(k.files) - 1, f.size, nil
}

// Map implements Pages.
func (k *KernelPages) Map(file int, base uint64) { k.files[file].base = base }

// ReadAhead implements Pages.
func (k *KernelPages) ReadAhead(r Range) bool {
	f := k.files[r.File]
	if int64(k.queue.InFlight())+(r.Length+f.piece-1)/f.piece > queueEntries {
		return false
	}
	for at := r.Offset; at < r.End(); at += f.piece {
		if !k.queue.Fadvise(int(f.file.Fd()), at, min(f.piece, r.End()-at), unix.FADV_WILLNEED, 0) {
			return false // what is missing the target reads by itself
		}
	}
	return true
}

// Poll implements Pages. A read that failed is no reason to stop: the target will read for itself.
func (k *KernelPages) Poll() error {
	if _, err := k.queue.Submit(); err != nil {
		return err
	}
	var err error
	k.completions, err = k.queue.Reap(0, k.completions[:0])
	if err != nil {
		return err
	}
	for _, done := range k.completions {
		if done.Err == nil {
			continue
		}
		level := slog.LevelWarn
		if k.failed { // a disk that fails does so often
			level = slog.LevelDebug
		}
		k.failed = true
		k.log.Log(gocontext.Background(), level, "a read ahead failed: it is left to the target", "error", done.Err)
	}
	return nil
}

// Lock implements Pages. The file may have been truncated: then mlock fails, nothing is touched from user space.
func (k *KernelPages) Lock(r Range) error {
	f := k.files[r.File]
	err := unix.Mlock(f.part(r))
	if errors.Is(err, unix.ENOMEM) && k.unreadable(r) { // mlock says of a failed read that there is no such memory
		return fmt.Errorf("lock %d bytes of %s in memory: %w", r.Length, f.path, ErrUnreadable)
	}
	if err != nil {
		return fmt.Errorf("lock %d bytes of %s in memory: %w%s", r.Length, f.path, err, whyNotLocked())
	}
	return nil
}

// whyNotLocked adds the usual reason to mlock's error: a process without CAP_IPC_LOCK may lock no more than RLIMIT_MEMLOCK.
func whyNotLocked() string {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Cur == unix.RLIM_INFINITY {
		return ""
	}
	return fmt.Sprintf(": without CAP_IPC_LOCK it may lock %d bytes", limit.Cur)
}

// Keep implements Pages. The pages are mapped here for a moment only: what two processes map cannot be paged out.
func (k *KernelPages) Keep(r Range) error {
	f := k.files[r.File]
	err := unix.Madvise(f.part(r), unix.MADV_POPULATE_READ)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.14: what was read ahead is all
		return nil
	}
	// EFAULT: to touch the page would be SIGBUS, as the file was truncated or the disk cannot read it. EHWPOISON: the memory is broken.
	if errors.Is(err, unix.EFAULT) || errors.Is(err, unix.EHWPOISON) {
		err = ErrUnreadable
	}
	if err != nil {
		return fmt.Errorf("read %d bytes at %d of %s: %w", r.Length, r.Offset, f.path, err)
	}
	return f.unmap(r)
}

// unreadable says whether a range cannot be read.
func (k *KernelPages) unreadable(r Range) bool { return errors.Is(k.Keep(r), ErrUnreadable) }

// Release implements Pages.
func (k *KernelPages) Release(r Range) error {
	f := k.files[r.File]
	if err := unix.Munlock(f.part(r)); err != nil {
		return fmt.Errorf("unlock %d bytes of %s: %w", r.Length, f.path, err)
	}
	return f.unmap(r)
}

// PageOut implements Pages. A target that has ended has no pages of its own any more.
func (k *KernelPages) PageOut(r Range) error {
	f := k.files[r.File]
	if err := k.target.PageOut(f.base+uint64(r.Offset), r.Length); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return err
	}
	// What the target has not touched, no process maps.
	if err := unix.Fadvise(int(f.file.Fd()), r.Offset, r.Length, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop pages of %s: %w", f.path, err)
	}
	return nil
}

// Resident implements Pages.
func (k *KernelPages) Resident(r Range) (int64, error) {
	return pagecache.Resident(k.files[r.File].file, r.Offset, r.Length)
}

// modelFile is a file of the model, open for reading ahead, and mapped for locking. Of the mapping only locked pages stay
// touched: MADV_PAGEOUT skips pages that two processes map, so what is streamed must not be mapped here.
type modelFile struct {
	path    string
	file    *os.File
	info    os.FileInfo
	size    int64
	piece   int64  // bytes of one read ahead
	base    uint64 // address in the target of the first byte
	mapping []byte
}

// FADV_WILLNEED reads no more of a range than the device's readahead or its largest request, without an error.
const (
	minPiece = 128 << 10 // Linux's usual readahead
	maxPiece = minBlock
)

func openModelFile(at proc.Place) (*modelFile, error) {
	f, err := at.Open()
	if err != nil {
		return nil, fmt.Errorf("open the model: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("stat the model: %w", err), f.Close())
	}
	m := &modelFile{path: at.Path, file: f, info: info, size: info.Size(), piece: min(max(readAheadBytes(f), minPiece), maxPiece) / pageSize * pageSize}
	if m.mapping, err = unix.Mmap(int(f.Fd()), 0, int(m.size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(fmt.Errorf("map %s: %w", at.Path, err), f.Close())
	}
	// A fault of mlock must not read around itself, and reads through the descriptor must not leave readahead marks,
	// which would make the target read ahead in file order.
	if err := unix.Madvise(m.mapping, unix.MADV_RANDOM); err != nil {
		return nil, errors.Join(fmt.Errorf("advise the mapping of %s: %w", at.Path, err), m.close())
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		return nil, errors.Join(fmt.Errorf("advise %s: %w", at.Path, err), m.close())
	}
	return m, nil
}

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

// part is a range of the mapping.
func (m *modelFile) part(r Range) []byte { return m.mapping[r.Offset:min(r.End(), m.size)] }

// unmap drops this process's page table entries of a range.
func (m *modelFile) unmap(r Range) error {
	if err := unix.Madvise(m.part(r), unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("unmap %d bytes of %s: %w", r.Length, m.path, err)
	}
	return nil
}

// close unmaps the file, which undoes all locks.
func (m *modelFile) close() error { return errors.Join(unix.Munmap(m.mapping), m.file.Close()) }
