package pages

// This file reads the head of a model ahead of a target that has not been let run yet, or has not mapped the model:
// the disk would have nothing to do meanwhile.

import (
	gocontext "context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tensorcast/gguf"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/regular"
)

// Head is the head of a model file.
type Head struct {
	file  *os.File
	size  int64 // of the file
	bytes int64 // of the head
	named int64
}

// NamedBytes is how many bytes all GGUF files have that the command names; 0 if one of them is a part of a split model, of
// which others may not be named.
func (h *Head) NamedBytes() int64 { return h.named }

// OpenNamedHead is the head of the largest GGUF file that the arguments of a command name, alone or as --flag=file; nil
// if they name none. It has at most so many bytes. Close it. What cannot be read is left to the command, as is every
// error.
func OpenNamedHead(args []string, most int64) *Head {
	largest := namedHead(args)
	if largest == nil {
		return nil
	}
	largest.bytes = min(most, largest.bytes)
	return largest
}

// FindNamedModel is the path of the file that OpenNamedHead opens; empty if there is none.
func FindNamedModel(args []string) string {
	h := namedHead(args)
	if h == nil {
		return ""
	}
	defer h.Close() // nothing was written
	return h.file.Name()
}

func namedHead(args []string) (largest *Head) {
	named, split := int64(0), false
	defer func() {
		if largest != nil && !split {
			largest.named = named
		}
	}()
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
		named += h.bytes
		split = split || gguf.IsPart(arg)
		if largest == nil || h.bytes > largest.bytes {
			h, largest = largest, h
		}
		if h != nil {
			_ = h.Close() // nothing was written
		}
	}
	return largest
}

// openHead opens a file, of which all is the head; nil if it is none, or no GGUF file as far as its first bytes tell:
// to parse it would wait for the disk.
func openHead(path string) *Head {
	f, err := regular.Open(path)
	if err != nil {
		return nil
	}
	if info, err := f.Stat(); err == nil && gguf.Is(f) {
		return &Head{file: f, size: info.Size(), bytes: info.Size()}
	}
	_ = f.Close() // nothing was written
	return nil
}

const (
	// headReads is how many faults read at once, each of them two large folios where all of the file is read: with
	// two the disk has to wait at times, with more, or with a folio each, the target's own reading comes in between.
	headReads = 3
	// headStep is half of what is under way at a time where single pages are read: whatever else the target reads
	// meanwhile, its libraries, waits no longer than for that.
	headStep = 8 << 20
)

// Read reads it into the page cache, in the order of the file, until ctx ends: by large folios, which take a third of
// the processor's time, or by pages where there are none. It waits for the disk.
func (h *Head) Read(ctx gocontext.Context) {
	m := &File{Path: h.file.Name(), File: h.file, Size: h.size, FolioBytes: pagecache.FolioBytes(), PieceBytes: pieceOf(h.file)}
	defer func() { _ = m.unmapAll() }() // it was mapped there
	if m.prepare() != nil {
		return
	}
	h.readPages(ctx, m, h.readFolios(ctx, m))
}

// readFolios reads large folios, as far as there are any, and returns where it ended.
func (h *Head) readFolios(ctx gocontext.Context, m *File) (end int64) {
	if m.FolioBytes == 0 {
		return 0
	}
	if h.bytes < h.size && m.oneByOne() != nil { // else what is behind the head is read, too
		return 0
	}
	folios := h.bytes / m.FolioBytes
	var next atomic.Int64
	var none atomic.Bool
	var looking sync.Mutex
	var reads sync.WaitGroup
	for range headReads {
		reads.Go(func() {
			for ctx.Err() == nil && !none.Load() {
				n := next.Add(1) - 1
				if n >= folios {
					return
				}
				r := Range{Offset: n * m.FolioBytes, Length: m.FolioBytes}
				if unix.Madvise(m.Part(r), unix.MADV_POPULATE_READ) != nil { // before Linux 5.14 there is none; or the file has become shorter
					none.Store(true)
				}
				looking.Lock()
				if m.reads++; m.toLook() && m.look(r) {
					none.Store(true)
				}
				looking.Unlock()
				if m.Unmap(r) != nil {
					none.Store(true)
				}
			}
		})
	}
	reads.Wait()
	if none.Load() {
		return 0 // what is there already is not read again
	}
	return min(next.Load(), folios) * m.FolioBytes
}

// readPages reads single pages from an offset on.
func (h *Head) readPages(ctx gocontext.Context, m *File, from int64) {
	fd := int(h.file.Fd())
	var one [1]byte
	for step := from; step < h.bytes && ctx.Err() == nil; step += headStep {
		end := min(step+headStep, h.bytes)
		for at := step; at < end; at += m.PieceBytes {
			if err := unix.Fadvise(fd, at, min(m.PieceBytes, end-at), unix.FADV_WILLNEED); err != nil {
				return
			}
		}
		if step > from {
			if _, err := h.file.ReadAt(one[:], step-1); err != nil { // the end of the step before
				return
			}
		}
	}
}

// Close closes it. What was read stays in the page cache.
func (h *Head) Close() error { return h.file.Close() }
