package proc

// This file finds out which pages are in a process's page tables. A page is there if the process
// has touched it since it was mapped or paged out. The kernel may also have mapped it along with a
// touched page (up to fault_around_bytes around it, and all of a large folio), or in advance
// (MAP_POPULATE).
//
// The source is bit 63 of each page's entry in /proc/PID/pagemap (Linux 2.6.25). Reading it needs
// ptrace access. The file is opened anew each time, because an open one belongs to the program that
// the process ran when it was opened.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Touched reports whether any page of an address range of length bytes is in the process's page
// tables. The error wraps ErrNoProcess if the process has ended.
func (p *Process) Touched(address uint64, length int64) (touched bool, err error) {
	page := uint64(os.Getpagesize())
	// The target may have chosen the address, so the sum of address and length could overflow.
	pages := (address%page + uint64(length) + page - 1) / page
	err = p.withPagemap(func(m pagemap) error {
		entries := make([]byte, pages*pagemapEntry)
		n, err := m.readEntries(entries, address)
		for ; n >= pagemapEntry; n -= pagemapEntry {
			touched = touched || isPresent(entries)
			entries = entries[pagemapEntry:]
		}
		return err
	})
	return touched, err
}

// TouchedAt reports for each address whether its page is in the process's page tables; false for an
// address that is not mapped. The error wraps ErrNoProcess if the process has ended.
func (p *Process) TouchedAt(addresses []uint64) ([]bool, error) {
	touched := make([]bool, len(addresses))
	err := p.withPagemap(func(m pagemap) error {
		entry := make([]byte, pagemapEntry)
		for i, a := range addresses {
			n, err := m.readEntries(entry, a)
			if err != nil {
				return err
			}
			touched[i] = n == pagemapEntry && isPresent(entry)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return touched, nil
}

// pagemapEntry is the size in bytes of a page's entry in /proc/PID/pagemap.
const pagemapEntry = 8

// pagemap is an open /proc/PID/pagemap.
type pagemap struct{ *os.File }

// isPresent reports whether the first of some entries belongs to a page in memory.
func isPresent(entries []byte) bool { return binary.NativeEndian.Uint64(entries)>>63 != 0 }

// readEntries reads the entries of pages, beginning with the page at an address. It returns the
// number of bytes read. They are fewer than asked for behind the last address that a process may
// have.
func (m pagemap) readEntries(entries []byte, address uint64) (int, error) {
	n, err := m.ReadAt(entries, int64(address/uint64(os.Getpagesize())*pagemapEntry))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// withPagemap opens the process's pagemap, calls read with it and closes it.
func (p *Process) withPagemap(read func(pagemap) error) error {
	err := func() error {
		f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", p.pid))
		if err != nil {
			return err
		}
		defer f.Close()
		// As long as the process has not ended, nobody else can have its id, so the open file
		// belongs to it.
		ended, err := p.Ended()
		if err != nil {
			return err
		}
		if ended {
			return ErrNoProcess
		}
		return read(pagemap{f})
	}()
	if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) {
		err = ErrNoProcess
	}
	if err != nil {
		return fmt.Errorf("read the page tables of process %d: %w", p.pid, err)
	}
	return nil
}
