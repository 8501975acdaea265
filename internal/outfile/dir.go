package outfile

// This file writes into a directory of outputs.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process has the directory locked.
var ErrLocked = errors.New("is being written by another process")

// Dir is a directory in which nobody else can create or remove anything. Its methods take names of
// entries, without slashes. It is not safe for concurrent use.
type Dir struct {
	path   string
	f      *os.File
	parent int    // descriptor of the parent directory
	base   string // name in it
	made   bool   // OpenDir has created the directory
}

// OpenDir opens a directory. If it is missing, OpenDir creates it with these permissions, and
// missing directories above it with 0755, less the umask. It fails with ErrUnsafe if others can
// write to the directory or it belongs to somebody else.
func OpenDir(path string, mode uint32) (*Dir, error) {
	made := false
	at, err := locate(path, func(dir int, name string, last bool) error {
		m := uint32(0o755)
		if last {
			m = mode
		}
		err := unix.Mkdirat(dir, name, m)
		made = last && err == nil
		return err
	})
	if err != nil {
		return nil, err
	}
	if at.duplicate != nil {
		at.duplicate.Close()
	}
	return openDir(at, path, made)
}

// openDir opens the directory at a location, and takes over the location's descriptor.
func openDir(at *location, path string, made bool) (*Dir, error) {
	d := &Dir{path: path, parent: at.dir, base: at.base, made: made}
	flags := unix.O_NOFOLLOW
	if at.magic {
		flags = 0
	}
	fd, err := open(at.dir, at.base, unix.O_RDONLY|unix.O_DIRECTORY|flags, 0)
	if err != nil {
		at.close()
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	d.f = os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		d.Close()
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if problem := at.writer.findDanger(fd, &st); problem != "" {
		d.Close()
		advice := "choose a directory of your own"
		if at.writer.trusts(st.Uid) {
			advice = "chmod go-w it, or choose another directory"
		}
		return nil, fmt.Errorf("%s: %w: %s: %s", path, ErrUnsafe, problem, advice)
	}
	return d, nil
}

// OpenSub opens an entry of the directory, as OpenDir does.
func (d *Dir) OpenSub(name string, mode uint32) (*Dir, error) {
	err := unix.Mkdirat(d.fd(), name, mode)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, d.pathError("make", name, err)
	}
	return d.openExisting(name, err == nil)
}

// openExisting opens an entry of the directory that is there already. made says that the caller has made it.
func (d *Dir) openExisting(name string, made bool) (*Dir, error) {
	w, err := currentWriter()
	if err != nil {
		return nil, err
	}
	parent, err := unix.FcntlInt(d.f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, d.pathError("open", name, err)
	}
	return openDir(&location{writer: w, dir: parent, base: name}, d.Path(name), made)
}

// Close releases the lock and closes the directory.
func (d *Dir) Close() {
	_ = d.f.Close() // nothing is written through it
	_ = unix.Close(d.parent)
}

// CloseAndRemoveEmpty closes the directory. If OpenDir has created it and it is empty, Forget also removes it.
func (d *Dir) CloseAndRemoveEmpty() {
	if d.made {
		// This fails if the directory is not empty, or something else has its name now.
		_ = unix.Unlinkat(d.parent, d.base, unix.AT_REMOVEDIR)
	}
	d.Close()
}

// Path is the path of an entry, as the user would write it.
func (d *Dir) Path(name string) string { return filepath.Join(d.path, name) }

func (d *Dir) fd() int { return int(d.f.Fd()) }

// pathError returns an error about an entry.
func (d *Dir) pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: d.Path(name), Err: err}
}

