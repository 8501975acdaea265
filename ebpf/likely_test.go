package ebpf

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
)

// What is only named like a library is passed over, and is not opened: a FIFO would block, a device may act.
func TestLikelyLibrariesThatAreNone(t *testing.T) {
	testenv.NeedRoot(t)
	dir, path := t.TempDir(), t.TempDir()
	for _, fifo := range []string{filepath.Join(dir, "libggml-x.so"), filepath.Join(path, "libggml-y.so"), filepath.Join(path, "libllama.so.1")} {
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	exe := filepath.Join(dir, "program")
	for name, make := range map[string]func() error{
		"FIFO":   func() error { return unix.Mkfifo(exe, 0o600) },
		"device": func() error { return os.Symlink("/dev/zero", exe) },
		"script": func() error { return os.WriteFile(exe, []byte("#!/bin/sh\n"), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := make(); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(exe)
			tr, err := New(Options{PID: os.Getpid(), RingBytes: 4096})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			if err := tr.AttachLikely(exe, []string{"LD_LIBRARY_PATH=" + path}); err != nil {
				t.Error(err)
			}
			if len(tr.Attached()) != 0 {
				t.Errorf("probes in %q", tr.Attached())
			}
		})
	}
}

// Probes go to the file whose symbols were read. If its name leads to another file by then, that one is not touched: its owner would say
// where in it probes are set.
func TestProbesGoToWhatWasScanned(t *testing.T) {
	testenv.NeedRoot(t)
	libraries, err := filepath.Glob(filepath.Join(llamatest.ForTest(t).Dir, "libggml-cpu*.so"))
	if err != nil || len(libraries) == 0 {
		t.Fatalf("%q, %v", libraries, err)
	}
	library, err := os.ReadFile(libraries[0])
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "libggml-x.so")
	if err := os.WriteFile(path, library, 0o700); err != nil {
		t.Fatal(err)
	}
	tr, err := New(Options{PID: os.Getpid(), RingBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	im, err := tr.scan(path)
	if err != nil || im == nil || len(im.Sites) == 0 {
		t.Fatalf("%+v, %v", im, err)
	}
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("no library"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := tr.attachImage(im, false); err != nil || len(tr.Attached()) != 1 {
		t.Errorf("probes in %q, %v", tr.Attached(), err)
	}
}
