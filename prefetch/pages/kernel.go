package pages

// This file has the levers on the kernel's page cache: reads ahead by io_uring, locks by mlock, paging out by
// process_madvise.
//
// Reads ahead are of large folios where the file system has them: these cost a quarter of the kernel's time.
// FADV_WILLNEED reads single pages whatever the file system can do (force_page_cache_ra, mm/readahead.c). A fault in
// a mapping with MADV_HUGEPAGE reads a large folio (do_sync_mmap_readahead, mm/filemap.c, since Linux 5.18; ext4 has
// them since 6.16, xfs since 5.18), at any readahead of the device. MADV_POPULATE_READ faults without touching;
// MADV_DONTNEED right after it unmaps the folio here.
//
// Such a fault reads two folios, and marks the second: whoever touches that one reads ahead some more, up to twice
// the device's readahead. MADV_RANDOM would leave one folio, and the mark on it. Only where the second is in memory
// already there is no mark. So a read waits until what follows it in the file is in memory, if that is being read,
// too; if it is not, single pages are read.

import (
	gocontext "context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/internal/uring"
)

var PageSize = int64(os.Getpagesize())

// KernelPages is the page cache of this machine.
type Kernel struct {
	target      *proc.Process
	queue       uring.Queue
	files       []*File
	completions []uring.Completion
	folio       int64           // bytes of a large folio, 0 if this kernel has none
	atOnce      int             // large folios that are read at once, each by a worker of the queue
	unmarked    bool            // marks for readahead do nothing, see NoteSmallReadahead
	inOrder     bool            // nor do they now, see SetInOrder
	waiting     []Range         // reads of large folios that wait for what follows them
	underWay    map[uint64]read // reads of large folios, by tag
	tag         uint64          // the last one
	failed      bool            // a read did, which was told
	readNow     time.Time       // when ReadNow has returned last
	evictor     *evictor        // nil until it is needed
	guardian    []string        // nil: there is none, see SetGuardian
	log         *slog.Logger
}

// read is one of large folios.
type read struct {
	Range
	look  bool // at what came of it, which is still mapped for that
	begun time.Time
}

// queueEntries is how many requests may be under way.
const QueueEntries = 128

// NewKernelPages prepares to work for the process pid. Its methods are called by one goroutine, which stays on one
// thread if that thread's priority is to count: the kernel's workers for io_uring inherit it. Close it.
func NewKernel(pid int, log *slog.Logger) (*Kernel, error) {
	target, err := proc.Open(pid)
	if err != nil {
		return nil, err
	}
	queue, err := uring.Open(QueueEntries, uring.WithWorkers(MinFoliosAtOnce))
	if err != nil {
		return nil, errors.Join(err, target.Close())
	}
	return &Kernel{target: target, queue: queue, folio: pagecache.FolioBytes(), atOnce: MinFoliosAtOnce, underWay: map[uint64]read{}, log: log}, nil
}

// Close implements Levers.
func (k *Kernel) Close() error {
	if k.evictor != nil {
		k.evictor.close()
	}
	errs := []error{k.queue.Close()}
	for _, f := range k.files {
		errs = append(errs, f.Close())
	}
	k.files = nil
	return errors.Join(append(errs, k.target.Close())...)
}

// Rest prepares for a long time without reads, and Wake for reads again. Meanwhile khugepaged leaves the mappings
// alone: on kernels with CONFIG_READ_ONLY_THP_FOR_FS it would read what is missing of a folio of which a page is in
// memory (collapse_file, mm/khugepaged.c).
func (k *Kernel) Rest() error { return k.advise(unix.MADV_NOHUGEPAGE) }

// Wake undoes Rest.
func (k *Kernel) Wake() error { return k.advise(unix.MADV_HUGEPAGE) }

// advise gives an advice about the mappings of files that are read in large folios.
func (k *Kernel) advise(advice int) error {
	for _, f := range k.files {
		if f.FolioBytes == 0 {
			continue
		}
		if err := unix.Madvise(f.Mapping, advice); err != nil {
			return fmt.Errorf("advise the kernel about large folios of %s: %w", f.Path, err)
		}
	}
	return nil
}

// NoteSmallReadahead is told whether the target reads less around its faults than a large folio: then a mark on a folio does
// nothing, as what follows within that little is in memory (page_cache_async_ra, mm/readahead.c). So a folio can be
// read without the next one.
func (k *Kernel) NoteSmallReadahead(little bool) error { return k.mark(little, k.inOrder) }

