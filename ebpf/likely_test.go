package ebpf

// These tests look for libraries before a program runs, and set probes on them.

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
)

// What is only named like a library is passed over, and is not opened. A FIFO would block, and a
// device may do something when it is opened.
func TestLikelyLibrariesThatAreNone(t *testing.T) {
	testenv.NeedRoot(t)
	dir, path := t.TempDir(), t.TempDir()
	for _, fifo := range []string{
		filepath.Join(dir, "libggml-x.so"), filepath.Join(path, "libggml-y.so"), filepath.Join(path, "libllama.so.1"),
	} {
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

// What a program is likely to load is scanned once, ahead. Those of the files that are not used are
// closed.
func TestScanAhead(t *testing.T) {
	testenv.NeedRoot(t)
	dir := llamatest.ForTest(t).Dir
	libraries, err := filepath.Glob(filepath.Join(dir, "libggml-cpu*.so"))
	if err != nil || len(libraries) == 0 {
		t.Fatalf("no CPU backend in %s: %v", dir, err)
	}
	program := Program{Path: filepath.Join(dir, "llamarun")}
	before := descriptors(t)
	for _, attach := range []bool{true, false} {
		tr, err := New(Options{PID: os.Getpid(), RingBytes: 4096, Program: program})
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range append(libraries, program.Path) {
			if tr.scanned[path].image == nil {
				t.Errorf("%s was not scanned ahead", path)
			}
		}
		if attach {
			ahead := tr.scanned[libraries[0]].image
			if err := tr.AttachLikely(program.Path, program.Env); err != nil {
				t.Error(err)
			}
			if im, err := tr.scan(libraries[0]); im != ahead || err != nil {
				t.Errorf("%s was scanned again, %v", libraries[0], err)
			}
			if len(tr.scanned) > 0 || len(tr.Attached()) < len(libraries) {
				t.Errorf("%d files are left, probes in %q", len(tr.scanned), tr.Attached())
			}
		}
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}
	if after := descriptors(t); after > before+2 { // the runtime opens its own when it first waits
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// Probes go to the file whose symbols were read. If its name leads to another file by then, that
// one is not touched. Otherwise the owner of the name would decide where in another file probes are
// set.
func TestProbesGoToWhatWasScanned(t *testing.T) {
	testenv.NeedRoot(t)
	libraries, err := filepath.Glob(filepath.Join(llamatest.ForTest(t).Dir, "libggml-cpu*.so"))
	if err != nil || len(libraries) == 0 {
		t.Fatalf("no CPU backend: %v", err)
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
		t.Fatalf("scan = %+v, %v, want functions to probe", im, err)
	}
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("no library"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := tr.attachGroup(probeGroup{im: im}); err != nil || len(tr.Attached()) != 1 {
		t.Errorf("probes in %q, %v", tr.Attached(), err)
	}
}
