package outfile

// This file follows a name to the directory entry that it stands for, and decides what is followed and where is written.

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

// ErrUnsafe says that somebody else could have outputs written elsewhere, or could change them while they are written.
var ErrUnsafe = errors.New("not safe to write to")

// maxLinks is how many symbolic links are followed, as many as the kernel does.
const maxLinks = 40

// writer is on whose behalf files are written.
type writer struct{ users []uint32 }

// theWriter is root, the user as whom this thread makes files, and the user who typed sudo.
func theWriter() (writer, error) {
	// An invalid id changes nothing; the answer is the id in force.
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

func (w writer) trusts(uid uint32) bool {
	for _, u := range w.users {
		if u == uid {
			return true
		}
	}
	return false
}

// private says what is wrong with a directory in which nobody else may be able to change anything; empty if nothing is.
//
// The sticky bit is no help: it keeps others from removing what is there, not from putting links where something will be made. Write
// permission for a group is all right for the owner's private group, which has the owner's name: where there are such groups, the umask is
// 002 and all directories are like that (pam_umask, usergroups). An access control list may let others in, so then it is not.
func (w writer) private(dir int, st *unix.Stat_t) string {
	switch {
	case !w.trusts(st.Uid):
		return "it belongs to " + userName(st.Uid)
	case st.Mode&0o002 != 0:
		return fmt.Sprintf("everybody can write to it (mode %04o)", st.Mode&0o7777)
	case st.Mode&0o020 != 0 && (hasACL(dir) || !privateGroup(st.Uid, st.Gid)):
		return fmt.Sprintf("a group can write to it (mode %04o)", st.Mode&0o7777)
	}
	return ""
}

func privateGroup(uid, gid uint32) bool {
	group, err := user.LookupGroupId(strconv.FormatUint(uint64(gid), 10))
	if err != nil {
		return false
	}
	owner, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	return err == nil && owner.Username == group.Name
}

// hasACL goes by /proc, because descriptors that only name a file (O_PATH) have no attributes.
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

// place is an entry of a directory.
type place struct {
	by    writer
	dir   int          // descriptor; it may be one that only names the directory (O_PATH)
	base  string       // the entry's name
	entry *unix.Stat_t // nil if there is none yet
	magic bool         // the entry is a link of procfs to what a process has open
	own   *os.File     // what the name stands for if that is a descriptor of our own, such as /dev/stdout: a duplicate of it
}

func (p *place) close() { _ = unix.Close(p.dir) }

// locate follows path to the directory entry that it stands for, through links that the writer may trust: they belong to the writer, or are
// where only the writer can put them. Directories that are missing on the way are made by missing; if that is nil, this is an error.
func locate(path string, missing func(dir int, name string, last bool) error) (_ *place, err error) {
	fail := func(err error) (*place, error) { return nil, &fs.PathError{Op: "open", Path: path, Err: err} }
	if path == "" {
		return fail(unix.ENOENT)
	}
	p := &place{dir: -1}
	if p.by, err = theWriter(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && p.dir >= 0 {
			p.close()
		}
	}()
	if err := p.start(path); err != nil {
		return fail(err)
	}
	for rest, links := names(path), 0; ; {
		p.base, rest = rest[0], rest[1:]
		last := len(rest) == 0
		var st unix.Stat_t
		err := stat(p.dir, p.base, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case errors.Is(err, unix.ENOENT) && missing != nil:
			if err := missing(p.dir, p.base, last); err != nil && !errors.Is(err, unix.EEXIST) {
				return fail(err)
			}
			if err := stat(p.dir, p.base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return fail(err)
			}
		case errors.Is(err, unix.ENOENT) && last:
			return p, nil
		case err != nil:
			return fail(err)
		}
		if what := kind(&st); what != unix.S_IFREG && what != unix.S_IFDIR {
			if err := p.believe(path, &st); err != nil {
				return nil, err
			}
		}
		if kind(&st) != unix.S_IFLNK {
			if last {
				p.entry = &st
				return p, nil
			}
			if err := p.enter(p.base, unix.O_NOFOLLOW); err != nil {
				return fail(err)
			}
			continue
		}
		if links++; links > maxLinks {
			return fail(unix.ELOOP)
		}
		if p.magical() {
			if last {
				return p, p.open(path)
			}
			if err := p.enter(p.base, 0); err != nil {
				return fail(err)
			}
			continue
		}
		to, err := readlink(p.dir, p.base)
		if err != nil {
			return fail(err)
		}
		rest = append(names(to), rest...)
		if strings.HasPrefix(to, "/") {
			if err := p.start(to); err != nil {
				return fail(err)
			}
		}
	}
}

// names splits a path. There is always one, so that "/" is an entry of the root directory.
func names(path string) []string {
	all := strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
	if len(all) == 0 {
		return []string{"."}
	}
	return all
}

// start goes to where a path begins.
func (p *place) start(path string) error {
	from := "."
	if strings.HasPrefix(path, "/") {
		from = "/"
	}
	return p.enter(from, 0)
}

// enter goes to a directory of the current one, or to one that does not depend on it.
func (p *place) enter(name string, flags int) error {
	from := p.dir
	if from < 0 {
		from = unix.AT_FDCWD
	}
	fd, err := open(from, name, unix.O_PATH|unix.O_DIRECTORY|flags, 0)
	if err != nil {
		return err
	}
	if p.dir >= 0 {
		p.close()
	}
	p.dir = fd
	return nil
}

// believe fails for a link or a special file that somebody else can have put there.
func (p *place) believe(path string, st *unix.Stat_t) error {
	var dir unix.Stat_t
	if err := unix.Fstat(p.dir, &dir); err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if p.by.trusts(st.Uid) || p.by.private(p.dir, &dir) == "" {
		return nil
	}
	if kind(st) == unix.S_IFLNK {
		return fmt.Errorf("%s: %w: %s made the symbolic link %s: name what it leads to", path, ErrUnsafe, userName(st.Uid), p.base)
	}
	return fmt.Errorf("%s: %w: %s made it, and it is no regular file: choose another name", path, ErrUnsafe, userName(st.Uid))
}

// magical says whether links in the directory are procfs's, which are not what their texts say.
func (p *place) magical() bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(p.dir, &fs) == nil && fs.Type == unix.PROC_SUPER_MAGIC && p.base != "self" && p.base != "thread-self"
}

