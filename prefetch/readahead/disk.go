package readahead

// This file changes the readahead of a disk for a moment. That setting is everybody's: whoever opens a file
// in that moment gets it, too.

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// disk is the readahead of a disk in KiB, the file read_ahead_kb of its bdi. The file is locked, so that two
// processes that change it for a moment do not restore each other's values.
type disk struct{ *os.File }

// settingPath is the path of a disk's setting. dev is the kernel's number of the disk (major<<20 | minor). A
// file system on several disks (btrfs) has no setting.
func settingPath(dev uint64) string {
	return fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", dev>>20, dev&(1<<20-1))
}

// Somebody else may be changing the setting. Then the lock is tried for lockTime.
const (
	lockTime = 200 * time.Millisecond
	lockStep = time.Millisecond
)

// errBusy says that somebody else has the setting locked.
var errBusy = errors.New("somebody else is changing the disk's readahead")

// lockDisk opens and locks a setting. The lock is on its inode (flock), which all processes that see the same
// sysfs have in common.
func lockDisk(path string) (disk, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return disk{}, fmt.Errorf("the disk's readahead: %w", err)
	}
	for until := time.Now().Add(lockTime); ; time.Sleep(lockStep) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return disk{f}, nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(until):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			err = errBusy
		}
		return disk{}, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
}

// readSetting reads a setting.
func readSetting(path string) (kib int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("the disk's readahead: %w", err)
	}
	defer f.Close()
	return disk{f}.read()
}

func (d disk) read() (kib int64, err error) {
	var text [32]byte
	n, err := d.ReadAt(text[:], 0)
	if n == 0 {
		return 0, fmt.Errorf("read %s: %w", d.Name(), err)
	}
	line, _, _ := strings.Cut(string(text[:n]), "\n")
	if kib, err = strconv.ParseInt(line, 10, 64); err != nil || kib < 0 {
		return 0, fmt.Errorf("read %s: %q is no size", d.Name(), line)
	}
	return kib, nil
}

func (d disk) write(kib int64) error {
	if _, err := d.WriteAt([]byte(strconv.FormatInt(kib, 10)+"\n"), 0); err != nil {
		return fmt.Errorf("set the disk's readahead to %d KiB: %w", kib, err)
	}
	return nil
}

// withSetting calls do while the setting is kib. Then it restores the setting, unless somebody has changed it
// meanwhile.
func withSetting(path string, kib int64, do func() error) (err error) {
	d, err := lockDisk(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	was, err := d.read()
	if err != nil {
		return err
	}
	if was == kib {
		return do()
	}
	if err := d.write(kib); err != nil {
		return err
	}
	err = do()
	return errors.Join(err, d.restore(kib, was))
}

// restore sets the setting to what it was, if it is still ours.
func (d disk) restore(ours, was int64) error {
	now, err := d.read()
	if err == nil && now != ours {
		return nil
	}
	return errors.Join(err, d.write(was))
}

// restoreDisk restores a setting for somebody who was killed while it was ours.
func restoreDisk(path string, ours, was int64) (err error) {
	d, err := lockDisk(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.restore(ours, was)
}
