package pressure

// This file finds the disk that a file is on: its name, its counters, its readahead.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/blockdevice"
	"golang.org/x/sys/unix"
)

// disk is a whole disk, because reads are accounted to disks, not partitions. A device-mapper volume counts as one.
type disk struct {
	name         string
	major, minor uint32
}

// diskOf finds the disk of a file.
func diskOf(path string) (disk, error) {
	d, err := findDisk(path)
	if err != nil {
		return disk{}, fmt.Errorf("find the disk of %s: %w", path, err)
	}
	return d, nil
}

func findDisk(path string) (disk, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return disk{}, err
	}
	dev := stat.Dev
	if unix.Major(dev) == 0 { // btrfs and others have device numbers of their own; the mount names the disk
		var err error
		if dev, err = mountedFrom(path); err != nil {
			return disk{}, err
		}
	}
	dir, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(dev), unix.Minor(dev)))
	if err != nil {
		return disk{}, err
	}
	if _, err := os.Stat(filepath.Join(dir, "partition")); err == nil {
		dir = filepath.Dir(dir)
	}
	text, err := os.ReadFile(filepath.Join(dir, "dev"))
	if err != nil {
		return disk{}, err
	}
	d := disk{name: filepath.Base(dir)}
	if _, err := fmt.Sscanf(string(text), "%d:%d", &d.major, &d.minor); err != nil {
		return disk{}, fmt.Errorf("%s/dev: %w", dir, err)
	}
	return d, nil
}

// mountedFrom returns the number of the block device that the file system at path is mounted from.
func mountedFrom(path string) (uint64, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return 0, err
	}
	mounts, err := procfs.GetMounts()
	if err != nil {
		return 0, err
	}
	source, longest := "", -1
	for _, m := range mounts {
		point := strings.TrimSuffix(m.MountPoint, "/")
		// Of two mounts at one point, the later one hides the earlier.
		if (path == point || strings.HasPrefix(path, point+"/")) && len(point) >= longest {
			source, longest = m.Source, len(point)
		}
	}
	var stat unix.Stat_t
	if err := unix.Stat(source, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, errors.New("it is not on a disk of its own (overlay, network, memory): put the model on one")
	}
	return stat.Rdev, nil
}

// sector is the unit of the kernel's counters in bytes, for every disk.
const sector = 512

// readBytes returns how many bytes all processes have read from the disk.
func (d disk) readBytes() (int64, error) {
	fs, err := blockdevice.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	stat, _, err := fs.SysBlockDeviceStat(d.name)
	if err != nil {
		return 0, fmt.Errorf("counters of disk %s: %w", d.name, err)
	}
	return int64(stat.ReadSectors) * sector, nil
}

func (d disk) readaheadFile() string {
	return filepath.Join("/sys/block", d.name, "queue/read_ahead_kb")
}

// readahead is how far the kernel reads ahead in a newly opened file, in KiB.
func (d disk) readahead() (int, error) {
	text, err := os.ReadFile(d.readaheadFile())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func (d disk) setReadahead(kib int) error {
	if err := os.WriteFile(d.readaheadFile(), []byte(strconv.Itoa(kib)), 0); err != nil {
		return fmt.Errorf("set the readahead of %s to %d KiB: %w", d.name, kib, err)
	}
	return nil
}
