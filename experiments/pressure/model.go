package pressure

// This file looks at the model file's pages in the page cache, drops them and loads them.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
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
func (m *modelFile) resident() (int64, error) {
	page := int64(os.Getpagesize())
	var stat unix.Cachestat_t
	err := unix.Cachestat(uint(m.file.Fd()), &unix.CachestatRange{}, &stat, 0)
	switch {
	case err == nil:
		return int64(stat.Cache) * page, nil
	case !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM):
		return 0, fmt.Errorf("cachestat %s: %w", m.file.Name(), err)
	}
	return m.mincore(page)
}

// mincore is for kernels before 6.5. Its mapping is gone before it returns: pages that are mapped are not dropped.
func (m *modelFile) mincore(page int64) (int64, error) {
	mapping, err := unix.Mmap(int(m.file.Fd()), 0, int(m.size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("map %s: %w", m.file.Name(), err)
	}
	defer unix.Munmap(mapping)
	in := make([]byte, (m.size+page-1)/page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapping[0])), uintptr(m.size), uintptr(unsafe.Pointer(&in[0]))); errno != 0 {
		return 0, fmt.Errorf("mincore %s: %w", m.file.Name(), errno)
	}
	var n int64
	for _, p := range in {
		n += int64(p & 1)
	}
	return n * page, nil
}

// ErrStillCached says that the kernel does not drop the model from the page cache.
var ErrStillCached = errors.New("the model stays in the page cache: another process maps it, or holds it locked. End that process")

// dropTimeout bounds how long pages may take to become free: those of a process that just ended do.
const dropTimeout = 5 * time.Second

// drop drops all of the file from the page cache, and verifies it. Writing to drop_caches would not do more: it skips mapped pages too.
func (m *modelFile) drop(ctx context.Context) error {
	if err := m.file.Sync(); err != nil { // a page that is not written back stays
		return fmt.Errorf("sync %s: %w", m.file.Name(), err)
	}
	end := time.Now().Add(dropTimeout)
	for {
		if err := unix.Fadvise(int(m.file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return fmt.Errorf("drop %s from the page cache: %w", m.file.Name(), err)
		}
		n, err := m.resident()
		if err != nil || n == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: %d of %d MiB: %w", m.file.Name(), n>>20, m.size>>20, ErrStillCached)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// load reads all of the file into the page cache. It is charged to this process's group.
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
