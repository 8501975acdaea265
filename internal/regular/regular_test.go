package regular

// This file tests which kinds of files are opened.

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// checkReturns fails the test if do blocks.
func checkReturns(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal(what + " blocks")
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(in("file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(string) error{
		"link":     func(p string) error { return os.Symlink("file", p) },
		"fifo":     func(p string) error { return unix.Mkfifo(p, 0o600) },
		"fifolink": func(p string) error { return os.Symlink("fifo", p) },
		"dir":      func(p string) error { return os.Mkdir(p, 0o700) },
		"dangling": func(p string) error { return os.Symlink("nothing", p) },
		"loop":     func(p string) error { return os.Symlink("loop", p) },
	} {
		if err := make(in(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name       string
		open, here error
	}{
		{in("file"), nil, nil},
		{in("link"), nil, ErrNotRegular},
		{in("fifo"), ErrNotRegular, ErrNotRegular},
		{in("fifolink"), ErrNotRegular, ErrNotRegular},
		{in("dir"), ErrNotRegular, ErrNotRegular},
		{in("dangling"), fs.ErrNotExist, ErrNotRegular},
		{in("nothing"), fs.ErrNotExist, fs.ErrNotExist},
		{in("loop"), unix.ELOOP, ErrNotRegular},
		{"/dev/null", ErrNotRegular, ErrNotRegular},
		{"", fs.ErrNotExist, fs.ErrNotExist},
	} {
		for _, how := range []struct {
			name string
			open func(string) (*os.File, error)
			want error
		}{{"Open", Open, tc.open}, {"OpenHere", OpenHere, tc.here}} {
			checkReturns(t, how.name+" of "+tc.name, func() {
				f, err := how.open(tc.name)
				if !errors.Is(err, how.want) {
					t.Errorf("%s(%q): error %v, want %v", how.name, tc.name, err, how.want)
				}
				if err != nil {
					var path *fs.PathError
					if !errors.As(err, &path) || path.Path != tc.name {
						t.Errorf("%s(%q): error %v, want one that names the file", how.name, tc.name, err)
					}
					return
				}
				defer f.Close()
				if text, err := io.ReadAll(f); string(text) != "text" || err != nil || f.Name() != tc.name {
					t.Errorf("%s(%q): %q, %v, named %q; want text", how.name, tc.name, text, err, f.Name())
				}
			})
		}
	}
	if _, err := Open(in("fifo")); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("Open of a FIFO: error %v, want not a regular file", err)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, path+".link"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		read  func(string, int64) ([]byte, error)
		name  string
		limit int64
		want  error
	}{
		{Read, path, 4, nil}, {Read, path, 3, ErrTooLarge}, {Read, path + ".link", 4, nil},
		{ReadHere, path, 4, nil}, {ReadHere, path, 3, ErrTooLarge},
		{ReadHere, path + ".link", 4, ErrNotRegular}, {Read, dir, 4, ErrNotRegular},
	} {
		text, err := tc.read(tc.name, tc.limit)
		if !errors.Is(err, tc.want) || err == nil && string(text) != "text" {
			t.Errorf("%s, at most %d bytes: %q, %v, want %v", tc.name, tc.limit, text, err, tc.want)
		}
	}
}
