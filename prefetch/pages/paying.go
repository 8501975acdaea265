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

// PayingGroup implements Levers. It maps some pages of the range for a moment.
func (k *Kernel) PayingGroup(r Range) (inode uint64, err error) {
	f := k.files[r.File]
	there, err := k.ResidentBytes(r)
	if err != nil || r.Length <= 0 || there < min(r.Length, f.Size-r.Offset) || !k.payers.open(k) {
		return 0, err
	}
	last := min(r.End(), f.Size) - 1
	r.Offset &^= PageSize - 1
	r.Length = last + 1 - r.Offset
	for i := range int64(samplePages) {
		at := (r.Offset + (last-r.Offset)*i/(samplePages-1)) &^ (PageSize - 1)
		group, err := k.payers.groupOf(f, at)
		if err != nil {
			return 0, errors.Join(err, f.Unmap(r))
		}
		if group == 0 || i > 0 && group != inode {
			return 0, f.Unmap(r)
		}
		inode = group
	}
	return inode, f.Unmap(r)
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

// groupOf is the inode of the group that pays for the page at an offset of a file; 0 if that is not known.
func (p *payers) groupOf(f *File, at int64) (uint64, error) {
	page := f.Mapping[at:min(at+PageSize, f.Size)]
	// Of a page that is in memory this only makes the entry in the page tables.
	err := unix.Madvise(page, unix.MADV_POPULATE_READ)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EFAULT) { // before Linux 5.14; or the file was truncated
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("map a page of %s: %w", f.Path, err)
	}
	frame, err := p.frames.Of(page)
	if errors.Is(err, pagecache.ErrHidden) || frame == 0 && err == nil {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return p.frames.About(frame)
}

// close closes what open has opened.
func (p *payers) close() error {
	if p.frames == nil {
		return nil
	}
	return p.frames.Close()
}
