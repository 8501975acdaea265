package proc

// This file tests that the file which a process maps is found under the right path.

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/internal/regular"
	"tensorcast/internal/testenv"
)

// A process in another mount namespace knows other files by the same paths.
func TestLocate(t *testing.T) {
	testenv.NeedRoot(t)
	ours, theirs := t.TempDir(), t.TempDir()
	both, hidden := filepath.Join(ours, "both"), filepath.Join(ours, "hidden")
	only, replaced := filepath.Join(ours, "only"), filepath.Join(ours, "replaced")
	for _, path := range []string{
		both, hidden, replaced,
		filepath.Join(theirs, "hidden"), filepath.Join(theirs, "only"), filepath.Join(theirs, "replaced"),
	} {
		if err := os.WriteFile(path, []byte(path), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(both, filepath.Join(theirs, "both")); err != nil {
		t.Fatal(err)
	}
	id := func(path string) FileID {
		t.Helper()
		id, err := FileOf(path)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	inode := func(path string) uint64 { return id(path).Ino }
	cmd := exec.Command("unshare", "--mount", "sh", "-c", `mount --bind "$1" "$0" && exec sleep 600`, ours, theirs)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := cmd.Process.Pid
	inside := func(path string) string { return fmt.Sprintf("/proc/%d/root%s", pid, path) }
	testenv.WaitFor(t, "the process to have mounts of its own", func() bool {
		_, err := os.Stat(inside(only))
		return err == nil
	})
	nowhere := filepath.Join(ours, "nowhere")
	for _, tc := range []struct {
		name  string
		path  string
		ino   uint64
		want  string
		found bool
	}{
		{"the same file", both, 0, both, true},
		{"the same file, by inode", both, inode(both), both, true},
		{"another file", hidden, 0, inside(hidden), true},
		{"theirs, by inode", hidden, inode(filepath.Join(theirs, "hidden")), inside(hidden), true},
		{"ours, by inode", hidden, inode(hidden), hidden, true},
		{"only theirs", only, 0, inside(only), true},
		{"neither, by inode", replaced, 1, replaced, false},
		{"no file", nowhere, 0, nowhere, false},
		{"no file, by inode", nowhere, 7, nowhere, false},
	} {
		got := Locate(pid, tc.path, tc.ino)
		want := Place{Path: tc.want}
		if tc.found {
			want.ID = id(tc.want)
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, want)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := Locate(pid, hidden, 0); got.Path != hidden {
		t.Errorf("of a process that has ended: %+v, want %s", got, hidden)
	}
}

// The name of a mapped file may lead elsewhere by now. Here it leads to a FIFO of another file
// system that has the same inode number. Opening the FIFO would block.
func TestLocateBehindAMount(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "model.gguf")
	mount := func() {
		t.Helper()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	mount()
	if err := os.WriteFile(path, []byte("the model"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapped, err := unix.Mmap(int(f.Fd()), 0, 9, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	was, err := FileOf(path)
	if err != nil {
		t.Fatal(err)
	}
	find := func() *Mapping {
		t.Helper()
		all, err := Mappings(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		for i := range all {
			if all[i].Path == path {
				return &all[i]
			}
		}
		t.Fatal("the mapping is not listed")
		return nil
	}
	if at := find().Locate(os.Getpid()); at != (Place{path, was}) {
		t.Errorf("before: %+v, want %s, %v", at, path, was)
	}
	mount()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo, err := FileOf(path)
	if err != nil {
		t.Fatal(err)
	}
	if fifo.Ino != was.Ino || fifo == was {
		t.Fatalf("the FIFO is %v, the file %v: the test needs the same inode number on another device", fifo, was)
	}
	at := find().Locate(os.Getpid())
	opened, err := at.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if text, err := io.ReadAll(opened); string(text) != "the model" || err != nil {
		t.Errorf("at %+v: %q, %v; want %q", at, text, err, "the model")
	}
	// A caller that may not follow the kernel's link has only the inode number.
	if _, err := Locate(os.Getpid(), path, was.Ino).Open(); !errors.Is(err, regular.ErrNotRegular) {
		t.Errorf("Open of the FIFO: error %v, want %v", err, regular.ErrNotRegular)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (Place{path, was}).Open(); !errors.Is(err, ErrOtherFile) {
		t.Errorf("Open of another file: error %v, want %v", err, ErrOtherFile)
	}
}