// Lock locks the directory until it is closed (flock(2)) or the process ends in whatever way. It
// fails with ErrLocked if somebody else has it locked, and with errors.ErrUnsupported on a file
// system that cannot lock directories. Readers need no lock.
func (d *Dir) Lock() error {
	err := retry(func() error { return unix.Flock(d.fd(), unix.LOCK_EX|unix.LOCK_NB) })
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("%s %w", d.path, ErrLocked)
	case err != nil:
		return fmt.Errorf("lock %s: %w (%w)", d.path, err, errors.ErrUnsupported)
	}
	// The process that had it locked before may have removed it.
	var st unix.Stat_t
	err = unix.Fstat(d.fd(), &st)
	if err == nil && st.Nlink == 0 {
		err = fs.ErrNotExist
	}
	if err != nil {
		return d.pathError("lock", "", err)
	}
	return nil
}

// Entry is an entry of a directory.
type Entry struct {
	Name string
	Dir  bool // it is a directory
}

// Entries lists the directory, sorted by name.
func (d *Dir) Entries() ([]Entry, error) {
	fd, err := open(d.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY, 0) // not d.f, which can be listed only once
	if err != nil {
		return nil, d.pathError("read", "", err)
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var entries []Entry
	for _, name := range names {
		var st unix.Stat_t
		err := stat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return nil, d.pathError("read", name, err)
		}
		entries = append(entries, Entry{name, fileType(&st) == unix.S_IFDIR})
	}
	return entries, nil
}

// Create creates a file that must not exist yet. It appears under its name at once.
func (d *Dir) Create(name string, mode uint32) (*os.File, error) {
	fd, err := open(d.fd(), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return nil, d.pathError("create", name, err)
	}
	return os.NewFile(uintptr(fd), d.Path(name)), nil
}

// Begin begins a file that appears with File.Commit. It may replace another one.
func (d *Dir) Begin(name string, mode uint32) (*File, error) {
	return beginFile(d.fd(), name, d.Path(name), mode)
}

// Write writes a file whole or not at all. Errors of write are returned unchanged.
func (d *Dir) Write(name string, mode uint32, write func(io.Writer) error) error {
	f, err := d.Begin(name, mode)
	if err != nil {
		return err
	}
	return f.finish(write(f))
}

// Remove removes an entry of any type. A directory must be empty.
func (d *Dir) Remove(name string) error {
	err := retry(func() error { return unix.Unlinkat(d.fd(), name, 0) })
	if errors.Is(err, unix.EISDIR) {
		err = retry(func() error { return unix.Unlinkat(d.fd(), name, unix.AT_REMOVEDIR) })
	}
	if err != nil {
		return d.pathError("remove", name, err)
	}
	return nil
}

// RemoveOldest removes files whose names have a suffix: those that were written longest ago, until at most so many are
// left, which have at most so many bytes together. The file that is named as the newest stays, whatever its time is.
// Temporary files of names with that suffix, which killed processes have left, are removed, too.
func (d *Dir) RemoveOldest(suffix, newest string, files int, bytes int64) error {
	entries, err := d.Entries()
	var old []os.FileInfo
	for _, e := range entries {
		if strings.HasSuffix(TemporaryOf(e.Name), suffix) {
			err = errors.Join(err, d.Remove(e.Name))
			continue
		}
		if e.Dir || !strings.HasSuffix(e.Name, suffix) {
			continue
		}
		info, statErr := os.Lstat(d.Path(e.Name))
		if errors.Is(statErr, fs.ErrNotExist) { // another process has removed it
			continue
		}
		if statErr != nil {
			err = errors.Join(err, statErr)
		} else if e.Name == newest {
			files--
			bytes -= info.Size()
		} else {
			old = append(old, info)
		}
	}
	slices.SortFunc(old, func(a, b os.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, info := range old {
		files--
		bytes -= info.Size()
		if files >= 0 && bytes >= 0 {
			continue
		}
		if removeErr := d.Remove(info.Name()); !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}
	return err
}

var temporary = regexp.MustCompile(`^\.(.+)\.[0-9]+-[0-9]+\.tmp$`)

// TemporaryOf returns the name of the file for which an entry is a temporary file, or "" if the entry
// is none. A process that is killed while it replaces a file leaves such an entry.
func TemporaryOf(entry string) string {
	if m := temporary.FindStringSubmatch(entry); m != nil {
		return m[1]
	}
	return ""
}
