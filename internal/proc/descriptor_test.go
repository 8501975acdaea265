package proc

// This file tests how the open files of another process are listed and shared.

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/internal/testenv"
)

// A descriptor taken from another process is the same open file: both have one position.
func TestDescriptor(t *testing.T) {
	testenv.NeedRoot(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("0123456789"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(3, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	cmd.Stdin = f
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	p, err := Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	names, err := p.Descriptors()
	if err != nil || names[0] != f.Name() {
		t.Errorf("Descriptors() = %v, %v; want 0: %s", names, err, f.Name())
	}
	got, err := p.Descriptor(0)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	one := make([]byte, 1)
	if _, err := got.Read(one); err != nil || one[0] != '3' {
		t.Errorf("read %q, %v; want 3", one, err)
	}
	if at, err := f.Seek(0, io.SeekCurrent); err != nil || at != 4 {
		t.Errorf("the position of the other descriptor is %d, %v; want 4", at, err)
	}
	if _, err := p.Descriptor(1000); !errors.Is(err, unix.EBADF) {
		t.Errorf("a descriptor that is not open: error %v, want EBADF", err)
	}
}
