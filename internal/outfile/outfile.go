// Package outfile writes files so that they appear whole or not at all, and only where whoever runs the program meant to write. All code
// that writes a file which a user names uses it: [Write] and [Create] for one file, [OpenDir] for a directory that outputs fill.
//
// The programs run as root and are told names in directories that others can write. So a name is followed step by step with directory
// descriptors. A symbolic link, a device or a pipe on the way counts only if nobody else can have put it there; a directory that outputs
// fill must be such that nobody else can put anything there ([ErrUnsafe] otherwise). What is made in a directory is made, renamed and
// removed relative to its descriptor. (os.Root does the latter, too, but follows links within the directory and does not say where a path
// led.)
//
// Whoever runs the program is the user as whom the calling thread makes files (see invoker.User.Do), and root, and the user who typed sudo.
package outfile

// This file writes one file that a user names.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Write creates the file at path with what write writes. The file appears only after write has returned without error: until then, the data
// are in a file without a name (O_TMPFILE) or, where the file system has none, with a temporary one beside path. An existing file is
// replaced by renaming. The new file has the permissions of the one that it replaces, if that was ours, else those of the umask. A symbolic
// link is followed; a device or a pipe is written directly. Nothing is synced to disk, because outputs can be made again.
//
// Errors of write are returned unchanged; others name path, and wrap ErrUnsafe if the name leads through somebody else's link.
func Write(path string, write func(io.Writer) error) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	return f.finish(write(f))
}

// Create begins a file, as Write does. It appears with Commit.
func Create(path string) (*File, error) {
	at, err := locate(path, nil)
	if err != nil {
		return nil, err
	}
	defer at.close()
	switch {
	case at.own != nil:
		return &File{file: at.own, direct: true}, nil
	case at.entry == nil:
		return begin(at.dir, at.base, path, 0o666)
	case kind(at.entry) == unix.S_IFDIR:
		return nil, fmt.Errorf("%s is a directory; name a file in it", path)
	case kind(at.entry) != unix.S_IFREG:
		file, err := at.openSpecial(path)
		return &File{file: file, direct: true}, err
	}
	f, err := begin(at.dir, at.base, path, 0o666)
	if err == nil && at.by.trusts(at.entry.Uid) {
		if err = f.file.Chmod(fs.FileMode(at.entry.Mode & 0o777)); err != nil {
			f.Discard()
		}
	}
	return f, err
}

// File is an output file that is being written. Call Commit or Discard in the end; Discard after Commit does nothing.
type File struct {
	file   *os.File
	direct bool   // file is what the user named, such as a pipe
	dir    int    // descriptor of the directory
	base   string // name in it
	temp   string // name in it until Commit; empty if the file has none
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
	if err := f.appear(); err != nil {
		return &fs.PathError{Op: "replace", Path: f.file.Name(), Err: err}
	}
	f.temp = ""
	return nil
}

func (f *File) appear() error {
	if f.temp == "" {
		// The file system is a local one: what it could not store it has said when it was written, so close has nothing to add.
		self := fmt.Sprintf("/proc/self/fd/%d", f.file.Fd())
		link := func(name string) error {
			return retry(func() error { return unix.Linkat(unix.AT_FDCWD, self, f.dir, name, unix.AT_SYMLINK_FOLLOW) })
		}
		if err := link(f.base); !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := f.named(link); err != nil {
			return err
		}
	} else if err := f.file.Close(); err != nil {
		return reason(err)
	}
	return retry(func() error { return unix.Renameat(f.dir, f.temp, f.dir, f.base) })
}

// Discard drops what was written. The file that it was to replace stays.
func (f *File) Discard() {
	if f == nil || f.file == nil {
		return
	}
	_ = f.file.Close() // the reason why the file is not wanted says more; after Commit it is closed, or holds nothing unwritten
	if f.temp != "" {
		_ = unix.Unlinkat(f.dir, f.temp, 0)
	}
	if !f.direct {
		_ = unix.Close(f.dir)
	}
	f.file = nil
}

// begin begins a file in the directory of a descriptor, which it duplicates. path is what errors call it.
func begin(dir int, base, path string, mode uint32) (*File, error) {
	fail := func(err error) (*File, error) { return nil, &fs.PathError{Op: "create", Path: path, Err: reason(err)} }
	own, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	f := &File{dir: own, base: base}
	fd, err := open(own, ".", unix.O_WRONLY|unix.O_TMPFILE, mode)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EINVAL) { // by file system and kernel
		err = f.named(func(temp string) (err error) {
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

// named finds a temporary name with which make succeeds: others may have taken some.
func (f *File) named(make func(name string) error) error {
	const attempts = 100
	pid := os.Getpid()
	var err error
	for i := range attempts {
		name := tempName(f.base, pid, i)
		if err = make(name); err == nil {
			f.temp = name
		}
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return err
}

func tempName(base string, pid, n int) string {
	return "." + base + "." + strconv.Itoa(pid) + "-" + strconv.Itoa(n) + ".tmp"
}

func kind(st *unix.Stat_t) uint32 { return st.Mode & unix.S_IFMT }

// open is openat, again if a signal interrupts it.
func open(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	return fd, err
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// reason is an error without the name that the os package has given the file.
func reason(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}
