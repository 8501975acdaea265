package pages

// This file reads the head of a model ahead of a target that does not run yet, or has not mapped the model
// yet. The disk would have nothing to do meanwhile.

import (
	"context"
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

// Head is the first part of a model file, or all of it.
type Head struct {
	file  *os.File
	size  int64 // bytes of the file
	bytes int64 // of the head
	named int64 // see NamedBytes
}

// NamedBytes is how many bytes all GGUF files have that the command names. It is 0 if one of them is a part
// of a split model, because the command may not name the other parts.
func (h *Head) NamedBytes() int64 { return h.named }

// OpenNamedHead opens the head, of at most so many bytes, of the largest GGUF file that the arguments of a
// command name, alone or as --flag=file. It returns nil if they name none. Files that cannot be read, and all
// errors, are left to the command. Close the head.
func OpenNamedHead(args []string, most int64) *Head {
	largest := openLargest(args)
	if largest == nil {
		return nil
	}
	largest.bytes = min(most, largest.bytes)
	return largest
}

// FindNamedModel returns the path of the file that OpenNamedHead opens; empty if there is none.
func FindNamedModel(args []string) string {
	h := openLargest(args)
	if h == nil {
		return ""
	}
	defer h.Close() // nothing was written
	return h.file.Name()
}

// openLargest opens the largest GGUF file that a command names, as a whole.
func openLargest(args []string) (largest *Head) {
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
		if filepath.Ext(arg) != ".gguf" { // otherwise each argument would be opened
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

// openHead opens a file as a whole. It returns nil if that fails, or if its first bytes are not those of a
// GGUF file. It is not parsed, because that would wait for the disk.
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
	// headReaders is how many faults read at once. Each reads two large folios where all of the file is read.
	// With two readers the disk has to wait at times. With more readers, or one folio each, the target's own
	// reads come in between.
	headReaders = 3
	// headStep is half of what is under way at a time where single pages are read, in bytes. Whatever else
	// the target reads meanwhile, such as its libraries, waits no longer than for that.
	headStep = 8 << 20
)

// Read reads the head into the page cache, in the order of the file, until ctx ends. It reads large folios,
// which take a third of the processor's time, or single pages where there are none. It waits for the disk.
func (h *Head) Read(ctx context.Context) {
	m := &File{
		Path: h.file.Name(), File: h.file, Mapped: h.file, Size: h.size,
		FolioBytes: pagecache.FolioBytes(), PieceBytes: pieceBytes(h.file),
	}
	defer func() { _ = m.unmapAll() }() // it was mapped by mapAndAdvise
	if m.mapAndAdvise() != nil {
		return
	}
	h.readPages(ctx, m, h.readFolios(ctx, m))
}

// readFolios reads large folios, if there are any, and returns the offset where it ended.
func (h *Head) readFolios(ctx context.Context, m *File) (end int64) {
	if m.FolioBytes == 0 {
		return 0
	}
	if h.bytes < h.size && m.adviseOneByOne() != nil { // otherwise what is behind the head is read, too
		return 0
	}
	folios := h.bytes / m.FolioBytes
	var next atomic.Int64
	var noFolios atomic.Bool
	var inspecting sync.Mutex
	var reads sync.WaitGroup
	for range headReaders {
		reads.Go(func() {
			for ctx.Err() == nil && !noFolios.Load() {
				n := next.Add(1) - 1
				if n >= folios {
					return
				}
				r := Range{Offset: n * m.FolioBytes, Length: m.FolioBytes}
				// It fails before Linux 5.14, or if the file has become shorter.
				if unix.Madvise(m.Part(r), unix.MADV_POPULATE_READ) != nil {
					noFolios.Store(true)
				}
				inspecting.Lock()
				if m.reads++; m.shouldInspect() && m.inspect(r) {
					noFolios.Store(true)
				}
				inspecting.Unlock()
				if m.Unmap(r) != nil {
					noFolios.Store(true)
				}
			}
		})
	}
	reads.Wait()
	if noFolios.Load() {
		return 0 // reading pages from 0 does not read again what is there
	}
	return min(next.Load(), folios) * m.FolioBytes
}

// readPages reads single pages from an offset to the end of the head.
func (h *Head) readPages(ctx context.Context, m *File, from int64) {
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
			if _, err := h.file.ReadAt(one[:], step-1); err != nil { // waits for the end of the step before
				return
			}
		}
	}
}

// Close closes the file. What was read stays in the page cache.
func (h *Head) Close() error { return h.file.Close() }
