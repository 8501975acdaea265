package pages

// This file keeps pages in memory and frees them, and tells which are there.

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/proc"
)

// Lock implements Levers. If the file was truncated, mlock fails. Nothing is touched from user space.
func (k *Kernel) Lock(r Range) error {
	f := k.files[r.File]
	if err := k.awaitReads(r); err != nil {
		return err
	}
	if err := k.splitAtEnds(r); err != nil {
		return err
	}
	err := unix.Mlock(f.Part(r))
	if errors.Is(err, unix.ENOMEM) && k.isUnreadable(r) { // so mlock reports a failed read
		return fmt.Errorf("lock %d bytes of %s in memory: %w", r.Length, f.Path, ErrUnreadable)
	}
	if err != nil {
		return fmt.Errorf("lock %d bytes of %s in memory: %w%s", r.Length, f.Path, err, explainLockLimit())
	}
	return nil
}

// splitAtEnds reads what is missing of a range, and splits the large folios that lie on either end of it. A folio that
// is locked in part stays in memory as a whole, and the kernel counts it as locked nowhere: a control group could run
// out of memory although its counters tell of pages to reclaim.
func (k *Kernel) splitAtEnds(r Range) error {
	f := k.files[r.File]
	if k.folioBytes == 0 { // the kernel has no large folios
		return nil
	}
	headEnd := min((r.Offset+k.folioBytes-1)/k.folioBytes*k.folioBytes, r.End())
	tail := max(r.End()/k.folioBytes*k.folioBytes, headEnd)
	if r.End() >= f.Size { // no folio goes beyond the end of the file
		tail = r.End()
	}
	for _, part := range []Range{{r.File, r.Offset, headEnd - r.Offset}, {r.File, tail, r.End() - tail}} {
		if part.Length == 0 {
			continue
		}
		if err := k.splitFolios(part); err != nil {
			return err
		}
	}
	return nil
}

// splitFolios reads a range, and splits the large folios that lie in it for a part. The kernel splits only what one
// process maps: what the target has touched is split in its mapping, and the rest in this process's.
func (k *Kernel) splitFolios(r Range) error {
	f := k.files[r.File]
	if f.base != 0 { // otherwise it is not known yet where the target maps the file
		err := k.target.SplitFolios(f.base+uint64(r.Offset), r.Length)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	// What is missing would be read in large folios by the faults of mlock.
	if err := f.readPages(r, f.PieceBytes); err != nil {
		return err
	}
	return f.withOwnMapping(r, func(mapping []byte) error {
		// If that cannot be read, mlock fails for the same reason. Before Linux 5.14, which has no such advice, few
		// file systems have large folios.
		if unix.Madvise(mapping, unix.MADV_POPULATE_READ) != nil {
			return nil
		}
		// EINVAL: the pages are of hugetlbfs or of a device (can_madv_lru_vma, mm/madvise.c).
		if err := unix.Madvise(mapping, unix.MADV_COLD); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("split large folios of %s: %w", f.Path, err)
		}
		return nil
	})
}

// awaitReads waits until reads of a range are over. A fault on the range before that would find it missing,
// and read what follows it, too.
func (k *Kernel) awaitReads(r Range) error {
	for k.IsReading(r) {
		if err := k.Poll(); err != nil {
			return err
		}
		time.Sleep(awaitPause)
	}
	return nil
}

// awaitPause is a fraction of what reading a large folio takes.
const awaitPause = 100 * time.Microsecond

// explainLockLimit adds the usual reason to an error of mlock: a process without CAP_IPC_LOCK may lock no
// more than RLIMIT_MEMLOCK.
func explainLockLimit() string {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Cur == unix.RLIM_INFINITY {
		return ""
	}
	return fmt.Sprintf(": without CAP_IPC_LOCK it may lock %d bytes", limit.Cur)
}

// Keep implements Levers. The pages are mapped here for a moment only: what two processes map cannot be paged
// out.
func (k *Kernel) Keep(r Range) error {
	f := k.files[r.File]
	if err := k.awaitReads(r); err != nil {
		return err
	}
	return f.withOwnMapping(r, func(mapping []byte) error {
		err := unix.Madvise(mapping, unix.MADV_POPULATE_READ)
		if errors.Is(err, unix.EINVAL) { // before Linux 5.14 only what was read ahead is kept
			return nil
		}
		// EFAULT means that touching the page would raise SIGBUS: the file was truncated, or the disk cannot read
		// it. EHWPOISON means that the memory is broken.
		if errors.Is(err, unix.EFAULT) || errors.Is(err, unix.EHWPOISON) {
			err = ErrUnreadable
		}
		if err != nil {
			return fmt.Errorf("read %d bytes at %d of %s: %w", r.Length, r.Offset, f.Path, err)
		}
		return nil
	})
}

// isUnreadable says whether a range cannot be read. It tries to.
func (k *Kernel) isUnreadable(r Range) bool { return errors.Is(k.Keep(r), ErrUnreadable) }

// Release implements Levers.
func (k *Kernel) Release(r Range) error {
	f := k.files[r.File]
	if err := unix.Munlock(f.Part(r)); err != nil {
		return fmt.Errorf("unlock %d bytes of %s: %w", r.Length, f.Path, err)
	}
	return f.Unmap(r)
}

// PageOut implements Levers. A target that has ended has no pages of its own any more.
func (k *Kernel) PageOut(r Range) error {
	f := k.files[r.File]
	if err := k.target.PageOut(f.base+uint64(r.Offset), r.Length); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return err
	}
	// No process maps what the target has not touched. FADV_DONTNEED frees it, but may wait for all
	// processors, up to 44 ms (lru_add_drain_all). So it is asked for only where something is left, and it is
	// not waited for.
	if left, err := k.ResidentBytes(r); left == 0 || err != nil {
		return err
	}
	// If the queue is full, the rest stays until the next time.
	k.queue.Fadvise(int(f.File.Fd()), r.Offset, r.Length, unix.FADV_DONTNEED, 0)
	return nil
}

// Evict implements Levers.
func (k *Kernel) Evict(r Range) bool {
	if k.evictor == nil {
		k.evictor = newEvictor(k.freeNow, eviction.readAgain, k.log)
	}
	f := k.files[r.File]
	return k.evictor.add(eviction{r, f, f.base + uint64(r.Offset)})
}

// freeNow frees the pages of a range, in the evictor's goroutine.
func (k *Kernel) freeNow(e eviction) error {
	if err := k.target.PageOut(e.address, e.Length); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	if left, err := e.file.Resident(e.Range); left == 0 || err != nil {
		return err
	}
	return unix.Fadvise(int(e.file.File.Fd()), e.Offset, e.Length, unix.FADV_DONTNEED)
}

// ResidentBytes implements Levers.
func (k *Kernel) ResidentBytes(r Range) (int64, error) {
	return k.files[r.File].Resident(r)
}

// IsTouched implements Levers. A target that touches one page of a large folio has touched all of it.
func (k *Kernel) IsTouched(r Range) (bool, error) {
	touched, err := k.target.Touched(k.files[r.File].base+uint64(r.Offset), r.Length)
	if errors.Is(err, proc.ErrNoProcess) {
		return false, nil
	}
	return touched, err
}
