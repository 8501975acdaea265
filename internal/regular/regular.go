// Package regular opens files whose names come from somebody else: a process that is observed, its environment, a directory, a command line.
//
// Opening by name can do harm even if nothing is read: a FIFO blocks until there is a writer, and a device may act (a watchdog starts, a
// tape rewinds). So a file is looked at before it is opened, and what is opened is what was looked at, even if the name changes meanwhile.
package regular

// This file opens regular files, and nothing else.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNotRegular says that a name leads to something else than a regular file, such as a directory, a FIFO or a device.
var ErrNotRegular = errors.New("not a regular file")

// ErrTooLarge says that a file is larger than the caller wants to read.
var ErrTooLarge = errors.New("file is too large")

// Open opens a regular file for reading. Symbolic links are followed: users link to their models. It never blocks on the file, and nothing
// but a regular file is opened. All errors are [*fs.PathError] with the name; they wrap ErrNotRegular or the file system's error.
//
// It needs /proc: a descriptor that only names the file (O_PATH, Linux 2.6.39) is opened for reading through /proc/self/fd.
func Open(name string) (*os.File, error) { return open(name, 0) }

// OpenHere is Open for a name in a directory that others may write: a symbolic link in its place (not in the directories above) is refused
// like any other file that is not regular.
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
	// O_NONBLOCK has no effect on regular files' reads; it keeps open from waiting for a lease that somebody holds (EWOULDBLOCK instead).
	fd, err := retry(func() (int, error) {
		return unix.Open(fmt.Sprintf("/proc/self/fd/%d", path), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return fail(err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func retry(open func() (int, error)) (int, error) {
	for {
		if fd, err := open(); !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Read returns the contents of a regular file of at most limit bytes. It is opened by Open. The error is a [*fs.PathError]; it wraps
// ErrTooLarge if there is more, also if the file grows while it is read.
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
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)}
	}
	return data, nil
}
