package proc

// This file asks which pages a process has in its page tables.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Touched says whether the process has pages of an address range of length bytes in its page tables: it has touched them since they were mapped or paged out, or the kernel
// mapped them with such a page (up to fault_around_bytes around it, and all of a large folio). It needs ptrace access. The error wraps unix.ESRCH if the process has ended.
//
// It asks /proc/PID/pagemap, whose bit 63 says so of each page (Linux 2.6.25). That is opened each time, as an open one stays with the program that the process ran then.
func (p *Process) Touched(address uint64, length int64) (bool, error) {
	entries, err := p.pagemap(address, length)
	if err != nil {
		return false, fmt.Errorf("read the page tables of process %d: %w", p.pid, err)
	}
	for ; len(entries) >= pagemapEntry; entries = entries[pagemapEntry:] {
		if binary.NativeEndian.Uint64(entries)>>63 != 0 {
			return true, nil
		}
	}
	return false, nil
}

// pagemapEntry is the size of a page's entry in /proc/PID/pagemap.
const pagemapEntry = 8

// pagemap reads the entries of the pages of an address range. There are fewer than asked for behind the last address that a process may have.
func (p *Process) pagemap(address uint64, length int64) ([]byte, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", p.pid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, unix.ESRCH
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if ended, err := p.Ended(); err != nil || ended { // else it was this process's
		return nil, errors.Join(err, unix.ESRCH)
	}
	page := uint64(os.Getpagesize())
	pages := (address%page + uint64(length) + page - 1) / page // the address may be the target's word: its sum with length may overflow
	entries := make([]byte, pages*pagemapEntry)
	n, err := f.ReadAt(entries, int64(address/page*pagemapEntry))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return entries[:n], nil
}
