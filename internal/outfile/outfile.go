// Package outfile writes files so that they appear whole or not at all, and only where the user who
// runs the program meant to write. All code that writes a file which a user names uses it: [Write]
// and [Create] for one file, [OpenDir] for a directory of outputs.
//
// The programs run as root, and users may name files in directories that others can write to. So a
// path is followed step by step with directory descriptors. A symbolic link, a device or a pipe on
// the way is accepted only if nobody else can have put it there. A directory of outputs is accepted
// only if nobody else can put anything there. Otherwise the error is [ErrUnsafe]. Entries of a
// directory are created, renamed and removed relative to its descriptor. (os.Root does that, too,
// but it follows links within the directory and does not say where a path led.)
//
// Three users are trusted: the user as whom the calling thread creates files (see invoker.User.Do),
// root, and the user who typed sudo.
package outfile

// This file writes a single file that a user names.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Write creates the file at path with the output of write. The file appears only after write has
// returned without error. Until then, the data are in a file without a name (O_TMPFILE) or, where
// the file system has none, in a temporary file beside path. An existing file is replaced by
// renaming. The new file gets the permissions of the file that it replaces, if that was ours, else
// those of the umask. A symbolic link is followed. A device or a pipe is written directly. Nothing
// is synced to disk, because outputs can be made again.
//
// Errors of write are returned unchanged. Other errors name path, and wrap ErrUnsafe if the path
// leads through somebody else's link.
func Write(path string, write func(io.Writer) error) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	return f.finish(write(f))
}

// Create begins a file, as Write does. The file appears with Commit.
func Create(path string) (*File, error) {
	at, err := locate(path, nil)
	if err != nil {
		return nil, err
	}
	defer at.close()
	switch {
	case at.duplicate != nil:
		return &File{file: at.duplicate, direct: true}, nil
	case at.entry == nil:
		return beginFile(at.dir, at.base, path, 0o666)
	case fileType(at.entry) == unix.S_IFDIR:
		return nil, fmt.Errorf("%s is a directory; name a file in it", path)
	case fileType(at.entry) != unix.S_IFREG:
		file, err := at.openSpecial(path)
		return &File{file: file, direct: true}, err
	}
	f, err := beginFile(at.dir, at.base, path, 0o666)
	if err == nil && at.writer.trusts(at.entry.Uid) {
		if err = f.file.Chmod(fs.FileMode(at.entry.Mode & 0o777)); err != nil {
			f.Discard()
		}
	}
	return f, err
}

// File is an output file that is being written. Call Commit or Discard in the end; Discard after
// Commit does nothing.
type File struct {
	file   *os.File
	direct bool   // file is the one that the user named, such as a pipe
	dir    int    // descriptor of the directory
	base   string // name in the directory after Commit
	temp   string // temporary name in the directory until Commit; empty if the file has none
}

// Write appends to the file. Its errors name the file as the user did.
func (f *File) Write(b []byte) (int, error) { return f.file.Write(b) }

// finish ends the file according to the outcome of writing it.
func (f *File) finish(err error) error {
	if err != nil {
		f.Discard()
		return err
	}
	return f.Commit()
}

// Commit makes the file appear. After an error it does not.
func (f *File) Commit() error {
	defer f.Discard()
	if f.direct {
		file := f.file
		f.file = nil
		return file.Close()
	}
	if err := f.moveToName(); err != nil {
		return &fs.PathError{Op: "replace", Path: f.file.Name(), Err: err}
	}
	f.temp = ""
	return nil
}

// moveToName gives the file its final name.
func (f *File) moveToName() error {
	if f.temp == "" {
		// Only local file systems have O_TMPFILE. They report failures to store data when it is
		// written, so the error of Close does not matter.
		self := fmt.Sprintf("/proc/self/fd/%d", f.file.Fd())
		link := func(name string) error {
			return retry(func() error {
				return unix.Linkat(unix.AT_FDCWD, self, f.dir, name, unix.AT_SYMLINK_FOLLOW)
			})
		}
		if err := link(f.base); !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := f.findTemporaryName(link); err != nil {
			return err
		}
	} else if err := f.file.Close(); err != nil {
		return withoutName(err)
	}
	return retry(func() error { return unix.Renameat(f.dir, f.temp, f.dir, f.base) })
}

// Discard drops the file. An existing file under its name stays.
func (f *File) Discard() {
	if f == nil || f.file == nil {
		return
	}
	// An error does not matter here: the file is unwanted, or Commit has closed it or found nothing
	// unwritten.
	_ = f.file.Close()
	if f.temp != "" {
		_ = unix.Unlinkat(f.dir, f.temp, 0)
	}
	if !f.direct {
		_ = unix.Close(f.dir)
	}
	f.file = nil
}

// beginFile begins a file in the directory of a descriptor, which it duplicates. Errors call the
// file path.
func beginFile(dir int, base, path string, mode uint32) (*File, error) {
	fail := func(err error) (*File, error) {
		return nil, &fs.PathError{Op: "create", Path: path, Err: withoutName(err)}
	}
	own, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	f := &File{dir: own, base: base}
	fd, err := open(own, ".", unix.O_WRONLY|unix.O_TMPFILE, mode)
	// Without O_TMPFILE the error depends on the file system and the kernel.
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EINVAL) {
		err = f.findTemporaryName(func(temp string) (err error) {
			fd, err = open(own, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, mode)
			return err
		})
	}
	if err != nil {
		_ = unix.Close(own)
		return fail(err)
	}
	f.file = os.NewFile(uintptr(fd), path)
	return f, nil
}

// findTemporaryName calls create with temporary names until one is not taken.
func (f *File) findTemporaryName(create func(name string) error) error {
	const attempts = 100
	pid := os.Getpid()
	var err error
	for i := range attempts {
		name := tempName(f.base, pid, i)
		if err = create(name); err == nil {
			f.temp = name
		}
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return err
}

// tempName returns the n-th temporary name for a file; see Temporary for the way back.
func tempName(base string, pid, n int) string {
	return "." + base + "." + strconv.Itoa(pid) + "-" + strconv.Itoa(n) + ".tmp"
}

// fileType returns one of unix.S_IF*.
func fileType(st *unix.Stat_t) uint32 { return st.Mode & unix.S_IFMT }

// open is openat. It is repeated if a signal interrupts it.
func open(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	return fd, err
}

// retry repeats a system call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// withoutName returns an error without the name that the os package has given the file.
func withoutName(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}
