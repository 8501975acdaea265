package proc

// This file asks a process which files it maps.

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

// ErrNoProcess says that the target does not exist (any more).
var ErrNoProcess = errors.New("no such process")

// Mapping is a file that a process maps.
type Mapping struct {
	Path       string // as the process sees it
	Start, End uint64 // addresses
	Offset     uint64 // byte of the file at Start
	Executable bool
	File       FileID // as the memory map has it, which on overlayfs and btrfs is not the kernel's own
}

// FileID identifies a file by the numbers of its device and its inode. The device is in the kernel's form, as tracepoints have it:
// major<<20 | minor.
type FileID struct{ Dev, Ino uint64 }

// HostPath is where this process can open the mapped file: by its path (see HostPath), or, if it has been replaced there or lies in another
// mount namespace, through the mapping itself (which needs CAP_CHECKPOINT_RESTORE).
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

// Mappings lists the file mappings of a process.
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

// HostPath is where this process can open a file that process pid knows as path. The process may have another root directory (a container):
// then the file is found below /proc/<pid>/root, as long as the process is there. Where both paths lead to the same file, it is path, which
// outlives the process. ino is the file's inode if it is known, else 0; a file of another inode is taken only if there is no better one. The
// device is not compared: on overlayfs and btrfs a memory map has another one than stat.
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

// FileOf identifies the file at path, a symbolic link followed.
func FileOf(path string) (FileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return FileID{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return kernelFile(uint64(st.Dev), st.Ino), nil
}

// kernelFile converts stat's device number to the kernel's own.
func kernelFile(dev, ino uint64) FileID {
	return FileID{Dev: uint64(unix.Major(dev))<<20 | uint64(unix.Minor(dev)), Ino: ino}
}

// CommandLine is the command line of a process; nil for one that is gone, or a thread of the kernel.
func CommandLine(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(data) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
}
