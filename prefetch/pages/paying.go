package pages

// This file finds out which control group pays for pages of the page cache. A page is charged to the group of the
// process that read it first, and stays so for as long as it is in memory, whoever uses it later. The source is
// /proc/kpagecgroup (see pagecache.Frames), which tells the inode of the group that pays for a frame. Where it cannot
// be read, nobody is known to pay.

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
)

// payers is what tells who pays.
type payers struct {
	frames *pagecache.Frames // nil: it is not known here
	asked  bool              // it was tried to open them
}

// samplePages are how many pages of a range are asked for. A large folio is charged as one.
const samplePages = 3

// PayingGroup implements Levers. It maps some pages of the range for a moment each.
func (k *Kernel) PayingGroup(r Range) (inode uint64, err error) {
	f := k.files[r.File]
	there, err := k.ResidentBytes(r)
	if err != nil || r.Length <= 0 || there < min(r.Length, f.Size-r.Offset) || !k.payers.open(k) {
		return 0, err
	}
	first, last := r.Offset, min(r.End(), f.Size)-1
	for i := range int64(samplePages) {
		at := (first + (last-first)*i/(samplePages-1)) &^ (PageSize - 1)
		group, err := k.payers.groupOf(f, Range{r.File, at, PageSize})
		if err != nil || group == 0 || i > 0 && group != inode {
			return 0, err
		}
		inode = group
	}
	return inode, nil
}

// open opens the frames, once. It says whether they can be asked.
func (p *payers) open(k *Kernel) bool {
	if !p.asked {
		p.asked = true
		var err error
		if p.frames, err = pagecache.OpenFrames("/proc/kpagecgroup"); err != nil {
			k.log.Debug("cannot tell which control group pays for the model's pages", "error", err)
		}
	}
	return p.frames != nil
}

// groupOf is the inode of the group that pays for a page of a file; 0 if that is not known.
func (p *payers) groupOf(f *File, page Range) (group uint64, err error) {
	err = f.withOwnMapping(page, func(mapping []byte) error {
		// Of a page that is in memory this only makes the entry in the page tables.
		err := unix.Madvise(mapping, unix.MADV_POPULATE_READ)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EFAULT) { // before Linux 5.14; or the file was truncated
			return nil
		}
		if err != nil {
			return fmt.Errorf("map a page of %s: %w", f.Path, err)
		}
		frame, err := p.frames.Of(mapping)
		if errors.Is(err, pagecache.ErrHidden) || frame == 0 && err == nil {
			return nil
		}
		if err != nil {
			return err
		}
		group, err = p.frames.About(frame)
		return err
	})
	return group, err
}

// close closes what open has opened.
func (p *payers) close() error {
	if p.frames == nil {
		return nil
	}
	return p.frames.Close()
}
