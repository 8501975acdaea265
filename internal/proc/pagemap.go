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

// Present tells of each address whether process pid has that page in its page tables: it has touched it, or the kernel has for it (MAP_POPULATE), and it was not taken away
// since. An address that is not mapped is not present. It needs ptrace access. The error is ErrNoProcess if the process has ended.
//
// It asks /proc/PID/pagemap, whose bit 63 says so (Linux 2.6.25), and which is opened each time: an open one stays with the program that the process ran then.
func Present(pid int, addresses []uint64) ([]bool, error) {
	present := make([]bool, len(addresses))
	err := func() error {
		f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
		if err != nil {
			return err
		}
		defer f.Close()
		var entry [8]byte
		page := uint64(os.Getpagesize())
		for i, a := range addresses {
			_, err := f.ReadAt(entry[:], int64(a/page*uint64(len(entry))))
			if errors.Is(err, io.EOF) { // beyond all addresses, or nothing is mapped any more
				continue
			}
			if err != nil {
				return err
			}
			present[i] = binary.NativeEndian.Uint64(entry[:])>>63 != 0
		}
		return nil
	}()
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	case err != nil:
		return nil, fmt.Errorf("read the page tables of process %d: %w", pid, err)
	}
	return present, nil
}
