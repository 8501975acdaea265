package proc

// This file asks which pages a process has in its page tables: it has touched them since they were mapped or paged out, or the kernel mapped them with such a page (up to
// fault_around_bytes around it, and all of a large folio) or for it (MAP_POPULATE).
//
// It asks /proc/PID/pagemap, whose bit 63 says so of each page (Linux 2.6.25). That needs ptrace access. It is opened each time, as an open one stays with the program that the
// process ran then.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Touched says whether the process has pages of an address range of length bytes in its page tables. The error wraps ErrNoProcess if the process has ended.
func (p *Process) Touched(address uint64, length int64) (touched bool, err error) {
	page := uint64(os.Getpagesize())
	pages := (address%page + uint64(length) + page - 1) / page // the address may be the target's word: its sum with length may overflow
	err = p.pagemap(func(m pagemap) error {
		entries := make([]byte, pages*pagemapEntry)
		n, err := m.read(entries, address)
		for ; n >= pagemapEntry; n -= pagemapEntry {
			touched = touched || present(entries)
			entries = entries[pagemapEntry:]
		}
		return err
	})
	return touched, err
}

// TouchedAt says of each address whether the process has that page in its page tables; an address that is not mapped it has not. The error wraps ErrNoProcess if the process has
// ended.
func (p *Process) TouchedAt(addresses []uint64) ([]bool, error) {
	touched := make([]bool, len(addresses))
	err := p.pagemap(func(m pagemap) error {
		entry := make([]byte, pagemapEntry)
		for i, a := range addresses {
			n, err := m.read(entry, a)
			if err != nil {
				return err
			}
			touched[i] = n == pagemapEntry && present(entry)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return touched, nil
}

// pagemapEntry is the size of a page's entry in /proc/PID/pagemap.
const pagemapEntry = 8

// pagemap is that file.
type pagemap struct{ *os.File }

// present says that the first of some entries is of a page in memory.
func present(entries []byte) bool { return binary.NativeEndian.Uint64(entries)>>63 != 0 }

// read reads the entries of pages from that of an address on. It returns how many bytes there are: fewer than asked for behind the last address that a process may have.
func (m pagemap) read(entries []byte, address uint64) (int, error) {
	n, err := m.ReadAt(entries, int64(address/uint64(os.Getpagesize())*pagemapEntry))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// pagemap has it read.
func (p *Process) pagemap(read func(pagemap) error) error {
	err := func() error {
		f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", p.pid))
		if err != nil {
			return err
		}
		defer f.Close()
		ended, err := p.Ended() // what is open is this process's, if that has not ended
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
