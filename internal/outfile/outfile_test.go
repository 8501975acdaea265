package outfile

// This file tests writing a single file.

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// text returns a function that writes a text.
func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

// checkFiles checks that the directory has just these files, with these contents.
func checkFiles(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if text, ok := want[e.Name()]; !ok || err != nil || string(data) != text {
			t.Errorf("%s: %q, %v, want %q", e.Name(), data, err, text)
		}
	}
	if len(entries) != len(want) {
		t.Errorf("%d files, want %d", len(entries), len(want))
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out.txt")
	if err := Write(path, text("one")); err != nil {
		t.Fatal(err)
	}
	checkFiles(t, dir, map[string]string{"out.txt": "one"})
	umask := syscall.Umask(0)
	syscall.Umask(umask)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666&^fs.FileMode(umask) {
		t.Errorf("mode %v, %v; want 0666 less the umask", info.Mode(), err)
	}

	// The old file exists until the new one is complete, and after a failure. Its permissions stay.
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	err := Write(path, func(w io.Writer) error {
		if _, err := io.WriteString(w, "half"); err != nil {
			return err
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != "one" {
			t.Errorf("meanwhile the file has %q, %v; want one", data, err)
		}
		return stop
	})
	if !errors.Is(err, stop) {
		t.Errorf("error %v, want %v", err, stop)
	}
	checkFiles(t, dir, map[string]string{"out.txt": "one"})
	link := filepath.Join(dir, "link")
	if err := os.Symlink("out.txt", link); err != nil {
		t.Fatal(err)
	}
	if err := Write(link, text("two")); err != nil {
		t.Fatal(err)
	}
	checkFiles(t, dir, map[string]string{"out.txt": "two", "link": "two"})
	if to, err := os.Readlink(link); err != nil || to != "out.txt" {
		t.Errorf("the link leads to %q, %v; want out.txt", to, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v; want 0640", info.Mode(), err)
	}
}

func TestWritePipe(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	go func() {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		got <- string(data)
	}()
	if err := Write(path, text("through")); err != nil {
		t.Error(err)
	}
	if s := <-got; s != "through" {
		t.Errorf("read %q, want through", s)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
		t.Errorf("the pipe became %v, %v; want a pipe", info, err)
	}
	if err := Write(os.DevNull, text("x")); err != nil {
		t.Error(err)
	}
}

func TestWriteErrors(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, text("x")); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory: error %v, want one that says so", err)
	}
	none := filepath.Join(dir, "none", "out.txt")
	err := Write(none, text("x"))
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), none) ||
		strings.Contains(err.Error(), ".tmp") {
		t.Errorf("no directory: error %v, want %v that names %s", err, fs.ErrNotExist, none)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(file, "out.txt"), text("x")); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a file as a directory: error %v, want ENOTDIR", err)
	}
	checkFiles(t, dir, map[string]string{"file": ""})
}
