package pages

// This file has the kernel's page cache as a whole: the files that are known, and when large folios of them
// can be read apart. kernel_ahead.go reads ahead by io_uring. kernel_keep.go locks by mlock, and pages out by
// process_madvise. kernel_experts.go and kernel_slices.go read experts.
//
// Reads ahead are of large folios where the file system has them. These cost a quarter of the kernel's time.
// Linux has no call that reads large folios: FADV_WILLNEED reads single pages whatever the file system can do
// (force_page_cache_ra, mm/readahead.c). But a fault in a mapping with MADV_HUGEPAGE reads a large folio
// (do_sync_mmap_readahead, mm/filemap.c, since Linux 5.18), at any readahead of the device. ext4 has them
// since 6.16, xfs since 5.18. MADV_POPULATE_READ faults without touching. MADV_DONTNEED right after it unmaps
// the folio here.
//
// Such a fault reads two folios, and marks the second one. Whoever touches the marked one reads ahead some
// more, up to twice the device's readahead. MADV_RANDOM would read one folio only, but leave the mark on it.
// There is no mark only where the second folio is in memory already. So a read waits until what follows it in
// the file is in memory, if that is being read, too. If it is not, single pages are read.

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/internal/uring"
)

// PageSize is the size of a page in bytes.
var PageSize = int64(os.Getpagesize())

// Kernel is the page cache of this machine.
type Kernel struct {
	target *proc.Process
	files  []*File // by index
	log    *slog.Logger

	// Reads ahead.
	queue         uring.Queue
	completions   []uring.Completion   // room for those of one Poll
	folioBytes    int64                // of a large folio; 0 if this kernel has none
	foliosAtOnce  int                  // large folios that are read at once, each by a worker of the queue
	waitingFolios []Range              // reads of large folios that wait for what follows them in the file
	folioReads    map[uint64]folioRead // reads of large folios that are under way, by tag
	lastTag       uint64
	warnedFailed  bool // the user was told that a read failed

	// Why readahead marks do nothing, so that large folios can be read apart.
	smallReadahead bool // see NoteSmallReadahead
	inOrder        bool // see SetInOrder

	payers payers

	// Experts.
	lastReadNow time.Time // when ReadNow returned last
	evictor     *evictor  // nil until it is needed
	guardian    []string  // command; nil: there is none, see SetGuardian
}

// QueueEntries is how many requests may be under way.
const QueueEntries = 128

// NewKernel prepares to work for the process pid. Its methods are for one goroutine. That goroutine stays on
// one thread if the thread's priority is to count, because the kernel's workers for io_uring inherit it.
// Close it.
func NewKernel(pid int, log *slog.Logger) (*Kernel, error) {
	target, err := proc.Open(pid)
	if err != nil {
		return nil, err
	}
	queue, err := uring.Open(QueueEntries, uring.WithWorkers(MinFoliosAtOnce))
	if err != nil {
		return nil, errors.Join(err, target.Close())
	}
	return &Kernel{
		target: target, queue: queue, log: log,
		folioBytes: pagecache.FolioBytes(), foliosAtOnce: MinFoliosAtOnce, folioReads: map[uint64]folioRead{},
	}, nil
}

// Close implements Levers.
func (k *Kernel) Close() error {
	if k.evictor != nil {
		k.evictor.close()
	}
	errs := []error{k.queue.Close(), k.payers.close()}
	for _, f := range k.files {
		errs = append(errs, f.Close())
	}
	k.files = nil
	return errors.Join(append(errs, k.target.Close())...)
}

// Name implements Levers.
func (k *Kernel) Name() string { return k.queue.Name() }

// Open implements Levers.
func (k *Kernel) Open(path string, id event.FileID) (file int, size int64, err error) {
	f, err := OpenFile(proc.Place{Path: path, ID: id}, k.folioBytes)
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
	if k.folioBytes > 0 && f.FolioBytes == 0 {
		k.logNoFolios(f)
	}
	k.files = append(k.files, f)
	return len(k.files) - 1, f.Size, nil
}

// logNoFolios says once for a file that it has no large folios.
func (k *Kernel) logNoFolios(f *File) {
	k.log.Info("there are no large folios: single pages are read, which costs more of the kernel's time",
		"file", f.Path)
}

// Map implements Levers.
func (k *Kernel) Map(file int, base uint64) { k.files[file].base = base }

// Rest prepares for a long time without reads. Meanwhile khugepaged leaves the mappings alone. On kernels
// with CONFIG_READ_ONLY_THP_FOR_FS it would read what is missing of a folio of which one page is in memory
// (collapse_file, mm/khugepaged.c).
func (k *Kernel) Rest() error { return k.advise(unix.MADV_NOHUGEPAGE) }

// Wake undoes Rest.
func (k *Kernel) Wake() error { return k.advise(unix.MADV_HUGEPAGE) }

// advise gives an advice about the mappings of those files that are read in large folios.
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

// NoteSmallReadahead says whether the target reads less around its faults than a large folio. Then a mark on
// a folio does nothing, because what follows within that little is in memory (page_cache_async_ra,
// mm/readahead.c). So a folio can be read without the next one.
func (k *Kernel) NoteSmallReadahead(small bool) error { return k.setReadApart(small, k.inOrder) }

// SetInOrder implements Levers. A mark makes its reader read on only where something within its readahead is
// missing (page_cache_async_ra, mm/readahead.c). What was asked for counts as there. More folios are read at
// once than the disk needs. Then the target finds the next folio being read when it is through with one, and
// does not begin to read it by itself.
func (k *Kernel) SetInOrder(inOrder bool) error {
	workers := k.foliosAtOnce
	if inOrder {
		workers = maxFoliosAtOnce
	}
	return errors.Join(k.setReadApart(k.smallReadahead, inOrder), k.queue.SetWorkers(workers))
}

// setReadApart notes whether there are reasons why marks do nothing. If there is one, the kernel reads a
// large folio without the next one.
func (k *Kernel) setReadApart(smallReadahead, inOrder bool) error {
	before := k.CanReadApart()
	k.smallReadahead, k.inOrder = smallReadahead, inOrder
	switch apart := k.CanReadApart(); {
	case apart == before:
		return nil
	case apart:
		return k.advise(unix.MADV_RANDOM)
	}
	return k.advise(unix.MADV_NORMAL)
}

// CanReadApart implements Levers.
func (k *Kernel) CanReadApart() bool { return k.smallReadahead || k.inOrder }
