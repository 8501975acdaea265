package confine

// This file measures which pages of the model file are in the page cache, and drops them.

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"tensorcast/holding"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/regular"
)

// Model is a model file, open for reading. Its methods may be called concurrently, except Close.
type Model struct {
	Size int64 // bytes
	file *os.File
}

// Open opens a model, which must be a regular file that is not empty.
func Open(path string) (*Model, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() == 0 {
		err = fmt.Errorf("open %s: the file is empty", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Model{info.Size(), f}, nil
}

// Close closes the file.
func (m *Model) Close() error { return m.file.Close() }

// Resident returns how many bytes of the file are in the page cache, in whole pages.
func (m *Model) Resident() (int64, error) { return pagecache.Resident(m.file, 0, m.Size) }

// ReadAhead returns how many bytes around a fault the kernel reads on the file's disk; 0 if that is not known.
func (m *Model) ReadAhead() (int64, error) {
	bytes, err := holding.ReadAheadOf(m.file)
	if err != nil {
		return 0, fmt.Errorf("find the readahead of %s: %w", m.file.Name(), err)
	}
	return max(bytes, 0), nil
}

// ErrStillCached says that the kernel does not drop the model from the page cache.
var ErrStillCached = errors.New("the model stays in the page cache: another process maps it, or holds it locked. " +
	"End that process")

// ErrInMemory says that a model is on a file system that keeps it in memory only, so that it cannot
// be dropped.
var ErrInMemory = errors.New("a file system in memory")

// OnDisk fails with [ErrInMemory] if the model's file system is in memory (tmpfs).
func (m *Model) OnDisk() error {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(m.file.Fd()), &stat); err != nil {
		return fmt.Errorf("statfs %s: %w", m.file.Name(), err)
	}
	if stat.Type == unix.TMPFS_MAGIC || stat.Type == unix.RAMFS_MAGIC {
		return fmt.Errorf("%s: %w", m.file.Name(), ErrInMemory)
	}
	return nil
}

// DropAndCount drops the file from the page cache, and returns how many bytes remain nevertheless. It waits
// a few seconds for pages of processes that have just ended: see [pagecache.Drop].
func (m *Model) DropAndCount(ctx context.Context) (int64, error) { return pagecache.Drop(ctx, m.file) }

// Drop drops all of the file from the page cache. It fails with [ErrStillCached] if some of it remains.
func (m *Model) Drop(ctx context.Context) error {
	left, err := m.DropAndCount(ctx)
	if err == nil && left > 0 {
		return fmt.Errorf("%s: %d of %d MiB: %w", m.file.Name(), left>>20, m.Size>>20, ErrStillCached)
	}
	return err
}
