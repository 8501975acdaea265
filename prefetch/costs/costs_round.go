package costs

// This file has one round of measuring: lanes are read, touched through a mapping as a target has one, paged out, and
// dropped.

import (
	gocontext "context"
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
var errDisturbed = errors.New("its pages come and go while they are measured: another process uses the same parts of the file, or memory is short")

// dropTime bounds how long it takes to drop what was read: pages that are being read are dropped a moment later.
const dropTime = 2 * time.Second

// round measures one way on lanes. The error is errDisturbed if it did not measure what it was to measure.
func (m *costing) round(ctx gocontext.Context, way Way, lanes []lane) (c Cost, err error) {
	if lanes, err = m.absent(lanes); err != nil {
		return c, err
	}
	var length, all int64
	for _, l := range lanes {
		length += l.Length
	}
	if length == 0 {
		return c, errDisturbed
	}
	defer func() {
		left, e := m.drop(lanes)
		m.left, err = m.left+left, errors.Join(err, e)
	}()
	target := pages.File{File: m.file.File, Size: m.file.Size}
	if err := target.MapAligned(m.file.FolioBytes); err != nil {
		return c, fmt.Errorf("map %s: %w", m.file.Path, err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(target.Reserved)) }()
	// If a page has gone, touching it must not read others.
	if err := unix.Madvise(target.Mapping, unix.MADV_RANDOM); err != nil {
		return c, fmt.Errorf("advise a mapping of %s: %w", m.file.Path, err)
	}
	if way == WayFoliosByPage {
		if err := m.makeTables(ctx, &target, lanes); err != nil {
			return c, err
		}
	}

	read := m.readFolios
	if way == WayPages {
		read = m.readPages
	}
	began, used := time.Now(), processTime()
	if err := read(ctx, lanes); err != nil {
		return c, err
	}
	used = processTime() - used
	if way == WayPages { // they have been asked for, and not come yet
		if err := m.await(ctx, lanes); err != nil {
			return c, err
		}
	}
	took := time.Since(began)
	if all, err = m.resident(lanes, lane.all); err != nil {
		return c, err
	}
	c.Bytes, c.Read, c.Bandwidth = all, perMiB(used, all), float64(all)/took.Seconds()
	if there, err := m.resident(lanes, lane.only); err != nil || there < length {
		return c, errors.Join(errDisturbed, err)
	}

	faults, used := threadFaults(), processTime()
	for _, l := range lanes {
		if err := m.touch(target.Part(l.Range)); err != nil {
			return c, err
		}
	}
	used = processTime() - used
	c.Touch, c.Faults = perMiB(used, length), float64(threadFaults()-faults)*(1<<20)/float64(length)
	if err := ctx.Err(); err != nil {
		return c, err
	}
	huge, whole, err := m.inFolios(&target, lanes)
	if err != nil {
		return c, err
	}
	c.InFolios, c.Whole = float64(huge)/float64(length), float64(whole)/float64(length)

	// The kernel does for this process what process_madvise does for another, and asks for no right of it.
	used = processTime()
	for _, l := range lanes {
		for at := l.Offset; at < l.End(); at += m.unit {
			if err := unix.Madvise(target.Part(pages.Range{Offset: at, Length: m.unit}), unix.MADV_PAGEOUT); err != nil {
				return c, fmt.Errorf("page out %d bytes at %d of %s: %w", m.unit, at, m.file.Path, err)
			}
		}
	}
	used = processTime() - used
	stayed, err := m.resident(lanes, lane.only)
	if err != nil {
		return c, err
	}
	if stayed > length/4 { // a few do: those that a processor has in hand
		return c, errDisturbed
	}
	c.PageOut = perMiB(used, length-stayed)
	return c, nil
}

// only is a lane without what may be read behind it.
func (l lane) only() pages.Range { return l.Range }

// absent are those of lanes of which still nothing is in memory.
func (m *costing) absent(lanes []lane) ([]lane, error) {
	var absent []lane
	for _, l := range lanes {
		there, err := m.resident([]lane{l}, lane.all)
		if err != nil {
			return nil, err
		}
		if there == 0 {
			absent = append(absent, l)
		}
	}
	return absent, nil
}

// resident is how many bytes of some part of each of lanes are in memory.
func (m *costing) resident(lanes []lane, part func(lane) pages.Range) (int64, error) {
	var sum int64
	for _, l := range lanes {
		r := part(l)
		n, err := pagecache.Resident(m.file.File, r.Offset, r.Length)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// makeTables has the target's page tables made for lanes, as a page of each block is touched and left again. (Only a
// MADV_DONTNEED of all that a table maps frees it, since Linux 6.14.)
func (m *costing) makeTables(ctx gocontext.Context, target *pages.File, lanes []lane) error {
	for _, l := range lanes {
		for at := l.Offset; at < l.End(); at += m.unit {
			if err := ctx.Err(); err != nil {
				return err
			}
			page := target.Part(pages.Range{Offset: at, Length: pages.PageSize})
			if err := m.touch(page); err != nil {
				return err
			}
			if err := unix.Madvise(page, unix.MADV_DONTNEED); err != nil {
				return fmt.Errorf("unmap a page of %s: %w", m.file.Path, err)
			}
		}
	}
	if left, err := m.drop(lanes); left > 0 || err != nil {
		return errors.Join(errDisturbed, err)
	}
	return nil
}

// readPages asks for single pages, as KernelPages does.
func (m *costing) readPages(ctx gocontext.Context, lanes []lane) error {
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

// readFolios reads large folios, some lanes at a time, each from its end: see kernel.go.
func (m *costing) readFolios(ctx gocontext.Context, lanes []lane) error {
	var failed error
	unread := make([]int64, len(lanes)) // bytes of each lane
	for i, l := range lanes {
		unread[i] = l.Length
	}
	begun := 0 // lanes
	begin := func(i int) {
		unread[i] -= m.unit
		if !m.queue.Madvise(m.file.Part(pages.Range{Offset: lanes[i].Offset + unread[i], Length: m.unit}), pages.FolioAdvices, uint64(i)) {
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

// readError is the error of reading. EFAULT: to touch a page would be SIGBUS, as the file was truncated or the disk
// cannot read it.
func (m *costing) readError(ctx gocontext.Context, failed error) error {
	if failed == nil {
		return ctx.Err()
	}
	if errors.Is(failed, unix.EFAULT) || errors.Is(failed, unix.EIO) {
		failed = pages.ErrUnreadable
	}
	return fmt.Errorf("read %s: %w", m.file.Path, failed)
}

// awaitStep is no more than a disk reads in one request, or less than it reads in one.
const awaitStep = 64 << 10

// await waits until pages that were asked for have come: a read of a byte does.
func (m *costing) await(ctx gocontext.Context, lanes []lane) error {
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

// touch loads a byte of each page of a part of a mapping.
func (m *costing) touch(mem []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(interface{ Addr() uintptr })
		if first := uintptr(unsafe.Pointer(unsafe.SliceData(mem))); !ok || fault.Addr() < first || fault.Addr()-first >= uintptr(len(mem)) {
			panic(r)
		}
		err = fmt.Errorf("touch pages of %s: %w", m.file.Path, pages.ErrUnreadable)
	}()
	for at := int64(0); at < int64(len(mem)); at += pages.PageSize {
		m.sum += mem[at]
	}
	return nil
}

// inFolios is how many bytes of lanes lie in large folios, and how many of them the target maps by one entry for each
// folio. Another mapping, which has no page tables yet, tells how pages lie.
func (m *costing) inFolios(target *pages.File, lanes []lane) (huge, whole int64, err error) {
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
			return 0, 0, m.readError(gocontext.Background(), err)
		}
		n, err = pagecache.Huge(m.file.Part(l.Range))
		if err := errors.Join(err, m.file.Unmap(l.Range)); err != nil { // what is mapped twice is not paged out
			return 0, 0, err
		}
		huge += n
	}
	return huge, whole, nil
}

// drop frees what was read, as far as no other process uses it now. It returns how many bytes stay.
func (m *costing) drop(lanes []lane) (left int64, err error) {
	for end := time.Now().Add(dropTime); ; time.Sleep(time.Millisecond) {
		for _, l := range lanes {
			r := l.all()
			if err := unix.Fadvise(int(m.file.File.Fd()), r.Offset, r.Length, unix.FADV_DONTNEED); err != nil {
				return 0, fmt.Errorf("drop pages of %s: %w", m.file.Path, err)
			}
		}
		if left, err = m.resident(lanes, lane.all); left == 0 || err != nil || time.Now().After(end) {
			return left, err
		}
	}
}

func perMiB(t time.Duration, bytes int64) float64 {
	if bytes <= 0 {
		return 0
	}
	return float64(t.Nanoseconds()) / 1e3 * (1 << 20) / float64(bytes)
}

// processTime is the time of processors that all threads of this process have had, those of the kernel that work for
// its rings included. (The clock cannot fail.)
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
