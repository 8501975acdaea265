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

// fakeDisk is a file that stands for a disk's setting, of 8192 KiB.
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
	if kib, err := readSetting(path); err != nil || kib != want {
		t.Errorf("the setting is %d, %v; want %d", kib, err, want)
	}
}

// The setting is changed for a moment. It is restored whatever comes of what is done meanwhile, unless
// somebody else has changed it.
func TestBriefly(t *testing.T) {
	path := fakeDisk(t)
	failed := errors.New("failed")
	for _, result := range []error{nil, failed} {
		err := withSetting(path, SmallKiB, func() error {
			checkDisk(t, path, SmallKiB)
			return result
		})
		if !errors.Is(err, result) {
			t.Errorf("withSetting: %v, want %v", err, result)
		}
		checkDisk(t, path, 8192)
	}
	if err := withSetting(path, SmallKiB, func() error { return os.WriteFile(path, []byte("256\n"), 0) }); err != nil {
		t.Error(err)
	}
	checkDisk(t, path, 256)
	// Here there is nothing to change.
	if err := withSetting(path, 256, func() error { return os.WriteFile(path, []byte("512\n"), 0) }); err != nil {
		t.Error(err)
	}
	checkDisk(t, path, 512)
}

// Of two processes that change the setting, one waits for the other. Otherwise it would restore the other's
// value.
func TestBrieflyBusy(t *testing.T) {
	path := fakeDisk(t)
	err := withSetting(path, SmallKiB, func() error {
		err := withSetting(path, 64, func() error { return errors.New("both at once") })
		checkDisk(t, path, SmallKiB)
		return err
	})
	if !errors.Is(err, errBusy) {
		t.Errorf("withSetting: %v, want errBusy", err)
	}
	checkDisk(t, path, 8192)
}

// A setting that is no size is an error.
func TestDiskRefuses(t *testing.T) {
	path := fakeDisk(t)
	for _, text := range []string{"", "\n", "much\n", "-1\n", "99999999999999999999\n"} {
		if err := os.WriteFile(path, []byte(text), 0); err != nil {
			t.Fatal(err)
		}
		err := withSetting(path, SmallKiB, func() error { return errors.New("it was done") })
		if err == nil || strings.Contains(err.Error(), "done") {
			t.Errorf("%q: %v, want an error before anything is done", text, err)
		}
	}
	if err := withSetting(filepath.Join(t.TempDir(), "none"), SmallKiB, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a setting: %v, want %v", err, os.ErrNotExist)
	}
}

// Undoing does not change the disk's setting where that is what it was when the target opened its file, or
// advised FADV_SEQUENTIAL.
func TestUndo(t *testing.T) {
	path := fakeDisk(t)
	for was, want := range map[int64]string{
		8192:  "8192 KiB, advice 0", // FADV_NORMAL
		16384: "8192 KiB, advice 2", // FADV_SEQUENTIAL
		256:   "256 KiB, advice 0",
	} {
		got := ""
		s := setting{Disk: path, Now: 4096, Was: was}
		if err := s.undo(nil, func(_ *os.File, advice int) error {
			kib, err := readSetting(path)
			got += fmt.Sprintf("%d KiB, advice %d", kib, advice)
			return err
		}); err != nil || got != want {
			t.Errorf("%d: %s, %v; want %s", was, got, err, want)
		}
		checkDisk(t, path, 8192)
	}
}
