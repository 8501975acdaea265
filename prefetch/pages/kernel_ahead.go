package pages

// This file reads ahead: by large folios where a file has them (see kernel.go), otherwise by single pages.

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/uring"
)

// BlockBytes implements Levers.
func (k *Kernel) BlockBytes() int64 {
	for _, f := range k.files {
		if f.FolioBytes == 0 {
			return MinBlock
		}
	}
	return max(k.folioBytes, MinBlock)
}

const (
	// MinFoliosAtOnce large folios are read at once, or more if the disk needs that (see NoteDiskRate), but
	// at most maxFoliosAtOnce. Folios that wait for a worker take no memory yet, and a worker begins the next
	// one without this process. More than the disk needs only wait in its queue. Some disks report reads that
	// came together only when the last of them is over.
	MinFoliosAtOnce = 3
	maxFoliosAtOnce = 8
	// settledReads is how many reads it takes to tell how long one takes by itself. What was measured when
	// the file was opened may have been beside the target's own reads, while it loaded its model.
	settledReads = 64
)

// BlocksAtOnce implements Levers.
func (k *Kernel) BlocksAtOnce() int { return k.foliosAtOnce }

// NoteDiskRate implements Levers. As many reads have to be under way as the disk delivers in the time that
// one takes by itself, and one that begins when another is over. One by itself takes the least time that one
// was seen to take. The number only rises: where too few reads were under way, the disk has delivered less
// than it can.
func (k *Kernel) NoteDiskRate(perSecond float64) error {
	needed := MinFoliosAtOnce
	for _, f := range k.files {
		if f.reads >= settledReads && f.readTime > 0 && f.FolioBytes > 0 {
			needed = max(needed, int(math.Ceil(perSecond*f.readTime.Seconds()/float64(f.FolioBytes)))+1)
		}
	}
	if needed = min(needed, maxFoliosAtOnce); needed <= k.foliosAtOnce {
		return nil
	}
	k.foliosAtOnce = needed
	return k.queue.SetWorkers(needed)
}

// folioRead is a read of a large folio that is under way.
type folioRead struct {
	Range
	// inspect says that it is to be looked at whether the range lies in large folios when it was read. It
	// stays mapped for that.
	inspect bool
	begun   time.Time
}

// FolioAdvices are the advices (madvise(2)) that read a large folio and then unmap it here.
var FolioAdvices = []int{unix.MADV_POPULATE_READ, unix.MADV_DONTNEED}

// ReadAhead implements Levers.
func (k *Kernel) ReadAhead(r Range) bool {
	f := k.files[r.File]
	if k.evictor != nil {
		k.evictor.cancel(r)
	}
	if f.isWholeFolios(r) {
		if k.IsReading(r) {
			return true
		}
		folios := int((r.Length + f.FolioBytes - 1) / f.FolioBytes)
		if k.queue.InFlight()+len(FolioAdvices)*(len(k.waitingFolios)+folios) > QueueEntries {
			return false
		}
		for at := r.Offset; at < r.End(); at += f.FolioBytes {
			k.waitingFolios = append(k.waitingFolios, Range{r.File, at, min(f.FolioBytes, r.End()-at)})
		}
		return true
	}
	return k.readPages(r)
}

// readPages begins to read a range in single pages. It returns false if too many reads are under way.
func (k *Kernel) readPages(r Range) bool {
	f := k.files[r.File]
	if int64(k.queue.InFlight())+(r.Length+f.PieceBytes-1)/f.PieceBytes > QueueEntries {
		return false
	}
	for at := r.Offset; at < r.End(); at += f.PieceBytes {
		if !k.queue.Fadvise(int(f.File.Fd()), at, min(f.PieceBytes, r.End()-at), unix.FADV_WILLNEED, 0) {
			return false // the target reads by itself what is missing
		}
	}
	return true
}

