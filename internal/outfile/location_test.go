package outfile

// This file tests paths that others can influence: which links are followed, and where files are
// written.

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/internal/invoker"
	"tensorcast/internal/testenv"
)

// us is root, as whom the tests run. other is somebody else.
const (
	us    = 0
	other = 65534
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mkdir creates a directory with exactly this owner and mode.
func mkdir(t *testing.T, path string, uid int, mode uint32) string {
	t.Helper()
	must(t, os.Mkdir(path, 0o700))
	must(t, os.Chown(path, uid, uid))
	must(t, unix.Chmod(path, mode))
	return path
}

func symlink(t *testing.T, to, path string, uid int) {
	t.Helper()
	must(t, os.Symlink(to, path))
	must(t, os.Lchown(path, uid, uid))
}

// A file is written where its path leads, unless the path leads through something that somebody
// else can have put there. Then nothing changes.
func TestNamesThatOthersMade(t *testing.T) {
	testenv.NeedRoot(t)
	for name, tc := range map[string]struct {
		owner int    // of the directory that is written to
		mode  uint32 // of the same directory
		// put prepares the directory; precious is the path of a file elsewhere.
		put  func(t *testing.T, dir, precious string)
		name string // the name to write to; out.txt if empty
		safe bool   // writing succeeds
		into bool   // the new text is in the precious file afterwards
	}{
		"nothing there, a directory of ours":       {owner: us, mode: 0o755, safe: true},
		"nothing there, everybody's directory":     {owner: us, mode: 0o1777, safe: true},
		"nothing there, somebody else's directory": {owner: other, mode: 0o755, safe: true},
		"our link in our directory":                {us, 0o755, link(us), "", true, true},
		"our link in everybody's directory":        {us, 0o1777, link(us), "", true, true},
		// Only root can have put the next link there.
		"another's link in our directory":         {us, 0o755, link(other), "", true, true},
		"another's link in everybody's directory": {us, 0o1777, link(other), "", false, false},
		// The group has root's name, so it is root's private group.
		"another's link in the group's directory": {us, 0o775 | unix.S_ISGID, link(other), "", true, true},
		"another's link in another's directory":   {other, 0o755, link(other), "", false, false},
		"another's link to a directory": {us, 0o1777, func(t *testing.T, dir, precious string) {
			symlink(t, filepath.Dir(precious), filepath.Join(dir, "sub"), other)
		}, "sub/precious", false, false},
		"our link to a directory": {us, 0o1777, func(t *testing.T, dir, precious string) {
			symlink(t, filepath.Dir(precious), filepath.Join(dir, "sub"), us)
		}, "sub/precious", true, true},
		"our relative link, up and down": {us, 0o755, func(t *testing.T, dir, precious string) {
			rel, err := filepath.Rel(dir, precious)
			must(t, err)
			symlink(t, "./.././"+filepath.Base(dir)+"/"+rel, filepath.Join(dir, "out.txt"), us)
		}, "", true, true},
		"our link by another's": {us, 0o1777, func(t *testing.T, dir, precious string) {
			symlink(t, precious, filepath.Join(dir, "second"), other)
			symlink(t, "second", filepath.Join(dir, "out.txt"), us)
		}, "", false, false},
		"another's pipe in everybody's directory": {us, 0o1777, func(t *testing.T, dir, _ string) {
			path := filepath.Join(dir, "out.txt")
			must(t, syscall.Mkfifo(path, 0o666))
			must(t, os.Chown(path, other, other))
			// Without a reader, a write to the pipe would block instead of failing.
			reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
			must(t, err)
			t.Cleanup(func() { reader.Close() })
		}, "", false, false},
		"another's link to a device": {us, 0o1777, func(t *testing.T, dir, _ string) {
			symlink(t, os.DevNull, filepath.Join(dir, "out.txt"), other)
		}, "", false, false},
		"our link to a device": {us, 0o1777, func(t *testing.T, dir, _ string) {
			symlink(t, os.DevNull, filepath.Join(dir, "out.txt"), us)
		}, "", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			top := testenv.PublicDir(t)
			precious := filepath.Join(mkdir(t, filepath.Join(top, "ours"), us, 0o755), "precious")
			must(t, os.WriteFile(precious, []byte("precious"), 0o600))
			dir := mkdir(t, filepath.Join(top, "dir"), tc.owner, tc.mode)
			path := filepath.Join(dir, "out.txt")
			if tc.put != nil {
				tc.put(t, dir, precious)
			}
			if tc.name != "" {
				path = filepath.Join(dir, tc.name)
			}
			before, _ := os.Lstat(path)
			err := Write(path, text("new"))
			if (err == nil) != tc.safe || err != nil && !errors.Is(err, ErrUnsafe) {
				t.Errorf("error %v, want %v if this is not safe (safe: %v)", err, ErrUnsafe, tc.safe)
			}
			if err != nil && (!strings.HasPrefix(err.Error(), path+": ") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("error %q, want one line that begins with %s", err, path)
			}
			want := "precious"
			if tc.into {
				want = "new"
			}
			if data, err := os.ReadFile(precious); err != nil || string(data) != want {
				t.Errorf("the precious file has %q, %v; want %q", data, err, want)
			}
			if before != nil {
				if after, err := os.Lstat(path); err != nil || after.Mode().Type() != before.Mode().Type() {
					t.Errorf("%v became %v, %v; want the same type", before, after, err)
				}
			} else if data, err := os.ReadFile(path); err != nil || string(data) != "new" {
				t.Errorf("the file has %q, %v; want new", data, err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
				t.Errorf("temporary files %v are left, want none", left)
			}
		})
	}
}

// link returns a function that creates the link out.txt to the precious file.
func link(uid int) func(t *testing.T, dir, precious string) {
	return func(t *testing.T, dir, precious string) {
		symlink(t, precious, filepath.Join(dir, "out.txt"), uid)
	}
}

// The new file does not get the permissions of a file that somebody else put there. Otherwise
// others could make outputs writable for everybody.
func TestModeOfAnothersFile(t *testing.T) {
	testenv.NeedRoot(t)
	path := filepath.Join(mkdir(t, filepath.Join(testenv.PublicDir(t), "shared"), us, 0o1777), "out.txt")
	must(t, os.WriteFile(path, []byte("planted"), 0o600))
	must(t, os.Chmod(path, 0o666))
	must(t, os.Chown(path, other, other))
	must(t, Write(path, text("new")))
	umask := syscall.Umask(0)
	syscall.Umask(umask)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o666&^fs.FileMode(umask) || info.Sys().(*syscall.Stat_t).Uid != us {
		t.Errorf("mode %v, %v; want 0666 less the umask, and owner %d", info.Mode(), err, us)
	}
}

// accessList is an access control list that gives a user write access, in the form of the attribute
// (acl(5), posix_acl_xattr.h).
func accessList(uid uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 7, 0xffffffff}, {2, 7, uid}, {4, 5, 0xffffffff}, {16, 7, 0xffffffff}, {32, 5, 0xffffffff}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// A directory of outputs is refused if others can put something there.
func TestDirectoriesOfOthers(t *testing.T) {
	testenv.NeedRoot(t)
	for name, tc := range map[string]struct {
		owner, group int
		mode         uint32
		list         bool   // it has an access control list
		reason       string // why it is refused; empty if it is accepted
	}{
		"ours":                          {us, us, 0o755, false, ""},
		"ours, and our private group's": {us, us, 0o775, false, ""},
		"a group's": {
			us, other, 0o775, false, "a group can write to it (mode 0775): chmod go-w it, or choose",
		},
		"another's by a list": {
			us, us, 0o755, true, "a group can write to it (mode 0775): chmod go-w it, or choose",
		},
		"everybody's": {
			us, us, 0o777, false, "everybody can write to it (mode 0777): chmod go-w it, or choose",
		},
		"everybody's, sticky": {
			us, us, 0o1777, false, "everybody can write to it (mode 1777): chmod go-w it, or choose",
		},
		"somebody else's": {
			other, us, 0o700, false, "it belongs to nobody: choose a directory of your own",
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := mkdir(t, filepath.Join(t.TempDir(), "out"), tc.owner, tc.mode)
			must(t, os.Chown(path, tc.owner, tc.group))
			must(t, unix.Chmod(path, tc.mode))
			if tc.list {
				if err := unix.Setxattr(path, "system.posix_acl_access", accessList(other), 0); err != nil {
					t.Skip("no access control lists here: ", err)
				}
			}
			parent, err := OpenDir(filepath.Dir(path), 0o700)
			must(t, err)
			defer parent.Close()
			for how, open := range map[string]func() (*Dir, error){
				"OpenDir": func() (*Dir, error) { return OpenDir(path, 0o700) },
				"Sub":     func() (*Dir, error) { return parent.OpenSub("out", 0o700) },
			} {
				d, err := open()
				if err == nil {
					d.Close()
				}
				want := path + ": not safe to write to: " + tc.reason
				if tc.reason == "" && err != nil ||
					tc.reason != "" && (!errors.Is(err, ErrUnsafe) || !strings.HasPrefix(err.Error(), want)) {
					t.Errorf("%s: error %v, want %q", how, err, tc.reason)
				}
			}
		})
	}
	t.Run("through another's link", func(t *testing.T) {
		top := t.TempDir()
		mkdir(t, filepath.Join(top, "ours"), us, 0o755)
		shared := mkdir(t, filepath.Join(top, "shared"), us, 0o1777)
		symlink(t, "../ours", filepath.Join(shared, "planted"), other)
		for _, name := range []string{"planted", "planted/new", "planted/deeper/new"} {
			if d, err := OpenDir(filepath.Join(shared, name), 0o700); !errors.Is(err, ErrUnsafe) {
				t.Errorf("%s: %v, error %v; want %v", name, d, err, ErrUnsafe)
			}
		}
		if entries, err := os.ReadDir(filepath.Join(top, "ours")); err != nil || len(entries) > 0 {
			t.Errorf("the directory behind the link has %v, %v; want nothing", entries, err)
		}
	})
}

