// Package regular opens files whose names come from somebody else: an observed process, its
// environment, a directory, a command line.
//
// Opening by name can do harm even if nothing is read: a FIFO blocks until there is a writer, and a
// device may act (a watchdog starts, a tape rewinds). So a file's type is checked before it is
// opened. The file that is opened is the one that was checked, even if the name leads elsewhere
// meanwhile.
package regular

// This file opens and reads regular files, and nothing else.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNotRegular says that a name does not lead to a regular file, but for example to a directory, a
// FIFO or a device.
var ErrNotRegular = errors.New("not a regular file")

// ErrTooLarge says that a file is larger than the caller wants to read.
var ErrTooLarge = errors.New("file is too large")

// Open opens a regular file for reading. Symbolic links are followed, because users link to their
// models. It never blocks on the file, and opens nothing but a regular file. All errors are
// [*fs.PathError] with the name. They wrap ErrNotRegular or the file system's error.
//
// It needs /proc: a descriptor that only names the file (O_PATH, Linux 2.6.39) is opened for
// reading through /proc/self/fd.
func Open(name string) (*os.File, error) { return open(name, 0) }

// OpenHere is Open for a name in a directory that others may write to. It does not follow a
// symbolic link under that name (but does so in the directories above), and refuses it like any
// other file that is not regular.
func OpenHere(name string) (*os.File, error) { return open(name, unix.O_NOFOLLOW) }

func open(name string, flags int) (*os.File, error) {
	fail := func(err error) (*os.File, error) { return nil, &fs.PathError{Op: "open", Path: name, Err: err} }
	path, err := retry(func() (int, error) { return unix.Open(name, unix.O_PATH|unix.O_CLOEXEC|flags, 0) })
	if err != nil {
		return fail(err)
	}
	defer unix.Close(path)
	var st unix.Stat_t
	if err := unix.Fstat(path, &st); err != nil {
		return fail(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fail(ErrNotRegular)
	}
	// O_NONBLOCK has no effect on reads of regular files. It prevents open from waiting for a lease
	// that somebody holds (EWOULDBLOCK).
	fd, err := retry(func() (int, error) {
		return unix.Open(fmt.Sprintf("/proc/self/fd/%d", path), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return fail(err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// retry repeats open if a signal interrupts it.
func retry(open func() (int, error)) (int, error) {
	for {
		if fd, err := open(); !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Read returns the contents of a regular file of at most limit bytes. It opens the file as Open
// does. The error is a [*fs.PathError]. It wraps ErrTooLarge if the file is larger, or grows too
// large while it is read.
func Read(name string, limit int64) ([]byte, error) { return read(Open, name, limit) }

// ReadHere is Read with OpenHere.
func ReadHere(name string, limit int64) ([]byte, error) { return read(OpenHere, name, limit) }

func read(open func(string) (*os.File, error), name string, limit int64) ([]byte, error) {
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		err := fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return data, nil
}