// beginWaiting begins those waiting reads of large folios that need not wait any more: what follows them in
// the file is in memory, or is not to be expected.
func (k *Kernel) beginWaiting() error {
	if len(k.waitingFolios) == 0 {
		return nil
	}
	var still []Range
	for _, r := range k.waitingFolios {
		begun, err := k.beginFolio(r)
		if err != nil {
			return err
		}
		if !begun {
			still = append(still, r)
		}
	}
	k.waitingFolios = still
	return nil
}

// beginFolio begins a read of a large folio, unless it has to wait.
func (k *Kernel) beginFolio(r Range) (begun bool, err error) {
	f := k.files[r.File]
	if f.FolioBytes == 0 {
		return k.readPages(r), nil
	}
	next := Range{r.File, r.End(), min(f.FolioBytes, f.Size-r.End())}
	if there, err := k.ResidentBytes(next); err != nil {
		return false, err
	} else if there < next.Length && !k.CanReadApart() {
		return !k.IsReading(next) && k.readPages(r), nil
	}
	// What is read here may tell whether the file system has large folios. The end of a file tells nothing,
	// because it is never a large folio. Pages that somebody else has read, such as a target that loads its
	// model, tell nothing either.
	inspect, advices := f.shouldInspect() && r.Length == f.FolioBytes, FolioAdvices
	if inspect {
		there, err := k.ResidentBytes(r)
		if err != nil {
			return false, err
		}
		inspect = there == 0
	}
	if inspect {
		advices = advices[:1] // it stays mapped
	}
	k.lastTag++
	if !k.queue.Madvise(f.Part(r), advices, k.lastTag) {
		return false, nil
	}
	f.reads++
	k.folioReads[k.lastTag] = folioRead{r, inspect, time.Now()}
	return true, nil
}

// IsReading implements Levers. Each read takes a worker of io_uring until it is over. Reads beyond
// BlocksAtOnce wait for a worker.
func (k *Kernel) IsReading(r Range) bool {
	if slices.ContainsFunc(k.waitingFolios, r.Overlaps) {
		return true
	}
	for _, p := range k.folioReads {
		if r.Overlaps(p.Range) {
			return true
		}
	}
	return false
}

// Poll implements Levers. A read that failed is no reason to stop, because the target will read for itself.
func (k *Kernel) Poll() error {
	if err := k.beginWaiting(); err != nil {
		return err
	}
	if _, err := k.queue.Submit(); err != nil {
		return err
	}
	var err error
	k.completions, err = k.queue.Reap(0, k.completions[:0])
	if err != nil {
		return err
	}
	for _, done := range k.completions {
		if err := k.handleCompletion(done); err != nil {
			return err
		}
	}
	return nil
}

// handleCompletion notes that a read is over. A read of single pages has only begun then.
func (k *Kernel) handleCompletion(done uring.Completion) error {
	if r, ok := k.folioReads[done.Tag]; ok {
		delete(k.folioReads, done.Tag)
		k.files[r.File].noteReadTime(r, time.Since(r.begun))
		if err := k.inspectRead(r, done.Err); err != nil {
			return err
		}
	}
	if done.Err == nil {
		return nil
	}
	level := slog.LevelWarn
	if k.warnedFailed { // a disk that fails once fails often
		level = slog.LevelDebug
	}
	k.warnedFailed = true
	k.log.Log(context.Background(), level, "a read ahead failed: it is left to the target", "error", done.Err)
	return nil
}

// inspectRead looks at a read of a large folio that is over. Where there turn out to be no large folios,
// single pages are read from now on.
func (k *Kernel) inspectRead(r folioRead, failed error) error {
	f := k.files[r.File]
	gone := errors.Is(failed, unix.EINVAL) // before Linux 5.14 there is no MADV_POPULATE_READ
	if r.inspect && failed == nil {
		gone = f.inspect(r.Range)
	}
	if r.inspect {
		if err := f.Unmap(r.Range); err != nil {
			return err
		}
	}
	if !gone || f.FolioBytes == 0 {
		return nil
	}
	k.logNoFolios(f)
	return f.giveUpFolios()
}
