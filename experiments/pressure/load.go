package pressure

// This file loads a model into the page cache, in pages or in large folios, and finds out what the
// kernel made of that.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/regular"
)

// Unit says in what pieces a file is in the page cache. It decides how many entries the processor
// needs to translate the file's addresses, and so how fast a token is computed.
type Unit string

const (
	Pages  Unit = "pages"  // single ones
	Folios Unit = "folios" // of 2 MiB, or what the file system has
)

// Loaded says what a file in the page cache consists of. Amounts are bytes.
type Loaded struct {
	Resident int64 `json:"resident_bytes"`
	Large    int64 `json:"large_bytes"` // in folios larger than a page
	Huge     int64 `json:"huge_bytes"`  // of these, in folios that a processor can map by one entry (2 MiB on x86-64)
	// Unknown is why Large and Huge are not known; empty if they are.
	Unknown string `json:"unknown,omitempty"`
	// Refused is why the kernel makes no large folios on request; empty if it does. The file is then not loaded.
	Refused string `json:"refused,omitempty"`
}

// noFolios returns why a file that was to be loaded in large folios is not; empty if it is, or if
// nobody can tell.
func (l Loaded) noFolios() string {
	switch {
	case l.Refused != "":
		return l.Refused
	case l.Unknown == "" && l.Large*2 <= l.Resident:
		return fmt.Sprintf("the file system gave them for %d of %d MiB", l.Large>>20, l.Resident>>20)
	}
	return ""
}

// loadStep is how much is loaded between two checks of the context.
const loadStep = 16 << 20

// Load reads all of the file at path into the page cache, charged to the calling process's memory
// control group. What is there already stays as it is.
//
// With [Pages] it reads after FADV_RANDOM, for which the kernel takes single pages whatever the
// readahead (force_page_cache_ra).
//
// With [Folios] it populates a mapping with MADV_HUGEPAGE (MADV_POPULATE_READ, Linux 5.14). A fault
// there reads a folio of 2 MiB if the file system has large ones (do_sync_mmap_readahead, Linux
// 5.18), whatever the readahead and the system's setting for transparent huge pages. It is no error
// if the kernel refuses, or the file system has no folios: see [Loaded].
func Load(ctx context.Context, path string, unit Unit) (l Loaded, err error) {
	f, err := regular.Open(path)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return l, err
	}
	if info.Size() == 0 {
		return l, fmt.Errorf("load %s: the file is empty", path)
	}
	if unit == Pages {
		if err := loadPages(ctx, f, info.Size()); err != nil {
			return l, err
		}
	}
	mapping, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return l, fmt.Errorf("map %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(mapping)) }()
	if unit == Folios {
		if err := unix.Madvise(mapping, unix.MADV_HUGEPAGE); err != nil {
			l.Refused = fmt.Sprintf("MADV_HUGEPAGE: %v", err)
			return l, nil
		}
	}
	err = populate(ctx, mapping)
	if errors.Is(err, unix.EINVAL) {
		if unit == Folios {
			l.Refused = fmt.Sprintf("MADV_POPULATE_READ, which Linux has since 5.14: %v", err)
			return l, nil
		}
		l.Unknown = "the kernel has no MADV_POPULATE_READ"
	} else if err != nil {
		return l, fmt.Errorf("load %s: %w", path, err)
	}
	if l.Resident, err = pagecache.Resident(f, 0, info.Size()); err != nil {
		return l, err
	}
	if l.Unknown == "" {
		large, huge, err := shareOfFolios(mapping)
		if err != nil {
			l.Unknown = err.Error()
			return l, nil
		}
		l.Large, l.Huge = int64(large*float64(l.Resident)), int64(huge*float64(l.Resident))
	}
	return l, nil
}

func loadPages(ctx context.Context, f *os.File, size int64) error {
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		return fmt.Errorf("load %s: FADV_RANDOM: %w", f.Name(), err)
	}
	buffer := make([]byte, 1<<20)
	for offset := int64(0); offset < size; {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n, err := f.ReadAt(buffer, offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n == 0 {
			return fmt.Errorf("load %s: %w", f.Name(), io.ErrUnexpectedEOF)
		}
		offset += int64(n)
	}
	return nil
}

// populate has the kernel map all of a mapping.
func populate(ctx context.Context, mapping []byte) error {
	for at := 0; at < len(mapping); {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		step := mapping[at:min(at+loadStep, len(mapping))]
		err := unix.Madvise(step, unix.MADV_POPULATE_READ)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return err
		}
		at += len(step)
	}
	return nil
}

// Bits of /proc/kpageflags (Documentation/admin-guide/mm/pagemap.rst).
const (
	compoundHead = 1 << 15
	compoundTail = 1 << 16
)

// hugeBytes is the size of a folio that a processor maps by one entry, on x86-64.
const hugeBytes = 2 << 20

// sampleEvery is how many pages one page stands for that is looked at. The kernel must be asked for
// each physical page by itself.
const sampleEvery = 16

// shareOfFolios returns which shares of a mapping are in large folios and in huge ones, from a
// sample of its pages. All pages must be mapped. It takes CAP_SYS_ADMIN (page numbers) and a kernel
// with CONFIG_PROC_PAGE_MONITOR.
func shareOfFolios(mapping []byte) (large, huge float64, err error) {
	frames, err := pagecache.OpenFrames("/proc/kpageflags")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, errors.New("the kernel has no /proc/kpageflags")
	}
	if err != nil {
		return 0, 0, err
	}
	defer frames.Close()
	page := uint64(os.Getpagesize())
	hugePages := hugeBytes / page
	var seen, inLarge, inHuge int
	for i := uint64(0); i*page < uint64(len(mapping)); i += sampleEvery {
		frame, err := frames.Of(mapping[i*page:])
		if err != nil {
			return 0, 0, err
		}
		if frame == 0 {
			continue // reclaimed since
		}
		flag, err := frames.About(frame)
		if err != nil {
			return 0, 0, err
		}
		seen++
		if flag&(compoundHead|compoundTail) == 0 {
			continue
		}
		inLarge++
		// Folios are aligned to their size. So a folio that goes on beyond the middle of an aligned
		// range is as large as that range, or larger. (The bit for transparent huge pages, THP, is
		// set for large folios of any size.)
		middle, err := frames.About(frame&^(hugePages-1) + hugePages/2)
		if err != nil {
			return 0, 0, err
		}
		if middle&compoundTail != 0 {
			inHuge++
		}
	}
	if seen == 0 {
		return 0, 0, errors.New("no page stayed mapped")
	}
	return float64(inLarge) / float64(seen), float64(inHuge) / float64(seen), nil
}
