package outfile

// These tests are about names that others have a hand in: what is followed, and where is written.

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

// other is somebody else; us stands for root, as whom the tests run.
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

// mkdir makes a directory with exactly this owner and mode.
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

// A file is written where its name leads, but not through what somebody else can have put there; what is there stays then.
func TestNamesThatOthersMade(t *testing.T) {
	testenv.NeedRoot(t)
	for name, tc := range map[string]struct {
		owner int    // of the directory in which the name is
		mode  uint32 // of that
		put   func(t *testing.T, dir, precious string)
		name  string // out.txt if empty
		safe  bool
		into  bool // the file behind the link gets what is written
	}{
		"nothing there, a directory of ours":       {owner: us, mode: 0o755, safe: true},
		"nothing there, everybody's directory":     {owner: us, mode: 0o1777, safe: true},
		"nothing there, somebody else's directory": {owner: other, mode: 0o755, safe: true},
		"our link in our directory":                {us, 0o755, link(us), "", true, true},
		"our link in everybody's directory":        {us, 0o1777, link(us), "", true, true},
		"another's link in our directory":          {us, 0o755, link(other), "", true, true}, // root has put it there
		"another's link in everybody's directory":  {us, 0o1777, link(other), "", false, false},
		"another's link in the group's directory":  {us, 0o775 | unix.S_ISGID, link(other), "", true, true}, // root's group, as root's name
		"another's link in another's directory":    {other, 0o755, link(other), "", false, false},
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
			reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // else writing would block instead of failing
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
				t.Errorf("error %v", err)
			}
			if err != nil && (!strings.HasPrefix(err.Error(), path+": ") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("error %q", err)
			}
			want := "precious"
			if tc.into {
				want = "new"
			}
			if data, err := os.ReadFile(precious); err != nil || string(data) != want {
				t.Errorf("the precious file holds %q, %v, want %q", data, err, want)
			}
			if before != nil {
				if after, err := os.Lstat(path); err != nil || after.Mode().Type() != before.Mode().Type() {
					t.Errorf("%v became %v, %v", before, after, err)
				}
			} else if data, err := os.ReadFile(path); err != nil || string(data) != "new" {
				t.Errorf("%q, %v", data, err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
				t.Errorf("%v is left", left)
			}
		})
	}
}

func link(uid int) func(t *testing.T, dir, precious string) {
	return func(t *testing.T, dir, precious string) { symlink(t, precious, filepath.Join(dir, "out.txt"), uid) }
}

// The permissions of a file that somebody else put there are not taken over: a file that everybody may change would be planted.
func TestModeOfAnothersFile(t *testing.T) {
	testenv.NeedRoot(t)
	path := filepath.Join(mkdir(t, filepath.Join(testenv.PublicDir(t), "shared"), us, 0o1777), "out.txt")
	must(t, os.WriteFile(path, []byte("planted"), 0o600))
	must(t, os.Chmod(path, 0o666))
	must(t, os.Chown(path, other, other))
	must(t, Write(path, text("new")))
	umask := syscall.Umask(0)
	syscall.Umask(umask)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666&^fs.FileMode(umask) || info.Sys().(*syscall.Stat_t).Uid != us {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// accessList gives a user write access, in the form of the attribute (acl(5), posix_acl_xattr.h).
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

// A directory that outputs fill is refused if others can put something there.
func TestDirectoriesOfOthers(t *testing.T) {
	testenv.NeedRoot(t)
	for name, tc := range map[string]struct {
		owner, group int
		mode         uint32
		list         bool // an access control list
		says         string
	}{
		"ours":                          {us, us, 0o755, false, ""},
		"ours, and our private group's": {us, us, 0o775, false, ""},
		"a group's":                     {us, other, 0o775, false, "a group can write to it (mode 0775): chmod go-w it, or choose"},
		"another's by a list":           {us, us, 0o755, true, "a group can write to it (mode 0775): chmod go-w it, or choose"},
		"everybody's":                   {us, us, 0o777, false, "everybody can write to it (mode 0777): chmod go-w it, or choose"},
		"everybody's, sticky":           {us, us, 0o1777, false, "everybody can write to it (mode 1777): chmod go-w it, or choose"},
		"somebody else's":               {other, us, 0o700, false, "it belongs to nobody: choose a directory of your own"},
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
				"Sub":     func() (*Dir, error) { return parent.Sub("out", 0o700) },
			} {
				d, err := open()
				if err == nil {
					d.Close()
				}
				if tc.says == "" && err != nil || tc.says != "" && (!errors.Is(err, ErrUnsafe) || !strings.HasPrefix(err.Error(), path+": not safe to write to: "+tc.says)) {
					t.Errorf("%s: %v, want %q", how, err, tc.says)
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
				t.Errorf("%s: %v, %v", name, d, err)
			}
		}
		if entries, err := os.ReadDir(filepath.Join(top, "ours")); err != nil || len(entries) > 0 {
			t.Errorf("%v, %v", entries, err)
		}
	})
}

// On behalf of a user: what is the user's is as good as root's; what is somebody else's is not.
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
		t.Errorf("as root: %v", got)
	}
	u := &invoker.User{UID: user, GID: user, Groups: []uint32{user}, Name: "user"}
	must(t, u.Do(func() error {
		if got := open(); !got[us] || !got[user] || got[third] {
			t.Errorf("as the user: %v", got)
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
				t.Errorf("%s belongs to %d", path, uid)
			}
		}
		if d, err := OpenDir(filepath.Join(dirs[us], "made"), 0o700); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("in root's directory: %v, %v", d, err)
		}
		return nil
	}))
	t.Setenv("SUDO_UID", "65533") // a program that does not act for the user who typed sudo
	if got := open(); !got[us] || !got[user] || got[third] {
		t.Errorf("as root by sudo: %v", got)
	}
}

// Names for what the process has open are written on where they stand, whatever that is.
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
		t.Errorf("%q, %v", data, err)
	}
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	must(t, Write(procName(w), text("piped")))
	must(t, w.Close())
	buf := make([]byte, 10)
	if n, err := r.Read(buf); err != nil || string(buf[:n]) != "piped" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	// A directory that is open is as good as its name.
	dir, err := os.Open(filepath.Dir(path))
	must(t, err)
	defer dir.Close()
	must(t, Write(procName(dir)+"/inside", text("x")))
	d, err := OpenDir(procName(dir)+"/sub", 0o700)
	must(t, err)
	d.Close()
	only(t, filepath.Join(filepath.Dir(path), "sub"), nil)
}

func procName(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }
