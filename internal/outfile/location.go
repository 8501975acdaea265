package outfile

// This file follows a path to the directory entry that it stands for. It decides which links are
// followed and where files may be written.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tensorcast/internal/invoker"
)

// ErrUnsafe says that somebody else could redirect outputs, or change them while they are written.
var ErrUnsafe = errors.New("not safe to write to")

// maxLinks is how many symbolic links are followed. The kernel follows as many.
const maxLinks = 40

// writer has the ids of the users on whose behalf files are written.
type writer struct{ users []uint32 }

// currentWriter returns root, the user as whom this thread creates files, and the user who typed sudo.
func currentWriter() (writer, error) {
	// An invalid id changes nothing. The result is the current id.
	fsuid, err := unix.SetfsuidRetUid(-1)
	if err != nil {
		return writer{}, fmt.Errorf("find out as whom files are made: %w", err)
	}
	w := writer{[]uint32{0, uint32(fsuid)}}
	if uid, ok := invoker.UID(os.Environ()); ok {
		w.users = append(w.users, uid)
	}
	return w, nil
}

// trusts reports whether a user is one of those on whose behalf files are written.
func (w writer) trusts(uid uint32) bool {
	for _, u := range w.users {
		if u == uid {
			return true
		}
	}
	return false
}

// findDanger says why others could change something in a directory. It returns "" if they cannot.
//
// The sticky bit does not help: it keeps others from removing entries, but not from putting a link
// where a file will be created. Write permission for a group is accepted for the owner's private
// group, which has the owner's name. Where there are such groups, the umask is 002, and all
// directories are writable for them (pam_umask, usergroups). It is not accepted together with an
// access control list, which may give others access.
func (w writer) findDanger(dir int, st *unix.Stat_t) string {
	switch {
	case !w.trusts(st.Uid):
		return "it belongs to " + userName(st.Uid)
	case st.Mode&0o002 != 0:
		return fmt.Sprintf("everybody can write to it (mode %04o)", st.Mode&0o7777)
	case st.Mode&0o020 != 0 && (hasACL(dir) || !isPrivateGroup(st.Uid, st.Gid)):
		return fmt.Sprintf("a group can write to it (mode %04o)", st.Mode&0o7777)
	}
	return ""
}

// isPrivateGroup reports whether a group has the name of a user.
func isPrivateGroup(uid, gid uint32) bool {
	group, err := user.LookupGroupId(strconv.FormatUint(uint64(gid), 10))
	if err != nil {
		return false
	}
	owner, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	return err == nil && owner.Username == group.Name
}

// hasACL reports whether a directory may have an access control list. It uses /proc, because
// attributes cannot be read from a descriptor that only names a file (O_PATH).
func hasACL(dir int) bool {
	_, err := unix.Getxattr(fmt.Sprintf("/proc/self/fd/%d", dir), "system.posix_acl_access", nil)
	return !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP)
}

func userName(uid uint32) string {
	if u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil {
		return u.Username
	}
	return fmt.Sprintf("user %d", uid)
}

// location is an entry of a directory, which may not exist yet.
type location struct {
	writer writer
	dir    int          // descriptor of the directory; it may be one that only names it (O_PATH)
	base   string       // the entry's name
	entry  *unix.Stat_t // nil if there is none yet
	magic  bool         // the entry is a link of procfs to a file that a process has open
	// duplicate is set if the path stands for one of our own descriptors, such as /dev/stdout. It
	// is a duplicate of that.
	duplicate *os.File
}

func (l *location) close() { _ = unix.Close(l.dir) }

