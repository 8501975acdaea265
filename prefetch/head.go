package prefetch

// This file reads the head of a model ahead of a target that has not been let run yet, or has not mapped the model: the disk would have nothing to do meanwhile.

import (
	gocontext "context"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"tensorcast/gguf"
	"tensorcast/internal/regular"
)

// Head is the head of a model file.
type Head struct {
	file  *os.File
	bytes int64
}

// NamedHead is the head of the largest GGUF file that the arguments of a command name, alone or as --flag=file; nil if they name none. It is what fits in room, and in budget if that is
// not 0. Close it. What cannot be read is left to the command, as is every error.
func NamedHead(args []string, room Room, budget int64) *Head {
	largest := namedHead(args)
	if largest == nil {
		return nil
	}
	largest.bytes = min(room.Keepable(), largest.bytes)
	if budget > 0 {
		largest.bytes = min(largest.bytes, budget)
	}
	return largest
}

// NamedModel is the path of the file that NamedHead opens; empty if there is none.
func NamedModel(args []string) string {
	h := namedHead(args)
	if h == nil {
		return ""
	}
	defer h.Close() // nothing was written
	return h.file.Name()
}

func namedHead(args []string) (largest *Head) {
	for _, arg := range args {
		if _, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(arg, "-") {
			arg = value
		}
		if filepath.Ext(arg) != ".gguf" { // else each argument would be opened
			continue
		}
		h := openHead(arg)
		if h == nil {
			continue
		}
		if largest == nil || h.bytes > largest.bytes {
			h, largest = largest, h
		}
		if h != nil {
			_ = h.Close() // nothing was written
		}
	}
	return largest
}

// openHead opens a file, of which all is the head; nil if it is none, or no GGUF file as far as its first bytes tell: to parse it would wait for the disk.
func openHead(path string) *Head {
	f, err := regular.Open(path)
	if err != nil {
		return nil
	}
	if info, err := f.Stat(); err == nil && gguf.Is(f) {
		return &Head{f, info.Size()}
	}
	_ = f.Close() // nothing was written
	return nil
}

// headStep is half of what is under way at a time: whatever else the target reads meanwhile, its libraries, waits no longer than for that.
const headStep = 8 << 20

// Read reads it into the page cache, in the order of the file, until ctx ends. It waits for the disk.
func (h *Head) Read(ctx gocontext.Context) {
	fd := int(h.file.Fd())
	if err := unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM); err != nil { // the wait below would read ahead by itself
		return
	}
	piece := pieceOf(h.file)
	var one [1]byte
	for step := int64(0); step < h.bytes && ctx.Err() == nil; step += headStep {
		end := min(step+headStep, h.bytes)
		for at := step; at < end; at += piece {
			if err := unix.Fadvise(fd, at, min(piece, end-at), unix.FADV_WILLNEED); err != nil {
				return
			}
		}
		if step > 0 {
			if _, err := h.file.ReadAt(one[:], step-1); err != nil { // the end of the step before
				return
			}
		}
	}
}

// Close closes it. What was read stays in the page cache.
func (h *Head) Close() error { return h.file.Close() }