// SetInOrder implements Levers. A mark has its reader read on only where something is missing within his readahead
// (page_cache_async_ra, mm/readahead.c), and what was asked for counts as there. So that he finds the next folio
// being read when he is through with one, and does not begin to read it by himself, more are read at once than the
// disk needs.
func (k *Kernel) SetInOrder(inOrder bool) error {
	workers := k.atOnce
	if inOrder {
		workers = maxFoliosAtOnce
	}
	return errors.Join(k.mark(k.unmarked, inOrder), k.queue.Workers(workers))
}

// mark notes why marks do nothing, if there is a reason, and has the kernel read a large folio without the next one
// then.
func (k *Kernel) mark(unmarked, inOrder bool) error {
	before := k.CanReadApart()
	k.unmarked, k.inOrder = unmarked, inOrder
	switch apart := k.CanReadApart(); {
	case apart == before:
		return nil
	case apart:
		return k.advise(unix.MADV_RANDOM)
	}
	return k.advise(unix.MADV_NORMAL)
}

// CanReadApart implements Levers.
func (k *Kernel) CanReadApart() bool { return k.unmarked || k.inOrder }

// Name implements Levers.
func (k *Kernel) Name() string { return k.queue.Name() }

// Open implements Levers.
func (k *Kernel) Open(path string, id event.FileID) (file int, size int64, err error) {
	f, err := OpenFile(proc.Place{Path: path, ID: proc.FileID(id)}, k.folio)
	if err != nil {
		return 0, 0, err
	}
	for i, known := range k.files {
		if os.SameFile(known.info, f.info) {
			return i, known.Size, f.Close()
		}
	}
	if err := f.Probe(); err != nil {
		return 0, 0, errors.Join(err, f.Close())
	}
	if k.folio > 0 && f.FolioBytes == 0 {
		k.tellPages(f)
	}
	k.files = append(k.files, f)
	return len(k.files) - 1, f.Size, nil
}

// Map implements Levers.
func (k *Kernel) Map(file int, base uint64) { k.files[file].base = base }

// BlockBytes implements Levers.
func (k *Kernel) BlockBytes() int64 {
	for _, f := range k.files {
		if f.FolioBytes == 0 {
			return MinBlock
		}
	}
	return max(k.folio, MinBlock)
}

const (
	// leastAtOnce large folios are read at once, at most maxFoliosAtOnce. Those that wait for a worker take no memory yet,
	// and a worker begins the next one without this process. More than the disk needs only wait in its queue: some
	// disks tell of reads that came together when the last of them is over.
	MinFoliosAtOnce = 3
	maxFoliosAtOnce = 8
	// settledReads tell how long one takes by itself: what was measured when the file was opened may have been beside
	// the target's own reads, as it loads its model.
	settledReads = 64
)

// BlocksAtOnce implements Levers.
func (k *Kernel) BlocksAtOnce() int { return k.atOnce }

// NoteDiskRate implements Levers: as many reads have to be under way as the disk brings in the time that one takes by
// itself, which is the least that one was seen to take, and one that begins when another is over. It only rises:
// where too few were under way, the disk had delivered less.
func (k *Kernel) NoteDiskRate(perSecond float64) error {
	needed := MinFoliosAtOnce
	for _, f := range k.files {
		if f.reads >= settledReads && f.alone > 0 && f.FolioBytes > 0 {
			needed = max(needed, int(math.Ceil(perSecond*f.alone.Seconds()/float64(f.FolioBytes)))+1)
		}
	}
	if needed = min(needed, maxFoliosAtOnce); needed <= k.atOnce {
		return nil
	}
	k.atOnce = needed
	return k.queue.Workers(needed)
}

// ReadAhead implements Levers.
func (k *Kernel) ReadAhead(r Range) bool {
	f := k.files[r.File]
	if k.evictor != nil {
		k.evictor.spare(r)
	}
	if f.wholeFolios(r) {
		if k.IsReading(r) {
			return true
		}
		folios := int((r.Length + f.FolioBytes - 1) / f.FolioBytes)
		if k.queue.InFlight()+len(FolioAdvices)*(len(k.waiting)+folios) > QueueEntries {
			return false
		}
		for at := r.Offset; at < r.End(); at += f.FolioBytes {
			k.waiting = append(k.waiting, Range{r.File, at, min(f.FolioBytes, r.End()-at)})
		}
		return true
	}
	return k.readPages(r)
}

// readPages reads single pages.
func (k *Kernel) readPages(r Range) bool {
	f := k.files[r.File]
	if int64(k.queue.InFlight())+(r.Length+f.PieceBytes-1)/f.PieceBytes > QueueEntries {
		return false
	}
	for at := r.Offset; at < r.End(); at += f.PieceBytes {
		if !k.queue.Fadvise(int(f.File.Fd()), at, min(f.PieceBytes, r.End()-at), unix.FADV_WILLNEED, 0) {
			return false // what is missing the target reads by itself
		}
	}
	return true
}

