package costs

// This file makes one round of measuring. Lanes are read, touched through a mapping like a target's, paged out, and
// dropped.

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/uring"
	"tensorcast/prefetch/pages"
)

// lanesAtOnce is how many lanes are read at once: reads of so many large folios keep a disk busy.
const lanesAtOnce = 4

// errDisturbed says that a round measured something else.
var errDisturbed = errors.New("its pages come and go while they are measured: " +
	"another process uses the same parts of the file, or memory is short")

// maxDropTime is how long dropping what was read may take. Pages that are still being read can only be dropped a
// moment later.
const maxDropTime = 2 * time.Second

// measureRound measures one way on lanes. The error is errDisturbed if it did not measure what it was to measure.
func (m *costing) measureRound(ctx context.Context, way Way, lanes []lane) (c Cost, err error) {
	if lanes, err = m.selectAbsent(lanes); err != nil {
		return c, err
	}
	var length int64
	for _, l := range lanes {
		length += l.Length
	}
	if length == 0 {
		return c, errDisturbed
	}
	defer func() {
		left, e := m.dropLanes(lanes)
		m.left, err = m.left+left, errors.Join(err, e)
	}()
	target := pages.File{Mapped: m.file.Mapped, Size: m.file.Size}
	if err := target.MapAligned(m.file.FolioBytes); err != nil {
		return c, fmt.Errorf("map %s: %w", m.file.Path, err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(target.Reserved)) }()
	// If a page has gone, touching it must not read others.
	if err := unix.Madvise(target.Mapping, unix.MADV_RANDOM); err != nil {
		return c, fmt.Errorf("advise a mapping of %s: %w", m.file.Path, err)
	}
	if way == WayFoliosByPage {
		if err := m.makePageTables(ctx, &target, lanes); err != nil {
			return c, err
		}
	}
	if err := m.measureReading(ctx, way, lanes, length, &c); err != nil {
		return c, err
	}
	if err := m.measureTouching(ctx, &target, lanes, length, &c); err != nil {
		return c, err
	}
	return c, m.measurePagingOut(&target, lanes, length, &c)
}

// measureReading reads lanes, of length bytes, and what has to be read behind them.
func (m *costing) measureReading(ctx context.Context, way Way, lanes []lane, length int64, c *Cost) error {
	read := m.readFolios
	if way == WayPages {
		read = m.readPages
	}
	began, used := time.Now(), processTime()
	if err := read(ctx, lanes); err != nil {
		return err
	}
	used = processTime() - used
	if way == WayPages { // they were asked for, and have not come yet
		if err := m.awaitPages(ctx, lanes); err != nil {
			return err
		}
	}
	took := time.Since(began)
	all, err := m.residentBytes(lanes, lane.withGuard)
	if err != nil {
		return err
	}
	c.Bytes, c.Read, c.Bandwidth = all, microsPerMiB(used, all), float64(all)/took.Seconds()
	if there, err := m.residentBytes(lanes, lane.withoutGuard); err != nil || there < length {
		return errors.Join(errDisturbed, err)
	}
	return nil
}

// measureTouching touches lanes, of length bytes, as the target does.
func (m *costing) measureTouching(
	ctx context.Context, target *pages.File, lanes []lane, length int64, c *Cost,
) error {
	faults, used := threadFaults(), processTime()
	for _, l := range lanes {
		if err := m.touchPages(target.Part(l.Range)); err != nil {
			return err
		}
	}
	used = processTime() - used
	c.Touch, c.Faults = microsPerMiB(used, length), float64(threadFaults()-faults)*(1<<20)/float64(length)
	if err := ctx.Err(); err != nil {
		return err
	}
	huge, whole, err := m.countInFolios(target, lanes)
	if err != nil {
		return err
	}
	c.InFolios, c.Whole = float64(huge)/float64(length), float64(whole)/float64(length)
	return nil
}

