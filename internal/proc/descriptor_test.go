package proc

// This file tests files that another process has open.

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

// An open file of another process is that very file: it has one position.
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
		t.Errorf("open files %v, %v", names, err)
	}
	got, err := p.Descriptor(0)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	one := make([]byte, 1)
	if _, err := got.Read(one); err != nil || one[0] != '3' {
		t.Errorf("read %q, %v", one, err)
	}
	if at, err := f.Seek(0, io.SeekCurrent); err != nil || at != 4 {
		t.Errorf("its own is at %d, %v", at, err)
	}
	if _, err := p.Descriptor(1000); !errors.Is(err, unix.EBADF) {
		t.Errorf("one that is not open: %v", err)
	}
}
