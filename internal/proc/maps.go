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
	"syscall"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tensorcast/internal/regular"
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

// Locate finds the mapped file where this process can open it. The kernel's own link to the mapping tells which file that is
// (/proc/PID/map_files, which needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN): a name can lead elsewhere in the process's mount namespace, or by
// now. Where the link may not be followed, the inode number of the memory map has to do. The path is a name if one leads to that file, else
// the link, which is gone once the process has ended.
func (m *Mapping) Locate(pid int) Place {
	link := fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.Start, m.End)
	mapped, err := FileOf(link)
	if err != nil {
		return locate(pid, m.Path, func(f FileID) bool { return f.Ino == m.File.Ino })
	}
	if found := locate(pid, m.Path, func(f FileID) bool { return f == mapped }); found.ID == mapped {
		return found
	}
	return Place{link, mapped}
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

// Place is where this process can open a file that another process uses.
type Place struct {
	Path string
	ID   FileID // as stat tells it; zero if the file is not known to be at Path
}

// ErrOtherFile says that a name leads to another file than the one that was meant.
var ErrOtherFile = errors.New("another file than the one that the process uses")

// Open opens the file for reading if it is regular and the one that was meant, see [regular.Open]. All errors are [*fs.PathError].
func (p Place) Open() (*os.File, error) {
	f, err := regular.Open(p.Path)
	if err != nil {
		return nil, err
	}
	if err := p.Check(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Check compares an open file with the one that was meant. Its error is a [*fs.PathError] that wraps ErrOtherFile or fstat's error.
func (p Place) Check(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: p.Path, Err: err}
	}
	if p.ID != kernelFile(uint64(st.Dev), st.Ino) {
		return &fs.PathError{Op: "open", Path: p.Path, Err: ErrOtherFile}
	}
	return nil
}

// Locate finds the file that process pid calls path. If that process has another root directory (a container), the file is found below
// /proc/<pid>/root, as long as the process exists. If both paths lead to the same file, it is at path, which remains valid after the process
// has ended. ino is the file's inode number, or 0 if unknown. Device numbers are not compared, because on overlayfs and btrfs those in a
// memory map differ from stat's.
func Locate(pid int, path string, ino uint64) Place {
	return locate(pid, path, func(f FileID) bool { return ino == 0 || f.Ino == ino })
}

func locate(pid int, path string, fits func(FileID) bool) Place {
	inside := filepath.Join("/proc", strconv.Itoa(pid), "root", path)
	in, inErr := FileOf(inside)
	here, hereErr := FileOf(path)
	switch {
	case inErr == nil && fits(in) && hereErr == nil && in == here:
		return Place{path, in}
	case inErr == nil && fits(in):
		return Place{inside, in}
	case hereErr == nil && fits(here):
		return Place{path, here}
	}
	return Place{Path: path}
}

// FileOf identifies the file at path; a symbolic link is followed.
func FileOf(path string) (FileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return FileID{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return kernelFile(uint64(st.Dev), st.Ino), nil
}

// IDOf identifies the file that info, which os.Stat or File.Stat has returned, describes.
func IDOf(info fs.FileInfo) FileID {
	st := info.Sys().(*syscall.Stat_t) // as package os documents for Linux
	return kernelFile(uint64(st.Dev), st.Ino)
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
