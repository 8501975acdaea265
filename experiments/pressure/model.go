package pressure

// This file measures which pages of the model file are in the page cache, drops them and loads them.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"tensorcast/internal/pagecache"
)

// modelFile is the model, open for reading.
type modelFile struct {
	file *os.File
	size int64
}

func openModel(path string) (*modelFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: not a regular file", path)
	}
	if err == nil && info.Size() == 0 {
		err = fmt.Errorf("open %s: the file is empty", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &modelFile{f, info.Size()}, nil
}

func (m *modelFile) close() error { return m.file.Close() }

// resident returns how many bytes of the file are in the page cache, in whole pages.
func (m *modelFile) resident() (int64, error) { return pagecache.Resident(m.file, 0, m.size) }

// ErrStillCached says that the kernel does not drop the model from the page cache.
var ErrStillCached = errors.New("the model stays in the page cache: another process maps it, or holds it locked. End that process")

// drop drops all of the file from the page cache, and checks that it is gone.
func (m *modelFile) drop(ctx context.Context) error {
	left, err := pagecache.Drop(ctx, m.file)
	if err == nil && left > 0 {
		return fmt.Errorf("%s: %d of %d MiB: %w", m.file.Name(), left>>20, m.size>>20, ErrStillCached)
	}
	return err
}

// load reads the whole file into the page cache. It is charged to this process's memory cgroup.
func (m *modelFile) load(ctx context.Context) error {
	buffer := make([]byte, 1<<20)
	for offset := int64(0); offset < m.size; {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n, err := m.file.ReadAt(buffer, offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n == 0 {
			return fmt.Errorf("read %s: %w", m.file.Name(), io.ErrUnexpectedEOF)
		}
		offset += int64(n)
	}
	return nil
}