// measurePagingOut pages out lanes, of length bytes. The kernel does for this process what process_madvise does for
// another one, and this process needs no right for it.
func (m *costing) measurePagingOut(target *pages.File, lanes []lane, length int64, c *Cost) error {
	used := processTime()
	for _, l := range lanes {
		for at := l.Offset; at < l.End(); at += m.unit {
			block := target.Part(pages.Range{Offset: at, Length: m.unit})
			if err := unix.Madvise(block, unix.MADV_PAGEOUT); err != nil {
				return fmt.Errorf("page out %d bytes at %d of %s: %w", m.unit, at, m.file.Path, err)
			}
		}
	}
	used = processTime() - used
	stayed, err := m.residentBytes(lanes, lane.withoutGuard)
	if err != nil {
		return err
	}
	if stayed > length/4 { // a few stay: those that a processor is working on
		return errDisturbed
	}
	c.PageOut = microsPerMiB(used, length-stayed)
	return nil
}

// withoutGuard is a lane without what may be read behind it.
func (l lane) withoutGuard() pages.Range { return l.Range }

// selectAbsent returns those lanes of which still nothing is in memory.
func (m *costing) selectAbsent(lanes []lane) ([]lane, error) {
	var absent []lane
	for _, l := range lanes {
		there, err := m.residentBytes([]lane{l}, lane.withGuard)
		if err != nil {
			return nil, err
		}
		if there == 0 {
			absent = append(absent, l)
		}
	}
	return absent, nil
}

