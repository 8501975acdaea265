package proc

// This file parses texts of /proc whose content another process can choose in part: names of mapped
// files, command lines, environments.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxText bounds the bytes that are read of a command line or an environment. execve bounds
	// them by the stack's limit, usually 2 MiB. But a process with a user namespace of its own can
	// declare gigabytes of its memory to be its arguments (PR_SET_MM_MAP).
	maxText = 1 << 20

	// maxMaps bounds the bytes that are read of a memory map. Usual ones have some 100 KB. A
	// process can make 65,530 mappings with names of 4 KB each.
	maxMaps = 64 << 20
)

var errMaps = errors.New("not a line of a memory map")

// Area is a piece of a process's address space.
type Area struct {
	// Mapping has no file for memory that belongs to none. Then File.Ino is 0, and Path is "" or
	// the kernel's name for it ("[heap]").
	Mapping
	Readable, Writable, Shared bool // Shared is false for a private mapping
}

// readMappings returns the mappings of files in the text of /proc/PID/maps.
func readMappings(r io.Reader) ([]Mapping, error) {
	var files []Mapping
	paths := map[string]string{} // a file is mapped in several pieces
	err := EachArea(r, func(a *Area) {
		if a.File.Ino == 0 || !strings.HasPrefix(a.Path, "/") {
			return
		}
		if path, ok := paths[a.Path]; ok {
			a.Path = path
		} else {
			a.Path = strings.Clone(a.Path) // not the whole line
			paths[a.Path] = a.Path
		}
		files = append(files, a.Mapping)
	})
	return files, err
}

// EachArea parses the text of /proc/PID/maps and calls visit for each line, in the order of
// addresses. visit may keep the area, but should clone its Path, which is a part of the whole line.
// A line looks like this:
//
//	55d0c6a00000-55d0c6a02000 r-xp 00001000 08:01 1234       /usr/bin/a name  with spaces
//
// The kernel writes a line feed in a name as \012 and everything else as it is. So the four
// characters \012 in a name are taken for a line feed, too.
func EachArea(r io.Reader, visit func(*Area)) error {
	all := &io.LimitedReader{R: r, N: maxMaps}
	lines := bufio.NewScanner(all)
	lines.Buffer(nil, 64<<10) // a name has up to 4096 bytes, each of which may be written as four
	for lines.Scan() {
		a, err := parseArea(lines.Text())
		if err != nil {
			return fmt.Errorf("%w: %.200q", err, lines.Text())
		}
		visit(&a)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if all.N == 0 {
		return fmt.Errorf("it has more than %d MiB", maxMaps>>20)
	}
	return nil
}

// parseArea parses one line of /proc/PID/maps.
func parseArea(line string) (m Area, err error) {
	var fields [5]string
	rest := line
	for i := range fields {
		var ok bool
		if fields[i], rest, ok = strings.Cut(rest, " "); !ok && i < len(fields)-1 {
			return m, errMaps
		}
	}
	parseNumbers := func(text string, separator string, base int, into ...*uint64) {
		for i, part := range strings.SplitN(text, separator, len(into)) {
			n, parseErr := strconv.ParseUint(part, base, 64)
			if parseErr != nil {
				err = errMaps
			}
			*into[i] = n
			if i == len(into)-1 {
				return
			}
		}
		err = errMaps
	}
	var major, minor uint64
	parseNumbers(fields[0], "-", 16, &m.Start, &m.End)
	parseNumbers(fields[2], "-", 16, &m.Offset)
	parseNumbers(fields[3], ":", 16, &major, &minor)
	parseNumbers(fields[4], "-", 10, &m.File.Ino)
	if err != nil || len(fields[1]) != 4 || m.Start >= m.End || major >= 1<<12 || minor >= 1<<20 {
		return Area{}, errMaps
	}
	permissions := fields[1]
	m.Readable, m.Writable, m.Executable = permissions[0] == 'r', permissions[1] == 'w', permissions[2] == 'x'
	m.Shared = permissions[3] == 's'
	m.File.Dev = major<<20 | minor
	m.Path = strings.ReplaceAll(strings.TrimLeft(rest, " "), `\012`, "\n")
	return m, nil
}

// splitAtZeros splits a text of words, each of which the kernel ends with a zero byte.
func splitAtZeros(data []byte) []string {
	if len(data) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
}

// CommandLine is the command line of a process, at most the first MiB of it; nil if the process has
// ended or is a kernel thread.
func CommandLine(pid int) []string {
	data, err := readText(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	return splitAtZeros(data)
}

// Environ is the environment that a process was started with, at most the first MiB of it. The
// error is ErrNoProcess if it has ended.
func Environ(pid int) ([]string, error) {
	data, err := readText(fmt.Sprintf("/proc/%d/environ", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	}
	if err != nil {
		return nil, fmt.Errorf("read the environment of process %d: %w", pid, err)
	}
	return splitAtZeros(data), nil
}

// readText reads a file of /proc, at most the first MiB of it.
func readText(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxText))
}
