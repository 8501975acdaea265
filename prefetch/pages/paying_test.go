package pages

// This file tests on the real kernel who pays for pages.

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/testenv"
)

// A group pays for what its processes have read first, whoever maps it.
func TestPayingGroup(t *testing.T) {
	testenv.NeedRoot(t)
	if _, err := os.Stat("/proc/kpagecgroup"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("this kernel does not tell who pays for pages")
	}
	// The parts lie so far from each other that no readahead goes from one to the other.
	const size, part, second = 128 * mib, 4 * mib, 64 * mib
	path := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(path, make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
	k, err := NewKernel(os.Getpid(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}()
	file, _, err := k.Open(path, idOf(t, path))
	if err != nil {
		t.Fatal(err)
	}
	f := k.files[file].File
	drop := func() {
		t.Helper()
		if left, err := pagecache.Drop(t.Context(), f); left > 0 || err != nil {
			t.Fatalf("%d bytes stay in memory: %v", left, err)
		}
	}
	expectUnmapped := func() {
		t.Helper()
		expectNoneMapped(t, k, Range{file, 0, size})
	}
	drop()
	var groups [2]uint64
	for i := range groups {
		groups[i] = readInGroup(t, path, int64(i)*second, part)
	}
	expect := func(what string, r Range, want uint64) {
		t.Helper()
		if got, err := k.PayingGroup(r); got != want || err != nil {
			t.Errorf("%s: group %d pays, %v; want %d", what, got, err, want)
		}
	}
	expect("the first part", Range{file, 0, part}, groups[0])
	expect("the second part", Range{file, second, part}, groups[1])
	expect("what ends within pages", Range{file, second + 5, mib}, groups[1])
	expectUnmapped()
	expect("what lies between", Range{file, second / 2, part}, 0)
	expect("nothing", Range{file, second, 0}, 0)
	readInGroup(t, path, 0, size) // all the rest
	expect("what three groups have read", Range{file, 0, size}, 0)
	if k.payers.frames == nil {
		t.Fatal("who pays was not asked for")
	}
	expectUnmapped()
	drop()
	expect("what is not in memory", Range{file, 0, part}, 0)
	if there, err := pagecache.Resident(f, 0, size); there > 0 || err != nil {
		t.Errorf("asking has read %d bytes, %v; want none", there, err)
	}
}

// expectNoneMapped expects that k's mapping of a file maps no page of a range. The target is this process.
func expectNoneMapped(t *testing.T, k *Kernel, r Range) {
	t.Helper()
	part := k.files[r.File].Part(r)
	touched, err := k.target.Touched(uint64(uintptr(unsafe.Pointer(unsafe.SliceData(part)))), r.Length)
	if err != nil || touched {
		t.Errorf("pages of %v are mapped: %v, %v; want none", r, touched, err)
	}
}

// readInGroup reads a part of a file by a process in a new control group. It returns the group's inode.
func readInGroup(t *testing.T, path string, offset, length int64) uint64 {
	t.Helper()
	root, err := cgroup.Root()
	if err != nil {
		t.Skip(err)
	}
	group, err := cgroup.Create(root, fmt.Sprintf("tensorcast-paying-%d-%d-%d", os.Getpid(), offset, length))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	join := `for file in "$@"; do echo $$ > $file || exit; done; exec dd bs=1M status=none of=/dev/null`
	join += fmt.Sprintf(" if=%s skip=%d count=%d", path, offset/mib, length/mib)
	args := append([]string{"-c", join, "sh"}, group.ProcsFiles()...)
	if out, err := exec.Command("/bin/sh", args...).CombinedOutput(); err != nil {
		t.Fatalf("read in a group: %v: %s", err, out)
	}
	inode, err := group.Inode()
	if err != nil {
		t.Fatal(err)
	}
	return inode
}
