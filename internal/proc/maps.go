package proc

// This file reads which files a process maps, and finds them.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// ErrNoProcess says that the process does not exist or has ended.
var ErrNoProcess = errors.New("no such process")

// Mapping is a file that a process maps.
type Mapping struct {
	Path       string // as the process sees it
	Start, End uint64 // address range
	Offset     uint64 // file offset of Start
	Executable bool
	File       FileID // as in the memory map; on overlayfs and btrfs the kernel's own numbers differ
}

// FileID identifies a file by device and inode number. The device number has the kernel's form, as in tracepoints: major<<20 | minor.
type FileID struct{ Dev, Ino uint64 }

// HostPath is a path with which this process can open the mapped file: that of HostPath below, or, if the file was replaced there or is in
// another mount namespace, one through the mapping itself (which needs CAP_CHECKPOINT_RESTORE).
func (m *Mapping) HostPath(pid int) string {
	path := HostPath(pid, m.Path, m.File.Ino)
	if key, err := FileOf(path); err == nil && key.Ino == m.File.Ino {
		return path
	}
	link := fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.Start, m.End)
	if _, err := os.Stat(link); err == nil {
		return link
	}
	return path
}

// Mappings lists the file mappings of a process. The error is ErrNoProcess if it has ended.
func Mappings(pid int) ([]Mapping, error) {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	}
	maps, err := proc.ProcMaps()
	if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	}
	if err != nil {
		return nil, fmt.Errorf("read the memory map of process %d: %w", pid, err)
	}
	var files []Mapping
	for _, m := range maps {
		if m.Inode == 0 || !strings.HasPrefix(m.Pathname, "/") {
			continue
		}
		files = append(files, Mapping{
			Path: m.Pathname, Start: uint64(m.StartAddr), End: uint64(m.EndAddr), Offset: uint64(m.Offset), Executable: m.Perms.Execute, File: kernelFile(m.Dev, m.Inode),
		})
	}
	return files, nil
}

// HostPath is a path with which this process can open the file that process pid calls path. If that process has another root directory (a
// container), the file is found below /proc/<pid>/root, as long as the process exists. If both paths lead to the same file, HostPath
// returns path, which remains valid after the process has ended. ino is the file's inode number, or 0 if unknown; a file with another inode
// is returned only if there is no better one. Device numbers are not compared, because on overlayfs and btrfs those in a memory map differ
// from stat's.
func HostPath(pid int, path string, ino uint64) string {
	inside := filepath.Join("/proc", strconv.Itoa(pid), "root", path)
	in, inErr := FileOf(inside)
	here, hereErr := FileOf(path)
	fits := func(f FileID, err error) bool { return err == nil && (ino == 0 || f.Ino == ino) }
	switch {
	case inErr == nil && hereErr == nil && in == here:
		return path
	case fits(in, inErr):
		return inside
	case fits(here, hereErr), inErr != nil:
		return path
	}
	return inside
}

// FileOf identifies the file at path; a symbolic link is followed.
func FileOf(path string) (FileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return FileID{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return kernelFile(uint64(st.Dev), st.Ino), nil
}

// kernelFile converts stat's device number to the kernel's form.
func kernelFile(dev, ino uint64) FileID {
	return FileID{Dev: uint64(unix.Major(dev))<<20 | uint64(unix.Minor(dev)), Ino: ino}
}

// CommandLine is the command line of a process; nil if the process has ended or is a kernel thread.
func CommandLine(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(data) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
}