// locate follows path to the directory entry that it stands for. It follows only links that the
// writer may trust: they belong to the writer, or are where only the writer can put them. missing
// is called to create directories that are missing on the way; last says that it is the last name
// of the path. If missing is nil, a missing directory is an error.
func locate(path string, missing func(dir int, name string, last bool) error) (_ *location, err error) {
	fail := func(err error) (*location, error) {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if path == "" {
		return fail(unix.ENOENT)
	}
	l := &location{dir: -1}
	if l.writer, err = currentWriter(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && l.dir >= 0 {
			l.close()
		}
	}()
	if err := l.enterStart(path); err != nil {
		return fail(err)
	}
	for rest, links := splitPath(path), 0; ; {
		l.base, rest = rest[0], rest[1:]
		last := len(rest) == 0
		var st unix.Stat_t
		err := stat(l.dir, l.base, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case errors.Is(err, unix.ENOENT) && missing != nil:
			if err := missing(l.dir, l.base, last); err != nil && !errors.Is(err, unix.EEXIST) {
				return fail(err)
			}
			if err := stat(l.dir, l.base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return fail(err)
			}
		case errors.Is(err, unix.ENOENT) && last:
			return l, nil
		case err != nil:
			return fail(err)
		}
		if what := fileType(&st); what != unix.S_IFREG && what != unix.S_IFDIR {
			if err := l.checkTrusted(path, &st); err != nil {
				return nil, err
			}
		}
		if fileType(&st) != unix.S_IFLNK {
			if last {
				l.entry = &st
				return l, nil
			}
			if err := l.enter(l.base, unix.O_NOFOLLOW); err != nil {
				return fail(err)
			}
			continue
		}
		if links++; links > maxLinks {
			return fail(unix.ELOOP)
		}
		if l.isMagicLink() {
			if last {
				return l, l.resolveMagicLink(path)
			}
			if err := l.enter(l.base, 0); err != nil {
				return fail(err)
			}
			continue
		}
		to, err := readlink(l.dir, l.base)
		if err != nil {
			return fail(err)
		}
		rest = append(splitPath(to), rest...)
		if strings.HasPrefix(to, "/") {
			if err := l.enterStart(to); err != nil {
				return fail(err)
			}
		}
	}
}

// splitPath splits a path into names. There is always one, so that "/" is an entry of the root
// directory.
func splitPath(path string) []string {
	all := strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
	if len(all) == 0 {
		return []string{"."}
	}
	return all
}

// enterStart goes to the directory where a path begins.
func (l *location) enterStart(path string) error {
	from := "."
	if strings.HasPrefix(path, "/") {
		from = "/"
	}
	return l.enter(from, 0)
}

// enter goes to a directory. name is relative to the current directory, or absolute.
func (l *location) enter(name string, flags int) error {
	from := l.dir
	if from < 0 {
		from = unix.AT_FDCWD
	}
	fd, err := open(from, name, unix.O_PATH|unix.O_DIRECTORY|flags, 0)
	if err != nil {
		return err
	}
	if l.dir >= 0 {
		l.close()
	}
	l.dir = fd
	return nil
}

// checkTrusted fails for a link or a special file that somebody else can have put there.
func (l *location) checkTrusted(path string, st *unix.Stat_t) error {
	var dir unix.Stat_t
	if err := unix.Fstat(l.dir, &dir); err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if l.writer.trusts(st.Uid) || l.writer.findDanger(l.dir, &dir) == "" {
		return nil
	}
	if fileType(st) == unix.S_IFLNK {
		return fmt.Errorf("%s: %w: %s made the symbolic link %s: name what it leads to",
			path, ErrUnsafe, userName(st.Uid), l.base)
	}
	return fmt.Errorf("%s: %w: %s made it, and it is no regular file: choose another name",
		path, ErrUnsafe, userName(st.Uid))
}

// isMagicLink reports whether the entry is a magic link of procfs. Such a link leads to an open
// file, not to the path that is its text.
func (l *location) isMagicLink() bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(l.dir, &fs) == nil && fs.Type == unix.PROC_SUPER_MAGIC &&
		l.base != "self" && l.base != "thread-self"
}

// resolveMagicLink finds out where a link of procfs leads to. It duplicates a descriptor of our
// own, so that writing continues at its current position.
func (l *location) resolveMagicLink(path string) error {
	var st, dir, ours unix.Stat_t
	err := errors.Join(stat(l.dir, l.base, &st, 0), unix.Fstat(l.dir, &dir), unix.Stat("/proc/self/fd", &ours))
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	l.entry, l.magic = &st, true
	if n, err := strconv.Atoi(l.base); err == nil && dir.Dev == ours.Dev && dir.Ino == ours.Ino {
		fd, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: path, Err: err}
		}
		l.duplicate = os.NewFile(uintptr(fd), path)
		return nil
	}
	if fileType(&st) == unix.S_IFREG {
		return fmt.Errorf("%s: %w: another process has it open: name the file itself", path, ErrUnsafe)
	}
	return nil
}

// openSpecial opens the entry for writing if it is a device or a pipe.
func (l *location) openSpecial(path string) (*os.File, error) {
	flags := unix.O_NOFOLLOW
	if l.magic {
		flags = 0
	}
	var st unix.Stat_t
	fd, err := open(l.dir, l.base, unix.O_WRONLY|unix.O_NOCTTY|flags, 0)
	if err == nil {
		if err = unix.Fstat(fd, &st); err == nil && (st.Dev != l.entry.Dev || st.Ino != l.entry.Ino) {
			err = fs.ErrNotExist // it was replaced meanwhile
		}
		if err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func stat(dir int, name string, st *unix.Stat_t, flags int) error {
	return retry(func() error { return unix.Fstatat(dir, name, st, flags) })
}

func readlink(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err == nil && n == len(buf) {
		err = unix.ENAMETOOLONG
	}
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}
