package readahead

// This file tests changes of a disk's setting, on a file that stands for it.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeDisk is a setting of 8192 KiB.
func fakeDisk(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "read_ahead_kb")
	if err := os.WriteFile(path, []byte("8192\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func checkDisk(t *testing.T, path string, want int64) {
	t.Helper()
	if kib, err := readDisk(path); err != nil || kib != want {
		t.Errorf("the setting is %d, %v; want %d", kib, err, want)
	}
}

// The setting is another one for a moment, and restored whatever becomes of what is done, unless somebody else has
// changed it.
func TestBriefly(t *testing.T) {
	path := fakeDisk(t)
	failed := errors.New("failed")
	for _, result := range []error{nil, failed} {
		err := briefly(path, SmallKiB, func() error {
			checkDisk(t, path, SmallKiB)
			return result
		})
		if !errors.Is(err, result) {
			t.Errorf("%v, want %v", err, result)
		}
		checkDisk(t, path, 8192)
	}
	if err := briefly(path, SmallKiB, func() error { return os.WriteFile(path, []byte("256\n"), 0) }); err != nil {
		t.Error(err)
	}
	checkDisk(t, path, 256)
	if err := briefly(path, 256, func() error { return os.WriteFile(path, []byte("512\n"), 0) }); err != nil { // there was nothing to change
		t.Error(err)
	}
	checkDisk(t, path, 512)
}

// Of two who change it, one waits for the other: else it would restore the other's value.
func TestBrieflyBusy(t *testing.T) {
	path := fakeDisk(t)
	err := briefly(path, SmallKiB, func() error {
		err := briefly(path, 64, func() error { return errors.New("both at once") })
		checkDisk(t, path, SmallKiB)
		return err
	})
	if !errors.Is(err, ErrBusy) {
		t.Errorf("%v, want ErrBusy", err)
	}
	checkDisk(t, path, 8192)
}

func TestDiskRefuses(t *testing.T) {
	path := fakeDisk(t)
	for _, text := range []string{"", "\n", "much\n", "-1\n", "99999999999999999999\n"} {
		if err := os.WriteFile(path, []byte(text), 0); err != nil {
			t.Fatal(err)
		}
		if err := briefly(path, SmallKiB, func() error { return errors.New("it was done") }); err == nil || strings.Contains(err.Error(), "done") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := briefly(filepath.Join(t.TempDir(), "none"), SmallKiB, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a setting: %v", err)
	}
}

// What is to be undone needs no change of the disk's where its setting is what it was when the target advised
// FADV_SEQUENTIAL, or opened its file.
func TestUndo(t *testing.T) {
	path := fakeDisk(t)
	for was, want := range map[int64]string{8192: "8192 KiB, advice 0", 16384: "8192 KiB, advice 2", 256: "256 KiB, advice 0"} { // FADV_NORMAL, FADV_SEQUENTIAL
		got := ""
		s := setting{Disk: path, Now: 4096, Was: was}
		if err := s.undo(nil, func(_ *os.File, advice int) error {
			kib, err := readDisk(path)
			got += fmt.Sprintf("%d KiB, advice %d", kib, advice)
			return err
		}); err != nil || got != want {
			t.Errorf("%d: %s, %v; want %s", was, got, err, want)
		}
		checkDisk(t, path, 8192)
	}
}
