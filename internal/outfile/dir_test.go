package outfile

// This file tests directories of outputs.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func openTest(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := OpenDir(path, 0o700)
	must(t, err)
	t.Cleanup(d.Close)
	return d
}

// A directory is created with the given permissions. Files in it are created, replaced and removed.
// Links in it are not followed.
func TestDir(t *testing.T) {
	top := t.TempDir()
	d := openTest(t, filepath.Join(top, "a", "b"))
	if info, err := os.Stat(filepath.Join(top, "a", "b")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v; want 0700", info.Mode(), err)
	}
	precious := filepath.Join(top, "precious")
	must(t, os.WriteFile(precious, []byte("precious"), 0o600))
	for _, name := range []string{"created", "written", "removed", "sub"} {
		must(t, os.Symlink(precious, d.Path(name)))
	}
	f, err := d.Create("created", 0o600)
	if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), d.Path("created")) {
		t.Errorf("Create over a link: %v, error %v; want %v that names it", f, err, fs.ErrExist)
	}
	must(t, d.Write("written", 0o600, text("new")))
	must(t, d.Remove("removed"))
	if sub, err := d.OpenSub("sub", 0o700); err == nil {
		t.Errorf("Sub opened %v through a link, want an error", sub)
	}
	if info, err := os.Lstat(d.Path("written")); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v; want a regular file of mode 0600", info, err)
	}
	if data, err := os.ReadFile(precious); err != nil || string(data) != "precious" {
		t.Errorf("the file behind the links has %q, %v; want precious", data, err)
	}
	sub, err := d.OpenSub("directory", 0o700)
	must(t, err)
	must(t, sub.Write("file", 0o600, text("x")))
	if err := d.Remove("directory"); err == nil {
		t.Error("Remove of a directory that is not empty gave no error")
	}
	must(t, sub.Remove("file"))
	sub.Close()
	for range 2 { // the list is the same each time
		entries, err := d.Entries()
		want := []Entry{{"created", false}, {"directory", true}, {"sub", false}, {"written", false}}
		if err != nil || !reflect.DeepEqual(entries, want) {
			t.Errorf("Entries() = %v, %v; want %v", entries, err, want)
		}
	}
	must(t, d.Remove("directory"))
	if err := d.Remove("directory"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Remove a second time: error %v, want %v", err, fs.ErrNotExist)
	}
	if d, err := OpenDir(precious, 0o700); err == nil {
		t.Errorf("OpenDir of a file returned %v, want an error", d)
	}
	if d, err := OpenDir("", 0o700); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenDir of \"\": %v, error %v; want %v", d, err, fs.ErrNotExist)
	}
}

// A file that was begun appears with Commit, also over one that exists. After Discard nothing is left.
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
	checkFiles(t, d.Path(""), map[string]string{"file": "new", "fileold": "new"})
	// Others cannot prevent a write by taking the temporary name.
	must(t, os.Symlink("elsewhere", d.Path(tempName("file", os.Getpid(), 0))))
	must(t, d.Write("file", 0o600, text("newer")))
	if data, err := os.ReadFile(d.Path("file")); err != nil || string(data) != "newer" {
		t.Errorf("the file has %q, %v; want newer", data, err)
	}
	for name, want := range map[string]string{
		tempName("a.json", 17, 2): "a.json", ".a.json.tmp": "", "a.json": "", "..17-2.tmp": "",
	} {
		if got := TemporaryOf(name); got != want {
			t.Errorf("Temporary(%q) = %q, want %q", name, got, want)
		}
	}
}

// Only one of several can lock a directory, until it closes it. If it removes the directory then,
// the next lock fails.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir")
	first, err := OpenDir(path, 0o700)
	must(t, err)
	must(t, first.Lock())
	second := openTest(t, path)
	if err := second.Lock(); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), path) {
		t.Errorf("the second lock: error %v, want %v that names the directory", err, ErrLocked)
	}
	first.CloseAndRemoveEmpty() // removes the directory, because first created it and it is empty
	if err := second.Lock(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lock of a removed directory: error %v, want %v", err, fs.ErrNotExist)
	}
	third := openTest(t, path)
	must(t, third.Lock())
	must(t, third.Write("file", 0o600, text("x")))
	fourth, err := OpenDir(path, 0o700)
	must(t, err)
	fourth.CloseAndRemoveEmpty() // does not remove it, because fourth did not create it
	third.CloseAndRemoveEmpty()
	checkFiles(t, path, map[string]string{"file": "x"})
}

// Of many files those stay that were written last, within a number and a size. Other files in the directory stay.
func TestRemoveOldest(t *testing.T) {
	const suffix = ".kept"
	for name, tc := range map[string]struct {
		files int
		bytes int64
		want  []string
	}{
		"number": {4, 1 << 40, []string{"00.kept", "01.kept", "02.kept", "19.kept"}},
		"size":   {100, 29, []string{"00.kept", "19.kept"}},
		"one":    {1, 1 << 40, []string{"19.kept"}},
		"none":   {0, 0, []string{"19.kept"}}, // the newest always stays
	} {
		t.Run(name, func(t *testing.T) {
			d := openTest(t, filepath.Join(t.TempDir(), "kept"))
			write := func(name string, age int) {
				t.Helper()
				must(t, d.Write(name, 0o600, text("0123456789")))
				at := time.Now().Add(-time.Duration(age) * time.Hour)
				must(t, os.Chtimes(d.Path(name), at, at))
			}
			for i := range 20 {
				write(fmt.Sprintf("%02d%s", i, suffix), i)
			}
			write("notes.txt", 100)
			write(".03"+suffix+".7-1.tmp", 0)
			sub, err := d.OpenSub("sub"+suffix, 0o700)
			must(t, err)
			sub.Close()
			// By its time the oldest, but it was written now.
			must(t, d.RemoveOldest(suffix, "19"+suffix, tc.files, tc.bytes))
			entries, err := d.Entries()
			must(t, err)
			var names []string
			for _, e := range entries {
				names = append(names, e.Name)
			}
			if want := append(tc.want, "notes.txt", "sub"+suffix); !reflect.DeepEqual(names, want) {
				t.Errorf("left are %q, want %q", names, want)
			}
		})
	}
}
