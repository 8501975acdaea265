package ebpf

// This file asks a process which files it maps, and a command which libraries it is likely to load.

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tensorcast/trace"
)

// ErrNoProcess says that the target does not exist (any more).
var ErrNoProcess = errors.New("no such process")

// mapping is a file that a process maps.
type mapping struct {
	path       string // as the process sees it
	start, end uint64
	offset     uint64
	executable bool
	file       trace.FileID // as the memory map has it, which on overlayfs and btrfs is not the kernel's own
}

// open is where this process can open the mapped file: by its path in the target's root, or, if it has been replaced there or
// lies in another mount namespace, through the mapping itself (which needs CAP_CHECKPOINT_RESTORE).
func (m *mapping) open(pid int) string {
	path := hostPath(pid, m.path)
	if key, err := keyOf(path); err == nil && key.ino == m.file.Ino {
		return path
	}
	link := fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.start, m.end)
	if _, err := os.Stat(link); err == nil {
		return link
	}
	return path
}

// mappings lists the file mappings of a process.
func mappings(pid int) ([]mapping, error) {
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
	var files []mapping
	for _, m := range maps {
		if m.Inode == 0 || !strings.HasPrefix(m.Pathname, "/") {
			continue
		}
		files = append(files, mapping{path: m.Pathname, start: uint64(m.StartAddr), end: uint64(m.EndAddr), offset: uint64(m.Offset), executable: m.Perms.Execute,
			file: fileKey{m.Dev, m.Inode}.kernelFile()})
	}
	return files, nil
}

// hostPath is where this process finds a file that the target knows as path: the target may live in a container.
func hostPath(pid int, path string) string {
	inside := filepath.Join("/proc", fmt.Sprint(pid), "root", path)
	if _, err := os.Stat(inside); err == nil {
		return inside
	}
	return path
}

// fileKey identifies a file across paths.
type fileKey struct{ dev, ino uint64 }

func keyOf(path string) (fileKey, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileKey{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return fileKey{uint64(st.Dev), st.Ino}, nil
}

// kernelFile converts stat's device number to the kernel's own, which events carry.
func (k fileKey) kernelFile() trace.FileID {
	return trace.FileID{Dev: uint64(unix.Major(k.dev))<<20 | uint64(unix.Minor(k.dev)), Ino: k.ino}
}

// likelyLibraries lists the llama.cpp libraries that a program finds by itself: beside it, in its run path and in
// LD_LIBRARY_PATH. Probes can be set on them before the program loads them; no event of the first token is missed.
func likelyLibraries(exe string, env []string) []string {
	dir := filepath.Dir(exe)
	dirs := []string{dir, filepath.Join(dir, "lib"), filepath.Join(dir, "..", "lib")}
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "LD_LIBRARY_PATH="); ok {
			dirs = append(dirs, filepath.SplitList(v)...)
		}
	}
	dirs = append(dirs, runPath(exe, dir)...)
	var files []string
	for _, d := range dirs {
		for _, pattern := range []string{"libggml*.so*", "libllama*.so*"} {
			found, err := filepath.Glob(filepath.Join(d, pattern))
			if err == nil {
				files = append(files, found...)
			}
		}
	}
	return files
}

func runPath(exe, origin string) []string {
	f, err := elf.Open(exe)
	if err != nil {
		return nil
	}
	defer f.Close()
	var dirs []string
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		entries, err := f.DynString(tag)
		if err != nil {
			continue
		}
		for _, e := range entries {
			for _, d := range filepath.SplitList(e) {
				d = strings.ReplaceAll(d, "${ORIGIN}", origin)
				dirs = append(dirs, strings.ReplaceAll(d, "$ORIGIN", origin))
			}
		}
	}
	return dirs
}