// open finds out what a link of procfs leads to: a descriptor of our own is duplicated, so that it is written on where it stands.
func (p *place) open(path string) error {
	var st, dir, ours unix.Stat_t
	err := errors.Join(stat(p.dir, p.base, &st, 0), unix.Fstat(p.dir, &dir), unix.Stat("/proc/self/fd", &ours))
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	p.entry, p.magic = &st, true
	if n, err := strconv.Atoi(p.base); err == nil && dir.Dev == ours.Dev && dir.Ino == ours.Ino {
		fd, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: path, Err: err}
		}
		p.own = os.NewFile(uintptr(fd), path)
		return nil
	}
	if kind(&st) == unix.S_IFREG {
		return fmt.Errorf("%s: %w: another process has it open: name the file itself", path, ErrUnsafe)
	}
	return nil
}

// openSpecial opens the entry, a device or a pipe, for writing.
func (p *place) openSpecial(path string) (*os.File, error) {
	flags := unix.O_NOFOLLOW
	if p.magic {
		flags = 0
	}
	var st unix.Stat_t
	fd, err := open(p.dir, p.base, unix.O_WRONLY|unix.O_NOCTTY|flags, 0)
	if err == nil {
		if err = unix.Fstat(fd, &st); err == nil && (st.Dev != p.entry.Dev || st.Ino != p.entry.Ino) {
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
