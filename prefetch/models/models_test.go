package models

// This file tests which models a process has mapped.

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
	"tensorcast/pattern"
)

// A process's models are found by their contents, not by their names, with the address where they are mapped.
func TestMappedBy(t *testing.T) {
	plan, err := synth.NewPlan(synth.Config{
		Layers: 1, Embd: 64, FF: 64, Heads: 2, KVHeads: 2, Vocab: 300, Ctx: 64, Type: gguf.Q8_0, Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "a name")
	if err := plan.WriteFile(t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "no.gguf")
	if err := os.WriteFile(other, make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	mapped := map[string][]byte{}
	for _, p := range []string{path, other} {
		f, err := os.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if mapped[p], err = unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED); err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(mapped[p])
	}
	base := func(mapping []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&mapping[0]))) }
	bases := []uint64{base(mapped[path])}
	list := MappedBy(os.Getpid())
	for again := range 2 {
		if again > 0 { // a target loads the model a second time
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			second, err := unix.Mmap(int(f.Fd()), 0, len(mapped[path]), unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Munmap(second)
			bases = append(bases, base(second))
			slices.Sort(bases)
		}
		m, err := list()
		if err != nil {
			t.Fatal(err)
		}
		at := Mapped{path, readFileID(t, path), bases[0], bases[1:]}
		if len(m.Files) != 1 || len(m.Mapped) != 1 || fmt.Sprint(m.Mapped[0]) != fmt.Sprint(at) {
			t.Fatalf("found %+v, want one file, %+v", m, at)
		}
		for _, b := range bases {
			if !m.Maps(b) || m.Maps(b+1) {
				t.Errorf("it maps the file at %x: %t, and at one byte behind: %t", b, m.Maps(b), m.Maps(b+1))
			}
		}
		part, err := gguf.OpenPart(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := pattern.FilesOf(part)
		if err != nil || m.Files[0] != want[0] {
			t.Errorf("files %+v, want %+v, %v", m.Files, want, err)
		}
	}
	if _, err := MappedBy(1 << 22)(); !errors.Is(err, proc.ErrNoProcess) {
		t.Errorf("a process that does not exist: %v, want %v", err, proc.ErrNoProcess)
	}
}

// TestMappedByBeginning checks that a process that begins a program, and so maps no file for a moment, is not taken for
// one that has ended.
func TestMappedByBeginning(t *testing.T) {
	for range 300 {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, err := MappedBy(cmd.Process.Pid)()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestMappedByEnded checks that a process that has ended is not taken for one that has unmapped its model, until its
// parent waits for it and /proc forgets it.
func TestMappedByEnded(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	list := MappedBy(cmd.Process.Pid)
	if _, err := list(); err != nil {
		t.Errorf("before it ends: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "the process to end", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
		return err == nil && len(text) == 0
	})
	if _, err := list(); !errors.Is(err, proc.ErrNoProcess) {
		t.Errorf("the error is %v, want %v", err, proc.ErrNoProcess)
	}
	_ = cmd.Wait()
}

// A split model is whole once all of its parts are mapped. With a draft model beside it no model counts as whole,
// because nobody knows which one computes.
func TestWholeModel(t *testing.T) {
	part := func(split ...uint16) *gguf.File {
		path := filepath.Join(t.TempDir(), "part.gguf")
		m := gguftest.Model{Tensors: []gguftest.Tensor{{Name: "a", Type: gguf.F32, Shape: []int64{256}}}}
		if split != nil {
			m.KVs = []gguftest.KV{{Key: "split.no", Value: split[0]}, {Key: "split.count", Value: split[1]}}
		}
		m.Write(t, path)
		opened, err := gguf.OpenPart(path)
		if err != nil {
			t.Fatal(err)
		}
		return opened.Files[0]
	}
	one, first, second := part(), part(0, 2), part(1, 2)
	for _, tc := range []struct {
		parts []*gguf.File
		whole bool
	}{
		{nil, false},
		{[]*gguf.File{one}, true},
		{[]*gguf.File{part(0, 1)}, true},
		{[]*gguf.File{one, one}, false},
		{[]*gguf.File{first}, false},
		{[]*gguf.File{first, second}, true},
		{[]*gguf.File{first, second, one}, false},
		{[]*gguf.File{first, one}, false},
	} {
		if got := (&Model{Parts: tc.parts}).IsWhole(); got != tc.whole {
			t.Errorf("IsWhole of %d parts = %v, want %v", len(tc.parts), got, tc.whole)
		}
	}
}
