package outfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func openTest(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := OpenDir(path, 0o700)
	must(t, err)
	t.Cleanup(d.Close)
	return d
}

// Directories are made as asked for; files in them are made, replaced and removed, and links among them are not followed.
func TestDir(t *testing.T) {
	top := t.TempDir()
	d := openTest(t, filepath.Join(top, "a", "b"))
	if info, err := os.Stat(filepath.Join(top, "a", "b")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	precious := filepath.Join(top, "precious")
	must(t, os.WriteFile(precious, []byte("precious"), 0o600))
	for _, name := range []string{"created", "written", "removed", "sub"} {
		must(t, os.Symlink(precious, d.Path(name)))
	}
	if f, err := d.Create("created", 0o600); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), d.Path("created")) {
		t.Errorf("%v, %v", f, err)
	}
	must(t, d.Write("written", 0o600, text("new")))
	must(t, d.Remove("removed"))
	if sub, err := d.Sub("sub", 0o700); err == nil {
		t.Errorf("%v is a link", sub)
	}
	if info, err := os.Lstat(d.Path("written")); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if data, err := os.ReadFile(precious); err != nil || string(data) != "precious" {
		t.Errorf("%q, %v", data, err)
	}
	sub, err := d.Sub("directory", 0o700)
	must(t, err)
	must(t, sub.Write("file", 0o600, text("x")))
	if err := d.Remove("directory"); err == nil {
		t.Error("it was not empty")
	}
	must(t, sub.Remove("file"))
	sub.Close()
	for range 2 { // the list is the same each time
		entries, err := d.Entries()
		if want := []Entry{{"created", false}, {"directory", true}, {"sub", false}, {"written", false}}; err != nil || !reflect.DeepEqual(entries, want) {
			t.Errorf("%v, %v", entries, err)
		}
	}
	must(t, d.Remove("directory"))
	if err := d.Remove("directory"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if d, err := OpenDir(precious, 0o700); err == nil {
		t.Errorf("%v is a file", d)
	}
	if d, err := OpenDir("", 0o700); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, %v", d, err)
	}
}

// A file that was begun appears with Commit, over one that appeared meanwhile as well; after Discard nothing is left.
func TestBegin(t *testing.T) {
	d := openTest(t, t.TempDir())
	for _, before := range []string{"", "old"} {
		path := d.Path("file" + before)
		if before != "" {
			must(t, os.WriteFile(path, []byte(before), 0o600))
		}
		for _, commit := range []bool{false, true} {
			f, err := d.Begin("file"+before, 0o600)
			must(t, err)
			_, err = io.WriteString(f, "new")
			must(t, err)
			want := map[bool]string{false: before, true: "new"}[commit]
			if commit {
				must(t, f.Commit())
			}
			f.Discard()
			if data, err := os.ReadFile(path); string(data) != want || err != nil && want != "" {
				t.Errorf("%q, %v, want %q", data, err, want)
			}
		}
	}
	only(t, d.Path(""), map[string]string{"file": "new", "fileold": "new"})
	// Others cannot stand in the way by taking the temporary name.
	must(t, os.Symlink("elsewhere", d.Path(tempName("file", os.Getpid(), 0))))
	must(t, d.Write("file", 0o600, text("newer")))
	if data, err := os.ReadFile(d.Path("file")); err != nil || string(data) != "newer" {
		t.Errorf("%q, %v", data, err)
	}
	for name, want := range map[string]string{tempName("a.json", 17, 2): "a.json", ".a.json.tmp": "", "a.json": "", "..17-2.tmp": ""} {
		if got := Temporary(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// Of those who lock a directory one succeeds, until it ends; that it removes the directory meanwhile is noticed.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir")
	first, err := OpenDir(path, 0o700)
	must(t, err)
	must(t, first.Lock())
	second := openTest(t, path)
	if err := second.Lock(); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
	first.Forget() // which made it, and it is empty
	if err := second.Lock(); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	third := openTest(t, path)
	must(t, third.Lock())
	must(t, third.Write("file", 0o600, text("x")))
	fourth, err := OpenDir(path, 0o700)
	must(t, err)
	fourth.Forget() // which did not make it
	third.Forget()
	only(t, path, map[string]string{"file": "x"})
}