// ReadNow implements Levers. A worker of io_uring, to which FADV_WILLNEED is always given, would wait for a processor
// on which the target's threads spin. Of a long range the large folios are left to such workers all the same: pages
// would take more of the kernel's time than that.
func (k *Kernel) ReadNow(r Range) error {
	f := k.files[r.File]
	if k.evictor != nil {
		k.evictor.spare(r)
	}
	piece := f.PieceBytes
	if time.Since(k.readNow) > firstPause {
		piece = firstPiece
	}
	defer func() { k.readNow = time.Now() }()
	if begun, err := k.readSlice(r); begun || err != nil {
		return err
	}
	middle := f.inner(r, k.CanReadApart())
	if middle.Length == 0 {
		return f.readPages(r, piece)
	}
	before := Range{r.File, r.Offset, middle.Offset - r.Offset}
	behind := Range{r.File, middle.End(), r.End() - middle.End()}
	// What follows the folios has to be in memory first, see begin.
	if err := errors.Join(f.readPages(behind, piece), f.readPages(before, f.PieceBytes)); err != nil {
		return err
	}
	if !k.ReadAhead(middle) {
		return f.readPages(middle, f.PieceBytes)
	}
	if err := k.begin(); err != nil {
		return err
	}
	_, err := k.queue.Submit()
	return err
}

// The disk gets a piece when all of its pages were taken, which is a tenth of a millisecond for an expert's slice. So
// the first piece is a small one where nothing was asked for since firstPause: the disk has something to do at once.
const (
	firstPiece = 64 << 10
	firstPause = 200 * time.Microsecond
)

// folioAdvices read a large folio and unmap it here.
var FolioAdvices = []int{unix.MADV_POPULATE_READ, unix.MADV_DONTNEED}

// begin begins those reads of large folios of which what follows is in memory, or is not to be expected.
func (k *Kernel) begin() error {
	if len(k.waiting) == 0 {
		return nil
	}
	var still []Range
	for _, r := range k.waiting {
		begun, err := k.beginOne(r)
		if err != nil {
			return err
		}
		if !begun {
			still = append(still, r)
		}
	}
	k.waiting = still
	return nil
}

// beginOne begins a read of a large folio, unless it is to wait.
func (k *Kernel) beginOne(r Range) (begun bool, err error) {
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
	// The end of a file is no large folio, whatever the file system. Pages that somebody else has read, as a target
	// that loads its model does, say nothing about it, either.
	look, advices := f.toLook() && r.Length == f.FolioBytes, FolioAdvices
	if look {
		there, err := k.ResidentBytes(r)
		if err != nil {
			return false, err
		}
		look = there == 0
	}
	if look {
		advices = advices[:1]
	}
	k.tag++
	if !k.queue.Madvise(f.Part(r), advices, k.tag) {
		return false, nil
	}
	f.reads++
	k.underWay[k.tag] = read{r, look, time.Now()}
	return true, nil
}

// IsReading implements Levers. Each read takes a worker of io_uring until it is over: behind as many as BlocksAtOnce, reads
// wait.
func (k *Kernel) IsReading(r Range) bool {
	overlaps := func(p Range) bool { return p.File == r.File && p.Offset < r.End() && r.Offset < p.End() }
	if slices.ContainsFunc(k.waiting, overlaps) {
		return true
	}
	for _, p := range k.underWay {
		if overlaps(p.Range) {
			return true
		}
	}
	return false
}

// Poll implements Levers. A read that failed is no reason to stop: the target will read for itself.
func (k *Kernel) Poll() error {
	if err := k.begin(); err != nil {
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
		if err := k.completed(done); err != nil {
			return err
		}
	}
	return nil
}

// completed notes that a read is over, or begun as far as pages go.
func (k *Kernel) completed(done uring.Completion) error {
	if r, ok := k.underWay[done.Tag]; ok {
		delete(k.underWay, done.Tag)
		k.files[r.File].took(r, time.Since(r.begun))
		if err := k.examine(r, done.Err); err != nil {
			return err
		}
	}
	if done.Err == nil {
		return nil
	}
	level := slog.LevelWarn
	if k.failed { // a disk that fails does so often
		level = slog.LevelDebug
	}
	k.failed = true
	k.log.Log(gocontext.Background(), level, "a read ahead failed: it is left to the target", "error", done.Err)
	return nil
}

