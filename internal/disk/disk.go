// Package disk says which disk a file system's device is, so that what was measured of a disk is not taken for that of
// another ([Find]), and keeps what was measured ([Speeds]).
//
// A device number does not say that. The kernel gives out anonymous ones (major number 0: tmpfs, overlayfs, btrfs,
// FUSE, NFS) at each mount, and those of disks in the order in which it finds them at boot.
package disk

// This file finds out what a disk is.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tensorcast/internal/mounts"
	"tensorcast/internal/regular"
)

// Disk is what a file system reads from.
type Disk struct {
	// Identity is the same text for the same disk, across mounts and boots: "serial S3EVNX0J504, 500107862016 bytes",
	// "btrfs on serial S3EVNX0J504, 500107862016 bytes", "nfs4 server:/models". It is "" if the kernel does not tell
	// what identifies it.
	Identity string
	InMemory bool // its files are memory (tmpfs): there is no disk
}

// System is where the kernel tells of disks.
type System struct {
	Sys       string // /sys
	MountInfo string // /proc/self/mountinfo
}

// here is the system that this process sees.
var here = System{"/sys", mounts.Here}

// Find says what disk a device is. number is the kernel's, major<<20 | minor, as in tracepoints and in memory maps;
// stat has another one on btrfs and overlayfs. An overlay has no disk of its own: its files have the numbers of the
// layers below.
func Find(number uint64) (Disk, error) { return here.Find(number) }

// maxDepth bounds how many disks may lie in files of other ones.
const maxDepth = 4

// Find is the function Find, of a system.
func (s System) Find(number uint64) (Disk, error) { return s.find(number, maxDepth) }

func (s System) find(number uint64, depth int) (Disk, error) {
	major, minor := number>>20, number&(1<<20-1)
	if depth == 0 {
		return Disk{}, errors.New("disks lie in files of disks, over and over")
	}
	if major != 0 {
		return s.findBlock(fmt.Sprintf("%d:%d", major, minor), depth)
	}
	kind, source, err := s.findMount(fmt.Sprintf("%d:%d", major, minor))
	if err != nil {
		return Disk{}, err
	}
	switch {
	case kind == "tmpfs" || kind == "ramfs" || kind == "hugetlbfs":
		return Disk{InMemory: true}, nil
	case strings.HasPrefix(source, "/dev/") && !strings.HasPrefix(kind, "fuse"):
		var st unix.Stat_t
		if err := unix.Stat(source, &st); err != nil {
			return Disk{}, fmt.Errorf("look at %s: %w", source, err)
		}
		below, err := s.find(kernelNumber(st.Rdev), depth-1)
		return below.below(kind), err
	case kind == "overlay" || source == "" || source == "none" || source == kind:
		return Disk{}, nil
	}
	return Disk{Identity: kind + " " + source}, nil // what a server or a program delivers
}

// below is a disk that is read by way of something else.
func (d Disk) below(what string) Disk {
	if d.Identity != "" {
		d.Identity = what + " on " + d.Identity
	}
	return d
}

// kernelNumber converts a device number of stat to the kernel's form.
func kernelNumber(dev uint64) uint64 { return uint64(unix.Major(dev))<<20 | uint64(unix.Minor(dev)) }

// identities are the files in which the kernel says what a disk is, below its directory, the best first: of the device
// mapper, of RAID, of NVMe, of SCSI, of virtio, and of memory cards.
var identities = []struct{ file, name string }{
	{"dm/uuid", "dm"}, {"md/uuid", "md"}, {"wwid", "wwid"}, {"device/wwid", "wwid"}, {"serial", "serial"},
	{"device/serial", "serial"}, {"device/cid", "cid"},
}

// findBlock says what a block device is, or the disk of which it is a partition.
func (s System) findBlock(number string, depth int) (Disk, error) {
	dir, err := filepath.EvalSymlinks(filepath.Join(s.Sys, "dev/block", number))
	if err != nil {
		return Disk{}, fmt.Errorf("look for the disk %s: %w", number, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "partition")); err == nil {
		dir = filepath.Dir(dir)
	}
	if file := readLine(filepath.Join(dir, "loop/backing_file")); file != "" {
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil {
			return Disk{}, fmt.Errorf("look at the file behind %s: %w", filepath.Base(dir), err)
		}
		below, err := s.find(kernelNumber(st.Dev), depth-1)
		return below.below("loop"), err
	}
	for _, i := range identities {
		if text := readLine(filepath.Join(dir, i.file)); text != "" {
			// Virtual disks may all have the same serial number.
			sectors, _ := strconv.ParseInt(readLine(filepath.Join(dir, "size")), 10, 64)
			return Disk{Identity: fmt.Sprintf("%s %s, %d bytes", i.name, text, sectors*512)}, nil
		}
	}
	return Disk{}, nil
}

// readLine returns the only line of a small file, "" if there is none.
func readLine(path string) string {
	text, err := regular.Read(path, 4096)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// findMount returns the type and the source of a mount of a device.
func (s System) findMount(number string) (kind, source string, err error) {
	all, err := mounts.Read(s.MountInfo)
	if err != nil {
		return "", "", err
	}
	i := slices.IndexFunc(all, func(m mounts.Mount) bool { return m.Device == number })
	if i < 0 {
		return "", "", fmt.Errorf("find where device %s is mounted: %w", number, fs.ErrNotExist)
	}
	return all[i].Type, all[i].Source, nil
}