// When root acts on behalf of a user, it trusts directories of the user as well as its own, but not
// those of others.
func TestActingForAUser(t *testing.T) {
	testenv.NeedRoot(t)
	const user, third = 65533, 65532
	top := testenv.PublicDir(t)
	dirs := map[int]string{}
	for _, uid := range []int{us, user, third} {
		dirs[uid] = mkdir(t, filepath.Join(top, userName(uint32(uid))), uid, 0o755)
	}
	open := func() map[int]bool {
		opened := map[int]bool{}
		for uid, path := range dirs {
			d, err := OpenDir(path, 0o700)
			if err == nil {
				d.Close()
			} else if !errors.Is(err, ErrUnsafe) {
				t.Error(err)
			}
			opened[uid] = err == nil
		}
		return opened
	}
	if got := open(); !got[us] || got[user] || got[third] {
		t.Errorf("as root: opened %v, want only that of %d", got, us)
	}
	u := &invoker.User{UID: user, GID: user, Groups: []uint32{user}, Name: "user"}
	must(t, u.Do(func() error {
		if got := open(); !got[us] || !got[user] || got[third] {
			t.Errorf("as the user: opened %v, want those of %d and %d", got, us, user)
		}
		made := filepath.Join(dirs[user], "made")
		d, err := OpenDir(made, 0o700)
		if err != nil {
			return err
		}
		defer d.Close()
		if err := d.Write("file", 0o600, text("x")); err != nil {
			return err
		}
		for _, path := range []string{made, filepath.Join(made, "file")} {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			if uid := info.Sys().(*syscall.Stat_t).Uid; uid != user {
				t.Errorf("%s belongs to %d, want %d", path, uid, user)
			}
		}
		if d, err := OpenDir(filepath.Join(dirs[us], "made"), 0o700); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("in root's directory: %v, error %v; want %v", d, err, fs.ErrPermission)
		}
		return nil
	}))
	t.Setenv("SUDO_UID", "65533") // as in a program under sudo that acts as root
	if got := open(); !got[us] || !got[user] || got[third] {
		t.Errorf("as root by sudo: opened %v, want those of %d and %d", got, us, user)
	}
}