// examine looks at a read of large folios that is over, and gives them up where there are none.
func (k *Kernel) examine(r read, failed error) error {
	f := k.files[r.File]
	gone := errors.Is(failed, unix.EINVAL) // before Linux 5.14 there is no MADV_POPULATE_READ
	if r.look && failed == nil {
		gone = f.look(r.Range)
	}
	if r.look {
		if err := f.Unmap(r.Range); err != nil {
			return err
		}
	}
	if !gone || f.FolioBytes == 0 {
		return nil
	}
	k.tellPages(f)
	return f.onlyPages()
}

func (k *Kernel) tellPages(f *File) {
	k.log.Info("there are no large folios: single pages are read, which costs more of the kernel's time", "file", f.Path)
}

// Lock implements Levers. The file may have been truncated: then mlock fails, nothing is touched from user space.
func (k *Kernel) Lock(r Range) error {
	f := k.files[r.File]
	if err := k.finish(r); err != nil {
		return err
	}
	err := unix.Mlock(f.Part(r))
	if errors.Is(err, unix.ENOMEM) && k.unreadable(r) { // mlock says of a failed read that there is no such memory
		return fmt.Errorf("lock %d bytes of %s in memory: %w", r.Length, f.Path, ErrUnreadable)
	}
	if err != nil {
		return fmt.Errorf("lock %d bytes of %s in memory: %w%s", r.Length, f.Path, err, whyNotLocked())
	}
	return nil
}

// finish waits until reads of a range are over: a fault on it now would find it missing, and read what follows it, too.
func (k *Kernel) finish(r Range) error {
	for k.IsReading(r) {
		if err := k.Poll(); err != nil {
			return err
		}
		time.Sleep(finishPause)
	}
	return nil
}

// finishPause is a fraction of what reading a large folio takes.
const finishPause = 100 * time.Microsecond

// whyNotLocked adds the usual reason to mlock's error: a process without CAP_IPC_LOCK may lock no more than
// RLIMIT_MEMLOCK.
func whyNotLocked() string {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Cur == unix.RLIM_INFINITY {
		return ""
	}
	return fmt.Sprintf(": without CAP_IPC_LOCK it may lock %d bytes", limit.Cur)
}

// Keep implements Levers. The pages are mapped here for a moment only: what two processes map cannot be paged out.
func (k *Kernel) Keep(r Range) error {
	f := k.files[r.File]
	if err := k.finish(r); err != nil {
		return err
	}
	err := unix.Madvise(f.Part(r), unix.MADV_POPULATE_READ)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.14: what was read ahead is all
		return nil
	}
	// EFAULT: to touch the page would be SIGBUS, as the file was truncated or the disk cannot read it. EHWPOISON: the
	// memory is broken.
	if errors.Is(err, unix.EFAULT) || errors.Is(err, unix.EHWPOISON) {
		err = ErrUnreadable
	}
	if err != nil {
		return fmt.Errorf("read %d bytes at %d of %s: %w", r.Length, r.Offset, f.Path, err)
	}
	return f.Unmap(r)
}

// unreadable says whether a range cannot be read.
func (k *Kernel) unreadable(r Range) bool { return errors.Is(k.Keep(r), ErrUnreadable) }

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
	// What the target has not touched, no process maps. FADV_DONTNEED may wait for all processors, up to 44 ms
	// (lru_add_drain_all): it is asked for only where something is left, and not waited for.
	if left, err := k.ResidentBytes(r); left == 0 || err != nil {
		return err
	}
	k.queue.Fadvise(int(f.File.Fd()), r.Offset, r.Length, unix.FADV_DONTNEED, 0) // if the queue is full it stays until the next time
	return nil
}

// Evict implements Levers.
func (k *Kernel) Evict(r Range) bool {
	if k.evictor == nil {
		k.evictor = newEvictor(k.free, eviction.read, k.log)
	}
	f := k.files[r.File]
	return k.evictor.add(eviction{r, f, f.base + uint64(r.Offset)})
}

// free frees the pages of a range, in the evictor's goroutine.
func (k *Kernel) free(e eviction) error {
	if err := k.target.PageOut(e.address, e.Length); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	if left, err := pagecache.Resident(e.file.File, e.Offset, e.Length); left == 0 || err != nil {
		return err
	}
	return unix.Fadvise(int(e.file.File.Fd()), e.Offset, e.Length, unix.FADV_DONTNEED)
}

// ResidentBytes implements Levers.
func (k *Kernel) ResidentBytes(r Range) (int64, error) {
	return pagecache.Resident(k.files[r.File].File, r.Offset, r.Length)
}

// IsTouched implements Levers. Of a large folio a target that touches one page has all.
func (k *Kernel) IsTouched(r Range) (bool, error) {
	touched, err := k.target.Touched(k.files[r.File].base+uint64(r.Offset), r.Length)
	if errors.Is(err, proc.ErrNoProcess) {
		return false, nil
	}
	return touched, err
}
