package pages

// This file finds out which control group pays for pages of the page cache. A page is charged to the group of the
// process that read it first, and stays so for as long as it is in memory, whoever uses it later.
//
// The sources are /proc/self/pagemap, which tells the number of a page's frame, and /proc/kpagecgroup (Linux 4.3),
// which tells the inode of the group that pays for a frame. Both need CAP_SYS_ADMIN in the first user namespace.
// Without it nobody is known to pay.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// payers are the files by which payers are found.
type payers struct {
	pagemap, groups *os.File // nil: they cannot be opened here
	opened          bool
}

// samplePages are how many pages of a range are asked for. A large folio is charged as one.
const samplePages = 3

// An entry of pagemap, and one of kpagecgroup, has 8 bytes.
const (
	entryBytes  = 8
	presentBit  = 1 << 63
	frameNumber = 1<<55 - 1
)

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

// open opens the files, once. It says whether they are there.
func (p *payers) open(k *Kernel) bool {
	if !p.opened {
		p.opened = true
		groups, err := os.Open("/proc/kpagecgroup")
		if err == nil {
			p.groups = groups
			p.pagemap, err = os.Open("/proc/self/pagemap")
		}
		if err != nil {
			k.log.Debug("cannot tell which control group pays for the model's pages", "error", err)
		}
	}
	return p.groups != nil && p.pagemap != nil
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
	entry, err := readEntry(p.pagemap, addressOf(page)/uint64(PageSize))
	if err != nil || entry&presentBit == 0 || entry&frameNumber == 0 { // without CAP_SYS_ADMIN it is 0
		return 0, err
	}
	return readEntry(p.groups, entry&frameNumber)
}

// addressOf is where a mapping, or a part of one, begins.
func addressOf(mapping []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mapping))))
}

// readEntry reads an entry by its number.
func readEntry(f *os.File, number uint64) (uint64, error) {
	var entry [entryBytes]byte
	if _, err := f.ReadAt(entry[:], int64(number*entryBytes)); err != nil {
		return 0, fmt.Errorf("read who pays for a page: %w", err)
	}
	return binary.NativeEndian.Uint64(entry[:]), nil
}

// close closes the files.
func (p *payers) close() error {
	var errs []error
	for _, f := range []*os.File{p.pagemap, p.groups} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