// A path that stands for an open file of this process is written at that file's current position.
func TestOwnDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(t, err)
	defer log.Close()
	_, err = log.WriteString("before ")
	must(t, err)
	name := "/dev/fd/" + strings.TrimPrefix(procName(log), "/proc/self/fd/")
	must(t, Write(name, text("one ")))
	must(t, Write(procName(log), text("two ")))
	_, err = log.WriteString("after")
	must(t, err)
	if data, err := os.ReadFile(path); err != nil || string(data) != "before one two after" {
		t.Errorf("the file has %q, %v; want before one two after", data, err)
	}
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	must(t, Write(procName(w), text("piped")))
	must(t, w.Close())
	buf := make([]byte, 10)
	if n, err := r.Read(buf); err != nil || string(buf[:n]) != "piped" {
		t.Errorf("read %q, %v; want piped", buf[:n], err)
	}
	// A path may begin with an open directory.
	dir, err := os.Open(filepath.Dir(path))
	must(t, err)
	defer dir.Close()
	must(t, Write(procName(dir)+"/inside", text("x")))
	d, err := OpenDir(procName(dir)+"/sub", 0o700)
	must(t, err)
	d.Close()
	checkFiles(t, filepath.Join(filepath.Dir(path), "sub"), nil)
}

func procName(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }
