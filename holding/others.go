package holding

// This file looks for other processes that map the same files.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"tensorcast/internal/proc"
)

// maxOthersText bounds how many bytes of all processes' memory maps are read. Usual ones have some
// 100 KB, and few are read.
const maxOthersText = 256 << 20

// addOthers looks for processes that use pages of the models' files. It reads the memory maps of
// those that have as many pages of files in their page tables as would matter. So a machine with
// hundreds of processes costs little. A process that maps a model and does not touch it does not
// matter: it keeps nobody from paging it out.
//
// Files are compared by device and inode number, as the kernel has them in memory maps. Two
// containers whose overlay file systems have a file of one layer in common use the same pages under
// different numbers. That is not noticed.
func (s system) addOthers(ctx context.Context, pid int, models []*model, h *Holding) error {
	ids := map[proc.FileID]bool{}
	var weights int64 // a process that computes has all of them but the tables in its page tables
	for _, m := range models {
		ids[m.file.ID] = true
		weights += m.file.Weights
	}
	dir, err := os.Open(filepath.Join(s.root, "proc"))
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("list the processes: %w", err)
	}
	left := int64(maxOthersText)
	for _, name := range names {
		other, err := strconv.Atoi(name)
		if err != nil || other == pid || other == os.Getpid() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.filePages(other) <= (weights-h.Tables)/negligible {
			continue
		}
		if left <= 0 || len(h.Others) == maxNames {
			h.OthersCut = true
			return nil
		}
		found, read, err := s.mapsOneOf(other, ids)
		left -= read
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // not allowed, or too much
			h.OthersCut = true
		}
		if found && !s.isOwnTool(other) {
			h.Others = append(h.Others, Other{other, s.processName(other)})
		}
	}
	return nil
}

// filePages is how many bytes of files a process has in its page tables; 0 if it has ended.
func (s system) filePages(pid int) int64 {
	data, err := os.ReadFile(s.path(pid, "statm"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 3 {
		return 0
	}
	n, err := strconv.ParseUint(fields[2], 10, 64)
	if err != nil {
		return 0
	}
	return clampBytes(min(n, maxBytes/uint64(pageSize)) * uint64(pageSize))
}

var pageSize = os.Getpagesize()

// mapsOneOf reports whether a process maps one of the files, and how many bytes were read to find out.
func (s system) mapsOneOf(pid int, ids map[proc.FileID]bool) (found bool, read int64, err error) {
	f, err := os.Open(s.path(pid, "maps"))
	if err != nil {
		return false, 0, err
	}
	defer f.Close()
	text := &countingReader{r: f}
	err = proc.EachArea(text, func(a *proc.Area) { found = found || a.File.Ino != 0 && ids[a.File] })
	return found, text.n, err
}

// isOwnTool says whether a process is a prefetchd or tracer. One that maps a model does so for a target, which is
// found itself.
func (s system) isOwnTool(pid int) bool {
	f, err := os.Open(s.path(pid, "exe"))
	if err != nil {
		return false
	}
	defer f.Close()
	return proc.IsOwnTool(f)
}

// countingReader counts the bytes that are read.
type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// processName is the name that a process gives itself, at most 15 bytes.
func (s system) processName(pid int) string {
	data, err := os.ReadFile(s.path(pid, "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(data), "\n")
}