// residentBytes is how many bytes of some part of each lane are in memory.
func (m *costing) residentBytes(lanes []lane, part func(lane) pages.Range) (int64, error) {
	var sum int64
	for _, l := range lanes {
		r := part(l)
		n, err := m.file.Resident(r)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// makePageTables makes the kernel build the target's page tables for lanes: a page of each block is touched, and
// unmapped again. (Since Linux 6.14 a table is freed by MADV_DONTNEED, but only of all that it maps.)
func (m *costing) makePageTables(ctx context.Context, target *pages.File, lanes []lane) error {
	for _, l := range lanes {
		for at := l.Offset; at < l.End(); at += m.unit {
			if err := ctx.Err(); err != nil {
				return err
			}
			page := target.Part(pages.Range{Offset: at, Length: pages.PageSize})
			if err := m.touchPages(page); err != nil {
				return err
			}
			if err := unix.Madvise(page, unix.MADV_DONTNEED); err != nil {
				return fmt.Errorf("unmap a page of %s: %w", m.file.Path, err)
			}
		}
	}
	if left, err := m.dropLanes(lanes); left > 0 || err != nil {
		return errors.Join(errDisturbed, err)
	}
	return nil
}

// readPages asks for single pages, as pages.Kernel does.
func (m *costing) readPages(ctx context.Context, lanes []lane) error {
	var failed error
	var done []uring.Completion
	reap := func(wait int) {
		var err error
		done, err = m.queue.Reap(wait, done[:0])
		failed = errors.Join(failed, err)
		for _, d := range done {
			failed = errors.Join(failed, d.Err)
		}
	}
	for _, l := range lanes {
		for at := l.Offset; at < l.End() && failed == nil && ctx.Err() == nil; {
			piece := min(m.file.PieceBytes, l.End()-at)
			if m.queue.Fadvise(int(m.file.File.Fd()), at, piece, unix.FADV_WILLNEED, 0) {
				at += piece
			} else {
				reap(1)
			}
		}
	}
	reap(m.queue.InFlight())
	return m.readError(ctx, failed)
}

// readFolios reads large folios, lanesAtOnce lanes at a time. It reads each lane from its end: see kernel.go in
// package pages.
func (m *costing) readFolios(ctx context.Context, lanes []lane) error {
	var failed error
	unread := make([]int64, len(lanes)) // bytes of each lane
	for i, l := range lanes {
		unread[i] = l.Length
	}
	begun := 0 // lanes
	begin := func(i int) {
		unread[i] -= m.unit
		block := pages.Range{Offset: lanes[i].Offset + unread[i], Length: m.unit}
		if !m.queue.Madvise(m.file.Part(block), pages.FolioAdvices, uint64(i)) {
			failed = errors.Join(failed, errors.New("the queue is full"))
		}
	}
	for ; begun < min(len(lanes), lanesAtOnce); begun++ {
		begin(begun)
	}
	var done []uring.Completion
	for m.queue.InFlight() > 0 {
		var err error
		if done, err = m.queue.Reap(1, done[:0]); err != nil {
			return m.readError(ctx, errors.Join(failed, err)) // Close waits for the others
		}
		for _, d := range done {
			switch failed = errors.Join(failed, d.Err); {
			case failed != nil || ctx.Err() != nil:
			case unread[d.Tag] > 0:
				begin(int(d.Tag))
			case begun < len(lanes):
				begin(begun)
				begun++
			}
		}
	}
	return m.readError(ctx, failed)
}

// readError describes an error of reading, or else the end of ctx. EFAULT means that touching a page would raise
// SIGBUS: the file was truncated, or the disk cannot read it.
func (m *costing) readError(ctx context.Context, failed error) error {
	if failed == nil {
		return ctx.Err()
	}
	if errors.Is(failed, unix.EFAULT) || errors.Is(failed, unix.EIO) {
		failed = pages.ErrUnreadable
	}
	return fmt.Errorf("read %s: %w", m.file.Path, failed)
}

// awaitStep is how many bytes of a lane are awaited at a time. No disk reads less in one request.
const awaitStep = 64 << 10

// awaitPages waits until pages that were asked for have come, by reading a byte of them.
func (m *costing) awaitPages(ctx context.Context, lanes []lane) error {
	var b [1]byte
	for _, l := range lanes {
		for at := l.Offset; at < l.End(); at += awaitStep {
			if err := ctx.Err(); err != nil {
				return err
			}
			for _, page := range []int64{at, min(at+awaitStep, l.End()) - 1} {
				if _, err := m.file.File.ReadAt(b[:], page); err != nil {
					return fmt.Errorf("read %s: %w: %w", m.file.Path, pages.ErrUnreadable, err)
				}
			}
		}
	}
	return nil
}

// touchPages loads a byte of each page of a part of a mapping. A page that cannot be read is an error, not a crash.
func (m *costing) touchPages(mem []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(interface{ Addr() uintptr })
		first := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
		if !ok || fault.Addr() < first || fault.Addr()-first >= uintptr(len(mem)) {
			panic(r)
		}
		err = fmt.Errorf("touch pages of %s: %w", m.file.Path, pages.ErrUnreadable)
	}()
	for at := int64(0); at < int64(len(mem)); at += pages.PageSize {
		m.sum += mem[at]
	}
	return nil
}

// countInFolios returns how many bytes of lanes lie in large folios (huge), and how many of these the target maps
// by one page table entry for each folio (whole). m.file's own mapping, which has no page tables yet, tells how
// pages lie.
func (m *costing) countInFolios(target *pages.File, lanes []lane) (huge, whole int64, err error) {
	if m.file.FolioBytes == 0 {
		return 0, 0, nil
	}
	for _, l := range lanes {
		n, err := pagecache.Huge(target.Part(l.Range))
		if err != nil {
			return 0, 0, err
		}
		whole += n
		if err := unix.Madvise(m.file.Part(l.Range), unix.MADV_POPULATE_READ); err != nil {
			return 0, 0, m.readError(context.Background(), err)
		}
		n, err = pagecache.Huge(m.file.Part(l.Range))
		// What is mapped twice could not be paged out.
		if err := errors.Join(err, m.file.Unmap(l.Range)); err != nil {
			return 0, 0, err
		}
		huge += n
	}
	return huge, whole, nil
}

// dropLanes frees what was read and no other process uses. It returns how many bytes stay.
func (m *costing) dropLanes(lanes []lane) (left int64, err error) {
	for end := time.Now().Add(maxDropTime); ; time.Sleep(time.Millisecond) {
		for _, l := range lanes {
			r := l.withGuard()
			if err := unix.Fadvise(int(m.file.File.Fd()), r.Offset, r.Length, unix.FADV_DONTNEED); err != nil {
				return 0, fmt.Errorf("drop pages of %s: %w", m.file.Path, err)
			}
		}
		if left, err = m.residentBytes(lanes, lane.withGuard); left == 0 || err != nil || time.Now().After(end) {
			return left, err
		}
	}
}

// microsPerMiB is a time divided by a number of bytes, in microseconds per MiB.
func microsPerMiB(t time.Duration, bytes int64) float64 {
	if bytes <= 0 {
		return 0
	}
	return float64(t.Nanoseconds()) / 1e3 * (1 << 20) / float64(bytes)
}

// processTime is the processor time of all threads of this process, including those of the kernel that work for its
// rings. (The clock cannot fail.)
func processTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// threadFaults is how many page faults this thread has had. (The call cannot fail.)
func threadFaults() int64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u)
	return int64(u.Minflt + u.Majflt)
}
