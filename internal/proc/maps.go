package proc

// This file lists the files that a process maps, and finds them in this process's file system.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

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

// FileID identifies a file by device and inode number. The device number has the kernel's form, as
// in tracepoints: major<<20 | minor.
type FileID struct{ Dev, Ino uint64 }

// Locate finds a path by which this process can open the mapped file. A name alone is not enough:
// it may lead to another file in the process's mount namespace, or by now. So the file is compared
// with the kernel's own link to the mapping (/proc/PID/map_files). That needs
// CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN; without it only the inode number in the memory map is
// compared. If no name leads to the file, the path is the link, which is gone once the process has
// ended.
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
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	var files []Mapping
	if err == nil {
		defer maps.Close()
		files, err = readMappings(maps)
	}
	if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	}
	if err != nil {
		return nil, fmt.Errorf("read the memory map of process %d: %w", pid, err)
	}
	return files, nil
}

// HasMemory says whether a process has an address space. One that has ended has none (exit_mm, kernel/exit.c), though
// /proc knows it until its parent waits for it. One that begins a program has its stack before it maps the program's
// file (begin_new_exec, fs/exec.c): it maps no file for a moment, and has not ended.
func HasMemory(pid int) bool {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return false
	}
	defer maps.Close()
	n, _ := maps.Read(make([]byte, 1))
	return n > 0
}

// Place is where this process can open a file that another process uses.
type Place struct {
	Path string
	ID   FileID // from stat; zero if the file is not known to be at Path
}

// ErrOtherFile says that a path leads to another file than the one that was meant.
var ErrOtherFile = errors.New("another file than the one that the process uses")

// Open opens the file for reading if it is regular and the one that was meant, see [regular.Open].
// All errors are [*fs.PathError].
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

// Check compares an open file with the one that was meant. Its error is a [*fs.PathError] that
// wraps ErrOtherFile or fstat's error.
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

// Locate finds the file that process pid calls path. If that process has another root directory (a
// container), the file is found below /proc/<pid>/root, as long as the process exists. If both
// paths lead to the same file, it is at path, which remains valid after the process has ended. ino
// is the file's inode number, or 0 if unknown. Device numbers are not compared, because on
// overlayfs and btrfs those in a memory map differ from stat's.
func Locate(pid int, path string, ino uint64) Place {
	return locate(pid, path, func(f FileID) bool { return ino == 0 || f.Ino == ino })
}

// locate is Locate with a condition that the file must meet.
func locate(pid int, path string, matches func(FileID) bool) Place {
	inside := filepath.Join("/proc", strconv.Itoa(pid), "root", path)
	in, inErr := FileOf(inside)
	here, hereErr := FileOf(path)
	switch {
	case inErr == nil && matches(in) && hereErr == nil && in == here:
		return Place{path, in}
	case inErr == nil && matches(in):
		return Place{inside, in}
	case hereErr == nil && matches(here):
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

// IDOf identifies the file that info describes. info must come from os.Stat or File.Stat.
func IDOf(info fs.FileInfo) FileID {
	st := info.Sys().(*syscall.Stat_t) // as package os documents for Linux
	return kernelFile(uint64(st.Dev), st.Ino)
}

// kernelFile converts stat's device number to the kernel's form.
func kernelFile(dev, ino uint64) FileID {
	return FileID{Dev: uint64(unix.Major(dev))<<20 | uint64(unix.Minor(dev)), Ino: ino}
}
